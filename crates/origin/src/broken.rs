//! Backs off from targets that fail while their origin serves others, so that not every client
//! causes a request. Varnish keeps an error for a second, others for ten.

use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Back-off after the first failure; doubles with each failure in a row.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Upper bound of the back-off.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Broken {
    failure: Failure,
    until: Instant,
    wait: Duration,
}

impl Broken {
    /// The state after a failure; `before` is the state of the last one.
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
