//! Shortage of files, on the host or at a NIC stack: the source with most gives some up to those
//! with fewer.
//!
//! An OPEN that fails for lack of descriptors is repeated once there is room. A source that has
//! most itself is refused.

use std::collections::{HashMap, VecDeque};

use contract::FileId;
use rustix::io::Errno;

use crate::app::{FileHandle, StreamId};
use crate::episode::Episode;
use crate::ground::Ground;
use crate::ground::Layers;
use crate::tables::files::{Name, State};
use crate::tables::sources::Source;
use crate::tables::victims::{self, Candidate};

/// Least time between searches for holders, in microseconds: each goes through all files.
const LOOK_US: u64 = 100_000;

/// Most holders found at once.
const VICTIMS_MAX: usize = 1024;

/// Most repetitions of an OPEN.
const REPEATS_MAX: u8 = 3;

/// The state of a shortage of files.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// Holders to reset next, the first one last, each with the number that its source then has.
    victims: Vec<(usize, StreamId)>,
    /// The number of files of each source at the last search.
    files: HashMap<Source, usize>,
    looked_us: Option<u64>,
    /// OPENs to repeat.
    repeated: VecDeque<FileId>,
    episode: Episode,
}

impl Shortage {
    /// True if there are OPENs to repeat.
    pub(crate) fn has_opens(&self) -> bool {
        !self.repeated.is_empty()
    }
}

/// True if the error of an OPEN means a lack of descriptors.
fn is_shortage(errno: u16) -> bool {
    let shortage = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    shortage.contains(&i32::from(errno))
}

impl Ground {
    /// Reserves a place for a file to open, or a directory to list. A full table admits one too
    /// many if another one gives way; `None` if none does.
    pub(crate) fn admit_file(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        stream: StreamId,
        worker: usize,
        name: Name,
        path: &[u8],
    ) -> Option<(FileId, FileHandle)> {
        if self.files.len() >= self.config.admission.files_max
            && !self.evict_file_holder(layers, now_us, stream)
        {
            return None;
        }
        let nic = self.nic_stacks.of(worker);
        self.files.open(stream, nic, worker, name, path)
    }

    /// Handles an OPEN that has failed. If descriptors are short, and a connection can give some
    /// up, the OPEN is repeated after that.
    pub(crate) fn repeats_open(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        file: FileId,
        errno: u16,
    ) -> bool {
        let Some(found) = self.files.by_id(file) else {
            return false;
        };
        let (stream, repeats) = (found.stream, found.repeats);
        if !is_shortage(errno)
            || !found.is_needed()
            || repeats >= REPEATS_MAX
            || !self.evict_file_holder(layers, now_us, stream)
        {
            return false;
        }
        if let Some(found) = self.files.by_id_mut(file) {
            found.repeats += 1;
            found.state = State::Waiting;
        }
        self.shortage.repeated.push_back(file);
        true
    }

    /// Repeats OPENs, behind the CLOSs of the connections reset for them.
    pub(crate) fn repeat_opens(&mut self) {
        while let Some(file) = self.shortage.repeated.pop_front() {
            let Some(found) = self.files.by_id_mut(file).filter(|found| {
                // Another NIC stack may have been asked meanwhile, or another file may have the id.
                found.state == State::Waiting && found.repeats > 0
            }) else {
                continue;
            };
            let nic = self.nic_stacks.of(found.worker);
            if !self.nic_stacks.is_there(nic) {
                continue;
            }
            found.state = State::Opening;
            let worker = found.worker;
            self.ask_worker(worker, file);
        }
    }

    /// Resets a connection of the source with most files, unless the stream's own source has as
    /// many. False if there is none.
    pub(crate) fn evict_file_holder(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        stream: StreamId,
    ) -> bool {
        let looked_us = self.shortage.looked_us;
        if self.shortage.victims.is_empty()
            && looked_us.is_none_or(|at_us| now_us.saturating_sub(at_us) >= LOOK_US)
        {
            self.look_for_file_holders(layers, now_us);
        }
        let Some(entry) = layers.tcp.connections.by_stream(stream) else {
            return false;
        };
        let own = Source::from(entry.source());
        let own_files = self.shortage.files.get(&own).copied().unwrap_or(0);
        while let Some((files, victim)) = self
            .shortage
            .victims
            .pop_if(|(files, _)| *files > own_files)
        {
            let Some(entry) = layers.tcp.connections.by_stream_mut(victim) else {
                continue;
            };
            let (handle, source) = (entry.handle(), entry.source());
            if entry.files.is_empty() || entry.tcp.is_closed() {
                continue;
            }
            entry.tcp.abort();
            self.counters.file_evictions += 1;
            if self.shortage.episode.begins(now_us) {
                tracing::warn!(
                    %source,
                    files,
                    "files run short: connections of the source with most are reset"
                );
            }
            layers.tcp.mark_dirty(handle);
            return true;
        }
        false
    }

    fn look_for_file_holders(&mut self, layers: &mut Layers<'_>, now_us: u64) {
        let mut files = HashMap::new();
        let mut candidates = Vec::new();
        for file in self.files.iter().filter(|file| file.is_needed()) {
            if let Some(entry) = layers.tcp.connections.by_stream(file.stream) {
                let remote = entry.source();
                *files.entry(Source::from(remote)).or_default() += 1;
                candidates.push(Candidate {
                    stream: file.stream,
                    remote,
                    since: file.opened,
                });
            }
        }
        self.shortage.files = files;
        self.shortage.victims = victims::choose(candidates, VICTIMS_MAX);
        self.shortage.looked_us = Some(now_us);
    }
}
