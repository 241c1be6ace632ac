//! Commands and events: any bytes may come. What decodes encodes to the same bytes.

#![no_main]

use contract::parting::{Part, PartLimits, PartStage, PartTimestamps};
use contract::quic::{
    Prepare, QuicConnectionId, QuicKey, QuicPacket, QuicReceiveKey, QuicSend,
};
use contract::splicing::{Splice, SpliceLeg, SpliceTimestamps, UnspliceKind};
use contract::tls::{Cipher, ContentType, Key, Records, Suite, Tag, Version};
use contract::{Command, Event, FileId, FlowId, Growth, Segment, Segments, Send, SendId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    /// With the right length in front, behind which everything else is.
    Sized(Vec<u8>),
    /// A command as a host stack may make it, then some bytes changed.
    Patched {
        command: Request<'a>,
        patches: Vec<(u16, u8)>,
    },
}

#[derive(Arbitrary, Debug)]
enum Request<'a> {
    Open {
        file: u32,
        may_grow: bool,
        path: &'a [u8],
    },
    List {
        file: u32,
        from: u64,
        path: &'a [u8],
    },
    Send {
        stream_offset: u64,
        not_before_us: u64,
        tsval_fraction_us: u16,
        follow_bytes: u32,
        mss: u16,
        header: &'a [u8],
        pieces: Vec<Piece<'a>>,
    },
    Acked {
        flow: u64,
        stream_offset: u64,
        last: bool,
    },
    Key {
        epoch: u16,
        is_tls13: bool,
        cipher: u8,
        key: &'a [u8],
        iv: [u8; 12],
    },
    KeyGone {
        flow: u64,
        epoch: u16,
    },
    Frame {
        bytes: &'a [u8],
    },
    Part {
        issued_us: u64,
        stage: u8,
        owes_ack: bool,
        numbers: [u32; 5],
        shifts: [u8; 2],
        mss: u16,
        timestamps: Option<(u32, u32)>,
        header: &'a [u8],
    },
    Splice {
        numbers: [[u32; 4]; 2],
        fin_ends: [Option<u32>; 2],
        shifts: [[u8; 2]; 2],
        mss: [u16; 2],
        flags: u8,
        timestamps: [Option<(u32, u32)>; 2],
        passed_bytes: [u64; 2],
        headers: [&'a [u8]; 2],
    },
    SpliceMss {
        flow: u64,
        leg: u8,
        mss: u16,
        seq: u32,
    },
    Unsplice {
        flow: u64,
        is_abort: bool,
    },
    QuicKey {
        generation: u32,
        floor: u64,
        cipher: u8,
        keys: [[u8; 32]; 2],
    },
    QuicKeyGone {
        flow: u64,
        generation: u32,
    },
    QuicSend {
        not_before_us: u64,
        header: &'a [u8],
        packets: Vec<(u64, u32, &'a [u8], &'a [u8], u8)>,
        pieces: Vec<Piece<'a>>,
    },
    Prepare {
        file: u32,
        offset: u64,
        len: u32,
    },
    QuicRelease {
        file: u32,
        offset: u64,
        len: u64,
    },
    QuicReceiveKey {
        generation: u32,
        next_number: u64,
        hold_us: u32,
        cipher: u8,
        keys: [[u8; 32]; 2],
    },
    QuicConnectionId {
        id: [u8; 20],
        len: u8,
    },
    QuicReceiveKeyGone {
        flow: u64,
    },
    Records {
        epoch: u16,
        number: u64,
        stream_offset: u64,
        content_type: u8,
        record_plaintext_bytes: u16,
        follow_bytes: u32,
        pieces: Vec<Piece<'a>>,
        tags: Vec<Tag>,
    },
}

#[derive(Arbitrary, Debug)]
enum Piece<'a> {
    Inline(&'a [u8]),
    File { file: u32, offset: u64, len: u32 },
    Sealed { len: u32 },
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Bytes(bytes) => decode(bytes),
    Input::Sized(mut bytes) => {
        let length = bytes.len() as u32;
        if let Some(place) = bytes.first_chunk_mut() {
            *place = length.to_le_bytes();
        }
        decode(&bytes);
    }
    Input::Patched { command, patches } => {
        let command = command.command();
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        match command.check() {
            Ok(()) => assert_eq!(Command::decode(&bytes), Ok(command)),
            Err(_) => assert!(Command::decode(&bytes).is_err(), "{command:?}"),
        }
        for (at, value) in patches {
            let len = bytes.len();
            bytes[usize::from(at) % len] = value;
        }
        decode(&bytes);
    }
});

fn decode(bytes: &[u8]) {
    let mut encoded = Vec::new();
    if let Ok(command) = Command::decode(bytes) {
        assert_eq!(command.check(), Ok(()));
        command.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{command:?}");
        assert!(Event::decode(bytes).is_err(), "{command:?}");
    } else if let Ok(event) = Event::decode(bytes) {
        event.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{event:?}");
    }
}

impl Request<'_> {
    fn command(&self) -> Command<'_> {
        match self {
            Request::Open {
                file,
                may_grow,
                path,
            } => Command::Open {
                file: FileId(*file),
                growth: Growth::from(*may_grow),
                path,
            },
            Request::List { file, from, path } => Command::List {
                file: FileId(*file),
                from: *from,
                path,
            },
            Request::Send {
                stream_offset,
                not_before_us,
                tsval_fraction_us,
                follow_bytes,
                mss,
                header,
                pieces,
            } => Command::Send(Send {
                id: SendId(1),
                flow: FlowId(2),
                stream_offset: *stream_offset,
                acked_offset: 0,
                issued_us: 3,
                not_before_us: *not_before_us,
                tsval_fraction_us: tsval_fraction_us % 1024,
                follow_bytes: *follow_bytes,
                mss: *mss,
                header,
                segments: segments(pieces),
            }),
            Request::Acked {
                flow,
                stream_offset,
                last,
            } => Command::Acked {
                flow: FlowId(*flow),
                stream_offset: *stream_offset,
                last: *last,
            },
            Request::Key {
                epoch,
                is_tls13,
                cipher,
                key,
                iv,
            } => Command::Key(Key {
                flow: FlowId(2),
                epoch: *epoch,
                suite: Suite {
                    version: if *is_tls13 {
                        Version::Tls13
                    } else {
                        Version::Tls12
                    },
                    cipher: match cipher % 3 {
                        0 => Cipher::Aes128Gcm,
                        1 => Cipher::Aes256Gcm,
                        _ => Cipher::ChaCha20Poly1305,
                    },
                },
                key,
                iv: *iv,
            }),
            Request::Frame { bytes } => Command::Frame { bytes },
            Request::Part {
                issued_us,
                stage,
                owes_ack,
                numbers,
                shifts,
                mss,
                timestamps,
                header,
            } => Command::Part(Part {
                flow: FlowId(2),
                issued_us: *issued_us,
                stage: match stage % 4 {
                    0 => PartStage::FinWait1,
                    1 => PartStage::FinWait2,
                    2 => PartStage::Closing,
                    _ => PartStage::LastAck,
                },
                owes_ack: *owes_ack,
                fin_seq: numbers[0],
                rcv_nxt: numbers[1],
                rcv_window_bytes: numbers[2],
                rcv_shift: shifts[0] % 16,
                snd_window_bytes: numbers[3],
                snd_window_bytes_max: numbers[4],
                snd_shift: shifts[1] % 16,
                mss: *mss,
                timestamps: timestamps.map(|(value, recent)| PartTimestamps { value, recent }),
                srtt_us: 1,
                rttvar_us: 2,
                backoff: 3,
                limits: PartLimits {
                    rto_initial_ms: 4,
                    rto_min_ms: 5,
                    rto_max_ms: 6,
                    user_timeout_ms: 7,
                    time_wait_ms: 8,
                    fin_wait_2_ms: 9,
                    challenge_acks_max: 10,
                    challenge_acks_interval_ms: 11,
                    fin_retries: 12,
                },
                header,
            }),
            Request::Splice {
                numbers,
                fin_ends,
                shifts,
                mss,
                flags,
                timestamps,
                passed_bytes,
                headers,
            } => {
                let leg = |at: usize| SpliceLeg {
                    rcv_nxt: numbers[at][0],
                    snd_nxt: numbers[at][1],
                    snd_window_bytes: numbers[at][2],
                    rcv_window_bytes: numbers[at][3],
                    fin_end: fin_ends[at],
                    snd_shift: shifts[at][0] % 16,
                    rcv_shift: shifts[at][1] % 16,
                    mss: mss[at],
                    sack: flags & (1 << at) != 0,
                    ecn: flags & (4 << at) != 0,
                    timestamps: timestamps[at]
                        .map(|(value, recent)| SpliceTimestamps { value, recent }),
                    header: headers[at],
                };
                Command::Splice(Splice {
                    flow: FlowId(2),
                    legs: [leg(0), leg(1)],
                    is_again: flags & 16 != 0,
                    passed_bytes: *passed_bytes,
                    idle_ms: 3,
                    life_ms: 4,
                })
            }
            Request::SpliceMss {
                flow,
                leg,
                mss,
                seq,
            } => Command::SpliceMss {
                flow: FlowId(*flow),
                leg: *leg,
                mss: *mss,
                seq: *seq,
            },
            Request::Unsplice { flow, is_abort } => Command::Unsplice {
                flow: FlowId(*flow),
                kind: match is_abort {
                    true => UnspliceKind::Abort,
                    false => UnspliceKind::Return,
                },
            },
            Request::QuicKey {
                generation,
                floor,
                cipher,
                keys,
            } => {
                let cipher = match cipher % 3 {
                    0 => Cipher::Aes128Gcm,
                    1 => Cipher::Aes256Gcm,
                    _ => Cipher::ChaCha20Poly1305,
                };
                Command::QuicKey(QuicKey {
                    flow: FlowId(2),
                    generation: *generation,
                    cipher,
                    key: &keys[0][..cipher.key_bytes()],
                    iv: [3; 12],
                    header_key: &keys[1][..cipher.key_bytes()],
                    floor: *floor,
                })
            }
            Request::QuicKeyGone { flow, generation } => Command::QuicKeyGone {
                flow: FlowId(*flow),
                generation: *generation,
            },
            Request::QuicSend {
                not_before_us,
                header,
                packets,
                pieces,
            } => Command::QuicSend(QuicSend {
                id: SendId(1),
                flow: FlowId(2),
                issued_us: 3,
                not_before_us: *not_before_us,
                header,
                packets: packets.iter().map(packet).collect(),
                segments: segments(pieces).iter().copied().collect(),
            }),
            Request::Prepare { file, offset, len } => Command::Prepare(Prepare {
                id: SendId(1),
                flow: FlowId(2),
                file: FileId(*file),
                offset: *offset,
                len: *len,
            }),
            Request::QuicRelease { file, offset, len } => Command::QuicRelease {
                flow: FlowId(2),
                file: FileId(*file),
                offset: *offset,
                len: *len,
            },
            Request::QuicReceiveKey {
                generation,
                next_number,
                hold_us,
                cipher,
                keys,
            } => {
                let cipher = match cipher % 3 {
                    0 => Cipher::Aes128Gcm,
                    1 => Cipher::Aes256Gcm,
                    _ => Cipher::ChaCha20Poly1305,
                };
                Command::QuicReceiveKey(QuicReceiveKey {
                    flow: FlowId(2),
                    generation: *generation,
                    cipher,
                    key: &keys[0][..cipher.key_bytes()],
                    iv: [3; 12],
                    header_key: &keys[1][..cipher.key_bytes()],
                    next_number: *next_number,
                    hold_us: *hold_us,
                })
            }
            Request::QuicConnectionId { id, len } => Command::QuicConnectionId {
                flow: FlowId(2),
                id: QuicConnectionId::new(&id[..1 + usize::from(len % 20)])
                    .expect("it has 1 to 20 bytes"),
            },
            Request::QuicReceiveKeyGone { flow } => Command::QuicReceiveKeyGone {
                flow: FlowId(*flow),
            },
            Request::KeyGone { flow, epoch } => Command::KeyGone {
                flow: FlowId(*flow),
                epoch: *epoch,
            },
            Request::Records {
                epoch,
                number,
                stream_offset,
                content_type,
                record_plaintext_bytes,
                follow_bytes,
                pieces,
                tags,
            } => Command::Records(Records {
                flow: FlowId(2),
                epoch: *epoch,
                number: *number,
                stream_offset: *stream_offset,
                content_type: match content_type % 3 {
                    0 => ContentType::Alert,
                    1 => ContentType::Handshake,
                    _ => ContentType::ApplicationData,
                },
                record_plaintext_bytes: *record_plaintext_bytes,
                follow_bytes: *follow_bytes,
                segments: segments(pieces),
                tags,
            }),
        }
    }
}

fn packet<'a>(
    &(number, generation, prefix, header, segments): &(u64, u32, &'a [u8], &'a [u8], u8),
) -> QuicPacket<'a> {
    QuicPacket {
        number,
        generation,
        prefix,
        header,
        segments: segments % 4,
    }
}

fn segments<'a>(pieces: &[Piece<'a>]) -> Segments<'a> {
    let mut segments = Segments::new();
    for piece in pieces {
        let segment = match *piece {
            Piece::Inline(bytes) => Segment::Inline(bytes),
            Piece::File { file, offset, len } => Segment::File {
                file: FileId(file),
                offset,
                len: len % (1 << 21),
            },
            Piece::Sealed { len } => Segment::Sealed {
                len: len % (1 << 21),
            },
        };
        if segments.push(segment).is_err() {
            break;
        }
    }
    segments
}
