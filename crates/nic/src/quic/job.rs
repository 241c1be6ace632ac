//! Turns a QSEND into a job, whose payload is the concatenated datagrams.

use contract::limits::QUIC_DATAGRAM_BYTES_MAX;
use contract::quic::{QuicPacket, QuicSend};
use contract::tls::TAG_BYTES;
use contract::{FileId, RejectReason, Segment};
use netdev::UDP_SUPERPACKET_BYTES_MAX;
use wire::frame::UdpHeaderMut;

use crate::buffer::BLOCK_BYTES;
use crate::files::Files;
use crate::job::{Job, JobKind, JobPacket, JobSegment};
use crate::slab::Key;

const _: () = assert!(
    QUIC_DATAGRAM_BYTES_MAX <= u16::MAX as usize,
    "the payload of a packet has 16 bits"
);

impl Job {
    /// Accepts a QSEND, if a port with superpackets of at most `superpacket_max(ipv6)` bytes can
    /// send it, and no packet needs more than `blocks_max` blocks. Acquires neither files nor
    /// packet numbers.
    pub(super) fn accept_datagrams(
        &mut self,
        send: &QuicSend<'_>,
        superpacket_max: impl Fn(bool) -> usize,
        blocks_max: usize,
        files: &Files,
    ) -> Result<(), RejectReason> {
        self.reset(JobKind::Datagrams, send.id, send.flow, send.issued_us);
        let header = self.set_header(send.header)?;
        let header = UdpHeaderMut::parse(header).map_err(|_| RejectReason::BadHeader)?;
        let ip_bytes_max = superpacket_max(header.ipv6()).min(UDP_SUPERPACKET_BYTES_MAX);
        let payload_max = header.payload_max(ip_bytes_max);
        let mut last = None;
        for (packet, segments) in send.each() {
            let start = self.payload_len;
            let resolve = |file, offset, len| resolve(files, &mut last, file, offset, len);
            self.push_packet(packet, segments, blocks_max, resolve)?;
            if start == 0 {
                self.mss = self.payload_len as u16;
            }
        }
        let datagram_bytes = usize::from(self.mss);
        // A port with less room has a link with a smaller MTU, and will report an error.
        self.superpacket_payload = (payload_max - payload_max % datagram_bytes).max(datagram_bytes);
        Ok(())
    }

    fn push_packet(
        &mut self,
        packet: &QuicPacket<'_>,
        segments: &[Segment<'_>],
        blocks_max: usize,
        mut resolve: impl FnMut(FileId, u64, u32) -> Result<JobSegment, RejectReason>,
    ) -> Result<(), RejectReason> {
        let (first, start) = (self.segments.len(), self.inline.len());
        self.inline.extend_from_slice(packet.prefix);
        self.inline.extend_from_slice(packet.header);
        let len = self.inline.len() - start;
        self.payload_len += len;
        self.segments.push(JobSegment::Inline { start, len });
        let mut blocks = 0;
        for segment in segments {
            match *segment {
                Segment::Inline(bytes) => self.push_inline(bytes),
                Segment::File { file, offset, len } => {
                    let segment = resolve(file, offset, len)?;
                    blocks += blocks_of(offset, len);
                    self.payload_len += segment.len();
                    self.segments.push(segment);
                }
                // Sealed segments never decode in a QSEND.
                Segment::Sealed { .. } => return Err(RejectReason::Malformed),
            }
        }
        // All blocks must be in memory at once.
        if blocks > blocks_max {
            return Err(RejectReason::Malformed);
        }
        self.payload_len += TAG_BYTES;
        self.packets.push(JobPacket {
            number: packet.number,
            generation: packet.generation,
            prefix_bytes: packet.prefix.len(),
            header_bytes: packet.header.len(),
            segments: first..self.segments.len(),
        });
        Ok(())
    }

    /// Appends inline bytes to a packet whose header is present: to its last segment, if that is
    /// inline too.
    fn push_inline(&mut self, bytes: &[u8]) {
        let (start, len) = (self.inline.len(), bytes.len());
        self.inline.extend_from_slice(bytes);
        self.payload_len += len;
        if let Some(JobSegment::Inline { len: last, .. }) = self.segments.last_mut() {
            *last += len;
        } else {
            self.segments.push(JobSegment::Inline { start, len });
        }
    }
}

/// Resolves a range of a file; `last` caches the file named last.
fn resolve(
    files: &Files,
    last: &mut Option<(FileId, Key)>,
    id: FileId,
    offset: u64,
    len: u32,
) -> Result<JobSegment, RejectReason> {
    let file = match *last {
        Some((last, file)) if last == id => file,
        _ => files.find(id).ok_or(RejectReason::UnknownFile)?,
    };
    *last = Some((id, file));
    JobSegment::of_file(files, file, offset, len)
}

/// How many blocks a range of a file spans. `len` is not zero.
fn blocks_of(offset: u64, len: u32) -> usize {
    let last = offset.saturating_add(u64::from(len).saturating_sub(1));
    let block_bytes = BLOCK_BYTES as u64;
    (last / block_bytes - offset / block_bytes + 1) as usize
}
