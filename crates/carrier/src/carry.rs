//! Between rings and link, until one side is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use contract::channel::{Corrupt, Full, HostChannel, NicChannel};
use contract::ethernet::{End, Leaving, Session, translate};
use port::packet::ControlPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::door::{Door, Guest};
use crate::{Mac, monotonic_us};

/// Frames taken in a turn.
const FRAMES_MAX: usize = 128;

/// Records taken from a worker's ring in a turn.
const RECORDS_MAX: usize = 128;

/// A carrier that is never idle looks this often, in microseconds, whether it is to end.
const END_CHECK_US: u64 = 10_000;

/// Taking leave, for so long at most it carries on what its stack has said before it ended, in microseconds.
const PARTING_US_MAX: u64 = 200_000;

/// Nothing acknowledges that a side has left, so it says so several times.
const FAREWELLS: usize = 3;

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

/// A ring's end, from which records are passed on as they are.
trait Ring {
    const RECORD_BYTES_MAX: usize;
    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt>;
    fn has_room(&mut self) -> bool;
    fn send_record(&mut self, record: &[u8]) -> Result<(), Full>;
    fn flush(&mut self);
    fn prepare_sleep(&mut self, for_records: bool) -> bool;
    fn finish_sleep(&mut self);
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;
}

macro_rules! ring {
    ($channel:ty) => {
        impl Ring for $channel {
            const RECORD_BYTES_MAX: usize = <$channel>::record_bytes_max();
            fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
                self.receive_record()
            }
            fn has_room(&mut self) -> bool {
                self.has_room()
            }
            fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
                self.send_record(record)
            }
            fn flush(&mut self) {
                self.flush();
            }
            fn prepare_sleep(&mut self, for_records: bool) -> bool {
                self.prepare_sleep_to_carry(for_records)
            }
            fn finish_sleep(&mut self) {
                self.finish_sleep();
            }
            fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
                self.wake_fd()
            }
        }
    };
}

ring!(HostChannel);
ring!(NicChannel);

/// A session with the rings that it stands for.
#[derive(Debug)]
pub struct Carrier<'a> {
    port: &'a mut ControlPort,
    peer: Mac,
    session: Session,
    frame: Vec<u8>,
}

/// What differs from machine to machine.
enum Side<'a> {
    Host,
    Nic {
        source_mac: Option<Mac>,
        door: &'a mut Door,
    },
}

impl<'a> Carrier<'a> {
    /// A carrier for a session with the machine at `peer`.
    pub fn new(port: &'a mut ControlPort, peer: Mac, session: Session) -> Carrier<'a> {
        Carrier {
            port,
            peer,
            session,
            frame: Vec::new(),
        }
    }

    /// On the host's machine: carries until the host stack hangs up `stack`, `stop` becomes readable, or the session
    /// ends.
    pub fn for_host(
        self,
        channels: &mut [NicChannel],
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Ending {
        self.run(channels, Side::Host, stack, stop)
    }

    /// On the NIC stack's machine: the same, and answers the door meanwhile. Records are translated: times, and the
    /// address that packets come from if there is a `source_mac`.
    pub fn for_nic(
        self,
        channels: &mut [HostChannel],
        source_mac: Option<Mac>,
        door: &mut Door,
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Ending {
        self.run(channels, Side::Nic { source_mac, door }, stack, stop)
    }

    fn run<R: Ring>(
        mut self,
        channels: &mut [R],
        mut side: Side<'_>,
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Ending {
        let mut ending = self.carry(channels, &mut side, stack, stop);
        if let Ending::StackGone = ending {
            ending = self.part(channels, &mut side);
        }
        let leaving = match &ending {
            Ending::Session(_) => None,
            Ending::StackGone | Ending::StackCorrupt | Ending::Io(_) => Some(Leaving::ProcessGone),
            Ending::Stopped => Some(Leaving::Ended),
            Ending::Superseded(_) => Some(Leaving::Superseded),
        };
        if let Some(leaving) = leaving {
            self.session.leave(leaving);
        }
        if self.session.transmit(monotonic_us(), &mut self.frame) {
            for _ in 0..FAREWELLS {
                let _ = self.port.send(self.peer, &self.frame);
            }
        }
        tracing::debug!("a session has ended: {:?}", self.session.counters());
        ending
    }

    fn carry<R: Ring>(
        &mut self,
        channels: &mut [R],
        side: &mut Side<'_>,
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Ending {
        let mut end_check_us = monotonic_us() + END_CHECK_US;
        loop {
            let now_us = monotonic_us();
            let worked = match self.turn(channels, side, now_us) {
                Ok(worked) => worked,
                Err(ending) => return ending,
            };
            if worked && now_us < end_check_us {
                continue;
            }
            end_check_us = now_us + END_CHECK_US;
            let quiet = !worked && self.prepare_sleep(channels);
            let timeout_us = match quiet {
                true => self.session.next_timeout_us().saturating_sub(now_us),
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
    fn turn<R: Ring>(
        &mut self,
        channels: &mut [R],
        side: &mut Side<'_>,
        now_us: u64,
    ) -> Result<bool, Ending> {
        let mut worked = self.receive(side, now_us)?;
        worked |= self.deliver(channels, side);
        worked |= self.collect(channels, side)?;
        self.session.on_time(now_us);
        while self.session.transmit(now_us, &mut self.frame) {
            // What the link does not take now is lost, and repeated.
            let _ = self.port.send(self.peer, &self.frame);
        }
        channels.iter_mut().for_each(R::flush);
        match self.session.end() {
            Some(end) => Err(Ending::Session(end)),
            None => Ok(worked),
        }
    }

    /// Frames from the link.
    fn receive(&mut self, side: &mut Side<'_>, now_us: u64) -> Result<bool, Ending> {
        let (peer, session) = (self.peer, &mut self.session);
        let mut guest = None;
        let mut answers = Vec::new();
        let taken = self.port.receive(FRAMES_MAX, &mut |from, frame| {
            if from == peer && session.on_frame(now_us, frame).is_ok() {
                return;
            }
            if let Side::Nic { door, .. } = side
                && guest.is_none()
            {
                guest = door.on_frame(from, frame, Some(peer));
                if !door.answer().is_empty() {
                    answers.push((from, door.answer().to_vec()));
                }
            }
        });
        for (to, answer) in answers {
            // Lost, it will be asked for again.
            let _ = self.port.send(to, &answer);
        }
        match (taken, guest) {
            (Err(error), _) => Err(Ending::Io(error)),
            (_, Some(guest)) => Err(Ending::Superseded(Box::new(guest))),
            (Ok(taken), None) => Ok(taken > 0),
        }
    }

    /// Records from the session into the rings.
    fn deliver<R: Ring>(&mut self, channels: &mut [R], side: &Side<'_>) -> bool {
        // Without the time on the other machine, nothing can be translated.
        let Some(ahead_us) = self.session.peer_clock_ahead_us() else {
            return false;
        };
        let mut worked = false;
        while let Some((worker, record)) = self.session.record() {
            let channel = channels.get_mut(usize::from(worker));
            let Some(channel) = channel.filter(|_| record.len() <= R::RECORD_BYTES_MAX) else {
                // Who has the key and says this is of another release; the stacks would not understand it.
                tracing::warn!(worker, bytes = record.len(), "a record for nobody here");
                self.session.consume();
                continue;
            };
            if !channel.has_room() {
                break;
            }
            if let Side::Nic { source_mac, .. } = side {
                translate::to_nic(record, -ahead_us, *source_mac);
            }
            let sent = channel.send_record(record);
            debug_assert!(sent.is_ok(), "there was room");
            self.session.consume();
            worked = true;
        }
        worked
    }

    /// Records from the rings into the session.
    fn collect<R: Ring>(&mut self, channels: &mut [R], side: &Side<'_>) -> Result<bool, Ending> {
        let ahead_us = match side {
            Side::Host => None,
            Side::Nic { .. } => match self.session.peer_clock_ahead_us() {
                None => return Ok(false),
                known => known,
            },
        };
        let mut worked = false;
        for (worker, channel) in (0u16..).zip(channels) {
            for _ in 0..RECORDS_MAX {
                if !self.session.has_room() {
                    return Ok(worked);
                }
                let record = match channel.receive_record() {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(Corrupt) => return Err(Ending::StackCorrupt),
                };
                worked = true;
                if record.is_empty() {
                    continue;
                }
                let sent = match ahead_us {
                    None => self.session.send(worker, record),
                    Some(ahead_us) => {
                        self.frame.clear();
                        self.frame.extend_from_slice(record);
                        translate::to_host(&mut self.frame, -ahead_us);
                        self.session.send(worker, &self.frame)
                    }
                };
                debug_assert!(sent.is_ok(), "there was room");
            }
        }
        Ok(worked)
    }

    /// Carries on what the stack has said before it hung up. The host may begin another session meanwhile.
    fn part<R: Ring>(&mut self, channels: &mut [R], side: &mut Side<'_>) -> Ending {
        let begun_us = monotonic_us();
        loop {
            let now_us = monotonic_us();
            match self.turn(channels, side, now_us) {
                Ok(true) => {}
                Ok(false) if self.session.is_quiet() => return Ending::StackGone,
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
            if now_us - begun_us > PARTING_US_MAX {
                return Ending::StackGone;
            }
        }
    }

    /// Arms the rings' wake-ups; false if there is something to do.
    fn prepare_sleep<R: Ring>(&self, channels: &mut [R]) -> bool {
        // Without room, records stay where they are until an acknowledgment comes from the link.
        let takes_records = self.session.has_room();
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
        stack: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Result<Option<Ending>, Errno> {
        let timeout = Timespec {
            tv_sec: (timeout_us / 1_000_000) as i64,
            tv_nsec: (timeout_us % 1_000_000 * 1000) as i64,
        };
        let port = self.port.as_fd();
        let mut fds = vec![
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(stack, PollFlags::RDHUP),
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
    use std::os::unix::net::UnixStream;

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
            let mut near = ControlPort::open("near", ETHER_TYPE).unwrap();
            let far = ControlPort::open("far", ETHER_TYPE).unwrap();
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
            let side = Side::Nic {
                source_mac: None,
                door: &mut door,
            };
            let ending = Carrier::new(&mut near, guest.mac, guest.session).run(
                &mut [gone],
                side,
                stack.as_fd(),
                stop.as_fd(),
            );
            match ending {
                Ending::Superseded(next) => assert_eq!(next.mac, far.mac()),
                other => panic!("{other:?}"),
            }
        });
    }
}
