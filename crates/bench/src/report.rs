//! Tables, ratios, JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use testbed::Result;

use crate::Settings;
use crate::publish::publish;
use crate::run::Run;

/// What is promised of the host process: its CPU time per gigabyte, as a part of that of nginx's worker.
const HOST_RATIO_MAX: f64 = 0.2;

/// What is promised of both processes together.
const BOTH_RATIO_MAX: f64 = 2.5;

/// What is promised of the memory of both processes together, in bytes.
const MEMORY_BYTES_MAX: u64 = 300_000_000;

const NOTE: &str = "\
CPU time is user and system time of all threads of a process. This kernel charges the time of soft interrupts
(receiving packets, freeing sent ones) to whatever process they interrupt, so that some of one process's work
may stand in another's account; the column of the whole machine, with client and kernel in it, has no such error.
Servers run on one core, the client on another, with what it receives; both links have the same sizes, and
both kernels use CUBIC.
Machines are noisy: compare ratios of one invocation, not seconds of two.";

/// The median of some values, and their extremes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let median = if values.len().is_multiple_of(2) {
            (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
        } else {
            at(middle)
        };
        Spread {
            median,
            min: at(0),
            max: at(values.len().wrapping_sub(1)),
        }
    }

    /// As a table shows it: median (least–most).
    pub(crate) fn cell(&self, digits: usize) -> String {
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median, self.min, self.max
        )
    }
}

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
        Spread::of(
            self.runs
                .iter()
                .filter(|run| run.server == server)
                .map(value),
        )
    }

    fn memory_bytes(&self, server: &str) -> u64 {
        let runs = self.memory_runs.iter().filter(|run| run.server == server);
        runs.map(Run::memory_bytes).max().unwrap_or(0)
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
            settings.rounds(),
            settings.seconds(),
            settings.files,
            settings.file_bytes,
            settings.connections,
        ));
        let connections = self.memory_runs.first().map_or(0, |run| run.connections);
        line(format!(
            "| Server | Gbit/s | CPU s/GB, each process | CPU s/GB, server | CPU s/GB, machine | MB at {connections} connections |"
        ));
        line("|---|---|---|---|---|---|".into());
        for (server, processes) in [("splitway", &["host", "nic"][..]), ("nginx", &["worker"])] {
            let each = processes.iter().map(|name| {
                let spread = self.spread(server, |run| run.process_s_per_gb(name));
                format!("{name} {}", spread.cell(4))
            });
            line(format!(
                "| {server} | {} | {} | {} | {} | {} |",
                self.spread(server, Run::gbit_per_s).cell(2),
                each.collect::<Vec<_>>().join(", "),
                self.spread(server, Run::server_s_per_gb).cell(4),
                self.spread(server, Run::machine_s_per_gb).cell(4),
                self.memory_bytes(server) / 1_000_000,
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
        let memory = self.memory_bytes("splitway");
        let verdict = |met: bool| if met { "met" } else { "NOT MET" };
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
            "| memory of both processes at {connections} connections | {} MB | below {} MB | {} |",
            memory / 1_000_000,
            MEMORY_BYTES_MAX / 1_000_000,
            verdict(memory < MEMORY_BYTES_MAX)
        ));
        line(format!("\n{NOTE}"));
        text
    }

    /// Prints it, and writes it to a directory with every run.
    pub(crate) fn publish(&self, directory: &Path) -> Result<()> {
        publish(directory, "report", self.markdown(), self, [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0].into_iter());
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
    }

    #[test]
    fn the_median_of_an_odd_number_is_the_middle_one() {
        let spread = Spread::of([9.0, 1.0, 5.0].into_iter());
        assert_eq!((spread.median, spread.min, spread.max), (5.0, 1.0, 9.0));
    }
}
