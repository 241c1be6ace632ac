//! Limits on what may happen in a second.

/// Counts what happens in a second.
#[derive(Debug, Default)]
pub(crate) struct PerSecond {
    since_us: u64,
    count: u32,
}

impl PerSecond {
    /// True if it may happen once more.
    pub(crate) fn allows(&mut self, now_us: u64, max: u32) -> bool {
        if now_us.saturating_sub(self.since_us) >= 1_000_000 {
            (self.since_us, self.count) = (now_us, 0);
        }
        let allowed = self.count < max;
        self.count += u32::from(allowed);
        allowed
    }
}
