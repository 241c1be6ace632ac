//! Instructions that the NIC stack spends on a SEND of a file that is in its memory, counted by
//! callgrind.
//!
//! Sixty-four flows take turns with SENDs of about 64 KB, each of which acknowledges what came
//! before it, so that blocks are pinned and let go as they are while a file is served. What is
//! counted: from the command in the ring to the superpacket at the port, and the event that tells
//! of its departure; neither the port nor the copy into packets.

mod rig;

use std::process::ExitCode;

use contract::Segment;
use rig::{FILE, FILE_BYTES, MSS, Rig, Wanted};
use testbed::instructions::{Count, check};

const FLOWS: u64 = 64;
/// Whole packets, in one superpacket of 64 KB.
const SEND_BYTES: u64 = 44 * MSS as u64;
const SENDS: u64 = 20_000;
/// SENDs before anything is counted: the file is in memory, tables and queues have grown.
const WARM_UP_SENDS: u64 = 5_000;
/// SENDs that come together, as they do when the worker is busy.
const TURN: u64 = 16;

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per SEND of 64 KB from cached blocks",
        within: "counted_turns",
        times: SENDS,
        committed: 6_113,
        promised: None,
        workload,
    })
}

fn workload() {
    let mut rig = Rig::new(64 << 10);
    let mut done = 0;
    while done < WARM_UP_SENDS + SENDS {
        let sends = done..done + TURN;
        for send in sends {
            let (flow, round) = (send % FLOWS, send / FLOWS);
            let stream_offset = round * SEND_BYTES;
            rig.send(Wanted {
                id: send,
                flow,
                stream_offset,
                acked_offset: stream_offset,
                segment: Segment::File {
                    file: FILE,
                    offset: (round * SEND_BYTES) % (FILE_BYTES as u64 - SEND_BYTES),
                    len: SEND_BYTES as u32,
                },
            });
        }
        if done < WARM_UP_SENDS {
            rig.run_until(TURN);
        } else {
            counted_turns(&mut rig);
            assert_eq!(rig.departures(), TURN, "every SEND has departed");
        }
        done += TURN;
    }
    let counters = rig.worker.counters();
    assert_eq!(counters.superpackets, done, "one for each SEND");
    assert!(
        counters.reads <= FILE_BYTES as u64 >> 12,
        "nothing is read twice"
    );
}

#[inline(never)]
fn counted_turns(rig: &mut Rig) {
    while rig.worker.turn(&|| 0).expect("the ring is sound") != nic::Progress::Idle {}
}
