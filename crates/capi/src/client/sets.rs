//! The epoll sets of a process, and the split sockets in them.
//!
//! A set consists of an epoll set of the kernel, which holds the kernel's descriptors and the
//! process's bell, and of a list of split members here. A member that may be ready is a
//! *candidate*: it was added or changed, a hint came for its socket, or it was ready the last time
//! and level-triggered. Waits look at candidates only. A candidate that is not ready has its record
//! hint the next change before it is left out, so nothing is missed.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use socket_channel::SocketId;

use super::application_file::Listed;
use super::numbers::Numbers;
use super::set_copies::{Copied, CopiedAtFork, SplitMember, kernel_members, patiently};
use super::timing::Instant;
use super::watchers::Watch;

/// Their addresses are the data of the bell and of the canary: no program uses those.
static BELL: u8 = 0;
static CANARY: u8 = 1;

pub(crate) fn bell_data() -> u64 {
    std::ptr::from_ref(&BELL).addr() as u64
}

pub(crate) fn canary_data() -> u64 {
    std::ptr::from_ref(&CANARY).addr() as u64
}

/// The requested events of a member, and its last report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// Bits of `epoll_ctl`.
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// `EDGE` of the record at the last report; `None` before the first.
    pub(crate) edge: Option<u64>,
    /// Reported, with `EPOLLONESHOT`: no further report until the member is modified.
    pub(crate) is_spent: bool,
}

/// The object that a member watches.
#[derive(Debug)]
pub(crate) enum Source {
    /// A split socket.
    Socket(SocketId),
    /// Another set: it is readable when one of its split members is ready.
    Set(Weak<Set>),
}

impl Source {
    fn is(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Socket(socket), Source::Socket(other)) => socket == other,
            (Source::Set(set), Source::Set(other)) => Weak::ptr_eq(set, other),
            (Source::Socket(_), Source::Set(_)) | (Source::Set(_), Source::Socket(_)) => false,
        }
    }

    /// Reports whether the set has ended.
    fn is_gone(&self) -> bool {
        matches!(self, Source::Set(set) if set.strong_count() == 0)
    }
}

/// A split member of a set.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) source: Source,
    interest: Mutex<Interest>,
    is_queued: AtomicBool,
    is_removed: AtomicBool,
    candidates: Weak<Candidates>,
    own: Weak<Member>,
}

#[derive(Debug, Default)]
pub(crate) struct Candidates {
    queue: Mutex<VecDeque<Arc<Member>>>,
    /// Threads that sleep in the set. Changed under the lock of the link.
    pub(crate) sleepers: AtomicUsize,
    /// The set was added to another set, in which threads may sleep for it.
    is_nested: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Candidates {
    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).len()
    }

    /// Takes the next candidate, which may be queued again from now on.
    pub(crate) fn pop(&self) -> Option<Arc<Member>> {
        let member = lock(&self.queue).pop_front()?;
        member.is_queued.store(false, Ordering::SeqCst);
        Some(member)
    }

    /// Notes that the set was added to another set.
    pub(crate) fn nest(&self) {
        self.is_nested.store(true, Ordering::Relaxed);
    }

    fn has_sleeper(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0 || self.is_nested.load(Ordering::Relaxed)
    }
}

impl Member {
    pub(crate) fn new(source: Source, interest: Interest, set: &Set) -> Arc<Member> {
        Arc::new_cyclic(|own| Member {
            source,
            interest: Mutex::new(interest),
            is_queued: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            candidates: Arc::downgrade(&set.candidates),
            own: Weak::clone(own),
        })
    }

    /// Makes the member a candidate, unless it is one.
    pub(crate) fn queue(&self) {
        if self.is_queued.swap(true, Ordering::SeqCst) {
            return;
        }
        if let (Some(candidates), Some(own)) = (self.candidates.upgrade(), self.own.upgrade()) {
            lock(&candidates.queue).push_back(own);
        }
    }

    pub(crate) fn interest(&self) -> MutexGuard<'_, Interest> {
        lock(&self.interest)
    }

    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::SeqCst)
    }
}

impl Watch for Member {
    fn notify(&self) -> bool {
        self.queue();
        let candidates = self.candidates.upgrade();
        candidates.is_some_and(|candidates| candidates.has_sleeper())
    }
}

/// The last time at which the kernel was asked for its descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    /// Calls since then that did not ask.
    pub(crate) skipped: u32,
}

/// The split half of an epoll set.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) candidates: Arc<Candidates>,
    pub(crate) members: Mutex<HashMap<RawFd, Arc<Member>>>,
    /// Members whose descriptor was closed while their source has other descriptors, by the closed
    /// number: they still report (epoll(7), "Will closing a file descriptor …").
    left: Mutex<Vec<(RawFd, Arc<Member>)>>,
    scan: Mutex<()>,
    /// Kernel descriptors that were added and not removed.
    pub(crate) kernel_members: AtomicUsize,
    pub(crate) asked: Mutex<Asked>,
    /// Whether the kernel's set has the bell, which is added with the first split member.
    pub(crate) has_bell: Mutex<bool>,
    /// Place in the list of sets in which no thread has waited.
    listed: Mutex<Option<Listed>>,
    was_waited_in: AtomicBool,
}

impl Set {
    pub(crate) fn new() -> Set {
        Set {
            candidates: Arc::default(),
            members: Mutex::default(),
            left: Mutex::default(),
            scan: Mutex::default(),
            kernel_members: AtomicUsize::new(0),
            asked: Mutex::new(Asked {
                at: Instant::now(),
                skipped: 0,
            }),
            has_bell: Mutex::new(false),
            listed: Mutex::default(),
            was_waited_in: AtomicBool::new(false),
        }
    }

    /// Notes that a thread waits in the set through the library.
    pub(crate) fn note_wait(&self) {
        if !self.was_waited_in.load(Ordering::Relaxed) {
            self.was_waited_in.store(true, Ordering::SeqCst);
            lock(&self.listed).take();
        }
    }

    /// Lists the set, which has a split member now, by one of its numbers.
    fn list(&self, number: RawFd) {
        let mut listed = lock(&self.listed);
        if !self.was_waited_in.load(Ordering::SeqCst) {
            *listed = Listed::new(number, bell_data());
        }
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, HashMap<RawFd, Arc<Member>>> {
        lock(&self.members)
    }

    /// Restores the member of a closed descriptor whose number leads to the same source again.
    pub(crate) fn find_again(
        &self,
        members: &mut HashMap<RawFd, Arc<Member>>,
        fd: RawFd,
        source: &Source,
    ) {
        let mut left = lock(&self.left);
        let found = left
            .iter()
            .position(|(of, member)| *of == fd && member.source.is(source));
        if let Some(place) = found {
            members.insert(fd, left.swap_remove(place).1);
        }
    }

    /// Removes all members of a closed set.
    pub(crate) fn empty(&self) -> Vec<Arc<Member>> {
        let left = std::mem::take(&mut *lock(&self.left)).into_iter();
        let members = std::mem::take(&mut *self.members());
        members
            .into_values()
            .chain(left.map(|(_, it)| it))
            .collect()
    }

    /// Lets one thread at a time look at candidates: those that it has taken out and will put back
    /// are missing meanwhile. Among nested sets, the outer one is locked first.
    pub(crate) fn scan(&self) -> MutexGuard<'_, ()> {
        lock(&self.scan)
    }

    /// Adds the bell to the kernel's set by `add`, once.
    pub(crate) fn ensure_bell<E>(
        &self,
        number: RawFd,
        add: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut has_bell = lock(&self.has_bell);
        if !*has_bell {
            add()?;
            *has_bell = true;
            self.list(number);
        }
        Ok(())
    }

    fn copied_members(&self) -> Vec<SplitMember> {
        let members = patiently(&self.members);
        let members = members.iter().flat_map(|it| it.iter());
        let copied = members.filter_map(|(fd, member)| {
            let socket = match member.source {
                Source::Socket(id) => Some(id),
                Source::Set(_) => None,
            };
            let interest = patiently(&member.interest)?;
            Some(SplitMember {
                fd: *fd,
                socket,
                events: interest.events,
                data: interest.data,
                is_spent: interest.is_spent,
            })
        });
        copied.collect()
    }

    pub(crate) fn asked(&self) -> MutexGuard<'_, Asked> {
        lock(&self.asked)
    }
}

/// Numbers that may be those of sets, in any process of the memory: other descriptors are
/// recognised without a lock, which a signal handler may find taken.
static NUMBERS: Numbers = Numbers::new();

/// The sets of a process by their descriptors.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    by_number: Mutex<HashMap<RawFd, Arc<Set>>>,
    /// Held while a set of the kernel is extended to hold split sockets.
    extending: Mutex<()>,
}

impl Sets {
    /// Reports whether a number may be that of a set, in this process or an ancestor.
    pub(crate) fn may_have(fd: RawFd) -> bool {
        NUMBERS.has(fd)
    }

    /// Locks the extension of a kernel's set to hold split sockets: without it, two threads that
    /// add the first ones would create two sets.
    pub(crate) fn extending(&self) -> MutexGuard<'_, ()> {
        lock(&self.extending)
    }

    /// Returns all numbers that may be those of sets.
    pub(crate) fn numbers_of_any() -> Vec<RawFd> {
        NUMBERS.all()
    }

    /// Forgets a closed number in a child that has no sets yet.
    pub(crate) fn forget_number(fd: RawFd) {
        NUMBERS.remove(fd);
    }

    /// Returns an identity that distinguishes a process's sets from those of its forks and
    /// ancestors.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn get(&self, fd: RawFd) -> Option<Arc<Set>> {
        if !NUMBERS.has(fd) {
            return None;
        }
        lock(&self.by_number).get(&fd).cloned()
    }

    pub(crate) fn insert(&self, fd: RawFd, set: Arc<Set>) {
        NUMBERS.insert(fd);
        lock(&self.by_number).insert(fd, set);
    }

    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        lock(&self.by_number).keys().copied().collect()
    }

    /// Removes a descriptor of a set; returns the set if that was its last.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Arc<Set>> {
        let mut sets = lock(&self.by_number);
        let set = sets.remove(&fd)?;
        NUMBERS.remove(fd);
        let is_last = !sets.values().any(|other| Arc::ptr_eq(other, &set));
        is_last.then_some(set)
    }

    /// Returns a descriptor's interest in each set that contains it, with one number of the set.
    pub(crate) fn entries(&self, fd: RawFd) -> Vec<(RawFd, Interest)> {
        let mut seen: Vec<Arc<Member>> = Vec::new();
        let sets = lock(&self.by_number);
        let entries = sets.iter().filter_map(|(epoll, set)| {
            let member = set.members().get(&fd).cloned()?;
            if seen.iter().any(|other| Arc::ptr_eq(other, &member)) {
                return None;
            }
            seen.push(Arc::clone(&member));
            let interest = *member.interest();
            Some((*epoll, interest))
        });
        entries.collect()
    }

    /// Removes a closed descriptor from all sets; returns its members. If its source has another
    /// descriptor, the members stay.
    pub(crate) fn forget(&self, fd: RawFd, has_other: bool) -> Vec<Arc<Member>> {
        let mut members = Vec::new();
        for set in self.all() {
            let Some(member) = set.members().remove(&fd) else {
                continue;
            };
            if has_other {
                let mut left = lock(&set.left);
                left.retain(|(_, other)| !other.source.is_gone());
                left.push((fd, member));
            } else {
                members.push(member);
            }
        }
        members.iter().for_each(|member| member.remove());
        members
    }

    /// Removes a socket without descriptors from all sets; returns the members that had stayed.
    pub(crate) fn forget_left(&self, socket: SocketId) -> Vec<Arc<Member>> {
        let mut members = Vec::new();
        for set in self.all() {
            let mut left = lock(&set.left);
            let of_socket = left.extract_if(.., |(_, it)| it.source.is(&Source::Socket(socket)));
            members.extend(of_socket.map(|(_, member)| member));
        }
        members.iter().for_each(|member| member.remove());
        members
    }

    /// Reports whether the set with this number has another number.
    pub(crate) fn has_other(&self, fd: RawFd) -> bool {
        if !NUMBERS.has(fd) {
            return false;
        }
        let sets = lock(&self.by_number);
        let Some(set) = sets.get(&fd) else {
            return false;
        };
        let mut others = sets.iter().filter(|(number, _)| **number != fd);
        others.any(|(_, other)| Arc::ptr_eq(other, set))
    }

    fn all(&self) -> Vec<Arc<Set>> {
        lock(&self.by_number).values().cloned().collect()
    }
}

impl CopiedAtFork for Sets {
    fn copied(&self) -> Vec<Copied> {
        let mut sets: Vec<(Arc<Set>, Vec<RawFd>)> = Vec::new();
        for (number, set) in patiently(&self.by_number).iter().flat_map(|it| it.iter()) {
            match sets.iter_mut().find(|(it, _)| Arc::ptr_eq(it, set)) {
                Some((_, numbers)) => numbers.push(*number),
                None => sets.push((Arc::clone(set), vec![*number])),
            }
        }
        let copied = sets.into_iter().filter_map(|(set, numbers)| {
            let kernels = kernel_members(*numbers.first()?, [bell_data(), canary_data()]);
            // A set with unknown members is not copied: the child keeps the kernel's set with its
            // members.
            let is_all_split = set.kernel_members.load(Ordering::Relaxed) == 0;
            let kernels = kernels.or_else(|| is_all_split.then(Vec::new))?;
            Some(Copied {
                of: self.identity(),
                kernels,
                numbers,
                split: set.copied_members(),
            })
        });
        copied.collect()
    }
}
