//! What a record says besides bytes, and commands that are refused.

use host::app::CloseReason;
use rustix::io::Errno;
use socket_channel::attach::{MODE_EAGER_ACCEPT, MODE_SPLIT_TCP, MODES_DEFAULT};
use socket_channel::message::Side;
use socket_channel::{Command, Flags, HandleId, SocketId, SocketOption};

use cluster::Reply;

use crate::nodes::{Faults, Nodes};
use crate::program::{Program, text};

/// A program that has accepted a connection of a client that does not answer.
fn connected(nodes: &mut Nodes) -> (Program, SocketId, HandleId) {
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(nodes, 8000, 16).unwrap();
    nodes.world.connect(8000);
    let (socket, handle) = program.accept(nodes, listener);
    (program, socket, handle)
}

fn set(
    nodes: &mut Nodes,
    program: &mut Program,
    socket: SocketId,
    option: SocketOption,
    value: u64,
) {
    let answer = program.call(nodes, |request| Command::SetOption {
        request,
        socket,
        option,
        value,
    });
    answer.unwrap();
}

/// As `sw_send_zc` and a close(2) that lingers wait for it.
#[test]
fn a_program_that_waits_for_an_acknowledgment_hears_of_it() {
    for seed in 1..=3 {
        let faults = Faults {
            loss: 20,
            repeat: 20,
            hold: 20,
        };
        let mut nodes = Nodes::with_faults(seed, faults);
        let (mut program, socket, _) = connected(&mut nodes);
        let sent = text(150_000, 3);
        let mut written = 0;
        while written < sent.len() {
            let rest = &sent[written..];
            nodes.run_until(|_| {
                let count = program.write(socket, rest);
                written += count;
                count > 0
            });
            let record = program.record(socket);
            let before = record.edge();
            if record.await_acked(written as u64) {
                continue;
            }
            nodes.run_until(|_| record.acked_bytes() >= written as u64);
            assert!(
                record.edge() > before,
                "seed {seed}: its process would sleep"
            );
        }
        nodes.kill(program);
        nodes.assert_nothing_left();
    }
}

#[test]
fn options_of_a_connection_are_in_its_record() {
    let mut nodes = Nodes::new(1);
    let (mut program, socket, _) = connected(&mut nodes);
    let told = |program: &Program, option| program.record(socket).option(option);
    assert_eq!(told(&program, SocketOption::NoDelay), Some(0));
    set(
        &mut nodes,
        &mut program,
        socket,
        SocketOption::KeepIdleSeconds,
        77,
    );
    assert_eq!(told(&program, SocketOption::KeepIdleSeconds), Some(77));
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn a_program_fills_no_more_of_its_fifo_than_its_low_water_mark_says() {
    let mut nodes = Nodes::new(1);
    let (mut program, socket, _) = connected(&mut nodes);
    let (option, lowat) = (SocketOption::NotSentLowWaterBytes, 8192);
    set(&mut nodes, &mut program, socket, option, lowat);
    let sent = text(200_000, 3);
    let mut written = 0;
    // Half of the mark is for either side of the host stack's FIFO, and a write is not cut.
    let count = program.write(socket, &sent);
    assert!(count <= lowat as usize / 2 + 4096, "{count}");
    written += count;
    nodes.run_until(|_| {
        written += program.write(socket, &sent[written..]);
        written == sent.len()
    });
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    nodes.run_until(|nodes| nodes.world.heard(stream).received == sent);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn a_connection_that_does_not_linger_is_reset_at_once() {
    let mut nodes = Nodes::new(1);
    let (mut program, socket, handle) = connected(&mut nodes);
    set(&mut nodes, &mut program, socket, SocketOption::LingerMs, 0);
    let sent = text(60_000, 3);
    assert_eq!(program.write(socket, &sent), sent.len());
    program.close(handle);
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    assert_eq!(nodes.world.heard(stream).closed, Some(CloseReason::Reset));
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn commands_of_modes_that_are_refused_and_disconnect_say_so() {
    let mut nodes = Nodes::new(1);
    let (mut program, socket, _) = connected(&mut nodes);
    let handle = program.handle();
    let commands: [&dyn Fn(u32) -> Command<'static>; 6] = [
        &|request| Command::Disconnect { request, socket },
        &|request| Command::Look { request, socket },
        &|request| Command::Receive {
            request,
            socket,
            bytes: 1,
        },
        &|request| Command::Room {
            request,
            socket,
            bytes: 1,
        },
        &|request| Command::AcceptNext {
            request,
            socket,
            handle,
        },
        &|request| Command::GetAddress {
            request,
            socket,
            side: Side::Peer,
        },
    ];
    for command in commands {
        let answer = program.call(&mut nodes, command);
        let refused = Errno::OPNOTSUPP.raw_os_error() as u32;
        assert_eq!(answer, Err(refused), "{:?}", command(1));
    }
    // Nothing has become of the connection.
    assert_eq!(program.write(socket, b"whole"), 5);
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    nodes.run_until(|nodes| nodes.world.heard(stream).received == b"whole");
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn programs_that_ask_for_other_modes_are_refused() {
    let mut nodes = Nodes::new(1);
    for modes in [
        MODES_DEFAULT | MODE_SPLIT_TCP,
        MODES_DEFAULT & !MODE_EAGER_ACCEPT,
        0,
    ] {
        let program = nodes.attach_with(modes);
        let refused = Reply::Refused {
            app: program.app,
            channel: program.channel,
            errno: Errno::OPNOTSUPP,
        };
        nodes.run_until(|nodes| nodes.replies.contains(&refused));
    }
    assert_eq!(nodes.node.applications(), 0);
}

#[test]
fn flags_are_those_of_the_stack_node() {
    let mut nodes = Nodes::new(1);
    let mut program = nodes.program();
    let handle = program.handle();
    let bound = program.open(&mut nodes, handle).unwrap();
    assert!(!program.flags(bound).has(Flags::BOUND));
    program.bind(&mut nodes, bound, 8001).unwrap();
    assert!(program.flags(bound).has(Flags::BOUND));

    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let handle = program.handle();
    let own = program.open(&mut nodes, handle).unwrap();
    program.connect(&mut nodes, own, "127.0.0.1:8000").unwrap();
    let (accepted, _) = program.accept(&mut nodes, listener);
    for socket in [own, accepted] {
        nodes.run_until(|_| program.flags(socket).has(Flags::CONNECTED));
        assert!(program.flags(socket).has(Flags::LOOPED));
    }
    program.finish(own);
    nodes.run_until(|_| program.flags(accepted).has(Flags::FIN_RECEIVED));
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// `MSG_MORE`: what does not fill a segment waits for what follows.
#[test]
fn bytes_on_which_more_follows_wait_for_it() {
    let mut nodes = Nodes::new(1);
    let (mut program, socket, _) = connected(&mut nodes);
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    assert_eq!(program.write(socket, b"now "), 4);
    nodes.run_until(|nodes| nodes.world.heard(stream).received == b"now ");
    let record = program.record(socket);
    assert_eq!(record.write_with_more(b"head "), Ok(5));
    assert!(record.must_kick());
    program.send(&Command::Kick { socket });
    let until_us = nodes.world.now_us + 50_000;
    nodes.run_until(|nodes| nodes.world.now_us >= until_us);
    assert_eq!(nodes.world.heard(stream).received, b"now ");
    assert_eq!(program.write(socket, b"tail"), 4);
    nodes.run_until(|nodes| nodes.world.heard(stream).received == b"now head tail");
    nodes.kill(program);
    nodes.assert_nothing_left();
}
