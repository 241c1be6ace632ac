//! How streams and connections of QUIC end.

use tcp::Instant;

use super::table::{Pending, Receiving, Sending};
use crate::app::{AppEvent, CloseReason, QuicCloseReason, StreamId};
use crate::stack::Stack;

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

impl Stack {
    /// Reports to the application that a stream is over, if it is.
    pub(super) fn end_if_over(&mut self, stream: StreamId) {
        let quic = self.quic.as_deref_mut();
        let Some(found) = quic.and_then(|quic| quic.table.stream_mut(stream)) else {
            return;
        };
        if found.is_over() && !std::mem::replace(&mut found.is_closing, true) {
            let event = AppEvent::Closed {
                reason: found.reason,
                acknowledged: found.acknowledged,
                retransmissions: 0,
            };
            self.ground.app_events.push_back((stream, event));
        }
    }

    /// Ends the receiving side of a stream; `event` has the reason.
    pub(super) fn end_receiving(&mut self, stream: StreamId, event: AppEvent) {
        let quic = self.quic.as_deref_mut();
        let Some(found) = quic.and_then(|quic| quic.table.stream_mut(stream)) else {
            return;
        };
        if std::mem::replace(&mut found.receiving, Receiving::Over) == Receiving::Over {
            return;
        }
        if matches!(event, AppEvent::PeerReset { .. }) {
            found.reason = CloseReason::Reset;
        }
        self.ground.app_events.push_back((stream, event));
        self.end_if_over(stream);
    }

    /// Ends a stream at once, in both directions.
    pub(super) fn abort_quic_stream(&mut self, stream: StreamId, reason: CloseReason, code: u64) {
        let quic = self.quic.as_deref_mut();
        let pair = quic.and_then(|quic| {
            let (found, connection) = quic.table.pair_mut(stream)?;
            let endpoint = &mut quic.listeners[connection.listener].endpoint;
            Some((found, connection, endpoint))
        });
        let Some((found, connection, endpoint)) = pair else {
            return;
        };
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
        self.drop_queue(stream);
        self.end_if_over(stream);
    }

    /// The NIC stack cannot read a file of a stream.
    pub(super) fn fail_quic_stream(&mut self, stream: StreamId) {
        self.abort_quic_stream(stream, CloseReason::DataPlaneFailed, INTERNAL_ERROR);
    }

    /// The NIC stack failed to serve a connection.
    pub(super) fn fail_quic(&mut self, now_us: u64, place: usize) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(connection) = quic.table.connections.get_mut(place) else {
            return;
        };
        connection.data_plane_failed = true;
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let now = Instant::from_us(now_us);
        endpoint.close(now, connection.handle, INTERNAL_ERROR, b"");
        quic.mark(place);
    }

    /// Closes a connection unknown to the application: its source has too many.
    pub(super) fn refuse_quic(&mut self, now_us: u64, place: usize) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(connection) = quic.table.connections.get(place) else {
            return;
        };
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let now = Instant::from_us(now_us);
        endpoint.close(now, connection.handle, EXCESSIVE_LOAD, b"");
        quic.mark(place);
    }

    /// A connection is closed: the worker drops its unsent commands, behind which CONNECTION_CLOSE
    /// would wait for pacing, a busy port, or a NIC stack that is away.
    pub(super) fn drop_sends(&mut self, place: usize) {
        let Some(connection) = self.quic_connection(place) else {
            return;
        };
        let mut commands = connection.commands.iter();
        let has_sends = !connection.issued.is_empty()
            || commands.any(|command| matches!(command, Pending::Send { .. }));
        if has_sends {
            self.end_flow(place);
            self.forget_flow(place);
        }
    }

    /// Removes a stream that is over and reported as such.
    pub(super) fn remove_quic_stream(&mut self, stream: StreamId) {
        self.drop_queue(stream);
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(removed) = quic.table.remove_stream(stream) else {
            return;
        };
        if let Some(at) = removed.deadline_us {
            quic.timers.remove(&(at, stream));
        }
        if let Some(connection) = quic.table.connections.get_mut(removed.connection) {
            connection.lowats -= u32::from(removed.notsent_lowat.is_some());
            let is_request = !removed.quic.is_unidirectional();
            if is_request && connection.requests == 0 && !connection.is_over {
                let idle = &mut quic.listeners[connection.listener].idle;
                idle.add(connection.remote.ip(), connection.handle);
                connection.writing.shrink_to_fit();
                connection.prepares.shrink_to_fit();
            }
        }
        // One that waited for a file of another stream may go on.
        quic.mark(removed.connection);
        for file in removed.files {
            let found = self.ground.files.by_id(file);
            let Some(found) = found.filter(|found| found.stream == stream) else {
                continue;
            };
            // The answer will find no stream to release the hold.
            if found.is_reopening()
                && let Some(connection) = self.quic_connection(removed.connection)
            {
                connection.holds = connection.holds.saturating_sub(1);
            }
            if let Some(close) = self.ground.files.let_go(file) {
                self.send_close(close);
            }
        }
    }

    /// The endpoint has forgotten a connection.
    pub(super) fn on_quic_gone(&mut self, now_us: u64, place: usize) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        if let Some(connection) = quic.table.connections.get_mut(place) {
            connection.is_gone = true;
            let key = (connection.listener, connection.handle);
            quic.end_trace_of(now_us, key);
        }
        self.forget_quic(place);
    }

    /// The endpoint has dropped a connection: removes its flow from the worker, and closes its
    /// files.
    pub(super) fn forget_quic(&mut self, place: usize) {
        self.end_flow(place);
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(connection) = quic.table.remove(place) else {
            return;
        };
        quic.real_bytes -= connection.real_bytes;
        self.ground.memory.release(connection.charged_bytes);
        self.ground.balance.remove(connection.worker);
        if let Some(source) = connection.source {
            self.ground.sources.remove(source);
        }
        for file in connection.files.into_keys() {
            if let Some(close) = self.ground.files.stream_over(file) {
                self.send_close(close);
            }
        }
    }
}
