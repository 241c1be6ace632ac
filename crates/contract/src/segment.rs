//! Segments: the parts of a SEND's payload, or of the plaintext of RECORDS.

use std::fmt;
use std::ops::Deref;

use crate::ids::FileId;
use crate::limits::SEGMENTS_MAX;

/// A piece of a SEND's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Bytes that the host has.
    Inline(&'a [u8]),
    /// A range of an open file. Not empty.
    File {
        /// The file.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length, in bytes.
        len: u32,
    },
    /// A range of records that RECORDS has defined, in a SEND only: those that lie in this place of
    /// the stream. May begin and end within a record. Not empty.
    Sealed {
        /// Length, in bytes.
        len: u32,
    },
}

/// The segments of a SEND or of RECORDS, held in place: building or decoding one does not allocate.
/// Reads as a slice.
#[derive(Clone)]
pub struct Segments<'a> {
    len: usize,
    slots: [Segment<'a>; SEGMENTS_MAX],
}

/// A SEND has [`SEGMENTS_MAX`] segments already. Nothing was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySegments;

impl<'a> Segments<'a> {
    /// No segments.
    pub const fn new() -> Self {
        Segments {
            len: 0,
            slots: [Segment::Inline(&[]); SEGMENTS_MAX],
        }
    }

    /// Appends a segment.
    pub fn push(&mut self, segment: Segment<'a>) -> Result<(), TooManySegments> {
        let slot = self.slots.get_mut(self.len).ok_or(TooManySegments)?;
        *slot = segment;
        self.len += 1;
        Ok(())
    }

    /// The segments, in order.
    pub fn as_slice(&self) -> &[Segment<'a>] {
        &self.slots[..self.len]
    }

    /// Payload bytes of all segments together.
    pub fn payload_bytes(&self) -> u64 {
        self.iter().map(|segment| u64::from(segment.len())).sum()
    }
}

impl Segment<'_> {
    /// Length, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "segments are not collections")]
    pub fn len(&self) -> u32 {
        match self {
            Segment::Inline(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Segment::File { len, .. } | Segment::Sealed { len } => *len,
        }
    }
}

impl Default for Segments<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Deref for Segments<'a> {
    type Target = [Segment<'a>];

    fn deref(&self) -> &Self::Target {
        self.as_slice()
    }
}

impl fmt::Debug for Segments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl PartialEq for Segments<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Segments<'_> {}

impl<'a, const N: usize> From<[Segment<'a>; N]> for Segments<'a> {
    fn from(segments: [Segment<'a>; N]) -> Self {
        const { assert!(N <= SEGMENTS_MAX, "more segments than a SEND may have") };
        segments.into_iter().collect()
    }
}

impl<'a> FromIterator<Segment<'a>> for Segments<'a> {
    /// # Panics
    /// If there are more than [`SEGMENTS_MAX`]; where that can be, use [`Segments::push`].
    fn from_iter<I: IntoIterator<Item = Segment<'a>>>(segments: I) -> Self {
        let mut collected = Self::new();
        for segment in segments {
            collected
                .push(segment)
                .expect("at most SEGMENTS_MAX segments");
        }
        collected
    }
}

impl<'s, 'a> IntoIterator for &'s Segments<'a> {
    type Item = &'s Segment<'a>;
    type IntoIter = std::slice::Iter<'s, Segment<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for TooManySegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a SEND takes at most {SEGMENTS_MAX} segments")
    }
}

impl std::error::Error for TooManySegments {}
