//! Instructions that the NIC stack spends on a packet of QUIC of a file that is in its memory,
//! counted by callgrind.
//!
//! Sixty-four flows take turns with QSENDs of 44 packets in datagrams of 1,452 bytes: a frame's
//! header inline, and a range of the file. With each QSEND come a PREPARE of the range that the
//! next one is of, and a QRELEASE of what the one before it has sent. What is counted: from the
//! commands in the ring to the superpacket at the port, and the events; AES-128-GCM included, as it
//! is on a CPU without AVX-512, which valgrind does not know. With `-- --functions`,
//! `EVP_AEAD_CTX_seal_scatter` is the line to take off.

mod rig;

use std::process::ExitCode;

use contract::tls::Cipher;
use rig::quic::{PACKETS, QuicRig};
use testbed::instructions::{Count, check};

const FLOWS: u64 = 64;
const SENDS: u64 = 5_000;
/// QSENDs before anything is counted: the file is in memory, tables and queues have grown.
const WARM_UP_SENDS: u64 = 1_000;
/// QSENDs that come together, as they do when the worker is busy.
const TURN: u64 = 8;

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per packet of QUIC, of QSENDs of 64 KB from cached blocks",
        within: "counted_turns",
        times: SENDS * PACKETS,
        committed: 6_173,
        promised: None,
        workload,
    })
}

fn workload() {
    let mut rig = QuicRig::new(Cipher::Aes128Gcm, FLOWS);
    let mut done = 0;
    while done < WARM_UP_SENDS + SENDS {
        rig.send(done..done + TURN);
        if done < WARM_UP_SENDS {
            rig.run_until(TURN);
        } else {
            counted_turns(&mut rig);
            assert_eq!(rig.departures(), TURN, "every QSEND has departed");
        }
        done += TURN;
    }
    let counters = rig.worker().counters();
    assert_eq!(counters.superpackets, done, "one for each QSEND");
    assert_eq!(counters.quic_packets_sealed, done * PACKETS);
    assert_eq!(counters.block_misses, 0, "all has been prepared");
}

#[inline(never)]
fn counted_turns(rig: &mut QuicRig) {
    while rig.worker().turn(&|| 0).expect("the ring is sound") != nic::Progress::Idle {}
}
