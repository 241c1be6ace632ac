//! What a packet of a QUIC client costs a worker that opens it, by how packets are put in order
//! that come in another.
//!
//! A client's acknowledgments of 40 bytes arrive at the worker's port, 48 at a time, some of them
//! up to 64 packets late; the host takes what comes up. What is timed is all that the NIC stack
//! does: the frame parsed and its checksum verified, header protection, the number, AES-128-GCM,
//! order, and the event.
//!
//! `cargo bench -p splitway-nic --bench quic_receive` prints nanoseconds per packet for the ring,
//! for a linear list, and without order, the fastest of several rounds that alternate; nothing
//! fails.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use contract::Event;
use fakes::recording_port::{Recording, RecordingPort};
use netdev::steering::Target;
use nic::reader::memory::MemoryDisk;
use nic::{Config, Reorder};
use support::quic_peer::Peer;
use support::{Stage, small_config};

const FLOW: u64 = 7;
const PACKETS: u64 = 48_000;
const ROUNDS: usize = 5;
/// Packets that arrive together.
const TURN: usize = 48;
/// A packet that is late is so by up to so many.
const LATE_MAX: u64 = 64;
/// Time between packets, in microseconds: within the time that a gap is held, all that is late
/// comes.
const PACE_US: u64 = 10;

/// Late packets per thousand.
const LATE: [u64; 4] = [0, 10, 50, 100];

const KINDS: [(&str, Reorder); 3] = [
    ("ring", Reorder::Ring),
    ("linear", Reorder::Linear),
    ("off", Reorder::Off),
];

fn main() {
    for late in LATE {
        let frames = frames(late);
        let mut best = KINDS.map(|_| Duration::MAX);
        let mut held = 0;
        for _ in 0..ROUNDS {
            for ((_, reorder), best) in KINDS.into_iter().zip(&mut best) {
                let (time, of_round) = round(&frames, reorder);
                *best = time.min(*best);
                held = of_round.max(held);
            }
        }
        print!("{:>3} % late, {held:>5} held:", late as f64 / 10.0);
        for ((name, _), best) in KINDS.into_iter().zip(best) {
            let ns = best.as_nanos() as f64 / PACKETS as f64;
            print!("  {name} {ns:.0} ns");
        }
        println!();
    }
}

/// Frames in the order in which they arrive.
fn frames(late: u64) -> Vec<Vec<u8>> {
    let peer = Peer::new(FLOW);
    let mut state = 0x5eed_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut arriving: Vec<(u64, u64)> = (0..PACKETS)
        .map(|number| {
            let is_late = number > 0 && random(1000) < late;
            let by = if is_late { 1 + random(LATE_MAX) } else { 0 };
            (number + by, number)
        })
        .collect();
    arriving.sort_by_key(|(at, _)| *at);
    // An ACK of one range of growing numbers, of which the first is missing: none says all that
    // another does.
    let frames = arriving.into_iter().map(|(_, number)| {
        let mut ack = vec![2, 0x80, 0, 0, 0, 0x40, 99, 0, 0];
        ack[1..5].copy_from_slice(&(0x8000_0000 | (2 * number as u32)).to_be_bytes());
        ack.resize(40, 0);
        peer.frame(number, &ack)
    });
    frames.collect()
}

/// How long the worker works on all frames, and how many packets it has held.
fn round(frames: &[Vec<u8>], reorder: Reorder) -> (Duration, u64) {
    let wire = Recording::default();
    let mut port = RecordingPort::new(&wire, 65_535);
    port.set_target(Target::new(9));
    let config = Config {
        reorder,
        ..small_config()
    };
    let mut stage = Stage::on_port(&config, Box::new(MemoryDisk::new()), port, wire);
    stage.tell_receive(FLOW, 0);
    stage.settle();
    stage.events.clear();
    let (mut time, mut packets) = (Duration::ZERO, 0);
    for turn in frames.chunks(TURN) {
        turn.iter()
            .for_each(|frame| stage.wire.arrive(frame.clone()));
        stage.now_us.set(stage.now_us.get() + TURN as u64 * PACE_US);
        let start = Instant::now();
        while stage.turn() == nic::Progress::Busy {}
        time += start.elapsed();
        packets += take(&mut stage);
    }
    stage.now_us.set(stage.now_us.get() + 1_000_000);
    stage.turn();
    packets += take(&mut stage);
    assert_eq!(packets, frames.len(), "all of them came up");
    (time, stage.counters().quic_packets_held)
}

/// How many packets have come up.
fn take(stage: &mut Stage) -> usize {
    stage.listen();
    let events = stage.events.drain(..);
    let packets = events.map(|event| match event {
        Event::QuicReceived(received) => received.packets.len(),
        other => panic!("{other:?}"),
    });
    packets.sum()
}
