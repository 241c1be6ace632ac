//! Whatever the host says, the worker answers with an event and goes on serving.

mod support;

use contract::limits::HOLD_US_MAX;
use contract::quic::{Prepare, QuicPacket, QuicSend};
use contract::tls::{ContentType, Records, Tag};
use contract::{Command, Event, FileId, FlowId, RejectReason, Segment, Segments, Send, SendId};
use fakes::keys::SUITES;
use nic::Config;
use proptest::prelude::*;
use support::quic::udp_header;
use support::tls::install;
use support::{Stage, content, departed, header, range, small_config};
use wire::tcp::Flags;

const EIO: u16 = 5;
const ENOENT: u16 = 2;
const EBUSY: u16 = 16;
const EISDIR: u16 = 21;
const ENODATA: u16 = 61;

fn rejected(reason: RejectReason, id: u64) -> [Event; 1] {
    [Event::Rejected { reason, id }]
}

/// A good request is served as if nothing had been.
fn serves(stage: &mut Stage) {
    let file = content(123_456);
    stage.disk.put(b"good", file.clone());
    stage.tell_open(4_000_000_000, b"good");
    let header = header(60_000, 0, Flags::ACK, 1);
    let send = Send {
        id: SendId(u64::MAX),
        flow: FlowId(60_000),
        stream_offset: 0,
        acked_offset: 0,
        issued_us: 0,
        not_before_us: 0,
        tsval_fraction_us: 0,
        follow_bytes: 0,
        mss: 1448,
        header: &header,
        segments: [range(4_000_000_000, 0, 123_456)].into(),
    };
    stage.tell(&Command::Send(send));
    assert_eq!(
        departed(&stage.take_events()).last(),
        Some(&SendId(u64::MAX))
    );
    let sent: Vec<u8> = stage
        .wire
        .packets()
        .iter()
        .filter(|packet| packet.flow() == FlowId(60_000))
        .flat_map(|packet| packet.payload.clone())
        .collect();
    assert_eq!(sent, file);
}

#[test]
fn an_id_that_is_open_cannot_be_opened() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(10));
    stage.open(1, b"a");
    stage.tell_open(1, b"a");
    assert_eq!(stage.take_events(), rejected(RejectReason::FileInUse, 1));

    // Nor one that is being opened.
    stage.disk.hold(b"a");
    stage.tell_open(2, b"a");
    stage.tell_open(2, b"a");
    assert_eq!(stage.take_events(), rejected(RejectReason::FileInUse, 2));
}

#[test]
fn a_failed_open_is_reported_and_frees_the_id() {
    let mut stage = Stage::new();
    stage.tell_open(1, b"none");
    let failed = Event::OpenFailed {
        file: FileId(1),
        errno: ENOENT,
    };
    assert_eq!(stage.take_events(), [failed]);
    stage.disk.put(b"a", content(10));
    stage.open(1, b"a");
}

#[test]
fn sends_of_a_file_whose_open_fails_fail_too() {
    let mut stage = Stage::new();
    stage.disk.hold(b"none");
    stage.tell_open(1, b"none");
    let header_alone = stage.send(1, 0, [Segment::Inline(b"header")]);
    let send = stage.send(1, 6, [Segment::Inline(b"more"), range(1, 77, 100)]);
    stage.settle();
    stage.disk.release(b"none");
    let events = stage.take_events();
    assert_eq!(departed(&events), [header_alone]);
    let failed = Event::ReadFailed {
        send,
        flow: FlowId(1),
        file: FileId(1),
        offset: 77,
        errno: ENOENT,
    };
    assert_eq!(events.last(), Some(&failed));
    serves(&mut stage);
}

fn names(event: &Event) -> Vec<String> {
    let Event::Listed { part, .. } = event else {
        panic!("{event:?}");
    };
    let names = part.entries.iter();
    names
        .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
        .collect()
}

fn list(file: u32, from: u64, path: &[u8]) -> Command<'_> {
    let file = FileId(file);
    Command::List { file, from, path }
}

#[test]
fn a_directory_is_listed_and_nothing_of_it_can_be_sent() {
    let mut stage = Stage::new();
    for path in [b"d/a".as_slice(), b"d/b", b"top"] {
        stage.disk.put(path, content(10));
    }
    stage.disk.hold(b"d");
    stage.tell(&list(1, 0, b"d"));
    stage.settle();
    // Its id is in use until the answer has come.
    stage.tell_open(1, b"top");
    stage.tell(&list(1, 0, b""));
    let refused = [(); 2]
        .map(|()| rejected(RejectReason::FileInUse, 1))
        .concat();
    assert_eq!(stage.take_events(), refused);
    let send = stage.send(1, 0, [range(1, 0, 1)]);
    stage.settle();
    stage.disk.release(b"d");
    let events = stage.take_events();
    assert_eq!(names(&events[0]), ["a", "b"]);
    let failed = Event::ReadFailed {
        send,
        flow: FlowId(1),
        file: FileId(1),
        offset: 0,
        errno: EISDIR,
    };
    assert_eq!(events[1..], [failed]);

    stage.open(1, b"top");
    stage.tell(&list(2, 1, b""));
    assert_eq!(names(&stage.take_events()[0]), ["top"]);
    stage.tell(&list(2, 0, b"none"));
    let failed = Event::OpenFailed {
        file: FileId(2),
        errno: ENOENT,
    };
    assert_eq!(stage.take_events(), [failed]);
    assert_eq!(stage.counters().lists, 4);
    serves(&mut stage);
}

#[test]
fn who_closes_a_directory_before_the_answer_hears_nothing_of_it() {
    let mut stage = Stage::new();
    stage.disk.put(b"d/a", content(10));
    stage.disk.hold(b"d");
    stage.tell(&list(1, 0, b"d"));
    stage.tell(&Command::Close { file: FileId(1) });
    stage.settle();
    stage.open(1, b"d/a");
    stage.disk.release(b"d");
    assert_eq!(stage.take_events(), []);
    serves(&mut stage);
}

#[test]
fn there_may_be_too_many_listings() {
    let mut stage = Stage::new();
    stage.disk.put(b"d/a", content(10));
    stage.disk.hold(b"d");
    for file in 0..256 {
        stage.tell(&list(file, 0, b"d"));
    }
    assert_eq!(stage.take_events(), []);
    stage.tell(&list(256, 0, b"d"));
    let failed = Event::OpenFailed {
        file: FileId(256),
        errno: EBUSY,
    };
    assert_eq!(stage.take_events(), [failed]);
    // Files are opened all the same.
    stage.open(257, b"d/a");
    stage.disk.release(b"d");
    assert_eq!(stage.take_events().len(), 256);
    stage.tell(&list(256, 0, b"d"));
    assert_eq!(names(&stage.take_events()[0]), ["a"]);
}

#[test]
fn there_may_be_too_many_files() {
    let config = Config {
        files_max: 3,
        ..small_config()
    };
    let mut stage = Stage::with(&config);
    stage.disk.put(b"a", content(10));
    for file in 1..=3 {
        stage.open(file, b"a");
    }
    stage.tell_open(4, b"a");
    assert_eq!(stage.take_events(), rejected(RejectReason::TooManyFiles, 4));
    stage.tell(&Command::Close { file: FileId(2) });
    stage.open(4, b"a");
}

#[test]
fn there_may_be_too_many_flows() {
    let config = Config {
        flows_max: 2,
        ..small_config()
    };
    let mut stage = Stage::with(&config);
    stage.disk.put(b"a", content(10));
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 10)]);
    stage.send(2, 0, [range(1, 0, 10)]);
    stage.settle();
    stage.events.clear();
    let third = stage.send(3, 0, [range(1, 0, 10)]);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::TooManyFlows, third.0)
    );
    stage.acked(1, 10, false);
    let third = stage.send(3, 0, [range(1, 0, 10)]);
    assert_eq!(departed(&stage.take_events()), [third]);
}

/// A host bounds its connections to 131,072, and any of them may wait for an ACK or for its client.
#[test]
fn every_connection_of_a_host_may_retain_something() {
    const CONNECTIONS: u64 = 131_072;
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(10));
    stage.open(1, b"a");
    for flow in 1..=CONNECTIONS {
        stage.send(flow, 0, [range(1, 0, 10)]);
        if flow % 1024 == 0 {
            let sends = departed(&stage.take_events()).len();
            assert_eq!(sends, 1024, "at flow {flow}");
            stage.wire.take();
        }
    }
}

#[test]
fn unknown_files_are_rejected() {
    let mut stage = Stage::new();
    let send = stage.send(1, 0, [range(9, 0, 10)]);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::UnknownFile, send.0)
    );
    stage.tell(&Command::Close { file: FileId(9) });
    assert_eq!(stage.take_events(), rejected(RejectReason::UnknownFile, 9));
    serves(&mut stage);
}

#[test]
fn ranges_past_the_end_are_rejected() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.disk.put(b"empty", Vec::new());
    stage.open(1, b"a");
    stage.open(2, b"empty");
    for segment in [
        range(1, 0, 1001),
        range(1, 999, 2),
        range(1, 1000, 1),
        range(1, u64::MAX - 1, 1),
        range(1, u64::MAX - 1_000_000, 1_000_000),
        range(1, 1 << 63, 1),
        range(2, 0, 1),
    ] {
        let send = stage.send(1, 0, [segment]);
        assert_eq!(
            stage.take_events(),
            rejected(RejectReason::RangePastEnd, send.0),
            "{segment:?}"
        );
    }
    assert_eq!(stage.wire.packets(), []);
    serves(&mut stage);
}

#[test]
fn headers_that_are_not_tcp_are_rejected() {
    let mut stage = Stage::new();
    let good = header(1, 0, Flags::ACK, 1);
    let changed = |at: usize, to: u8| {
        let mut bad = good.clone();
        bad[at] = to;
        bad
    };
    let mut bad: Vec<Vec<u8>> = vec![
        changed(12, 0x86),           // an unassigned EtherType
        changed(14, 0x46),           // IPv4 with options that are not there
        changed(14, 0x65),           // IPv6
        changed(23, 17),             // UDP
        changed(14 + 20 + 12, 0x40), // TCP header too short
        changed(14 + 20 + 12, 0xf0), // longer than there is
        vec![0xff; 128],
        [good.as_slice(), &[0; 4]].concat(),
    ];
    bad.extend((1..good.len()).map(|len| good[..len].to_vec()));
    for header in bad {
        let send = stage.send_with(1, 0, &header, [Segment::Inline(b"x")].into());
        let [Event::Rejected { reason, id }] = stage.take_events()[..] else {
            panic!("{header:?} was accepted");
        };
        assert_eq!(id, send.0);
        assert!(matches!(
            reason,
            RejectReason::BadHeader | RejectReason::Malformed
        ));
    }
    assert_eq!(stage.wire.packets(), []);
    serves(&mut stage);
}

#[test]
fn a_record_that_breaks_the_contract_is_malformed() {
    let mut stage = Stage::new();
    let good = header(1, 0, Flags::ACK, 1);
    let send = Send {
        id: SendId(55),
        flow: FlowId(1),
        stream_offset: 0,
        acked_offset: 0,
        issued_us: 0,
        not_before_us: 0,
        tsval_fraction_us: 0,
        follow_bytes: 0,
        mss: 0,
        header: &good,
        segments: [Segment::Inline(b"x")].into(),
    };
    stage.tell(&Command::Send(send));
    assert_eq!(stage.take_events(), rejected(RejectReason::Malformed, 55));
    let beyond = stage.send(1, 0, [range(1, u64::MAX - 5, 1_000_000)]);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::Malformed, beyond.0)
    );
    stage.tell_open(7, b"with\0zero");
    assert_eq!(stage.take_events(), rejected(RejectReason::Malformed, 7));
    assert_eq!(stage.counters().commands_rejected, 3);
    serves(&mut stage);
}

#[test]
fn a_disk_that_cannot_read_fails_the_flow_until_it_is_over() {
    let mut stage = Stage::new();
    stage.disk.put(b"bad", content(300_000));
    stage.disk.spoil(b"bad", 150_000, EIO);
    stage.open(1, b"bad");
    let fails = stage.send(1, 0, [range(1, 0, 300_000)]);
    stage.send(1, 300_000, [Segment::Inline(b"dropped")]);
    let unaffected = stage.send(2, 0, [range(1, 0, 150_000)]);
    let events = stage.take_events();
    assert_eq!(departed(&events), [unaffected]);
    let failed = Event::ReadFailed {
        send: fails,
        flow: FlowId(1),
        file: FileId(1),
        offset: 150_000,
        errno: EIO,
    };
    assert!(events.contains(&failed), "{events:?}");

    // What could be read before has departed, and nothing after.
    let sent = stage.wire.streams()[&1].len();
    assert_eq!(sent, 2 * 45 * 1448);
    stage.send(1, 0, [Segment::Inline(b"still dropped")]);
    assert_eq!(stage.take_events(), []);
    stage.acked(1, 0, true);
    let again = stage.send(1, 0, [range(1, 0, 1000)]);
    assert_eq!(departed(&stage.take_events()), [again]);
}

#[test]
fn a_failed_block_is_read_again_when_it_is_wanted_again() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.disk.spoil(b"a", 0, EIO);
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 1000)]);
    assert!(matches!(
        stage.take_events()[..],
        [Event::ReadFailed {
            offset: 0,
            errno: EIO,
            ..
        }]
    ));
    stage.disk.spoil(b"a", u64::MAX, 0);
    stage.send(2, 0, [range(1, 0, 1000)]);
    stage.settle();
    assert_eq!(stage.wire.streams()[&2], content(1000));
}

#[test]
fn a_file_that_has_shrunk_has_no_data() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(100_000));
    stage.open(1, b"a");
    stage
        .disk
        .overwrite(b"a", content(100_000)[..70_000].to_vec());
    let send = stage.send(1, 0, [range(1, 69_000, 2000)]);
    assert_eq!(
        stage.take_events(),
        [Event::ReadFailed {
            send,
            flow: FlowId(1),
            file: FileId(1),
            offset: 70_000,
            errno: ENODATA,
        }]
    );
    serves(&mut stage);
}

#[test]
fn the_end_of_a_flow_that_is_not_known_is_no_error() {
    let mut stage = Stage::new();
    stage.acked(9, u64::MAX, false);
    stage.acked(9, 0, true);
    assert_eq!(stage.take_events(), []);
}

/// A command that an attacker might make up.
#[derive(Clone, Debug)]
enum Wild {
    Open {
        file: u32,
        path: Vec<u8>,
    },
    Close {
        file: u32,
    },
    Send(WildSend),
    Acked {
        flow: u64,
        offset: u64,
        last: bool,
    },
    Hold {
        name: u8,
        hold: bool,
    },
    Busy {
        busy: bool,
    },
    Key {
        flow: u64,
        epoch: u16,
        suite: usize,
    },
    KeyGone {
        flow: u64,
        epoch: u16,
    },
    Records(WildRecords),
    QuicKey {
        flow: u64,
        generation: u32,
        floor: u64,
    },
    QuicKeyGone {
        flow: u64,
        generation: u32,
    },
    QuicSend(WildQuicSend),
    Prepare(Prepare),
    QuicRelease(Prepare),
    QuicReceiveKey {
        flow: u64,
        generation: u32,
    },
    QuicReceiveKeyGone {
        flow: u64,
    },
}

#[derive(Clone, Debug)]
struct WildQuicSend {
    flow: u64,
    first_number: u64,
    generation: u32,
    times: (u64, u64),
    header: Vec<u8>,
    /// All packets have these segments.
    packets: usize,
    segments: Vec<WildSegment>,
}

impl WildQuicSend {
    fn perform(&self, stage: &mut Stage) {
        let first = self.first_number;
        let numbers = (0..self.packets as u64).map(|at| first.wrapping_add(at));
        let numbers: Vec<u64> = numbers.collect();
        let headers: Vec<[u8; 5]> = numbers
            .iter()
            .map(|number| {
                let [.., a, b, c, d] = number.to_be_bytes();
                [0x43, a, b, c, d]
            })
            .collect();
        let packets = numbers
            .iter()
            .zip(&headers)
            .map(|(number, header)| QuicPacket {
                number: *number,
                generation: self.generation,
                prefix: b"",
                header,
                segments: self.segments.len() as u8,
            });
        let segments = self.segments.iter().map(WildSegment::segment);
        stage.tell(&Command::QuicSend(QuicSend {
            id: SendId(1 << 40),
            flow: FlowId(self.flow),
            issued_us: self.times.0,
            not_before_us: self.times.1,
            header: &self.header,
            packets: packets.collect(),
            segments: (0..self.packets).flat_map(|_| segments.clone()).collect(),
        }));
    }
}

#[derive(Clone, Debug)]
struct WildRecords {
    flow: u64,
    epoch: u16,
    number: u64,
    offset: u64,
    each: u16,
    segments: Vec<WildSegment>,
    tags: Vec<Tag>,
}

#[derive(Clone, Debug)]
struct WildSend {
    id: u64,
    flow: u64,
    offset: u64,
    times: (u64, u64, u16),
    mss: u16,
    header: Vec<u8>,
    segments: Vec<WildSegment>,
}

#[derive(Clone, Debug)]
enum WildSegment {
    Inline(Vec<u8>),
    File { file: u32, offset: u64, len: u32 },
    Sealed { len: u32 },
}

impl WildSegment {
    fn segment(&self) -> Segment<'_> {
        match self {
            WildSegment::Inline(bytes) => Segment::Inline(bytes),
            WildSegment::File { file, offset, len } => range(*file, *offset, *len),
            WildSegment::Sealed { len } => Segment::Sealed { len: *len },
        }
    }
}

fn wild_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..100_000u64,
        1 => Just(u64::MAX),
        1 => (u64::MAX - 100_000)..u64::MAX,
        1 => any::<u64>(),
    ]
}

fn wild_header() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0..5u64).prop_map(|flow| header(flow, 0, Flags::ACK | Flags::PSH, 9)),
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, to)| {
            let mut header = header(1, 0, Flags::ACK, 9);
            let at = at.index(header.len());
            header[at] = to;
            header
        }),
        1 => prop::collection::vec(any::<u8>(), 0..140),
    ]
}

fn wild_segment() -> impl Strategy<Value = WildSegment> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300).prop_map(WildSegment::Inline),
        (
            0..6u32,
            wild_number(),
            prop_oneof![0..100_000u32, any::<u32>()]
        )
            .prop_map(|(file, offset, len)| WildSegment::File { file, offset, len }),
        prop_oneof![0..3000u32, 0..100_000u32].prop_map(|len| WildSegment::Sealed { len }),
    ]
}

fn wild() -> impl Strategy<Value = Wild> {
    let path = prop_oneof![
        4 => (0..6u8).prop_map(|name| vec![b'a' + name]),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    let send = (
        prop_oneof![0..3u64, any::<u64>()],
        0..5u64,
        wild_number(),
        (wild_number(), wild_number(), any::<u16>()),
        prop_oneof![4 => Just(1448u16), 1 => any::<u16>()],
        wild_header(),
        prop::collection::vec(wild_segment(), 0..6),
    )
        .prop_map(|(id, flow, offset, times, mss, header, segments)| {
            Wild::Send(WildSend {
                id,
                flow,
                offset,
                times,
                mss,
                header,
                segments,
            })
        });
    // Often enough what fits together.
    let records = (
        (0..5u64, 0..3u16),
        prop_oneof![3 => (0..10u64).prop_map(|number| 64 * number), 1 => wild_number()],
        prop_oneof![4 => (0..10u64).prop_map(|at| 20_000 * at), 1 => wild_number()],
        prop_oneof![Just(16_384u16), 0..2000u16],
        prop::collection::vec(wild_segment(), 0..4),
        prop::collection::vec(any::<Tag>(), 0..2),
    )
        .prop_map(|((flow, epoch), number, offset, each, segments, tags)| {
            Wild::Records(WildRecords {
                flow,
                epoch,
                number,
                offset,
                each,
                segments,
                tags,
            })
        });
    let key = (0..5u64, 0..3u16, 0..6usize);
    let quic_send = (
        (0..5u64, 0..3u32),
        prop_oneof![4 => 0..1000u64, 1 => wild_number()],
        (wild_number(), wild_number()),
        prop_oneof![
            8 => (0..5u64, any::<bool>()).prop_map(|(flow, ipv6)| udp_header(flow, ipv6)),
            1 => wild_header(),
        ],
        1..10usize,
        prop::collection::vec(
            prop_oneof![
                1 => prop::collection::vec(any::<u8>(), 0..50).prop_map(WildSegment::Inline),
                4 => (1..5u32, 0..100_000u64, 1..500u32)
                    .prop_map(|(file, offset, len)| WildSegment::File { file, offset, len }),
                1 => wild_segment(),
            ],
            0..6,
        ),
    )
        .prop_map(
            |((flow, generation), first_number, times, header, packets, segments)| {
                Wild::QuicSend(WildQuicSend {
                    flow,
                    first_number,
                    generation,
                    times,
                    header,
                    packets,
                    segments,
                })
            },
        );
    let prepare = || {
        let range = (
            0..6u32,
            wild_number(),
            prop_oneof![0..100_000u32, any::<u32>()],
        );
        (0..5u64, range).prop_map(|(flow, (file, offset, len))| Prepare {
            id: SendId(1 << 41),
            flow: FlowId(flow),
            file: FileId(file),
            offset,
            len,
        })
    };
    prop_oneof![
        2 => (0..5u64, 0..3u32, prop_oneof![4 => 0..10u64, 1 => wild_number()])
            .prop_map(|(flow, generation, floor)| Wild::QuicKey { flow, generation, floor }),
        1 => (0..5u64, 0..3u32)
            .prop_map(|(flow, generation)| Wild::QuicKeyGone { flow, generation }),
        8 => quic_send,
        3 => prepare().prop_map(Wild::Prepare),
        1 => prepare().prop_map(Wild::QuicRelease),
        2 => (0..5u64, 0..4u32)
            .prop_map(|(flow, generation)| Wild::QuicReceiveKey { flow, generation }),
        1 => (0..5u64).prop_map(|flow| Wild::QuicReceiveKeyGone { flow }),
        3 => key.prop_map(|(flow, epoch, suite)| Wild::Key { flow, epoch, suite }),
        1 => (0..5u64, 0..3u16).prop_map(|(flow, epoch)| Wild::KeyGone { flow, epoch }),
        8 => records,
        3 => (0..6u32, path).prop_map(|(file, path)| Wild::Open { file, path }),
        1 => (0..6u32).prop_map(|file| Wild::Close { file }),
        8 => send,
        2 => (0..5u64, wild_number(), any::<bool>())
            .prop_map(|(flow, offset, last)| Wild::Acked { flow, offset, last }),
        1 => (0..6u8, any::<bool>()).prop_map(|(name, hold)| Wild::Hold { name, hold }),
        1 => any::<bool>().prop_map(|busy| Wild::Busy { busy }),
    ]
}

impl Wild {
    fn perform(&self, stage: &mut Stage) {
        match self {
            Wild::Open { file, path } => stage.tell_open(*file, path),
            Wild::Close { file } => stage.tell(&Command::Close {
                file: FileId(*file),
            }),
            Wild::Acked { flow, offset, last } => stage.acked(*flow, *offset, *last),
            Wild::Hold { name, hold: true } => stage.disk.hold(&[b'a' + name]),
            Wild::Hold { name, .. } => stage.disk.release(&[b'a' + name]),
            Wild::Busy { busy } => stage.wire.close(*busy),
            Wild::Key { flow, epoch, suite } => install(stage, *flow, *epoch, SUITES[*suite]),
            Wild::KeyGone { flow, epoch } => stage.tell(&Command::KeyGone {
                flow: FlowId(*flow),
                epoch: *epoch,
            }),
            Wild::Records(wild) => stage.tell(&Command::Records(Records {
                flow: FlowId(wild.flow),
                epoch: wild.epoch,
                number: wild.number,
                stream_offset: wild.offset,
                content_type: ContentType::ApplicationData,
                record_plaintext_bytes: wild.each,
                follow_bytes: 70_000,
                segments: wild.segments.iter().map(WildSegment::segment).collect(),
                tags: &wild.tags,
            })),
            Wild::QuicKey {
                flow,
                generation,
                floor,
            } => stage.tell_quic_key(*flow, *generation, *floor),
            Wild::QuicKeyGone { flow, generation } => stage.tell_key_gone(*flow, *generation),
            Wild::QuicReceiveKey { flow, generation } => stage.tell_receive(*flow, *generation),
            Wild::QuicReceiveKeyGone { flow } => stage.tell_receive_gone(*flow),
            Wild::QuicSend(wild) => wild.perform(stage),
            Wild::Prepare(prepare) => stage.tell(&Command::Prepare(*prepare)),
            Wild::QuicRelease(range) => {
                stage.release(range.flow.0, range.file.0, range.offset, range.len.into());
            }
            Wild::Send(wild) => {
                let mut segments = Segments::new();
                for segment in &wild.segments {
                    segments.push(segment.segment()).expect("few segments");
                }
                stage.tell(&Command::Send(Send {
                    id: SendId(wild.id),
                    flow: FlowId(wild.flow),
                    stream_offset: wild.offset,
                    acked_offset: 0,
                    issued_us: wild.times.0,
                    not_before_us: wild.times.1,
                    tsval_fraction_us: wild.times.2,
                    follow_bytes: 0,
                    mss: wild.mss,
                    header: &wild.header,
                    segments,
                }));
            }
        }
    }
}

proptest! {
    #![proptest_config(
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(300)
        }
    )]

    #[test]
    fn after_any_commands_a_good_request_is_served(
        commands in prop::collection::vec((wild(), any::<bool>()), 1..60),
        jobs_max in 1..8usize,
    ) {
        let config = Config { cache_bytes: 0, jobs_max, ..small_config() };
        let mut stage = Stage::with(&config);
        stage.wire.be_lenient();
        for name in 0..5u8 {
            stage.disk.put(&[b'a' + name], content(usize::from(name) * 40_000));
        }
        stage.disk.spoil(b"e", 100_000, EIO);
        for (command, settle) in &commands {
            command.perform(&mut stage);
            if *settle {
                stage.settle();
            }
        }
        for name in 0..6u8 {
            stage.disk.release(&[b'a' + name]);
        }
        stage.wire.close(false);
        // Whatever is held, and whatever was stuck in the ring behind it.
        for _ in 0..=commands.len() {
            stage.now_us.set(stage.now_us.get() + HOLD_US_MAX);
            stage.settle();
        }

        let counters = stage.counters();
        let sends = counters.sends + counters.quic_sends + counters.prepares;
        let answered = stage.events.iter().filter(|event| {
            matches!(
                event,
                Event::Departed { .. } | Event::ReadFailed { .. } | Event::SealMismatch { .. }
            )
        }).count() as u64;
        prop_assert!(answered <= sends);
        serves(&mut stage);

        // Everything can be let go of again.
        for flow in (0..5).chain([60_000]) {
            stage.acked(flow, 0, true);
        }
        for file in (0..6).chain([4_000_000_000]) {
            stage.tell(&Command::Close { file: FileId(file) });
        }
        stage.settle();
        prop_assert_eq!(stage.disk.open_files(), 0);
        let usage = stage.worker.usage();
        prop_assert_eq!((usage.flows, usage.keys, usage.runs, usage.records_bytes), (0, 0, 0, 0));
    }
}
