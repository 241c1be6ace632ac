//! Received bytes that are not consumed yet.
//!
//! A connection that waits for nothing in particular has no buffer: thousands of idle ones cost their
//! table entry only. Buffers come from a pool and go back to it.

use host::app::{Io, StreamId};

/// Spare buffers, all of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    spare: Vec<Box<[u8]>>,
    buffer_bytes: usize,
}

/// Most spare buffers kept. What was wanted at once before may be wanted at once again, within reason.
const SPARE_MAX: usize = 64;

impl Pool {
    pub(crate) fn new(buffer_bytes: usize) -> Self {
        Pool {
            spare: Vec::new(),
            buffer_bytes,
        }
    }

    fn take(&mut self) -> Box<[u8]> {
        self.spare
            .pop()
            .unwrap_or_else(|| vec![0; self.buffer_bytes].into_boxed_slice())
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }
}

/// The bytes `start..end` of a buffer, if there is one. Without a buffer both are 0.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Forgets the first `count` bytes, or all if there are fewer.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes what the stream has and the buffer holds; returns how many bytes. 0 also if it is full.
    pub(crate) fn fill(&mut self, io: &mut dyn Io, stream: StreamId, pool: &mut Pool) -> usize {
        let buffer = self.buffer.get_or_insert_with(|| pool.take());
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut buffer[self.end..];
        let count = io.read(stream, room).min(room.len());
        self.end += count;
        count
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
