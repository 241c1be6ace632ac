//! Data in flight and its state: the scoreboard of RFC 6675 §3.
//!
//! The positions from SND.UNA to SND.NXT are covered, without gap or overlap, by records in order.
//! A record begins as one transmission: the positions of one [`crate::Transmit`], up to a megabyte.
//! It is split where the peer's selective acknowledgments or retransmissions need it, and
//! selectively acknowledged neighbours are one record again, so that there are no more records than
//! holes and transmissions.
//!
//! Between being issued and departing, a transmission waits for the NIC stack to read it. Time
//! counts from the departure (IO-TCP §3.5): undeparted data is neither late nor lost. Each record
//! knows its *latest* transmission.
//!
//! The fast path is an acknowledgment of the oldest data while nothing is missing: its cost is that
//! of the records it removes. The sums are kept as records change; nothing is counted by walking.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::congestion::rate::{DeliveryRate, Snapshot};
use crate::time::Instant;

/// Records, or departures to be reported, beyond which no new data is sent: a bound on their
/// memory. Real bytes go two segments at a time through the NIC stack, and 12.5 MB of real bytes, 1
/// Gbit/s over 100 ms, must find room.
pub(crate) const RECORDS_MAX: usize = 8192;

/// Records beyond which only the oldest one is split, so that there is always progress: a bound on
/// the memory that a peer costs by acknowledging every other byte.
const SPLIT_RECORDS_MAX: usize = 2 * RECORDS_MAX;

/// Cuts beyond those that the segments in flight explain: a bound on the records that an
/// acknowledgment walks through while little is in flight. Between selective acknowledgments of
/// segments lies at least one other, so that there are half as many holes as segments in flight,
/// twice that if the path cuts them. This many more may have any other cause.
const ODD_CUTS_MAX: u64 = 64;

/// Transmissions for which an empty scoreboard keeps memory: enough for a response of moderate
/// length.
const SPARE_MAX: usize = 4;

/// A run of positions in the same state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// `start..end`, with SYN or FIN. Never empty.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Number and departure of the latest transmission; [`Instant::NEVER`] until it is reported.
    pub(crate) transmission: u64,
    departed: Instant,
    /// Delivery counters at the departure.
    pub(crate) snapshot: Snapshot,
    /// When the record counts as lost ([`crate::rack`]).
    late_at: Instant,
    /// Selectively acknowledged. The other fields but the range have no meaning then.
    sacked: bool,
    /// Lost, and not sent again.
    lost: bool,
    /// Its latest transmission has never left, and never will ([`crate::undeparted`]).
    void: bool,
    /// Sent more than once: its acknowledgment does not show which transmission it answers (Karn's
    /// algorithm, RFC 6298 §3).
    pub(crate) retransmitted: bool,
    /// The record ends where its transmission ends: the departure is that of its last packet.
    pub(crate) ends_transmission: bool,
}

impl Record {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns when the latest transmission departed, if that was reported.
    pub(crate) fn departed(&self) -> Option<Instant> {
        (self.departed != Instant::NEVER).then_some(self.departed)
    }

    /// Returns true if the record has been issued, and waits for its departure.
    fn waits(&self) -> bool {
        self.is_in_flight() && self.departed == Instant::NEVER
    }

    fn is_in_flight(&self) -> bool {
        !self.sacked && !self.lost
    }

    /// See [`Sums::cuts`].
    fn is_cut(&self) -> bool {
        !self.sacked && (self.retransmitted || !self.ends_transmission)
    }
}

/// Effect of a departure report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The transmission is in flight from now on.
    InFlight,
    /// The transmission is acknowledged already; the round trip took this long.
    Acknowledged(Duration),
    /// No effect.
    Unknown,
}

/// Bytes of records by state. Each byte counts once for `sacked`, `lost` or in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    sacked: u64,
    lost: u64,
    in_flight: u64,
    /// In flight, and not departed.
    undeparted: u64,
    /// In flight again.
    retransmitted: u64,
    /// Not departed, and to be issued again.
    void: u64,
    /// Number of records, not bytes, that are neither selectively acknowledged nor reach to the end
    /// of a transmission of new data: the pieces cut by selective acknowledgments and
    /// retransmissions.
    cuts: u64,
}

impl Sums {
    fn add(&mut self, record: &Record) {
        let len = record.len();
        self.cuts += u64::from(record.is_cut());
        if record.sacked {
            self.sacked += len;
        } else if record.lost {
            self.lost += len;
        } else {
            self.in_flight += len;
            self.undeparted += if record.departed == Instant::NEVER {
                len
            } else {
                0
            };
            self.retransmitted += if record.retransmitted { len } else { 0 };
            self.void += if record.void { len } else { 0 };
        }
    }

    fn subtract(&mut self, record: &Record) {
        let len = record.len();
        self.cuts -= u64::from(record.is_cut());
        if record.sacked {
            self.sacked -= len;
        } else if record.lost {
            self.lost -= len;
        } else {
            self.in_flight -= len;
            self.undeparted -= if record.departed == Instant::NEVER {
                len
            } else {
                0
            };
            self.retransmitted -= if record.retransmitted { len } else { 0 };
            self.void -= if record.void { len } else { 0 };
        }
    }
}

/// Notes a delivered piece whose departure is not reported yet: the report will give the round-trip
/// time.
fn note_awaited(awaited: &mut Option<(u64, Instant)>, piece: &Record, now: Instant) {
    if piece.departed == Instant::NEVER && piece.ends_transmission && !piece.retransmitted {
        *awaited = Some((piece.transmission, now));
    }
}

/// All data between SND.UNA and SND.NXT.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    sums: Sums,
    /// Position before which nothing is lost and waits to be sent again.
    lost_from: u64,
    /// Position before which nothing is void and to be issued again.
    void_from: u64,
    /// Positions of transmissions from number `unreported_first` on; empty once they are reported.
    unreported: VecDeque<(u64, u64)>,
    unreported_first: u64,
    /// The newest transmission delivered before its departure was reported, and when.
    awaited: Option<(u64, Instant)>,
}

impl Scoreboard {
    /// Frees unused memory, but for the room of a few transmissions.
    pub(crate) fn shrink(&mut self) {
        self.records.shrink_to(SPARE_MAX);
        self.unreported.shrink_to(SPARE_MAX);
    }

    /// Returns the bytes in flight: issued, and neither delivered nor lost (`pipe` of RFC 6675 §2).
    pub(crate) fn flight(&self) -> u64 {
        self.sums.in_flight
    }

    /// Returns the bytes issued and not cumulatively acknowledged (FlightSize of RFC 5681 §2).
    pub(crate) fn outstanding(&self) -> u64 {
        self.sums.in_flight + self.sums.sacked + self.sums.lost
    }

    /// Returns the bytes selectively acknowledged.
    pub(crate) fn sacked(&self) -> u64 {
        self.sums.sacked
    }

    /// Returns the bytes lost and not sent again.
    pub(crate) fn lost(&self) -> u64 {
        self.sums.lost
    }

    /// Returns the number of records.
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    /// Returns true if an acknowledgment of one byte may reveal the loss of another: something
    /// behind a hole is delivered, or something older was sent again.
    pub(crate) fn may_have_losses(&self) -> bool {
        self.sums.sacked > 0 || self.sums.retransmitted > 0
    }

    /// Returns true if all outstanding data is in flight, sent once.
    pub(crate) fn is_intact(&self) -> bool {
        let Sums {
            sacked,
            lost,
            retransmitted,
            ..
        } = self.sums;
        sacked | lost | retransmitted == 0
    }

    /// Returns the bytes that wait in the NIC stack, or whose departure was not reported.
    pub(crate) fn undeparted_bytes(&self) -> u64 {
        self.sums.undeparted
    }

    /// Returns true if any bytes are undeparted.
    pub(crate) fn has_undeparted(&self) -> bool {
        self.sums.undeparted > 0
    }

    /// Returns the number of transmissions not known to have departed, nor to be void.
    pub(crate) fn unreported(&self) -> usize {
        self.unreported.len()
    }

    /// Returns the ends of the data after `una` that has departed: certainly, and possibly.
    /// Retransmissions count as possible, since the original may never have left.
    pub(crate) fn departed_ends(&self, una: u64) -> (u64, u64) {
        let has_left = |r: &Record| r.sacked || r.lost || r.departed != Instant::NEVER;
        let may_have_left = |r: &Record| has_left(r) || r.retransmitted;
        let end = |found: Option<&Record>| found.map_or(una, |r| r.end.max(una));
        (
            end(self.records.iter().rfind(|r| has_left(r))),
            end(self.records.iter().rfind(|r| may_have_left(r))),
        )
    }

    /// Returns true if there is no room for records of new data.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len().max(self.unreported.len()) >= RECORDS_MAX
    }

    /// Returns true if the latest transmission of the oldest byte has departed: only then can it be
    /// late.
    pub(crate) fn has_departed(&self) -> bool {
        let front = self.records.front();
        front.is_some_and(|r| r.sacked || r.departed != Instant::NEVER)
    }

    /// Returns the last record, if it has departed and is in flight.
    pub(crate) fn tail(&self) -> Option<&Record> {
        let back = self.records.back();
        back.filter(|r| r.is_in_flight() && r.departed != Instant::NEVER)
    }

    /// Returns true if the oldest byte is selectively acknowledged: a peer that still had it would
    /// have acknowledged it (reneging, RFC 2018 §8).
    pub(crate) fn is_reneged(&self) -> bool {
        self.records.front().is_some_and(|r| r.sacked)
    }

    /// Returns the bytes in flight before a position.
    pub(crate) fn flight_before(&self, position: u64) -> u64 {
        let before = self.records.iter().take_while(|r| r.end <= position);
        before.filter(|r| r.is_in_flight()).map(Record::len).sum()
    }

    /// Adds a transmission of new data, and returns its number.
    pub(crate) fn issue(&mut self, positions: Range<u64>) -> u64 {
        if self.records.capacity() == 0 {
            // Most idle connections have never had more in flight; a deque that grows by itself
            // begins with four.
            self.records.reserve_exact(1);
            self.unreported.reserve_exact(1);
        }
        let record = self.name(positions, false);
        self.records.push_back(record);
        record.transmission
    }

    /// Uses up the number of a transmission without a record: it is acknowledged, and no report of
    /// its departure comes.
    pub(crate) fn skip(&mut self) {
        debug_assert!(self.records.is_empty() && self.unreported.is_empty());
        self.unreported_first += 1;
    }

    /// Replaces the records of issued positions, none selectively acknowledged, by a
    /// retransmission.
    pub(crate) fn reissue(&mut self, positions: Range<u64>) -> u64 {
        self.replace(positions, true)
    }

    /// Replaces the records of void positions by a new transmission. Unless some were sent twice
    /// before, its acknowledgment shows which transmission it answers.
    pub(crate) fn reissue_void(&mut self, positions: Range<u64>) -> u64 {
        let first = self.index_of(positions.start);
        let records = self.records.range(first..);
        let mut records = records.take_while(|r| r.start < positions.end);
        let retransmitted = records.any(|r| r.retransmitted);
        self.replace(positions, retransmitted)
    }

    fn replace(&mut self, positions: Range<u64>, retransmitted: bool) -> u64 {
        let Range { start, end } = positions;
        let first = self.split(start);
        let behind = self.split(end);
        for record in self.records.range(first..behind) {
            debug_assert!(!record.sacked, "what is delivered is never sent again");
            self.sums.subtract(record);
        }
        // Most often one record is replaced by one.
        let record = self.name(start..end, retransmitted);
        if behind > first {
            self.records[first] = record;
            self.records.drain(first + 1..behind);
        }
        if (start..end).contains(&self.lost_from) {
            self.lost_from = end;
        }
        record.transmission
    }

    fn name(&mut self, positions: Range<u64>, retransmitted: bool) -> Record {
        let Range { start, end } = positions;
        let record = Record {
            start,
            end,
            transmission: self.unreported_first + self.unreported.len() as u64,
            departed: Instant::NEVER,
            snapshot: Snapshot::default(),
            late_at: Instant::NEVER,
            sacked: false,
            lost: false,
            void: false,
            retransmitted,
            ends_transmission: true,
        };
        self.unreported.push_back((start, end));
        self.sums.add(&record);
        record
    }

    /// Returns the index of the first record that ends behind a position. Most often that is the
    /// last record, whose departure is reported, or the first.
    #[inline(always)]
    fn index_of(&self, position: u64) -> usize {
        match (self.records.front(), self.records.back()) {
            (_, Some(back)) if back.start <= position => {
                self.records.len() - usize::from(position < back.end)
            }
            (Some(front), _) if position < front.end => 0,
            _ => self.records.partition_point(|r| r.end <= position),
        }
    }

    /// Records the departure of a transmission.
    pub(crate) fn depart(
        &mut self,
        transmission: u64,
        at: Instant,
        rate: &mut DeliveryRate,
    ) -> Departure {
        // `Instant::NEVER` stands for "not yet".
        let at = at.min(Instant::from_us(u64::MAX - 1));
        let (start, end) = self.take_unreported(transmission);
        let first = self.index_of(start);
        // Most often the transmission is still one record, as issued.
        if let Some(record) = self.records.get_mut(first)
            && record.transmission == transmission
            && record.end == end
            && record.waits()
        {
            let before = self.sums.in_flight - self.sums.undeparted;
            record.departed = at;
            record.snapshot = rate.on_departed(at, before + record.len(), before == 0);
            self.sums.undeparted -= record.len();
            return Departure::InFlight;
        }
        let departs = |r: &Record| r.transmission == transmission && r.departed == Instant::NEVER;
        let (mut behind, mut bytes, mut found) = (first, 0, false);
        while let Some(record) = self.records.get(behind)
            && record.start < end
        {
            behind += 1;
            found |= departs(record);
            if departs(record) && record.is_in_flight() {
                bytes += record.len();
            }
        }
        if found {
            let before = self.flight() - self.sums.undeparted;
            let snapshot = rate.on_departed(at, before + bytes, before == 0);
            for index in first..behind {
                let record = &mut self.records[index];
                if departs(record) {
                    if record.is_in_flight() {
                        self.sums.undeparted -= record.len();
                    }
                    record.departed = at;
                    record.snapshot = snapshot;
                }
            }
            return Departure::InFlight;
        }
        match self.awaited {
            Some((awaited, acknowledged_at)) if awaited == transmission => {
                self.awaited = None;
                // Acknowledged before its reported departure: the difference is below the clock's
                // resolution.
                let round_trip = acknowledged_at.since(at).max(Duration::from_micros(1));
                Departure::Acknowledged(round_trip)
            }
            _ => Departure::Unknown,
        }
    }

    /// Takes the positions of a transmission that has not been reported; an empty range if it has.
    #[inline(always)]
    fn take_unreported(&mut self, transmission: u64) -> (u64, u64) {
        if transmission == self.unreported_first
            && let Some(first) = self.unreported.pop_front()
        {
            self.unreported_first += 1;
            self.forget_unreported(0);
            return first;
        }
        let index = transmission
            .checked_sub(self.unreported_first)
            .and_then(|i| usize::try_from(i).ok());
        let positions = index.and_then(|i| self.unreported.get_mut(i));
        let positions = positions.map(std::mem::take).unwrap_or_default();
        self.forget_unreported(0);
        positions
    }

    /// Drops the first transmissions as far as they are reported, or acknowledged.
    fn forget_unreported(&mut self, una: u64) {
        while let Some(&(start, end)) = self.unreported.front()
            && (start == end || end <= una)
        {
            self.unreported.pop_front();
            self.unreported_first += 1;
        }
    }

    /// Removes everything before `una`: it is acknowledged, hence has departed, reported or not.
    /// Calls `deliver` for each piece that was not selectively acknowledged before.
    pub(crate) fn acknowledge(&mut self, una: u64, now: Instant, mut deliver: impl FnMut(&Record)) {
        while let Some(front) = self.records.front_mut()
            && front.start < una
        {
            self.sums.subtract(front);
            if front.end <= una {
                if !front.sacked {
                    note_awaited(&mut self.awaited, front, now);
                    deliver(front);
                }
                self.records.pop_front();
                continue;
            }
            let piece = Record {
                end: una,
                ends_transmission: false,
                ..*front
            };
            front.start = una;
            self.sums.add(front);
            if !piece.sacked {
                deliver(&piece);
            }
        }
        self.forget_unreported(una);
    }

    /// Marks positions as selectively acknowledged, as far as they are in flight or lost. Calls
    /// `deliver` for each newly acknowledged piece. `mss`: least length of pieces if there are
    /// many.
    pub(crate) fn sack(
        &mut self,
        positions: Range<u64>,
        now: Instant,
        mss: u16,
        mut deliver: impl FnMut(&Record),
    ) {
        let Range { mut start, end } = positions;
        while start < end {
            let index = self.index_of(start);
            let Some(record) = self.records.get(index).copied() else {
                return;
            };
            let piece = Record {
                start: record.start.max(start),
                end: record.end.min(end),
                ends_transmission: record.ends_transmission && record.end <= end,
                ..record
            };
            if record.start >= end {
                return;
            }
            // Pieces without room are left out.
            if !record.sacked && self.replace_by_sacked(index, &record, &piece, mss) {
                note_awaited(&mut self.awaited, &piece, now);
                deliver(&piece);
            }
            start = piece.end;
        }
    }

    /// Marks a part of a record; returns false if there is no room for splitting it.
    fn replace_by_sacked(
        &mut self,
        index: usize,
        record: &Record,
        piece: &Record,
        mss: u16,
    ) -> bool {
        let left = (record.start < piece.start).then_some(Record {
            end: piece.start,
            ends_transmission: false,
            ..*record
        });
        let right = (piece.end < record.end).then_some(Record {
            start: piece.end,
            ..*record
        });
        let is_sacked = |r: Option<&Record>| r.is_some_and(|r| r.sacked);
        let before = index.checked_sub(1).and_then(|i| self.records.get(i));
        let joins_before = left.is_none() && is_sacked(before);
        let joins_behind = right.is_none() && is_sacked(self.records.get(index + 1));
        let splits = left.is_some() || right.is_some();
        let joins = joins_before || joins_behind;
        if splits && !joins && !self.has_room_for_cut(mss) {
            return false;
        }
        let sacked = Record {
            sacked: true,
            lost: false,
            void: false,
            ..*piece
        };
        self.sums.subtract(record);
        for part in [left, Some(sacked), right].iter().flatten() {
            self.sums.add(part);
        }
        match (joins_before, joins_behind) {
            (true, true) => {
                self.records[index - 1].end = self.records[index + 1].end;
                self.records.drain(index..index + 2);
            }
            (true, false) => {
                self.records[index - 1].end = piece.end;
                self.put(index, right);
            }
            (false, true) => {
                self.records[index + 1].start = piece.start;
                self.put(index, left);
            }
            (false, false) => {
                self.records[index] = sacked;
                if let Some(right) = right {
                    self.records.insert(index + 1, right);
                }
                if let Some(left) = left {
                    self.records.insert(index, left);
                }
            }
        }
        true
    }

    /// Returns true if another cut is allowed: few are, in proportion to the full segments in
    /// flight.
    fn has_room_for_cut(&self, mss: u16) -> bool {
        let segments = self.outstanding() / u64::from(mss.max(1));
        self.sums.cuts < ODD_CUTS_MAX + segments && self.records.len() < SPLIT_RECORDS_MAX
    }

    /// Marks a transmission as void: it has not left and never will. Returns how many of its bytes
    /// are to be issued again. Unless `certain`, their acknowledgment will not show which
    /// transmission it answers.
    pub(crate) fn void(&mut self, transmission: u64, certain: bool) -> u64 {
        let void_before = self.sums.void;
        let (start, end) = self.take_unreported(transmission);
        let first = self.index_of(start);
        for record in self.records.range_mut(first..) {
            if record.start >= end {
                break;
            }
            if record.transmission == transmission && record.waits() {
                self.sums.subtract(record);
                record.void = true;
                record.retransmitted |= !certain;
                self.sums.add(record);
                self.void_from = self.void_from.min(record.start);
            }
        }
        self.sums.void - void_before
    }

    /// Marks all unreported transmissions as void, though only their reports may be missing.
    /// Returns how many had bytes to be issued again.
    pub(crate) fn void_all(&mut self) -> u32 {
        let mut count = 0;
        while !self.unreported.is_empty() {
            count += u32::from(self.void(self.unreported_first, false) > 0);
        }
        count
    }

    /// Returns true if void bytes are to be issued again.
    pub(crate) fn has_void(&self) -> bool {
        self.sums.void > 0
    }

    /// Returns the first run of void positions to be issued again: up to the next that are not, or
    /// just more than `bytes_max`.
    pub(crate) fn first_void(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        if self.sums.void == 0 {
            return None;
        }
        let is_void = |r: &Record| r.void && r.waits();
        let (run, _) = self.run(self.void_from, bytes_max, is_void);
        self.void_from = run.as_ref()?.start;
        run
    }

    /// Returns the first run of `wanted` records from `from` on, up to the next that are not, or
    /// just more than `bytes_max`, and how many records were looked at.
    fn run(
        &self,
        from: u64,
        bytes_max: u64,
        wanted: impl Fn(&Record) -> bool,
    ) -> (Option<Range<u64>>, usize) {
        let mut run: Option<Range<u64>> = None;
        let mut count = 0;
        for record in self.records.range(self.index_of(from)..) {
            count += 1;
            match &mut run {
                None if wanted(record) => run = Some(record.start..record.end),
                None => continue,
                Some(run) if wanted(record) => run.end = record.end,
                Some(_) => break,
            }
            if run
                .as_ref()
                .is_some_and(|run| run.end - run.start > bytes_max)
            {
                break;
            }
        }
        (run, count)
    }

    /// Concludes that the unreported transmissions before this one have departed: departures are in
    /// order, so no report of them will come. They count as departed at `at`, which may be too late
    /// to measure a round-trip time by. Returns their number.
    pub(crate) fn depart_unheard(
        &mut self,
        transmission: u64,
        at: Instant,
        rate: &mut DeliveryRate,
    ) -> u32 {
        let mut count = 0;
        while self.unreported_first < transmission
            && let Some(&(start, end)) = self.unreported.front()
        {
            let unheard = self.unreported_first;
            count += 1;
            if self.depart(unheard, at, rate) != Departure::InFlight {
                continue;
            }
            let first = self.index_of(start);
            for record in self.records.range_mut(first..) {
                if record.start >= end {
                    break;
                }
                if record.transmission == unheard && record.is_in_flight() {
                    self.sums.subtract(record);
                    record.retransmitted = true;
                    self.sums.add(record);
                }
            }
        }
        count
    }

    fn put(&mut self, index: usize, record: Option<Record>) {
        match record {
            Some(record) => self.records[index] = record,
            None => {
                self.records.remove(index);
            }
        }
    }

    /// Makes a record begin at a position, unless no record holds it or it is selectively
    /// acknowledged, and returns its index.
    fn split(&mut self, position: u64) -> usize {
        let index = self.index_of(position);
        match self.records.get_mut(index) {
            Some(record) if record.start < position && !record.sacked => {
                let mut tail = *record;
                tail.start = position;
                self.sums.subtract(record);
                record.end = position;
                record.ends_transmission = false;
                self.sums.add(record);
                self.sums.add(&tail);
                self.records.insert(index + 1, tail);
                index + 1
            }
            _ => index,
        }
    }

    fn lose(&mut self, index: usize) {
        let record = &mut self.records[index];
        self.sums.subtract(record);
        record.lost = true;
        self.sums.add(record);
        self.lost_from = self.lost_from.min(record.start);
    }

    /// Marks positions in flight as lost, departed or not.
    pub(crate) fn lose_positions(&mut self, positions: Range<u64>) {
        let first = self.split(positions.start);
        let behind = self.split(positions.end);
        for index in first..behind {
            if self.records[index].is_in_flight() {
                self.lose(index);
            }
        }
    }

    /// Marks data as lost that was sent before the delivered transmission `newest` (departure,
    /// number, end) and is not delivered `wait` after its own departure (RFC 8985 §6.2 step 5).
    /// Returns the number of bytes marked, and when the next ones will be lost.
    ///
    /// All packets of a transmission have one departure, though they pass the bottleneck one after
    /// the other: each delivery makes the round trip look longer. The wait for packets missing
    /// before it has begun with the first one that overtook them, and does not begin again.
    pub(crate) fn lose_overtaken(
        &mut self,
        now: Instant,
        newest: (Instant, u64, u64),
        wait: Duration,
    ) -> (u64, Option<Instant>) {
        let lost_before = self.sums.lost;
        let mut next = Instant::NEVER;
        for index in 0..self.records.len() {
            let record = &mut self.records[index];
            let sent = (record.departed, record.transmission, record.end);
            if !record.is_in_flight() || record.departed == Instant::NEVER || sent >= newest {
                continue;
            }
            record.late_at = record.late_at.min(record.departed + wait);
            if record.late_at <= now {
                self.lose(index)
            } else {
                next = next.min(record.late_at)
            }
        }
        let next = (next != Instant::NEVER).then_some(next);
        (self.sums.lost - lost_before, next)
    }

    /// Marks data as lost that departed `wait` ago, and the oldest record, if it has departed at
    /// all.
    pub(crate) fn lose_departed(&mut self, now: Instant, wait: Duration) {
        for index in 0..self.records.len() {
            let record = &self.records[index];
            let departed = record.departed != Instant::NEVER;
            let late = departed && (index == 0 || record.departed + wait <= now);
            if record.is_in_flight() && late {
                self.lose(index);
            }
        }
    }

    /// Returns lost data that was not sent again to the flight.
    pub(crate) fn find_lost(&mut self) {
        for record in self.records.iter_mut().filter(|r| r.lost) {
            self.sums.subtract(record);
            record.lost = false;
            record.late_at = Instant::NEVER;
            self.sums.add(record);
        }
    }

    /// Marks selectively acknowledged data as lost: the peer has dropped it (RFC 2018 §8). It has
    /// departed, since it had arrived.
    pub(crate) fn forget_sacks(&mut self, now: Instant) {
        for index in 0..self.records.len() {
            let record = &mut self.records[index];
            if record.sacked {
                self.sums.subtract(record);
                record.sacked = false;
                record.lost = true;
                record.retransmitted = true;
                record.departed = record.departed.min(now);
                self.sums.add(record);
                self.lost_from = self.lost_from.min(record.start);
            }
        }
    }

    /// Returns the first run of lost positions: up to the next that are not, or just more than
    /// `bytes_max`.
    pub(crate) fn first_lost(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        if self.sums.lost == 0 {
            return None;
        }
        let (run, _) = self.run(self.lost_from, bytes_max, |r| r.lost);
        self.lost_from = run.as_ref()?.start;
        run
    }

    /// Returns true if lost data at this position may be sent again in part.
    pub(crate) fn may_split(&self, position: u64) -> bool {
        self.records.len() < SPLIT_RECORDS_MAX
            || self.records.front().is_some_and(|r| r.start == position)
    }

    /// Panics if the records violate the invariants above.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check(&self, una: u64, nxt: u64) {
        let mut at = una;
        let mut sums = Sums::default();
        let mut sacked_before = false;
        for record in &self.records {
            assert!(record.start == at && record.end > at, "in order, no gaps");
            assert!(!(record.sacked && record.lost));
            assert!(!(record.sacked && sacked_before), "neighbours are merged");
            assert!(!record.lost || record.start >= self.lost_from);
            assert!(!(record.void && record.waits()) || record.start >= self.void_from);
            sacked_before = record.sacked;
            at = record.end;
            sums.add(record);
        }
        assert!(self.records.is_empty() || at == nxt, "up to SND.NXT");
        assert_eq!(sums, self.sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const MSS: u16 = 1000;

    fn at(us: u64) -> Instant {
        Instant::from_us(us)
    }

    /// Two transmissions, 1..1001 and 1001..2001, that departed at 100 and 200 µs.
    fn departed() -> Scoreboard {
        let mut board = Scoreboard::default();
        let mut rate = DeliveryRate::default();
        for (transmission, start) in [(0, 1), (1, 1001)] {
            assert_eq!(board.issue(start..start + 1000), transmission);
            let at = at(100 * (transmission + 1));
            assert_eq!(
                board.depart(transmission, at, &mut rate),
                Departure::InFlight
            );
        }
        board
    }

    fn acknowledged(board: &mut Scoreboard, una: u64) -> Vec<(u64, u64, bool)> {
        let mut pieces = Vec::new();
        board.acknowledge(una, at(900), |p| {
            pieces.push((p.start, p.end, p.ends_transmission));
        });
        pieces
    }

    fn sacked(board: &mut Scoreboard, block: Range<u64>) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        board.sack(block, at(900), MSS, |p| pieces.push((p.start, p.end)));
        pieces
    }

    #[test]
    fn an_acknowledgment_takes_whole_and_partial_transmissions() {
        let mut board = departed();
        assert_eq!(acknowledged(&mut board, 301), [(1, 301, false)]);
        let rest = [(301, 1001, true), (1001, 1002, false)];
        assert_eq!(acknowledged(&mut board, 1002), rest);
        assert_eq!((board.flight(), board.outstanding()), (999, 999));
        assert_eq!(acknowledged(&mut board, 2001), [(1002, 2001, true)]);
        assert_eq!((board.flight(), board.outstanding()), (0, 0));
    }

    /// Covers: RFC 6675 §3
    #[test]
    fn blocks_split_records_and_neighbours_are_merged() {
        let mut board = departed();
        assert_eq!(sacked(&mut board, 501..601), [(501, 601)]);
        assert_eq!(board.records.len(), 4);
        assert_eq!(sacked(&mut board, 701..801), [(701, 801)]);
        assert_eq!(board.records.len(), 6);
        // Across blocks already known, and both transmissions.
        assert_eq!(
            sacked(&mut board, 401..1101),
            [(401, 501), (601, 701), (801, 1001), (1001, 1101)]
        );
        assert_eq!(board.records.len(), 3);
        assert_eq!((board.sacked(), board.flight()), (700, 1300));
        assert_eq!(sacked(&mut board, 401..1101), []);
        // The acknowledgment delivers no sacked byte a second time.
        assert_eq!(
            acknowledged(&mut board, 2001),
            [(1, 401, false), (1101, 2001, true)]
        );
    }

    #[test]
    fn a_retransmission_is_one_record_again_and_splits_at_most_one() {
        let mut board = departed();
        sacked(&mut board, 1501..2001);
        board.lose_positions(1..1501);
        assert_eq!(board.first_lost(u64::MAX), Some(1..1501));
        assert_eq!(board.reissue(1..1201), 2);
        assert_eq!(board.first_lost(u64::MAX), Some(1201..1501));
        assert_eq!((board.flight(), board.lost()), (1200, 300));
        assert!(!board.has_departed());
        assert_eq!(board.records.len(), 3);
        assert_eq!(board.reissue(1201..1501), 3);
        assert_eq!(board.first_lost(u64::MAX), None);
        board.check(1, 2001);
    }

    #[test]
    fn what_has_not_departed_is_not_overtaken() {
        let mut board = departed();
        let mut rate = DeliveryRate::default();
        board.lose_positions(1..501);
        let again = board.reissue(1..501);
        let newest = (at(300), 7, 5000);
        let wait = Duration::from_micros(50);
        assert_eq!(board.lose_overtaken(at(400), newest, wait), (1500, None));
        board.depart(again, at(290), &mut rate);
        let (lost, next) = board.lose_overtaken(at(300), newest, wait);
        assert_eq!((lost, next), (0, Some(at(340))));
        // A wait that has begun does not grow with the round-trip time.
        let longer = Duration::from_micros(500);
        assert_eq!(board.lose_overtaken(at(340), newest, longer), (500, None));
    }

    #[test]
    fn an_ack_may_come_before_the_report_of_departure() {
        let mut board = Scoreboard::default();
        let mut rate = DeliveryRate::default();
        let first = board.issue(1..1001);
        acknowledged(&mut board, 1001);
        assert!(!board.has_undeparted());
        let round_trip = Duration::from_micros(860);
        assert_eq!(
            board.depart(first, at(40), &mut rate),
            Departure::Acknowledged(round_trip)
        );
        assert_eq!(board.depart(first, at(40), &mut rate), Departure::Unknown);
    }

    #[test]
    fn reports_for_what_was_never_issued_change_nothing() {
        let mut board = Scoreboard::default();
        let mut rate = DeliveryRate::default();
        board.issue(1..2);
        for stranger in [1, 7, u64::MAX] {
            let departure = board.depart(stranger, at(1), &mut rate);
            assert_eq!(departure, Departure::Unknown);
        }
        assert_eq!(board.depart(0, at(1), &mut rate), Departure::InFlight);
        assert_eq!(board.depart(0, at(2), &mut rate), Departure::Unknown);
    }

    /// Covers: RFC 2018 §8
    #[test]
    fn forgotten_blocks_are_lost() {
        let mut board = departed();
        sacked(&mut board, 1..501);
        assert!(board.is_reneged());
        board.forget_sacks(at(1000));
        assert!(!board.is_reneged());
        assert_eq!(board.first_lost(u64::MAX), Some(1..501));
        assert_eq!(board.flight(), 1500);
    }

    /// Acknowledges every other byte, in blocks of one, and returns how many records that makes.
    fn splinter(board: &mut Scoreboard, positions: Range<u64>, mss: u16) -> usize {
        let nxt = positions.end;
        for start in positions.step_by(2) {
            board.sack(start..start + 1, at(1), mss, |_| {});
        }
        board.check(1, nxt);
        board.records.len()
    }

    #[test]
    fn splinters_do_not_eat_the_memory() {
        let mut board = Scoreboard::default();
        board.issue(1..100_001);
        assert!(splinter(&mut board, 2..100_001, 1) <= SPLIT_RECORDS_MAX + 1);
        // Growing blocks need no room.
        sacked(&mut board, 4000..100_001);
        board.check(1, 100_001);
        assert!(board.records.len() < SPLIT_RECORDS_MAX);
    }

    /// Covers: RFC 6675 §3
    #[test]
    fn splinters_make_no_more_records_than_segments_in_flight_can() {
        let records_max = |cuts| 2 * (ODD_CUTS_MAX as usize + cuts) + 3;
        let mut board = Scoreboard::default();
        let mut rate = DeliveryRate::default();
        let first = board.issue(1..100_001);
        board.depart(first, at(1), &mut rate);
        assert!(splinter(&mut board, 2..100_001, MSS) <= records_max(100));
        // Lost data between them is sent again, in segments, and makes no room for more.
        for _ in 0..100 {
            board.lose_departed(at(100), Duration::ZERO);
            while let Some(lost) = board.first_lost(1) {
                let again = board.reissue(lost.start..lost.end.min(lost.start + 1000));
                board.depart(again, at(2), &mut rate);
            }
            assert!(splinter(&mut board, 2..100_001, MSS) <= records_max(200));
        }
        // Acknowledgments of whole segments are always understood, however many transmissions hold
        // them.
        let mut board = Scoreboard::default();
        let mut end = 1;
        for len in [300_000, 65_000, 2_000, 700] {
            board.issue(end..end + len);
            end += len;
        }
        for start in (1001..end).step_by(2000) {
            let segment = start..(start + 1000).min(end);
            assert_eq!(
                sacked(&mut board, segment.clone()),
                [(segment.start, segment.end)]
            );
        }
        board.check(1, end);
    }

    #[test]
    fn issuing_again_looks_at_each_record_a_few_times() {
        let mut board = Scoreboard::default();
        let count = 8000;
        for number in 0..count {
            board.issue(1 + number * 1000..1 + (number + 1) * 1000);
        }
        board.void_all();
        let mut looks = 0;
        let mut issued = 0;
        while let Some(void) = board.first_void(3000) {
            looks += board.run(board.void_from, 3000, |r| r.void).1;
            let end = void.end.min(void.start + 3000);
            board.reissue_void(void.start..end);
            issued += end - void.start;
        }
        assert_eq!((issued, board.has_void()), (count * 1000, false));
        assert!(looks <= 2 * count as usize, "{looks}");
        // Void bytes behind the search position are found again.
        board.void(count, true);
        assert_eq!(board.first_void(u64::MAX), Some(1..3001));
    }

    /// Fate of a byte.
    #[derive(Clone, Copy, PartialEq)]
    enum Fate {
        Waits,
        Flies,
        Lost,
        Sacked,
    }

    #[test]
    fn it_agrees_with_a_list_of_bytes_whatever_happens() {
        let mut random = Random::new(1);
        let mut below = |n| random.below(n);
        for _ in 0..300 {
            let mut board = Scoreboard::default();
            let mut rate = DeliveryRate::default();
            // Of positions `una..`, each with the number of its latest transmission.
            let (mut una, mut bytes) = (1, VecDeque::<(Fate, u64)>::new());
            let mut unreported = VecDeque::new();
            for now in 1..200 {
                let nxt = una + bytes.len() as u64;
                let start = una + below(bytes.len() as u64 + 1);
                let end = (start + below(40)).min(nxt);
                let index = |position: u64| (position - una) as usize;
                match below(7) {
                    0 => {
                        let len = 1 + below(50);
                        let number = board.issue(nxt..nxt + len);
                        bytes.extend((0..len).map(|_| (Fate::Waits, number)));
                        unreported.push_back(number);
                    }
                    1 => {
                        if let Some(number) = unreported.pop_front() {
                            board.depart(number, at(now), &mut rate);
                            for (fate, latest) in &mut bytes {
                                if *latest == number && *fate == Fate::Waits {
                                    *fate = Fate::Flies;
                                }
                            }
                        }
                    }
                    2 => {
                        let mut told = 0;
                        board.sack(start..end, at(now), 1, |piece| told += piece.len());
                        let mut new = 0;
                        for (fate, _) in bytes.range_mut(index(start)..index(end)) {
                            new += u64::from(*fate != Fate::Sacked);
                            *fate = Fate::Sacked;
                        }
                        assert_eq!(told, new);
                    }
                    3 => {
                        let upto = (una + below(30)).min(nxt);
                        let mut told = 0;
                        board.acknowledge(upto, at(now), |piece| told += piece.len());
                        let gone = bytes.drain(..index(upto));
                        let new = gone.filter(|(fate, _)| *fate != Fate::Sacked).count();
                        assert_eq!(told, new as u64);
                        una = upto;
                    }
                    4 => {
                        board.lose_positions(start..end);
                        for (fate, _) in bytes.range_mut(index(start)..index(end)) {
                            if *fate != Fate::Sacked {
                                *fate = Fate::Lost;
                            }
                        }
                    }
                    5 => {
                        let first = bytes.iter().position(|(fate, _)| *fate == Fate::Lost);
                        let lost = board.first_lost(u64::MAX);
                        assert_eq!(first, lost.as_ref().map(|lost| index(lost.start)));
                        if let Some(lost) = lost {
                            let end = lost.start + 1 + below(lost.end - lost.start);
                            let number = board.reissue(lost.start..end);
                            for byte in bytes.range_mut(index(lost.start)..index(end)) {
                                assert!(byte.0 == Fate::Lost, "all of it is lost");
                                *byte = (Fate::Waits, number);
                            }
                            unreported.push_back(number);
                        }
                    }
                    _ => {
                        board.lose_departed(at(now), Duration::ZERO);
                        for (fate, _) in &mut bytes {
                            if *fate == Fate::Flies {
                                *fate = Fate::Lost;
                            }
                        }
                    }
                }
                let count = |wanted: Fate| {
                    let bytes = bytes.iter().filter(|(fate, _)| *fate == wanted);
                    bytes.count() as u64
                };
                let waits = count(Fate::Waits);
                assert_eq!(board.flight(), waits + count(Fate::Flies));
                assert_eq!(board.sums.undeparted, waits);
                assert_eq!(board.lost(), count(Fate::Lost));
                assert_eq!(board.sacked(), count(Fate::Sacked));
                board.check(una, una + bytes.len() as u64);
            }
        }
    }
}
