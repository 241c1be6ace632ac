//! Memory of connections, sized by use; and what happens when there is no more, or no place.

use host::app::StreamId;
use socket_channel::attach::{MODE_BUFFERS_ON_DEMAND, MODES_DEFAULT};
use socket_channel::{Command, Limits, SocketId, SocketOption, Unusable};
use sockets::Grant;

use crate::program::{Program, text};
use crate::world::{OTHER_CLIENT, World};

/// What a segment has for each socket by default: 256 MiB for 65,536 of them.
const BYTES_PER_SOCKET: u64 = 4096;

/// Connections for each port: a client has 28,232 of its own.
const CONNECTIONS_PER_PORT: usize = 20_000;

fn fifo_bytes(world: &World) -> u64 {
    let mut applications = world.sockets().applications();
    applications.next().expect("the application").fifo_bytes
}

/// As many sockets as there may be beside so many connections, with their part of the default
/// memory.
fn limits(connections: usize) -> Limits {
    let sockets_max = u32::try_from(connections * 65_536 / 50_000).unwrap();
    Limits {
        sockets_max,
        segment_bytes: u64::from(sockets_max) * BYTES_PER_SOCKET,
    }
}

/// So many connections of one client that have sent nothing; then each carries a byte both ways,
/// twice.
fn idle_connections(count: usize) {
    // What a program has accepted is bounded by its sockets, and not by the backlog of the stack.
    let mut world = World::with(|config| config.admission.backlog_max = 64);
    world.clients.echoes = false;
    let limits = limits(count);
    let grant = Grant::default();
    let mut program = Program::with_segment(&mut world, 1, limits, grant, MODES_DEFAULT);
    program.add_handles(&mut world, count as u32);
    let mut connections = Vec::new();
    for (at, port) in (0..count).step_by(CONNECTIONS_PER_PORT).zip(8000..) {
        let (listener, _) = program.listener(&mut world, port);
        for _ in at..count.min(at + CONNECTIONS_PER_PORT) {
            let stream = world.connect(port);
            let mut taken = None;
            world.run_until(|_| {
                taken = program.take(listener);
                taken.is_some()
            });
            connections.push((stream, taken.unwrap().0));
        }
    }
    program.hear();
    assert!(fifo_bytes(&world) <= 16 << 10, "only queues of listeners");
    for round in 1..=2 {
        for (stream, socket) in &connections {
            world.client_sends(*stream, b"q", false);
            world.run_until(|_| program.read(*socket) == b"q");
            program.write_all(&mut world, *socket, b"a");
            world.run_until(|world| world.heard(*stream).received.len() == round);
        }
        program.hear();
        assert!(fifo_bytes(&world) <= limits.segment_bytes);
    }
    let (_, first) = connections[0];
    let record = program.record(first);
    assert_eq!((record.rx_bytes(), record.tx_bytes()), (0, 0), "taken back");
    assert!(
        world
            .clients
            .heard
            .values()
            .all(|heard| heard.closed.is_none())
    );
    assert_eq!(world.sockets().counters().connections_refused, 0);
    assert_eq!(world.server.counters().backlog_evictions, 0);
    assert!(world.detach(program.app));
    world.run_until(|world| world.server.usage().connections == 0);
}

#[test]
fn idle_connections_have_no_memory_and_then_each_carries_bytes_both_ways() {
    idle_connections(1_000);
}

/// About two minutes in a build for debugging.
#[test]
#[ignore = "long: run by make test-long"]
fn fifty_thousand_idle_connections_of_one_client_each_carry_bytes_both_ways() {
    idle_connections(50_000);
}

/// All connections have a byte that the program has not read, and one that their client does not
/// take: each has memory for both.
#[test]
fn connections_that_are_all_in_use_find_memory_each() {
    const CONNECTIONS: usize = 400;
    let mut world = World::new();
    world.clients.echoes = false;
    let grant = Grant::default();
    let limits = limits(CONNECTIONS);
    let mut program = Program::with_segment(&mut world, 1, limits, grant, MODES_DEFAULT);
    let (listener, _) = program.listener(&mut world, 8000);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = world.connect(8000);
        world.client_sends(stream, b"question", false);
        let mut taken = None;
        world.run_until(|_| {
            taken = program.take(listener);
            taken.is_some()
        });
        connections.push((stream, taken.unwrap().0));
    }
    let is_there = |program: &Program, socket: SocketId| {
        program.record(socket).rx_waiting_bytes() == b"question".len() as u64
    };
    world.run_until(|_| connections.iter().all(|(_, it)| is_there(&program, *it)));
    for (stream, socket) in &connections {
        program.write_all(&mut world, *socket, b"answer");
        assert_eq!(program.read(*socket), b"question");
        world.run_until(|world| world.heard(*stream).received == b"answer");
    }
    assert!(world.detach(program.app));
    world.run_until(|world| world.server.usage().connections == 0);
}

/// Clients that connect to port 8000, each after the one before may have been accepted.
fn one_after_another(world: &mut World, count: usize) -> Vec<StreamId> {
    let connect = |_| {
        let stream = world.connect(8000);
        world.run_for_us(2_000);
        stream
    };
    (0..count).map(connect).collect()
}

#[test]
fn a_full_program_leaves_syns_unanswered_and_serves_again_after_a_close() {
    let few_places = Grant {
        sockets_max: 5,
        source_share_percent: 100,
        ..Grant::default()
    };
    let whole = Limits {
        sockets_max: 4096,
        segment_bytes: 64 << 20,
    };
    // 16 KiB for FIFOs.
    let little_memory = Limits {
        sockets_max: 23,
        segment_bytes: 28 << 10,
    };
    for (grant, limits, connections) in
        [(few_places, whole, 4), (Grant::default(), little_memory, 5)]
    {
        let mut world = World::new();
        world.clients.echoes = false;
        let mut program = Program::with_segment(&mut world, 1, limits, grant, MODES_DEFAULT);
        let (listener, _) = program.listener(&mut world, 8000);
        let clients = one_after_another(&mut world, 12);
        world.run_for_us(3_000_000);
        let counters = *world.sockets().counters();
        let accepted = counters.connections_accepted;
        assert!(accepted >= connections, "{accepted}");
        assert!(accepted < clients.len() as u64);
        assert_eq!(
            (counters.connections_refused, counters.places_exhausted),
            (0, 1)
        );
        let heard = |world: &World| {
            let connected = clients.iter().filter(|it| world.heard(**it).is_connected);
            connected.count() as u64
        };
        assert_eq!(heard(&world), accepted);
        let closed = |world: &World| clients.iter().any(|it| world.heard(*it).closed.is_some());
        assert!(!closed(&world), "none is reset");

        let (_, handle) = program.take(listener).unwrap();
        program.close(handle);
        world.run_until(|world| world.sockets().counters().connections_accepted == accepted + 1);
        assert_eq!(world.sockets().counters().connections_refused, 0);
        assert!(world.detach(program.app));
        world.run_until(|world| world.server.usage().connections == 0);
    }
}

#[test]
fn a_source_takes_no_more_than_its_share_of_a_program() {
    let mut world = World::new();
    world.clients.echoes = false;
    let grant = Grant {
        sockets_max: 11,
        source_share_percent: 50,
        ..Grant::default()
    };
    let mut program = Program::with(&mut world, 1, grant, MODES_DEFAULT);
    let (listener, _) = program.listener(&mut world, 8000);
    let greedy = one_after_another(&mut world, 9);
    world.run_for_us(3_000_000);
    assert_eq!(world.sockets().counters().connections_accepted, 6);
    assert_eq!(world.sockets().counters().sources_exhausted, 1);
    assert!(greedy.iter().all(|it| world.heard(*it).closed.is_none()));
    let other: Vec<_> = (0..3)
        .map(|_| world.connect_from(OTHER_CLIENT, 8000))
        .collect();
    world.run_until(|world| other.iter().all(|it| world.heard(*it).is_connected));
    assert_eq!(world.sockets().counters().connections_accepted, 9);

    // One of its connections ends: another takes its place.
    let (_, handle) = program.take(listener).unwrap();
    program.close(handle);
    world.run_until(|world| world.sockets().counters().connections_accepted == 10);
    assert_eq!(world.sockets().counters().connections_refused, 0);
    assert!(world.detach(program.app));
    world.run_until(|world| world.server.usage().connections == 0);
}

/// SYNs that were answered before a source had its share.
#[test]
fn connections_on_their_way_when_a_source_has_its_share_are_not_reset() {
    let mut world = World::new();
    world.clients.echoes = false;
    let grant = Grant {
        sockets_max: 11,
        source_share_percent: 50,
        ..Grant::default()
    };
    let mut program = Program::with(&mut world, 1, grant, MODES_DEFAULT);
    let (listener, _) = program.listener(&mut world, 8000);
    let first: Vec<_> = (0..8).map(|_| world.connect(8000)).collect();
    world.run_until(|world| world.sockets().counters().connections_accepted == 8);
    let next = world.connect(8000);
    world.run_for_us(3_000_000);
    assert!(first.iter().all(|it| world.heard(*it).closed.is_none()));
    assert!(
        !world.heard(next).is_connected,
        "a SYN that is not answered"
    );

    // Below its share again.
    for _ in 0..3 {
        let (_, handle) = program.take(listener).unwrap();
        program.close(handle);
    }
    world.run_until(|world| world.heard(next).is_connected);
    assert_eq!(world.sockets().counters().connections_refused, 0);
    assert!(world.detach(program.app));
    world.run_until(|world| world.server.usage().connections == 0);
}

/// While memory is short, FIFOs of idle connections are taken back.
#[test]
fn a_buffer_that_was_just_asked_for_is_not_idle_yet() {
    let mut world = World::new();
    world.clients.echoes = false;
    let (limits, grant) = (limits(100), Grant::default());
    let mut program = Program::with_segment(&mut world, 1, limits, grant, MODES_DEFAULT);
    let (listener, _) = program.listener(&mut world, 8000);
    let accepted: Vec<_> = (0..60)
        .map(|_| {
            world.connect(8000);
            program.accept(&mut world, listener).0
        })
        .collect();
    // Those in use leave less than half of the memory.
    let (used, others) = accepted.split_at(40);
    for socket in used {
        program.ask_for_room(&mut world, *socket, 10);
    }
    for (place, next) in others.iter().enumerate() {
        for socket in used {
            program.write_all(&mut world, *socket, b"x");
        }
        program.ask_for_room(&mut world, *next, 10);
        // Eight of sixty are looked at for each: five look at none twice.
        for asked in &others[place.saturating_sub(5)..=place] {
            assert!(program.record(*asked).tx_bytes() > 0, "{place}");
        }
    }
    let is_taken_back = |it: &SocketId| program.record(*it).tx_bytes() == 0;
    assert!(others.iter().any(is_taken_back), "later it is");
    assert!(world.detach(program.app));
    world.run_until(|world| world.server.usage().connections == 0);
}

#[test]
fn a_large_write_at_once_finds_room_and_the_buffer_shrinks_when_it_has_left() {
    let mut world = World::new();
    world.clients.echoes = false;
    world.clients.is_stalled = true;
    let limits = Limits {
        sockets_max: 64,
        segment_bytes: 256 << 20,
    };
    let grant = Grant::default();
    let mut program = Program::with_segment(&mut world, 1, limits, grant, MODES_DEFAULT);
    let (listener, _) = program.listener(&mut world, 8000);
    let stream = world.connect(8000);
    let mut taken = None;
    world.run_until(|_| {
        taken = program.take(listener);
        taken.is_some()
    });
    let (socket, _) = taken.unwrap();
    assert_eq!(program.record(socket).write(b"x"), Err(Unusable::NoFifo));
    assert!(program.record(socket).look().unwrap().readiness().writable);
    let sent = text(1_000_000, 6);
    program.ask_for_room(&mut world, socket, 10);
    let first = program.write(socket, &sent);
    assert_eq!(first, 64 << 10);
    assert!(program.record(socket).tx_may_grow());
    let rest = sent.len() - first;
    program.ask_for_room(&mut world, socket, rest as u64);
    assert_eq!(program.write(socket, &sent[first..]), rest, "all at once");
    // The end behind it does not cut it, nor does that of the client.
    world.client_sends(stream, b"", true);
    program.shutdown(socket);
    world.resume_clients();
    world.run_until(|world| world.heard(stream).has_finished);
    assert!(world.heard(stream).received == sent, "every byte");
    assert_eq!(program.record(socket).tx_bytes(), 64 << 10);
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// A connection of a program in the default memory, whose client does not read, and its client's
/// end.
fn stalled_connection(world: &mut World) -> (Program, SocketId, StreamId) {
    world.clients.echoes = false;
    world.clients.is_stalled = true;
    let (limits, grant) = (Limits::default(), Grant::default());
    let mut program = Program::with_segment(world, 1, limits, grant, MODES_DEFAULT);
    let (listener, _) = program.listener(world, 8000);
    let stream = world.connect(8000);
    let (socket, _) = program.accept(world, listener);
    (program, socket, stream)
}

#[test]
fn one_write_finds_room_for_four_mebibytes_in_the_default_memory() {
    let mut world = World::new();
    let (mut program, socket, stream) = stalled_connection(&mut world);
    let sent = text(4 << 20, 7);
    program.ask_for_room(&mut world, socket, 10);
    let first = program.write(socket, &sent);
    let rest = sent.len() - first;
    program.ask_for_room(&mut world, socket, rest as u64);
    assert_eq!(program.record(socket).tx_bytes(), 4 << 20);
    assert_eq!(program.write(socket, &sent[first..]), rest, "all at once");
    program.shutdown(socket);
    world.resume_clients();
    world.run_until(|world| world.heard(stream).has_finished);
    assert!(world.heard(stream).received == sent, "every byte");
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_buffer_of_small_writes_grows_with_the_congestion_window_while_it_is_in_use() {
    let mut world = World::new();
    let (mut program, socket, stream) = stalled_connection(&mut world);
    let piece = text(10_000, 8);
    let mut sent = Vec::new();
    // Writes until there is no room; true if the buffer would grow.
    let mut fill = |program: &mut Program| {
        while let written = program.write(socket, &piece)
            && written > 0
        {
            sent.extend_from_slice(&piece[..written]);
        }
        program.record(socket).tx_may_grow()
    };
    program.ask_for_room(&mut world, socket, 1);
    while fill(&mut program) {
        program.ask_for_room(&mut world, socket, piece.len() as u64);
    }
    let bytes = program.record(socket).tx_bytes();
    assert!((64 << 10..4 << 20).contains(&bytes), "{bytes} bytes");
    world.resume_clients();
    world.run_until(|_| fill(&mut program));
    assert_eq!(program.record(socket).tx_bytes(), bytes, "it was not empty");
    program.shutdown(socket);
    world.run_until(|world| world.heard(stream).has_finished);
    assert!(world.heard(stream).received == sent, "every byte");
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_buffer_whose_size_was_set_does_not_grow() {
    let mut world = World::new();
    world.clients.echoes = false;
    world.clients.is_stalled = true;
    let mut program = Program::with(&mut world, 1, Grant::default(), MODES_DEFAULT);
    let (listener, _) = program.listener(&mut world, 8000);
    let set = program.call(&mut world, |request| Command::SetOption {
        request,
        socket: listener,
        option: SocketOption::SendBufferBytes,
        value: 16 << 10,
    });
    set.unwrap();
    world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    program.ask_for_room(&mut world, socket, 1 << 20);
    assert!(!program.record(socket).tx_may_grow());
    assert_eq!(program.record(socket).tx_bytes(), 16 << 10);
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// Without the mode, both FIFOs are there as long as the connection.
#[test]
fn without_buffers_on_demand_a_connection_has_both_from_the_beginning() {
    let mut world = World::new();
    world.clients.echoes = false;
    let modes = MODES_DEFAULT & !MODE_BUFFERS_ON_DEMAND;
    let mut program = Program::with(&mut world, 1, Grant::default(), modes);
    let (listener, _) = program.listener(&mut world, 8000);
    world.connect(8000);
    let mut taken = None;
    world.run_until(|_| {
        taken = program.take(listener);
        taken.is_some()
    });
    let (socket, _) = taken.unwrap();
    let record = program.record(socket);
    assert_eq!((record.rx_bytes(), record.tx_bytes()), (64 << 10, 64 << 10));
    assert!(!record.tx_may_grow());
    program.exit(&mut world);
    world.assert_nothing_left();
}
