//! Instructions that the host stack spends on an ACK and the SEND that it lets go, counted by
//! callgrind.
//!
//! A thousand clients download, each with a window of a few SENDs. In a turn, some of them
//! acknowledge one SEND each. The stack takes in the ACKs and the departures of the SENDs before,
//! and writes SENDs into the ring. That is what is counted: from the frame to the ring, clock and
//! packet socket not included. It is the same in each run, whatever the machine does meanwhile.

#[path = "../tests/crowd/mod.rs"]
mod crowd;

use std::process::ExitCode;

use contract::Event;
use crowd::{Crowd, FILE};
use testbed::instructions::{Count, check};
use wire::tcp::Flags;

const CONNECTIONS: usize = 1000;
/// ACKs that come together, as they do when the stack is busy.
const TURN: usize = 64;
const PAIRS: usize = 20_000;
/// Rounds before anything is counted: slow start ends, tables and queues have grown.
const WARM_UP_PAIRS: usize = 20_000;

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per ACK and SEND at 1000 connections",
        within: "counted_turn",
        times: PAIRS as u64,
        committed: 2_475,
        promised: Some(2_500),
        workload,
    })
}

fn workload() {
    let mut crowd = Crowd::new();
    for _ in 0..CONNECTIONS {
        let client = crowd.connect();
        crowd.say(client, Flags::ACK | Flags::PSH, FILE);
        crowd.turn();
    }
    let mut waiting = std::mem::take(&mut crowd.sent);
    assert!(waiting.len() >= CONNECTIONS, "everybody is being served");
    let mut done = 0;
    while done < WARM_UP_PAIRS + PAIRS {
        // The oldest SENDs depart and are acknowledged.
        let batch: Vec<_> = waiting.drain(..TURN.min(waiting.len())).collect();
        crowd.now_us += 1_000;
        let frames: Vec<Vec<u8>> = batch
            .iter()
            .map(|sent| crowd.frame_acknowledging(sent))
            .collect();
        let departures: Vec<Event> = batch.iter().map(|sent| sent.departed.clone()).collect();
        for departed in &departures {
            crowd.nic.send(departed).expect("room for an event");
        }
        crowd.nic.flush();
        let before = crowd.stack.counters().sends;
        if done < WARM_UP_PAIRS {
            crowd.take_in(&frames);
        } else {
            counted_turn(&mut crowd, &frames);
        }
        let sends = crowd.stack.counters().sends - before;
        crowd.collect();
        waiting.append(&mut crowd.sent);
        if done >= WARM_UP_PAIRS {
            assert_eq!(sends, batch.len() as u64, "an ACK lets one SEND go");
        }
        done += batch.len();
    }
    assert_eq!(crowd.stack.counters().retransmissions, 0);
}

#[inline(never)]
fn counted_turn(crowd: &mut Crowd, frames: &[Vec<u8>]) {
    crowd.take_in(frames);
}
