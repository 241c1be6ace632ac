//! Keys and runs whose records the peer has not acknowledged, with the tags of those that were sealed.
//!
//! What a NIC stack knows of a connection can be installed again from here. A record that may have left must not be
//! sealed with other content under the same number; its tag proves that it is not.

use std::collections::VecDeque;

use crate::key::Key;
use crate::run::{Piece, Run};
use contract::tls::Tag;

/// A report of sealed records makes no sense: the NIC stack is not to be trusted with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedError;

/// What has to be installed in a NIC stack, in order.
#[derive(Clone, Copy, Debug)]
pub enum Replay<'a> {
    /// A key.
    Key(&'a Key),
    /// A run, with the tags that are known.
    Run(&'a Run),
}

#[derive(Debug)]
struct Epoch {
    key: Key,
    /// Behind the last record, once there is another key.
    stream_end: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    epochs: VecDeque<Epoch>,
    /// In the order of the stream.
    runs: VecDeque<Run>,
    /// Epoch and number behind the last record defined.
    defined: (u16, u64),
}

impl Ledger {
    /// From `stream_offset` on, records are sealed with this key.
    pub(crate) fn install(&mut self, key: Key, stream_offset: u64) -> &Key {
        if let Some(last) = self.epochs.back_mut() {
            last.stream_end = Some(stream_offset);
        }
        let stream_end = None;
        self.epochs.push_back(Epoch { key, stream_end });
        &self.epochs[self.epochs.len() - 1].key
    }

    pub(crate) fn define(&mut self, run: Run) -> &Run {
        self.defined = (run.epoch, run.number + run.count());
        self.runs.push_back(run);
        &self.runs[self.runs.len() - 1]
    }

    /// Drops what the peer has acknowledged: all before `upto`. Calls `released` with the object of each virtual range
    /// that is gone to its end, and `removed` with the epoch of each key that is not needed any more.
    pub(crate) fn acknowledge(
        &mut self,
        upto: u64,
        mut released: impl FnMut(u32),
        mut removed: impl FnMut(u16),
    ) {
        while let Some(run) = self.runs.pop_front_if(|run| run.stream_end() <= upto) {
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
    /// If they are not the next ones, or were known and are others.
    pub(crate) fn on_sealed(
        &mut self,
        epoch: u16,
        number: u64,
        tags: &[Tag],
    ) -> Result<(), SealedError> {
        for (number, tag) in (number..).zip(tags) {
            let at = self
                .runs
                .partition_point(|run| (run.epoch, run.number + run.count()) <= (epoch, number));
            if (epoch, number) >= self.defined {
                return Err(SealedError);
            }
            let run = self.runs.get_mut(at);
            let Some(run) = run.filter(|run| (run.epoch, run.number) <= (epoch, number)) else {
                // Acknowledged meanwhile: runs leave from the front only.
                continue;
            };
            let index = (number - run.number) as usize;
            match run.tags.get(index) {
                Some(known) if known == tag => {}
                None if run.tags.len() == index => run.tags.push(*tag),
                _ => return Err(SealedError),
            }
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

    /// Everything that is not acknowledged: each key, and the runs that it seals.
    pub(crate) fn replay(&self) -> impl Iterator<Item = Replay<'_>> {
        self.epochs.iter().flat_map(|Epoch { key, .. }| {
            let runs = self.runs.iter().filter(|run| run.epoch == key.epoch);
            std::iter::once(Replay::Key(key)).chain(runs.map(Replay::Run))
        })
    }
}
