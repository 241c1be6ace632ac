//! How programs, sessions and nodes end.

use std::sync::atomic::Ordering::Relaxed;

use cluster::message::{Body, Message};
use cluster::{Gate, Reply};
use host::app::CloseReason;
use rustix::io::Errno;
use socket_channel::message::BindFlags;
use socket_channel::{Command, Flags, HandleId, Limits};
use sockets::{Grant, Rules};

use crate::nodes::{Asked, Nodes};
use crate::program::{ACCEPT_HEAD, Program, text};

fn number(errno: Errno) -> u32 {
    errno.raw_os_error() as u32
}

#[test]
fn what_a_program_has_queued_goes_out_though_it_is_killed() {
    let mut nodes = Nodes::new(1);
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let stream = nodes.world.connect(8000);
    let (socket, _) = program.accept(&mut nodes, listener);
    let sent = text(60_000, 1);
    assert_eq!(program.write(socket, &sent), sent.len());
    nodes.kill(program);
    nodes.run_until(|nodes| nodes.world.heard(stream).has_finished);
    assert!(nodes.world.heard(stream).received == sent);
    let client = nodes.world.connect(8000);
    nodes.run_until(|nodes| nodes.world.heard(client).closed.is_some());
    nodes.assert_nothing_left();
}

#[test]
fn what_a_program_leaves_unread_resets_its_peer() {
    let mut nodes = Nodes::new(1);
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let stream = nodes.world.connect(8000);
    nodes.world.client_sends(stream, b"unread", false);
    let (socket, handle) = program.accept(&mut nodes, listener);
    nodes.run_until(|_| program.record(socket).rx_waiting_bytes() == 6);
    program.close(handle);
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    assert_eq!(nodes.world.heard(stream).closed, Some(CloseReason::Reset));
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn a_port_is_free_once_its_listener_is_closed_and_waiting_connections_are_reset() {
    let mut nodes = Nodes::new(1);
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (_, handle) = program.listener(&mut nodes, 8000, 16).unwrap();
    let in_use = program.listener(&mut nodes, 8000, 16);
    assert_eq!(in_use.err(), Some(number(Errno::ADDRINUSE)));
    let stream = nodes.world.connect(8000);
    nodes.run_until(|nodes| nodes.world.heard(stream).is_connected);
    program.close(handle);
    program.listener(&mut nodes, 8000, 16).unwrap();
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    assert_eq!(nodes.world.heard(stream).closed, Some(CloseReason::Reset));
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn a_connection_that_was_taken_and_not_adopted_is_reset_when_its_process_has_ended() {
    let mut nodes = Nodes::new(1);
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let stream = nodes.world.connect(8000);
    nodes.run_until(|_| matches!(program.record(listener).accept(), Ok(Some(_))));
    nodes.kill(program);
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    nodes.assert_nothing_left();
}

/// A program with a listener and a connection, and a client's stream.
fn connected(nodes: &mut Nodes) -> (crate::program::Program, [socket_channel::SocketId; 2]) {
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(nodes, 8000, 16).unwrap();
    nodes.world.connect(8000);
    let (socket, _) = program.accept(nodes, listener);
    (program, [listener, socket])
}

#[test]
fn a_session_that_is_lost_resets_all_and_another_serves_new_programs() {
    let mut nodes = Nodes::new(1);
    let (mut program, sockets) = connected(&mut nodes);
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    nodes.cut();
    nodes.run_until(|nodes| !nodes.has_session());
    for socket in sockets {
        assert!(program.flags(socket).has(Flags::FAILED | Flags::DETACHED));
        let errno = program.record(socket).take_error();
        assert_eq!(errno, number(Errno::CONNRESET));
    }
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    assert_eq!(nodes.world.heard(stream).closed, Some(CloseReason::Reset));
    let handle = program.handle();
    let opened = program.open(&mut nodes, handle);
    assert_eq!(opened.err(), Some(number(Errno::SHUTDOWN)));

    let early = nodes.attach();
    let (app, channel) = (early.app, early.channel);
    let refused = Reply::Refused {
        app,
        channel,
        errno: Errno::AGAIN,
    };
    nodes.step();
    let replies = nodes.node.take_replies();
    assert!(replies.contains(&refused) || nodes.replies.contains(&refused));

    nodes.begin_session();
    let mut next = nodes.program();
    next.listener(&mut nodes, 8000, 16).unwrap();
    nodes.kill(program);
    nodes.kill(next);
    nodes.assert_nothing_left();
}

#[test]
fn a_host_stack_that_ends_resets_all() {
    let mut nodes = Nodes::new(1);
    let (mut program, sockets) = connected(&mut nodes);
    nodes.end_host();
    nodes.run_until(|_| {
        program
            .flags(sockets[1])
            .has(Flags::FAILED | Flags::DETACHED)
    });
    let handle = program.handle();
    let opened = program.open(&mut nodes, handle);
    assert_eq!(opened.err(), Some(number(Errno::SHUTDOWN)));
    nodes.kill(program);
    nodes.run_until(|nodes| nodes.node.applications() == 0);
}

#[test]
fn what_the_stack_node_refuses_is_refused() {
    let mut nodes = Nodes::new(1);
    nodes.refuses = Some(number(Errno::ACCESS));
    let program = nodes.attach();
    let (app, channel) = (program.app, program.channel);
    let refused = Reply::Refused {
        app,
        channel,
        errno: Errno::ACCESS,
    };
    nodes.run_until(|nodes| nodes.replies.contains(&refused));
    assert_eq!(nodes.node.applications(), 0);
}

#[test]
fn rules_of_the_stack_node_count() {
    let mut nodes = Nodes::new(1);
    nodes.grant = Grant {
        rules: Rules {
            ports: vec![8080..=8080],
            ..Rules::default()
        },
        ..Grant::default()
    };
    let mut program = nodes.program();
    let denied = program.listener(&mut nodes, 8000, 16);
    assert_eq!(denied.err(), Some(number(Errno::ACCESS)));
    program.listener(&mut nodes, 8080, 16).unwrap();
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// Its own sockets suffer, and no other's.
#[test]
fn a_program_that_writes_nonsense_is_reset() {
    let mut nodes = Nodes::new(1);
    let (mut bad, sockets) = connected(&mut nodes);
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    let mut good = nodes.program();
    good.listener(&mut nodes, 8001, 16).unwrap();
    // More than was written, and marks that nothing has counted.
    let socket = sockets[1];
    bad.send(&Command::SendFile {
        socket,
        file: sockets[0],
        offset: 0,
        len: 1 << 60,
        mark: 77,
        at: u64::MAX,
    });
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    assert!(bad.flags(socket).has(Flags::FAILED));
    bad.listener(&mut nodes, 8002, 16).unwrap();
    let handle = good.handle();
    good.open(&mut nodes, handle).unwrap();
    nodes.kill(bad);
    nodes.kill(good);
    nodes.assert_nothing_left();
}

/// Nothing tells which connections its processes have taken: all that wait are reset.
#[test]
fn a_listener_whose_queue_makes_no_sense_leaves_nothing() {
    for closes in [false, true] {
        let mut nodes = Nodes::new(1);
        nodes.world.clients.echoes = false;
        let mut program = nodes.program();
        let (listener, handle) = program.listener(&mut nodes, 8000, 16).unwrap();
        let streams = [(); 3].map(|()| nodes.world.connect(8000));
        nodes.run_until(|_| program.record(listener).look().unwrap().waiting == 3);
        program.word(listener, ACCEPT_HEAD).store(1000, Relaxed);
        if closes {
            program.close(handle);
        } else {
            program.send(&Command::Kick { socket: listener });
        }
        for stream in streams {
            nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
        }
        nodes.kill(program);
        nodes.assert_nothing_left();
    }
}

#[test]
fn an_application_with_the_number_of_one_that_leaves_is_to_try_again() {
    let mut nodes = Nodes::new(1);
    let (program, _) = connected(&mut nodes);
    let app = program.app;
    nodes.gate.end_session();
    assert!(nodes.gate.is_leaving());
    let attach = Message {
        app: app.0,
        body: Body::Attach { modes: 30 },
    };
    nodes.gate.on_message(&attach.encode());
    let answer = nodes.gate.next_message().unwrap();
    let errno = number(Errno::AGAIN);
    let body = Body::Attached { errno, modes: 0 };
    assert_eq!(Message::decode(&answer), Ok(Message { app: app.0, body }));
    // The one that leaves is not cut off by it.
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    nodes.run_until(|nodes| !nodes.gate.is_leaving());
    nodes.gate.on_message(&attach.encode());
    assert_eq!(nodes.gate.next_message(), None);
}

#[test]
fn what_another_node_asks_does_not_pile_up_at_the_gate() {
    let mut gate = Gate::new(Asked::default());
    let body = Body::Attach { modes: 30 };
    let attach = Message { app: 1, body }.encode();
    let mut taken = 0;
    while gate.has_room() && taken < 100_000 {
        gate.on_message(&attach);
        taken += 1;
    }
    assert!(taken < 1_000, "each but the first has been refused");
    while gate.next_message().is_some() {}
    assert!(gate.has_room());
}

/// A peer that takes nothing, and then resets the connection.
#[test]
fn what_a_program_has_left_is_dropped_once_its_peer_is_gone() {
    let mut nodes = Nodes::new(1);
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let stream = nodes.world.connect(8000);
    let (socket, handle) = program.accept(&mut nodes, listener);
    nodes.world.clients.is_stalled = true;
    let until_us = nodes.world.now_us + 1_000_000;
    nodes.run_until(|nodes| {
        program.write(socket, &text(10_000, 1));
        nodes.world.now_us >= until_us
    });
    program.close(handle);
    let until_us = nodes.world.now_us + 100_000;
    nodes.run_until(|nodes| nodes.world.now_us >= until_us);
    assert_eq!(nodes.node.sockets(), 2, "there is more than the peer takes");
    nodes.world.client_aborts(stream);
    let until_us = nodes.world.now_us + 1_000_000;
    nodes.run_until(|nodes| nodes.node.sockets() == 1);
    assert!(nodes.world.now_us < until_us);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// As the kernel does with bytes that come after close(2).
#[test]
fn bytes_that_are_on_their_way_to_a_program_that_closes_reset_its_peer() {
    let mut nodes = Nodes::new(1);
    let (mut program, _) = connected(&mut nodes);
    let stream = *nodes.world.clients.heard.keys().next().unwrap();
    nodes.hold_frames_to_node(true);
    nodes.world.client_sends(stream, b"unread", false);
    let until_us = nodes.world.now_us + 100_000;
    nodes.run_until(|nodes| nodes.world.now_us >= until_us);
    program.close(HandleId(1));
    nodes.run_until(|nodes| nodes.world.heard(stream).closed.is_some());
    assert_eq!(nodes.world.heard(stream).closed, Some(CloseReason::Reset));
    nodes.hold_frames_to_node(false);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// The broker of the stack node had none just then.
#[test]
fn a_shortage_of_handles_does_not_last() {
    let mut nodes = Nodes::new(1);
    nodes.is_short = true;
    let mut program = nodes.program();
    let handle = program.handle();
    let opened = program.open(&mut nodes, handle);
    assert_eq!(opened.err(), Some(number(Errno::MFILE)));
    nodes.is_short = false;
    let until_us = nodes.world.now_us + 200_000;
    nodes.run_until(|nodes| nodes.world.now_us >= until_us);
    program.open(&mut nodes, handle).unwrap();
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// To the stack node, both are of the gate's user.
#[test]
fn users_of_a_node_share_no_port() {
    let mut nodes = Nodes::new(1);
    let bind = |nodes: &mut Nodes, program: &mut Program| {
        let handle = program.handle();
        let socket = program.open(nodes, handle).unwrap();
        let flags = BindFlags::REUSE_PORT;
        (program.bind_with(nodes, socket, 8000, flags), handle)
    };
    let mut programs = [1000, 1000, 1001].map(|uid| nodes.program_of(uid));
    let in_use = Err(number(Errno::ADDRINUSE));
    let [one, same, other] = &mut programs;
    let (bound, handle) = bind(&mut nodes, one);
    assert_eq!(bound, Ok(()));
    let (bound, same_handle) = bind(&mut nodes, same);
    assert_eq!(bound, Ok(()));
    assert_eq!(bind(&mut nodes, other).0, in_use);
    one.close(handle);
    assert_eq!(bind(&mut nodes, other).0, in_use);
    same.close(same_handle);
    nodes.run_until(|nodes| nodes.gate.sockets() == 2);
    assert_eq!(bind(&mut nodes, other).0, Ok(()));
    assert_eq!(bind(&mut nodes, one).0, in_use);
    for program in programs {
        nodes.kill(program);
    }
    nodes.assert_nothing_left();
}

/// Its answers have filled a ring that is read no more.
#[test]
fn a_program_that_was_killed_with_unread_answers_leaves_nothing() {
    let mut nodes = Nodes::new(1);
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let mut request = 1_000_000;
    let until_us = nodes.world.now_us + 1_000_000;
    nodes.run_until(|nodes| {
        while program.end.has_room() {
            request += 1;
            let socket = listener;
            program
                .end
                .send(&Command::GetInfo { request, socket })
                .unwrap();
        }
        program.end.flush();
        nodes.world.now_us >= until_us
    });
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// Connections for which this node has no memory are reset, and do not wait.
#[test]
fn a_connection_without_memory_is_not_accepted_and_takes_no_place() {
    let mut nodes = Nodes::new(1);
    // 12 KiB for FIFOs, of 512 bytes each.
    nodes.node_limits = Limits {
        sockets_max: 64,
        segment_bytes: 48 << 10,
    };
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    for _ in 0..4 {
        for _ in 0..14 {
            nodes.world.connect(8000);
        }
        let until_us = nodes.world.now_us + 500_000;
        nodes.run_until(|nodes| nodes.world.now_us >= until_us);
        let mut accepted = Vec::new();
        while let Some((socket, handle)) = program.try_accept(listener) {
            assert!(program.record(socket).flags().is_ok(), "it is there");
            accepted.push(handle);
        }
        assert!((8..14).contains(&accepted.len()), "{}", accepted.len());
        for handle in accepted {
            program.close(handle);
        }
        nodes.run_until(|nodes| nodes.node.sockets() == 1);
    }
    nodes.kill(program);
    nodes.assert_nothing_left();
}
