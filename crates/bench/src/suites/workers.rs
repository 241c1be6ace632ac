//! One NIC worker against several: files in memory, servers on any core.
//!
//! A worker is a thread. The benefit of a second one depends on a free core for it: the number of
//! cores is reported with the results. The client has one core, which also processes its received
//! packets.

use rustix::process::Signal;
use serde::Serialize;
use testbed::Result;

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Run};
use crate::measure::table;
#[cfg(test)]
use crate::servers::server_set::SPLITWAY;
use crate::servers::server_set::{Workspace, splitway_server, start_splitway_anywhere};

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Numbers of workers; ratios are against the first
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    workers: Vec<usize>,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files, requested at random; the cache share of each worker holds all files
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// The one part of the results.
const PART: &str = "workers";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(settings.files, settings.file_bytes);
    for _ in 0..rounds.count() {
        plan.splitways(settings.workers.len());
        if !rounds.is_quick() {
            let seconds = run::WARM_UP_SECONDS;
            plan.runs(
                settings.workers.len(),
                settings.connections,
                settings.file_bytes,
                seconds,
            );
        }
        plan.runs(
            settings.workers.len(),
            settings.connections,
            settings.file_bytes,
            rounds.seconds(),
        );
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let workspace = Workspace::prepare(settings.files, settings.file_bytes)?;
    let title = format!(
        "One NIC worker against several: files of {} bytes in memory, {} connections",
        settings.file_bytes, settings.connections
    );
    let mut results = Results::new("workers", title, settings)?;
    settings.rounds.take_turns(&settings.workers, |&workers| {
        let run = run_with(&workspace, settings, workers)?;
        eprintln!("workers: {workers}  {run}");
        results.add(
            PART,
            series(workers),
            &[("workers", workers as f64)],
            run.measures(),
        );
        Ok(())
    })?;
    report(&mut results, &settings.workers);
    results.publish(settings.rounds.output(&workspace.output))
}

fn series(workers: usize) -> String {
    match workers {
        1 => "1 worker".to_owned(),
        more => format!("{more} workers"),
    }
}

/// Runs a server with `workers` workers; its caches are warm when the measured run begins.
fn run_with(workspace: &Workspace, settings: &Settings, workers: usize) -> Result<Run> {
    let mut arguments = settings.splitway.clone();
    arguments.push(format!("--workers={workers}"));
    arguments.push(format!("--workers-min={workers}"));
    let mut splitway = start_splitway_anywhere(workspace, &arguments)?;
    let server = splitway_server(&splitway);
    let load = |seconds| workspace.load(&server, settings.connections, seconds);
    run::warm_up(&settings.rounds, &server, load(settings.rounds.seconds()))?;
    let run = run::run(&server, &load(settings.rounds.seconds()))?;
    splitway.end_with(Signal::TERM)?;
    Ok(run)
}

fn report(results: &mut Results, counts: &[usize]) {
    table::add(results, PART, &[("workers", "Workers")]);
    let first = counts.first().copied().unwrap_or(1);
    for &workers in counts.iter().skip(1) {
        for (measure, what) in [
            ("gbit_per_s", "throughput"),
            ("cpu_s_per_gb.server", "CPU per GB, both processes"),
        ] {
            let (own, other) = (series(workers), series(first));
            let ratio = results.ratio(PART, (&own, measure), (&other, measure));
            results.check(format!("{what}, {own} against {other}"), ratio, Bound::None);
        }
    }
    results.note(
        "Servers run on any core; the client has one, with what it receives. A second worker needs \
         a core of its own to be good for something.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared_with_those_of_the_first_number_of_workers() {
        let mut results = Results::new("workers", "Workers", &()).unwrap();
        for (workers, gb, nic_ns) in [
            (1, 10, 300_000_000),
            (2, 18, 620_000_000),
            (2, 18, 620_000_000),
            (2, 90, 1),
        ] {
            let run = run::tests::run(SPLITWAY, gb * 100_000_000, &[("nic", nic_ns)]);
            results.add(PART, series(workers), &[], run.measures());
        }
        report(&mut results, &[1, 2]);
        let first = &results.checks()[0];
        assert_eq!(first.what, "throughput, 2 workers against 1 worker");
        assert!((first.value.unwrap() - 1.8).abs() < 1e-9);
    }
}
