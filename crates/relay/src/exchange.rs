//! A relay's work between two sleeps: records from the rings into the session, and back. No clock
//! and no socket, so that the simulator runs the same code.

use contract::Event;
use contract::channel::Corrupt;
use contract::ethernet::session::{Counters, Dropped};
use contract::ethernet::{End, Leaving, Session, translate};

use crate::Mac;
use crate::ring::Ring;

/// Most records taken from a worker's ring in a turn.
const RECORDS_MAX: usize = 128;

/// Time limit for delivering a NIC stack's events after its end, in microseconds: without its
/// [`Event::Ended`], the host must reset connections with TLS. A silent session ends soon after.
pub const NIC_PARTING_US_MAX: u64 = 2_500_000;

/// Longest wait for room in the host's rings for the last records of an ended session, in
/// microseconds.
const LINGER_US_MAX: u64 = 500_000;

/// Repeats of the unacknowledged frame that ends a session.
const FAREWELLS: usize = 3;

/// Why the exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The session has ended.
    Session(End),
    /// The stack on this machine has corrupted its ring.
    StackCorrupt,
    /// The stack on this machine ended, and its last records are acknowledged, or their time limit
    /// has passed.
    Parted,
}

/// Roles of the machine.
#[derive(Debug)]
enum Side {
    Host,
    Nic {
        source_mac: Option<Mac>,
        /// Workers whose end was sent.
        ended: u16,
    },
    /// No stacks: records of socket channels need no translation.
    Sockets,
}

/// The stack on this machine is gone.
#[derive(Clone, Copy, Debug)]
struct Parting {
    /// Time limit of its last records.
    until_us: u64,
}

/// Result of emptying the rings.
#[derive(Clone, Copy, Debug)]
struct Collected {
    worked: bool,
    /// All rings are empty.
    is_all: bool,
}

/// A session, and its exchange with the rings of a machine.
///
/// Pass each received frame to [`Exchange::on_frame`]; then, and when the rings or
/// [`Exchange::next_timeout_us`] require it, call [`Exchange::turn`]. After an error of the latter,
/// call [`Exchange::leave`].
#[derive(Debug)]
pub struct Exchange {
    session: Session,
    side: Side,
    parting: Option<Parting>,
    /// Time at which the session was found to be over.
    ended_us: Option<u64>,
    frame: Vec<u8>,
}

impl Exchange {
    /// An exchange on the host's machine.
    pub fn for_host(session: Session) -> Exchange {
        Exchange::new(session, Side::Host)
    }

    /// An exchange on the NIC stack's machine. Translates the times in records, and the source
    /// address of packets if there is a `source_mac`.
    pub fn for_nic(session: Session, source_mac: Option<Mac>) -> Exchange {
        let ended = 0;
        Exchange::new(session, Side::Nic { source_mac, ended })
    }

    /// An exchange on either of two nodes with socket channels: records stay unchanged.
    pub fn for_sockets(session: Session) -> Exchange {
        Exchange::new(session, Side::Sockets)
    }

    fn new(session: Session, side: Side) -> Exchange {
        Exchange {
            session,
            side,
            parting: None,
            ended_us: None,
            frame: Vec::new(),
        }
    }

    /// Counters of the session.
    pub fn counters(&self) -> Counters {
        self.session.counters()
    }

    /// Whether all sent records are acknowledged, and neither side is about to leave.
    pub fn is_quiet(&self) -> bool {
        self.session.is_quiet() && self.parting.is_none() && self.ended_us.is_none()
    }

    /// Whether records can be taken from the rings. If not, they stay there until an acknowledgment
    /// comes.
    pub fn takes_records(&self) -> bool {
        self.session.has_room()
    }

    /// Time of the next turn, at the latest.
    pub fn next_timeout_us(&self) -> u64 {
        let session_us = match self.ended_us {
            Some(ended_us) => ended_us + LINGER_US_MAX,
            None => self.session.next_timeout_us(),
        };
        let parting = self.parting;
        parting.map_or(session_us, |parting| parting.until_us.min(session_us))
    }

    /// Handles a frame from the other machine.
    pub fn on_frame(&mut self, now_us: u64, frame: &mut [u8]) -> Result<(), Dropped> {
        self.session.on_frame(now_us, frame)
    }

    /// Starts the end after the whole stack on this machine is gone: its earlier records are
    /// forwarded, until then at the latest. The host gets [`Event::Ended`] after the last event of
    /// a NIC stack.
    pub fn part(&mut self, until_us: u64) {
        let parting = self.parting.get_or_insert(Parting { until_us });
        parting.until_us = parting.until_us.min(until_us);
    }

    /// Does a round of work; true if there was any. Frames leave through `send`.
    pub fn turn<R: Ring>(
        &mut self,
        now_us: u64,
        channels: &mut [R],
        send: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Over> {
        let mut worked = self.deliver(channels);
        let collected = self.collect(channels);
        let is_all = collected.is_ok_and(|collected| collected.is_all);
        let has_said_last = self.parting.is_some() && is_all && self.say_last(channels.len());
        self.session.on_time(now_us);
        while self.session.transmit(now_us, &mut self.frame) {
            send(&self.frame);
        }
        channels.iter_mut().for_each(R::flush);
        let ended = match (collected, self.session.end()) {
            (Err(Corrupt), _) => Some(Over::StackCorrupt),
            (Ok(_), Some(_)) if self.lingers(now_us) => None,
            (Ok(_), Some(end)) => Some(Over::Session(end)),
            (Ok(collected), None) => {
                worked |= collected.worked;
                None
            }
        };
        let Some(Parting { until_us }) = self.parting else {
            return ended.map_or(Ok(worked), Err);
        };
        // The stack ended first: report that.
        let has_said_all = has_said_last && !worked && self.session.is_quiet();
        if ended.is_some() || has_said_all || now_us >= until_us {
            return Err(Over::Parted);
        }
        Ok(worked)
    }

    /// Ends the session, and notifies the other side unless it ended the session itself.
    pub fn leave(&mut self, now_us: u64, why: Option<Leaving>, send: &mut dyn FnMut(&[u8])) {
        if let Some(why) = why {
            self.session.leave(why);
        }
        if self.session.transmit(now_us, &mut self.frame) {
            for _ in 0..FAREWELLS {
                send(&self.frame);
            }
        }
    }

    /// Whether records that the session received before its end still wait for the host's rings.
    fn lingers(&mut self, now_us: u64) -> bool {
        let since_us = *self.ended_us.get_or_insert(now_us);
        let is_in_time = now_us.saturating_sub(since_us) < LINGER_US_MAX;
        matches!(self.side, Side::Host) && is_in_time && self.session.record().is_some()
    }

    /// Sends [`Event::Ended`] after the last records of all workers. False while there is no room.
    fn say_last(&mut self, workers: usize) -> bool {
        let Side::Nic { ended, .. } = &mut self.side else {
            return true;
        };
        while usize::from(*ended) < workers {
            self.frame.clear();
            Event::Ended.encode(&mut self.frame);
            if !self.session.has_room() || self.session.send(*ended, &self.frame).is_err() {
                return false;
            }
            *ended += 1;
        }
        true
    }

    /// Moves records from the session into the rings.
    fn deliver<R: Ring>(&mut self, channels: &mut [R]) -> bool {
        // The commands of a host that has left are obsolete.
        if matches!(self.side, Side::Nic { .. }) && self.session.end().is_some() {
            return false;
        }
        // Translation needs the offset to the other machine's clock.
        let Some(ahead_us) = self.session.peer_clock_ahead_us() else {
            return false;
        };
        let mut worked = false;
        while let Some((worker, record)) = self.session.record() {
            let channel = channels.get_mut(usize::from(worker));
            let Some(channel) = channel.filter(|_| record.len() <= R::RECORD_BYTES_MAX) else {
                // A peer that has the key but sends such records is of another release, which the
                // stacks would not understand.
                tracing::warn!(worker, bytes = record.len(), "a record for no worker here");
                self.session.consume();
                continue;
            };
            if !channel.has_room() {
                break;
            }
            if let Side::Nic { source_mac, .. } = self.side {
                translate::to_nic(record, -ahead_us, source_mac);
            }
            let sent = channel.send_record(record);
            debug_assert!(sent.is_ok(), "there was room");
            self.session.consume();
            worked = true;
        }
        worked
    }

    /// Moves records from the rings into the session.
    fn collect<R: Ring>(&mut self, channels: &mut [R]) -> Result<Collected, Corrupt> {
        let mut collected = Collected {
            worked: false,
            is_all: false,
        };
        let ahead_us = match self.side {
            Side::Host | Side::Sockets => None,
            Side::Nic { .. } => match self.session.peer_clock_ahead_us() {
                None => return Ok(collected),
                known => known,
            },
        };
        let mut empty = 0;
        let workers = channels.len();
        for (worker, channel) in (0u16..).zip(channels) {
            for _ in 0..RECORDS_MAX {
                if !self.session.has_room() {
                    return Ok(collected);
                }
                let Some(record) = channel.receive_record()? else {
                    empty += 1;
                    break;
                };
                collected.worked = true;
                match self.side {
                    // An invalid record may have been a tag, and only the relay may report the end.
                    Side::Nic { .. } if record.is_empty() || Event::is_ended(record) => {
                        return Err(Corrupt);
                    }
                    _ if record.is_empty() => continue,
                    _ => {}
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
        collected.is_all = empty == workers;
        Ok(collected)
    }
}

#[cfg(test)]
mod tests {
    use contract::channel::{Capacity, HostChannel, NicChannel, in_memory, in_memory_of};
    use contract::ethernet::{Initiator, PreSharedKey, Responder, Terms};
    use contract::{FlowId, SendId};

    use super::*;
    use crate::ring::NoStack;

    const WORKERS: usize = 2;

    /// Both machines. The test plays the stacks, and the link.
    struct Machines {
        now_us: u64,
        host: Exchange,
        /// Rings of the host, of the least capacity.
        host_rings: Vec<NicChannel>,
        hosts: Vec<HostChannel>,
        nic: Exchange,
        nic_rings: Vec<HostChannel>,
        workers: Vec<NicChannel>,
        loses_all: bool,
        heard: [Vec<Event>; WORKERS],
        host_over: Option<Over>,
        nic_over: Option<Over>,
    }

    impl Machines {
        fn new() -> Machines {
            let (key, seed) = (PreSharedKey::new([7; 32]), [1; 32]);
            let terms = Terms {
                workers: WORKERS as u16,
                frame_bytes: 1500,
                mtu: 1500,
                source_mac: None,
            };
            let mut responder = Responder::new(&key, terms);
            let mut initiator = Initiator::new(&key, 1500, 1, seed);
            let (mut frame, mut answer) = (Vec::new(), Vec::new());
            initiator.hello(&mut frame);
            let met = responder.on_frame(1, &mut frame, seed, &mut answer);
            assert!(matches!(met, Ok(None)));
            let (mut host, _) = initiator.on_frame(1, &mut answer).unwrap();
            assert!(host.transmit(1, &mut frame));
            let met = responder.on_frame(1, &mut frame, seed, &mut answer);
            let (nic, _) = met.unwrap().unwrap();
            let (hosts, host_rings) = std::iter::repeat_with(|| in_memory_of(Capacity::LEAST))
                .take(WORKERS)
                .unzip();
            let (nic_rings, workers) = std::iter::repeat_with(in_memory).take(WORKERS).unzip();
            let mut machines = Machines {
                now_us: 1,
                host: Exchange::for_host(host),
                host_rings,
                hosts,
                nic: Exchange::for_nic(nic, None),
                nic_rings,
                workers,
                loses_all: false,
                heard: Default::default(),
                host_over: None,
                nic_over: None,
            };
            for _ in 0..10 {
                machines.step();
            }
            assert!(machines.host.session.peer_clock_ahead_us().is_some());
            machines
        }

        /// Gives each relay a turn, and reads the host's events.
        fn step(&mut self) {
            self.now_us += 1_000;
            let now_us = self.now_us;
            let mut frames = Vec::new();
            let mut send = |frame: &[u8]| frames.push(frame.to_vec());
            if self.nic_over.is_none() {
                let turn = self.nic.turn(now_us, &mut self.nic_rings, &mut send);
                self.nic_over = turn.err();
                if self.nic_over.is_some() {
                    let why = Some(Leaving::ProcessGone);
                    self.nic.leave(now_us, why, &mut send);
                }
            }
            for mut frame in frames.drain(..).filter(|_| !self.loses_all) {
                let _ = self.host.on_frame(now_us, &mut frame);
            }
            if self.host_over.is_none() {
                let mut send = |frame: &[u8]| frames.push(frame.to_vec());
                let turn = self.host.turn(now_us, &mut self.host_rings, &mut send);
                self.host_over = turn.err();
            }
            for mut frame in frames.drain(..).filter(|_| !self.loses_all) {
                let _ = self.nic.on_frame(now_us, &mut frame);
            }
            for (host, heard) in self.hosts.iter_mut().zip(&mut self.heard) {
                while let Some(event) = host.receive().unwrap() {
                    heard.push(event);
                }
            }
        }

        fn until_over(&mut self) {
            while self.host_over.is_none() || self.nic_over.is_none() {
                self.step();
            }
        }
    }

    fn departed(number: u64) -> Event {
        Event::Departed {
            send: SendId(number),
            flow: FlowId(1),
            departed_us: 0,
        }
    }

    #[test]
    fn all_that_a_nic_stack_has_said_is_heard_and_that_it_was_all() {
        let mut machines = Machines::new();
        for number in 0..2_000 {
            machines.workers[0].send(&departed(number)).unwrap();
        }
        let sealed = Event::Sealed {
            flow: FlowId(1),
            epoch: 0,
            number: 0,
            tags: [[7; 16]].into(),
        };
        machines.workers[1].send(&sealed).unwrap();
        machines.workers.iter_mut().for_each(NicChannel::flush);
        machines.workers.clear();
        machines.nic.part(machines.now_us + NIC_PARTING_US_MAX);
        let mut has_waited = false;
        while machines.host_over.is_none() {
            machines.step();
            has_waited |= machines.nic_over.is_some() && machines.heard[0].len() < 1_900;
        }
        assert!(has_waited, "the session was over before all was heard");
        let left = Over::Session(End::Left(Leaving::ProcessGone));
        assert_eq!(machines.host_over, Some(left));
        let sends = machines.heard[0].iter().map_while(|event| match event {
            Event::Departed { send, .. } => Some(send.0),
            _ => None,
        });
        assert!(sends.eq(0..2_000));
        assert_eq!(machines.heard[0][2_000..], [Event::Ended]);
        assert_eq!(machines.heard[1], [sealed, Event::Ended]);
    }

    #[test]
    fn a_nic_stack_that_was_never_met_has_ended_without_a_word() {
        let mut machines = Machines::new();
        machines.nic.part(machines.now_us + NIC_PARTING_US_MAX);
        while machines.nic_over.is_none() {
            let mut frames = Vec::new();
            let mut send = |frame: &[u8]| frames.push(frame.to_vec());
            let turn = machines
                .nic
                .turn(machines.now_us, &mut [NoStack; WORKERS], &mut send);
            machines.nic_over = turn.err();
            for mut frame in frames {
                machines.host.on_frame(machines.now_us, &mut frame).unwrap();
            }
            machines.step();
        }
        let ended = || vec![Event::Ended];
        assert_eq!(machines.heard, [ended(), ended()]);
    }

    #[test]
    fn a_session_that_is_lost_proves_no_end() {
        let mut machines = Machines::new();
        machines.workers[0].send(&departed(1)).unwrap();
        machines.workers[0].flush();
        machines.loses_all = true;
        machines.nic.part(machines.now_us + NIC_PARTING_US_MAX);
        machines.until_over();
        assert_eq!(machines.nic_over, Some(Over::Parted));
        assert_eq!(machines.host_over, Some(Over::Session(End::Silent)));
        assert_eq!(machines.heard, [vec![], vec![]]);
    }

    /// The records that a node sends, and those that it received.
    #[derive(Default)]
    struct Records {
        said: std::collections::VecDeque<Vec<u8>>,
        saying: Vec<u8>,
        heard: Vec<Vec<u8>>,
    }

    impl Ring for Records {
        fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
            Ok(self.said.pop_front().map(|record| {
                self.saying = record;
                &self.saying[..]
            }))
        }
        fn has_room(&mut self) -> bool {
            true
        }
        fn send_record(&mut self, record: &[u8]) -> Result<(), contract::channel::Full> {
            self.heard.push(record.to_vec());
            Ok(())
        }
    }

    #[test]
    fn records_of_sockets_stay_as_they_are_also_those_that_a_stack_could_say() {
        let machines = Machines::new();
        let (host, nic) = (machines.host.session, machines.nic.session);
        let mut nodes = [host, nic].map(Exchange::for_sockets);
        let mut rings = [Records::default(), Records::default()];
        let mut now_us = machines.now_us;
        let mut departed_now = Vec::new();
        departed(1).encode(&mut departed_now);
        let mut ended = Vec::new();
        Event::Ended.encode(&mut ended);
        let said = [departed_now, ended, vec![7; 8192]];
        for ring in &mut rings {
            ring.said.extend(said.clone());
        }
        while rings.iter().any(|ring| ring.heard.len() < said.len()) {
            now_us += 1_000;
            for from in 0..2 {
                let mut frames = Vec::new();
                let ring = std::slice::from_mut(&mut rings[from]);
                let mut send = |frame: &[u8]| frames.push(frame.to_vec());
                nodes[from].turn(now_us, ring, &mut send).unwrap();
                for mut frame in frames {
                    nodes[1 - from].on_frame(now_us, &mut frame).unwrap();
                }
            }
        }
        for ring in rings {
            assert_eq!(ring.heard, said);
        }
    }

    /// A corrupt ring.
    struct Broken;

    impl Ring for Broken {
        const RECORD_BYTES_MAX: usize = 0;
        fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
            Err(Corrupt)
        }
        fn has_room(&mut self) -> bool {
            false
        }
        fn send_record(&mut self, _: &[u8]) -> Result<(), contract::channel::Full> {
            Err(contract::channel::Full)
        }
        fn flush(&mut self) {}
        fn prepare_sleep(&mut self, _: bool) -> bool {
            true
        }
        fn finish_sleep(&mut self) {}
        fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn nonsense_and_an_end_that_the_stack_tells_itself_prove_no_end() {
        let mut ended = Vec::new();
        Event::Ended.encode(&mut ended);
        for record in [Vec::new(), ended] {
            let mut machines = Machines::new();
            machines.workers[0].send_record(&record).unwrap();
            machines.workers[0].flush();
            machines.nic.part(machines.now_us + NIC_PARTING_US_MAX);
            machines.until_over();
            assert_eq!(machines.heard, [vec![], vec![]], "{record:?}");
        }
    }

    #[test]
    fn a_broken_ring_proves_no_end() {
        let mut machines = Machines::new();
        machines.nic.part(machines.now_us + NIC_PARTING_US_MAX);
        let turn = machines
            .nic
            .turn(machines.now_us, &mut [Broken, Broken], &mut |_| {});
        assert_eq!(turn, Err(Over::Parted));
        machines.nic_over = turn.err();
        machines.until_over();
        assert_eq!(machines.heard, [vec![], vec![]]);
    }
}
