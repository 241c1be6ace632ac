//! Loopback: connections with both ends on this stack (RFC 1122 §3.2.1.3, RFC 4291 §2.5.3).
//!
//! A packet to an own address, or to a loopback address, never reaches a port. Its segment waits in
//! a queue, and the next turn handles it like a received frame, so that nothing here recurses. The
//! stack is one shard with one table of connections: both ends are in it, each under its own view
//! of the addresses. A packet from a wire with such a pair of addresses is a martian (RFC 1812
//! §5.3.7), and is dropped.
//!
//! Payload crosses the queue as real bytes. A range of a file has none here: the NIC stack has the
//! content, and sends to a wire. So such a connection carries no ranges ([`Io::write_file`] takes
//! none), and the server in this process, which answers with ranges, is not reachable over it.
//!
//! [`Io::write_file`]: crate::app::Io::write_file

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tcp::{Instant, Limits, Piece, Transmit};
use wire::frame::TcpPacket;
use wire::ip::Ecn;
use wire::tcp::{Header, Segment};

use crate::app::{BindingId, Owner};
use crate::ground::Ground;
use crate::tables::bindings::Destination;
use crate::tables::connections::ConnectionHandle;
use crate::tables::sources;
use crate::tables::tuple::Tuple;
use crate::tables::waiting::Waiting;
use crate::tcp::TcpLayer;

/// The MSS of both ends, in bytes. A segment fits into the smallest receive buffer that a program
/// may request: with less room, the sender would wait until its override timer expires (RFC 9293
/// §3.8.6.2.1).
const MSS: u16 = 4 << 10;

/// Segments handled per turn, as many as frames.
const BATCH: usize = 256;

/// Connections pause sending beyond this number of queued segments ...
const SEGMENTS_MAX: usize = 1024;

/// ... or this many bytes of payload.
const BYTES_MAX: usize = 2 << 20;

/// Segments of no connection are dropped beyond this number. A turn creates one for each that it
/// handles, and for each half-open connection that is due.
const BARE_SEGMENTS_MAX: usize = 8 * SEGMENTS_MAX;

const _: () = assert!(
    SEGMENTS_MAX >= 2 * BATCH,
    "connections send while a turn's batch is taken in"
);

/// A segment on its way from one own connection to another.
#[derive(Debug)]
struct Looped {
    source: IpAddr,
    destination: IpAddr,
    header: Header,
    ecn: Ecn,
    payload: Vec<u8>,
}

/// Segments in transit, and connections waiting for room.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    segments: VecDeque<Looped>,
    /// Payload of the segments, in bytes.
    bytes: usize,
    waiting: Waiting,
}

impl Loopback {
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    fn is_full(&self) -> bool {
        self.segments.len() >= SEGMENTS_MAX || self.bytes >= BYTES_MAX
    }

    fn push(&mut self, from: Tuple, header: Header, ecn: Ecn, payload: Vec<u8>) {
        self.bytes += payload.len();
        self.segments.push_back(Looped {
            source: from.local.ip(),
            destination: from.remote.ip(),
            header,
            ecn,
            payload,
        });
    }

    fn pop(&mut self) -> Option<Looped> {
        let looped = self.segments.pop_front()?;
        self.bytes -= looped.payload.len();
        Some(looped)
    }
}

/// One segment for each transmission.
fn limits(mss: u16) -> Limits {
    let mss = usize::from(mss.max(1));
    Limits {
        bytes_max: mss,
        pieces_max: contract::limits::SEGMENTS_MAX,
        real_bytes_max: mss,
        direct_bytes_max: 0,
    }
}

/// The address that the kernel substitutes for a peer's unspecified one: the bound own address, or
/// else the loopback address (connect(2), `ip_route_connect`).
pub(crate) fn peer(local: Option<SocketAddr>, remote: SocketAddr) -> SocketAddr {
    let bound = local.map(|local| local.ip());
    let bound = bound.filter(|ip| ip.is_ipv4() && !ip.is_unspecified());
    let ip = match remote.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => bound.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, remote.port())
}

/// The source address for reaching an own one: itself, or the loopback address.
pub(crate) fn source_for(own: IpAddr) -> IpAddr {
    match own {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

impl TcpLayer {
    /// True if packets to this address return to this stack.
    pub(crate) fn loops(&self, ground: &Ground, remote: IpAddr) -> bool {
        ground.config.loops(remote)
    }

    /// The address that counts as the source of a connection that a peer opens.
    pub(crate) fn source(&self, ground: &Ground, tuple: &Tuple) -> IpAddr {
        match tuple.remote.ip() {
            ip if self.loops(ground, ip) => sources::LOOPBACK,
            ip => ip,
        }
    }

    /// The initial configuration of a connection with both ends here.
    pub(crate) fn loopback_config(config: &tcp::Config) -> tcp::Config {
        tcp::Config {
            mss: MSS,
            pace: false,
            ..*config
        }
    }

    /// Hides the server's listeners from loopback: its responses are ranges of files.
    pub(crate) fn without_server(
        &self,
        ground: &Ground,
        tuple: &Tuple,
        to: Destination,
    ) -> Destination {
        let is_server = |id: BindingId| self.bindings.owner(id) == Some(Owner::SERVER);
        match to {
            Destination::Listener(id) if self.loops(ground, tuple.remote.ip()) && is_server(id) => {
                Destination::Closed
            }
            to => to,
        }
    }

    /// Handles the segments that own connections sent to each other before this turn.
    pub(crate) fn hear_loopback(&mut self, ground: &mut Ground, now_us: u64) {
        for _ in 0..self.loopback.segments.len().min(BATCH) {
            let Some(looped) = self.loopback.pop() else {
                return;
            };
            ground.counters.loopback_segments += 1;
            ground.counters.loopback_bytes += looped.payload.len() as u64;
            let packet = TcpPacket {
                source_mac: ground.link.mac,
                source: looped.source,
                destination: looped.destination,
                segment: Segment {
                    header: looped.header,
                    payload: &looped.payload,
                    ecn: looped.ecn,
                },
            };
            self.on_looped(ground, now_us, &packet);
        }
        // One that finds no room again waits behind the others.
        let room = SEGMENTS_MAX.saturating_sub(self.loopback.segments.len());
        for _ in 0..room.min(self.loopback.waiting.len()) {
            if let Some(handle) = self.loopback.waiting.take() {
                self.mark_dirty(handle);
            }
        }
    }

    /// Sends a segment without data that belongs to no connection of the table.
    pub(crate) fn loop_bare(&mut self, ground: &mut Ground, tuple: Tuple, header: &Header) {
        if self.loopback.segments.len() >= BARE_SEGMENTS_MAX {
            ground.counters.loopback_drops += 1;
            return;
        }
        let payload = Vec::new();
        self.loopback.push(tuple, *header, Ecn::NotEct, payload);
    }

    /// Sends the data of a connection to another one of this stack. False if it has to wait for
    /// room in the queue.
    #[cold]
    pub(crate) fn transmit_looped(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) -> bool {
        let Some(entry) = self.connections.get_mut(handle) else {
            return true;
        };
        let now = Instant::from_us(now_us);
        let limits = limits(entry.tcp.mss());
        loop {
            if self.loopback.is_full() {
                self.loopback.waiting.add(handle);
                return false;
            }
            let Some(transmit) = entry.tcp.poll_transmit(now, &limits) else {
                return true;
            };
            ground.counters.retransmissions += u64::from(transmit.retransmission);
            let Transmit { header, ecn, .. } = transmit;
            let payload = payload(&entry.tcp, &transmit);
            self.loopback.push(entry.tuple, header, ecn, payload);
            if let Some(transmission) = transmit.transmission {
                entry.last_transmission = transmission;
                entry.tcp.on_departed(transmission, now);
            }
        }
    }
}

/// The payload of a transmission, which has no virtual bytes.
fn payload(tcp: &tcp::Connection, transmit: &Transmit) -> Vec<u8> {
    let bytes = (transmit.range.end - transmit.range.start) as usize;
    let mut payload = Vec::with_capacity(bytes);
    for piece in tcp.pieces(transmit.range.clone()) {
        if let Piece::Real(bytes) = piece {
            payload.extend_from_slice(bytes);
        }
    }
    debug_assert_eq!(payload.len(), bytes, "no range of a file is queued");
    payload
}
