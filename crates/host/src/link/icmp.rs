//! Echo, so that the stack can be pinged; errors that concern a connection; and the answer to
//! datagrams that nothing listens for.

use std::net::IpAddr;

use wire::datagram::UdpPacket;
use wire::frame::{Icmp4Packet, Icmp6Packet, Received};
use wire::icmp::{Echo, QuotedTcp};
use wire::{ethernet, icmpv4, icmpv6};

/// An error about a segment that we may have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) quoted: QuotedTcp,
    pub(crate) kind: ErrorKind,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// Largest packet of the next hop, in bytes; 0 if the message does not contain it.
    TooBig { mtu: u32 },
    /// `hard`: there is no such protocol or port (RFC 1122 §4.2.3.9).
    Unreachable { hard: bool },
}

/// Returns the error that an ICMP message reports, if any.
pub(crate) fn error(received: &Received<'_>) -> Option<Error> {
    const V4_PROTOCOL: u8 = 2;
    const V4_PORT: u8 = 3;
    const V4_FRAGMENTATION_NEEDED: u8 = 4;
    const V6_PORT: u8 = 4;
    let (quoted, kind) = match *received {
        Received::Icmp4(Icmp4Packet {
            message: icmpv4::Message::Unreachable { code, mtu, quoted },
            ..
        }) => match code {
            V4_FRAGMENTATION_NEEDED => (quoted, ErrorKind::TooBig { mtu: mtu.into() }),
            _ => {
                let hard = matches!(code, V4_PROTOCOL | V4_PORT);
                (quoted, ErrorKind::Unreachable { hard })
            }
        },
        Received::Icmp6(Icmp6Packet { message, .. }) => match message {
            icmpv6::Message::PacketTooBig { mtu, quoted } => (quoted, ErrorKind::TooBig { mtu }),
            icmpv6::Message::Unreachable { code, quoted } => {
                let hard = code == V6_PORT;
                (quoted, ErrorKind::Unreachable { hard })
            }
            _ => return None,
        },
        _ => return None,
    };
    Some(Error { quoted, kind })
}

/// Returns the frame that answers an echo request to one of our addresses; `None` for everything
/// else.
///
/// The reply goes from the requested address to the sender, with the same data (RFC 1122 §3.2.2.6,
/// RFC 4443 §4.2), over the link address of the request. A request to a group, or from a source
/// that is not one host, gets no answer: it would multiply (RFC 1122 §3.2.2, RFC 4443 §2.4).
pub(crate) fn reply(
    mac: [u8; 6],
    received: &Received<'_>,
    own: impl Fn(IpAddr) -> bool,
) -> Option<Vec<u8>> {
    match *received {
        Received::Icmp4(Icmp4Packet {
            source_mac,
            source,
            destination,
            message: icmpv4::Message::Echo(request),
        }) => {
            let one_host = !(source.is_multicast()
                || source.is_broadcast()
                || source.is_unspecified()
                || source.is_loopback());
            let answer = answer(&request, source_mac)?;
            (one_host && own(destination.into()) && !own(source.into()))
                .then(|| icmpv4::echo_frame(mac, source_mac, destination, source, &answer))
        }
        Received::Icmp6(Icmp6Packet {
            source_mac,
            source,
            destination,
            message: icmpv6::Message::Echo(request),
        }) => {
            let one_host =
                !(source.is_multicast() || source.is_unspecified() || source.is_loopback());
            let answer = answer(&request, source_mac)?;
            (one_host && own(destination.into()) && !own(source.into()))
                .then(|| icmpv6::echo_frame(mac, source_mac, destination, source, &answer))
        }
        _ => None,
    }
}

/// Returns the frame that answers a datagram to one of our addresses on whose port nothing listens
/// (RFC 1122 §4.1.3.1, RFC 4443 §3.1); `None` if the source is not one host, or the destination is
/// a group.
pub(crate) fn port_unreachable(mac: [u8; 6], packet: &UdpPacket<'_>) -> Option<Vec<u8>> {
    if !packet.is_unicast() {
        return None;
    }
    match (packet.destination.ip(), packet.source.ip()) {
        (IpAddr::V4(own), IpAddr::V4(source)) => Some(icmpv4::port_unreachable_frame(
            mac,
            packet.source_mac,
            own,
            source,
            packet.packet,
        )),
        (IpAddr::V6(own), IpAddr::V6(source)) => Some(icmpv6::port_unreachable_frame(
            mac,
            packet.source_mac,
            own,
            source,
            packet.packet,
        )),
        _ => None,
    }
}

fn answer<'a>(request: &Echo<'a>, source_mac: [u8; 6]) -> Option<Echo<'a>> {
    (!request.reply && !ethernet::is_multicast(source_mac)).then_some(Echo {
        reply: true,
        ..*request
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use wire::frame;

    const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
    const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

    fn own(address: IpAddr) -> bool {
        address == IpAddr::V4(OUR_V4) || address == IpAddr::V6(OUR_V6)
    }

    fn request(data: &[u8]) -> Echo<'_> {
        Echo {
            reply: false,
            ident: 0x1234,
            seq_no: 1,
            data,
        }
    }

    fn reply_to(frame: &[u8]) -> Option<Vec<u8>> {
        reply(OUR_MAC, &frame::parse(frame, false).unwrap(), own)
    }

    #[test]
    fn requests_of_any_size_are_answered() {
        for len in [0, 1, 56, 1472, 8972] {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let echo = request(&data);
            let expected = Echo {
                reply: true,
                ..echo
            };

            let asked = icmpv4::echo_frame(PEER_MAC, OUR_MAC, PEER_V4, OUR_V4, &echo);
            let answer = reply_to(&asked).unwrap();
            assert_eq!(answer[..6], PEER_MAC);
            assert_eq!(
                frame::parse(&answer, false),
                Ok(Received::Icmp4(Icmp4Packet {
                    source_mac: OUR_MAC,
                    source: OUR_V4,
                    destination: PEER_V4,
                    message: icmpv4::Message::Echo(expected),
                }))
            );

            let asked = icmpv6::echo_frame(PEER_MAC, OUR_MAC, PEER_V6, OUR_V6, &echo);
            let answer = reply_to(&asked).unwrap();
            assert_eq!(answer[..6], PEER_MAC);
            assert_eq!(
                frame::parse(&answer, false),
                Ok(Received::Icmp6(Icmp6Packet {
                    source_mac: OUR_MAC,
                    source: OUR_V6,
                    destination: PEER_V6,
                    message: icmpv6::Message::Echo(expected),
                }))
            );
        }
    }

    #[test]
    fn replies_are_not_answered() {
        let echo = Echo {
            reply: true,
            ..request(b"x")
        };
        let v4 = icmpv4::echo_frame(PEER_MAC, OUR_MAC, PEER_V4, OUR_V4, &echo);
        let v6 = icmpv6::echo_frame(PEER_MAC, OUR_MAC, PEER_V6, OUR_V6, &echo);
        assert_eq!([reply_to(&v4), reply_to(&v6)], [None, None]);
    }

    #[test]
    fn nothing_is_multiplied() {
        let echo = request(b"x");
        let groups = [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)];
        for not_a_host in [
            groups[0],
            groups[1],
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::LOCALHOST,
            OUR_V4,
        ] {
            let asked = icmpv4::echo_frame(PEER_MAC, OUR_MAC, not_a_host, OUR_V4, &echo);
            assert_eq!(reply_to(&asked), None, "from {not_a_host}");
        }
        for not_ours in [groups[0], groups[1], PEER_V4] {
            let asked = icmpv4::echo_frame(PEER_MAC, OUR_MAC, PEER_V4, not_ours, &echo);
            assert_eq!(reply_to(&asked), None, "to {not_ours}");
        }
        let group = "ff02::1".parse().unwrap();
        for not_a_host in [group, Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, OUR_V6] {
            let asked = icmpv6::echo_frame(PEER_MAC, OUR_MAC, not_a_host, OUR_V6, &echo);
            assert_eq!(reply_to(&asked), None, "from {not_a_host}");
        }
        for not_ours in [group, PEER_V6] {
            let asked = icmpv6::echo_frame(PEER_MAC, OUR_MAC, PEER_V6, not_ours, &echo);
            assert_eq!(reply_to(&asked), None, "to {not_ours}");
        }
        let asked = icmpv4::echo_frame(ethernet::BROADCAST, OUR_MAC, PEER_V4, OUR_V4, &echo);
        assert_eq!(reply_to(&asked), None, "from everybody's link address");
    }
}
