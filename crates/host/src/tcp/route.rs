//! Where a connection goes when its NIC stack is gone, or another one has its file.
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

use std::ops::Range;

use contract::FileId;

use super::TcpLayer;
use crate::app::AppEvent;
use crate::ground::Ground;
use crate::ground::workers::Deferred;
use crate::nics::nic_stacks::NicSet;
use crate::tables::connections::ConnectionHandle;
use crate::tables::files::State;

impl TcpLayer {
    /// A worker was replaced by one without state; its files are reopened after this.
    pub(crate) fn on_worker_restarted(&mut self, ground: &mut Ground, worker: usize) {
        for handle in self.connections.handles() {
            if let Some(entry) = self.connections.get_mut(handle)
                && entry.nic.worker == worker
            {
                ground.lose_outstanding(&mut entry.nic);
                entry.tcp.on_all_undeparted_lost();
                self.mark_dirty(handle);
            }
        }
    }

    /// A NIC stack is gone with these workers.
    pub(crate) fn on_nic_lost(&mut self, ground: &mut Ground, workers: &Range<usize>) {
        for handle in self.connections.handles() {
            if let Some(entry) = self.connections.get_mut(handle)
                && workers.contains(&entry.nic.worker)
            {
                ground.lose_outstanding(&mut entry.nic);
                entry.refused_by = NicSet::default();
                entry.tcp.on_all_undeparted_lost();
                self.reroute(ground, handle);
            }
        }
    }

    /// A NIC stack has arrived: connections whose own is gone may continue there.
    pub(crate) fn on_nic_come(&mut self, ground: &mut Ground, nic: usize) {
        for handle in self.connections.handles() {
            if let Some(entry) = self.connections.get_mut(handle)
                && !ground.workers[entry.nic.worker].is_there()
            {
                entry.refused_by.remove(nic);
                self.reroute(ground, handle);
            }
        }
    }

    /// Reports the next file that, with several NIC stacks, may have waited for one that has gone.
    pub(crate) fn tell_next(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        if ground.nic_stacks.len() > 1 {
            self.tell_opened(ground, handle);
        }
    }

    /// Retries a move that the connection was waiting for.
    #[cold]
    pub(crate) fn move_on(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        entry.nic.is_to_move = false;
        if !ground.workers[entry.nic.worker].is_there() {
            self.reroute(ground, handle);
        }
        self.tell_opened(ground, handle);
        self.go_on_migrating(ground, handle);
    }

    /// Reports open files to the application, one after the other in the order of its requests. If
    /// a file is at another NIC stack, the connection moves there, as soon as nothing holds it.
    pub(crate) fn tell_opened(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let is_alone = ground.nic_stacks.len() == 1;
        let entry = self.connections.get(handle);
        let is_migrating = entry.is_some_and(|it| self.migrations.is_under_way(it.stream));
        let mut is_held = false;
        let mut next = 0;
        loop {
            let Some(entry) = self.connections.get_mut(handle) else {
                return;
            };
            entry.nic.is_to_move = is_migrating;
            let Some(&file) = entry.files.get(next) else {
                return;
            };
            next += 1;
            let stream = entry.stream;
            let found = ground.files.by_id(file);
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
                    if worker != entry.nic.worker {
                        if is_held || !entry.is_drained() {
                            entry.nic.is_to_move = true;
                            return;
                        }
                        self.change_worker(ground, handle, worker);
                    }
                    is_held = true;
                    if let Some((file, meta)) = ground.files.tell(file) {
                        let meta = meta.into();
                        let event = AppEvent::Opened { file, meta };
                        ground.app_events.push_back((stream, event));
                    }
                }
            }
        }
    }

    /// Changes the worker that sends for the connection. The old one has nothing left that has not
    /// departed.
    pub(crate) fn change_worker(
        &mut self,
        ground: &mut Ground,
        handle: ConnectionHandle,
        worker: usize,
    ) {
        self.stop_migrating(ground, handle);
        if (self.connections.get(handle)).is_some_and(|entry| entry.nic.worker != worker) {
            self.leave_records(ground, handle, false);
        }
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let before = std::mem::replace(&mut entry.nic.worker, worker);
        if before == worker {
            return;
        }
        ground.change_workers(before, worker);
        // A file refused there is no longer needed, or the connection would not go there.
        entry.refused_by.remove(ground.nic_stacks.of(worker));
        // Missing echoes of SENDs that have been acknowledged do not matter.
        ground.sends_outstanding -= std::mem::take(&mut entry.nic.sends_outstanding);
        if std::mem::replace(&mut entry.nic.is_open, false) && ground.workers[before].is_there() {
            ground.counters.ackds += 1;
            ground.workers[before].send_or_defer(Deferred::Acked {
                flow: entry.flow(),
                stream_offset: entry.tcp.acknowledged_bytes(),
                last: true,
            });
        }
    }

    /// True if a version that the connection still needs is open nowhere.
    pub(crate) fn lacks_a_file(&self, ground: &Ground, handle: ConnectionHandle) -> bool {
        let Some(entry) = self.connections.get(handle) else {
            return false;
        };
        let found = entry
            .files
            .iter()
            .filter_map(|&file| ground.files.by_id(file));
        let mut own = found.filter(|found| found.stream == entry.stream);
        own.any(|found| found.state == State::Gone && found.is_needed())
    }

    /// Moves a connection whose NIC stack is gone, or lacks the version being sent, with nothing
    /// left there to depart. It goes to another NIC stack, which must have that version, or back to
    /// the one that had it, to wait for it if that is away. Without either it fails.
    pub(crate) fn reroute(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        self.stop_migrating(ground, handle);
        let Some(entry) = self.connections.get(handle) else {
            return;
        };
        let (stream, worker, refused_by) = (entry.stream, entry.nic.worker, entry.refused_by);
        let files = entry.files.iter().copied();
        let told: Vec<FileId> = files
            .filter(|&file| {
                let found = ground.files.by_id(file);
                found.is_some_and(|found| found.stream == stream && found.is_answered())
            })
            .collect();
        let needed = || {
            let found = told.iter().filter_map(|&file| ground.files.by_id(file));
            found.filter(|found| found.is_needed())
        };
        let is_free = needed().next().is_none();
        // The refused file is no longer needed.
        let refused_by = if is_free {
            NicSet::default()
        } else {
            refused_by
        };
        let may_be_elsewhere = ground.config.roots_are_replicas || is_free;
        let next = if may_be_elsewhere {
            let there = ground.nic_stacks.workers_to_choose(refused_by);
            ground.least_busy(there)
        } else {
            None
        };
        let home = needed()
            .map(|found| found.version_of)
            .find(|&home| !ground.nic_stacks.is_there(home));
        if let Some(next) = next {
            self.change_worker(ground, handle, next);
            for file in told {
                ground.reopen_at(file, next);
                if let Some(entry) = self.connections.get_mut(handle) {
                    entry.nic.holds += 1;
                }
            }
            self.mark_dirty(handle);
            return;
        }
        match home {
            Some(home) => {
                let workers = ground.nic_stacks.workers(home);
                let home = if workers.contains(&worker) {
                    worker
                } else {
                    let in_use = ground.nic_stacks.workers_in_use(home);
                    let least_busy = ground.least_busy(in_use);
                    least_busy.unwrap_or(workers.start)
                };
                self.change_worker(ground, handle, home);
                for file in told {
                    ground.wait_at(file, home);
                }
            }
            // It waits without a version: for any NIC stack.
            None if !ground.workers[worker].is_there() => {}
            None => {
                let path = needed().next().map(|found| found.path.clone());
                let path = path.unwrap_or_default();
                tracing::warn!(
                    path = %String::from_utf8_lossy(&path),
                    "no NIC stack has the version of the file that the response began with: it is \
                     aborted"
                );
                self.fail(ground, worker, handle);
            }
        }
    }
}
