//! Files at NIC stacks: the search for a NIC stack that has a file, and its outcome.

use contract::{FileId, FileMeta};
use rustix::io::Errno;

use super::listing::may_have_some;
use crate::app::{AppEvent, FileHandle, StreamId};
use crate::ground::Ground;
use crate::ground::Layers;
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{Lookup, Name, State};

/// The error for a file that no NIC stack has answered for.
const NO_FILE: u16 = Errno::NOENT.raw_os_error() as u16;

impl Ground {
    /// Opens a file for a stream of this worker, at the worker or at another one that is there.
    pub(crate) fn open_file(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        stream: StreamId,
        worker: usize,
        name: Name,
        path: &[u8],
    ) -> Option<(FileId, FileHandle)> {
        let nic = self.nic_stacks.of(worker);
        let opened = self.admit_file(layers, now_us, stream, worker, name, path)?;
        if self.nic_stacks.is_there(nic) {
            self.send_open(worker, opened.0, path, Lookup::Open(name))
        } else {
            if let Some(file) = self.files.by_id_mut(opened.0) {
                file.asked = NicSet::default();
                file.state = State::Waiting;
            }
            self.ask(layers, opened.0);
        }
        Some(opened)
    }

    /// OPEN has succeeded for the first time; false if it was not awaited.
    pub(crate) fn on_opened(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        file: FileId,
        meta: FileMeta,
    ) -> bool {
        let nic = self.nic_stacks.of(worker);
        match self.files.opened(nic, worker, file, meta) {
            Some(Ok(StreamId::NONE)) => {
                self.tell_looked_up(file);
                true
            }
            Some(Ok(stream)) => {
                layers.of_stream(stream).on_file_opened(self, stream);
                true
            }
            Some(Err(close)) => {
                self.send_close(close);
                true
            }
            None => false,
        }
    }

    /// OPEN has failed for the first time: another NIC stack may have the file. False if it was not
    /// awaited.
    pub(crate) fn on_open_failed(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        worker: usize,
        file: FileId,
        errno: u16,
    ) -> bool {
        let known = self.files.by_id(file).is_some();
        let is_asked = self.files.opening(worker, file).is_some();
        if is_asked && self.repeats_open(layers, now_us, file, errno) {
            return known;
        }
        if let Some(found) = self.files.opening(worker, file) {
            let is_directory = i32::from(errno) == Errno::ISDIR.raw_os_error();
            let fails_listing = found.listing.is_some() && may_have_some(errno);
            if found.errno.is_none() || is_directory || fails_listing {
                found.errno = Some(errno);
            }
            found.state = State::Waiting;
            self.ask(layers, file);
        }
        known
    }

    /// Asks the next NIC stack for a waiting file; if all were asked, reports the failure to the
    /// stream. If some that may have it are away, the file waits for them, but not for long.
    pub(crate) fn ask(&mut self, layers: &mut Layers<'_>, file: FileId) {
        let Some(found) = self.files.by_id(file) else {
            return;
        };
        let (asked, answer) = (found.asked, found.errno);
        let home = layers.home(found.stream);
        // A directory counts as found: its stream asks for a listing.
        let is_directory = answer == Some(Errno::ISDIR.raw_os_error() as u16);
        let is_gone = home.is_none() && found.stream != StreamId::NONE;
        if is_gone || !found.is_needed() || is_directory || self.fails_listing(found) {
            return self.tell_open_failed(layers, file, answer.unwrap_or(NO_FILE));
        }
        if let Some(nic) = found.bound_to() {
            return self.wait_to_go_on(layers, file, nic, answer);
        }
        let Some(worker) = self.worker_to_ask(home, asked) else {
            return self.wait_for_nic(layers, file, home, asked, answer);
        };
        let Some(found) = self.files.by_id_mut(file) else {
            return;
        };
        found.worker = worker;
        found.state = State::Opening;
        found.asked.insert(self.nic_stacks.of(worker));
        self.ask_worker(worker, file);
    }

    /// A worker that is there, of a NIC stack that was not asked: the connection's own, if
    /// possible.
    fn worker_to_ask(&self, home: Option<usize>, asked: NicSet) -> Option<usize> {
        let home = home.filter(|&home| {
            let nic = self.nic_stacks.of(home);
            self.nic_stacks.is_there(nic) && !asked.contains(nic)
        });
        home.or_else(|| {
            let there = self.nic_stacks.workers_to_choose(asked);
            self.least_busy(there)
        })
    }

    /// Handles a file that no reachable NIC stack has.
    fn wait_for_nic(
        &mut self,
        layers: &mut Layers<'_>,
        file: FileId,
        home: Option<usize>,
        asked: NicSet,
        answer: Option<u16>,
    ) {
        let away = |&nic: &usize| !self.nic_stacks.is_there(nic) && !asked.contains(nic);
        let is_away = (0..self.nic_stacks.len()).any(|nic| away(&nic));
        let awaited =
            (0..self.nic_stacks.len()).find(|nic| away(nic) && self.nic_stacks.is_awaited(*nic));
        match (answer, awaited) {
            // Absent replicas have the same files.
            (Some(errno), _) if self.config.roots_are_replicas || !is_away => {
                self.tell_open_failed(layers, file, errno);
            }
            (Some(_), None) => {
                self.tell_open_failed(layers, file, Errno::AGAIN.raw_os_error() as u16);
            }
            // It is asked as soon as it is back.
            (_, Some(nic)) => {
                let workers = self.nic_stacks.workers(nic);
                let own = home.filter(|home| workers.contains(home));
                let in_use = self.nic_stacks.workers_in_use(nic);
                let worker = own.or_else(|| self.least_busy(in_use));
                if let (Some(found), Some(worker)) = (self.files.by_id_mut(file), worker) {
                    found.worker = worker;
                }
            }
            // No NIC stack is there.
            (None, None) => {
                self.ends_listing(layers, file);
            }
        }
    }

    /// Reports an OPEN that has failed wherever the file could be.
    pub(crate) fn tell_open_failed(&mut self, layers: &mut Layers<'_>, file: FileId, errno: u16) {
        if self.ends_listing(layers, file) {
            return;
        }
        let Some((stream, file)) = self.files.open_failed(file) else {
            return;
        };
        let event = AppEvent::OpenFailed { file, errno };
        self.app_events.push_back((stream, event));
        if let Some(handle) = layers.tcp.connections.handle_of(stream) {
            layers.tcp.tell_next(self, handle);
        }
    }
}
