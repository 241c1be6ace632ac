//! The largest packet that the path carries: reported by ICMP (RFC 1191, RFC 8201), or found
//! without it (RFC 4821, RFC 8899).
//!
//! We begin with the size that the link and the peer allow, and set "don't fragment". A router with
//! a smaller link reports it, and the message is checked before it is believed ([`crate::icmp`]).
//! Many paths swallow it: then segments of full size vanish while everything else works. After
//! timeouts in a row without progress a base size is tried, and once that gets through, the size in
//! between is searched with single segments of real data. The loss of one is no sign of congestion.
//!
//! All sizes are payload bytes of a packet, as [`crate::Transmit::mss`] counts.

use std::ops::Range;
use std::time::Duration;

use crate::time::Instant;

/// Number of timeouts in a row after which full-sized segments are suspected (RFC 4821 §7.7; more
/// than two, since a path that fails does so for longer).
const TIMEOUTS_MAX: u16 = 3;

/// The search ends at this distance: the remaining gain is less than a probe may cost.
const PRECISION_BYTES: u16 = 32;

/// RFC 8201 §4, RFC 8899 §5.1.1 (PMTU_RAISE_TIMER): time for which a size is kept before a larger
/// one is tried.
const RAISE_INTERVAL: Duration = Duration::from_secs(600);

/// A segment in flight, and a size. The size is 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Question {
    start: u64,
    bytes: u16,
}

impl Question {
    fn end(&self) -> u64 {
        self.start + u64::from(self.bytes)
    }

    fn take_if(&mut self, condition: impl FnOnce(&Question) -> bool) -> Option<u16> {
        let taken = self.bytes > 0 && condition(self);
        taken.then(|| std::mem::take(&mut self.bytes))
    }
}

/// State of the search for the path's MTU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pmtu {
    /// Size that link and peer allow.
    ceiling: u16,
    /// The least size known, or taken, to be too large.
    too_large: u16,
    /// The largest size proven by an acknowledged segment.
    proven: u16,
    /// A probe: a segment larger than others.
    probe: Question,
    /// End of a segment of the present size, as long as that is not proven; 0 if there is none.
    full_end: u64,
    /// A probe was lost, and its recovery goes on.
    probe_lost: bool,
    /// A reported size too small to be believed at once, and the position of its segment (RFC 5927
    /// §7.2).
    pending: Question,
    /// When sizes that were too large may be tried again.
    raise_at: Instant,
}

impl Pmtu {
    /// Sets the largest size at the end of the handshake.
    pub(crate) fn on_established(&mut self, ceiling: u16) {
        self.ceiling = ceiling;
        self.too_large = ceiling.saturating_add(1);
    }

    /// Records that `len` bytes from `start` on are sent, in segments of `mss` if they are no
    /// probe.
    pub(crate) fn on_sent(&mut self, start: u64, len: u64, mss: u16) {
        if self.proven < mss && self.full_end == 0 && len >= u64::from(mss) {
            self.full_end = start + u64::from(mss);
        }
    }

    /// Records that positions are about to be sent again, cut by the present size. Their
    /// acknowledgment no longer proves the size of the earlier segments. A probe that was lost
    /// among others is not known to be too large, and is repeated another time (RFC 4821 §7.6.4).
    pub(crate) fn on_sent_again(&mut self, positions: &Range<u64>) {
        let again = |probe: &Question| probe.start < positions.end && positions.start < probe.end();
        self.probe.take_if(again);
        // This drops slightly more than necessary; a later segment replaces it.
        if positions.start < self.full_end {
            self.full_end = 0;
        }
    }

    /// Records that everything before `una` is acknowledged. Returns the new size if this proves a
    /// larger one than `mss`.
    pub(crate) fn on_ack(&mut self, una: u64, mss: u16) -> Option<u16> {
        // The segment that a message quoted has arrived: the message was forged, or is obsolete.
        self.pending.take_if(|pending| pending.start < una);
        if self.full_end > 0 && self.full_end <= una {
            self.full_end = 0;
            self.proven = self.proven.max(mss);
        }
        let bytes = self.probe.take_if(|probe| probe.end() <= una)?;
        self.proven = self.proven.max(bytes);
        (bytes > mss).then_some(bytes)
    }

    /// Records the loss of the segment at `una`. If it is the probe, it was too large.
    pub(crate) fn on_loss(&mut self, una: u64) {
        let is_at = |probe: &Question| probe.start <= una && una < probe.end();
        if let Some(bytes) = self.probe.take_if(is_at) {
            self.too_large = self.too_large.min(bytes);
            self.probe_lost = true;
        }
    }

    /// Ends recovery. Returns true if the only loss was a probe: it was no congestion (RFC 4821
    /// §7.6.2).
    pub(crate) fn on_recovered(&mut self) -> bool {
        std::mem::take(&mut self.probe_lost)
    }

    /// Handles a message that reports `bytes` for the segment at `position`, and is credible
    /// otherwise. Returns the size to use from now on.
    pub(crate) fn on_too_big(
        &mut self,
        now: Instant,
        position: u64,
        bytes: u16,
        mss: u16,
    ) -> Option<u16> {
        if (self.probe.start..self.probe.end()).contains(&position)
            && (mss..self.probe.bytes).contains(&bytes)
        {
            // The answer to the probe. It is sent again when its loss is detected.
            self.too_large = self.too_large.min(bytes.saturating_add(1));
            return None;
        }
        if bytes >= mss {
            return None;
        }
        if bytes < self.proven {
            // RFC 5927 §7.2: larger segments have got through. The path may have changed, or the
            // error is forged: it counts if the segment is not acknowledged in time.
            self.pending = Question {
                start: position,
                bytes,
            };
            return None;
        }
        Some(self.shrink(now, bytes))
    }

    /// Handles a retransmission timeout of the segment at `una`, the `timeouts`th in a row. Returns
    /// the size to use from now on, if it is to be smaller; `bases` are sizes that most paths
    /// carry, largest first.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        una: u64,
        timeouts: u16,
        mss: u16,
        bases: &[u16],
    ) -> Option<u16> {
        self.on_loss(una);
        self.probe_lost = false;
        if let Some(bytes) = self.pending.take_if(|pending| una <= pending.start) {
            return (bytes < mss).then(|| self.shrink(now, bytes));
        }
        if timeouts == 0 || !timeouts.is_multiple_of(TIMEOUTS_MAX) {
            return None;
        }
        let base = bases.iter().copied().find(|&base| base < mss)?;
        let too_large = self.too_large.min(mss);
        let base = self.shrink(now, base);
        // Only the old size is suspect: the sizes in between are to be searched.
        self.too_large = too_large;
        Some(base)
    }

    /// Limits the link to `bytes`.
    pub(crate) fn on_link(&mut self, bytes: u16) {
        self.ceiling = self.ceiling.min(bytes);
        self.too_large = self.too_large.min(bytes.saturating_add(1));
        if bytes < self.proven {
            self.proven = bytes;
            self.full_end = 0;
        }
        self.probe.take_if(|probe| probe.bytes > bytes);
        self.pending.take_if(|pending| pending.bytes >= bytes);
    }

    fn shrink(&mut self, now: Instant, bytes: u16) -> u16 {
        self.too_large = bytes.saturating_add(1);
        self.proven = self.proven.min(bytes);
        self.probe.bytes = 0;
        self.full_end = 0;
        self.pending.bytes = 0;
        self.raise_at = now + RAISE_INTERVAL;
        bytes
    }

    /// Returns the size of a probe that should be sent now, if any: only once the present size is
    /// proven.
    pub(crate) fn wanted(&mut self, now: Instant, mss: u16) -> Option<u16> {
        if mss >= self.ceiling || self.probe.bytes > 0 || self.probe_lost || self.proven < mss {
            return None;
        }
        if self.too_large.saturating_sub(mss) <= PRECISION_BYTES {
            if now < self.raise_at {
                return None;
            }
            self.too_large = self.ceiling.saturating_add(1);
            self.raise_at = now + RAISE_INTERVAL;
        }
        // The largest first, since the path is most often the old one again, or one of an MTU
        // known.
        if self.too_large > self.ceiling {
            Some(self.ceiling)
        } else {
            Some(mss + (self.too_large - mss) / 2)
        }
    }

    /// Records a probe of `bytes` bytes at `start`.
    pub(crate) fn on_mtu_probe(&mut self, start: u64, bytes: u16) {
        self.probe = Question { start, bytes };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_s(s: u64) -> Instant {
        Instant::from_us(s * 1_000_000)
    }

    /// Sends probes into a path that carries `fits`, until the search rests.
    fn search(pmtu: &mut Pmtu, now: Instant, mut mss: u16, fits: u16) -> (u16, u32) {
        let mut probes = 0;
        let mut una = 1;
        pmtu.on_sent(una, mss.into(), mss);
        una += u64::from(mss);
        assert_eq!(pmtu.on_ack(una, mss), None);
        while let Some(bytes) = pmtu.wanted(now, mss) {
            pmtu.on_mtu_probe(una, bytes);
            probes += 1;
            if bytes <= fits {
                una += u64::from(bytes);
                mss = pmtu.on_ack(una, mss).expect("larger");
            } else {
                pmtu.on_loss(una);
                assert!(pmtu.on_recovered());
            }
        }
        (mss, probes)
    }

    #[test]
    fn the_size_is_found_between_the_base_and_what_vanished() {
        for fits in (1228..1448).step_by(7) {
            let mut pmtu = Pmtu::default();
            pmtu.on_established(1448);
            let base = pmtu.on_timeout(at_s(1), 1, TIMEOUTS_MAX, 1448, &[1228, 500]);
            assert_eq!(base, Some(1228));
            let (mss, probes) = search(&mut pmtu, at_s(2), 1228, fits);
            assert!(mss <= fits && mss + PRECISION_BYTES > fits, "{mss} {fits}");
            assert!(probes < 10);
        }
    }

    #[test]
    fn a_probe_that_was_sent_again_for_other_reasons_is_repeated() {
        let mut pmtu = Pmtu::default();
        pmtu.on_established(1448);
        assert_eq!(pmtu.on_too_big(at_s(1), 1, 1000, 1448), Some(1000));
        pmtu.on_sent(1, 1000, 1000);
        assert_eq!(pmtu.on_ack(1001, 1000), None);
        assert_eq!(pmtu.wanted(at_s(602), 1000), Some(1448));
        pmtu.on_mtu_probe(3001, 1448);
        for (again, is_forgotten) in [(2001..3001, false), (4449..5449, false), (4001..5001, true)]
        {
            pmtu.on_sent_again(&again);
            let wanted = pmtu.wanted(at_s(602), 1000);
            assert_eq!(wanted == Some(1448), is_forgotten, "{again:?}");
        }
        assert_eq!(pmtu.on_ack(9001, 1000), None, "it has arrived in pieces");
    }

    #[test]
    fn after_ten_minutes_the_largest_is_tried_again() {
        let mut pmtu = Pmtu::default();
        pmtu.on_established(1448);
        assert_eq!(pmtu.on_too_big(at_s(1), 1, 1300, 1448), Some(1300));
        assert_eq!(search(&mut pmtu, at_s(600), 1300, 1448), (1300, 0));
        assert_eq!(search(&mut pmtu, at_s(601), 1300, 1448), (1448, 1));
    }

    #[test]
    fn bases_are_tried_one_after_the_other() {
        let mut pmtu = Pmtu::default();
        pmtu.on_established(8948);
        let bases = [1228, 500];
        for (timeouts, mss, expected) in [
            (1, 8948, None),
            (3, 8948, Some(1228)),
            (4, 1228, None),
            (6, 1228, Some(500)),
            (9, 500, None),
        ] {
            assert_eq!(pmtu.on_timeout(at_s(1), 1, timeouts, mss, &bases), expected);
        }
    }
}
