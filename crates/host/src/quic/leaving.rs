//! Connections that move to another worker while open: one of their NIC stack, because their own is
//! no longer in use, or one of the NIC stack that has their file.
//!
//! As with TCP ([`migration`](crate::stack)), the new worker opens the connection's files first,
//! while the old one keeps them open. Then nothing is sent until all outstanding QSENDs have
//! departed. The new worker gets the keys, with a floor above all numbers sent, and takes over.
//! Nothing is lost.

use contract::FileId;

use super::names;
use super::table::{Pending, Queued, Readiness as RangeReadiness};
use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::workers::Life;
use crate::quic::QuicLayer;
use crate::tables::files::{Readiness, State};

/// Most connections moving at a time: each issues OPENs to a worker that others send through.
const UNDER_WAY_MAX: usize = 64;

impl QuicLayer {
    /// Moves a connection, with nothing left at its worker, to another one.
    pub(super) fn change_worker(&mut self, ground: &mut Ground, place: usize, worker: usize) {
        self.stop_leaving(ground, place);
        let Some(connection) = self.connection(place) else {
            return;
        };
        let before = connection.worker;
        if before == worker {
            return;
        }
        let (keys, floor) = (connection.keys.clone(), connection.next_number);
        connection.waits = false;
        self.forget_prepares(ground, place);
        self.end_flow(ground, place);
        if let Some(connection) = self.connection(place) {
            connection.worker = worker;
            for key in keys.into_iter().rev() {
                connection.commands.push_front(Pending::Key { key, floor });
            }
        }
        ground.change_workers(before, worker);
        if ground.nic_stacks.of(before) == ground.nic_stacks.of(worker) {
            ground.counters.connections_rebalanced += 1;
        } else {
            ground.counters.connections_moved += 1;
        }
        if let Some(connection) = self.table.connections.get(place) {
            let endpoint = &mut self.listeners[connection.listener].endpoint;
            endpoint.set_worker(connection.handle, worker);
        }
        self.mark(place);
    }

    /// Forgets PREPAREs: another worker must prepare the ranges again.
    fn forget_prepares(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        let asked = std::mem::take(&mut connection.prepares);
        for stream in connection.writing.clone() {
            let Some(found) = self.table.stream_mut(stream) else {
                continue;
            };
            for queued in &mut found.queue {
                if let Queued::File { readiness, .. } = queued {
                    *readiness = RangeReadiness::Unasked;
                }
            }
        }
        for range in asked.into_iter().filter_map(|asked| asked.unwanted) {
            self.release_bytes(ground, place, range.file, range.len);
        }
    }

    /// Moves a connection to the worker that found its file, unless something holds it back.
    pub(super) fn move_on(&mut self, ground: &mut Ground, place: usize) {
        if !self.is_still(ground, place) {
            return;
        }
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.is_to_move = false;
        let home = connection.worker;
        let streams: Vec<StreamId> = connection.streams.values().copied().collect();
        let found = self
            .own_files(ground, place)
            .into_iter()
            .find_map(|(_, file)| {
                let file = ground.files.by_id(file)?;
                (file.state == State::Found && file.worker != home).then_some(file.worker)
            });
        if let Some(to) = found {
            self.change_worker(ground, place, to);
        }
        for stream in streams {
            self.on_file_opened(ground, stream);
        }
    }

    /// The files of a connection, each with its stream.
    fn own_files(&self, ground: &Ground, place: usize) -> Vec<(StreamId, FileId)> {
        let Some(connection) = self.table.connections.get(place) else {
            return Vec::new();
        };
        let streams = connection.streams.values();
        let streams = streams.filter_map(|stream| self.table.stream(*stream));
        let files = streams.flat_map(|it| it.files.iter().map(|file| (it.id, *file)));
        files
            .filter(|(stream, file)| {
                let file = ground.files.by_id(*file);
                file.is_some_and(|file| file.stream == *stream)
            })
            .collect()
    }

    /// True if nothing of a connection is left at its worker, and no file of it is in use there, or
    /// being opened.
    fn is_still(&self, ground: &Ground, place: usize) -> bool {
        let connection = self.table.connections.get(place);
        let is_drained = connection.is_some_and(|connection| {
            connection.issued.is_empty()
                && connection.commands.is_empty()
                && connection.files.is_empty()
                && connection.holds == 0
        });
        let in_use = |(_, file): (StreamId, FileId)| {
            let file = ground.files.by_id(file);
            file.is_some_and(|file| {
                file.is_needed() && !matches!(file.state, State::Found | State::Waiting)
            })
        };
        is_drained && !self.own_files(ground, place).into_iter().any(in_use)
    }

    /// Starts moving connections off workers that are not in use. True if some still have to move.
    pub(crate) fn leave_workers(&mut self, ground: &mut Ground) -> bool {
        let connections = self.table.connections.iter();
        let under_way = connections.filter(|(_, it)| it.leaves_to.is_some());
        let mut room = UNDER_WAY_MAX.saturating_sub(under_way.count());
        let mut is_left = false;
        for place in self.table.places() {
            let Some(connection) = self.connection(place) else {
                continue;
            };
            let (worker, is_under_way) = (connection.worker, connection.leaves_to.is_some());
            if ground.nic_stacks.is_in_use(worker) {
                continue;
            }
            is_left = true;
            let in_use = ground
                .nic_stacks
                .workers_in_use(ground.nic_stacks.of(worker));
            let to = ground.least_busy(in_use);
            if room == 0 || is_under_way {
                continue;
            }
            room -= 1;
            if let Some(connection) = self.connection(place) {
                connection.leaves_to = to;
            }
            self.mark(place);
        }
        is_left
    }

    /// Advances the move of a connection.
    pub(super) fn go_on_leaving(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        let (worker, to) = (connection.worker, connection.leaves_to);
        let Some(to) = to.filter(|to| *to != worker && !connection.is_gone) else {
            return;
        };
        let serves = |worker: usize| ground.workers[worker].life == Life::Serving;
        if !serves(worker) || !serves(to) {
            return self.stop_leaving(ground, place);
        }
        let is_ready = self.has_files_at(ground, place, to);
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.is_leaving = is_ready;
        if !is_ready || connection.holds > 0 || !connection.issued.is_empty() {
            return;
        }
        let files = self.own_files(ground, place);
        let mut closed = Vec::new();
        for (_, file) in files {
            closed.extend(ground.files.take_over(file));
        }
        self.change_worker(ground, place, to);
        for close in closed {
            ground.send_close(close);
        }
    }

    /// Has worker `to` open a connection's files. True if it has all of them, and no other is being
    /// opened.
    fn has_files_at(&mut self, ground: &mut Ground, place: usize, to: usize) -> bool {
        let mut is_ready = true;
        for (_, file) in self.own_files(ground, place) {
            let Some(found) = ground.files.by_id(file) else {
                continue;
            };
            match ground.files.readiness(file, to) {
                _ if !found.is_needed() => {}
                Readiness::Ready => {}
                Readiness::Awaited => is_ready = false,
                Readiness::Unasked => {
                    is_ready = false;
                    let (path, lookup) = (found.path.clone(), found.lookup());
                    ground.files.open_twin(file, to);
                    ground.send_open(to, file, &path, lookup);
                }
            }
        }
        is_ready
    }

    /// Cancels the move of a connection; other rules may still move it.
    fn stop_leaving(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.is_leaving = false;
        if connection.leaves_to.take().is_none() {
            return;
        }
        for (_, file) in self.own_files(ground, place) {
            if let Some(close) = ground.files.drop_twin(file) {
                ground.send_close(close);
            }
        }
        self.mark(place);
    }

    /// A worker restarts without state: cancels moves to and from it.
    pub(crate) fn stop_leaving_of(&mut self, ground: &mut Ground, worker: usize) {
        for place in self.table.places() {
            let Some(connection) = self.connection(place) else {
                continue;
            };
            if connection.worker == worker || connection.leaves_to == Some(worker) {
                self.stop_leaving(ground, place);
            }
        }
    }

    /// True if the connection of a stream is moving to this worker.
    pub(crate) fn leaves_to(&self, stream: StreamId, worker: usize) -> bool {
        let pair = self.table.pair(stream);
        pair.is_some_and(|(_, connection)| connection.leaves_to == Some(worker))
    }

    /// The new worker of a connection has answered an OPEN for this stream. `is_other`: it has
    /// another version than the one being sent.
    pub(crate) fn on_twin_opened(&mut self, ground: &mut Ground, stream: StreamId, is_other: bool) {
        let pair = self.table.pair(stream);
        let Some(place) = pair.map(|(found, _)| found.connection) else {
            return;
        };
        debug_assert!(names::is_stream(stream));
        if is_other {
            ground.counters.migrations_failed += 1;
            self.stop_leaving(ground, place);
        }
        self.mark(place);
    }
}
