//! Connections between programs of the same stack.

use std::os::unix::net::UnixStream;

use socket_channel::message::BindFlags;
use socket_channel::{Command, Family, Flags, HandleId, SocketId};
use sockets::{Arrived, Grant, NewHandles, Rules, Sockets};

use crate::brokers::PlayedBroker;
use crate::program::{HANDLES, Program, text};
use crate::world::World;

const EACCES: u32 = 13;
const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;
const ECONNREFUSED: u32 = 111;

/// Opens a socket and connects it.
#[track_caller]
fn connect(world: &mut World, program: &mut Program, to: &str) -> SocketId {
    let handle = program.handle();
    let socket = program.open(world, handle);
    program.connect(world, socket, to).unwrap();
    socket
}

/// Has a text sent back, over a connection that both programs have, and closes both ends.
#[track_caller]
fn echo(world: &mut World, client: (&mut Program, SocketId), server: (&mut Program, SocketId)) {
    let (client, near) = client;
    let (server, far) = server;
    let sent = text(400_000, 9);
    let (mut written, mut waiting, mut received) = (0, Vec::new(), Vec::new());
    world.run_until(|_| {
        client.hear();
        server.hear();
        written += client.write(near, &sent[written..]);
        waiting.extend(server.read(far));
        let count = server.write(far, &waiting);
        waiting.drain(..count);
        received.extend(client.read(near));
        received.len() == sent.len()
    });
    assert!(received == sent, "every byte");
}

#[test]
fn one_program_connects_to_the_listener_of_another() {
    let mut world = World::new();
    let mut server = Program::new(&mut world, 1);
    let mut client = Program::new(&mut world, 2);
    let (listener, _) = server.listener(&mut world, 8000);
    for to in ["127.0.0.1:8000", "10.77.0.2:8000", "127.1.2.3:8000"] {
        let near = connect(&mut world, &mut client, to);
        let (far, handle) = server.accept(&mut world, listener);
        world.run_until(|_| client.flags(near).has(Flags::CONNECTED));
        let (ours, theirs) = (client.record(near), server.record(far));
        assert_eq!(ours.peer().unwrap().to_string(), to);
        assert_eq!(ours.local(), theirs.peer());
        assert_eq!(ours.peer(), theirs.local());
        for flags in [client.flags(near), server.flags(far)] {
            assert!(flags.has(Flags::LOOPED));
        }
        echo(&mut world, (&mut client, near), (&mut server, far));
        server.close(handle);
        assert!(client.read_to_end(&mut world, near).is_empty());
    }
    // A connection with a wire does without.
    let wire = connect(&mut world, &mut client, "10.77.0.1:7");
    assert!(!client.flags(wire).has(Flags::LOOPED));
    client.exit(&mut world);
    server.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn many_short_connections_leave_nothing() {
    let mut world = World::new();
    let mut server = Program::new(&mut world, 1);
    let mut client = Program::new(&mut world, 2);
    let (listener, _) = server.listener(&mut world, 8000);
    for round in 0..95 {
        let (mut handles, mut pairs) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let near_handle = client.handle();
            let near = client.open(&mut world, near_handle);
            client.connect(&mut world, near, "127.0.0.1:8000").unwrap();
            let (far, far_handle) = server.accept(&mut world, listener);
            handles.push((near_handle, far_handle));
            pairs.push((near, far));
        }
        for (number, (near, far)) in pairs.iter().enumerate() {
            let (asked, told) = (text(900, number as u8), text(1100, round as u8));
            client.write_all(&mut world, *near, &asked);
            let mut heard = Vec::new();
            world.run_until(|_| {
                heard.extend(server.read(*far));
                heard.len() == asked.len()
            });
            assert!(heard == asked, "every byte");
            server.write_all(&mut world, *far, &told);
            server.shutdown(*far);
            assert!(client.read_to_end(&mut world, *near) == told, "every byte");
        }
        for &(near_handle, far_handle) in &handles {
            client.close(near_handle);
            server.close(far_handle);
        }
        world.run_until(|world| world.sockets().counters().sockets == 1);
    }
    assert_eq!(world.sockets().counters().connections_accepted, 1900);
    client.exit(&mut world);
    server.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_port_that_no_program_has_refuses_and_a_loopback_address_leads_nowhere_else() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let socket = connect(&mut world, &mut program, "127.0.0.1:8000");
    world.run_until(|_| program.flags(socket).has(Flags::FAILED));
    assert_eq!(program.record(socket).last_error(), ECONNREFUSED);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    let bound = program.bind(&mut world, socket, "127.0.0.1:0", BindFlags::NONE);
    bound.unwrap();
    let refused = program.connect(&mut world, socket, "10.77.0.1:7");
    assert_eq!(refused, Err(EINVAL));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_listener_that_another_program_has_closed_before_refuses() {
    let mut world = World::new();
    world.apps.others = Sockets::new().unwrap();
    let mut server = Program::new(&mut world, 1);
    let mut client = Program::new(&mut world, 2);
    let (theirs, own) = UnixStream::pair().unwrap();
    let broker = PlayedBroker::new();
    let handle = HandleId(HANDLES);
    broker.bring(Arrived::Handles(NewHandles {
        app: server.app,
        channel: server.channel,
        first: handle,
        descriptors: vec![theirs.into()],
    }));
    broker.start(&mut world);
    let listener = server.open(&mut world, handle);
    let bound = server.bind(&mut world, listener, "0.0.0.0:8000", BindFlags::NONE);
    bound.unwrap();
    server.listen(&mut world, listener, 1).unwrap();
    // Its hang-up is not noticed before the next command is taken.
    drop(own);
    let socket = connect(&mut world, &mut client, "127.0.0.1:8000");
    world.run_until(|_| client.flags(socket).has(Flags::FAILED));
    assert_eq!(client.record(socket).last_error(), ECONNREFUSED);
    assert!(!client.flags(socket).has(Flags::CONNECTED));
    client.exit(&mut world);
    server.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn addresses_that_a_rule_names_are_all_that_are_used_of_loopback_too() {
    let mut world = World::new();
    let rules = Rules {
        addresses: Some(vec![("10.77.0.2".parse().unwrap(), 32)]),
        ..Rules::default()
    };
    let grant = Grant {
        rules,
        ..Grant::default()
    };
    let mut program = Program::with_grant(&mut world, 1, grant);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    let refused = program.connect(&mut world, socket, "127.0.0.1:8000");
    assert_eq!(refused, Err(EACCES));
    let refused = program.bind(&mut world, socket, "127.0.0.1:8000", BindFlags::NONE);
    assert_eq!(refused, Err(EACCES));
    program
        .connect(&mut world, socket, "10.77.0.2:8000")
        .unwrap();
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_range_of_a_file_resets_the_connection_if_a_program_sends_it_all_the_same() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let near = connect(&mut world, &mut program, "127.0.0.1:8000");
    let (far, _) = program.accept(&mut world, listener);
    let handle = program.handle();
    let opened = program.call(&mut world, |request| Command::OpenFile {
        request,
        handle,
        path: b"file",
    });
    let file = opened.unwrap().0.unwrap();
    let record = program.record(far);
    assert_eq!(record.queue_file(100), 100);
    let (mark, at) = record.mark();
    program.send(&Command::SendFile {
        socket: far,
        file,
        offset: 0,
        len: 100,
        mark,
        at,
    });
    world.run_until(|_| program.flags(far).has(Flags::FAILED));
    assert_eq!(program.record(far).last_error(), EOPNOTSUPP);
    world.run_until(|_| program.flags(near).has(Flags::FAILED));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn over_ipv6_too() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let handle = program.handle();
    let family = Family::V6;
    let opened = program.call(&mut world, |request| Command::Open {
        request,
        handle,
        family,
    });
    let listener = opened.unwrap().0.unwrap();
    let bound = program.bind(&mut world, listener, "[::1]:8000", BindFlags::NONE);
    bound.unwrap();
    program.listen(&mut world, listener, 5).unwrap();
    let handle = program.handle();
    let opened = program.call(&mut world, |request| Command::Open {
        request,
        handle,
        family,
    });
    let near = opened.unwrap().0.unwrap();
    program.connect(&mut world, near, "[::1]:8000").unwrap();
    let (far, _) = program.accept(&mut world, listener);
    let sent = text(100_000, 3);
    let (mut written, mut received) = (0, Vec::new());
    world.run_until(|_| {
        written += program.write(near, &sent[written..]);
        received.extend(program.read(far));
        received.len() == sent.len()
    });
    assert!(received == sent, "every byte");
    program.exit(&mut world);
    world.assert_nothing_left();
}
