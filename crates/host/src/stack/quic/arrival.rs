//! Datagrams that arrive: for an endpoint, or for a port that nothing listens on.
//!
//! One frame may hold many datagrams of one sender behind one header (see
//! [`Frame::segment_bytes`]).

use std::num::NonZeroU16;

use netdev::Frame;
use quic::{Arrival, Ecn};
use tcp::Instant;
use wire::datagram::{self, UdpPacket};
use wire::ip;

use crate::link::icmp;
use crate::stack::{HANDSHAKES_MAX, Stack};

/// Most datagrams that wait behind one of a handshake; further ones are dropped, as links do.
const ARRIVALS_MAX: usize = 1024;

/// A datagram that waits for its turn.
#[derive(Debug)]
pub(super) struct Arrived {
    listener: usize,
    arrival: Arrival,
    payload: Vec<u8>,
}

/// True if a datagram begins with a handshake packet (RFC 9000 §17.2), which may cost a signature.
pub(super) fn is_of_handshake(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first & 0x80 != 0)
}

/// The ECN field of an IP header.
pub(super) fn ecn(ecn: ip::Ecn) -> Option<Ecn> {
    match ecn {
        ip::Ecn::NotEct => None,
        ip::Ecn::Ect0 => Some(Ecn::Ect0),
        ip::Ecn::Ect1 => Some(Ecn::Ect1),
        ip::Ecn::Ce => Some(Ecn::Ce),
    }
}

impl Stack {
    /// A frame has arrived that is neither TCP nor of the link's own protocols.
    pub(in crate::stack) fn on_datagram_frame(&mut self, now_us: u64, frame: &Frame<'_>) {
        match datagram::parse(frame.bytes, frame.checksum_valid) {
            Ok(Some(packet)) => {
                if !self.hand_datagram_on(&packet, frame) {
                    self.on_udp(now_us, &packet, frame.segment_bytes);
                }
            }
            Ok(None) => {}
            Err(_) => self.counters.frames_malformed += 1,
        }
    }

    fn on_udp(&mut self, now_us: u64, packet: &UdpPacket<'_>, segment_bytes: Option<NonZeroU16>) {
        let (source, destination) = (packet.source.ip(), packet.destination.ip());
        if destination.is_loopback() || self.config.is_own(source) {
            self.counters.martians_dropped += 1;
            return;
        }
        if !packet.is_unicast() || source.is_loopback() || !self.config.has_address(destination) {
            return;
        }
        let each = segment_bytes.map_or(usize::MAX, |bytes| bytes.get().into());
        let datagrams = packet.payload.chunks(each);
        self.count_datagrams(datagrams.len(), packet.packet.len());
        let quic = self.quic.as_deref_mut();
        let listener = quic.and_then(|quic| {
            let mut listeners = quic.listeners.iter();
            let at = listeners.position(|it| it.port == packet.destination.port())?;
            Some((quic, at))
        });
        let Some((quic, listener)) = listener else {
            let reply = icmp::port_unreachable(self.link.mac, packet);
            return self.reply_to_datagram(now_us, reply);
        };
        // Port 0 cannot be answered.
        if packet.source.port() == 0 {
            return;
        }
        let arrival = Arrival {
            remote: packet.source,
            local_ip: Some(destination),
            ecn: ecn(packet.ecn),
        };
        for payload in datagrams {
            if quic.arrivals.is_empty() && !is_of_handshake(payload) {
                let endpoint = &mut quic.listeners[listener].endpoint;
                endpoint.on_datagram(Instant::from_us(now_us), &arrival, payload);
            } else if quic.arrivals.len() < ARRIVALS_MAX {
                quic.arrivals.push_back(Arrived {
                    listener,
                    arrival,
                    payload: payload.to_vec(),
                });
            } else {
                self.counters.quic_arrivals_dropped += 1;
            }
        }
    }

    /// Counts the datagrams of a frame with an IP packet of this length.
    fn count_datagrams(&mut self, datagrams: usize, packet_bytes: usize) {
        let counters = &mut self.counters;
        match datagrams {
            // An empty datagram has no chunk.
            0 | 1 => {
                counters.datagrams_received += 1;
                counters.datagrams_merged += u64::from(packet_bytes > self.link.mtu);
            }
            several => {
                counters.datagrams_received += several as u64;
                counters.datagrams_split += several as u64;
            }
        }
    }

    /// Hands waiting datagrams to their endpoints, in order, and only a few of handshakes at a
    /// time.
    pub(super) fn take_arrivals(&mut self, now_us: u64, handshakes: &mut usize) -> bool {
        let Some(quic) = self.quic.as_deref_mut() else {
            return false;
        };
        let mut busy = false;
        while let Some(arrived) = quic.arrivals.front() {
            if is_of_handshake(&arrived.payload) {
                if *handshakes >= HANDSHAKES_MAX {
                    break;
                }
                *handshakes += 1;
            }
            let Some(arrived) = quic.arrivals.pop_front() else {
                break;
            };
            let endpoint = &mut quic.listeners[arrived.listener].endpoint;
            endpoint.on_datagram(Instant::from_us(now_us), &arrived.arrival, &arrived.payload);
            busy = true;
        }
        busy
    }
}
