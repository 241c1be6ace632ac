//! The part of a response that the stream has not taken yet.
//!
//! Real bytes (the head, a page, the head of a part of a multipart body), then a range of a file or
//! object. In a multipart body, the next part follows once both are queued.

use std::mem;
use std::ops::Range;

use host::app::{FileHandle, FileMeta, Io, StreamId};

use crate::counters::Counters;
use crate::exchange::multipart::Multipart;
use crate::semantics::content::{Content, Piece, Segments};
use crate::semantics::pull::{OriginEvent, Origins, Ticket};

/// Result of [`Output::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The response is completely queued.
    All,
    /// The stream is full: `Writable` follows.
    Full,
    /// All bytes before the pause are queued: `Drained` follows, and then [`Output::go_on`].
    AtOnce,
    /// All available bytes are queued; more follow.
    Later,
}

/// The content of a response.
#[derive(Debug)]
pub(crate) struct Body {
    content: Content,
    /// Range of the content that follows the real bytes.
    range: Range<u64>,
    /// What follows `range`.
    rest: Option<Box<Rest>>,
    /// Bytes of the range before the pause; `u64::MAX`: no pause.
    at_once_bytes: u64,
}

/// The rest of a body behind a range of its content.
#[derive(Debug)]
enum Rest {
    /// Further parts of a multipart body.
    Parts(Multipart),
    Trailers(Vec<u8>),
}

impl Body {
    /// Creates a body of one range.
    pub(crate) fn one(content: Content, range: Range<u64>) -> Self {
        Body {
            content,
            range,
            rest: None,
            at_once_bytes: u64::MAX,
        }
    }

    /// Creates a body of several ranges.
    pub(crate) fn several(content: Content, parts: Multipart) -> Self {
        Body {
            content,
            range: 0..0,
            rest: Some(Box::new(Rest::Parts(parts))),
            at_once_bytes: u64::MAX,
        }
    }

    /// Pauses the body after `bytes` until they are acknowledged; false, without a pause, for
    /// several ranges or 0 bytes.
    pub(crate) fn pause_after(&mut self, bytes: u64) -> bool {
        let is_one = self.parts().is_none() && bytes > 0;
        if is_one {
            self.at_once_bytes = bytes;
        }
        is_one
    }

    /// Adds trailers, if there are any, to a body of one range.
    pub(crate) fn end_with(&mut self, trailers: Vec<u8>) {
        if !trailers.is_empty() {
            self.rest = Some(Box::new(Rest::Trailers(trailers)));
        }
    }

    fn parts(&self) -> Option<&Multipart> {
        match self.rest.as_deref()? {
            Rest::Parts(parts) => Some(parts),
            Rest::Trailers(_) => None,
        }
    }

    /// The content.
    pub(crate) fn content(&self) -> &Content {
        &self.content
    }

    /// Bytes of the content in the body.
    pub(crate) fn file_bytes(&self) -> u64 {
        let later = self.parts().map_or(0, Multipart::file_bytes);
        self.range.end - self.range.start + later
    }

    /// Begins the next part by writing its head. After the last part, writes the end of a multipart
    /// body, or trailers, and returns false.
    fn begin_part(&mut self, out: &mut Vec<u8>) -> bool {
        let next = match self.rest.as_deref_mut() {
            None => None,
            Some(Rest::Parts(parts)) => parts.begin_part(out),
            Some(Rest::Trailers(trailers)) => {
                out.append(trailers);
                None
            }
        };
        let is_there = next.is_some();
        self.range = next.unwrap_or_default();
        is_there
    }
}

/// The response being sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// Number of `bytes` that the stream has taken.
    taken_bytes: usize,
    body: Option<Body>,
    /// Length of everything that the stream has taken, in bytes.
    queued_bytes: u64,
}

impl Output {
    /// Length of everything that the stream has taken so far, in bytes.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Memory for bytes that the stream has not taken, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let rest = self.body.as_ref().and_then(|body| body.rest.as_deref());
        let rest_bytes = match rest {
            None => 0,
            Some(Rest::Parts(parts)) => parts.memory_bytes(),
            Some(Rest::Trailers(trailers)) => trailers.capacity(),
        };
        self.bytes.capacity() + rest_bytes
    }

    /// True if the stream has taken the whole response.
    pub(crate) fn is_done(&self) -> bool {
        self.body.is_none() && self.taken_bytes == self.bytes.len()
    }

    /// Begins a response; [`Output::flush`] reports when it is queued.
    pub(crate) fn begin(&mut self, bytes: Vec<u8>, body: Option<Body>) {
        self.body = body;
        if self.untaken().is_empty() {
            (self.bytes, self.taken_bytes) = (bytes, 0);
        } else {
            self.bytes.extend_from_slice(&bytes);
        }
    }

    /// Adds an interim response, which precedes the response.
    pub(crate) fn add_interim(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken_bytes);
        self.taken_bytes = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn untaken(&self) -> &[u8] {
        &self.bytes[self.taken_bytes..]
    }

    /// Offset in the stream at which the next response begins.
    pub(crate) fn next_start(&self) -> u64 {
        self.queued_bytes + self.untaken().len() as u64
    }

    /// Takes the buffer of the queued response, emptied, for the next one.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = mem::take(&mut self.bytes);
        buffer.clear();
        self.taken_bytes = 0;
        buffer
    }

    /// Ends the pause, once the bytes before it are acknowledged. False if there is no pause.
    pub(crate) fn go_on(&mut self) -> bool {
        match &mut self.body {
            Some(body) if body.at_once_bytes == 0 => {
                body.at_once_bytes = u64::MAX;
                true
            }
            _ => false,
        }
    }

    fn segments(&mut self) -> Option<&mut Segments> {
        self.body.as_mut()?.content.segments()
    }

    /// Ticket of the object being sent.
    pub(crate) fn ticket(&mut self) -> Option<Ticket> {
        self.segments().map(|segments| segments.ticket)
    }

    /// Handles `Writable`: little is left to send.
    pub(crate) fn on_writable(&mut self) {
        if let Some(segments) = self.segments() {
            segments.on_writable();
        }
    }

    /// Handles an event from the fetcher. False if the rest of the object is unavailable.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        news: &OriginEvent,
    ) -> bool {
        self.segments()
            .is_none_or(|segments| segments.on_news(io, stream, news))
    }

    /// Handles an opened file. `None` if the file is not the object's; false if the rest of the
    /// object is unavailable.
    pub(crate) fn on_opened(
        &mut self,
        io: &mut dyn Io,
        file: FileHandle,
        meta: &FileMeta,
        origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Option<bool> {
        self.segments()?.on_opened(io, file, meta, origins)
    }

    /// Handles a file that could not be opened. `None` if the file is not the object's; false if
    /// the rest of the object is unavailable.
    pub(crate) fn on_open_failed(
        &mut self,
        file: FileHandle,
        errno: u16,
        origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Option<bool> {
        self.segments()?.on_open_failed(file, errno, origins)
    }

    /// Queues all available bytes. The caller ends the ticket of a completely queued object.
    pub(crate) fn flush(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        counters: &mut Counters,
        mut origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Flushed {
        loop {
            let bytes = &self.bytes[self.taken_bytes..];
            if !bytes.is_empty() {
                let count = io.write(stream, bytes).min(bytes.len());
                self.taken_bytes += count;
                self.queued_bytes += count as u64;
                counters.real_bytes += count as u64;
            }
            if self.taken_bytes < self.bytes.len() {
                return Flushed::Full;
            }
            let Some(body) = &mut self.body else {
                return Flushed::All;
            };
            let range = &mut body.range;
            if body.at_once_bytes == 0 && !range.is_empty() {
                return Flushed::AtOnce;
            }
            let end = range
                .end
                .min(range.start.saturating_add(body.at_once_bytes));
            if range.start < end {
                let (wanted, needed) = (range.start..end, range.end);
                let origins = origins.as_deref_mut();
                let (file, part) = match body.content.piece(io, stream, wanted, needed, origins) {
                    Piece::Of(file, part) => (file, part),
                    Piece::Later => return Flushed::Later,
                };
                let count = io.write_file(stream, file, part);
                if count == 0 {
                    return Flushed::Full;
                }
                self.queued_bytes += count;
                counters.virtual_bytes += count;
                range.start += count;
                if body.at_once_bytes != u64::MAX {
                    body.at_once_bytes -= count;
                }
                if !range.is_empty() {
                    body.content.on_queued(io, stream, range.start);
                    continue;
                }
            }
            if body.rest.is_some() {
                self.bytes.clear();
                self.taken_bytes = 0;
            }
            if !body.begin_part(&mut self.bytes) {
                body.content.close_file(io);
                self.body = None;
            }
        }
    }
}
