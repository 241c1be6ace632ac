//! Records in parcels: one behind the other, each with its length and its worker in front. Where a
//! parcel ends means nothing: a record that does not fit goes on in the next one.

use std::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zeroize::Zeroizing;

use crate::limits::MESSAGE_BYTES_MAX;

/// The label in front of a record.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Label {
    pub(super) bytes: U16,
    pub(super) worker: U16,
}

/// Bytes of a label.
pub(super) const LABEL_BYTES: usize = size_of::<Label>();

/// The longest record with its label, in bytes.
pub(super) const LABELLED_BYTES_MAX: usize = LABEL_BYTES + MESSAGE_BYTES_MAX;

/// Assembles a record from parcels.
pub(super) struct Assembly {
    /// Label and record, as far as they have come.
    bytes: Zeroizing<Vec<u8>>,
}

impl Assembly {
    pub(super) fn new() -> Assembly {
        Assembly {
            bytes: Vec::with_capacity(LABELLED_BYTES_MAX).into(),
        }
    }

    /// Takes the missing bytes of the record from the front of `bytes`; returns their number. An
    /// error is the rule that the peer has broken.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut taken = 0;
        while let missing @ 1.. = self.missing()? {
            let rest = bytes.get(taken..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let more = &rest[..missing.min(rest.len())];
            self.bytes.extend_from_slice(more);
            taken += more.len();
        }
        Ok(taken)
    }

    /// The record and its worker, if it is whole.
    pub(super) fn record(&mut self) -> Option<(u16, &mut [u8])> {
        let label = self.label()?;
        let record = self.bytes.get_mut(LABEL_BYTES..)?;
        (record.len() == usize::from(label.bytes)).then_some((label.worker.get(), record))
    }

    /// Makes place for the next one.
    pub(super) fn clear(&mut self) {
        wipe(&mut self.bytes);
    }

    #[cfg(test)]
    pub(super) fn buffer(&self) -> &[u8] {
        &self.bytes
    }

    fn label(&self) -> Option<Label> {
        Label::read_from_prefix(&self.bytes)
            .ok()
            .map(|(label, _)| label)
    }

    /// Bytes of label or record that have not come.
    fn missing(&self) -> Result<usize, &'static str> {
        let Some(label) = self.label() else {
            return Ok(LABEL_BYTES - self.bytes.len());
        };
        match usize::from(label.bytes) {
            bytes @ 1..=MESSAGE_BYTES_MAX => Ok(LABEL_BYTES + bytes - self.bytes.len()),
            _ => Err("a record has 1 to MESSAGE_BYTES_MAX bytes"),
        }
    }
}

/// Without the record, which may be a key.
impl fmt::Debug for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assembly")
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// Empties a buffer that may hold a key, and keeps its memory. Not byte by byte, as `zeroize` does,
/// for every parcel comes by here.
pub(super) fn wipe(bytes: &mut Vec<u8>) {
    bytes.fill(0);
    // Keeps the compiler from leaving the zeros out: no other code reads them.
    std::hint::black_box(bytes.as_slice());
    bytes.clear();
}
