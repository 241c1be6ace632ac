//! Fast retransmit and fast recovery for peers without SACK: NewReno (RFC 5681 §3.2, RFC 6582), and
//! limited transmit (RFC 3042). Each duplicate acknowledgment shows that a segment has left the
//! network, and no more.

use std::ops::Range;

/// RFC 5681 §3.2: number of duplicate acknowledgments that indicate a loss.
const DUPLICATES_MAX: u32 = 3;

/// State of a connection. All are positions in our direction, or bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastRetransmit {
    duplicates: u32,
    /// Behind the last position declared lost in this recovery.
    lost_end: u64,
    /// Bytes that duplicate acknowledgments add to the congestion window, as each shows that a
    /// segment has left the network, less those that partial acknowledgments take away again.
    inflation: i64,
    /// Bound of the inflation: no more can have left the network than was in flight.
    inflation_max: i64,
    /// RFC 6582 §4: the first partial acknowledgment alone restarts the timer.
    partial_seen: bool,
}

impl FastRetransmit {
    /// Returns the number of bytes to add to the congestion window.
    pub(crate) fn inflation(&self) -> i64 {
        self.inflation
    }

    /// Clears the state: recovery has ended, or a timeout has taken over.
    pub(crate) fn reset(&mut self) {
        *self = FastRetransmit::default();
    }

    /// Counts a duplicate acknowledgment (RFC 5681 §2) outside of recovery. Returns true if it is
    /// the one that indicates a loss.
    pub(crate) fn on_duplicate(&mut self, mss: u16) -> bool {
        self.duplicates += 1;
        // RFC 3042 §2: a new segment for each of the first two.
        self.inflation = if self.duplicates < DUPLICATES_MAX {
            i64::from(mss) * i64::from(self.duplicates)
        } else {
            0
        };
        self.duplicates == DUPLICATES_MAX
    }

    /// Begins recovery, with `outstanding` bytes from `una` on. Returns the lost positions.
    pub(crate) fn begin(&mut self, una: u64, outstanding: u64, mss: u16) -> Range<u64> {
        // RFC 5681 §3.2 step 3.
        self.inflation = 3 * i64::from(mss);
        self.inflation_max = i64::try_from(outstanding)
            .unwrap_or(i64::MAX)
            .max(self.inflation);
        self.partial_seen = false;
        self.lose(una, outstanding, mss)
    }

    /// Counts a duplicate acknowledgment in recovery: RFC 5681 §3.2 step 4, with the bound that its
    /// last paragraph advises.
    pub(crate) fn inflate(&mut self, mss: u16) {
        self.inflation = (self.inflation + i64::from(mss)).min(self.inflation_max);
    }

    /// Records an acknowledgment of new data outside of recovery.
    pub(crate) fn on_ack(&mut self) {
        self.duplicates = 0;
        self.inflation = 0;
    }

    /// Records a partial acknowledgment in recovery: `acked` bytes up to `una`. RFC 6582 §3.2 step
    /// 3: deflate by the acknowledged bytes, add back one segment. Returns true if the segment at
    /// `una` is lost.
    pub(crate) fn on_partial_ack(&mut self, una: u64, acked: u64, mss: u16) -> bool {
        let acked = i64::try_from(acked).unwrap_or(i64::MAX);
        self.inflation = self.inflation.saturating_sub(acked);
        if acked >= i64::from(mss) {
            self.inflation = self.inflation.saturating_add(i64::from(mss));
        }
        // A peer that acknowledges a few bytes at a time does not get the same segment each time.
        una >= self.lost_end
    }

    /// Returns true once in a recovery: the retransmission timer is to be restarted.
    pub(crate) fn take_first_partial(&mut self) -> bool {
        !std::mem::replace(&mut self.partial_seen, true)
    }

    /// Returns true if the retransmission timer keeps running during retransmissions.
    pub(crate) fn keeps_timer(&self) -> bool {
        self.partial_seen
    }

    /// Marks the segment at `una` as lost, of `outstanding` bytes. Returns its positions.
    pub(crate) fn lose(&mut self, una: u64, outstanding: u64, mss: u16) -> Range<u64> {
        self.lost_end = una + outstanding.min(u64::from(mss));
        una..self.lost_end
    }
}
