//! Connections whose end the NIC stack runs: what it is given, what the application hears, and how
//! they come back.

use std::net::SocketAddr;

use contract::limits::FRAME_BYTES_MAX;
use contract::parting::{PartEnd, PartEndReason, PartRefusal, PartStage};
use contract::{Event, FlowId};
use host::app::{AppEvent, CloseReason};
use host::{OffloadPolicy, Usage};
use netdev::steering::{Arrived, Decision, PacketType, SteeringMap, Target};
use wire::frame::{TcpTemplate, parse_segment};
use wire::tcp::{Flags, Header};

use crate::rig::{Rig, SERVER, answer};

/// A host that parts with connections.
fn parting() -> Rig {
    let mut rig = Rig::with(|config| config.teardown_offload = OffloadPolicy::On);
    rig.app.follows = true;
    rig
}

/// The client has got a response and has closed, so that the server does.
fn client_closes(rig: &mut Rig) -> FlowId {
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    let before = rig.nic.parts.len();
    rig.client.shutdown();
    rig.run_until(|rig| rig.nic.parts.len() > before);
    rig.nic.parts[before].0
}

fn ended(rig: &mut Rig, flow: FlowId, reason: PartEndReason) {
    let ends = [PartEnd { flow, reason }].into();
    tell(rig, &Event::PartEnded { ends });
}

fn tell(rig: &mut Rig, event: &Event) {
    rig.nic.channel.send(event).expect("room for an event");
    rig.nic.channel.flush();
    rig.step();
}

fn closed(rig: &Rig) -> usize {
    rig.app.count(|event| {
        let reason = CloseReason::Finished;
        matches!(event, AppEvent::Closed { reason: r, .. } if *r == reason)
    })
}

fn client_says(rig: &mut Rig, from: SocketAddr, flags: Flags, payload: &[u8]) {
    let header = Header {
        seq: 7,
        flags,
        window: 1000,
        ..Header::default()
    };
    rig.inject_segment(from, &header, payload);
    rig.step();
}

#[test]
fn a_client_that_closes_first_is_parted_with_before_fin_has_left() {
    let mut rig = parting();
    let flow = client_closes(&mut rig);
    let (_, stage, fin_seq) = rig.nic.parts[0];
    assert_eq!(stage, PartStage::LastAck);
    // Nothing of it is left here, and the application has heard the end.
    assert_eq!(closed(&rig), 1);
    let usage = rig.stack.usage();
    assert_eq!((usage.connections, usage.parted, usage.timers), (0, 1, 0));
    assert!(
        !rig.trace
            .iter()
            .any(|(header, _)| header.flags.contains(Flags::FIN))
    );
    // What the client has yet to say goes to the NIC stack.
    let address = rig.client_address();
    let sent = rig.stack.counters().packets_sent;
    client_says(&mut rig, address, Flags::ACK, &[]);
    client_says(&mut rig, address, Flags::ACK, &[1; 1400]);
    let lens: Vec<usize> = rig.nic.frames.iter().map(Vec::len).collect();
    assert_eq!(lens, [54, 1454]);
    assert_eq!(rig.stack.counters().packets_sent, sent);
    assert_eq!(rig.stack.counters().resets_sent, 0);

    ended(&mut rig, flow, PartEndReason::Finished);
    assert_eq!(rig.stack.usage(), Usage::default());
    let counters = rig.stack.counters();
    assert_eq!((counters.parts, counters.parted_finished), (1, 1));
    assert_eq!(counters.frames_handed_on, 2);
    assert_eq!(counters.events_invalid, 0);
    // From now on it is any stranger.
    client_says(&mut rig, address, Flags::ACK, &[]);
    assert_eq!(rig.stack.counters().resets_sent, 1);
    assert!(fin_seq > 0);
}

#[test]
fn without_the_switch_nothing_is_parted_with() {
    let mut rig = Rig::new();
    rig.app.follows = true;
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    rig.client.shutdown();
    rig.run_until(|rig| rig.stack.connections() == 0);
    assert_eq!((rig.nic.parts.len(), closed(&rig)), (0, 1));
}

#[test]
fn an_application_that_closes_first_is_parted_with_when_its_fin_is_acknowledged() {
    let mut rig = parting();
    rig.ask(&["bye"]);
    rig.run_until(|rig| !rig.nic.parts.is_empty());
    let (flow, stage, _) = rig.nic.parts[0];
    // Nothing was in flight: FIN had not left.
    assert_eq!(stage, PartStage::FinWait1);
    assert_eq!(rig.stack.usage().connections, 0);
    ended(&mut rig, flow, PartEndReason::Reset);
    assert_eq!(rig.stack.counters().parted_broken, 1);

    rig.reconnect();
    rig.ask(&["3000", "bye"]);
    rig.run_until(|rig| rig.nic.parts.len() == 2);
    let (_, stage, _) = rig.nic.parts[1];
    assert!(matches!(stage, PartStage::FinWait1 | PartStage::FinWait2));
}

/// It may still read.
#[test]
fn an_application_that_only_shuts_down_first_is_not_parted_with() {
    let mut rig = parting();
    rig.ask(&["quit"]);
    rig.run_until(|rig| rig.client.state() == tcp::State::CloseWait);
    for _ in 0..1000 {
        rig.step();
    }
    assert_eq!(rig.nic.parts, []);
    rig.client.shutdown();
    rig.run_until(|rig| rig.client_closed.is_some());
    assert_eq!(rig.nic.parts, [], "TIME-WAIT is here");
    assert_eq!(rig.stack.usage().time_waits, 1);
}

#[test]
fn a_connection_that_is_refused_goes_on_here() {
    let mut rig = parting();
    let flow = client_closes(&mut rig);
    tell(
        &mut rig,
        &Event::PartRefused {
            flow,
            reason: PartRefusal::Full,
        },
    );
    rig.run_until(|rig| rig.client_closed.is_some());
    rig.run_until(|rig| rig.stack.connections() == 0);
    let counters = rig.stack.counters();
    assert_eq!((counters.parts_refused, counters.parted_taken_back), (1, 1));
    assert_eq!((closed(&rig), rig.nic.parts.len()), (1, 1));
    // For a second, the worker is offered no other.
    rig.reconnect();
    rig.client.shutdown();
    rig.run_until(|rig| rig.client_closed.is_some());
    assert_eq!(rig.nic.parts.len(), 1);
    rig.now_us += 1_000_000;
    rig.reconnect();
    client_closes(&mut rig);
}

#[test]
fn a_worker_that_takes_the_place_of_another_gets_it_again() {
    let mut rig = parting();
    client_closes(&mut rig);
    let given = rig.nic.parts.clone();
    rig.restart_nic();
    rig.step();
    rig.step();
    assert_eq!(rig.nic.parts, given);
    assert_eq!(rig.stack.counters().parts_repeated, 1);
    assert_eq!(rig.stack.usage().connections, 0);
}

#[test]
fn frames_are_dropped_while_the_nic_stack_is_away_and_it_comes_back_when_that_stays_away() {
    let mut rig = parting();
    client_closes(&mut rig);
    rig.client_is_mute = true;
    rig.lose_nic(0);
    let address = rig.client_address();
    client_says(&mut rig, address, Flags::ACK, &[]);
    assert_eq!(rig.stack.counters().frames_not_handed_on, 1);
    assert_eq!(rig.stack.counters().resets_sent, 0);
    let usage = rig.stack.usage();
    assert_eq!((usage.connections, usage.parted), (0, 1));
    // It is not waited for any longer: FIN is the host's, as of any connection without NIC stack.
    rig.now_us += 6_000_000;
    rig.step();
    assert_eq!(rig.stack.counters().parted_taken_back, 1);
    assert_eq!(rig.stack.usage().connections, 1);
    rig.client_is_mute = false;
    rig.bring_nic(0);
    rig.run_until(|rig| rig.client_closed == Some(tcp::CloseReason::Finished));
    rig.run_until(|rig| rig.stack.connections() == 0);
    assert_eq!(closed(&rig), 1, "the application hears of it once");
}

#[test]
fn another_nic_stack_that_is_there_gets_what_one_that_is_lost_has_had() {
    let mut rig = Rig::with_nics(2, |config| config.teardown_offload = OffloadPolicy::On);
    rig.app.follows = true;
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    rig.client.shutdown();
    rig.run_until(|rig| rig.stack.usage().parted == 1);
    rig.step();
    let first = usize::from(rig.nic.parts.is_empty());
    rig.lose_nic(first);
    rig.step();
    rig.step();
    assert_eq!(rig.nic(1 - first).parts.len(), 1);
    let (flow, ..) = rig.nic(1 - first).parts[0];
    // The one that is gone has no say any more.
    let ends = [PartEnd {
        flow,
        reason: PartEndReason::Finished,
    }];
    let event = Event::PartEnded { ends: ends.into() };
    rig.nic(1 - first).channel.send(&event).unwrap();
    rig.nic(1 - first).channel.flush();
    rig.step();
    assert_eq!(rig.stack.usage().parted, 0);
}

#[test]
fn a_full_table_keeps_connections_here() {
    let mut rig = Rig::with(|config| {
        config.teardown_offload = OffloadPolicy::On;
        config.parted_max = 1;
    });
    rig.app.follows = true;
    client_closes(&mut rig);
    rig.reconnect();
    rig.client.shutdown();
    rig.run_until(|rig| rig.client_closed.is_some());
    rig.run_until(|rig| rig.stack.usage().connections == 0);
    assert_eq!(rig.nic.parts.len(), 1);
    assert_eq!(closed(&rig), 2);
}

#[test]
fn a_frame_that_is_too_long_goes_without_its_end() {
    let mut rig = parting();
    client_closes(&mut rig);
    let address = rig.client_address();
    client_says(&mut rig, address, Flags::ACK | Flags::FIN, &[1; 1460]);
    assert_eq!(rig.nic.frames.last().unwrap().len(), 14 + 1500);
    // As GRO makes them.
    let bytes = {
        let server = "10.77.0.2:80".parse().unwrap();
        let template = wire::frame::TcpTemplate::new([1; 6], [2; 6], address, server);
        let header = Header {
            seq: 7,
            flags: Flags::ACK | Flags::FIN,
            ..Header::default()
        };
        template.to_frame(&header, &[1; 20_000])
    };
    let frame = netdev::Frame {
        bytes: &bytes,
        checksum_valid: true,
        segment_bytes: None,
    };
    rig.stack.on_frame(rig.now_us, frame);
    rig.step();
    let cut = rig.nic.frames.last().unwrap();
    assert_eq!(cut.len(), FRAME_BYTES_MAX);
    let packet = parse_segment(cut, true).unwrap();
    assert_eq!(packet.segment.header.flags, Flags::ACK);
}

/// Where a segment of a client goes.
fn decision(map: &SteeringMap, from: SocketAddr, flags: Flags) -> Decision {
    let header = Header {
        flags,
        ..Header::default()
    };
    let server: SocketAddr = SERVER.parse().unwrap();
    let bytes = TcpTemplate::new([2; 6], [2; 6], from, server).to_frame(&header, &[]);
    let arrived = Arrived {
        bytes: &bytes,
        packet_type: PacketType::Host,
        has_vlan: false,
    };
    map.decide(&[server.ip()], &arrived)
}

fn taken(rig: &mut Rig, flow: FlowId) {
    let flows = [flow].into();
    tell(rig, &Event::FlowsTaken { flows });
}

/// The worker says what its port is called.
fn names_its_port(rig: &mut Rig, steering: u32) {
    rig.step();
    let setup = rig.nic.setups.last().expect("a SETUP");
    assert!(setup.listeners.is_empty(), "the host answers SYNs");
    let epoch = setup.epoch;
    tell(rig, &Event::SetupReady { epoch, steering });
}

#[test]
fn a_map_gives_frames_to_the_worker_from_when_it_has_a_connection_to_its_end() {
    let mut rig = parting();
    let map = SteeringMap::in_memory([3; 16]);
    rig.stack.steer_with(map.clone());
    names_its_port(&mut rig, 5);
    assert_eq!(rig.stack.syn_path(), None);
    let worker = Decision::Worker(Target::new(5).unwrap());
    let flow = client_closes(&mut rig);
    let client = rig.client_address();
    assert_eq!(decision(&map, client, Flags::ACK), Decision::Host);
    taken(&mut rig, flow);
    for flags in [Flags::ACK, Flags::FIN | Flags::ACK, Flags::RST, Flags::SYN] {
        assert_eq!(decision(&map, client, flags), worker, "{flags:?}");
    }
    let mut other = client;
    other.set_port(client.port() + 1);
    assert_eq!(decision(&map, other, Flags::ACK), Decision::Host);
    // What the host has received before is handed on.
    client_says(&mut rig, client, Flags::ACK, &[]);
    assert_eq!(rig.nic.frames.len(), 1);
    ended(&mut rig, flow, PartEndReason::Finished);
    assert_eq!(decision(&map, client, Flags::ACK), Decision::Host);

    // A worker that is replaced, and one that is lost, get nothing more: not even when there is
    // another, before it has said that it has the connection.
    for replaces in [true, false] {
        rig.reconnect();
        let flow = client_closes(&mut rig);
        let client = rig.client_address();
        taken(&mut rig, flow);
        assert_eq!(decision(&map, client, Flags::ACK), worker);
        if replaces {
            rig.restart_nic();
        } else {
            rig.lose_nic(0);
            assert_eq!(decision(&map, client, Flags::ACK), Decision::Host);
            rig.bring_nic(0);
        }
        assert_eq!(decision(&map, client, Flags::ACK), Decision::Host);
        names_its_port(&mut rig, 5);
        assert_eq!(decision(&map, client, Flags::ACK), Decision::Host);
        taken(&mut rig, flow);
        assert_eq!(decision(&map, client, Flags::ACK), worker);
        ended(&mut rig, flow, PartEndReason::Finished);
        assert_eq!(decision(&map, client, Flags::ACK), Decision::Host);
    }
    let counters = rig.stack.counters();
    assert_eq!((counters.flows_steered, rig.stack.flows_steered()), (5, 0));
    assert_eq!(counters.events_invalid, 0);
    // A flow that there is not is none.
    taken(&mut rig, flow);
    assert_eq!(rig.stack.flows_steered(), 0);
}

/// RFC 6191
#[test]
fn a_syn_that_the_nic_stack_hands_up_opens_a_connection_beyond_the_old_one() {
    let mut rig = parting();
    let flow = client_closes(&mut rig);
    let (_, _, fin_seq) = rig.nic.parts[0];
    let address = rig.client_address();
    rig.client_is_mute = true;
    let (last, _) = rig.trace.last().unwrap();
    let syn = Header {
        seq: last.ack.wrapping_add(100_000),
        flags: Flags::SYN,
        window: 1000,
        ..Header::default()
    };
    rig.inject_segment(address, &syn, &[]);
    rig.step();
    assert_eq!(rig.stack.half_open(), 0);
    let bytes = rig.nic.frames.pop().unwrap();
    ended(&mut rig, flow, PartEndReason::Replaced);
    tell(
        &mut rig,
        &Event::Frame {
            bytes: bytes.into(),
        },
    );
    assert_eq!(rig.stack.half_open(), 1);
    rig.run_until(|rig| {
        let last = rig.trace.last();
        last.is_some_and(|(header, _)| header.flags.contains(Flags::SYN))
    });
    let (syn_ack, _) = rig.trace.last().unwrap();
    assert!((syn_ack.seq.wrapping_sub(fin_seq) as i32) > 0, "beyond");
}

#[test]
fn what_a_nic_stack_says_of_others_is_not_believed() {
    let mut rig = parting();
    let flow = client_closes(&mut rig);
    ended(&mut rig, FlowId(99), PartEndReason::Finished);
    tell(
        &mut rig,
        &Event::PartRefused {
            flow: FlowId(99),
            reason: PartRefusal::Full,
        },
    );
    assert_eq!(rig.stack.usage().parted, 1);
    assert!(rig.stack.counters().events_invalid > 0);
    // Nor does a frame of it come back for ever.
    let address = rig.client_address();
    rig.client_is_mute = true;
    client_says(&mut rig, address, Flags::ACK, &[]);
    let bytes: Box<[u8]> = rig.nic.frames.pop().unwrap().into();
    tell(&mut rig, &Event::Frame { bytes });
    rig.step();
    assert_eq!(rig.nic.frames.len(), 0);
    ended(&mut rig, flow, PartEndReason::Finished);
    assert_eq!(rig.stack.usage().parted, 0);
}

#[test]
fn who_is_silent_for_half_an_hour_is_forgotten() {
    let mut rig = parting();
    let flow = client_closes(&mut rig);
    rig.now_us += 1_800_000_000;
    rig.reconnect();
    client_closes(&mut rig);
    rig.step();
    assert_eq!(rig.nic.parts_gone, [flow]);
    assert_eq!(rig.stack.usage().parted, 1);
    assert_eq!(rig.stack.counters().parted_overdue, 1);
}
