//! What of a response the stream has not taken yet.
//!
//! Real bytes (the head, a page, what stands between the parts of a multipart body) and ranges of one file, each of
//! which has its place between them.

use std::mem;
use std::ops::Range;

use host::app::{FileHandle, Io, StreamId};

use crate::counters::Counters;

/// A range of the file, and how many of the response's real bytes come before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Splice {
    pub(crate) after_bytes: usize,
    pub(crate) range: Range<u64>,
}

/// How far the stream has come with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// It has taken all.
    All,
    /// It is full: `Writable` follows.
    Full,
    /// It has what may be sent at once: `Drained` follows, and then [`Output::go_on`].
    AtOnce,
}

/// The content of a response that comes from a file.
#[derive(Debug)]
pub(crate) struct Body {
    file: FileHandle,
    next: Splice,
    /// Those after it, the last one first.
    later: Vec<Splice>,
    /// What of the next one is not to wait for anything, in bytes.
    at_once_bytes: u64,
}

impl Body {
    /// One range, behind all real bytes of which there are so many.
    pub(crate) fn one(file: FileHandle, after_bytes: usize, range: Range<u64>) -> Self {
        Body {
            file,
            next: Splice { after_bytes, range },
            later: Vec::new(),
            at_once_bytes: u64::MAX,
        }
    }

    /// Has so many bytes sent at once and the rest wait; false if it has several ranges, or nothing is to be sent at once.
    pub(crate) fn pause_after(&mut self, bytes: u64) -> bool {
        let is_one = self.later.is_empty() && bytes > 0;
        if is_one {
            self.at_once_bytes = bytes;
        }
        is_one
    }

    /// Several ranges, in order; `None` if there are none.
    pub(crate) fn several(file: FileHandle, mut splices: Vec<Splice>) -> Option<Self> {
        splices.reverse();
        let next = splices.pop()?;
        Some(Body {
            file,
            next,
            later: splices,
            at_once_bytes: u64::MAX,
        })
    }
}

/// The response that is being sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// How many of them the stream has taken.
    taken_bytes: usize,
    body: Option<Body>,
    /// Length of all that the stream has ever taken, in bytes.
    queued_bytes: u64,
}

impl Output {
    /// Length of all that the stream has taken so far, in bytes.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// The stream has taken all there is.
    pub(crate) fn is_done(&self) -> bool {
        self.body.is_none() && self.taken_bytes == self.bytes.len()
    }

    /// Begins a response, which has been sent when [`Output::flush`] says so.
    pub(crate) fn begin(&mut self, bytes: Vec<u8>, body: Option<Body>) {
        (self.bytes, self.taken_bytes, self.body) = (bytes, 0, body);
    }

    /// The buffer of the response that has been sent, empty, to write the next one into.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = mem::take(&mut self.bytes);
        buffer.clear();
        self.taken_bytes = 0;
        buffer
    }

    /// What was to be sent at once has been acknowledged. False if nothing waits for that.
    pub(crate) fn go_on(&mut self) -> bool {
        match &mut self.body {
            Some(body) if body.at_once_bytes == 0 => {
                body.at_once_bytes = u64::MAX;
                true
            }
            _ => false,
        }
    }

    /// Queues what there is.
    pub(crate) fn flush(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        counters: &mut Counters,
    ) -> Flushed {
        loop {
            let place = match &self.body {
                Some(body) => body.next.after_bytes,
                None => self.bytes.len(),
            };
            let bytes = &self.bytes[self.taken_bytes..place];
            if !bytes.is_empty() {
                let count = io.write(stream, bytes).min(bytes.len());
                self.taken_bytes += count;
                self.queued_bytes += count as u64;
                counters.real_bytes += count as u64;
            }
            if self.taken_bytes < place {
                return Flushed::Full;
            }
            let Some(body) = &mut self.body else {
                return Flushed::All;
            };
            let range = &mut body.next.range;
            if body.at_once_bytes == 0 && !range.is_empty() {
                return Flushed::AtOnce;
            }
            let end = range
                .end
                .min(range.start.saturating_add(body.at_once_bytes));
            if range.start < end {
                let count = io.write_file(stream, body.file, range.start..end);
                if count == 0 {
                    return Flushed::Full;
                }
                self.queued_bytes += count;
                counters.virtual_bytes += count;
                range.start = end;
                if !range.is_empty() {
                    body.at_once_bytes = 0;
                    continue;
                }
            }
            match body.later.pop() {
                Some(next) => body.next = next,
                None => {
                    io.close_file(body.file);
                    self.body = None;
                }
            }
        }
    }
}
