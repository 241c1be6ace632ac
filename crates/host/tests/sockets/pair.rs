//! Two host stacks on one link, in virtual time, with applications that note what they hear.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use contract::channel::in_memory;
use fakes::nic::FakeNic;
use host::app::{
    AppEvent, Application, CloseReason, ConnectError, FileHandle, FileMeta, Io, Owner, StreamId,
};
use host::{Absent, Applications, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Offload, Port, Superpacket};
use wire::{ethernet, ip};

const SERVER: &str = "10.77.0.2";
const CLIENT: &str = "10.77.0.1";

/// Notes events, and sends back what it reads if it is to echo.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) events: Vec<(StreamId, AppEvent)>,
    pub(crate) looked_up: Vec<(FileHandle, Result<FileMeta, u16>)>,
    pub(crate) received: Vec<u8>,
    pub(crate) echoes: bool,
    /// Closes when the peer has.
    pub(crate) closes: bool,
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

    fn on_looked_up(&mut self, _: &mut dyn Io, file: FileHandle, found: Result<FileMeta, u16>) {
        self.looked_up.push((file, found));
    }
}

impl Recorder {
    pub(crate) fn closed(&self) -> Option<CloseReason> {
        self.events.iter().find_map(|(_, event)| match event {
            AppEvent::Closed { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    pub(crate) fn has(&self, wanted: &AppEvent) -> bool {
        self.events.iter().any(|(_, event)| event == wanted)
    }
}

pub(crate) struct Node {
    pub(crate) stack: Stack,
    pub(crate) port: MemoryPort,
    pub(crate) app: Applications<Recorder, Absent, Recorder>,
    pub(crate) nic: FakeNic,
}

impl Node {
    fn new(
        addresses: &[&str],
        listen_ports: Vec<u16>,
        ephemeral_ports: RangeInclusive<u16>,
        port: MemoryPort,
        now_us: u64,
    ) -> Node {
        let config = StackConfig {
            ephemeral_ports,
            ..StackConfig::new(
                addresses
                    .iter()
                    .map(|it| (it.parse().unwrap(), 24))
                    .collect(),
                listen_ports,
                [addresses[0].len() as u8; 16],
            )
        };
        let (host_channel, channel) = in_memory();
        Node {
            stack: Stack::new(config, Link::of(&port), vec![host_channel], now_us),
            port,
            app: Applications {
                server: Recorder::default(),
                proxy: Absent,
                others: Recorder::default(),
            },
            nic: FakeNic::new(channel),
        }
    }
}

impl Node {
    /// The application does something of its own accord.
    pub(crate) fn act(&mut self, now_us: u64, act: impl FnOnce(&mut dyn Io)) {
        struct Once<F>(Option<F>);
        impl<F: FnOnce(&mut dyn Io)> Application for Once<F> {
            fn on_event(&mut self, _: &mut dyn Io, _: StreamId, event: AppEvent) {
                panic!("{event:?} before anything was said");
            }
            fn on_wake(&mut self, io: &mut dyn Io, _: u64) {
                self.0.take().expect("once")(io);
            }
        }
        self.stack.wake(now_us, &mut Once(Some(act)));
    }
}

/// A client and a server.
pub(crate) struct Pair {
    pub(crate) now_us: u64,
    pub(crate) client: Node,
    pub(crate) server: Node,
    /// The next frames of the client that are lost.
    pub(crate) lost: usize,
    /// No frame of the server reaches the client.
    pub(crate) is_cut: bool,
    /// The types of service of the server's TCP packets.
    pub(crate) classes: Vec<u8>,
}

impl Pair {
    /// With two ephemeral ports.
    pub(crate) fn new() -> Pair {
        Pair::with_ports(50_000..=50_001)
    }

    pub(crate) fn with_ports(ports: RangeInclusive<u16>) -> Pair {
        Pair::with_addresses(&[CLIENT], ports)
    }

    /// With a client that has these addresses.
    pub(crate) fn with_addresses(addresses: &[&str], ports: RangeInclusive<u16>) -> Pair {
        let now_us = 1_000_000;
        let (client, server) = pair(memory::Link::default());
        let mut pair = Pair {
            now_us,
            client: Node::new(addresses, vec![], ports.clone(), client, now_us),
            server: Node::new(&[SERVER], vec![80], ports, server, now_us),
            lost: 0,
            is_cut: false,
            classes: Vec::new(),
        };
        for app in [&mut pair.server.app.server, &mut pair.server.app.others] {
            (app.echoes, app.closes) = (true, true);
        }
        pair
    }

    pub(crate) fn connect(&mut self, to: &str) -> Result<StreamId, ConnectError> {
        let to: SocketAddr = to.parse().unwrap();
        self.client
            .stack
            .connect(self.now_us, Owner::SERVER, None, to)
    }

    pub(crate) fn step(&mut self) {
        self.now_us += 100;
        let now_us = self.now_us;
        for is_client in [true, false] {
            let node = if is_client {
                &mut self.client
            } else {
                &mut self.server
            };
            let (stack, lost, is_cut) = (&mut node.stack, &mut self.lost, self.is_cut);
            let classes = &mut self.classes;
            node.port
                .receive(usize::MAX, &mut |frame| {
                    if is_client && is_cut {
                        return;
                    }
                    if !is_client && *lost > 0 {
                        *lost -= 1;
                        return;
                    }
                    let packet = &frame.bytes[ethernet::HEADER_BYTES..];
                    if is_client && packet[0] >> 4 == 4 && packet[9] == ip::TCP {
                        classes.push(packet[1]);
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
    pub(crate) fn run_until(&mut self, done: impl Fn(&Pair) -> bool) {
        for _ in 0..3_000_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("{:?}, {:?}", self.client.app, self.server.app);
    }

    /// Opens a connection, has a text echoed, and closes: the client first.
    pub(crate) fn exchange(&mut self) {
        let stream = self.connect("10.77.0.2:80").unwrap();
        let text: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
        let before = self.client.app.server.received.len();
        self.act(stream, |io, stream| {
            assert_eq!(io.write(stream, &text), text.len());
            io.shutdown(stream);
        });
        self.client.app.server.events.clear();
        self.run_until(|pair| pair.client.app.server.closed().is_some());
        assert_eq!(self.client.app.server.closed(), Some(CloseReason::Finished));
        assert!(
            self.client.app.server.received[before..] == text,
            "every byte"
        );
        assert!(self.client.app.server.has(&AppEvent::Connected));
    }

    /// The client's application does something of its own accord.
    pub(crate) fn act(&mut self, stream: StreamId, act: impl FnOnce(&mut dyn Io, StreamId)) {
        self.client.act(self.now_us, |io| act(io, stream));
    }
}
