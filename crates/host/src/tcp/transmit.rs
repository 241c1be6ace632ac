//! Transmission: SENDs for the NIC stack, and the host's own packets.

use std::io::IoSlice;
use std::iter;

use contract::{FileId, Segment, SendId};
use netdev::{Offload, Port, Superpacket};
use tcp::{Instant, Piece, Transmit};
use wire::frame::{HEADER_BYTES_MAX, HeaderMut, TcpPrefix, TcpTemplate};

use crate::counters::Counters;
use crate::ground::Ground;
use crate::ground::link::send_frame;
use crate::ground::workers::{Deferred, WorkerLink};
use crate::link::neighbor::{Neighbors, Resolution};
use crate::tables::connections::{ConnectionHandle, Entry, send_id};
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;

/// Bytes that a peer may acknowledge before ACKD reports them to the NIC stack; the paper's 32 KB
/// (IO-TCP §3.5).
const ACKD_BYTES: u64 = 32 << 10;

impl TcpLayer {
    /// Transmits the connection's output; a SEND only if it `may_send`, because the NIC worker has
    /// everything that it needs for that. False if nothing can be sent, and all waits: the next hop
    /// is being resolved.
    pub(crate) fn transmit<P: Port>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
        port: &mut P,
        may_send: bool,
    ) -> bool {
        let Some(entry) = self.connections.get_mut(handle) else {
            return true;
        };
        let nic = &mut ground.workers[entry.nic.worker];
        let is_ipv6 = entry.tuple.local.is_ipv6();
        let resolved = match ground.neighbors.resolve_route(now_us, &mut entry.route) {
            Resolution::Known(mac) => {
                if let Some(prefix) = &entry.prefix
                    && prefix.destination_mac() != mac
                {
                    entry.prefix = None;
                }
                true
            }
            Resolution::Pending => {
                self.waiting_neighbor.add(handle);
                return false;
            }
            // Dropped: a connection being opened ends at once, others by their own timers.
            Resolution::Unreachable => {
                entry.tcp.on_no_route();
                false
            }
            Resolution::Own => return self.transmit_looped(ground, now_us, handle),
        };
        let mut limits = ground.link.limits(is_ipv6, entry.tcp.mss());
        if ground.config.departs_at_issue {
            // A SEND may still carry data that TCP takes for departed.
            limits.direct_bytes_max = 0;
        }
        let now = Instant::from_us(now_us);
        let mut buffer = [0; HEADER_BYTES_MAX];
        loop {
            // The SEND might read another version, or overtake what another worker has. The answer
            // to the OPEN, or the departure, marks the connection dirty again.
            let is_held = entry.nic.holds > 0;
            let takes_send = may_send && !is_held && nic.has_room();
            // Acknowledgments and resets leave even if no SEND can: they need neither room nor
            // files. Inspected in place: it is large. An `if` costs five instructions more here.
            let polled = match takes_send {
                true => entry.tcp.poll_transmit(now, &limits),
                false => entry.tcp.poll_bare(now),
            };
            let Some(transmit) = &polled else {
                if !takes_send && !is_held {
                    // If its NIC stack is gone, there may be another one by now, or no more need to
                    // wait for this one.
                    if nic.is_there() {
                        nic.waiting.add(handle);
                    } else {
                        entry.nic.is_to_move = true;
                    }
                }
                return true;
            };
            if transmit.retransmission {
                ground.counters.retransmissions += 1;
                ground.counters.retransmitted_bytes += transmit.range.end - transmit.range.start;
            }
            if let Some(transmission) = transmit.transmission {
                entry.last_transmission = transmission;
            }
            if entry.prefix.is_none() && resolved {
                make_prefix(&mut ground.neighbors, ground.link.mac, now_us, entry);
            }
            let prefix = entry.prefix.as_ref().filter(|_| resolved);
            let len =
                prefix.map(|prefix| prefix.write(&transmit.header, transmit.ecn, &mut buffer));
            // The NIC stack can delay a packet, the host cannot.
            let is_paced = transmit.not_before.is_some_and(|at| at > now);
            // Even if TCP assumes departure at issue, no packet may overtake undeparted SENDs.
            let overtakes = ground.config.departs_at_issue && entry.nic.sends_outstanding > 0;
            let below =
                transmit.has_virtual || transmit.follows_undeparted || is_paced || overtakes;
            match (len, transmit.transmission) {
                (Some(len), Some(transmission)) if below => {
                    let id = send_id(handle, transmission);
                    let header = &buffer[..len];
                    issue_send(&mut ground.counters, nic, entry, transmit, id, header);
                    ground.sends_outstanding += 1;
                    if !ground.config.departs_at_issue {
                        if transmit.is_last {
                            return true;
                        }
                        continue;
                    }
                }
                (Some(len), _) => {
                    let header = &mut buffer[..len];
                    send_own(&mut ground.counters, port, entry, transmit, header);
                }
                (None, _) => ground.counters.packets_dropped += 1,
            }
            if let Some(transmission) = transmit.transmission {
                entry.tcp.on_departed(transmission, now);
            }
        }
    }
}

/// Creates the header template for packets of a connection with a known next hop. Not before there
/// is a packet to send: many connections are parted with before.
#[cold]
#[inline(never)]
fn make_prefix(neighbors: &mut Neighbors, own_mac: [u8; 6], now_us: u64, entry: &mut Entry) {
    if let Resolution::Known(mac) = neighbors.resolve_route(now_us, &mut entry.route) {
        let Tuple { local, remote } = entry.tuple;
        let template = TcpTemplate {
            traffic_class: entry.traffic_class,
            ..TcpTemplate::new(own_mac, mac, local, remote)
        };
        entry.prefix = TcpPrefix::new(&template);
    }
}

/// Sends ACKD when enough has been acknowledged that no SEND has reported, or everything: then the
/// NIC stack can drop the flow until there is more. Or everything that has departed, because the
/// rest may be waiting for the very memory that it still takes. It also confirms that the next hop
/// lives.
pub(crate) fn acknowledge_below(
    counters: &mut Counters,
    nics: &mut [WorkerLink],
    entry: &mut Entry,
) {
    let stream_offset = entry.tcp.acknowledged_bytes();
    let news = stream_offset - entry.ackd_offset;
    let enough = news >= ACKD_BYTES
        || entry.tcp.queued_bytes() == 0
        || entry.tcp.nothing_departed_in_flight();
    if !entry.nic.is_open || news == 0 || !enough {
        return;
    }
    entry.ackd_offset = stream_offset;
    entry.route.confirm();
    let flow = entry.flow();
    counters.ackds += 1;
    nics[entry.nic.worker].send_or_defer(Deferred::Acked {
        flow,
        stream_offset,
        last: false,
    });
}

/// Issues a transmission as a SEND to a NIC stack with room for it.
fn issue_send(
    counters: &mut Counters,
    nic: &mut WorkerLink,
    entry: &mut Entry,
    transmit: &Transmit,
    id: SendId,
    header: &[u8],
) {
    let virtual_bytes = match entry.tcp.only_piece(&transmit.range) {
        _ if entry.tls.is_some() => write_sealed(nic, entry, transmit, id, header),
        Some((piece, behind)) => {
            let segments = iter::once(segment(piece));
            write_send(nic, entry, transmit, id, header, segments, behind)
        }
        None => {
            let segments = entry.tcp.pieces(transmit.range.clone()).map(segment);
            let behind = entry.tcp.virtual_bytes_behind(transmit.range.end);
            write_send(nic, entry, transmit, id, header, segments, behind)
        }
    };
    let acked_offset = entry.tcp.acknowledged_bytes();
    entry.nic.is_open = true;
    entry.nic.sends_outstanding += 1;
    counters.sends += 1;
    counters.real_bytes += transmit.range.end - transmit.range.start - virtual_bytes;
    counters.virtual_bytes += virtual_bytes;
    if acked_offset > entry.ackd_offset {
        entry.ackd_offset = acked_offset;
        entry.route.confirm();
    }
}

/// Writes a SEND whose virtual bytes are records; returns their number.
fn write_sealed(
    nic: &mut WorkerLink,
    entry: &mut Entry,
    transmit: &Transmit,
    id: SendId,
    header: &[u8],
) -> u64 {
    if let Some(tls) = entry.tls.as_mut() {
        tls.sent_end = tls.sent_end.max(transmit.range.end);
    }
    let segments = entry.tcp.pieces(transmit.range.clone());
    let segments = segments.map(|piece| match piece {
        Piece::Real(bytes) => Segment::Inline(bytes),
        Piece::Virtual { len, .. } => Segment::Sealed { len: len as u32 },
    });
    // RECORDS has reported how the files continue.
    write_send(nic, entry, transmit, id, header, segments, 0)
}

/// Writes a SEND into the ring; `virtual_bytes_behind` of its last object are queued behind it.
/// Returns the number of its virtual bytes.
fn write_send<'a>(
    nic: &mut WorkerLink,
    entry: &'a Entry,
    transmit: &Transmit,
    id: SendId,
    header: &'a [u8],
    segments: impl Iterator<Item = Segment<'a>> + Clone,
    virtual_bytes_behind: u64,
) -> u64 {
    let virtual_bytes = segments.clone().map(|segment| match segment {
        Segment::Inline(_) => 0,
        Segment::File { len, .. } | Segment::Sealed { len } => u64::from(len),
    });
    let virtual_bytes = virtual_bytes.sum();
    let follow_bytes = if transmit.retransmission {
        0
    } else {
        virtual_bytes_behind
    };
    let sent = nic.channel.send_segments(&contract::Send {
        id,
        flow: entry.flow(),
        stream_offset: transmit.range.start,
        acked_offset: entry.tcp.acknowledged_bytes(),
        issued_us: transmit.issued.as_us(),
        not_before_us: transmit.not_before.map_or(0, Instant::as_us),
        tsval_fraction_us: transmit.tsval_fraction_us,
        follow_bytes: u32::try_from(follow_bytes).unwrap_or(u32::MAX),
        mss: transmit.mss,
        header,
        segments,
    });
    debug_assert!(sent.is_ok(), "there was room");
    virtual_bytes
}

fn segment(piece: Piece<'_>) -> Segment<'_> {
    match piece {
        Piece::Real(bytes) => Segment::Inline(bytes),
        Piece::Virtual {
            object,
            offset,
            len,
        } => Segment::File {
            file: FileId(object),
            offset,
            len: len as u32,
        },
    }
}

/// Sends a packet without file bytes.
fn send_own<P: Port>(
    counters: &mut Counters,
    port: &mut P,
    entry: &Entry,
    transmit: &Transmit,
    header: &mut [u8],
) {
    let bytes = transmit.range.end - transmit.range.start;
    let mut payload = [IoSlice::new(&[]); contract::limits::SEGMENTS_MAX];
    let mut pieces = 0;
    let real = entry
        .tcp
        .pieces(transmit.range.clone())
        .filter_map(|piece| match piece {
            Piece::Real(bytes) => Some(IoSlice::new(bytes)),
            Piece::Virtual { .. } => None,
        });
    for (slot, piece) in payload.iter_mut().zip(real) {
        *slot = piece;
        pieces += 1;
    }
    let mut offload = Offload::None;
    if let Ok(mut view) = HeaderMut::parse(header)
        && view.finish(bytes as usize).is_ok()
    {
        offload = Offload::Tcp {
            tcp_offset: view.tcp_offset() as u16,
            mss: transmit.mss,
            ipv6: view.ipv6(),
        };
    }
    let packet = Superpacket {
        header,
        payload: &payload[..pieces],
        offload,
    };
    send_frame(counters, port, &packet);
    counters.real_bytes += bytes;
}
