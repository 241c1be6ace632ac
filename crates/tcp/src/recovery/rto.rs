//! The retransmission timeout and its backoff (RFC 6298 §5).

use std::time::Duration;

use crate::config::Config;
use crate::recovery::rtt::Rtt;
use crate::retry_limit::RetryLimit;
use crate::time::{Instant, whole_us};

/// RFC 6298 §5.7: the RTO for data when a SYN had to be retransmitted and nothing was measured.
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// Least RTO for any configuration: a timer does not fire at once.
const RTO_FLOOR_US: u64 = 1_000;

/// Timeouts since the peer's last answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rto {
    /// Number of times the RTO has been doubled. Survives acknowledgments of retransmitted data,
    /// which give no round-trip time (Karn's algorithm).
    backoff: u32,
    /// Timeouts without progress.
    retry_limit: RetryLimit,
    handshake_lost: bool,
}

impl Rto {
    /// Returns the timeout that applies now, in microseconds.
    pub(crate) fn current_us(&self, config: &Config, rtt: &Rtt) -> u64 {
        let initial = if self.handshake_lost {
            RTO_AFTER_LOST_SYN
        } else {
            config.rto_initial
        };
        let us = rtt.rto_us(initial, config.rto_min);
        // RFC 6298 §5.5: back off the timer; a maximum may bound it.
        let us = us.saturating_mul(1 << self.backoff.min(20));
        us.min(whole_us(config.rto_max)).max(RTO_FLOOR_US)
    }

    /// Returns the number of times the RTO has been doubled.
    pub(crate) fn backoff(&self) -> u8 {
        u8::try_from(self.backoff).unwrap_or(u8::MAX)
    }

    /// Continues the backoff of another connection.
    pub(crate) fn resume(&mut self, backoff: u8) {
        self.backoff = backoff.into();
    }

    /// Records a timeout. Returns false if it is time to give up.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        retries: u8,
        user_timeout: Option<Duration>,
    ) -> bool {
        self.backoff = self.backoff.saturating_add(1);
        self.retry_limit.on_silence(now, retries, user_timeout)
    }

    /// Returns when the user timeout ends the connection, if a timeout has passed without progress.
    pub(crate) fn deadline(&self, user_timeout: Option<Duration>) -> Option<Instant> {
        self.retry_limit.deadline(user_timeout)
    }

    /// Returns the number of timeouts without progress so far.
    pub(crate) fn timeouts(&self) -> u16 {
        self.retry_limit.attempts()
    }

    /// Records an acknowledgment of new data, or another sign that the peer is alive.
    pub(crate) fn on_progress(&mut self) {
        self.retry_limit.on_answer();
    }

    /// Ends the backoff after a measured round trip: the RTO is computed again (RFC 6298 §5.7).
    pub(crate) fn on_sample(&mut self) {
        self.backoff = 0;
    }

    /// Records the end of the handshake; `lost` if it took a retransmission and no round trip is
    /// known.
    pub(crate) fn on_established(&mut self, lost: bool) {
        self.handshake_lost = lost;
        self.backoff = 0;
        self.retry_limit.on_answer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 6298 §2.5, RFC 6298 §5.5
    #[test]
    fn backoff_doubles_up_to_the_maximum_and_a_sample_ends_it() {
        let config = Config::default();
        let rtt = Rtt::default();
        let mut rto = Rto::default();
        let mut seconds = Vec::new();
        for _ in 0..8 {
            seconds.push(rto.current_us(&config, &rtt) / 1_000_000);
            assert!(rto.on_timeout(Instant::from_us(1), 15, None));
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        rto.on_progress();
        assert_eq!(rto.current_us(&config, &rtt), 60_000_000);
        rto.on_sample();
        assert_eq!(rto.current_us(&config, &rtt), 1_000_000);
    }

    /// Covers: RFC 6298 §2.5, RFC 4015 §3.3
    #[test]
    fn no_round_trip_however_long_lifts_it_above_the_maximum() {
        let config = Config::default();
        let mut rtt = Rtt::default();
        let rto = Rto::default();
        rtt.on_sample(10_000);
        rtt.on_spurious_timeout(Duration::from_secs(10));
        assert_eq!(rto.current_us(&config, &rtt), 30_000_000);
        rtt.on_spurious_timeout(Duration::from_secs(1000));
        assert_eq!(rto.current_us(&config, &rtt), whole_us(config.rto_max));
        rtt.on_spurious_timeout(Duration::MAX);
        assert_eq!(rto.current_us(&config, &rtt), whole_us(config.rto_max));
    }

    /// Covers: RFC 6298 §5.7
    #[test]
    fn a_lost_syn_makes_the_first_data_wait_longer() {
        let mut rto = Rto::default();
        rto.on_established(true);
        assert_eq!(
            rto.current_us(&Config::default(), &Rtt::default()),
            3_000_000
        );
    }
}
