//! What an application hears of acknowledgments.

use host::app::CloseReason;
use socket_channel::Flags;

use crate::program::{Program, text};
use crate::world::World;

#[test]
fn nothing_counts_as_acknowledged_before_the_peer_has_it_and_all_does_in_the_end() {
    for loss in [0, 7, 20] {
        let mut world = World::new();
        world.loss = loss;
        world.clients.echoes = false;
        let mut program = Program::new(&mut world, 1);
        let (listener, _) = program.listener(&mut world, 8000);
        let stream = world.connect(8000);
        let (socket, handle) = program.accept(&mut world, listener);
        let sent = text(2_000_000, 11);
        let mut written = 0;
        let mut before = 0;
        let mut steps = 0;
        world.run_until(|world| {
            program.hear();
            written += program.write(socket, &sent[written..]);
            let acknowledged = program.record(socket).acked_bytes();
            assert!(before <= acknowledged, "it only grows");
            assert!(acknowledged <= world.heard(stream).received.len() as u64);
            // The stream never drains, and yet there is news of it.
            steps += u32::from(acknowledged > before && written < sent.len());
            before = acknowledged;
            acknowledged == sent.len() as u64
        });
        assert!(steps > 10, "{steps} steps");
        assert!(world.heard(stream).received == sent, "every byte");
        program.close(handle);
        program.exit(&mut world);
        world.run_until(|world| world.sockets().applications().next().is_none());
    }
}

#[test]
fn an_alarm_wakes_who_waits_for_an_acknowledgment() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let _stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    for round in 1..=20u8 {
        let position = 5000 * u64::from(round);
        program.write_all(&mut world, socket, &text(5000, round));
        loop {
            let edge = program.record(socket).edge();
            let (record, channel) = (program.record(socket), program.channel);
            if record.await_acked(position) {
                break;
            }
            if record.want(channel, edge) {
                // From here on nothing but the hint makes it look again.
                program.hints.clear();
                world.run_until(|_| {
                    program.hear();
                    program.hints.contains(&socket)
                });
            }
        }
    }
    program.exit(&mut world);
}

#[test]
fn the_last_acknowledgment_is_seen_before_the_end() {
    for is_reset in [false, true] {
        let mut world = World::new();
        world.clients.echoes = false;
        let mut program = Program::new(&mut world, 1);
        let (listener, _) = program.listener(&mut world, 8000);
        let stream = world.connect(8000);
        let (socket, _) = program.accept(&mut world, listener);
        program.write_all(&mut world, socket, &text(30_000, 1));
        if is_reset {
            world.run_until(|world| world.heard(stream).received.len() == 30_000);
            world.run_for_us(1_000_000);
            world.client_aborts(stream);
        } else {
            program.shutdown(socket);
            world.client_sends(stream, b"", true);
        }
        world.run_until(|_| program.flags(socket).has(Flags::CLOSED));
        assert_eq!(program.record(socket).acked_bytes(), 30_000);
        assert_eq!(program.flags(socket).has(Flags::FAILED), is_reset);
        if !is_reset {
            let closed = Some(CloseReason::Finished);
            world.run_until(|world| world.heard(stream).closed == closed);
        }
        program.exit(&mut world);
    }
}
