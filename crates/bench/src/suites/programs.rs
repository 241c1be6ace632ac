//! Unmodified programs over split sockets (`splitway run`), against the same over the kernel's.
//!
//! | Part | Comparison |
//! |---|---|
//! | files | nginx and lighttpd, over lengths of files, on persistent and on short connections |
//! | redis | `redis-benchmark`, over clients and pipelined requests |
//!
//! | Module | Contents |
//! |---|---|
//! | `bed` | the programs, started by either command |
//! | `redis` | redis, and its load |
//! | `report` | tables, plots, targets |

pub(super) mod bed;
pub(super) mod redis;
mod report;

use serde::Serialize;
use testbed::{Failure, Result};

use self::bed::{Bed, CONTROL, CONTROL_PARTS, Kind, Sockets, Subject};
use crate::measure::plan::Plan;
use crate::measure::results::Results;
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::servers::server_set::Workspace;

/// Parts of the results.
const KEEP_ALIVE: &str = "keep-alive";
const CLOSE: &str = "close";
const REDIS: &str = "redis";

/// Lengths of files. Targets concern [`TARGET_BYTES`], the only one of quick runs.
const LENGTHS: [u64; 3] = [10_000, TARGET_BYTES, 100_000_000];
const TARGET_BYTES: u64 = 500_000;

/// Total size of the files of a length, and the limit of their number.
const FILES_BYTES: u64 = 200_000_000;
const FILES_MAX: u64 = 200;

const CONNECTIONS: usize = 64;

/// Clients of redis, and the number in a target; requests in flight on each.
const CLIENTS: [usize; 5] = [1, 8, 16, TARGET_CLIENTS, 64];
const TARGET_CLIENTS: usize = 50;
const PIPELINED: [usize; 2] = [1, 16];

/// Start and end of programs over either kind of sockets, with their stack.
const PROGRAMS_SECONDS: f64 = 2.0;

/// A load of redis, for each of its rounds.
const REDIS_SECONDS: f64 = 1.5;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Workloads to measure: `files`, `redis`
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// Lengths of files, in bytes [default: 10000,500000,100000000, or 500000 for quick runs]
    #[arg(long, value_delimiter = ',', value_name = "BYTES",
        value_parser = clap::value_parser!(u64).range(1..=FILES_BYTES))]
    file_bytes: Vec<u64>,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
    /// A further argument for `splitway serve`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// The workloads.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    Files,
    Redis,
}

impl Workload {
    const ALL: [Workload; 2] = [Workload::Files, Workload::Redis];
}

impl Settings {
    fn has(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload)
    }

    fn lengths(&self) -> Vec<u64> {
        match (self.file_bytes.as_slice(), self.rounds.is_quick()) {
            ([], true) => vec![TARGET_BYTES],
            ([], false) => LENGTHS.to_vec(),
            (chosen, _) => chosen.to_vec(),
        }
    }

    /// Returns the loads: clients of redis, with requests in flight on each.
    fn redis_loads(&self) -> Vec<redis::Load> {
        let is_quick = self.rounds.is_quick();
        let usual = |load: &redis::Load| load.clients == TARGET_CLIENTS && load.pipelined == 1;
        let loads = PIPELINED.iter().flat_map(|&pipelined| {
            let clients = CLIENTS.iter();
            clients.map(move |&clients| redis::Load {
                clients,
                pipelined,
                stays: true,
            })
        });
        loads.filter(|load| !is_quick || usual(load)).collect()
    }
}

fn file_count(file_bytes: u64) -> usize {
    (FILES_BYTES / file_bytes).clamp(1, FILES_MAX) as usize
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    if settings.has(Workload::Files) {
        for bytes in settings.lengths() {
            plan.files(file_count(bytes), bytes);
            plan.beds(1);
            plan.also(1, PROGRAMS_SECONDS);
            plan.turns(rounds, 5 + 4, settings.connections, bytes);
        }
    }
    if settings.has(Workload::Redis) {
        plan.beds(1);
        plan.also(1, PROGRAMS_SECONDS);
        let runs = 2 * settings.redis_loads().len() * rounds.count();
        plan.also(runs, REDIS_SECONDS);
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    if settings.connections == 0 {
        return Err(Failure::new("a load has connections"));
    }
    let mut results = Results::new("programs", "Unmodified programs on split sockets", settings)?;
    let mut output = None;
    if settings.has(Workload::Files) {
        for bytes in settings.lengths() {
            let workspace = Workspace::prepare(file_count(bytes), bytes)?;
            output = Some(workspace.output.clone());
            measure_files(settings, workspace, &mut results)?;
        }
    }
    if settings.has(Workload::Redis) {
        let workspace = Workspace::prepare(1, 1)?;
        output = Some(workspace.output.clone());
        measure_redis(settings, workspace, &mut results)?;
    }
    let output = output.ok_or_else(|| Failure::new("there is nothing to measure"))?;
    report::report(&mut results);
    results.publish(settings.rounds.output(&output))
}

/// Measures both servers over both kinds of sockets, and Splitway's own.
fn measure_files(settings: &Settings, workspace: Workspace, results: &mut Results) -> Result<()> {
    let rounds = &settings.rounds;
    let bytes = workspace.file_bytes();
    let bed = Bed::start(workspace, &settings.splitway, false)?;
    bed.describe(results)?;
    let programs = [Kind::Nginx, Kind::Lighttpd].into_iter().flat_map(|kind| {
        let sockets = [Sockets::Kernel, Sockets::Split].into_iter();
        sockets.map(move |sockets| Subject { kind, sockets })
    });
    let programs: Vec<_> = programs
        .map(|subject| bed.start_program(subject))
        .collect::<Result<_>>()?;
    for (part, closes) in [(KEEP_ALIVE, false), (CLOSE, true)] {
        let servers = programs.iter().map(|program| bed.server(program, closes));
        let mut servers: Vec<_> = servers.collect::<Result<_>>()?;
        if !closes {
            servers.push(bed.own()?);
        }
        let load = |server: &Server| {
            let connections = settings.connections;
            bed.workspace().load(server, connections, rounds.seconds())
        };
        for server in &servers {
            run::warm_up(rounds, server, load(server))?;
        }
        rounds.take_turns(&servers, |server| {
            let run = run::run(server, &load(server))?;
            eprintln!("{part}, {bytes} bytes: {run}");
            let mut measures = run.measures();
            for unit in ["cpu_s_per_gb", "cpu_us_per_request"] {
                run::add_sum(&mut measures, unit, CONTROL, &CONTROL_PARTS);
            }
            results.add(part, server.name, &[("file_bytes", bytes as f64)], measures);
            Ok(())
        })?;
    }
    drop(programs);
    bed.end(results)
}

fn measure_redis(settings: &Settings, workspace: Workspace, results: &mut Results) -> Result<()> {
    let bed = Bed::start(workspace, &settings.splitway, false)?;
    let programs = [Sockets::Kernel, Sockets::Split].map(|sockets| {
        let kind = Kind::Redis;
        bed.start_program(Subject { kind, sockets })
    });
    let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
    let servers = programs.iter().map(|program| bed.server(program, false));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    for load in settings.redis_loads() {
        settings.rounds.take_turns(&servers, |server| {
            let measures = redis::run(server, load, settings.rounds.is_quick())?;
            let rate = measures["requests_per_s"];
            eprintln!("{}: {load:?}: {rate:.0} requests/s", server.name);
            results.add(REDIS, server.name, &load.conditions(), measures);
            Ok(())
        })?;
    }
    drop(programs);
    bed.end(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

    #[test]
    fn what_targets_are_about_is_measured_also_if_it_is_to_be_quick() {
        let quick = settings::<Settings>(&["--quick"]);
        assert_eq!(quick.lengths(), [TARGET_BYTES]);
        let loads = quick.redis_loads();
        assert_eq!(loads.len(), 1);
        assert_eq!((loads[0].clients, loads[0].pipelined), (TARGET_CLIENTS, 1));
        let all = settings::<Settings>(&[]);
        assert!(all.lengths().contains(&TARGET_BYTES));
        assert_eq!(all.redis_loads().len(), CLIENTS.len() * PIPELINED.len());
        assert!(plan(&quick).seconds() < plan(&all).seconds());
    }

    #[test]
    fn files_of_a_length_fit_into_memory() {
        assert_eq!(
            [10_000, 500_000, 100_000_000].map(file_count),
            [200, 200, 2]
        );
        assert_eq!(file_count(FILES_BYTES), 1);
    }
}
