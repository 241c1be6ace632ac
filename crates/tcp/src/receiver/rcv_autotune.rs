//! Size of the receive buffer: dynamic right-sizing (Fisk and Feng, 2001).
//!
//! A peer that is held up by our window sends one window in each round trip. So if the application
//! has read nearly a whole buffer within one, the buffer may limit the rate, and becomes twice the
//! bytes read: the peer's congestion window may double in a round trip. An application that does
//! not read gets no larger buffer, and a peer that sends little neither.

use std::time::Duration;

use crate::time::Instant;

/// The current round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AutoTune {
    since: Instant,
    /// Bytes that the application had read at its beginning.
    read: u64,
}

impl AutoTune {
    /// Records arrived text. `read`: bytes that the application has read so far. Returns the size
    /// that the buffer should have, if that is more than `buffer_bytes`.
    pub(crate) fn on_text(
        &mut self,
        now: Instant,
        read: u64,
        srtt: Option<Duration>,
        buffer_bytes: usize,
    ) -> Option<usize> {
        if now.since(self.since) < srtt? {
            return None;
        }
        let taken = read - self.read;
        *self = AutoTune { since: now, read };
        let wanted = usize::try_from(taken.saturating_mul(2)).unwrap_or(usize::MAX);
        (wanted > buffer_bytes).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Option<Duration> = Some(Duration::from_millis(10));

    fn at_ms(ms: u64) -> Instant {
        Instant::from_us(ms * 1000)
    }

    #[test]
    fn a_buffer_read_in_a_round_trip_doubles() {
        let mut tune = AutoTune::default();
        assert_eq!(tune.on_text(at_ms(1000), 0, RTT, 1000), None);
        assert_eq!(tune.on_text(at_ms(1009), 900, RTT, 1000), None);
        assert_eq!(tune.on_text(at_ms(1010), 900, RTT, 1000), Some(1800));
    }

    #[test]
    fn a_slow_reader_a_slow_peer_and_an_unknown_path_change_nothing() {
        let mut tune = AutoTune::default();
        assert_eq!(tune.on_text(at_ms(1000), 0, RTT, 1000), None);
        assert_eq!(tune.on_text(at_ms(1010), 500, RTT, 1000), None);
        assert_eq!(tune.on_text(at_ms(1020), 900, RTT, 1000), None);
        assert_eq!(tune.on_text(at_ms(2000), 9000, None, 1000), None);
    }
}
