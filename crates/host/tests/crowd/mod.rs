//! A host stack with many clients, each of which is no more than a few numbers.

use std::net::{Ipv4Addr, SocketAddr};

use contract::channel::{NicChannel, in_memory};
use contract::{Command, Event, FileMeta, FlowId, SendId};
use host::app::{AppEvent, Application, Io, StreamId};
use host::{Growth, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Frame, Port};
use wire::arp;
use wire::frame::{self, HeaderMut, Received, TcpTemplate};
use wire::tcp::{Flags, Header, Options, Timestamps};

pub(crate) const SERVER: &str = "10.77.0.2:80";
const GATEWAY: &str = "10.77.0.1";
const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The length of the one file, in bytes: no download gets to its end.
const FILE_BYTES: u64 = 1 << 50;
/// Clients with neighbouring numbers have one address.
pub(crate) const PORTS_PER_ADDRESS: usize = 50_000;

/// What a client says, and what the application does.
pub(crate) const HELLO: &[u8] = b"h";
pub(crate) const FILE: &[u8] = b"f";
pub(crate) const QUIT: &[u8] = b"q";

/// Answers with 200 bytes, with a file that never ends, or with FIN.
#[derive(Default)]
pub(crate) struct Responder;

impl Application for Responder {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        match event {
            AppEvent::Readable => {
                let mut buffer = [0; 16];
                while let count @ 1.. = io.read(stream, &mut buffer) {
                    match &buffer[..count] {
                        HELLO => assert_eq!(io.write(stream, &[b'.'; 200]), 200),
                        FILE => drop(io.open(stream, b"file", Growth::Forbidden)),
                        QUIT => io.shutdown(stream),
                        other => panic!("{other:?}"),
                    }
                }
            }
            AppEvent::Opened { file, meta } => {
                assert_eq!(io.write_file(stream, file, 0..meta.size), FILE_BYTES);
            }
            AppEvent::PeerFinished => io.shutdown(stream),
            _ => {}
        }
    }
}

/// The far end of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) seq: u32,
    /// What it acknowledges: all that has come.
    pub(crate) ack: u32,
    pub(crate) echo: u32,
}

/// A SEND that has not departed, and the report when it has.
#[allow(dead_code, reason = "some users of this file have no files sent")]
pub(crate) struct Sent {
    client: usize,
    /// Behind its last byte, and its timestamp.
    end: u32,
    tsval: u32,
    pub(crate) departed: Event,
}

pub(crate) struct Crowd<A = Responder> {
    pub(crate) now_us: u64,
    pub(crate) stack: Stack,
    pub(crate) port: MemoryPort,
    pub(crate) app: A,
    pub(crate) nic: NicChannel,
    pub(crate) clients: Vec<Client>,
    /// Connections that the stack has parted with since the last look.
    #[allow(dead_code, reason = "some users of this file part with none")]
    pub(crate) parted: Vec<FlowId>,
    /// The key of cookies in the last SETUP.
    #[allow(
        dead_code,
        reason = "some users of this file answer all SYNs by the host"
    )]
    pub(crate) cookie_key: Option<[u8; 16]>,
    /// SENDs since the last look.
    pub(crate) sent: Vec<Sent>,
    /// Clients that were reset; a program that expects none has no list.
    #[allow(dead_code, reason = "some users of this file have no client reset")]
    pub(crate) resets: Option<Vec<usize>>,
    far_port: MemoryPort,
}

fn address(client: usize) -> SocketAddr {
    let ip = Ipv4Addr::from_bits(0xac10_0000 + (client / PORTS_PER_ADDRESS) as u32);
    SocketAddr::new(ip.into(), (1024 + client % PORTS_PER_ADDRESS) as u16)
}

fn client_of(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else {
        panic!("{address}");
    };
    let high = (address.ip().to_bits() - 0xac10_0000) as usize;
    high * PORTS_PER_ADDRESS + usize::from(address.port()) - 1024
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd::with(|_| {})
    }

    pub(crate) fn with(configure: impl FnOnce(&mut StackConfig)) -> Crowd {
        Crowd::of(Responder, configure)
    }

    /// Where a client is.
    #[allow(
        dead_code,
        reason = "some users of this file have clients that only connect"
    )]
    pub(crate) fn address(client: usize) -> SocketAddr {
        address(client)
    }
}

impl<A: Application> Crowd<A> {
    /// The same with another application.
    pub(crate) fn of(app: A, configure: impl FnOnce(&mut StackConfig)) -> Crowd<A> {
        let (port, far_port) = pair(memory::Link::default());
        let (host_channel, nic) = in_memory();
        let addresses = vec![("10.77.0.2".parse().unwrap(), 24)];
        let mut config = StackConfig {
            gateways: vec![GATEWAY.parse().unwrap()],
            ..StackConfig::new(addresses, vec![80], [7; 16])
        };
        configure(&mut config);
        let now_us = 1_000_000;
        let stack = Stack::new(config, Link::of(&port), vec![host_channel], now_us);
        let mut crowd = Crowd {
            now_us,
            stack,
            port,
            app,
            nic,
            clients: Vec::new(),
            parted: Vec::new(),
            cookie_key: None,
            sent: Vec::new(),
            resets: None,
            far_port,
        };
        let request = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: GATEWAY_MAC,
            sender: GATEWAY.parse().unwrap(),
            target_mac: [0; 6],
            target: "10.77.0.2".parse().unwrap(),
        };
        let mac = crowd.port.mac();
        crowd.hear(&request.to_frame(mac));
        crowd.turn();
        crowd
    }

    /// A frame of a client's segment.
    pub(crate) fn frame_of(&self, client: &Client, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let &Client {
            address,
            seq,
            ack,
            echo,
        } = client;
        let is_syn = flags.contains(Flags::SYN);
        let header = Header {
            seq,
            ack: if is_syn { 0 } else { ack },
            flags,
            window: 64_000,
            options: Options {
                mss: is_syn.then_some(1460),
                window_scale: is_syn.then_some(1),
                sack_permitted: is_syn,
                timestamps: Some(Timestamps {
                    value: (self.now_us / 1000) as u32,
                    echo_reply: echo,
                }),
                ..Options::default()
            },
            ..Header::default()
        };
        let template = TcpTemplate::new(
            GATEWAY_MAC,
            self.port.mac(),
            address,
            SERVER.parse().unwrap(),
        );
        template.to_frame(&header, payload)
    }

    /// The frame that acknowledges a SEND, and nothing behind it.
    #[allow(dead_code, reason = "some users of this file have no files sent")]
    pub(crate) fn frame_acknowledging(&self, sent: &Sent) -> Vec<u8> {
        let client = Client {
            ack: sent.end,
            echo: sent.tsval,
            ..self.clients[sent.client]
        };
        self.frame_of(&client, Flags::ACK, &[])
    }

    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        let frame = Frame {
            bytes,
            checksum_valid: true,
            segment_bytes: None,
        };
        self.stack.on_frame(self.now_us, frame);
    }

    /// A client says something, and takes note.
    pub(crate) fn say(&mut self, client: usize, flags: Flags, payload: &[u8]) {
        let frame = self.frame_of(&self.clients[client], flags, payload);
        let occupies =
            u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
        let said = &mut self.clients[client].seq;
        *said = said.wrapping_add(payload.len() as u32 + occupies);
        self.hear(&frame);
        self.turn();
    }

    /// The stack does what there is to do; clients and the NIC stack take note.
    pub(crate) fn turn(&mut self) {
        self.now_us += 10;
        self.take_in(&[]);
        self.collect();
    }

    /// A turn of the host stack's: what NIC workers have reported, these frames, what is due.
    #[inline(always)]
    pub(crate) fn take_in(&mut self, frames: &[Vec<u8>]) {
        let now_us = self.now_us;
        self.stack
            .on_channels(now_us, usize::MAX)
            .expect("a sane ring");
        for bytes in frames {
            let frame = Frame {
                bytes,
                checksum_valid: true,
                segment_bytes: None,
            };
            self.stack.on_frame(now_us, frame);
        }
        self.stack.on_time(now_us);
        self.stack.serve(now_us, &mut self.port, &mut self.app);
    }

    /// Takes note of what has left the stack.
    pub(crate) fn collect(&mut self) {
        let (clients, resets) = (&mut self.clients, &mut self.resets);
        self.far_port
            .receive(usize::MAX, &mut |frame| {
                let parsed = frame::parse(frame.bytes, true).expect("a sane frame");
                if let Received::Tcp(packet) = parsed {
                    let header = packet.segment.header;
                    let to = SocketAddr::new(packet.destination, header.destination_port);
                    if header.flags.contains(Flags::RST)
                        && let Some(resets) = resets
                    {
                        return resets.push(client_of(to));
                    }
                    note(
                        &mut clients[client_of(to)],
                        &header,
                        packet.segment.payload.len(),
                    );
                }
            })
            .unwrap();
        while let Some(command) = self.nic.receive().expect("a sane ring") {
            match command {
                Command::Open { file, .. } => {
                    let meta = FileMeta {
                        size: FILE_BYTES,
                        ..FileMeta::default()
                    };
                    self.nic.send(&Event::Opened { file, meta }).expect("room");
                }
                Command::Send(send) => {
                    let (id, flow): (SendId, FlowId) = (send.id, send.flow);
                    let bytes = send
                        .segments
                        .iter()
                        .map(|segment| segment.len())
                        .sum::<u32>();
                    // Its lengths are those of no payload: only the header is looked at.
                    let mut header = send.header.to_vec();
                    let mut view = HeaderMut::parse(&mut header).expect("a header");
                    view.complete_checksum([]).expect("a packet");
                    let parsed = frame::parse(&header, true);
                    let Ok(Received::Tcp(packet)) = parsed else {
                        panic!("{parsed:?}");
                    };
                    let header = packet.segment.header;
                    let to = SocketAddr::new(packet.destination, header.destination_port);
                    let client = client_of(to);
                    note(&mut self.clients[client], &header, bytes as usize);
                    let departed = Event::Departed {
                        send: id,
                        flow,
                        departed_us: self.now_us,
                    };
                    let noted = self.clients[client];
                    self.sent.push(Sent {
                        client,
                        end: noted.ack,
                        tsval: noted.echo,
                        departed,
                    });
                }
                Command::Part(part) => self.parted.push(part.flow),
                Command::Setup(setup) => {
                    self.cookie_key = Some(setup.cookie_key);
                    let ready = Event::SetupReady {
                        epoch: setup.epoch,
                        steering: 1,
                    };
                    self.nic.send(&ready).expect("room");
                }
                _ => {}
            }
        }
        self.nic.flush();
    }

    /// One more client shakes hands; returns its number.
    pub(crate) fn connect(&mut self) -> usize {
        let client = self.clients.len();
        self.clients.push(Client {
            address: address(client),
            seq: client as u32,
            ack: 0,
            echo: 0,
        });
        self.say(client, Flags::SYN, &[]);
        assert_ne!(self.clients[client].ack, 0, "a SYN,ACK");
        self.say(client, Flags::ACK, &[]);
        client
    }
}

pub(crate) fn note(client: &mut Client, header: &Header, len: usize) {
    let flags = header.flags;
    let occupies = u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
    assert!(!flags.contains(Flags::RST), "{header:?}");
    client.ack = header.seq.wrapping_add(len as u32 + occupies);
    if let Some(timestamps) = header.options.timestamps {
        client.echo = timestamps.value;
    }
}
