//! What a connection waits for, and for how long.
//!
//! A stream has one timer, and a connection waits for one thing at a time: its peer's acknowledgements
//! while anything is unacknowledged, else the rest of a request, else another request, else the peer's
//! FIN. Bytes do not postpone a deadline, only arriving at the next thing to wait for does.

use std::time::Duration;

use crate::config::Config;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A request head, or the rest of a body.
    Head,
    /// The first byte of another request.
    Idle,
    /// Acknowledgement of what is queued, or the NIC stack's answer to OPEN.
    Progress,
    /// The peer's FIN.
    Linger,
}

/// What the timer means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// This has been waited for too long.
    Overdue(Wait),
    /// Look again after this time.
    Again(Duration),
    /// Nothing is being waited for.
    Stale,
}

/// What is being waited for.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    wait: Option<Wait>,
    /// While waiting for [`Wait::Progress`]: what was acknowledged at the last look, and how many looks
    /// have seen the same.
    acknowledged: u64,
    idle_looks: u8,
}

/// How often acknowledgements are looked at in the course of the stall timeout.
const LOOKS: u8 = 4;

impl Watch {
    /// Waits for something; returns for how long if it was not being waited for already.
    pub(crate) fn set(
        &mut self,
        wait: Wait,
        acknowledged: u64,
        config: &Config,
    ) -> Option<Duration> {
        if self.wait == Some(wait) {
            return None;
        }
        *self = Watch {
            wait: Some(wait),
            acknowledged,
            idle_looks: 0,
        };
        Some(timer(wait, config))
    }

    /// Stops waiting: the next [`Watch::set`] begins anew.
    pub(crate) fn clear(&mut self) {
        self.wait = None;
    }

    /// The timer has come.
    pub(crate) fn expire(&mut self, acknowledged: u64, config: &Config) -> Expiry {
        let Some(wait) = self.wait else {
            return Expiry::Stale;
        };
        if wait == Wait::Progress {
            let progress = acknowledged != self.acknowledged;
            self.acknowledged = acknowledged;
            self.idle_looks = if progress { 0 } else { self.idle_looks + 1 };
            if self.idle_looks < LOOKS {
                return Expiry::Again(timer(wait, config));
            }
        }
        self.wait = None;
        Expiry::Overdue(wait)
    }
}

fn timer(wait: Wait, config: &Config) -> Duration {
    match wait {
        Wait::Head => config.head_timeout,
        Wait::Idle => config.idle_timeout,
        Wait::Progress => config.stall_timeout / u32::from(LOOKS),
        Wait::Linger => config.linger_timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_set_once() {
        let config = Config::default();
        let mut watch = Watch::default();
        assert_eq!(watch.expire(0, &config), Expiry::Stale);
        assert_eq!(watch.set(Wait::Head, 0, &config), Some(config.head_timeout));
        assert_eq!(watch.set(Wait::Head, 0, &config), None);
        assert_eq!(watch.set(Wait::Idle, 0, &config), Some(config.idle_timeout));
        assert_eq!(watch.expire(0, &config), Expiry::Overdue(Wait::Idle));
        assert_eq!(watch.expire(0, &config), Expiry::Stale);
    }

    #[test]
    fn progress_is_overdue_after_four_looks_without_any() {
        let config = Config::default();
        let again = || Expiry::Again(config.stall_timeout / 4);
        let mut watch = Watch::default();
        watch.set(Wait::Progress, 10, &config);
        for acknowledged in [10, 10, 10, 11, 11, 11, 11] {
            assert_eq!(watch.expire(acknowledged, &config), again());
        }
        assert_eq!(watch.expire(11, &config), Expiry::Overdue(Wait::Progress));
    }
}
