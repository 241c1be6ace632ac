//! How far a stream has departed, and the resets that stand there when the host process has died.

use contract::limits::HEADER_BYTES_MAX;
use wire::frame::{HeaderMut, TcpTemplate};
use wire::tcp::{Flags, Header};

use crate::job::Job;
use crate::packet::PacketHeader;

/// The SEND that has departed furthest in its stream.
#[derive(Clone, Debug)]
pub(crate) struct Departed {
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: u8,
    stream_offset: u64,
    /// How much of it has departed, in bytes.
    bytes: u32,
}

const _: () = assert!(
    HEADER_BYTES_MAX <= u8::MAX as usize,
    "the length of a header is a byte"
);

impl Departed {
    /// `bytes` of a SEND have departed.
    pub(crate) fn of(job: &Job, bytes: u32) -> Departed {
        let (header, header_bytes) = job.header_and_room();
        Departed {
            header: *header,
            header_bytes: header_bytes as u8,
            stream_offset: job.stream_offset,
            bytes,
        }
    }

    pub(crate) fn end_offset(&self) -> u64 {
        self.stream_offset.wrapping_add(self.bytes.into())
    }

    /// All of a SEND has departed. A retransmission changes nothing.
    #[inline]
    pub(crate) fn advance(&mut self, job: &Job) {
        let bytes = job.payload_len as u32;
        if job.stream_offset.wrapping_add(bytes.into()) >= self.end_offset() {
            let (header, header_bytes) = job.header_and_room();
            self.header = *header;
            self.header_bytes = header_bytes as u8;
            self.stream_offset = job.stream_offset;
            self.bytes = bytes;
        }
    }

    /// Resets for the peer: behind all that has departed, and where acknowledgments have stopped,
    /// which is at `acked_offset` of the stream.
    pub(crate) fn resets(&self, acked_offset: u64) -> impl Iterator<Item = PacketHeader> {
        let mut header = self.header;
        let bytes = &mut header[..usize::from(self.header_bytes)];
        let sent = HeaderMut::parse(bytes).ok();
        let sent = sent.map(|sent| (sent.seq(), sent.ack(), sent.flags()));
        let template = TcpTemplate::parse(&self.header[..usize::from(self.header_bytes)]);
        let (Some((seq, ack, flags)), Some(mut template)) = (sent, template) else {
            return [None, None].into_iter().flatten();
        };
        // Not ECN-capable (RFC 3168 §6.1.5).
        template.traffic_class &= !3;
        // SYN and FIN take a sequence number each (RFC 9293 §3.4).
        let one_if = |flag| u32::from(flags.contains(flag));
        let end = seq
            .wrapping_add(one_if(Flags::SYN))
            .wrapping_add(self.bytes);
        let in_flight = self.end_offset().saturating_sub(acked_offset);
        let acked = end.wrapping_sub(u32::try_from(in_flight).unwrap_or(0));
        let end = end.wrapping_add(one_if(Flags::FIN));
        let reset = |seq| {
            let header = Header {
                seq,
                ack,
                flags: Flags::RST | Flags::ACK,
                ..Header::default()
            };
            PacketHeader::new(&template, &header)
        };
        let at_acked = if acked == end { None } else { reset(acked) };
        [reset(end), at_acked].into_iter().flatten()
    }

    /// FIN is on the last packet, which has not departed.
    pub(crate) fn without_fin(mut self) -> Departed {
        let bytes = &mut self.header[..usize::from(self.header_bytes)];
        if let Ok(mut header) = HeaderMut::parse(bytes) {
            header.set_flags(header.flags().without(Flags::FIN));
        }
        self
    }
}
