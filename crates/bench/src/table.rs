//! What the tables of all measurements have in common: medians with their spread, and what a server costs.

use serde::Serialize;

use crate::run::Run;

/// The median of some values, and their extremes.
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

    /// As a table shows it: median (least–most).
    pub(crate) fn cell(&self, digits: usize) -> String {
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median, self.min, self.max
        )
    }
}

/// A value of the runs against one server.
pub(crate) fn spread_of(runs: &[Run], server: &str, value: impl Fn(&Run) -> f64) -> Spread {
    let of_server = runs.iter().filter(|run| run.server == server);
    Spread::of(of_server.map(value))
}

/// What stands above [`server_cells`]; columns may follow.
pub(crate) const SERVER_HEADINGS: &str =
    "| Server | Gbit/s | CPU s/GB, each process | CPU s/GB, server | CPU s/GB, machine |";

/// The beginning of a server's row: throughput, and what each of its processes, all of them and the machine cost.
pub(crate) fn server_cells(runs: &[Run], server: &str, processes: &[&str]) -> String {
    let each = processes.iter().map(|name| {
        let spread = spread_of(runs, server, |run| run.process_s_per_gb(name));
        format!("{name} {}", spread.cell(4))
    });
    format!(
        "| {server} | {} | {} | {} | {} |",
        spread_of(runs, server, Run::gbit_per_s).cell(2),
        each.collect::<Vec<_>>().join(", "),
        spread_of(runs, server, Run::server_s_per_gb).cell(4),
        spread_of(runs, server, Run::machine_s_per_gb).cell(4),
    )
}

/// Whether a promise is kept.
pub(crate) fn verdict(met: bool) -> &'static str {
    match met {
        true => "met",
        false => "NOT MET",
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
