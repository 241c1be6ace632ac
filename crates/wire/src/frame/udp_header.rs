use super::header_error::HeaderError;
use super::lengths::{self, IPV6_TRANSPORT_OFFSET};
use crate::checksum::Checksum;
use crate::datagram::HEADER_BYTES;
use crate::{ethernet, ip};

/// Offsets in the UDP header, in bytes.
const LENGTH_OFFSET: usize = 4;
const CHECKSUM_OFFSET: usize = 6;

/// Ethernet, IP and UDP header of outgoing datagrams, to be changed in place.
///
/// [`UdpHeaderMut::finish`] or [`UdpHeaderMut::complete_checksum`] comes last.
#[derive(Debug)]
pub struct UdpHeaderMut<'a> {
    bytes: &'a mut [u8],
    udp_offset: usize,
}

impl<'a> UdpHeaderMut<'a> {
    /// Checks that `bytes` is exactly one header. Its lengths and checksums may be anything.
    pub fn parse(bytes: &'a mut [u8]) -> Result<UdpHeaderMut<'a>, HeaderError> {
        let udp_offset = lengths::transport_offset(bytes, ip::UDP)
            .filter(|at| bytes.len() - at == HEADER_BYTES)
            .ok_or(HeaderError::NotUdp)?;
        Ok(UdpHeaderMut { bytes, udp_offset })
    }

    /// Returns the offset of the UDP header, in bytes.
    pub fn udp_offset(&self) -> usize {
        self.udp_offset
    }

    /// Returns true for IPv6, false for IPv4.
    pub fn ipv6(&self) -> bool {
        self.udp_offset == IPV6_TRANSPORT_OFFSET
    }

    /// Returns the IPv4 identification; `None` for IPv6.
    pub fn identification(&self) -> Option<u16> {
        let octets = lengths::octets_at(self.bytes, ethernet::HEADER_BYTES + 4);
        (!self.ipv6()).then_some(u16::from_be_bytes(octets))
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

    /// Prepares the header for a port that completes the UDP checksum: lengths for `payload_len`
    /// bytes of payload, the IPv4 header checksum, and the pseudo-header sum in the UDP checksum
    /// field. For a superpacket, the lengths are those of all its datagrams together.
    pub fn finish(&mut self, payload_len: usize) -> Result<(), HeaderError> {
        let sum = self.prepare(payload_len)?;
        self.set_checksum(sum.partial());
        Ok(())
    }

    /// Prepares the header of one datagram for a port that completes nothing: as
    /// [`UdpHeaderMut::finish`], but with the whole UDP checksum over `payload`. A sum of 0 is sent
    /// as all ones, because 0 means that there is no checksum (RFC 768).
    pub fn complete_checksum<'p>(
        &mut self,
        payload: impl IntoIterator<Item = &'p [u8]> + Clone,
    ) -> Result<(), HeaderError> {
        let payload_len = payload.clone().into_iter().map(<[u8]>::len).sum();
        let mut sum = self.prepare(payload_len)?;
        self.set_checksum(0);
        sum.add(&self.bytes[self.udp_offset..]);
        for piece in payload {
            sum.add(piece);
        }
        self.set_checksum(match sum.finish() {
            0 => u16::MAX,
            sum => sum,
        });
        Ok(())
    }

    /// Sets the lengths of IP and UDP and the IPv4 header checksum; returns the sum of the UDP
    /// pseudo-header.
    fn prepare(&mut self, payload_len: usize) -> Result<Checksum, HeaderError> {
        let too_long = HeaderError::TooLong {
            payload: payload_len,
        };
        let udp_bytes = payload_len
            .checked_add(HEADER_BYTES)
            .and_then(|bytes| u16::try_from(bytes).ok())
            .ok_or(too_long)?;
        let ip_bytes_max = usize::from(u16::MAX);
        let offset = self.udp_offset;
        let sum = lengths::set(self.bytes, offset, ip::UDP, udp_bytes.into(), ip_bytes_max);
        let length_at = offset + LENGTH_OFFSET;
        self.bytes[length_at..length_at + 2].copy_from_slice(&udp_bytes.to_be_bytes());
        sum.ok_or(too_long)
    }

    fn set_checksum(&mut self, checksum: u16) {
        let at = self.udp_offset + CHECKSUM_OFFSET;
        self.bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{DatagramHeader, HEADERS_BYTES_MAX};

    const ENDS: [[&str; 2]; 2] = [
        ["10.77.0.1:443", "10.77.0.2:5000"],
        ["[fd77::1]:443", "[fd77::2]:5000"],
    ];

    fn header(ipv6: bool) -> Vec<u8> {
        let [source, destination] = ENDS[usize::from(ipv6)].map(|end| end.parse().unwrap());
        let header = DatagramHeader {
            source_mac: [2; 6],
            destination_mac: [4; 6],
            source,
            destination,
            ecn: ip::Ecn::NotEct,
        };
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let len = header.write(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    /// Returns the sum over the pseudo-header and the datagram, as a receiver takes it; 0 if it is
    /// correct.
    fn verify(header: &[u8], payload: &[u8], ipv6: bool) -> u16 {
        let [source, destination] = ENDS[usize::from(ipv6)].map(|end| {
            let end: std::net::SocketAddr = end.parse().unwrap();
            end.ip()
        });
        let udp_offset = if ipv6 { 54 } else { 34 };
        let len = (HEADER_BYTES + payload.len()) as u32;
        let mut sum = Checksum::pseudo_header(source, destination, ip::UDP, len);
        sum.add(&header[udp_offset..]);
        sum.add(payload);
        sum.finish()
    }

    #[test]
    fn a_datagram_gets_its_lengths_and_a_checksum() {
        for ipv6 in [false, true] {
            for payload in [&b""[..], b"1", b"a datagram"] {
                let mut bytes = header(ipv6);
                let mut header = UdpHeaderMut::parse(&mut bytes).unwrap();
                assert_eq!(header.ipv6(), ipv6);
                header.complete_checksum([payload]).unwrap();
                let udp_offset = header.udp_offset();
                assert_eq!(verify(&bytes, payload, ipv6), 0);
                let udp_bytes = (8 + payload.len()) as u16;
                assert_eq!(bytes[udp_offset + 4..][..2], udp_bytes.to_be_bytes());
                let packet = &bytes[ethernet::HEADER_BYTES..];
                if ipv6 {
                    assert_eq!(packet[4..6], udp_bytes.to_be_bytes());
                } else {
                    assert_eq!(packet[2..4], (20 + udp_bytes).to_be_bytes());
                    assert_eq!(crate::checksum::of(&packet[..20]), 0);
                }
            }
        }
    }

    #[test]
    fn a_checksum_is_never_zero() {
        // One word of payload makes the sum anything.
        let mut seen = 0;
        for word in 0..=u16::MAX {
            let payload = word.to_be_bytes();
            let mut bytes = header(false);
            let mut header = UdpHeaderMut::parse(&mut bytes).unwrap();
            header.complete_checksum([&payload[..]]).unwrap();
            assert_ne!(bytes[40..42], [0, 0]);
            seen += u32::from(bytes[40..42] == [0xff, 0xff]);
        }
        assert!(seen >= 1);
    }

    #[test]
    fn a_partial_checksum_is_what_the_rest_completes() {
        for ipv6 in [false, true] {
            let payload = b"three datagrams";
            let mut bytes = header(ipv6);
            let mut header = UdpHeaderMut::parse(&mut bytes).unwrap();
            header.finish(payload.len()).unwrap();
            let udp_offset = header.udp_offset();
            let mut rest = Checksum::new();
            rest.add(&bytes[udp_offset..]);
            rest.add(payload);
            bytes[udp_offset + 6..][..2].copy_from_slice(&rest.finish().to_be_bytes());
            assert_eq!(verify(&bytes, payload, ipv6), 0);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut bytes = header(false);
        let mut v4 = UdpHeaderMut::parse(&mut bytes).unwrap();
        assert_eq!(v4.payload_max(65_535), 65_507);
        assert_eq!(v4.finish(65_507), Ok(()));
        let payload = 65_508;
        assert_eq!(v4.finish(payload), Err(HeaderError::TooLong { payload }));
        let mut bytes = header(true);
        let mut v6 = UdpHeaderMut::parse(&mut bytes).unwrap();
        assert_eq!(v6.finish(65_527), Ok(()));
        let payload = 65_528;
        assert_eq!(v6.finish(payload), Err(HeaderError::TooLong { payload }));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let not_udp = HeaderError::NotUdp;
        for ipv6 in [false, true] {
            let good = header(ipv6);
            for len in 0..good.len() {
                let parsed = UdpHeaderMut::parse(&mut good[..len].to_vec()).map(drop);
                assert_eq!(parsed, Err(not_udp));
            }
            let mut longer = [&good[..], &[0]].concat();
            assert_eq!(UdpHeaderMut::parse(&mut longer).map(drop), Err(not_udp));
            let mut tcp = good.clone();
            tcp[if ipv6 { 20 } else { 23 }] = ip::TCP;
            assert_eq!(UdpHeaderMut::parse(&mut tcp).map(drop), Err(not_udp));
        }
    }
}
