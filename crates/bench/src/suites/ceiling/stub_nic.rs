//! Surroundings of the host stack: a stub in the NIC stack's place, and all clients.
//!
//! The stub takes SENDs from the ring and reports their departure at once; the clients have
//! received them by then, and acknowledge. No packet is sent and no file exists, but all output of
//! the host is checked: headers, sequence numbers, ranges, heads of responses.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use contract::channel::{HostChannel, NicChannel};
use contract::{Command, Event, FileId, FileMeta};
use serde::{Deserialize, Serialize};
use testbed::{Context, Failure, Result};
use wire::arp;
use wire::frame::{self, HEADER_BYTES_MAX, HeaderMut, Received};

use super::client::{Client, GATEWAY_MAC, SERVER, number_of, target_of};
use super::ring_port::HOST_MAC;

/// The host's next hop.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Number of files, requested at random.
const FILES: u32 = 1000;

/// Commands processed between flushes of the events. A flush is a fence, and so has a cost.
const BATCH: usize = 32;

/// Handshakes under way at a time: fewer than the half-open connections that the stack holds.
const HANDSHAKES_MAX: usize = 512;

/// How clients acknowledge packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Acks {
    /// One ACK for each superpacket: the client's NIC merges packets (LRO, GRO).
    Superpacket,
    /// One ACK for two packets (RFC 9293 §3.8.6.3): no merging.
    TwoPackets,
}

/// The load of the clients.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Connections, each asking for file after file.
    #[arg(long, default_value_t = 1600)]
    pub(crate) connections: usize,
    /// How clients acknowledge packets.
    #[arg(long, value_enum, default_value = "superpacket")]
    pub(crate) acks: Acks,
    /// Longest IP packet that the NIC segments, in bytes.
    #[arg(long, default_value_t = 65_535)]
    pub(crate) superpacket_bytes: usize,
    /// Size of each file, in bytes.
    #[arg(long, default_value_t = 500_000)]
    pub(crate) file_bytes: u64,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Events counted so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) struct Counts { $($(#[$doc])* pub(crate) $name: u64),+ }

        impl Counts {
            /// Returns the events counted since `before`.
            pub(crate) fn since(&self, before: &Counts) -> Counts {
                Counts { $($name: self.$name - before.$name),+ }
            }
        }
    };
}

counts! {
    /// SENDs that have departed.
    sends,
    /// Frames that only acknowledge.
    acks,
    /// Frames with a request.
    requests,
    /// Complete responses.
    responses,
    /// Bytes of files in SENDs.
    body_bytes,
    /// OPEN commands.
    opens,
    /// CLOS commands.
    closes,
    /// ACKD commands.
    ackds,
    /// Packets that the host has sent itself.
    host_packets,
    /// SENDs of bytes that had arrived before.
    repeated_sends,
}

/// A frame that a client has yet to send.
#[derive(Clone, Copy, Debug)]
enum Saying {
    Syn { client: usize },
    Ack { client: usize, acknowledged: u64 },
    Request { client: usize },
}

/// See the [module documentation](self).
pub(super) struct StubNic {
    nic: NicChannel,
    /// Frames to the host, and of its own.
    link: HostChannel,
    people: People,
    frame: Vec<u8>,
}

/// All but the rings.
struct People {
    load: Load,
    clients: Vec<Client>,
    /// Number of clients that have sent a SYN, and of connected clients.
    called: usize,
    established: usize,
    /// The file open under each id.
    files: Vec<Option<u32>>,
    outbox: VecDeque<Saying>,
    random: u64,
    counts: Counts,
}

impl StubNic {
    pub(super) fn new(load: Load, nic: NicChannel, link: HostChannel) -> Result<StubNic> {
        let mut stub = StubNic {
            nic,
            link,
            people: People {
                load,
                clients: (0..load.connections).map(Client::new).collect(),
                called: 0,
                established: 0,
                files: Vec::new(),
                outbox: VecDeque::new(),
                random: 0x5eed,
                counts: Counts::default(),
            },
            frame: Vec::new(),
        };
        stub.introduce_gateway()?;
        Ok(stub)
    }

    /// Sends a first frame, so that the host need not resolve its next hop.
    fn introduce_gateway(&mut self) -> Result<()> {
        let std::net::IpAddr::V4(target) = SERVER.ip() else {
            unreachable!("a constant");
        };
        let request = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: GATEWAY_MAC,
            sender: GATEWAY,
            target_mac: [0; 6],
            target,
        };
        let sent = self.link.send_record(&request.to_frame(HOST_MAC));
        sent.context(|| "sending the first frame".into())
    }

    /// Returns the events counted so far.
    pub(super) fn counts(&self) -> Counts {
        self.people.counts
    }

    /// Returns true once all clients are connected.
    pub(super) fn is_settled(&self) -> bool {
        self.people.established == self.people.clients.len()
    }

    /// Does one round of work. Returns true if there was any.
    pub(super) fn turn(&mut self, now_us: u64) -> Result<bool> {
        let mut worked = false;
        while let Some(frame) = self.link.receive_record().context(|| RING.into())? {
            self.people.on_frame(frame)?;
            worked = true;
        }
        worked |= self.say(now_us);
        for _ in 0..BATCH {
            // A client that does not receive can wait: no queue grows without bound.
            if !self.people.outbox.is_empty() || !self.nic.has_room() {
                break;
            }
            let command = self.nic.receive();
            let Some(command) = command.context(|| "reading the command ring".into())? else {
                break;
            };
            if let Some(event) = self.people.on_command(now_us, &command)? {
                self.nic.send(&event).context(|| RING.into())?;
            }
            worked = true;
            self.say(now_us);
        }
        self.nic.flush();
        self.link.flush();
        Ok(worked)
    }

    /// Sends the clients' frames, while there is room.
    fn say(&mut self, now_us: u64) -> bool {
        let mut worked = false;
        while self.link.has_room() {
            let Some(saying) = self.people.next_saying() else {
                break;
            };
            self.people.write(now_us, saying, &mut self.frame);
            let sent = self.link.send_record(&self.frame);
            debug_assert!(sent.is_ok(), "there was room");
            worked = true;
        }
        worked
    }

    /// Discards the remaining records of a host that ends.
    pub(super) fn drain(&mut self) {
        while let Ok(Some(_)) = self.link.receive_record() {}
        while let Ok(Some(_)) = self.nic.receive() {}
        self.link.flush();
        self.nic.flush();
    }
}

const RING: &str = "passing on what there was room for";

impl People {
    /// Returns the next frame to send. Handshakes wait for clients that have data to send.
    fn next_saying(&mut self) -> Option<Saying> {
        let handshakes = self.called - self.established;
        if self.outbox.is_empty() && self.called < self.clients.len() && handshakes < HANDSHAKES_MAX
        {
            self.called += 1;
            return Some(Saying::Syn {
                client: self.called - 1,
            });
        }
        self.outbox.pop_front()
    }

    fn write(&mut self, now_us: u64, saying: Saying, frame: &mut Vec<u8>) {
        match saying {
            Saying::Syn { client } => self.clients[client].syn(client, now_us, frame),
            Saying::Ack {
                client,
                acknowledged,
            } => {
                self.counts.acks += 1;
                self.clients[client].ack(client, now_us, acknowledged, frame);
            }
            Saying::Request { client } => {
                self.counts.requests += 1;
                let file = self.any_file();
                self.clients[client].request(client, now_us, file, frame);
            }
        }
    }

    /// Returns the number of a file, below [`FILES`] (xorshift64, Marsaglia 2003).
    fn any_file(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % u64::from(FILES)) as u32
    }
}

impl People {
    /// Processes a packet of the host's own.
    fn on_frame(&mut self, frame: &[u8]) -> Result<()> {
        let parsed = frame::parse(frame, true);
        let parsed = parsed.context(|| format!("reading a packet of the host's, {frame:?}"))?;
        // Other frames are ARP.
        let Received::Tcp(packet) = parsed else {
            return Ok(());
        };
        self.counts.host_packets += 1;
        let header = packet.segment.header;
        let std::net::IpAddr::V4(address) = packet.destination else {
            return Err(Failure::new("the host sends IPv6"));
        };
        let client = self.client_at(address, header.destination_port)?;
        if self.clients[client].on_packet(&header, packet.segment.payload.len())? {
            self.established += 1;
            self.outbox.push_back(Saying::Ack {
                client,
                acknowledged: 0,
            });
            self.outbox.push_back(Saying::Request { client });
        }
        Ok(())
    }

    fn client_at(&self, address: Ipv4Addr, port: u16) -> Result<usize> {
        let client = number_of(address, port).filter(|&number| number < self.clients.len());
        client.ok_or_else(|| Failure::new(format!("no client is at {address}:{port}")))
    }

    fn on_command(&mut self, now_us: u64, command: &Command<'_>) -> Result<Option<Event>> {
        Ok(match command {
            Command::Open { file, path, .. } => Some(self.on_open(*file, path)?),
            Command::Close { file } => {
                self.counts.closes += 1;
                let closed = self.files.get_mut(file.0 as usize).and_then(Option::take);
                if closed.is_none() {
                    return Err(Failure::new(format!("{file:?} is closed and was not open")));
                }
                None
            }
            Command::Send(send) => {
                self.on_send(send)?;
                Some(Event::Departed {
                    send: send.id,
                    flow: send.flow,
                    departed_us: now_us,
                })
            }
            Command::Acked { .. } => {
                self.counts.ackds += 1;
                None
            }
            other => return Err(Failure::new(format!("not expected without TLS: {other:?}"))),
        })
    }

    fn on_open(&mut self, id: FileId, path: &[u8]) -> Result<Event> {
        self.counts.opens += 1;
        let file = std::str::from_utf8(path)
            .ok()
            .and_then(|path| path.strip_prefix("file-")?.parse().ok())
            .filter(|&file| file < FILES && target_of(file).as_bytes() == path);
        let place = id.0 as usize;
        if self.files.len() <= place {
            self.files.resize(place + 1, None);
        }
        if file.is_none() || self.files[place].is_some() {
            let path = String::from_utf8_lossy(path);
            return Err(Failure::new(format!("{id:?} cannot be opened as {path}")));
        }
        self.files[place] = file;
        let meta = FileMeta {
            size: self.load.file_bytes,
            inode: u64::from(id.0) + 1,
            device: 1,
            mtime_ns: 1_600_000_000_000_000_000,
            ctime_ns: 1_600_000_000_000_000_000,
            is_weak: false,
        };
        Ok(Event::Opened { file: id, meta })
    }

    /// Processes a SEND, which departs, arrives, and is acknowledged at once.
    fn on_send(&mut self, send: &contract::Send<'_>) -> Result<()> {
        let wrong = |what: &str| Failure::new(format!("{what}: {send:?}"));
        if send.not_before_us > send.issued_us {
            return Err(wrong("pacing is not expected"));
        }
        let mut copy = [0; HEADER_BYTES_MAX];
        let header = copy.get_mut(..send.header.len());
        let header = header.ok_or_else(|| wrong("a long header"))?;
        header.copy_from_slice(send.header);
        let header = HeaderMut::parse(header).map_err(|_| wrong("a header that is none"))?;
        let client = self
            .client_of(&header)
            .ok_or_else(|| wrong("a SEND for no connection"))?;
        let client_end = &mut self.clients[client];
        let begin = client_end.received;
        if send.stream_offset < begin {
            return self.on_repeated_send(client, send);
        }
        let files = &self.files;
        let taken = client_end.on_send(
            send,
            header.seq(),
            header.timestamp_value(),
            self.load.file_bytes,
            |id| files.get(id.0 as usize).copied().flatten(),
        )?;
        let end = client_end.received;
        self.counts.sends += 1;
        self.counts.body_bytes += taken.body_bytes;
        let mss = usize::from(send.mss.max(1));
        let acknowledged_at_once = match self.load.acks {
            // Whole packets, as many as fit.
            Acks::Superpacket => header.payload_max(self.load.superpacket_bytes) / mss * mss,
            Acks::TwoPackets => 2 * mss,
        };
        let mut acknowledged = begin;
        while acknowledged < end {
            acknowledged = end.min(acknowledged + acknowledged_at_once as u64);
            self.outbox.push_back(Saying::Ack {
                client,
                acknowledged,
            });
        }
        if taken.is_whole {
            self.counts.responses += 1;
            self.outbox.push_back(Saying::Request { client });
        }
        Ok(())
    }

    /// Processes a SEND of bytes that have arrived, which the host takes for lost: the client
    /// repeats its acknowledgment.
    #[cold]
    fn on_repeated_send(&mut self, client: usize, send: &contract::Send<'_>) -> Result<()> {
        let acknowledged = self.clients[client].received;
        if send.stream_offset + send.segments.payload_bytes() > acknowledged {
            return Err(Failure::new(format!(
                "a SEND repeats some and goes on: {send:?}"
            )));
        }
        self.counts.repeated_sends += 1;
        self.outbox.push_back(Saying::Ack {
            client,
            acknowledged,
        });
        Ok(())
    }

    /// Returns the client to which an IPv4 header is addressed, by the next hop.
    fn client_of(&self, header: &HeaderMut<'_>) -> Option<usize> {
        let bytes = header.bytes();
        let port_at = header.tcp_offset() + 2;
        let [link, address] = [bytes.get(..6)?, bytes.get(30..34)?];
        let address = Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?);
        let port = u16::from_be_bytes(bytes.get(port_at..port_at + 2)?.try_into().ok()?);
        if header.ipv6() || link != GATEWAY_MAC {
            return None;
        }
        self.client_at(address, port).ok()
    }
}
