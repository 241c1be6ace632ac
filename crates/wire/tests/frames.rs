//! Whole frames, there and back, checked against `smoltcp::wire` as a second opinion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket as Tcp, TcpRepr,
};
use wire::frame::{
    HEADER_BYTES_MAX, HeaderError, HeaderMut, Icmp4Packet, Icmp6Packet, Received, TcpPacket,
    TcpTemplate, finish, parse,
};
use wire::icmp::Echo;
use wire::tcp::{Flags, Header, Options, Timestamps};
use wire::{ParseError, arp, ethernet, icmpv4, icmpv6};

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const V4: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
];
const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)),
];

fn template([source, destination]: [IpAddr; 2]) -> TcpTemplate {
    let source = SocketAddr::new(source, 80);
    let destination = SocketAddr::new(destination, 50_000);
    TcpTemplate::new(MAC_A, MAC_B, source, destination)
}

fn segment_header() -> Header {
    Header {
        source_port: 80,
        destination_port: 50_000,
        seq: 0xffff_fff0,
        ack: 7,
        flags: Flags::ACK | Flags::PSH,
        window: 512,
        options: Options {
            timestamps: Some(Timestamps {
                value: 1000,
                echo_reply: 2000,
            }),
            ..Options::default()
        },
    }
}

/// A complete frame, with full checksum.
fn tcp_frame(addresses: [IpAddr; 2], header: &Header, payload: &[u8]) -> Vec<u8> {
    template(addresses).to_frame(header, payload)
}

fn expected<'a>(addresses: [IpAddr; 2], header: Header, payload: &'a [u8]) -> Received<'a> {
    Received::Tcp(TcpPacket {
        source_mac: MAC_A,
        source: addresses[0],
        destination: addresses[1],
        segment: wire::tcp::Segment {
            header,
            payload,
            ecn: wire::ip::Ecn::NotEct,
        },
    })
}

/// Recomputes the IPv4 header checksum of a frame after a test has changed the header.
fn fix_ipv4_checksum(frame: &mut [u8]) {
    Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
}

#[test]
fn segments_survive_both_ip_versions() {
    for addresses in [V4, V6] {
        let frame = tcp_frame(addresses, &segment_header(), b"content");
        assert_eq!(
            parse(&frame, false),
            Ok(expected(addresses, segment_header(), b"content"))
        );
    }
}

#[test]
fn smoltcp_reads_the_same_segment() {
    for addresses in [V4, V6] {
        let bytes = tcp_frame(addresses, &segment_header(), b"content");
        let frame = EthernetFrame::new_checked(&bytes).unwrap();
        let ip_payload = match frame.ethertype() {
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(frame.payload()).unwrap();
                assert!(packet.verify_checksum());
                assert!(packet.dont_frag());
                assert_eq!(packet.hop_limit(), 64);
                packet.payload()
            }
            _ => Ipv6Packet::new_checked(frame.payload()).unwrap().payload(),
        };
        let [source, destination] = addresses.map(IpAddress::from);
        let packet = Tcp::new_checked(ip_payload).unwrap();
        let capabilities = ChecksumCapabilities::default();
        let repr = TcpRepr::parse(&packet, &source, &destination, &capabilities).unwrap();
        assert_eq!(repr.payload, b"content");
        assert_eq!(repr.seq_number.0, -16);
        assert_eq!(repr.window_len, 512);
        assert_eq!(repr.timestamp.unwrap().tsval, 1000);
    }
}

#[test]
fn ethernet_padding_is_cut_off() {
    let mut header = segment_header();
    header.options = Options::default();
    let mut frame = tcp_frame(V4, &header, b"");
    frame.resize(60, 0xee);
    assert_eq!(parse(&frame, false), Ok(expected(V4, header, b"")));
}

#[test]
fn flipped_bit_anywhere_in_the_packet_is_noticed() {
    for addresses in [V4, V6] {
        let frame = tcp_frame(addresses, &segment_header(), b"content");
        for bit in 14 * 8..frame.len() * 8 {
            let mut broken = frame.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            match parse(&broken, false) {
                Err(_) => {}
                // What a checksum does not cover: traffic class, flow label and hop limit of IPv6;
                // a next header that is not ours.
                Ok(other) => assert!(
                    addresses == V6 && matches!(bit / 8, 14..=17 | 20 | 21),
                    "bit {bit} of byte {}: {other:?}",
                    bit / 8
                ),
            }
        }
    }
}

#[test]
fn tcp_checksum_is_believed_when_the_port_vouches_for_it() {
    let mut frame = tcp_frame(V6, &segment_header(), b"content");
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(parse(&frame, false), Err(ParseError::BadTcpChecksum));
    assert!(matches!(parse(&frame, true), Ok(Received::Tcp(_))));
}

#[test]
fn superframe_of_64_kb_is_one_segment() {
    for addresses in [V4, V6] {
        let payload = vec![0x5a; 65_535 - 60];
        let frame = tcp_frame(addresses, &segment_header(), &payload[..65_535 - 72]);
        let Ok(Received::Tcp(TcpPacket { segment, .. })) = parse(&frame, false) else {
            panic!("not a segment");
        };
        assert_eq!(segment.payload.len(), 65_535 - 72);
    }
}

#[test]
fn superframe_beyond_64_kb_says_length_zero() {
    let payload = vec![0x5a; 100_000];
    let mut v4 = tcp_frame(V4, &segment_header(), &payload[..1000]);
    v4.extend(&payload[1000..]);
    v4[16..18].fill(0);
    fix_ipv4_checksum(&mut v4);

    let mut v6 = tcp_frame(V6, &segment_header(), &payload[..1000]);
    v6.extend(&payload[1000..]);
    v6[18..20].fill(0);
    // Hop-by-hop options with the jumbo payload option (RFC 2675 §2).
    let [l0, l1, l2, l3] = (8 + 32 + 100_000u32).to_be_bytes();
    v6[20] = 0;
    v6.splice(54..54, [6, 0, 0xc2, 4, l0, l1, l2, l3]);

    for frame in [v4, v6] {
        let Ok(Received::Tcp(TcpPacket { segment, .. })) = parse(&frame, true) else {
            panic!("not a segment");
        };
        assert_eq!(segment.payload, payload);
    }
}

#[test]
fn fragments_are_refused() {
    // More fragments; an offset.
    for fragment in [0x2000u16, 0x0001] {
        let mut frame = tcp_frame(V4, &segment_header(), b"content");
        frame[20..22].copy_from_slice(&fragment.to_be_bytes());
        fix_ipv4_checksum(&mut frame);
        assert_eq!(parse(&frame, false), Err(ParseError::Fragment));
    }
    for fragment in [0x0001u16, 0x0008] {
        let [high, low] = fragment.to_be_bytes();
        let frame = with_extension_header(44, &[6, 0, high, low, 0, 0, 0, 1]);
        assert_eq!(parse(&frame, false), Err(ParseError::Fragment));
    }
}

/// An IPv6 segment behind one extension header.
fn with_extension_header(kind: u8, header: &[u8]) -> Vec<u8> {
    let mut frame = tcp_frame(V6, &segment_header(), b"content");
    frame[20] = kind;
    let payload_len = u16::from_be_bytes([frame[18], frame[19]]) + header.len() as u16;
    frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
    frame.splice(54..54, header.iter().copied());
    frame
}

#[test]
fn harmless_extension_headers_are_skipped() {
    let pad_n = [6, 0, 1, 4, 0, 0, 0, 0];
    let pad_1 = [6, 0, 0, 0, 0, 0, 0, 0];
    let whole_fragment = [6, 0, 0, 0, 0, 0, 0, 1];
    let routed = [6, 0, 4, 0, 0, 0, 0, 0];
    for (kind, header) in [
        (0, pad_n),
        (60, pad_n),
        (60, pad_1),
        (44, whole_fragment),
        (43, routed),
    ] {
        let frame = with_extension_header(kind, &header);
        assert_eq!(
            parse(&frame, false),
            Ok(expected(V6, segment_header(), b"content")),
            "extension header {kind}"
        );
    }
}

#[test]
fn extension_headers_that_must_not_be_skipped() {
    let must_understand = [6, 0, 0x41, 4, 0, 0, 0, 0];
    let past_its_end = [6, 0, 1, 5, 0, 0, 0, 0];
    let segments_left = [6, 0, 4, 1, 0, 0, 0, 0];
    let past_the_packet = [6, 255, 1, 4, 0, 0, 0, 0];
    for (kind, header, error) in [
        (60, must_understand, ParseError::UnknownIpOption),
        (60, past_its_end, ParseError::BadIpHeader),
        (43, segments_left, ParseError::BadIpHeader),
        (60, past_the_packet, ParseError::Truncated),
    ] {
        let frame = with_extension_header(kind, &header);
        assert_eq!(parse(&frame, false), Err(error));
    }
}

#[test]
fn segments_are_for_one_host_only() {
    let group = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));
    let frame = tcp_frame([V4[0], group], &segment_header(), b"");
    assert_eq!(parse(&frame, false), Err(ParseError::BadAddress));
    let mut frame = tcp_frame(V4, &segment_header(), b"");
    frame[..6].copy_from_slice(&ethernet::BROADCAST);
    assert_eq!(parse(&frame, false), Err(ParseError::BadAddress));
}

#[test]
fn other_protocols_are_other() {
    let mut frame = tcp_frame(V4, &segment_header(), b"");
    frame[23] = 17;
    fix_ipv4_checksum(&mut frame);
    assert_eq!(parse(&frame, false), Ok(Received::Other));
    frame[12..14].copy_from_slice(&0x8100u16.to_be_bytes());
    assert_eq!(parse(&frame, false), Ok(Received::Other));
}

#[test]
fn edited_header_equals_one_written_afresh() {
    for addresses in [V4, V6] {
        let mut buffer = [0; HEADER_BYTES_MAX];
        let len = template(addresses)
            .write(&segment_header(), &mut buffer)
            .unwrap();
        let mut header = HeaderMut::parse(&mut buffer[..len]).unwrap();
        assert_eq!(header.ipv6(), addresses == V6);
        assert_eq!(header.tcp_offset(), template(addresses).tcp_offset());
        assert_eq!(header.flags(), Flags::ACK | Flags::PSH);
        assert_eq!(header.timestamp_value(), Some(1000));
        header.set_seq(header.seq().wrapping_add(65_000));
        header.set_flags(header.flags().without(Flags::PSH | Flags::FIN));
        header.set_timestamp_value(1005);
        header.finish(1448).unwrap();

        let mut edited = segment_header();
        edited.seq = 0xffff_fff0u32.wrapping_add(65_000);
        edited.flags = Flags::ACK;
        edited.options.timestamps.as_mut().unwrap().value = 1005;
        let mut fresh = [0; HEADER_BYTES_MAX];
        template(addresses).write(&edited, &mut fresh).unwrap();
        finish(&mut fresh[..len], 1448).unwrap();
        assert_eq!(header.bytes(), &fresh[..len]);
    }
}

#[test]
fn partial_checksum_becomes_the_whole_one() {
    // What the kernel or the NIC does: sum from the TCP header to the end, over the seed in the
    // field.
    for addresses in [V4, V6] {
        let payload = b"some payload of odd length!";
        let mut buffer = [0; HEADER_BYTES_MAX];
        let len = template(addresses)
            .write(&segment_header(), &mut buffer)
            .unwrap();
        finish(&mut buffer[..len], payload.len()).unwrap();
        let tcp_offset = template(addresses).tcp_offset();
        let mut frame = [&buffer[..len], payload].concat();
        let checksum = wire::checksum::of(&frame[tcp_offset..]);
        frame[tcp_offset + 16..tcp_offset + 18].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(frame, tcp_frame(addresses, &segment_header(), payload));
    }
}

#[test]
fn identification_is_of_ipv4_alone() {
    let mut frame = tcp_frame(V4, &segment_header(), b"");
    let mut header = HeaderMut::parse(&mut frame).unwrap();
    assert_eq!(header.identification(), Some(0));
    header.set_identification(0xabcd);
    assert_eq!(header.identification(), Some(0xabcd));
    header.finish(0).unwrap();
    assert!(parse(&frame, true).is_ok());

    let mut frame = tcp_frame(V6, &segment_header(), b"");
    let before = frame.clone();
    let mut header = HeaderMut::parse(&mut frame).unwrap();
    header.set_identification(0xabcd);
    assert_eq!(header.identification(), None);
    assert_eq!(frame, before);
}

#[test]
fn packet_longer_than_ip_can_say_is_refused() {
    let superpacket_max = wire::ip::SUPERPACKET_BYTES_MAX;
    for (addresses, payload_max) in [(V4, superpacket_max - 20 - 32), (V6, 65_535 - 32)] {
        let mut frame = tcp_frame(addresses, &segment_header(), b"");
        let mut header = HeaderMut::parse(&mut frame).unwrap();
        header.finish(payload_max).unwrap();
        for payload in [payload_max + 1, usize::MAX] {
            assert_eq!(
                header.finish(payload),
                Err(HeaderError::TooLong { payload })
            );
        }
    }
}

#[test]
fn a_superpacket_longer_than_the_ipv4_length_field_leaves_it_0_and_sums_its_true_length() {
    let mut frame = tcp_frame(V4, &segment_header(), b"");
    let mut header = HeaderMut::parse(&mut frame).unwrap();
    header.finish(200_000).unwrap();
    assert_eq!(frame[16..18], [0, 0]);
    assert_eq!(
        wire::checksum::of(&frame[14..34]),
        0,
        "the header's own sum is right"
    );
    // The pseudo-header counts the TCP length in 32 bits, as RFC 8200 §8.1 has it for IPv6.
    let expected = |tcp_len: u32| {
        let [source, destination] = V4;
        wire::checksum::Checksum::pseudo_header(source, destination, wire::ip::TCP, tcp_len)
            .partial()
    };
    let stored = u16::from_be_bytes([frame[34 + 16], frame[34 + 17]]);
    assert_eq!(stored, expected(200_032));
    // What is not cut below has to be a packet.
    let mut header = HeaderMut::parse(&mut frame).unwrap();
    let payload = vec![0; 65_535];
    assert!(header.complete_checksum([&payload[..]]).is_err());
}

#[test]
fn template_needs_room_and_one_address_family() {
    let mut buffer = [0; HEADER_BYTES_MAX];
    let needed = template(V6).write(&segment_header(), &mut buffer).unwrap();
    assert_eq!(needed, 14 + 40 + 32);
    let short = &mut buffer[..needed - 1];
    assert_eq!(template(V6).write(&segment_header(), short), None);
    let mixed = template([V4[0], V6[1]]);
    assert_eq!(mixed.write(&segment_header(), &mut buffer), None);
}

#[test]
fn header_must_be_exact() {
    let mut frame = tcp_frame(V4, &segment_header(), b"x");
    assert_eq!(
        HeaderMut::parse(&mut frame).unwrap_err(),
        HeaderError::NotTcp
    );
    let mut frame = tcp_frame(V4, &segment_header(), b"");
    let len = frame.len();
    for len in 0..len {
        assert_eq!(
            HeaderMut::parse(&mut frame[..len]).unwrap_err(),
            HeaderError::NotTcp
        );
    }
}

#[test]
fn arp_survives_the_wire() {
    let packet = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: MAC_A,
        sender: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: [0; 6],
        target: Ipv4Addr::new(10, 0, 0, 2),
    };
    let mut frame = packet.to_frame(ethernet::BROADCAST);
    frame.resize(60, 0);
    assert_eq!(frame[..6], ethernet::BROADCAST);
    assert_eq!(frame[6..12], MAC_A);
    assert_eq!(parse(&frame, false), Ok(Received::Arp(packet)));
}

#[test]
fn echo_survives_the_wire() {
    let echo = Echo {
        reply: false,
        ident: 1,
        seq_no: 2,
        data: b"are you there?",
    };
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut frame = icmpv4::echo_frame(MAC_A, MAC_B, source, destination, &echo);
    assert_eq!(
        parse(&frame, false),
        Ok(Received::Icmp4(Icmp4Packet {
            source_mac: MAC_A,
            source,
            destination,
            message: icmpv4::Message::Echo(echo),
        }))
    );
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(parse(&frame, true), Err(ParseError::BadIcmpChecksum));

    let (source, destination) = (Ipv6Addr::LOCALHOST, "fe80::1".parse().unwrap());
    let mut frame = icmpv6::echo_frame(MAC_A, MAC_B, source, destination, &echo);
    assert_eq!(
        parse(&frame, false),
        Ok(Received::Icmp6(Icmp6Packet {
            source_mac: MAC_A,
            source,
            destination,
            message: icmpv6::Message::Echo(echo),
        }))
    );
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(parse(&frame, true), Err(ParseError::BadIcmpChecksum));
}

#[test]
fn neighbour_discovery_survives_the_wire() {
    let source: Ipv6Addr = "fe80::1".parse().unwrap();
    let target: Ipv6Addr = "fd77::12:3456".parse().unwrap();
    let group = icmpv6::solicited_node(target);
    assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    assert_eq!(
        ethernet::multicast_mac(group),
        [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]
    );
    let solicitation = icmpv6::Neighbor::Solicitation {
        target,
        source_mac: Some(MAC_A),
    };
    let advertisement = icmpv6::Neighbor::Advertisement {
        target,
        target_mac: Some(MAC_A),
        router: false,
        solicited: true,
        override_cached: true,
    };
    for (destination, message) in [(group, solicitation), (target, advertisement)] {
        let mut frame = icmpv6::neighbor_frame(MAC_A, MAC_B, source, destination, &message);
        assert_eq!(
            parse(&frame, false),
            Ok(Received::Icmp6(Icmp6Packet {
                source_mac: MAC_A,
                source,
                destination,
                message: icmpv6::Message::Neighbor(message),
            }))
        );
        // RFC 4861 §7.1: a router has handed it on.
        frame[21] = 254;
        assert_eq!(parse(&frame, false), Err(ParseError::BadIcmp));
    }
}

#[test]
fn solicitation_from_the_unspecified_address_carries_no_hardware_address() {
    // RFC 4861 §7.1.1.
    let target: Ipv6Addr = "fd77::2".parse().unwrap();
    let group = icmpv6::solicited_node(target);
    let probe = |destination, source_mac| {
        let message = icmpv6::Neighbor::Solicitation { target, source_mac };
        let source = Ipv6Addr::UNSPECIFIED;
        icmpv6::neighbor_frame(MAC_A, MAC_B, source, destination, &message)
    };
    assert!(parse(&probe(group, None), false).is_ok());
    for wrong in [probe(group, Some(MAC_A)), probe(target, None)] {
        assert_eq!(parse(&wrong, false), Err(ParseError::BadIcmp));
    }
}

#[test]
fn icmp_errors_name_the_connection() {
    for addresses in [V4, V6] {
        let sent = tcp_frame(addresses, &segment_header(), &[0; 100]);
        // As much as RFC 792 asks for: the IP header and 8 bytes.
        let quote = &sent[14..][..template(addresses).tcp_offset() - 14 + 8];
        let (kind, code, word) = if addresses == V4 {
            (3, 4, 1400)
        } else {
            (2, 0, 1400)
        };
        let mut message = [&[kind, code, 0, 0][..], &u32::to_be_bytes(word), quote].concat();
        let frame = icmp_frame(addresses, &mut message);
        let quoted = wire::icmp::QuotedTcp {
            source: (addresses[0], 80).into(),
            destination: (addresses[1], 50_000).into(),
            seq: 0xffff_fff0,
        };
        match parse(&frame, false).unwrap() {
            Received::Icmp4(Icmp4Packet { message, .. }) => assert_eq!(
                message,
                icmpv4::Message::Unreachable {
                    code: 4,
                    mtu: 1400,
                    quoted
                }
            ),
            Received::Icmp6(Icmp6Packet { message, .. }) => {
                assert_eq!(message, icmpv6::Message::PacketTooBig { mtu: 1400, quoted });
            }
            other => panic!("{other:?}"),
        }
    }
}

/// An ICMP message in a frame, from the destination of `addresses` to their source.
fn icmp_frame([to, from]: [IpAddr; 2], message: &mut [u8]) -> Vec<u8> {
    let addresses = wire::ip::Addresses::new(from, to).unwrap();
    let (protocol, ether_type, sum) = match from {
        IpAddr::V4(_) => (1, ethernet::IPV4, wire::checksum::Checksum::new()),
        IpAddr::V6(_) => {
            let len = message.len() as u32;
            let sum = wire::checksum::Checksum::pseudo_header(from, to, 58, len);
            (58, ethernet::IPV6, sum)
        }
    };
    let mut sum = sum;
    message[2..4].fill(0);
    sum.add(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let link = ethernet::Header {
        destination: MAC_A,
        source: MAC_B,
        ether_type,
    };
    let mut header = [0; 40];
    let header_len = wire::ip::Header {
        addresses,
        protocol,
        ttl: 255,
        traffic_class: 0,
        identification: 0,
    }
    .write(message.len() as u16, &mut header);
    [&link.to_bytes()[..], &header[..header_len], message].concat()
}

/// Everything that can be asked of bytes from outside.
fn exercise(mut bytes: Vec<u8>) {
    let _ = parse(&bytes, false);
    let _ = parse(&bytes, true);
    if let Ok(mut header) = HeaderMut::parse(&mut bytes) {
        header.set_seq(header.seq().wrapping_add(1));
        header.set_flags(header.flags().without(Flags::FIN));
        header.set_timestamp_value(header.timestamp_value().unwrap_or(0).wrapping_add(1));
        header.set_identification(header.identification().unwrap_or(0));
        let _ = header.finish(header.payload_max(65_535));
        let _ = header.complete_checksum([&[1, 2, 3][..]]);
    }
}

/// A valid frame of any kind.
fn valid_frame() -> impl Strategy<Value = Vec<u8>> {
    let tcp = (any::<bool>(), any::<Vec<u8>>())
        .prop_map(|(v6, payload)| tcp_frame(if v6 { V6 } else { V4 }, &segment_header(), &payload));
    let extension = (0u8..64, any::<[u8; 7]>()).prop_map(|(kind, tail)| {
        let [a, b, c, d, e, f, g] = tail;
        with_extension_header(kind, &[6, a % 2, b, c, d, e, f, g])
    });
    // Any message type with valid checksum, so that mutation reaches what is behind the checksum.
    let icmp = (any::<bool>(), any::<u8>(), any::<Vec<u8>>()).prop_map(|(v6, kind, rest)| {
        let kind = match v6 {
            true if kind < 200 => 133 + kind % 5,
            _ => kind,
        };
        let mut message = [&[kind, 0, 0, 0][..], &rest].concat();
        icmp_frame(if v6 { V6 } else { V4 }, &mut message)
    });
    let ndisc = (
        any::<bool>(),
        prop::collection::vec((1u8..7, 0u8..8, any::<[u8; 62]>()), 0..4),
    )
        .prop_map(|(advertisement, options)| {
            let mut message = [&[135 + u8::from(advertisement), 0, 0, 0][..], &[0; 20]].concat();
            for (kind, len, data) in options {
                message.extend([kind, len]);
                message.extend(&data[..(usize::from(len) * 8).saturating_sub(2)]);
            }
            icmp_frame(V6, &mut message)
        });
    prop_oneof![tcp, extension, icmp, ndisc]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        exercise(bytes);
    }

    #[test]
    fn damaged_frames_never_panic(
        frame in valid_frame(),
        damage: Vec<(prop::sample::Index, u8)>,
        cut: prop::sample::Index,
    ) {
        exercise(frame.clone());
        let mut damaged = frame;
        for (at, value) in damage {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        exercise(damaged.clone());
        damaged.truncate(cut.index(damaged.len()));
        exercise(damaged);
    }
}
