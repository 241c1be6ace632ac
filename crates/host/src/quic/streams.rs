//! The application's operations on QUIC streams and connections.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use contract::FileId;
use quic::{FileRange, Read, StreamError};
use tcp::Instant;

use super::endings::CANCELLED;
use super::table::{Connection, Held, Queued, Readiness, Receiving, Sending};
use crate::app::{AppEvent, CloseReason, FileHandle, Owner, QuicConnection, QuicStream, StreamId};
use crate::ground::Ground;
use crate::quic::QuicLayer;
use crate::streams::Transport;
use crate::tables::files::State;

/// Most real bytes that a connection may have queued, or written and not acknowledged ...
const REAL_BYTES_MAX: u64 = 256 << 10;

/// ... and the minimum that it may have in any case.
const REAL_BYTES_MIN: u64 = 16 << 10;

/// Most pieces queued on a stream.
const QUEUE_MAX: usize = 256;

impl QuicLayer {
    /// How many more real bytes a connection may have: all QUIC connections together get half of
    /// the connections' memory, and none more than an eighth.
    fn room(&self, ground: &Ground, connection: &Connection) -> u64 {
        let most = ground.config.connection_memory_bytes_max as u64 / 2;
        let all = self.real_bytes;
        let bytes_max = if all < most {
            REAL_BYTES_MAX.min(most / 4).max(REAL_BYTES_MIN)
        } else {
            REAL_BYTES_MIN
        };
        bytes_max.saturating_sub(connection.real_bytes)
    }

    pub(super) fn has_room(&self, ground: &Ground, connection: &Connection) -> bool {
        self.room(ground, connection) > 0
    }

    /// The QUIC connection and stream of a stream.
    pub(crate) fn quic_stream(&self, stream: StreamId) -> Option<QuicStream> {
        let (found, connection) = self.table.pair(stream)?;
        Some(QuicStream {
            connection: connection.id,
            id: found.quic.0,
        })
    }

    pub(crate) fn reset_stream(&mut self, ground: &mut Ground, stream: StreamId, code: u64) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        if found.sending == Sending::Over {
            return;
        }
        found.sending = Sending::Over;
        found.reason = CloseReason::Aborted;
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let _ = endpoint.reset(connection.handle, found.quic, code);
        let place = found.connection;
        self.mark(place);
        self.drop_queue(ground, stream);
        self.end_if_over(ground, stream);
    }

    pub(crate) fn stop_sending(&mut self, ground: &mut Ground, stream: StreamId, code: u64) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        if found.receiving == Receiving::Over {
            return;
        }
        found.receiving = Receiving::Over;
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let _ = endpoint.stop(connection.handle, found.quic, code);
        let place = found.connection;
        self.mark(place);
        self.end_if_over(ground, stream);
    }

    pub(crate) fn prioritize(&mut self, stream: StreamId, priority: i32) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        found.priority = priority;
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let _ = endpoint.prioritize(connection.handle, found.quic, priority);
        let place = found.connection;
        if found.is_writing {
            self.sort_writing(place, stream, priority);
        }
        self.mark(place);
    }

    /// How many streams of both directions the peer may have opened by now.
    pub(crate) fn peer_streams_max(&mut self, connection: QuicConnection) -> u64 {
        let place = self.open_place(connection);
        let Some(place) = place else {
            return 0;
        };
        let found = &self.table.connections[place];
        let endpoint = &mut self.listeners[found.listener].endpoint;
        endpoint.streams_max(found.handle)
    }

    pub(crate) fn open_unidirectional(&mut self, connection: QuicConnection) -> Option<StreamId> {
        let place = self.open_place(connection)?;
        let found = &self.table.connections[place];
        let endpoint = &mut self.listeners[found.listener].endpoint;
        let stream = endpoint.open_unidirectional(found.handle)?;
        self.mark(place);
        self.table.insert_stream(place, stream)
    }

    pub(crate) fn close_connection(
        &mut self,
        now_us: u64,
        connection: QuicConnection,
        code: u64,
        reason: &[u8],
    ) {
        let Some(place) = self.open_place(connection) else {
            return;
        };
        let found = &self.table.connections[place];
        let endpoint = &mut self.listeners[found.listener].endpoint;
        endpoint.close(Instant::from_us(now_us), found.handle, code, reason);
        self.mark(place);
    }
}

impl Transport for QuicLayer {
    fn worker_of(&self, stream: StreamId) -> Option<usize> {
        let (_, connection) = self.table.pair(stream)?;
        Some(connection.nic.worker)
    }

    // Only the server uses QUIC.
    fn owner(&self, stream: StreamId) -> Option<Owner> {
        self.worker_of(stream).map(|_| Owner::SERVER)
    }

    fn addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        let (_, connection) = self.table.pair(stream)?;
        Some((connection.local, connection.remote))
    }

    fn read(
        &mut self,
        ground: &mut Ground,
        _now_us: u64,
        stream: StreamId,
        to: &mut [u8],
    ) -> usize {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return 0;
        };
        if found.receiving == Receiving::Over {
            return 0;
        }
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let mut count = 0;
        while count < to.len() {
            let rest = &mut to[count..];
            match endpoint.read(connection.handle, found.quic, rest.len()) {
                Ok(Read::Bytes(bytes)) => {
                    rest[..bytes.len()].copy_from_slice(&bytes);
                    count += bytes.len();
                }
                Ok(Read::Finished) => {
                    self.end_receiving(ground, stream, AppEvent::PeerFinished);
                    break;
                }
                Err(StreamError::Reset(code)) => {
                    self.end_receiving(ground, stream, AppEvent::PeerReset { code });
                    break;
                }
                Ok(Read::Blocked) | Err(_) => break,
            }
        }
        count
    }

    fn write(&mut self, ground: &mut Ground, stream: StreamId, bytes: &[u8]) -> usize {
        let Some((found, connection)) = self.table.pair(stream) else {
            return 0;
        };
        match found.sending {
            Sending::Open => {}
            Sending::Over => return bytes.len(),
            Sending::Finishing | Sending::Finished => return 0,
        }
        let room = self.room(ground, connection);
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return 0;
        };
        let wanted = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let is_queued = !found.queue.is_empty();
        let taken = if is_queued && found.queue.len() >= QUEUE_MAX {
            0
        } else if is_queued {
            let bytes = bytes[..wanted].to_vec();
            found.queue.push_back(Queued::Real { bytes, from: 0 });
            found.queued_bytes += wanted as u64;
            found.queued_real_bytes += wanted as u64;
            wanted
        } else {
            let written = endpoint.write(connection.handle, found.quic, &bytes[..wanted]);
            let written = written.unwrap_or(0);
            found.written += written as u64;
            written
        };
        connection.real_bytes += taken as u64;
        if taken < bytes.len() && !std::mem::replace(&mut found.wants_room, true) {
            connection.wanting += 1;
        }
        let place = found.connection;
        self.real_bytes += taken as u64;
        self.mark(place);
        taken
    }

    fn write_file(
        &mut self,
        ground: &mut Ground,
        stream: StreamId,
        file: FileHandle,
        range: Range<u64>,
    ) -> u64 {
        let Some((file, _)) = ground.files.by_handle(file) else {
            return 0;
        };
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return 0;
        };
        let len = range.end - range.start;
        match found.sending {
            Sending::Open => {}
            Sending::Over => return len,
            Sending::Finishing | Sending::Finished => return 0,
        }
        if found.queue.len() >= QUEUE_MAX {
            if !std::mem::replace(&mut found.wants_room, true) {
                connection.wanting += 1;
            }
            return 0;
        }
        found.queue.push_back(Queued::File {
            range: FileRange {
                file,
                offset: range.start,
                len,
            },
            readiness: Readiness::Unasked,
        });
        found.queued_bytes += len;
        let since = connection.next_command;
        let held = connection.files.entry(file).or_insert_with(|| {
            ground.files.extent_queued(file);
            Held { bytes: 0, since }
        });
        held.bytes += len;
        self.begin_writing(stream);
        len
    }

    fn forget_closed(&mut self, ground: &Ground, stream: StreamId) {
        if let Some(found) = self.table.stream_mut(stream) {
            ground.files.retain_own(stream, &mut found.files);
        }
    }

    fn add_file(&mut self, stream: StreamId, file: FileId) {
        if let Some(found) = self.table.stream_mut(stream) {
            found.files.push(file);
        }
    }

    fn on_file_closed(&mut self, _: &mut Ground, stream: StreamId) {
        if let Some(place) = self.table.stream(stream).map(|found| found.connection) {
            self.mark(place);
        }
    }

    /// Ends sending on a stream after queued data.
    fn shutdown(&mut self, _: &mut Ground, stream: StreamId) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        if found.sending != Sending::Open {
            return;
        }
        let place = found.connection;
        if found.queue.is_empty() {
            found.sending = Sending::Finished;
            let endpoint = &mut self.listeners[connection.listener].endpoint;
            let _ = endpoint.finish(connection.handle, found.quic);
        } else {
            found.sending = Sending::Finishing;
        }
        self.mark(place);
    }

    fn abort(&mut self, ground: &mut Ground, _now_us: u64, stream: StreamId) {
        self.abort_stream(ground, stream, CloseReason::Aborted, CANCELLED);
    }

    fn close(&mut self, ground: &mut Ground, _now_us: u64, stream: StreamId) {
        self.shutdown(ground, stream);
        self.stop_sending(ground, stream, CANCELLED);
        self.set_timer(0, stream, None);
        if let Some(found) = self.table.stream_mut(stream) {
            found.is_released = true;
        }
    }

    fn congestion_window(&self, stream: StreamId) -> u64 {
        let pair = self.table.pair(stream);
        pair.map_or(0, |(_, connection)| {
            let endpoint = &self.listeners[connection.listener].endpoint;
            endpoint.congestion_window(connection.handle)
        })
    }

    fn set_timer(&mut self, now_us: u64, stream: StreamId, after: Option<Duration>) {
        let Some(found) = self.table.stream_mut(stream) else {
            return;
        };
        let at_us = after.map(|after| now_us.saturating_add(after.as_micros() as u64));
        if let Some(before) = std::mem::replace(&mut found.deadline_us, at_us) {
            self.timers.remove(&(before, stream));
        }
        if let Some(at_us) = at_us {
            self.timers.insert((at_us, stream));
        }
    }

    /// Bounds the rate at which ranges of files are written on a stream.
    fn bound_rate(&mut self, stream: StreamId, rate: Option<u64>) {
        let Some(found) = self.table.stream_mut(stream) else {
            return;
        };
        let next_us = found.rate.map_or(0, |(_, next_us)| next_us);
        found.rate = rate.map(|rate| (rate, next_us));
        let place = found.connection;
        self.mark(place);
    }

    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        if found.notsent_lowat.replace(bytes).is_none() {
            connection.lowats += 1;
        }
        let place = found.connection;
        self.mark(place);
    }

    fn acknowledged(&self, stream: StreamId) -> u64 {
        let found = self.table.stream(stream);
        found.map_or(0, |found| found.acknowledged)
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        let found = self.table.stream(stream);
        match found {
            Some(found) if found.sending != Sending::Over => found.unacknowledged(),
            _ => 0,
        }
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        let Some((found, connection)) = self.table.pair(stream) else {
            return 0;
        };
        if found.sending == Sending::Over {
            return 0;
        }
        let endpoint = &self.listeners[connection.listener].endpoint;
        let sent = endpoint.sent(connection.handle, found.quic);
        found.queued_bytes + found.written.saturating_sub(sent)
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        let Some((found, connection)) = self.table.pair(stream) else {
            return false;
        };
        found.written > found.acknowledged
            && connection.issued.is_empty()
            && connection.commands.is_empty()
            && !connection.nic.awaits_files()
    }

    fn on_file_opened(&mut self, ground: &mut Ground, stream: StreamId) {
        let Some((found, connection)) = self.table.pair(stream) else {
            return;
        };
        let (place, home) = (found.connection, connection.nic.worker);
        for file in found.files.clone() {
            let Some(known) = ground.files.by_id(file) else {
                continue;
            };
            if known.stream != stream || known.state != State::Found {
                continue;
            }
            if known.worker != home {
                if let Some(connection) = self.connection(place) {
                    connection.nic.is_to_move = true;
                }
                self.mark(place);
            } else if let Some((file, meta)) = ground.files.tell(file) {
                let meta = meta.into();
                let event = AppEvent::Opened { file, meta };
                ground.app_events.push_back((stream, event));
            }
        }
    }

    fn hold_sends(&mut self, stream: StreamId) {
        if let Some((_, connection)) = self.table.pair_mut(stream) {
            connection.nic.holds += 1;
        }
    }

    fn on_reopened(
        &mut self,
        ground: &mut Ground,
        _nic: usize,
        (stream, file): (StreamId, FileId),
        has_changed: bool,
    ) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            // Packets built before the stream ended may still name the file.
            if has_changed {
                self.table.bar(file);
            }
            return;
        };
        connection.nic.release();
        let place = found.connection;
        self.mark(place);
        if has_changed {
            self.lose_file(ground, place, stream, file);
        }
    }

    fn moves_to(&self, stream: StreamId) -> Option<usize> {
        let (_, connection) = self.table.pair(stream)?;
        connection.nic.moves_to
    }

    fn on_twin_opened(&mut self, ground: &mut Ground, stream: StreamId, is_other: bool) {
        let Some((found, _)) = self.table.pair(stream) else {
            return;
        };
        let place = found.connection;
        if is_other {
            self.stop_leaving(ground, place);
        }
        self.mark(place);
    }
}
