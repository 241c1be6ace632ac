//! QRXKEY, QCID, QRXKEYGONE and QRX survive their way through bytes; nothing else decodes.

mod support;

use contract::limits::{QUIC_HOLD_US_MAX, QUIC_RECEIVED_BYTES_MAX, QUIC_RECEIVED_PACKETS_MAX};
use contract::quic::{QuicConnectionId, QuicReceiveKey, QuicReceived, QuicReceivedPacket};
use contract::tls::Cipher;
use contract::{Command, Event, FlowId, channel};
use proptest::prelude::*;

use support::{encoded, rule_broken_by};

const KEY: [u8; 32] = [0x11; 32];
const HEADER_KEY: [u8; 32] = [0x22; 32];

fn a_key(cipher: Cipher) -> QuicReceiveKey<'static> {
    QuicReceiveKey {
        flow: FlowId(0x0102_0304_0506_0708),
        generation: 3,
        cipher,
        key: &KEY[..cipher.key_bytes()],
        iv: [0x33; 12],
        header_key: &HEADER_KEY[..cipher.key_bytes()],
        next_number: 9,
        hold_us: 1000,
    }
}

fn an_id() -> QuicConnectionId {
    QuicConnectionId::new(&[0xaa; 8]).expect("eight bytes")
}

fn a_packet(number: u64, len: u16) -> QuicReceivedPacket {
    QuicReceivedPacket {
        number,
        age_us: 7,
        len,
        first: 0x43,
        ecn: 2,
    }
}

fn received(ipv6: bool) -> QuicReceived {
    let (remote, local) = match ipv6 {
        false => ("192.0.2.1:5000", "192.0.2.2"),
        true => ("[fd77::1]:5000", "fd77::2"),
    };
    QuicReceived {
        flow: FlowId(7),
        generation: 3,
        id: an_id(),
        remote: remote.parse().expect("an address"),
        local: local.parse().expect("an address"),
        arrived_us: 0x1_0000,
        packets: vec![a_packet(5, 0), a_packet(6, 4)],
        plaintext: b"acks".to_vec(),
    }
}

fn event_bytes(received: &QuicReceived) -> Vec<u8> {
    let mut bytes = Vec::new();
    Event::QuicReceived(Box::new(received.clone())).encode(&mut bytes);
    bytes
}

fn rule_broken_by_event(change: impl FnOnce(&mut QuicReceived)) -> &'static str {
    let mut wrong = received(false);
    change(&mut wrong);
    let decoded = Event::decode(&event_bytes(&wrong));
    decoded.expect_err("it breaks a rule").rule
}

#[test]
fn the_layout_of_qrxkey_qcid_and_qrxkeygone() {
    let bytes = encoded(&Command::QuicReceiveKey(a_key(Cipher::Aes128Gcm)));
    let mut expected = vec![112, 0, 0, 0, 29, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    expected.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([[0x11; 16], [0; 16], [0x22; 16], [0; 16]].concat());
    expected.extend([0x33; 12]);
    expected.extend([3, 0, 0, 0, 0xe8, 3, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bytes, expected);

    let bytes = encoded(&Command::QuicConnectionId {
        flow: FlowId(7),
        id: an_id(),
    });
    let mut expected = vec![40, 0, 0, 0, 30, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([0xaa; 8]);
    expected.extend([0; 12]);
    expected.extend([8, 0, 0, 0]);
    assert_eq!(bytes, expected);

    let bytes = encoded(&Command::QuicReceiveKeyGone { flow: FlowId(7) });
    assert_eq!(bytes, [16, 0, 0, 0, 31, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_layout_of_qrx() {
    let bytes = event_bytes(&received(false));
    let mut expected = vec![124, 0, 0, 0, 151, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([0, 0, 1, 0, 0, 0, 0, 0]);
    expected.extend([192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([3, 0, 0, 0, 0x88, 0x13, 2, 0, 4, 0]);
    expected.extend([0xaa; 8]);
    expected.extend([0; 12]);
    expected.extend([8, 0]);
    for (number, len) in [(5u8, 0u8), (6, 4)] {
        expected.extend([number, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, len, 0, 0x43, 2]);
    }
    expected.extend(b"acks");
    assert_eq!(bytes, expected);
}

#[test]
fn all_of_them_decode() {
    for command in [
        Command::QuicReceiveKey(a_key(Cipher::Aes128Gcm)),
        Command::QuicReceiveKey(a_key(Cipher::Aes256Gcm)),
        Command::QuicReceiveKey(a_key(Cipher::ChaCha20Poly1305)),
        Command::QuicConnectionId {
            flow: FlowId(7),
            id: QuicConnectionId::new(&[1; 20]).expect("twenty bytes"),
        },
        Command::QuicReceiveKeyGone { flow: FlowId(7) },
    ] {
        assert_eq!(Command::decode(&encoded(&command)), Ok(command));
    }
    for ipv6 in [false, true] {
        let mut received = received(ipv6);
        assert!(
            received
                .each()
                .map(|(_, text)| text)
                .eq([&b""[..], b"acks"])
        );
        let event = Event::QuicReceived(Box::new(received.clone()));
        assert_eq!(Event::decode(&event_bytes(&received)), Ok(event));
        // As long as it may be.
        received.packets = vec![a_packet(1, 64); QUIC_RECEIVED_PACKETS_MAX];
        received.plaintext = vec![1; QUIC_RECEIVED_BYTES_MAX];
        let event = Event::QuicReceived(Box::new(received.clone()));
        assert_eq!(Event::decode(&event_bytes(&received)), Ok(event));
    }
}

#[test]
fn a_key_is_never_printed_and_leaves_the_ring() {
    let key = Command::QuicReceiveKey(a_key(Cipher::Aes256Gcm));
    let printed = format!("{key:?}");
    assert!(
        !printed.contains("17, 17") && !printed.contains("34, 34"),
        "{printed}"
    );
    let (mut host, mut nic) = channel::in_memory();
    host.send(&key).expect("room");
    host.flush();
    assert_eq!(nic.receive(), Ok(Some(key)));
}

#[test]
fn commands_stay_within_the_limits() {
    let short = QuicReceiveKey {
        header_key: &HEADER_KEY[1..],
        ..a_key(Cipher::Aes256Gcm)
    };
    let rule = Command::QuicReceiveKey(short).check();
    assert_eq!(rule, Err("a key is as long as its cipher wants"));
    for (next_number, hold_us) in [(1 << 62, 0), (0, QUIC_HOLD_US_MAX + 1)] {
        let wrong = QuicReceiveKey {
            next_number,
            hold_us,
            ..a_key(Cipher::Aes128Gcm)
        };
        assert_eq!(
            rule_broken_by(&Command::QuicReceiveKey(wrong)),
            "a packet number is below 2^62, and packets are held for QUIC_HOLD_US_MAX at most"
        );
    }
    assert_eq!(QuicConnectionId::new(b""), None);
    assert_eq!(QuicConnectionId::new(&[1; 21]), None);
}

#[test]
fn a_qrx_stays_within_the_limits() {
    let count = "a QRX has 1 to QUIC_RECEIVED_PACKETS_MAX packets";
    let none = rule_broken_by_event(|it| {
        it.packets.clear();
        it.plaintext.clear();
    });
    assert_eq!(none, count);
    let many = rule_broken_by_event(|it| {
        it.packets = vec![a_packet(1, 0); QUIC_RECEIVED_PACKETS_MAX + 1];
        it.plaintext.clear();
    });
    assert_eq!(many, count);
    let long = rule_broken_by_event(|it| {
        it.packets = vec![a_packet(1, QUIC_RECEIVED_BYTES_MAX as u16 + 1)];
        it.plaintext = vec![1; QUIC_RECEIVED_BYTES_MAX + 1];
    });
    assert_eq!(
        long,
        "the plaintexts fill the message, at most QUIC_RECEIVED_BYTES_MAX"
    );
    let larger = rule_broken_by_event(|it| it.packets[0].number = 1 << 62);
    assert_eq!(
        larger,
        "a packet number is below 2^62, and an ECN field has two bits"
    );
    let long = rule_broken_by_event(|it| it.packets[0].first = 0xc0);
    assert_eq!(long, "a header is short");
}

proptest! {
    /// Whatever decodes is written back as the same bytes.
    #[test]
    fn damaged_messages_decode_to_themselves_or_not(
        which in 0..3usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let command = [
            Command::QuicReceiveKey(a_key(Cipher::Aes128Gcm)),
            Command::QuicConnectionId { flow: FlowId(7), id: an_id() },
            Command::QuicReceiveKeyGone { flow: FlowId(7) },
        ][which].clone();
        let event = event_bytes(&received(which == 0));
        for mut bytes in [encoded(&command), event] {
            for (at, byte) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Ok(command) = Command::decode(&bytes) {
                prop_assert_eq!(encoded(&command), bytes);
            } else if let Ok(event) = Event::decode(&bytes) {
                let mut again = Vec::new();
                event.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
