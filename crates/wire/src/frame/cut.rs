//! Frames that are too long for their carrier.

use crate::tcp::Flags;
use crate::{ethernet, ip};

/// Returns the first `bytes_max` bytes of a frame with a TCP segment, as a frame of its own: as if
/// the rest were a separate segment that has been lost. Lengths and IPv4's checksum are corrected,
/// TCP's checksum is not, so that the frame is only for receivers that do not verify it. `None` if
/// the headers are longer, or the frame is no such frame.
pub fn cut(frame: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let (tcp_offset, end) = headers_bytes(frame)?;
    if end > bytes_max {
        return None;
    }
    let mut cut = frame[..bytes_max.min(frame.len())].to_vec();
    set_lengths(&mut cut)?;
    // FIN and PSH belong to the last byte.
    if cut.len() < frame.len() {
        let Flags(last) = Flags::FIN | Flags::PSH;
        cut[tcp_offset + 13] &= !last;
    }
    Some(cut)
}

/// Returns the start and the end of the TCP header.
fn headers_bytes(frame: &[u8]) -> Option<(usize, usize)> {
    let (link, packet) = ethernet::Header::parse(frame)?;
    let ip_bytes = match link.ether_type {
        ethernet::IPV4 => usize::from(packet.first()? & 0x0f) * 4,
        ethernet::IPV6 if *packet.get(6)? == ip::TCP => ip::IPV6_HEADER_BYTES,
        _ => return None,
    };
    let tcp_offset = ethernet::HEADER_BYTES + ip_bytes;
    let end = tcp_offset + usize::from(*frame.get(tcp_offset + 12)? >> 4) * 4;
    (end <= frame.len()).then_some((tcp_offset, end))
}

/// Sets the length in the IP header, and the checksum of IPv4, to those of the frame.
fn set_lengths(frame: &mut [u8]) -> Option<()> {
    let (tcp_offset, _) = headers_bytes(frame)?;
    let ip_bytes = tcp_offset - ethernet::HEADER_BYTES;
    let is_ipv4 = ethernet::Header::parse(frame)?.0.ether_type == ethernet::IPV4;
    let packet = &mut frame[ethernet::HEADER_BYTES..];
    if is_ipv4 {
        let len = u16::try_from(packet.len()).ok()?;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[10..12].fill(0);
        let sum = crate::checksum::of(&packet[..ip_bytes]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = u16::try_from(packet.len() - ip::IPV6_HEADER_BYTES).ok()?;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
    }
    Some(())
}

/// Cuts a frame with a TCP segment into frames of at most `payload_bytes_max` bytes of payload
/// each, as if they had been sent so: sequence numbers go on, FIN and PSH go with the last, CWR
/// with the first. Checksums are as in [`cut`]. Yields nothing if the frame is no such frame.
pub fn pieces(frame: &[u8], payload_bytes_max: usize) -> impl Iterator<Item = Vec<u8>> {
    let payload_bytes_max = payload_bytes_max.max(1);
    let headers = headers_bytes(frame);
    let payload_bytes = headers.map_or(0, |(_, end)| frame.len() - end);
    let count = headers.map_or(0, |_| payload_bytes.div_ceil(payload_bytes_max).max(1));
    (0..count).filter_map(move |index| {
        let (tcp_offset, end) = headers?;
        let from = index * payload_bytes_max;
        let len = payload_bytes_max.min(payload_bytes - from);
        let mut piece = cut(frame, end)?;
        let last = index + 1 == count;
        let seq = u32::from_be_bytes(*frame.get(tcp_offset + 4..)?.first_chunk()?);
        let seq = seq.wrapping_add(from as u32);
        piece[tcp_offset + 4..tcp_offset + 8].copy_from_slice(&seq.to_be_bytes());
        let flags = Flags(frame[tcp_offset + 13]);
        let flags = if last {
            flags
        } else {
            flags.without(Flags::FIN | Flags::PSH)
        };
        let flags = if index > 0 {
            flags.without(Flags::CWR)
        } else {
            flags
        };
        piece[tcp_offset + 13] = flags.0;
        piece.extend_from_slice(&frame[end + from..end + from + len]);
        set_lengths(&mut piece)?;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use crate::frame::{TcpTemplate, cut, parse_segment, pieces};
    use crate::tcp::{Flags, Header};

    fn templates() -> [TcpTemplate; 2] {
        let end = |text: &str| -> SocketAddr { text.parse().unwrap() };
        [
            ("10.77.0.2:80", "10.77.0.1:4000"),
            ("[fd77::2]:80", "[fd77::1]:4000"),
        ]
        .map(|(from, to)| TcpTemplate::new([2; 6], [4; 6], end(from), end(to)))
    }

    #[test]
    fn what_is_beyond_is_as_if_it_had_been_lost() {
        for template in templates() {
            let header = Header {
                seq: 7,
                flags: Flags::ACK | Flags::FIN | Flags::PSH,
                ..Header::default()
            };
            let frame = template.to_frame(&header, &[9; 4000]);
            let short = cut(&frame, 1000).unwrap();
            assert_eq!(short.len(), 1000);
            let packet = parse_segment(&short, true).unwrap();
            assert_eq!(packet.segment.header.flags, Flags::ACK);
            assert_eq!(
                packet.segment.payload,
                &frame[frame.len() - 4000..][..packet.segment.payload.len()]
            );
            assert_eq!(packet.segment.header.seq, 7);
            assert_eq!(
                cut(&frame, 1 << 16),
                Some(frame.clone()),
                "it is short enough"
            );
            assert_eq!(cut(&frame, 40), None, "there is no room for its headers");
            assert_eq!(cut(&frame[..20], 1000), None);
        }
    }

    #[test]
    fn pieces_are_the_segment_as_if_it_had_been_sent_in_several() {
        for template in templates() {
            let flags = Flags::ACK | Flags::FIN | Flags::PSH | Flags::CWR;
            let header = Header {
                seq: u32::MAX - 700,
                flags,
                ..Header::default()
            };
            let payload: Vec<u8> = (0..2500u32).map(|at| at as u8).collect();
            let frame = template.to_frame(&header, &payload);
            let pieces: Vec<_> = pieces(&frame, 1000).collect();
            let mut joined = Vec::new();
            for (index, piece) in pieces.iter().enumerate() {
                let segment = parse_segment(piece, true).unwrap().segment;
                let at = header.seq.wrapping_add(joined.len() as u32);
                assert_eq!(segment.header.seq, at);
                let expected = match index {
                    0 => Flags::ACK | Flags::CWR,
                    1 => Flags::ACK,
                    _ => Flags::ACK | Flags::FIN | Flags::PSH,
                };
                assert_eq!(segment.header.flags, expected);
                joined.extend_from_slice(segment.payload);
            }
            assert_eq!((joined, pieces.len()), (payload, 3));
            let bare = template.to_frame(&header, &[]);
            let one = super::pieces(&bare, 1000).collect::<Vec<_>>();
            assert_eq!(
                parse_segment(&one[0], true).unwrap().segment.header.flags,
                flags
            );
            assert_eq!(one.len(), 1);
            assert_eq!(super::pieces(&frame[..30], 1000).count(), 0);
        }
    }

    #[test]
    fn a_template_is_read_back_from_its_header() {
        for template in templates() {
            let mut buffer = [0; crate::frame::HEADER_BYTES_MAX];
            let len = template.write(&Header::default(), &mut buffer).unwrap();
            assert_eq!(TcpTemplate::parse(&buffer[..len]), Some(template));
            for short in 0..len {
                assert_eq!(TcpTemplate::parse(&buffer[..short]), None);
            }
        }
    }
}
