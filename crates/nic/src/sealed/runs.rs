//! A run: the records that one RECORDS has defined.

use contract::limits::RECORDS_MAX;
use contract::tls::{ContentType, Records, Suite, Tag};
use contract::{FileId, Segment};

use crate::follow::Follow;
use crate::slab::Key;

/// Records that are consecutive in number and in the stream, all but the last with the same length
/// of plaintext.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) epoch: u16,
    pub(crate) suite: Suite,
    /// Number of the first record.
    pub(crate) number: u64,
    pub(crate) stream_offset: u64,
    pub(crate) content_type: ContentType,
    /// SENDs that need the run.
    pub(super) users: u32,
    record_plaintext: usize,
    plaintext_len: usize,
    follow_bytes: u32,
    pub(crate) sources: Box<[Source]>,
    pub(super) inline: Box<[u8]>,
    /// Tag of each record; meaningless unless `known` has its bit.
    tags: Box<[Tag]>,
    /// Records that have been sealed, by this NIC stack or one before it.
    known: Records64,
    /// Known records whose tag the host does not know.
    unreported: Records64,
}

/// A set of a run's records.
type Records64 = u64;

const _: () = assert!(
    RECORDS_MAX <= Records64::BITS as usize,
    "a set holds all records of a run"
);

/// A piece of a run's plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The next bytes of [`Run::inline`].
    Inline { start: usize, len: usize },
    /// A range of a file.
    File {
        id: FileId,
        file: Key,
        offset: u64,
        len: usize,
    },
}

/// A record's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Index among the run's records.
    pub(crate) index: usize,
    /// Where it begins in the stream.
    pub(crate) stream_offset: u64,
    /// Its length in the stream.
    pub(crate) len: usize,
    /// Start of its plaintext in the run's plaintext.
    pub(crate) plaintext_start: usize,
    /// Length of its plaintext.
    pub(crate) plaintext_len: usize,
}

impl Source {
    pub(crate) fn len(&self) -> usize {
        match self {
            Source::Inline { len, .. } | Source::File { len, .. } => *len,
        }
    }
}

/// A record would be sealed differently from the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch;

impl Run {
    /// Returns the run that RECORDS defines, which has passed its checks.
    pub(super) fn new(records: &Records<'_>, suite: Suite, sources: Box<[Source]>) -> Run {
        let count = records.count() as usize;
        let mut tags = vec![Tag::default(); count].into_boxed_slice();
        tags[..records.tags.len()].copy_from_slice(records.tags);
        let inline = records.segments.iter().filter_map(|segment| match segment {
            Segment::Inline(bytes) => Some(*bytes),
            Segment::File { .. } | Segment::Sealed { .. } => None,
        });
        Run {
            epoch: records.epoch,
            suite,
            number: records.number,
            stream_offset: records.stream_offset,
            content_type: records.content_type,
            users: 0,
            record_plaintext: records.record_plaintext_bytes.into(),
            plaintext_len: records.plaintext_bytes() as usize,
            follow_bytes: records.follow_bytes,
            sources,
            inline: inline.collect::<Vec<_>>().concat().into(),
            tags,
            known: set(0, records.tags.len()),
            unreported: 0,
        }
    }

    /// True if both define the same records.
    pub(super) fn is_same(&self, other: &Run) -> bool {
        let source = |source: &Source| match *source {
            Source::Inline { len, .. } => (None, 0, len),
            Source::File {
                id, offset, len, ..
            } => (Some(id), offset, len),
        };
        self.epoch == other.epoch
            && self.number == other.number
            && self.stream_offset == other.stream_offset
            && self.content_type == other.content_type
            && self.record_plaintext == other.record_plaintext
            && self.inline == other.inline
            && self
                .sources
                .iter()
                .map(source)
                .eq(other.sources.iter().map(source))
    }

    /// Adds the tags of another definition of the same run. Adds none if two tags contradict each
    /// other.
    pub(super) fn merge(&mut self, other: &Run) -> Result<(), Mismatch> {
        let both = self.known & other.known;
        let tags = || self.tags.iter().zip(&other.tags);
        if tags()
            .enumerate()
            .any(|(i, (a, b))| both & bit(i) != 0 && a != b)
        {
            return Err(Mismatch);
        }
        for (index, tag) in other.tags.iter().enumerate() {
            if other.known & bit(index) != 0 {
                self.tags[index] = *tag;
            }
        }
        self.known |= other.known;
        self.unreported &= !other.known;
        Ok(())
    }

    /// Returns the number of records.
    pub(crate) fn count(&self) -> usize {
        self.tags.len()
    }

    /// Returns its end in the stream.
    pub(crate) fn stream_end(&self) -> u64 {
        let bytes = self.plaintext_len + self.count() * self.suite.overhead_bytes();
        self.stream_offset + bytes as u64
    }

    /// Returns the memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Run>()
            + size_of_val(&*self.sources)
            + size_of_val(&*self.inline)
            + size_of_val(&*self.tags)
    }

    /// Returns the record of this index, which is below [`Run::count`].
    pub(crate) fn record(&self, index: usize) -> Record {
        let overhead = self.suite.overhead_bytes();
        let plaintext_start = index * self.record_plaintext;
        let plaintext_len = self
            .record_plaintext
            .min(self.plaintext_len - plaintext_start);
        Record {
            index,
            stream_offset: self.stream_offset + (plaintext_start + index * overhead) as u64,
            len: plaintext_len + overhead,
            plaintext_start,
            plaintext_len,
        }
    }

    /// Returns the index of the record in which this byte of the stream lies.
    pub(crate) fn index_at(&self, stream_offset: u64) -> usize {
        let each = self.record_plaintext + self.suite.overhead_bytes();
        (stream_offset - self.stream_offset) as usize / each
    }

    /// Returns the records in which this range of the stream lies, which is not empty and within
    /// the run.
    pub(crate) fn records(&self, start: u64, len: usize) -> impl Iterator<Item = Record> {
        let first = self.index_at(start);
        let last = self.index_at(start + len as u64 - 1);
        (first..=last).map(|index| self.record(index))
    }

    /// Returns each piece of a range of the plaintext: the source, the offset in the source, and
    /// the length.
    pub(crate) fn pieces(
        &self,
        start: usize,
        len: usize,
    ) -> impl Iterator<Item = (Source, usize, usize)> {
        let end = start + len;
        let mut source_start = 0;
        self.sources.iter().filter_map(move |source| {
            let source_end = source_start + source.len();
            let (from, to) = (start.max(source_start), end.min(source_end));
            let piece = (from < to).then(|| (*source, from - source_start, to - from));
            source_start = source_end;
            piece
        })
    }

    /// Records the tag of a sealed record. True the first time.
    pub(super) fn on_sealed(&mut self, index: usize, tag: Tag) -> Result<bool, Mismatch> {
        let first = self.known & bit(index) == 0;
        if first {
            self.tags[index] = tag;
            self.known |= bit(index);
            self.unreported |= bit(index);
        } else if self.tags[index] != tag {
            return Err(Mismatch);
        }
        Ok(first)
    }

    /// Returns the first unreported records among `len` from `first` on: their index, and the tags
    /// of as many as are consecutive, at most `max`.
    pub(super) fn unreported(
        &self,
        first: usize,
        len: usize,
        max: usize,
    ) -> Option<(usize, &[Tag])> {
        let wanted = self.unreported & set(first, len);
        if wanted == 0 {
            return None;
        }
        let index = wanted.trailing_zeros() as usize;
        let count = (!(wanted >> index)).trailing_zeros() as usize;
        Some((index, &self.tags[index..index + count.min(max)]))
    }

    /// Records that these tags have been reported.
    pub(super) fn on_reported(&mut self, first: usize, len: usize) {
        self.unreported &= !set(first, len);
    }

    /// Returns the continuation, in the same file, of the record that holds the byte before
    /// `stream_end`.
    pub(super) fn follow(&self, stream_end: u64) -> Option<Follow> {
        let record = self.record(self.index_at(stream_end - 1));
        let end = record.plaintext_start + record.plaintext_len;
        let (source, within, len) = self.pieces(end - 1, 1).next()?;
        let Source::File {
            file,
            offset,
            len: source_len,
            ..
        } = source
        else {
            return None;
        };
        let within = within + len;
        let behind = if end == self.plaintext_len {
            self.follow_bytes.into()
        } else {
            (source_len - within) as u64
        };
        (behind > 0).then(|| Follow {
            file,
            offset: offset + within as u64,
            bytes: behind,
        })
    }
}

fn bit(index: usize) -> Records64 {
    1 << index
}

/// Returns the set of `len` records from `first` on.
fn set(first: usize, len: usize) -> Records64 {
    let len = len as u32;
    match len {
        0 => 0,
        _ => (Records64::MAX >> (Records64::BITS - len)) << first,
    }
}
