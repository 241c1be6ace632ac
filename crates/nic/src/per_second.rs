//! Limits on events per second.

/// Counts events, and bounds their number per second.
#[derive(Debug, Default)]
pub(crate) struct PerSecond {
    since_us: u64,
    count: u32,
}

impl PerSecond {
    /// Counts an event. False, uncounted, if there were `max` in this second.
    pub(crate) fn allows(&mut self, now_us: u64, max: u32) -> bool {
        if now_us.saturating_sub(self.since_us) >= 1_000_000 {
            (self.since_us, self.count) = (now_us, 0);
        }
        let allowed = self.count < max;
        self.count += u32::from(allowed);
        allowed
    }
}
