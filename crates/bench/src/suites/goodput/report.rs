//! Measures, ratios, fairness, tables.

use std::fmt;

use super::cell::Cell;
use super::fetch::Outcome;
use super::{Run, Sender, Settings};
use crate::measure::results::{Bound, Measures, Plot, Results, Table, column};
use crate::measure::spread::{Conditions, Spread};
use crate::paper;

/// Promised bounds: goodput as a part of the kernel's, Jain's index of equal flows, and of flows of
/// both senders.
const RATIO_MIN: f64 = 0.95;
const JAIN_MIN: f64 = 0.95;
const JAIN_MIXED_MIN: f64 = 0.9;

/// Parts of the results: runs of each sender, pairs of runs under the same seed, and runs about
/// fairness.
const GOODPUT: &str = "goodput";
const PAIRS: &str = "pairs";
const FAIRNESS: &str = "fairness";

/// The series of [`PAIRS`].
const AGAINST: &str = "Splitway against the kernel";

const CONDITIONS: Conditions = &[
    ("rtt_ms", "RTT, ms"),
    ("reorder_percent", "Reordered, %"),
    ("loss_percent", "Lost, %"),
    ("flows", "Flows"),
];

impl Sender {
    fn name(self) -> &'static str {
        match self {
            Sender::Splitway => "Splitway",
            Sender::Kernel => "kernel",
            Sender::Mixed => "half of the flows each",
        }
    }
}

impl Cell {
    fn conditions(&self) -> [(&'static str, f64); 4] {
        [
            ("rtt_ms", self.rtt_ms),
            ("reorder_percent", self.reorder),
            ("loss_percent", self.loss),
            ("flows", self.flows as f64),
        ]
    }
}

impl Run {
    fn mbit_per_s(&self) -> f64 {
        self.outcome.mbit_per_s()
    }

    /// Returns Jain's index of the flows' bytes after the start of the fairness measurement.
    fn jain(&self) -> f64 {
        jain(self.outcome.flows.iter().map(|flow| flow.fair_bytes as f64))
    }

    /// Returns the part of all bytes that Splitway's flows received.
    fn splitway_share(&self) -> f64 {
        let bytes = |from: usize| -> f64 {
            let flows = self.outcome.flows.iter().skip(from).step_by(2);
            flows.map(|flow| flow.fair_bytes as f64).sum()
        };
        bytes(0) / (bytes(0) + bytes(1))
    }

    fn measures(&self) -> Measures {
        let mut measures = self.outcome.measures(&self.emulator);
        measures.insert("seed".into(), self.seed as f64);
        if self.outcome.flows.len() > 1 {
            measures.insert("jain".into(), self.jain());
        }
        if self.sender == Sender::Mixed {
            measures.insert("splitway_share".into(), self.splitway_share());
        }
        measures
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:22} {:7.2} Mbit/s  Jain {:.3}  lost {} queue drops {} of {}  late {:.2} ‰",
            self.sender.name(),
            self.mbit_per_s(),
            self.jain(),
            counted(&self.emulator, 1, "/counters/lost"),
            counted(&self.emulator, 1, "/counters/queue_drops"),
            counted(&self.emulator, 1, "/counters/packets"),
            unpunctual_permille(&self.emulator),
        )?;
        match self.sender {
            Sender::Mixed => write!(f, "  Splitway's share {:.3}", self.splitway_share()),
            _ => Ok(()),
        }
    }
}

impl Outcome {
    /// Returns the goodput of all flows, in megabits per second.
    pub(in crate::suites) fn mbit_per_s(&self) -> f64 {
        let bytes: u64 = self.flows.iter().map(|flow| flow.bytes).sum();
        bytes as f64 * 8e3 / self.elapsed_ns as f64
    }

    /// Returns the goodput, and the emulator's counters of the data direction.
    pub(in crate::suites) fn measures(&self, emulator: &serde_json::Value) -> Measures {
        let data = |pointer: &str| counted(emulator, 1, pointer) as f64;
        [
            ("mbit_per_s", self.mbit_per_s()),
            ("unpunctual_permille", unpunctual_permille(emulator)),
            ("lost", data("/counters/lost")),
            ("queue_drops", data("/counters/queue_drops")),
            ("packets", data("/counters/packets")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// Returns a counter in the emulator's report: direction 0 is that of requests and ACKs, 1 of data.
fn counted(emulator: &serde_json::Value, direction: usize, pointer: &str) -> u64 {
    let found = emulator["directions"][direction].pointer(pointer);
    found.and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// Returns the departures more than 1 ms late, and the frames lost by the emulator's own fault, per
/// thousand.
fn unpunctual_permille(emulator: &serde_json::Value) -> f64 {
    let sum = |pointer: &str| -> u64 {
        let both = [0, 1].map(|direction| counted(emulator, direction, pointer));
        both.iter().sum()
    };
    let late = sum("/lateness/above_1_ms") + sum("/overrun") + sum("/refused");
    late as f64 * 1000.0 / sum("/lateness/departures").max(1) as f64
}

/// Returns Jain's index of fairness (Jain, Chiu and Hawe 1984): 1 if all values are equal, 1/n if
/// all but one are 0.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        n += 1.0;
        sum += value;
        squares += value * value;
    }
    if squares > 0.0 {
        sum * sum / (n * squares)
    } else {
        0.0
    }
}

/// Adds the runs of a cell, and its promises.
pub(super) fn add(results: &mut Results, cell: &Cell, runs: &[Run]) {
    let conditions = cell.conditions();
    for run in runs {
        let part = match run.sender {
            Sender::Mixed => FAIRNESS,
            _ => GOODPUT,
        };
        results.add(part, run.sender.name(), &conditions, run.measures());
        if cell.shows_fairness() && run.sender != Sender::Mixed {
            results.add(FAIRNESS, run.sender.name(), &conditions, run.measures());
        }
    }
    let of = |sender| runs.iter().filter(move |run| run.sender == sender);
    let ratios: Vec<f64> = of(Sender::Splitway)
        .filter_map(|own| {
            let peer = of(Sender::Kernel).find(|peer| peer.seed == own.seed)?;
            Some(own.mbit_per_s() / peer.mbit_per_s())
        })
        .collect();
    for ratio in &ratios {
        results.add(
            PAIRS,
            AGAINST,
            &conditions,
            [("ratio".to_owned(), *ratio)].into(),
        );
    }
    if !ratios.is_empty() {
        let median = Spread::of(ratios.into_iter()).median;
        results.check(
            format!("goodput, {AGAINST}: {cell}"),
            median,
            Bound::AtLeast(RATIO_MIN),
        );
    }
    if cell.shows_fairness() {
        for (sender, least) in [
            (Sender::Splitway, JAIN_MIN),
            (Sender::Mixed, JAIN_MIXED_MIN),
        ] {
            let index = Spread::of(of(sender).map(Run::jain)).median;
            if index.is_finite() {
                let what = format!("Jain's index, {}: {cell}", sender.name());
                results.check(what, index, Bound::AtLeast(least));
            }
        }
    }
}

/// Adds tables, plots and notes.
pub(super) fn report(results: &mut Results, settings: &Settings) {
    let mut table = |part, title, columns| {
        let table = Table::of(part, columns).titled(title);
        results.table(table.of_each("Sender").over(CONDITIONS));
    };
    table(
        GOODPUT,
        "Goodput",
        vec![
            column("mbit_per_s", "Mbit/s", 2),
            column("jain", "Jain's index", 3),
            column("unpunctual_permille", "Late or overrun, ‰", 2),
        ],
    );
    table(
        PAIRS,
        "Pairs of runs under the same seed",
        vec![column("ratio", "Ratio of goodput", 3)],
    );
    table(
        FAIRNESS,
        "Fairness, without loss, after the first third of the time",
        vec![
            column("jain", "Jain's index", 3),
            column("splitway_share", "Splitway's share", 3),
        ],
    );
    if settings.is_about_fairness {
        let y = ("jain", "Jain's index");
        results.plot(Plot::lines("fairness", FAIRNESS, ("flows", "flows"), y));
        results.publish_beside(paper::FAIRNESS);
        results.note(
            "IO-TCP shares a link of 100 Gbit/s between machines; here it is an emulated one of \
             200 Mbit/s, so that the queue, and not a CPU, decides what each flow gets.",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::goodput::fetch::Flow;

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_a_monopoly() {
        assert_eq!(jain([5.0; 16].into_iter()), 1.0);
        assert_eq!(jain([0.0, 7.0, 0.0, 0.0].into_iter()), 0.25);
        assert_eq!(jain([0.0, 0.0].into_iter()), 0.0);
    }

    fn run(sender: Sender, seed: u64, bytes: u64) -> Run {
        let flow = Flow {
            bytes,
            fair_bytes: bytes,
        };
        Run {
            sender,
            seed,
            outcome: Outcome {
                flows: vec![flow; 4],
                elapsed_ns: 1_000_000_000,
            },
            emulator: serde_json::json!({ "directions": [{}, { "counters": { "lost": 3 } }] }),
        }
    }

    #[test]
    fn ratios_are_of_runs_under_the_same_seed() {
        let cell = Cell::without_loss(4);
        let mut results = Results::new("link", "Links", &()).unwrap();
        let runs = [
            run(Sender::Splitway, 1, 90),
            run(Sender::Kernel, 2, 50),
            run(Sender::Kernel, 1, 100),
            run(Sender::Splitway, 2, 50),
            run(Sender::Mixed, 1, 70),
        ];
        add(&mut results, &cell, &runs);
        let spread = results.of(PAIRS, AGAINST).spread("ratio");
        assert_eq!((spread.min, spread.max), (0.9, 1.0));
        let met: Vec<bool> = results.checks().iter().map(|check| check.met).collect();
        assert_eq!(met, [true, true, true]);
        assert_eq!(results.of(GOODPUT, "Splitway").median("lost"), 3.0);
    }
}
