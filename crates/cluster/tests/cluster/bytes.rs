//! Bytes of connections, over links that lose, repeat and hold back frames.

use socket_channel::{Flags, Limits, SocketId};

use crate::nodes::{Faults, Nodes};
use crate::program::{Program, text};
use crate::world::SERVER;

const FAULTS: Faults = Faults {
    loss: 20,
    repeat: 20,
    hold: 20,
};

/// One connection of an echo server.
struct Echo {
    socket: SocketId,
    waiting: Vec<u8>,
    has_finished: bool,
}

impl Echo {
    fn turn(&mut self, program: &mut Program) {
        let is_finished = program.flags(self.socket).has(Flags::PEER_FINISHED);
        if self.waiting.len() < 20_000 {
            let bytes = program.read(self.socket);
            self.waiting.extend_from_slice(&bytes);
            let is_all = is_finished && bytes.is_empty() && self.waiting.is_empty();
            if is_all && !self.has_finished {
                self.has_finished = true;
                program.finish(self.socket);
            }
        }
        let taken = program.write(self.socket, &self.waiting);
        self.waiting.drain(..taken);
    }
}

fn echo(mut nodes: Nodes, clients: usize, bytes: usize) {
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, listening) = program.listener(&mut nodes, 8000, 16).unwrap();
    let mut streams = Vec::new();
    for seed in 0..clients {
        let stream = nodes.world.connect(8000);
        let sent = text(bytes + seed * 777, seed as u8);
        nodes.world.client_sends(stream, &sent, true);
        streams.push((stream, sent));
    }
    let mut echoes = Vec::new();
    let mut handles = Vec::new();
    nodes.run_until(|nodes| {
        program.hear();
        if let Some((socket, handle)) = program.try_accept(listener) {
            handles.push(handle);
            echoes.push(Echo {
                socket,
                waiting: Vec::new(),
                has_finished: false,
            });
        }
        echoes.iter_mut().for_each(|echo| echo.turn(&mut program));
        let finished = |(stream, _): &(_, _)| nodes.world.heard(*stream).has_finished;
        streams.iter().all(finished)
    });
    for (stream, sent) in &streams {
        assert!(
            nodes.world.heard(*stream).received == *sent,
            "seed {}",
            nodes.seed
        );
    }
    handles.into_iter().for_each(|handle| program.close(handle));
    program.close(listening);
    nodes.run_until(|nodes| nodes.node.sockets() == 0 && nodes.gate.sockets() == 0);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn an_echo_server_has_every_byte() {
    echo(Nodes::new(1), 3, 300_000);
}

#[test]
fn an_echo_server_has_every_byte_over_a_bad_link_and_lossy_clients() {
    for seed in 1..=4 {
        let mut nodes = Nodes::with_faults(seed, FAULTS);
        nodes.world.loss = 100;
        echo(nodes, 4, 100_000);
    }
}

#[test]
fn more_clients_than_a_backlog_are_all_served() {
    echo(Nodes::new(7), 60, 2_000);
}

#[test]
fn a_connection_that_a_program_opens_has_every_byte() {
    let mut nodes = Nodes::with_faults(11, FAULTS);
    let mut program = nodes.program();
    let handle = program.handle();
    let socket = program.open(&mut nodes, handle).unwrap();
    program.connect(&mut nodes, socket, "10.77.0.1:7").unwrap();
    nodes.run_until(|_| program.flags(socket).has(Flags::CONNECTED));
    let record = program.record(socket);
    assert_eq!(record.peer(), "10.77.0.1:7".parse().ok());
    assert_eq!(record.local().map(|it| it.ip()), SERVER.parse().ok());
    let sent = text(500_000, 3);
    let (mut written, mut received) = (0, Vec::new());
    let mut has_finished = false;
    nodes.run_until(|_| {
        program.hear();
        written += program.write(socket, &sent[written..]);
        if written == sent.len() && !has_finished {
            has_finished = true;
            program.finish(socket);
        }
        let bytes = program.read(socket);
        received.extend_from_slice(&bytes);
        bytes.is_empty() && program.flags(socket).has(Flags::PEER_FINISHED)
    });
    assert!(received == sent);
    program.close(handle);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

#[test]
fn a_port_that_nothing_listens_at_refuses() {
    let mut nodes = Nodes::new(1);
    let mut program = nodes.program();
    let handle = program.handle();
    let socket = program.open(&mut nodes, handle).unwrap();
    program.connect(&mut nodes, socket, "10.77.0.1:9").unwrap();
    nodes.run_until(|_| program.flags(socket).has(Flags::FAILED));
    let refused = rustix::io::Errno::CONNREFUSED.raw_os_error() as u32;
    assert_eq!(program.record(socket).take_error(), refused);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// A program that does not read holds up its own connection, and no other.
#[test]
fn a_program_that_does_not_read_stops_its_peer_and_nothing_else() {
    let mut nodes = Nodes::new(5);
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let stalled = nodes.world.connect(8000);
    let sent = text(2_000_000, 1);
    nodes.world.client_sends(stalled, &sent, true);
    let (stalled_socket, _) = program.accept(&mut nodes, listener);
    let until_us = nodes.world.now_us + 2_000_000;
    nodes.run_until(|nodes| nodes.world.now_us >= until_us);
    let waiting = program.record(stalled_socket).rx_waiting_bytes();
    assert_eq!(waiting, 64 << 10, "its FIFO is full");

    let stream = nodes.world.connect(8000);
    nodes.world.client_sends(stream, b"GET", true);
    let (socket, _) = program.accept(&mut nodes, listener);
    nodes.run_until(|_| program.read(socket) == b"GET");

    let mut received = Vec::new();
    nodes.run_until(|_| {
        program.hear();
        let bytes = program.read(stalled_socket);
        received.extend_from_slice(&bytes);
        bytes.is_empty() && program.flags(stalled_socket).has(Flags::PEER_FINISHED)
    });
    assert!(received == sent);
    nodes.kill(program);
    nodes.assert_nothing_left();
}

/// As where many sockets share the memory of a program.
#[test]
fn a_program_whose_fifos_are_smaller_than_the_stack_nodes_has_every_byte() {
    let mut nodes = Nodes::new(1);
    nodes.node_limits = Limits {
        sockets_max: 64,
        segment_bytes: 512 << 10,
    };
    nodes.world.clients.echoes = false;
    let mut program = nodes.program();
    let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
    let stream = nodes.world.connect(8000);
    let sent = text(300_000, 5);
    nodes.world.client_sends(stream, &sent, true);
    let (socket, _) = program.accept(&mut nodes, listener);
    assert!(program.record(socket).rx_bytes() < 16 << 10);
    let mut received = Vec::new();
    nodes.run_until(|_| {
        program.hear();
        let bytes = program.read(socket);
        received.extend_from_slice(&bytes);
        bytes.is_empty() && program.flags(socket).has(Flags::PEER_FINISHED)
    });
    assert!(received == sent);
    nodes.kill(program);
    nodes.assert_nothing_left();
}
