//! One NIC worker against several: files in memory, servers on any core.
//!
//! A worker is a thread. What a second one is good for depends on whether there is a core for it: the number of cores is
//! reported beside the rest. The client has one core, and what it receives is dealt with there.

use std::fmt::Write as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde::Serialize;
use testbed::Result;

use crate::publish::publish;
use crate::rounds::Rounds;
use crate::run::{self, Run};
use crate::table::Spread;
use crate::{Ground, load, splitway_server, start_splitway_anywhere};

/// What is measured.
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
    /// Number of files, asked for at random; each worker has a share of the cache for all of them
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
    /// Where tables go [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// A run with so many workers.
#[derive(Debug, Serialize)]
struct WorkersRun {
    workers: usize,
    run: Run,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Workers {
    settings: Settings,
    /// Of the machine.
    cores: usize,
    runs: Vec<WorkersRun>,
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let ground = Ground::prepare(settings.files, settings.file_bytes)?;
    let mut measured = Workers {
        settings: settings.clone(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        runs: Vec::new(),
    };
    let counts = &settings.workers;
    for round in 0..settings.rounds.count() {
        // The order turns with each round, so that none always comes after another.
        for place in 0..counts.len() {
            let workers = counts[(place + round) % counts.len()];
            let run = run_with(&ground, settings, workers)?;
            eprintln!("workers: {workers}  {run}");
            measured.runs.push(WorkersRun { workers, run });
        }
    }
    let output = settings.output.as_ref().unwrap_or(&ground.output);
    publish(output, "workers", measured.markdown(), &measured, [])
}

/// A server of its own with so many workers; its caches are warm when the measured run begins.
fn run_with(ground: &Ground, settings: &Settings, workers: usize) -> Result<Run> {
    let mut arguments = settings.splitway.clone();
    arguments.push(format!("--workers={workers}"));
    let mut splitway = start_splitway_anywhere(ground, &arguments)?;
    let server = splitway_server(&splitway);
    let load = |seconds| load::Settings {
        server: server.address,
        connections: settings.connections,
        files: settings.files,
        file_bytes: settings.file_bytes,
        seconds,
        discard: false,
        once: false,
        certificate: None,
    };
    run::run(&server, &load(1))?;
    let run = run::run(&server, &load(settings.rounds.seconds()))?;
    splitway.end_with(Signal::TERM)?;
    Ok(run)
}

impl Workers {
    fn spread(&self, workers: usize, value: impl Fn(&Run) -> f64) -> Spread {
        let runs = self.runs.iter().filter(|run| run.workers == workers);
        Spread::of(runs.map(|run| value(&run.run)))
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        let settings = &self.settings;
        line(format!(
            "{} cores, of which the client has one; {} rounds of {} s; {} files of {} bytes in memory, {} keep-alive connections; medians (least–most)\n",
            self.cores,
            settings.rounds.count(),
            settings.rounds.seconds(),
            settings.files,
            settings.file_bytes,
            settings.connections,
        ));
        let first = settings.workers.first().copied().unwrap_or(1);
        line(format!(
            "| Workers | Gbit/s | Against {first} | CPU s/GB, host | CPU s/GB, NIC | CPU s/GB, both | Against {first} | CPU s/GB, machine |"
        ));
        line("|---|---|---|---|---|---|---|---|".into());
        for &workers in &settings.workers {
            let ratio = |value: fn(&Run) -> f64| {
                self.spread(workers, value).median / self.spread(first, value).median
            };
            let process = |name: &str| {
                self.spread(workers, |run| run.process_s_per_gb(name))
                    .cell(4)
            };
            line(format!(
                "| {workers} | {} | {:.2} | {} | {} | {} | {:.2} | {} |",
                self.spread(workers, Run::gbit_per_s).cell(2),
                ratio(Run::gbit_per_s),
                process("host"),
                process("nic"),
                self.spread(workers, Run::server_s_per_gb).cell(4),
                ratio(Run::server_s_per_gb),
                self.spread(workers, Run::machine_s_per_gb).cell(4),
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Outcome;
    use crate::run::ProcessCost;

    fn run(workers: usize, body_bytes: u64, nic_ns: u64) -> WorkersRun {
        let process = |name, cpu_ns| ProcessCost {
            name,
            cpu_ns,
            memory_bytes: 1,
            cache_bytes: 1,
        };
        let run = Run {
            server: "splitway",
            connections: 64,
            load: Outcome {
                body_bytes,
                responses: 1000,
                compared: 10,
                elapsed_ns: 1_000_000_000,
            },
            processes: vec![process("host", 100_000_000), process("nic", nic_ns)],
            machine_ns: 1_000_000_000,
            interrupt_ns: 0,
            device_read_bytes: 0,
        };
        WorkersRun { workers, run }
    }

    #[test]
    fn the_table_compares_medians_with_those_of_the_first_number_of_workers() {
        let settings = Settings {
            rounds: crate::rounds::Rounds::quick(),
            workers: vec![1, 2],
            connections: 64,
            files: 200,
            file_bytes: 500_000,
            splitway: Vec::new(),
            output: None,
        };
        let measured = Workers {
            settings,
            cores: 2,
            runs: vec![
                run(1, 1_000_000_000, 300_000_000),
                run(2, 1_800_000_000, 620_000_000),
                run(2, 1_800_000_000, 620_000_000),
                run(2, 9_000_000_000, 620_000_000),
            ],
        };
        let text = measured.markdown();
        let row = |workers: &str| {
            let mut lines = text.lines();
            lines.find(|line| line.starts_with(workers)).unwrap()
        };
        assert!(
            row("| 1 |").contains("| 8.00 (8.00–8.00) | 1.00 | 0.1000 (0.1000–0.1000) | 0.3000")
        );
        assert!(
            row("| 2 |").contains("| 14.40 (14.40–72.00) | 1.80 |"),
            "{text}"
        );
        assert!(
            row("| 2 |").contains("0.4000 (0.0800–0.4000) | 1.00 |"),
            "{text}"
        );
    }
}
