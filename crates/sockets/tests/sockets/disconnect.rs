//! Sockets that are used again, and what may be queued and not sent. That all of it is as on the
//! kernel, a program shows that runs on both (`capi/tests/programs/states.c`).

use host::app::CloseReason;
use socket_channel::attach::{MODE_SETUP_WITH_ACCEPT, MODES_DEFAULT};
use socket_channel::message::BindFlags;
use socket_channel::{Command, Flags, SocketId, SocketOption};

use crate::program::{Program, silent_connection, silent_connection_in, text};
use crate::world::World;

const EADDRINUSE: u32 = 98;
const ECONNRESET: u32 = 104;
const EISCONN: u32 = 106;
const ECONNREFUSED: u32 = 111;

fn disconnect(world: &mut World, program: &mut Program, socket: SocketId) -> Result<(), u32> {
    let make = |request| Command::Disconnect { request, socket };
    program.call(world, make).map(|_| ())
}

/// Has the echo server on the wire send back a text.
#[track_caller]
fn echo(world: &mut World, program: &mut Program, socket: SocketId, bytes: usize) {
    world.run_until(|_| program.flags(socket).has(Flags::CONNECTED));
    let sent = text(bytes, 7);
    let (mut written, mut received) = (0, Vec::new());
    world.run_until(|_| {
        program.hear();
        written += program.write(socket, &sent[written..]);
        received.extend(program.read(socket));
        received.len() == sent.len()
    });
    assert!(received == sent, "every byte");
}

#[test]
fn a_connection_is_reset_and_its_socket_connects_again() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    for turn in 0..20 {
        program.connect(&mut world, socket, "10.77.0.1:7").unwrap();
        assert_eq!(
            program
                .connect(&mut world, socket, "10.77.0.1:7")
                .unwrap_err(),
            if program.flags(socket).has(Flags::CONNECTED) {
                EISCONN
            } else {
                114
            }
        );
        echo(&mut world, &mut program, socket, 5_000 * turn + 1);
        // Bytes both ways are on their way, and are lost.
        program.write(socket, &text(30_000, 1));
        assert_eq!(disconnect(&mut world, &mut program, socket), Ok(()));
        assert_eq!(program.flags(socket), Flags::STREAM);
        assert_eq!(program.record(socket).take_error(), ECONNRESET);
        assert!(program.read(socket).is_empty());
    }
    let resets = |world: &World| {
        let closed = world.clients.heard.values().map(|heard| heard.closed);
        closed
            .filter(|closed| *closed == Some(CloseReason::Reset))
            .count()
    };
    world.run_until(|world| resets(world) == 20);
    assert_eq!(world.sockets().counters().sockets, 1);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn after_a_refusal_a_socket_keeps_what_was_named_and_connects() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let other = program.handle();
    let other = program.open(&mut world, other);
    for (address, again) in [("10.77.0.2:9000", Err(EADDRINUSE)), ("10.77.0.2:0", Ok(()))] {
        let handle = program.handle();
        let socket = program.open(&mut world, handle);
        let bound = program.bind(&mut world, socket, address, BindFlags::NONE);
        bound.unwrap();
        let local = program.record(socket).local().unwrap();
        program.connect(&mut world, socket, "10.77.0.1:99").unwrap();
        world.run_until(|_| program.flags(socket).has(Flags::FAILED));
        assert_eq!(program.record(socket).take_error(), ECONNREFUSED);
        assert_eq!(disconnect(&mut world, &mut program, socket), Ok(()));
        assert_eq!(program.record(socket).take_error(), 0, "it was reported");
        let is_bound = program.flags(socket).has(Flags::BOUND);
        assert_eq!(is_bound, again.is_err());
        let taken = program.bind(&mut world, other, &local.to_string(), BindFlags::NONE);
        assert_eq!(taken, again, "{address}");
        program.connect(&mut world, socket, "10.77.0.1:7").unwrap();
        let from = program.record(socket).local().unwrap();
        assert_eq!(from.ip(), local.ip());
        assert_eq!(from.port() == local.port(), is_bound);
        echo(&mut world, &mut program, socket, 50_000);
        program.close(handle);
    }
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_listener_listens_again_at_its_port() {
    let (mut world, mut program, listener, stream) = silent_connection();
    world.run_until(|world| world.heard(stream).is_connected);
    world.run_until(|_| program.record(listener).look().unwrap().waiting == 1);
    assert_eq!(disconnect(&mut world, &mut program, listener), Ok(()));
    assert_eq!(program.flags(listener), Flags::STREAM | Flags::BOUND);
    world.run_until(|world| world.heard(stream).closed == Some(CloseReason::Reset));
    let refused = world.connect(8000);
    world.run_until(|world| world.heard(refused).closed == Some(CloseReason::Refused));
    program.listen(&mut world, listener, 5).unwrap();
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    world.client_sends(stream, b"bytes", true);
    assert_eq!(program.read_to_end(&mut world, socket), b"bytes");
    // Of a file there is nothing to disconnect; of what was never connected, nothing happens.
    let handle = program.handle();
    let fresh = program.open(&mut world, handle);
    assert_eq!(disconnect(&mut world, &mut program, fresh), Ok(()));
    world.detach(program.app);
    world.run_for_us(1000);
    program.hear();
    assert!(disconnect(&mut world, &mut program, fresh).is_err());
    assert_eq!(
        program.listen(&mut world, listener, 5).unwrap_err(),
        ECONNRESET
    );
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn what_is_queued_and_not_sent_stays_below_the_low_water_mark() {
    for lowat_bytes in [1, 1_000, 10_000, 100_000] {
        let (mut world, mut program, listener, stream) = silent_connection();
        world.clients.is_stalled = true;
        let (socket, _) = program.accept(&mut world, listener);
        let set = program.call(&mut world, |request| Command::SetOption {
            request,
            socket,
            option: SocketOption::NotSentLowWaterBytes,
            value: lowat_bytes,
        });
        set.unwrap();
        let sent = text(1_000_000, 8);
        let mut written = 0;
        // As much as the window of a client that reads nothing lets through, and no more.
        for _ in 0..100_000 {
            program.hear();
            written += program.write(socket, &sent[written..]);
            world.step();
        }
        assert!(written > 40_000, "{written}");
        let notsent = program.record(socket).look().unwrap().unsent_bytes;
        assert!(notsent <= (lowat_bytes / 2).max(1) + 4096, "{notsent}");
        assert!(
            written <= (64 << 10) + lowat_bytes as usize + 10_000,
            "{written}"
        );
        assert!(!program.record(socket).look().unwrap().readiness().writable);
        world.resume_clients();
        world.run_until(|_| {
            program.hear();
            written += program.write(socket, &sent[written..]);
            written == sent.len()
        });
        program.shutdown(socket);
        world.run_until(|world| world.heard(stream).has_finished);
        assert!(world.heard(stream).received == sent, "every byte");
        program.exit(&mut world);
        world.client_sends(stream, b"", true);
        world.assert_nothing_left();
    }
}

#[test]
fn an_accepted_connection_has_had_its_port_also_if_it_did_not_say_so() {
    for off in [0, MODE_SETUP_WITH_ACCEPT] {
        let (mut world, mut program, listener, _) = silent_connection_in(MODES_DEFAULT & !off);
        let mut taken = None;
        world.run_until(|_| {
            taken = program.record(listener).accept().unwrap();
            taken.is_some()
        });
        let (socket, handle) = (taken.unwrap(), program.handle());
        program.send(&Command::Accept { socket, handle });
        assert_eq!(program.record(socket).local().is_some(), off == 0);
        assert_eq!(disconnect(&mut world, &mut program, socket), Ok(()));
        let left = program.record(socket).local();
        assert_eq!(left.map(|left| left.port()), Some(8000), "without {off}");
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}
