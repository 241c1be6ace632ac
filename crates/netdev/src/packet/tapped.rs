//! Frames taken by a tap, and the datagrams that a frame may hold.

use std::num::NonZeroU16;

use wire::ethernet;
use wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};

use crate::segment;

/// A frame that a tap has taken.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// Time of sending or reception, in nanoseconds of the realtime clock.
    pub time_ns: u64,
    /// Its length, in bytes.
    pub len: usize,
    /// Its first bytes, as many as were requested.
    pub bytes: &'a [u8],
}

impl Tapped<'_> {
    /// Hands over the datagrams of a superpacket of UDP, each with `payload_bytes` of payload, the
    /// last one maybe fewer; their headers are as a network card makes them. A datagram that was
    /// not taken in whole has the checksum of the pseudo-header. False if this is no such
    /// superpacket.
    pub(super) fn cut(
        &self,
        payload_bytes: NonZeroU16,
        snaplen: usize,
        handle: &mut dyn FnMut(Tapped<'_>),
    ) -> bool {
        let payload_bytes = usize::from(payload_bytes.get());
        let Some(header_bytes) = header_bytes(self.bytes) else {
            return false;
        };
        let Some((header, taken)) = self.bytes.split_at_checked(header_bytes) else {
            return false;
        };
        let whole = self.len.saturating_sub(header_bytes);
        for datagram in 0..whole.div_ceil(payload_bytes) {
            let start = datagram * payload_bytes;
            let len = payload_bytes.min(whole - start);
            let piece = taken.get(start..).unwrap_or_default();
            let piece = &piece[..piece.len().min(len)];
            let Ok(mut frame) = segment::nth_datagram(header, datagram, piece, len) else {
                return false;
            };
            frame.truncate(snaplen);
            handle(Tapped {
                time_ns: self.time_ns,
                len: header_bytes + len,
                bytes: &frame,
            });
        }
        true
    }
}

/// Returns the length of Ethernet, IP and UDP header, if there are no options or extensions; `None`
/// if this is no IP.
fn header_bytes(frame: &[u8]) -> Option<usize> {
    let (link, _) = ethernet::Header::parse(frame)?;
    let ip = match link.ether_type {
        ethernet::IPV4 => IPV4_HEADER_BYTES,
        ethernet::IPV6 => IPV6_HEADER_BYTES,
        _ => return None,
    };
    Some(ethernet::HEADER_BYTES + ip + wire::datagram::HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::datagram::{self, DatagramHeader, HEADERS_BYTES_MAX};
    use wire::frame::UdpHeaderMut;
    use wire::ip;

    const PAYLOAD_BYTES: u16 = 1200;

    /// Returns a superpacket of this payload, as a port hands it to the kernel.
    fn superpacket(ends: [&str; 2], payload: &[u8]) -> Vec<u8> {
        let [source, destination] = ends.map(|end| end.parse().unwrap());
        let header = DatagramHeader {
            source_mac: [2; 6],
            destination_mac: [4; 6],
            source,
            destination,
            ecn: ip::Ecn::Ect0,
        };
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let len = header.write(&mut buffer).unwrap();
        let mut frame = buffer[..len].to_vec();
        let mut header = UdpHeaderMut::parse(&mut frame).unwrap();
        header.finish(payload.len()).unwrap();
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns the datagrams of the first `taken` bytes: each frame's length, and its bytes taken.
    fn cut(frame: &[u8], taken: usize) -> Option<Vec<(usize, Vec<u8>)>> {
        let tapped = Tapped {
            time_ns: 7,
            len: frame.len(),
            bytes: &frame[..taken.min(frame.len())],
        };
        let mut found = Vec::new();
        let payload_bytes = NonZeroU16::new(PAYLOAD_BYTES).unwrap();
        let is_cut = tapped.cut(payload_bytes, taken, &mut |datagram| {
            assert_eq!(datagram.time_ns, 7);
            found.push((datagram.len, datagram.bytes.to_vec()));
        });
        is_cut.then_some(found)
    }

    const ENDS: [[&str; 2]; 2] = [
        ["10.77.0.1:443", "10.77.0.2:5000"],
        ["[fd77::1]:443", "[fd77::2]:5000"],
    ];

    #[test]
    fn a_superpacket_is_datagrams_that_a_receiver_finds_sound() {
        let payload: Vec<u8> = (0..3 * 1200 + 17_u32).map(|at| (at * 7) as u8).collect();
        for ends in ENDS {
            let found = cut(&superpacket(ends, &payload), 300_000).expect("a superpacket");
            assert_eq!(found.len(), 4);
            let mut received = Vec::new();
            for (len, frame) in found {
                assert_eq!(len, frame.len());
                let packet = datagram::parse(&frame, false).expect("sound").expect("UDP");
                assert_eq!(packet.source.to_string(), ends[0]);
                assert_eq!(packet.ecn, ip::Ecn::Ect0);
                received.extend_from_slice(packet.payload);
            }
            assert!(received == payload, "other bytes");
        }
    }

    #[test]
    fn of_what_was_not_taken_the_headers_are_known() {
        for ends in ENDS {
            let frame = superpacket(ends, &[7; 2 * 1200 + 1]);
            let header = frame.len() - (2 * 1200 + 1);
            let found = cut(&frame, 114).expect("a superpacket");
            let lens: Vec<_> = found
                .iter()
                .map(|(len, taken)| (*len, taken.len()))
                .collect();
            let whole = header + 1200;
            assert_eq!(lens, [(whole, 114), (whole, header), (header + 1, header)]);
            for (len, taken) in found {
                let udp_bytes = u16::from_be_bytes([taken[header - 4], taken[header - 3]]);
                assert_eq!(usize::from(udp_bytes), len - header + 8);
            }
        }
    }

    #[test]
    fn what_is_no_superpacket_of_udp_is_not_cut() {
        let mut tcp = superpacket(ENDS[0], &[7; 3000]);
        tcp[23] = ip::TCP;
        assert_eq!(cut(&tcp, 300_000), None);
        let mut arp = superpacket(ENDS[0], &[7; 3000]);
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(cut(&arp, 300_000), None);
        let frame = superpacket(ENDS[1], &[7; 3000]);
        for taken in 0..62 {
            assert_eq!(cut(&frame, taken), None, "{taken} bytes");
        }
    }
}
