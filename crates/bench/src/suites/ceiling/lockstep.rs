//! The ceiling in one thread and in virtual time: the host and its surroundings take turns. The
//! result is independent of the machine, and callgrind can count the instructions of the host's
//! turns.

use std::process::{Command, Stdio};

use contract::channel::in_memory;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use testbed::{Context, Failure, Result};

use super::host_process::{self, Account};
use super::ring_port::RingPort;
use super::stub_nic::{Counts, Load, StubNic};

/// Virtual time from turn to turn, in microseconds.
const TURN_US: u64 = 10;

/// Responses for each connection before the measured turns.
const WARM_UP_RESPONSES: u64 = 2;

/// Turns without a response before the run is given up: a hundred seconds of virtual time.
const STALL_TURNS: u64 = 10_000_000;

/// The load to count.
#[derive(clap::Args, Debug)]
pub(crate) struct Settings {
    #[command(flatten)]
    load: Load,
    /// Responses to count.
    #[arg(long)]
    responses: u64,
}

/// Counts of the measured turns, and the host's final report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) counts: Counts,
    pub(crate) account: Account,
}

/// Runs, and prints the counts of the turns that callgrind measures.
pub(crate) fn count(settings: &Settings) -> Result<()> {
    let counted = run(&settings.load, settings.responses, &mut counted_turn)?;
    let line = serde_json::to_string(&counted).context(|| "writing JSON".into())?;
    println!("{line}");
    Ok(())
}

/// Runs the load; `measured` performs the measured turns.
fn run(load: &Load, responses: u64, measured: &mut dyn FnMut(&mut dyn FnMut())) -> Result<Counted> {
    let (link, link_of_host) = in_memory();
    let (channel_of_host, nic) = in_memory();
    let socket = eventfd(0, EventfdFlags::CLOEXEC);
    let socket = socket.context(|| "creating an event descriptor".into())?;
    let mut now_us = 1_000_000;
    let port = RingPort::new(link_of_host, load.superpacket_bytes);
    let mut shard = host_process::shard(port, vec![channel_of_host], socket, now_us);
    let mut stub = StubNic::new(*load, nic, link)?;

    let warm_up = WARM_UP_RESPONSES * load.connections as u64;
    let mut before = None;
    let (mut heard, mut idle_turns) = (0, 0);
    loop {
        now_us += TURN_US;
        stub.turn(now_us)?;
        let counts = stub.counts();
        if before.is_none() && stub.is_settled() && counts.responses >= warm_up {
            before = Some(counts);
        }
        let turned = match before {
            None => shard.turn(now_us),
            Some(before) if counts.responses - before.responses >= responses => {
                return Ok(Counted {
                    counts: counts.since(&before),
                    account: host_process::account(&shard),
                });
            }
            Some(_) => {
                let mut turned = Ok(false);
                measured(&mut || turned = shard.turn(now_us));
                turned
            }
        };
        turned.context(|| "running the host stack".into())?;
        idle_turns = if counts.responses > heard {
            0
        } else {
            idle_turns + 1
        };
        heard = counts.responses;
        if idle_turns > STALL_TURNS {
            return Err(Failure::new(format!(
                "nothing happens any more: {counts:?}"
            )));
        }
    }
}

/// A turn measured by callgrind, which selects it by this function's name.
#[inline(never)]
fn counted_turn(turn: &mut dyn FnMut()) {
    turn();
}

/// Returns the host's instructions for a load, and the counts; `None` without valgrind.
pub(crate) fn instructions(
    load: &Load,
    responses: u64,
    directory: &std::path::Path,
) -> Result<Option<(u64, Counted)>> {
    let program = std::env::current_exe().context(|| "finding this program".into())?;
    std::fs::create_dir_all(directory).context(|| format!("creating {}", directory.display()))?;
    let profile = directory.join("ceiling.callgrind");
    let acks = clap::ValueEnum::to_possible_value(&load.acks).expect("none is skipped");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg("--toggle-collect=*counted_turn*")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(&program)
        .arg("ceiling-lockstep")
        .args(["--connections", &load.connections.to_string()])
        .args(["--acks", acks.get_name()])
        .args(["--superpacket-bytes", &load.superpacket_bytes.to_string()])
        .args(["--file-bytes", &load.file_bytes.to_string()])
        .args(["--responses", &responses.to_string()])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.context(|| "starting valgrind".into())?,
    };
    if !output.status.success() {
        return Err(Failure::new(format!(
            "the load fails below valgrind: {}",
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    let counted = serde_json::from_slice(&output.stdout);
    let counted = counted.context(|| "reading what was counted".into())?;
    let text = std::fs::read_to_string(&profile);
    let text = text.context(|| format!("reading {}", profile.display()))?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    let total = total.ok_or_else(|| Failure::new("callgrind's output has no totals"))?;
    Ok(Some((total, counted)))
}

#[cfg(test)]
mod tests {
    use super::super::stub_nic::Acks;
    use super::*;

    fn load(acks: Acks) -> Load {
        Load {
            connections: 40,
            acks,
            superpacket_bytes: 65_535,
            file_bytes: 500_000,
        }
    }

    #[test]
    fn every_response_is_whole_and_every_byte_is_accounted_for() {
        for acks in [Acks::Superpacket, Acks::TwoPackets] {
            let Counted { counts, account } = run(&load(acks), 200, &mut counted_turn).unwrap();
            assert!(counts.responses >= 200);
            // At both ends of the measured turns, each connection may be in the midst of a
            // response.
            let whole = counts.responses * 500_000;
            assert!(
                counts.body_bytes.abs_diff(whole) < 40 * 500_000,
                "{counts:?}"
            );
            assert_eq!(counts.repeated_sends, 0);
            assert_eq!(
                account.retransmissions + account.timeouts + account.invalid,
                0
            );
        }
    }

    #[test]
    fn acks_are_as_many_as_superpackets_or_pairs_of_packets() {
        for (acks, bytes) in [(Acks::Superpacket, 44 * 1448), (Acks::TwoPackets, 2 * 1448)] {
            let Counted { counts, .. } = run(&load(acks), 200, &mut counted_turn).unwrap();
            let least = counts.body_bytes / bytes;
            // The last piece of a SEND may be a short one.
            assert!(
                (least..=least + counts.sends + counts.responses).contains(&counts.acks),
                "{acks:?}: {counts:?}"
            );
        }
    }

    #[test]
    fn neither_a_request_nor_an_ack_allocates_memory() {
        for (acks, file_bytes) in [
            (Acks::Superpacket, 10_000),
            (Acks::Superpacket, 500_000),
            (Acks::TwoPackets, 500_000),
        ] {
            let load = Load {
                file_bytes,
                ..load(acks)
            };
            let mut allocations = 0;
            let counted = run(&load, 400, &mut |turn| {
                allocations += allocation_counter::measure(turn).count_total;
            });
            let counts = counted.unwrap().counts;
            // Tables that all connections share may grow now and then.
            assert!(
                allocations * 20 < counts.responses,
                "{allocations} allocations for {counts:?}"
            );
        }
    }

    #[test]
    fn the_same_load_is_the_same_run() {
        let load = load(Acks::Superpacket);
        let run = || run(&load, 100, &mut counted_turn).unwrap();
        assert_eq!(run(), run());
    }
}
