//! Ratios, fairness, tables, JSON.

use std::fmt::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use testbed::Result;

use super::cell::Cell;
use super::{Run, Sender, Settings};
use crate::publish::publish;
use crate::table::{Spread, verdict};

/// What is promised: goodput as a part of the kernel's, Jain's index of equal flows, and of flows of both.
const RATIO_MIN: f64 = 0.95;
const JAIN_MIN: f64 = 0.95;
const JAIN_MIXED_MIN: f64 = 0.9;

impl Run {
    /// Goodput of all flows, in megabits per second.
    fn mbit_per_s(&self) -> f64 {
        let bytes: u64 = self.outcome.flows.iter().map(|flow| flow.bytes).sum();
        bytes as f64 * 8e3 / self.outcome.elapsed_ns as f64
    }

    /// Jain's index of what flows got after the beginning.
    fn jain(&self) -> f64 {
        jain(self.outcome.flows.iter().map(|flow| flow.fair_bytes as f64))
    }

    /// What Splitway's flows got, as a part of all.
    fn splitway_share(&self) -> f64 {
        let bytes = |from: usize| -> f64 {
            let flows = self.outcome.flows.iter().skip(from).step_by(2);
            flows.map(|flow| flow.fair_bytes as f64).sum()
        };
        bytes(0) / (bytes(0) + bytes(1))
    }

    /// A number that the emulator tells about a direction: 0 is that of requests and ACKs, 1 of data.
    fn emulator(&self, direction: usize, pointer: &str) -> u64 {
        let found = self.emulator["directions"][direction].pointer(pointer);
        found.and_then(serde_json::Value::as_u64).unwrap_or(0)
    }

    /// Departures more than 1 ms late, and frames that the emulator lost by its own fault, of a thousand.
    fn unpunctual_permille(&self) -> f64 {
        let sum =
            |pointer: &str| -> u64 { [0, 1].map(|end| self.emulator(end, pointer)).iter().sum() };
        let late = sum("/lateness/above_1_ms") + sum("/overrun") + sum("/refused");
        late as f64 * 1000.0 / sum("/lateness/departures").max(1) as f64
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:9} {:7.2} Mbit/s  Jain {:.3}  lost {} queue drops {} of {}  late {:.2} ‰",
            format!("{:?}", self.sender).to_lowercase(),
            self.mbit_per_s(),
            self.jain(),
            self.emulator(1, "/counters/lost"),
            self.emulator(1, "/counters/queue_drops"),
            self.emulator(1, "/counters/packets"),
            self.unpunctual_permille(),
        )?;
        match self.sender {
            Sender::Mixed => write!(f, "  Splitway's share {:.3}", self.splitway_share()),
            _ => Ok(()),
        }
    }
}

/// Jain's index of fairness (Jain, Chiu and Hawe 1984): 1 if all get the same, 1/n if one gets all.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        n += 1.0;
        sum += value;
        squares += value * value;
    }
    match squares > 0.0 {
        true => sum * sum / (n * squares),
        false => 0.0,
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    settings: Settings,
    cells: Vec<CellReport>,
}

#[derive(Debug, Serialize)]
struct CellReport {
    cell: Cell,
    runs: Vec<Run>,
}

impl CellReport {
    fn of(&self, sender: Sender) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.sender == sender)
    }

    fn median(&self, sender: Sender, value: impl Fn(&Run) -> f64) -> f64 {
        Spread::of(self.of(sender).map(value)).median
    }

    /// Splitway's goodput as a part of the kernel's, of runs under the same seed.
    fn ratio(&self) -> Spread {
        let pairs = self.of(Sender::Splitway).filter_map(|own| {
            let mut peers = self.of(Sender::Kernel).filter(|peer| peer.seed == own.seed);
            peers
                .next()
                .map(|peer| own.mbit_per_s() / peer.mbit_per_s())
        });
        Spread::of(pairs)
    }

    fn row(&self) -> String {
        let Cell {
            loss,
            rtt_ms,
            reorder,
            flows,
            ..
        } = self.cell;
        let jain = |sender| match flows {
            1 => "–".to_owned(),
            _ => format!("{:.3}", self.median(sender, Run::jain)),
        };
        format!(
            "| {rtt_ms} | {reorder} | {loss} | {flows} | {:.2} | {:.2} | {} | {} | {} | {} | {:.2} |",
            self.median(Sender::Splitway, Run::mbit_per_s),
            self.median(Sender::Kernel, Run::mbit_per_s),
            self.ratio().cell(3),
            verdict(self.ratio().median >= RATIO_MIN),
            jain(Sender::Splitway),
            jain(Sender::Kernel),
            Spread::of(self.runs.iter().map(Run::unpunctual_permille)).max,
        )
    }

    fn fairness_row(&self) -> String {
        let jain = |sender| self.median(sender, Run::jain);
        let met = |value: f64, min: f64| match value {
            value if value.is_nan() => "–",
            value => verdict(value >= min),
        };
        format!(
            "| {} | {} | {:.3} | {} | {:.3} | {:.3} | {} | {:.3} |",
            self.cell.rtt_ms,
            self.cell.flows,
            jain(Sender::Splitway),
            met(jain(Sender::Splitway), JAIN_MIN),
            jain(Sender::Kernel),
            jain(Sender::Mixed),
            met(jain(Sender::Mixed), JAIN_MIXED_MIN),
            self.median(Sender::Mixed, Run::splitway_share),
        )
    }
}

impl Report {
    pub(crate) fn new(settings: Settings) -> Report {
        Report {
            settings,
            cells: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, cell: Cell, runs: Vec<Run>) {
        self.cells.push(CellReport { cell, runs });
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        let settings = &self.settings;
        line(format!(
            "Splitway and the kernel's TCP over an emulated link, {} on both; {} pairs of runs under the same \
             seeds; medians (least–most)\n",
            settings.congestion,
            settings.rounds()
        ));
        if !settings.mixed_only {
            line("| RTT, ms | Reordered, % | Lost, % | Flows | Splitway, Mbit/s | Kernel, Mbit/s | Ratio | \
                  At least 0.95 | Jain's index | The kernel's | Late or overrun, ‰ |"
                .into());
            line("|---|---|---|---|---|---|---|---|---|---|---|".into());
            for cell in &self.cells {
                line(cell.row());
            }
            let met = self
                .cells
                .iter()
                .filter(|cell| cell.ratio().median >= RATIO_MIN);
            line(format!(
                "\n{} of {} cells reach {RATIO_MIN} of the kernel's goodput.\n",
                met.count(),
                self.cells.len()
            ));
        }
        let fair: Vec<_> = self
            .cells
            .iter()
            .filter(|cell| cell.cell.shows_fairness())
            .collect();
        if !fair.is_empty() {
            line("Fairness, without loss, after the first third of the time:\n".into());
            line("| RTT, ms | Flows | Jain's index, Splitway | At least 0.95 | The kernel's | Half of each | \
                  At least 0.9 | Splitway's share |"
                .into());
            line("|---|---|---|---|---|---|---|---|".into());
            for cell in fair {
                line(cell.fairness_row());
            }
        }
        text
    }

    /// Prints it, and writes it to a directory with every run.
    pub(crate) fn publish(&self, directory: &Path) -> Result<()> {
        publish(directory, "link", self.markdown(), self, [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_a_monopoly() {
        assert_eq!(jain([5.0; 16].into_iter()), 1.0);
        assert_eq!(jain([0.0, 7.0, 0.0, 0.0].into_iter()), 0.25);
        assert_eq!(jain([0.0, 0.0].into_iter()), 0.0);
    }
}
