//! Migration of open connections from one worker of a NIC stack to another.
//!
//! 1. The new worker opens the connection's files. The old one keeps them open meanwhile, so that a
//!    file replaced by another version keeps the connection where it is, and does no harm.
//! 2. When all are open there, the host issues no more SENDs until the issued ones have departed:
//!    then nothing of the connection can overtake anything. With TLS, the tags of all departed
//!    records are known by then, too, so that no record is ever sealed differently.
//! 3. The new worker sends for the connection. It gets keys and records like a restarted one; the
//!    old one learns that its flow is over, and releases retained blocks, keys and files. Data lost
//!    on the network later is read again.
//!
//! A migration takes as long as an OPEN and the data that the old worker has still to send. A
//! connection without files and SENDs moves at once. One that cannot move, because the new worker
//! does not get one of its files, or not its version, stays until the next attempt.

use std::collections::{BTreeMap, VecDeque};

use contract::{FileId, FileMeta};

use crate::app::StreamId;
use crate::ground::workers::Life;
use crate::stack::Stack;
use crate::tables::connections::ConnectionHandle;
use crate::tables::files::{Readiness, TwinOpened};
use crate::tls_layer::TlsLayer;

/// Most migrations in progress: each has OPENs at a worker through which others send.
const UNDER_WAY_MAX: usize = 64;

/// Most migrations waiting for their turn.
const WAITING_MAX: usize = 1 << 13;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Migrations {
    under_way: BTreeMap<StreamId, Migration>,
    waiting: VecDeque<(StreamId, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Migration {
    to: usize,
    /// True while no SENDs are issued.
    holds: bool,
}

impl Migrations {
    /// True if no migration is in progress or waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }

    /// True if this connection is migrating.
    pub(crate) fn is_under_way(&self, stream: StreamId) -> bool {
        self.under_way.contains_key(&stream)
    }

    /// True if one more migration may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way.len() < UNDER_WAY_MAX
    }

    /// A connection has ended.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        if !self.under_way.is_empty() {
            self.under_way.remove(&stream);
        }
    }

    /// Cancels the migrations that have not begun.
    pub(crate) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }
}

impl Stack {
    /// Queues the migration of a connection to another worker of its NIC stack. Drops it if too
    /// many wait.
    pub(crate) fn migrate_later(&mut self, stream: StreamId, to: usize) {
        if self.tcp.migrations.waiting.len() < WAITING_MAX {
            self.tcp.migrations.waiting.push_back((stream, to));
        }
    }

    /// Begins the migrations whose turn it is.
    pub(crate) fn begin_migrations(&mut self) {
        while self.tcp.migrations.has_room()
            && let Some((stream, to)) = self.tcp.migrations.waiting.pop_front()
        {
            if let Some(handle) = self.tcp.connections.handle_of(stream) {
                self.migrate(handle, to);
            }
        }
    }

    /// Migrates a connection to another worker of its NIC stack, as soon as it can move.
    pub(crate) fn migrate(&mut self, handle: ConnectionHandle, to: usize) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let (stream, from) = (entry.stream, entry.worker);
        let serves = |worker: usize| self.ground.workers[worker].life == Life::Serving;
        let is_over = entry.tcp.is_closed() || entry.data_plane_failed;
        let is_within = self.ground.nic_stacks.of(from) == self.ground.nic_stacks.of(to);
        if from == to
            || is_over
            || !is_within
            || !serves(from)
            || !serves(to)
            || self.tcp.migrations.is_under_way(stream)
        {
            return;
        }
        entry.is_to_move = true;
        let migration = Migration { to, holds: false };
        self.tcp.migrations.under_way.insert(stream, migration);
        self.go_on_migrating(handle);
    }

    /// Takes the next step of a migration in progress.
    pub(crate) fn go_on_migrating(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let stream = entry.stream;
        let Some(&Migration { to, .. }) = self.tcp.migrations.under_way.get(&stream) else {
            return;
        };
        entry.is_to_move = true;
        if !self.has_files_at(handle, to) {
            return self.hold_sends(handle, false);
        }
        self.hold_sends(handle, true);
        self.release_acknowledged(handle);
        // If everything departs at issue, only reports count.
        let counts_reports = self.ground.config.departs_at_issue;
        let is_still = self.tcp.connections.get(handle).is_some_and(|entry| {
            let tls = entry.tls.as_deref();
            let awaits_report = counts_reports && entry.sends_outstanding > 0;
            let awaits_tags = tls.is_some_and(TlsLayer::is_unproven);
            !(entry.tcp.awaits_departure() || awaits_report || awaits_tags)
        });
        if is_still {
            self.arrive(handle, to);
        }
    }

    /// Has worker `to` open the connection's files. True if it has all of them, and is opening no
    /// other.
    fn has_files_at(&mut self, handle: ConnectionHandle, to: usize) -> bool {
        let mut is_ready = true;
        for file in self.own_files(handle) {
            match self.ground.files.readiness(file, to) {
                Readiness::Ready => {}
                Readiness::Awaited => is_ready = false,
                Readiness::Unasked => {
                    is_ready = false;
                    let Some(found) = self.ground.files.by_id(file) else {
                        continue;
                    };
                    let (path, lookup) = (found.path.clone(), found.lookup());
                    self.ground.files.open_twin(file, to);
                    self.send_open(to, file, &path, lookup);
                }
            }
        }
        is_ready
    }

    /// The connection's files, without ids that belong to another connection by now.
    pub(crate) fn own_files(&self, handle: ConnectionHandle) -> Vec<FileId> {
        let Some(entry) = self.tcp.connections.get(handle) else {
            return Vec::new();
        };
        let is_own = |file: &FileId| {
            let found = self.ground.files.by_id(*file);
            found.is_some_and(|found| found.stream == entry.stream)
        };
        entry.files.iter().copied().filter(is_own).collect()
    }

    /// Stops issuing SENDs for the connection, or resumes.
    fn hold_sends(&mut self, handle: ConnectionHandle, holds: bool) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let Some(migration) = self.tcp.migrations.under_way.get_mut(&entry.stream) else {
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

    /// Completes a migration: the old worker has nothing left, and the new one sends from now on.
    fn arrive(&mut self, handle: ConnectionHandle, to: usize) {
        self.hold_sends(handle, false);
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        entry.is_to_move = false;
        self.tcp.migrations.under_way.remove(&entry.stream);
        self.change_worker(handle, to);
        for file in self.own_files(handle) {
            if let Some(close) = self.ground.files.take_over(file) {
                self.send_close(close);
            }
        }
        self.mark_dirty(handle);
    }

    /// Cancels a migration: the connection stays, or moves by other rules.
    pub(crate) fn stop_migrating(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let stream = entry.stream;
        if !self.tcp.migrations.is_under_way(stream) {
            return;
        }
        entry.is_to_move = false;
        self.hold_sends(handle, false);
        self.tcp.migrations.under_way.remove(&stream);
        for file in self.own_files(handle) {
            if let Some(close) = self.ground.files.drop_twin(file) {
                self.send_close(close);
            }
        }
        self.mark_dirty(handle);
    }

    /// Cancels the migrations to and from a worker that restarts without any state.
    pub(crate) fn stop_migrations_of(&mut self, worker: usize) {
        let lost = self.ground.files.lose_twins(worker);
        for close in lost {
            self.send_close(close);
        }
        let touched = |(stream, migration): (&StreamId, &Migration)| {
            let handle = self.tcp.connections.handle_of(*stream)?;
            let from = self.tcp.connections.get(handle)?.worker;
            (from == worker || migration.to == worker).then_some(handle)
        };
        let stopped: Vec<_> = self
            .tcp
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

    /// Handles worker `worker`'s answer to an OPEN, with this metadata or a failure. False if the
    /// OPEN was not for a migration.
    pub(crate) fn on_twin_opened(
        &mut self,
        worker: usize,
        file: FileId,
        meta: Option<&FileMeta>,
    ) -> bool {
        let nic = self.ground.nic_stacks.of(worker);
        let Some((stream, opened)) = self.ground.files.twin_opened(nic, worker, file, meta) else {
            return false;
        };
        let migration = self.tcp.migrations.under_way.get(&stream);
        let is_awaited = migration.is_some_and(|migration| migration.to == worker)
            || self.leaves_quic_to(stream, worker);
        let close = match opened {
            TwinOpened::Same if !is_awaited => self.ground.files.drop_twin(file),
            TwinOpened::Same => None,
            TwinOpened::LetGo(close) | TwinOpened::Other(close) => close,
        };
        if let Some(close) = close {
            self.send_close(close);
        }
        let Some(handle) = self.tcp.connections.handle_of(stream) else {
            let is_other = is_awaited && matches!(opened, TwinOpened::Other(_));
            self.on_quic_twin_opened(stream, is_other);
            return true;
        };
        if is_awaited && matches!(opened, TwinOpened::Other(_)) {
            self.ground.counters.migrations_failed += 1;
            self.stop_migrating(handle);
        }
        self.mark_dirty(handle);
        true
    }
}
