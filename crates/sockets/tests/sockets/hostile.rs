//! Applications that do as they like behind the channel: others, and the stack, notice nothing.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use fakes::seeds::each_seed;
use host::app::Application;
use rustix::event::{PollFd, PollFlags, Timespec};
use socket_channel::attach::MODES_DEFAULT;
use socket_channel::channel::{self, HostEnd};
use socket_channel::message::BindFlags;
use socket_channel::{
    AppId, ChannelId, Command, Family, Flags, HandleId, How, Layout, Limits, Segment, Side,
    SocketId, SocketOption,
};
use sockets::{Attachment, Grant, Sockets};

use crate::program::{Program, first, text};
use crate::world::World;

fn some_socket(random: &mut dyn FnMut(u64) -> u64) -> SocketId {
    SocketId {
        index: random(12) as u32,
        generation: random(4) as u32,
    }
}

fn some_command(random: &mut dyn FnMut(u64) -> u64) -> Command<'static> {
    let request = random(5) as u32;
    let socket = some_socket(random);
    let handle = HandleId(random(24) as u32);
    let address = format!(
        "10.77.0.{}:{}",
        1 + random(3),
        [7, 8001, 8002, 0][random(4) as usize]
    );
    let address = address.parse().unwrap();
    match random(15) {
        0 => Command::Open {
            request,
            handle,
            family: Family::V4,
        },
        1 => Command::Bind {
            request,
            socket,
            address,
            flags: BindFlags::REUSE_PORT,
        },
        2 => Command::Listen {
            request,
            socket,
            backlog: random(10) as u32,
        },
        3 => Command::Connect {
            request,
            socket,
            address,
        },
        4 => Command::Accept { socket, handle },
        5 | 6 => Command::Kick { socket },
        7 => Command::Shutdown {
            socket,
            how: How::Both,
            mark: random(4) as u32,
            at: random(3) * random(100_000),
        },
        8 => Command::SetOption {
            request,
            socket,
            option: SocketOption::ALL[random(SocketOption::ALL.len() as u64) as usize],
            value: random(u64::MAX),
        },
        9 => Command::GetInfo { request, socket },
        10 => Command::Close { handle },
        11 => Command::OpenFile {
            request,
            handle,
            path: [b"5000".as_slice(), b"none", b"../x"][random(3) as usize],
        },
        12 => Command::OpenPassed {
            request,
            handle,
            file: 5000 * random(2) as u32,
        },
        13 => Command::Disconnect { request, socket },
        _ => Command::SendFile {
            socket,
            file: some_socket(random),
            offset: random(10_000),
            len: random(10_000),
            mark: random(4) as u32,
            at: random(3) * random(100_000),
        },
    }
}

fn some_command_for_held(random: &mut dyn FnMut(u64) -> u64) -> Command<'static> {
    let request = random(5) as u32;
    let socket = some_socket(random);
    match random(13) {
        10 => Command::Reuse {
            handle: HandleId(random(24) as u32),
        },
        11 => Command::Share {
            request,
            socket,
            handle: HandleId(random(24) as u32),
        },
        12 => Command::LookUp {
            request,
            handle: HandleId(random(24) as u32),
        },
        5..=7 => Command::Splice {
            request,
            first: socket,
            second: some_socket(random),
            idle_ms: random(3) as u32 * 1000,
            life_ms: random(2) as u32 * 5000,
        },
        8 => Command::Unsplice { request, socket },
        9 => Command::Room {
            request,
            socket,
            bytes: random(3) * random(u64::MAX / 3),
        },
        0 => Command::Look { request, socket },
        1 => Command::Receive {
            request,
            socket,
            bytes: random(3) * random(u64::MAX / 3),
        },
        2 | 3 => Command::AcceptNext {
            request,
            socket,
            handle: HandleId(random(24) as u32),
        },
        _ => Command::GetAddress {
            request,
            socket,
            side: Side::Peer,
        },
    }
}

/// One step of an application that does as it likes.
fn misbehave(program: &mut Program, random: &mut dyn FnMut(u64) -> u64) {
    for _ in 0..random(20) {
        let command = match random(4) {
            0 => some_command_for_held(random),
            _ => some_command(random),
        };
        let _ = program.end.send(&command);
    }
    // Not all events are taken.
    for _ in 0..random(30) {
        let _ = program.end.receive();
    }
    let words = program.segment.words();
    for _ in 0..random(10) {
        let record = 64 + 64 * random(12) as usize;
        let place = match random(3) {
            0 => random(words.len() as u64) as usize,
            _ => record + random(64) as usize,
        };
        let value = match random(4) {
            0 => random(u64::MAX),
            1 => words[place]
                .load(Ordering::Relaxed)
                .wrapping_add(random(5_000)),
            2 => 0,
            _ => random(100_000),
        };
        words[place].store(value, Ordering::Relaxed);
    }
    program.end.flush();
}

#[test]
fn whatever_an_application_does_others_get_every_byte_and_nothing_is_left() {
    each_seed(20, |random| {
        let mut world = World::new();
        world.ends_splices = true;
        world.nic.lacks.insert("none".to_owned());
        let modes = random(32) as u32;
        let mut hostile = Program::with(&mut world, 1, Grant::default(), modes);
        let mut honest = Program::new(&mut world, 2);
        let (listener, _) = honest.listener(&mut world, 8000);
        world.clients.echoes = false;
        let stream = world.connect(8000);
        let sent = text(300_000, 6);
        world.client_sends(stream, &sent, true);
        let (socket, handle) = honest.accept(&mut world, listener);
        let mut waiting = Vec::new();
        let mut rounds = 0;
        world.run_until(|world| {
            misbehave(&mut hostile, random);
            if rounds % 16 == 0 {
                world.connect(8001);
            }
            rounds += 1;
            honest.hear();
            waiting.extend(honest.read(socket));
            let count = honest.write(socket, &waiting);
            waiting.drain(..count);
            rounds > 500 && world.heard(stream).received.len() == sent.len()
        });
        assert!(world.heard(stream).received == sent, "every byte");
        honest.close(handle);
        hostile.exit(&mut world);
        honest.exit(&mut world);
        world.assert_nothing_left();
    });
}

/// Attaches a process with real memory and bells; returns its memory, and the bell that it rings.
fn attach(world: &mut World, app: u32) -> (OwnedFd, OwnedFd) {
    let limits = Limits {
        sockets_max: 16,
        segment_bytes: 1 << 20,
    };
    let segment = Segment::in_memory(Layout::of(limits).unwrap());
    let (memory, host_bell) = (
        channel::create_file().unwrap(),
        channel::create_bell().unwrap(),
    );
    let (own, peer) = (
        host_bell.try_clone().unwrap(),
        channel::create_bell().unwrap(),
    );
    let attached = world.apps.others.attach(Attachment {
        app: AppId(app),
        channel: ChannelId(app),
        pid: app,
        uid: 1000,
        first: Some(first(Grant::default(), MODES_DEFAULT, segment)),
        end: HostEnd::from_files(&memory, own, peer).unwrap(),
    });
    attached.unwrap();
    (memory, host_bell)
}

/// True if a sleep would end at once.
fn is_awake(world: &World) -> bool {
    let sockets = world.sockets();
    let fds = sockets.wake_fds().into_iter().chain(sockets.ring_set());
    let mut fds: Vec<_> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&at_once)).unwrap() > 0
}

#[test]
fn a_ring_that_makes_no_sense_detaches_its_application_alone() {
    let mut world = World::new();
    world.apps.others = Sockets::new().unwrap();
    let mut honest = Program::new(&mut world, 2);
    let (memory, bell) = attach(&mut world, 1);
    world.run_for_us(100);
    rustix::io::pwrite(&memory, &[0xff; 4096], 0).unwrap();
    rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    assert!(is_awake(&world));
    world.run_for_us(10_000);
    assert_eq!(world.sockets().counters().channels_corrupt, 1);
    assert_eq!(world.sockets().processes(), 1);
    // Nothing keeps the host stack from sleep.
    assert!(world.apps.others.prepare_sleep() && !is_awake(&world));
    honest.listener(&mut world, 8000);
    honest.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn the_bell_of_a_process_that_is_gone_wakes_no_one() {
    let mut world = World::new();
    world.apps.others = Sockets::new().unwrap();
    let (_memory, bell) = attach(&mut world, 1);
    world.end_process(AppId(1), ChannelId(1));
    rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    assert!(!is_awake(&world));
    world.assert_nothing_left();
}

#[test]
fn an_application_that_is_detached_cannot_use_the_sockets_that_it_has() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let mut other = Program::new(&mut world, 2);
    let sockets = [0; 3].map(|_| {
        let handle = program.handle();
        program.open(&mut world, handle)
    });
    let [bound, unbound, connecting] = sockets;
    let all = "0.0.0.0:8000";
    program
        .bind(&mut world, bound, all, BindFlags::NONE)
        .unwrap();
    assert!(world.detach(program.app));
    world.run_for_us(1_000);
    assert!(program.listen(&mut world, bound, 1).is_err());
    let refused = program.bind(&mut world, unbound, "0.0.0.0:8001", BindFlags::NONE);
    assert!(refused.is_err());
    let refused = program.connect(&mut world, connecting, "10.77.0.1:7");
    assert!(refused.is_err());
    assert_eq!(world.server.usage().connections, 0);
    // Its port is free.
    other.listener(&mut world, 8000);
    other.exit(&mut world);
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// A connection that a peer has opened, and a file that is there, of a program.
fn stream_and_file(world: &mut World, program: &mut Program) -> (SocketId, SocketId) {
    world.clients.echoes = false;
    let (listener, _) = program.listener(world, 8000);
    world.connect(8000);
    let (stream, _) = program.accept(world, listener);
    let handle = program.handle();
    let opened = program.call(world, |request| Command::OpenFile {
        request,
        handle,
        path: b"5000000",
    });
    let file = opened.unwrap().0.unwrap();
    world.run_until(|_| program.flags(file).has(Flags::FILE_OPEN));
    (stream, file)
}

fn send_file(program: &mut Program, socket: SocketId, file: SocketId, len: u64) -> bool {
    let (mark, at) = program.record(socket).mark();
    let sent = program.end.send(&Command::SendFile {
        socket,
        file,
        offset: 0,
        len,
        mark,
        at,
    });
    program.end.flush();
    sent.is_ok()
}

#[test]
fn lengths_that_an_application_makes_up_are_not_counted() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let (stream, file) = stream_and_file(&mut world, &mut program);
    assert!(send_file(&mut program, stream, file, u64::MAX));
    world.run_until(|_| program.flags(stream).has(Flags::FAILED));
    assert_eq!(world.sockets().counters().file_bytes, 0);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn ranges_that_no_peer_takes_are_bounded() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let (stream, file) = stream_and_file(&mut world, &mut program);
    // The window closes, and all that follows waits.
    world.clients.is_stalled = true;
    for _ in 0..1_000 {
        program.write(stream, &text(5_000, 1));
        world.run_for_us(500);
    }
    assert_eq!(program.write(stream, b"full"), 0);
    for _ in 0..10_000 {
        if program.flags(stream).has(Flags::FAILED) {
            break;
        }
        send_file(&mut program, stream, file, 0);
        world.step();
    }
    assert!(program.flags(stream).has(Flags::FAILED));
    assert_eq!(world.sockets().counters().sockets_nonsense, 1);
    program.exit(&mut world);
    world.assert_nothing_left();
}
