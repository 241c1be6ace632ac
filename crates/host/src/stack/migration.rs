//! Connections that go from one worker of a NIC stack to another, as they are.
//!
//! 1. The other worker opens the connection's files. The one that sends has them open all the
//!    while, so that a file which was replaced by another version keeps the connection where it is,
//!    and harms nothing.
//! 2. When all are open there, no more SENDs are handed out, until those that were have departed:
//!    then nothing of the connection can overtake anything. With TLS, the tags of all records that
//!    have left are known by then, too, so that none is ever sealed otherwise than before.
//! 3. The other worker sends for it. It gets keys and records like one that has started again; the
//!    one before hears that its flow is over, and lets go of retained blocks, keys and files. What
//!    is lost on the network later is read again.
//!
//! That takes as long as an OPEN and what the first worker has still to send. A connection without
//! files and SENDs goes at once. One that cannot go, because the other worker does not get a file
//! of it, or not its version, stays, until it is tried again.

use std::collections::{BTreeMap, VecDeque};

use contract::{FileId, FileMeta};

use super::Stack;
use super::workers::Life;
use crate::app::StreamId;
use crate::tables::connections::ConnectionHandle;
use crate::tables::files::{Readiness, TwinOpened};
use crate::tls_layer::TlsLayer;

/// Most connections on their way at a time: each has OPENs at a worker that others send through.
const UNDER_WAY_MAX: usize = 64;

/// Most that wait for their turn.
const WAITING_MAX: usize = 1 << 13;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Migrations {
    under_way: BTreeMap<StreamId, Migration>,
    waiting: VecDeque<(StreamId, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Migration {
    to: usize,
    /// No SENDs are handed out.
    holds: bool,
}

impl Migrations {
    /// Nothing is on its way or waits for its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }

    /// This connection is on its way.
    pub(super) fn is_under_way(&self, stream: StreamId) -> bool {
        self.under_way.contains_key(&stream)
    }

    /// One more may be on its way.
    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() < UNDER_WAY_MAX
    }

    /// This connection is over.
    pub(super) fn forget(&mut self, stream: StreamId) {
        if !self.under_way.is_empty() {
            self.under_way.remove(&stream);
        }
    }

    /// None of those that have not begun goes.
    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }
}

impl Stack {
    /// A connection is to go to another worker of its NIC stack, when it is its turn. Not noted if
    /// too many wait.
    pub(super) fn migrate_later(&mut self, stream: StreamId, to: usize) {
        if self.migrations.waiting.len() < WAITING_MAX {
            self.migrations.waiting.push_back((stream, to));
        }
    }

    /// Connections whose turn it is begin to go.
    pub(super) fn begin_migrations(&mut self) {
        while self.migrations.has_room()
            && let Some((stream, to)) = self.migrations.waiting.pop_front()
        {
            if let Some(handle) = self.connections.handle_of(stream) {
                self.migrate(handle, to);
            }
        }
    }

    /// A connection goes to another worker of its NIC stack, as soon as it can.
    pub(super) fn migrate(&mut self, handle: ConnectionHandle, to: usize) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let (stream, from) = (entry.stream, entry.worker);
        let serves = |worker: usize| self.nics[worker].life == Life::Serving;
        let is_over = entry.tcp.is_closed() || entry.data_plane_failed;
        let is_within = self.nic_stacks.of(from) == self.nic_stacks.of(to);
        if from == to
            || is_over
            || !is_within
            || !serves(from)
            || !serves(to)
            || self.migrations.is_under_way(stream)
        {
            return;
        }
        entry.is_to_move = true;
        let migration = Migration { to, holds: false };
        self.migrations.under_way.insert(stream, migration);
        self.go_on_migrating(handle);
    }

    /// Does what can be done now for a connection that is on its way.
    pub(super) fn go_on_migrating(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let stream = entry.stream;
        let Some(&Migration { to, .. }) = self.migrations.under_way.get(&stream) else {
            return;
        };
        entry.is_to_move = true;
        if !self.has_files_at(handle, to) {
            return self.hold_sends(handle, false);
        }
        self.hold_sends(handle, true);
        self.release_acknowledged(handle);
        // If everything departs at issue, only reports count.
        let counts_reports = self.config.departs_at_issue;
        let is_still = self.connections.get(handle).is_some_and(|entry| {
            let tls = entry.tls.as_deref();
            let awaits_report = counts_reports && entry.sends_outstanding > 0;
            let awaits_tags = tls.is_some_and(TlsLayer::is_unproven);
            !(entry.tcp.awaits_departure() || awaits_report || awaits_tags)
        });
        if is_still {
            self.arrive(handle, to);
        }
    }

    /// Asks worker `to` for the connection's files. True if it has all of them, and no other is
    /// being opened.
    fn has_files_at(&mut self, handle: ConnectionHandle, to: usize) -> bool {
        let mut is_ready = true;
        for file in self.own_files(handle) {
            match self.files.readiness(file, to) {
                Readiness::Ready => {}
                Readiness::Awaited => is_ready = false,
                Readiness::Unasked => {
                    is_ready = false;
                    let Some(found) = self.files.by_id(file) else {
                        continue;
                    };
                    let (path, lookup) = (found.path.clone(), found.lookup());
                    self.files.open_twin(file, to);
                    self.send_open(to, file, &path, lookup);
                }
            }
        }
        is_ready
    }

    /// The files that are the connection's, and not another one's that has got their ids.
    pub(super) fn own_files(&self, handle: ConnectionHandle) -> Vec<FileId> {
        let Some(entry) = self.connections.get(handle) else {
            return Vec::new();
        };
        let is_own = |file: &FileId| {
            let found = self.files.by_id(*file);
            found.is_some_and(|found| found.stream == entry.stream)
        };
        entry.files.iter().copied().filter(is_own).collect()
    }

    /// No SENDs of the connection are handed out, or they are again.
    fn hold_sends(&mut self, handle: ConnectionHandle, holds: bool) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let Some(migration) = self.migrations.under_way.get_mut(&entry.stream) else {
            return;
        };
        if std::mem::replace(&mut migration.holds, holds) == holds {
            return;
        }
        if holds {
            entry.holds += 1;
        } else {
            entry.holds = entry.holds.saturating_sub(1);
            self.mark_dirty(handle);
        }
    }

    /// Nothing of the connection is left to its worker: the other one sends from now on.
    fn arrive(&mut self, handle: ConnectionHandle, to: usize) {
        self.hold_sends(handle, false);
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        entry.is_to_move = false;
        self.migrations.under_way.remove(&entry.stream);
        self.change_worker(handle, to);
        for file in self.own_files(handle) {
            if let Some(close) = self.files.take_over(file) {
                self.send_close(close);
            }
        }
        self.mark_dirty(handle);
    }

    /// A connection stays where it is, or goes elsewhere by other rules.
    pub(super) fn stop_migrating(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let stream = entry.stream;
        if !self.migrations.is_under_way(stream) {
            return;
        }
        entry.is_to_move = false;
        self.hold_sends(handle, false);
        self.migrations.under_way.remove(&stream);
        for file in self.own_files(handle) {
            if let Some(close) = self.files.drop_twin(file) {
                self.send_close(close);
            }
        }
        self.mark_dirty(handle);
    }

    /// A worker starts again, and knows nothing: what goes to or from it stays.
    pub(super) fn stop_migrations_of(&mut self, worker: usize) {
        let lost = self.files.lose_twins(worker);
        for close in lost {
            self.send_close(close);
        }
        let touched = |(stream, migration): (&StreamId, &Migration)| {
            let handle = self.connections.handle_of(*stream)?;
            let from = self.connections.get(handle)?.worker;
            (from == worker || migration.to == worker).then_some(handle)
        };
        let stopped: Vec<_> = self
            .migrations
            .under_way
            .iter()
            .filter_map(touched)
            .collect();
        for handle in stopped {
            self.stop_migrating(handle);
        }
        self.stop_leaving_of(worker);
    }

    /// Worker `worker` has answered an OPEN, with this metadata or a failure. False if it was not
    /// for a connection that was to come.
    pub(super) fn on_twin_opened(
        &mut self,
        worker: usize,
        file: FileId,
        meta: Option<&FileMeta>,
    ) -> bool {
        let nic = self.nic_stacks.of(worker);
        let Some((stream, opened)) = self.files.twin_opened(nic, worker, file, meta) else {
            return false;
        };
        let migration = self.migrations.under_way.get(&stream);
        let is_awaited = migration.is_some_and(|migration| migration.to == worker)
            || self.leaves_quic_to(stream, worker);
        let close = match opened {
            TwinOpened::Same if !is_awaited => self.files.drop_twin(file),
            TwinOpened::Same => None,
            TwinOpened::LetGo(close) | TwinOpened::Other(close) => close,
        };
        if let Some(close) = close {
            self.send_close(close);
        }
        let Some(handle) = self.connections.handle_of(stream) else {
            let is_other = is_awaited && matches!(opened, TwinOpened::Other(_));
            self.on_quic_twin_opened(stream, is_other);
            return true;
        };
        if is_awaited && matches!(opened, TwinOpened::Other(_)) {
            self.counters.migrations_failed += 1;
            self.stop_migrating(handle);
        }
        self.mark_dirty(handle);
        true
    }
}
