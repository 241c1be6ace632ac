//! Rate limit of replies without a connection: a token bucket.
//!
//! An echo reply or a reset costs a packet for a packet, and goes to an address that may be forged:
//! without a limit, a flood costs the host twice, and a third party receives the answers (RFC 4443
//! §2.4 (f), RFC 5961 §10).

/// Allows `rate` answers per second, and as many at once after a second of silence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimit {
    per_second: u32,
    /// Answers that may leave at once, in millionths.
    tokens: u64,
    counted_us: u64,
}

const TOKEN: u64 = 1_000_000;

impl ReplyLimit {
    /// A full bucket at `now_us`, in microseconds.
    pub(crate) fn new(per_second: u32, now_us: u64) -> ReplyLimit {
        ReplyLimit {
            per_second,
            tokens: u64::from(per_second) * TOKEN,
            counted_us: now_us,
        }
    }

    /// Sets the rate; tokens beyond a second's worth are dropped at the next reply.
    pub(crate) fn set_rate(&mut self, per_second: u32) {
        self.per_second = per_second;
    }

    /// True, and counted, if an answer may leave now.
    pub(crate) fn allows(&mut self, now_us: u64) -> bool {
        let elapsed_us = now_us.saturating_sub(self.counted_us).min(TOKEN);
        self.counted_us = now_us;
        let full = u64::from(self.per_second) * TOKEN;
        self.tokens = (self.tokens + elapsed_us * u64::from(self.per_second)).min(full);
        let allowed = self.tokens >= TOKEN;
        if allowed {
            self.tokens -= TOKEN;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_a_second_and_then_the_rate() {
        let mut limit = ReplyLimit::new(100, 5_000_000);
        let mut allowed = |now_us| (0..1000).filter(|_| limit.allows(now_us)).count();
        assert_eq!(allowed(5_000_000), 100);
        assert_eq!(allowed(5_009_999), 0);
        assert_eq!(allowed(5_010_000), 1);
        assert_eq!(allowed(5_500_000), 49);
        assert_eq!(allowed(3_600_000_000), 100);
    }

    #[test]
    fn another_rate_holds_at_once() {
        let mut limit = ReplyLimit::new(1000, 0);
        limit.set_rate(10);
        let allowed =
            |limit: &mut ReplyLimit, now_us| (0..5000).filter(|_| limit.allows(now_us)).count();
        assert_eq!(allowed(&mut limit, 0), 10);
        limit.set_rate(2000);
        assert_eq!(allowed(&mut limit, 1_000_000), 2000);
    }

    #[test]
    fn small_steps_add_up() {
        let mut limit = ReplyLimit::new(7, 0);
        let allowed = (0..10_000_000u64)
            .step_by(13)
            .filter(|&us| limit.allows(us))
            .count();
        assert_eq!(allowed, 7 + 69);
    }
}
