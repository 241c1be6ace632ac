//! Frames that are too long for what carries them on.

use crate::tcp::Flags;
use crate::{ethernet, ip};

/// The first `bytes_max` bytes of a frame with a TCP segment, as a frame of its own: as if what is
/// beyond were a segment of its own that has been lost. Lengths and IPv4's checksum fit, TCP's does
/// not, so that it is for those who need not look at it. `None` if the headers are longer, or the
/// frame is no such frame.
pub fn cut(frame: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let (link, packet) = ethernet::Header::parse(frame)?;
    let ip_bytes = match link.ether_type {
        ethernet::IPV4 => usize::from(packet.first()? & 0x0f) * 4,
        ethernet::IPV6 if *packet.get(6)? == ip::TCP => ip::IPV6_HEADER_BYTES,
        _ => return None,
    };
    let tcp_offset = ethernet::HEADER_BYTES + ip_bytes;
    let tcp_bytes = usize::from(*frame.get(tcp_offset + 12)? >> 4) * 4;
    if tcp_offset + tcp_bytes > bytes_max.min(frame.len()) {
        return None;
    }
    let mut cut = frame[..bytes_max.min(frame.len())].to_vec();
    let packet_bytes = cut.len() - ethernet::HEADER_BYTES;
    let packet = &mut cut[ethernet::HEADER_BYTES..];
    if link.ether_type == ethernet::IPV4 {
        let len = u16::try_from(packet_bytes).ok()?;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[10..12].fill(0);
        let sum = crate::checksum::of(&packet[..ip_bytes]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = u16::try_from(packet_bytes - ip::IPV6_HEADER_BYTES).ok()?;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
    }
    // They belong to the last byte.
    if cut.len() < frame.len() {
        let Flags(last) = Flags::FIN | Flags::PSH;
        cut[tcp_offset + 13] &= !last;
    }
    Some(cut)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use crate::frame::{TcpTemplate, cut, parse_segment};
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
