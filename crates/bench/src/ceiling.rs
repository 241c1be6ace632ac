//! How much one host core controls: the real host stack, with a stub in the NIC stack's place that reports departures at
//! once, and clients that are no more than a few numbers.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`far`] | the stub, and all clients; what they do and check |
//! | [`client`] | one of them |
//! | [`host_process`] | the process with the host stack and the HTTP server |
//! | [`ring_port`] | frames in a ring |
//! | [`run`] | both processes for some seconds |
//! | [`lockstep`] | both in one thread and in virtual time, for counting instructions |
//! | [`clock`] | how fast the core is
//! | [`costs`] | what an ACK, a SEND and a request cost |
//! | [`report`] | tables |

mod client;
mod clock;
pub(crate) mod costs;
pub(crate) mod far;
pub(crate) mod host_process;
pub(crate) mod lockstep;
pub(crate) mod report;
mod ring_port;
mod run;

use serde::Serialize;
use testbed::Result;

use self::costs::Costs;
use self::far::{Acks, Load};
use self::report::{Cell, CostRow, Report};
use crate::load::take_place;
use crate::publish::results_directory;
use crate::rounds::Rounds;

/// Superpackets that any NIC cuts, and those of Splitway's own links.
const SUPERPACKETS_BYTES: [usize; 2] = [65_535, 262_144];

/// Files of which each takes one SEND and one ACK: requests are most of what they cost.
const SMALL_FILE_BYTES: u64 = 10_000;

/// Instructions are counted with so many connections.
const COUNTED_CONNECTIONS: usize = 1600;

/// What is measured.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file; several numbers, by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 1600, 16_000, 64_000])]
    connections: Vec<usize>,
    /// Size of each file, in bytes.
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// Does not count instructions, which takes valgrind.
    #[arg(long)]
    no_instructions: bool,
}

/// Measures, and writes `ceiling.md` and `ceiling.json`.
pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let output = settings.rounds.output(&results_directory()?).to_owned();
    take_place()?;
    let loads = settings.connections.iter().flat_map(|&connections| {
        let load = |acks, superpacket_bytes, file_bytes| Load {
            connections,
            acks,
            superpacket_bytes,
            file_bytes,
        };
        let [usual, large] = SUPERPACKETS_BYTES;
        [
            load(Acks::Superpacket, usual, settings.file_bytes),
            load(Acks::TwoPackets, usual, settings.file_bytes),
            load(Acks::Superpacket, usual, SMALL_FILE_BYTES),
            load(Acks::Superpacket, large, settings.file_bytes),
        ]
    });
    let mut cells: Vec<Cell> = loads
        .map(|load| Cell {
            load,
            runs: Vec::new(),
        })
        .collect();
    for _ in 0..settings.rounds.count() {
        for cell in &mut cells {
            let run = run::run(&cell.load, settings.rounds.seconds())?;
            eprintln!(
                "{:?}: {:.0} Gbit/s per core",
                cell.load,
                run.gbit_per_cpu_s()
            );
            cell.runs.push(run);
        }
    }
    let costs = settings.connections.iter().map(|&connections| {
        let counted = connections == COUNTED_CONNECTIONS && !settings.no_instructions;
        Ok(CostRow {
            connections,
            ns: ns(&cells, connections),
            instructions: match counted {
                true => instructions(settings, &output)?,
                false => None,
            },
        })
    });
    let costs = costs.collect::<Result<Vec<_>>>()?;
    let report = Report {
        settings: settings.clone(),
        core_ghz: clock::core_ghz(),
        cells,
        costs,
    };
    report.publish(&output)
}

/// Costs in CPU time, from the loads with superpackets of 64 KB.
fn ns(cells: &[Cell], connections: usize) -> Option<Costs> {
    let [usual, _] = SUPERPACKETS_BYTES;
    let mut runs = cells
        .iter()
        .filter(|cell| cell.load.connections == connections && cell.load.superpacket_bytes == usual)
        .filter_map(Cell::typical);
    let mut load = || runs.next().map(|run| (&run.counts, run.host_cpu_ns as f64));
    Costs::of([load()?, load()?, load()?])
}

/// Costs in instructions, from the same loads.
fn instructions(settings: &Settings, output: &std::path::Path) -> Result<Option<Costs>> {
    let mut counted = Vec::new();
    for (acks, file_bytes) in [
        (Acks::Superpacket, settings.file_bytes),
        (Acks::TwoPackets, settings.file_bytes),
        (Acks::Superpacket, SMALL_FILE_BYTES),
    ] {
        let load = Load {
            connections: COUNTED_CONNECTIONS,
            acks,
            superpacket_bytes: SUPERPACKETS_BYTES[0],
            file_bytes,
        };
        let responses = 2 * COUNTED_CONNECTIONS as u64;
        let Some((total, counts)) = lockstep::instructions(&load, responses, output)? else {
            eprintln!("instructions are not counted: there is no valgrind");
            return Ok(None);
        };
        counted.push((counts.counts, total as f64));
    }
    let load = |n: usize| (&counted[n].0, counted[n].1);
    Ok(Costs::of([load(0), load(1), load(2)]))
}
