//! Rate limit of log lines about invalid messages from the other node.

/// Least time between two lines, in microseconds.
const PAUSE_US: u64 = 1_000_000;

/// Allows at most one line in [`PAUSE_US`], however many messages are invalid.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    /// Time of the last line.
    said_us: Option<u64>,
    /// Lines suppressed since then.
    unsaid: u64,
}

impl Complaints {
    /// Returns the number of suppressed lines if a line is due.
    pub(crate) fn due(&mut self, now_us: u64) -> Option<u64> {
        let is_early = |said_us| now_us.saturating_sub(said_us) < PAUSE_US;
        if self.said_us.is_some_and(is_early) {
            self.unsaid += 1;
            return None;
        }
        self.said_us = Some(now_us);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_node_fills_no_log() {
        let mut complaints = Complaints::default();
        let lines = (0..10_000_000).step_by(1_000);
        let lines: Vec<u64> = lines.filter_map(|now_us| complaints.due(now_us)).collect();
        assert_eq!(lines, [0, 999, 999, 999, 999, 999, 999, 999, 999, 999]);
    }
}
