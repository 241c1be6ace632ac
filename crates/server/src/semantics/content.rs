//! Content of a response: a file, or an object in segments, each of which is a file.
//!
//! ```text
//!            not there            there            opened             all of it queued
//!  Nothing ────────────▶ Wanted ──────────▶ Opening ──────▶ Open ──────────────────────▶ Nothing …
//!     └──────────── there ─────────────────────▲
//! ```
//!
//! The next segment is opened when little of the segments before it is left to send: no more files
//! are open than keep the stream busy, for any length of the object and any speed of the client.

use std::ops::Range;

use host::Growth;
use host::app::{FileHandle, FileMeta, Io, StreamId};

use crate::semantics::pull::{Object, OriginEvent, Origins, Ticket};

/// Most unsent bytes when the next segment is opened: as many as a fast client takes until it is
/// open.
const AHEAD_BYTES: u64 = 1 << 20;

/// Attempts to open a segment that is reported present. Before each, the segment may have been
/// evicted to make room for others.
const OPENS_MAX: u8 = 8;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) enum Content {
    File(FileHandle),
    Segments(Box<Segments>),
}

/// The next piece to queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// This range of a file.
    Of(FileHandle, Range<u64>),
    /// Nothing until another event.
    Later,
}

/// An object, and the progress of sending it.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) ticket: Ticket,
    pub(crate) object: Box<Object>,
    stage: Stage,
    /// Enough bytes are left to send.
    is_held_back: bool,
    /// Failed attempts to open the current segment.
    opens_failed: u8,
    /// End of the segments that the response needs.
    needs_end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Nothing,
    Wanted(u64),
    Opening(u64, FileHandle),
    Open(u64, FileHandle),
}

impl Content {
    pub(crate) fn object(ticket: Ticket, object: Box<Object>) -> Self {
        Content::Segments(Box::new(Segments {
            ticket,
            object,
            stage: Stage::Nothing,
            is_held_back: false,
            opens_failed: 0,
            needs_end: 0,
        }))
    }

    pub(crate) fn segments(&mut self) -> Option<&mut Segments> {
        match self {
            Content::File(_) => None,
            Content::Segments(segments) => Some(segments),
        }
    }

    /// Returns the piece at the start of `range` that can be queued now. The response also needs
    /// the bytes behind `range`, up to `end`.
    pub(crate) fn piece(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        range: Range<u64>,
        end: u64,
        origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Piece {
        match self {
            Content::File(file) => Piece::Of(*file, range),
            Content::Segments(segments) => {
                segments.needs_end = end.div_ceil(segments.object.segment_bytes.get());
                segments.piece(io, stream, range, origins)
            }
        }
    }

    /// Notes that the stream has taken all bytes before `offset`.
    pub(crate) fn on_queued(&mut self, io: &mut dyn Io, stream: StreamId, offset: u64) {
        let Content::Segments(segments) = self else {
            return;
        };
        if let Stage::Open(segment, file) = segments.stage
            && offset / segments.object.segment_bytes > segment
        {
            io.close_file(file);
            segments.stage = Stage::Nothing;
            segments.opens_failed = 0;
            segments.is_held_back = true;
            io.set_notsent_lowat(stream, AHEAD_BYTES);
        }
    }

    /// Releases content that is no longer needed.
    pub(crate) fn close(&self, io: &mut dyn Io, origins: Option<&mut (dyn Origins + 'static)>) {
        self.close_file(io);
        if let (Content::Segments(segments), Some(origins)) = (self, origins) {
            origins.done(segments.ticket);
        }
    }

    /// Closes the file, since all bytes are queued. Until they are acknowledged, a later NIC
    /// process may still open an object's segments again.
    pub(crate) fn close_file(&self, io: &mut dyn Io) {
        match self {
            Content::File(file) => io.close_file(*file),
            Content::Segments(segments) => {
                if let Stage::Open(_, file) | Stage::Opening(_, file) = segments.stage {
                    io.close_file(file);
                }
            }
        }
    }
}

impl Segments {
    fn piece(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        range: Range<u64>,
        origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Piece {
        let (segment, start, len) = self.object.segment_of(range.start);
        match self.stage {
            Stage::Open(open, file) if open == segment => {
                let end = range.end.min(start + len);
                return Piece::Of(file, range.start - start..end - start);
            }
            // The parts of a multipart body may be far apart.
            Stage::Open(_, file) => {
                io.close_file(file);
                self.stage = Stage::Nothing;
            }
            Stage::Nothing => {}
            Stage::Wanted(_) | Stage::Opening(..) => return Piece::Later,
        }
        if self.is_held_back {
            return Piece::Later;
        }
        if self.object.has(segment) {
            self.open(io, stream, segment);
        } else if let Some(origins) = origins {
            self.stage = Stage::Wanted(segment);
            origins.want(self.ticket, segment..self.needs_end);
        }
        Piece::Later
    }

    fn open(&mut self, io: &mut dyn Io, stream: StreamId, segment: u64) {
        let mut path = Vec::new();
        self.object.segment_path(segment, &mut path);
        self.stage = Stage::Opening(segment, io.open(stream, &path, Growth::Forbidden));
    }

    /// Handles `Writable`: little is left to send.
    pub(crate) fn on_writable(&mut self) {
        self.is_held_back = false;
    }

    /// Handles an event from the fetcher. False if the rest is unavailable.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        news: &OriginEvent,
    ) -> bool {
        match *news {
            OriginEvent::Segment(segment) => {
                if self.stage == Stage::Wanted(segment) {
                    self.open(io, stream, segment);
                }
                true
            }
            OriginEvent::Object(_) | OriginEvent::EarlyHints(_) => true,
            OriginEvent::Refused { .. } | OriginEvent::Lost { .. } => false,
        }
    }

    /// Handles an opened file. `None` if it is not this object's; false if the rest is unavailable.
    pub(crate) fn on_opened(
        &mut self,
        io: &mut dyn Io,
        file: FileHandle,
        meta: &FileMeta,
        origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Option<bool> {
        let Stage::Opening(segment, awaited) = self.stage else {
            return None;
        };
        if awaited != file {
            return None;
        }
        let (_, _, len) = self
            .object
            .segment_of(segment * self.object.segment_bytes.get());
        if meta.size != len {
            io.close_file(file);
            return Some(self.want_again(segment, origins));
        }
        self.stage = Stage::Open(segment, file);
        Some(true)
    }

    /// Handles a file that could not be opened. `None` if it is not this object's; false if the
    /// rest is unavailable.
    pub(crate) fn on_open_failed(
        &mut self,
        file: FileHandle,
        errno: u16,
        origins: Option<&mut (dyn Origins + 'static)>,
    ) -> Option<bool> {
        let Stage::Opening(segment, awaited) = self.stage else {
            return None;
        };
        if awaited != file {
            return None;
        }
        // The segment is missing, or another kind of file is in its place.
        let is_none = matches!(
            i32::from(errno),
            libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::EXDEV | libc::ESTALE
        );
        self.stage = Stage::Nothing;
        Some(is_none && self.want_again(segment, origins))
    }

    /// Requests a segment again that is missing or has a wrong size: it was evicted to make room
    /// for others, or damaged. False if it is not requested.
    fn want_again(&mut self, segment: u64, origins: Option<&mut (dyn Origins + 'static)>) -> bool {
        self.stage = Stage::Nothing;
        self.opens_failed += 1;
        let Some(origins) = origins.filter(|_| self.opens_failed < OPENS_MAX) else {
            return false;
        };
        self.object.present.clear();
        self.stage = Stage::Wanted(segment);
        origins.want_again(self.ticket, segment..self.needs_end);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::semantics::pull::{CacheStatus, Passed};

    #[test]
    fn an_offset_lies_in_a_segment_of_which_the_last_is_shorter() {
        let object = Object {
            directory: "cache/ab/1".parse().unwrap(),
            size_bytes: 250,
            segment_bytes: NonZeroU64::new(100).unwrap(),
            tag: 0,
            last_modified_s: None,
            passed: Passed::default(),
            trailers: Vec::new(),
            present: vec![(0, 1), (2, 3)],
            how: CacheStatus::Hit,
        };
        for (offset, place) in [
            (0, (0, 0, 100)),
            (99, (0, 0, 100)),
            (100, (1, 100, 100)),
            (249, (2, 200, 50)),
        ] {
            assert_eq!(object.segment_of(offset), place);
        }
        assert_eq!(
            [0, 1, 2, 3].map(|it| object.has(it)),
            [true, false, true, false]
        );
        let mut path = b"left over".to_vec();
        object.segment_path(0x1_2345_6789, &mut path);
        assert_eq!(path, b"cache/ab/1/123456789");
        object.segment_path(11, &mut path);
        assert_eq!(path, b"cache/ab/1/0000000b");
    }
}
