//! NIC workers that arrive, disappear, or fall out of use.
//!
//! Packets that a dead worker had not reported as departed may have left. Their numbers are never
//! reused: the endpoint gives the next worker the key with a floor above all of them, and loss
//! detection finds packets that did not arrive. The next worker reopens the files, and nothing is
//! sent until it has: a stream whose file has changed meanwhile ends.
//!
//! Another NIC stack than the connection's may have a file. The connection moves there once it uses
//! no other file; only then does the application learn that the file is open.

use std::ops::Range;

use contract::FileId;

use super::endings::NO_ERROR;
use super::table::Connection;
use crate::app::StreamId;
use crate::ground::Ground;
use crate::nics::nic_stacks::NicSet;
use crate::quic::QuicLayer;
use crate::streams::Transport;
use crate::tables::files::{File, FileTable};

/// The files of a connection's streams that its application knows.
fn known_files<'a>(
    files: &'a FileTable,
    streams: impl Iterator<Item = (StreamId, Vec<FileId>)> + 'a,
) -> impl Iterator<Item = (FileId, &'a File)> {
    streams.flat_map(move |(stream, ids)| {
        let own = ids.into_iter().filter_map(move |id| {
            let file = files.by_id(id)?;
            (file.stream == stream && file.is_answered()).then_some((id, file))
        });
        own.collect::<Vec<_>>()
    })
}

impl QuicLayer {
    /// The places of the connections for which one of these workers sends.
    fn of_workers(&self, workers: &Range<usize>) -> Vec<usize> {
        let mut places = self.table.places();
        places.retain(|place| workers.contains(&self.table.connections[*place].nic.worker));
        places
    }

    /// A worker was replaced by one without state; its files are reopened after this.
    pub(crate) fn on_worker_restarted(&mut self, ground: &mut Ground, worker: usize) {
        for place in self.of_workers(&(worker..worker + 1)) {
            self.leave_dead_worker(ground, place);
        }
    }

    /// The worker of a connection is gone.
    fn leave_dead_worker(&mut self, ground: &mut Ground, place: usize) {
        if let Some(connection) = self.connection(place) {
            connection.nic.holds = 0;
        }
        self.lose_flow(ground, place);
        self.mark(place);
    }

    pub(super) fn connection(&mut self, place: usize) -> Option<&mut Connection> {
        self.table.connections.get_mut(place).map(Box::as_mut)
    }

    /// The version of a file that a stream sends is gone.
    pub(super) fn lose_file(
        &mut self,
        ground: &mut Ground,
        place: usize,
        stream: StreamId,
        file: FileId,
    ) {
        if let Some(connection) = self.connection(place) {
            connection.bar(file);
        }
        self.fail_stream(ground, stream);
    }

    /// A NIC stack is gone with these workers. Its connections continue at another one that may
    /// have their files, or wait for it.
    pub(crate) fn on_nic_lost(&mut self, ground: &mut Ground, workers: &Range<usize>) {
        for place in self.of_workers(workers) {
            self.leave_dead_worker(ground, place);
            self.reroute(ground, place);
        }
    }

    /// A NIC stack has arrived: connections whose own is gone may continue there.
    pub(crate) fn on_nic_come(&mut self, ground: &mut Ground) {
        for place in self.table.places() {
            let worker = self.connection(place).map(|it| it.nic.worker);
            if worker.is_some_and(|worker| !ground.workers[worker].is_there()) {
                self.reroute(ground, place);
            }
        }
    }

    /// Moves a connection whose NIC stack is gone to another one that may have its files.
    fn reroute(&mut self, ground: &mut Ground, place: usize) {
        let files = self.known_files_of(ground, place);
        let is_free = files.iter().all(|(_, _, is_needed)| !is_needed);
        if !is_free && !ground.config.roots_are_replicas {
            return;
        }
        let there = ground.nic_stacks.workers_to_choose(NicSet::default());
        let Some(worker) = ground.least_busy(there) else {
            return;
        };
        self.change_worker(ground, place, worker);
        for (stream, file, _) in files {
            ground.reopen_at(file, worker);
            self.hold_sends(stream);
        }
    }

    /// The files of a connection that its application knows, each with its stream and whether it is
    /// in use.
    pub(super) fn known_files_of(
        &self,
        ground: &Ground,
        place: usize,
    ) -> Vec<(StreamId, FileId, bool)> {
        let Some(connection) = self.table.connections.get(place) else {
            return Vec::new();
        };
        let streams = connection.streams.values().filter_map(|stream| {
            let files = self.table.stream(*stream)?.files.clone();
            Some((*stream, files))
        });
        let known = known_files(&ground.files, streams);
        known
            .map(|(id, file)| (file.stream, id, file.is_needed()))
            .collect()
    }

    /// Closes all QUIC connections, and accepts no more: the stack is about to end.
    pub(crate) fn close_all(&mut self, now_us: u64) {
        let now = tcp::Instant::from_us(now_us);
        for place in self.table.places() {
            let connection = &self.table.connections[place];
            let endpoint = &mut self.listeners[connection.listener].endpoint;
            endpoint.close(now, connection.handle, NO_ERROR, b"");
            self.mark(place);
        }
    }

    /// Accepts no more QUIC connections.
    pub(crate) fn stop_listening(&mut self) {
        for listener in &mut self.listeners {
            listener.endpoint.refuse_connections();
        }
    }
}
