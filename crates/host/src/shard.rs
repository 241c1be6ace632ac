//! A shard: one event loop on one core around a [`Stack`], with its port, its clock and its sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use contract::control::{HostSession, HostSocket};
use contract::limits::HEARTBEATS_MISSED_MAX;
use netdev::Port;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::app::Application;
use crate::ground::link::Link;
use crate::nics::nic_source::{NicLoss, NicSource};
use crate::polling::{Ahead, Pause, Polling, Rest};
use crate::stack::{ChannelCorrupt, Stack};

/// Most frames, and most events of each worker, that a turn takes in before it serves connections.
const BATCH: usize = 256;

/// More events than a ring holds.
const EVENTS_MAX: usize = contract::limits::EVENT_RING_BYTES;

/// Interval in which a shard that is never idle looks at the descriptors that would wake it, in
/// microseconds: closed descriptors of programs, messages of the broker and the shard's own end
/// wait until then.
const LOOK_US: u64 = 1_000;

/// Longest sleep, in microseconds: a day. A timeout of 2³¹ milliseconds or more would take another
/// system call (`epoll_pwait2`), which a serving process may not make.
const SLEEP_US_MAX: u64 = 24 * 3600 * 1_000_000;

const _: () = assert!(
    SLEEP_US_MAX / 1_000 <= i32::MAX as u64,
    "epoll_pwait takes an int"
);

/// Limits of the answering phase at the shard's end, in microseconds: its length, and the silence
/// that ends it, which is a round trip longer while peers may still have bytes to acknowledge.
const PARTING_US_MAX: u64 = 1_000_000;
const PARTING_SILENCE_US: u64 = 50_000;

/// Longest delay of a peer's last acknowledgment, in microseconds.
const PEER_DELAY_US: u64 = 50_000;

/// Time for a replaced NIC stack to end, in microseconds. Afterwards, connections whose records it
/// may still send are reset. The supervisor kills a NIC process that takes three seconds.
const NIC_END_US_MAX: u64 = 4_000_000;

/// Why a shard has ended.
#[derive(Debug)]
pub enum ShardError {
    /// The port failed.
    Port(io::Error),
    /// Waiting for work failed.
    Wait(io::Error),
}

impl std::fmt::Display for ShardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ShardError::Port(error) => write!(f, "receiving from the link failed: {error}"),
            ShardError::Wait(error) => write!(f, "waiting for work failed: {error}"),
        }
    }
}

impl std::error::Error for ShardError {}

/// A NIC stack that replaces one which has been asked to end.
#[derive(Debug)]
struct Coming {
    nic: usize,
    session: HostSession,
    until_us: u64,
}

/// An event loop and its state.
#[derive(Debug)]
pub struct Shard<P, A> {
    stack: Stack,
    port: P,
    app: A,
    polling: Polling,
    /// Additional work for each frame, in microseconds.
    frame_delay_us: u64,
    /// The socket of each present NIC stack; it hangs up when the NIC stack is gone.
    nics: Vec<Option<HostSocket>>,
    /// NIC stacks that wait for their predecessors to end, with the deadlines of the wait.
    coming: Vec<Coming>,
    /// A NIC stack's channel holds invalid data.
    corrupt: Option<ChannelCorrupt>,
    heartbeat: Heartbeat,
}

/// Schedule of the heartbeats requested from NIC workers.
#[derive(Clone, Copy, Debug, Default)]
struct Heartbeat {
    /// Zero: never.
    period_us: u64,
    next_us: u64,
}

impl Heartbeat {
    /// Missed heartbeats after which a stalled worker is lost: if its process could be killed, it
    /// has hung up by now.
    const LOST: u32 = HEARTBEATS_MISSED_MAX + 1;

    fn next_us(&self) -> Option<u64> {
        (self.period_us > 0).then_some(self.next_us)
    }

    /// True if it is time for a request. A shard that was stalled itself makes one request: workers
    /// that had no time to answer have missed one heartbeat at most.
    fn is_due(&mut self, now_us: u64) -> bool {
        let is_due = self.next_us().is_some_and(|next_us| next_us <= now_us);
        if is_due {
            // At multiples of the period, as the supervisor: an idle machine wakes once for both.
            let soonest_us = now_us + self.period_us - self.period_us / 4;
            self.next_us = soonest_us.next_multiple_of(self.period_us);
        }
        is_due
    }
}

/// Microseconds of `CLOCK_MONOTONIC`, the host's clock in the contract.
pub fn monotonic_us() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000 + tv_nsec as u64 / 1_000
}

/// Keeps the core busy for a time, in microseconds.
fn work_for(us: u64) {
    let end_us = monotonic_us() + us;
    while monotonic_us() < end_us {
        std::hint::spin_loop();
    }
}

impl<P: Port, A: Application> Shard<P, A> {
    /// Creates a shard that rests as `polling` decides. `nic` is the NIC stack that the stack has
    /// already, and the socket of its hello.
    pub fn new(
        stack: Stack,
        nic: (usize, impl Into<HostSocket>),
        port: P,
        app: A,
        polling: Polling,
    ) -> Shard<P, A> {
        let mut shard = Shard {
            stack,
            port,
            app,
            polling,
            frame_delay_us: 0,
            nics: Vec::new(),
            coming: Vec::new(),
            corrupt: None,
            heartbeat: Heartbeat::default(),
        };
        let (nic, socket) = nic;
        shard.replace_socket(nic, Some(socket.into()));
        shard
    }

    /// Adds work to each frame, in microseconds. For measurements only, to quantify the value of
    /// the control plane's own time (IO-TCP §5.5).
    pub fn set_frame_delay(&mut self, us: u64) {
        self.frame_delay_us = us;
    }

    /// Sets the time without an answer after which a NIC worker counts as stalled, in microseconds;
    /// zero: never.
    pub fn set_heartbeat(&mut self, us: u64) {
        self.heartbeat.period_us = us / u64::from(HEARTBEATS_MISSED_MAX);
    }

    /// The stack, for its counters.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The application.
    pub fn app(&self) -> &A {
        &self.app
    }

    /// Runs one round of work without a sleep. Returns true if there was any.
    pub fn turn(&mut self, now_us: u64) -> Result<bool, ShardError> {
        let events = self.hear(now_us, BATCH);
        let (stack, delay_us) = (&mut self.stack, self.frame_delay_us);
        let frames = self
            .port
            .receive(BATCH, &mut |frame| {
                if delay_us > 0 {
                    work_for(delay_us);
                }
                stack.on_frame(now_us, frame);
            })
            .map_err(ShardError::Port)?;
        self.stack.on_time(now_us);
        let served = self.stack.serve(now_us, &mut self.port, &mut self.app);
        Ok(events + frames > 0 || served)
    }

    /// Takes in events of the NIC workers, at most `budget` of each; returns their number.
    fn hear(&mut self, now_us: u64, budget: usize) -> usize {
        if self.corrupt.is_some() {
            return 0;
        }
        match self.stack.on_channels(now_us, budget) {
            Ok(events) => events,
            Err(corrupt) => {
                self.corrupt = Some(corrupt);
                0
            }
        }
    }

    /// Stores the socket of a NIC stack, and returns the previous one.
    fn replace_socket(&mut self, nic: usize, socket: Option<HostSocket>) -> Option<HostSocket> {
        if self.nics.len() <= nic {
            self.nics.resize_with(nic + 1, || None);
        }
        std::mem::replace(&mut self.nics[nic], socket)
    }

    /// Runs until `stop` becomes readable. `nics` provides the NIC stacks after the first one, and
    /// replacements. Connections that are open at the end are reset.
    pub fn run(
        &mut self,
        nics: &mut impl NicSource<A>,
        stop: BorrowedFd<'_>,
    ) -> Result<(), ShardError> {
        let waiter = Waiter::new(&self.port, &self.app, nics, stop).map_err(ShardError::Wait)?;
        for nic in 0..self.nics.len() {
            self.watch_nic(&waiter, nic, true)
                .map_err(ShardError::Wait)?;
        }
        let result = self.turn_until_end(&waiter, nics);
        self.part();
        result
    }

    /// Resets all connections, then answers for a moment: a peer that lacks data in flight sends a
    /// challenge ACK (RFC 5961 §3.2), one that has more than was reported acknowledges it; the RST
    /// in reply has the number that the peer expects.
    fn part(&mut self) {
        let begun_us = monotonic_us();
        // All reported departures count.
        self.hear(begun_us, EVENTS_MAX);
        let in_flight = self
            .stack
            .abort_all(begun_us, &mut self.port, &mut self.app);
        let more_us = in_flight.map_or(0, |round_trip_us| round_trip_us + PEER_DELAY_US);
        let silence_us = PARTING_SILENCE_US + more_us;
        let mut heard_us = begun_us;
        loop {
            let now_us = monotonic_us();
            // The NIC stack ends with the host: CONNECTION_CLOSE must depart before that.
            let is_quiet = now_us - heard_us > silence_us && self.stack.sends_outstanding() == 0;
            if now_us - begun_us > PARTING_US_MAX || is_quiet {
                return;
            }
            match self.turn(now_us) {
                Ok(true) => heard_us = now_us,
                Ok(false) => nap(1_000),
                // The port is gone: nothing more can be sent.
                Err(_) => return,
            }
        }
    }

    fn turn_until_end(
        &mut self,
        waiter: &Waiter,
        nics: &mut impl NicSource<A>,
    ) -> Result<(), ShardError> {
        let mut looked_us = 0;
        self.stack.set_unix_time(unix_time());
        loop {
            let now_us = monotonic_us();
            let mut rest = None;
            if self.turn(now_us)? {
                self.polling.on_work();
            } else {
                let timer_us = self.next_timeout_us();
                let ahead = Ahead {
                    outstanding: self.stack.sends_outstanding(),
                    timer_us: timer_us.map(|at_us| at_us.saturating_sub(now_us)),
                    moderation_us_max: self.app.moderation_us_max(),
                };
                rest = Some(self.polling.on_idle(now_us, ahead));
            }
            if self.heartbeat.is_due(now_us) {
                self.ask_for_heartbeats(waiter, nics)?;
            }
            if let Some(corrupt) = self.corrupt {
                let nic = self.stack.nic_of(corrupt.worker);
                self.lose_nic(nic, NicLoss::Corrupt(corrupt), waiter, nics)?;
                continue;
            }
            let woken = match rest {
                Some(Rest::Sleep) => {
                    let woken = self.sleep(waiter, now_us)?;
                    let slept_us = monotonic_us().saturating_sub(now_us);
                    self.polling.on_wake(slept_us);
                    woken
                }
                // Never asleep, it has to ask.
                _ if now_us.saturating_sub(looked_us) > LOOK_US => {
                    waiter.wait(Some(NO_TIME)).map_err(ShardError::Wait)?
                }
                Some(Rest::Pause(us)) => {
                    self.pause(us, now_us)?;
                    continue;
                }
                Some(Rest::LookAgain) => {
                    std::hint::spin_loop();
                    continue;
                }
                None => continue,
            };
            // Not since the sleep began: a turn after it does not have to ask again.
            looked_us = monotonic_us();
            self.stack.set_unix_time(unix_time());
            if woken.stop {
                return Ok(());
            }
            if let Some(nic) = woken.nic_gone {
                self.on_hang_up(nic, waiter, nics)?;
            } else if woken.nic_source {
                self.take_nic(waiter, nics)?;
                nics.on_wake(now_us, &mut self.stack, &mut self.app);
            }
            if woken.link {
                self.follow_link(now_us)?;
            }
            if woken.app {
                self.stack.wake(now_us, &mut self.app);
            }
            while let Some(late) = self.coming.iter().position(|it| it.until_us <= now_us) {
                let Coming { nic, session, .. } = self.coming.swap_remove(late);
                tracing::warn!(nic, "the NIC stack before does not end");
                self.use_nic(nic, session, waiter)?;
            }
            self.stack.retry_waiting_room();
        }
    }

    /// Applies changes of the link.
    fn follow_link(&mut self, now_us: u64) -> Result<(), ShardError> {
        if let Some(change) = self.port.follow_link().map_err(ShardError::Port)? {
            self.stack.on_link(now_us, Link::of(&self.port), change);
        }
        Ok(())
    }

    /// A NIC stack is gone. Takes in its remaining events first, so that less is sent twice.
    fn lose_nic(
        &mut self,
        nic: usize,
        loss: NicLoss,
        waiter: &Waiter,
        nics: &mut impl NicSource<A>,
    ) -> Result<(), ShardError> {
        let now_us = monotonic_us();
        self.hear(now_us, EVENTS_MAX);
        if let Some(next) = self.coming.iter().position(|coming| coming.nic == nic) {
            let Coming { session, .. } = self.coming.swap_remove(next);
            return self.use_nic(nic, session, waiter);
        }
        self.watch_nic(waiter, nic, false)
            .map_err(ShardError::Wait)?;
        self.replace_socket(nic, None);
        self.stack.on_nic_lost(now_us, nic);
        self.corrupt = None;
        nics.on_lost(nic, loss);
        Ok(())
    }

    /// Requests heartbeats from all NIC workers, and replaces stalled NIC stacks.
    fn ask_for_heartbeats(
        &mut self,
        waiter: &Waiter,
        nics: &mut impl NicSource<A>,
    ) -> Result<(), ShardError> {
        let mut silent = Vec::new();
        self.stack.heartbeat(|worker, missed| {
            if missed >= HEARTBEATS_MISSED_MAX {
                silent.push((worker, missed));
            }
        });
        let mut told = None;
        for (worker, missed) in silent {
            let nic = self.stack.nic_of(worker);
            match missed {
                HEARTBEATS_MISSED_MAX if told != Some(nic) => {
                    told = Some(nic);
                    self.stack.counters_mut().nic_silences += 1;
                    nics.on_silent(nic, worker);
                }
                Heartbeat::LOST => self.lose_nic(nic, NicLoss::Silent(worker), waiter, nics)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A NIC stack has closed its socket: its workers have ended or were killed, so it sends
    /// nothing more.
    fn on_hang_up(
        &mut self,
        nic: usize,
        waiter: &Waiter,
        nics: &mut impl NicSource<A>,
    ) -> Result<(), ShardError> {
        let now_us = monotonic_us();
        self.hear(now_us, EVENTS_MAX);
        self.stack.on_nic_ended(now_us, nic);
        self.lose_nic(nic, NicLoss::HungUp, waiter, nics)
    }

    /// A NIC stack has joined: for the first time, after its loss, or as its own replacement.
    fn take_nic(
        &mut self,
        waiter: &Waiter,
        nics: &mut impl NicSource<A>,
    ) -> Result<(), ShardError> {
        let Some((nic, session)) = nics.take() else {
            return Ok(());
        };
        if let Some(refusal) = self.stack.ground.nic_refusal(nic, session.channels.len()) {
            nics.on_refused(nic, refusal);
            return Ok(());
        }
        // The supervisor must not see the predecessor's end, if there is one, before its reason.
        nics.on_joined(nic);
        self.coming.retain(|coming| coming.nic != nic);
        if self.stack.tcp.has_unproven(&self.stack.ground, nic)
            && let Some(Some(before)) = self.nics.get(nic)
            && hang_up(before)
        {
            // The predecessor ends, and until then reports the tags of records that it has sealed.
            self.stack.on_nic_ending(nic);
            self.coming.push(Coming {
                nic,
                session,
                until_us: monotonic_us() + NIC_END_US_MAX,
            });
            return Ok(());
        }
        self.use_nic(nic, session, waiter)
    }

    /// Uses a NIC stack from now on. Closing its predecessor's socket makes that one end.
    fn use_nic(
        &mut self,
        nic: usize,
        session: HostSession,
        waiter: &Waiter,
    ) -> Result<(), ShardError> {
        let HostSession { channels, socket } = session;
        self.hear(monotonic_us(), EVENTS_MAX);
        self.watch_nic(waiter, nic, false)
            .map_err(ShardError::Wait)?;
        let come = self.stack.on_nic_come(monotonic_us(), nic, channels);
        debug_assert_eq!(come, Ok(()), "it was asked");
        self.replace_socket(nic, Some(socket));
        self.corrupt = None;
        self.watch_nic(waiter, nic, true).map_err(ShardError::Wait)
    }

    /// Adds a NIC stack's socket and wake-ups to the descriptors that end a sleep, or removes them:
    /// closing our descriptors would not suffice, since the peer has them, too.
    fn watch_nic(&self, waiter: &Waiter, nic: usize, watch: bool) -> io::Result<()> {
        let Some(Some(socket)) = self.nics.get(nic) else {
            return Ok(());
        };
        let bells = self.stack.channels_of(nic);
        let bells = bells.filter_map(|channel| channel.wake_fd());
        if watch {
            waiter.add(socket.as_fd(), Waiter::NIC_SOCKETS + nic as u64)?;
            for bell in bells {
                waiter.add_edges(bell)?;
            }
        } else {
            for fd in std::iter::once(socket.as_fd()).chain(bells) {
                epoll::delete(&waiter.epoll, fd)?;
            }
        }
        Ok(())
    }

    /// Lets work gather, and learns how fast the NIC stack is.
    fn pause(&mut self, us: u64, now_us: u64) -> Result<(), ShardError> {
        self.stack.counters_mut().pauses += 1;
        let outstanding = self.stack.sends_outstanding();
        let departed = self.stack.sends_departed();
        let items = self.stack.items();
        let was_hurried = match self.app.hurry_set() {
            None => {
                nap(us);
                false
            }
            Some(set) => nap_unless(set, us),
        };
        self.stack.retry_waiting_room();
        let woken_us = monotonic_us();
        if self.turn(woken_us)? {
            self.polling.on_work();
        }
        if was_hurried {
            return Ok(());
        }
        self.polling.on_paused(Pause {
            us: woken_us.saturating_sub(now_us),
            outstanding,
            departed: self.stack.sends_departed() - departed,
            items: self.stack.items() - items,
        });
        Ok(())
    }

    /// Returns the time of the next timeout, for which no descriptor wakes the shard.
    fn next_timeout_us(&self) -> Option<u64> {
        let coming_us = self.coming.iter().map(|coming| coming.until_us).min();
        let app_us = self.app.next_timeout_us();
        let heartbeat_us = self.heartbeat.next_us();
        [
            self.stack.next_timeout_us(),
            coming_us,
            app_us,
            heartbeat_us,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sleeps until a frame, an event, a timer or an end.
    fn sleep(&mut self, waiter: &Waiter, now_us: u64) -> Result<Woken, ShardError> {
        let mut quiet = true;
        for channel in self.stack.channels() {
            quiet &= channel.prepare_sleep();
        }
        quiet &= self.app.prepare_sleep();
        let timeout = if quiet {
            timeout(self.next_timeout_us(), now_us)
        } else {
            Some(NO_TIME)
        };
        self.stack.counters_mut().sleeps += u64::from(quiet);
        let woken = waiter.wait(timeout).map_err(ShardError::Wait);
        for channel in self.stack.channels() {
            channel.disarm();
        }
        self.app.finish_sleep();
        woken
    }
}

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Asks a NIC stack to end while its events are still read. False if its socket is gone.
fn hang_up(socket: &HostSocket) -> bool {
    socket.take_leave();
    shutdown(socket, Shutdown::Write).is_ok()
}

/// Sleeps without being woken by work.
fn nap(us: u64) {
    let time = Timespec {
        tv_sec: 0,
        tv_nsec: (us * 1_000) as i64,
    };
    // A nap that a signal has ended early is still a pause.
    let _ = rustix::thread::nanosleep(&time);
}

/// Naps until an epoll set has events, which it consumes. Returns true if there were any.
fn nap_unless(set: BorrowedFd<'_>, us: u64) -> bool {
    let mut events = [epoll::Event {
        flags: epoll::EventFlags::empty(),
        data: epoll::EventData::new_u64(0),
    }; 16];
    // Unlike epoll_pwait(2), poll takes nanoseconds.
    let mut polled = [PollFd::from_borrowed_fd(set, PollFlags::IN)];
    if poll(&mut polled, Some(&sleep_of(us))) != Ok(1) {
        return false;
    }
    let _ = epoll::wait(set, &mut events[..], Some(&NO_TIME));
    true
}

fn unix_time() -> std::time::Duration {
    std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns how long the shard may sleep.
fn timeout(at_us: Option<u64>, now_us: u64) -> Option<Timespec> {
    Some(sleep_of(at_us?.saturating_sub(now_us)))
}

fn sleep_of(us: u64) -> Timespec {
    let us = us.min(SLEEP_US_MAX);
    Timespec {
        tv_sec: (us / 1_000_000) as i64,
        tv_nsec: (us % 1_000_000 * 1_000) as i64,
    }
}

/// Reasons for the end of a sleep, other than packets and events.
#[derive(Clone, Copy, Default)]
struct Woken {
    stop: bool,
    nic_gone: Option<usize>,
    nic_source: bool,
    app: bool,
    link: bool,
}

/// The descriptors that end a sleep.
struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    const WORK: u64 = 0;
    const STOP: u64 = 1;
    const NIC_SOURCE: u64 = 2;
    const APP: u64 = 3;
    const LINK: u64 = 4;
    /// Base of the NIC stacks' numbers.
    const NIC_SOCKETS: u64 = 5;

    fn new<A: Application>(
        port: &impl Port,
        app: &A,
        nics: &impl NicSource<A>,
        stop: BorrowedFd<'_>,
    ) -> io::Result<Waiter> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waiter = Waiter { epoll };
        for fd in port.receive_fds() {
            waiter.add(fd, Waiter::WORK)?;
        }
        if let Some(fd) = port.link_fd() {
            waiter.add(fd, Waiter::LINK)?;
        }
        waiter.add(nics.wake_fd(), Waiter::NIC_SOURCE)?;
        waiter.add(stop, Waiter::STOP)?;
        for fd in app.wake_fds() {
            waiter.add(fd, Waiter::APP)?;
        }
        if let Some(rings) = app.ring_set() {
            waiter.add_edges(rings)?;
        }
        Ok(waiter)
    }

    /// Each ring ends a sleep by an edge; the ring's descriptor is never read: that would be a
    /// system call for each sleep.
    fn add_edges(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(Waiter::WORK);
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, data, edge)?)
    }

    fn add(&self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(data);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    fn wait(&self, timeout: Option<Timespec>) -> io::Result<Woken> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 16];
        let count = match epoll::wait(self.epoll.as_fd(), &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut woken = Woken::default();
        for event in &events[..count] {
            match event.data.u64() {
                Waiter::STOP => woken.stop = true,
                Waiter::NIC_SOURCE => woken.nic_source = true,
                Waiter::APP => woken.app = true,
                Waiter::LINK => woken.link = true,
                // Nothing is ever sent here after the hello: readable means closed.
                nic @ Waiter::NIC_SOCKETS.. => {
                    woken.nic_gone = Some((nic - Waiter::NIC_SOCKETS) as usize);
                }
                _ => {}
            }
        }
        Ok(woken)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_nap_ends_when_its_set_has_events() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &bell, epoll::EventData::new_u64(0), edge).unwrap();
        assert!(!nap_unless(set.as_fd(), 1_000));
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        assert!(nap_unless(set.as_fd(), 60_000_000));
        assert!(!nap_unless(set.as_fd(), 1_000), "the ring was taken");
    }

    #[test]
    fn each_ring_ends_a_sleep_though_none_is_read() {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (set, of_program, of_worker) = (create(), bell(), bell());
        let waiter = Waiter { epoll: create() };
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &of_program, epoll::EventData::new_u64(0), edge).unwrap();
        waiter.add_edges(set.as_fd()).unwrap();
        waiter.add_edges(of_worker.as_fd()).unwrap();
        let ends = || {
            let mut events = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&waiter.epoll, spare, Some(&NO_TIME)).unwrap() > 0
        };
        assert!(!ends());
        for bell in [&of_program, &of_worker, &of_program, &of_program] {
            rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
            assert!(ends());
            assert!(!ends(), "a ring is one event");
        }
    }

    #[test]
    fn no_sleep_is_too_long_for_epoll() {
        assert_eq!(
            (sleep_of(2_000_003).tv_sec, sleep_of(2_000_003).tv_nsec),
            (2, 3_000)
        );
        for us in [SLEEP_US_MAX, SLEEP_US_MAX + 1, u64::MAX] {
            assert_eq!(sleep_of(us).tv_sec, 24 * 3600);
        }
    }
}
