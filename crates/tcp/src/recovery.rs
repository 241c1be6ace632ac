//! Loss detection and recovery: NewReno (RFC 5681 §3.2, RFC 6582), limited transmit (RFC 3042), and what
//! follows a timeout.

use std::ops::Range;

/// RFC 5681 §3.2: so many duplicate acknowledgments are a loss.
const DUPLICATES_MAX: u32 = 3;

/// What the sender is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is known to be lost.
    #[default]
    Open,
    /// Fast recovery.
    FastRecovery,
    /// Slow start after a timeout, through all that was in flight then.
    AfterTimeout,
}

/// What an acknowledgment of new data means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The window may grow.
    Ordinary,
    /// The window may grow, with caution.
    AfterTimeout,
    /// Part of what was in flight at the loss is acknowledged: RFC 6582 §3.2 step 3, partial.
    Partial,
    /// All of it is.
    Recovered,
}

/// Recovery state of a connection. All are positions in our direction, or bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovery {
    phase: Phase,
    duplicates: u32,
    /// `recover` of RFC 6582: behind the last position sent when loss was detected.
    recover: u64,
    /// What is to be retransmitted next: `start..end`.
    lost_start: u64,
    lost_end: u64,
    /// Behind the last position retransmitted in this recovery.
    retransmitted_end: u64,
    /// What duplicate acknowledgments add to the congestion window, as each tells that a segment has left the
    /// network, and what partial acknowledgments take away again.
    inflation: i64,
    /// Bound of the inflation: no more can have left the network than was in flight.
    inflation_max: i64,
    /// RFC 6582 §4: the first partial acknowledgment alone restarts the timer.
    partial_seen: bool,
}

impl Recovery {
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes to add to the congestion window.
    pub(crate) fn inflation(&self) -> i64 {
        self.inflation
    }

    /// What waits for retransmission, from `una` on. Nothing that is acknowledged is ever sent again.
    pub(crate) fn lost(&self, una: u64) -> Range<u64> {
        self.lost_start.max(una)..self.lost_end
    }

    /// The retransmission timer goes on running, whatever is retransmitted.
    pub(crate) fn keeps_timer(&self) -> bool {
        self.phase == Phase::FastRecovery && self.partial_seen
    }

    /// Positions up to here were retransmitted.
    pub(crate) fn on_retransmitted(&mut self, end: u64) {
        self.lost_start = end;
        self.retransmitted_end = self.retransmitted_end.max(end);
    }

    /// `lost` is to be sent again, outside of recovery: a SYN.
    pub(crate) fn retransmit(&mut self, lost: Range<u64>) {
        self.lost_start = lost.start;
        self.lost_end = lost.end;
    }

    /// A duplicate acknowledgment (RFC 5681 §2). True if it is a sign of loss: the caller reduces the window.
    pub(crate) fn on_duplicate_ack(&mut self, una: u64, nxt: u64, mss: u16) -> bool {
        let mss = i64::from(mss);
        match self.phase {
            Phase::FastRecovery => {
                // RFC 5681 §3.2 step 4, with the bound that its last paragraph advises.
                self.inflation = (self.inflation + mss).min(self.inflation_max);
                false
            }
            Phase::AfterTimeout => false,
            Phase::Open => {
                self.duplicates += 1;
                if self.duplicates < DUPLICATES_MAX {
                    // RFC 3042 §2: a new segment for each of the first two.
                    self.inflation = mss * i64::from(self.duplicates);
                    return false;
                }
                self.inflation = 0;
                // RFC 6582 §3.2 step 2: not if the duplicates may stem from our own retransmissions.
                if self.duplicates > DUPLICATES_MAX || una <= self.recover {
                    return false;
                }
                self.phase = Phase::FastRecovery;
                self.recover = nxt;
                self.partial_seen = false;
                self.retransmitted_end = una;
                // RFC 5681 §3.2 step 3.
                self.inflation = 3 * mss;
                self.inflation_max = i64::try_from(nxt - una)
                    .unwrap_or(i64::MAX)
                    .max(self.inflation);
                self.lose_one(una, nxt, mss);
                true
            }
        }
    }

    /// `acked` bytes up to `una` were acknowledged.
    pub(crate) fn on_ack(&mut self, una: u64, acked: u64, nxt: u64, mss: u16) -> Progress {
        self.duplicates = 0;
        match self.phase {
            Phase::Open => {
                self.inflation = 0;
                Progress::Ordinary
            }
            Phase::AfterTimeout => {
                if una >= self.recover {
                    self.phase = Phase::Open;
                }
                Progress::AfterTimeout
            }
            Phase::FastRecovery if una >= self.recover => {
                self.phase = Phase::Open;
                self.inflation = 0;
                self.lost_end = self.lost_start;
                Progress::Recovered
            }
            Phase::FastRecovery => {
                let mss = i64::from(mss);
                // RFC 6582 §3.2 step 3: deflate by what was acknowledged, add back one segment.
                let acked = i64::try_from(acked).unwrap_or(i64::MAX);
                self.inflation = self.inflation.saturating_sub(acked);
                if acked >= mss {
                    self.inflation = self.inflation.saturating_add(mss);
                }
                // Whoever acknowledges in crumbs does not get the same segment again for each of them.
                if una >= self.retransmitted_end {
                    self.lose_one(una, nxt, mss);
                }
                Progress::Partial
            }
        }
    }

    /// After [`Progress::Partial`]: true if the retransmission timer is to be restarted.
    pub(crate) fn take_first_partial(&mut self) -> bool {
        !std::mem::replace(&mut self.partial_seen, true)
    }

    /// The retransmission timer has expired: all that has departed, up to `departed_end`, counts as lost. What
    /// still waits for its departure does not.
    pub(crate) fn on_timeout(&mut self, una: u64, departed_end: u64, nxt: u64) {
        self.phase = Phase::AfterTimeout;
        self.duplicates = 0;
        self.inflation = 0;
        // RFC 6582 §3.2 step 4.
        self.recover = nxt;
        self.lost_start = una;
        self.lost_end = departed_end;
        self.retransmitted_end = una;
    }

    fn lose_one(&mut self, una: u64, nxt: u64, mss: i64) {
        self.lost_start = una;
        self.lost_end = nxt.min(una + mss as u64);
    }
}
