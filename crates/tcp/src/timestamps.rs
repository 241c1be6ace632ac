//! Timestamps and protection against wrapped sequence numbers (RFC 7323 §3–5).

use std::time::Duration;

use wire::tcp;

use crate::seq::wraps_before;
use crate::time::Instant;

/// RFC 7323 §5.5: a TS.Recent older than this is invalid, the peer's clock may have wrapped.
const RECENT_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// Verdict on a segment by its timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    /// Timestamps were negotiated and are missing (RFC 7323 §3.2).
    Missing,
    /// The segment is old: acknowledge and drop (RFC 7323 §5.3 R1).
    Old,
}

/// The timestamp state of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    /// Both SYNs carried the option.
    negotiated: bool,
    /// Added to the clock: strangers learn nothing of other connections or of the uptime.
    offset: u32,
    /// TS.Recent.
    recent: u32,
    recent_at: Instant,
}

impl Timestamps {
    pub(crate) fn new(offset: u32) -> Timestamps {
        Timestamps {
            negotiated: false,
            offset,
            recent: 0,
            recent_at: Instant::default(),
        }
    }

    /// Returns negotiated timestamps, as an earlier state [remembers](Timestamps::remembered) them.
    pub(crate) fn resumed(offset: u32, recent: u32) -> Timestamps {
        Timestamps {
            negotiated: true,
            recent,
            ..Timestamps::new(offset)
        }
    }

    /// Continues timestamps that another stack has sent: TSval is no less than this, and TS.Recent
    /// is of now.
    pub(crate) fn move_to(&mut self, now: Instant, value: u32, recent: u32) {
        if self.negotiated {
            let behind = value.wrapping_sub(self.value(now));
            if (behind as i32) > 0 {
                self.offset = self.offset.wrapping_add(behind);
            }
            self.recent = recent;
            self.recent_at = now;
        }
    }

    /// Sets the time of TS.Recent to `now`.
    pub(crate) fn refresh(&mut self, now: Instant) {
        self.recent_at = now;
    }

    /// Returns the offset that is added to the clock, and TS.Recent, if they were negotiated.
    pub(crate) fn remembered(&self) -> Option<(u32, u32)> {
        self.negotiated.then_some((self.offset, self.recent))
    }

    /// Records that the peer's SYN has carried the option, and ours does.
    pub(crate) fn negotiate(&mut self, now: Instant, tsval: u32) {
        self.negotiated = true;
        self.recent = tsval;
        self.recent_at = now;
    }

    pub(crate) fn are_negotiated(&self) -> bool {
        self.negotiated
    }

    /// Returns TSval at an instant: a clock of 1 ms.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        self.offset.wrapping_add((now.as_us() / 1000) as u32)
    }

    /// Returns the option of our SYN, offered before it is known whether the peer agrees.
    pub(crate) fn offer(&self, now: Instant) -> tcp::Timestamps {
        tcp::Timestamps {
            value: self.value(now),
            echo_reply: self.recent,
        }
    }

    /// Returns the option of every other segment.
    pub(crate) fn option(&self, now: Instant) -> Option<tcp::Timestamps> {
        self.negotiated.then(|| self.offer(now))
    }

    /// Tests a segment before all other checks. Resets are exempt; the caller does not pass them.
    pub(crate) fn check(&self, now: Instant, option: Option<tcp::Timestamps>) -> Verdict {
        if !self.negotiated {
            return Verdict::Accept;
        }
        match option {
            None => Verdict::Missing,
            Some(ts)
                if wraps_before(ts.value, self.recent)
                    && now.since(self.recent_at) < RECENT_AGE_MAX =>
            {
                Verdict::Old
            }
            Some(_) => Verdict::Accept,
        }
    }

    /// Updates TS.Recent (RFC 7323 §5.3 R3 and §4.3 (2)): the segment is acceptable and begins at
    /// or before Last.ACK.sent.
    pub(crate) fn update_recent(&mut self, now: Instant, option: Option<tcp::Timestamps>) {
        if let (true, Some(ts)) = (self.negotiated, option) {
            // An older value gets here only if TS.Recent has lost its meaning.
            self.recent = ts.value;
            self.recent_at = now;
        }
    }

    /// Returns the round-trip time by an echoed timestamp (RFC 7323 §4.1), at least 1 ms, the
    /// clock's resolution. `None` for an echo of a timestamp that was not sent within the last
    /// `age_max_us`.
    pub(crate) fn round_trip_us(
        &self,
        now: Instant,
        echo_reply: u32,
        age_max_us: u64,
    ) -> Option<u64> {
        if !self.negotiated {
            return None;
        }
        let elapsed_ms = self.value(now).wrapping_sub(echo_reply);
        // The NIC stack may have rounded the departure up into the next tick: then it is -1.
        let elapsed_ms = if elapsed_ms == u32::MAX {
            1
        } else {
            elapsed_ms.max(1)
        };
        let elapsed_us = u64::from(elapsed_ms) * 1000;
        (elapsed_us <= age_max_us.saturating_add(1000)).then_some(elapsed_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(value: u32) -> Option<tcp::Timestamps> {
        Some(tcp::Timestamps {
            value,
            echo_reply: 0,
        })
    }

    fn at_ms(ms: u64) -> Instant {
        Instant::from_us(ms * 1000)
    }

    /// Covers: RFC 7323 §5.3 (R1)
    #[test]
    fn older_values_are_refused_also_across_the_wrap() {
        let mut timestamps = Timestamps::new(0);
        timestamps.negotiate(at_ms(0), u32::MAX);
        assert_eq!(
            timestamps.check(at_ms(1), option(u32::MAX)),
            Verdict::Accept
        );
        assert_eq!(
            timestamps.check(at_ms(1), option(u32::MAX - 1)),
            Verdict::Old
        );
        assert_eq!(timestamps.check(at_ms(1), option(3)), Verdict::Accept);
        assert_eq!(timestamps.check(at_ms(1), None), Verdict::Missing);
    }

    /// Covers: RFC 7323 §5.5
    #[test]
    fn a_recent_value_of_24_days_ago_means_nothing() {
        let mut timestamps = Timestamps::new(0);
        timestamps.negotiate(at_ms(0), 1000);
        let days = 24 * 3600 * 1000;
        assert_eq!(
            timestamps.check(at_ms(24 * days - 1), option(1)),
            Verdict::Old
        );
        assert_eq!(
            timestamps.check(at_ms(24 * days), option(1)),
            Verdict::Accept
        );
    }

    /// Covers: RFC 7323 §3.2
    #[test]
    fn without_agreement_nothing_is_sent_checked_or_measured() {
        let timestamps = Timestamps::new(5);
        assert_eq!(timestamps.option(at_ms(1)), None);
        assert_eq!(timestamps.check(at_ms(1), None), Verdict::Accept);
        assert_eq!(timestamps.round_trip_us(at_ms(9), 5, u64::MAX), None);
    }

    #[test]
    fn round_trips_that_cannot_be_are_not_believed() {
        let mut timestamps = Timestamps::new(u32::MAX - 10);
        timestamps.negotiate(at_ms(0), 0);
        let sent = timestamps.value(at_ms(5));
        let lifetime = 1_000_000;
        assert_eq!(
            timestamps.round_trip_us(at_ms(25), sent, lifetime),
            Some(20_000)
        );
        assert_eq!(
            timestamps.round_trip_us(at_ms(5), sent, lifetime),
            Some(1_000)
        );
        assert_eq!(
            timestamps.round_trip_us(at_ms(4), sent, lifetime),
            Some(1_000)
        );
        assert_eq!(timestamps.round_trip_us(at_ms(3), sent, lifetime), None);
        assert_eq!(
            timestamps.round_trip_us(at_ms(1006), sent, lifetime),
            Some(1_001_000)
        );
        assert_eq!(timestamps.round_trip_us(at_ms(1007), sent, lifetime), None);
    }
}
