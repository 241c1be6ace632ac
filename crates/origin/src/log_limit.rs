//! Rate limit of repeated log lines.

use std::time::{Duration, Instant};

/// Least time between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// The limit of one kind of line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogLimit(Option<Instant>);

impl LogLimit {
    /// Returns true if the line may be written now; then starts the pause.
    pub(crate) fn allows(&mut self) -> bool {
        let allows = self.0.is_none_or(|at| at.elapsed() >= PAUSE);
        if allows {
            self.0 = Some(Instant::now());
        }
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_in_a_while() {
        let mut limit = LogLimit::default();
        assert_eq!([limit.allows(), limit.allows()], [true, false]);
        limit.0 = Instant::now().checked_sub(PAUSE);
        assert!(limit.allows());
    }
}
