//! Load that one host core controls: the real host stack, with a stub in the NIC stack's place that
//! reports departures at once, and clients that consist of a few numbers each.
//!
//! | Module | Contents |
//! |---|---|
//! | [`stub_nic`] | the stub, and all clients, with their checks |
//! | [`client`] | one client |
//! | [`host_process`] | the process with the host stack and the HTTP server |
//! | [`ring_port`] | frames in a ring |
//! | [`run`] | both processes for some seconds |
//! | [`lockstep`] | both in one thread and in virtual time, for counting instructions |
//! | [`clock`] | frequency of the core |
//! | [`costs`] | cost of an ACK, a SEND and a request |
//! | [`report`] | tables |
//! | [`saved_results`] | results read by the model |
//! | [`targeted`] | the target's load, for other benchmarks |

mod client;
mod clock;
pub(crate) mod costs;
pub(crate) mod host_process;
pub(crate) mod lockstep;
mod report;
mod ring_port;
mod run;
pub(crate) mod saved_results;
pub(crate) mod stub_nic;
pub(crate) mod targeted;

use serde::Serialize;
use testbed::Result;

use self::costs::Costs;
use self::report::{INSTRUCTIONS, NS, TARGET_CONNECTIONS};
use self::run::Run;
use self::saved_results::BENCHMARK;
use self::stub_nic::{Acks, Load};
use crate::load::take_place;
use crate::measure::plan::Plan;
use crate::measure::publish::results_directory;
use crate::measure::results::Results;
use crate::measure::rounds::Rounds;

/// Superpackets that any NIC segments, and those of Splitway's own links.
const SUPERPACKETS_BYTES: [usize; 2] = [65_535, 262_144];

/// Size of files that take one SEND and one ACK each: requests dominate their cost.
const SMALL_FILE_BYTES: u64 = 10_000;

/// Number of connections for which instructions are counted.
const COUNTED_CONNECTIONS: usize = 1600;

/// Default numbers of connections, also for quick runs: tens of thousands take long to open.
const CONNECTIONS: [usize; 4] = [16, 1600, 16_000, 64_000];
const QUICK_CONNECTIONS: [usize; 2] = [16, 1600];

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file; several numbers, separated by commas [default:
    /// 16,1600,16000,64000, or the first two for quick runs]
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Size of each file, in bytes.
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// Skip the count of instructions, which takes valgrind and half a minute; implied by `--quick`
    #[arg(long)]
    no_instructions: bool,
}

impl Settings {
    fn connections(&self) -> &[usize] {
        match (self.connections.as_slice(), self.rounds.is_quick()) {
            ([], true) => &QUICK_CONNECTIONS,
            ([], false) => &CONNECTIONS,
            (given, _) => given,
        }
    }

    fn loads(&self) -> Vec<Load> {
        let of = |&connections: &usize| {
            let load = |acks, superpacket_bytes, file_bytes| Load {
                connections,
                acks,
                superpacket_bytes,
                file_bytes,
            };
            let [usual, large] = SUPERPACKETS_BYTES;
            [
                load(Acks::Superpacket, usual, self.file_bytes),
                load(Acks::TwoPackets, usual, self.file_bytes),
                load(Acks::Superpacket, usual, SMALL_FILE_BYTES),
                load(Acks::Superpacket, large, self.file_bytes),
            ]
        };
        self.connections().iter().flat_map(of).collect()
    }

    /// Returns true if instructions are counted with this number of connections.
    fn counts(&self, connections: usize) -> bool {
        connections == COUNTED_CONNECTIONS && !self.no_instructions && !self.rounds.is_quick()
    }

    /// Returns true for the load of the target.
    fn is_targeted(&self, load: &Load) -> bool {
        load.connections == TARGET_CONNECTIONS
            && load.file_bytes == self.file_bytes
            && load.acks == Acks::Superpacket
    }
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::default();
    plan_loads(&mut plan, &settings.rounds, &settings.loads());
    let counted = settings
        .connections()
        .iter()
        .filter(|&&connections| settings.counts(connections));
    plan.also(counted.count(), COUNTING_SECONDS);
    plan
}

/// Adds the time to measure loads.
pub(crate) fn plan_loads(plan: &mut Plan, rounds: &Rounds, loads: &[Load]) {
    for load in loads {
        let seconds = run::seconds_before(load) + rounds.seconds();
        plan.also(rounds.count(), seconds);
    }
}

/// Time to count instructions, in seconds.
const COUNTING_SECONDS: f64 = 60.0;

/// A load with its runs.
#[derive(Debug)]
struct Cell {
    load: Load,
    runs: Vec<Run>,
}

impl Cell {
    /// Returns the median run by CPU time for each response.
    fn typical(&self) -> Option<&Run> {
        let cost = |run: &Run| run.host_cpu_ns as f64 / run.counts.responses as f64;
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        runs.get(runs.len() / 2).copied()
    }
}

/// Measures, and writes `ceiling.md` and `ceiling.json`.
pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let output = settings.rounds.output(&results_directory()?).to_owned();
    let mut results = Results::new(BENCHMARK, "How much one host core controls", settings)?;
    results.machine().has_no_network();
    take_place()?;
    let loads = settings.loads();
    let cell = |&load: &Load| Cell {
        load,
        runs: Vec::new(),
    };
    let mut cells: Vec<Cell> = loads.iter().map(cell).collect();
    for _ in 0..settings.rounds.count() {
        for cell in &mut cells {
            let run = measure_load(&mut results, &cell.load, settings.rounds.seconds())?;
            cell.runs.push(run);
        }
    }
    for &connections in settings.connections() {
        if let Some(costs) = ns(&cells, connections) {
            report::add_costs(&mut results, NS, connections, costs);
        }
        if !settings.counts(connections) {
            continue;
        }
        match instructions(settings, &output)? {
            Some(costs) => report::add_costs(&mut results, INSTRUCTIONS, connections, costs),
            None => results.note(
                "Instructions were not counted: there is no valgrind, or loads are too alike.",
            ),
        }
    }
    report::add_clock(&mut results, clock::core_ghz());
    let targeted: Vec<Load> = loads
        .into_iter()
        .filter(|load| settings.is_targeted(load))
        .collect();
    report::report(&mut results, &targeted);
    results.publish(&output)
}

/// Runs a load, and adds its results.
fn measure_load(results: &mut Results, load: &Load, seconds: f64) -> Result<Run> {
    let run = run::run(load, seconds)?;
    eprintln!("{load:?}: {:.0} Gbit/s per core", run.gbit_per_cpu_s());
    report::add(results, load, &run);
    Ok(run)
}

/// Returns costs in CPU time, from the loads with superpackets of 64 KB.
fn ns(cells: &[Cell], connections: usize) -> Option<Costs> {
    let [usual, _] = SUPERPACKETS_BYTES;
    let mut runs = cells
        .iter()
        .filter(|cell| cell.load.connections == connections && cell.load.superpacket_bytes == usual)
        .filter_map(Cell::typical);
    let mut load = || runs.next().map(|run| (&run.counts, run.host_cpu_ns as f64));
    Costs::of([load()?, load()?, load()?])
}

/// Returns costs in instructions, from the same loads.
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
