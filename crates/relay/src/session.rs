//! Runs a relay between rings and link, until one side is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use contract::control::{has_host_died, send_farewell};
use contract::ethernet::session::Counters;
use contract::ethernet::{End, Leaving, Session};
use contract::limits::{HEARTBEAT_SECONDS, HEARTBEATS_MISSED_MAX};
use netdev::packet::ControlPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::acceptor::{AcceptedHost, SessionAcceptor};
use crate::exchange::{Exchange, NIC_PARTING_US_MAX, Over};
use crate::ring::{NoStack, Ring};
use crate::{Mac, monotonic_us};

/// Most frames taken in a turn.
const FRAMES_MAX: usize = 128;

/// Interval at which a busy relay checks for its end, in microseconds.
const END_CHECK_US: u64 = 10_000;

/// Longest time for the last records of a host stack after its end, in microseconds.
const HOST_PARTING_US_MAX: u64 = 200_000;

/// Longest time for a NIC stack to end on request, in microseconds, and for its last records to
/// reach the host after that.
const NIC_END_US_MAX: u64 = 1_000_000;
const HURRIED_PARTING_US_MAX: u64 = 500_000;

/// Interval of heartbeat requests to the NIC stack, in microseconds.
const HEARTBEAT_US: u64 = HEARTBEAT_SECONDS * 1_000_000 / HEARTBEATS_MISSED_MAX as u64;

/// Why a session ended.
#[derive(Debug)]
pub enum EndReason {
    /// The session ended.
    Session(End),
    /// The stack on this machine has hung up.
    StackGone,
    /// The stack on this machine has corrupted its ring.
    StackCorrupt,
    /// A worker of the NIC stack on this machine has missed its heartbeats.
    StackSilent,
    /// `stop` became readable.
    Stopped,
    /// The host has begun another session.
    Superseded(Box<AcceptedHost>),
    /// A system call failed.
    Io(io::Error),
}

impl From<Over> for EndReason {
    fn from(over: Over) -> EndReason {
        match over {
            Over::Session(end) => EndReason::Session(end),
            Over::StackCorrupt => EndReason::StackCorrupt,
            Over::Parted => EndReason::StackGone,
        }
    }
}

/// A session, before its role is chosen.
#[derive(Debug)]
pub struct Relay<'a> {
    port: &'a mut ControlPort,
    peer: Mac,
    session: Session,
}

/// A running session.
#[derive(Debug)]
pub struct RelaySession<'a, 'd> {
    port: &'a mut ControlPort,
    peer: Mac,
    exchange: Exchange,
    /// Present on the NIC stack's machine.
    acceptor: Option<&'d mut SessionAcceptor>,
    /// Another session that the host has begun; kept alive until this one has ended.
    next: Option<Box<AcceptedHost>>,
    /// On the host's machine: the host process died without a farewell.
    has_host_died: bool,
}

impl<'a> Relay<'a> {
    /// A relay for a session with the machine at `peer`.
    pub fn new(port: &'a mut ControlPort, peer: Mac, session: Session) -> Relay<'a> {
        Relay {
            port,
            peer,
            session,
        }
    }

    /// Runs on the host's machine.
    pub fn for_host(self) -> RelaySession<'a, 'static> {
        RelaySession {
            port: self.port,
            peer: self.peer,
            exchange: Exchange::for_host(self.session),
            acceptor: None,
            next: None,
            has_host_died: false,
        }
    }

    /// Runs on the NIC stack's machine, and answers HELLOs meanwhile. Translates the times in
    /// records, and the source address of packets if there is a `source_mac`.
    pub fn for_nic<'d>(
        self,
        source_mac: Option<Mac>,
        acceptor: &'d mut SessionAcceptor,
    ) -> RelaySession<'a, 'd> {
        RelaySession {
            port: self.port,
            peer: self.peer,
            exchange: Exchange::for_nic(self.session, source_mac),
            acceptor: Some(acceptor),
            next: None,
            has_host_died: false,
        }
    }

    /// Runs on either of two nodes with socket channels. Answers HELLOs meanwhile, if there is an
    /// acceptor.
    pub fn for_sockets<'d>(
        self,
        acceptor: Option<&'d mut SessionAcceptor>,
    ) -> RelaySession<'a, 'd> {
        RelaySession {
            port: self.port,
            peer: self.peer,
            exchange: Exchange::for_sockets(self.session),
            acceptor,
            next: None,
            has_host_died: false,
        }
    }
}

impl RelaySession<'_, '_> {
    /// Keeps the session alive while the stack on this machine, with this many workers, starts:
    /// until `stack` is readable or hung up, or `patience` has passed. Records from the other side
    /// wait. If the session ends first, or `stop` becomes readable, returns the reason for
    /// [`RelaySession::leave_unmet`].
    pub fn await_stack(
        &mut self,
        workers: usize,
        patience: Duration,
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Option<EndReason> {
        let until_us = monotonic_us().saturating_add(patience.as_micros() as u64);
        let stack = (stack, PollFlags::IN);
        match self.carry(&mut vec![NoStack; workers], until_us, stack, stop) {
            EndReason::StackGone => None,
            ending => Some(ending),
        }
    }

    /// Forwards records until the stack hangs up `stack`, `stop` becomes readable, or the session
    /// ends. Returns the reason, and the session's counters.
    ///
    /// To end a NIC stack, the relay closes its writing half of `stack`; it forwards the stack's
    /// events until that hangs up, and then [`contract::Event::Ended`]. A host stack that closes
    /// its writing half waits for the same. If the host process has died, the other side is
    /// notified.
    pub fn run<R: Ring>(
        mut self,
        channels: &mut [R],
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> (EndReason, Counters) {
        // poll(2) reports the close of both halves regardless of the requested events.
        let gone = (stack, PollFlags::empty());
        let is_nic = self.acceptor.is_some();
        let mut ending = if is_nic {
            self.carry(channels, u64::MAX, gone, stop)
        } else {
            self.carry(channels, u64::MAX, (stack, PollFlags::RDHUP), stop)
        };
        if !is_nic && matches!(ending, EndReason::StackGone) && !has_hung_up(stack) {
            ending = self.carry(channels, u64::MAX, gone, stop);
        }
        self.has_host_died = !is_nic
            && matches!(ending, EndReason::StackGone | EndReason::Stopped)
            && has_host_died(stack);
        match ending {
            EndReason::StackGone => self.part(channels, self.patience_us()),
            EndReason::Stopped if is_nic => self.dismiss(channels, stack),
            EndReason::Superseded(accepted) => {
                self.next = Some(accepted);
                self.dismiss(channels, stack);
                ending = EndReason::StackGone;
            }
            _ => {}
        }
        self.leave(ending)
    }

    /// Forwards records of a ring whose other end is in this process, until `stop` becomes readable
    /// or the session ends. Returns the reason, and the session's counters.
    pub fn run_alone<R: Ring>(
        mut self,
        channel: &mut R,
        stop: BorrowedFd<'_>,
    ) -> (EndReason, Counters) {
        let channels = std::slice::from_mut(channel);
        // There is no process that could hang up.
        let none = (stop, PollFlags::empty());
        let ending = self.carry(channels, u64::MAX, none, stop);
        self.leave(ending)
    }

    /// Ends the session before the stack on this machine, with this many workers, was attached: the
    /// stack received no records and sent none.
    pub fn leave_unmet(mut self, workers: usize, mut ending: EndReason) -> (EndReason, Counters) {
        if let EndReason::Superseded(accepted) = ending {
            self.next = Some(accepted);
            ending = EndReason::StackGone;
        }
        if let EndReason::StackGone | EndReason::Stopped = ending {
            self.part(&mut vec![NoStack; workers], HURRIED_PARTING_US_MAX);
        }
        self.leave(ending)
    }

    /// Ends the session, and notifies the other side unless it ended the session itself.
    fn leave(mut self, mut ending: EndReason) -> (EndReason, Counters) {
        if let Some(accepted) = self.next.take() {
            ending = EndReason::Superseded(accepted);
        }
        let leaving = match &ending {
            EndReason::Session(_) => None,
            _ if self.has_host_died => Some(Leaving::HostDied),
            EndReason::StackGone
            | EndReason::StackCorrupt
            | EndReason::StackSilent
            | EndReason::Io(_) => Some(Leaving::ProcessGone),
            EndReason::Stopped => Some(Leaving::Ended),
            EndReason::Superseded(_) => Some(Leaving::Superseded),
        };
        let (port, peer) = (&*self.port, self.peer);
        self.exchange.leave(monotonic_us(), leaving, &mut |frame| {
            let _ = port.send(peer, frame);
        });
        (ending, self.exchange.counters())
    }

    /// `until_us`: time limit, treated as the stack's end. `stack`: socket and events that show its
    /// end.
    fn carry<R: Ring>(
        &mut self,
        channels: &mut [R],
        until_us: u64,
        stack: (BorrowedFd<'_>, PollFlags),
        stop: BorrowedFd<'_>,
    ) -> EndReason {
        let mut end_check_us = monotonic_us() + END_CHECK_US;
        let mut heartbeat_us = 0;
        loop {
            let now_us = monotonic_us();
            if now_us >= until_us {
                return EndReason::StackGone;
            }
            let worked = match self.turn(channels, now_us) {
                Ok(worked) => worked,
                Err(ending) => return ending,
            };
            if let Some(accepted) = self.next.take() {
                return EndReason::Superseded(accepted);
            }
            let is_due = heartbeat_us <= now_us;
            if is_due {
                heartbeat_us = now_us + HEARTBEAT_US;
            }
            let missed = channels.iter_mut().map(|channel| channel.heartbeat(is_due));
            if missed.max() >= Some(HEARTBEATS_MISSED_MAX) {
                return EndReason::StackSilent;
            }
            if worked && now_us < end_check_us {
                continue;
            }
            end_check_us = now_us + END_CHECK_US;
            let quiet = !worked && self.prepare_sleep(channels);
            let timeout_us = if quiet {
                let next_us = self.exchange.next_timeout_us();
                let next_us = next_us.min(until_us).min(heartbeat_us);
                next_us.saturating_sub(now_us)
            } else {
                0
            };
            let woken = self.sleep(channels, timeout_us, stack, stop);
            if !worked {
                channels.iter_mut().for_each(R::finish_sleep);
            }
            match woken {
                Ok(None) => {}
                Ok(Some(ending)) => return ending,
                Err(errno) => return EndReason::Io(errno.into()),
            }
        }
    }

    /// Does a round of work; true if there was any.
    fn turn<R: Ring>(&mut self, channels: &mut [R], now_us: u64) -> Result<bool, EndReason> {
        let received = self.receive(now_us)?;
        let (port, peer) = (&*self.port, self.peer);
        let worked = self.exchange.turn(now_us, channels, &mut |frame| {
            // A frame that the link drops is repeated.
            let _ = port.send(peer, frame);
        })?;
        if let Some(next) = &mut self.next {
            let mut frame = Vec::new();
            next.session.on_time(now_us);
            while next.session.transmit(now_us, &mut frame) {
                let _ = port.send(next.mac, &frame);
            }
        }
        Ok(received || worked)
    }

    /// Handles frames from the link.
    fn receive(&mut self, now_us: u64) -> Result<bool, EndReason> {
        let RelaySession {
            port,
            peer,
            exchange,
            acceptor,
            next,
            ..
        } = self;
        let mut answers = Vec::new();
        let taken = port.receive(FRAMES_MAX, &mut |from, frame| {
            if from == *peer && exchange.on_frame(now_us, frame).is_ok() {
                return;
            }
            if let Some(next) = next
                && from == next.mac
                && next.session.on_frame(now_us, frame).is_ok()
            {
                return;
            }
            if let Some(acceptor) = acceptor {
                let accepted = acceptor.on_frame(from, frame, Some(*peer));
                *next = accepted.map(Box::new).or(next.take());
                if !acceptor.answer().is_empty() {
                    answers.push((from, acceptor.answer().to_vec()));
                }
            }
        });
        for (to, answer) in answers {
            // If the answer is lost, the host repeats its HELLO.
            let _ = port.send(to, &answer);
        }
        Ok(taken.map_err(EndReason::Io)? > 0)
    }

    /// Time limit of the stack's last records, in microseconds.
    fn patience_us(&self) -> u64 {
        match self.acceptor {
            Some(_) => NIC_PARTING_US_MAX,
            None => HOST_PARTING_US_MAX,
        }
    }

    /// Forwards the last records of a stack that hung up. The host may begin another session
    /// meanwhile.
    fn part<R: Ring>(&mut self, channels: &mut [R], patience_us: u64) {
        self.exchange.part(monotonic_us() + patience_us);
        loop {
            let now_us = monotonic_us();
            if self.next.is_some() {
                self.exchange.part(now_us + HURRIED_PARTING_US_MAX);
            }
            match self.turn(channels, now_us) {
                Ok(true) => {}
                Ok(false) => self.nap(),
                // The stack ended first: report that.
                Err(_) => return,
            }
        }
    }

    /// Requests the end of the NIC stack on this machine, and forwards its events until then. After
    /// the time limit, the host gets no [`contract::Event::Ended`].
    fn dismiss<R: Ring>(&mut self, channels: &mut [R], stack: BorrowedFd<'_>) {
        // The host process may be alive.
        send_farewell(stack);
        if shutdown(stack, Shutdown::Write).is_err() {
            return;
        }
        let until_us = monotonic_us() + NIC_END_US_MAX;
        while !has_hung_up(stack) {
            let now_us = monotonic_us();
            match self.turn(channels, now_us) {
                Ok(true) => {}
                Ok(false) => self.nap(),
                Err(_) => return,
            }
            if now_us > until_us {
                return;
            }
        }
        self.part(channels, HURRIED_PARTING_US_MAX);
    }

    /// Waits briefly for a frame.
    fn nap(&self) {
        let port = self.port.as_fd();
        let brief = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let _ = poll(&mut [PollFd::new(&port, PollFlags::IN)], Some(&brief));
    }

    /// Arms the rings' wake-ups; false if there is work.
    fn prepare_sleep<R: Ring>(&self, channels: &mut [R]) -> bool {
        let takes_records = self.exchange.takes_records();
        let mut quiet = true;
        for channel in channels {
            quiet &= channel.prepare_sleep(takes_records);
        }
        quiet
    }

    fn sleep<R: Ring>(
        &self,
        channels: &[R],
        timeout_us: u64,
        stack: (BorrowedFd<'_>, PollFlags),
        stop: BorrowedFd<'_>,
    ) -> Result<Option<EndReason>, Errno> {
        let timeout = Timespec {
            tv_sec: (timeout_us / 1_000_000) as i64,
            tv_nsec: (timeout_us % 1_000_000 * 1000) as i64,
        };
        let port = self.port.as_fd();
        let mut fds = vec![
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(stack.0, stack.1),
            PollFd::from_borrowed_fd(port, PollFlags::IN),
        ];
        let wakes = channels.iter().filter_map(R::wake_fd);
        fds.extend(wakes.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if !fds[0].revents().is_empty() {
            return Ok(Some(EndReason::Stopped));
        }
        if !fds[1].revents().is_empty() {
            return Ok(Some(EndReason::StackGone));
        }
        Ok(None)
    }
}

/// Whether the other end of a socket is fully closed, not only one half.
fn has_hung_up(stack: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(stack, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    use contract::channel::{Corrupt, Full};
    use contract::ethernet::{ETHER_TYPE, Initiator, PreSharedKey};
    use testbed::namespace::isolated;
    use testbed::process::{run, tool};

    use super::*;

    const KEY: PreSharedKey = PreSharedKey::new([7; 32]);

    /// A stack without records that is found to be gone after the relay's sleep. The host's frame
    /// arrives at that moment.
    struct Gone<'a> {
        host: &'a ControlPort,
        to: Mac,
        frame: &'a [u8],
    }

    impl Ring for Gone<'_> {
        fn finish_sleep(&mut self) {
            self.host.send(self.to, self.frame).unwrap();
        }
    }

    fn link() {
        for command in [
            "ip link add near type veth peer name far",
            "ip link set near up",
            "ip link set far up",
        ] {
            run(&mut tool(command)).unwrap();
        }
        testbed::link::await_ready(&["near", "far"], &[]).unwrap();
    }

    /// HELLO and answer: the host's session, and the frame that confirms it.
    fn knock(acceptor: &mut SessionAcceptor, host: Mac, seed: u8) -> (Session, Vec<u8>) {
        let mut initiator = Initiator::new(&KEY, 1500, seed.into(), [seed; 32]);
        let mut frame = Vec::new();
        initiator.hello(&mut frame);
        assert!(acceptor.on_frame(host, &mut frame, None).is_none());
        let answer = &mut acceptor.answer().to_vec();
        let (mut session, _) = initiator.on_frame(monotonic_us(), answer).unwrap();
        assert!(session.transmit(monotonic_us(), &mut frame));
        (session, frame)
    }

    #[test]
    fn a_host_that_comes_back_while_its_old_stack_is_parted_from_is_let_in() {
        isolated(|_| {
            link();
            let mut near = ControlPort::open("near", ETHER_TYPE, None).unwrap();
            let far = ControlPort::open("far", ETHER_TYPE, Some(near.mac())).unwrap();
            let mut acceptor = SessionAcceptor::new(&KEY, &near, 1, 1500, None).unwrap();
            let (_, mut first) = knock(&mut acceptor, far.mac(), 1);
            let mut accepted = acceptor.on_frame(far.mac(), &mut first, None).unwrap();
            let (_, second) = knock(&mut acceptor, far.mac(), 2);

            // The record stays unacknowledged, so parting has work.
            accepted.session.send(0, b"the last record").unwrap();
            let gone = Gone {
                host: &far,
                to: near.mac(),
                frame: &second,
            };
            let (stack, _) = UnixStream::pair().unwrap();
            let (stop, _never) = UnixStream::pair().unwrap();
            let session_relay = RelaySession {
                port: &mut near,
                peer: accepted.mac,
                exchange: Exchange::for_nic(accepted.session, None),
                acceptor: Some(&mut acceptor),
                next: None,
                has_host_died: false,
            };
            let ending = session_relay.run(&mut [gone], stack.as_fd(), stop.as_fd());
            match ending.0 {
                EndReason::Superseded(next) => assert_eq!(next.mac, far.mac()),
                other => panic!("{other:?}"),
            }
        });
    }

    /// Records of a NIC stack in a ring.
    struct Says<'a>(&'a Mutex<VecDeque<Vec<u8>>>, Vec<u8>);

    impl Ring for Says<'_> {
        const RECORD_BYTES_MAX: usize = 0;
        fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
            let Some(record) = self.0.lock().unwrap().pop_front() else {
                return Ok(None);
            };
            self.1 = record;
            Ok(Some(&self.1))
        }
        fn has_room(&mut self) -> bool {
            false
        }
        fn send_record(&mut self, _: &[u8]) -> Result<(), Full> {
            Err(Full)
        }
        fn flush(&mut self) {}
        fn prepare_sleep(&mut self, _: bool) -> bool {
            self.0.lock().unwrap().is_empty()
        }
        fn finish_sleep(&mut self) {}
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// Runs the host's machine until its session is over; returns its records and the end.
    /// Meanwhile it begins another session, with this frame.
    fn host_machine(
        far: &mut ControlPort,
        to: Mac,
        mut session: Session,
        another: &[u8],
    ) -> (Vec<Vec<u8>>, End) {
        let (mut heard, mut frame) = (Vec::new(), Vec::new());
        let mut has_knocked = false;
        loop {
            let now_us = monotonic_us();
            far.receive(16, &mut |_, frame| {
                let _ = session.on_frame(now_us, frame);
            })
            .unwrap();
            while let Some((worker, record)) = session.record() {
                assert_eq!(worker, 0);
                heard.push(record.to_vec());
                session.consume();
            }
            session.on_time(now_us);
            while session.transmit(now_us, &mut frame) {
                far.send(to, &frame).unwrap();
            }
            if let Some(end) = session.end() {
                return (heard, end);
            }
            if session.peer_clock_ahead_us().is_some() && !has_knocked {
                far.send(to, another).unwrap();
                has_knocked = true;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_nic_stack_that_is_to_be_replaced_is_asked_to_end_and_heard_to_its_end() {
        isolated(|_| {
            link();
            let mut near = ControlPort::open("near", ETHER_TYPE, None).unwrap();
            let mut far = ControlPort::open("far", ETHER_TYPE, Some(near.mac())).unwrap();
            let mut acceptor = SessionAcceptor::new(&KEY, &near, 1, 1500, None).unwrap();
            let (host, mut first) = knock(&mut acceptor, far.mac(), 1);
            let accepted = acceptor.on_frame(far.mac(), &mut first, None).unwrap();
            let (_, another) = knock(&mut acceptor, far.mac(), 2);

            let to = near.mac();
            let (stack, nic) = UnixStream::pair().unwrap();
            let (stop, _never) = UnixStream::pair().unwrap();
            let said = Mutex::new(VecDeque::new());
            let relay = Relay::new(&mut near, accepted.mac, accepted.session);
            let session_relay = relay.for_nic(None, &mut acceptor);
            let (ending, (heard, end)) = std::thread::scope(|scope| {
                let host = scope.spawn(|| host_machine(&mut far, to, host, &another));
                scope.spawn(|| {
                    let mut fds = [PollFd::new(&nic, PollFlags::RDHUP)];
                    poll(&mut fds, None).unwrap();
                    said.lock().unwrap().push_back(b"its last words".to_vec());
                    drop(nic);
                });
                let mut rings = [Says(&said, Vec::new())];
                let (ending, _) = session_relay.run(&mut rings, stack.as_fd(), stop.as_fd());
                (ending, host.join().unwrap())
            });
            assert!(matches!(ending, EndReason::Superseded(_)), "{ending:?}");
            assert_eq!(end, End::Left(Leaving::Superseded));
            let mut ended = Vec::new();
            contract::Event::Ended.encode(&mut ended);
            assert_eq!(heard, [b"its last words".to_vec(), ended]);
        });
    }

    /// A NIC process takes its time to start, and the host gets heartbeats meanwhile.
    #[test]
    fn a_session_goes_on_while_its_stack_is_being_started() {
        isolated(|_| {
            link();
            let mut near = ControlPort::open("near", ETHER_TYPE, None).unwrap();
            let mut far = ControlPort::open("far", ETHER_TYPE, Some(near.mac())).unwrap();
            let mut acceptor = SessionAcceptor::new(&KEY, &near, 2, 1500, None).unwrap();
            let mut initiator = Initiator::new(&KEY, 1500, 1, [1; 32]);
            let mut frame = Vec::new();
            initiator.hello(&mut frame);
            assert!(acceptor.on_frame(far.mac(), &mut frame, None).is_none());
            let answer = &mut acceptor.answer().to_vec();
            let (mut host, _) = initiator.on_frame(monotonic_us(), answer).unwrap();
            host.send(1, b"a command").unwrap();
            assert!(host.transmit(monotonic_us(), &mut frame));
            let accepted = acceptor.on_frame(far.mac(), &mut frame, None).unwrap();

            let to = near.mac();
            let (stack, mut nic) = UnixStream::pair().unwrap();
            let (stop, _never) = UnixStream::pair().unwrap();
            let relay = Relay::new(&mut near, accepted.mac, accepted.session);
            let mut session_relay = relay.for_nic(None, &mut acceptor);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut frame = Vec::new();
                    while !host.is_quiet() {
                        let now_us = monotonic_us();
                        far.receive(16, &mut |_, frame| {
                            let _ = host.on_frame(now_us, frame);
                        })
                        .unwrap();
                        host.on_time(now_us);
                        while host.transmit(now_us, &mut frame) {
                            far.send(to, &frame).unwrap();
                        }
                        assert_eq!(host.end(), None);
                        std::thread::yield_now();
                    }
                    nic.write_all(b"hello").unwrap();
                });
                let long = Duration::from_secs(60);
                let ended = session_relay.await_stack(2, long, stack.as_fd(), stop.as_fd());
                assert!(ended.is_none(), "{ended:?}");
            });
            let (record, told) = (b"a command".to_vec(), std::cell::RefCell::default());
            let mut rings = [Told(&told), Told(&told)];
            drop(nic);
            let turned = session_relay.turn(&mut rings, monotonic_us());
            assert!(turned.is_ok_and(|worked| worked), "it has waited");
            assert_eq!(*told.borrow(), [record]);
            let awaited = session_relay.await_stack(2, Duration::ZERO, stack.as_fd(), stop.as_fd());
            assert!(awaited.is_none());
        });
    }

    /// A stack that keeps received records.
    struct Told<'a>(&'a std::cell::RefCell<Vec<Vec<u8>>>);

    impl Ring for Told<'_> {
        const RECORD_BYTES_MAX: usize = 100;
        fn has_room(&mut self) -> bool {
            true
        }
        fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
            self.0.borrow_mut().push(record.to_vec());
            Ok(())
        }
    }
}
