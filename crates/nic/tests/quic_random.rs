//! Datagrams put together at random, sent under adversity, compared byte by byte.

mod support;

use std::collections::{BTreeMap, VecDeque};

use contract::{Event, FileId, FlowId, Segment, SendId};
use fakes::recording_port::Answer;
use fakes::seeds::each_seed;
use nic::Config;
use support::quic::{Plain, Qsend, packet};
use support::{Stage, content, range};

const FLOWS: u64 = 4;
const FILE_BYTES: [usize; 4] = [1400, 70_000, 131_072, 600_001];

static INLINE: [u8; 64] = [0x5a; 64];

type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

fn name(file: usize) -> [u8; 1] {
    [b'a' + file as u8]
}

/// What the host knows of a flow.
#[derive(Default)]
struct Known {
    generation: u32,
    next_number: u64,
    /// Packets that are to leave, in order.
    expected: VecDeque<(u64, Vec<u8>)>,
    /// QSENDs that are to depart, in order.
    sends: VecDeque<SendId>,
}

/// A packet with so many bytes of plaintext, and these bytes.
fn random_packet(number: u64, len: u64, files: &[Vec<u8>], random: Random<'_>) -> (Plain, Vec<u8>) {
    let mut plain = packet(number, 0, 0, 1);
    plain.segments.clear();
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let left = len - bytes.len() as u64;
        if random(3) == 0 {
            let some = &INLINE[..left.min(1 + random(40)) as usize];
            bytes.extend_from_slice(some);
            plain.segments.push(Segment::Inline(some));
        } else {
            let file = random(FILE_BYTES.len() as u64) as usize;
            let some = left.min(1 + random(1300)).min(FILE_BYTES[file] as u64);
            let offset = random(FILE_BYTES[file] as u64 - some + 1);
            let (from, to) = (offset as usize, (offset + some) as usize);
            bytes.extend_from_slice(&files[file][from..to]);
            plain.segments.push(range(file as u32, offset, some as u32));
        }
    }
    (plain, bytes)
}

/// Issues a QSEND of a few packets, all but the last of the same length.
fn send(stage: &mut Stage, flow: u64, known: &mut Known, files: &[Vec<u8>], random: Random<'_>) {
    let count = 1 + random(20);
    let each = 30 + random(1200);
    let last = 20 + random(each - 19);
    let mut packets = Vec::new();
    let mut segments = 0;
    for at in 0..count {
        let len = if at + 1 == count { last } else { each };
        known.next_number += 1 + random(2) * random(3);
        let (mut plain, bytes) = random_packet(known.next_number, len, files, random);
        segments += plain.segments.len();
        if segments > contract::limits::QUIC_SEGMENTS_MAX {
            break;
        }
        plain.generation = known.generation;
        known.expected.push_back((known.next_number, bytes));
        packets.push(plain);
    }
    let send = Qsend {
        ipv6: random(2) == 0,
        held_us: random(2) * random(500),
        ..Qsend::new(flow, packets)
    };
    known.sends.push_back(stage.issue(&send));
}

fn run(random: Random<'_>) {
    let more_blocks = random(40) as usize;
    let mut stage = Stage::with(&Config {
        cache_bytes: Config::CACHE_BYTES_MIN + more_blocks * nic::buffer::BLOCK_BYTES,
        ..Config::default()
    });
    let files = FILE_BYTES.map(content);
    for (file, bytes) in files.iter().enumerate() {
        stage.disk.put(&name(file), bytes.clone());
        stage.tell_open(file as u32, &name(file));
    }
    let mut flows: BTreeMap<u64, Known> = BTreeMap::new();
    for flow in 0..FLOWS {
        stage.tell_quic_key(flow, 0, 0);
        flows.insert(flow, Known::default());
    }
    let mut prepares = 0;
    for _ in 0..100 {
        let flow = random(FLOWS);
        let known = flows.get_mut(&flow).expect("a flow");
        let file = random(FILE_BYTES.len() as u64) as usize;
        let offset = random(FILE_BYTES[file] as u64);
        let len = 1 + random(FILE_BYTES[file] as u64 - offset);
        match random(12) {
            0..4 => send(&mut stage, flow, known, &files, random),
            4 => {
                prepares += 1;
                stage.prepare(flow, file as u32, offset, len as u32);
            }
            5 => stage.release(flow, file as u32, offset, len),
            6 if known.generation < 3 => {
                known.generation += 1;
                stage.tell_quic_key(flow, known.generation, known.next_number);
                stage.tell_key_gone(flow, known.generation - 1);
            }
            7 => stage.disk.hold(&name(file)),
            8 => stage.disk.release(&name(file)),
            9 => {
                let busy = (0..1 + random(3)).map(|_| Answer::Busy);
                stage.wire.answer(busy);
            }
            10 => stage.now_us.set(stage.now_us.get() + random(2000)),
            _ => {
                stage.turn();
            }
        }
    }
    for file in 0..FILE_BYTES.len() {
        stage.disk.release(&name(file));
    }
    // The port may be busy a few times more than there is anything else to do, and pins may have to
    // go.
    for _ in 0..200 {
        stage.now_us.set(stage.now_us.get() + 1_000_000);
        stage.settle();
    }
    check(&mut stage, flows, prepares);
}

fn check(stage: &mut Stage, mut flows: BTreeMap<u64, Known>, mut prepares: usize) {
    let mut packets = 0;
    for (flow, number, plaintext) in stage.opened() {
        let known = flows.get_mut(&flow).expect("a flow");
        let wanted = known.expected.pop_front();
        let (wanted_number, wanted) = wanted.expect("it was issued");
        assert_eq!(number, wanted_number, "of flow {flow}");
        assert!(plaintext == wanted, "packet {number} of flow {flow}");
        packets += 1;
    }
    for event in stage.take_events() {
        match event {
            Event::Opened { .. } => {}
            Event::Departed { send, flow, .. } => {
                let known = flows.get_mut(&flow.0).expect("a flow");
                assert_eq!(known.sends.pop_front(), Some(send), "in order");
            }
            Event::Ready { .. } => prepares -= 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(prepares, 0, "all are answered");
    for (flow, known) in &flows {
        assert!(known.expected.is_empty() && known.sends.is_empty());
        stage.acked(*flow, 0, true);
    }
    for file in 0..FILE_BYTES.len() {
        let file = FileId(file as u32);
        stage.tell(&contract::Command::Close { file });
    }
    assert_eq!(stage.take_events(), []);
    let counters = stage.counters();
    assert_eq!(counters.quic_packets_sealed, packets);
    assert_eq!(counters.datagrams, packets);
    let usage = stage.worker.usage();
    assert_eq!((usage.flows, usage.jobs, usage.prepares), (0, 0, 0));
    assert_eq!((usage.files, usage.keys, usage.records_bytes), (0, 0, 0));
    assert_eq!((usage.blocks_occupied, usage.blocks_pinned), (0, 0));
    assert_eq!(stage.worker.flows_waiting(u64::MAX).next(), None::<FlowId>);
}

#[test]
fn every_packet_leaves_once_in_the_order_of_its_flow() {
    each_seed(200, run);
}
