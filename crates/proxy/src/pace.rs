//! The minimum rate at which a client must send or take a body.
//!
//! A client is examined from time to time. A period is judged only if the client alone delayed the
//! body at each look. A client that moves nothing at all has the idle timeout instead: it may have
//! lost its network for a moment.

use std::time::Duration;

use crate::config::Config;

/// The state of a client at one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Bytes that the client has sent, or acknowledged, so far.
    pub(crate) moved_bytes: u64,
    /// Bytes that the client could acknowledge; no bound for a body that it sends.
    pub(crate) left_bytes: u64,
    /// The client alone delays the body.
    pub(crate) is_awaited: bool,
}

/// The period in which a client is measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Start of the period, in microseconds, and the client's state then.
    begun: Option<(u64, Look)>,
}

impl Pace {
    /// True if a period has ended in which the client moved less than the minimum rate requires.
    pub(crate) fn is_too_slow(&mut self, now_us: u64, look: Look, config: &Config) -> bool {
        let Some(rate) = config.bytes_per_second_min else {
            return false;
        };
        let Some((begun_us, before)) = self.begun.filter(|_| look.is_awaited) else {
            self.begun = look.is_awaited.then_some((now_us, look));
            return false;
        };
        let elapsed = Duration::from_micros(now_us.saturating_sub(begun_us));
        if elapsed < config.rate_period {
            return false;
        }
        self.begun = Some((now_us, look));
        let wanted = u128::from(rate.get()) * elapsed.as_millis() / 1000;
        let wanted = wanted.min(u128::from(before.left_bytes));
        let moved = look.moved_bytes.saturating_sub(before.moved_bytes);
        moved > 0 && u128::from(moved) < wanted
    }
}

/// Time at which a session got its connection to a backend, and bytes moved by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    pub(crate) at_us: u64,
    pub(crate) moved_bytes: u64,
}

/// Interval between two looks at a client.
pub(crate) fn look_interval(config: &Config) -> Duration {
    match config.bytes_per_second_min {
        Some(_) => config.rate_period / 2,
        None => Duration::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(moved_bytes: u64) -> Look {
        Look {
            moved_bytes,
            left_bytes: u64::MAX,
            is_awaited: true,
        }
    }

    /// Looks every 15 seconds at a client; whether each finds it too slow.
    fn looks(looks: &[Look]) -> Vec<bool> {
        let (config, mut pace) = (Config::default(), Pace::default());
        let looks = looks.iter().zip(0u64..);
        looks
            .map(|(look, at)| pace.is_too_slow(at * 15_000_000, *look, &config))
            .collect()
    }

    #[test]
    fn a_client_is_judged_after_each_period() {
        let slow = [look(0), look(10), look(14_999), look(20_000), look(29_998)];
        assert_eq!(looks(&slow), [false, false, true, false, true]);
        let fast = [look(0), look(10), look(15_000), look(15_000), look(30_000)];
        assert_eq!(looks(&fast), [false; 5]);
    }

    #[test]
    fn silence_and_time_that_others_take_do_not_count() {
        assert_eq!(looks(&[look(0), look(0), look(0)]), [false; 3]);
        let other = Look {
            is_awaited: false,
            ..look(5)
        };
        assert_eq!(looks(&[look(0), other, look(9), look(9)]), [false; 4]);
        // It has acknowledged all that there was.
        let last = Look {
            left_bytes: 7,
            ..look(0)
        };
        assert_eq!(looks(&[last, look(7), look(7)]), [false; 3]);
    }
}
