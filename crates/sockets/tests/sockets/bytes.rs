//! Bytes, both ways.

use host::app::CloseReason;
use socket_channel::Flags;

use crate::program::{Program, text};
use crate::world::World;

#[test]
fn every_byte_of_an_echo_comes_back() {
    for loss in [0, 20] {
        let mut world = World::new();
        world.loss = loss;
        let mut program = Program::new(&mut world, 1);
        let (listener, _) = program.listener(&mut world, 8000);
        world.clients.echoes = false;
        let stream = world.connect(8000);
        let sent = text(300_000, 1);
        world.client_sends(stream, &sent, true);
        let (socket, handle) = program.accept(&mut world, listener);
        let record = program.record(socket);
        assert_eq!(record.local().unwrap().to_string(), "10.77.0.2:8000");
        assert_eq!(record.peer().unwrap().ip().to_string(), "10.77.0.1");
        let mut waiting = Vec::new();
        world.run_until(|world| {
            program.hear();
            waiting.extend(program.read(socket));
            let count = program.write(socket, &waiting);
            waiting.drain(..count);
            world.heard(stream).received.len() == sent.len()
        });
        program.shutdown(socket);
        world.run_until(|world| world.heard(stream).closed.is_some());
        assert!(world.heard(stream).received == sent, "every byte");
        assert_eq!(world.heard(stream).closed, Some(CloseReason::Finished));
        program.close(handle);
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}

#[test]
fn connections_that_a_program_opens_carry_bytes_both_ways() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    program.connect(&mut world, socket, "10.77.0.1:7").unwrap();
    assert!(program.flags(socket).has(Flags::CONNECTING));
    let sent = text(200_000, 2);
    program.write_all(&mut world, socket, &sent[..1000]);
    world.run_until(|_| program.flags(socket).has(Flags::CONNECTED));
    assert!(!program.flags(socket).has(Flags::CONNECTING));
    let mut received = Vec::new();
    let mut written = 1000;
    world.run_until(|_| {
        program.hear();
        written += program.write(socket, &sent[written..]);
        received.extend(program.read(socket));
        received.len() == sent.len()
    });
    assert!(received == sent, "every byte");
    program.shutdown(socket);
    assert!(program.read_to_end(&mut world, socket).is_empty());
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_slow_reader_closes_the_window_and_loses_nothing() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    world.clients.echoes = false;
    let stream = world.connect(8000);
    let sent = text(3_000_000, 3);
    world.client_sends(stream, &sent, true);
    let (socket, _) = program.accept(&mut world, listener);
    // Both directions end while much is still unread: what TCP had is not lost with it.
    program.shutdown(socket);
    world.run_for_us(5_000_000);
    let received = world.sockets().counters().received_bytes;
    assert!(
        received <= 64 << 10,
        "{received} bytes for a FIFO of 64 KiB"
    );
    assert!(!program.flags(socket).has(Flags::PEER_FINISHED));
    assert!(
        program.read_to_end(&mut world, socket) == sent,
        "every byte"
    );
    world.run_until(|_| program.flags(socket).has(Flags::CLOSED));
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Finished));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_client_that_reads_nothing_holds_a_writer_back() {
    let mut world = World::new();
    world.clients.echoes = false;
    world.clients.is_stalled = true;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    let sent = text(20_000_000, 4);
    let mut written = 0;
    for _ in 0..200_000 {
        program.hear();
        written += program.write(socket, &sent[written..]);
        world.step();
    }
    assert!(
        written < 4 << 20,
        "{written} bytes for a client that takes none"
    );
    world.resume_clients();
    program.write_all(&mut world, socket, &sent[written..]);
    program.shutdown(socket);
    world.run_until(|world| world.heard(stream).has_finished);
    assert!(world.heard(stream).received == sent, "every byte");
    program.exit(&mut world);
    world.assert_nothing_left();
}
