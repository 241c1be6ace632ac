//! The sent stream, from the first byte not acknowledged to the last one queued.
//!
//! It is a list of extents. Real bytes are here; virtual bytes are ranges of objects that only the
//! NIC stack can read. All offsets are stream offsets: byte 0 is the first after the SYN.

use std::collections::VecDeque;
use std::ops::Range;

use crate::config::Limits;

/// Longest stream. Leaves room for arithmetic on offsets.
const STREAM_BYTES_MAX: u64 = 1 << 62;

/// A buffer that has grown beyond this is given back when it becomes empty.
const IDLE_BYTES_MAX: usize = 2 << 10;

/// Extents for which an empty queue keeps memory: heads and contents of two responses.
const SPARE_MAX: usize = 4;

/// A piece of a [`crate::Transmit`]'s payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes to send.
    Real(&'a [u8]),
    /// A range of an object to send. Not empty.
    Virtual {
        /// The object.
        object: u32,
        /// Offset of the first byte in the object.
        offset: u64,
        /// Length, in bytes.
        len: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// Real bytes, `position` bytes after the first real byte ever queued.
    Real {
        position: u64,
    },
    Virtual {
        object: u32,
        offset: u64,
    },
}

/// A run of bytes of one kind: `start..end` of the stream.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    end: u64,
    content: Content,
}

/// The queued bytes that are not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// Adjacent, in order, not empty. The first may be acknowledged in part.
    extents: VecDeque<Extent>,
    real: RealBytes,
    acknowledged: u64,
    end: u64,
}

impl SendQueue {
    /// Frees unused memory, but for the room of a few extents.
    pub(crate) fn shrink(&mut self) {
        self.extents.shrink_to(SPARE_MAX);
    }

    /// Returns the offset of the first byte not acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the offset behind the last byte queued.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.acknowledged == self.end
    }

    pub(crate) fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Returns the number of real bytes queued and not acknowledged.
    pub(crate) fn real_bytes(&self) -> usize {
        self.real.len()
    }

    /// Returns the memory held for queued data, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let extents = self.extents.capacity().saturating_sub(SPARE_MAX);
        self.real.bytes.capacity() + extents * size_of::<Extent>()
    }

    /// Queues real bytes; the caller has checked the bounds.
    pub(crate) fn push_real(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.extents.capacity() == 0 {
            // A head and its content; a deque that grows by itself begins with four.
            self.extents.reserve_exact(2);
        }
        let end = self.end + bytes.len() as u64;
        match self.extents.back_mut() {
            Some(Extent {
                end: extent_end,
                content: Content::Real { .. },
                ..
            }) => *extent_end = end,
            _ => {
                let content = Content::Real {
                    position: self.real.end(),
                };
                self.extents.push_back(Extent {
                    start: self.end,
                    end,
                    content,
                });
            }
        }
        self.real.push(bytes);
        self.end = end;
    }

    /// Returns true if real bytes would continue the last extent.
    pub(crate) fn ends_real(&self) -> bool {
        matches!(
            self.extents.back(),
            Some(Extent {
                content: Content::Real { .. },
                ..
            })
        )
    }

    /// Returns the number of virtual bytes from `start` on.
    pub(crate) fn virtual_bytes_from(&self, start: u64) -> u64 {
        self.extents_from(start)
            .filter(|extent| matches!(extent.content, Content::Virtual { .. }))
            .map(|extent| extent.end - extent.start.max(start))
            .sum()
    }

    /// Queues a range of an object. Returns false if the range or the stream would be too long.
    pub(crate) fn push_virtual(&mut self, object: u32, offset: u64, len: u64) -> bool {
        let fits = len <= STREAM_BYTES_MAX - self.end && offset.checked_add(len).is_some();
        if fits && len > 0 {
            let content = Content::Virtual { object, offset };
            self.extents.push_back(Extent {
                start: self.end,
                end: self.end + len,
                content,
            });
            self.end += len;
        }
        fits
    }

    /// Removes everything before `upto`, which must not lie behind the end. Calls `released` with
    /// object and end of each virtual extent that is removed.
    #[inline]
    pub(crate) fn acknowledge(&mut self, upto: u64, released: impl FnMut(u32, u64)) {
        debug_assert!(upto <= self.end);
        // Most often this is a part of a file, and changes only `acknowledged`.
        if !self.is_of_first_object(self.acknowledged, upto + 1) {
            self.release(upto, released);
        }
        self.acknowledged = self.acknowledged.max(upto);
    }

    #[inline(never)]
    fn release(&mut self, upto: u64, mut released: impl FnMut(u32, u64)) {
        while let Some(&Extent {
            start,
            end,
            content,
        }) = self.extents.front()
        {
            let done = end <= upto;
            match content {
                Content::Real { position } => self
                    .real
                    .release(position + (upto.min(end).max(start) - start)),
                Content::Virtual { object, .. } if done => released(object, end),
                Content::Virtual { .. } => {}
            }
            if !done {
                break;
            }
            self.extents.pop_front();
        }
    }

    /// Returns true if a range lies within a virtual extent that comes first, as it does while a
    /// long file is sent.
    #[inline]
    pub(crate) fn is_of_first_object(&self, start: u64, end: u64) -> bool {
        let first = self.extents.front();
        first.is_some_and(|extent| {
            extent.start <= start
                && end <= extent.end
                && matches!(extent.content, Content::Virtual { .. })
        })
    }

    /// Returns how many bytes from `start` on, at most `len_max`, stay within the limits.
    #[inline]
    pub(crate) fn fit(&self, start: u64, len_max: u64, limits: &Limits) -> u64 {
        let end_max = start + len_max.min(limits.bytes_max as u64);
        if self.is_of_first_object(start, end_max) && limits.pieces_max > 0 {
            end_max - start
        } else {
            self.fit_extents(start, end_max, limits)
        }
    }

    #[inline(never)]
    fn fit_extents(&self, start: u64, end_max: u64, limits: &Limits) -> u64 {
        let mut end = start;
        let mut real_bytes = limits.real_bytes_max as u64;
        let direct_bytes = limits.direct_bytes_max as u64;
        for extent in self.extents_from(start).take(limits.pieces_max) {
            if end >= end_max {
                break;
            }
            let extent_end = extent.end.min(end_max);
            match extent.content {
                Content::Virtual { .. } => end = extent_end,
                Content::Real { .. } => {
                    let direct_bytes = if end == start { direct_bytes } else { 0 };
                    let taken = (extent_end - end).min(real_bytes.max(direct_bytes));
                    end += taken;
                    if end < extent_end || taken > real_bytes {
                        break;
                    }
                    real_bytes -= taken;
                }
            }
        }
        end - start
    }

    /// Returns true if any byte of the range is virtual.
    #[inline]
    pub(crate) fn has_virtual(&self, range: &Range<u64>) -> bool {
        if self.is_of_first_object(range.start, range.end) {
            !range.is_empty()
        } else {
            self.any_virtual(range)
        }
    }

    #[inline(never)]
    fn any_virtual(&self, range: &Range<u64>) -> bool {
        self.extents_from(range.start)
            .take_while(|extent| extent.start.max(range.start) < range.end)
            .any(|extent| matches!(extent.content, Content::Virtual { .. }))
    }

    /// Returns the piece of a range that lies within the first virtual extent, and the bytes of
    /// that extent behind it; `None` for any other range.
    #[inline]
    pub(crate) fn only_piece(&self, range: &Range<u64>) -> Option<(Piece<'_>, u64)> {
        let &Extent {
            start,
            end,
            content,
        } = self.extents.front()?;
        let whole = self.acknowledged <= range.start && range.start < range.end;
        match content {
            Content::Virtual { object, offset }
                if whole && self.is_of_first_object(range.start, range.end) =>
            {
                let piece = Piece::Virtual {
                    object,
                    offset: offset + (range.start - start),
                    len: range.end - range.start,
                };
                Some((piece, end - range.end))
            }
            _ => None,
        }
    }

    /// Returns the pieces of a range, without bytes that are acknowledged already, or not queued.
    pub(crate) fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece<'_>> + Clone {
        let first = range.start.max(self.acknowledged);
        self.extents_from(first)
            .take_while(move |extent| extent.start.max(first) < range.end)
            .map(move |extent| {
                let start = extent.start.max(first);
                let end = extent.end.min(range.end);
                let skipped = start - extent.start;
                match extent.content {
                    Content::Real { position } => {
                        Piece::Real(self.real.slice(position + skipped, end - start))
                    }
                    Content::Virtual { object, offset } => Piece::Virtual {
                        object,
                        offset: offset + skipped,
                        len: end - start,
                    },
                }
            })
    }

    /// Returns how many bytes behind `end` belong to the virtual extent of the byte before `end`.
    pub(crate) fn virtual_bytes_behind(&self, end: u64) -> u64 {
        let last = end.saturating_sub(1);
        match self.extent_of(last) {
            Some(extent)
                if extent.start <= last && matches!(extent.content, Content::Virtual { .. }) =>
            {
                extent.end - end.min(extent.end)
            }
            _ => 0,
        }
    }

    /// Returns the extent of a byte, or the first one behind it.
    #[inline]
    fn extent_of(&self, byte: u64) -> Option<&Extent> {
        self.extents.get(self.index_from(byte))
    }

    /// Returns the extents that end behind `start`, in order.
    #[inline(always)]
    fn extents_from(&self, start: u64) -> impl Iterator<Item = &Extent> + Clone {
        self.extents.iter().skip(self.index_from(start))
    }

    /// Returns the index of the first extent that ends behind `start`.
    #[inline]
    fn index_from(&self, start: u64) -> usize {
        match self.extents.front() {
            // Most often nothing but one file is queued.
            Some(extent) if start < extent.end => 0,
            _ => self.extents.partition_point(|extent| extent.end <= start),
        }
    }
}

/// The real bytes of a queue, in one contiguous run, so that a piece is one slice.
#[derive(Debug, Default)]
struct RealBytes {
    bytes: Vec<u8>,
    /// Bytes at the beginning of `bytes` that are released already.
    head: usize,
    /// Position of the first byte not released.
    released: u64,
}

impl RealBytes {
    fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    fn end(&self) -> u64 {
        self.released + self.len() as u64
    }

    fn push(&mut self, bytes: &[u8]) {
        // Move the remaining bytes to the front if that makes room, and at most as many bytes as
        // were released.
        if self.bytes.capacity() - self.bytes.len() < bytes.len() && self.head >= self.len() {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn release(&mut self, upto: u64) {
        let count = (upto.saturating_sub(self.released) as usize).min(self.len());
        self.head += count;
        self.released += count as u64;
        if self.head == self.bytes.len() {
            self.head = 0;
            self.bytes.clear();
            if self.bytes.capacity() > IDLE_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }

    fn slice(&self, position: u64, len: u64) -> &[u8] {
        let start = self.head + position.saturating_sub(self.released) as usize;
        self.bytes
            .get(start..start + len as usize)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Limits = Limits {
        bytes_max: usize::MAX,
        pieces_max: usize::MAX,
        real_bytes_max: usize::MAX,
        direct_bytes_max: 0,
    };

    fn queue() -> SendQueue {
        let mut queue = SendQueue::default();
        queue.push_real(b"head");
        assert!(queue.push_virtual(7, 100, 1000));
        queue.push_real(b"mid");
        queue.push_real(b"dle");
        assert!(queue.push_virtual(8, 0, 5 << 32));
        queue
    }

    fn virtual_piece(object: u32, offset: u64, len: u64) -> Piece<'static> {
        Piece::Virtual {
            object,
            offset,
            len,
        }
    }

    #[test]
    fn what_follows_is_of_the_same_extent() {
        let mut queue = queue();
        for (end, follows) in [
            (0, 0),
            (4, 0),
            (5, 999),
            (1003, 1),
            (1004, 0),
            (1010, 0),
            (1011, (5 << 32) - 1),
            (1010 + (5 << 32), 0),
            (1011 + (5 << 32), 0),
        ] {
            assert_eq!(queue.virtual_bytes_behind(end), follows, "behind {end}");
        }
        queue.acknowledge(500, |_, _| {});
        assert_eq!(queue.virtual_bytes_behind(600), 404);
    }

    #[test]
    fn virtual_bytes_are_counted_from_any_offset() {
        let mut queue = queue();
        let far = 5 << 32;
        let counts = [
            (0, 1000 + far),
            (4, 1000 + far),
            (5, 999 + far),
            (1004, far),
        ];
        for (start, count) in counts {
            assert_eq!(queue.virtual_bytes_from(start), count, "from {start}");
        }
        assert_eq!(queue.virtual_bytes_from(queue.end() - 1), 1);
        assert_eq!(queue.virtual_bytes_from(queue.end()), 0);
        queue.acknowledge(500, |_, _| {});
        assert_eq!(queue.virtual_bytes_from(600), 404 + far);
    }

    #[test]
    fn what_is_known_at_a_glance_is_what_a_search_finds() {
        let mut queue = queue();
        assert_eq!(queue.only_piece(&(10..600)), None, "real bytes come first");
        queue.acknowledge(500, |_, _| {});
        for range in [500..501, 510..600, 1003..1004] {
            let (piece, behind) = queue.only_piece(&range).expect("one piece");
            assert!(queue.pieces(range.clone()).eq([piece]), "{range:?}");
            assert_eq!(behind, queue.virtual_bytes_behind(range.end), "{range:?}");
        }
        for range in [499..510, 510..510, 510..1005] {
            assert_eq!(queue.only_piece(&range), None, "{range:?}");
        }
    }

    #[test]
    fn pieces_cover_any_range_across_extents() {
        let queue = queue();
        let pieces = |range| queue.pieces(range).collect::<Vec<_>>();
        assert_eq!(pieces(0..4), [Piece::Real(b"head")]);
        assert_eq!(
            pieces(2..14),
            [Piece::Real(b"ad"), virtual_piece(7, 100, 10)]
        );
        assert_eq!(
            pieces(1003..1011),
            [
                virtual_piece(7, 1099, 1),
                Piece::Real(b"middle"),
                virtual_piece(8, 0, 1)
            ]
        );
        assert_eq!(
            pieces(5 << 32..(5 << 32) + 9),
            [virtual_piece(8, (5 << 32) - 1010, 9)]
        );
        assert_eq!(pieces(queue.end()..queue.end() + 5), []);
        assert_eq!(pieces(9..9), []);
    }

    #[test]
    fn limits_end_a_run_where_they_must() {
        let queue = queue();
        assert_eq!(queue.fit(0, 1 << 20, &WIDE), 1 << 20);
        assert_eq!(
            queue.fit(
                0,
                1 << 20,
                &Limits {
                    bytes_max: 1003,
                    ..WIDE
                }
            ),
            1003
        );
        assert_eq!(
            queue.fit(
                0,
                1 << 20,
                &Limits {
                    pieces_max: 2,
                    ..WIDE
                }
            ),
            1004
        );
        assert_eq!(
            queue.fit(
                0,
                1 << 20,
                &Limits {
                    pieces_max: 3,
                    ..WIDE
                }
            ),
            1010
        );
        assert_eq!(
            queue.fit(
                0,
                1 << 20,
                &Limits {
                    real_bytes_max: 3,
                    ..WIDE
                }
            ),
            3
        );
        assert_eq!(
            queue.fit(
                0,
                1 << 20,
                &Limits {
                    real_bytes_max: 7,
                    ..WIDE
                }
            ),
            1007
        );
        assert_eq!(
            queue.fit(
                0,
                1 << 20,
                &Limits {
                    real_bytes_max: 10,
                    ..WIDE
                }
            ),
            1 << 20
        );
        assert_eq!(queue.fit(queue.end() - 5, 10, &WIDE), 5);
        assert!(!queue.has_virtual(&(0..4)));
        assert!(queue.has_virtual(&(0..5)));
        assert!(!queue.has_virtual(&(1004..1010)));
    }

    #[test]
    fn an_acknowledgment_releases_whole_virtual_extents_and_any_real_byte() {
        let mut queue = queue();
        let mut released = Vec::new();
        queue.acknowledge(3, |object, end| released.push((object, end)));
        assert_eq!(queue.real_bytes(), 7);
        assert_eq!(queue.pieces(0..4).collect::<Vec<_>>(), [Piece::Real(b"d")]);
        queue.acknowledge(1003, |object, end| released.push((object, end)));
        assert_eq!(released, []);
        queue.acknowledge(1006, |object, end| released.push((object, end)));
        assert_eq!(released, [(7, 1004)]);
        assert_eq!(
            queue.pieces(0..1010).collect::<Vec<_>>(),
            [Piece::Real(b"ddle")]
        );
        let end = queue.end();
        queue.acknowledge(end, |object, end| released.push((object, end)));
        assert_eq!(released, [(7, 1004), (8, end)]);
        assert!(queue.is_empty());
        assert_eq!(queue.real_bytes(), 0);
        queue.push_real(b"again");
        assert_eq!(
            queue.pieces(end..end + 5).collect::<Vec<_>>(),
            [Piece::Real(b"again")]
        );
    }

    #[test]
    fn real_bytes_keep_their_place_while_the_buffer_moves() {
        let mut queue = SendQueue::default();
        let byte = |offset: u64| (offset * 31 % 251) as u8;
        let mut upto = 0;
        for round in 0..500u64 {
            let start = queue.end();
            let len = 1 + round * 7 % 90;
            queue.push_real(&(start..start + len).map(byte).collect::<Vec<_>>());
            upto = queue.end() - (queue.end() - upto).min(round % 50);
            queue.acknowledge(upto, |_, _| unreachable!("nothing is virtual"));
            let left: Vec<u8> = (upto..queue.end()).map(byte).collect();
            let pieces: Vec<_> = queue.pieces(upto..queue.end()).collect();
            if left.is_empty() {
                assert_eq!(pieces, []);
            } else {
                assert_eq!(pieces, [Piece::Real(&left)]);
            }
        }
    }

    #[test]
    fn ranges_that_overflow_are_refused() {
        let mut queue = SendQueue::default();
        assert!(!queue.push_virtual(1, 0, u64::MAX));
        assert!(!queue.push_virtual(1, u64::MAX, 2));
        assert!(queue.push_virtual(1, 5, 1 << 61));
        assert!(!queue.push_virtual(1, 5, 1 << 62));
    }
}
