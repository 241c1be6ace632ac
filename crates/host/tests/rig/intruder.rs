//! Strangers on the link who send whatever they like while a client downloads.
//!
//! They may flood, complete handshakes, ask for files, send ICMP errors about the client's
//! connection and frames of any bytes. Spared is what no stack could tell from the client itself:
//! segments with its addresses and ports near its sequence numbers, and ARP in its name.

use std::net::SocketAddr;

use wire::frame::{self, Received, TcpTemplate};
use wire::tcp::{FastOpen, Flags, Header, Options, Timestamps};
use wire::{arp, checksum, ethernet, ip};

use super::{CLIENT, Rig, SERVER, answer};

const STRANGER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Bytes that decide everything, as long as they last.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let len = N.min(self.0.len());
        bytes[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        bytes
    }

    fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.bytes())
    }

    fn half(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes())
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    fn some(&mut self, len_max: u8) -> Vec<u8> {
        let len = usize::from(self.byte() % len_max).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.to_vec()
    }
}

/// A client downloads; `choices` decide what strangers do meanwhile. Its bytes must be right, it
/// must not be closed, and the stack must still serve it afterwards.
pub(crate) fn a_download_goes_on_undisturbed(choices: &[u8]) {
    let mut rig = Rig::new();
    let mut expected = Vec::new();
    let mut choices = Choices(choices);
    while !choices.0.is_empty() {
        if rig.received.len() == expected.len() {
            rig.ask(&["30000"]);
            expected.extend(answer(30_000));
        }
        let frame = rig.strange_frame(&mut choices);
        if frame.len() >= ethernet::HEADER_BYTES && !rig.is_in_clients_name(&frame) {
            rig.inject(&frame);
        }
        if choices.byte().is_multiple_of(4) {
            rig.step();
        }
    }
    rig.run_until(|rig| rig.received.len() >= expected.len());
    rig.ask(&["1000"]);
    expected.extend(answer(1000));
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.received == expected, "every byte as in the files");
    assert_eq!(rig.client_closed, None);
}

impl Rig {
    fn strange_frame(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let server: SocketAddr = SERVER.parse().expect("an address");
        let port = 1 + u16::from(choices.byte() % 32);
        let stranger = SocketAddr::new([10, 77, 0, choices.byte() % 4 + 1].into(), port);
        match choices.byte() % 8 {
            // What a stranger who has been answered would say next, or something like it.
            0..=2 => {
                let last = self.strangers.get(&port).copied().unwrap_or_default();
                let header = Header {
                    seq: last.ack.wrapping_add(choices.byte().into()),
                    ack: last.seq.wrapping_add(choices.byte().into()),
                    flags: match choices.byte() % 4 {
                        0 => Flags::SYN,
                        1 => Flags(choices.byte()),
                        _ => Flags::ACK,
                    },
                    ..strange_header(choices)
                };
                let text = match choices.byte() % 4 {
                    0 => b"1000\n".to_vec(),
                    _ => choices.some(100),
                };
                self.segment(stranger, server, header, &text)
            }
            // The client's addresses and ports, anywhere in the sequence space.
            3 => {
                let header = Header {
                    seq: choices.word(),
                    ack: choices.word(),
                    flags: Flags(choices.byte()),
                    ..strange_header(choices)
                };
                self.segment(self.client_address, server, header, &choices.some(100))
            }
            // A segment of which some bytes were changed on the way.
            4 => {
                let text = choices.some(40);
                let header = strange_header(choices);
                let mut frame = self.segment(stranger, server, header, &text);
                for _ in 0..choices.byte() % 4 {
                    let at = usize::from(choices.byte()) % frame.len();
                    frame[at] = choices.byte();
                }
                frame
            }
            5 => self.icmp_error(choices),
            6 => {
                let packet = arp::Packet {
                    operation: match choices.byte() % 2 {
                        0 => arp::Operation::Request,
                        _ => arp::Operation::Reply,
                    },
                    sender_mac: STRANGER_MAC,
                    sender: choices.bytes().into(),
                    target_mac: choices.bytes(),
                    target: [10, 77, 0, choices.byte() % 4].into(),
                };
                packet.to_frame(ethernet::BROADCAST)
            }
            _ => {
                let ethertype = match choices.byte() % 4 {
                    0 => ethernet::IPV4,
                    1 => ethernet::IPV6,
                    2 => ethernet::ARP,
                    _ => choices.half(),
                };
                let mut frame = [self.port_mac(), STRANGER_MAC].concat();
                frame.extend(ethertype.to_be_bytes());
                frame.extend(choices.some(120));
                frame
            }
        }
    }

    fn segment(&self, from: SocketAddr, to: SocketAddr, header: Header, payload: &[u8]) -> Vec<u8> {
        TcpTemplate::new(STRANGER_MAC, self.port_mac(), from, to).to_frame(&header, payload)
    }

    /// Destination unreachable, about the client's connection: any code, any MTU, any sequence
    /// number, or one that is in flight.
    fn icmp_error(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let seq = match (choices.byte() % 2, self.trace.last()) {
            (0, Some((last, _))) => last.seq,
            _ => choices.word(),
        };
        let header = Header {
            seq,
            ..Header::default()
        };
        let server: SocketAddr = SERVER.parse().expect("an address");
        let mut quoted = self.segment(server, self.client_address, header, &[]);
        let quoted = &mut quoted[ethernet::HEADER_BYTES..];
        let (code, mtu) = (choices.byte() % 16, choices.half());
        let quoted_len = 28 + usize::from(choices.byte() % 12);
        self.unreachable(code, mtu, &quoted[..quoted_len])
    }

    /// An ICMP "destination unreachable" from a router on the way, which quotes an IPv4 packet.
    pub(crate) fn unreachable(&self, code: u8, mtu: u16, quoted: &[u8]) -> Vec<u8> {
        let mut icmp = vec![3, code, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend_from_slice(quoted);
        let sum = checksum::of(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = vec![0x45, 0];
        packet.extend((20 + icmp.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, ip::ICMP, 0, 0, 10, 77, 0, 9, 10, 77, 0, 2]);
        let sum = checksum::of(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [self.port_mac(), STRANGER_MAC].concat();
        frame.extend(ethernet::IPV4.to_be_bytes());
        let frame = [frame, packet, icmp].concat();
        assert!(matches!(
            frame::parse(&frame, false),
            Ok(Received::Icmp4(_))
        ));
        frame
    }

    /// No stack could tell it from the client.
    fn is_in_clients_name(&self, bytes: &[u8]) -> bool {
        match frame::parse(bytes, true) {
            Ok(Received::Tcp(packet)) => {
                let source = SocketAddr::new(packet.source, packet.segment.header.source_port);
                let last = self.trace.last().map(|(header, _)| header.ack);
                let near = last.is_none_or(|ack| {
                    let distance = packet.segment.header.seq.wrapping_sub(ack) as i32;
                    distance.unsigned_abs() < 1 << 24
                });
                source == self.client_address && near
            }
            Ok(Received::Arp(arp)) => CLIENT == arp.sender.to_string(),
            _ => false,
        }
    }

    fn port_mac(&self) -> [u8; 6] {
        netdev::Port::mac(&self.port)
    }
}

fn strange_header(choices: &mut Choices<'_>) -> Header {
    let optional =
        |choices: &mut Choices<'_>| choices.byte().is_multiple_of(2).then(|| choices.word());
    Header {
        window: choices.half(),
        options: Options {
            mss: optional(choices).map(|mss| mss as u16),
            window_scale: optional(choices).map(|shift| shift as u8),
            sack_permitted: choices.byte().is_multiple_of(2),
            timestamps: optional(choices).map(|value| Timestamps {
                value,
                echo_reply: value,
            }),
            fast_open: optional(choices).map(|word| match word & 1 {
                0 => FastOpen::Request,
                _ => FastOpen::Cookie((u64::from(word) << 32).to_be_bytes()),
            }),
            sack: std::array::from_fn(|_| optional(choices).map(|left| (left, left ^ 0x55))),
        },
        ..Header::default()
    }
}
