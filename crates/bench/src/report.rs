//! Tables, ratios, JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use testbed::Result;

use crate::Settings;
use crate::publish::publish;
use crate::run::Run;
use crate::table::{SERVER_HEADINGS, Spread, server_cells, spread_of, verdict};

/// What is promised of the host process: its CPU time per gigabyte, as a part of that of nginx's worker.
const HOST_RATIO_MAX: f64 = 0.2;

/// What is promised of both processes together.
const BOTH_RATIO_MAX: f64 = 1.5;

/// What is promised of the memory of both processes together, in bytes. The block cache, of which `--cache` says how
/// large it may be, is not counted: nginx's is the kernel's.
const MEMORY_BYTES_MAX: u64 = 300_000_000;

const NOTE: &str = "\
CPU time is user and system time of all threads of a process. This kernel charges the time of soft interrupts
(receiving packets, freeing sent ones) to whatever process they interrupt, so that some of one process's work
may stand in another's account; the column of the whole machine, with client and kernel in it, has no such error.
Servers run on one core, the client on another, with what it receives; both links have the same sizes, and
both kernels use CUBIC.
Machines are noisy: compare ratios of one invocation, not seconds of two.";

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    settings: Settings,
    runs: Vec<Run>,
    memory_runs: Vec<Run>,
}

impl Report {
    pub(crate) fn new(settings: Settings) -> Report {
        Report {
            settings,
            runs: Vec::new(),
            memory_runs: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// Adds a run that was made for its memory.
    pub(crate) fn add_memory(&mut self, run: Run) {
        self.memory_runs.push(run);
    }

    fn spread(&self, server: &str, value: impl Fn(&Run) -> f64) -> Spread {
        spread_of(&self.runs, server, value)
    }

    /// Memory without the block cache, and of it.
    fn memory_bytes(&self, server: &str) -> (u64, u64) {
        let runs = self.memory_runs.iter().filter(|run| run.server == server);
        runs.map(Run::memory_bytes).max().unwrap_or_default()
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        let settings = &self.settings;
        line(format!(
            "{} rounds of {} s; {} files of {} bytes, {} keep-alive connections; medians (least–most)\n",
            settings.rounds.count(),
            settings.rounds.seconds(),
            settings.files,
            settings.file_bytes,
            settings.connections,
        ));
        let connections = self.memory_runs.first().map_or(0, |run| run.connections);
        line(format!(
            "{SERVER_HEADINGS} MB at {connections} connections | MB of its cache |"
        ));
        line("|---|---|---|---|---|---|---|".into());
        for (server, processes) in [("splitway", &["host", "nic"][..]), ("nginx", &["worker"])] {
            let (memory, cache) = self.memory_bytes(server);
            line(format!(
                "{} {} | {} |",
                server_cells(&self.runs, server, processes),
                memory / 1_000_000,
                cache / 1_000_000,
            ));
        }
        let worker = self.spread("nginx", Run::server_s_per_gb).median;
        let host = self
            .spread("splitway", |run| run.process_s_per_gb("host"))
            .median
            / worker;
        let both = self.spread("splitway", Run::server_s_per_gb).median / worker;
        let machine = self.spread("splitway", Run::machine_s_per_gb).median
            / self.spread("nginx", Run::machine_s_per_gb).median;
        let (memory, cache) = self.memory_bytes("splitway");
        line(String::new());
        line("| Splitway against nginx | Ratio | Promised | |".into());
        line("|---|---|---|---|".into());
        line(format!(
            "| host CPU per GB / worker CPU per GB | {host:.3} | at most {HOST_RATIO_MAX} | {} |",
            verdict(host <= HOST_RATIO_MAX)
        ));
        line(format!(
            "| host + NIC CPU per GB / worker CPU per GB | {both:.3} | at most {BOTH_RATIO_MAX} | {} |",
            verdict(both <= BOTH_RATIO_MAX)
        ));
        line(format!(
            "| machine CPU per GB / the same with nginx | {machine:.3} | | |"
        ));
        line(format!(
            "| memory of both processes at {connections} connections, block cache apart | {} MB | below {} MB | {} |",
            memory / 1_000_000,
            MEMORY_BYTES_MAX / 1_000_000,
            verdict(memory < MEMORY_BYTES_MAX)
        ));
        line(format!(
            "| block cache, of what `--cache` allows | {} MB | | |",
            cache / 1_000_000
        ));
        line(format!("\n{NOTE}"));
        text
    }

    /// Prints it, and writes it to a directory with every run.
    pub(crate) fn publish(&self, directory: &Path) -> Result<()> {
        publish(directory, "report", self.markdown(), self, [])
    }
}
