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

use std::collections::{BTreeSet, VecDeque};

use contract::FileId;

use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::workers::Life;
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tcp::TcpLayer;
use crate::tcp::turns::queue_dirty;
use crate::tls_layer::TlsLayer;

/// Most migrations in progress: each has OPENs at a worker through which others send.
const UNDER_WAY_MAX: usize = 64;

/// Most migrations waiting for their turn.
const WAITING_MAX: usize = 1 << 13;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Migrations {
    under_way: BTreeSet<StreamId>,
    waiting: VecDeque<(StreamId, usize)>,
}

impl Migrations {
    /// True if no migration is in progress or waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }

    /// True if this connection is migrating.
    pub(crate) fn is_under_way(&self, stream: StreamId) -> bool {
        self.under_way.contains(&stream)
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
        let (stream, from) = (entry.stream, entry.nic.worker);
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
        entry.nic.moves_to = Some(to);
        self.migrations.under_way.insert(stream);
        self.go_on_migrating(ground, handle);
    }

    /// Takes the next step of a migration in progress.
    pub(crate) fn go_on_migrating(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let Some(to) = entry.nic.moves_to else {
            return;
        };
        entry.nic.is_to_move = true;
        let files = self.own_files(ground, handle);
        let is_ready = ground.has_files_at(files, to);
        self.hold_to_move(handle, is_ready);
        if !is_ready {
            return;
        }
        self.release_acknowledged(ground, handle);
        // If everything departs at issue, only reports count.
        let counts_reports = ground.config.departs_at_issue;
        let is_still = self.connections.get(handle).is_some_and(|entry| {
            let tls = entry.tls.as_deref();
            let awaits_report = counts_reports && entry.nic.sends_outstanding > 0;
            let awaits_tags = tls.is_some_and(TlsLayer::is_unproven);
            !(entry.tcp.awaits_departure() || awaits_report || awaits_tags)
        });
        if is_still {
            self.arrive(ground, handle, to);
        }
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
    fn hold_to_move(&mut self, handle: ConnectionHandle, holds: bool) {
        if let Some(entry) = self.connections.get_mut(handle)
            && entry.nic.hold_to_move(holds)
            && !holds
        {
            queue_dirty(&mut self.dirty, entry);
        }
    }

    /// Completes a migration: the old worker has nothing left, and the new one sends from now on.
    fn arrive(&mut self, ground: &mut Ground, handle: ConnectionHandle, to: usize) {
        self.forget_move(handle);
        self.change_worker(ground, handle, to);
        ground.take_over(self.own_files(ground, handle));
        self.mark_dirty(handle);
    }

    /// A connection no longer moves.
    fn forget_move(&mut self, handle: ConnectionHandle) {
        self.hold_to_move(handle, false);
        if let Some(entry) = self.connections.get_mut(handle) {
            (entry.nic.is_to_move, entry.nic.moves_to) = (false, None);
            self.migrations.under_way.remove(&entry.stream);
        }
    }

    /// Cancels a migration: the connection stays, or moves by other rules.
    pub(crate) fn stop_migrating(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let entry = self.connections.get(handle);
        if entry.is_none_or(|entry| entry.nic.moves_to.is_none()) {
            return;
        }
        self.forget_move(handle);
        ground.drop_twins(self.own_files(ground, handle));
        self.mark_dirty(handle);
    }

    /// A worker restarts without state: cancels moves to and from it.
    pub(crate) fn stop_moves_of(&mut self, ground: &mut Ground, worker: usize) {
        let under_way = self.migrations.under_way.iter();
        let entries = under_way.filter_map(|stream| self.connections.by_stream(*stream));
        let touched =
            entries.filter(|it| it.nic.worker == worker || it.nic.moves_to == Some(worker));
        for handle in touched.map(Entry::handle).collect::<Vec<_>>() {
            self.stop_migrating(ground, handle);
        }
    }
}
