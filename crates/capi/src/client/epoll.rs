//! epoll(7) for split sockets and descriptors of the kernel in one set.
//!
//! `sets.rs` describes the structure of a set. A wait looks at the split members that may be ready;
//! if none is, it sleeps in the kernel's `epoll_wait`: on the kernel's descriptors, and on the
//! bell, which wakes it for split members. The bell is in the set with `EPOLLET` and is never read,
//! so a set that contains this one is woken, too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, Result};

use super::application::Client;
use super::cancellation;
use super::process::{Process, number};
use super::readiness::{ALWAYS, ONE_SHOT, Report, changes, report};
use super::set_copies::kernel_members;
use super::sets::{Interest, Set, Sets, Source, bell_data, canary_data};
use super::timing::{Instant, timespec};
use super::watchers::Watch;
use crate::sys;

/// Calls and time after which the kernel is asked for its descriptors while split members are
/// ready.
const KERNEL_EVERY_CALLS: u32 = 16;
const KERNEL_EVERY: Duration = Duration::from_micros(100);

/// Most events taken from the kernel at a time.
const KERNEL_EVENTS_MAX: usize = 512;

/// An event, or the interest in events: `struct epoll_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// Bits such as `EPOLLIN`.
    pub events: u32,
    /// Data of the caller.
    pub data: u64,
}

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// An operation of `epoll_ctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollChange {
    /// `EPOLL_CTL_ADD`.
    Add(EpollEvent),
    /// `EPOLL_CTL_MOD`.
    Modify(EpollEvent),
    /// `EPOLL_CTL_DEL`.
    Delete,
}

/// Asks the kernel: arguments are the set, the buffer for its events, their maximum, and the
/// timeout.
pub(crate) type Ask<'a> =
    dyn FnMut(BorrowedFd<'_>, &mut Vec<EpollEvent>, usize, Option<Duration>) -> Result<()> + 'a;

/// Returns the members of a set of the kernel, without those of the library; none if the kernel
/// does not list them, as without `/proc`.
pub fn members_in_kernel(set: RawFd) -> Vec<(RawFd, EpollEvent)> {
    let members = kernel_members(set, [bell_data(), canary_data()]).unwrap_or_default();
    let members = members.into_iter().map(|member| {
        let (events, data) = (member.events, member.data);
        (member.fd, EpollEvent { events, data })
    });
    members.collect()
}

/// Calls `epoll_wait` of the kernel.
pub(crate) fn ask_kernel(
    set: BorrowedFd<'_>,
    events: &mut Vec<EpollEvent>,
    max: usize,
    timeout: Option<Duration>,
) -> Result<()> {
    let mut found = Vec::with_capacity(max);
    let timeout = timeout.map(timespec);
    let spare = rustix::buffer::spare_capacity(&mut found);
    epoll::wait(set, spare, timeout.as_ref())?;
    events.extend(found.iter().map(|event| {
        let (flags, data) = (event.flags, event.data);
        EpollEvent {
            events: flags.bits(),
            data: data.u64(),
        }
    }));
    Ok(())
}

impl Client {
    /// Creates a set, as epoll_create1(2).
    pub fn epoll_create(&self, close_on_exec: bool) -> Result<OwnedFd> {
        let process = self.process()?;
        let flags = if close_on_exec {
            epoll::CreateFlags::CLOEXEC
        } else {
            epoll::CreateFlags::empty()
        };
        let fd = epoll::create(flags)?;
        process
            .sets
            .insert(number(fd.as_fd()), Arc::new(Set::new()));
        Ok(fd)
    }

    /// Lets a set of the kernel also hold split sockets from now on, through each of its
    /// descriptors; its duplicates are searched among the given numbers. EBADF, EINVAL if it is no
    /// set.
    pub fn epoll_extend(&self, epoll: BorrowedFd<'_>, among: &[RawFd]) -> Result<()> {
        let process = self.process()?;
        let _extending = process.sets.extending();
        if process.sets.get(number(epoll)).is_some() {
            return Ok(());
        }
        let extended = process.sets.numbers();
        let known = extended.iter().chain(among).copied();
        let duplicates = duplicates(epoll, known)?;
        let set = duplicates.iter().find_map(|fd| process.sets.get(*fd));
        let set = set.unwrap_or_else(|| {
            let set = Set::new();
            // Its present members are unknown, so the kernel is always asked.
            set.kernel_members.store(1, Ordering::Relaxed);
            Arc::new(set)
        });
        for fd in duplicates.into_iter().chain([number(epoll)]) {
            process.sets.insert(fd, Arc::clone(&set));
        }
        Ok(())
    }

    /// Adds a split socket to a set that had the kernel's socket in its place, with this interest
    /// as the kernel lists it. The readiness of the kernel's socket has been reported. EEXIST.
    pub fn epoll_succeed(
        &self,
        epoll: BorrowedFd<'_>,
        fd: BorrowedFd<'_>,
        interest: EpollEvent,
    ) -> Result<()> {
        let process = self.process()?;
        let (place, of_set) = (number(fd), number(epoll));
        let socket = self.find(fd)?.ok_or(Errno::BADF)?;
        let set = process.sets.get(of_set).ok_or(Errno::INVAL)?;
        let edge = changes(process, process.record(socket.id)?.edge());
        let watch = || process.link.watch_bell(epoll, bell_data(), canary_data());
        set.ensure_bell(of_set, watch)?;
        let (source, interest) = (Source::Socket(socket.id), listed(interest, Some(edge)));
        add_member(process, &set, place, source, interest)?;
        // A thread may sleep in the set.
        process.link.nudge();
        Ok(())
    }

    /// Notes that a set that may hold split sockets is a member of another one in the kernel, with
    /// this interest as the kernel lists it. Returns false if that was known.
    pub fn epoll_nest(
        &self,
        outer: BorrowedFd<'_>,
        inner: BorrowedFd<'_>,
        interest: EpollEvent,
    ) -> Result<bool> {
        let process = self.process()?;
        let (place, of_set) = (number(inner), number(outer));
        let found = (process.sets.get(of_set), process.sets.get(place));
        let (Some(set), Some(member)) = found else {
            return Ok(false);
        };
        let watch = || process.link.watch_bell(outer, bell_data(), canary_data());
        set.ensure_bell(of_set, watch)?;
        let source = Source::Set(Arc::downgrade(&member));
        match add_member(process, &set, place, source, listed(interest, None)) {
            Err(Errno::EXIST) => Ok(false),
            added => {
                // A thread may sleep in the set.
                process.link.nudge();
                added.map(|()| true)
            }
        }
    }

    /// Wakes threads that sleep in sets with split members, including threads that fell asleep
    /// before the set had any.
    pub fn wake_sets(&self) {
        if let Some(process) = self.process_if_attached() {
            process.link.ring_own_bell();
        }
    }

    /// Reports whether a number is that of a set that may hold split sockets.
    pub fn is_epoll_number(&self, fd: RawFd) -> bool {
        match self.process_if_attached() {
            Some(process) => process.sets.get(fd).is_some(),
            // A child looks up its parent's sets on its first call.
            None => Sets::may_have(fd),
        }
    }

    /// Changes a set, as epoll_ctl(2): `fd` may be a split socket, a file of the NIC stack, another
    /// set, or any descriptor of the kernel. EEXIST, ENOENT, EINVAL, EBADF, EPERM.
    pub fn epoll_change(
        &self,
        epoll: BorrowedFd<'_>,
        fd: BorrowedFd<'_>,
        change: EpollChange,
    ) -> Result<()> {
        let process = self.process()?;
        let (place, of_set) = (number(fd), number(epoll));
        if place == of_set {
            return Err(Errno::INVAL);
        }
        let source = match self.find(fd)? {
            Some(socket) => Some(Source::Socket(socket.id)),
            None => {
                let inner = process.sets.get(place);
                inner.map(|inner| Source::Set(Arc::downgrade(&inner)))
            }
        };
        if source.is_some() {
            check_exclusive(change)?;
        }
        let Some(set) = process.sets.get(of_set) else {
            // A set of the kernel without split members.
            return match source {
                Some(Source::Socket(_)) => Err(Errno::INVAL),
                Some(Source::Set(_)) | None => change_in_kernel(epoll, fd, change).map(drop),
            };
        };
        let in_kernel = !matches!(source, Some(Source::Socket(_)));
        if in_kernel {
            let added = change_in_kernel(epoll, fd, change)?;
            set.kernel_members.fetch_add(added, Ordering::Relaxed);
        }
        match source {
            Some(source) => {
                let watch = || process.link.watch_bell(epoll, bell_data(), canary_data());
                set.ensure_bell(of_set, watch)?;
                change_member(process, &set, place, source, change)?;
                // A thread may sleep in the set.
                process.link.nudge();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns the sets that contain a split socket or a set, with the interest in it.
    pub fn epoll_entries(&self, fd: BorrowedFd<'_>) -> Result<Vec<(RawFd, EpollEvent)>> {
        let entries = self.process()?.sets.entries(number(fd)).into_iter();
        let event = |Interest { events, data, .. }| EpollEvent { events, data };
        Ok(entries
            .map(|(epoll, interest)| (epoll, event(interest)))
            .collect())
    }

    /// Waits for events of a set, as epoll_wait(2); returns their number. EINTR after any signal
    /// handler (signal(7)).
    pub fn epoll_wait(
        &self,
        epoll: BorrowedFd<'_>,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize> {
        self.epoll_wait_by(epoll, events, timeout, &mut ask_kernel)
    }

    /// Like [`Client::epoll_wait`], with another function to ask the kernel.
    pub(crate) fn epoll_wait_by(
        &self,
        epoll: BorrowedFd<'_>,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        ask: &mut Ask<'_>,
    ) -> Result<usize> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        let process = self.process()?;
        let mut found = Vec::new();
        match process.sets.get(number(epoll)) {
            Some(set) => {
                set.note_wait();
                let mut wait = Wait {
                    process,
                    set: &set,
                    epoll,
                    max: events.len(),
                    ask,
                    of_sets: Vec::new(),
                };
                wait.run(&mut found, timeout)?;
                wait.wake_next(found.len());
            }
            None => ask(epoll, &mut found, events.len(), timeout)?,
        }
        for (event, found) in events.iter_mut().zip(&found) {
            *event = *found;
        }
        Ok(found.len().min(events.len()))
    }
}

/// Reports whether an event belongs to one of the library's own members of a set.
pub fn is_event_of_library(data: u64) -> bool {
    data == bell_data() || data == canary_data()
}

/// Returns the duplicates of a set's descriptor among some numbers. A member cannot be added twice,
/// through any descriptor of the set (epoll(7)).
fn duplicates(epoll: BorrowedFd<'_>, among: impl Iterator<Item = RawFd>) -> Result<Vec<RawFd>> {
    // The eventfd is never ready.
    let probe = eventfd(0, EventfdFlags::CLOEXEC)?;
    let add = |set: BorrowedFd<'_>| {
        epoll::add(
            set,
            &probe,
            EventData::new_u64(bell_data()),
            EventFlags::empty(),
        )
    };
    add(epoll)?;
    let mut found = Vec::new();
    for fd in among.filter(|fd| *fd != number(epoll)) {
        let Ok(other) = sys::borrow(fd) else {
            continue;
        };
        match add(other) {
            Ok(()) => epoll::delete(other, &probe)?,
            Err(Errno::EXIST) if !found.contains(&fd) => found.push(fd),
            Err(_) => {}
        }
    }
    epoll::delete(epoll, &probe)?;
    Ok(found)
}

/// Changes the kernel's half of a set; returns by how many members it grows.
fn change_in_kernel(
    epoll: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    change: EpollChange,
) -> Result<usize> {
    let event = |event: EpollEvent| {
        let flags = EventFlags::from_bits_retain(event.events);
        (EventData::new_u64(event.data), flags)
    };
    match change {
        EpollChange::Add(wanted) => {
            let (data, flags) = event(wanted);
            epoll::add(epoll, fd, data, flags)?;
            Ok(1)
        }
        EpollChange::Modify(wanted) => {
            let (data, flags) = event(wanted);
            epoll::modify(epoll, fd, data, flags)?;
            Ok(0)
        }
        EpollChange::Delete => {
            epoll::delete(epoll, fd)?;
            Ok(0)
        }
    }
}

/// EINVAL for bits that `EPOLLEXCLUSIVE` does not allow (`EPOLLEXCLUSIVE_OK_BITS` of Linux), or if
/// a modification sets it.
fn check_exclusive(change: EpollChange) -> Result<()> {
    const BESIDE: i32 = libc::EPOLLIN
        | libc::EPOLLOUT
        | libc::EPOLLERR
        | libc::EPOLLHUP
        | libc::EPOLLWAKEUP
        | libc::EPOLLET;
    let is_legal = match change {
        EpollChange::Add(event) => {
            event.events & EXCLUSIVE == 0 || event.events & !(EXCLUSIVE | BESIDE as u32) == 0
        }
        EpollChange::Modify(event) => event.events & EXCLUSIVE == 0,
        EpollChange::Delete => true,
    };
    if is_legal { Ok(()) } else { Err(Errno::INVAL) }
}

/// Returns an interest as the kernel lists it: it keeps no events after `EPOLLONESHOT`, and
/// otherwise those that are always reported.
fn listed(event: EpollEvent, edge: Option<u64>) -> Interest {
    let EpollEvent { events, data } = event;
    Interest {
        events,
        data,
        edge,
        is_spent: events & ONE_SHOT != 0 && events & ALWAYS == 0,
    }
}

/// Adds a member with its interest. EEXIST.
fn add_member(
    process: &Process,
    set: &Set,
    place: i32,
    source: Source,
    interest: Interest,
) -> Result<()> {
    let mut members = set.members();
    set.find_again(&mut members, place, &source);
    if members.contains_key(&place) {
        return Err(Errno::EXIST);
    }
    process.add_member(set, &mut members, place, source, interest);
    Ok(())
}

fn change_member(
    process: &Process,
    set: &Set,
    place: i32,
    source: Source,
    change: EpollChange,
) -> Result<()> {
    let interest = |event: EpollEvent| Interest {
        events: event.events,
        data: event.data,
        edge: None,
        is_spent: false,
    };
    let wanted = match change {
        EpollChange::Add(event) => return add_member(process, set, place, source, interest(event)),
        EpollChange::Modify(event) => Some(interest(event)),
        EpollChange::Delete => None,
    };
    let mut members = set.members();
    set.find_again(&mut members, place, &source);
    if let Some(wanted) = wanted {
        let member = members.get(&place).ok_or(Errno::NOENT)?;
        if member.interest().events & EXCLUSIVE != 0 {
            return Err(Errno::INVAL);
        }
        *member.interest() = wanted;
        member.queue();
        return Ok(());
    }
    let member = members.remove(&place).ok_or(Errno::NOENT)?;
    member.remove();
    if let Source::Socket(id) = member.source {
        let watch: Arc<dyn Watch> = member;
        process.link.watchers.remove(id.index, &watch);
    }
    Ok(())
}

/// One call of `epoll_wait`.
struct Wait<'a, 'b> {
    process: &'a Process,
    set: &'a Set,
    epoll: BorrowedFd<'a>,
    max: usize,
    ask: &'a mut Ask<'b>,
    /// Events of sets within this one: the kernel may report the same.
    of_sets: Vec<EpollEvent>,
}

impl Wait<'_, '_> {
    fn run(&mut self, found: &mut Vec<EpollEvent>, timeout: Option<Duration>) -> Result<()> {
        let link = &self.process.link;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            link.drain();
            let kernels = self.kernels_share();
            self.collect(found, self.max - kernels);
            let now = timeout == Some(Duration::ZERO);
            let is_kernels_turn = kernels > 0 && (!found.is_empty() || kernels == self.max);
            if is_kernels_turn || now && found.is_empty() {
                match self.ask(found, Some(Duration::ZERO)) {
                    // Events found take precedence over a signal.
                    Err(errno) if found.is_empty() => return Err(errno),
                    Ok(()) | Err(_) => {}
                }
                if found.is_empty() {
                    self.collect(found, self.max);
                }
            }
            if !found.is_empty() || now {
                return Ok(());
            }
            link.fall_asleep(Some(&self.set.candidates.sleepers));
            self.collect(found, self.max);
            let remaining = match deadline {
                _ if !found.is_empty() => Some(Duration::ZERO),
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => None,
            };
            let asked = cancellation::check().and_then(|()| self.ask(found, remaining));
            link.wake_up(Some(&self.set.candidates.sleepers));
            match asked {
                // Events found take precedence over a signal.
                Err(errno) if found.is_empty() => return Err(errno),
                Ok(()) | Err(_) => {}
            }
            if !found.is_empty() {
                return Ok(());
            }
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                // The bell may have rung at the last moment.
                self.collect(found, self.max);
                return Ok(());
            }
        }
    }

    /// Wakes another thread that sleeps in the set if this call had no room for all ready members
    /// (`ep_done_scan` of Linux).
    fn wake_next(&self, found: usize) {
        let candidates = &self.set.candidates;
        let is_full = found == self.max && candidates.sleepers.load(Ordering::Relaxed) > 0;
        if is_full && candidates.len() > 0 {
            self.process.link.ring_own_bell();
        }
    }

    /// Takes the events of split members, each once, until `max` events are found.
    fn collect(&mut self, found: &mut Vec<EpollEvent>, max: usize) {
        let candidates = &self.set.candidates;
        let _scan = self.set.scan();
        for _ in 0..candidates.len() {
            if found.len() >= max {
                return;
            }
            let Some(member) = candidates.pop() else {
                return;
            };
            let is_set = matches!(member.source, Source::Set(_)) && !member.is_removed();
            let is_next = match report(self.process, &member) {
                // A level may persist, or a further edge may have occurred.
                Some(report) => {
                    let Report { events, data, .. } = report;
                    let event = EpollEvent { events, data };
                    found.push(event);
                    if is_set {
                        self.of_sets.push(event);
                    }
                    !report.is_hinted
                }
                // Sets within this one get no hints.
                None => is_set,
            };
            if is_next {
                member.queue();
            }
        }
    }

    /// Adds events of the kernel to `found`, except those of the bell and the canary. The kernel
    /// hands over each event once, so it is never asked for more than `found` has room for.
    fn ask(&mut self, found: &mut Vec<EpollEvent>, timeout: Option<Duration>) -> Result<()> {
        let mut timeout = timeout;
        loop {
            let room = self.max.saturating_sub(found.len()).min(KERNEL_EVENTS_MAX);
            if room == 0 {
                return Ok(());
            }
            let mut events = Vec::new();
            (self.ask)(self.epoll, &mut events, room, timeout)?;
            // The kernel has reported its state of now, even after a long sleep.
            let mut asked = self.set.asked();
            asked.at = Instant::now();
            asked.skipped = 0;
            drop(asked);
            let is_full = events.len() == room;
            let mut has_own = false;
            for event in events {
                if is_event_of_library(event.data) {
                    has_own = true;
                    if event.data == canary_data() {
                        self.process.link.bury_canary(self.epoll);
                    }
                } else if !self.of_sets.contains(&event) {
                    found.push(event);
                }
            }
            // The bell, an edge that is reported once, has displaced another event.
            if !(is_full && has_own) {
                return Ok(());
            }
            timeout = Some(Duration::ZERO);
        }
    }

    /// Returns how many events to request from the kernel before split members fill the room: some
    /// when it is the kernel's turn. With room for one event, every second turn goes to split
    /// members.
    fn kernels_share(&self) -> usize {
        if self.set.kernel_members.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut asked = self.set.asked();
        asked.skipped += 1;
        let is_turn = asked.skipped >= KERNEL_EVERY_CALLS || asked.at.elapsed() >= KERNEL_EVERY;
        match self.max {
            _ if !is_turn => 0,
            1 if asked.skipped == 1 || self.set.candidates.len() == 0 => 0,
            max => max.div_ceil(2),
        }
    }
}
