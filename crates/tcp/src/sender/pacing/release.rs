//! Amount and time of the transmissions that pacing lets a connection issue.

use std::time::Duration;

use super::{Pacing, QUANTUM, duration_of, quantum};
use crate::config::Limits;
use crate::congestion::initial_window;
use crate::connection::Connection;
use crate::sender::data::Data;
use crate::time::Instant;
use crate::timer::Timer;

/// Time before departure at which transmissions are issued, or the duration of one transmission, if
/// within these bounds; an issued transmission is final.
const HORIZON_MIN: Duration = Duration::from_millis(2);
const HORIZON_MAX: Duration = Duration::from_millis(10);

/// Bytes of a transmission without pacing on any path, or, if that is more, those that leave in a
/// [`QUANTUM`] at two windows for each round-trip time: on slower paths decisions stay
/// fine-grained.
const UNPACED_BYTES_MIN: u64 = 64 << 10;

/// Pacing rate with [`Config::pace`](crate::Config::pace), in percent of a window for each
/// round-trip time: in slow start so that the window can double, and else so that it can be used
/// up.
const SLOW_START_PERCENT: u64 = 200;
const AVOIDANCE_PERCENT: u64 = 120;

/// No window is paced on a path whose shortest round-trip time is this or less, in microseconds:
/// about all of the window would leave in one [`QUANTUM`].
const WINDOW_PACED_ABOVE_US: u64 = 2 * QUANTUM.as_micros() as u64;

/// Bytes that may leave, and when.
#[derive(Clone, Copy, Debug)]
struct Leave {
    bytes: u64,
    not_before: Option<Instant>,
    rate: Option<u64>,
}

impl Connection {
    /// Bounds the rate at which data leaves, in bytes per second, payload alone; `None` removes the
    /// bound. The pacing of congestion control continues to apply. A higher rate also shortens a
    /// wait that has begun.
    pub fn set_max_pacing_rate(&mut self, rate_max: Option<u64>) {
        self.pacing.rate_max = rate_max.map(|rate| rate.max(1));
        self.update_pacing();
        let Pacing { since, bytes, .. } = self.pacing;
        let rate = self.pacing_rate();
        let next = rate.map_or(since, |rate| since + duration_of(bytes, rate));
        self.pacing.next = self.pacing.next.min(next);
    }

    /// Returns the rate at which data leaves at present, in bytes per second; `None`: as fast as
    /// the windows allow.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.rate_and_burst().map(|(rate, _)| rate)
    }

    /// Returns the rate, and how many bytes may leave at once: as many as the initial window holds
    /// if the rate follows from the window alone (RFC 9002 §7.7). Smaller bursts would cost the NIC
    /// stack more packets to build.
    fn rate_and_burst(&self) -> Option<(u64, u64)> {
        if !self.may_be_paced() {
            return None;
        }
        let rate_max = self.pacing.rate_max;
        if let Some(rate) = self.congestion.pacing_rate() {
            return Some((rate_max.map_or(rate, |rate_max| rate.min(rate_max)), 0));
        }
        match (self.window_rate(), rate_max) {
            (Some(rate), Some(rate_max)) if rate_max < rate => Some((rate_max, 0)),
            (Some(rate), _) => Some((rate, initial_window(self.snd.mss.into(), false))),
            (None, rate_max) => rate_max.map(|rate| (rate, 0)),
        }
    }

    /// Returns true if a rate may be set.
    #[inline]
    pub(crate) fn may_be_paced(&self) -> bool {
        self.is_rate_set || self.is_window_paced()
    }

    /// Recomputes whether the application or congestion control sets a rate.
    pub(crate) fn update_pacing(&mut self) {
        self.is_rate_set = self.pacing.rate_max.is_some() || self.config.congestion.paces();
    }

    /// Returns true if the window is paced. Before the first measurement, the path may be long.
    #[inline]
    fn is_window_paced(&self) -> bool {
        self.config.pace && self.min_rtt.is_above(WINDOW_PACED_ABOVE_US)
    }

    fn window_rate(&self) -> Option<u64> {
        let srtt_us = self.rtt.srtt_us()?;
        if !self.is_window_paced() || srtt_us <= WINDOW_PACED_ABOVE_US {
            return None;
        }
        let window = self.congestion.window();
        let percent = if window < self.congestion.ssthresh() {
            SLOW_START_PERCENT
        } else {
            AVOIDANCE_PERCENT
        };
        let rate = u128::from(window) * u128::from(percent) * 10_000 / u128::from(srtt_us);
        u64::try_from(rate).ok()
    }

    /// Returns void, lost or new data, as far as pacing lets it.
    pub(crate) fn poll_paced(
        &mut self,
        now: Instant,
        limits: &Limits,
        probe: bool,
    ) -> Option<Data> {
        // Void data counts as in flight already: the window does not concern it. RFC 6928 §2: an
        // initial window of data. A SYN in flight does not count against it.
        let syn = u64::from(self.snd.una == 0);
        let (packet_mss, cwnd) = (self.packet_mss(now), self.cwnd() + syn);
        if !probe && !self.sent.has_void() && self.is_window_used_up(packet_mss, cwnd) {
            return None;
        }
        let Some(leave) = self.leave(now) else {
            self.note_app_limited(cwnd);
            return None;
        };
        let bytes_max = usize::try_from(leave.bytes)
            .map_or(limits.bytes_max, |bytes| bytes.min(limits.bytes_max));
        let mut limits = Limits {
            bytes_max,
            ..*limits
        };
        if leave.not_before.is_some() {
            limits.direct_bytes_max = 0;
        }
        let Some(mut data) = self
            .poll_void(now, &limits)
            .or_else(|| self.poll_lost(now, &limits))
            .or_else(|| self.poll_new(now, &limits, probe, packet_mss, cwnd))
        else {
            self.recovery.on_answered();
            return None;
        };
        if let Some(rate) = leave.rate {
            self.pacing
                .occupy(leave.not_before.unwrap_or(now), data.len, rate);
            data.not_before = leave.not_before;
        }
        Some(data)
    }

    /// Accounts for a tail loss probe, which does not wait: later transmissions do.
    pub(crate) fn pace_probe(&mut self, now: Instant, bytes: u64) {
        if let Some(rate) = self.pacing_rate() {
            self.pacing.occupy(self.pacing.next.max(now), bytes, rate);
        }
    }

    /// Issued data is still to leave. If no more is queued, the application limits the rate
    /// (draft-ietf-ccwg-bbr §4.1.2.4), though pacing holds back the last transmission.
    #[cold]
    fn note_app_limited(&mut self, cwnd: u64) {
        let flight = self.sent.flight();
        if !self.has_unsent() && flight < cwnd {
            self.rate.on_app_limited(flight);
        }
    }

    /// Returns the next release. `None`: nothing may be issued yet; a timer is armed.
    fn leave(&mut self, now: Instant) -> Option<Leave> {
        let Some((rate, burst)) = self.rate_and_burst() else {
            return Some(Leave {
                bytes: self.unpaced_bytes(self.congestion.window()),
                not_before: None,
                rate: None,
            });
        };
        let bytes = quantum(rate, u64::from(self.snd.mss)).max(burst);
        let burst_room = burst.saturating_sub(self.sent.flight());
        if burst_room > 0 {
            return Some(Leave {
                bytes: burst_room.max(bytes),
                not_before: None,
                rate: Some(rate),
            });
        }
        let next = self.pacing.next;
        let horizon = duration_of(bytes, rate).clamp(HORIZON_MIN, HORIZON_MAX);
        if next > now + horizon {
            if self.has_unsent() {
                let us = next.since(Instant::default() + horizon).as_micros() as u64;
                self.timers.arm(Timer::Pace, Instant::from_us(us));
            }
            return None;
        }
        Some(Leave {
            bytes,
            not_before: (next > now).then_some(next),
            rate: Some(rate),
        })
    }

    /// Returns true if there is data to issue, if the windows let it.
    fn has_unsent(&self) -> bool {
        self.snd.nxt < self.fin_position() + u64::from(self.fin_queued)
            || self.sent.lost() > 0
            || self.sent.has_void()
    }

    /// Returns how many bytes go at once without pacing, with this congestion window.
    pub(crate) fn unpaced_bytes(&self, window: u64) -> u64 {
        let Some(srtt_us) = self.rtt.srtt_us() else {
            return UNPACED_BYTES_MIN;
        };
        let bytes = window.saturating_mul(2 * QUANTUM.as_micros() as u64) / srtt_us.max(1);
        bytes.max(UNPACED_BYTES_MIN)
    }
}
