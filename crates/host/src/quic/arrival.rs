//! Arriving datagrams: for an endpoint, or for a port without a listener.
//!
//! One frame may hold many datagrams of one sender behind one header (see
//! [`Frame::segment_bytes`]).

use netdev::Frame;
use quic::{Arrival, Ecn};
use tcp::Instant;
use wire::datagram::{self, UdpPacket};
use wire::ip;

use crate::ground::Ground;
use crate::link::icmp;
use crate::quic::QuicLayer;
use crate::stack::HANDSHAKES_MAX;

/// Most handshakes that advance in a turn without a signature, as by Retry. Each costs a fraction
/// of one.
const ANSWERS_MAX: usize = 64;

/// Rest of a turn's budget for handshakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandshakeShare {
    signatures: usize,
    answers: usize,
}

impl Default for HandshakeShare {
    fn default() -> Self {
        Self {
            signatures: HANDSHAKES_MAX,
            answers: ANSWERS_MAX,
        }
    }
}

impl HandshakeShare {
    fn is_used_up(self) -> bool {
        self.signatures == 0 || self.answers == 0
    }
}

/// True if a datagram begins with a handshake packet (RFC 9000 §17.2).
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

impl QuicLayer {
    /// Handles a frame that is neither TCP nor of a link protocol.
    pub(crate) fn on_datagram_frame(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        frame: &Frame<'_>,
    ) {
        match datagram::parse(frame.bytes, frame.checksum_valid) {
            Ok(Some(packet)) => {
                if !self.hand_datagram_on(ground, &packet, frame) {
                    self.on_udp(ground, now_us, &packet, frame);
                }
            }
            Ok(None) => {}
            Err(_) => ground.counters.frames_malformed += 1,
        }
    }

    fn on_udp(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        packet: &UdpPacket<'_>,
        frame: &Frame<'_>,
    ) {
        let (source, destination) = (packet.source.ip(), packet.destination.ip());
        if ground.config.is_martian(frame.bytes, source, destination) {
            ground.counters.martians_dropped += 1;
            return;
        }
        if !packet.is_unicast() || source.is_loopback() || !ground.config.has_address(destination) {
            return;
        }
        if ground.refuses_client(now_us, source) {
            return;
        }
        let each = frame
            .segment_bytes
            .map_or(usize::MAX, |bytes| bytes.get().into());
        let datagrams = packet.payload.chunks(each);
        self.count_datagrams(ground, datagrams.len(), packet.packet.len());
        let port = packet.destination.port();
        let Some(listener) = self.listeners.iter().position(|it| it.port == port) else {
            let reply = icmp::port_unreachable(ground.link.mac, packet);
            return ground.reply_to_datagram(now_us, reply);
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
        let endpoint = &mut self.listeners[listener].endpoint;
        for payload in datagrams {
            endpoint.on_datagram(Instant::from_us(now_us), &arrival, payload);
        }
        ground.counters.quic_arrivals_dropped += endpoint.take_dropped();
    }

    /// Counts the datagrams of a frame with an IP packet of this length.
    fn count_datagrams(&mut self, ground: &mut Ground, datagrams: usize, packet_bytes: usize) {
        let counters = &mut ground.counters;
        match datagrams {
            // An empty datagram has no chunk.
            0 | 1 => {
                counters.datagrams_received += 1;
                counters.datagrams_merged += u64::from(packet_bytes > ground.link.mtu);
            }
            several => {
                counters.datagrams_received += several as u64;
                counters.datagrams_split += several as u64;
            }
        }
    }

    /// Advances waiting handshakes, a few at a time, those of each port in order.
    pub(super) fn advance_handshakes(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        share: &mut HandshakeShare,
    ) -> bool {
        let mut was_busy = false;
        loop {
            let mut busy = false;
            for listener in &mut self.listeners {
                if share.is_used_up() {
                    return was_busy;
                }
                let now = Instant::from_us(now_us);
                if listener.endpoint.needs_room() && listener.make_room(now) {
                    ground.counters.quic_idle_evictions += 1;
                    listener.warn_of_full_table(now, "idle ones are closed");
                }
                let endpoint = &mut listener.endpoint;
                match endpoint.advance_handshake(now) {
                    Some(true) => share.signatures -= 1,
                    Some(false) => share.answers -= 1,
                    None => continue,
                }
                ground.counters.quic_retries_sent += endpoint.take_retries();
                let refused = endpoint.take_refused();
                if let Some(begun) = endpoint.take_begun()
                    && let Some((remote, _)) = endpoint.addresses(begun)
                {
                    listener.idle.add(remote.ip(), begun);
                }
                if refused > 0 {
                    ground.counters.quic_connections_refused += refused;
                    listener.warn_of_full_table(now, "none is idle, and no more are accepted");
                }
                (busy, was_busy) = (true, true);
            }
            if !busy {
                return was_busy;
            }
        }
    }
}
