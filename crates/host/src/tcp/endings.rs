//! How connections end, and how the stack forgets them.

use contract::FlowId;

use super::TcpLayer;
use super::listening::unreserve;
use crate::app::{AppEvent, CloseReason, StreamId};
use crate::ground::Ground;
use crate::ground::workers::Deferred;
use crate::tables::connections::ConnectionHandle;

impl TcpLayer {
    /// Reading failed for a SEND: its connection fails. False if the report is invalid.
    pub(crate) fn on_read_failed(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        flow: FlowId,
    ) -> bool {
        match self.connections.handle_of(StreamId(flow.0)) {
            Some(handle) => self.fail(ground, worker, handle),
            // The connection may have ended while the event was in transit.
            None => true,
        }
    }

    /// TCP has ended: returns the event for the application, if the application has the connection.
    pub(crate) fn on_closed(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
        reason: tcp::CloseReason,
    ) -> Option<AppEvent> {
        if self.has_splices() {
            self.on_leg_closed(ground, now_us, handle);
        }
        let entry = self.connections.get_mut(handle)?;
        let tuple = entry.tuple;
        if reason != tcp::CloseReason::Finished
            && let Some(cookie) = entry.cookie
        {
            self.gate.on_cookie_spent(now_us, tuple, cookie);
        }
        let reason = match reason {
            _ if entry.data_plane_failed => CloseReason::DataPlaneFailed,
            _ if entry.tls.as_ref().is_some_and(|tls| tls.has_failed) => CloseReason::TlsFailed,
            tcp::CloseReason::Finished => CloseReason::Finished,
            tcp::CloseReason::Refused if entry.is_active => CloseReason::Refused,
            tcp::CloseReason::Reset | tcp::CloseReason::Refused => CloseReason::Reset,
            tcp::CloseReason::Unreachable => CloseReason::Unreachable,
            tcp::CloseReason::TimedOut => CloseReason::TimedOut,
            tcp::CloseReason::Aborted => CloseReason::Aborted,
        };
        let is_delivered = match reason {
            CloseReason::Finished => true,
            CloseReason::Reset | CloseReason::TimedOut | CloseReason::Aborted => {
                entry.is_delivered()
            }
            CloseReason::Refused
            | CloseReason::Unreachable
            | CloseReason::DataPlaneFailed
            | CloseReason::TlsFailed => false,
        };
        let (acknowledged, retransmissions) =
            (entry.acknowledged_bytes(), entry.tcp.retransmissions());
        let told = std::mem::replace(&mut entry.told, false);
        entry.app_deadline_us = None;
        self.end_of_stream(ground, handle);
        if !told {
            return None;
        }
        match is_delivered {
            true => ground.counters.connections_finished += 1,
            false => ground.counters.connections_broken += 1,
        }
        Some(AppEvent::Closed {
            reason,
            acknowledged,
            retransmissions,
        })
    }

    /// The stream is over: the NIC stack may forget its flow and close its files.
    pub(crate) fn end_of_stream(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let (worker, flow) = (entry.nic.worker, entry.flow());
        let stream_offset = entry.tcp.acknowledged_bytes();
        // Undeparted SENDs never depart, and are not reported.
        ground.sends_outstanding -= std::mem::take(&mut entry.nic.sends_outstanding);
        let files = std::mem::take(&mut entry.files);
        entry.nic.moves_to = None;
        entry.tls = None;
        self.migrations.forget(StreamId(flow.0));
        if std::mem::replace(&mut entry.nic.is_open, false) {
            ground.counters.ackds += 1;
            ground.workers[worker].send_or_defer(Deferred::Acked {
                flow,
                stream_offset,
                last: true,
            });
        }
        for file in files {
            let owned = ground
                .files
                .by_id(file)
                .is_some_and(|file| file.stream.0 == flow.0);
            if owned && let Some(close) = ground.files.stream_over(file) {
                ground.send_close(close);
            }
        }
    }

    /// Removes a connection from the table.
    pub(crate) fn forget(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        self.end_of_stream(ground, handle);
        self.forget_candidate(handle);
        self.wheel.cancel(handle.place());
        if let Some(mut entry) = self.connections.remove(handle) {
            ground.balance.remove(entry.nic.worker);
            ground.memory.release(entry.charged_bytes);
            unreserve(&mut self.bindings, &mut entry);
            if entry.is_active {
                let crate::tables::tuple::Tuple { local, remote } = entry.tuple;
                self.ephemeral_ports.on_freed(local, remote);
            } else {
                self.gate.on_heard(entry.unheard.take());
                ground.sources.remove(entry.source());
            }
            if let Some(since) = entry.orphan_since {
                self.orphans.remove(since);
            }
            self.connections.recycle(entry);
        }
        // Tables that have grown for a crowd go with it.
        if self.connections.shrink_if_sparse() {
            self.wheel.shrink();
        }
    }

    /// Marks the connection as an orphan, which waits for its peer alone, and aborts the oldest
    /// orphans beyond the limit.
    pub(crate) fn bound_orphans(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        entry.orphan_since = Some(self.orphans.add(entry.stream));
        // The connection no longer counts as silent.
        self.gate.on_heard(entry.unheard.take());
        while let Some(oldest) = self.orphans.take_beyond(ground.config.orphans_max) {
            if let Some(entry) = self.connections.by_stream_mut(oldest) {
                let handle = entry.handle();
                entry.tcp.abort();
                ground.counters.orphans_aborted += 1;
                self.mark_dirty(handle);
            }
        }
    }

    /// Aborts a connection because the data plane could not do its part.
    pub(crate) fn fail(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        handle: ConnectionHandle,
    ) -> bool {
        let may_have_moved = ground.may_have_moved();
        let Some(entry) = self.connections.get_mut(handle) else {
            return false;
        };
        if entry.nic.worker != worker {
            return may_have_moved;
        }
        entry.data_plane_failed = true;
        entry.tcp.abort();
        self.mark_dirty(handle);
        true
    }
}
