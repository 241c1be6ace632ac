//! Superpackets, viewed as the packets that they represent.
//!
//! A sender that leaves segmentation to the link passes one frame for many packets, with a
//! `virtio_net_hdr` that describes the segmentation. The frame is not segmented in memory: a packet
//! is a number, and a run of packets is sent as a superpacket of its own, a changed copy of the
//! header before a slice of the payload.

use std::ops::Range;

use netdev::packet::virtio::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader,
};
use wire::datagram;
use wire::ethernet;
use wire::frame::{HeaderMut, UdpHeaderMut};
use wire::tcp::Flags;

/// A frame as it arrived.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Box<[u8]>,
    unfinished: VirtioNetHeader,
    /// Segmentation of the frame.
    cut: Cut,
}

/// Segmentation of a superpacket. Other frames have no headers here, and all bytes are one packet.
#[derive(Clone, Copy, Debug)]
struct Cut {
    protocol: Protocol,
    /// Length of each packet's headers, in bytes.
    header_bytes: usize,
    /// Payload of each packet but the last, in bytes.
    payload_bytes: usize,
    packets: u32,
}

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Tcp,
    Udp,
}

/// Longest run sent as one frame, in bytes of an IP packet: every interface accepts it.
const RUN_BYTES_MAX: usize = 65_535;

impl Frame {
    /// Returns a frame. A frame with segmentation, but neither of TCP nor of UDP, counts as one
    /// packet and passes unsegmented.
    pub fn new(bytes: &[u8], unfinished: VirtioNetHeader) -> Frame {
        let whole = Cut {
            protocol: Protocol::Tcp,
            header_bytes: bytes.len(),
            payload_bytes: 0,
            packets: 1,
        };
        Frame {
            bytes: bytes.into(),
            unfinished,
            cut: Cut::of(bytes, unfinished).unwrap_or(whole),
        }
    }

    /// Returns the number of packets that it represents; at least 1.
    pub fn packets(&self) -> u32 {
        self.cut.packets
    }

    /// Returns the length of a packet on the wire, in bytes from the Ethernet header on, without
    /// its checksum.
    pub fn packet_bytes(&self, packet: u32) -> usize {
        self.cut.header_bytes + self.payload(&(packet..packet + 1)).len()
    }

    /// Returns the number of consecutive packets that may leave as one frame.
    pub fn run_max(&self) -> u32 {
        let headers = self.cut.header_bytes;
        let headers = headers.saturating_sub(ethernet::HEADER_BYTES);
        let payload_bytes = self.cut.payload_bytes.max(1);
        (RUN_BYTES_MAX.saturating_sub(headers) / payload_bytes).max(1) as u32
    }

    /// Returns the range in the frame of some packets' payload.
    fn payload(&self, packets: &Range<u32>) -> Range<usize> {
        let at = |packet: u32| {
            let offset = (packet as usize).saturating_mul(self.cut.payload_bytes);
            (self.cut.header_bytes.saturating_add(offset)).min(self.bytes.len())
        };
        let end = if packets.end >= self.cut.packets {
            self.bytes.len()
        } else {
            at(packets.end)
        };
        at(packets.start)..end
    }

    /// Returns consecutive packets as one frame: its offload, header and payload. The header is
    /// written to `header`, as a NIC that segments would write it (Linux: `tcp_gso_segment`,
    /// `__udp_gso_segment`).
    pub fn run<'a>(
        &'a self,
        packets: Range<u32>,
        header: &'a mut Vec<u8>,
    ) -> (VirtioNetHeader, [&'a [u8]; 2]) {
        if packets == (0..self.cut.packets) {
            return (self.unfinished, [&self.bytes, &[]]);
        }
        let payload = &self.bytes[self.payload(&packets)];
        header.clear();
        header.extend_from_slice(&self.bytes[..self.cut.header_bytes]);
        let mut unfinished = self.unfinished;
        match self.cut.protocol {
            Protocol::Tcp => self.change_tcp(&packets, header, payload.len(), &mut unfinished),
            Protocol::Udp => change_udp(&packets, header, payload.len()),
        }
        // The arrived frame may have had more than headers before its pages; the kernel refuses a
        // hint that is longer than the frame.
        unfinished.hdr_len = self.cut.header_bytes as u16;
        if packets.len() == 1 {
            unfinished.gso_type = GSO_NONE;
            unfinished.gso_size = 0;
        }
        (unfinished, [header, payload])
    }

    fn change_tcp(
        &self,
        packets: &Range<u32>,
        header: &mut [u8],
        payload_bytes: usize,
        unfinished: &mut VirtioNetHeader,
    ) {
        let mut changed = HeaderMut::parse(header).expect("cut only if it can be parsed");
        let offset = packets.start as usize * self.cut.payload_bytes;
        changed.set_seq(changed.seq().wrapping_add(offset as u32));
        if let Some(identification) = changed.identification() {
            changed.set_identification(identification.wrapping_add(packets.start as u16));
        }
        if packets.end < self.cut.packets {
            changed.set_flags(changed.flags().without(Flags::FIN | Flags::PSH));
        }
        if packets.start > 0 && unfinished.gso_type & GSO_ECN != 0 {
            changed.set_flags(changed.flags().without(Flags::CWR));
            unfinished.gso_type &= !GSO_ECN;
        }
        changed
            .finish(payload_bytes)
            .expect("a part is no longer than the whole");
    }
}

fn change_udp(packets: &Range<u32>, header: &mut [u8], payload_bytes: usize) {
    let mut changed = UdpHeaderMut::parse(header).expect("cut only if it can be parsed");
    if let Some(identification) = changed.identification() {
        changed.set_identification(identification.wrapping_add(packets.start as u16));
    }
    changed
        .finish(payload_bytes)
        .expect("a part is no longer than the whole");
}

impl Cut {
    /// Returns `None` if the frame is no superpacket of TCP or UDP.
    fn of(bytes: &[u8], unfinished: VirtioNetHeader) -> Option<Cut> {
        let completed = unfinished.flags & NEEDS_CSUM != 0;
        if !completed || unfinished.gso_size == 0 {
            return None;
        }
        let offset = usize::from(unfinished.csum_start);
        let (protocol, header_bytes) = match unfinished.gso_type & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 => {
                let data_offset = usize::from(*bytes.get(offset.checked_add(12)?)? >> 4) * 4;
                (Protocol::Tcp, offset + data_offset)
            }
            GSO_UDP_L4 => (Protocol::Udp, offset + datagram::HEADER_BYTES),
            _ => return None,
        };
        // IPv4 options, IPv6 extension headers and tunnels are not expected from hosts.
        let mut header = bytes.get(..header_bytes)?.to_vec();
        let found = match protocol {
            Protocol::Tcp => HeaderMut::parse(&mut header).ok()?.tcp_offset(),
            Protocol::Udp => UdpHeaderMut::parse(&mut header).ok()?.udp_offset(),
        };
        if found != offset {
            return None;
        }
        let payload_bytes = usize::from(unfinished.gso_size);
        let packets = (bytes.len() - header_bytes).div_ceil(payload_bytes);
        Some(Cut {
            protocol,
            header_bytes,
            payload_bytes,
            packets: u32::try_from(packets).ok()?.max(1),
        })
    }
}
