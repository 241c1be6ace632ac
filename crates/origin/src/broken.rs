//! Targets that the origin fails to give, while it gives others: each is left alone for a moment,
//! so that it is not asked for by every client. Varnish keeps an error for a second, others for
//! ten.

use std::time::{Duration, Instant};

use crate::failure::Failure;

/// For how long a target is left alone, the first time; it doubles with each failure in a row.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// And never longer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Broken {
    failure: Failure,
    until: Instant,
    wait: Duration,
}

impl Broken {
    /// A target that has just failed, and what was known of it before.
    pub(crate) fn next(before: Option<&Broken>, failure: &Failure, now: Instant) -> Broken {
        let wait = before.map_or(WAIT_MIN, |before| (before.wait * 2).min(WAIT_MAX));
        Broken {
            failure: failure.clone(),
            until: now + wait,
            wait,
        }
    }

    /// The answer for clients without asking the origin; `None` if it may be asked again.
    pub(crate) fn answer(&self, now: Instant) -> Option<&Failure> {
        (now < self.until).then_some(&self.failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_left_alone_longer_each_time_up_to_a_bound() {
        let mut now = Instant::now();
        let mut broken: Option<Broken> = None;
        let mut waits = Vec::new();
        for status in 500..506 {
            let failure = Failure::Status(status);
            let next = Broken::next(broken.as_ref(), &failure, now);
            assert_eq!(next.answer(now), Some(&failure));
            waits.push((next.until - now).as_secs());
            now = next.until;
            assert_eq!(next.answer(now), None);
            broken = Some(next);
        }
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    }
}
