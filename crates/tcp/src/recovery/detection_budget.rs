//! A bound on the work that acknowledgments cause.
//!
//! Loss detection by time looks at all records in flight. A peer with a small MSS that acknowledges
//! every other segment splits the flight into thousands of records, and each of its
//! acknowledgments, which cost it nothing, would make us look at every record. So detection has a
//! budget, to which each acknowledgment adds. If it does not cover all records, a later
//! acknowledgment or a timer does the detection: at most once per millisecond and connection.

use std::time::Duration;

/// Records of the scoreboard that detection may look at for each acknowledgment, on average.
const RECORDS_PER_ACK: usize = 512;

/// How long detection may be postponed.
pub(crate) const POSTPONED_MAX: Duration = Duration::from_millis(1);

/// Records that may still be looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DetectionBudget {
    records: u32,
}

impl DetectionBudget {
    /// Spends the budget on a look at all records, without an acknowledgment.
    pub(crate) fn spend(&mut self) {
        self.records = 0;
    }

    /// Adds an acknowledgment. Returns true if all `records` may be looked at.
    pub(crate) fn on_ack(&mut self, records: usize) -> bool {
        let affordable = self.records as usize + RECORDS_PER_ACK;
        if records <= affordable {
            self.records = 0;
            return true;
        }
        self.records = affordable as u32;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_records_are_looked_at_with_each_acknowledgment() {
        let mut budget = DetectionBudget::default();
        for _ in 0..100 {
            assert!(budget.on_ack(RECORDS_PER_ACK));
        }
    }

    #[test]
    fn many_records_are_looked_at_as_seldom_as_they_are_many() {
        for records in [RECORDS_PER_ACK + 1, 5000, 16_384, 8192] {
            let mut budget = DetectionBudget::default();
            let acks = 1000;
            let looks = (0..acks).filter(|_| budget.on_ack(records)).count();
            assert!(looks > 0, "{records}");
            assert!(looks * records <= acks * RECORDS_PER_ACK, "{records}");
        }
    }
}
