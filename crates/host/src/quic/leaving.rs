//! Connections that move to another worker while open: one of their NIC stack, because their own is
//! no longer in use, or one of the NIC stack that has their file.
//!
//! As with TCP (`tcp/migration`), the new worker opens the connection's files first,
//! while the old one keeps them open. Then nothing is sent until all outstanding QSENDs have
//! departed. The new worker gets the keys, with a floor above all numbers sent, and takes over.
//! Nothing is lost.

use contract::FileId;

use super::table::{Pending, Queued, Readiness};
use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::workers::Life;
use crate::quic::QuicLayer;
use crate::streams::Transport;
use crate::tables::files::State;

/// Most connections moving at a time: each issues OPENs to a worker that others send through.
const UNDER_WAY_MAX: usize = 64;

impl QuicLayer {
    /// Moves a connection, with nothing left at its worker, to another one.
    pub(super) fn change_worker(&mut self, ground: &mut Ground, place: usize, worker: usize) {
        self.stop_leaving(ground, place);
        let Some(connection) = self.connection(place) else {
            return;
        };
        let before = connection.nic.worker;
        if before == worker {
            return;
        }
        let (keys, floor) = (connection.keys.clone(), connection.next_number);
        connection.waits = false;
        self.forget_prepares(ground, place);
        self.end_flow(ground, place);
        if let Some(connection) = self.connection(place) {
            connection.nic.worker = worker;
            for key in keys.into_iter().rev() {
                connection.commands.push_front(Pending::Key { key, floor });
            }
        }
        ground.change_workers(before, worker);
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
                    *readiness = Readiness::Unasked;
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
        connection.nic.is_to_move = false;
        let home = connection.nic.worker;
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
                && !connection.nic.awaits_files()
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
        let under_way = connections.filter(|(_, it)| it.nic.moves_to.is_some());
        let mut room = UNDER_WAY_MAX.saturating_sub(under_way.count());
        let mut is_left = false;
        for place in self.table.places() {
            let Some(connection) = self.connection(place) else {
                continue;
            };
            let (worker, is_under_way) = (connection.nic.worker, connection.nic.moves_to.is_some());
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
                connection.nic.moves_to = to;
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
        let (worker, to) = (connection.nic.worker, connection.nic.moves_to);
        let Some(to) = to.filter(|to| *to != worker && !connection.is_gone) else {
            return;
        };
        let serves = |worker: usize| ground.workers[worker].life == Life::Serving;
        if !serves(worker) || !serves(to) {
            return self.stop_leaving(ground, place);
        }
        let files = self.own_files(ground, place);
        let files = files.into_iter().map(|(_, file)| file);
        let is_needed = |file: &FileId| ground.files.by_id(*file).is_some_and(|it| it.is_needed());
        let needed = files.clone().filter(is_needed).collect();
        let is_ready = ground.has_files_at(needed, to);
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.nic.hold_to_move(is_ready);
        if !is_ready || connection.nic.awaits_files() || !connection.issued.is_empty() {
            return;
        }
        connection.nic.hold_to_move(false);
        connection.nic.moves_to = None;
        self.change_worker(ground, place, to);
        ground.take_over(files.collect());
    }

    /// Cancels the move of a connection; other rules may still move it.
    pub(super) fn stop_leaving(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.nic.hold_to_move(false);
        if connection.nic.moves_to.take().is_none() {
            return;
        }
        let files = self.own_files(ground, place);
        ground.drop_twins(files.into_iter().map(|(_, file)| file).collect());
        self.mark(place);
    }

    /// A worker restarts without state: cancels moves to and from it.
    pub(crate) fn stop_moves_of(&mut self, ground: &mut Ground, worker: usize) {
        for place in self.table.places() {
            let Some(connection) = self.connection(place) else {
                continue;
            };
            if connection.nic.worker == worker || connection.nic.moves_to == Some(worker) {
                self.stop_leaving(ground, place);
            }
        }
    }
}
