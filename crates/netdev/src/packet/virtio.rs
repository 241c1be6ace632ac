//! `struct virtio_net_hdr` (virtio 1.2 §5.1.6): precedes each frame of a packet socket with
//! `PACKET_VNET_HDR`, and describes the work that remains to be done.

use std::num::NonZeroU16;

/// The checksum from `csum_start` on is to be completed, and goes `csum_offset` behind it.
pub const NEEDS_CSUM: u8 = 1;
/// Nothing is to be cut.
pub const GSO_NONE: u8 = 0;
/// A superpacket of TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// A superpacket of TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// A superpacket of UDP, over IPv4 or IPv6: datagrams of `gso_size` (Linux 6.2).
pub const GSO_UDP_L4: u8 = 5;
/// A flag beside the type: only the first packet that is cut has CWR (RFC 3168 §6.1.2).
pub const GSO_ECN: u8 = 0x80;

/// The header, all offsets from the start of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNetHeader {
    /// [`NEEDS_CSUM`] and others, which concern only receivers.
    pub flags: u8,
    /// [`GSO_NONE`], [`GSO_TCPV4`], …
    pub gso_type: u8,
    /// Length of all headers, in bytes; a hint.
    pub hdr_len: u16,
    /// Payload of each packet but the last, in bytes.
    pub gso_size: u16,
    /// Start of the bytes that the checksum covers, in bytes.
    pub csum_start: u16,
    /// Place of the checksum, in bytes from `csum_start`.
    pub csum_offset: u16,
}

impl VirtioNetHeader {
    /// Its length, in bytes.
    pub const BYTES: usize = 10;

    /// Returns the payload of each datagram but the last, if the frame holds several.
    pub fn datagram_bytes(self) -> Option<NonZeroU16> {
        match self.gso_type & !GSO_ECN {
            GSO_UDP_L4 => NonZeroU16::new(self.gso_size),
            _ => None,
        }
    }

    /// Returns the header in native byte order, as the kernel expects it.
    pub fn to_bytes(self) -> [u8; VirtioNetHeader::BYTES] {
        let [h0, h1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// The reverse of [`VirtioNetHeader::to_bytes`].
    pub fn from_bytes(bytes: [u8; VirtioNetHeader::BYTES]) -> VirtioNetHeader {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = bytes;
        VirtioNetHeader {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }
}
