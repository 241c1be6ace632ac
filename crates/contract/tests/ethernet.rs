//! The contract over Ethernet, on links that are as bad as can be.

use std::collections::VecDeque;

use contract::ethernet::handshake::{HandshakeError, Reason};
use contract::ethernet::session::Dropped;
use contract::ethernet::{
    End, FRAME_BYTES_MIN, Initiator, Leaving, PreSharedKey, Responder, Session, Terms,
};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

const KEY: PreSharedKey = PreSharedKey::new([7; 32]);
const OTHER_KEY: PreSharedKey = PreSharedKey::new([8; 32]);

const TERMS: Terms = Terms {
    workers: 2,
    frame_bytes: 9000,
    mtu: 1500,
    source_mac: Some([2, 0, 0, 0, 0, 1]),
};

/// When attempts begin whose time does not matter.
const NOW_UNIX_US: u64 = 1_800_000_000_000_000;

/// Chance that a seed decides.
struct Random(TestRng);

impl Random {
    fn new(seed: u64) -> Random {
        let seed = [seed.to_le_bytes(); 4];
        Random(TestRng::from_seed(
            RngAlgorithm::ChaCha,
            seed.as_flattened(),
        ))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn chance(&mut self, share: f64) -> bool {
        (self.next() as f64 / u64::MAX as f64) < share
    }

    fn seed(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// A direction of a link, which loses, repeats, holds back and damages frames, each with this
/// share.
struct Direction {
    fault: f64,
    /// When a frame arrives, in microseconds, and the frame.
    frames: Vec<(u64, Vec<u8>)>,
}

impl Direction {
    fn new(fault: f64) -> Direction {
        Direction {
            fault,
            frames: Vec::new(),
        }
    }

    fn send(&mut self, now_us: u64, mut frame: Vec<u8>, random: &mut Random) {
        // Ethernet pads.
        frame.resize(frame.len().max(46), 0);
        if random.chance(self.fault) {
            return;
        }
        if random.chance(self.fault) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << random.below(8);
        }
        for _ in 0..1 + u8::from(random.chance(self.fault)) {
            let late_us = if random.chance(self.fault) {
                random.below(2000)
            } else {
                0
            };
            self.frames.push((now_us + 50 + late_us, frame.clone()));
        }
    }

    fn arrived(&mut self, now_us: u64) -> Option<Vec<u8>> {
        let due = self
            .frames
            .iter()
            .enumerate()
            .filter(|(_, (at_us, _))| *at_us <= now_us);
        let (first, _) = due.min_by_key(|(_, (at_us, _))| *at_us)?;
        Some(self.frames.remove(first).1)
    }

    fn next_us(&self) -> Option<u64> {
        self.frames.iter().map(|(at_us, _)| *at_us).min()
    }
}

/// Both ends, met over a perfect link.
fn meet(random: &mut Random, frame_bytes: u16) -> (Session, Session) {
    let mut initiator = Initiator::new(&KEY, frame_bytes, NOW_UNIX_US, random.seed());
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    initiator.hello(&mut frame);
    assert!(
        responder
            .on_frame(1, &mut frame, random.seed(), &mut answer)
            .unwrap()
            .is_none()
    );
    let (mut host, terms) = initiator.on_frame(1, &mut answer).unwrap();
    assert_eq!(
        terms,
        Terms {
            frame_bytes,
            ..TERMS
        }
    );
    assert!(host.transmit(1, &mut frame), "the host speaks first");
    let (nic, own_terms) = responder
        .on_frame(1, &mut frame, random.seed(), &mut answer)
        .unwrap()
        .expect("the first frame confirms");
    assert_eq!(own_terms, terms);
    (host, nic)
}

/// Carries frames to and fro until neither side has any.
fn settle(now_us: u64, a: &mut Session, b: &mut Session) {
    let mut frame = Vec::new();
    loop {
        let mut moved = false;
        while a.transmit(now_us, &mut frame) {
            b.on_frame(now_us, &mut frame).unwrap();
            moved = true;
        }
        while b.transmit(now_us, &mut frame) {
            a.on_frame(now_us, &mut frame).unwrap();
            moved = true;
        }
        if !moved {
            return;
        }
    }
}

fn record(random: &mut Random) -> (u16, Vec<u8>) {
    let len = match random.below(10) {
        0 => 1 + random.below(8192),
        1 => 8192,
        _ => 1 + random.below(300),
    };
    let bytes = (0..len).map(|_| random.next() as u8).collect();
    (random.below(4) as u16, bytes)
}

/// One end with what it still has to send, and what it should receive.
struct Party {
    session: Session,
    to_send: VecDeque<(u16, Vec<u8>)>,
    expected: VecDeque<(u16, Vec<u8>)>,
}

impl Party {
    /// A round; a slow one takes records only now and then.
    fn turn(&mut self, now_us: u64, takes: bool) -> Vec<Vec<u8>> {
        while takes && let Some((worker, bytes)) = self.session.record() {
            let (expected_worker, expected) =
                self.expected.pop_front().expect("more than was sent");
            assert_eq!((worker, &*bytes), (expected_worker, &*expected));
            self.session.consume();
        }
        while let Some((worker, bytes)) = self.to_send.front() {
            if self.session.send(*worker, bytes).is_err() {
                break;
            }
            self.to_send.pop_front();
        }
        self.session.on_time(now_us);
        let (mut frames, mut frame) = (Vec::new(), Vec::new());
        while self.session.transmit(now_us, &mut frame) {
            frames.push(frame.clone());
        }
        frames
    }
}

/// Meets and exchanges records over a bad link; returns why it ended, if it did before all was
/// delivered.
fn exchange(seed: u64, fault: f64, records: usize) -> Result<(), End> {
    let mut random = Random::new(seed);
    let frame_bytes = [1280, 1500, 9000][random.below(3) as usize];
    let (host, nic) = meet(&mut random, frame_bytes);
    let commands: VecDeque<_> = (0..records).map(|_| record(&mut random)).collect();
    let events: VecDeque<_> = (0..records).map(|_| record(&mut random)).collect();
    let mut parties = [
        Party {
            session: host,
            to_send: commands.clone(),
            expected: events.clone(),
        },
        Party {
            session: nic,
            to_send: events,
            expected: commands,
        },
    ];
    let mut ways = [Direction::new(fault), Direction::new(fault)];
    let mut now_us = 1;
    while parties.iter().any(|party| !party.expected.is_empty()) {
        for (own, other) in [(0, 1), (1, 0)] {
            while let Some(mut frame) = ways[other].arrived(now_us) {
                // Damaged and repeated frames are refused, and nothing comes of it.
                let _ = parties[own].session.on_frame(now_us, &mut frame);
            }
            let takes = random.below(4) > 0;
            for frame in parties[own].turn(now_us, takes) {
                ways[own].send(now_us, frame, &mut random);
            }
            if let Some(end) = parties[own].session.end() {
                return Err(end);
            }
        }
        let arrivals = ways.iter().filter_map(Direction::next_us);
        let timeouts = parties.iter().map(|party| party.session.next_timeout_us());
        // Not later than in some microseconds: a slow one wants to be asked again.
        let next_us = arrivals.chain(timeouts).min().unwrap_or(u64::MAX);
        now_us = next_us.clamp(now_us + 1, now_us + 500);
        assert!(now_us < 600_000_000, "stuck");
    }
    Ok(())
}

fn exchanges(seeds: std::ops::Range<u64>, fault: f64, records: usize) -> usize {
    let mut given_up = 0;
    for seed in seeds {
        println!("seed {seed}, {fault} of frames lost, repeated, held back, damaged each");
        match exchange(seed, fault, records) {
            Ok(()) => {}
            Err(End::Silent) => given_up += 1,
            Err(end) => panic!("{end}"),
        }
    }
    given_up
}

#[test]
fn every_record_arrives_once_and_in_order() {
    assert_eq!(exchanges(0..10, 0.0, 300), 0);
}

#[test]
fn every_record_arrives_once_and_in_order_at_1_percent_of_each_fault() {
    assert_eq!(exchanges(0..30, 0.01, 500), 0);
}

#[test]
fn every_record_arrives_once_and_in_order_at_20_percent_of_each_fault_or_the_session_ends() {
    let given_up = exchanges(0..30, 0.2, 200);
    assert!(given_up <= 2, "{given_up} sessions ended, for silence");
}

#[test]
fn a_handshake_succeeds_over_a_bad_link() {
    for seed in 0..50 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
        let mut responder = Responder::new(&KEY, TERMS);
        let mut ways = [Direction::new(0.2), Direction::new(0.2)];
        let (mut host, mut nic): (Option<Session>, Option<Session>) = (None, None);
        let (mut frame, mut answer) = (Vec::new(), Vec::new());
        let mut now_us = 1;
        while host.is_none() || nic.is_none() {
            if now_us % 100_000 == 1 && host.is_none() {
                initiator.hello(&mut frame);
                ways[0].send(now_us, frame.clone(), &mut random);
            }
            while let Some(mut frame) = ways[0].arrived(now_us) {
                if let Ok(Some((session, _))) =
                    responder.on_frame(now_us, &mut frame, random.seed(), &mut answer)
                {
                    nic = Some(session);
                }
                if !answer.is_empty() {
                    ways[1].send(now_us, answer.clone(), &mut random);
                }
            }
            while let Some(mut frame) = ways[1].arrived(now_us) {
                match &mut host {
                    None => {
                        host = initiator
                            .on_frame(now_us, &mut frame)
                            .ok()
                            .map(|(session, _)| session)
                    }
                    Some(host) => assert!(host.on_frame(now_us, &mut frame).is_err()),
                }
            }
            if let Some(host) = &mut host {
                host.on_time(now_us);
                while host.transmit(now_us, &mut frame) {
                    ways[0].send(now_us, frame.clone(), &mut random);
                }
            }
            now_us += 1000;
            assert!(now_us < 2_000_000, "no session after two seconds");
        }
        assert_eq!(host.unwrap().id(), nic.unwrap().id());
    }
}

#[test]
fn a_replayed_frame_counts_once() {
    let mut random = Random::new(1);
    let (mut host, mut nic) = meet(&mut random, 1500);
    let mut recorded = Vec::new();
    let mut frame = Vec::new();
    for number in 2..1000u64 {
        host.send(0, &number.to_le_bytes()).unwrap();
        while host.transmit(number, &mut frame) {
            recorded.push(frame.clone());
            nic.on_frame(number, &mut frame).unwrap();
        }
        assert_eq!(nic.record().unwrap().1, number.to_le_bytes());
        nic.consume();
        settle(number, &mut host, &mut nic);
    }
    let before = nic.counters();
    for frame in &recorded {
        assert_eq!(
            nic.on_frame(2000, &mut frame.clone()),
            Err(Dropped::Replayed)
        );
    }
    assert!(nic.record().is_none());
    assert_eq!(nic.counters().records_received, before.records_received);

    // Nor do they mean anything to a session that follows.
    let (_, mut nic) = meet(&mut random, 1500);
    for frame in &recorded {
        assert_eq!(
            nic.on_frame(2000, &mut frame.clone()),
            Err(Dropped::OtherSession)
        );
    }
}

#[test]
fn a_recorded_handshake_begins_no_session() {
    let mut random = Random::new(2);
    let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut hello, mut answer, mut first) = (Vec::new(), Vec::new(), Vec::new());
    initiator.hello(&mut hello);
    responder
        .on_frame(1, &mut hello.clone(), random.seed(), &mut answer)
        .unwrap();
    let (mut host, _) = initiator.on_frame(1, &mut answer.clone()).unwrap();
    assert!(host.transmit(1, &mut first));
    let recorded = [hello, first];
    let confirmed = responder.on_frame(1, &mut recorded[1].clone(), random.seed(), &mut answer);
    assert!(confirmed.unwrap().is_some());

    for _ in 0..20 {
        for frame in &recorded {
            let heard = responder.on_frame(2, &mut frame.clone(), random.seed(), &mut answer);
            assert!(heard.unwrap().is_none());
        }
    }
}

/// An attacker sends all HELLOs that the host has ever sent between its last one, the answer, and
/// its first frame.
#[test]
fn recorded_hellos_do_not_keep_a_host_out() {
    let mut random = Random::new(3);
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    let recorded: Vec<_> = (0..100)
        .map(|attempt| {
            let begun_us = NOW_UNIX_US - 3_600_000_000 + attempt;
            Initiator::new(&KEY, 1500, begun_us, random.seed())
        })
        .collect();
    let replay_all = |responder: &mut Responder, random: &mut Random| {
        let (mut frame, mut answer) = (Vec::new(), Vec::new());
        for hello in &recorded {
            hello.hello(&mut frame);
            let heard = responder.on_frame(1, &mut frame, random.seed(), &mut answer);
            assert!(heard.unwrap().is_none());
        }
    };
    replay_all(&mut responder, &mut random);
    let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
    initiator.hello(&mut frame);
    responder
        .on_frame(1, &mut frame, random.seed(), &mut answer)
        .unwrap();
    replay_all(&mut responder, &mut random);
    let (mut host, _) = initiator.on_frame(1, &mut answer).unwrap();
    replay_all(&mut responder, &mut random);
    assert!(host.transmit(1, &mut frame));
    let confirmed = responder
        .on_frame(1, &mut frame, random.seed(), &mut answer)
        .unwrap();
    assert_eq!(confirmed.map(|(session, _)| session.id()), Some(host.id()));
}

/// The clock is no condition: without an attack, a host whose clock has gone back is let in.
#[test]
fn a_host_whose_clock_goes_back_is_let_in() {
    let mut random = Random::new(15);
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    for begun_us in [NOW_UNIX_US, NOW_UNIX_US - 1, 1, 0] {
        let mut initiator = Initiator::new(&KEY, 1500, begun_us, random.seed());
        initiator.hello(&mut frame);
        responder
            .on_frame(1, &mut frame, random.seed(), &mut answer)
            .unwrap();
        let (mut host, _) = initiator.on_frame(1, &mut answer).unwrap();
        assert!(host.transmit(1, &mut frame));
        let confirmed = responder.on_frame(1, &mut frame, random.seed(), &mut answer);
        assert!(confirmed.unwrap().is_some());
    }
}

/// The number of a session is in the clear: who repeats it must have the key as well.
#[test]
fn a_forged_first_frame_does_not_spoil_the_genuine_one() {
    let mut random = Random::new(16);
    let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    initiator.hello(&mut frame);
    responder
        .on_frame(1, &mut frame, random.seed(), &mut answer)
        .unwrap();
    let (mut host, _) = initiator.on_frame(1, &mut answer).unwrap();
    assert!(host.transmit(1, &mut frame));
    for at in 0..frame.len() {
        let mut forged = frame.clone();
        forged[at] ^= 1;
        let heard = responder.on_frame(1, &mut forged, random.seed(), &mut answer);
        assert!(!matches!(heard, Ok(Some(_))), "byte {at}");
    }
    let confirmed = responder.on_frame(1, &mut frame, random.seed(), &mut answer);
    assert!(confirmed.unwrap().is_some());
}

/// A second session would seal other frames with the same keys and numbers.
#[test]
fn an_answer_that_comes_twice_begins_one_session() {
    let mut random = Random::new(17);
    let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut hello, mut answer, mut refusal) = (Vec::new(), Vec::new(), Vec::new());
    initiator.hello(&mut hello);
    Responder::refuse(Reason::Busy, &hello, &mut refusal);
    responder
        .on_frame(1, &mut hello, random.seed(), &mut answer)
        .unwrap();
    assert!(initiator.on_frame(1, &mut answer.clone()).is_ok());
    for late in [&mut answer, &mut refusal] {
        let heard = initiator.on_frame(2, late);
        assert_eq!(heard.unwrap_err(), HandshakeError::Malformed);
    }
}

#[test]
fn another_key_is_refused_on_both_sides() {
    let mut random = Random::new(4);
    let mut initiator = Initiator::new(&OTHER_KEY, 1500, NOW_UNIX_US, random.seed());
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    initiator.hello(&mut frame);
    let error = responder
        .on_frame(1, &mut frame, random.seed(), &mut answer)
        .unwrap_err();
    assert_eq!(error, HandshakeError::Key);
    assert!(error.to_string().contains("copy the key file"), "{error}");
    let error = initiator.on_frame(1, &mut answer).unwrap_err();
    assert_eq!(error, HandshakeError::Key);
}

/// One file for two protocols opens neither with the other's key.
#[test]
fn the_key_of_another_protocol_is_refused() {
    let mut random = Random::new(4);
    let other = KEY.for_protocol("sockets");
    for (host, nic) in [(&KEY, &other), (&other, &KEY)] {
        let mut initiator = Initiator::new(host, 1500, NOW_UNIX_US, random.seed());
        let mut responder = Responder::new(nic, TERMS);
        let (mut frame, mut answer) = (Vec::new(), Vec::new());
        initiator.hello(&mut frame);
        let heard = responder.on_frame(1, &mut frame, random.seed(), &mut answer);
        assert_eq!(heard.unwrap_err(), HandshakeError::Key);
        let heard = initiator.on_frame(1, &mut answer);
        assert_eq!(heard.unwrap_err(), HandshakeError::Key);
    }
}

/// A peer that answers must have the key as well: here it relays what the host says to one without
/// it.
#[test]
fn an_answer_with_another_key_is_refused() {
    let mut random = Random::new(5);
    let (mut mine, theirs) = (
        Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed()),
        Initiator::new(&OTHER_KEY, 1500, NOW_UNIX_US, random.seed()),
    );
    let mut impostor = Responder::new(&OTHER_KEY, TERMS);
    let (mut frame, mut answer, mut hello) = (Vec::new(), Vec::new(), Vec::new());
    theirs.hello(&mut frame);
    impostor
        .on_frame(1, &mut frame, random.seed(), &mut answer)
        .unwrap();
    mine.hello(&mut hello);
    assert_eq!(
        mine.on_frame(1, &mut answer.clone()).unwrap_err(),
        HandshakeError::Malformed
    );
    // The MAC of the HELLO that it should answer is no secret.
    answer[4..36].copy_from_slice(&hello[60..92]);
    assert_eq!(
        mine.on_frame(1, &mut answer).unwrap_err(),
        HandshakeError::Key
    );
}

#[test]
fn a_second_host_with_another_key_disturbs_no_session() {
    let mut random = Random::new(6);
    let (mut host, mut nic) = meet(&mut random, 1500);
    let intruder = Initiator::new(&OTHER_KEY, 1500, NOW_UNIX_US, random.seed());
    let mut responder = Responder::new(&KEY, TERMS);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    for round in 2..100u64 {
        intruder.hello(&mut frame);
        assert_eq!(
            nic.on_frame(round, &mut frame.clone()),
            Err(Dropped::Malformed)
        );
        let refused = responder.on_frame(round, &mut frame, random.seed(), &mut answer);
        assert_eq!(refused.unwrap_err(), HandshakeError::Key);
        host.send(1, &round.to_le_bytes()).unwrap();
        settle(round, &mut host, &mut nic);
        assert_eq!(nic.record().unwrap(), (1, &mut round.to_le_bytes()[..]));
        nic.consume();
    }
    assert_eq!((host.end(), nic.end()), (None, None));
}

#[test]
fn versions_without_one_in_common_reach_both_sides() {
    let mut random = Random::new(7);
    let mut responder = Responder::new(&KEY, TERMS);
    // Lowest and highest version of the transport, and version of the contract.
    for (lowest, highest, contract_ahead) in [(2, 3, 0), (0, 0, 0), (1, 1, 1), (1, 9, 1)] {
        let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
        let (mut frame, mut answer) = (Vec::new(), Vec::new());
        initiator.hello(&mut frame);
        frame[1] = lowest;
        frame[12] = highest;
        frame[14] += contract_ahead;
        let contract = contract::limits::VERSION + u16::from(contract_ahead);
        let error = responder
            .on_frame(1, &mut frame, random.seed(), &mut answer)
            .unwrap_err();
        assert_eq!(
            error,
            HandshakeError::Version {
                transport: (lowest, highest),
                contract
            }
        );
        assert!(error.to_string().contains("same release"), "{error}");
        let error = initiator.on_frame(1, &mut answer).unwrap_err();
        assert_eq!(
            error,
            HandshakeError::Version {
                transport: (1, 1),
                contract: contract::limits::VERSION
            }
        );
    }
}

#[test]
fn a_busy_nic_stack_says_so() {
    let mut random = Random::new(8);
    let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
    let (mut frame, mut refusal) = (Vec::new(), Vec::new());
    initiator.hello(&mut frame);
    Responder::refuse(Reason::Busy, &frame, &mut refusal);
    let error = initiator.on_frame(1, &mut refusal).unwrap_err();
    assert_eq!(error, HandshakeError::Busy);
    assert!(error.to_string().contains("another host stack"), "{error}");
}

/// The HELLO is as long as what it offers: a link that cuts or drops long frames is found out.
#[test]
fn frames_are_as_long_as_both_sides_and_the_link_take() {
    let mut random = Random::new(9);
    for (host_takes, nic_takes) in [(9000, 1500), (1500, 9000), (9216, 9216)] {
        let mut initiator = Initiator::new(&KEY, host_takes, NOW_UNIX_US, random.seed());
        let mut responder = Responder::new(
            &KEY,
            Terms {
                frame_bytes: nic_takes,
                ..TERMS
            },
        );
        let (mut frame, mut answer) = (Vec::new(), Vec::new());
        initiator.hello(&mut frame);
        assert_eq!(frame.len(), host_takes.into());
        let cut = &mut frame.clone()[..usize::from(host_takes) - 1];
        let heard = responder.on_frame(1, cut, random.seed(), &mut answer);
        assert_eq!(heard.unwrap_err(), HandshakeError::Malformed);
        responder
            .on_frame(1, &mut frame, random.seed(), &mut answer)
            .unwrap();
        assert_eq!(answer.len(), host_takes.min(nic_takes).into());
        let (mut host, terms) = initiator.on_frame(1, &mut answer).unwrap();
        assert_eq!(terms.frame_bytes, host_takes.min(nic_takes));
        while host.has_room() {
            host.send(0, &[1; 8192]).unwrap();
        }
        while host.transmit(1, &mut frame) {
            assert!(frame.len() <= terms.frame_bytes.into());
        }
    }
}

#[test]
fn several_records_share_a_frame() {
    let (mut host, mut nic) = meet(&mut Random::new(10), 1500);
    for worker in 0..10 {
        host.send(worker, &[worker as u8; 100]).unwrap();
    }
    let mut frame = Vec::new();
    assert!(host.transmit(2, &mut frame));
    nic.on_frame(2, &mut frame).unwrap();
    for worker in 0..10 {
        assert_eq!(
            nic.record().unwrap(),
            (worker, &mut [worker as u8; 100][..])
        );
        nic.consume();
    }
    assert!(!host.transmit(2, &mut frame), "one frame was enough");
}

#[test]
fn a_sender_stops_where_its_credit_ends_and_goes_on_when_there_is_more() {
    let (mut host, mut nic) = meet(&mut Random::new(11), 1500);
    let record = [5; 8000];
    let mut sent = 0u64;
    let mut frame = Vec::new();
    // Records are not taken out.
    for round in 2..12 {
        while host.send(0, &record).is_ok() {
            sent += 1;
        }
        settle(round, &mut host, &mut nic);
    }
    let frames = host.counters().frames_sent;
    assert!(
        (256..300).contains(&frames),
        "{frames} frames with credit for 256 parcels"
    );
    assert!(!host.has_room());

    // Some are taken; the frame that tells of it is lost, and the host asks.
    while nic.record().is_some() {
        nic.consume();
    }
    let received = nic.counters().records_received;
    assert!(
        nic.transmit(20, &mut frame),
        "credit for 256 parcels is worth a frame"
    );
    host.on_time(host.next_timeout_us());
    assert!(!host.has_room());
    let mut now_us = 20;
    while !host.has_room() {
        now_us = host.next_timeout_us();
        host.on_time(now_us);
        settle(now_us, &mut host, &mut nic);
        assert!(now_us < 1_000_000, "the host does not ask");
    }
    settle(now_us, &mut host, &mut nic);
    while nic.record().is_some() {
        nic.consume();
    }
    assert_eq!(nic.counters().records_received, sent);
    assert!(received < sent, "some had to wait for credit");
}

#[test]
fn silence_ends_a_session_and_keepalives_prevent_it() {
    let (mut host, mut nic) = meet(&mut Random::new(12), 1500);
    settle(2, &mut host, &mut nic);
    let mut now_us = 2;
    while now_us < 20_000_000 {
        now_us = host.next_timeout_us().min(nic.next_timeout_us());
        host.on_time(now_us);
        nic.on_time(now_us);
        settle(now_us, &mut host, &mut nic);
    }
    assert_eq!((host.end(), nic.end()), (None, None));
    let frames = host.counters().frames_sent;
    assert!(frames < 100, "{frames} frames in 20 s without traffic");

    let mut frame = Vec::new();
    let silent_us = now_us;
    while host.end().is_none() {
        now_us = host.next_timeout_us();
        host.on_time(now_us);
        while host.transmit(now_us, &mut frame) {}
    }
    assert_eq!(host.end(), Some(End::Silent));
    assert!(now_us - silent_us <= contract::ethernet::session::SILENCE_US_MAX);
}

#[test]
fn leaving_reaches_the_peer() {
    for leaving in [
        Leaving::Ended,
        Leaving::ProcessGone,
        Leaving::Superseded,
        Leaving::HostDied,
    ] {
        let (mut host, mut nic) = meet(&mut Random::new(13), 1500);
        nic.leave(leaving);
        let mut frame = Vec::new();
        assert!(nic.transmit(2, &mut frame));
        host.on_frame(2, &mut frame).unwrap();
        assert_eq!(host.end(), Some(End::Left(leaving)));
        assert!(nic.end().is_some());
        assert!(!nic.transmit(3, &mut frame) && !host.transmit(3, &mut frame));
    }
}

#[test]
fn both_know_how_far_their_clocks_are_apart() {
    let (mut host, mut nic) = meet(&mut Random::new(14), 1500);
    // The NIC stack's clock is ahead by an hour; every way takes 30 us.
    const AHEAD_US: u64 = 3_600_000_000;
    let mut frame = Vec::new();
    for round in 0..10u64 {
        let now_us = 1000 + 1000 * round;
        host.send(0, b"x").unwrap();
        while host.transmit(now_us, &mut frame) {
            nic.on_frame(now_us + 30 + AHEAD_US, &mut frame).unwrap();
        }
        while nic.transmit(now_us + 40 + AHEAD_US, &mut frame) {
            host.on_frame(now_us + 70, &mut frame).unwrap();
        }
    }
    assert_eq!(host.peer_clock_ahead_us(), Some(AHEAD_US as i64));
    assert_eq!(nic.peer_clock_ahead_us(), Some(-(AHEAD_US as i64)));
}

/// A short version of what `fuzz/fuzz_targets/ethernet.rs` does for longer.
#[test]
fn no_frame_whatever_does_harm() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (mut host, mut nic) = meet(&mut random, 1500);
        let mut initiator = Initiator::new(&KEY, 1500, NOW_UNIX_US, random.seed());
        let mut responder = Responder::new(&KEY, TERMS);
        let (mut hello, mut answer, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        initiator.hello(&mut hello);
        responder
            .on_frame(1, &mut hello.clone(), random.seed(), &mut answer)
            .unwrap();
        host.send(0, &[1; 3000]).unwrap();
        let mut sealed = Vec::new();
        host.transmit(2, &mut sealed);
        let genuine = [hello, answer, sealed];
        for _ in 0..200 {
            let mut frame = match random.below(4) {
                0 => (0..random.below(FRAME_BYTES_MIN as u64))
                    .map(|_| random.next() as u8)
                    .collect(),
                which => genuine[which as usize - 1].clone(),
            };
            for _ in 0..1 + random.below(4) {
                let at = random.below(120.min(frame.len().max(1) as u64)) as usize;
                if let Some(byte) = frame.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            if random.below(4) == 0 {
                frame.truncate(random.below(frame.len() as u64 + 1) as usize);
            }
            // Two flips may undo each other, or have hit the padding.
            let unharmed = |genuine: &Vec<u8>| {
                let length = u16::from_le_bytes([genuine[2], genuine[3]]).into();
                frame.get(..length) == Some(&genuine[..length])
            };
            if genuine.iter().any(unharmed) {
                continue;
            }
            let _ = initiator
                .on_frame(3, &mut frame.clone())
                .map(|_| panic!("a session from a damaged answer"));
            let heard = responder.on_frame(3, &mut frame.clone(), random.seed(), &mut scratch);
            assert!(
                !matches!(heard, Ok(Some(_))),
                "a session from a damaged frame"
            );
            assert!(nic.on_frame(3, &mut frame).is_err(), "{frame:?}");
        }
        assert_eq!(nic.end(), None);
        settle(4, &mut host, &mut nic);
        // The frame that was taken away is lost, and found to be.
        let mut now_us = 4;
        while nic.record().is_none() {
            now_us = host.next_timeout_us().min(now_us + 50_000);
            host.on_time(now_us);
            settle(now_us, &mut host, &mut nic);
        }
        assert_eq!(nic.record().unwrap(), (0, &mut [1; 3000][..]));
    }
}
