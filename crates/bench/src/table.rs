//! What the tables of all benchmarks have in common: medians with their spread, verdicts, and the columns that are about
//! servers.

use serde::Serialize;

use crate::results::{Column, Results, Table, column};

/// The median of some values, and their extremes; no numbers if there are no values.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
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

    /// As a table shows it: median (least–most), one value if they are all the same, or nothing.
    pub(crate) fn cell(&self, digits: usize) -> String {
        if self.median.is_nan() {
            return String::new();
        }
        if self.min == self.max {
            return format!("{:.digits$}", self.median);
        }
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median, self.min, self.max
        )
    }
}

/// Whether a promise is kept.
pub(crate) fn verdict(met: bool) -> &'static str {
    match met {
        true => "met",
        false => "NOT MET",
    }
}

/// Which conditions have a column: name and heading.
pub(crate) type Conditions = &'static [(&'static str, &'static str)];

/// What a run is about: throughput, and what each process, the server and the machine cost.
pub(crate) const COST: [Column; 6] = [
    column("gbit_per_s", "Gbit/s", 2),
    column("requests_per_s", "requests/s", 0),
    column("cpu_s_per_gb.*", "CPU s/GB, each process", 4),
    column("cpu_s_per_gb.server", "CPU s/GB, server", 4),
    column("cpu_s_per_gb.machine", "CPU s/GB, machine", 4),
    column("busy_cores.server", "server's cores busy", 2),
];

/// How long requests took.
const LATENCY: [Column; 6] = [
    column("first_byte_us.p50", "first byte p50, µs", 0),
    column("first_byte_us.p90", "p90", 0),
    column("first_byte_us.p99", "p99", 0),
    column("response_us.p50", "whole response p50, µs", 0),
    column("response_us.p90", "p90", 0),
    column("response_us.p99", "p99", 0),
];

/// How the processes ran.
const PROCESSES: [Column; 5] = [
    column("user_s_per_gb.*", "user CPU s/GB", 4),
    column("system_s_per_gb.*", "system CPU s/GB", 4),
    column("voluntary_switches_per_gb.*", "voluntary switches/GB", 0),
    column(
        "involuntary_switches_per_gb.*",
        "involuntary switches/GB",
        0,
    ),
    column("resident_mb.*", "resident, MB", 0),
];

/// Adds the tables of a part: cost, latency, processes.
pub(crate) fn add(results: &mut Results, part: &'static str, conditions: Conditions) {
    add_titled(results, part, "", conditions);
}

/// The same, below a title.
pub(crate) fn add_titled(
    results: &mut Results,
    part: &'static str,
    title: &'static str,
    conditions: Conditions,
) {
    let tables = [&COST[..], &LATENCY, &PROCESSES];
    for (index, columns) in tables.into_iter().enumerate() {
        let title = if index == 0 { title } else { "" };
        results.table(
            Table::of(part, columns.to_vec())
                .titled(title)
                .over(conditions),
        );
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

    #[test]
    fn there_is_nothing_to_show_of_no_values() {
        assert_eq!(Spread::of([].into_iter()).cell(2), "");
    }
}
