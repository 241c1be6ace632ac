//! CONNECTION_CLOSE for the peer of a QUIC flow.

use contract::limits::{HEADER_BYTES_MAX, QUIC_CONNECTION_ID_BYTES_MAX};
use contract::tls::TAG_BYTES;
use wire::frame::UdpHeaderMut;

use crate::job::{Job, JobSegment};

/// Bytes of the packet number.
const NUMBER_BYTES: usize = 4;

/// Distance from the last packet number accepted to the number of the closing packet. Another
/// worker may have the key already, if this one has not yet read the command to forget the flow,
/// and continues from the next number. It cannot get that far while this one reads no commands: a
/// worker that does not move for seconds is replaced, and 2³⁰ packets take a minute at 200 Gbit/s.
/// A receiver decodes a number that is less than 2³¹ ahead (RFC 9000 §A.3).
const NUMBERS_AHEAD: u64 = 1 << 30;

/// Behind all packet numbers (RFC 9000 §12.3).
const NUMBERS_END: u64 = 1 << 62;

/// CONNECTION_CLOSE of type 0x1c: INTERNAL_ERROR, by no frame, without a reason (RFC 9000 §19.19,
/// §20.1).
const FRAME: [u8; 4] = [0x1c, 0x01, 0x00, 0x00];

/// Destination of the last datagram of a flow.
#[derive(Debug)]
pub(crate) struct LastDatagram {
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: u8,
    /// The connection ID of the peer.
    id: [u8; QUIC_CONNECTION_ID_BYTES_MAX],
    id_bytes: u8,
    /// Generation of the key that has sealed it.
    generation: u32,
}

/// A packet that closes a connection, not sealed yet.
#[derive(Debug)]
pub(crate) struct Close {
    /// Its key.
    pub(crate) generation: u32,
    /// Its number.
    pub(crate) number: u64,
    /// Bytes of its header, with the packet number.
    pub(crate) header_bytes: usize,
    /// Header, plaintext, and room for the tag.
    pub(crate) packet: Vec<u8>,
}

impl LastDatagram {
    /// Returns the last datagram of a QSEND. `None` if it has none.
    pub(crate) fn of(job: &Job) -> Option<LastDatagram> {
        let packet = job.packets.last()?;
        let Some(&JobSegment::Inline { start, .. }) = job.segments.get(packet.segments.start)
        else {
            return None;
        };
        let short = job.inline.get(start + packet.prefix_bytes..)?;
        let short = short.get(..packet.header_bytes)?;
        let number_bytes = usize::from(short.first()? & 3) + 1;
        let peer = short.get(1..packet.header_bytes.checked_sub(number_bytes)?)?;
        let mut id = [0; QUIC_CONNECTION_ID_BYTES_MAX];
        id.get_mut(..peer.len())?.copy_from_slice(peer);
        let (header, header_bytes) = job.header_and_room();
        Some(LastDatagram {
            header: *header,
            header_bytes: header_bytes as u8,
            id,
            id_bytes: peer.len() as u8,
            generation: packet.generation,
        })
    }

    /// Returns the packet that closes the connection. All numbers before `next_number` may have
    /// been sealed.
    pub(crate) fn close(&self, next_number: u64) -> Option<Close> {
        let number = next_number.checked_add(NUMBERS_AHEAD)?;
        if number >= NUMBERS_END {
            return None;
        }
        let mut packet = Vec::with_capacity(64);
        // A short header: the fixed bit, the key phase, a number of four bytes.
        let phase = (self.generation & 1) as u8;
        packet.push(0x40 | phase << 2 | (NUMBER_BYTES - 1) as u8);
        packet.extend_from_slice(&self.id[..usize::from(self.id_bytes)]);
        packet.extend_from_slice(&(number as u32).to_be_bytes());
        let header_bytes = packet.len();
        packet.extend_from_slice(&FRAME);
        packet.resize(packet.len() + TAG_BYTES, 0);
        Some(Close {
            generation: self.generation,
            number,
            header_bytes,
            packet,
        })
    }

    /// Returns Ethernet, IP and UDP header of a datagram of this length, and the offset of UDP.
    pub(crate) fn header(&self, payload_bytes: usize) -> Option<(Vec<u8>, usize, bool)> {
        let mut bytes = self.header[..usize::from(self.header_bytes)].to_vec();
        let mut header = UdpHeaderMut::parse(&mut bytes).ok()?;
        header.finish(payload_bytes).ok()?;
        let (udp_offset, ipv6) = (header.udp_offset(), header.ipv6());
        Some((bytes, udp_offset, ipv6))
    }
}
