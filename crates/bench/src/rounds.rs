//! How often servers are measured, and for how long.

use std::path::{Path, PathBuf};

use serde::Serialize;
use testbed::Result;

/// Options that several measurements have.
#[derive(clap::Args, Clone, Debug, Default, Serialize)]
pub(crate) struct Rounds {
    /// Fewer and shorter runs: enough to see that nothing is broken, too few to claim anything
    #[arg(long)]
    quick: bool,
    /// Runs of each kind; most often 5; 1 if it is to be quick
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each run; most often 5; 1 if it is to be quick
    #[arg(long)]
    seconds: Option<u64>,
    /// Where tables and plots go [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

impl Rounds {
    /// Whether it is to be quick.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    /// Runs of each kind, at least one.
    pub(crate) fn count(&self) -> usize {
        self.count_or(5)
    }

    /// The same, for what takes another number by default.
    pub(crate) fn count_or(&self, default: usize) -> usize {
        let default = if self.quick { 1 } else { default };
        self.rounds.unwrap_or(default).max(1)
    }

    /// Where results go; `default` is where they go unless told.
    pub(crate) fn output<'a>(&'a self, default: &'a Path) -> &'a Path {
        self.output.as_deref().unwrap_or(default)
    }

    /// Has each of some servers run in each round. The order turns with the rounds, so that none always comes after another.
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

    /// Of each run, at least one.
    pub(crate) fn seconds(&self) -> u64 {
        self.seconds_or(5)
    }

    /// The same, for what takes another time by default.
    pub(crate) fn seconds_or(&self, default: u64) -> u64 {
        let default = if self.quick { 1 } else { default };
        self.seconds.unwrap_or(default).max(1)
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
}
