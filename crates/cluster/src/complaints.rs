//! What the log says of messages that the other node should not have sent.

/// Time between two lines, in microseconds.
const PAUSE_US: u64 = 1_000_000;

/// Whatever the other node says, there is at most one line in [`PAUSE_US`].
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    /// When the last line was.
    said_us: Option<u64>,
    /// Lines that were left out since.
    unsaid: u64,
}

impl Complaints {
    /// If there should be a line now: how many were left out before it.
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
