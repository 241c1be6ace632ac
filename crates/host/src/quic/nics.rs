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
use crate::app::{AppEvent, StreamId};
use crate::nics::nic_stacks::NicSet;
use crate::stack::Stack;
use crate::tables::files::{File, FileTable, Reopened, State};

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

impl Stack {
    /// The places of the connections for which one of these workers sends.
    fn quic_of(&self, workers: &Range<usize>) -> Vec<usize> {
        let Some(quic) = self.quic.as_deref() else {
            return Vec::new();
        };
        let mut places = quic.table.places();
        places.retain(|place| workers.contains(&quic.table.connections[*place].worker));
        places
    }

    /// A worker was replaced by one without state; its files are reopened after this.
    pub(crate) fn on_quic_worker_restarted(&mut self, worker: usize) {
        for place in self.quic_of(&(worker..worker + 1)) {
            self.leave_dead_worker(place);
        }
    }

    /// The worker of a connection is gone.
    fn leave_dead_worker(&mut self, place: usize) {
        if let Some(connection) = self.quic_connection(place) {
            connection.holds = 0;
        }
        self.lose_flow(place);
        if let Some(quic) = self.quic.as_deref_mut() {
            quic.mark(place);
        }
    }

    pub(super) fn quic_connection(&mut self, place: usize) -> Option<&mut Connection> {
        let quic = self.quic.as_deref_mut()?;
        quic.table.connections.get_mut(place).map(Box::as_mut)
    }

    /// The connection of a stream waits for an answer to a repeated OPEN.
    pub(crate) fn hold_quic(&mut self, stream: StreamId) {
        let quic = self.quic.as_deref_mut();
        if let Some((_, connection)) = quic.and_then(|quic| quic.table.pair_mut(stream)) {
            connection.holds += 1;
        }
    }

    /// A repeated OPEN for a stream is answered. False if the stream is not QUIC's.
    pub(crate) fn on_quic_reopened(
        &mut self,
        stream: StreamId,
        file: FileId,
        outcome: Reopened,
    ) -> bool {
        if !super::names::is_stream(stream) {
            return false;
        }
        let Some(quic) = self.quic.as_deref_mut() else {
            return true;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            // Packets built before the stream ended may still name the file.
            if let Reopened::Changed(_) = outcome {
                quic.table.bar(file);
            }
            return true;
        };
        connection.holds = connection.holds.saturating_sub(1);
        let place = found.connection;
        quic.mark(place);
        if let Reopened::Changed(_) = outcome {
            self.lose_quic_file(place, stream, file);
        }
        true
    }

    /// The version of a file that a stream sends is gone.
    fn lose_quic_file(&mut self, place: usize, stream: StreamId, file: FileId) {
        if let Some(connection) = self.quic_connection(place) {
            connection.bar(file);
        }
        self.fail_quic_stream(stream);
    }

    /// A NIC stack is gone with these workers. Its connections continue at another one that may
    /// have their files, or wait for it.
    pub(crate) fn on_quic_nic_lost(&mut self, workers: &Range<usize>) {
        for place in self.quic_of(workers) {
            self.leave_dead_worker(place);
            self.reroute_quic(place);
        }
    }

    /// A NIC stack has arrived: connections whose own is gone may continue there.
    pub(crate) fn on_quic_nic_come(&mut self) {
        let Some(quic) = self.quic.as_deref() else {
            return;
        };
        for place in quic.table.places() {
            let worker = self.quic_connection(place).map(|it| it.worker);
            if worker.is_some_and(|worker| !self.ground.workers[worker].is_there()) {
                self.reroute_quic(place);
            }
        }
    }

    /// Moves a connection whose NIC stack is gone to another one that may have its files.
    fn reroute_quic(&mut self, place: usize) {
        let files = self.known_quic_files(place);
        let is_free = files.iter().all(|(_, _, is_needed)| !is_needed);
        if !is_free && !self.ground.config.roots_are_replicas {
            return;
        }
        let there = self.ground.nic_stacks.workers_to_choose(NicSet::default());
        let Some(worker) = self.ground.least_busy(there) else {
            return;
        };
        self.change_quic_worker(place, worker);
        for (stream, file, _) in files {
            if let Some(found) = self.ground.files.by_id_mut(file) {
                found.worker = worker;
                found.state = State::Reopening;
                let (path, lookup) = (found.path.clone(), found.lookup());
                self.hold_quic(stream);
                self.send_open(worker, file, &path, lookup);
            }
        }
    }

    /// The files of a connection that its application knows, each with its stream and whether it is
    /// in use.
    pub(super) fn known_quic_files(&self, place: usize) -> Vec<(StreamId, FileId, bool)> {
        let Some(quic) = self.quic.as_deref() else {
            return Vec::new();
        };
        let Some(connection) = quic.table.connections.get(place) else {
            return Vec::new();
        };
        let streams = connection.streams.values().filter_map(|stream| {
            let files = quic.table.stream(*stream)?.files.clone();
            Some((*stream, files))
        });
        let known = known_files(&self.ground.files, streams);
        known
            .map(|(id, file)| (file.stream, id, file.is_needed()))
            .collect()
    }

    /// OPEN has succeeded for a QUIC stream: the application learns of it once the connection is
    /// with the NIC stack that has the file.
    pub(crate) fn on_quic_file_opened(&mut self, stream: StreamId) {
        let quic = self.quic.as_deref();
        let Some((found, connection)) = quic.and_then(|quic| quic.table.pair(stream)) else {
            return;
        };
        let (place, home) = (found.connection, connection.worker);
        for file in found.files.clone() {
            let Some(known) = self.ground.files.by_id(file) else {
                continue;
            };
            if known.stream != stream || known.state != State::Found {
                continue;
            }
            if known.worker != home {
                if let Some(connection) = self.quic_connection(place) {
                    connection.is_to_move = true;
                }
                if let Some(quic) = self.quic.as_deref_mut() {
                    quic.mark(place);
                }
            } else if let Some((file, meta)) = self.ground.files.tell(file) {
                let meta = meta.into();
                let event = AppEvent::Opened { file, meta };
                self.ground.app_events.push_back((stream, event));
            }
        }
    }

    /// Closes all QUIC connections, and accepts no more: the stack is about to end.
    pub(crate) fn close_all_quic(&mut self, now_us: u64) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let now = tcp::Instant::from_us(now_us);
        for place in quic.table.places() {
            let connection = &quic.table.connections[place];
            let endpoint = &mut quic.listeners[connection.listener].endpoint;
            endpoint.close(now, connection.handle, NO_ERROR, b"");
            quic.mark(place);
        }
    }

    /// Accepts no more QUIC connections.
    pub(crate) fn stop_quic(&mut self) {
        if let Some(quic) = self.quic.as_deref_mut() {
            for listener in &mut quic.listeners {
                listener.endpoint.refuse_connections();
            }
        }
    }
}
