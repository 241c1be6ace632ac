//! What a client may have a connection do for nothing: token buckets, and a bound.

use std::time::Duration;

use tcp::Instant;

/// Moves to another address, and short challenges from one. Source addresses can be forged, by a
/// client as well. A packet from another address moves the connection there (RFC 9000 §9.3), and a
/// PATH_CHALLENGE is answered there (§8.2.2): with datagrams of at least 1,200 bytes, for a packet
/// that may have 30. Each move also begins with a congestion window of its own.
pub(super) const MOVES: Allowance = Allowance::new(16, Duration::from_secs(1));

/// Datagrams with a PATH_CHALLENGE have at least so many bytes (RFC 9000 §8.2.1). The answer is as
/// long, so it costs nothing.
pub(super) const CHALLENGE_BYTES_MIN: usize = 1200;

/// Connection IDs issued, one for each that the client retires: quinn-proto queues any number of
/// them if the client acknowledges none.
pub(super) const IDS: Allowance = Allowance::new(64, Duration::from_secs(1));

/// STREAM frames with less than [`FRAGMENT_BYTES`], beyond those that the application has read, and
/// CRYPTO frames: quinn-proto keeps the packet of each, up to 2,048 of a stream, and copies what it
/// has of a stream for every few packets.
pub(super) const FRAGMENTS: Allowance = Allowance::new(4096, Duration::from_millis(4));

/// CONNECTION_CLOSE, which answers packets that arrive in the closing state (RFC 9000 §10.2.1).
pub(super) const CLOSES: Allowance = Allowance::new(8, Duration::from_millis(10));

/// quinn-proto bounds what it keeps of longer ones: 32 KiB of a stream beyond its data.
pub(crate) const FRAGMENT_BYTES: usize = 256;

/// Packets that only acknowledge, kept because the client acknowledges nothing: 200 bytes each.
/// quinn-proto has a bound on those since its last other packet alone.
pub(super) const KEPT_ACKS_MAX: u32 = 8192;

/// So many at once, and one more after each interval.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    most: u32,
    left: u32,
    interval_us: u32,
    /// When the last interval began.
    counted: Instant,
}

impl Allowance {
    pub(super) const fn new(most: u32, interval: Duration) -> Self {
        Self {
            most,
            left: most,
            interval_us: interval.as_micros() as u32,
            counted: Instant::from_us(0),
        }
    }

    /// How many are left.
    pub(super) fn left(&mut self, now: Instant) -> u32 {
        let elapsed = now.since(self.counted).as_micros();
        let intervals = elapsed / u128::from(self.interval_us);
        match u32::try_from(intervals) {
            Ok(intervals) if intervals < self.most - self.left => {
                self.left += intervals;
                let elapsed_us = u64::from(self.interval_us) * u64::from(intervals);
                self.counted = self.counted + Duration::from_micros(elapsed_us);
            }
            _ => (self.left, self.counted) = (self.most, now),
        }
        self.left
    }

    pub(super) fn take(&mut self, count: u32) {
        self.left = self.left.saturating_sub(count);
    }

    /// One was not for nothing.
    pub(super) fn give_back(&mut self) {
        self.left = self.left.saturating_add(1).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_then_one_each_interval() {
        let mut moves = MOVES;
        let mut allowed = |now_us| {
            let left = moves.left(Instant::from_us(now_us));
            moves.take(left);
            left
        };
        assert_eq!(allowed(5_500_000), 16);
        assert_eq!(allowed(6_499_999), 0);
        assert_eq!(allowed(6_500_000), 1);
        assert_eq!(allowed(9_000_000), 2);
        assert_eq!(allowed(9_500_000), 1);
        assert_eq!(allowed(3_600_000_000), 16);
        moves.give_back();
        assert_eq!(moves.left(Instant::from_us(3_600_000_000)), 1);
    }
}
