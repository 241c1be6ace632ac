use super::header_error::HeaderError;
use super::lengths::{self, IPV6_TRANSPORT_OFFSET};
use crate::checksum::Checksum;
use crate::tcp::Flags;
use crate::{ethernet, ip, tcp};

/// Ethernet, IP and TCP header of an outgoing packet, to be changed in place.
///
/// Setters leave checksums alone; [`HeaderMut::finish`] or [`HeaderMut::complete_checksum`] comes
/// last.
#[derive(Debug)]
pub struct HeaderMut<'a> {
    bytes: &'a mut [u8],
    tcp_offset: usize,
    /// Offset of TSval in `bytes`.
    timestamp_offset: Option<usize>,
}

impl<'a> HeaderMut<'a> {
    /// Checks that `bytes` is exactly one header. Its lengths and checksums may be anything.
    pub fn parse(bytes: &'a mut [u8]) -> Result<HeaderMut<'a>, HeaderError> {
        HeaderMut::find(bytes)
            .map(|(tcp_offset, timestamp_offset)| HeaderMut {
                bytes,
                tcp_offset,
                timestamp_offset,
            })
            .ok_or(HeaderError::NotTcp)
    }

    /// Returns the offsets of the TCP header and of TSval.
    fn find(bytes: &[u8]) -> Option<(usize, Option<usize>)> {
        let tcp_offset = lengths::transport_offset(bytes, ip::TCP)?;
        let tcp = &bytes[tcp_offset..];
        let tcp_len = usize::from(*tcp.get(12)? >> 4) * 4;
        if tcp_len != tcp.len() {
            return None;
        }
        let options = tcp.get(tcp::HEADER_BYTES_MIN..)?;
        let timestamp_offset =
            tcp::timestamp_value_offset(options).map(|at| tcp_offset + tcp::HEADER_BYTES_MIN + at);
        Some((tcp_offset, timestamp_offset))
    }

    /// Returns the header.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Returns the offset of the TCP header, in bytes.
    pub fn tcp_offset(&self) -> usize {
        self.tcp_offset
    }

    /// Returns true for IPv6, false for IPv4.
    pub fn ipv6(&self) -> bool {
        self.tcp_offset == IPV6_TRANSPORT_OFFSET
    }

    /// Returns the sequence number.
    pub fn seq(&self) -> u32 {
        self.u32_at(self.tcp_offset + 4)
    }

    /// Sets the sequence number.
    pub fn set_seq(&mut self, seq: u32) {
        self.set_u32_at(self.tcp_offset + 4, seq);
    }

    /// Returns the acknowledgment number.
    pub fn ack(&self) -> u32 {
        self.u32_at(self.tcp_offset + 8)
    }

    /// Returns the control bits.
    pub fn flags(&self) -> Flags {
        Flags(self.bytes[self.tcp_offset + 13])
    }

    /// Sets the control bits.
    pub fn set_flags(&mut self, flags: Flags) {
        self.bytes[self.tcp_offset + 13] = flags.0;
    }

    /// Returns TSval (RFC 7323 §3), if there is a timestamps option.
    pub fn timestamp_value(&self) -> Option<u32> {
        self.timestamp_offset.map(|at| self.u32_at(at))
    }

    /// Sets TSval. Does nothing without a timestamps option.
    pub fn set_timestamp_value(&mut self, value: u32) {
        if let Some(at) = self.timestamp_offset {
            self.set_u32_at(at, value);
        }
    }

    /// Returns the IPv4 identification; `None` for IPv6.
    pub fn identification(&self) -> Option<u16> {
        let [.., high, low] = self.u32_at(ethernet::HEADER_BYTES + 2).to_be_bytes();
        (!self.ipv6()).then_some(u16::from_be_bytes([high, low]))
    }

    /// Sets the IPv4 identification. Does nothing for IPv6.
    pub fn set_identification(&mut self, identification: u16) {
        if !self.ipv6() {
            let at = ethernet::HEADER_BYTES + 4;
            self.bytes[at..at + 2].copy_from_slice(&identification.to_be_bytes());
        }
    }

    /// Returns the largest payload that fits into an IP packet of `ip_bytes_max` bytes behind this
    /// header.
    pub fn payload_max(&self, ip_bytes_max: usize) -> usize {
        ip_bytes_max.saturating_sub(self.bytes.len() - ethernet::HEADER_BYTES)
    }

    /// Prepares the header for a port that completes the TCP checksum: lengths for `payload_len`
    /// bytes of payload, the IPv4 header checksum, and the pseudo-header sum in the TCP checksum
    /// field.
    ///
    /// An IPv4 superpacket may exceed the range of its length field. The field is then 0 and Linux
    /// uses the length of the buffer ("BIG TCP"); IPv6 would need a hop-by-hop option for that.
    pub fn finish(&mut self, payload_len: usize) -> Result<(), HeaderError> {
        let sum = self.prepare(payload_len, ip::SUPERPACKET_BYTES_MAX)?;
        self.set_tcp_checksum(sum.partial());
        Ok(())
    }

    /// Prepares the header for a port that completes nothing: as [`HeaderMut::finish`], but with
    /// the whole TCP checksum over `payload`.
    pub fn complete_checksum<'p>(
        &mut self,
        payload: impl IntoIterator<Item = &'p [u8]> + Clone,
    ) -> Result<(), HeaderError> {
        let payload_len = payload.clone().into_iter().map(<[u8]>::len).sum();
        let mut sum = self.prepare(payload_len, usize::from(u16::MAX))?;
        self.set_tcp_checksum(0);
        sum.add(&self.bytes[self.tcp_offset..]);
        for piece in payload {
            sum.add(piece);
        }
        self.set_tcp_checksum(sum.finish());
        Ok(())
    }

    /// Sets IP lengths and the IPv4 header checksum; returns the sum of the TCP pseudo-header. An
    /// IPv4 packet may have `ipv4_bytes_max` bytes.
    fn prepare(
        &mut self,
        payload_len: usize,
        ipv4_bytes_max: usize,
    ) -> Result<Checksum, HeaderError> {
        let tcp_len = (self.bytes.len() - self.tcp_offset).checked_add(payload_len);
        let too_long = HeaderError::TooLong {
            payload: payload_len,
        };
        tcp_len
            .and_then(|len| lengths::set(self.bytes, self.tcp_offset, ip::TCP, len, ipv4_bytes_max))
            .ok_or(too_long)
    }

    fn set_tcp_checksum(&mut self, checksum: u16) {
        let at = self.tcp_offset + 16;
        self.bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }

    fn octets_at<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.bytes[at..]
            .first_chunk()
            .expect("parse has checked the length")
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.octets_at(at))
    }

    fn set_u32_at(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
}
