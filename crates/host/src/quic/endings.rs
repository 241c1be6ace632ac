//! How streams and connections of QUIC end.

use tcp::Instant;

use super::table::{Pending, Receiving, Sending};
use crate::app::{AppEvent, CloseReason, QuicCloseReason, StreamId};
use crate::ground::Ground;
use crate::quic::QuicLayer;

/// Application error code for a connection that ends without an error: H3_NO_ERROR (RFC 9114 §8.1).
pub(super) const NO_ERROR: u64 = 0x100;

/// Application error code for a stream or connection that the NIC stack failed to serve:
/// H3_INTERNAL_ERROR (RFC 9114 §8.1).
const INTERNAL_ERROR: u64 = 0x102;

/// Code for a connection whose source has too many, or holds too much: H3_EXCESSIVE_LOAD (RFC 9114
/// §8.1).
pub(super) const EXCESSIVE_LOAD: u64 = 0x107;

/// Code for a stream that the application aborts: H3_REQUEST_CANCELLED (RFC 9114 §8.1).
pub(super) const CANCELLED: u64 = 0x10c;

/// The close reasons for the application, of a connection and of its streams.
pub(super) fn reasons(
    reason: &quic::CloseReason,
    data_plane_failed: bool,
) -> (QuicCloseReason, CloseReason) {
    match *reason {
        _ if data_plane_failed => (QuicCloseReason::Unreadable, CloseReason::DataPlaneFailed),
        quic::CloseReason::Undescribable => {
            (QuicCloseReason::Unreadable, CloseReason::DataPlaneFailed)
        }
        quic::CloseReason::Local => (QuicCloseReason::Local, CloseReason::Aborted),
        quic::CloseReason::Application(code) => {
            (QuicCloseReason::Application(code), CloseReason::Reset)
        }
        quic::CloseReason::Peer(code) => (QuicCloseReason::Peer(code), CloseReason::Reset),
        quic::CloseReason::Protocol(code, _) => {
            (QuicCloseReason::Protocol(code), CloseReason::TlsFailed)
        }
        quic::CloseReason::TimedOut => (QuicCloseReason::TimedOut, CloseReason::TimedOut),
        _ => (QuicCloseReason::Reset, CloseReason::Reset),
    }
}

impl QuicLayer {
    /// Reports to the application that a stream is over, if it is.
    pub(super) fn end_if_over(&mut self, ground: &mut Ground, stream: StreamId) {
        let Some(found) = self.table.stream_mut(stream) else {
            return;
        };
        if found.is_over() && !std::mem::replace(&mut found.is_closing, true) {
            let event = AppEvent::Closed {
                reason: found.reason,
                acknowledged: found.acknowledged,
                retransmissions: 0,
            };
            ground.app_events.push_back((stream, event));
        }
    }

    /// Ends the receiving side of a stream; `event` has the reason.
    pub(super) fn end_receiving(&mut self, ground: &mut Ground, stream: StreamId, event: AppEvent) {
        let Some(found) = self.table.stream_mut(stream) else {
            return;
        };
        if std::mem::replace(&mut found.receiving, Receiving::Over) == Receiving::Over {
            return;
        }
        if matches!(event, AppEvent::PeerReset { .. }) {
            found.reason = CloseReason::Reset;
        }
        ground.app_events.push_back((stream, event));
        self.end_if_over(ground, stream);
    }

    /// Ends a stream at once, in both directions.
    pub(super) fn abort_stream(
        &mut self,
        ground: &mut Ground,
        stream: StreamId,
        reason: CloseReason,
        code: u64,
    ) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        if found.is_closing {
            return;
        }
        if found.sending != Sending::Over {
            let _ = endpoint.reset(connection.handle, found.quic, code);
        }
        if found.receiving != Receiving::Over {
            let _ = endpoint.stop(connection.handle, found.quic, code);
        }
        (found.sending, found.receiving) = (Sending::Over, Receiving::Over);
        found.reason = reason;
        self.drop_queue(ground, stream);
        self.end_if_over(ground, stream);
    }

    /// The NIC stack cannot read a file of a stream.
    pub(super) fn fail_stream(&mut self, ground: &mut Ground, stream: StreamId) {
        self.abort_stream(ground, stream, CloseReason::DataPlaneFailed, INTERNAL_ERROR);
    }

    /// The NIC stack failed to serve a connection.
    pub(super) fn fail(&mut self, now_us: u64, place: usize) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        connection.data_plane_failed = true;
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let now = Instant::from_us(now_us);
        endpoint.close(now, connection.handle, INTERNAL_ERROR, b"");
        self.mark(place);
    }

    /// Closes the connections whose clients may not connect, and returns their number.
    pub(crate) fn close_denied(&mut self, ground: &Ground, now_us: u64) -> usize {
        let connections = self.table.connections.iter();
        let denied = connections.filter(|(_, connection)| {
            !connection.is_over && !ground.permits_client(now_us, connection.remote.ip())
        });
        let denied: Vec<usize> = denied.map(|(place, _)| place).collect();
        for &place in &denied {
            self.close_with(now_us, place, NO_ERROR);
        }
        denied.len()
    }

    /// Closes a connection unknown to the application: its source has too many.
    pub(super) fn refuse(&mut self, now_us: u64, place: usize) {
        self.close_with(now_us, place, EXCESSIVE_LOAD);
    }

    fn close_with(&mut self, now_us: u64, place: usize, code: u64) {
        let Some(connection) = self.table.connections.get(place) else {
            return;
        };
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let now = Instant::from_us(now_us);
        endpoint.close(now, connection.handle, code, b"");
        self.mark(place);
    }

    /// A connection is closed: the worker drops its unsent commands, behind which CONNECTION_CLOSE
    /// would wait for pacing, a busy port, or a NIC stack that is away.
    pub(super) fn drop_sends(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        let mut commands = connection.commands.iter();
        let has_sends = !connection.issued.is_empty()
            || commands.any(|command| matches!(command, Pending::Send { .. }));
        if has_sends {
            self.end_flow(ground, place);
            self.forget_flow(ground, place);
        }
    }

    /// Removes a stream that is over and reported as such.
    pub(crate) fn remove_stream(&mut self, ground: &mut Ground, stream: StreamId) {
        self.drop_queue(ground, stream);
        let Some(removed) = self.table.remove_stream(stream) else {
            return;
        };
        if let Some(at) = removed.deadline_us {
            self.timers.remove(&(at, stream));
        }
        if let Some(connection) = self.table.connections.get_mut(removed.connection) {
            connection.lowats -= u32::from(removed.notsent_lowat.is_some());
            let is_request = !removed.quic.is_unidirectional();
            if is_request && connection.requests == 0 && !connection.is_over {
                let idle = &mut self.listeners[connection.listener].idle;
                idle.add(connection.remote.ip(), connection.handle);
                connection.writing.shrink_to_fit();
                connection.prepares.shrink_to_fit();
            }
        }
        // One that waited for a file of another stream may go on.
        self.mark(removed.connection);
        for file in removed.files {
            let found = ground.files.by_id(file);
            let Some(found) = found.filter(|found| found.stream == stream) else {
                continue;
            };
            // The answer will find no stream to release the hold.
            if found.is_reopening()
                && let Some(connection) = self.connection(removed.connection)
            {
                connection.nic.holds = connection.nic.holds.saturating_sub(1);
            }
            if let Some(close) = ground.files.let_go(file) {
                ground.send_close(close);
            }
        }
    }

    /// The endpoint has forgotten a connection.
    pub(super) fn on_gone(&mut self, ground: &mut Ground, now_us: u64, place: usize) {
        if let Some(connection) = self.table.connections.get_mut(place) {
            connection.is_gone = true;
            let key = (connection.listener, connection.handle);
            self.end_trace_of(now_us, key);
        }
        self.forget(ground, place);
    }

    /// The endpoint has dropped a connection: removes its flow from the worker, and closes its
    /// files.
    pub(super) fn forget(&mut self, ground: &mut Ground, place: usize) {
        self.end_flow(ground, place);
        let Some(connection) = self.table.remove(place) else {
            return;
        };
        self.real_bytes -= connection.real_bytes;
        ground.memory.release(connection.charged_bytes);
        ground.balance.remove(connection.nic.worker);
        if let Some(source) = connection.source {
            ground.sources.remove(source);
        }
        for file in connection.files.into_keys() {
            if let Some(close) = ground.files.stream_over(file) {
                ground.send_close(close);
            }
        }
    }
}
