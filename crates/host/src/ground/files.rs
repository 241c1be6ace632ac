//! Several NIC stacks: which of them has a file, and where a connection goes when its NIC stack is
//! gone.
//!
//! A connection uses one NIC stack at a time, so that nothing can overtake anything. It changes to
//! another one
//!
//! * when that one has a file which its own lacks. The answer to this OPEN is held until everything
//!   queued before is acknowledged, and all files opened before are closed: then nothing can be
//!   needed from the old one again;
//! * when its own is gone, with everything that has not departed. The new one opens files known to
//!   the application again, and must have the same version ([`crate::tables::files`]); if none has,
//!   the connection waits for its own to come back. The operator states whether another NIC stack
//!   can have the same version at all
//!   ([`StackConfig::roots_are_replicas`](crate::StackConfig::roots_are_replicas)).

use contract::channel::HostChannel;
use contract::{FileId, FileMeta};
use rustix::io::Errno;

use super::listing::may_have_some;
use super::workers::{Deferred, WorkerLink};
use crate::app::{AppEvent, FileHandle, StreamId};
use crate::nics::nic_source::NicRefusal;
use crate::nics::nic_stacks::NicSet;
use crate::stack::Stack;
use crate::tables::connections::ConnectionHandle;
use crate::tables::files::{Lookup, MayClose, Name, State};

/// The error for a file that no NIC stack has answered for.
const NO_FILE: u16 = Errno::NOENT.raw_os_error() as u16;

impl Stack {
    /// NIC stack `nic` has joined or returned with these workers, and has no state.
    ///
    /// Returns an error if it had another number of workers before; then it is not used.
    ///
    /// # Panics
    /// If there is no such NIC stack, or it has no workers.
    pub fn on_nic_come(
        &mut self,
        now_us: u64,
        nic: usize,
        channels: Vec<HostChannel>,
    ) -> Result<(), NicRefusal> {
        if let Some(refusal) = self.nic_refusal(nic, channels.len()) {
            return Err(refusal);
        }
        let workers = self.ground.nic_stacks.workers(nic);
        if workers.is_empty() {
            assert!(!channels.is_empty(), "a NIC stack has workers");
            self.introduce_nic(nic, channels);
            for worker in self.ground.nic_stacks.workers(nic) {
                self.send_setup(now_us, worker);
            }
        } else {
            self.ground.counters.nic_restarts += 1;
            self.ground.nic_stacks.has_come(nic);
            for (worker, channel) in workers.zip(channels) {
                self.on_nic_restarted(now_us, worker, channel);
            }
        }
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && !self.ground.workers[entry.worker].is_there()
            {
                entry.refused_by.remove(nic);
                self.reroute(handle);
            }
        }
        self.on_quic_nic_come();
        self.part_with_elsewhere(now_us);
        self.splice_elsewhere();
        for file in self.ground.files.waiting() {
            self.ask(file);
        }
        Ok(())
    }

    /// Why NIC stack `nic` cannot be used with this many workers.
    pub(crate) fn nic_refusal(&self, nic: usize, workers: usize) -> Option<NicRefusal> {
        let wanted = self.ground.nic_stacks.workers(nic).len();
        (wanted != 0 && wanted != workers).then_some(NicRefusal { workers, wanted })
    }

    /// A NIC stack joins for the first time.
    pub(crate) fn introduce_nic(&mut self, nic: usize, channels: Vec<HostChannel>) {
        self.ground.nic_stacks.introduce(nic, channels.len());
        self.ground.nic_stacks.has_come(nic);
        self.divide_labour_of(nic);
        self.ground
            .workers
            .extend(channels.into_iter().map(WorkerLink::new));
    }

    /// NIC stack `nic` is gone. The host still reads its events that no other repeats, as in
    /// [`Stack::on_nic_restarted`]. Connections continue through others that have what they need,
    /// or wait for it to come back.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub fn on_nic_lost(&mut self, now_us: u64, nic: usize) {
        if !self.ground.nic_stacks.is_there(nic) {
            return;
        }
        self.ground.counters.nic_losses += 1;
        self.ground.nic_stacks.has_gone(nic, now_us);
        let workers = self.ground.nic_stacks.workers(nic);
        self.leave_workers(now_us, workers.clone());
        for worker in workers.clone() {
            self.ground.workers[worker].lose();
        }
        self.steer();
        for worker in workers.clone() {
            self.stop_migrations_of(worker);
            self.ground.division.forget_load(worker);
        }
        self.ground.files.lose(nic, &workers);
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && workers.contains(&entry.worker)
            {
                self.ground.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
                entry.holds = 0;
                entry.refused_by = NicSet::default();
                entry.tcp.on_all_undeparted_lost();
                self.reroute(handle);
            }
        }
        self.on_quic_nic_lost(&workers);
        self.part_with_elsewhere(now_us);
        self.splice_elsewhere();
        for file in self.ground.files.waiting() {
            self.ask(file);
        }
    }

    /// Fails requests for a file that only a NIC stack which has been away for too long can have.
    pub(crate) fn give_up_nics(&mut self, now_us: u64) {
        while let Some(nic) = self.ground.nic_stacks.give_up(now_us) {
            self.take_back_from(now_us, nic);
            self.break_splices_of(now_us, nic);
            for file in self.ground.files.waiting() {
                self.ask(file);
            }
        }
    }

    /// Opens a file for a stream of this worker, at the worker or at another one that is there.
    pub(crate) fn open_file(
        &mut self,
        now_us: u64,
        stream: StreamId,
        worker: usize,
        name: Name,
        path: &[u8],
    ) -> Option<(FileId, FileHandle)> {
        let nic = self.ground.nic_stacks.of(worker);
        let opened = self.admit_file(now_us, stream, worker, name, path)?;
        if self.ground.nic_stacks.is_there(nic) {
            self.send_open(worker, opened.0, path, Lookup::Open(name))
        } else {
            if let Some(file) = self.ground.files.by_id_mut(opened.0) {
                file.asked = NicSet::default();
                file.state = State::Waiting;
            }
            self.ask(opened.0);
        }
        Some(opened)
    }

    /// OPEN has succeeded for the first time; false if it was not awaited.
    pub(crate) fn on_opened(&mut self, worker: usize, file: FileId, meta: FileMeta) -> bool {
        let nic = self.ground.nic_stacks.of(worker);
        match self.ground.files.opened(nic, worker, file, meta) {
            Some(Ok(StreamId::NONE)) => {
                self.tell_looked_up(file);
                true
            }
            Some(Ok(stream)) => {
                if let Some(handle) = self.tcp.connections.handle_of(stream) {
                    self.tell_opened(handle);
                } else {
                    self.on_quic_file_opened(stream);
                }
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
        now_us: u64,
        worker: usize,
        file: FileId,
        errno: u16,
    ) -> bool {
        let known = self.ground.files.by_id(file).is_some();
        let is_asked = self.ground.files.opening(worker, file).is_some();
        if is_asked && self.repeats_open(now_us, file, errno) {
            return known;
        }
        if let Some(found) = self.ground.files.opening(worker, file) {
            let is_directory = i32::from(errno) == Errno::ISDIR.raw_os_error();
            let fails_listing = found.listing.is_some() && may_have_some(errno);
            if found.errno.is_none() || is_directory || fails_listing {
                found.errno = Some(errno);
            }
            found.state = State::Waiting;
            self.ask(file);
        }
        known
    }

    /// Asks the next NIC stack for a waiting file; if all were asked, reports the failure to the
    /// stream. If some that may have it are away, the file waits for them, but not for long.
    pub(crate) fn ask(&mut self, file: FileId) {
        let Some(found) = self.ground.files.by_id(file) else {
            return;
        };
        let (asked, answer) = (found.asked, found.errno);
        let home = self.tcp.connections.by_stream(found.stream);
        let home = home.map(|entry| entry.worker);
        let home = home.or_else(|| self.quic_worker(found.stream));
        // A directory counts as found: its stream asks for a listing.
        let is_directory = answer == Some(Errno::ISDIR.raw_os_error() as u16);
        let is_gone = home.is_none() && found.stream != StreamId::NONE;
        if is_gone || !found.is_needed() || is_directory || self.fails_listing(found) {
            return self.tell_open_failed(file, answer.unwrap_or(NO_FILE));
        }
        if let Some(nic) = found.bound_to() {
            return self.wait_to_go_on(file, nic, answer);
        }
        let Some(worker) = self.worker_to_ask(home, asked) else {
            return self.wait_for_nic(file, home, asked, answer);
        };
        let Some(found) = self.ground.files.by_id_mut(file) else {
            return;
        };
        found.worker = worker;
        found.state = State::Opening;
        found.asked.insert(self.ground.nic_stacks.of(worker));
        let (path, lookup) = (found.path.clone(), found.lookup());
        self.send_open(worker, file, &path, lookup);
    }

    /// A worker that is there, of a NIC stack that was not asked: the connection's own, if
    /// possible.
    fn worker_to_ask(&self, home: Option<usize>, asked: NicSet) -> Option<usize> {
        let home = home.filter(|&home| {
            let nic = self.ground.nic_stacks.of(home);
            self.ground.nic_stacks.is_there(nic) && !asked.contains(nic)
        });
        home.or_else(|| {
            let there = self.ground.nic_stacks.workers_to_choose(asked);
            self.ground.least_busy(there)
        })
    }

    /// Handles a file that no reachable NIC stack has.
    fn wait_for_nic(
        &mut self,
        file: FileId,
        home: Option<usize>,
        asked: NicSet,
        answer: Option<u16>,
    ) {
        let away = |&nic: &usize| !self.ground.nic_stacks.is_there(nic) && !asked.contains(nic);
        let is_away = (0..self.ground.nic_stacks.len()).any(|nic| away(&nic));
        let awaited = (0..self.ground.nic_stacks.len())
            .find(|nic| away(nic) && self.ground.nic_stacks.is_awaited(*nic));
        match (answer, awaited) {
            // Absent replicas have the same files.
            (Some(errno), _) if self.ground.config.roots_are_replicas || !is_away => {
                self.tell_open_failed(file, errno);
            }
            (Some(_), None) => {
                self.tell_open_failed(file, Errno::AGAIN.raw_os_error() as u16);
            }
            // It is asked as soon as it is back.
            (_, Some(nic)) => {
                let workers = self.ground.nic_stacks.workers(nic);
                let own = home.filter(|home| workers.contains(home));
                let in_use = self.ground.nic_stacks.workers_in_use(nic);
                let worker = own.or_else(|| self.ground.least_busy(in_use));
                if let (Some(found), Some(worker)) = (self.ground.files.by_id_mut(file), worker) {
                    found.worker = worker;
                }
            }
            // No NIC stack is there.
            (None, None) => {
                self.ends_listing(file);
            }
        }
    }

    /// Reports an OPEN that has failed wherever the file could be.
    pub(crate) fn tell_open_failed(&mut self, file: FileId, errno: u16) {
        if self.ends_listing(file) {
            return;
        }
        let Some((stream, file)) = self.ground.files.open_failed(file) else {
            return;
        };
        let event = AppEvent::OpenFailed { file, errno };
        self.ground.app_events.push_back((stream, event));
        if let Some(handle) = self.tcp.connections.handle_of(stream) {
            self.tell_next(handle);
        }
    }

    /// Reports the next file that, with several NIC stacks, may have waited for one that has gone.
    pub(crate) fn tell_next(&mut self, handle: ConnectionHandle) {
        if self.ground.nic_stacks.len() > 1 {
            self.tell_opened(handle);
        }
    }

    /// Retries a move that the connection was waiting for.
    #[cold]
    pub(crate) fn move_on(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        entry.is_to_move = false;
        if !self.ground.workers[entry.worker].is_there() {
            self.reroute(handle);
        }
        self.tell_opened(handle);
        self.go_on_migrating(handle);
    }

    /// Reports open files to the application, one after the other in the order of its requests. If
    /// a file is at another NIC stack, the connection moves there, as soon as nothing holds it.
    pub(crate) fn tell_opened(&mut self, handle: ConnectionHandle) {
        let is_alone = self.ground.nic_stacks.len() == 1;
        let entry = self.tcp.connections.get(handle);
        let is_migrating = entry.is_some_and(|it| self.tcp.migrations.is_under_way(it.stream));
        let mut is_held = false;
        let mut next = 0;
        loop {
            let Some(entry) = self.tcp.connections.get_mut(handle) else {
                return;
            };
            entry.is_to_move = is_migrating;
            let Some(&file) = entry.files.get(next) else {
                return;
            };
            next += 1;
            let stream = entry.stream;
            let found = self.ground.files.by_id(file);
            let Some(found) = found.filter(|found| found.stream == stream) else {
                continue;
            };
            match found.state {
                // It may turn out to be elsewhere, and then those behind it must not hold the
                // connection.
                State::Waiting | State::Opening if is_alone || !found.is_needed() => continue,
                State::Waiting | State::Opening => return,
                State::Open | State::Reopening | State::Gone => is_held = true,
                State::Found => {
                    let worker = found.worker;
                    if worker != entry.worker {
                        if is_held || !entry.is_drained() {
                            entry.is_to_move = true;
                            return;
                        }
                        self.change_worker(handle, worker);
                    }
                    is_held = true;
                    if let Some((file, meta)) = self.ground.files.tell(file) {
                        let meta = meta.into();
                        let event = AppEvent::Opened { file, meta };
                        self.ground.app_events.push_back((stream, event));
                    }
                }
            }
        }
    }

    /// Changes the worker that sends for the connection. The old one has nothing left that has not
    /// departed.
    pub(crate) fn change_worker(&mut self, handle: ConnectionHandle, worker: usize) {
        self.stop_migrating(handle);
        if (self.tcp.connections.get(handle)).is_some_and(|entry| entry.worker != worker) {
            self.leave_records(handle, false);
        }
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let before = std::mem::replace(&mut entry.worker, worker);
        if before == worker {
            return;
        }
        self.ground.change_workers(before, worker);
        if self.ground.nic_stacks.of(before) == self.ground.nic_stacks.of(worker) {
            self.ground.counters.connections_rebalanced += 1;
        } else {
            self.ground.counters.connections_moved += 1;
        }
        // A file refused there is no longer needed, or the connection would not go there.
        entry.refused_by.remove(self.ground.nic_stacks.of(worker));
        // Missing echoes of SENDs that have been acknowledged do not matter.
        self.ground.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
        if std::mem::replace(&mut entry.flow_open, false) && self.ground.workers[before].is_there()
        {
            self.ground.counters.ackds += 1;
            self.ground.workers[before].send_or_defer(Deferred::Acked {
                flow: entry.flow(),
                stream_offset: entry.tcp.acknowledged_bytes(),
                last: true,
            });
        }
    }

    /// True if a version that the connection still needs is open nowhere.
    pub(crate) fn lacks_a_file(&self, handle: ConnectionHandle) -> bool {
        let Some(entry) = self.tcp.connections.get(handle) else {
            return false;
        };
        let found = entry
            .files
            .iter()
            .filter_map(|&file| self.ground.files.by_id(file));
        let mut own = found.filter(|found| found.stream == entry.stream);
        own.any(|found| found.state == State::Gone && found.is_needed())
    }

    /// Moves a connection whose NIC stack is gone, or lacks the version being sent, with nothing
    /// left there to depart. It goes to another NIC stack, which must have that version, or back to
    /// the one that had it, to wait for it if that is away. Without either it fails.
    pub(crate) fn reroute(&mut self, handle: ConnectionHandle) {
        self.stop_migrating(handle);
        let Some(entry) = self.tcp.connections.get(handle) else {
            return;
        };
        let (stream, worker, refused_by) = (entry.stream, entry.worker, entry.refused_by);
        let files = entry.files.iter().copied();
        let told: Vec<FileId> = files
            .filter(|&file| {
                let found = self.ground.files.by_id(file);
                found.is_some_and(|found| found.stream == stream && found.is_answered())
            })
            .collect();
        let needed = || {
            let found = told
                .iter()
                .filter_map(|&file| self.ground.files.by_id(file));
            found.filter(|found| found.is_needed())
        };
        let is_free = needed().next().is_none();
        // The refused file is no longer needed.
        let refused_by = if is_free {
            NicSet::default()
        } else {
            refused_by
        };
        let may_be_elsewhere = self.ground.config.roots_are_replicas || is_free;
        let next = if may_be_elsewhere {
            let there = self.ground.nic_stacks.workers_to_choose(refused_by);
            self.ground.least_busy(there)
        } else {
            None
        };
        let home = needed()
            .map(|found| found.version_of)
            .find(|&home| !self.ground.nic_stacks.is_there(home));
        if let Some(next) = next {
            self.change_worker(handle, next);
            for file in told {
                self.reopen_at(handle, file, next);
            }
            self.mark_dirty(handle);
            return;
        }
        match home {
            Some(home) => {
                let workers = self.ground.nic_stacks.workers(home);
                let home = if workers.contains(&worker) {
                    worker
                } else {
                    let in_use = self.ground.nic_stacks.workers_in_use(home);
                    let least_busy = self.ground.least_busy(in_use);
                    least_busy.unwrap_or(workers.start)
                };
                self.change_worker(handle, home);
                for file in told {
                    self.wait_at(file, home);
                }
            }
            // It waits without a version: for any NIC stack.
            None if !self.ground.workers[worker].is_there() => {}
            None => {
                let path = needed().next().map(|found| found.path.clone());
                let path = path.unwrap_or_default();
                tracing::warn!(
                    path = %String::from_utf8_lossy(&path),
                    "no NIC stack has the version of the file that the response began with: it is \
                     aborted"
                );
                self.fail(worker, handle);
            }
        }
    }

    /// Opens a file known to the stream at another worker.
    fn reopen_at(&mut self, handle: ConnectionHandle, file: FileId, worker: usize) {
        self.wait_at(file, worker);
        let (Some(found), Some(entry)) = (
            self.ground.files.by_id_mut(file),
            self.tcp.connections.get_mut(handle),
        ) else {
            return;
        };
        found.state = State::Reopening;
        entry.holds += 1;
        let (path, lookup) = (found.path.clone(), found.lookup());
        self.send_open(worker, file, &path, lookup);
    }

    /// Marks a file known to the stream as open nowhere, and to be opened by this worker.
    fn wait_at(&mut self, file: FileId, worker: usize) {
        let Some(found) = self.ground.files.by_id_mut(file) else {
            return;
        };
        let before = std::mem::replace(&mut found.worker, worker);
        if std::mem::replace(&mut found.state, State::Gone) == State::Open {
            self.send_close(MayClose::at(before, file));
        }
    }
}
