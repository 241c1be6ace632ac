//! The modes that change what the host stack does: it holds bytes and connections until it is
//! asked.

use std::process::Command as Process;

use host::app::CloseReason;
use rustix::io::Errno;
use socket_channel::attach::{
    MODE_BUFFERS_ON_DEMAND, MODE_EAGER_ACCEPT, MODE_EAGER_RECEIVE, MODE_SETUP_WITH_ACCEPT,
    MODES_DEFAULT,
};
use socket_channel::{Command, Flags, Side, SocketOption};
use sockets::Grant;

use crate::program::{Program, text};
use crate::world::World;

/// Holds the modes that programs are served in, as a number.
const MODES_VARIABLE: &str = "SPLITWAY_TEST_MODES";

/// The modes that the tests are run in.
pub(crate) fn modes() -> u32 {
    let modes = std::env::var(MODES_VARIABLE);
    modes.map_or(MODES_DEFAULT, |modes| modes.parse().unwrap())
}

fn without(world: &mut World, modes: u32) -> Program {
    Program::with(world, 1, Grant::default(), MODES_DEFAULT & !modes)
}

#[test]
fn all_tests_hold_in_each_mode() {
    let off = [
        MODE_EAGER_RECEIVE,
        MODE_EAGER_ACCEPT,
        MODE_SETUP_WITH_ACCEPT,
        MODE_BUFFERS_ON_DEMAND,
        MODES_DEFAULT,
    ];
    for off in off {
        let modes = MODES_DEFAULT & !off;
        let program = std::env::current_exe().unwrap();
        let ran = Process::new(program)
            .args(["--skip", "modes::", "--skip", "views::"])
            .env(MODES_VARIABLE, modes.to_string())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "in modes {modes}: {output}");
        assert!(!output.contains(" 0 passed"), "{output}");
    }
}

#[test]
fn bytes_are_held_until_so_many_are_asked_for() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = without(&mut world, MODE_EAGER_RECEIVE);
    let (listener, _) = program.listener(&mut world, 8000);
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    let record = program.record(socket);
    assert!(record.want(program.channel, record.edge()));
    let sent = text(5_000, 1);
    world.client_sends(stream, &sent, true);
    world.run_until(|_| program.flags(socket).has(Flags::FIN_RECEIVED));
    program.hear();
    assert_eq!(program.hints, [socket], "a process that waits is woken");
    let look = program.record(socket).look().unwrap();
    // The end is reported behind the last byte.
    assert!(look.readiness().readable && !look.readiness().peer_finished);
    let record = program.record(socket);
    assert_eq!((record.rx_waiting_bytes(), record.held()), (0, 5_000));
    assert_eq!(world.sockets().counters().received_bytes, 0);

    for (bytes, in_fifo) in [(1, 1), (3_000, 3_000), (10, 3_000)] {
        let asked = program.call(&mut world, |request| Command::Receive {
            request,
            socket,
            bytes,
        });
        asked.unwrap();
        let record = program.record(socket);
        let both = (record.rx_waiting_bytes(), record.held());
        assert_eq!(both, (in_fifo, 5_000 - in_fifo));
        assert!(!program.flags(socket).has(Flags::PEER_FINISHED));
    }
    assert!(program.read_to_end(&mut world, socket) == sent);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn held_bytes_keep_the_window_closed() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = without(&mut world, MODE_EAGER_RECEIVE);
    let (listener, _) = program.listener(&mut world, 8000);
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    let sent = text(8_000_000, 2);
    world.client_sends(stream, &sent, true);
    world.run_for_us(3_000_000);
    let held = program.record(socket).held();
    assert!(held > 0 && held < 7_000_000, "{held}");
    assert!(!program.flags(socket).has(Flags::FIN_RECEIVED));
    assert!(program.read_to_end(&mut world, socket) == sent);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn what_came_before_a_reset_is_read_before_it() {
    for off in [0, MODE_EAGER_RECEIVE, MODE_EAGER_ACCEPT, MODES_DEFAULT] {
        let mut world = World::new();
        world.clients.echoes = false;
        let mut program = without(&mut world, off);
        let (listener, _) = program.listener(&mut world, 8000);
        let stream = world.connect(8000);
        world.client_sends(stream, b"last words", false);
        world.run_for_us(100_000);
        world.client_aborts(stream);
        world.run_until(|world| world.server.usage().connections == 0);
        let (socket, _) = program.accept(&mut world, listener);
        assert!(program.flags(socket).has(Flags::FAILED));
        assert_eq!(program.record(socket).held(), 0);
        assert_eq!(program.read(socket), b"last words", "without {off}");
        let error = Errno::CONNRESET.raw_os_error().cast_unsigned();
        assert_eq!(program.record(socket).take_error(), error);
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}

#[test]
fn connections_are_held_until_they_are_asked_for() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = without(&mut world, MODE_EAGER_ACCEPT);
    let (listener, _) = program.listener(&mut world, 8000);
    let record = program.record(listener);
    assert!(record.want(program.channel, record.edge()));
    let handle = program.handle();
    let none = program.accept_next(&mut world, listener, handle);
    assert_eq!(none, Err(Errno::AGAIN.raw_os_error().cast_unsigned()));

    let streams: Vec<_> = (0..3).map(|_| world.connect(8000)).collect();
    world.client_sends(streams[1], b"second", true);
    world.run_until(|world| world.sockets().counters().connections_accepted == 3);
    world.run_for_us(100_000);
    program.hear();
    assert_eq!(program.hints, [listener]);
    let record = program.record(listener);
    assert_eq!((record.held(), record.accept()), (3, Ok(None)));
    assert!(record.look().unwrap().readiness().readable);
    assert_eq!(world.sockets().counters().sockets, 1, "of the listener");

    let first = program.accept_next(&mut world, listener, handle).unwrap();
    let taken = program.accept_next(&mut world, listener, handle);
    assert!(taken.is_err(), "the handle has a socket");
    let (second, _) = program.accept(&mut world, listener);
    // It had ended before it was asked for.
    assert_eq!(program.read_to_end(&mut world, second), b"second");
    assert_eq!(program.record(listener).held(), 1);
    program.write_all(&mut world, first, b"hello");
    world.run_until(|world| world.heard(streams[0]).received == b"hello");
    program.exit(&mut world);
    world.run_until(|world| world.heard(streams[2]).closed.is_some());
    assert_eq!(world.heard(streams[2]).closed, Some(CloseReason::Reset));
    world.assert_nothing_left();
}

#[test]
fn held_connections_count_as_sockets() {
    let mut world = World::new();
    world.clients.echoes = false;
    let grant = Grant {
        sockets_max: 4,
        ..Grant::default()
    };
    let modes = MODES_DEFAULT & !MODE_EAGER_ACCEPT;
    let mut program = Program::with(&mut world, 1, grant, modes);
    program.listener(&mut world, 8000);
    for _ in 0..6 {
        world.connect(8000);
    }
    world.run_until(|world| world.sockets().counters().connections_accepted == 3);
    // The others get no answer.
    world.run_for_us(2_000_000);
    assert_eq!(world.sockets().counters().connections_accepted, 3);
    assert_eq!(world.sockets().counters().connections_refused, 0);
    assert!(world.detach(program.app));
    world.run_until(|world| world.server.usage().connections == 0);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn an_accepted_connection_tells_what_it_is_only_with_setup() {
    for off in [0, MODE_SETUP_WITH_ACCEPT] {
        let mut world = World::new();
        world.clients.echoes = false;
        let mut program = without(&mut world, off);
        let (listener, _) = program.listener(&mut world, 8000);
        let set = program.call(&mut world, |request| Command::SetOption {
            request,
            socket: listener,
            option: SocketOption::KeepIdleSeconds,
            value: 77,
        });
        set.unwrap();
        let stream = world.connect(8000);
        world.client_sends(stream, b"first bytes", false);
        world.run_for_us(100_000);
        let socket = program.record(listener).accept().unwrap().unwrap();
        let record = program.record(socket);
        let has_setup = off == 0;
        assert_eq!(record.local().is_some(), has_setup);
        assert_eq!(record.peer().is_some(), has_setup);
        let idle = record.option(SocketOption::KeepIdleSeconds);
        assert_eq!(idle, has_setup.then_some(77));
        // Ready at once all the same.
        let waiting = (record.rx_waiting_bytes(), record.held());
        assert_eq!(waiting, if has_setup { (11, 0) } else { (0, 11) });
        let handle = program.handle();
        program.send(&Command::Accept { socket, handle });
        for side in Side::ALL {
            let asked = program.call(&mut world, |request| Command::GetAddress {
                request,
                socket,
                side: *side,
            });
            asked.unwrap();
        }
        let record = program.record(socket);
        assert_eq!(record.local().unwrap().to_string(), "10.77.0.2:8000");
        assert_eq!(record.peer().unwrap().ip().to_string(), "10.77.0.1");
        assert_eq!(program.read(socket), b"first bytes");
        let set = program.call(&mut world, |request| Command::SetOption {
            request,
            socket,
            option: SocketOption::LingerMs,
            value: u64::MAX - 1,
        });
        set.unwrap();
        let linger = program.record(socket).option(SocketOption::LingerMs);
        assert_eq!(linger, has_setup.then_some(u64::MAX - 1));
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}
