//! How connections end, and programs.

use host::app::CloseReason;
use socket_channel::attach::{MODE_BUFFERS_ON_DEMAND, MODES_DEFAULT};
use socket_channel::{Command, Flags};
use sockets::Grant;

use crate::modes::modes;
use crate::program::{Program, silent_connection, silent_connection_in, text};
use crate::world::World;

const ECONNREFUSED: u32 = 111;
const EHOSTUNREACH: u32 = 113;
const ECONNRESET: u32 = 104;

#[test]
fn what_is_queued_goes_after_the_program_is_gone() {
    for loss in [0, 10] {
        let mut world = World::new();
        world.loss = loss;
        world.clients.echoes = false;
        let mut program = Program::new(&mut world, 1);
        let (listener, _) = program.listener(&mut world, 8000);
        let stream = world.connect(8000);
        let (socket, _) = program.accept(&mut world, listener);
        world.run_until(|world| world.heard(stream).is_connected);
        // More than TCP takes at once, so that some of it is in the FIFO alone.
        let sent = text(100_000, 5);
        program.write_all(&mut world, socket, &sent);
        program.exit(&mut world);
        world.run_until(|world| world.heard(stream).has_finished);
        assert!(world.heard(stream).received == sent, "every byte");
        world.client_sends(stream, b"", true);
        world.assert_nothing_left();
    }
}

#[test]
fn a_connection_with_unread_bytes_is_reset_when_it_is_closed() {
    let (mut world, mut program, listener, stream) = silent_connection();
    world.client_sends(stream, b"unread", false);
    let (socket, handle) = program.accept(&mut world, listener);
    world.run_until(|_| program.record(socket).look().unwrap().waiting == 6);
    program.close(handle);
    world.run_until(|world| world.heard(stream).closed.is_some());
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Reset));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn what_was_sent_before_a_reset_arrives_before_it() {
    let (mut world, mut program, listener, stream) = silent_connection();
    world.client_sends(stream, b"unread", false);
    let (socket, handle) = program.accept(&mut world, listener);
    world.run_until(|_| program.record(socket).look().unwrap().waiting == 6);
    // All in one turn of the host stack.
    assert_eq!(program.write(socket, b"last words"), 10);
    program.close(handle);
    world.run_until(|world| world.heard(stream).closed.is_some());
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Reset));
    assert_eq!(world.heard(stream).received, b"last words");
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_connection_that_sends_after_it_was_closed_is_reset() {
    let (mut world, mut program, listener, stream) = silent_connection();
    let (_, handle) = program.accept(&mut world, listener);
    program.close(handle);
    world.run_until(|world| world.heard(stream).has_finished);
    world.client_sends(stream, b"too late", false);
    world.run_until(|world| world.heard(stream).closed.is_some());
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Reset));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_lingering_time_of_zero_resets() {
    use socket_channel::SocketOption;
    let (mut world, mut program, listener, stream) = silent_connection();
    let (socket, handle) = program.accept(&mut world, listener);
    let set = program.call(&mut world, |request| Command::SetOption {
        request,
        socket,
        option: SocketOption::LingerMs,
        value: 0,
    });
    set.unwrap();
    program.close(handle);
    world.run_until(|world| world.heard(stream).closed.is_some());
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Reset));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn failures_to_connect_have_the_errors_of_the_kernel() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    for (to, errno) in [("10.77.0.1:8", ECONNREFUSED), ("10.77.0.9:8", EHOSTUNREACH)] {
        let handle = program.handle();
        let socket = program.open(&mut world, handle);
        program.connect(&mut world, socket, to).unwrap();
        world.run_until(|_| program.flags(socket).has(Flags::FAILED));
        assert_eq!(program.record(socket).take_error(), errno, "{to}");
        assert_eq!(program.record(socket).take_error(), 0, "reported once");
        program.close(handle);
    }
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_peer_that_resets_is_an_error_and_what_came_before_can_be_read() {
    let (mut world, mut program, listener, stream) = silent_connection();
    world.client_sends(stream, b"before", false);
    let (socket, _) = program.accept(&mut world, listener);
    world.run_until(|_| program.record(socket).look().unwrap().waiting == 6);
    world.client_aborts(stream);
    world.run_until(|_| program.flags(socket).has(Flags::FAILED | Flags::CLOSED));
    assert_eq!(program.read(socket), b"before");
    assert_eq!(program.record(socket).take_error(), ECONNRESET);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_process_that_ends_between_taking_and_adopting_leaves_no_connection_behind() {
    // A connection that is asked for has its handle at once.
    let (mut world, program, listener, stream) = silent_connection_in(MODES_DEFAULT);
    let mut taken = None;
    world.run_until(|_| {
        taken = program.record(listener).accept().unwrap();
        taken.is_some()
    });
    world.end_process(program.app, program.channel);
    // As if it had closed the connection.
    world.run_until(|world| world.heard(stream).has_finished);
    world.client_sends(stream, b"", true);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn what_a_process_did_without_a_word_is_found_at_any_socket_some_in_each_turn() {
    const CONNECTIONS: u64 = 600;
    let mut world = World::new();
    world.clients.echoes = false;
    // What one writes without a word needs a buffer that is there.
    let modes = modes() & !MODE_BUFFERS_ON_DEMAND;
    let mut program = Program::with(&mut world, 1, Grant::default(), modes);
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let handle = program.handle();
            let socket = program.open(&mut world, handle);
            program.connect(&mut world, socket, "10.77.0.1:7").unwrap();
            world.run_until(|_| program.flags(socket).has(Flags::CONNECTED));
            socket
        })
        .collect();
    for socket in &connections {
        assert_eq!(program.record(*socket).write(b"x"), Ok(1));
    }
    world.run_for_us(10_000);
    assert_eq!(world.sockets().counters().sent_bytes, 0, "no command came");
    world.end_process(program.app, program.channel);
    let mut before = 0;
    world.run_until(|world| {
        let sent_bytes = world.sockets().counters().sent_bytes;
        let found = sent_bytes - std::mem::replace(&mut before, sent_bytes);
        assert!(found <= 256, "{found} in a turn");
        sent_bytes == CONNECTIONS
    });
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn an_application_that_is_detached_sees_it_and_its_clients_are_reset() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let mut other = Program::new(&mut world, 2);
    let (listener, _) = program.listener(&mut world, 8000);
    let (others_listener, _) = other.listener(&mut world, 8001);
    let (served, waiting, others) = (
        world.connect(8000),
        world.connect(8000),
        world.connect(8001),
    );
    let (socket, _) = program.accept(&mut world, listener);
    let (others_socket, _) = other.accept(&mut world, others_listener);
    world.run_until(|world| world.sockets().counters().connections_accepted == 3);
    world.run_for_us(1_000);
    assert!(world.detach(program.app));
    world.run_until(|world| {
        [served, waiting]
            .iter()
            .all(|it| world.heard(*it).closed == Some(CloseReason::Reset))
    });
    for socket in [listener, socket] {
        assert!(program.flags(socket).has(Flags::DETACHED | Flags::CLOSED));
    }
    // The port is free at once, and others notice nothing.
    other.listener(&mut world, 8000);
    other.write_all(&mut world, others_socket, b"still there");
    world.run_until(|world| world.heard(others).received == b"still there");
    let handle = program.handle();
    let family = socket_channel::Family::V4;
    let refused = program.call(&mut world, |request| Command::Open {
        request,
        handle,
        family,
    });
    assert!(refused.is_err());
    program.exit(&mut world);
    other.exit(&mut world);
    world.assert_nothing_left();
}

/// As Linux has it in CLOSE-WAIT: what came before FIN is whole, and the stream ends with it.
#[test]
fn a_reset_behind_the_end_of_a_stream_leaves_the_end() {
    let (mut world, mut program, listener, stream) = silent_connection();
    let (socket, _) = program.accept(&mut world, listener);
    world.client_sends(stream, b"all", true);
    world.run_until(|_| program.flags(socket).has(Flags::FIN_RECEIVED));
    world.client_aborts(stream);
    world.run_until(|_| program.flags(socket).has(Flags::CLOSED));
    assert!(program.flags(socket).has(Flags::FIN_RECEIVED));
    assert_eq!(program.record(socket).take_error(), 32, "EPIPE");
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// What has no room in the FIFO by then is lost, and the stream does not end before it.
#[test]
fn a_reset_behind_an_end_that_was_not_reached_is_one() {
    // FIFO and receive buffer together hold it.
    let modes = MODES_DEFAULT;
    let (mut world, mut program, listener, stream) = silent_connection_in(modes);
    let (socket, _) = program.accept(&mut world, listener);
    world.client_sends(stream, &text(100_000, 3), true);
    world.run_until(|_| program.flags(socket).has(Flags::FIN_RECEIVED));
    world.client_aborts(stream);
    world.run_until(|_| program.flags(socket).has(Flags::CLOSED));
    assert!(!program.flags(socket).has(Flags::FIN_RECEIVED));
    assert_eq!(program.record(socket).take_error(), 104, "ECONNRESET");
    program.exit(&mut world);
    world.assert_nothing_left();
}
