//! The application's operations on QUIC streams and connections.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use quic::{FileRange, Read, StreamError};
use tcp::Instant;

use super::endings::CANCELLED;
use super::table::{Connection, Held, Queued, Readiness, Receiving, Sending};
use crate::app::{AppEvent, CloseReason, FileHandle, QuicConnection, QuicStream, StreamId};
use crate::stack::Stack;

/// Most real bytes that a connection may have queued, or written and not acknowledged ...
const REAL_BYTES_MAX: u64 = 256 << 10;

/// ... and the minimum that it may have in any case.
const REAL_BYTES_MIN: u64 = 16 << 10;

/// Most pieces queued on a stream.
const QUEUE_MAX: usize = 256;

impl Stack {
    /// How many more real bytes a connection may have: all QUIC connections together get half of
    /// the connections' memory, and none more than an eighth.
    fn quic_room(&self, connection: &Connection) -> u64 {
        let most = self.ground.config.connection_memory_bytes_max as u64 / 2;
        let all = self.quic.as_deref().map_or(0, |quic| quic.real_bytes);
        let bytes_max = if all < most {
            REAL_BYTES_MAX.min(most / 4).max(REAL_BYTES_MIN)
        } else {
            REAL_BYTES_MIN
        };
        bytes_max.saturating_sub(connection.real_bytes)
    }

    pub(super) fn quic_has_room(&self, connection: &Connection) -> bool {
        self.quic_room(connection) > 0
    }

    /// Own address and peer's of a stream's connection.
    pub(crate) fn quic_addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        let (_, connection) = self.quic.as_deref()?.table.pair(stream)?;
        Some((connection.local, connection.remote))
    }

    /// The QUIC connection and stream of a stream.
    pub(crate) fn quic_stream(&self, stream: StreamId) -> Option<QuicStream> {
        let (found, connection) = self.quic.as_deref()?.table.pair(stream)?;
        Some(QuicStream {
            connection: connection.id,
            id: found.quic.0,
        })
    }

    /// The NIC worker that sends for a stream.
    pub(crate) fn quic_worker(&self, stream: StreamId) -> Option<usize> {
        let (_, connection) = self.quic.as_deref()?.table.pair(stream)?;
        Some(connection.worker)
    }

    pub(crate) fn quic_read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize {
        let Some(quic) = self.quic.as_deref_mut() else {
            return 0;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return 0;
        };
        if found.receiving == Receiving::Over {
            return 0;
        }
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let mut count = 0;
        while count < buffer.len() {
            let rest = &mut buffer[count..];
            match endpoint.read(connection.handle, found.quic, rest.len()) {
                Ok(Read::Bytes(bytes)) => {
                    rest[..bytes.len()].copy_from_slice(&bytes);
                    count += bytes.len();
                }
                Ok(Read::Finished) => {
                    self.end_receiving(stream, AppEvent::PeerFinished);
                    break;
                }
                Err(StreamError::Reset(code)) => {
                    self.end_receiving(stream, AppEvent::PeerReset { code });
                    break;
                }
                Ok(Read::Blocked) | Err(_) => break,
            }
        }
        count
    }

    pub(crate) fn quic_write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        let Some((found, connection)) = self.quic.as_deref().and_then(|it| it.table.pair(stream))
        else {
            return 0;
        };
        match found.sending {
            Sending::Open => {}
            Sending::Over => return bytes.len(),
            Sending::Finishing | Sending::Finished => return 0,
        }
        let room = self.quic_room(connection);
        let Some(quic) = self.quic.as_deref_mut() else {
            return 0;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return 0;
        };
        let wanted = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
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
        quic.real_bytes += taken as u64;
        quic.mark(place);
        taken
    }

    pub(crate) fn quic_write_file(
        &mut self,
        stream: StreamId,
        file: FileHandle,
        range: Range<u64>,
    ) -> u64 {
        let Some((file, known)) = self.ground.files.by_handle(file) else {
            return 0;
        };
        let size = known.meta.map_or(0, |meta| meta.size);
        if known.stream != stream || range.start >= range.end || range.end > size {
            return 0;
        }
        let Some(quic) = self.quic.as_deref_mut() else {
            return 0;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
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
            self.ground.files.extent_queued(file);
            Held { bytes: 0, since }
        });
        held.bytes += len;
        quic.begin_writing(stream);
        len
    }

    /// Ends sending on a stream after queued data.
    pub(crate) fn quic_shutdown(&mut self, stream: StreamId) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return;
        };
        if found.sending != Sending::Open {
            return;
        }
        let place = found.connection;
        if found.queue.is_empty() {
            found.sending = Sending::Finished;
            let endpoint = &mut quic.listeners[connection.listener].endpoint;
            let _ = endpoint.finish(connection.handle, found.quic);
        } else {
            found.sending = Sending::Finishing;
        }
        quic.mark(place);
    }

    pub(crate) fn quic_abort(&mut self, stream: StreamId) {
        self.abort_quic_stream(stream, CloseReason::Aborted, CANCELLED);
    }

    /// The application is gone; queued data is still sent.
    pub(crate) fn quic_close(&mut self, stream: StreamId) {
        self.quic_shutdown(stream);
        self.quic_stop_sending(stream, CANCELLED);
        self.quic_set_timer(0, stream, None);
        let quic = self.quic.as_deref_mut();
        if let Some(found) = quic.and_then(|quic| quic.table.stream_mut(stream)) {
            found.is_released = true;
        }
    }

    pub(crate) fn quic_reset(&mut self, stream: StreamId, code: u64) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return;
        };
        if found.sending == Sending::Over {
            return;
        }
        found.sending = Sending::Over;
        found.reason = CloseReason::Aborted;
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let _ = endpoint.reset(connection.handle, found.quic, code);
        let place = found.connection;
        quic.mark(place);
        self.drop_queue(stream);
        self.end_if_over(stream);
    }

    pub(crate) fn quic_stop_sending(&mut self, stream: StreamId, code: u64) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return;
        };
        if found.receiving == Receiving::Over {
            return;
        }
        found.receiving = Receiving::Over;
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let _ = endpoint.stop(connection.handle, found.quic, code);
        let place = found.connection;
        quic.mark(place);
        self.end_if_over(stream);
    }

    pub(crate) fn quic_prioritize(&mut self, stream: StreamId, priority: i32) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return;
        };
        found.priority = priority;
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let _ = endpoint.prioritize(connection.handle, found.quic, priority);
        let place = found.connection;
        if found.is_writing {
            quic.sort_writing(place, stream, priority);
        }
        quic.mark(place);
    }

    /// How many streams of both directions the peer may have opened by now.
    pub(crate) fn quic_streams_max(&mut self, connection: QuicConnection) -> u64 {
        let place = self.open_quic(connection);
        let (Some(place), Some(quic)) = (place, self.quic.as_deref_mut()) else {
            return 0;
        };
        let found = &quic.table.connections[place];
        let endpoint = &mut quic.listeners[found.listener].endpoint;
        endpoint.streams_max(found.handle)
    }

    pub(crate) fn quic_open_unidirectional(
        &mut self,
        connection: QuicConnection,
    ) -> Option<StreamId> {
        let place = self.open_quic(connection)?;
        let quic = self.quic.as_deref_mut()?;
        let found = &quic.table.connections[place];
        let endpoint = &mut quic.listeners[found.listener].endpoint;
        let stream = endpoint.open_unidirectional(found.handle)?;
        quic.mark(place);
        quic.table.insert_stream(place, stream)
    }

    pub(crate) fn close_quic(
        &mut self,
        now_us: u64,
        connection: QuicConnection,
        code: u64,
        reason: &[u8],
    ) {
        let Some(place) = self.open_quic(connection) else {
            return;
        };
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let found = &quic.table.connections[place];
        let endpoint = &mut quic.listeners[found.listener].endpoint;
        endpoint.close(Instant::from_us(now_us), found.handle, code, reason);
        quic.mark(place);
    }

    pub(crate) fn quic_set_timer(
        &mut self,
        now_us: u64,
        stream: StreamId,
        after: Option<Duration>,
    ) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(found) = quic.table.stream_mut(stream) else {
            return;
        };
        let at_us = after.map(|after| now_us.saturating_add(after.as_micros() as u64));
        if let Some(before) = std::mem::replace(&mut found.deadline_us, at_us) {
            quic.timers.remove(&(before, stream));
        }
        if let Some(at_us) = at_us {
            quic.timers.insert((at_us, stream));
        }
    }

    /// Bounds the rate at which ranges of files are written on a stream.
    pub(crate) fn quic_set_rate(&mut self, stream: StreamId, rate: Option<u64>) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(found) = quic.table.stream_mut(stream) else {
            return;
        };
        let next_us = found.rate.map_or(0, |(_, next_us)| next_us);
        found.rate = rate.map(|rate| (rate, next_us));
        let place = found.connection;
        quic.mark(place);
    }

    pub(crate) fn quic_set_lowat(&mut self, stream: StreamId, bytes: u64) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some((found, connection)) = quic.table.pair_mut(stream) else {
            return;
        };
        if found.notsent_lowat.replace(bytes).is_none() {
            connection.lowats += 1;
        }
        let place = found.connection;
        quic.mark(place);
    }

    pub(crate) fn quic_acknowledged(&self, stream: StreamId) -> u64 {
        let quic = self.quic.as_deref();
        let found = quic.and_then(|quic| quic.table.stream(stream));
        found.map_or(0, |found| found.acknowledged)
    }

    pub(crate) fn quic_unacknowledged(&self, stream: StreamId) -> u64 {
        let quic = self.quic.as_deref();
        let found = quic.and_then(|quic| quic.table.stream(stream));
        match found {
            Some(found) if found.sending != Sending::Over => found.unacknowledged(),
            _ => 0,
        }
    }

    pub(crate) fn quic_unsent(&self, stream: StreamId) -> u64 {
        let Some(quic) = self.quic.as_deref() else {
            return 0;
        };
        let Some((found, connection)) = quic.table.pair(stream) else {
            return 0;
        };
        if found.sending == Sending::Over {
            return 0;
        }
        let endpoint = &quic.listeners[connection.listener].endpoint;
        let sent = endpoint.sent(connection.handle, found.quic);
        found.queued_bytes + found.written.saturating_sub(sent)
    }

    pub(crate) fn quic_waits_for_peer(&self, stream: StreamId) -> bool {
        let Some((found, connection)) = self.quic.as_deref().and_then(|it| it.table.pair(stream))
        else {
            return false;
        };
        found.written > found.acknowledged
            && connection.issued.is_empty()
            && connection.commands.is_empty()
            && connection.holds == 0
    }

    pub(crate) fn quic_congestion_window(&self, stream: StreamId) -> u64 {
        let Some(quic) = self.quic.as_deref() else {
            return 0;
        };
        let pair = quic.table.pair(stream);
        pair.map_or(0, |(_, connection)| {
            let endpoint = &quic.listeners[connection.listener].endpoint;
            endpoint.congestion_window(connection.handle)
        })
    }

    /// Marks a stream's connection, which may advance.
    pub(crate) fn mark_quic_stream(&mut self, stream: StreamId) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        if let Some(place) = quic.table.stream(stream).map(|found| found.connection) {
            quic.mark(place);
        }
    }

    /// A file is opened for a stream.
    pub(crate) fn add_quic_file(&mut self, stream: StreamId, file: contract::FileId) {
        let files = &self.ground.files;
        let quic = self.quic.as_deref_mut();
        if let Some(found) = quic.and_then(|quic| quic.table.stream_mut(stream)) {
            let is_own =
                |file: &contract::FileId| files.by_id(*file).is_some_and(|it| it.stream == stream);
            found.files.retain(is_own);
            found.files.push(file);
        }
    }
}
