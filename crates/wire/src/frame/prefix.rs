use crate::ip::Ecn;
use crate::{ethernet, ip, tcp};

use super::template::{HEADER_BYTES_MAX, TcpTemplate};

/// Ethernet and IPv6 header: the longer ones.
const PREFIX_BYTES_MAX: usize = ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES;

/// The Ethernet and IP header at the start of all packets of a connection, written once instead of
/// by [`TcpTemplate`] for each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPrefix {
    bytes: [u8; PREFIX_BYTES_MAX],
    ipv6: bool,
}

impl TcpPrefix {
    /// Returns the prefix; `None` if the template's addresses are of different families.
    pub fn new(template: &TcpTemplate) -> Option<TcpPrefix> {
        let mut packet = [0; HEADER_BYTES_MAX];
        template.write(&tcp::Header::default(), &mut packet)?;
        let (mut bytes, tcp_offset) = ([0; PREFIX_BYTES_MAX], template.tcp_offset());
        bytes[..tcp_offset].copy_from_slice(&packet[..tcp_offset]);
        Some(TcpPrefix {
            bytes,
            ipv6: template.source.is_ipv6(),
        })
    }

    /// Returns the link address of the next hop.
    pub fn destination_mac(&self) -> [u8; 6] {
        let [d0, d1, d2, d3, d4, d5, ..] = self.bytes;
        [d0, d1, d2, d3, d4, d5]
    }

    /// Writes the whole header of a packet to the start of `buffer`; returns its length. Unlike
    /// [`TcpTemplate::write`], it takes the ports from `header`. As there, lengths and checksums
    /// are left to [`finish`](super::finish) or [`complete_checksum`](super::complete_checksum).
    #[inline]
    pub fn write(
        &self,
        header: &tcp::Header,
        ecn: Ecn,
        buffer: &mut [u8; HEADER_BYTES_MAX],
    ) -> usize {
        // Bytes beyond an IPv4 header are overwritten: a copy of a known length is a few
        // instructions.
        buffer[..PREFIX_BYTES_MAX].copy_from_slice(&self.bytes);
        let service = ethernet::HEADER_BYTES + 1;
        let tcp_offset = if self.ipv6 {
            // RFC 8200 §3: the lower half of the traffic class is the upper half of this byte.
            buffer[service] = buffer[service] & !0x30 | (ecn as u8) << 4;
            ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES
        } else {
            buffer[service] = ecn.mark(buffer[service]);
            ethernet::HEADER_BYTES + ip::IPV4_HEADER_BYTES
        };
        tcp_offset + header.write(&mut buffer[tcp_offset..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_writes_what_the_template_writes() {
        for [source, destination] in [
            ["10.0.0.1:80", "10.0.0.2:4000"],
            ["[fd00::1]:80", "[fd00::2]:4000"],
        ] {
            for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
                let [source, destination] = [source, destination].map(|end| end.parse().unwrap());
                let mut template = TcpTemplate::new([1; 6], [2; 6], source, destination);
                template.traffic_class = 0xb8;
                let prefix = TcpPrefix::new(&template).expect("one family");
                assert_eq!(prefix.destination_mac(), [2; 6]);
                let header = tcp::Header {
                    source_port: 80,
                    destination_port: 4000,
                    seq: 0x1234_5678,
                    ack: 0x9abc_def0,
                    flags: tcp::Flags::ACK,
                    window: 500,
                    options: tcp::Options {
                        timestamps: Some(tcp::Timestamps {
                            value: 1,
                            echo_reply: 2,
                        }),
                        sack: [Some((3, 4)), None, None, None],
                        ..tcp::Options::default()
                    },
                };
                template.traffic_class = ecn.mark(template.traffic_class);
                let mut expected = [0; HEADER_BYTES_MAX];
                let len = template.write(&header, &mut expected).expect("it fits");
                let mut buffer = [0xee; HEADER_BYTES_MAX];
                assert_eq!(prefix.write(&header, ecn, &mut buffer), len);
                assert_eq!(buffer[..len], expected[..len]);
            }
        }
    }
}
