//! What is in flight: one record for each transmission.
//!
//! A transmission is what one [`crate::Transmit`] carries, up to a megabyte. Between being issued and
//! departing it waits for the NIC stack to read it; the time of the departure is the time from which RTO and
//! round-trip time count (IO-TCP §3.5).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::time::Instant;

/// No new data is sent while so many transmissions are in flight: their records must not eat the memory.
pub(crate) const TRANSMISSIONS_MAX: usize = 4096;

/// One transmission.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Positions: `start..end`, with SYN or FIN.
    start: u64,
    end: u64,
    /// [`Instant::NEVER`] until it is reported.
    departed: Instant,
    retransmission: bool,
    /// Part of it was sent more than once: its acknowledgment does not tell which transmission it answers
    /// (Karn's algorithm, RFC 6298 §3).
    ambiguous: bool,
}

impl Record {
    fn has_departed(&self) -> bool {
        self.departed != Instant::NEVER
    }

    fn holds(&self, position: u64) -> bool {
        self.start <= position && position < self.end
    }
}

/// What an acknowledgment tells of the round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// From the departure of a transmission to the acknowledgment of its last byte.
    Measured(Duration),
    /// A transmission is acknowledged whose departure has not been reported: the report will tell.
    Awaited,
    /// Only retransmitted data was acknowledged; a timestamp is needed to tell.
    Ambiguous,
    /// Only part of a transmission was acknowledged. Its packets may have left one after the other, and the
    /// departure stands for the last one.
    Partial,
}

/// What a report of departure changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The transmission is in flight from now on.
    InFlight,
    /// It is acknowledged already; the round trip took this long.
    Acknowledged(Duration),
    /// Nothing.
    Unknown,
}

/// Transmissions in flight, in the order in which they were issued.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    records: VecDeque<Record>,
    /// Number of the first record; the others follow without gap.
    first: u64,
    undeparted: u32,
    retransmissions: u32,
    /// The newest transmission acknowledged before its departure was reported, and when.
    awaited: Option<(u64, Instant)>,
}

impl Sent {
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn has_undeparted(&self) -> bool {
        self.undeparted > 0
    }

    /// Notes a transmission and names it.
    pub(crate) fn issue(&mut self, positions: Range<u64>, retransmission: bool) -> u64 {
        let Range { start, end } = positions;
        if retransmission {
            self.retransmissions += 1;
            for record in self
                .records
                .iter_mut()
                .filter(|r| r.start < end && start < r.end)
            {
                record.ambiguous = true;
            }
        }
        let departed = Instant::NEVER;
        self.records.push_back(Record {
            start,
            end,
            departed,
            retransmission,
            ambiguous: retransmission,
        });
        self.undeparted += 1;
        self.first + self.records.len() as u64 - 1
    }

    /// A transmission has left.
    pub(crate) fn depart(&mut self, transmission: u64, at: Instant) -> Departure {
        let index = transmission
            .checked_sub(self.first)
            .and_then(|i| usize::try_from(i).ok());
        if let Some(record) = index.and_then(|i| self.records.get_mut(i)) {
            if record.has_departed() {
                return Departure::Unknown;
            }
            // The last instant of all stands for "not yet".
            record.departed = at.min(Instant::from_us(u64::MAX - 1));
            self.undeparted -= 1;
            return Departure::InFlight;
        }
        match self.awaited {
            Some((awaited, acknowledged_at)) if awaited == transmission => {
                self.awaited = None;
                // Acknowledged before it is said to have left: the clock cannot tell the difference.
                let round_trip = acknowledged_at.since(at).max(Duration::from_micros(1));
                Departure::Acknowledged(round_trip)
            }
            _ => Departure::Unknown,
        }
    }

    /// Everything before `una` is acknowledged. That proves that it has departed, reported or not.
    pub(crate) fn acknowledge(&mut self, una: u64, now: Instant) -> Evidence {
        let mut evidence = Evidence::Partial;
        while let Some(record) = self.records.front().copied() {
            if record.end > una {
                if evidence == Evidence::Partial && record.ambiguous && record.start < una {
                    evidence = Evidence::Ambiguous;
                }
                break;
            }
            // The newest transmission that is covered completely counts: the acknowledgment answers its last
            // packet, or one that has left since.
            if record.ambiguous {
                if evidence == Evidence::Partial {
                    evidence = Evidence::Ambiguous;
                }
            } else if record.has_departed() {
                evidence = Evidence::Measured(now.since(record.departed));
            } else {
                self.awaited = Some((self.first, now));
                evidence = Evidence::Awaited;
            }
            self.undeparted -= u32::from(!record.has_departed());
            self.retransmissions -= u32::from(record.retransmission);
            self.records.pop_front();
            self.first += 1;
        }
        evidence
    }

    /// True if the last transmission of this position has departed: only then is it late.
    pub(crate) fn has_departed(&self, position: u64) -> bool {
        if self.retransmissions == 0 {
            return self.records.front().is_some_and(Record::has_departed);
        }
        self.records
            .iter()
            .rev()
            .find(|r| r.holds(position))
            .is_some_and(Record::has_departed)
    }

    /// Behind the last position that has departed.
    pub(crate) fn departed_end(&self) -> Option<u64> {
        self.records
            .iter()
            .filter(|r| r.has_departed())
            .map(|r| r.end)
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_us(us)
    }

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn round_trip_runs_from_departure_to_the_ack_of_the_last_byte() {
        let mut sent = Sent::default();
        let first = sent.issue(1..1001, false);
        let second = sent.issue(1001..2001, false);
        assert!(sent.has_undeparted());
        assert_eq!(sent.depart(first, at(500)), Departure::InFlight);
        assert_eq!(sent.depart(second, at(700)), Departure::InFlight);
        assert!(!sent.has_undeparted());
        assert_eq!(sent.acknowledge(900, at(900)), Evidence::Partial);
        assert_eq!(
            sent.acknowledge(1001, at(1000)),
            Evidence::Measured(us(500))
        );
        assert_eq!(
            sent.acknowledge(2001, at(1100)),
            Evidence::Measured(us(400))
        );
        assert_eq!(sent.len(), 0);
    }

    #[test]
    fn the_newest_transmission_covered_counts() {
        let mut sent = Sent::default();
        let first = sent.issue(1..1001, false);
        let second = sent.issue(1001..2001, false);
        sent.depart(first, at(100));
        sent.depart(second, at(700));
        assert_eq!(
            sent.acknowledge(2001, at(1000)),
            Evidence::Measured(us(300))
        );
    }

    /// Covers: RFC 6298 §3
    #[test]
    fn karn_retransmitted_data_gives_no_measurement() {
        let mut sent = Sent::default();
        let first = sent.issue(1..1001, false);
        sent.depart(first, at(0));
        let again = sent.issue(1..501, true);
        sent.depart(again, at(50));
        assert_eq!(sent.acknowledge(200, at(60)), Evidence::Ambiguous);
        assert_eq!(sent.acknowledge(1001, at(60)), Evidence::Ambiguous);
        assert_eq!(sent.len(), 0);
    }

    #[test]
    fn an_ack_may_come_before_the_report_of_departure() {
        let mut sent = Sent::default();
        let first = sent.issue(1..1001, false);
        assert_eq!(sent.acknowledge(1001, at(90)), Evidence::Awaited);
        assert!(!sent.has_undeparted());
        assert_eq!(sent.depart(first, at(40)), Departure::Acknowledged(us(50)));
        assert_eq!(sent.depart(first, at(40)), Departure::Unknown);
        let second = sent.issue(1001..1002, false);
        sent.acknowledge(1002, at(100));
        assert_eq!(sent.depart(second, at(101)), Departure::Acknowledged(us(1)));
    }

    #[test]
    fn reports_for_what_was_never_issued_change_nothing() {
        let mut sent = Sent::default();
        sent.issue(1..2, false);
        for stranger in [1, 7, u64::MAX] {
            assert_eq!(sent.depart(stranger, at(1)), Departure::Unknown);
        }
        assert_eq!(sent.depart(0, at(1)), Departure::InFlight);
        assert_eq!(sent.depart(0, at(2)), Departure::Unknown);
        assert!(!sent.has_undeparted());
    }

    #[test]
    fn what_counts_as_late_is_the_last_transmission_of_a_byte() {
        let mut sent = Sent::default();
        let first = sent.issue(1..1001, false);
        sent.depart(first, at(0));
        assert!(sent.has_departed(1));
        let again = sent.issue(1..501, true);
        assert!(!sent.has_departed(1));
        assert!(sent.has_departed(501));
        assert_eq!(sent.departed_end(), Some(1001));
        sent.depart(again, at(9));
        assert!(sent.has_departed(1));
    }
}
