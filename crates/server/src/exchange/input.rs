//! Received bytes not consumed yet.
//!
//! A connection without a partial request has no buffer: thousands of idle ones cost only their
//! table entries. Buffers come from a pool and return to it. They are small: each request has one
//! until its file is open, and few heads are long. A full buffer is replaced by one of twice its
//! size, which is not pooled. An incomplete head that fills less than half of its buffer moves to
//! one of its length.

use std::ops::Range;

use host::app::{Io, StreamId};

/// Spare buffers, all small.
#[derive(Debug)]
pub(crate) struct Pool {
    spare: Vec<Box<[u8]>>,
    buffer_bytes_max: usize,
}

/// Size of a small buffer, in bytes: browsers' heads are mostly shorter.
const SMALL_BYTES: usize = 2 << 10;

/// Most spare buffers kept: four megabytes. After a pause of the host the requests of a thousand
/// connections may arrive at once, and such a peak may recur.
const SPARE_MAX: usize = 2048;

impl Pool {
    /// Creates a pool of buffers of at most `buffer_bytes_max` bytes.
    pub(crate) fn new(buffer_bytes_max: usize) -> Self {
        Pool {
            spare: Vec::new(),
            buffer_bytes_max,
        }
    }

    /// Limits buffers taken or enlarged from now on to `buffer_bytes_max` bytes.
    pub(crate) fn resize(&mut self, buffer_bytes_max: usize) {
        let small_bytes = self.small_bytes();
        self.buffer_bytes_max = buffer_bytes_max;
        if self.small_bytes() != small_bytes {
            self.spare.clear();
        }
    }

    fn small_bytes(&self) -> usize {
        self.buffer_bytes_max.min(SMALL_BYTES)
    }

    fn take(&mut self) -> Box<[u8]> {
        let spare = self.spare.pop();
        spare.unwrap_or_else(|| vec![0; self.small_bytes()].into_boxed_slice())
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < SPARE_MAX && buffer.len() == self.small_bytes() {
            self.spare.push(buffer);
        }
    }

    /// Replaces a buffer by one of at least `wanted` bytes and twice its size, up to the limit,
    /// with the same content.
    #[cold]
    fn enlarge(&mut self, small: &mut Box<[u8]>, wanted: usize) {
        let bytes = wanted.max(2 * small.len()).max(self.small_bytes());
        let mut large = vec![0; bytes.min(self.buffer_bytes_max)].into_boxed_slice();
        large[..small.len()].copy_from_slice(small);
        self.give(std::mem::replace(small, large));
    }

    /// Replaces a buffer with much free room by one of exactly these bytes.
    #[cold]
    fn shrink(&mut self, large: &mut Box<[u8]>, bytes: Range<usize>) {
        let small = large[bytes].to_vec().into_boxed_slice();
        self.give(std::mem::replace(large, small));
    }
}

/// The bytes `start..end` of a buffer, if there is one. Without a buffer both are 0.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Option<Box<[u8]>>,
    // A buffer has less than 4 GiB.
    start: u32,
    end: u32,
}

impl Input {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| {
            &buffer[self.start as usize..self.end as usize]
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The largest buffer is full.
    pub(crate) fn is_full(&self, pool: &Pool) -> bool {
        self.bytes().len() >= pool.buffer_bytes_max
    }

    /// Discards the first `count` bytes, or all if there are fewer.
    pub(crate) fn consume(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.start = self.start.saturating_add(count).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads from the stream into the buffer; returns the number of bytes, 0 also if the buffer is
    /// full.
    pub(crate) fn fill(&mut self, io: &mut dyn Io, stream: StreamId, pool: &mut Pool) -> usize {
        let room = self.room(1, pool);
        let count = io.read(stream, room).min(room.len());
        self.end += count as u32;
        count
    }

    /// Reads and discards what the stream has, up to `bytes_left`, and gives the buffer back.
    /// `unread`: the stream may hold bytes.
    pub(crate) fn discard(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        pool: &mut Pool,
        unread: &mut bool,
        bytes_left: &mut u64,
    ) {
        while *unread && *bytes_left > 0 {
            let count = self.fill(io, stream, pool);
            self.consume(count);
            *bytes_left = bytes_left.saturating_sub(count as u64);
            *unread = count > 0;
        }
        self.release(pool);
    }

    /// Appends bytes; false if the largest buffer has no room for them.
    pub(crate) fn append(&mut self, bytes: &[u8], pool: &mut Pool) -> bool {
        let Some(room) = self.room(bytes.len(), pool).get_mut(..bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.end += bytes.len() as u32;
        true
    }

    /// Returns the free part of the buffer: at least `wanted` bytes, unless the largest buffer has
    /// fewer.
    fn room(&mut self, wanted: usize, pool: &mut Pool) -> &mut [u8] {
        let buffer = self.buffer.get_or_insert_with(|| pool.take());
        let (start, end) = (self.start as usize, self.end as usize);
        if start > 0 {
            buffer.copy_within(start..end, 0);
            (self.start, self.end) = (0, (end - start) as u32);
        }
        let end = self.end as usize;
        if buffer.len() - end < wanted && buffer.len() < pool.buffer_bytes_max {
            pool.enlarge(buffer, end + wanted);
        }
        &mut buffer[end..]
    }

    /// Memory of the buffer, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// Releases the free part of the buffer if it is more than half, while more bytes must arrive.
    pub(crate) fn shrink(&mut self, pool: &mut Pool) {
        let (start, end) = (self.start as usize, self.end as usize);
        if let Some(buffer) = &mut self.buffer
            && end - start < buffer.len() / 2
        {
            pool.shrink(buffer, start..end);
            (self.start, self.end) = (0, (end - start) as u32);
        }
    }

    /// Returns the buffer to the pool if it is empty.
    pub(crate) fn release_if_empty(&mut self, pool: &mut Pool) {
        if self.is_empty() {
            self.release(pool);
        }
    }

    /// Returns the buffer to the pool, discarding its content.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        (self.start, self.end) = (0, 0);
        if let Some(buffer) = self.buffer.take() {
            pool.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_makes_way_for_a_larger_one_and_only_small_ones_are_kept() {
        let mut pool = Pool::new(16 << 10);
        let mut buffer = pool.take();
        assert_eq!(buffer.len(), SMALL_BYTES);
        buffer.fill(b'x');
        pool.enlarge(&mut buffer, SMALL_BYTES + 1);
        assert_eq!(buffer.len(), 2 * SMALL_BYTES);
        assert!(buffer[..SMALL_BYTES].iter().all(|&byte| byte == b'x'));
        pool.enlarge(&mut buffer, 3 * SMALL_BYTES);
        assert_eq!(buffer.len(), 4 * SMALL_BYTES);
        pool.enlarge(&mut buffer, 1 << 30);
        assert_eq!(buffer.len(), 16 << 10);
        pool.give(buffer);
        assert_eq!(pool.spare.len(), 1, "the small one");
        assert_eq!(pool.take().len(), SMALL_BYTES);
    }

    #[test]
    fn what_waits_has_a_buffer_of_its_length() {
        let mut pool = Pool::new(16 << 10);
        let mut input = Input::default();
        assert!(input.append(&[b'x'; 100], &mut pool));
        input.consume(10);
        input.shrink(&mut pool);
        assert_eq!((input.memory_bytes(), pool.spare.len()), (90, 1));
        assert!(input.append(&[b'y'; 3000], &mut pool));
        assert_eq!(input.memory_bytes(), 3090);
        assert_eq!(input.bytes(), [vec![b'x'; 90], vec![b'y'; 3000]].concat());
        input.shrink(&mut pool);
        assert_eq!(input.memory_bytes(), 3090, "it is full");
        input.consume(1545);
        input.shrink(&mut pool);
        assert_eq!(input.memory_bytes(), 3090, "half of it is in use");
        input.consume(1);
        input.shrink(&mut pool);
        assert_eq!(input.memory_bytes(), 1544);
        input.release(&mut pool);
        assert_eq!((input.memory_bytes(), pool.spare.len()), (0, 1));
    }

    #[test]
    fn where_heads_are_short_buffers_are_no_longer() {
        assert_eq!(Pool::new(100).take().len(), 100);
    }

    #[test]
    fn buffers_of_another_size_are_forgotten() {
        let mut pool = Pool::new(100);
        let [one, other] = [pool.take(), pool.take()];
        pool.give(one);
        pool.resize(16 << 10);
        assert_eq!(pool.take().len(), SMALL_BYTES);
        pool.give(other);
        assert_eq!(pool.take().len(), SMALL_BYTES);
    }
}
