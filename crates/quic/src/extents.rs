//! Extents: the contents of a connection's streams, real bytes and ranges of files.
//!
//! For a range of a file, the engine's stream holds a *placeholder*: a slice of a region of zeros
//! that all connections share, so that it takes no memory but its entry here. Each extent's owner
//! reports when the engine drops it: when all of it is acknowledged, the stream is reset, or the
//! connection is over.
//!
//! Real bytes have entries as well: a byte of a packet that no entry covers may be a placeholder
//! whose file is forgotten, and must not be sealed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::types::{FileRange, Piece};

/// Longest placeholder, in bytes. The engine searches a stream's placeholders linearly, and keeps
/// each until all of it is acknowledged.
pub(crate) const PLACEHOLDER_BYTES: usize = 256 << 10;

/// Allocated, and never written to: the kernel maps the same zero page throughout, which stays in
/// the L1 cache while the engine copies from the region. A constant would have distinct pages.
static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; PLACEHOLDER_BYTES]);

/// A place in a stream, and which of the extents offered for it: the engine may have had no room
/// for an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    stream: u64,
    start: u64,
    serial: u64,
}

/// Extents that the engine has dropped.
type Dropped = Arc<Mutex<Vec<Key>>>;

fn lock(dropped: &Dropped) -> MutexGuard<'_, Vec<Key>> {
    // A panic leaves no list half changed.
    dropped.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Content {
    Real(Vec<u8>),
    Placeholder(usize),
}

struct Owner {
    content: Content,
    key: Key,
    dropped: Dropped,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        match &self.content {
            Content::Real(bytes) => bytes,
            Content::Placeholder(len) => &ZEROS[..*len],
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        lock(&self.dropped).push(self.key);
    }
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    serial: u64,
    len: u64,
    file: Option<FileRange>,
}

/// An extent that the engine has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) stream: u64,
    /// Length, in bytes.
    pub(crate) len: u64,
    /// The range that it stood for; `None` for real bytes.
    pub(crate) file: Option<FileRange>,
}

/// An extent that the engine is asked to take.
pub(crate) struct Offer {
    pub(crate) bytes: Bytes,
    key: Key,
    file: Option<FileRange>,
}

/// The extents of a connection that are neither acknowledged nor abandoned.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    by_place: BTreeMap<(u64, u64), Extent>,
    /// The extent found last: most packets go on where the previous one ended.
    latest: Option<((u64, u64), Extent)>,
    serial: u64,
    dropped: Dropped,
}

/// A byte of a stream belongs to no extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoExtent;

impl Extents {
    /// Real bytes for this place of a stream.
    pub(crate) fn offer_real(&mut self, stream: u64, start: u64, bytes: &[u8]) -> Offer {
        self.offer(stream, start, Content::Real(bytes.to_vec()), None)
    }

    /// The first bytes of a range for this place of a stream, as many as a placeholder has.
    pub(crate) fn offer_file(&mut self, stream: u64, start: u64, file: FileRange) -> Offer {
        let len = (PLACEHOLDER_BYTES as u64).min(file.len) as usize;
        self.offer(stream, start, Content::Placeholder(len), Some(file))
    }

    fn offer(
        &mut self,
        stream: u64,
        start: u64,
        content: Content,
        file: Option<FileRange>,
    ) -> Offer {
        self.serial += 1;
        let key = Key {
            stream,
            start,
            serial: self.serial,
        };
        let owner = Owner {
            content,
            key,
            dropped: self.dropped.clone(),
        };
        Offer {
            bytes: Bytes::from_owner(owner),
            key,
            file,
        }
    }

    /// The engine has taken the first `len` bytes, if any.
    pub(crate) fn insert(&mut self, offer: Offer, len: u64) {
        if len == 0 {
            return;
        }
        let Key {
            stream,
            start,
            serial,
        } = offer.key;
        let file = offer.file.map(|file| FileRange { len, ..file });
        let extent = Extent { serial, len, file };
        self.latest = None;
        self.by_place.insert((stream, start), extent);
    }

    /// Forgets extents that the engine has dropped. `released` gets each.
    pub(crate) fn release(&mut self, mut released: impl FnMut(Released)) {
        // The list keeps its capacity.
        let mut dropped = lock(&self.dropped);
        for key in dropped.drain(..) {
            let place = (key.stream, key.start);
            let extent = self.by_place.get(&place).copied();
            if let Some(extent) = extent.filter(|extent| extent.serial == key.serial) {
                self.by_place.remove(&place);
                self.latest = None;
                released(Released {
                    stream: key.stream,
                    len: extent.len,
                    file: extent.file,
                });
            }
        }
    }

    /// Cuts stream data at `at` of a packet into pieces.
    pub(crate) fn cut(
        &mut self,
        stream: u64,
        offset: u64,
        at: Range<usize>,
        mut push: impl FnMut(Piece),
    ) -> Result<(), NoExtent> {
        let end = offset + at.len() as u64;
        let place = |offset_in: u64| at.start + (offset_in - offset) as usize;
        let mut next = offset;
        while next < end {
            let (start, extent) = self.at(stream, next).ok_or(NoExtent)?;
            let until = (start + extent.len).min(end);
            push(match extent.file {
                None => Piece::Inline(place(next)..place(until)),
                Some(range) => Piece::File {
                    file: range.file,
                    offset: range.offset + (next - start),
                    len: (until - next) as u32,
                },
            });
            next = until;
        }
        Ok(())
    }

    /// The extent with the byte at `offset` of a stream, and where in the stream it starts.
    fn at(&mut self, stream: u64, offset: u64) -> Option<(u64, Extent)> {
        let has_it = |((of, start), extent): &((u64, u64), Extent)| {
            *of == stream && (*start..start + extent.len).contains(&offset)
        };
        if !self.latest.as_ref().is_some_and(has_it) {
            let below = self.by_place.range(..=(stream, offset)).next_back();
            self.latest = below
                .map(|(place, extent)| (*place, *extent))
                .filter(has_it);
        }
        self.latest.map(|((_, start), extent)| (start, extent))
    }

    /// Memory of the list, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.by_place.len() * size_of::<((u64, u64), Extent)>()
    }

    /// Real bytes that the engine has not dropped.
    pub(crate) fn real_bytes(&self) -> u64 {
        let real = self
            .by_place
            .values()
            .filter(|extent| extent.file.is_none());
        real.map(|extent| extent.len).sum()
    }

    /// The number of extents.
    pub(crate) fn len(&self) -> usize {
        self.by_place.len()
    }
}

#[cfg(test)]
mod tests {
    use contract::FileId;

    use super::*;

    fn file(offset: u64, len: u64) -> FileRange {
        FileRange {
            file: FileId(7),
            offset,
            len,
        }
    }

    fn cut(extents: &mut Extents, offset: u64, len: usize) -> Result<Vec<Piece>, NoExtent> {
        let mut pieces = Vec::new();
        extents.cut(4, offset, 100..100 + len, |piece| pieces.push(piece))?;
        Ok(pieces)
    }

    fn released(extents: &mut Extents) -> Vec<FileRange> {
        let mut ranges = Vec::new();
        extents.release(|released| ranges.extend(released.file));
        ranges
    }

    #[test]
    fn stream_data_is_cut_where_extents_meet() {
        let mut extents = Extents::default();
        let head = extents.offer_real(4, 0, b"head");
        extents.insert(head, 4);
        let body = extents.offer_file(4, 4, file(1000, 50));
        assert_eq!(body.bytes, [0; 50][..]);
        extents.insert(body, 50);
        let pieces = cut(&mut extents, 2, 12);
        let body = Piece::File {
            file: FileId(7),
            offset: 1000,
            len: 10,
        };
        assert_eq!(pieces, Ok(vec![Piece::Inline(100..102), body]));
    }

    #[test]
    fn what_belongs_to_no_extent_is_refused() {
        let mut extents = Extents::default();
        let offer = extents.offer_file(4, 10, file(0, 50));
        let bytes = offer.bytes.clone();
        extents.insert(offer, 20);
        assert!(cut(&mut extents, 10, 20).is_ok());
        for (offset, len) in [(9, 2), (29, 2), (30, 1), (0, 1)] {
            assert_eq!(
                cut(&mut extents, offset, len),
                Err(NoExtent),
                "{offset} {len}"
            );
        }
        drop(bytes);
        assert_eq!(released(&mut extents), [file(0, 20)]);
        assert_eq!(cut(&mut extents, 10, 1), Err(NoExtent));
    }

    #[test]
    fn an_extent_is_released_when_its_last_part_is_let_go() {
        let mut extents = Extents::default();
        let offer = extents.offer_file(4, 0, file(0, 1 << 30));
        let mut bytes = offer.bytes.clone();
        extents.insert(offer, PLACEHOLDER_BYTES as u64);
        drop(bytes.split_to(1000));
        assert_eq!(released(&mut extents), []);
        drop(bytes);
        assert_eq!(released(&mut extents), [file(0, PLACEHOLDER_BYTES as u64)]);
        assert_eq!(extents.len(), 0);
    }

    #[test]
    fn an_offer_that_was_not_taken_releases_nothing_that_took_its_place() {
        let mut extents = Extents::default();
        drop(extents.offer_file(4, 0, file(0, 10)));
        let offer = extents.offer_file(4, 0, file(0, 10));
        let bytes = offer.bytes.clone();
        extents.insert(offer, 10);
        assert_eq!(released(&mut extents), []);
        assert!(cut(&mut extents, 0, 10).is_ok());
        drop(bytes);
        assert_eq!(released(&mut extents).len(), 1);
    }
}
