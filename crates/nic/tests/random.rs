//! Streams put together at random, sent under adversity, compared byte by byte.

mod support;

use std::collections::BTreeMap;

use contract::{Segment, Segments, SendId};
use fakes::recording_port::Answer;
use nic::Config;
use proptest::prelude::*;
use support::{Stage, content, departed, header, range};
use wire::tcp::Flags;

const FILES: usize = 4;
const FLOWS: u64 = 5;

fn file_bytes(file: usize) -> usize {
    [1, 70_000, 131_072, 400_001][file]
}

fn name(file: usize) -> [u8; 1] {
    [b'a' + file as u8]
}

/// A piece of a stream.
#[derive(Clone, Debug)]
enum Piece {
    Inline(Vec<u8>),
    /// From one fraction of a file to another.
    File(usize, f64, f64),
}

#[derive(Clone, Debug)]
enum Step {
    /// The next SEND of a flow.
    Send(u64, Vec<Piece>),
    /// One of its earlier SENDs again.
    Again(u64, prop::sample::Index),
    /// Up to the end of one of its departed SENDs.
    Acked(u64, prop::sample::Index),
    Hold(usize),
    Release(usize),
    PortBusy(usize),
    Turn,
    Settle,
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..600).prop_map(Piece::Inline),
        (0..FILES, 0.0..1.0, 0.0..1.0).prop_map(|(file, a, b)| Piece::File(file, a, b)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        10 => (0..FLOWS, prop::collection::vec(piece(), 0..6)).prop_map(|(f, p)| Step::Send(f, p)),
        3 => (0..FLOWS, index()).prop_map(|(flow, which)| Step::Again(flow, which)),
        3 => (0..FLOWS, index()).prop_map(|(flow, which)| Step::Acked(flow, which)),
        1 => (0..FILES).prop_map(Step::Hold),
        2 => (0..FILES).prop_map(Step::Release),
        1 => (1..4usize).prop_map(Step::PortBusy),
        5 => Just(Step::Turn),
        2 => Just(Step::Settle),
    ]
}

/// What the host remembers of a SEND.
#[derive(Clone)]
struct Sent {
    offset: u64,
    end: u64,
    pieces: Vec<Piece>,
}

#[derive(Default)]
struct Stream {
    sent: Vec<Sent>,
    bytes: Vec<u8>,
    expected: Vec<SendId>,
}

/// The range of a file that a piece stands for; never empty.
fn file_range(file: usize, a: f64, b: f64) -> (usize, usize) {
    let size = file_bytes(file);
    let at = |fraction: f64| ((size - 1) as f64 * fraction) as usize;
    let (from, to) = (at(a.min(b)), at(a.max(b)));
    (from, to + 1)
}

fn issue(stage: &mut Stage, flow: u64, sent: &Sent) -> SendId {
    let mut segments = Segments::new();
    for piece in &sent.pieces {
        let segment = match piece {
            Piece::Inline(bytes) => Segment::Inline(bytes),
            Piece::File(file, a, b) => {
                let (from, to) = file_range(*file, *a, *b);
                range(*file as u32, from as u64, (to - from) as u32)
            }
        };
        segments.push(segment).expect("few segments");
    }
    let header = header(flow, sent.offset, Flags::ACK, 1);
    stage.send_with(flow, sent.offset, &header, segments)
}

proptest! {
    #![proptest_config(
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(150)
        }
    )]

    #[test]
    fn every_byte_arrives_and_every_flow_keeps_its_order(
        steps in prop::collection::vec(step(), 1..80),
        more_blocks in 0..20usize,
    ) {
        let config = Config {
            cache_bytes: Config::CACHE_BYTES_MIN + more_blocks * nic::buffer::BLOCK_BYTES,
            ..Config::default()
        };
        let mut stage = Stage::with(&config);
        let files: Vec<Vec<u8>> = (0..FILES).map(|file| content(file_bytes(file))).collect();
        for (file, bytes) in files.iter().enumerate() {
            stage.disk.put(&name(file), bytes.clone());
            stage.tell_open(file as u32, &name(file));
        }
        let mut streams: BTreeMap<u64, Stream> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Send(flow, pieces) => {
                    let stream = streams.entry(flow).or_default();
                    let offset = stream.bytes.len() as u64;
                    for piece in &pieces {
                        match piece {
                            Piece::Inline(bytes) => stream.bytes.extend(bytes),
                            Piece::File(file, a, b) => {
                                let (from, to) = file_range(*file, *a, *b);
                                stream.bytes.extend(&files[*file][from..to]);
                            }
                        }
                    }
                    let end = stream.bytes.len() as u64;
                    if end - offset > contract::limits::SEND_BYTES_MAX as u64 {
                        stream.bytes.truncate(offset as usize);
                        continue;
                    }
                    let sent = Sent { offset, end, pieces };
                    stream.expected.push(issue(&mut stage, flow, &sent));
                    stream.sent.push(sent);
                }
                Step::Again(flow, which) => {
                    let stream = streams.entry(flow).or_default();
                    if !stream.sent.is_empty() {
                        let sent = &stream.sent[which.index(stream.sent.len())];
                        stream.expected.push(issue(&mut stage, flow, sent));
                    }
                }
                Step::Acked(flow, which) => {
                    if let Some(stream) = streams.get(&flow).filter(|s| !s.sent.is_empty()) {
                        let end = stream.sent[which.index(stream.sent.len())].end;
                        stage.acked(flow, end, false);
                    }
                }
                Step::Hold(file) => stage.disk.hold(&name(file)),
                Step::Release(file) => stage.disk.release(&name(file)),
                Step::PortBusy(times) => stage.wire.answer((0..times).map(|_| Answer::Busy)),
                Step::Turn => {
                    stage.turn();
                }
                Step::Settle => {
                    stage.settle();
                }
            }
        }
        for file in 0..FILES {
            stage.disk.release(&name(file));
        }
        // The port may be busy a few times more than there is anything else to do.
        let all: usize = streams.values().map(|stream| stream.expected.len()).sum();
        for _ in 0..300 {
            stage.settle();
            if departed(&stage.events).len() == all {
                break;
            }
        }

        let order = departed(&stage.events);
        prop_assert_eq!(order.len(), all);
        prop_assert_eq!(stage.events.len(), all + FILES);
        let arrived = stage.wire.streams();
        for (flow, stream) in &streams {
            let of_flow: Vec<SendId> =
                order.iter().filter(|id| stream.expected.contains(id)).copied().collect();
            prop_assert_eq!(&of_flow, &stream.expected);
            let bytes = arrived.get(flow).cloned().unwrap_or_default();
            prop_assert!(bytes == stream.bytes, "flow {} differs", flow);
        }
    }
}
