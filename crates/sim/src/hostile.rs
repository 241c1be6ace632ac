//! A hostile peer: it completes handshakes, and then violates TCP.
//!
//! It knows about other connections only as much as a network scan shows, so its forgeries come
//! close to the victims' segments without matching them. None of its acts may affect another peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::frame::{Received, TcpTemplate, complete_checksum, parse};
use wire::tcp::{Flags, Header, Options, Timestamps};

use crate::addresses;
use crate::audit::Victim;
use crate::random::Random;
use crate::router::{ROUTER_MAC, too_big};
use crate::scenario::HostilePlan;

/// A hostile peer.
#[derive(Debug)]
pub(crate) struct Hostile {
    plan: HostilePlan,
    pub(crate) address: IpAddr,
    random: Random,
    next_us: u64,
    acts_left: u32,
    port: u16,
    /// The server's port.
    server_port: u16,
    /// Next sequence and acknowledgment numbers of a well-behaved peer, as far as this one tracks
    /// them.
    seq: u32,
    ack: Option<u32>,
}

impl Hostile {
    pub(crate) fn new(number: usize, plan: HostilePlan, now_us: u64, random: Random) -> Hostile {
        let last = number as u8 + 1;
        Hostile {
            address: if plan.ipv6 {
                Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, last.into()).into()
            } else {
                Ipv4Addr::new(10, 99, 0, last).into()
            },
            random,
            next_us: now_us + plan.begins_us,
            acts_left: plan.acts,
            port: 1_000,
            server_port: addresses::PORT,
            seq: 0,
            ack: None,
            plan,
        }
    }

    /// Returns when it acts next, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        (self.acts_left > 0).then_some(self.next_us)
    }

    /// Takes a frame of the server.
    pub(crate) fn on_frame(&mut self, bytes: &[u8]) {
        if let Ok(Received::Tcp(packet)) = parse(bytes, true)
            && packet.segment.header.destination_port == self.port
            && !packet.segment.header.flags.contains(Flags::RST)
        {
            let header = &packet.segment.header;
            let occupied =
                packet.segment.payload.len() as u32 + u32::from(header.flags.contains(Flags::SYN));
            self.ack = Some(header.seq.wrapping_add(occupied));
        }
    }

    /// Performs a random hostile act.
    pub(crate) fn act(&mut self, now_us: u64, victim: Option<Victim>, frames: &mut Vec<Vec<u8>>) {
        self.acts_left = self.acts_left.saturating_sub(1);
        let wait_us = self.random.within(self.plan.every_us.clone());
        self.next_us = now_us + wait_us;
        match (self.random.within(0..12), self.ack, victim) {
            (0, ..) | (_, None, None) => self.open(frames),
            (1..4, _, Some(victim)) | (_, None, Some(victim)) => self.forge(victim, frames),
            (4, Some(_), _) => self.ask(frames),
            (5, ..) => self.garble(frames),
            (_, Some(ack), _) => self.misbehave(ack, frames),
        }
    }

    /// Starts a handshake from a new port.
    fn open(&mut self, frames: &mut Vec<Vec<u8>>) {
        self.port += 1;
        self.server_port = self.random.pick(&[addresses::PORT, addresses::TLS_PORT]);
        self.seq = self.random.next() as u32;
        self.ack = None;
        let random = &mut self.random;
        let header = Header {
            seq: self.seq,
            flags: Flags::SYN,
            window: random.pick(&[0, 1, 1000, 65_535]),
            options: Options {
                mss: random.pick(&[None, Some(0), Some(1), Some(536), Some(65_535)]),
                window_scale: random.pick(&[None, Some(0), Some(14), Some(255)]),
                sack_permitted: random.one_in(2),
                timestamps: random.one_in(2).then_some(Timestamps {
                    value: random.next() as u32,
                    echo_reply: 0,
                }),
                ..Options::default()
            },
            ..Header::default()
        };
        self.seq = self.seq.wrapping_add(1);
        frames.push(self.template().to_frame(&header, &[]));
    }

    /// Sends a valid request, whose response it will mistreat.
    fn ask(&mut self, frames: &mut Vec<Vec<u8>>) {
        let request = b"GET /f0 HTTP/1.1\r\nHost: sim\r\n\r\n";
        let header = Header {
            seq: self.seq,
            ack: self.ack.unwrap_or(0),
            flags: Flags::ACK | Flags::PSH,
            window: 20_000,
            ..Header::default()
        };
        self.seq = self.seq.wrapping_add(request.len() as u32);
        frames.push(self.template().to_frame(&header, request));
    }

    /// Sends a segment that is valid but for one or several fields.
    fn misbehave(&mut self, ack: u32, frames: &mut Vec<Vec<u8>>) {
        let random = &mut self.random;
        let near = |random: &mut Random, number: u32| {
            let by = random.across(1..1 << 31) as u32;
            match random.within(0..4) {
                0 => number,
                1 => number.wrapping_add(by),
                2 => number.wrapping_sub(by),
                _ => random.next() as u32,
            }
        };
        let mut header = Header {
            seq: self.seq,
            ack,
            flags: Flags::ACK,
            window: 20_000,
            ..Header::default()
        };
        let mut payload = vec![0; random.pick(&[0, 0, 1, 100, 1400])];
        for _ in 0..random.within(1..4) {
            match random.within(0..8) {
                0 => header.seq = near(random, header.seq),
                1 => header.ack = near(random, header.ack),
                2 => header.window = random.pick(&[0, 0, 1, 7, 65_535]),
                3 => header.flags = Flags(random.next() as u8),
                4 => {
                    for block in &mut header.options.sack {
                        *block = Some((near(random, ack), near(random, ack)));
                    }
                }
                5 => {
                    header.options.timestamps = Some(Timestamps {
                        value: random.next() as u32,
                        echo_reply: random.next() as u32,
                    });
                }
                6 => payload.fill(random.next() as u8),
                _ => header.options.mss = Some(random.next() as u16),
            }
        }
        frames.push(self.template().to_frame(&header, &payload));
    }

    /// Sends invalid options, or a truncated frame.
    fn garble(&mut self, frames: &mut Vec<Vec<u8>>) {
        let header = Header {
            seq: self.seq,
            ack: self.ack.unwrap_or(0),
            flags: self.random.pick(&[Flags::ACK, Flags::SYN, Flags::RST]),
            options: Options {
                timestamps: Some(Timestamps {
                    value: 0,
                    echo_reply: 0,
                }),
                sack: [Some((0, 0)); 4],
                ..Options::default()
            },
            ..Header::default()
        };
        let mut frame = self.template().to_frame(&header, &[]);
        let options = self.template().tcp_offset() + 20;
        for byte in &mut frame[options..] {
            *byte = self.random.pick(&[0, 1, 2, 3, 4, 5, 8, 10, 34, 255]);
        }
        let complete = complete_checksum(&mut frame, [&[][..]]);
        debug_assert!(complete.is_ok(), "a header whatever its options are");
        if self.random.one_in(3) {
            let len = self.random.within(0..frame.len() as u64) as usize;
            frame.truncate(len);
        }
        frames.push(frame);
    }

    /// Sends a segment in another peer's name that misses a valid one by as little as possible (RFC
    /// 5961, RFC 5927).
    fn forge(&mut self, victim: Victim, frames: &mut Vec<Vec<u8>>) {
        let random = &mut self.random;
        let Victim {
            peer,
            port,
            peer_end,
            server_end,
        } = victim;
        let beside = random.within(1..30_000) as u32;
        let mut header = Header {
            seq: peer_end.wrapping_add(beside),
            ack: server_end,
            window: 1_000,
            ..Header::default()
        };
        let mut payload = Vec::new();
        match random.within(0..4) {
            // In the window and not at its edge: §3.
            0 => header.flags = Flags::RST,
            // In the window: §4.
            1 => header.flags = Flags::SYN,
            // At the edge, acknowledging bytes that were never sent: §5.
            2 => {
                header.seq = peer_end;
                header.ack = server_end.wrapping_add(1_000_000 + beside);
                header.flags = Flags::ACK;
                payload = b"GET / HTTP/1.0\r\n\r\n".to_vec();
            }
            // "Too big", about a packet that is not in flight.
            _ => {
                let quoted = Header {
                    seq: server_end.wrapping_add(1_000_000 + beside),
                    flags: Flags::ACK,
                    ..Header::default()
                };
                let mut template = template(peer, port);
                std::mem::swap(&mut template.source, &mut template.destination);
                std::mem::swap(&mut template.source_mac, &mut template.destination_mac);
                let quoted = template.to_frame(&quoted, &[0; 500]);
                frames.extend(too_big(&quoted, random.pick(&[0, 68, 576, 1280])));
                return;
            }
        }
        frames.push(template(peer, port).to_frame(&header, &payload));
    }

    fn template(&self) -> TcpTemplate {
        template(SocketAddr::new(self.address, self.port), self.server_port)
    }
}

/// Returns a template for packets from a peer to a port of the server.
fn template(peer: SocketAddr, port: u16) -> TcpTemplate {
    let server = SocketAddr::new(addresses::address(peer.is_ipv6()), port);
    TcpTemplate::new(ROUTER_MAC, addresses::MAC, peer, server)
}
