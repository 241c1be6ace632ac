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

/// The content of a response that comes from a file.
#[derive(Debug)]
pub(crate) struct Body {
    file: FileHandle,
    next: Splice,
    /// Those after it, the last one first.
    later: Vec<Splice>,
}

impl Body {
    /// One range, behind all real bytes of which there are so many.
    pub(crate) fn one(file: FileHandle, after_bytes: usize, range: Range<u64>) -> Self {
        Body {
            file,
            next: Splice { after_bytes, range },
            later: Vec::new(),
        }
    }

    /// Several ranges, in order; `None` if there are none.
    pub(crate) fn several(file: FileHandle, mut splices: Vec<Splice>) -> Option<Self> {
        splices.reverse();
        let next = splices.pop()?;
        Some(Body {
            file,
            next,
            later: splices,
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

    /// Begins a response, which has been sent when [`Output::flush`] says so.
    pub(crate) fn begin(&mut self, bytes: Vec<u8>, body: Option<Body>) {
        (self.bytes, self.taken_bytes, self.body) = (bytes, 0, body);
    }

    /// The buffer of the response that has been sent, empty, to write the next one into.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = mem::take(&mut self.bytes);
        buffer.clear();
        buffer
    }

    /// Queues what there is; says whether the stream has taken all. If not, `Writable` follows.
    pub(crate) fn flush(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        counters: &mut Counters,
    ) -> bool {
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
                return false;
            }
            let Some(body) = &mut self.body else {
                return true;
            };
            if !body.next.range.is_empty() {
                let count = io.write_file(stream, body.file, body.next.range.clone());
                if count == 0 {
                    return false;
                }
                self.queued_bytes += count;
                counters.virtual_bytes += count;
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
