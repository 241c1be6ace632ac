//! Sealed stream: the TLS records of a flow, sealed by the worker ([`contract::tls`]).
//!
//! | File | Contents |
//! |---|---|
//! | `keys` | the keys of a flow, by epoch |
//! | `runs` | records that are defined and not acknowledged, and their tags |
//! | `seal` | sealing of one record |
//! | `cipher` | the library for this CPU |
//! | `vaes` | keys of the library that does not overwrite them itself |
//! | `tails` | sealed records of which only a part has left |
//! | `output` | a superpacket's sealed bytes, from blocks to packet memory |
//! | `define` | KEY, KEYGONE and RECORDS are checked and carried out |

mod cipher;
mod define;
mod keys;
mod output;
mod runs;
mod seal;
mod tails;
#[cfg(target_arch = "x86_64")]
mod vaes;

use std::collections::VecDeque;

use crate::follow::Follow;
use keys::Keys;
use tails::TailSlot;

pub(crate) use cipher::CipherKey;
pub(crate) use keys::KEY_BYTES;
pub(crate) use output::{OUTPUT_BYTES_MAX, SealMismatch, Sealer};
pub(crate) use runs::{Run, Source};

/// Memory for more runs than this is given back when none is left.
const IDLE_RUNS_MAX: usize = 8;

/// The sealed stream of a flow.
#[derive(Debug, Default)]
pub(crate) struct SealedStream {
    keys: Keys,
    /// In the order of the stream; there may be other bytes between them.
    runs: VecDeque<Run>,
    /// Records in all runs.
    records: usize,
    /// End in the stream of the last run that was defined.
    defined_end: u64,
    /// Acknowledged up to this stream offset.
    acked_offset: u64,
    /// Stream offset up to which superpackets have been planned.
    planned_end: u64,
    /// Place of the record whose beginning was sent last, and its offset in the stream.
    tail: Option<TailSlot>,
    tail_offset: u64,
}

impl SealedStream {
    /// Returns the run in which this byte of the stream lies.
    pub(crate) fn run_at(&self, stream_offset: u64) -> Option<&Run> {
        self.runs.get(self.index_at(stream_offset)?)
    }

    fn index_at(&self, stream_offset: u64) -> Option<usize> {
        let behind = self
            .runs
            .partition_point(|run| run.stream_offset <= stream_offset);
        let index = behind.checked_sub(1)?;
        (stream_offset < self.runs[index].stream_end()).then_some(index)
    }

    /// True if all of this range of the stream is in records that are defined.
    pub(crate) fn covers(&self, mut start: u64, len: usize) -> bool {
        let end = start.saturating_add(len as u64);
        while start < end {
            let Some(run) = self.run_at(start) else {
                return false;
            };
            start = run.stream_end();
        }
        true
    }

    /// Keeps the runs of a range, which a SEND needs, until [`SealedStream::release`].
    pub(crate) fn acquire(&mut self, start: u64, len: usize) {
        for run in self.runs_of(start, len) {
            run.users += 1;
        }
    }

    /// The inverse of [`SealedStream::acquire`].
    pub(crate) fn release(&mut self, start: u64, len: usize) {
        for run in self.runs_of(start, len) {
            run.users -= 1;
        }
    }

    fn runs_of(&mut self, start: u64, len: usize) -> impl Iterator<Item = &mut Run> {
        let end = start.saturating_add(len as u64);
        let first = self.index_at(start).unwrap_or(self.runs.len());
        self.runs
            .range_mut(first..)
            .take_while(move |run| run.stream_offset < end)
    }

    /// Records that all bytes before `stream_offset` have been acknowledged.
    pub(crate) fn acknowledge(&mut self, stream_offset: u64) {
        self.acked_offset = self.acked_offset.max(stream_offset);
    }

    /// Takes out the first run if it is no longer needed, and removes keys that are no longer
    /// needed.
    pub(crate) fn take_acknowledged(&mut self) -> Option<Run> {
        let first = self.runs.front()?;
        if first.users > 0 || first.stream_end() > self.acked_offset {
            return None;
        }
        let run = self.runs.pop_front()?;
        if self.runs.is_empty() && self.runs.capacity() > IDLE_RUNS_MAX {
            self.runs = VecDeque::new();
        }
        self.records -= run.count();
        self.keys.release(run.epoch);
        Some(run)
    }

    /// Takes out all runs, and removes all keys: the flow is over.
    pub(crate) fn clear(&mut self) -> VecDeque<Run> {
        self.keys.clear();
        self.records = 0;
        std::mem::take(&mut self.runs)
    }

    /// Returns the continuation, in the same file, of a superpacket that has been planned and ends
    /// here, unless it is a retransmission.
    pub(crate) fn follow(&mut self, stream_end: u64) -> Option<Follow> {
        if stream_end <= self.planned_end {
            return None;
        }
        self.planned_end = stream_end;
        self.run_at(stream_end - 1)?.follow(stream_end)
    }

    /// Returns the number of keys.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Returns the numbers of keys, runs and records held.
    pub(crate) fn held(&self) -> (usize, usize, usize) {
        (self.keys.len(), self.runs.len(), self.records)
    }
}
