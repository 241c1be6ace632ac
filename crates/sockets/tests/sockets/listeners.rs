//! Listeners of programs.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use socket_channel::message::BindFlags;
use socket_channel::{AppId, Command, Flags, HandleId, SocketId, SocketOption};
use sockets::{Arrived, NewHandles, Sockets};

use crate::brokers::PlayedBroker;
use crate::program::{HANDLES, Program};
use crate::world::World;

const EADDRINUSE: u32 = 98;
const EINVAL: u32 = 22;

#[test]
fn a_full_queue_holds_peers_back_and_loses_none() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let handle = program.handle();
    let listener = program.open(&mut world, handle);
    program
        .bind(&mut world, listener, "0.0.0.0:8000", BindFlags::NONE)
        .unwrap();
    program.listen(&mut world, listener, 3).unwrap();
    let streams: Vec<_> = (0..10).map(|_| world.connect(8000)).collect();
    world.run_for_us(500_000);
    let accepted = world.sockets().counters().connections_accepted;
    assert_eq!(accepted, 3, "of a backlog of 3");
    for _ in 0..streams.len() {
        let (socket, _) = program.accept(&mut world, listener);
        program.write_all(&mut world, socket, b"hello");
    }
    world.run_until(|world| {
        streams
            .iter()
            .all(|it| world.heard(*it).received == b"hello")
    });
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_listener_that_closes_resets_what_waits_and_frees_its_port() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, handle) = program.listener(&mut world, 8000);
    let (taken, waiting) = (world.connect(8000), world.connect(8000));
    world.run_until(|world| world.sockets().counters().connections_accepted == 2);
    let (socket, _) = program.accept(&mut world, listener);
    program.close(handle);
    world.run_until(|world| {
        [taken, waiting]
            .iter()
            .any(|it| world.heard(*it).closed.is_some())
    });
    program.write_all(&mut world, socket, b"alive");
    world.run_until(|world| {
        [taken, waiting]
            .iter()
            .any(|it| world.heard(*it).received == b"alive")
    });
    assert_eq!(
        program.flags(listener),
        Flags::CLOSED,
        "its name means nothing"
    );
    program.listener(&mut world, 8000);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn bound_ports_are_known_at_once_and_conflict() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let mut other = Program::new(&mut world, 2);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    program
        .bind(&mut world, socket, "0.0.0.0:0", BindFlags::NONE)
        .unwrap();
    let port = program.record(socket).local().unwrap().port();
    assert!((32_768..=60_999).contains(&port), "{port}");
    let handle = other.handle();
    let others = other.open(&mut world, handle);
    let address = format!("10.77.0.2:{port}");
    let refused = other.bind(&mut world, others, &address, BindFlags::REUSE_ADDR);
    assert_eq!(refused, Err(EADDRINUSE));
    program.exit(&mut world);
    other
        .bind(&mut world, others, &address, BindFlags::REUSE_ADDR)
        .unwrap();
    other.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn connections_inherit_the_options_of_their_listener() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let options = [
        (SocketOption::NoDelay, 1),
        (SocketOption::KeepAlive, 1),
        (SocketOption::KeepIdleSeconds, 77),
        (SocketOption::UserTimeoutMs, 9_000),
        (SocketOption::ReceiveBufferBytes, 8_192),
    ];
    for (option, value) in options {
        let set = program.call(&mut world, |request| Command::SetOption {
            request,
            socket: listener,
            option,
            value,
        });
        set.unwrap();
    }
    world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    for (option, value) in options {
        let got = program.call(&mut world, |request| Command::GetOption {
            request,
            socket,
            option,
        });
        assert_eq!(got, Ok((None, value)), "{option:?}");
    }
    let info = program.ask(&mut world, |request| Command::GetInfo { request, socket });
    let socket_channel::Event::Info { info, .. } = info else {
        panic!("{info:?}");
    };
    assert_eq!((info.state, info.snd_mss.get()), (1, 1448), "{info:?}");
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// The MSS that a connection sends by, in bytes.
fn mss(world: &mut World, program: &mut Program, socket: SocketId) -> u32 {
    let info = program.ask(world, |request| Command::GetInfo { request, socket });
    let socket_channel::Event::Info { info, .. } = info else {
        panic!("{info:?}");
    };
    info.snd_mss.get()
}

#[test]
fn the_mss_is_bounded_where_it_was_set_before_the_connection() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let set = |program: &mut Program, world: &mut World, socket, value| {
        program.call(world, |request| Command::SetOption {
            request,
            socket,
            option: SocketOption::MaxSegmentBytes,
            value,
        })
    };
    let (listener, _) = program.listener(&mut world, 8000);
    assert_eq!(set(&mut program, &mut world, listener, 87), Err(EINVAL));
    set(&mut program, &mut world, listener, 1_000).unwrap();
    world.connect(8000);
    let (accepted, _) = program.accept(&mut world, listener);
    // The options of each segment, timestamps, are within the MSS.
    assert_eq!(mss(&mut world, &mut program, accepted), 988);

    for (bytes, expected) in [(500, 488), (0, 1448)] {
        let handle = program.handle();
        let socket = program.open(&mut world, handle);
        set(&mut program, &mut world, socket, 88).unwrap();
        set(&mut program, &mut world, socket, bytes).unwrap();
        program.connect(&mut world, socket, "10.77.0.1:7").unwrap();
        world.run_until(|_| program.flags(socket).has(Flags::CONNECTED));
        assert_eq!(mss(&mut world, &mut program, socket), expected);
        set(&mut program, &mut world, socket, 200).unwrap();
        assert_eq!(mss(&mut world, &mut program, socket), expected, "too late");
    }
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_waiting_process_gets_one_hint_for_what_has_changed() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let record = program.record(listener);
    assert!(record.want(program.channel, record.edge()));
    let stream = world.connect(8000);
    world.run_until(|_| {
        program.hear();
        program.hints == [listener]
    });
    let (socket, _) = program.accept(&mut world, listener);
    world.run_for_us(1_000);
    let record = program.record(socket);
    assert!(record.want(program.channel, record.edge()));
    world.client_sends(stream, b"one", false);
    world.run_until(|_| {
        program.hear();
        program.hints == [listener, socket]
    });
    // It was asked for once.
    world.client_sends(stream, b"two", false);
    world.run_for_us(10_000);
    program.hear();
    assert_eq!(program.hints, [listener, socket]);
    let mut read = Vec::new();
    world.run_until(|_| {
        read.extend(program.read(socket));
        read.len() >= 6
    });
    assert_eq!(read, b"onetwo");
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn the_address_of_a_descriptor_that_was_closed_is_free_at_once() {
    let mut world = World::new();
    world.apps.others = Sockets::new().unwrap();
    // Numbers of all 32 bits.
    let app = AppId(1 << 31 | 1);
    let mut program = Program::new(&mut world, app.0);
    let first = HandleId(HANDLES);
    let (theirs, own): (Vec<OwnedFd>, Vec<OwnedFd>) = (0..2)
        .map(|_| UnixStream::pair().unwrap())
        .map(|(theirs, own)| (theirs.into(), own.into()))
        .unzip();
    let broker = PlayedBroker::new();
    broker.bring(Arrived::Handles(NewHandles {
        app: program.app,
        channel: program.channel,
        first,
        descriptors: theirs,
    }));
    broker.start(&mut world);
    let mut own = own.into_iter();
    let address = "0.0.0.0:8000";
    // A socket that is bound, and one that listens.
    for number in 0..2 {
        let socket = program.open(&mut world, HandleId(first.0 + number));
        let bound = program.bind(&mut world, socket, address, BindFlags::NONE);
        bound.unwrap();
        if number == 1 {
            program.listen(&mut world, socket, 1).unwrap();
        }
        // Its hang-up is not noticed before the next command is taken.
        drop(own.next());
    }
    program.listener(&mut world, 8000);
    program.exit(&mut world);
    world.hang_up(app, first);
    world.hang_up(app, HandleId(first.0 + 1));
    world.assert_nothing_left();
}

#[test]
fn what_a_socket_shares_may_change_after_it_was_bound() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let [one, two] = [(); 2].map(|()| {
        let handle = program.handle();
        program.open(&mut world, handle)
    });
    let bind = |program: &mut Program, world: &mut World, socket, flags| {
        program.bind(world, socket, "0.0.0.0:8000", flags)
    };
    let set = |program: &mut Program, world: &mut World, option, value| {
        let done = program.call(world, |request| Command::SetOption {
            request,
            socket: one,
            option,
            value,
        });
        done.map(drop)
    };
    let ways = [
        (SocketOption::ReuseAddress, BindFlags::REUSE_ADDR),
        (SocketOption::ReusePort, BindFlags::REUSE_PORT),
    ];
    // Before there is an address, the library keeps both.
    set(&mut program, &mut world, SocketOption::ReuseAddress, 1).unwrap();
    bind(&mut program, &mut world, one, BindFlags::NONE).unwrap();
    let refused = bind(&mut program, &mut world, two, BindFlags::REUSE_ADDR);
    assert_eq!(refused, Err(EADDRINUSE));
    for (option, flags) in ways {
        let handle = program.handle();
        let other = program.open(&mut world, handle);
        let refused = bind(&mut program, &mut world, other, flags);
        assert_eq!(refused, Err(EADDRINUSE));
        set(&mut program, &mut world, option, 1).unwrap();
        bind(&mut program, &mut world, other, flags).unwrap();
        program.close(handle);
        set(&mut program, &mut world, option, 0).unwrap();
        world.run_for_us(10_000);
    }
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn traffic_classes_are_kept_without_their_ecn_field() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let set = |program: &mut Program, world: &mut World, option, value| {
        let done = program.call(world, |request| Command::SetOption {
            request,
            socket: listener,
            option,
            value,
        });
        done.map(drop)
    };
    let classes = [SocketOption::TypeOfService, SocketOption::TrafficClass];
    for (option, value) in classes.into_iter().zip([0x2b, 0xff]) {
        set(&mut program, &mut world, option, value).unwrap();
        assert_eq!(set(&mut program, &mut world, option, 256), Err(EINVAL));
    }
    world.connect(8000);
    let (accepted, _) = program.accept(&mut world, listener);
    for (socket, option, value) in [
        (listener, SocketOption::TypeOfService, 0x28),
        (accepted, SocketOption::TypeOfService, 0x28),
        (accepted, SocketOption::TrafficClass, 0xfc),
    ] {
        let got = program.call(&mut world, |request| Command::GetOption {
            request,
            socket,
            option,
        });
        assert_eq!(got.unwrap().1, value);
    }
    program.exit(&mut world);
    world.assert_nothing_left();
}
