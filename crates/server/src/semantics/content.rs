//! The content of a response: that of a file, or an object in segments, of which each is a file.
//!
//! ```text
//!            not there            there            opened             all of it queued
//!  Nothing ────────────▶ Wanted ──────────▶ Opening ──────▶ Open ──────────────────────▶ Nothing …
//!     └──────────── there ─────────────────────▲
//! ```
//!
//! The next segment is opened when little of those before it waits to be sent: so many files are
//! open as it takes to keep the stream busy, however long the object and however slow the client
//! is.

use std::ops::Range;

use host::Growth;
use host::app::{FileHandle, FileMeta, Io, StreamId};

use crate::semantics::pull::{Object, OriginEvent, Origins, Ticket};

/// The next segment is opened when no more than this waits to be sent, in bytes: what a fast client
/// takes until it is open.
const AHEAD_BYTES: u64 = 1 << 20;

/// A segment that is said to be there, and is not, is asked for again so often: each time it may
/// have made room for others before it was opened.
const OPENS_MAX: u8 = 8;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) enum Content {
    File(FileHandle),
    Segments(Box<Segments>),
}

/// What may be queued now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// This range of a file.
    Of(FileHandle, Range<u64>),
    /// Nothing, before something else happens.
    Later,
}

/// An object, and how far it has been sent.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) ticket: Ticket,
    pub(crate) object: Box<Object>,
    stage: Stage,
    /// Enough waits to be sent.
    is_held_back: bool,
    /// How often this segment could not be opened.
    opens_failed: u8,
    /// The segment behind the last that the response needs.
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

    /// What of this range may be queued now, from its start on. The response needs what is behind
    /// it up to `end`.
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

    /// The stream has taken all before this byte.
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

    /// It is not needed any more.
    pub(crate) fn close(&self, io: &mut dyn Io, origins: Option<&mut (dyn Origins + 'static)>) {
        self.close_file(io);
        if let (Content::Segments(segments), Some(origins)) = (self, origins) {
            origins.done(segments.ticket);
        }
    }

    /// All of it is queued. An object's segments may still be opened again, by a NIC process that
    /// follows another, until all is acknowledged.
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

    /// Little waits to be sent.
    pub(crate) fn on_writable(&mut self) {
        self.is_held_back = false;
    }

    /// Takes what its fetcher reports. False if the rest is not to be had.
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
            OriginEvent::Object(_) => true,
            OriginEvent::Refused { .. } | OriginEvent::Lost { .. } => false,
        }
    }

    /// A file is open. `None` if it is none of this object's; false if the rest is not to be had.
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

    /// A file could not be opened. `None` if it is none of this object's; false if the rest is not
    /// to be had.
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
        // Something else than the segment is there, or nothing.
        let is_none = matches!(
            i32::from(errno),
            libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::EXDEV | libc::ESTALE
        );
        self.stage = Stage::Nothing;
        Some(is_none && self.want_again(segment, origins))
    }

    /// A segment is not what it should be: it has made room for others since, or something has
    /// happened to it. False if it is not asked for again.
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
