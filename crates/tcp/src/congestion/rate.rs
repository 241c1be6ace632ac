//! Delivery rate estimation (draft-ietf-ccwg-bbr, "Delivery Rate Samples"): how fast the network
//! delivers, measured over about a round trip.
//!
//! Time of sending is the departure from the NIC stack: data that waits there is not in the
//! network.

use crate::time::Instant;

/// State of the estimator at a transmission's departure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// `P.delivered`, in bytes.
    pub(crate) delivered: u64,
    /// `P.delivered_time`
    pub(crate) delivered_at: Instant,
    /// `P.first_send_time`
    pub(crate) first_departed_at: Instant,
    /// `P.lost`, in bytes.
    pub(crate) lost: u64,
    /// `P.tx_in_flight`, in bytes, the transmission itself included.
    pub(crate) flight: u64,
    /// `P.is_app_limited`
    pub(crate) app_limited: bool,
}

/// Delivery rate measured by an acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// `RS.delivered`: bytes delivered over the interval.
    pub(crate) delivered: u64,
    /// `RS.lost`: bytes found lost over the interval.
    pub(crate) lost: u64,
    /// `RS.interval` in microseconds, never zero.
    pub(crate) interval_us: u64,
    /// `RS.prior_delivered`: bytes delivered before the departure of the newest transmission
    /// acknowledged.
    pub(crate) prior_delivered: u64,
    /// `RS.tx_in_flight`: bytes in flight at that departure.
    pub(crate) flight: u64,
    /// `RS.is_app_limited`: the sender had nothing to send then; the network may be faster than
    /// this.
    pub(crate) app_limited: bool,
}

impl RateSample {
    /// `RS.delivery_rate`, in bytes per second.
    pub(crate) fn bytes_per_second(&self) -> u64 {
        let per_second = u128::from(self.delivered) * 1_000_000 / u128::from(self.interval_us);
        u64::try_from(per_second).unwrap_or(u64::MAX)
    }
}

/// The estimator of a connection: `C` of the draft.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryRate {
    /// The algorithm does not use samples: none is taken.
    unused: bool,
    /// `C.delivered`, in bytes.
    delivered: u64,
    delivered_at: Instant,
    first_departed_at: Instant,
    lost: u64,
    /// Part of `lost` that was not reported to congestion control.
    newly_lost: u64,
    /// `C.app_limited`: the sender had nothing to send until more than this is delivered. 0: not
    /// lately.
    app_limited_until: u64,
    /// The newest transmission that the current acknowledgment delivers, and its departure.
    newest: Option<(Snapshot, Instant)>,
}

impl DeliveryRate {
    /// Returns a new estimator. `used`: samples are wanted.
    pub(crate) fn new(used: bool) -> DeliveryRate {
        DeliveryRate {
            unused: !used,
            ..DeliveryRate::default()
        }
    }

    /// Sets whether samples are wanted. When use begins, data that departed before gives lower
    /// samples.
    pub(crate) fn set_used(&mut self, used: bool) {
        self.unused = !used;
        self.newest = None;
    }

    /// Records a departure. `flight`: bytes in flight, the transmission included; `alone`: nothing
    /// else is in flight.
    pub(crate) fn on_departed(&mut self, at: Instant, flight: u64, alone: bool) -> Snapshot {
        if alone {
            self.first_departed_at = at;
            self.delivered_at = at;
        }
        Snapshot {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_departed_at: self.first_departed_at,
            lost: self.lost,
            flight,
            app_limited: self.app_limited_until != 0,
        }
    }

    /// Records that there is nothing to send although the windows are open. `flight`: bytes in
    /// flight.
    pub(crate) fn on_app_limited(&mut self, flight: u64) {
        self.app_limited_until = (self.delivered + flight).max(1);
    }

    /// Records newly lost bytes.
    pub(crate) fn on_lost(&mut self, bytes: u64) {
        self.lost += bytes;
        self.newly_lost += bytes;
    }

    /// Takes `RS.newly_lost`, in bytes: found lost by an acknowledgment, or by a timer since the
    /// previous acknowledgment.
    pub(crate) fn take_newly_lost(&mut self) -> u64 {
        std::mem::take(&mut self.newly_lost)
    }

    /// Records the delivery of `bytes` of a transmission. `departed`: its snapshot and departure;
    /// `None` if the departure was not reported.
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        bytes: u64,
        departed: Option<(Snapshot, Instant)>,
    ) {
        self.delivered += bytes;
        self.delivered_at = now;
        if !self.unused
            && let Some((snapshot, at)) = departed
            && self.newest.is_none_or(|(newest, newest_at)| {
                (snapshot.delivered, at) >= (newest.delivered, newest_at)
            })
        {
            self.newest = Some((snapshot, at));
        }
    }

    /// Returns the sample of an acknowledgment, once all its deliveries are recorded. `min_rtt_us`:
    /// the shortest round-trip time seen; a shorter interval is invalid.
    #[inline]
    pub(crate) fn sample(&mut self, now: Instant, min_rtt_us: Option<u64>) -> Option<RateSample> {
        if self.unused {
            return None;
        }
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        let (snapshot, departed_at) = self.newest.take()?;
        let send_elapsed_us = departed_at.us_since(snapshot.first_departed_at);
        let ack_elapsed_us = now.us_since(snapshot.delivered_at);
        self.first_departed_at = departed_at;
        // The slower phase counts: neither a burst of sending nor one of ACKs makes the network
        // faster.
        let interval_us = send_elapsed_us.max(ack_elapsed_us);
        if interval_us == 0 || min_rtt_us.is_some_and(|min_rtt_us| interval_us < min_rtt_us) {
            return None;
        }
        Some(RateSample {
            delivered: self.delivered - snapshot.delivered,
            lost: self.lost - snapshot.lost,
            interval_us,
            prior_delivered: snapshot.delivered,
            flight: snapshot.flight,
            app_limited: snapshot.app_limited,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_us(ms * 1000)
    }

    /// Covers: draft-ietf-ccwg-bbr §4.1
    #[test]
    fn the_rate_is_what_was_delivered_over_a_round_trip() {
        let mut rate = DeliveryRate::default();
        let first = rate.on_departed(at(0), 1000, true);
        let second = rate.on_departed(at(10), 2000, false);
        rate.on_delivered(at(100), 1000, Some((first, at(0))));
        let sample = rate.sample(at(100), None).expect("a sample");
        assert_eq!(
            (sample.delivered, sample.bytes_per_second()),
            (1000, 10_000)
        );
        rate.on_delivered(at(110), 1000, Some((second, at(10))));
        let sample = rate.sample(at(110), None).expect("a sample");
        assert_eq!((sample.delivered, sample.interval_us), (2000, 110_000));
        assert_eq!(rate.delivered, 2000);
    }

    #[test]
    fn a_burst_of_acknowledgments_does_not_make_the_network_faster() {
        let mut rate = DeliveryRate::default();
        let first = rate.on_departed(at(0), 1000, true);
        let late = rate.on_departed(at(500), 2000, false);
        rate.on_delivered(at(501), 1000, Some((first, at(0))));
        rate.on_delivered(at(501), 1000, Some((late, at(500))));
        let sample = rate.sample(at(501), None).expect("a sample");
        assert!(sample.interval_us >= 500_000);
    }

    #[test]
    fn an_interval_below_the_shortest_round_trip_says_nothing() {
        let mut rate = DeliveryRate::default();
        let first = rate.on_departed(at(0), 1000, true);
        rate.on_delivered(at(5), 1000, Some((first, at(0))));
        assert_eq!(rate.sample(at(5), Some(6_000)), None);
    }

    /// Covers: draft-ietf-ccwg-bbr §4.1
    #[test]
    fn samples_are_marked_while_the_sender_had_nothing_to_send() {
        let mut rate = DeliveryRate::default();
        rate.on_app_limited(1000);
        let first = rate.on_departed(at(0), 1000, true);
        rate.on_delivered(at(10), 1000, Some((first, at(0))));
        assert!(rate.sample(at(10), None).expect("a sample").app_limited);
        let second = rate.on_departed(at(10), 1000, true);
        rate.on_delivered(at(20), 1000, Some((second, at(10))));
        assert!(rate.sample(at(20), None).expect("a sample").app_limited);
        let third = rate.on_departed(at(20), 1000, true);
        rate.on_delivered(at(30), 1000, Some((third, at(20))));
        assert!(!rate.sample(at(30), None).expect("a sample").app_limited);
    }

    #[test]
    fn what_was_not_reported_as_departed_counts_as_delivered_but_measures_nothing() {
        let mut rate = DeliveryRate::default();
        rate.on_delivered(at(10), 700, None);
        assert_eq!(rate.sample(at(10), None), None);
        assert_eq!(rate.delivered, 700);
    }

    /// Covers: draft-ietf-ccwg-bbr §5.5.10.2
    #[test]
    fn what_is_lost_counts_once_and_stays_in_the_sample() {
        let mut rate = DeliveryRate::default();
        let first = rate.on_departed(at(0), 3000, true);
        rate.on_lost(1000);
        rate.on_lost(500);
        assert_eq!((rate.take_newly_lost(), rate.take_newly_lost()), (1500, 0));
        rate.on_delivered(at(10), 1000, Some((first, at(0))));
        assert_eq!(rate.sample(at(10), None).expect("a sample").lost, 1500);
    }
}
