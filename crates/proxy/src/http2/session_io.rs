//! The [`Io`] of sessions: streams of HTTP/2 beside those of the host.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use host::app::{BindingId, ConnectError, FileHandle, Io, ListPlace, Owner, StreamId};
use host::splicing::{SpliceError, SpliceLimits};
use host::{Growth, PassedId};

use super::names::is_of_http2;
use super::table::Connections;

/// Time in which the client must take some of the response that a session has left.
const LEFT_FOR: Duration = Duration::from_secs(60);

/// See the [module documentation](self).
pub(crate) struct SessionIo<'a> {
    pub(crate) io: &'a mut dyn Io,
    pub(crate) connections: &'a mut Connections,
}

impl SessionIo<'_> {
    fn deadline_us(&self, after: Duration) -> u64 {
        let after_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.io.now_us().saturating_add(after_us)
    }
}

impl Io for SessionIo<'_> {
    fn listener(&self, stream: StreamId) -> Option<BindingId> {
        self.io.listener(stream)
    }

    fn addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        self.io.addresses(self.connections.carrier(stream))
    }

    fn connect(
        &mut self,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        self.io.connect(owner, local, remote)
    }

    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize {
        if !is_of_http2(stream) {
            return self.io.read(stream, buffer);
        }
        match self.connections.used(stream) {
            Some((connection, _, id)) => connection.read_stream(id, buffer),
            None => 0,
        }
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        if !is_of_http2(stream) {
            return self.io.write(stream, bytes);
        }
        match self.connections.used(stream) {
            Some((connection, _, id)) => connection.write_stream(id, bytes),
            None => 0,
        }
    }

    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        self.io.write_file(stream, file, range)
    }

    fn open(&mut self, stream: StreamId, path: &[u8], growth: Growth) -> FileHandle {
        self.io.open(stream, path, growth)
    }

    fn open_passed(&mut self, stream: StreamId, passed: PassedId) -> FileHandle {
        self.io.open_passed(stream, passed)
    }

    fn list(&mut self, stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle {
        self.io.list(stream, path, from)
    }

    fn close_file(&mut self, file: FileHandle) {
        self.io.close_file(file);
    }

    fn shutdown(&mut self, stream: StreamId) {
        if !is_of_http2(stream) {
            return self.io.shutdown(stream);
        }
        if let Some((connection, names, id)) = self.connections.used(stream) {
            connection.end_outgoing(names, id);
        }
    }

    fn abort(&mut self, stream: StreamId) {
        if !is_of_http2(stream) {
            return self.io.abort(stream);
        }
        if let Some((connection, names, id)) = self.connections.used(stream) {
            connection.abort_stream(names, id);
        }
    }

    fn close(&mut self, stream: StreamId) {
        if !is_of_http2(stream) {
            return self.io.close(stream);
        }
        let deadline_us = self.deadline_us(LEFT_FOR);
        if let Some((connection, names, id)) = self.connections.used(stream) {
            connection.leave(names, id, deadline_us);
        }
    }

    /// A session of HTTP/2 has no tunnel.
    fn splice(
        &mut self,
        first: StreamId,
        second: StreamId,
        limits: SpliceLimits,
    ) -> Result<(), SpliceError> {
        self.io.splice(first, second, limits)
    }

    fn unsplice(&mut self, stream: StreamId) {
        self.io.unsplice(stream);
    }

    fn unread(&self, stream: StreamId) -> usize {
        match is_of_http2(stream) {
            true => self.connections.stream(stream).map_or(0, |it| it.unread()),
            false => self.io.unread(stream),
        }
    }

    fn take_unread(&mut self, stream: StreamId) -> Vec<u8> {
        match is_of_http2(stream) {
            true => self.connections.take_unread(stream),
            false => self.io.take_unread(stream),
        }
    }

    fn set_timer(&mut self, stream: StreamId, after: Option<Duration>) {
        if !is_of_http2(stream) {
            return self.io.set_timer(stream, after);
        }
        let deadline_us = after.map(|after| self.deadline_us(after));
        if let Some((connection, _, id)) = self.connections.used(stream) {
            connection.set_deadline(id, deadline_us);
        }
    }

    /// Only a connection is idle.
    fn set_idle(&mut self, stream: StreamId, is_idle: bool) {
        if !is_of_http2(stream) {
            self.io.set_idle(stream, is_idle);
        }
    }

    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>) {
        self.io.set_max_pacing_rate(stream, bytes_per_second);
    }

    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64) {
        self.io.set_notsent_lowat(stream, bytes);
    }

    fn acknowledged(&self, stream: StreamId) -> u64 {
        match is_of_http2(stream) {
            true => self
                .connections
                .stream(stream)
                .map_or(0, |it| it.acknowledged()),
            false => self.io.acknowledged(stream),
        }
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        match is_of_http2(stream) {
            true => self
                .connections
                .stream(stream)
                .map_or(0, |it| it.unacknowledged()),
            false => self.io.unacknowledged(stream),
        }
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        match is_of_http2(stream) {
            true => 0,
            false => self.io.unsent(stream),
        }
    }

    /// The TCP stream of a connection has it.
    fn usable_window(&self, stream: StreamId) -> u64 {
        match is_of_http2(stream) {
            true => 0,
            false => self.io.usable_window(stream),
        }
    }

    /// A client delays a stream by its window, or by TCP's if TCP has all of the response.
    fn waits_for_peer(&self, stream: StreamId) -> bool {
        if !is_of_http2(stream) {
            return self.io.waits_for_peer(stream);
        }
        self.connections.stream(stream).is_some_and(|it| {
            let carrier = self.connections.carrier(stream);
            let is_written = it.outgoing.len() == 0 && it.unacknowledged() > 0;
            it.waits_for_window() || is_written && self.io.waits_for_peer(carrier)
        })
    }

    fn retransmissions(&self, stream: StreamId) -> u32 {
        self.io.retransmissions(self.connections.carrier(stream))
    }

    fn now_us(&self) -> u64 {
        self.io.now_us()
    }

    fn unix_time(&self) -> Duration {
        self.io.unix_time()
    }
}
