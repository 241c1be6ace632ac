//! Every command and event survives its way through bytes; nothing else decodes.

mod support;

use contract::codec::{EVENT_BYTES_MAX, Malformed};
use contract::limits::{
    FLOWS_TAKEN_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX, INLINE_BYTES_MAX, LISTED_ENTRIES_BYTES_MAX,
    MESSAGE_BYTES_MAX, NAME_BYTES_MAX, PART_ENDS_MAX, PATH_BYTES_MAX, RECORD_PLAINTEXT_BYTES_MAX,
    RECORDS_MAX, SEALED_TAGS_MAX, SEGMENTS_MAX, SEND_BYTES_MAX,
};
use contract::listing::{EntriesFull, Part};
use contract::parting::{
    self, PartEnd, PartEndReason, PartLimits, PartRefusal, PartStage, PartTimestamps,
};
use contract::tls::{Cipher, ContentType, Key, Records, Suite, Tag, Version};
use contract::{
    Command, Entries, Entry, EntryKind, Event, FileId, FileMeta, FlowId, Growth, PassedId,
    RejectReason, Segment, Segments, Send, SendId,
};
use proptest::prelude::*;

use support::{encoded, encoded_event, rule_broken_by};

const FILE: Segment<'static> = Segment::File {
    file: FileId(5),
    offset: 1 << 33,
    len: 64_000,
};

fn a_send() -> Send<'static> {
    Send {
        id: SendId(0x0102_0304_0506_0708),
        flow: FlowId(2),
        stream_offset: 3,
        acked_offset: 2,
        issued_us: 4,
        not_before_us: 5,
        tsval_fraction_us: 999,
        follow_bytes: 0x0403_0201,
        mss: 1448,
        header: b"ethernet ip tcp",
        segments: [Segment::Inline(b"HTTP/1.1 200 OK\r\n\r\n"), FILE].into(),
    }
}

fn send_with(change: impl FnOnce(&mut Send<'static>)) -> Command<'static> {
    let mut send = a_send();
    change(&mut send);
    Command::Send(send)
}

// ---- The layout, byte by byte: it never changes within a version. ----

#[test]
fn the_layout_of_open_and_close() {
    let open = Command::Open {
        file: FileId(0x0a0b_0c0d),
        growth: Growth::Allowed,
        path: b"a b",
    };
    let bytes = [
        19, 0, 0, 0, 1, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 3, 0, 1, 0, b'a', b' ', b'b',
    ];
    assert_eq!(encoded(&open), bytes);

    let passed = Command::OpenPassed {
        file: FileId(7),
        passed: PassedId(0x0102_0304_0506_0708),
    };
    let bytes = [
        24, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, // head, id
        8, 7, 6, 5, 4, 3, 2, 1, // passed
    ];
    assert_eq!(encoded(&passed), bytes);

    let close = Command::Close { file: FileId(7) };
    let bytes = [16, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(encoded(&close), bytes);
}

#[test]
fn the_layout_of_list_and_listed() {
    let list = Command::List {
        file: FileId(0x0a0b_0c0d),
        from: 0x0102_0304_0506_0708,
        path: b"a b",
    };
    let bytes = [
        27, 0, 0, 0, 8, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 3, 0, 0, 0, // head, id, path bytes
        8, 7, 6, 5, 4, 3, 2, 1, // from
        b'a', b' ', b'b',
    ];
    assert_eq!(encoded(&list), bytes);

    let listed = encoded_event(&a_listing());
    let (record, entries) = listed.split_at(64);
    let mut expected = [0; 64];
    expected[..5].copy_from_slice(&[107, 0, 0, 0, 137]);
    expected[8..12].copy_from_slice(&[0x0d, 0x0c, 0x0b, 0x0a]);
    (expected[16], expected[24], expected[32]) = (7, 1, 2);
    (expected[40], expected[48], expected[56]) = (3, 4, 5);
    assert_eq!(record, expected);
    assert_eq!(
        entries,
        [
            9, 1, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0,
            b'x', 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 0, b'd', 0xff,
        ]
    );
}

fn a_listing() -> Event {
    let mut entries = Entries::default();
    for (kind, size, mtime_ns, name) in [
        (EntryKind::File, 0x109, -2, &b"x"[..]),
        (EntryKind::Directory, 0, 3, b"d\xff"),
    ] {
        let entry = Entry {
            kind,
            size,
            mtime_ns,
            name,
        };
        entries.push(&entry).unwrap();
    }
    let directory = FileMeta {
        size: 1,
        inode: 2,
        device: 3,
        mtime_ns: 4,
        ctime_ns: 5,
        is_weak: false,
    };
    Event::Listed {
        file: FileId(0x0a0b_0c0d),
        part: Box::new(Part {
            directory,
            next: 7,
            entries,
        }),
    }
}

#[test]
fn entries_stay_inside_a_listing_and_have_names() {
    let good = encoded_event(&a_listing());
    for (at, value, rule) in [
        (64 + 16, 0, "an entry has a name"),
        (64 + 16, 2, "an entry has a name"),
        (64 + 17, 1, "entries fill the message"),
        (64 + 18, 0, "an entry is a file or a directory"),
        (64 + 18, 3, "an entry is a file or a directory"),
        (64 + 19, 1, "what is reserved is zero"),
        (64 + 20, 0, "an entry has a name"),
        (64 + 20, b'/', "an entry has a name"),
        (64 + 20, b'.', "an entry has a name"),
        (64 + 21 + 16, 3, "entries fill the message"),
        (64 + 21 + 16, 1, "entries fill the message"),
        (12, 1, "what is reserved is zero"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let error = Event::decode(&bytes).unwrap_err();
        assert_eq!(error.rule, rule, "byte {at} = {value}");
    }
    for cut in 64..good.len() {
        let mut bytes = good[..cut].to_vec();
        bytes[..4].copy_from_slice(&(cut as u32).to_le_bytes());
        let is_whole = [64, 64 + 21].contains(&cut);
        assert_eq!(Event::decode(&bytes).is_ok(), is_whole, "{cut} bytes");
    }
}

#[test]
fn a_listing_has_as_many_entries_as_fit_and_the_longest_names_too() {
    let name = [b'n'; NAME_BYTES_MAX];
    let entry = Entry {
        kind: EntryKind::File,
        size: 0,
        mtime_ns: 0,
        name: &name,
    };
    let mut entries = Entries::default();
    assert!(entries.is_empty());
    let mut count = 0;
    while entries.push(&entry).is_ok() {
        count += 1;
    }
    assert_eq!(count, LISTED_ENTRIES_BYTES_MAX / (20 + NAME_BYTES_MAX));
    assert_eq!(entries.push(&entry), Err(EntriesFull));
    assert_eq!(entries.iter().count(), count);
    let event = Event::Listed {
        file: FileId(1),
        part: Box::new(Part {
            entries,
            ..Part::default()
        }),
    };
    let mut bytes = encoded_event(&event);
    assert!(bytes.len() <= EVENT_BYTES_MAX);
    assert_eq!(Event::decode(&bytes), Ok(event));
    bytes.resize(EVENT_BYTES_MAX + 1, 0);
    bytes[..4].copy_from_slice(&(EVENT_BYTES_MAX as u32 + 1).to_le_bytes());
    let error = Event::decode(&bytes).unwrap_err();
    assert_eq!(
        error.rule,
        "entries have at most LISTED_ENTRIES_BYTES_MAX bytes"
    );
}

#[test]
fn the_layout_of_send() {
    let bytes = encoded(&Command::Send(a_send()));
    let (record, rest) = bytes.split_at(72);
    let (segments, rest) = rest.split_at(48);
    let (header, inline) = rest.split_at(15);
    assert_eq!(
        record,
        [
            154, 0, 0, 0, 3, 0, 0, 0, // head
            8, 7, 6, 5, 4, 3, 2, 1, // id
            2, 0, 0, 0, 0, 0, 0, 0, // flow
            3, 0, 0, 0, 0, 0, 0, 0, // stream offset
            2, 0, 0, 0, 0, 0, 0, 0, // acked offset
            4, 0, 0, 0, 0, 0, 0, 0, // issued
            5, 0, 0, 0, 0, 0, 0, 0, // not before
            0xe7, 3, 0xa8, 5, 15, 0, 2, 0, // fraction, mss, header bytes, segments
            1, 2, 3, 4, 0, 0, 0, 0, // follows
        ]
    );
    assert_eq!(
        segments,
        [
            0, 0, 0, 0, 0, 0, 0, 0, 19, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // inline
            0, 0, 0, 0, 2, 0, 0, 0, 0, 0xfa, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, // file
        ]
    );
    assert_eq!(header, b"ethernet ip tcp");
    assert_eq!(inline, b"HTTP/1.1 200 OK\r\n\r\n");
}

#[test]
fn the_layout_of_departed() {
    let departed = Event::Departed {
        send: SendId(1),
        flow: FlowId(2),
        departed_us: 3,
    };
    let mut bytes = [0; 32];
    bytes[..5].copy_from_slice(&[32, 0, 0, 0, 131]);
    (bytes[8], bytes[16], bytes[24]) = (1, 2, 3);
    assert_eq!(encoded_event(&departed), bytes);
}

const KEY_BYTES: [u8; 32] = [0xaa; 32];

fn a_key(cipher: Cipher) -> Key<'static> {
    Key {
        flow: FlowId(2),
        epoch: 0x0403,
        suite: Suite {
            version: Version::Tls13,
            cipher,
        },
        key: &KEY_BYTES[..cipher.key_bytes()],
        iv: [0xbb; 12],
    }
}

fn some_records() -> Records<'static> {
    Records {
        flow: FlowId(2),
        epoch: 3,
        number: 4,
        stream_offset: 5,
        content_type: ContentType::ApplicationData,
        record_plaintext_bytes: 16_384,
        follow_bytes: 6,
        segments: [Segment::Inline(b"HTTP/1.1 200 OK\r\n\r\n"), FILE].into(),
        tags: &[[0xcc; 16]],
    }
}

fn records_with(change: impl FnOnce(&mut Records<'static>)) -> Command<'static> {
    let mut records = some_records();
    change(&mut records);
    Command::Records(records)
}

#[test]
fn the_layout_of_key_and_keygone() {
    let mut bytes = [0; 64];
    bytes[..5].copy_from_slice(&[64, 0, 0, 0, 5]);
    bytes[8] = 2;
    bytes[16..32].fill(0xaa);
    bytes[48..60].fill(0xbb);
    bytes[60..].copy_from_slice(&[3, 4, 3, 1]); // epoch, TLS 1.3, AES-128-GCM
    assert_eq!(encoded(&Command::Key(a_key(Cipher::Aes128Gcm))), bytes);
    bytes[32..48].fill(0xaa);
    bytes[63] = 3;
    assert_eq!(
        encoded(&Command::Key(a_key(Cipher::ChaCha20Poly1305))),
        bytes
    );

    let gone = Command::KeyGone {
        flow: FlowId(2),
        epoch: 0x0403,
    };
    let mut bytes = [0; 24];
    bytes[..5].copy_from_slice(&[24, 0, 0, 0, 6]);
    (bytes[8], bytes[16], bytes[17]) = (2, 3, 4);
    assert_eq!(encoded(&gone), bytes);
}

#[test]
fn the_layout_of_records() {
    let bytes = encoded(&Command::Records(some_records()));
    let (record, rest) = bytes.split_at(48);
    let (segments, rest) = rest.split_at(48);
    let (tags, inline) = rest.split_at(16);
    assert_eq!(
        record,
        [
            131, 0, 0, 0, 7, 0, 0, 0, // head
            2, 0, 0, 0, 0, 0, 0, 0, // flow
            5, 0, 0, 0, 0, 0, 0, 0, // stream offset
            4, 0, 0, 0, 0, 0, 0, 0, // number
            6, 0, 0, 0, 3, 0, 0, 0x40, // follows, epoch, plaintext of a record
            2, 0, 1, 0, 23, 0, 0, 0, // segments, tags, content type
        ]
    );
    assert_eq!((segments[16], segments[40]), (1, 2));
    assert_eq!(tags, [0xcc; 16]);
    assert_eq!(inline, b"HTTP/1.1 200 OK\r\n\r\n");
}

#[test]
fn the_layout_of_sealed_of_a_mismatch_and_of_the_end() {
    let sealed = Event::Sealed {
        flow: FlowId(1),
        epoch: 2,
        number: 3,
        tags: [[4; 16], [5; 16]].into(),
    };
    let mut bytes = [0; 64];
    bytes[..5].copy_from_slice(&[64, 0, 0, 0, 134]);
    (bytes[8], bytes[16], bytes[24], bytes[26]) = (1, 3, 2, 2);
    bytes[32..48].fill(4);
    bytes[48..].fill(5);
    assert_eq!(encoded_event(&sealed), bytes);

    let mismatch = Event::SealMismatch {
        send: SendId(1),
        flow: FlowId(2),
        epoch: 3,
        number: 4,
    };
    let mut bytes = [0; 40];
    bytes[..5].copy_from_slice(&[40, 0, 0, 0, 135]);
    (bytes[8], bytes[16], bytes[24], bytes[32]) = (2, 1, 4, 3);
    assert_eq!(encoded_event(&mismatch), bytes);

    let mut bytes = [0; 16];
    bytes[..5].copy_from_slice(&[16, 0, 0, 0, 136]);
    assert_eq!(encoded_event(&Event::Ended), bytes);

    let load = Event::Load {
        busy_us: 2,
        elapsed_us: 3,
    };
    let mut bytes = [0; 16];
    bytes[..5].copy_from_slice(&[16, 0, 0, 0, 138]);
    (bytes[8], bytes[12]) = (2, 3);
    assert_eq!(encoded_event(&load), bytes);
    for impossible in [[4, 3], [0, 0]] {
        (bytes[8], bytes[12]) = impossible.into();
        assert!(Event::decode(&bytes).is_err(), "{impossible:?}");
    }
}

fn a_part() -> parting::Part<'static> {
    parting::Part {
        flow: FlowId(0x0102_0304_0506_0708),
        issued_us: 9,
        stage: PartStage::LastAck,
        owes_ack: true,
        fin_seq: 10,
        rcv_nxt: 11,
        rcv_window_bytes: 12,
        rcv_shift: 13,
        snd_window_bytes: 14,
        snd_window_bytes_max: 15,
        snd_shift: 14,
        mss: 1460,
        timestamps: Some(PartTimestamps {
            value: 16,
            recent: 17,
        }),
        srtt_us: 18,
        rttvar_us: 19,
        backoff: 20,
        limits: PartLimits {
            rto_initial_ms: 21,
            rto_min_ms: 22,
            rto_max_ms: 23,
            user_timeout_ms: 24,
            time_wait_ms: 25,
            fin_wait_2_ms: 26,
            challenge_acks_max: 27,
            challenge_acks_interval_ms: 28,
            fin_retries: 29,
        },
        header: b"ethernet ip tcp",
    }
}

fn part_with(change: impl FnOnce(&mut parting::Part<'static>)) -> Command<'static> {
    let mut part = a_part();
    change(&mut part);
    Command::Part(part)
}

#[test]
fn the_layout_of_part_partgone_and_frame() {
    let bytes = encoded(&Command::Part(a_part()));
    let (record, header) = bytes.split_at(104);
    let mut expected = vec![
        119, 0, 0, 0, 14, 0, 0, 0, // head
        8, 7, 6, 5, 4, 3, 2, 1, // flow
        9, 0, 0, 0, 0, 0, 0, 0, // issued
    ];
    for word in [
        10, 11, 12, 14, 15, 16, 17, 18, 19, 21, 22, 23, 24, 25, 26, 28,
    ] {
        expected.extend([word, 0, 0, 0]);
    }
    // Challenge ACKs, mss, header bytes; stage, flags, shifts, backoff, retries.
    expected.extend([27, 0, 0xb4, 5, 15, 0]);
    expected.extend([4, 1, 1, 13, 14, 20, 29, 0, 0, 0]);
    assert_eq!(record, expected);
    assert_eq!(header, b"ethernet ip tcp");

    let gone = Command::PartGone { flow: FlowId(7) };
    let bytes = [16, 0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(encoded(&gone), bytes);

    let frame = Command::Frame { bytes: b"abc" };
    let mut bytes = [
        19, 0, 0, 0, 13, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c',
    ];
    assert_eq!(encoded(&frame), bytes);
    let frame = Event::Frame {
        bytes: (*b"abc").into(),
    };
    bytes[4] = 139;
    assert_eq!(encoded_event(&frame), bytes);
}

#[test]
fn the_layout_of_part_refused_and_part_ended() {
    let refused = Event::PartRefused {
        flow: FlowId(7),
        reason: PartRefusal::Full,
    };
    let mut bytes = [0; 24];
    bytes[..5].copy_from_slice(&[24, 0, 0, 0, 140]);
    (bytes[8], bytes[16]) = (7, 50);
    assert_eq!(encoded_event(&refused), bytes);

    let end = |flow, reason| PartEnd {
        flow: FlowId(flow),
        reason,
    };
    let ended = Event::PartEnded {
        ends: [
            end(7, PartEndReason::Finished),
            end(8, PartEndReason::Replaced),
        ]
        .into(),
    };
    let mut bytes = [0; 48];
    bytes[..5].copy_from_slice(&[48, 0, 0, 0, 141]);
    (bytes[8], bytes[16], bytes[24], bytes[32], bytes[40]) = (2, 7, 1, 8, 5);
    assert_eq!(encoded_event(&ended), bytes);
    for (at, value, rule) in [
        (8, 1, "ends fill the message"),
        (8, 3, "ends fill the message"),
        (10, 1, "what is reserved is zero"),
        (24, 0, "the reason is known"),
        (24, 6, "the reason is known"),
        (25, 1, "what is reserved is zero"),
    ] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert_eq!(Event::decode(&bytes).unwrap_err().rule, rule, "byte {at}");
    }
    for (count, is_good) in [
        (0, false),
        (1, true),
        (PART_ENDS_MAX, true),
        (PART_ENDS_MAX + 1, false),
    ] {
        let ends = vec![end(1, PartEndReason::Reset); count].into();
        let bytes = encoded_event(&Event::PartEnded { ends });
        assert_eq!(Event::decode(&bytes).is_ok(), is_good, "{count}");
    }
}

#[test]
fn flows_that_are_taken_look_as_documented() {
    let taken = |flows: &[u64]| Event::FlowsTaken {
        flows: flows.iter().map(|flow| FlowId(*flow)).collect(),
    };
    let mut bytes = [0; 32];
    bytes[..5].copy_from_slice(&[32, 0, 0, 0, 147]);
    (bytes[8], bytes[16], bytes[24]) = (2, 7, 8);
    assert_eq!(encoded_event(&taken(&[7, 8])), bytes);
    for (at, value, rule) in [
        (8, 1, "flows fill the message"),
        (8, 3, "flows fill the message"),
        (10, 1, "what is reserved is zero"),
    ] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert_eq!(Event::decode(&bytes).unwrap_err().rule, rule, "byte {at}");
    }
    for (count, is_good) in [
        (0, false),
        (1, true),
        (FLOWS_TAKEN_MAX, true),
        (FLOWS_TAKEN_MAX + 1, false),
    ] {
        let bytes = encoded_event(&taken(&vec![1; count]));
        assert_eq!(Event::decode(&bytes).is_ok(), is_good, "{count}");
    }
}

#[test]
fn part_and_frame_stay_within_the_limits() {
    let long_header = &[0; HEADER_BYTES_MAX + 1];
    let long_frame = &[0; FRAME_BYTES_MAX + 1];
    let scaled = "windows are scaled by at most WINDOW_SHIFT_MAX bits";
    let window = "a window has at most PART_WINDOW_BYTES_MAX bytes";
    let frame = "a frame has 1 to FRAME_BYTES_MAX bytes";
    for (command, rule) in [
        (
            part_with(|part| part.header = long_header),
            "a header has at most HEADER_BYTES_MAX bytes",
        ),
        (part_with(|part| part.mss = 0), "mss is not zero"),
        (part_with(|part| part.rcv_shift = 15), scaled),
        (part_with(|part| part.snd_shift = 15), scaled),
        (part_with(|part| part.rcv_window_bytes = 1 << 30), window),
        (part_with(|part| part.snd_window_bytes = 1 << 30), window),
        (
            part_with(|part| part.snd_window_bytes_max = u32::MAX),
            window,
        ),
        (Command::Frame { bytes: b"" }, frame),
        (Command::Frame { bytes: long_frame }, frame),
    ] {
        assert_eq!(rule_broken_by(&command), rule);
    }
    let good = encoded(&Command::Part(a_part()));
    for (at, value, rule) in [
        (92, 14, "the header fills the message"),
        (94, 0, "the stage is known"),
        (94, 5, "the stage is known"),
        (95, 2, "a flag is 0 or 1"),
        (96, 2, "a flag is 0 or 1"),
        (96, 0, "without timestamps there are none"),
        (101, 1, "what is reserved is zero"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(Command::decode(&bytes).unwrap_err().rule, rule, "byte {at}");
    }
}

#[test]
fn a_key_is_never_printed() {
    let printed = format!("{:?}", Command::Key(a_key(Cipher::Aes256Gcm)));
    assert!(printed.contains("Aes256Gcm"), "{printed}");
    for secret in ["170", "aa", "AA", "187", "bb", "BB"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

// ---- The rules. ----

#[test]
fn a_key_is_as_long_as_its_cipher_wants() {
    for cipher in [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
    ] {
        let key = a_key(cipher);
        assert_eq!(Command::Key(key.clone()).check(), Ok(()));
        for len in [0, 15, 17, 31, 32, 16]
            .into_iter()
            .filter(|len| *len != key.key.len())
        {
            let wrong = Key {
                key: &KEY_BYTES[..len],
                ..key.clone()
            };
            let wrong = Command::Key(wrong);
            let rule = Err("a key is as long as its cipher wants");
            assert_eq!(wrong.check(), rule);
            assert!(Command::decode(&encoded(&wrong)).is_err());
        }
    }
    let good = encoded(&Command::Key(a_key(Cipher::Aes128Gcm)));
    for (at, value, rule) in [
        (62, 1, "the version is TLS 1.2 or 1.3"),
        (63, 0, "the cipher is known"),
        (32, 1, "what is reserved is zero"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(Command::decode(&bytes).unwrap_err().rule, rule);
    }
}

#[test]
fn records_stay_within_the_limits() {
    let cases = [
        (
            records_with(|records| records.record_plaintext_bytes = 0),
            "a record has 1 to RECORD_PLAINTEXT_BYTES_MAX bytes of plaintext",
        ),
        (
            records_with(|records| {
                records.record_plaintext_bytes = RECORD_PLAINTEXT_BYTES_MAX as u16 + 1;
            }),
            "a record has 1 to RECORD_PLAINTEXT_BYTES_MAX bytes of plaintext",
        ),
        (
            records_with(|records| records.segments = Segments::new()),
            "there are 1 to RECORDS_MAX records",
        ),
        (
            records_with(|records| records.record_plaintext_bytes = 1000),
            "there are 1 to RECORDS_MAX records",
        ),
        (
            records_with(|records| records.segments = [Segment::Sealed { len: 1 }].into()),
            "plaintext is inline or of a file",
        ),
        (
            records_with(|records| {
                records.segments = [Segment::Inline(&[0; INLINE_BYTES_MAX + 1])].into();
            }),
            "there are at most INLINE_BYTES_MAX inline bytes",
        ),
        (
            records_with(|records| {
                let (file, offset, len) = (FileId(1), 0, 0);
                records.segments = [Segment::File { file, offset, len }].into();
            }),
            "a file range is not empty",
        ),
        (
            records_with(|records| records.tags = &[[0; 16]; 5]),
            "there are not more tags than records",
        ),
        (
            records_with(|records| records.stream_offset = u64::MAX - 64_000),
            "a stream ends below 2^64",
        ),
        (
            records_with(|records| records.number = u64::MAX - 1),
            "record numbers end below 2^64",
        ),
    ];
    for (command, rule) in cases {
        assert_eq!(rule_broken_by(&command), rule);
    }
}

#[test]
fn the_largest_records_decode() {
    let file = Segment::File {
        file: FileId(u32::MAX),
        offset: 0,
        len: 32_768,
    };
    let mut segments: Segments = [file; SEGMENTS_MAX - 1].into();
    segments
        .push(Segment::Inline(&[1; INLINE_BYTES_MAX]))
        .unwrap();
    let records = Command::Records(Records {
        segments,
        tags: &[[7; 16]; RECORDS_MAX - 1],
        ..some_records()
    });
    let bytes = encoded(&records);
    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    assert_eq!(Command::decode(&bytes), Ok(records));
}

#[test]
fn lengths_inside_records_stay_inside() {
    let good = encoded(&Command::Records(some_records()));
    for (at, value, rule) in [
        (40, 33, "there are at most SEGMENTS_MAX segments"),
        (40, 32, "the segments lie within the message"),
        (42, 2, "inline bytes lie within the message"),
        (42, 3, "the tags lie within the message"),
        (42, 0, "inline bytes fill the message"),
        (
            44,
            20,
            "content is alerts, handshake messages or application data",
        ),
        (45, 1, "what is reserved is zero"),
        (48 + 16, 4, "a segment is inline, of a file, or sealed"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let error = Command::decode(&bytes).unwrap_err();
        assert_eq!(error.rule, rule, "byte {at} = {value}");
    }
}

#[test]
fn a_sealed_event_has_some_tags() {
    for (count, is_good) in [
        (0, false),
        (1, true),
        (SEALED_TAGS_MAX, true),
        (SEALED_TAGS_MAX + 1, false),
    ] {
        let sealed = Event::Sealed {
            flow: FlowId(1),
            epoch: 2,
            number: 3,
            tags: vec![[4; 16]; count].into(),
        };
        assert_eq!(Event::decode(&encoded_event(&sealed)).is_ok(), is_good);
    }
}

#[test]
fn paths_are_relative_and_without_zero() {
    let open = |path| Command::Open {
        file: FileId(1),
        growth: Growth::Forbidden,
        path,
    };
    let longest = [b'x'; PATH_BYTES_MAX];
    for path in [&b"a"[..], b"a/b", b"..", b"name with spaces", &longest] {
        assert_eq!(open(path).check(), Ok(()));
    }
    let too_long = [b'x'; PATH_BYTES_MAX + 1];
    for (path, rule) in [
        (&b""[..], "a path has 1 to PATH_BYTES_MAX bytes"),
        (&too_long, "a path has 1 to PATH_BYTES_MAX bytes"),
        (b"/etc/passwd", "a path is relative"),
        (b"a\0b", "a path has no zero byte"),
    ] {
        assert_eq!(rule_broken_by(&open(path)), rule);
    }
    let list = |path| Command::List {
        file: FileId(1),
        from: 0,
        path,
    };
    for path in [&b""[..], b"a/b", &longest] {
        assert_eq!(list(path).check(), Ok(()));
    }
    for (path, rule) in [
        (
            &too_long[..],
            "a directory's path has at most PATH_BYTES_MAX bytes",
        ),
        (b"/etc", "a path is relative"),
        (b"a\0b", "a path has no zero byte"),
    ] {
        assert_eq!(rule_broken_by(&list(path)), rule);
    }
}

#[test]
fn a_send_stays_within_the_limits() {
    let long_header = &[0; HEADER_BYTES_MAX + 1];
    let long_inline = &[0; INLINE_BYTES_MAX + 1];
    let range = |offset, len| Segment::File {
        file: FileId(1),
        offset,
        len,
    };
    let half = SEND_BYTES_MAX as u32 / 2;
    let cases = [
        (send_with(|send| send.mss = 0), "mss is not zero"),
        (
            send_with(|send| send.tsval_fraction_us = 1000),
            "tsval_fraction_us is below 1000",
        ),
        (
            send_with(|send| send.header = long_header),
            "a header has at most HEADER_BYTES_MAX bytes",
        ),
        (
            send_with(|send| send.segments = [Segment::Inline(long_inline)].into()),
            "a SEND has at most INLINE_BYTES_MAX inline bytes",
        ),
        (
            send_with(|send| send.segments = [range(0, half), range(0, half + 1)].into()),
            "a SEND has at most SEND_BYTES_MAX payload bytes",
        ),
        (
            send_with(|send| send.segments = [range(0, u32::MAX); SEGMENTS_MAX].into()),
            "a SEND has at most SEND_BYTES_MAX payload bytes",
        ),
        (
            send_with(|send| send.segments = [range(9, 0)].into()),
            "a file range is not empty",
        ),
        (
            send_with(|send| send.segments = [Segment::Sealed { len: 0 }].into()),
            "a sealed range is not empty",
        ),
        (
            send_with(|send| send.segments = [range(u64::MAX - 3, 4)].into()),
            "a file range ends below 2^64",
        ),
        (
            send_with(|send| send.stream_offset = u64::MAX - 64_000),
            "a stream ends below 2^64",
        ),
    ];
    for (command, rule) in cases {
        assert_eq!(rule_broken_by(&command), rule);
    }
}

#[test]
fn the_largest_send_decodes() {
    let inline = [7; INLINE_BYTES_MAX];
    let mut segments: Segments = [Segment::File {
        file: FileId(1),
        offset: 0,
        len: 1,
    }; SEGMENTS_MAX - 2]
        .into();
    segments.push(Segment::Inline(&inline)).unwrap();
    let len = (SEND_BYTES_MAX as u64 - segments.payload_bytes()) as u32;
    segments
        .push(Segment::File {
            file: FileId(u32::MAX),
            offset: u64::MAX - u64::from(len),
            len,
        })
        .unwrap();
    assert!(segments.push(FILE).is_err());
    let send = Command::Send(Send {
        header: &[8; HEADER_BYTES_MAX],
        segments,
        ..a_send()
    });
    let bytes = encoded(&send);
    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    assert_eq!(Command::decode(&bytes), Ok(send));
}

#[test]
fn too_many_segments_do_not_decode() {
    let mut bytes = encoded(&send_with(|send| {
        send.segments = [FILE; SEGMENTS_MAX].into();
    }));
    let len = bytes.len() + 24;
    let last_segment = bytes[72..96].to_vec();
    bytes.splice(72..72, last_segment);
    bytes[0..4].copy_from_slice(&(len as u32).to_le_bytes());
    bytes[62] += 1;
    let error = Command::decode(&bytes).unwrap_err();
    assert_eq!(error.rule, "a SEND has at most SEGMENTS_MAX segments");
}

#[test]
fn lengths_inside_a_send_stay_inside() {
    let good = encoded(&Command::Send(a_send()));
    for (at, value, rule) in [
        (60, 255, "the header lies within the message"),
        (60, 16, "inline bytes lie within the message"),
        (60, 14, "inline bytes fill the message"),
        (62, 32, "the segments lie within the message"),
        (68, 1, "what is reserved is zero"),
        (72 + 8, 20, "inline bytes lie within the message"),
        (72 + 11, 0xff, "inline bytes lie within the message"),
        (72 + 8, 18, "inline bytes fill the message"),
        (72 + 12, 1, "only a file range has a file"),
        (72 + 24 + 16, 3, "only a file range has a file"),
        (72 + 16, 4, "a segment is inline, of a file, or sealed"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let error = Command::decode(&bytes).unwrap_err();
        assert_eq!(error.rule, rule, "byte {at} = {value}");
    }
}

#[test]
fn a_malformed_message_still_tells_its_id() {
    let mut send = encoded(&send_with(|send| send.mss = 0));
    let id = 0x0102_0304_0506_0708;
    assert_eq!(Command::decode(&send).unwrap_err().id, id);
    send[4] = 99;
    assert_eq!(Command::decode(&send).unwrap_err().id, id);
    send.truncate(15);
    assert_eq!(Command::decode(&send).unwrap_err().id, 0);

    let open = Command::Open {
        file: FileId(7),
        growth: Growth::Forbidden,
        path: b"",
    };
    assert_eq!(Command::decode(&encoded(&open)).unwrap_err().id, 7);
    let nothing = Malformed {
        id: 0,
        rule: "the message holds its record",
    };
    assert_eq!(Command::decode(&[]), Err(nothing));
}

#[test]
fn commands_are_no_events() {
    let close = encoded(&Command::Close { file: FileId(1) });
    assert!(Event::decode(&close).is_err());
    let failed = Event::OpenFailed {
        file: FileId(1),
        errno: 2,
    };
    assert!(Command::decode(&encoded_event(&failed)).is_err());
}

#[test]
fn an_unknown_reason_does_not_decode() {
    for byte in 0..=255 {
        let mut bytes = encoded_event(&Event::Rejected {
            reason: RejectReason::Malformed,
            id: 1,
        });
        bytes[16] = byte;
        assert_eq!(Event::decode(&bytes).is_ok(), (1..=16).contains(&byte));
    }
}

// ---- Any value, any bytes. ----

/// A SEND's id and flow, its offsets (stream, acknowledged), its times (issued, not before), and
/// the rest in order.
type SendFields = (u64, u64, (u64, u64), (u64, u64), u16, u32, u16);

/// A command that owns its bytes.
#[derive(Clone, Debug)]
enum Owned {
    Open(u32, bool, Vec<u8>),
    List(u32, u64, Vec<u8>),
    OpenPassed(u32, u64),
    Close(u32),
    Parting(OwnedParting),
    Send {
        fields: SendFields,
        header: Vec<u8>,
        segments: Vec<OwnedSegment>,
    },
    Acked(u64, u64, bool),
    Key(u64, u16, Suite, [u8; 32], [u8; 12]),
    KeyGone(u64, u16),
    Records {
        fields: RecordsFields,
        content_type: ContentType,
        segments: Vec<OwnedSegment>,
        tags: Vec<Tag>,
    },
}

/// A run's flow, epoch, number, stream offset and what follows, in order.
type RecordsFields = (u64, u16, u64, u64, u32);

#[derive(Clone, Debug)]
enum OwnedSegment {
    Inline(Vec<u8>),
    File(u32, u64, u32),
    Sealed(u32),
}

impl Owned {
    fn command(&self) -> Command<'_> {
        match self {
            Owned::Open(file, may_grow, path) => Command::Open {
                file: FileId(*file),
                growth: Growth::from(*may_grow),
                path,
            },
            Owned::List(file, from, path) => Command::List {
                file: FileId(*file),
                from: *from,
                path,
            },
            Owned::OpenPassed(file, passed) => Command::OpenPassed {
                file: FileId(*file),
                passed: PassedId(*passed),
            },
            Owned::Parting(parting) => parting.command(),
            Owned::Close(file) => Command::Close {
                file: FileId(*file),
            },
            Owned::Send {
                fields:
                    (
                        id,
                        flow,
                        (stream_offset, acked_offset),
                        (issued_us, not_before_us),
                        tsval_fraction_us,
                        follow_bytes,
                        mss,
                    ),
                header,
                segments,
            } => Command::Send(Send {
                id: SendId(*id),
                flow: FlowId(*flow),
                stream_offset: *stream_offset,
                acked_offset: *acked_offset,
                issued_us: *issued_us,
                not_before_us: *not_before_us,
                tsval_fraction_us: *tsval_fraction_us,
                follow_bytes: *follow_bytes,
                mss: *mss,
                header,
                segments: segments.iter().map(OwnedSegment::segment).collect(),
            }),
            Owned::Acked(flow, stream_offset, last) => Command::Acked {
                flow: FlowId(*flow),
                stream_offset: *stream_offset,
                last: *last,
            },
            Owned::Key(flow, epoch, suite, key, iv) => Command::Key(Key {
                flow: FlowId(*flow),
                epoch: *epoch,
                suite: *suite,
                key: &key[..suite.cipher.key_bytes()],
                iv: *iv,
            }),
            Owned::KeyGone(flow, epoch) => Command::KeyGone {
                flow: FlowId(*flow),
                epoch: *epoch,
            },
            Owned::Records {
                fields: (flow, epoch, number, stream_offset, follow_bytes),
                content_type,
                segments,
                tags,
            } => Command::Records(Records {
                flow: FlowId(*flow),
                epoch: *epoch,
                number: *number,
                stream_offset: *stream_offset,
                content_type: *content_type,
                record_plaintext_bytes: RECORD_PLAINTEXT_BYTES_MAX as u16,
                follow_bytes: *follow_bytes,
                segments: segments.iter().map(OwnedSegment::segment).collect(),
                tags,
            }),
        }
    }
}

/// The same of connections that are parted with.
#[derive(Clone, Debug)]
enum OwnedParting {
    Frame(Vec<u8>),
    Part([u64; 12], Vec<u8>),
    Gone(u64),
}

impl OwnedParting {
    fn command(&self) -> Command<'_> {
        match self {
            OwnedParting::Frame(bytes) => Command::Frame { bytes },
            OwnedParting::Part(words, header) => Command::Part(part_of(words, header)),
            OwnedParting::Gone(flow) => Command::PartGone {
                flow: FlowId(*flow),
            },
        }
    }
}

fn any_parting() -> impl Strategy<Value = Owned> {
    let header = prop::collection::vec(any::<u8>(), 0..=HEADER_BYTES_MAX);
    let parting = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..=FRAME_BYTES_MAX).prop_map(OwnedParting::Frame),
        (any::<[u64; 12]>(), header).prop_map(|(words, header)| OwnedParting::Part(words, header)),
        any::<u64>().prop_map(OwnedParting::Gone),
    ];
    parting.prop_map(Owned::Parting)
}

/// A PART that keeps the rules, of these numbers.
fn part_of<'a>(words: &[u64; 12], header: &'a [u8]) -> parting::Part<'a> {
    let stages = [
        PartStage::FinWait1,
        PartStage::FinWait2,
        PartStage::Closing,
        PartStage::LastAck,
    ];
    let halves = |word: u64| ((word >> 32) as u32, word as u32);
    let window = |word: u32| word % (0xffff << 14);
    let (fin_seq, rcv_nxt) = halves(words[2]);
    let (value, recent) = halves(words[3]);
    let (srtt_us, rttvar_us) = halves(words[4]);
    let (rcv_window, snd_window) = halves(words[5]);
    let (snd_window_max, rto_initial_ms) = halves(words[6]);
    let (rto_min_ms, rto_max_ms) = halves(words[7]);
    let (user_timeout_ms, time_wait_ms) = halves(words[8]);
    let (fin_wait_2_ms, challenge_acks_interval_ms) = halves(words[9]);
    let [
        stage,
        owes_ack,
        has_timestamps,
        rcv_shift,
        snd_shift,
        backoff,
        fin_retries,
        _,
    ] = words[10].to_le_bytes();
    let (challenge_acks_max, mss) = (words[11] as u16, (words[11] >> 16) as u16);
    parting::Part {
        flow: FlowId(words[0]),
        issued_us: words[1],
        stage: stages[usize::from(stage) % 4],
        owes_ack: owes_ack % 2 == 1,
        fin_seq,
        rcv_nxt,
        rcv_window_bytes: window(rcv_window),
        rcv_shift: rcv_shift % 15,
        snd_window_bytes: window(snd_window),
        snd_window_bytes_max: window(snd_window_max),
        snd_shift: snd_shift % 15,
        mss: mss.max(1),
        timestamps: (has_timestamps % 2 == 1).then_some(PartTimestamps { value, recent }),
        srtt_us,
        rttvar_us,
        backoff,
        limits: PartLimits {
            rto_initial_ms,
            rto_min_ms,
            rto_max_ms,
            user_timeout_ms,
            time_wait_ms,
            fin_wait_2_ms,
            challenge_acks_max,
            challenge_acks_interval_ms,
            fin_retries,
        },
        header,
    }
}

impl OwnedSegment {
    fn segment(&self) -> Segment<'_> {
        match self {
            OwnedSegment::Inline(bytes) => Segment::Inline(bytes),
            OwnedSegment::File(file, offset, len) => Segment::File {
                file: FileId(*file),
                offset: *offset,
                len: *len,
            },
            OwnedSegment::Sealed(len) => Segment::Sealed { len: *len },
        }
    }
}

fn any_path() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255u8, 1..=PATH_BYTES_MAX)
        .prop_filter("relative", |path| path[0] != b'/')
}

fn any_segment() -> impl Strategy<Value = OwnedSegment> {
    const EACH: usize = INLINE_BYTES_MAX / SEGMENTS_MAX;
    const LEN_MAX: u32 = (SEND_BYTES_MAX / SEGMENTS_MAX) as u32;
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..=EACH).prop_map(OwnedSegment::Inline),
        (any::<u32>(), 0..1u64 << 63, 1..=LEN_MAX)
            .prop_map(|(file, offset, len)| OwnedSegment::File(file, offset, len)),
        (1..=LEN_MAX).prop_map(OwnedSegment::Sealed),
    ]
}

fn any_suite() -> impl Strategy<Value = Suite> {
    let version = prop::sample::select(vec![Version::Tls12, Version::Tls13]);
    let cipher = prop::sample::select(vec![
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
    ]);
    (version, cipher).prop_map(|(version, cipher)| Suite { version, cipher })
}

fn any_records() -> impl Strategy<Value = Owned> {
    let fields = (
        any::<u64>(),
        any::<u16>(),
        0..1u64 << 63,
        0..1u64 << 63,
        any::<u32>(),
    );
    let content_type = prop::sample::select(vec![
        ContentType::Alert,
        ContentType::Handshake,
        ContentType::ApplicationData,
    ]);
    let plaintext = any_segment().prop_filter("plaintext", |segment| {
        !matches!(segment, OwnedSegment::Sealed(_)) && segment.segment().len() > 0
    });
    let segments = prop::collection::vec(plaintext, 1..=SEGMENTS_MAX);
    let tags = prop::collection::vec(any::<Tag>(), 0..=RECORDS_MAX);
    (fields, content_type, segments, tags).prop_map(|(fields, content_type, segments, mut tags)| {
        let bytes: usize = segments.iter().map(|s| s.segment().len() as usize).sum();
        tags.truncate(bytes.div_ceil(RECORD_PLAINTEXT_BYTES_MAX));
        Owned::Records {
            fields,
            content_type,
            segments,
            tags,
        }
    })
}

fn any_send() -> impl Strategy<Value = Owned> {
    let fields = (
        any::<u64>(),
        any::<u64>(),
        (0..1u64 << 63, any::<u64>()),
        (any::<u64>(), any::<u64>()),
        0..1000u16,
        any::<u32>(),
        1..=u16::MAX,
    );
    let header = prop::collection::vec(any::<u8>(), 0..=HEADER_BYTES_MAX);
    let segments = prop::collection::vec(any_segment(), 0..=SEGMENTS_MAX);
    (fields, header, segments).prop_map(|(fields, header, segments)| Owned::Send {
        fields,
        header,
        segments,
    })
}

fn any_command() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (any::<u32>(), any::<bool>(), any_path())
            .prop_map(|(file, may_grow, path)| Owned::Open(file, may_grow, path)),
        (
            any::<u32>(),
            any::<u64>(),
            prop_oneof![any_path(), Just(Vec::new())]
        )
            .prop_map(|(file, from, path)| Owned::List(file, from, path)),
        any::<(u32, u64)>().prop_map(|(file, passed)| Owned::OpenPassed(file, passed)),
        any::<u32>().prop_map(Owned::Close),
        any_send(),
        any::<(u64, u64, bool)>().prop_map(|(flow, stream_offset, last)| Owned::Acked(
            flow,
            stream_offset,
            last
        )),
        (
            any::<u64>(),
            any::<u16>(),
            any_suite(),
            any::<[u8; 32]>(),
            any::<[u8; 12]>()
        )
            .prop_map(|(flow, epoch, suite, key, iv)| Owned::Key(flow, epoch, suite, key, iv)),
        any::<(u64, u16)>().prop_map(|(flow, epoch)| Owned::KeyGone(flow, epoch)),
        any_records(),
        any_parting(),
    ]
}

/// As many entries as fit.
fn any_entries() -> impl Strategy<Value = Entries> {
    let name = prop::collection::vec(1..=255u8, 1..=NAME_BYTES_MAX)
        .prop_filter("a name", |name| contract::listing::is_name(name));
    let entry = (any::<bool>(), any::<u64>(), any::<i64>(), name);
    prop::collection::vec(entry, 0..=100).prop_map(|all| {
        let mut entries = Entries::default();
        for (is_file, size, mtime_ns, name) in &all {
            let kind = if *is_file {
                EntryKind::File
            } else {
                EntryKind::Directory
            };
            let _ = entries.push(&Entry {
                kind,
                size: *size,
                mtime_ns: *mtime_ns,
                name,
            });
        }
        entries
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let meta = any::<(u64, u64, u64, i64, i64, bool)>().prop_map(
        |(size, inode, device, mtime_ns, ctime_ns, is_weak)| FileMeta {
            size,
            inode,
            device,
            mtime_ns,
            ctime_ns,
            is_weak,
        },
    );
    let reason = prop::sample::select(vec![
        RejectReason::Malformed,
        RejectReason::UnknownFile,
        RejectReason::FileInUse,
        RejectReason::TooManyFiles,
        RejectReason::RangePastEnd,
        RejectReason::BadHeader,
        RejectReason::TooManyFlows,
        RejectReason::UnknownKey,
        RejectReason::KeyConflict,
        RejectReason::TooManyKeys,
        RejectReason::RecordsConflict,
        RejectReason::TooManyRecords,
        RejectReason::UnknownRecords,
        RejectReason::RecordsOutOfFile,
    ]);
    prop_oneof![
        (any::<u32>(), meta.clone(), any::<u64>(), any_entries()).prop_map(
            |(file, directory, next, entries)| Event::Listed {
                file: FileId(file),
                part: Box::new(Part {
                    directory: FileMeta {
                        is_weak: false,
                        ..directory
                    },
                    next,
                    entries,
                }),
            }
        ),
        (any::<u32>(), meta).prop_map(|(file, meta)| Event::Opened {
            file: FileId(file),
            meta
        }),
        any::<(u32, u16)>().prop_map(|(file, errno)| Event::OpenFailed {
            file: FileId(file),
            errno
        }),
        any::<(u64, u64, u64)>().prop_map(|(send, flow, departed_us)| Event::Departed {
            send: SendId(send),
            flow: FlowId(flow),
            departed_us
        }),
        any::<(u64, u64, u32, u64, u16)>().prop_map(|(send, flow, file, offset, errno)| {
            Event::ReadFailed {
                send: SendId(send),
                flow: FlowId(flow),
                file: FileId(file),
                offset,
                errno,
            }
        }),
        (reason, any::<u64>()).prop_map(|(reason, id)| Event::Rejected { reason, id }),
        (
            any::<(u64, u16, u64)>(),
            prop::collection::vec(any::<Tag>(), 1..=SEALED_TAGS_MAX)
        )
            .prop_map(|((flow, epoch, number), tags)| Event::Sealed {
                flow: FlowId(flow),
                epoch,
                number,
                tags: tags.into(),
            }),
        any::<(u64, u64, u16, u64)>().prop_map(|(send, flow, epoch, number)| {
            Event::SealMismatch {
                send: SendId(send),
                flow: FlowId(flow),
                epoch,
                number,
            }
        }),
        Just(Event::Ended),
        prop::collection::vec(any::<u8>(), 1..=FRAME_BYTES_MAX).prop_map(|bytes| Event::Frame {
            bytes: bytes.into()
        }),
        (any::<u64>(), 0..3usize).prop_map(|(flow, reason)| Event::PartRefused {
            flow: FlowId(flow),
            reason: [
                PartRefusal::Full,
                PartRefusal::BadHeader,
                PartRefusal::AddressesInUse
            ][reason],
        }),
        prop::collection::vec(any::<u64>(), 1..=FLOWS_TAKEN_MAX).prop_map(|flows| {
            Event::FlowsTaken {
                flows: flows.into_iter().map(FlowId).collect(),
            }
        }),
        prop::collection::vec((any::<u64>(), 0..5usize), 1..=PART_ENDS_MAX).prop_map(|ends| {
            let end = |(flow, reason): (u64, usize)| PartEnd {
                flow: FlowId(flow),
                reason: [
                    PartEndReason::Finished,
                    PartEndReason::Reset,
                    PartEndReason::TimedOut,
                    PartEndReason::Aborted,
                    PartEndReason::Replaced,
                ][reason],
            };
            Event::PartEnded {
                ends: ends.into_iter().map(end).collect(),
            }
        }),
        (1..=u32::MAX)
            .prop_flat_map(|elapsed_us| (0..=elapsed_us, Just(elapsed_us)))
            .prop_map(|(busy_us, elapsed_us)| Event::Load {
                busy_us,
                elapsed_us
            }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None, // a failure prints the message
        ..ProptestConfig::default()
    })]

    #[test]
    fn commands_survive(owned in any_command()) {
        let command = owned.command();
        let bytes = encoded(&command);
        prop_assert_eq!(Command::decode(&bytes), Ok(command));
    }

    #[test]
    fn events_survive(event in any_event()) {
        let bytes = encoded_event(&event);
        prop_assert!(bytes.len() <= EVENT_BYTES_MAX);
        prop_assert_eq!(Event::decode(&bytes), Ok(event));
    }

    /// A message cut short, or with a byte too many, does not decode.
    #[test]
    fn no_other_length_decodes(owned in any_command(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encoded(&owned.command());
        prop_assert!(Command::decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(Command::decode(&bytes).is_err());
    }

    /// With some bytes changed a message may decode, but then to what encodes to the same bytes.
    #[test]
    fn decoding_accepts_only_what_encoding_makes(
        owned in any_command(),
        event in any_event(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encoded(&owned.command());
        let mut event_bytes = encoded_event(&event);
        for (at, value) in changes {
            *at.get_mut(&mut bytes) = value;
            *at.get_mut(&mut event_bytes) = value;
        }
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(encoded(&command), bytes);
        }
        if let Ok(event) = Event::decode(&event_bytes) {
            prop_assert_eq!(encoded_event(&event), event_bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Command::decode(&bytes);
        let _ = Event::decode(&bytes);
    }
}
