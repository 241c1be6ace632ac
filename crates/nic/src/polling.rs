//! Adaptive polling: when to poll for work instead of sleeping, namely while sleeps are so short
//! that falling asleep and waking up cost more.

/// Decides whether an idle worker polls.
#[derive(Debug)]
pub(crate) struct Polling {
    spin_us_max: u64,
    /// Moving average of the length of sleeps, in microseconds.
    sleep_us: u64,
    /// Time at which the worker became idle, and of its last poll.
    idle_since_us: Option<u64>,
    looked_us: u64,
    /// Total time in which it has slept, or polled in vain, in microseconds.
    idle_us: u64,
}

impl Polling {
    /// Polls for at most `spin_us_max` microseconds; 0 turns polling off.
    pub(crate) fn new(spin_us_max: u64) -> Polling {
        Polling {
            spin_us_max,
            sleep_us: u64::MAX / 2,
            idle_since_us: None,
            looked_us: 0,
            idle_us: 0,
        }
    }

    /// Records a turn that has found work.
    pub(crate) fn on_work(&mut self) {
        self.end_idleness();
    }

    fn end_idleness(&mut self) {
        if let Some(since_us) = self.idle_since_us.take() {
            self.idle_us += self.looked_us.saturating_sub(since_us);
        }
    }

    /// Returns the total time in which the worker had nothing to do, asleep or not, in
    /// microseconds.
    pub(crate) fn idle_us(&self) -> u64 {
        self.idle_us
    }

    /// Records a turn that has found nothing to do. True if the worker is to poll again at once
    /// rather than sleep.
    pub(crate) fn on_idle(&mut self, now_us: u64) -> bool {
        let since_us = *self.idle_since_us.get_or_insert(now_us);
        self.looked_us = now_us;
        self.sleep_us <= self.spin_us_max && now_us.saturating_sub(since_us) < self.spin_us_max
    }

    /// Records the end of a sleep of `slept_us`.
    pub(crate) fn on_wake(&mut self, slept_us: u64) {
        self.sleep_us = (self.sleep_us / 4)
            .saturating_mul(3)
            .saturating_add(slept_us / 4);
        self.end_idleness();
        self.idle_us += slept_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_needs_short_sleeps_lately_and_ends_soon() {
        let mut polling = Polling::new(20);
        assert!(!polling.on_idle(1_000), "nothing is known yet");
        for _ in 0..300 {
            polling.on_wake(5);
        }
        assert!(polling.on_idle(2_000));
        assert!(polling.on_idle(2_019));
        assert!(!polling.on_idle(2_020));
        polling.on_work();
        assert_eq!(polling.idle_us(), 300 * 5 + 20);
        assert!(polling.on_idle(2_021), "work has come in between");
        polling.on_wake(1_000_000);
        assert_eq!(polling.idle_us(), 300 * 5 + 20 + 1_000_000);
        assert!(!polling.on_idle(3_000));
    }

    #[test]
    fn without_time_to_poll_there_is_no_polling() {
        let mut polling = Polling::new(0);
        for _ in 0..300 {
            polling.on_wake(0);
        }
        assert!(!polling.on_idle(1));
    }
}
