//! Round-trip time and the RTO computed from it (RFC 6298 §2).

use std::time::Duration;

use crate::time::whole_us;

/// Longest round trip that is used, an hour, in microseconds: derived values may be added and
/// multiplied.
const SAMPLE_US_MAX: u64 = 3600 * 1_000_000;

/// Smoothed round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// SRTT and RTTVAR, in microseconds; `None` before the first measurement.
    smoothed_us: Option<(u64, u64)>,
}

impl Rtt {
    /// RFC 6298 §2.2, §2.3, with alpha = 1/8 and beta = 1/4.
    pub(crate) fn on_sample(&mut self, sample_us: u64) {
        let sample = sample_us.min(SAMPLE_US_MAX);
        self.smoothed_us = Some(match self.smoothed_us {
            None => (sample, sample / 2),
            Some((srtt, rttvar)) => {
                let error = srtt.abs_diff(sample);
                ((srtt * 7 + sample) / 8, (rttvar * 3 + error) / 4)
            }
        });
    }

    /// Continues the estimates of another connection, in microseconds.
    pub(crate) fn resume(&mut self, srtt_us: u64, rttvar_us: u64) {
        self.smoothed_us = Some((srtt_us.min(SAMPLE_US_MAX), rttvar_us.min(SAMPLE_US_MAX)));
    }

    /// RFC 4015 §3.3: a timeout was spurious, and `sample` is the actual round-trip time.
    pub(crate) fn on_spurious_timeout(&mut self, sample: Duration) {
        let sample = whole_us(sample).min(SAMPLE_US_MAX);
        self.smoothed_us = self
            .smoothed_us
            .map(|(srtt, rttvar)| (srtt.max(sample), rttvar.max(sample / 2)));
    }

    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.srtt_us().map(Duration::from_micros)
    }

    /// In microseconds.
    pub(crate) fn srtt_us(&self) -> Option<u64> {
        self.smoothed_us.map(|(srtt, _)| srtt)
    }

    /// In microseconds.
    pub(crate) fn rttvar_us(&self) -> Option<u64> {
        self.smoothed_us.map(|(_, rttvar)| rttvar)
    }

    /// RFC 6298 §2.3: `SRTT + max(G, K*RTTVAR)`. In place of the clock's granularity `G` stands
    /// `rto_min`: when RTTVAR has become small, a delayed acknowledgment must not look like a loss.
    pub(crate) fn rto_us(&self, rto_initial: Duration, rto_min: Duration) -> u64 {
        match self.smoothed_us {
            None => whole_us(rto_initial),
            Some((srtt, rttvar)) => srtt.saturating_add(whole_us(rto_min).max(rttvar * 4)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Covers: RFC 6298 §2.2, RFC 6298 §2.3
    #[test]
    fn first_sample_sets_and_later_ones_smooth() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.rto_us(1000 * MS, 200 * MS), 1_000_000);
        rtt.on_sample(400_000);
        assert_eq!(rtt.srtt(), Some(400 * MS));
        assert_eq!(rtt.rto_us(1000 * MS, 200 * MS), 400_000 + 4 * 200_000);
        rtt.on_sample(480_000);
        assert_eq!(rtt.srtt(), Some(410 * MS));
        assert_eq!(rtt.rto_us(1000 * MS, 200 * MS), 410_000 + 4 * 170_000);
    }

    #[test]
    fn a_steady_round_trip_leaves_the_minimum_above_it() {
        let mut rtt = Rtt::default();
        for _ in 0..100 {
            rtt.on_sample(30_000);
        }
        assert_eq!(rtt.rto_us(1000 * MS, 200 * MS), 230_000);
    }
}
