//! Bytes on their way from one stream to another: received and not consumed, or not taken yet by a
//! stream. Both are bounded where they are filled: a full buffer lets its stream's window close.

use host::app::{Io, StreamId};

/// Most bytes read at once, and so the most that wait in one direction of a body or a tunnel.
pub(crate) const COPY_BYTES: usize = 64 << 10;

/// Bytes that are consumed from the front.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn clear(&mut self) {
        self.consume(self.len());
    }

    /// Discards the first `count` bytes. An empty buffer has no memory.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.bytes.len());
        if self.is_empty() {
            (self.bytes, self.start) = (Vec::new(), 0);
        }
    }

    /// Returns the vector to append bytes to.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        &mut self.bytes
    }

    /// Puts bytes before all others.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        self.tail().splice(..0, bytes.iter().copied());
    }

    /// Allocated bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Reads from the stream until the buffer has `bytes_max` bytes; returns the number of bytes
    /// read.
    pub(crate) fn fill(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        scratch: &mut [u8],
        bytes_max: usize,
    ) -> usize {
        let mut filled = 0;
        while self.len() < bytes_max {
            let room = scratch.len().min(bytes_max - self.len());
            let count = io.read(stream, &mut scratch[..room]).min(room);
            if count == 0 {
                break;
            }
            self.tail().extend_from_slice(&scratch[..count]);
            filled += count;
        }
        filled
    }

    /// Writes to the stream; true if it took all bytes.
    pub(crate) fn flush(&mut self, io: &mut dyn Io, stream: StreamId) -> bool {
        if !self.is_empty() {
            let count = io.write(stream, self.bytes()).min(self.len());
            self.consume(count);
        }
        self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_away_is_gone_and_the_rest_stays() {
        let mut buffer = Buffer::default();
        buffer.tail().extend_from_slice(b"hello");
        buffer.consume(2);
        buffer.tail().extend_from_slice(b" world");
        assert_eq!((buffer.bytes(), buffer.len()), (&b"llo world"[..], 9));
        buffer.consume(4);
        buffer.put_back(b"hal");
        assert_eq!(buffer.bytes(), b"halworld");
        buffer.clear();
        assert!(buffer.is_empty() && buffer.bytes.capacity() == 0);
    }
}
