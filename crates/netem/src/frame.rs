//! Superpackets, seen as the packets that they stand for.
//!
//! A sender that leaves segmentation to the link hands over one frame for many packets, with a
//! `virtio_net_hdr` that says how to cut it. It is not cut in memory: a packet is a number, and a
//! run of packets is sent as a superpacket of its own, a changed copy of the header before a slice
//! of the payload.

use std::ops::Range;

use netdev::packet::virtio::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNetHeader,
};
use wire::ethernet;
use wire::frame::HeaderMut;
use wire::tcp::Flags;

/// A frame as it arrived.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Box<[u8]>,
    unfinished: VirtioNetHeader,
    /// Length of the headers that each of its packets has, if it stands for several.
    header_bytes: usize,
    /// Payload of each packet but the last, in bytes.
    mss: usize,
    packets: u32,
}

/// Longest run that is sent as one frame, in bytes of an IP packet: what every interface takes.
const RUN_BYTES_MAX: usize = 65_535;

impl Frame {
    /// A frame. One that says it is to be cut, but not as TCP is, counts as one packet and passes
    /// uncut.
    pub fn new(bytes: &[u8], unfinished: VirtioNetHeader) -> Frame {
        let single = || (bytes.len(), 0, 1);
        let (header_bytes, mss, packets) = packets_of(bytes, unfinished).unwrap_or_else(single);
        Frame {
            bytes: bytes.into(),
            unfinished,
            header_bytes,
            mss,
            packets,
        }
    }

    /// How many packets it stands for; at least 1.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Length of one of them on the wire, in bytes from the Ethernet header on, without its
    /// checksum.
    pub fn packet_bytes(&self, packet: u32) -> usize {
        self.header_bytes + self.payload(&(packet..packet + 1)).len()
    }

    /// How many packets, counted from one on, may leave as one frame.
    pub fn run_max(&self) -> u32 {
        let headers = self.header_bytes.saturating_sub(ethernet::HEADER_BYTES);
        (RUN_BYTES_MAX.saturating_sub(headers) / self.mss.max(1)).max(1) as u32
    }

    /// Where in the frame the payload of some of its packets lies.
    fn payload(&self, packets: &Range<u32>) -> Range<usize> {
        let at = |packet: u32| {
            let offset = (packet as usize).saturating_mul(self.mss);
            (self.header_bytes.saturating_add(offset)).min(self.bytes.len())
        };
        let end = if packets.end >= self.packets {
            self.bytes.len()
        } else {
            at(packets.end)
        };
        at(packets.start)..end
    }

    /// Some of its packets in a row as one frame: what is to be done to it, header and payload. The
    /// header is written to `header`, as a NIC that cuts would do it (Linux: `tcp_gso_segment`).
    pub fn run<'a>(
        &'a self,
        packets: Range<u32>,
        header: &'a mut Vec<u8>,
    ) -> (VirtioNetHeader, [&'a [u8]; 2]) {
        if packets == (0..self.packets) {
            return (self.unfinished, [&self.bytes, &[]]);
        }
        let payload = &self.bytes[self.payload(&packets)];
        header.clear();
        header.extend_from_slice(&self.bytes[..self.header_bytes]);
        let mut changed = HeaderMut::parse(header).expect("cut only if it can be parsed");
        let offset = packets.start as usize * self.mss;
        changed.set_seq(changed.seq().wrapping_add(offset as u32));
        if let Some(identification) = changed.identification() {
            changed.set_identification(identification.wrapping_add(packets.start as u16));
        }
        if packets.end < self.packets {
            changed.set_flags(changed.flags().without(Flags::FIN | Flags::PSH));
        }
        let mut unfinished = self.unfinished;
        if packets.start > 0 && unfinished.gso_type & GSO_ECN != 0 {
            changed.set_flags(changed.flags().without(Flags::CWR));
            unfinished.gso_type &= !GSO_ECN;
        }
        // What arrived may have had more than headers in front of its pages; the kernel refuses a
        // hint that is longer than the frame.
        unfinished.hdr_len = self.header_bytes as u16;
        if packets.len() == 1 {
            unfinished.gso_type = GSO_NONE;
            unfinished.gso_size = 0;
        }
        changed
            .finish(payload.len())
            .expect("a part is no longer than the whole");
        (unfinished, [header, payload])
    }
}

/// Length of the headers, payload of a packet, and number of packets of a TCP superpacket.
fn packets_of(bytes: &[u8], unfinished: VirtioNetHeader) -> Option<(usize, usize, u32)> {
    let tcp = [GSO_TCPV4, GSO_TCPV6].contains(&(unfinished.gso_type & !GSO_ECN));
    let completed = unfinished.flags & NEEDS_CSUM != 0;
    if !tcp || !completed || unfinished.gso_size == 0 {
        return None;
    }
    let tcp_offset = usize::from(unfinished.csum_start);
    let data_offset = usize::from(*bytes.get(tcp_offset.checked_add(12)?)? >> 4) * 4;
    let header_bytes = tcp_offset + data_offset;
    // Options of IPv4, extensions of IPv6 and tunnels are not TCP as sent by hosts.
    let mut header = bytes.get(..header_bytes)?.to_vec();
    let parsed = HeaderMut::parse(&mut header).ok()?;
    if parsed.tcp_offset() != tcp_offset {
        return None;
    }
    let mss = usize::from(unfinished.gso_size);
    let packets = (bytes.len() - header_bytes).div_ceil(mss);
    Some((header_bytes, mss, u32::try_from(packets).ok()?.max(1)))
}
