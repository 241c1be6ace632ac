//! Runs of records for the NIC stack to seal.

use crate::content_type::ContentType;
use contract::tls::{Suite, Tag};

/// A piece of plaintext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes.
    Real(Box<[u8]>),
    /// A range of an object that only the NIC stack can read. Not empty.
    Virtual {
        /// The object.
        object: u32,
        /// Offset of the first byte in the object.
        offset: u64,
        /// Length, in bytes.
        len: u64,
        /// True for the last piece of a range that was queued at once.
        is_last: bool,
    },
}

impl Piece {
    /// Length, in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Piece::Real(bytes) => bytes.len() as u64,
            Piece::Virtual { len, .. } => *len,
        }
    }

    /// True if there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Records that follow each other in number and in the stream, sealed with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// [`crate::Key::epoch`] of the key.
    pub epoch: u16,
    /// Number of the first record: how many were sealed before with this key.
    pub number: u64,
    /// Stream offset of the first record's first byte; byte 0 is the first that was sent on the
    /// connection.
    pub stream_offset: u64,
    /// Type of the records' content.
    pub content_type: ContentType,
    /// Plaintext of each record but the last, which has the rest, in bytes.
    pub record_plaintext_bytes: u16,
    /// Bytes by which the last piece continues in its object behind the run, as far as queued.
    pub follow_bytes: u64,
    /// The plaintext, in order. Not empty.
    pub pieces: Vec<Piece>,
    /// Tags of the first records, as far as the NIC stack has reported them.
    pub tags: Vec<Tag>,
    pub(crate) suite: Suite,
}

/// Limits of a run, and of all unacknowledged runs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Records of a run.
    pub records_max: usize,
    /// Pieces of a run.
    pub pieces_max: usize,
    /// Bytes of all real pieces of a run.
    pub real_bytes_max: usize,
    /// Records of all runs, more than those of one run.
    pub outstanding_max: u64,
    /// Keys of all runs.
    pub keys_max: usize,
}

impl Run {
    /// Returns the length of the real pieces, in bytes.
    pub(crate) fn real_bytes(&self) -> usize {
        let real = |piece: &Piece| match piece {
            Piece::Real(bytes) => bytes.len(),
            Piece::Virtual { .. } => 0,
        };
        self.pieces.iter().map(real).sum()
    }

    /// Returns the plaintext of all records, in bytes.
    pub fn plaintext_bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.plaintext_bytes()
            .div_ceil(u64::from(self.record_plaintext_bytes).max(1))
    }

    /// Returns the length of the records in the stream, in bytes.
    pub fn stream_bytes(&self) -> u64 {
        self.plaintext_bytes() + self.count() * self.suite.overhead_bytes() as u64
    }

    /// Returns the application data that lies before `upto` in the stream, in bytes; of a record
    /// that does not end there, as much as its length allows.
    pub(crate) fn application_bytes(&self, upto: u64) -> u64 {
        if self.content_type != ContentType::ApplicationData {
            return 0;
        }
        let each = u64::from(self.record_plaintext_bytes).max(1);
        let record_bytes = each + self.suite.overhead_bytes() as u64;
        let before = upto.saturating_sub(self.stream_offset);
        let in_last = before % record_bytes;
        let in_last = in_last.saturating_sub(self.suite.prefix_bytes() as u64);
        (before / record_bytes * each + in_last.min(each)).min(self.plaintext_bytes())
    }

    /// Returns the stream offset behind the last record.
    pub fn stream_end(&self) -> u64 {
        self.stream_offset + self.stream_bytes()
    }
}
