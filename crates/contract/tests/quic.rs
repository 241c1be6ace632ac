//! QKEY, QKEYGONE, QSEND, PREPARE, QRELEASE and READY survive their way through bytes; nothing else
//! decodes.

mod support;

use contract::limits::{
    HEADER_BYTES_MAX, MESSAGE_BYTES_MAX, PREPARE_BYTES_MAX, QUIC_INLINE_BYTES_MAX,
    QUIC_PACKETS_MAX, QUIC_SEGMENTS_MAX,
};
use contract::quic::{Prepare, QuicKey, QuicPacket, QuicSend};
use contract::tls::Cipher;
use contract::{Command, Event, FileId, FlowId, RejectReason, Segment, SendId, channel};
use proptest::prelude::*;

use support::{encoded, rule_broken_by};

const KEY: [u8; 32] = [0x11; 32];
const HEADER_KEY: [u8; 32] = [0x22; 32];

fn a_key(cipher: Cipher) -> QuicKey<'static> {
    QuicKey {
        flow: FlowId(0x0102_0304_0506_0708),
        generation: 3,
        cipher,
        key: &KEY[..cipher.key_bytes()],
        iv: [0x33; 12],
        header_key: &HEADER_KEY[..cipher.key_bytes()],
        floor: 9,
    }
}

fn file(offset: u64, len: u32) -> Segment<'static> {
    Segment::File {
        file: FileId(6),
        offset,
        len,
    }
}

/// A short header whose number has two bytes.
const HEADER: [u8; 5] = [0x41, 0xaa, 0xbb, 0x12, 0x34];

fn a_packet(number: u64) -> QuicPacket<'static> {
    assert_eq!(number & 0xffff, 0x1234);
    QuicPacket {
        number,
        generation: 3,
        prefix: b"",
        header: &HEADER,
        segments: 2,
    }
}

fn a_send() -> QuicSend<'static> {
    QuicSend {
        id: SendId(5),
        flow: FlowId(7),
        issued_us: 1000,
        not_before_us: 2000,
        header: b"to the client",
        packets: vec![
            QuicPacket {
                prefix: b"handshake",
                ..a_packet(0x1_1234)
            },
            a_packet(0x2_1234),
        ],
        segments: vec![
            Segment::Inline(b"frame"),
            file(100, 91),
            Segment::Inline(b"other"),
            file(200, 50),
        ],
    }
}

fn send_with(change: impl FnOnce(&mut QuicSend<'static>)) -> Command<'static> {
    let mut send = a_send();
    change(&mut send);
    Command::QuicSend(send)
}

#[test]
fn the_layout_of_qkey_and_qkeygone() {
    let bytes = encoded(&Command::QuicKey(a_key(Cipher::Aes128Gcm)));
    let mut expected = vec![112, 0, 0, 0, 24, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    expected.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([[0x11; 16], [0; 16], [0x22; 16], [0; 16]].concat());
    expected.extend([0x33; 12]);
    expected.extend([3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes, expected);

    let bytes = encoded(&Command::QuicKeyGone {
        flow: FlowId(7),
        generation: 3,
    });
    let mut expected = vec![24, 0, 0, 0, 25, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes, expected);
}

#[test]
fn the_layout_of_qsend() {
    let bytes = encoded(&Command::QuicSend(a_send()));
    let mut expected = vec![186, 0, 0, 0, 26, 0, 0, 0];
    for word in [5u64, 7, 1000, 2000] {
        expected.extend(word.to_le_bytes());
    }
    // Packets, segments, header bytes.
    expected.extend([2, 0, 4, 0, 13, 0, 0, 0]);
    for (number, prefix) in [(0x1_1234u64, 9), (0x2_1234, 0)] {
        expected.extend(number.to_le_bytes());
        expected.extend([3, 0, 0, 0, prefix, 0, 5, 2]);
    }
    for (offset, file, len, kind) in [(0, 0, 5, 1), (100, 6, 91, 2), (0, 0, 5, 1), (200, 6, 50, 2)]
    {
        expected.extend([offset, 0, 0, 0, 0, 0, 0, 0, file, 0, 0, 0, len, 0, kind, 0]);
    }
    expected.extend(b"to the client");
    expected.extend(b"handshake");
    expected.extend(HEADER);
    expected.extend(b"frame");
    expected.extend(HEADER);
    expected.extend(b"other");
    assert_eq!(bytes, expected);
}

#[test]
fn the_layout_of_prepare_ready_and_qrelease() {
    let bytes = encoded(&Command::Prepare(a_prepare()));
    let mut expected = vec![40, 0, 0, 0, 27, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([6, 0, 0, 0, 0, 0, 4, 0]);
    assert_eq!(bytes, expected);

    let mut bytes = Vec::new();
    let ready = Event::Ready {
        prepare: SendId(5),
        flow: FlowId(7),
    };
    ready.encode(&mut bytes);
    let mut expected = vec![24, 0, 0, 0, 150, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes, expected);
    assert_eq!(Event::decode(&bytes), Ok(ready));

    let bytes = encoded(&a_release(9, 10));
    let mut expected = vec![40, 0, 0, 0, 28, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes, expected);
}

fn a_prepare() -> Prepare {
    Prepare {
        id: SendId(5),
        flow: FlowId(7),
        file: FileId(6),
        offset: 9,
        len: 1 << 18,
    }
}

fn a_release(offset: u64, len: u64) -> Command<'static> {
    Command::QuicRelease {
        flow: FlowId(7),
        file: FileId(6),
        offset,
        len,
    }
}

#[test]
fn all_of_them_decode() {
    for command in [
        Command::QuicKey(a_key(Cipher::Aes128Gcm)),
        Command::QuicKey(a_key(Cipher::Aes256Gcm)),
        Command::QuicKey(a_key(Cipher::ChaCha20Poly1305)),
        Command::QuicKeyGone {
            flow: FlowId(7),
            generation: 3,
        },
        Command::QuicSend(a_send()),
        Command::Prepare(a_prepare()),
        a_release(0, u64::MAX),
    ] {
        assert_eq!(Command::decode(&encoded(&command)), Ok(command));
    }
}

#[test]
fn a_key_is_never_printed_and_leaves_the_ring() {
    let key = Command::QuicKey(a_key(Cipher::Aes256Gcm));
    let printed = format!("{key:?}");
    assert!(
        !printed.contains("17, 17") && !printed.contains("34, 34"),
        "{printed}"
    );
    let (mut host, mut nic) = channel::in_memory();
    host.send(&key).expect("room");
    host.flush();
    assert_eq!(nic.receive(), Ok(Some(key)));
    let wrong = QuicKey {
        header_key: &HEADER_KEY[1..],
        ..a_key(Cipher::Aes256Gcm)
    };
    let rule = Command::QuicKey(wrong).check();
    assert_eq!(rule, Err("a key is as long as its cipher wants"));
}

#[test]
fn a_qsend_stays_within_the_limits() {
    let number = |number: u64| send_with(|send| send.packets[0].number = number);
    assert_eq!(
        rule_broken_by(&number(0x1_1235)),
        "a header ends with the packet number, which is below 2^62"
    );
    assert_eq!(
        rule_broken_by(&number((1 << 62) + 0x1234)),
        "a header ends with the packet number, which is below 2^62"
    );
    assert_eq!(rule_broken_by(&number(0x2_1234)), "packet numbers ascend");
    let header = |header| send_with(|send| send.packets[1].header = header);
    assert_eq!(
        rule_broken_by(&header(&[0x41, 0x12])),
        "a header holds its packet number and QUIC_HEADER_BYTES_MAX bytes at most"
    );
    let long = rule_broken_by(&header(&[0xc1, 0xaa, 0xbb, 0x12, 0x34]));
    assert_eq!(long, "a header is short");
    let longer = send_with(|send| send.segments[3] = file(200, 150));
    assert_eq!(rule_broken_by(&longer), "only the last datagram is shorter");
    let none = send_with(|send| {
        send.packets.clear();
        send.segments.clear();
    });
    assert_eq!(
        rule_broken_by(&none),
        "a QSEND has 1 to QUIC_PACKETS_MAX packets"
    );
    let tiny = send_with(|send| {
        send.packets.remove(0);
        send.packets[0].segments = 1;
        send.segments = vec![Segment::Inline(b"x")];
    });
    assert_eq!(
        rule_broken_by(&tiny),
        "a packet is as long as the sample of header protection wants"
    );
    let empty = send_with(|send| send.segments[3] = file(200, 0));
    assert_eq!(rule_broken_by(&empty), "a file range is not empty");
    let beyond = send_with(|send| send.segments[3] = file(u64::MAX, 50));
    assert_eq!(rule_broken_by(&beyond), "a file range ends below 2^64");
    let wide = send_with(|send| {
        send.segments[1] = file(0, 5000);
        send.packets.truncate(1);
        send.segments.truncate(2);
    });
    assert_eq!(
        rule_broken_by(&wide),
        "datagrams have QUIC_DATAGRAM_BYTES_MAX, all of them QUIC_SEND_BYTES_MAX"
    );
    let header = send_with(|send| send.header = &[0; HEADER_BYTES_MAX + 1]);
    assert_eq!(
        rule_broken_by(&header),
        "a header has at most HEADER_BYTES_MAX bytes"
    );
    let inline = send_with(|send| send.segments[0] = Segment::Inline(&[0; QUIC_INLINE_BYTES_MAX]));
    assert_eq!(
        inline.check(),
        Err("a QSEND has at most QUIC_INLINE_BYTES_MAX bytes of packets")
    );
    // What does not show in a record is not taken for something else.
    let huge = send_with(|send| send.segments[1] = file(0, (1 << 16) + 91));
    assert!(huge.check().is_err());
    assert!(Command::decode(&encoded(&huge)).is_err());
    let sealed = send_with(|send| send.segments[0] = Segment::Sealed { len: 5 });
    assert!(sealed.check().is_err());
    assert!(Command::decode(&encoded(&sealed)).is_err());
}

#[test]
fn prepare_and_qrelease_stay_within_the_limits() {
    for len in [0, PREPARE_BYTES_MAX as u32 + 1] {
        let prepare = Command::Prepare(Prepare { len, ..a_prepare() });
        let rule = "PREPARE has 1 to PREPARE_BYTES_MAX bytes";
        assert_eq!(rule_broken_by(&prepare), rule);
    }
    let prepare = Command::Prepare(Prepare {
        offset: u64::MAX,
        ..a_prepare()
    });
    assert_eq!(rule_broken_by(&prepare), "a file range ends below 2^64");
    assert_eq!(
        rule_broken_by(&a_release(1, u64::MAX)),
        "a file range ends below 2^64"
    );
    assert_eq!(
        rule_broken_by(&a_release(1, 0)),
        "a file range is not empty"
    );
}

#[test]
fn the_largest_qsend_decodes() {
    let packets = (1..=QUIC_PACKETS_MAX as u64).map(|number| QuicPacket {
        segments: 2,
        ..a_packet(number << 16 | 0x1234)
    });
    let packets: Vec<_> = packets.collect();
    let segments = (0..QUIC_PACKETS_MAX as u64)
        .flat_map(|at| [Segment::Inline(&[7; 40]), file(at * 1400, 1400)])
        .collect();
    let send = QuicSend {
        header: &[1; HEADER_BYTES_MAX],
        packets,
        segments,
        ..a_send()
    };
    let command = Command::QuicSend(send);
    assert_eq!(command.check(), Ok(()));
    let bytes = encoded(&command);
    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    assert_eq!(Command::decode(&bytes), Ok(command));
    let many = send_with(|send| {
        send.packets.truncate(1);
        send.packets[0].segments = (QUIC_SEGMENTS_MAX + 1) as u8;
        send.segments = vec![file(0, 1); QUIC_SEGMENTS_MAX + 1];
    });
    assert!(many.check().is_err());
    assert!(Command::decode(&encoded(&many)).is_err());
}

#[test]
fn lengths_inside_a_qsend_stay_inside() {
    let bytes = encoded(&Command::QuicSend(a_send()));
    // Counts of packets, of segments, header bytes; of a packet: prefix, header, segments; of a
    // segment: length and kind.
    for at in [40, 42, 44, 60, 62, 63, 92, 94] {
        for change in [1, 0x7f, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            if let Ok(command) = Command::decode(&damaged) {
                // Two lengths may make up for each other; what decodes is what it says.
                assert_eq!(encoded(&command), damaged, "byte {at} ^ {change:#x}");
            }
        }
    }
    for len in 0..bytes.len() {
        let mut cut = bytes[..len].to_vec();
        if len >= 4 {
            cut[..4].copy_from_slice(&(len as u32).to_le_bytes());
        }
        assert!(Command::decode(&cut).is_err(), "{len} bytes");
    }
    let error = Command::decode(&bytes[..48]).expect_err("it is not whole");
    assert_eq!(error.id, 5);
}

#[test]
fn the_reasons_to_reject_survive() {
    for reason in [RejectReason::NumberReused, RejectReason::NoUdp] {
        let event = Event::Rejected { reason, id: 5 };
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        assert_eq!(Event::decode(&bytes), Ok(event));
    }
}

proptest! {
    /// Whatever decodes is written back as the same bytes.
    #[test]
    fn damaged_messages_decode_to_themselves_or_not(
        which in 0..3usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let command = [
            Command::QuicSend(a_send()),
            Command::QuicKey(a_key(Cipher::Aes128Gcm)),
            Command::Prepare(a_prepare()),
        ][which].clone();
        let mut bytes = encoded(&command);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(encoded(&command), bytes);
        }
    }
}
