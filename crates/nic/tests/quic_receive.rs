//! Packets of peers of QUIC connections: opened, put in order, handed to the host; and what is not.

mod support;

use contract::{Command, Event, FlowId, Segment};
use fakes::recording_port::{Recording, RecordingPort};
use netdev::steering::Target;
use nic::reader::memory::MemoryDisk;
use nic::{Config, Reorder};
use support::quic::Plain;
use support::quic_peer::{HOLD_US, Peer, id, packets_of};
use support::{Stage, small_config};
use wire::ip::Ecn;

const FLOW: u64 = 7;

/// A worker with a port of its own.
fn stage_with(config: &Config) -> Stage {
    let wire = Recording::default();
    let mut port = RecordingPort::new(&wire, 65_535);
    port.set_target(Target::new(9));
    Stage::on_port(config, Box::new(MemoryDisk::new()), port, wire)
}

/// The same, which receives for a flow.
fn receiving() -> Stage {
    let mut stage = stage_with(&small_config());
    stage.tell_receive(FLOW, 0);
    let flows = [FlowId(FLOW)].into();
    assert_eq!(stage.take_events(), [Event::FlowsTaken { flows }]);
    stage
}

fn arrive(stage: &mut Stage, frame: Vec<u8>) {
    stage.wire.arrive(frame);
    stage.settle();
}

fn text(number: u64) -> Vec<u8> {
    format!("\x06frames of packet {number}").into_bytes()
}

fn expected(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, Vec<u8>)> {
    numbers.into_iter().map(|it| (it, text(it))).collect()
}

#[test]
fn packets_come_up_with_all_that_is_known_of_them() {
    for remote in ["10.77.0.1:7", "[fd77::1]:7"] {
        let mut stage = receiving();
        let peer = Peer {
            remote: remote.parse().expect("an address"),
            ecn: Ecn::Ce,
            ..Peer::new(FLOW)
        };
        stage.wire.arrive(peer.frame(0, &text(0)));
        stage.wire.arrive(peer.frame(1, &text(1)));
        let (received, frames) = stage.received();
        assert_eq!((received.len(), frames.len()), (1, 0));
        let received = &received[0];
        assert_eq!(received.flow, FlowId(FLOW));
        assert_eq!(received.generation, 0);
        assert_eq!(received.id, peer.id);
        assert_eq!(received.remote, peer.remote);
        let local = if received.remote.is_ipv6() {
            "fd77::2"
        } else {
            "10.77.0.2"
        };
        assert_eq!(received.local.to_string(), local);
        assert_eq!(received.arrived_us, stage.now_us.get());
        for packet in &received.packets {
            assert_eq!((packet.first, packet.ecn, packet.age_us), (0x41, 3, 0));
        }
        assert_eq!(packets_of(std::slice::from_ref(received)), expected(0..2));
        assert_eq!(stage.counters().quic_packets_opened, 2);
    }
}

/// RFC 9287 §3
#[test]
fn a_packet_whose_fixed_bit_is_greased_is_opened() {
    let mut stage = receiving();
    let peer = Peer {
        greases: true,
        ..Peer::new(FLOW)
    };
    arrive(&mut stage, peer.frame(0, &text(0)));
    let (received, frames) = stage.received();
    assert_eq!((packets_of(&received), frames), (expected([0]), vec![]));
    assert_eq!(received[0].packets[0].first, 0x01);
}

#[test]
fn a_frame_that_the_host_hands_on_is_opened_as_well() {
    let mut stage = Stage::new();
    stage.tell_receive(FLOW, 0);
    let peer = Peer::new(FLOW);
    let frame = peer.frame(0, &text(0));
    stage.tell(&Command::Frame { bytes: &frame });
    assert_eq!(stage.packets(), expected([0]));
    let unknown = Peer::new(8).frame(0, &text(0));
    stage.tell(&Command::Frame { bytes: &unknown });
    assert_eq!(stage.received().1, [unknown]);
}

#[test]
fn what_cannot_be_opened_goes_up_as_it_came() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    let packet = peer.packet(0, &text(0));
    let long_header = {
        let mut packet = packet.clone();
        packet[0] |= 0x80;
        packet
    };
    let mut datagrams = vec![
        long_header,
        Peer::new(8).packet(0, &text(0)),
        Peer {
            generation: 1,
            ..peer.clone()
        }
        .packet(0, &text(0)),
        Peer {
            generation: 2,
            ..peer.clone()
        }
        .packet(0, &text(0)),
        packet[..20].to_vec(),
        Vec::new(),
        vec![0x40],
        peer.packet(0, &[0; 1500])[..1400].to_vec(),
    ];
    // A bit of each byte, but of those of the ID, where it is another's.
    datagrams.extend((0..packet.len()).map(|at| {
        let mut damaged = packet.clone();
        damaged[at] ^= 0x10;
        damaged
    }));
    for datagram in &datagrams {
        let frame = peer.datagram(datagram);
        arrive(&mut stage, frame.clone());
        let (received, frames) = stage.received();
        assert_eq!(received, [], "{datagram:02x?}");
        assert_eq!(frames, [frame]);
    }
    let counters = stage.counters();
    assert_eq!(counters.quic_frames_handed_up, datagrams.len() as u64);
    assert_eq!(counters.commands_rejected + counters.frames_dropped, 0);
    // None of them has spoilt anything.
    arrive(&mut stage, peer.datagram(&packet));
    assert_eq!(stage.packets(), expected([0]));
}

#[test]
fn what_comes_again_is_dropped() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    for number in [0, 1, 0, 3, 3, 1, 2, 2, 3] {
        stage.wire.arrive(peer.frame(number, &text(number)));
    }
    assert_eq!(stage.packets(), expected(0..4));
    assert_eq!(stage.counters().quic_packets_duplicate, 5);
}

#[test]
fn a_gap_holds_packets_until_it_is_filled() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    for number in [0, 2, 3] {
        arrive(&mut stage, peer.frame(number, &text(number)));
    }
    assert_eq!(stage.packets(), expected([0]));
    let due_us = stage.now_us.get() + u64::from(HOLD_US);
    assert_eq!(stage.worker.next_timeout_us(), Some(due_us));
    stage.now_us.set(due_us - 1);
    assert_eq!(stage.packets(), []);
    arrive(&mut stage, peer.frame(1, &text(1)));
    assert_eq!(stage.worker.next_timeout_us(), None);
    assert_eq!(stage.packets(), expected(1..4));
    let counters = stage.counters();
    assert_eq!(
        (counters.quic_packets_held, counters.quic_gaps_timed_out),
        (2, 0)
    );
}

#[test]
fn a_gap_is_given_up_when_its_time_is_over() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    let start_us = stage.now_us.get();
    for (after_us, number) in [(0, 0), (0, 2), (500, 5), (600, 6)] {
        stage.now_us.set(start_us + after_us);
        arrive(&mut stage, peer.frame(number, &text(number)));
    }
    assert_eq!(stage.packets(), expected([0]));
    stage.now_us.set(start_us + u64::from(HOLD_US));
    assert_eq!(stage.packets(), expected([2]));
    stage.now_us.set(start_us + 500 + u64::from(HOLD_US));
    let (received, _) = stage.received();
    assert_eq!(packets_of(&received), expected([5, 6]));
    // When they have arrived, not when they were handed up.
    assert_eq!(received[0].arrived_us, start_us + 600);
    assert_eq!(received[0].packets[0].age_us, 100);
    assert_eq!(stage.counters().quic_gaps_timed_out, 2);
    // It was late, not lost.
    arrive(&mut stage, peer.frame(4, &text(4)));
    assert_eq!(stage.packets(), expected([4]));
}

#[test]
fn an_ack_that_a_later_one_says_again_goes_up_as_a_number() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    let ack = |last: u8| vec![2, last, 0, 0, last];
    for (number, last) in [(0, 3), (1, 5), (2, 9)] {
        stage.wire.arrive(peer.frame(number, &ack(last)));
    }
    assert_eq!(stage.packets(), [(0, vec![]), (1, vec![]), (2, ack(9))]);
    assert_eq!(stage.counters().quic_acks_coalesced, 2);
}

#[test]
fn packets_of_another_path_are_events_of_their_own() {
    let mut stage = receiving();
    stage.tell_id(FLOW, 2);
    let peer = Peer::new(FLOW);
    let elsewhere = Peer {
        remote: "10.77.0.9:99".parse().expect("an address"),
        ..peer.clone()
    };
    let renamed = Peer {
        id: id(FLOW, 2),
        ..peer.clone()
    };
    let frames = [
        (&peer, 0),
        // What is held is not held for a packet of another path.
        (&peer, 2),
        (&elsewhere, 1),
        (&elsewhere, 3),
        (&renamed, 4),
    ];
    for (peer, number) in frames {
        stage.wire.arrive(peer.frame(number, &text(number)));
    }
    let (received, _) = stage.received();
    assert_eq!(packets_of(&received), expected([0, 2, 1, 3, 4]));
    let paths: Vec<_> = received.iter().map(|it| (it.remote, it.id)).collect();
    assert_eq!(
        paths,
        [peer, elsewhere, renamed].map(|peer| (peer.remote, peer.id))
    );
}

#[test]
fn the_next_key_takes_the_place_of_the_one_before() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    let next = Peer {
        generation: 1,
        ..peer.clone()
    };
    for number in [0, 2] {
        arrive(&mut stage, peer.frame(number, &text(number)));
    }
    let before = next.frame(3, &text(3));
    arrive(&mut stage, before.clone());
    let (received, frames) = stage.received();
    assert_eq!(
        (packets_of(&received), frames),
        (expected([0]), vec![before])
    );
    stage.tell_receive(FLOW, 1);
    // Packet 2 was opened under the key before.
    let (received, _) = stage.received();
    assert_eq!(
        (packets_of(&received), received[0].generation),
        (expected([2]), 0)
    );
    arrive(&mut stage, next.frame(6, &text(6)));
    let (received, _) = stage.received();
    // The host has opened what is missing.
    assert_eq!(
        (packets_of(&received), received[0].generation),
        (expected([6]), 1)
    );
    let late = peer.frame(1, &text(1));
    arrive(&mut stage, late.clone());
    assert_eq!(stage.received().1, [late]);
    arrive(&mut stage, next.frame(2, &text(2)));
    assert_eq!(stage.packets(), [], "its number has come");
}

#[test]
fn a_flow_that_is_over_is_forgotten() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    for number in [0, 2] {
        arrive(&mut stage, peer.frame(number, &text(number)));
    }
    assert_eq!(stage.packets(), expected([0]));
    stage.acked(FLOW, 0, true);
    stage.settle();
    assert_eq!(stage.worker.next_timeout_us(), None);
    let frame = peer.frame(1, &text(1));
    arrive(&mut stage, frame.clone());
    assert_eq!(stage.received().1, [frame]);
    // Another one may be called so.
    stage.tell_receive(FLOW, 0);
    arrive(&mut stage, peer.frame(1, &text(1)));
    assert_eq!(stage.packets(), expected([1]));
}

#[test]
fn a_key_that_is_taken_back_is_forgotten() {
    for generation in [0, 1] {
        let mut stage = receiving();
        stage.tell_id(FLOW, 2);
        let peer = Peer::new(FLOW);
        for number in [0, 2, 4] {
            arrive(&mut stage, peer.frame(number, &text(number)));
        }
        assert_eq!(stage.packets(), expected([0]));
        stage.tell_receive_gone(FLOW);
        assert_eq!(stage.packets(), expected([2, 4]), "what was held goes up");
        assert_eq!(stage.worker.next_timeout_us(), None);
        assert_eq!(stage.worker.usage().records_bytes, 0);
        // By whatever ID, and also if the host still hands it on.
        let renamed = Peer {
            id: id(FLOW, 2),
            ..peer.clone()
        };
        for frame in [peer.frame(1, &text(1)), renamed.frame(3, &text(3))] {
            arrive(&mut stage, frame.clone());
            stage.tell(&Command::Frame { bytes: &frame });
            assert_eq!(stage.received(), (vec![], vec![frame.clone(), frame]));
        }
        // It has no ID until it has a key.
        stage.tell_id(FLOW, 3);
        stage.tell_receive(FLOW, generation);
        let flows = [FlowId(FLOW)].into();
        assert_eq!(stage.take_events(), [Event::FlowsTaken { flows }]);
        let again = Peer { generation, ..peer };
        for number in [5, 7, 6] {
            arrive(&mut stage, again.frame(number, &text(number)));
        }
        let (received, frames) = stage.received();
        assert_eq!((packets_of(&received), frames), (expected(5..8), vec![]));
        assert!(received.iter().all(|it| it.generation == generation));
        let unnamed = Peer {
            id: id(FLOW, 3),
            ..again
        };
        let frame = unnamed.frame(8, &text(8));
        arrive(&mut stage, frame.clone());
        assert_eq!(stage.received().1, [frame]);
        assert_eq!(stage.counters().commands_rejected, 0);
    }
}

#[test]
fn a_flow_whose_key_was_taken_back_is_not_reported_as_taken() {
    let mut stage = stage_with(&small_config());
    stage.tell_receive(FLOW, 0);
    stage.tell_receive_gone(FLOW);
    stage.tell_receive(8, 0);
    let flows = [FlowId(8)].into();
    assert_eq!(stage.take_events(), [Event::FlowsTaken { flows }]);
}

#[test]
fn a_key_that_is_taken_back_makes_room_for_another() {
    let mut stage = receiving();
    let key_bytes = stage.worker.usage().records_bytes;
    stage = stage_with(&Config {
        records_bytes: key_bytes,
        ..small_config()
    });
    let refused = |stage: &mut Stage| {
        stage.settle();
        stage.counters().quic_receive_keys_refused
    };
    stage.tell_receive(FLOW, 0);
    stage.tell_receive(8, 0);
    assert_eq!(refused(&mut stage), 1);
    // Of a flow without a key, and of none.
    stage.tell_receive_gone(8);
    stage.tell_receive_gone(99);
    stage.tell_receive(8, 0);
    assert_eq!(refused(&mut stage), 2);
    for _ in 0..2 {
        stage.tell_receive_gone(FLOW);
    }
    stage.tell_receive(8, 0);
    stage.tell_receive(FLOW, 0);
    assert_eq!(refused(&mut stage), 3);
    stage.received();
    arrive(&mut stage, Peer::new(8).frame(0, &text(0)));
    assert_eq!(stage.packets(), expected([0]));
    for flow in [FLOW, 8] {
        stage.acked(flow, 0, true);
    }
    stage.settle();
    assert_eq!(stage.worker.usage().records_bytes, 0);
    assert_eq!(stage.counters().commands_rejected, 0);
}

/// After a QSEND that follows QRXKEYGONE has departed, the host believes no QRX.
#[test]
fn packets_go_up_before_a_later_qsend_departs() {
    let mut stage = receiving();
    stage.tell_quic_key(FLOW, 0, 0);
    let peer = Peer::new(FLOW);
    for number in [0, 2, 4] {
        stage.wire.arrive(peer.frame(number, &text(number)));
    }
    stage.turn();
    stage.tell_receive_gone(FLOW);
    let packet = Plain {
        number: 0,
        generation: 0,
        prefix: b"",
        segments: vec![Segment::Inline(b"a packet that leaves")],
    };
    let id = stage.quic_send(FLOW, [packet]);
    let events = stage.take_events();
    let departed = events
        .iter()
        .position(|event| matches!(event, Event::Departed { send, .. } if *send == id));
    let departed = departed.expect("it has departed");
    let mut received = Vec::new();
    for (at, event) in events.into_iter().enumerate() {
        if let Event::QuicReceived(it) = event {
            assert!(at < departed);
            received.push(*it);
        }
    }
    assert_eq!(packets_of(&received), expected([0, 2, 4]));
}

#[test]
fn what_a_flow_is_called_is_bounded_and_its_own() {
    let mut stage = receiving();
    stage.tell_receive(8, 0);
    stage.tell(&Command::QuicConnectionId {
        flow: FlowId(8),
        id: id(FLOW, 1),
    });
    let named = |number| Peer {
        id: id(FLOW, number),
        ..Peer::new(FLOW)
    };
    arrive(&mut stage, named(1).frame(0, &text(0)));
    let (received, _) = stage.received();
    assert_eq!(
        received[0].flow,
        FlowId(FLOW),
        "the first that was called so"
    );
    (2..=17).for_each(|number| stage.tell_id(FLOW, number));
    arrive(&mut stage, named(17).frame(1, &text(1)));
    assert_eq!(stage.packets(), expected([1]));
    let old = named(1).frame(2, &text(2));
    arrive(&mut stage, old.clone());
    assert_eq!(stage.received().1, [old]);
    // A flow without a key has no name.
    stage.tell_id(99, 1);
    let unknown = Peer::new(99).frame(0, &text(0));
    arrive(&mut stage, unknown.clone());
    assert_eq!(stage.received().1, [unknown]);
}

#[test]
fn without_room_for_a_key_the_host_opens_all() {
    let mut stage = stage_with(&Config {
        records_bytes: 0,
        ..small_config()
    });
    stage.tell_receive(FLOW, 0);
    let frame = Peer::new(FLOW).frame(0, &text(0));
    arrive(&mut stage, frame.clone());
    let events = stage.take_events();
    assert_eq!(
        events,
        [Event::Frame {
            bytes: frame.into()
        }],
        "no flow is taken"
    );
    assert_eq!(stage.counters().quic_receive_keys_refused, 1);
}

#[test]
fn a_host_that_takes_no_events_loses_nothing_of_what_there_is_room_for() {
    let mut stage = receiving();
    let peer = Peer::new(FLOW);
    let count = 4_000;
    for number in 0..count {
        stage.wire.arrive(peer.frame(number, &text(number)));
        // The host does not listen: neither ring nor queue take more.
        stage.turn();
    }
    let mut all = Vec::new();
    while all.len() < count as usize {
        let packets = stage.packets();
        assert!(
            !packets.is_empty(),
            "{} are missing",
            count - all.len() as u64
        );
        all.extend(packets);
    }
    assert_eq!(all, expected(0..count));
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Loss, reordering and repetitions: each packet that has come goes up once, and in order if none
/// was late.
#[test]
fn whatever_the_network_does_each_packet_goes_up_once() {
    let seed = std::env::var("QUIC_RECEIVE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 16 | 1);
    println!("QUIC_RECEIVE_SEED={seed}");
    let mut random = Random(seed);
    for round in 0..60 {
        let reorder = [Reorder::Ring, Reorder::Linear, Reorder::Off][round % 3];
        let mut stage = stage_with(&Config {
            reorder,
            ..small_config()
        });
        stage.tell_receive(FLOW, 0);
        let peer = Peer::new(FLOW);
        let (loss, late) = (random.below(10), random.below(30));
        let (mut sent, mut waiting) = (Vec::new(), Vec::new());
        for number in 0..300 {
            // The first is where the order begins.
            if number == 0 || random.below(100) >= loss {
                sent.push(number);
                // (When it arrives, in packets.)
                let by = if number > 0 && random.below(100) < late {
                    random.below(20)
                } else {
                    0
                };
                waiting.push((number + by, number));
                if random.below(20) == 0 {
                    waiting.push((number + random.below(40), number));
                }
            }
        }
        waiting.sort_by_key(|(at, _)| *at);
        let mut all = Vec::new();
        for (_, number) in waiting {
            stage.wire.arrive(peer.frame(number, &text(number)));
            if random.below(3) == 0 {
                stage.now_us.set(stage.now_us.get() + random.below(200));
                all.extend(stage.packets());
            }
        }
        all.extend(stage.packets());
        stage.now_us.set(stage.now_us.get() + 1_000_000);
        all.extend(stage.packets());
        let counters = stage.counters();
        if reorder != Reorder::Off && counters.quic_gaps_timed_out == 0 {
            assert!(all.is_sorted(), "seed {seed}, round {round}");
        }
        all.sort();
        let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, sent, "seed {seed}, round {round}");
        assert!(all == expected(sent), "plaintexts are those of the numbers");
        if reorder == Reorder::Off {
            assert_eq!(counters.quic_packets_held, 0);
        }
        assert_eq!(stage.worker.next_timeout_us(), None);
    }
}
