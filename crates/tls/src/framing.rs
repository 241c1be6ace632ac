//! Cuts plaintext into records.
//!
//! A client can use a record only when the whole record has arrived. So records are short while the
//! congestion window is small, at the start and after a pause, and as long as TLS allows otherwise.
//! Long ones end where the file offset is a multiple of their size: then no record straddles two
//! blocks of the NIC stack's cache.
//!
//! A short header before a long range, such as a DATA frame's, ends a record: the range begins the
//! next one, and the NIC stack seals it where it is instead of copying both together.

use std::collections::VecDeque;

use crate::run::{Piece, RunLimits};
use contract::limits::{RECORD_PLAINTEXT_BYTES_MAX, RECORD_TAIL_BYTES_MAX};

/// Plaintext of a record at the start, in bytes: two or three packets.
const SMALL_RECORD_BYTES: u64 = 4 << 10;

/// Plaintext that is sent in small records, in bytes: about the amount of the first two round
/// trips. Less than 64 KiB by one small record, so that the first long one of a response of that
/// length has room to become aligned.
const SMALL_BYTES: u64 = 60 << 10;

/// Real bytes before a range that are a header, at most: a DATA frame's 9 bytes, and a field block
/// before it. The NIC stack copies as many to the end of a record.
const HEADER_BYTES_MAX: u64 = RECORD_TAIL_BYTES_MAX as u64;

/// Bytes of a range that are worth a record of the header before it.
const LONG_RANGE_BYTES: u64 = RECORD_BYTES / 2;

/// Idle time after which records are small again, in microseconds.
const IDLE_US: u64 = 1_000_000;

const RECORD_BYTES: u64 = RECORD_PLAINTEXT_BYTES_MAX as u64;

#[derive(Debug)]
enum Extent {
    /// This number of bytes at the front of `real`.
    Real {
        len: u64,
    },
    Virtual {
        object: u32,
        offset: u64,
        len: u64,
    },
}

impl Extent {
    fn len(&self) -> u64 {
        match self {
            Extent::Real { len } | Extent::Virtual { len, .. } => *len,
        }
    }
}

/// An extent that waits, and how many bytes are before it.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    index: usize,
    start: u64,
}

/// Plaintext that waits to be cut.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    extents: VecDeque<Extent>,
    real: VecDeque<u8>,
    bytes: u64,
    /// Bytes cut into small records since the last pause.
    small_sent: u64,
    cut_us: u64,
    /// The queue was empty after the last cut: a pause began.
    was_empty: bool,
}

/// Plaintext of a run.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) record_plaintext_bytes: u16,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) follow_bytes: u64,
}

impl Cut {
    pub(crate) fn records(&self) -> u64 {
        let bytes: u64 = self.pieces.iter().map(Piece::len).sum();
        bytes.div_ceil(u64::from(self.record_plaintext_bytes).max(1))
    }
}

impl Framing {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stretches of real bytes, and ranges of objects, that wait.
    pub(crate) fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Memory for what waits, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.real.capacity() + self.extents.capacity() * size_of::<Extent>()
    }

    /// Real bytes that wait.
    pub(crate) fn real_bytes(&self) -> usize {
        self.real.len()
    }

    pub(crate) fn push_real(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let more = bytes.len() as u64;
        match self.extents.back_mut() {
            Some(Extent::Real { len }) => *len += more,
            _ => self.extents.push_back(Extent::Real { len: more }),
        }
        self.real.extend(bytes);
        self.bytes += more;
    }

    /// Queues a range of an object. False if it ends beyond what 64 bits count.
    pub(crate) fn push_virtual(&mut self, object: u32, offset: u64, len: u64) -> bool {
        let fits = offset.checked_add(len).is_some() && self.bytes.checked_add(len).is_some();
        if fits && len > 0 {
            let extent = Extent::Virtual {
                object,
                offset,
                len,
            };
            self.extents.push_back(extent);
            self.bytes += len;
        }
        fits
    }

    /// The first byte of an object that waits: the object, and its offset there.
    pub(crate) fn first_virtual(&self) -> Option<(u32, u64)> {
        self.extents.iter().find_map(|extent| match extent {
            Extent::Virtual { object, offset, .. } => Some((*object, *offset)),
            Extent::Real { .. } => None,
        })
    }

    /// Forgets everything; calls `released` with the object of each virtual extent.
    pub(crate) fn clear(&mut self, mut released: impl FnMut(u32)) {
        for extent in self.extents.drain(..) {
            if let Extent::Virtual { object, .. } = extent {
                released(object);
            }
        }
        self.real = VecDeque::new();
        self.bytes = 0;
    }

    /// Cuts the next run: as many records of one size as there are, and a shorter one to end with
    /// if it comes next. Never more than `records_max` records.
    pub(crate) fn cut(&mut self, now_us: u64, limits: &RunLimits, records_max: u64) -> Option<Cut> {
        // If something has waited all the while, the client is slow, and the server has not paused.
        if self.was_empty && now_us.saturating_sub(self.cut_us) > IDLE_US {
            self.small_sent = 0;
        }
        let bytes_max = self.fit(limits);
        let (mut end, mut cursor) = (0, Cursor::default());
        let mut record_bytes = 0;
        let mut records_left = records_max.min(limits.records_max as u64);
        while records_left > 0 {
            let is_small = self.small_sent < SMALL_BYTES;
            let len = self.record_bytes(&mut cursor, end, bytes_max, is_small);
            if record_bytes == 0 {
                record_bytes = len;
            }
            if len == 0 || len > record_bytes {
                break;
            }
            records_left -= 1;
            end += len;
            if is_small {
                self.small_sent += len;
            }
            if len < record_bytes {
                break;
            }
            if !is_small && len == RECORD_BYTES {
                let more = self.whole_records(cursor, end, bytes_max).min(records_left);
                debug_assert!((0..more).all(|n| {
                    let (start, mut cursor) = (end + n * RECORD_BYTES, cursor);
                    self.record_bytes(&mut cursor, start, bytes_max, false) == RECORD_BYTES
                }));
                records_left -= more;
                end += more * RECORD_BYTES;
            }
        }
        if end == 0 {
            return None;
        }
        self.cut_us = now_us;
        let pieces = self.take(end, cursor.index + 1);
        self.was_empty = self.bytes == 0;
        let follow_bytes = match (pieces.last(), self.extents.front()) {
            (
                Some(Piece::Virtual {
                    object,
                    offset,
                    len,
                    ..
                }),
                Some(Extent::Virtual {
                    object: next,
                    offset: next_offset,
                    len: follow_bytes,
                }),
            ) if object == next && offset + len == *next_offset => *follow_bytes,
            _ => 0,
        };
        Some(Cut {
            record_plaintext_bytes: record_bytes as u16,
            pieces,
            follow_bytes,
        })
    }

    /// Returns the number of bytes from the front that fit into a run.
    fn fit(&self, limits: &RunLimits) -> u64 {
        let mut bytes = 0;
        let mut real_bytes = limits.real_bytes_max as u64;
        for extent in self.extents.iter().take(limits.pieces_max) {
            match extent {
                Extent::Virtual { len, .. } => bytes += len,
                Extent::Real { len } => {
                    let taken = real_bytes.min(*len);
                    bytes += taken;
                    real_bytes -= taken;
                    if taken < *len {
                        break;
                    }
                }
            }
        }
        bytes
    }

    /// Moves on to the extent of a byte, which is not before the cursor.
    fn seek(&self, cursor: &mut Cursor, byte: u64) -> Option<&Extent> {
        while let Some(extent) = self.extents.get(cursor.index) {
            let end = cursor.start + extent.len();
            if end > byte {
                return Some(extent);
            }
            *cursor = Cursor {
                index: cursor.index + 1,
                start: end,
            };
        }
        None
    }

    /// Returns the length of the record that begins `start` bytes from the front, and moves to the
    /// extent in which it ends. The cursor is there already, or before.
    fn record_bytes(&self, cursor: &mut Cursor, start: u64, bytes_max: u64, is_small: bool) -> u64 {
        let left = bytes_max - start;
        if is_small {
            return left.min(SMALL_RECORD_BYTES);
        }
        if start == 0
            && let Some(header_bytes) = self.header_bytes()
        {
            return left.min(header_bytes);
        }
        let len = left.min(RECORD_BYTES);
        match self.seek(cursor, start + len) {
            Some(Extent::Virtual { offset, .. }) if cursor.start < start + len => {
                let first = offset + start.saturating_sub(cursor.start);
                let end = offset + (start + len - cursor.start);
                let aligned = [RECORD_BYTES, SMALL_RECORD_BYTES]
                    .map(|unit| end - end % unit)
                    .into_iter()
                    .find(|&aligned| aligned > first);
                len - (end - aligned.unwrap_or(end))
            }
            _ => len,
        }
    }

    /// Returns the length of a header at the front, which a long range follows.
    fn header_bytes(&self) -> Option<u64> {
        let mut extents = self.extents.iter();
        match (extents.next()?, extents.next()?) {
            (Extent::Real { len }, Extent::Virtual { len: range, .. }) => {
                (*len <= HEADER_BYTES_MAX && *range >= LONG_RANGE_BYTES).then_some(*len)
            }
            _ => None,
        }
    }

    /// Returns the number of full records that follow in the extent in whose middle a record has
    /// ended, `start` bytes from the front. If that end is aligned, theirs are, too; a record that
    /// has only just reached into the extent may have ended elsewhere, and the next one is shorter.
    /// The cursor is at the extent, or before.
    fn whole_records(&self, mut cursor: Cursor, start: u64, bytes_max: u64) -> u64 {
        let Some(Extent::Virtual { offset, len, .. }) = self.seek(&mut cursor, start) else {
            return 0;
        };
        let Some(before) = start.checked_sub(cursor.start).filter(|&before| before > 0) else {
            return 0;
        };
        if !(offset + before).is_multiple_of(RECORD_BYTES) {
            return 0;
        }
        let left = (cursor.start + len).min(bytes_max) - start;
        // The last record is excluded: it may share its end with another extent.
        (left / RECORD_BYTES).saturating_sub(1)
    }

    fn take(&mut self, bytes: u64, pieces_expected: usize) -> Vec<Piece> {
        self.bytes -= bytes;
        let mut pieces = Vec::with_capacity(pieces_expected);
        let mut left = bytes;
        while let Some(extent) = self.extents.front_mut().filter(|_| left > 0) {
            let taken = extent.len().min(left);
            left -= taken;
            let is_whole = taken == extent.len();
            match extent {
                Extent::Real { len } => {
                    *len -= taken;
                    let bytes = self.real.drain(..taken as usize).collect();
                    pieces.push(Piece::Real(bytes));
                }
                Extent::Virtual {
                    object,
                    offset,
                    len,
                } => {
                    pieces.push(Piece::Virtual {
                        object: *object,
                        offset: *offset,
                        len: taken,
                        is_last: is_whole,
                    });
                    *offset += taken;
                    *len -= taken;
                }
            }
            if is_whole {
                self.extents.pop_front();
            }
        }
        if self.real.is_empty() {
            self.real = VecDeque::new();
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RunLimits = RunLimits {
        records_max: 64,
        pieces_max: 32,
        real_bytes_max: 4096,
        outstanding_max: u64::MAX,
        keys_max: usize::MAX,
    };

    /// Records as (plaintext bytes, file offset behind them, if they end in a file).
    fn records(framing: &mut Framing, now_us: u64) -> Vec<(u64, Option<u64>)> {
        let mut records = Vec::new();
        while let Some(cut) = framing.cut(now_us, &LIMITS, u64::MAX) {
            let total: u64 = cut.pieces.iter().map(Piece::len).sum();
            let each = u64::from(cut.record_plaintext_bytes);
            let mut start = 0;
            while start < total {
                let end = (start + each).min(total);
                let mut piece_start = 0;
                let mut file_offset = None;
                for piece in &cut.pieces {
                    if let Piece::Virtual { offset, .. } = piece
                        && piece_start < end
                        && end <= piece_start + piece.len()
                    {
                        file_offset = Some(offset + end - piece_start);
                    }
                    piece_start += piece.len();
                }
                records.push((end - start, file_offset));
                start = end;
            }
        }
        records
    }

    #[test]
    fn a_response_begins_in_small_records_and_goes_on_in_aligned_long_ones() {
        let mut framing = Framing::default();
        framing.push_real(&[b'h'; 300]);
        framing.push_virtual(7, 0, 500_000);
        let records = records(&mut framing, 1);
        assert_eq!(records[..15], {
            let mut small: Vec<_> = (1..=15).map(|n| (4096, Some(n * 4096 - 300))).collect();
            small.truncate(15);
            small
        });
        // Up to the next multiple of 16 KiB, then whole ones, then the rest.
        assert_eq!(records[15], (65536 - (61440 - 300), Some(65536)));
        let long = &records[16..records.len() - 1];
        assert_eq!(long.len(), 26);
        for (n, record) in (1..).zip(long) {
            assert_eq!(*record, (16384, Some(65536 + n * 16384)));
        }
        assert_eq!(
            records.last(),
            Some(&(500_000 - 65536 - 26 * 16384, Some(500_000)))
        );
        assert_eq!(records.iter().map(|(len, _)| len).sum::<u64>(), 500_300);
    }

    #[test]
    fn a_long_record_that_ends_anywhere_is_followed_by_one_that_does_not() {
        let mut framing = Framing::default();
        framing.push_virtual(7, 0, 100_000);
        records(&mut framing, 1);
        // The end of the first record is a few bytes into the second part: there is no multiple of
        // anything before it.
        framing.push_virtual(7, 0, 16_284);
        framing.push_virtual(7, 200_000, 100_000);
        let mut expected = vec![(16_384, Some(200_100)), (12_892, Some(212_992))];
        expected.extend((1..=5).map(|n| (16_384, Some(212_992 + n * 16_384))));
        expected.push((5_088, Some(300_000)));
        assert_eq!(records(&mut framing, 1), expected);
    }

    #[test]
    fn the_next_response_on_the_connection_is_long_at_once_and_small_after_a_pause() {
        let mut framing = Framing::default();
        framing.push_virtual(7, 0, 100_000);
        records(&mut framing, 1);
        framing.push_real(&[b'h'; 300]);
        framing.push_virtual(7, 0, 100_000);
        let second = records(&mut framing, 1_000_000);
        assert_eq!(second[0], (300 + 12288, Some(12288)));
        assert_eq!(second[1], (4096, Some(16384)));
        assert_eq!(second[2], (16384, Some(32768)));
        framing.push_virtual(7, 0, 100_000);
        assert_eq!(records(&mut framing, 3_000_000)[0].0, 4096);
    }

    #[test]
    fn a_client_that_is_slow_does_not_get_small_records_again() {
        let mut framing = Framing::default();
        framing.push_virtual(7, 0, 10 << 20);
        for seconds in 0.. {
            // A megabyte, and then no request for two seconds.
            let Some(cut) = framing.cut(seconds * 2_000_000, &LIMITS, u64::MAX) else {
                break;
            };
            let each = cut.record_plaintext_bytes;
            assert!(seconds == 0 || each == 16_384, "{each} at {seconds} s");
        }
    }

    #[test]
    fn a_header_and_a_small_file_are_one_record() {
        let mut framing = Framing::default();
        framing.push_real(&[b'h'; 300]);
        framing.push_virtual(7, 0, 2000);
        assert_eq!(records(&mut framing, 1), [(2300, Some(2000))]);
    }

    #[test]
    fn the_header_of_a_range_goes_with_the_record_before_it() {
        const HEADER: [u8; 9] = [b'h'; 9];
        let mut framing = Framing::default();
        framing.push_virtual(7, 0, SMALL_BYTES);
        records(&mut framing, 1);
        for frame in 0..3 {
            framing.push_real(&HEADER);
            framing.push_virtual(7, frame * 16_375, 16_375);
        }
        let expected = [
            (9, None),
            (16_384, None),
            (16_384, None),
            (16_375, Some(3 * 16_375)),
        ];
        assert_eq!(records(&mut framing, 1), expected);
        // Neither a long header nor a short range is worth a record.
        framing.push_real(&[b'h'; 300]);
        framing.push_virtual(7, 0, 10_000);
        assert_eq!(records(&mut framing, 1), [(10_300, Some(10_000))]);
        framing.push_real(&HEADER);
        framing.push_virtual(7, 0, 1000);
        assert_eq!(records(&mut framing, 1), [(1009, Some(1000))]);
    }

    #[test]
    fn a_run_says_how_the_file_goes_on() {
        let mut framing = Framing::default();
        framing.push_virtual(7, 0, 5 << 20);
        framing.push_virtual(7, 0, 10);
        let first = framing.cut(1, &LIMITS, u64::MAX).unwrap();
        // The small records, and one as small up to a multiple of 16 KiB.
        assert_eq!(first.follow_bytes, (5 << 20) - (64 << 10));
        let rest = std::iter::from_fn(|| framing.cut(1, &LIMITS, u64::MAX));
        let last = rest.last().unwrap();
        assert_eq!(last.pieces.len(), 2, "two ranges of one file");
        assert_eq!(last.follow_bytes, 0);
    }

    #[test]
    fn runs_stay_within_their_limits() {
        let mut framing = Framing::default();
        for n in 0..100 {
            framing.push_real(&[0; 700]);
            framing.push_virtual(n, 3, 1000);
        }
        let mut bytes = 0;
        while let Some(cut) = framing.cut(1, &LIMITS, 5) {
            let real = cut.pieces.iter().map(|piece| match piece {
                Piece::Real(bytes) => bytes.len(),
                Piece::Virtual { .. } => 0,
            });
            assert!(real.sum::<usize>() <= LIMITS.real_bytes_max);
            assert!(cut.pieces.len() <= LIMITS.pieces_max);
            let total: u64 = cut.pieces.iter().map(Piece::len).sum();
            assert!(total.div_ceil(u64::from(cut.record_plaintext_bytes)) <= 5);
            bytes += total;
        }
        assert_eq!(bytes, 170_000);
    }
}
