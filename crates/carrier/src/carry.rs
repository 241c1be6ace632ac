//! Between rings and link, until one side is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use contract::ethernet::session::Counters;
use contract::ethernet::{End, Leaving, Session};
use port::packet::ControlPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::door::{Door, Guest};
use crate::exchange::{Exchange, Over};
use crate::ring::{Nobody, Ring};
use crate::{Mac, monotonic_us};

/// Frames taken in a turn.
const FRAMES_MAX: usize = 128;

/// A carrier that is never idle looks this often, in microseconds, whether it is to end.
const END_CHECK_US: u64 = 10_000;

/// How a session has ended.
#[derive(Debug)]
pub enum Ending {
    /// In the session itself.
    Session(End),
    /// The stack on this machine has hung up.
    StackGone,
    /// The stack on this machine has broken its ring.
    StackCorrupt,
    /// It was asked to end.
    Stopped,
    /// The host has begun another session.
    Superseded(Box<Guest>),
    /// A system call failed.
    Io(io::Error),
}

impl From<Over> for Ending {
    fn from(over: Over) -> Ending {
        match over {
            Over::Session(end) => Ending::Session(end),
            Over::StackCorrupt => Ending::StackCorrupt,
            Over::Parted => Ending::StackGone,
        }
    }
}

/// A session with the rings that it stands for.
#[derive(Debug)]
pub struct Carrier<'a> {
    port: &'a mut ControlPort,
    peer: Mac,
    session: Session,
}

/// A session that is being carried.
#[derive(Debug)]
pub struct Carriage<'a, 'd> {
    port: &'a mut ControlPort,
    peer: Mac,
    exchange: Exchange,
    /// On the NIC stack's machine.
    door: Option<&'d mut Door>,
}

impl<'a> Carrier<'a> {
    /// A carrier for a session with the machine at `peer`.
    pub fn new(port: &'a mut ControlPort, peer: Mac, session: Session) -> Carrier<'a> {
        Carrier {
            port,
            peer,
            session,
        }
    }

    /// On the host's machine.
    pub fn for_host(self) -> Carriage<'a, 'static> {
        Carriage {
            port: self.port,
            peer: self.peer,
            exchange: Exchange::for_host(self.session),
            door: None,
        }
    }

    /// On the NIC stack's machine: the door is answered meanwhile. Records are translated: times, and the address that
    /// packets come from if there is a `source_mac`.
    pub fn for_nic<'d>(self, source_mac: Option<Mac>, door: &'d mut Door) -> Carriage<'a, 'd> {
        Carriage {
            port: self.port,
            peer: self.peer,
            exchange: Exchange::for_nic(self.session, source_mac),
            door: Some(door),
        }
    }
}

impl Carriage<'_, '_> {
    /// Keeps the session up while the stack on this machine, of so many workers, is being started: until it has said
    /// something on `stack`, or hung up, or this time has passed. What the other one says waits. If the session ends
    /// before, or `stop` becomes readable, it is to be left in this way.
    pub fn await_stack(
        &mut self,
        workers: usize,
        patience: Duration,
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Option<Ending> {
        let until_us = monotonic_us().saturating_add(patience.as_micros() as u64);
        let stack = (stack, PollFlags::IN);
        match self.carry(&mut vec![Nobody; workers], until_us, stack, stop) {
            Ending::StackGone => None,
            ending => Some(ending),
        }
    }

    /// Carries until the stack hangs up `stack`, `stop` becomes readable, or the session ends. Tells how it ended, and
    /// what the session has counted.
    pub fn run<R: Ring>(
        mut self,
        channels: &mut [R],
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> (Ending, Counters) {
        let mut ending = self.carry(channels, u64::MAX, (stack, PollFlags::RDHUP), stop);
        if let Ending::StackGone = ending {
            ending = self.part(channels);
        }
        self.leave(ending)
    }

    /// Ends the session in this way, and tells the other side, if it does not know.
    pub fn leave(mut self, ending: Ending) -> (Ending, Counters) {
        let leaving = match &ending {
            Ending::Session(_) => None,
            Ending::StackGone | Ending::StackCorrupt | Ending::Io(_) => Some(Leaving::ProcessGone),
            Ending::Stopped => Some(Leaving::Ended),
            Ending::Superseded(_) => Some(Leaving::Superseded),
        };
        let (port, peer) = (&*self.port, self.peer);
        self.exchange.leave(monotonic_us(), leaving, &mut |frame| {
            let _ = port.send(peer, frame);
        });
        (ending, self.exchange.counters())
    }

    /// `until_us`: as if the stack had gone then. `stack`: what shows that it has.
    fn carry<R: Ring>(
        &mut self,
        channels: &mut [R],
        until_us: u64,
        stack: (BorrowedFd<'_>, PollFlags),
        stop: BorrowedFd<'_>,
    ) -> Ending {
        let mut end_check_us = monotonic_us() + END_CHECK_US;
        loop {
            let now_us = monotonic_us();
            if now_us >= until_us {
                return Ending::StackGone;
            }
            let worked = match self.turn(channels, now_us) {
                Ok(worked) => worked,
                Err(ending) => return ending,
            };
            if worked && now_us < end_check_us {
                continue;
            }
            end_check_us = now_us + END_CHECK_US;
            let quiet = !worked && self.prepare_sleep(channels);
            let timeout_us = match quiet {
                true => {
                    let next_us = self.exchange.next_timeout_us().min(until_us);
                    next_us.saturating_sub(now_us)
                }
                false => 0,
            };
            let woken = self.sleep(channels, timeout_us, stack, stop);
            if !worked {
                channels.iter_mut().for_each(R::finish_sleep);
            }
            match woken {
                Ok(None) => {}
                Ok(Some(ending)) => return ending,
                Err(errno) => return Ending::Io(errno.into()),
            }
        }
    }

    /// A round of work; true if there was any.
    fn turn<R: Ring>(&mut self, channels: &mut [R], now_us: u64) -> Result<bool, Ending> {
        let received = self.receive(now_us)?;
        let (port, peer) = (&*self.port, self.peer);
        let worked = self.exchange.turn(now_us, channels, &mut |frame| {
            // What the link does not take now is lost, and repeated.
            let _ = port.send(peer, frame);
        })?;
        Ok(received || worked)
    }

    /// Frames from the link.
    fn receive(&mut self, now_us: u64) -> Result<bool, Ending> {
        let Carriage {
            port,
            peer,
            exchange,
            door,
        } = self;
        let mut guest = None;
        let mut answers = Vec::new();
        let taken = port.receive(FRAMES_MAX, &mut |from, frame| {
            if from == *peer && exchange.on_frame(now_us, frame).is_ok() {
                return;
            }
            if let Some(door) = door
                && guest.is_none()
            {
                guest = door.on_frame(from, frame, Some(*peer));
                if !door.answer().is_empty() {
                    answers.push((from, door.answer().to_vec()));
                }
            }
        });
        for (to, answer) in answers {
            // Lost, it will be asked for again.
            let _ = port.send(to, &answer);
        }
        match (taken, guest) {
            (Err(error), _) => Err(Ending::Io(error)),
            (_, Some(guest)) => Err(Ending::Superseded(Box::new(guest))),
            (Ok(taken), None) => Ok(taken > 0),
        }
    }

    /// Carries on what the stack has said before it hung up. The host may begin another session meanwhile.
    fn part<R: Ring>(&mut self, channels: &mut [R]) -> Ending {
        self.exchange.part(monotonic_us());
        loop {
            match self.turn(channels, monotonic_us()) {
                Ok(true) => {}
                Ok(false) => {
                    let port = self.port.as_fd();
                    let brief = Timespec {
                        tv_sec: 0,
                        tv_nsec: 1_000_000,
                    };
                    let _ = poll(&mut [PollFd::new(&port, PollFlags::IN)], Some(&brief));
                }
                Err(superseded @ Ending::Superseded(_)) => return superseded,
                // The stack went first, and that is what is to be said.
                Err(_) => return Ending::StackGone,
            }
        }
    }

    /// Arms the rings' wake-ups; false if there is something to do.
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
    ) -> Result<Option<Ending>, Errno> {
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
            return Ok(Some(Ending::Stopped));
        }
        if !fds[1].revents().is_empty() {
            return Ok(Some(Ending::StackGone));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use contract::channel::{Corrupt, Full};
    use contract::ethernet::{ETHER_TYPE, Initiator, PreSharedKey};
    use testbed::namespace::isolated;
    use testbed::process::{run, tool};

    use super::*;

    const KEY: PreSharedKey = PreSharedKey::new([7; 32]);

    /// A stack that has said nothing, and is found to be gone when the carrier has slept. The host's frame arrives
    /// right then.
    struct Gone<'a> {
        host: &'a ControlPort,
        to: Mac,
        frame: &'a [u8],
    }

    impl Ring for Gone<'_> {
        const RECORD_BYTES_MAX: usize = 0;
        fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
            Ok(None)
        }
        fn has_room(&mut self) -> bool {
            false
        }
        fn send_record(&mut self, _: &[u8]) -> Result<(), Full> {
            Err(Full)
        }
        fn flush(&mut self) {}
        fn prepare_sleep(&mut self, _: bool) -> bool {
            true
        }
        fn finish_sleep(&mut self) {
            self.host.send(self.to, self.frame).unwrap();
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// HELLO and answer; the frame that confirms the session.
    fn knock(door: &mut Door, host: Mac, seed: u8) -> Vec<u8> {
        let mut initiator = Initiator::new(&KEY, 1500, seed.into(), [seed; 32]);
        let mut frame = Vec::new();
        initiator.hello(&mut frame);
        assert!(door.on_frame(host, &mut frame, None).is_none());
        let answer = &mut door.answer().to_vec();
        let (mut session, _) = initiator.on_frame(monotonic_us(), answer).unwrap();
        assert!(session.transmit(monotonic_us(), &mut frame));
        frame
    }

    #[test]
    fn a_host_that_comes_back_while_its_old_stack_is_parted_from_is_let_in() {
        isolated(|_| {
            for command in [
                "ip link add near type veth peer name far",
                "ip link set near up",
                "ip link set far up",
            ] {
                run(&mut tool(command)).unwrap();
            }
            let mut near = ControlPort::open("near", ETHER_TYPE, None).unwrap();
            let far = ControlPort::open("far", ETHER_TYPE, Some(near.mac())).unwrap();
            let mut door = Door::new(&KEY, &near, 1, 1500, None).unwrap();
            let mut first = knock(&mut door, far.mac(), 1);
            let mut guest = door.on_frame(far.mac(), &mut first, None).unwrap();
            let second = knock(&mut door, far.mac(), 2);

            // Nobody acknowledges it, so there is something to part with.
            guest.session.send(0, b"the last record").unwrap();
            let gone = Gone {
                host: &far,
                to: near.mac(),
                frame: &second,
            };
            let (stack, _) = UnixStream::pair().unwrap();
            let (stop, _never) = UnixStream::pair().unwrap();
            let carriage = Carriage {
                port: &mut near,
                peer: guest.mac,
                exchange: Exchange::for_nic(guest.session, None),
                door: Some(&mut door),
            };
            let ending = carriage.run(&mut [gone], stack.as_fd(), stop.as_fd());
            match ending.0 {
                Ending::Superseded(next) => assert_eq!(next.mac, far.mac()),
                other => panic!("{other:?}"),
            }
        });
    }
    /// A NIC process takes its time to start, and the host is told that somebody is there.
    #[test]
    fn a_session_goes_on_while_its_stack_is_being_started() {
        isolated(|_| {
            for command in [
                "ip link add near type veth peer name far",
                "ip link set near up",
                "ip link set far up",
            ] {
                run(&mut tool(command)).unwrap();
            }
            let mut near = ControlPort::open("near", ETHER_TYPE, None).unwrap();
            let mut far = ControlPort::open("far", ETHER_TYPE, Some(near.mac())).unwrap();
            let mut door = Door::new(&KEY, &near, 2, 1500, None).unwrap();
            let mut initiator = Initiator::new(&KEY, 1500, 1, [1; 32]);
            let mut frame = Vec::new();
            initiator.hello(&mut frame);
            assert!(door.on_frame(far.mac(), &mut frame, None).is_none());
            let answer = &mut door.answer().to_vec();
            let (mut host, _) = initiator.on_frame(monotonic_us(), answer).unwrap();
            host.send(1, b"a command").unwrap();
            assert!(host.transmit(monotonic_us(), &mut frame));
            let guest = door.on_frame(far.mac(), &mut frame, None).unwrap();

            let to = near.mac();
            let (stack, mut nic) = UnixStream::pair().unwrap();
            let (stop, _never) = UnixStream::pair().unwrap();
            let carrier = Carrier::new(&mut near, guest.mac, guest.session);
            let mut carriage = carrier.for_nic(None, &mut door);
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
                let ended = carriage.await_stack(2, long, stack.as_fd(), stop.as_fd());
                assert!(ended.is_none(), "{ended:?}");
            });
            let (record, told) = (b"a command".to_vec(), std::cell::RefCell::default());
            let mut rings = [Told(&told), Told(&told)];
            drop(nic);
            let turned = carriage.turn(&mut rings, monotonic_us());
            assert!(turned.is_ok_and(|worked| worked), "it has waited");
            assert_eq!(*told.borrow(), [record]);
            let awaited = carriage.await_stack(2, Duration::ZERO, stack.as_fd(), stop.as_fd());
            assert!(awaited.is_none());
        });
    }

    /// A stack that notes what it is told.
    struct Told<'a>(&'a std::cell::RefCell<Vec<Vec<u8>>>);

    impl Ring for Told<'_> {
        const RECORD_BYTES_MAX: usize = 100;
        fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
            Ok(None)
        }
        fn has_room(&mut self) -> bool {
            true
        }
        fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
            self.0.borrow_mut().push(record.to_vec());
            Ok(())
        }
        fn flush(&mut self) {}
        fn prepare_sleep(&mut self, _: bool) -> bool {
            true
        }
        fn finish_sleep(&mut self) {}
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }
}
