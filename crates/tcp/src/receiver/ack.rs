//! Timing of acknowledgments (RFC 9293 §3.8.6.3, RFC 5681 §4.2).

/// RFC 5681 §4.2: least size of a segment that the peer could call full-sized.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 536;

/// Acknowledgments owed to the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acks {
    /// In-order bytes received and not acknowledged.
    pending_bytes: u32,
    /// The largest packet that the peer has sent: its full size.
    segment_bytes: u32,
    /// An acknowledgment is due; data may carry it.
    immediate: bool,
    /// Acknowledgments that must go alone, so that the peer counts each as a duplicate (RFC 5681
    /// §2).
    duplicates: u8,
    /// The first transmission that carries the acknowledgment of a position, and the position,
    /// while its departure is not reported. It may be on its way for long: until it departs, the
    /// acknowledgment counts as owed.
    carried: Option<(u64, u64)>,
}

/// Urgency of the acknowledgment of received text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Now,
    Later,
}

impl Acks {
    /// Records in-order text. A merged superpacket counts for as many segments as it holds.
    pub(crate) fn on_text(&mut self, bytes: usize, mss: u16) -> Urgency {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.segment_bytes = self
            .segment_bytes
            .max(bytes.min(u32::from(mss)))
            .max(SEGMENT_BYTES_MIN);
        self.pending_bytes = self.pending_bytes.saturating_add(bytes);
        // RFC 5681 §4.2: at least for every second full-sized segment.
        if self.pending_bytes >= 2 * self.segment_bytes {
            self.immediate = true;
            Urgency::Now
        } else {
            Urgency::Later
        }
    }

    /// Requests an acknowledgment now; data may carry it.
    pub(crate) fn request(&mut self) {
        self.immediate = true;
    }

    /// Requests an acknowledgment now, without data.
    pub(crate) fn request_duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1);
    }

    /// Returns true once for each acknowledgment that must go alone.
    pub(crate) fn take_duplicate(&mut self) -> bool {
        let owed = self.duplicates > 0;
        self.duplicates = self.duplicates.saturating_sub(1);
        owed
    }

    /// Returns the size of the largest packet that the peer has sent, at least
    /// [`SEGMENT_BYTES_MIN`]; 0 if it has sent none.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    pub(crate) fn is_due(&self) -> bool {
        self.immediate
    }

    /// Returns true if an acknowledgment is due, be it alone or with data.
    pub(crate) fn is_owed(&self) -> bool {
        self.immediate || self.duplicates > 0
    }

    /// Records that an acknowledgment of all received data has left.
    pub(crate) fn on_sent(&mut self) {
        self.pending_bytes = 0;
        self.immediate = false;
        self.carried = None;
    }

    /// Records that a transmission that acknowledges everything before `nxt` is on its way through
    /// the NIC stack.
    pub(crate) fn on_carried(&mut self, transmission: u64, nxt: u64) {
        if self.carried.is_none_or(|(_, position)| position < nxt) {
            self.carried = Some((transmission, nxt));
        }
    }

    /// Records a departure. Returns true if its transmission acknowledges everything before `nxt`.
    pub(crate) fn on_departed(&mut self, transmission: u64, nxt: u64) -> bool {
        self.carried
            .is_some_and(|(carrier, position)| carrier <= transmission && position == nxt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_full_sized_segment_is_acknowledged() {
        let mut acks = Acks::default();
        assert_eq!(acks.on_text(1448, 1460), Urgency::Later);
        assert_eq!(acks.on_text(1448, 1460), Urgency::Now);
        acks.on_sent();
        assert!(!acks.is_due());
        assert_eq!(acks.on_text(1448, 1460), Urgency::Later);
    }

    #[test]
    fn a_superpacket_counts_as_several_segments() {
        let mut acks = Acks::default();
        assert_eq!(acks.on_text(2 * 1448, 1460), Urgency::Later);
        let mut acks = Acks::default();
        assert_eq!(acks.on_text(2 * 1460, 1460), Urgency::Now);
        acks.on_sent();
        assert_eq!(acks.on_text(60_000, 1460), Urgency::Now);
    }

    #[test]
    fn small_segments_wait_for_company() {
        let mut acks = Acks::default();
        assert_eq!(acks.on_text(100, 1460), Urgency::Later);
        assert_eq!(acks.on_text(900, 1460), Urgency::Later);
        assert_eq!(acks.on_text(900, 1460), Urgency::Now);
    }

    #[test]
    fn each_duplicate_is_owed_separately() {
        let mut acks = Acks::default();
        acks.request_duplicate();
        acks.request_duplicate();
        acks.on_sent();
        assert!(acks.take_duplicate());
        assert!(acks.take_duplicate());
        assert!(!acks.take_duplicate());
    }
}
