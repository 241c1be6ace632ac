//! Sealing of one connection's runs, in place of a NIC stack.

use std::collections::HashMap;

use tls::{ContentType, Piece, Run, RunLimits, Tag};

use crate::content::content;
use crate::keys::Keys;

/// Limits of a run in these tests.
pub const LIMITS: RunLimits = RunLimits {
    records_max: 64,
    pieces_max: 32,
    real_bytes_max: 4096,
    outstanding_max: u64::MAX,
    keys_max: usize::MAX,
};

/// Keys and positions of a connection's records.
#[derive(Default)]
pub struct RunSealer {
    /// Keys by epoch.
    pub keys: HashMap<u16, Keys>,
    /// Next record number of each epoch, and the end of the stream.
    numbers: HashMap<u16, u64>,
    pub(crate) stream_end: u64,
    /// Sealed records: content type and plaintext length, in bytes.
    pub records: Vec<(ContentType, usize)>,
}

impl RunSealer {
    /// Seals a run; returns the records, and their tags.
    pub fn seal(&mut self, run: &Run) -> (Vec<u8>, Vec<Tag>) {
        let keys = &self.keys[&run.epoch];
        let number = self.numbers.entry(run.epoch).or_insert(run.number);
        assert_eq!(run.number, *number, "numbers follow each other");
        assert_eq!(run.stream_offset, self.stream_end, "and so do the records");
        assert!(run.pieces.len() <= LIMITS.pieces_max);
        assert!(run.count() <= LIMITS.records_max as u64);
        let (bytes, tags) = seal(keys, run);
        self.stream_end += bytes.len() as u64;
        assert_eq!(self.stream_end, run.stream_end());
        *number += run.count();
        let each = usize::from(run.record_plaintext_bytes);
        let mut left = run.plaintext_bytes() as usize;
        while left > 0 {
            self.records.push((run.content_type, left.min(each)));
            left -= left.min(each);
        }
        (bytes, tags)
    }
}

/// Seals a run with `keys`; returns the records and their tags.
pub fn seal(keys: &Keys, run: &Run) -> (Vec<u8>, Vec<Tag>) {
    let mut plaintext = Vec::new();
    for piece in &run.pieces {
        match piece {
            Piece::Real(bytes) => plaintext.extend_from_slice(bytes),
            Piece::Virtual {
                object,
                offset,
                len,
                ..
            } => plaintext.extend((*offset..offset + len).map(|at| content((*object).into(), at))),
        }
    }
    let mut bytes = Vec::new();
    let mut tags = Vec::new();
    for (number, content) in
        (run.number..).zip(plaintext.chunks(usize::from(run.record_plaintext_bytes)))
    {
        let record = keys.seal(number, run.content_type as u8, content);
        tags.push(*record.last_chunk().unwrap());
        bytes.extend(record);
    }
    (bytes, tags)
}
