//! Round-trip time and what RTO follows from it (RFC 6298 §2).

use std::time::Duration;

/// Smoothed round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// SRTT and RTTVAR, in microseconds; `None` before the first measurement.
    smoothed_us: Option<(u64, u64)>,
}

/// An hour is longer than any round trip, and keeps what follows from overflowing.
fn bounded_us(sample: Duration) -> u64 {
    sample.min(Duration::from_secs(3600)).as_micros() as u64
}

impl Rtt {
    /// RFC 6298 §2.2, §2.3, with alpha = 1/8 and beta = 1/4.
    pub(crate) fn on_sample(&mut self, sample: Duration) {
        let sample = bounded_us(sample);
        self.smoothed_us = Some(match self.smoothed_us {
            None => (sample, sample / 2),
            Some((srtt, rttvar)) => {
                let error = srtt.abs_diff(sample);
                ((srtt * 7 + sample) / 8, (rttvar * 3 + error) / 4)
            }
        });
    }

    /// RFC 4015 §3.3: a timeout was spurious, and this is how long the round trip took in fact.
    pub(crate) fn on_spurious_timeout(&mut self, sample: Duration) {
        let sample = bounded_us(sample);
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

    /// RFC 6298 §2.3: `SRTT + max(G, K*RTTVAR)`. In place of the clock's granularity `G` stands `rto_min`:
    /// when RTTVAR has become small, a delayed acknowledgment must not look like a loss.
    pub(crate) fn rto(&self, rto_initial: Duration, rto_min: Duration) -> Duration {
        match self.smoothed_us {
            None => rto_initial,
            Some((srtt, rttvar)) => {
                Duration::from_micros(srtt) + rto_min.max(Duration::from_micros(rttvar * 4))
            }
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
        assert_eq!(rtt.rto(1000 * MS, 200 * MS), 1000 * MS);
        rtt.on_sample(400 * MS);
        assert_eq!(rtt.srtt(), Some(400 * MS));
        assert_eq!(rtt.rto(1000 * MS, 200 * MS), (400 + 4 * 200) * MS);
        rtt.on_sample(480 * MS);
        assert_eq!(rtt.srtt(), Some(410 * MS));
        assert_eq!(rtt.rto(1000 * MS, 200 * MS), (410 + 4 * 170) * MS);
    }

    #[test]
    fn a_steady_round_trip_leaves_the_minimum_above_it() {
        let mut rtt = Rtt::default();
        for _ in 0..100 {
            rtt.on_sample(30 * MS);
        }
        assert_eq!(rtt.rto(1000 * MS, 200 * MS), 230 * MS);
    }
}
