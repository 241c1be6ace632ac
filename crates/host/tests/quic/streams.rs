//! Streams: both kinds, resets, stops, priorities, rates and timers.

use std::time::Duration;

use fakes::quic_client::Received;
use host::app::{AppEvent, CloseReason, StreamId};

use crate::app::real_byte;
use crate::world::{Setup, World};

fn steady(below: u64) -> u64 {
    below / 2
}

/// The first event of this kind.
fn find<T>(world: &World<'_>, kind: impl Fn(&AppEvent) -> Option<T>) -> Option<T> {
    let mut events = world.app.events.iter();
    events.find_map(|(_, event)| kind(event))
}

fn closed(event: &AppEvent) -> Option<CloseReason> {
    match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    }
}

#[test]
fn a_stream_ends_in_both_directions() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 5000, (0, 5000), 0);
    world.run_until(|world| find(world, closed).is_some());
    let events: Vec<&AppEvent> = world.app.events.iter().map(|(_, event)| event).collect();
    assert!(matches!(events[0], AppEvent::Accepted { tls: None, .. }));
    assert_eq!(*events[1], AppEvent::Readable);
    assert!(events.contains(&&AppEvent::PeerFinished));
    let Some(AppEvent::Closed { reason, .. }) = events.last() else {
        panic!("it ends: {events:?}");
    };
    assert_eq!(*reason, CloseReason::Finished);
    world.close();
}

#[test]
fn the_server_opens_a_stream() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let peer = &mut world.peers[client].client;
    peer.request(b"push 5000\n").expect("a stream");
    let mut pushed = None;
    world.run_until(|world| {
        pushed = pushed.or_else(|| world.peers[client].client.accept());
        pushed.is_some()
    });
    let stream = pushed.expect("a stream");
    let mut got = Vec::new();
    world.run_until(|world| {
        loop {
            match world.peers[client].client.receive(stream) {
                Received::Bytes(bytes) => got.extend(bytes),
                Received::Blocked => return false,
                Received::Finished => return true,
                Received::Reset(code) => panic!("reset with {code}"),
            }
        }
    });
    let wanted: Vec<u8> = (0..5000).map(real_byte).collect();
    assert_eq!(got, wanted);
    world.run_until(|world| {
        let closes = |event: &AppEvent| matches!(event, AppEvent::Closed { .. });
        world.app.count(closes) == 2
    });
    world.close();
}

#[test]
fn a_directory_is_listed_for_a_stream() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let peer = &mut world.peers[client].client;
    let stream = peer.request(b"list\n").expect("a stream");
    world.run_for(200_000);
    let received = world.peers[client].client.receive(stream);
    assert_eq!(received, Received::Bytes(b"entry".to_vec()));
    world.close();
}

#[test]
fn a_client_stops_a_stream_and_the_rest_goes_on() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let stopped = world.request(client, 30_000_000, (0, 30_000_000), 0);
    let other = world.request(client, 2_000_000, (0, 2_000_000), 0);
    world.run_until(|world| world.peers[client].transfers[&stopped].got > 100_000);
    let peer = &mut world.peers[client];
    peer.client.stop(stopped, 33);
    peer.transfers.remove(&stopped);
    world.run_until_finished();
    assert!(world.peers[client].transfers[&other].reset.is_none());
    let code = find(&world, |event| match event {
        AppEvent::PeerStopped { code } => Some(*code),
        _ => None,
    });
    assert_eq!(code, Some(33));
    assert_eq!(find(&world, closed), Some(CloseReason::Reset));
    world.run_for(1_000_000);
    assert_eq!((world.stack.usage().files, world.nics[0].files()), (0, 0));
    world.close();
}

#[test]
fn a_client_abandons_what_it_sends() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let stream = world.peers[client].client.open(b"idle\nid").expect("one");
    world.run_for(100_000);
    world.peers[client].client.reset(stream, 44);
    world.run_for(100_000);
    let code = find(&world, |event| match event {
        AppEvent::PeerReset { code } => Some(*code),
        _ => None,
    });
    assert_eq!(code, Some(44));
    // This side may still send.
    assert_eq!(find(&world, closed), None);
    world.close();
}

#[test]
fn the_application_aborts_resets_and_stops() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    for (line, code) in [(&b"abort\n"[..], 0x10c), (b"reset 55\n", 55)] {
        let stream = world.peers[client].client.open(line).expect("a stream");
        world.run_for(100_000);
        let received = world.peers[client].client.receive(stream);
        assert_eq!(received, Received::Reset(code));
    }
    assert_eq!(find(&world, closed), Some(CloseReason::Aborted));
    // What it sends then is not wanted, which its next words run into.
    world.peers[client]
        .client
        .open(b"stop 66\n")
        .expect("a stream");
    world.run_for(100_000);
    assert_eq!(world.stack.usage().quic_streams, 2);
    world.close();
}

#[test]
fn streams_of_higher_priority_come_first() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    // The third stream that the client opens.
    world.app.priorities.insert(8, 5);
    let streams: Vec<u64> = (0..4)
        .map(|number| world.request(client, 2_000_000 + number, (0, 2_000_000), 0))
        .collect();
    let first = streams[2];
    world.run_until(|world| world.peers[client].transfers[&first].is_finished);
    for stream in streams.iter().filter(|stream| **stream != first) {
        let got = world.peers[client].transfers[stream].got;
        assert!(got < 1_200_000, "{got}");
    }
    world.run_until_finished();
    world.close();
}

#[test]
fn streams_of_equal_priority_take_turns() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let streams: Vec<u64> = (0..5)
        .map(|number| world.request(client, 4_000_000 + number, (0, 4_000_000), 0))
        .collect();
    let got = |world: &World<'_>| -> Vec<u64> {
        let transfers = &world.peers[client].transfers;
        streams.iter().map(|it| transfers[it].got).collect()
    };
    world.run_until(|world| got(world).iter().any(|got| *got > 3_000_000));
    let least = got(&world).into_iter().min().expect("some");
    assert!(least > 2_000_000, "{:?}", got(&world));
    world.run_until_finished();
    world.close();
}

#[test]
fn clients_of_a_crowd_may_send_little_before_it_is_read() {
    for (memory_bytes_max, least, most) in [(100_000, 8_000, 16_384), (512 << 20, 60_000, 65_536)] {
        let mut random = steady;
        let setup = Setup {
            memory_bytes_max,
            ..Setup::default()
        };
        let mut world = World::with(setup, &mut random);
        let client = world.connected();
        let peer = &mut world.peers[client].client;
        let stream = peer.open(b"idle ").expect("a stream");
        world.app.is_deaf = true;
        world.run_for(100_000);
        let sent = world.peers[client].client.fill(stream);
        assert!((least..=most).contains(&sent), "{sent}");
        world.run_for(100_000);
        assert_eq!(world.peers[client].client.fill(stream), 0);
        world.close();
    }
}

/// The stream on which the client has asked first.
fn asking(world: &World<'_>) -> StreamId {
    world.app.events.first().expect("an event").0
}

#[test]
fn a_rate_bounds_a_stream() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let stream = world.request(client, 1_000_000, (0, 1_000_000), 0);
    world.run_until(|world| !world.app.events.is_empty());
    let id = asking(&world);
    world.app.does = Some(Box::new(move |io| {
        io.set_max_pacing_rate(id, Some(100_000));
    }));
    let before_us = world.now_us;
    world.run_until_finished();
    let seconds = (world.now_us - before_us) as f64 / 1e6;
    assert!((8.0..12.0).contains(&seconds), "{seconds}");
    assert!(world.peers[client].transfers[&stream].reset.is_none());
    world.close();
}

#[test]
fn timers_fire_and_little_is_left_to_be_sent() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 8_000_000, (0, 8_000_000), 0);
    world.run_until(|world| !world.app.events.is_empty());
    let id = asking(&world);
    let before_us = world.now_us;
    world.app.does = Some(Box::new(move |io| {
        io.set_timer(id, Some(Duration::from_millis(50)));
        io.set_notsent_lowat(id, 1_000_000);
    }));
    world.run_until(|world| world.app.count(|it| matches!(it, AppEvent::Timer)) == 1);
    assert!(world.now_us >= before_us + 50_000 && world.now_us < before_us + 80_000);
    world.run_until(|world| world.app.count(|it| matches!(it, AppEvent::Writable)) == 1);
    assert!(!world.are_finished());
    world.run_until_finished();
    world.close();
}

#[test]
fn an_application_that_is_gone_leaves_what_it_has_queued() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 500_000, (0, 500_000), 0);
    world.run_until(|world| world.app.count(|it| matches!(it, AppEvent::Opened { .. })) == 1);
    let id = asking(&world);
    world.app.does = Some(Box::new(move |io| io.close(id)));
    let other = world.peers[client].client.open(b"idle\n");
    assert!(other.is_some());
    world.run_until_finished();
    world.run_for(1_000_000);
    assert_eq!(find(&world, closed), None);
    // The idle one is left.
    assert_eq!(world.stack.usage().quic_streams, 1);
    assert_eq!(world.stack.usage().files, 0);
    world.close();
}
