//! Instructions that the host stack spends on a packet of QUIC, from the ring to its
//! acknowledgment, counted by callgrind.
//!
//! A few clients download over connections that lose nothing; they acknowledge every tenth packet,
//! as they are asked to. What is counted is all that the stack does meanwhile: ACKs taken in and
//! opened, departures, PREPARE and READY, packets decided on and described, and the QSENDs written
//! into the ring; clock and packet socket not included, nor handshakes. A QSEND has some thirty
//! packets, which is what pacing lets go at once.

#[path = "../tests/quic/app.rs"]
#[allow(dead_code)]
mod app;
#[path = "../tests/quic/nic.rs"]
#[allow(dead_code)]
mod nic;
#[path = "../tests/quic/opener.rs"]
#[allow(dead_code)]
mod opener;
#[path = "../tests/quic/world.rs"]
#[allow(dead_code)]
mod world;

use std::process::ExitCode;

use testbed::instructions::{Count, check};
use world::World;

const CONNECTIONS: usize = 4;

/// Bytes that each client downloads before anything is counted: slow start ends, tables and queues
/// have grown ...
const WARM_UP_BYTES: u64 = 2_000_000;
/// ... and then.
const BYTES: u64 = 4_000_000;

/// Packets of the downloads that are counted, retransmissions of none: as many as there were when
/// this was last looked at.
const PACKETS: u64 = 11_292;

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per packet of QUIC, sent and acknowledged, of 4 connections",
        within: "counted_turn",
        times: PACKETS,
        committed: 5_834,
        promised: None,
        workload,
    })
}

fn workload() {
    let mut state = 0x5eed_u64;
    let mut random = move |below: u64| {
        // Xorshift: the same in each run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below.max(1)
    };
    let mut world = World::new(&mut random);
    let clients: Vec<usize> = (0..CONNECTIONS).map(|_| world.connected()).collect();
    for bytes in [WARM_UP_BYTES, BYTES] {
        let before = world.stack.counters();
        world.is_counted = bytes == BYTES;
        for &client in &clients {
            world.request(client, bytes, (0, bytes), 0);
        }
        world.run_until_finished();
        world.is_counted = false;
        let counters = world.stack.counters();
        let packets = counters.quic_packets - before.quic_packets;
        let sends = counters.quic_sends - before.quic_sends;
        println!("{packets} packets in {sends} QSENDs");
        if bytes == BYTES {
            let wanted = PACKETS * 98 / 100..PACKETS * 102 / 100;
            assert!(wanted.contains(&packets), "{packets} packets");
        }
    }
}
