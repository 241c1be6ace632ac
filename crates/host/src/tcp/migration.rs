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
use crate::ground::Ground;
use crate::ground::Layers;
use crate::ground::workers::Life;
use crate::tables::connections::ConnectionHandle;
use crate::tables::files::{Readiness, TwinOpened};
use crate::tcp::TcpLayer;
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

impl TcpLayer {
    /// Queues the migration of a connection to another worker of its NIC stack. Drops it if too
    /// many wait.
    pub(crate) fn migrate_later(&mut self, stream: StreamId, to: usize) {
        if self.migrations.waiting.len() < WAITING_MAX {
            self.migrations.waiting.push_back((stream, to));
        }
    }

    /// Begins the migrations whose turn it is.
    pub(crate) fn begin_migrations(&mut self, ground: &mut Ground) {
        while self.migrations.has_room()
            && let Some((stream, to)) = self.migrations.waiting.pop_front()
        {
            if let Some(handle) = self.connections.handle_of(stream) {
                self.migrate(ground, handle, to);
            }
        }
    }

    /// Migrates a connection to another worker of its NIC stack, as soon as it can move.
    pub(crate) fn migrate(&mut self, ground: &mut Ground, handle: ConnectionHandle, to: usize) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let (stream, from) = (entry.stream, entry.worker);
        let serves = |worker: usize| ground.workers[worker].life == Life::Serving;
        let is_over = entry.tcp.is_closed() || entry.data_plane_failed;
        let is_within = ground.nic_stacks.of(from) == ground.nic_stacks.of(to);
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
        self.go_on_migrating(ground, handle);
    }

    /// Takes the next step of a migration in progress.
    pub(crate) fn go_on_migrating(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let stream = entry.stream;
        let Some(&Migration { to, .. }) = self.migrations.under_way.get(&stream) else {
            return;
        };
        entry.is_to_move = true;
        if !self.has_files_at(ground, handle, to) {
            return self.hold_sends(handle, false);
        }
        self.hold_sends(handle, true);
        self.release_acknowledged(ground, handle);
        // If everything departs at issue, only reports count.
        let counts_reports = ground.config.departs_at_issue;
        let is_still = self.connections.get(handle).is_some_and(|entry| {
            let tls = entry.tls.as_deref();
            let awaits_report = counts_reports && entry.sends_outstanding > 0;
            let awaits_tags = tls.is_some_and(TlsLayer::is_unproven);
            !(entry.tcp.awaits_departure() || awaits_report || awaits_tags)
        });
        if is_still {
            self.arrive(ground, handle, to);
        }
    }

    /// Has worker `to` open the connection's files. True if it has all of them, and is opening no
    /// other.
    fn has_files_at(&mut self, ground: &mut Ground, handle: ConnectionHandle, to: usize) -> bool {
        let mut is_ready = true;
        for file in self.own_files(ground, handle) {
            match ground.files.readiness(file, to) {
                Readiness::Ready => {}
                Readiness::Awaited => is_ready = false,
                Readiness::Unasked => {
                    is_ready = false;
                    let Some(found) = ground.files.by_id(file) else {
                        continue;
                    };
                    let (path, lookup) = (found.path.clone(), found.lookup());
                    ground.files.open_twin(file, to);
                    ground.send_open(to, file, &path, lookup);
                }
            }
        }
        is_ready
    }

    /// The connection's files, without ids that belong to another connection by now.
    pub(crate) fn own_files(&self, ground: &Ground, handle: ConnectionHandle) -> Vec<FileId> {
        let Some(entry) = self.connections.get(handle) else {
            return Vec::new();
        };
        let is_own = |file: &FileId| {
            let found = ground.files.by_id(*file);
            found.is_some_and(|found| found.stream == entry.stream)
        };
        entry.files.iter().copied().filter(is_own).collect()
    }

    /// Stops issuing SENDs for the connection, or resumes.
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

    /// Completes a migration: the old worker has nothing left, and the new one sends from now on.
    fn arrive(&mut self, ground: &mut Ground, handle: ConnectionHandle, to: usize) {
        self.hold_sends(handle, false);
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        entry.is_to_move = false;
        self.migrations.under_way.remove(&entry.stream);
        self.change_worker(ground, handle, to);
        for file in self.own_files(ground, handle) {
            if let Some(close) = ground.files.take_over(file) {
                ground.send_close(close);
            }
        }
        self.mark_dirty(handle);
    }

    /// Cancels a migration: the connection stays, or moves by other rules.
    pub(crate) fn stop_migrating(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
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
        for file in self.own_files(ground, handle) {
            if let Some(close) = ground.files.drop_twin(file) {
                ground.send_close(close);
            }
        }
        self.mark_dirty(handle);
    }
}

impl Ground {
    /// Cancels the migrations to and from a worker that restarts without any state.
    pub(crate) fn stop_migrations_of(&mut self, layers: &mut Layers<'_>, worker: usize) {
        let lost = self.files.lose_twins(worker);
        for close in lost {
            self.send_close(close);
        }
        let touched = |(stream, migration): (&StreamId, &Migration)| {
            let handle = layers.tcp.connections.handle_of(*stream)?;
            let from = layers.tcp.connections.get(handle)?.worker;
            (from == worker || migration.to == worker).then_some(handle)
        };
        let stopped: Vec<_> = layers
            .tcp
            .migrations
            .under_way
            .iter()
            .filter_map(touched)
            .collect();
        for handle in stopped {
            layers.tcp.stop_migrating(self, handle);
        }
        layers.quic.stop_leaving_of(self, worker);
    }

    /// Handles worker `worker`'s answer to an OPEN, with this metadata or a failure. False if the
    /// OPEN was not for a migration.
    pub(crate) fn on_twin_opened(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        file: FileId,
        meta: Option<&FileMeta>,
    ) -> bool {
        let nic = self.nic_stacks.of(worker);
        let Some((stream, opened)) = self.files.twin_opened(nic, worker, file, meta) else {
            return false;
        };
        let migration = layers.tcp.migrations.under_way.get(&stream);
        let is_awaited = migration.is_some_and(|migration| migration.to == worker)
            || layers.quic.leaves_to(stream, worker);
        let close = match opened {
            TwinOpened::Same if !is_awaited => self.files.drop_twin(file),
            TwinOpened::Same => None,
            TwinOpened::LetGo(close) | TwinOpened::Other(close) => close,
        };
        if let Some(close) = close {
            self.send_close(close);
        }
        let Some(handle) = layers.tcp.connections.handle_of(stream) else {
            let is_other = is_awaited && matches!(opened, TwinOpened::Other(_));
            layers.quic.on_twin_opened(self, stream, is_other);
            return true;
        };
        if is_awaited && matches!(opened, TwinOpened::Other(_)) {
            self.counters.migrations_failed += 1;
            layers.tcp.stop_migrating(self, handle);
        }
        layers.tcp.mark_dirty(handle);
        true
    }
}
