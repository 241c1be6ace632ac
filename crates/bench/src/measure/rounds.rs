//! Number and length of runs.

use std::path::{Path, PathBuf};

use serde::Serialize;
use testbed::Result;

/// Options that several benchmarks share.
#[derive(clap::Args, Clone, Debug, Default, Serialize)]
pub(crate) struct Rounds {
    /// Fewer and shorter runs: enough for a smoke test, too few for results
    #[arg(long)]
    quick: bool,
    /// Runs of each kind; usually 5; 1 for quick runs
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each run, which may be a fraction; usually 5; 0.5 for quick runs
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Directory for tables and plots [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

impl Rounds {
    /// True for quick runs.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    /// Runs of each kind, at least one.
    pub(crate) fn count(&self) -> usize {
        self.count_or(5)
    }

    /// The same, with another default.
    pub(crate) fn count_or(&self, default: usize) -> usize {
        let default = if self.quick { 1 } else { default };
        self.rounds.unwrap_or(default).max(1)
    }

    /// The directory for results, by default `default`.
    pub(crate) fn output<'a>(&'a self, default: &'a Path) -> &'a Path {
        self.output.as_deref().unwrap_or(default)
    }

    /// Lets each server run in each round. The order rotates with the rounds, so that no server
    /// always follows another.
    pub(crate) fn take_turns<S>(
        &self,
        servers: &[S],
        mut run: impl FnMut(&S) -> Result<()>,
    ) -> Result<()> {
        for round in 0..self.count() {
            for place in 0..servers.len() {
                run(&servers[(place + round) % servers.len()])?;
            }
        }
        Ok(())
    }

    /// Seconds of each run.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds_or(5.0)
    }

    /// The same, with another default.
    pub(crate) fn seconds_or(&self, default: f64) -> f64 {
        self.seconds_of(QUICK_SECONDS, default)
    }

    /// The same, with another default, also for quick runs.
    pub(crate) fn seconds_of(&self, quick: f64, default: f64) -> f64 {
        let default = if self.quick { quick } else { default };
        self.seconds.unwrap_or(default)
    }
}

/// Seconds of each quick run: more than ten ticks of the kernel, which separate user time from
/// system time.
pub(crate) const QUICK_SECONDS: f64 = 0.5;

/// Most seconds of a run.
const SECONDS_MAX: f64 = 86_400.0;

/// Parses a length of a run.
pub(crate) fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(seconds)
    } else {
        Err(format!("more than 0 is meant, and at most {SECONDS_MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_turns_with_the_rounds() {
        let rounds = Rounds {
            rounds: Some(3),
            ..Rounds::default()
        };
        let mut order = String::new();
        let taken = rounds.take_turns(&['a', 'b'], |server| {
            order.push(*server);
            Ok(())
        });
        taken.unwrap();
        assert_eq!(order, "abbaab");
    }

    #[test]
    fn a_span_is_longer_than_nothing_and_ends() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "inf", "NaN", "1e9", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
