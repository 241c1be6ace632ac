//! How far a stream has departed, and the RSTs sent if the host process dies.

use wire::frame::{HeaderMut, TcpTemplate};
use wire::tcp::{self, Flags, Header};
use wire::{ethernet, ip};

use crate::job::Job;
use crate::packet::PacketHeader;

/// Ethernet, IPv6 and TCP header; a reset has no options.
const KEPT_BYTES: usize = ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES + tcp::HEADER_BYTES_MIN;

/// The SEND that has departed furthest in its stream.
#[derive(Clone, Debug)]
pub(crate) struct Departed {
    /// Start of its header, copied at a fixed length; parsed as IPv4 or IPv6 when needed.
    header: [u8; KEPT_BYTES],
    /// Bytes of the SEND that have departed.
    bytes: u32,
    /// End in the stream of the departed bytes.
    end_offset: u64,
}

impl Departed {
    /// Returns the state after `bytes` of a SEND have departed.
    pub(crate) fn of(job: &Job, bytes: u32) -> Departed {
        Departed {
            header: *job.header_start(),
            bytes,
            end_offset: job.stream_offset.wrapping_add(bytes.into()),
        }
    }

    pub(crate) fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Records the departure of a whole SEND. A retransmission changes nothing.
    #[inline]
    pub(crate) fn advance(&mut self, job: &Job) {
        let bytes = job.payload_len as u32;
        let end_offset = job.stream_offset.wrapping_add(bytes.into());
        if end_offset >= self.end_offset {
            self.header = *job.header_start();
            self.bytes = bytes;
            self.end_offset = end_offset;
        }
    }

    /// The header without options.
    fn header(&mut self) -> Option<HeaderMut<'_>> {
        let (link, _) = ethernet::Header::parse(&self.header)?;
        let ip_bytes = match link.ether_type {
            ethernet::IPV6 => ip::IPV6_HEADER_BYTES,
            _ => ip::IPV4_HEADER_BYTES,
        };
        let tcp_offset = ethernet::HEADER_BYTES + ip_bytes;
        let bytes = &mut self.header[..tcp_offset + tcp::HEADER_BYTES_MIN];
        // The data offset (RFC 9293 §3.1).
        bytes[tcp_offset + 12] = (tcp::HEADER_BYTES_MIN as u8 / 4) << 4;
        HeaderMut::parse(bytes).ok()
    }

    /// Returns resets for the peer: at the end of the departed bytes, and at `acked_offset` of the
    /// stream, the last acknowledgment.
    pub(crate) fn resets(&self, acked_offset: u64) -> impl Iterator<Item = PacketHeader> {
        let mut copy = self.clone();
        let sent = copy.header().and_then(|sent| {
            let template = TcpTemplate::parse(sent.bytes())?;
            Some((sent.seq(), sent.ack(), sent.flags(), template))
        });
        let Some((seq, ack, flags, mut template)) = sent else {
            return [None, None].into_iter().flatten();
        };
        // Not ECN-capable (RFC 3168 §6.1.5).
        template.traffic_class &= !3;
        // SYN and FIN take a sequence number each (RFC 9293 §3.4).
        let one_if = |flag| u32::from(flags.contains(flag));
        let end = seq
            .wrapping_add(one_if(Flags::SYN))
            .wrapping_add(self.bytes);
        // The host may have sent more than has departed here, and the peer acknowledged that.
        let acked = match acked_offset.checked_sub(self.end_offset) {
            Some(beyond) => end.wrapping_add(u32::try_from(beyond).unwrap_or(0)),
            None => {
                let in_flight = self.end_offset - acked_offset;
                end.wrapping_sub(u32::try_from(in_flight).unwrap_or(0))
            }
        };
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

    /// Removes FIN: it is on the last packet, which has not departed.
    pub(crate) fn without_fin(mut self) -> Departed {
        if let Some(mut header) = self.header() {
            header.set_flags(header.flags().without(Flags::FIN));
        }
        self
    }
}
