//! The event that a connection waits for, and its deadline.
//!
//! A stream has one timer, and a connection waits for one event at a time: its peer's
//! acknowledgements while bytes are unacknowledged, else the rest of a request, else another
//! request, else the peer's FIN. Received bytes do not postpone a deadline; only a change of the
//! awaited event does.
//!
//! Acknowledgements are examined several times per timeout. Two conditions end a connection: no
//! acknowledgement during the stall timeout, and fewer bytes than the minimum rate requires during
//! its period.

use std::time::Duration;

use crate::config::Config;

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A request head, or the rest of a body.
    Head,
    /// The first byte of another request.
    Idle,
    /// Acknowledgement of queued bytes, or the NIC stack's answer to OPEN.
    Progress,
    /// The peer's FIN.
    Linger,
}

/// The meaning of an expired timer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// This event did not come in time.
    Overdue(Wait),
    /// The peer acknowledges less than the minimum rate.
    TooSlow,
    /// Examine the acknowledgements again after this time.
    Again(Duration),
    /// No event is awaited.
    Stale,
}

/// The peer's progress with queued bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) acknowledged: u64,
    pub(crate) unacknowledged: u64,
    /// Only the peer delays the rest.
    pub(crate) waits_for_peer: bool,
}

/// The awaited event.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    wait: Option<Wait>,
    /// Looks at acknowledgements since the measurement of the rate began.
    rate_looks: u8,
    /// Consecutive looks without a new acknowledgement.
    idle_looks: u8,
    /// Unacknowledged bytes when the measurement of the rate began.
    rate_unacknowledged: u32,
    /// Acknowledged bytes when the measurement of the rate began.
    rate_acknowledged: u64,
    /// Acknowledged bytes at the last look.
    acknowledged: u64,
}

/// Fewest looks at acknowledgements during the stall timeout.
const STALL_LOOKS_MIN: u32 = 4;

/// Fewest looks at acknowledgements during the period of the minimum rate.
const RATE_LOOKS_MIN: u32 = 2;

impl Watch {
    pub(crate) fn is_for(&self, wait: Wait) -> bool {
        self.wait == Some(wait)
    }

    /// Starts to wait for an event; returns the time until the timer expires.
    pub(crate) fn set(&mut self, wait: Wait, progress: &Progress, config: &Config) -> Duration {
        *self = Watch {
            wait: Some(wait),
            acknowledged: progress.acknowledged,
            ..Watch::default()
        };
        self.measure_rate(progress);
        timer(wait, config)
    }

    /// Stops waiting: the next [`Watch::set`] starts over.
    pub(crate) fn clear(&mut self) {
        self.wait = None;
    }

    /// Handles the expired timer.
    pub(crate) fn expire(&mut self, progress: &Progress, config: &Config) -> Expiry {
        let Some(wait) = self.wait else {
            return Expiry::Stale;
        };
        if wait == Wait::Progress {
            let interval = timer(wait, config);
            if self.is_too_slow(progress, interval, config) {
                self.wait = None;
                return Expiry::TooSlow;
            }
            let advanced = progress.acknowledged != self.acknowledged;
            self.acknowledged = progress.acknowledged;
            self.idle_looks = if advanced { 0 } else { self.idle_looks + 1 };
            if interval * u32::from(self.idle_looks) < config.stall_timeout {
                return Expiry::Again(interval);
            }
        }
        self.wait = None;
        Expiry::Overdue(wait)
    }

    /// Begins a period of the minimum rate.
    fn measure_rate(&mut self, progress: &Progress) {
        self.rate_looks = 0;
        self.rate_acknowledged = progress.acknowledged;
        self.rate_unacknowledged = u32::try_from(progress.unacknowledged).unwrap_or(u32::MAX);
    }

    /// True if the peer has acknowledged some bytes in a whole period, but fewer than the minimum
    /// rate requires and fewer than were unacknowledged, and only the peer delayed the rest at each
    /// look. A silent peer may have lost its network for a moment: the stall timeout covers that
    /// case.
    fn is_too_slow(&mut self, progress: &Progress, interval: Duration, config: &Config) -> bool {
        let Some(rate) = config.bytes_per_second_min else {
            return false;
        };
        if !progress.waits_for_peer {
            self.measure_rate(progress);
            return false;
        }
        self.rate_looks += 1;
        let elapsed = interval * u32::from(self.rate_looks);
        if elapsed < config.rate_period {
            return false;
        }
        let wanted = u128::from(rate.get()) * elapsed.as_millis() / 1000;
        let wanted = wanted.min(u128::from(self.rate_unacknowledged));
        // The acknowledgements of a closed stream are unknown.
        let acknowledged = progress.acknowledged.saturating_sub(self.rate_acknowledged);
        self.measure_rate(progress);
        acknowledged > 0 && u128::from(acknowledged) < wanted
    }
}

fn timer(wait: Wait, config: &Config) -> Duration {
    match wait {
        Wait::Head => config.head_timeout,
        Wait::Idle => config.idle_timeout,
        Wait::Progress => {
            let stall = config.stall_timeout / STALL_LOOKS_MIN;
            match config.bytes_per_second_min {
                None => stall,
                // A look count has 8 bits, which bounds the looks during a period.
                Some(_) => stall
                    .min(config.rate_period / RATE_LOOKS_MIN)
                    .max(config.stall_timeout.max(config.rate_period) / 128),
            }
        }
        Wait::Linger => config.linger_timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(acknowledged: u64) -> Progress {
        Progress {
            acknowledged,
            unacknowledged: 1 << 30,
            waits_for_peer: true,
        }
    }

    fn without_least_rate() -> Config {
        Config {
            bytes_per_second_min: None,
            ..Config::default()
        }
    }

    #[test]
    fn a_deadline_expires_once() {
        let config = Config::default();
        let mut watch = Watch::default();
        let none = Progress::default();
        assert_eq!(watch.expire(&none, &config), Expiry::Stale);
        assert_eq!(watch.set(Wait::Head, &none, &config), config.head_timeout);
        assert!(watch.is_for(Wait::Head));
        assert_eq!(watch.set(Wait::Idle, &none, &config), config.idle_timeout);
        assert!(watch.is_for(Wait::Idle) && !watch.is_for(Wait::Head));
        assert_eq!(watch.expire(&none, &config), Expiry::Overdue(Wait::Idle));
        assert_eq!(watch.expire(&none, &config), Expiry::Stale);
    }

    #[test]
    fn progress_is_overdue_after_four_looks_without_any() {
        let config = without_least_rate();
        let again = || Expiry::Again(config.stall_timeout / 4);
        let mut watch = Watch::default();
        watch.set(Wait::Progress, &acknowledged(10), &config);
        for bytes in [10, 10, 10, 11, 11, 11, 11] {
            assert_eq!(watch.expire(&acknowledged(bytes), &config), again());
        }
        assert_eq!(
            watch.expire(&acknowledged(11), &config),
            Expiry::Overdue(Wait::Progress)
        );
    }

    #[test]
    fn a_peer_below_the_least_rate_is_too_slow_after_a_period() {
        let config = Config::default();
        assert_eq!(config.rate_period, Duration::from_secs(30));
        let again = || Expiry::Again(Duration::from_secs(15));
        let mut watch = Watch::default();
        watch.set(Wait::Progress, &acknowledged(0), &config);
        // 500 bytes per second are enough,
        for bytes in [1, 15_000, 15_000, 30_000, 44_999] {
            assert_eq!(
                watch.expire(&acknowledged(bytes), &config),
                again(),
                "{bytes}"
            );
        }
        // and a byte less is not.
        assert_eq!(
            watch.expire(&acknowledged(44_999), &config),
            Expiry::TooSlow
        );
    }

    #[test]
    fn a_time_in_which_the_data_plane_is_waited_for_does_not_count() {
        let config = Config::default();
        let mut watch = Watch::default();
        watch.set(Wait::Progress, &acknowledged(0), &config);
        for look in 0..100 {
            let progress = Progress {
                waits_for_peer: look % 2 == 0,
                ..acknowledged(look)
            };
            assert!(matches!(watch.expire(&progress, &config), Expiry::Again(_)));
        }
    }

    #[test]
    fn a_silent_peer_has_the_whole_stall_timeout() {
        let config = Config::default();
        let mut watch = Watch::default();
        watch.set(Wait::Progress, &acknowledged(7), &config);
        for _ in 0..3 {
            assert!(matches!(
                watch.expire(&acknowledged(7), &config),
                Expiry::Again(_)
            ));
        }
        assert_eq!(
            watch.expire(&acknowledged(7), &config),
            Expiry::Overdue(Wait::Progress)
        );
    }

    #[test]
    fn the_least_rate_asks_for_no_more_than_there_is() {
        let config = Config::default();
        let mut watch = Watch::default();
        let little = |acknowledged| Progress {
            acknowledged,
            unacknowledged: 1000,
            waits_for_peer: true,
        };
        watch.set(Wait::Progress, &little(0), &config);
        for bytes in [0, 1000, 1000, 2000] {
            assert!(matches!(
                watch.expire(&little(bytes), &config),
                Expiry::Again(_)
            ));
        }
        assert!(matches!(
            watch.expire(&little(2000), &config),
            Expiry::Again(_)
        ));
        assert_eq!(watch.expire(&little(2999), &config), Expiry::TooSlow);
    }

    #[test]
    fn looks_are_few_enough_to_be_counted() {
        for (stall_s, period_s) in [(1, 86_400), (86_400, 1), (60, 30), (1, 1)] {
            let config = Config {
                stall_timeout: Duration::from_secs(stall_s),
                rate_period: Duration::from_secs(period_s),
                ..Config::default()
            };
            let interval = timer(Wait::Progress, &config);
            for time in [config.stall_timeout, config.rate_period] {
                assert!(time.as_nanos().div_ceil(interval.as_nanos()) <= 128);
            }
        }
    }
}
