//! Events of QUIC connections and their streams, for the application.

use quic::{EventKind, Handle};
use tls::{Suite, Version};

use super::endings::reasons;
use super::table::{Receiving, Sending};
use crate::app::{AppEvent, CloseReason, QuicConnection, QuicEvent, StreamId, TlsAgreed};
use crate::ground::Ground;
use crate::quic::QuicLayer;
use crate::tables::tuple::Tuple;

/// A report to the application.
#[derive(Debug)]
pub(crate) enum Report {
    /// An event of a stream.
    Stream(StreamId, AppEvent),
    /// An event of a connection.
    Connection(QuicConnection, QuicEvent),
}

/// A report that is due.
#[derive(Debug)]
pub(super) enum Due {
    Report(Report),
    /// The connection of a stream is over, for this reason.
    Lost(StreamId, CloseReason),
}

impl QuicLayer {
    /// The place of a connection, assigned on its first event or output. `None` if the endpoint has
    /// forgotten it.
    pub(super) fn place(
        &mut self,
        ground: &mut Ground,
        listener: usize,
        handle: Handle,
    ) -> Option<usize> {
        if let Some(place) = self.table.find(listener, handle) {
            return Some(place);
        }
        let found = &self.listeners[listener];
        let (remote, local_ip) = found.endpoint.addresses(handle)?;
        let local_ip = local_ip.or_else(|| ground.neighbors.source_for(remote.ip()))?;
        let local = (local_ip, found.port).into();
        let route = ground.neighbors.route(remote.ip());
        let tuple = Tuple { local, remote };
        let worker = (ground).enter_worker(|| self.handed_on.hash(&tuple));
        let endpoint = &mut self.listeners[listener].endpoint;
        endpoint.set_worker(handle, worker);
        let place = self
            .table
            .insert((listener, handle), (local, remote), route, worker);
        Some(place)
    }

    /// Handles an event of an endpoint: reports may be due then.
    pub(crate) fn on_event(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        listener: usize,
        event: quic::Event,
    ) {
        let handle = event.connection;
        if let EventKind::Connected { .. } = event.kind {
            return self.on_connected(ground, now_us, listener, event);
        }
        if let EventKind::Closed(_) = event.kind {
            self.listeners[listener].idle.remove(handle);
        }
        let Some(place) = self.table.find(listener, handle) else {
            if let EventKind::Closed(_) = event.kind {
                ground.counters.quic_handshakes_failed += 1;
            }
            return;
        };
        match event.kind {
            EventKind::Connected { .. } => {}
            EventKind::HandshakeComplete => self.on_handshake_complete(ground, now_us, place),
            EventKind::Opened(stream) => self.on_opened(ground, place, stream),
            EventKind::Readable(stream) => {
                if let Some(stream) = self.stream_id(place, stream) {
                    self.tell_stream(stream, AppEvent::Readable);
                }
            }
            EventKind::Writable(stream) => self.on_writable(ground, place, stream),
            EventKind::Acknowledged {
                stream,
                bytes,
                real_bytes,
            } => self.on_acknowledged(ground, place, stream, bytes, real_bytes),
            EventKind::Finished(stream) => self.on_finished(ground, place, stream),
            EventKind::Stopped(stream, code) => self.on_stopped(ground, place, stream, code),
            EventKind::Closed(reason) => self.on_closed(ground, place, &reason),
        }
    }

    fn stream_id(&self, place: usize, stream: quic::StreamId) -> Option<StreamId> {
        let connection = self.table.connections.get(place)?;
        connection.streams.get(&stream.0).copied()
    }

    fn on_connected(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        listener: usize,
        event: quic::Event,
    ) {
        let place = self.place(ground, listener, event.connection);
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
        if !is_early && !self.end_handshake(ground, now_us, place) {
            return;
        }
        let certificates = &self.listeners[listener].certificates;
        let identity = certificates.identity(server_name.as_deref());
        let connection = &mut self.table.connections[place];
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
        ground.counters.quic_connections_accepted += 1;
        ground.counters.quic_resumed += u64::from(is_resumed);
        ground.counters.quic_early += u64::from(takes_early_data);
        let event = QuicEvent::Opened {
            peer,
            tls: Box::new(agreed),
            is_early,
        };
        self.tell_connection(id, event);
    }

    fn on_handshake_complete(&mut self, ground: &mut Ground, now_us: u64, place: usize) {
        let connection = self.table.connections.get(place);
        let Some(connection) = connection.filter(|it| it.agreed.is_some() && !it.is_over) else {
            return;
        };
        let id = connection.id;
        if self.end_handshake(ground, now_us, place) {
            self.tell_connection(id, QuicEvent::HandshakeComplete);
        }
    }

    /// The handshake of a connection is complete: it now counts against its source, whose address
    /// was not validated before (RFC 9000 §8.1). False if the source has too many, and the
    /// connection is closed.
    fn end_handshake(&mut self, ground: &mut Ground, now_us: u64, place: usize) -> bool {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return false;
        };
        let source = connection.remote.ip();
        let is_proxy = ground.proxies.is_forwarding(source);
        if ground.sources.is_exhausted(source) && !is_proxy {
            ground.counters.sources_refused += 1;
            self.refuse(now_us, place);
            return false;
        }
        connection.source = Some(source);
        connection.is_handshake_complete = true;
        ground.sources.add(source);
        self.apply_receive_policy(ground, place);
        true
    }

    /// The peer has opened a stream.
    fn on_opened(&mut self, ground: &mut Ground, place: usize, stream: quic::StreamId) {
        let connection = self.table.connections.get(place);
        if connection.is_none_or(|connection| connection.agreed.is_none()) {
            return;
        }
        let Some(id) = self.table.insert_stream(place, stream) else {
            return;
        };
        let connection = &self.table.connections[place];
        let peer = connection.remote;
        if connection.requests > 0 {
            self.listeners[connection.listener]
                .idle
                .remove(connection.handle);
        }
        ground.counters.quic_streams_accepted += 1;
        let accepted = AppEvent::Accepted {
            peer,
            proxied: None,
            tls: None,
        };
        self.tell_stream(id, accepted);
        self.tell_stream(id, AppEvent::Readable);
    }

    fn tell_connection(&mut self, connection: QuicConnection, event: QuicEvent) {
        let report = Report::Connection(connection, event);
        self.reports.push_back(Due::Report(report));
    }

    fn tell_stream(&mut self, stream: StreamId, event: AppEvent) {
        let report = Report::Stream(stream, event);
        self.reports.push_back(Due::Report(report));
    }

    /// The next report for the application, of a stream that it has not released.
    pub(crate) fn next_report(&mut self, ground: &mut Ground) -> Option<Report> {
        loop {
            let (stream, event) = match self.reports.pop_front()? {
                Due::Report(Report::Stream(stream, event)) => (stream, event),
                Due::Report(of_connection) => return Some(of_connection),
                Due::Lost(stream, reason) => match self.table.stream(stream) {
                    Some(found) => (stream, found.closed(reason)),
                    None => continue,
                },
            };
            let Some(found) = self.table.stream(stream) else {
                continue;
            };
            let is_unread = found.receiving == Receiving::Open;
            let is_due = is_unread || !matches!(event, AppEvent::Readable);
            if is_due && !found.is_released {
                return Some(Report::Stream(stream, event));
            }
            if matches!(event, AppEvent::Closed { .. }) {
                self.remove_stream(ground, stream);
            }
        }
    }

    /// Reports an event that the stack has queued for a stream.
    #[cold]
    pub(crate) fn on_app_event(&mut self, now_us: u64, stream: StreamId, event: AppEvent) {
        let Some(found) = self.table.stream_mut(stream) else {
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
        self.tell_stream(stream, event);
    }

    /// A stream may have room to write.
    fn on_writable(&mut self, ground: &mut Ground, place: usize, stream: quic::StreamId) {
        let id = self.stream_id(place, stream);
        let Some(id) = id else {
            return;
        };
        self.mark(place);
        if let Some((found, connection)) = self.table.pair_mut(id)
            && found.queue.is_empty()
            && std::mem::take(&mut found.wants_room)
        {
            connection.wanting -= 1;
            ground.app_events.push_back((id, AppEvent::Writable));
        }
    }

    fn on_acknowledged(
        &mut self,
        ground: &mut Ground,
        place: usize,
        stream: quic::StreamId,
        bytes: u64,
        real_bytes: u64,
    ) {
        let id = self.stream_id(place, stream);
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        connection.real_bytes -= real_bytes;
        connection.route.confirm();
        self.real_bytes -= real_bytes;
        let wanting = connection.wanting;
        self.mark(place);
        if let Some(id) = id {
            // Data abandoned by a reset is not acknowledged.
            if let Some(found) = self.table.stream_mut(id)
                && found.sending != Sending::Over
            {
                found.acknowledged += bytes;
            }
            self.tell_drained(ground, id);
        }
        if wanting > 0 {
            self.tell_room(ground, place);
        }
    }

    /// Reports to the application that all of a stream is acknowledged, if it is.
    fn tell_drained(&mut self, ground: &mut Ground, stream: StreamId) {
        let Some(found) = self.table.stream_mut(stream) else {
            return;
        };
        if found.unacknowledged() == 0
            && found.acknowledged > found.drained
            && found.sending != Sending::Over
        {
            found.drained = found.acknowledged;
            ground.app_events.push_back((stream, AppEvent::Drained));
        }
    }

    /// A connection has room: notifies the applications of streams that wait for it.
    fn tell_room(&mut self, ground: &mut Ground, place: usize) {
        let connection = self.table.connections.get(place);
        let Some(connection) = connection else {
            return;
        };
        if !self.has_room(ground, connection) {
            return;
        }
        let streams: Vec<StreamId> = connection.streams.values().copied().collect();
        for stream in streams {
            if let Some((found, connection)) = self.table.pair_mut(stream)
                && found.queue.is_empty()
                && std::mem::take(&mut found.wants_room)
            {
                connection.wanting -= 1;
                ground.app_events.push_back((stream, AppEvent::Writable));
            }
        }
    }

    /// All of a stream, including FIN, is acknowledged.
    fn on_finished(&mut self, ground: &mut Ground, place: usize, stream: quic::StreamId) {
        let Some(id) = self.stream_id(place, stream) else {
            return;
        };
        self.tell_drained(ground, id);
        if let Some(found) = self.table.stream_mut(id) {
            found.acknowledged = found.written;
            found.sending = Sending::Over;
        }
        self.end_if_over(ground, id);
    }

    /// The peer has sent STOP_SENDING: resets the stream, as RFC 9000 §3.5 demands.
    fn on_stopped(&mut self, ground: &mut Ground, place: usize, stream: quic::StreamId, code: u64) {
        let Some(id) = self.stream_id(place, stream) else {
            return;
        };
        self.drop_queue(ground, id);
        let Some((found, connection)) = self.table.pair_mut(id) else {
            return;
        };
        if found.sending == Sending::Over {
            return;
        }
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let _ = endpoint.reset(connection.handle, stream, code);
        found.sending = Sending::Over;
        found.reason = CloseReason::Reset;
        ground
            .app_events
            .push_back((id, AppEvent::PeerStopped { code }));
        self.end_if_over(ground, id);
    }

    fn on_closed(&mut self, ground: &mut Ground, place: usize, reason: &quic::CloseReason) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        connection.is_over = true;
        let id = connection.id;
        let was_accepted = connection.agreed.is_some();
        // CONNECTION_CLOSE for what cannot be described may be among the commands already.
        if *reason != quic::CloseReason::Undescribable {
            self.drop_sends(ground, place);
        }
        let Some(connection) = self.table.connections.get(place) else {
            return;
        };
        let (reason, of_streams) = reasons(reason, connection.data_plane_failed);
        let streams = connection.streams.values();
        let lost = streams.map(|stream| Due::Lost(*stream, of_streams));
        self.reports.extend(lost);
        if was_accepted {
            ground.counters.quic_connections_closed += 1;
            self.tell_connection(id, QuicEvent::Closed(reason));
        } else {
            ground.counters.quic_handshakes_failed += 1;
        }
    }

    /// The place of a connection that the application may still use.
    pub(super) fn open_place(&self, connection: QuicConnection) -> Option<usize> {
        let place = self.table.place_of(connection)?;
        let found = &self.table.connections[place];
        (found.agreed.is_some() && !found.is_over).then_some(place)
    }
}
