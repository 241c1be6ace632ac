//! What keeps happening, and is worth a line in the log when it begins.

/// It is over when nothing of the kind has happened for so long, in microseconds.
const QUIET_US: u64 = 60_000_000;

/// Something that keeps happening, such as a limit that acts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Episode {
    last_us: Option<u64>,
}

impl Episode {
    /// It happens at `now_us`, in microseconds of a monotonic clock; true if it had not for a
    /// minute.
    pub fn begins(&mut self, now_us: u64) -> bool {
        let goes_on = self.is_recent(now_us, QUIET_US);
        self.last_us = Some(now_us);
        !goes_on
    }

    /// True if it has happened in the last `age_us_max` microseconds.
    pub fn is_recent(&self, now_us: u64, age_us_max: u64) -> bool {
        self.last_us
            .is_some_and(|last_us| now_us.saturating_sub(last_us) < age_us_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_begins_once_until_a_minute_has_been_quiet() {
        let mut episode = Episode::default();
        assert!(episode.begins(5));
        assert!(!episode.begins(6));
        assert!(!episode.begins(6 + QUIET_US - 1));
        assert!(!episode.is_recent(6 + 2 * QUIET_US, QUIET_US));
        assert!(episode.begins(6 + 2 * QUIET_US));
    }
}
