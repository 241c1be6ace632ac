//! Keys and runs of unacknowledged records, with the known tags.
//!
//! A NIC stack's state of a connection can be installed again from here. A record that may have
//! left must not be sealed with other content under the same number; its tag proves that it is not.

use std::collections::VecDeque;
use std::ops::Range;

use crate::key::Key;
use crate::run::{Piece, Run};
use contract::tls::Tag;

/// A report of sealed records is invalid: the NIC stack is not to be trusted with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedError;

/// A definition that a NIC stack needs.
#[derive(Clone, Copy, Debug)]
pub enum Definition<'a> {
    /// A key.
    Key(&'a Key),
    /// A run, with its known tags.
    Run(&'a Run),
}

/// A NIC stack's knowledge of a connection: initially none.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Epochs of its keys.
    epochs: Range<u32>,
    /// Stream offset behind the last run.
    stream_end: u64,
}

impl Known {
    /// Notes a definition that was sent.
    pub fn add(&mut self, definition: Definition<'_>) {
        match definition {
            Definition::Key(key) => {
                let epoch = u32::from(key.epoch);
                if self.epochs.is_empty() {
                    self.epochs.start = epoch;
                }
                self.epochs.end = epoch + 1;
            }
            Definition::Run(run) => self.stream_end = run.stream_end(),
        }
    }

    /// Removes a key that is no longer needed. True if the NIC stack has the key, and must remove
    /// it.
    pub fn remove_key(&mut self, epoch: u16) -> bool {
        let had = self.epochs.contains(&u32::from(epoch));
        if had {
            self.epochs.start = u32::from(epoch) + 1;
        }
        had
    }

    /// True if any definition was sent.
    pub fn is_any(&self) -> bool {
        self.epochs.end > 0
    }
}

#[derive(Debug)]
struct Epoch {
    key: Key,
    /// Stream offset behind the last record, once another key is in use.
    stream_end: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    epochs: VecDeque<Epoch>,
    /// In the order of the stream.
    runs: VecDeque<Run>,
    /// Epoch and number behind the last record defined.
    defined: (u16, u64),
    /// Records in all runs.
    records: u64,
    /// Real bytes in all runs.
    real_bytes: usize,
    acknowledged: u64,
    /// Application data of the runs that are acknowledged, in bytes.
    plaintext_acknowledged: u64,
}

impl Ledger {
    /// Installs the key that seals records from `stream_offset` on.
    pub(crate) fn install(&mut self, key: Key, stream_offset: u64) -> &Key {
        if let Some(last) = self.epochs.back_mut() {
            last.stream_end = Some(stream_offset);
        }
        let stream_end = None;
        self.epochs.push_back(Epoch { key, stream_end });
        &self.epochs[self.epochs.len() - 1].key
    }

    /// Returns the number of keys in use, or with unacknowledged records.
    pub(crate) fn keys(&self) -> usize {
        self.epochs.len()
    }

    /// Returns the number of records defined and not acknowledged.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Returns the memory for runs, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.real_bytes + self.runs.capacity() * size_of::<Run>()
    }

    pub(crate) fn define(&mut self, run: Run) -> &Run {
        self.records += run.count();
        self.real_bytes += run.real_bytes();
        self.defined = (run.epoch, run.number + run.count());
        self.runs.push_back(run);
        &self.runs[self.runs.len() - 1]
    }

    /// Drops everything before `upto`, which the peer has acknowledged. Calls `released` with the
    /// object of each virtual range that is acknowledged to its end, and `removed` with the epoch
    /// of each key that is no longer needed.
    pub(crate) fn acknowledge(
        &mut self,
        upto: u64,
        mut released: impl FnMut(u32),
        mut removed: impl FnMut(u16),
    ) {
        self.acknowledged = self.acknowledged.max(upto);
        while let Some(run) = self.runs.pop_front_if(|run| run.stream_end() <= upto) {
            self.records -= run.count();
            self.real_bytes -= run.real_bytes();
            self.plaintext_acknowledged += run.application_bytes(upto);
            for piece in run.pieces {
                if let Piece::Virtual {
                    object,
                    is_last: true,
                    ..
                } = piece
                {
                    released(object);
                }
            }
        }
        let is_over = |epoch: &mut Epoch| epoch.stream_end.is_some_and(|end| end <= upto);
        while let Some(epoch) = self.epochs.pop_front_if(is_over) {
            removed(epoch.key.epoch);
        }
    }

    /// Notes the tags of records that were sealed for the first time, from record `number` on.
    ///
    /// # Errors
    /// If they are not the next ones, or differ from known tags.
    pub(crate) fn on_sealed(
        &mut self,
        epoch: u16,
        number: u64,
        tags: &[Tag],
    ) -> Result<(), SealedError> {
        let (mut number, mut tags) = (number, tags);
        while let Some((_, after_first)) = tags.split_first() {
            if (epoch, number) >= self.defined {
                return Err(SealedError);
            }
            let at = self
                .runs
                .partition_point(|run| (run.epoch, run.number + run.count()) <= (epoch, number));
            let run = self.runs.get_mut(at);
            let Some(run) = run.filter(|run| (run.epoch, run.number) <= (epoch, number)) else {
                // Acknowledged meanwhile: runs leave from the front only.
                number = number.checked_add(1).ok_or(SealedError)?;
                tags = after_first;
                continue;
            };
            let index = (number - run.number) as usize;
            let in_run = tags.len().min(run.count() as usize - index);
            let (of_run, rest) = tags.split_at(in_run);
            let known = run.tags.get(index..).ok_or(SealedError)?;
            let (again, new) = of_run.split_at(known.len().min(in_run));
            if known[..again.len()] != *again {
                return Err(SealedError);
            }
            run.tags.extend_from_slice(new);
            number += in_run as u64;
            tags = rest;
        }
        Ok(())
    }

    /// True if a record that begins before `stream_offset` has no known tag.
    pub(crate) fn untagged_before(&self, stream_offset: u64) -> bool {
        self.runs.iter().any(|run| {
            let record_bytes =
                u64::from(run.record_plaintext_bytes) + run.suite.overhead_bytes() as u64;
            let tagged = run.tags.len() as u64;
            tagged < run.count() && run.stream_offset + tagged * record_bytes < stream_offset
        })
    }

    /// Returns the acknowledged application data, in bytes.
    pub(crate) fn acknowledged_plaintext(&self) -> u64 {
        let first = self.runs.front();
        self.plaintext_acknowledged
            + first.map_or(0, |run| run.application_bytes(self.acknowledged))
    }

    /// Returns the first unacknowledged byte of an object: the object, and the offset there.
    pub(crate) fn first_virtual(&self) -> Option<(u32, u64)> {
        self.runs.iter().find_map(|run| {
            let mut acknowledged = run.application_bytes(self.acknowledged);
            run.pieces.iter().find_map(|piece| {
                let before = acknowledged.min(piece.len());
                acknowledged -= before;
                match piece {
                    Piece::Virtual {
                        object,
                        offset,
                        len,
                        ..
                    } if before < *len => Some((*object, offset + before)),
                    _ => None,
                }
            })
        })
    }

    /// Returns the first unacknowledged run that a NIC stack does not know, or before it the run's
    /// key.
    pub(crate) fn missing(&self, known: &Known) -> Option<Definition<'_>> {
        let at = self
            .runs
            .partition_point(|run| run.stream_offset < known.stream_end);
        let run = self.runs.get(at)?;
        if u32::from(run.epoch) < known.epochs.end {
            return Some(Definition::Run(run));
        }
        let of_run = |epoch: &&Epoch| epoch.key.epoch == run.epoch;
        let epoch = self.epochs.iter().find(of_run)?;
        Some(Definition::Key(&epoch.key))
    }
}
