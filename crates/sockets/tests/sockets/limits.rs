//! What an application may do and use.

use socket_channel::message::BindFlags;
use socket_channel::{Command, Event, Family, SocketOption};
use sockets::{Grant, Rules};

use crate::program::Program;
use crate::world::World;

const EACCES: u32 = 13;
const ENFILE: u32 = 23;
const EMFILE: u32 = 24;
const ENOBUFS: u32 = 105;

#[test]
fn rules_say_where_an_application_may_listen_and_whether_it_may_connect() {
    let mut world = World::new();
    let rules = Rules {
        ports: vec![8000..=8010],
        addresses: Some(vec![("10.77.0.0".parse().unwrap(), 30)]),
        may_connect: false,
    };
    let grant = Grant {
        rules,
        ..Grant::default()
    };
    let mut program = Program::with_grant(&mut world, 1, grant);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    for address in [
        "10.77.0.2:80",
        "10.77.0.2:8011",
        "0.0.0.0:8000",
        "10.78.0.2:8000",
    ] {
        let refused = program.bind(&mut world, socket, address, BindFlags::NONE);
        assert_eq!(refused, Err(EACCES), "{address}");
    }
    let refused = program.connect(&mut world, socket, "10.77.0.1:7");
    assert_eq!(refused, Err(EACCES));
    program
        .bind(&mut world, socket, "10.77.0.2:8000", BindFlags::NONE)
        .unwrap();
    assert_eq!(world.sockets().counters().commands_refused, 5);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn sockets_listeners_and_files_are_bounded_for_each_application() {
    let mut world = World::new();
    let grant = Grant {
        sockets_max: 5,
        listeners_max: 2,
        files_max: 1,
        ..Grant::default()
    };
    let mut program = Program::with_grant(&mut world, 1, grant);
    let mut other = Program::new(&mut world, 2);
    for port in [8000, 8001] {
        program.listener(&mut world, port);
    }
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    assert_eq!(program.listen(&mut world, socket, 1), Err(ENOBUFS));
    let mut open_file = |program: &mut Program| {
        let handle = program.handle();
        program.call(&mut world, |request| Command::OpenFile {
            request,
            handle,
            path: b"1000",
        })
    };
    open_file(&mut program).unwrap();
    assert_eq!(open_file(&mut program), Err(EMFILE));
    let handle = program.handle();
    program.open(&mut world, handle);
    let (handle, family) = (program.handle(), Family::V4);
    let refused = program.call(&mut world, |request| Command::Open {
        request,
        handle,
        family,
    });
    assert_eq!(refused, Err(ENFILE));
    // A connection for which there is no socket waits, and no other application pays.
    world.clients.echoes = false;
    let stream = world.connect(8000);
    world.run_for_us(100_000);
    assert!(!world.heard(stream).is_connected);
    assert!(world.server.counters().listen_overflows > 0);
    other.listener(&mut world, 8002);
    program.exit(&mut world);
    other.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn bound_addresses_are_bounded_for_each_application() {
    let mut world = World::new();
    let grant = Grant {
        bindings_max: 3,
        ..Grant::default()
    };
    let mut program = Program::with_grant(&mut world, 1, grant);
    let mut other = Program::new(&mut world, 2);
    let bind = |world: &mut World, program: &mut Program| {
        let handle = program.handle();
        let socket = program.open(world, handle);
        let bound = program.bind(world, socket, "10.77.0.2:0", BindFlags::NONE);
        bound.map(|_| handle)
    };
    // A listener's address, and two that are only bound.
    program.listener(&mut world, 8000);
    let last = [(); 2].map(|()| bind(&mut world, &mut program).unwrap())[1];
    for _ in 0..2 {
        assert_eq!(bind(&mut world, &mut program), Err(ENOBUFS));
    }
    assert_eq!(world.sockets().counters().bindings_refused, 2);
    bind(&mut world, &mut other).unwrap();
    // To connect takes none.
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    program.connect(&mut world, socket, "10.77.0.1:7").unwrap();
    world.hang_up(program.app, last);
    bind(&mut world, &mut program).unwrap();
    program.exit(&mut world);
    other.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn an_application_that_floods_its_ring_leaves_turns_to_others() {
    let mut world = World::new();
    let mut flooding = Program::new(&mut world, 1);
    let mut other = Program::new(&mut world, 2);
    let kick = Command::Kick {
        socket: socket_channel::SocketId {
            index: 9,
            generation: 9,
        },
    };
    let (handle, family) = (other.handle(), Family::V4);
    for _ in 0..100 {
        while flooding.end.send(&kick).is_ok() {}
        flooding.end.flush();
        let before = world.sockets().counters().commands;
        world.step();
        let taken = world.sockets().counters().commands - before;
        assert!(taken <= 257, "{taken} commands in a turn");
    }
    let begun_us = world.now_us;
    let opened = other.call(&mut world, |request| Command::Open {
        request,
        handle,
        family,
    });
    opened.unwrap();
    assert!(world.now_us - begun_us <= 200, "some turns");
    flooding.exit(&mut world);
    other.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn handles_that_are_not_its_own_or_have_a_socket_are_refused() {
    const EBADF: u32 = 9;
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let handle = program.handle();
    program.open(&mut world, handle);
    for handle in [handle, socket_channel::HandleId(5_000)] {
        let family = Family::V4;
        let refused = program.call(&mut world, |request| Command::Open {
            request,
            handle,
            family,
        });
        assert_eq!(refused, Err(EBADF));
    }
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn answers_that_find_no_room_wait_for_it_while_a_descriptor_is_closed() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    let closed = program.handle();
    // The program takes no events until both rings are full.
    let mut asked = 0u32;
    let mut refusals = 0;
    while refusals < 10 {
        let sent = program.end.send(&Command::GetOption {
            request: 1_000_000 + asked,
            socket,
            option: SocketOption::NoDelay,
        });
        program.end.flush();
        if sent.is_ok() {
            (asked, refusals) = (asked + 1, 0);
        } else {
            refusals += 1;
            world.step();
        }
    }
    world.hang_up(program.app, closed);
    let mut answered = 0;
    world.run_until(|_| {
        while let Some(event) = program.end.receive().unwrap() {
            answered += u32::from(matches!(event, Event::Answer { .. }));
        }
        program.end.flush();
        answered == asked
    });
    program.exit(&mut world);
    world.assert_nothing_left();
}
