//! Received bytes that are not consumed yet.
//!
//! A connection that waits for nothing in particular has no buffer: thousands of idle ones cost
//! their table entry only. Buffers come from a pool and go back to it. They are small: each request
//! has one until its file is open, and few heads are long. One that is full makes way for a large
//! one, which is not kept.

use host::app::{Io, StreamId};

/// Spare buffers, all small.
#[derive(Debug)]
pub(crate) struct Pool {
    spare: Vec<Box<[u8]>>,
    buffer_bytes_max: usize,
}

/// Size of a small buffer, in bytes: browsers' heads are mostly shorter.
const SMALL_BYTES: usize = 2 << 10;

/// Most spare buffers kept, four megabytes of them. What was wanted at once before may be wanted at
/// once again: a pause of the host's gathers requests of a thousand connections.
const SPARE_MAX: usize = 2048;

impl Pool {
    /// Buffers of at most so many bytes.
    pub(crate) fn new(buffer_bytes_max: usize) -> Self {
        Pool {
            spare: Vec::new(),
            buffer_bytes_max,
        }
    }

    /// Buffers that are taken or enlarged from now on are of at most so many bytes.
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

    /// A buffer of the largest size that begins with what is in this one.
    #[cold]
    fn enlarge(&mut self, small: &mut Box<[u8]>) {
        let mut large = vec![0; self.buffer_bytes_max].into_boxed_slice();
        large[..small.len()].copy_from_slice(small);
        self.give(std::mem::replace(small, large));
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

    /// Forgets the first `count` bytes, or all if there are fewer.
    pub(crate) fn consume(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.start = self.start.saturating_add(count).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes what the stream has and the buffer holds; returns how many bytes. 0 also if it is
    /// full.
    pub(crate) fn fill(&mut self, io: &mut dyn Io, stream: StreamId, pool: &mut Pool) -> usize {
        let room = self.room(1, pool);
        let count = io.read(stream, room).min(room.len());
        self.end += count as u32;
        count
    }

    /// Appends bytes; false if the largest buffer does not hold them, too.
    pub(crate) fn append(&mut self, bytes: &[u8], pool: &mut Pool) -> bool {
        let Some(room) = self.room(bytes.len(), pool).get_mut(..bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.end += bytes.len() as u32;
        true
    }

    /// What is free of the buffer: at least so many bytes, if the largest buffer has them.
    fn room(&mut self, wanted: usize, pool: &mut Pool) -> &mut [u8] {
        let buffer = self.buffer.get_or_insert_with(|| pool.take());
        let (start, end) = (self.start as usize, self.end as usize);
        if start > 0 {
            buffer.copy_within(start..end, 0);
            (self.start, self.end) = (0, (end - start) as u32);
        }
        let end = self.end as usize;
        if buffer.len() - end < wanted && buffer.len() < pool.buffer_bytes_max {
            pool.enlarge(buffer);
        }
        &mut buffer[end..]
    }

    /// Gives the buffer back, if nothing is in it.
    pub(crate) fn release_if_empty(&mut self, pool: &mut Pool) {
        if self.is_empty() {
            self.release(pool);
        }
    }

    /// Gives the buffer back with all that is in it.
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
    fn a_full_buffer_makes_way_for_a_large_one_and_only_small_ones_are_kept() {
        let mut pool = Pool::new(16 << 10);
        let mut buffer = pool.take();
        assert_eq!(buffer.len(), SMALL_BYTES);
        buffer.fill(b'x');
        pool.enlarge(&mut buffer);
        assert_eq!(buffer.len(), 16 << 10);
        assert!(buffer[..SMALL_BYTES].iter().all(|&byte| byte == b'x'));
        pool.give(buffer);
        assert_eq!(pool.spare.len(), 1, "the small one");
        assert_eq!(pool.take().len(), SMALL_BYTES);
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
