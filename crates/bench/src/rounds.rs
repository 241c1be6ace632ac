//! How often servers are measured, and for how long.

use serde::Serialize;

/// Options that several measurements have.
#[derive(clap::Args, Clone, Debug, Default, Serialize)]
pub(crate) struct Rounds {
    /// Fewer and shorter runs: enough to see that nothing is broken, too few to claim anything
    #[arg(long)]
    quick: bool,
    /// Runs of each kind; 5, or 3 if it is to be quick
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each run; 5, or 2 if it is to be quick
    #[arg(long)]
    seconds: Option<u64>,
}

impl Rounds {
    /// Runs of each kind, at least one.
    pub(crate) fn count(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 }).max(1)
    }

    /// Of each run, at least one.
    pub(crate) fn seconds(&self) -> u64 {
        let seconds = self.seconds;
        seconds.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    #[cfg(test)]
    pub(crate) fn quick() -> Rounds {
        Rounds {
            quick: true,
            ..Rounds::default()
        }
    }
}
