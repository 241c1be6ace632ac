//! The sealer of QUIC packets, and a host that makes mistakes.
#![forbid(unsafe_code)]

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use contract::quic::{QuicKey, QuicPacket, QuicSend};
use contract::tls::Cipher;
use contract::{FileId, FlowId, RejectReason, Segment, SendId};
use nic::quic::{Job, ReadFailure, Sealer};

const FLOW: FlowId = FlowId(7);
const KEY: [u8; 16] = [1; 16];
const OTHER_KEY: [u8; 16] = [4; 16];
const IV: [u8; 12] = [2; 12];
const HEADER_KEY: [u8; 16] = [3; 16];

fn key(generation: u32, floor: u64) -> QuicKey<'static> {
    QuicKey {
        flow: FLOW,
        generation,
        cipher: Cipher::Aes128Gcm,
        key: if generation == 0 { &KEY } else { &OTHER_KEY },
        iv: IV,
        header_key: &HEADER_KEY,
        floor,
    }
}

/// Packets with these numbers, each of 20 inline bytes and 30 of a file.
fn send(generation: u32, numbers: &[u8]) -> QuicSend<'_> {
    const PIECES: [Segment<'static>; 2] = [
        Segment::Inline(b"twenty bytes of frame"),
        Segment::File {
            file: FileId(5),
            offset: 100,
            len: 30,
        },
    ];
    let packet = |number: &'_ u8| QuicPacket {
        number: (*number).into(),
        generation,
        prefix: b"",
        header: HEADERS[usize::from(*number)],
        segments: 2,
    };
    QuicSend {
        id: SendId(1),
        flow: FLOW,
        issued_us: 0,
        not_before_us: 0,
        header: b"",
        packets: numbers.iter().map(packet).collect(),
        segments: numbers.iter().flat_map(|_| PIECES).collect(),
    }
}

/// Short headers with numbers of one byte.
static HEADERS: [&[u8]; 12] = [
    &[0x40, 9, 0],
    &[0x40, 9, 1],
    &[0x40, 9, 2],
    &[0x40, 9, 3],
    &[0x40, 9, 4],
    &[0x40, 9, 5],
    &[0x40, 9, 6],
    &[0x40, 9, 7],
    &[0x40, 9, 8],
    &[0x40, 9, 9],
    &[0x40, 9, 10],
    &[0x40, 9, 11],
];

fn content(offset: u64) -> u8 {
    offset as u8 ^ 0x5a
}

fn read(file: FileId, offset: u64, out: &mut [u8]) -> Result<(), ReadFailure> {
    assert_eq!(file, FileId(5));
    for (offset, byte) in (offset..).zip(out) {
        *byte = content(offset);
    }
    Ok(())
}

fn seal(sealer: &mut Sealer, job: Job) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    let sealed = sealer.seal(job, read, |datagram| datagrams.push(datagram.to_vec()));
    assert_eq!(sealed, Ok(()));
    datagrams
}

/// Takes a datagram apart: its number and its plaintext.
fn open(key: &[u8; 16], mut datagram: Vec<u8>) -> (u8, Vec<u8>) {
    let protection = HeaderProtectionKey::new(&AES_128, &HEADER_KEY).expect("a key");
    let mask = protection.new_mask(&datagram[6..22]).expect("a sample");
    datagram[0] ^= mask[0] & 0x1f;
    datagram[2] ^= mask[1];
    let number = datagram[2];
    let mut nonce = IV;
    nonce[11] ^= number;
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("a key"));
    let (header, sealed) = datagram.split_at_mut(3);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = key.open_in_place(nonce, Aad::from(&*header), sealed);
    (number, opened.expect("it is authentic").to_vec())
}

#[test]
fn packets_are_filled_in_and_sealed_in_order() {
    let mut sealer = Sealer::new(8);
    assert_eq!(sealer.key(&key(0, 2)), Ok(()));
    let job = sealer
        .accept(&send(0, &[2, 3, 5]))
        .expect("numbers are new");
    assert_eq!(job.files().count(), 3);
    let datagrams = seal(&mut sealer, job);
    let opened: Vec<_> = datagrams.into_iter().map(|it| open(&KEY, it)).collect();
    let mut plaintext = b"twenty bytes of frame".to_vec();
    plaintext.extend((100..130).map(content));
    let wanted = [2, 3, 5].map(|number| (number, plaintext.clone()));
    assert_eq!(opened, wanted);
}

#[test]
fn what_is_in_front_of_a_packet_leaves_as_it_is() {
    let mut sealer = Sealer::new(8);
    assert_eq!(sealer.key(&key(0, 0)), Ok(()));
    let mut send = send(0, &[1]);
    send.packets[0].prefix = b"handshake";
    let job = sealer.accept(&send).expect("the number is new");
    let datagram = seal(&mut sealer, job).remove(0);
    assert_eq!(datagram[..9], *b"handshake");
    assert_eq!(open(&KEY, datagram[9..].to_vec()).0, 1);
}

#[test]
fn a_number_is_sealed_once() {
    let mut sealer = Sealer::new(8);
    assert_eq!(sealer.key(&key(0, 2)), Ok(()));
    let refused = |sealer: &mut Sealer, generation, numbers: &[u8]| {
        sealer.accept(&send(generation, numbers)).map(drop)
    };
    let reused = Err(RejectReason::NumberReused);
    assert_eq!(refused(&mut sealer, 0, &[1]), reused, "below the floor");
    let job = sealer.accept(&send(0, &[2, 4])).expect("numbers are new");
    assert_eq!(refused(&mut sealer, 0, &[4]), reused, "before it is sealed");
    assert_eq!(refused(&mut sealer, 0, &[3]), reused, "passed over");
    assert_eq!(refused(&mut sealer, 0, &[6, 6]), reused, "in one QSEND");
    assert_eq!(seal(&mut sealer, job).len(), 2);
    assert_eq!(refused(&mut sealer, 0, &[4]), reused, "after it is sealed");
    assert_eq!(sealer.key(&key(1, 0)), Ok(()));
    assert_eq!(refused(&mut sealer, 1, &[4]), reused, "under another key");
    // What was refused has changed nothing.
    assert_eq!(refused(&mut sealer, 1, &[6]), Ok(()));
}

#[test]
fn keys_ascend_and_are_bounded() {
    let mut sealer = Sealer::new(1);
    let unknown = Err(RejectReason::UnknownKey);
    assert_eq!(sealer.accept(&send(0, &[1])).map(drop), unknown);
    assert_eq!(sealer.key(&key(1, 0)), Ok(()));
    assert_eq!(sealer.accept(&send(0, &[1])).map(drop), unknown);
    for generation in [0, 1] {
        let conflict = Err(RejectReason::KeyConflict);
        assert_eq!(sealer.key(&key(generation, 0)), conflict);
    }
    for generation in 2..5 {
        assert_eq!(sealer.key(&key(generation, 0)), Ok(()));
    }
    assert_eq!(sealer.key(&key(5, 0)), Err(RejectReason::TooManyKeys));
    let other = QuicKey {
        flow: FlowId(8),
        ..key(0, 0)
    };
    assert_eq!(sealer.key(&other), Err(RejectReason::TooManyFlows));
    sealer.forget(FLOW);
    assert_eq!(sealer.key(&other), Ok(()));
    let short = QuicKey {
        header_key: &HEADER_KEY[1..],
        ..other
    };
    sealer.forget(FlowId(8));
    assert_eq!(sealer.key(&short), Err(RejectReason::Malformed));
}

#[test]
fn a_key_goes_when_what_waits_for_it_is_sealed() {
    let mut sealer = Sealer::new(8);
    assert_eq!(sealer.key(&key(0, 0)), Ok(()));
    let job = sealer.accept(&send(0, &[1, 2])).expect("numbers are new");
    assert_eq!(sealer.key(&key(1, 3)), Ok(()));
    sealer.key_gone(FLOW, 0);
    let late = sealer.accept(&send(0, &[3])).map(drop);
    assert_eq!(late, Err(RejectReason::UnknownKey));
    assert_eq!(sealer.keys(FLOW), 2);
    assert_eq!(seal(&mut sealer, job).len(), 2);
    assert_eq!(sealer.keys(FLOW), 1);
    sealer.key_gone(FLOW, 9);
    sealer.key_gone(FlowId(9), 0);
    let job = sealer.accept(&send(1, &[3])).expect("the number is new");
    let datagram = seal(&mut sealer, job).remove(0);
    assert_eq!(open(&OTHER_KEY, datagram).0, 3);
}

#[test]
fn a_packet_that_cannot_be_read_and_those_behind_it_are_never_sealed() {
    let mut sealer = Sealer::new(8);
    assert_eq!(sealer.key(&key(0, 0)), Ok(()));
    let job = sealer
        .accept(&send(0, &[1, 2, 3]))
        .expect("numbers are new");
    let failure = ReadFailure {
        file: FileId(5),
        offset: 100,
        errno: 5,
    };
    let (mut reads, mut left) = (0, 0);
    let failing = |_, _, _: &mut [u8]| {
        reads += 1;
        if reads == 2 { Err(failure) } else { Ok(()) }
    };
    assert_eq!(sealer.seal(job, failing, |_| left += 1), Err(failure));
    assert_eq!((reads, left), (2, 1));
    for number in 1..4 {
        let again = sealer.accept(&send(0, &[number])).map(drop);
        assert_eq!(again, Err(RejectReason::NumberReused));
    }
    sealer.key_gone(FLOW, 0);
    assert_eq!(sealer.keys(FLOW), 0, "nothing waits for the key");
}

/// A flow's name comes back with other keys: the same number under them is another packet's.
#[test]
fn what_waits_of_a_flow_that_is_over_is_not_sealed_with_keys_of_another() {
    let mut sealer = Sealer::new(8);
    assert_eq!(sealer.key(&key(0, 0)), Ok(()));
    let stale = sealer.accept(&send(0, &[1])).expect("the number is new");
    sealer.forget(FLOW);
    assert_eq!(sealer.key(&key(0, 0)), Ok(()));
    let job = sealer.accept(&send(0, &[1])).expect("the number is new");
    assert_eq!(seal(&mut sealer, stale), Vec::<Vec<u8>>::new());
    assert_eq!(seal(&mut sealer, job).len(), 1);
    let stale = sealer.accept(&send(0, &[2])).expect("the number is new");
    sealer.forget(FLOW);
    assert_eq!(seal(&mut sealer, stale), Vec::<Vec<u8>>::new());
}
