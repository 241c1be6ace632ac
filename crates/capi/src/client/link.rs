//! The link to the host stack: commands out, answers and hints in, and how threads sleep until an
//! event arrives.
//!
//! # Sleeping
//!
//! The host stack rings the process's bell when an event passes the alarm of the event ring. The
//! bell is a descriptor that no thread ever reads: each sleeper has it in an epoll set of its own
//! with `EPOLLET`, where each ring is an edge. So no sleeper can take a ring from another.
//!
//! Any thread that enters the library takes events from the ring, under one lock, and passes them
//! to their recipients ([`Link::drain`]). Four rules make that safe:
//!
//! 1. *The alarm stays armed as long as any thread sleeps.* Sleepers are counted under the lock; a
//!    thread that takes events while others sleep arms the alarm again behind them, and takes the
//!    events that have arrived meanwhile.
//! 2. *A sleeper looks once more after it was counted*: at its answer, at the record, or at the
//!    candidates of its set.
//! 3. *Events are passed on under the same lock under which they are taken.* So the sleeper finds
//!    an event that another thread took before the sleeper was counted; a later one rings. Without
//!    this rule, a sleeper could look between the two, and sleep on while its answer is there.
//! 4. *A thread that takes an event for a sleeper rings for it*, with a bell of the process's own.
//!    The host stack publishes an event, and then reads the alarm. If a thread takes the event in
//!    between, and arms the alarm behind it, the host stack does not ring.
//!
//! Changes by the process itself, as by `epoll_ctl`, do not ring the bell: [`Link::nudge`] rings
//! the process's own bell, which is watched in the same way.
//!
//! Threads that wait for an answer, `sw_epoll_wait` and `sw_poll` sleep on the bell like this. A
//! thread that blocks in a call on one socket sleeps on a futex instead (`blocking.rs`), and one
//! thread of the library, the [`Pump`], sleeps on the bell for all such threads: a thousand blocked
//! threads are woken one by one, each for its own socket. While no thread blocks, the pump is
//! parked: in a program that waits by `epoll`, a ring should not wake two threads.
//!
//! # Without a descriptor
//!
//! A process that has given up creating descriptors, or the calls of epoll, waits for an answer on
//! a futex that each ring wakes (`rings.rs`). In `sw_poll` it sleeps in poll(2) on an eventfd that
//! was created before ([`Link::make_alarms`]). The pump, whose thread also exists already, passes
//! each ring of the bell on to both. Threads beyond the number of such eventfds poll with growing
//! pauses, as does a thread that can create no descriptor in a process without a pump.

use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, Result};
use rustix::thread::futex;
use socket_channel::channel::{AppEnd, ReceiveError};
use socket_channel::message::Info;
use socket_channel::{ChannelId, Command, Event, SocketId};

use super::attach::errno_of;
use super::fork;
use super::own::{Kept, KeptNumbers};
use super::rings::{Rings, Waiter};
use super::timing::timespec;
use super::watchers::Watchers;
use crate::sys;

/// Most events taken at a time, so that a fast host stack cannot keep a thread for ever.
const EVENTS_MAX: usize = 1024;

/// Most epoll sets of sleepers kept for reuse.
const BEDS_MAX: usize = 16;

/// Most threads of a confined process that sleep on an alarm at a time in `sw_poll`. Further
/// threads poll.
const ALARMS: usize = 4;

/// Shortest and longest sleep of a thread that polls.
const LOOK_AGAIN_MIN: Duration = Duration::from_micros(100);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(4);

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// An answer without error.
    Done {
        socket: Option<SocketId>,
        value: u64,
    },
    Info(Info),
}

/// See the [module documentation](self).
pub(crate) struct Link {
    channel: ChannelId,
    _bells_of_ring: KeptNumbers,
    ring: Mutex<Ring>,
    bell: Kept,
    /// The bell that the process itself rings, watched like the host stack's.
    own_bell: Kept,
    /// A handle of no socket: its hang-up means that the host stack is gone.
    canary: Kept,
    is_dead: AtomicBool,
    requests: Mutex<Requests>,
    pub(crate) watchers: Watchers,
    /// Threads that sleep in `sw_poll`, for any socket. Changed under the lock of the ring.
    pub(crate) pollers: AtomicUsize,
    beds: Mutex<Vec<Kept>>,
    /// Alarms for threads of a confined process in `sw_poll`.
    alarms: OnceLock<Vec<Alarm>>,
    is_confined: AtomicBool,
    /// A futex for sleeping threads without a descriptor.
    rings: Rings,
    has_pump: AtomicBool,
    /// Threads that block in a call on one socket, for which the pump sleeps on the bell.
    blocked: AtomicU32,
    is_pump_parked: AtomicBool,
}

/// An eventfd that the pump rings for the thread that holds it.
#[derive(Debug)]
struct Alarm {
    fd: Kept,
    is_taken: AtomicBool,
}

/// The means by which a thread sleeps.
#[derive(Debug)]
pub(crate) enum Bed<'a> {
    /// An epoll set with the bell.
    Set(Kept),
    /// An alarm, which keeps the pump running.
    Alarm(AlarmInUse<'a>),
    /// The count of rings, without a descriptor.
    Rings(InRings<'a>),
}

/// An alarm held by a sleeping thread.
#[derive(Debug)]
pub(crate) struct AlarmInUse<'a> {
    alarm: &'a Alarm,
    _blocked: Blocked<'a>,
}

impl Drop for AlarmInUse<'_> {
    fn drop(&mut self) {
        self.alarm.is_taken.store(false, Ordering::SeqCst);
    }
}

/// The state of a thread that sleeps without a descriptor.
#[derive(Debug)]
pub(crate) struct InRings<'a> {
    waiter: Waiter<'a>,
    look_again: LookAgain,
    _blocked: Blocked<'a>,
}

/// The next sleep of a thread that polls: twice as long as the last.
#[derive(Debug)]
pub(crate) struct LookAgain(Cell<Duration>);

impl Default for LookAgain {
    fn default() -> LookAgain {
        LookAgain(Cell::new(LOOK_AGAIN_MIN))
    }
}

impl LookAgain {
    pub(crate) fn next(&self) -> Duration {
        let now = self.0.get();
        self.0.set((2 * now).min(LOOK_AGAIN_MAX));
        now
    }
}

/// A thread for which the pump sleeps on the bell.
#[derive(Debug)]
struct Blocked<'a>(&'a Link);

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.unblock();
    }
}

impl Bed<'_> {
    /// Returns a descriptor for poll(2) to sleep on.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Bed::Set(set) => Some(set.as_fd()),
            Bed::Alarm(in_use) => Some(in_use.alarm.fd.as_fd()),
            Bed::Rings(_) => None,
        }
    }

    /// Returns the longest sleep in poll(2) before the thread looks again, if it has no descriptor.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        match self {
            Bed::Set(_) | Bed::Alarm(_) => None,
            Bed::Rings(in_rings) => Some(in_rings.look_again.next()),
        }
    }
}

struct Ring {
    end: AppEnd,
    sleepers: usize,
    /// A thread waits for room for its command.
    is_full: bool,
}

/// Actions left by [`Link::drain_locked`], to be done without the lock.
#[derive(Default)]
struct Drained {
    is_to_ring: bool,
    is_corrupt: bool,
}

#[derive(Default)]
struct Requests {
    last: u32,
    open: HashMap<u32, Request>,
}

/// A request whose answer a thread waits for.
struct Request {
    thread: ThreadId,
    answer: Option<Result<Answer>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(crate) fn new(
        channel: ChannelId,
        end: AppEnd,
        bell: OwnedFd,
        canary: OwnedFd,
    ) -> Result<Link> {
        let own_bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Link {
            channel,
            _bells_of_ring: KeptNumbers::of(end.descriptors()),
            ring: Mutex::new(Ring {
                end,
                sleepers: 0,
                is_full: false,
            }),
            bell: Kept::new(bell),
            own_bell: Kept::new(own_bell),
            canary: Kept::new(canary),
            is_dead: AtomicBool::new(false),
            requests: Mutex::default(),
            watchers: Watchers::default(),
            pollers: AtomicUsize::new(0),
            beds: Mutex::default(),
            alarms: OnceLock::new(),
            is_confined: AtomicBool::new(false),
            rings: Rings::default(),
            has_pump: AtomicBool::new(false),
            blocked: AtomicU32::new(0),
            is_pump_parked: AtomicBool::new(false),
        })
    }

    /// Returns the channel of this process, by which a record requests hints.
    pub(crate) fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Fails with ECONNRESET once the host stack is gone, or the channel is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_dead.load(Ordering::Acquire) {
            return Err(Errno::CONNRESET);
        }
        Ok(())
    }

    /// Like [`Link::check`], after checking whether the host stack is still there.
    pub(crate) fn look_at_host(&self) -> Result<()> {
        let mut fds = [PollFd::new(&self.canary, PollFlags::empty())];
        let polled = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        if polled == Ok(1) && fds[0].revents().contains(PollFlags::HUP) {
            self.die();
        }
        self.check()
    }

    /// Records that the host stack is gone: all waiting threads look again.
    pub(crate) fn die(&self) {
        if !self.is_dead.swap(true, Ordering::AcqRel) {
            self.watchers.notify_all();
            self.ring_own_bell();
            self.ring_alarms();
        }
    }

    /// Wakes all threads that sleep on the bell.
    pub(crate) fn ring_own_bell(&self) {
        let _ = rustix::io::write(&self.own_bell, &1u64.to_ne_bytes());
        self.rings.ring();
    }

    /// Sends a command. Waits while the ring is full.
    pub(crate) fn send(&self, command: &Command<'_>) -> Result<()> {
        self.send_then(command, AppEnd::flush)
    }

    /// Sends a command that has no effect before another: a sleeping host stack is woken for the
    /// next command, or when this thread sleeps.
    pub(crate) fn send_ahead(&self, command: &Command<'_>) -> Result<()> {
        self.send_then(command, AppEnd::publish)
    }

    fn send_then(&self, command: &Command<'_>, then: impl Fn(&mut AppEnd)) -> Result<()> {
        self.wait(|| {
            let mut ring = lock(&self.ring);
            let sent = ring.end.send(command).is_ok();
            if sent {
                then(&mut ring.end);
            }
            if !sent && !std::mem::replace(&mut ring.is_full, true) {
                // The host stack may rest to let commands gather.
                ring.end.hurry();
            }
            sent.then_some(())
        })
    }

    /// Sends a command that is answered, and waits for the answer. No signal interrupts the wait:
    /// the host stack answers without waiting for peers.
    pub(crate) fn ask<'a>(&self, command: impl FnOnce(u32) -> Command<'a>) -> Result<Answer> {
        let request = self.open_request();
        let answer = self
            .send_then(&command(request), AppEnd::hurry)
            .and_then(|()| self.wait(|| self.take_answer(request)))
            .and_then(|answer| answer);
        lock(&self.requests).open.remove(&request);
        answer
    }

    fn open_request(&self) -> u32 {
        let mut requests = lock(&self.requests);
        loop {
            // Number 0 is for commands whose answer is ignored.
            requests.last = requests.last.wrapping_add(1).max(1);
            let number = requests.last;
            if let std::collections::hash_map::Entry::Vacant(free) = requests.open.entry(number) {
                free.insert(Request {
                    thread: std::thread::current().id(),
                    answer: None,
                });
                return number;
            }
        }
    }

    fn take_answer(&self, request: u32) -> Option<Result<Answer>> {
        let mut requests = lock(&self.requests);
        requests.open.get_mut(&request)?.answer.take()
    }

    /// Takes all pending events, and passes them on.
    pub(crate) fn drain(&self) {
        let mut ring = lock(&self.ring);
        let drained = self.drain_locked(&mut ring);
        drop(ring);
        self.act_on(drained);
    }

    fn drain_locked(&self, ring: &mut Ring) -> Drained {
        let mut taken = 0;
        let mut drained = Drained::default();
        loop {
            match ring.end.receive() {
                // Rule 3: before another thread can take the lock.
                Ok(Some(event)) => {
                    drained.is_to_ring |= self.pass_on(event);
                    taken += 1;
                }
                Err(ReceiveError::Malformed) => {}
                Err(ReceiveError::Corrupt) => {
                    drained.is_corrupt = true;
                    break;
                }
                // Rule 1: the alarm is now behind the events taken, or there are more.
                Ok(None) if ring.sleepers > 0 && !ring.end.prepare_sleep() => {}
                Ok(None) => break,
            }
            if taken == EVENTS_MAX {
                // The alarm is not armed, so sleepers are woken to take the rest.
                drained.is_to_ring = true;
                break;
            }
        }
        // This loop has checked for room, so the host stack may not ring for it any more.
        if ring.is_full && ring.end.has_room() {
            ring.is_full = false;
            drained.is_to_ring = true;
        }
        drained
    }

    fn act_on(&self, drained: Drained) {
        if drained.is_to_ring {
            self.ring_own_bell();
        }
        if drained.is_corrupt {
            self.die();
        }
    }

    /// Wakes sleepers after a change by this process itself.
    pub(crate) fn nudge(&self) {
        if lock(&self.ring).sleepers > 0 {
            self.ring_own_bell();
        }
    }

    /// Makes all waiting threads look again.
    pub(crate) fn wake_all(&self) {
        self.watchers.notify_all();
        self.nudge();
    }

    /// Passes an event on. Returns true if another thread that may sleep on the bell waits for it
    /// (rule 4).
    fn pass_on(&self, event: Event) -> bool {
        let is_polled = self.pollers.load(Ordering::Relaxed) > 0;
        match event {
            Event::Ready { socket } => self.watchers.notify(socket.index) | is_polled,
            Event::ScanAll => self.watchers.notify_all() | is_polled,
            Event::Answer {
                request,
                errno: 0,
                socket,
                value,
            } => self.answer(request, Ok(Answer::Done { socket, value })),
            Event::Answer { request, errno, .. } => self.answer(request, Err(errno_of(errno))),
            Event::Info { request, info } => self.answer(request, Ok(Answer::Info(info))),
        }
    }

    fn answer(&self, request: u32, answer: Result<Answer>) -> bool {
        let mut requests = lock(&self.requests);
        let Some(request) = requests.open.get_mut(&request) else {
            return false;
        };
        request.answer = Some(answer);
        request.thread != std::thread::current().id()
    }

    /// Counts this thread as a sleeper, and also in `among`, the waiters for the same events, if
    /// given. The caller looks once more, and then sleeps.
    pub(crate) fn fall_asleep(&self, among: Option<&AtomicUsize>) {
        let mut ring = lock(&self.ring);
        ring.sleepers += 1;
        let drained = self.drain_locked(&mut ring);
        // The caller looks at events that this call has taken.
        if let Some(among) = among {
            among.fetch_add(1, Ordering::Relaxed);
        }
        drop(ring);
        self.act_on(drained);
    }

    /// Counts this thread as awake again.
    pub(crate) fn wake_up(&self, among: Option<&AtomicUsize>) {
        let mut ring = lock(&self.ring);
        ring.sleepers -= 1;
        if ring.sleepers == 0 {
            ring.end.disarm();
        }
        if let Some(among) = among {
            among.fetch_sub(1, Ordering::Relaxed);
        }
        let drained = self.drain_locked(&mut ring);
        drop(ring);
        self.act_on(drained);
    }

    /// Counts this thread among those for which the pump sleeps on the bell, before it falls
    /// asleep, until [`Link::unblock`].
    pub(crate) fn block(&self) {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        if self.is_pump_parked.load(Ordering::SeqCst) {
            let _ = futex::wake(&self.blocked, futex::Flags::PRIVATE, 1);
        }
    }

    /// Reverses [`Link::block`].
    pub(crate) fn unblock(&self) {
        self.blocked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits on the bell until `ready` returns a value; signals do not interrupt the wait. Fails
    /// with ECONNRESET when the host stack is gone.
    fn wait<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        self.check()?;
        if let Some(done) = ready() {
            return Ok(done);
        }
        let bed = self.bed_for_answer();
        loop {
            self.fall_asleep(None);
            let mut done = ready();
            if done.is_none() && self.check().is_ok() {
                let slept = self.sleep_in(&bed, None);
                self.wake_up(None);
                slept?;
                done = ready();
            } else {
                self.wake_up(None);
            }
            if let Some(done) = done {
                self.make_bed(bed);
                return Ok(done);
            }
            self.check()?;
        }
    }

    /// Returns the means to sleep by poll(2): an epoll set with the bell, an alarm, or neither.
    pub(crate) fn bed(&self) -> Bed<'_> {
        let set = self.bed_in_set().or_else(|| self.alarm());
        set.unwrap_or_else(|| self.bed_of_rings())
    }

    /// Returns the means to sleep for an answer: alarms are left to `sw_poll`.
    fn bed_for_answer(&self) -> Bed<'_> {
        let set = self.bed_in_set();
        set.unwrap_or_else(|| self.bed_of_rings())
    }

    /// Returns an epoll set with the bell, if one can be created.
    fn bed_in_set(&self) -> Option<Bed<'_>> {
        if self.is_confined.load(Ordering::Relaxed) {
            return None;
        }
        self.bed_of_pump().ok().map(Bed::Set)
    }

    fn bed_of_rings(&self) -> Bed<'_> {
        Bed::Rings(InRings {
            waiter: self.rings.waiter(),
            look_again: LookAgain::default(),
            _blocked: self.blocked(),
        })
    }

    fn blocked(&self) -> Blocked<'_> {
        self.block();
        Blocked(self)
    }

    /// Returns an epoll set with the bell.
    fn bed_of_pump(&self) -> Result<Kept> {
        if let Some(bed) = lock(&self.beds).pop() {
            return Ok(bed);
        }
        let bed = Kept::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        self.watch_bell(&bed, BELL, CANARY)?;
        Ok(bed)
    }

    /// Keeps a set for reuse.
    pub(crate) fn make_bed(&self, bed: Bed<'_>) {
        let Bed::Set(bed) = bed else {
            return;
        };
        let mut beds = lock(&self.beds);
        if beds.len() < BEDS_MAX {
            beds.push(bed);
        }
    }

    /// Creates the alarms on which threads sleep once this process creates no more descriptors.
    pub(crate) fn make_alarms(&self) -> Result<()> {
        if self.alarms.get().is_some() {
            return Ok(());
        }
        let alarm = || -> Result<Alarm> {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Alarm {
                fd: Kept::new(fd),
                is_taken: AtomicBool::new(false),
            })
        };
        let alarms: Result<Vec<Alarm>> = (0..ALARMS).map(|_| alarm()).collect();
        let _ = self.alarms.set(alarms?);
        Ok(())
    }

    /// Makes threads sleep without new epoll sets from now on.
    pub(crate) fn confine(&self) {
        self.is_confined.store(true, Ordering::Relaxed);
    }

    fn alarm(&self) -> Option<Bed<'_>> {
        let mut alarms = self.alarms.get()?.iter();
        let alarm = alarms.find(|alarm| !alarm.is_taken.swap(true, Ordering::SeqCst))?;
        let _blocked = self.blocked();
        Some(Bed::Alarm(AlarmInUse { alarm, _blocked }))
    }

    /// Passes a ring of the bell to threads that sleep on the count of rings or on an alarm.
    fn pass_ring_on(&self) {
        self.rings.ring();
        self.ring_alarms();
    }

    fn ring_alarms(&self) {
        let alarms = self.alarms.get().into_iter().flatten();
        for alarm in alarms.filter(|alarm| alarm.is_taken.load(Ordering::SeqCst)) {
            let _ = rustix::io::write(&alarm.fd, &1u64.to_ne_bytes());
        }
    }

    /// Adds the bell and the canary to an epoll set, with data that identifies their events.
    pub(crate) fn watch_bell(&self, set: impl AsFd, bell: u64, canary: u64) -> Result<()> {
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&set, &self.bell, EventData::new_u64(bell), edge)?;
        epoll::add(&set, &self.own_bell, EventData::new_u64(bell), edge)?;
        let hang_up = EventFlags::HUP;
        epoll::add(&set, &self.canary, EventData::new_u64(canary), hang_up)
    }

    /// Removes the dead canary from a set, in which it would be ready for ever.
    pub(crate) fn bury_canary(&self, set: impl AsFd) {
        self.die();
        let _ = epoll::delete(set, &self.canary);
    }

    /// Sleeps until the bell rings, the host stack is gone, or a signal arrives.
    pub(crate) fn sleep_in(&self, bed: &Bed<'_>, timeout: Option<&Timespec>) -> Result<()> {
        let bed = match bed {
            Bed::Set(set) => set,
            Bed::Alarm(in_use) => return sleep_on(&in_use.alarm.fd, timeout),
            Bed::Rings(in_rings) => {
                self.sleep_in_rings(in_rings, timeout);
                return Ok(());
            }
        };
        let mut events = Vec::with_capacity(4);
        match epoll::wait(bed, rustix::buffer::spare_capacity(&mut events), timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if events.iter().any(|event| event.data.u64() == CANARY) {
            self.die();
        }
        Ok(())
    }

    fn sleep_in_rings(&self, in_rings: &InRings<'_>, timeout: Option<&Timespec>) {
        let has_pump = self.has_pump.load(Ordering::Acquire);
        if timeout == Some(&Timespec::default()) {
            in_rings.waiter.update();
        } else if has_pump {
            in_rings.waiter.sleep(timeout);
        } else {
            let until_look = timespec(in_rings.look_again.next());
            in_rings.waiter.sleep(Some(&until_look));
        }
        if !has_pump {
            let _ = self.look_at_host();
        }
    }
}

/// Sleeps until an alarm is rung, or a signal arrives.
fn sleep_on(alarm: &OwnedFd, timeout: Option<&Timespec>) -> Result<()> {
    if timeout != Some(&Timespec::default()) {
        let mut fds = [PollFd::new(alarm, PollFlags::IN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    // EAGAIN if the alarm was not rung.
    let _ = rustix::io::read(alarm, &mut [0; 8]);
    Ok(())
}

const BELL: u64 = 1;
const CANARY: u64 = 2;
const STOP: u64 = 3;

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("channel", &self.channel)
            .field("is_dead", &self.is_dead)
            .finish_non_exhaustive()
    }
}

/// Most rings in a row while no thread blocks, before the pump is parked.
const IDLE_RINGS_MAX: u32 = 2;

/// The thread that takes events for threads that sleep on a futex. It gets no signals, and ends
/// with the process, or when this is dropped.
#[derive(Debug)]
pub(crate) struct Pump {
    /// Generation of the process whose thread it is.
    generation: u32,
    link: Arc<Link>,
    stop: Kept,
    /// Closed by the thread once its memory is allocated.
    ready: Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    pub(crate) fn start(link: &Arc<Link>) -> Result<Pump> {
        let stop = Kept::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bed = link.bed_of_pump()?;
        epoll::add(&bed, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let its_link = Arc::clone(link);
        let (is_ready, ready) = mpsc::channel();
        let thread = sys::without_signals(|| {
            let thread = std::thread::Builder::new().name("splitway-pump".to_owned());
            thread.spawn(move || Pump::run(&its_link, &bed, is_ready))
        });
        let thread = Some(thread.map_err(|_| Errno::AGAIN)?);
        link.has_pump.store(true, Ordering::Release);
        Ok(Pump {
            generation: fork::generation(),
            link: Arc::clone(link),
            stop,
            ready,
            thread,
        })
    }

    /// Waits until the thread has allocated its memory. glibc maps an arena for each thread that
    /// allocates, and a process that is about to limit its address space cannot map it later.
    pub(crate) fn await_memory(&self) {
        let Err(_) = self.ready.recv();
    }

    fn run(link: &Link, bed: &Kept, is_ready: Sender<Infallible>) {
        let mut events = Vec::with_capacity(4);
        drop(is_ready);
        let mut idle_rings = 0;
        loop {
            if idle_rings > IDLE_RINGS_MAX {
                Pump::park(link);
                idle_rings = 0;
            }
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(bed, spare, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return link.die(),
            }
            if events.iter().any(|event| event.data.u64() == STOP) {
                return;
            }
            if events.iter().any(|event| event.data.u64() == CANARY) {
                return link.die();
            }
            if link.blocked.load(Ordering::SeqCst) > 0 {
                idle_rings = 0;
                link.drain();
                link.pass_ring_on();
            } else {
                // Threads that sleep on the bell themselves take the events.
                idle_rings += 1;
            }
        }
    }

    /// Waits until a thread blocks. A ring in the meantime is an edge of the pump's epoll set,
    /// which its next wait reports.
    fn park(link: &Link) {
        link.is_pump_parked.store(true, Ordering::SeqCst);
        while link.blocked.load(Ordering::SeqCst) == 0 {
            let _ = futex::wait(&link.blocked, futex::Flags::PRIVATE, 0, None);
        }
        link.is_pump_parked.store(false, Ordering::SeqCst);
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // A child has no such thread, and shares `stop` with its parent.
        if self.generation != fork::generation() {
            return;
        }
        self.link.has_pump.store(false, Ordering::Release);
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.link.block();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.link.unblock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use socket_channel::channel::{self, HostEnd};

    use super::*;
    use crate::client::sets::{Interest, Member, Set, Source};
    use crate::client::watchers::Watch;

    const SOCKET: SocketId = SocketId {
        index: 3,
        generation: 1,
    };

    const READY: Event = Event::Ready { socket: SOCKET };

    /// Returns a link, and a host stack that publishes its events without ringing: other threads
    /// take them, and arm the alarm again, before it reads the alarm.
    fn link() -> (Link, HostEnd) {
        let memory = channel::create_file().unwrap();
        let bell = || channel::create_bell().unwrap();
        let host = HostEnd::from_files(&memory, bell(), bell()).unwrap();
        let end = AppEnd::from_files(&memory, bell(), bell()).unwrap();
        let link = Link::new(ChannelId(1), end, bell(), bell()).unwrap();
        (link, host)
    }

    /// Returns how often a sleeping host stack has been woken since the last call.
    fn rings(bell: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(bell, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    #[test]
    fn a_command_that_has_no_effect_yet_wakes_the_host_stack_with_the_next() {
        let memory = channel::create_file().unwrap();
        let bell = || channel::create_bell().unwrap();
        let of_host = bell();
        let its = || of_host.try_clone().unwrap();
        let mut host = HostEnd::from_files(&memory, its(), bell()).unwrap();
        let end = AppEnd::from_files(&memory, bell(), its()).unwrap();
        let link = Link::new(ChannelId(1), end, bell(), bell()).unwrap();
        let command = Command::Kick { socket: SOCKET };
        assert!(host.prepare_sleep());

        link.send_ahead(&command).unwrap();
        assert_eq!(rings(&of_host), 0);
        assert!(matches!(host.receive(), Ok(Some(Command::Kick { .. }))));
        assert!(matches!(host.receive(), Ok(None)));
        assert!(host.prepare_sleep());
        link.send_ahead(&command).unwrap();
        link.send(&command).unwrap();
        assert_eq!(rings(&of_host), 1);
        while let Ok(Some(_)) = host.receive() {}
        assert!(host.prepare_sleep());
        link.send_ahead(&command).unwrap();
        link.fall_asleep(None);
        assert_eq!(rings(&of_host), 1, "before this thread sleeps");
        link.wake_up(None);

        // The host stack may rest without an alarm.
        host.finish_sleep();
        link.send_then(&command, AppEnd::hurry).unwrap();
        assert_eq!(rings(&of_host), 1);
    }

    /// Rings that wake sleepers on the bell also wake the pump, until it is parked.
    #[test]
    fn the_pump_is_parked_while_no_thread_blocks() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let (link, _host) = link();
        let link = Arc::new(link);
        let pump = Pump::start(&link).unwrap();
        let until = |what: &str, is_so: &dyn Fn() -> bool| {
            let deadline = std::time::Instant::now() + PATIENCE;
            while !is_so() {
                assert!(std::time::Instant::now() < deadline, "{what}");
                std::thread::yield_now();
            }
        };
        let is_parked = || link.is_pump_parked.load(Ordering::SeqCst);
        for _ in 0..2 {
            until("it is parked", &|| {
                link.ring_own_bell();
                is_parked()
            });
            link.block();
            until("it has gone on", &|| !is_parked());
            link.unblock();
        }
        until("it is parked", &|| {
            link.ring_own_bell();
            is_parked()
        });
        // A parked pump ends, too.
        drop(pump);
        assert_eq!(Arc::strong_count(&link), 1);
    }

    /// Makes another thread take an event.
    fn take(link: &Link, host: &mut HostEnd, event: &Event) {
        host.send(event).unwrap();
        host.flush();
        std::thread::scope(|scope| {
            scope.spawn(|| link.drain());
        });
    }

    /// Reports whether a hint that another thread takes wakes sleepers.
    fn wakes(link: &Link, host: &mut HostEnd) -> bool {
        let bed = link.bed();
        let is_rung = || {
            let mut events = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut events);
            let set = bed.descriptor().unwrap();
            epoll::wait(set, spare, Some(&Timespec::default())).unwrap() > 0
        };
        // A new set reports earlier rings.
        is_rung();
        take(link, host, &READY);
        is_rung()
    }

    #[test]
    fn an_answer_that_another_thread_takes_wakes_the_thread_that_waits_for_it() {
        let (link, mut host) = link();
        let (woken, is_woken) = mpsc::channel();
        std::thread::spawn(move || {
            let request = link.open_request();
            let mut looks = 0;
            let answer = link.wait(|| {
                let answer = link.take_answer(request);
                looks += 1;
                // The look after the thread was counted: it sleeps next.
                if looks == 2 {
                    let event = Event::Answer {
                        request,
                        errno: 0,
                        socket: None,
                        value: 7,
                    };
                    take(&link, &mut host, &event);
                }
                answer
            });
            woken.send((looks, answer)).unwrap();
        });
        let woken = is_woken.recv_timeout(Duration::from_secs(20));
        let (looks, answer) = woken.expect("it sleeps on");
        assert!(
            matches!(answer, Ok(Ok(Answer::Done { value: 7, .. }))),
            "{answer:?}"
        );
        assert_eq!(looks, 3);
    }

    #[test]
    fn a_hint_that_another_thread_takes_wakes_those_who_sleep_for_its_socket() {
        let (link, mut host) = link();
        let set = Set::new();
        let interest = Interest {
            events: 1,
            data: 0,
            edge: None,
            is_spent: false,
        };
        let member = Member::new(Source::Socket(SOCKET), interest, &set);
        let watch: Arc<dyn Watch> = Arc::clone(&member) as Arc<dyn Watch>;
        link.watchers.add(SOCKET.index, watch);
        assert!(!wakes(&link, &mut host), "no thread sleeps");

        let in_set = Some(&set.candidates.sleepers);
        link.fall_asleep(in_set);
        assert!(wakes(&link, &mut host));
        link.wake_up(in_set);
        let of_others = Set::new();
        let in_other = Some(&of_others.candidates.sleepers);
        link.fall_asleep(in_other);
        assert!(!wakes(&link, &mut host), "a thread sleeps for others");
        // A thread that sleeps in a set also waits for members of inner sets.
        set.candidates.nest();
        assert!(wakes(&link, &mut host));
        link.wake_up(in_other);
        assert_eq!(set.candidates.len(), 1);
    }

    #[test]
    fn a_hint_that_another_thread_takes_wakes_those_who_poll() {
        let (link, mut host) = link();
        assert!(!wakes(&link, &mut host));
        link.fall_asleep(Some(&link.pollers));
        assert!(wakes(&link, &mut host));
        link.wake_up(Some(&link.pollers));
        assert!(!wakes(&link, &mut host));
    }
}
