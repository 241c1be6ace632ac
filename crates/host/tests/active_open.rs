//! Connections that an application opens: two host stacks on one link, in virtual time.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use contract::channel::in_memory;
use fakes::nic::FakeNic;
use host::app::{AppEvent, Application, CloseReason, ConnectError, Io, StreamId};
use host::{Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Offload, Port, Superpacket};

const SERVER: &str = "10.77.0.2";
const CLIENT: &str = "10.77.0.1";

/// Notes events, and sends back what it reads if it is to echo.
#[derive(Default)]
struct Recorder {
    events: Vec<(StreamId, AppEvent)>,
    received: Vec<u8>,
    echoes: bool,
    /// Closes when the peer has.
    closes: bool,
}

impl Application for Recorder {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        let mut buffer = [0; 4096];
        match event {
            AppEvent::Readable => {
                while let count @ 1.. = io.read(stream, &mut buffer) {
                    self.received.extend_from_slice(&buffer[..count]);
                    if self.echoes {
                        assert_eq!(io.write(stream, &buffer[..count]), count);
                    }
                }
            }
            AppEvent::PeerFinished if self.closes => io.shutdown(stream),
            _ => {}
        }
        self.events.push((stream, event));
    }
}

impl Recorder {
    fn closed(&self) -> Option<CloseReason> {
        self.events.iter().find_map(|(_, event)| match event {
            AppEvent::Closed { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    fn has(&self, wanted: &AppEvent) -> bool {
        self.events.iter().any(|(_, event)| event == wanted)
    }
}

struct Node {
    stack: Stack,
    port: MemoryPort,
    app: Recorder,
    nic: FakeNic,
}

impl Node {
    fn new(address: &str, listen_ports: Vec<u16>, port: MemoryPort, now_us: u64) -> Node {
        let config = StackConfig {
            ephemeral_ports: 50_000..=50_001,
            ..StackConfig::new(
                vec![(address.parse().unwrap(), 24)],
                listen_ports,
                [address.len() as u8; 16],
            )
        };
        let (host_channel, channel) = in_memory();
        Node {
            stack: Stack::new(config, Link::of(&port), vec![host_channel], now_us),
            port,
            app: Recorder::default(),
            nic: FakeNic::new(channel),
        }
    }
}

/// A client and a server.
struct Pair {
    now_us: u64,
    client: Node,
    server: Node,
    /// The next frames of the client that are lost.
    lost: usize,
    /// No frame of the server reaches the client.
    is_cut: bool,
}

impl Pair {
    fn new() -> Pair {
        let now_us = 1_000_000;
        let (client, server) = pair(memory::Link::default());
        let mut pair = Pair {
            now_us,
            client: Node::new(CLIENT, vec![], client, now_us),
            server: Node::new(SERVER, vec![80], server, now_us),
            lost: 0,
            is_cut: false,
        };
        (pair.server.app.echoes, pair.server.app.closes) = (true, true);
        pair
    }

    fn connect(&mut self, to: &str) -> Result<StreamId, ConnectError> {
        let to: SocketAddr = to.parse().unwrap();
        self.client.stack.connect(self.now_us, None, to)
    }

    fn step(&mut self) {
        self.now_us += 100;
        let now_us = self.now_us;
        for is_client in [true, false] {
            let node = if is_client {
                &mut self.client
            } else {
                &mut self.server
            };
            let (stack, lost, is_cut) = (&mut node.stack, &mut self.lost, self.is_cut);
            node.port
                .receive(usize::MAX, &mut |frame| {
                    if is_client && is_cut {
                        return;
                    }
                    if !is_client && *lost > 0 {
                        *lost -= 1;
                        return;
                    }
                    stack.on_frame(now_us, frame);
                })
                .unwrap();
            node.stack.on_channels(now_us, usize::MAX).unwrap();
            node.stack.on_time(now_us);
            node.stack.serve(now_us, &mut node.port, &mut node.app);
            node.nic.take();
            while let Some(work) = node.nic.work.pop_front() {
                for frame in node.nic.carry_out(work, now_us) {
                    let packet = Superpacket {
                        header: &frame,
                        payload: &[],
                        offload: Offload::None,
                    };
                    node.port.send(&packet).unwrap();
                }
            }
        }
    }

    /// Steps until `done`, for at most five minutes of virtual time.
    fn run_until(&mut self, done: impl Fn(&Pair) -> bool) {
        for _ in 0..3_000_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("{:?}, {:?}", self.client.app.events, self.server.app.events);
    }

    /// Opens a connection, has a text echoed, and closes: the client first.
    fn exchange(&mut self) {
        let stream = self.connect("10.77.0.2:80").unwrap();
        let text: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
        let before = self.client.app.received.len();
        self.act(stream, |io, stream| {
            assert_eq!(io.write(stream, &text), text.len());
            io.shutdown(stream);
        });
        self.client.app.events.clear();
        self.run_until(|pair| pair.client.app.closed().is_some());
        assert_eq!(self.client.app.closed(), Some(CloseReason::Finished));
        assert!(self.client.app.received[before..] == text, "every byte");
        assert!(self.client.app.has(&AppEvent::Connected));
    }

    /// The client's application does something of its own accord.
    fn act(&mut self, stream: StreamId, act: impl FnOnce(&mut dyn Io, StreamId)) {
        struct Once<F>(Option<F>, StreamId);
        impl<F: FnOnce(&mut dyn Io, StreamId)> Application for Once<F> {
            fn on_event(&mut self, _: &mut dyn Io, _: StreamId, event: AppEvent) {
                panic!("{event:?} before anything was said");
            }
            fn on_wake(&mut self, io: &mut dyn Io, _: u64) {
                self.0.take().expect("once")(io, self.1);
            }
        }
        let mut once = Once(Some(act), stream);
        self.client.stack.wake(self.now_us, &mut once);
    }
}

#[test]
fn a_connection_that_was_opened_carries_text_both_ways_and_ends() {
    let mut pair = Pair::new();
    pair.exchange();
    let counters = pair.client.stack.counters();
    assert_eq!(
        (counters.connections_opened, counters.connections_accepted),
        (1, 0)
    );
    assert_eq!(pair.server.stack.counters().connections_accepted, 1);
}

#[test]
fn what_is_lost_of_the_handshake_is_sent_again() {
    for lost in 1..6 {
        let mut pair = Pair::new();
        // ARP has its own retransmissions, and gives up earlier.
        pair.exchange();
        pair.lost = lost;
        pair.exchange();
    }
}

#[test]
fn a_port_that_no_server_has_refuses_and_an_address_without_a_machine_is_unreachable() {
    let mut pair = Pair::new();
    pair.connect("10.77.0.2:81").unwrap();
    pair.run_until(|pair| pair.client.app.closed().is_some());
    assert_eq!(pair.client.app.closed(), Some(CloseReason::Refused));
    assert!(!pair.client.app.has(&AppEvent::Connected));

    // On the link, and behind a gateway that there is not.
    for nowhere in ["10.77.0.9:80", "192.0.2.1:80"] {
        pair.client.app.events.clear();
        let begun_us = pair.now_us;
        pair.connect(nowhere).unwrap();
        pair.run_until(|pair| pair.client.app.closed().is_some());
        assert_eq!(pair.client.app.closed(), Some(CloseReason::Unreachable));
        assert!(
            pair.now_us - begun_us < 10_000_000,
            "as soon as ARP gives up"
        );
    }
    assert_eq!(pair.client.stack.connections(), 0);
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let mut pair = Pair::new();
    // The neighbour is known.
    pair.exchange();
    pair.is_cut = true;
    pair.client.app.events.clear();
    pair.connect("10.77.0.2:80").unwrap();
    pair.run_until(|pair| pair.client.app.closed().is_some());
    assert!(matches!(
        pair.client.app.closed(),
        Some(CloseReason::TimedOut | CloseReason::Unreachable)
    ));
}

#[test]
fn ports_are_used_once_to_each_peer_and_again_after_time_wait() {
    let mut pair = Pair::new();
    let server = "10.77.0.2:80";
    for _ in 0..2 {
        pair.connect(server).unwrap();
    }
    assert_eq!(pair.connect(server), Err(ConnectError::NoPort));
    // To another peer, the same ports are free.
    pair.connect("10.77.0.2:81").unwrap();
    pair.run_until(|pair| {
        let connected = |(_, event): &&(StreamId, AppEvent)| *event == AppEvent::Connected;
        pair.client.app.events.iter().filter(connected).count() == 2
    });

    // This side closes first, so that TIME-WAIT is here: for a second nothing may follow, then the
    // timestamps tell both apart.
    let mut pair = Pair::new();
    pair.exchange();
    pair.exchange();
    assert_eq!(pair.connect(server), Err(ConnectError::NoPort));
    let until_us = pair.now_us + 1_100_000;
    pair.run_until(|pair| pair.now_us >= until_us);
    pair.exchange();
}

#[test]
fn addresses_and_ports_that_are_named_are_used_or_refused() {
    let mut pair = Pair::new();
    let server: SocketAddr = "10.77.0.2:80".parse().unwrap();
    let mut connect = |local: &str, to: SocketAddr| {
        let local = local.parse().unwrap();
        pair.client.stack.connect(pair.now_us, Some(local), to)
    };
    assert!(connect("10.77.0.1:4000", server).is_ok());
    assert_eq!(
        connect("0.0.0.0:4000", server),
        Err(ConnectError::PortInUse)
    );
    assert!(connect("0.0.0.0:4001", server).is_ok());
    assert_eq!(connect("10.77.0.3:0", server), Err(ConnectError::NoAddress));
    assert_eq!(connect("[::]:0", server), Err(ConnectError::NoAddress));
    assert_eq!(pair.connect("[fd77::2]:80"), Err(ConnectError::NoAddress));
    let info: Vec<_> = pair
        .client
        .stack
        .connections_from(0, pair.now_us)
        .filter_map(|(_, info)| info)
        .map(|info| info.local)
        .collect();
    let named = ["10.77.0.1:4000", "10.77.0.1:4001"].map(|text| text.parse().unwrap());
    assert_eq!(info, named);
}
