//! Events of QUIC connections and their streams, for the application.

use quic::{EventKind, Handle};
use tls::{Suite, Version};

use super::endings::reasons;
use super::table::{Receiving, Sending};
use crate::app::{AppEvent, Application, QuicConnection, QuicEvent, StreamId, TlsAgreed};
use crate::nics::nic_stacks::NicSet;
use crate::stack::Stack;
use crate::tables::tuple::Tuple;

impl Stack {
    /// The place of a connection, assigned on its first event or output. `None` if the endpoint has
    /// forgotten it.
    pub(super) fn quic_place(&mut self, listener: usize, handle: Handle) -> Option<usize> {
        let quic = self.quic.as_deref_mut()?;
        if let Some(place) = quic.table.find(listener, handle) {
            return Some(place);
        }
        let found = &quic.listeners[listener];
        let (remote, local_ip) = found.endpoint.addresses(handle)?;
        let local_ip = local_ip.or_else(|| self.neighbors.source_for(remote.ip()))?;
        let local = (local_ip, found.port).into();
        let route = self.neighbors.route(remote.ip());
        let there = self.nic_stacks.workers_to_choose(NicSet::default());
        let all = self.nic_stacks.all_workers();
        let tuple = Tuple { local, remote };
        let worker = self.connections.enter_worker(&tuple, there, all);
        let endpoint = &mut quic.listeners[listener].endpoint;
        endpoint.set_worker(handle, worker);
        let place = quic
            .table
            .insert((listener, handle), (local, remote), route, worker);
        Some(place)
    }

    /// Reports events to the application.
    pub(super) fn tell_quic<A: Application>(&mut self, now_us: u64, app: &mut A) -> bool {
        let mut busy = false;
        loop {
            if let Some((stream, event)) = self.app_events.pop_front() {
                self.tell(now_us, app, stream, event);
            } else if let Some((listener, event)) =
                self.quic.as_deref_mut().and_then(|quic| quic.poll_event())
            {
                self.on_quic_event(now_us, app, listener, event);
            } else {
                return busy;
            }
            busy = true;
        }
    }

    fn on_quic_event<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        listener: usize,
        event: quic::Event,
    ) {
        let handle = event.connection;
        if let EventKind::Connected { .. } = event.kind {
            return self.on_quic_connected(now_us, app, listener, event);
        }
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        if let EventKind::Closed(_) = event.kind {
            quic.listeners[listener].idle.remove(handle);
        }
        let Some(place) = quic.table.find(listener, handle) else {
            if let EventKind::Closed(_) = event.kind {
                self.counters.quic_handshakes_failed += 1;
            }
            return;
        };
        match event.kind {
            EventKind::Connected { .. } => {}
            EventKind::HandshakeComplete => self.on_quic_handshake_complete(now_us, app, place),
            EventKind::Opened(stream) => self.on_quic_opened(now_us, app, place, stream),
            EventKind::Readable(stream) => {
                if let Some(stream) = self.quic_stream_id(place, stream) {
                    self.tell_stream(now_us, app, stream, AppEvent::Readable);
                }
            }
            EventKind::Writable(stream) => self.on_quic_writable(place, stream),
            EventKind::Acknowledged {
                stream,
                bytes,
                real_bytes,
            } => self.on_quic_acknowledged(place, stream, bytes, real_bytes),
            EventKind::Finished(stream) => self.on_quic_finished(place, stream),
            EventKind::Stopped(stream, code) => self.on_quic_stopped(place, stream, code),
            EventKind::Closed(reason) => self.on_quic_closed(now_us, app, place, &reason),
        }
    }

    fn quic_stream_id(&self, place: usize, stream: quic::StreamId) -> Option<StreamId> {
        let connection = self.quic.as_deref()?.table.connections.get(place)?;
        connection.streams.get(&stream.0).copied()
    }

    fn on_quic_connected<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        listener: usize,
        event: quic::Event,
    ) {
        let place = self.quic_place(listener, event.connection);
        let EventKind::Connected {
            alpn,
            server_name,
            cipher,
            is_resumed,
            takes_early_data,
            is_early,
            ..
        } = event.kind
        else {
            return;
        };
        let Some(place) = place else {
            return;
        };
        if !is_early && !self.end_quic_handshake(now_us, place) {
            return;
        }
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let certificates = &quic.listeners[listener].certificates;
        let identity = certificates.identity(server_name.as_deref());
        let connection = &mut quic.table.connections[place];
        let agreed = TlsAgreed {
            suite: Suite {
                version: Version::Tls13,
                cipher,
            },
            alpn,
            is_resumed,
            identity,
        };
        connection.agreed = Some(agreed.clone());
        let (id, peer) = (connection.id, connection.remote);
        self.counters.quic_connections_accepted += 1;
        self.counters.quic_resumed += u64::from(is_resumed);
        self.counters.quic_early += u64::from(takes_early_data);
        let event = QuicEvent::Opened {
            peer,
            tls: Box::new(agreed),
            is_early,
        };
        app.on_quic(&mut self.streams(now_us), id, event);
    }

    fn on_quic_handshake_complete<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        place: usize,
    ) {
        let quic = self.quic.as_deref();
        let connection = quic.and_then(|quic| quic.table.connections.get(place));
        let Some(connection) = connection.filter(|it| it.agreed.is_some() && !it.is_over) else {
            return;
        };
        let id = connection.id;
        if self.end_quic_handshake(now_us, place) {
            app.on_quic(&mut self.streams(now_us), id, QuicEvent::HandshakeComplete);
        }
    }

    /// The handshake of a connection is complete: it now counts against its source, whose address
    /// was not validated before (RFC 9000 §8.1). False if the source has too many, and the
    /// connection is closed.
    fn end_quic_handshake(&mut self, now_us: u64, place: usize) -> bool {
        let quic = self.quic.as_deref_mut();
        let Some(connection) = quic.and_then(|quic| quic.table.connections.get_mut(place)) else {
            return false;
        };
        let source = connection.remote.ip();
        if self.gate.is_exhausted(source) {
            self.counters.sources_refused += 1;
            self.refuse_quic(now_us, place);
            return false;
        }
        connection.source = Some(source);
        connection.is_handshake_complete = true;
        self.gate.on_accepted(source);
        self.apply_receive_policy(place);
        true
    }

    /// The peer has opened a stream.
    fn on_quic_opened<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        place: usize,
        stream: quic::StreamId,
    ) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let connection = quic.table.connections.get(place);
        if connection.is_none_or(|connection| connection.agreed.is_none()) {
            return;
        }
        let Some(id) = quic.table.insert_stream(place, stream) else {
            return;
        };
        let connection = &quic.table.connections[place];
        let peer = connection.remote;
        if connection.requests > 0 {
            quic.listeners[connection.listener]
                .idle
                .remove(connection.handle);
        }
        self.counters.quic_streams_accepted += 1;
        let tls = None;
        self.tell_stream(now_us, app, id, AppEvent::Accepted { peer, tls });
        self.tell_stream(now_us, app, id, AppEvent::Readable);
    }

    /// Reports an event of a stream, unless the application has released it.
    fn tell_stream<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        stream: StreamId,
        event: AppEvent,
    ) {
        let quic = self.quic.as_deref();
        let Some(found) = quic.and_then(|quic| quic.table.stream(stream)) else {
            return;
        };
        let is_unread = found.receiving == Receiving::Open;
        let is_due = is_unread || !matches!(event, AppEvent::Readable);
        if is_due && !found.is_released {
            app.on_event(&mut self.streams(now_us), stream, event);
        }
    }

    /// Reports an event that the stack has queued for a stream.
    #[cold]
    pub(in crate::stack) fn tell_quic_stream<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        stream: StreamId,
        event: AppEvent,
    ) {
        let quic = self.quic.as_deref_mut();
        let Some(found) = quic.and_then(|quic| quic.table.stream_mut(stream)) else {
            return;
        };
        if matches!(event, AppEvent::Timer) {
            // Meanwhile the application may have moved the timer, or cancelled it.
            if found.deadline_us.is_none_or(|at| at > now_us) {
                return;
            }
            found.deadline_us = None;
        }
        let is_over = matches!(event, AppEvent::Closed { .. });
        if found.is_closing && !is_over && matches!(event, AppEvent::Timer | AppEvent::Writable) {
            return;
        }
        self.tell_stream(now_us, app, stream, event);
        if is_over {
            self.remove_quic_stream(stream);
        }
    }

    /// A stream may have room to write.
    fn on_quic_writable(&mut self, place: usize, stream: quic::StreamId) {
        let id = self.quic_stream_id(place, stream);
        let (Some(id), Some(quic)) = (id, self.quic.as_deref_mut()) else {
            return;
        };
        quic.mark(place);
        if let Some((found, connection)) = quic.table.pair_mut(id)
            && found.queue.is_empty()
            && std::mem::take(&mut found.wants_room)
        {
            connection.wanting -= 1;
            self.app_events.push_back((id, AppEvent::Writable));
        }
    }

    fn on_quic_acknowledged(
        &mut self,
        place: usize,
        stream: quic::StreamId,
        bytes: u64,
        real_bytes: u64,
    ) {
        let id = self.quic_stream_id(place, stream);
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(connection) = quic.table.connections.get_mut(place) else {
            return;
        };
        connection.real_bytes -= real_bytes;
        connection.route.confirm();
        quic.real_bytes -= real_bytes;
        let wanting = connection.wanting;
        quic.mark(place);
        if let Some(id) = id {
            // Data abandoned by a reset is not acknowledged.
            if let Some(found) = quic.table.stream_mut(id)
                && found.sending != Sending::Over
            {
                found.acknowledged += bytes;
            }
            self.tell_drained(id);
        }
        if wanting > 0 {
            self.tell_room(place);
        }
    }

    /// Reports to the application that all of a stream is acknowledged, if it is.
    fn tell_drained(&mut self, stream: StreamId) {
        let quic = self.quic.as_deref_mut();
        let Some(found) = quic.and_then(|quic| quic.table.stream_mut(stream)) else {
            return;
        };
        if found.unacknowledged() == 0
            && found.acknowledged > found.drained
            && found.sending != Sending::Over
        {
            found.drained = found.acknowledged;
            self.app_events.push_back((stream, AppEvent::Drained));
        }
    }

    /// A connection has room: notifies the applications of streams that wait for it.
    fn tell_room(&mut self, place: usize) {
        let quic = self.quic.as_deref();
        let connection = quic.and_then(|quic| quic.table.connections.get(place));
        let Some(connection) = connection else {
            return;
        };
        if !self.quic_has_room(connection) {
            return;
        }
        let streams: Vec<StreamId> = connection.streams.values().copied().collect();
        for stream in streams {
            let quic = self.quic.as_deref_mut();
            if let Some((found, connection)) = quic.and_then(|quic| quic.table.pair_mut(stream))
                && found.queue.is_empty()
                && std::mem::take(&mut found.wants_room)
            {
                connection.wanting -= 1;
                self.app_events.push_back((stream, AppEvent::Writable));
            }
        }
    }

    /// All of a stream, including FIN, is acknowledged.
    fn on_quic_finished(&mut self, place: usize, stream: quic::StreamId) {
        let Some(id) = self.quic_stream_id(place, stream) else {
            return;
        };
        self.tell_drained(id);
        let quic = self.quic.as_deref_mut();
        if let Some(found) = quic.and_then(|quic| quic.table.stream_mut(id)) {
            found.acknowledged = found.written;
            found.sending = Sending::Over;
        }
        self.end_if_over(id);
    }

    /// The peer has sent STOP_SENDING: resets the stream, as RFC 9000 §3.5 demands.
    fn on_quic_stopped(&mut self, place: usize, stream: quic::StreamId, code: u64) {
        let Some(id) = self.quic_stream_id(place, stream) else {
            return;
        };
        self.drop_queue(id);
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some((found, connection)) = quic.table.pair_mut(id) else {
            return;
        };
        if found.sending == Sending::Over {
            return;
        }
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        let _ = endpoint.reset(connection.handle, stream, code);
        found.sending = Sending::Over;
        found.reason = crate::app::CloseReason::Reset;
        self.app_events
            .push_back((id, AppEvent::PeerStopped { code }));
        self.end_if_over(id);
    }

    fn on_quic_closed<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        place: usize,
        reason: &quic::CloseReason,
    ) {
        let Some(quic) = self.quic.as_deref_mut() else {
            return;
        };
        let Some(connection) = quic.table.connections.get_mut(place) else {
            return;
        };
        connection.is_over = true;
        let id = connection.id;
        let was_accepted = connection.agreed.is_some();
        // CONNECTION_CLOSE for what cannot be described may be among the commands already.
        if *reason != quic::CloseReason::Undescribable {
            self.drop_sends(place);
        }
        let Some(connection) = self.quic_connection(place) else {
            return;
        };
        let (reason, of_streams) = reasons(reason, connection.data_plane_failed);
        let streams: Vec<StreamId> = connection.streams.values().copied().collect();
        for stream in streams {
            let quic = self.quic.as_deref();
            let Some(found) = quic.and_then(|quic| quic.table.stream(stream)) else {
                continue;
            };
            let event = AppEvent::Closed {
                reason: if found.is_over() {
                    found.reason
                } else {
                    of_streams
                },
                acknowledged: found.acknowledged,
                retransmissions: 0,
            };
            self.tell_stream(now_us, app, stream, event);
            self.remove_quic_stream(stream);
        }
        if was_accepted {
            self.counters.quic_connections_closed += 1;
            app.on_quic(&mut self.streams(now_us), id, QuicEvent::Closed(reason));
        } else {
            self.counters.quic_handshakes_failed += 1;
        }
    }

    /// The place of a connection that the application may still use.
    pub(super) fn open_quic(&self, connection: QuicConnection) -> Option<usize> {
        let quic = self.quic.as_deref()?;
        let place = quic.table.place_of(connection)?;
        let found = &quic.table.connections[place];
        (found.agreed.is_some() && !found.is_over).then_some(place)
    }
}
