//! The life of one QUIC connection that carries HTTP/3: its streams, and how it ends.
//!
//! ```text
//!            drain                    a second later
//!  Serving ────────▶ Announced (GOAWAY) ─────────▶ Leaving (GOAWAY with the last ID)
//!     │ idle (GOAWAY with the last ID)                │ no request left
//!     ├──────────────────────▶ Parting ◀──────────────┘
//!     │ fault                     │ GOAWAY is acknowledged, or a second later
//!     └──────────▶ Closed ◀───────┘
//! ```
//!
//! QUIC sends no stream data after CONNECTION_CLOSE. The connection's timer is that of its own
//! control stream.

use std::collections::HashMap;
use std::time::Duration;

use host::app::{AppEvent, Io, QuicConnection, QuicStream, StreamId, TlsAgreed};

use crate::access::Accesses;
use crate::exchange::client::Arrival;
use crate::exchange::field_section::{self, Scratch};
use crate::exchange::lifecycle::ConnectionInfo;
use crate::exchange::shared::Shared;
use crate::exchange::watch::{Expiry, Progress, Wait, Watch};
use crate::http3::code::{Code, Fault};
use crate::http3::frame::{Header, kind};
use crate::http3::request_stream::{Context, RequestStream};
use crate::http3::settings;
use crate::http3::unidirectional::{Notice, Purpose, Unidirectional};
use crate::http3::varint;
use crate::semantics::pull::{OriginEvent, Ticket};
use http2::budget::{Budget, FRAME_TOKENS, STREAM_TOKENS};
use http2::priority::{EarlyPriorities, Priority};

/// How long the server still accepts requests after the first GOAWAY: they may be in flight (RFC
/// 9114 §5.2).
const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

/// Longest wait for the acknowledgment of the last GOAWAY: more than a probe timeout of most paths,
/// so that it may be lost once.
const PARTING_FOR: Duration = Duration::from_secs(1);

/// The ID of the first GOAWAY: the largest of any request stream.
const GOAWAY_ID_MAX: u64 = varint::MAX - 3;

/// The result of a handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) arrival: Arrival,
    pub(crate) tls: Box<TlsAgreed>,
    /// The handshake is not complete, but early data has arrived.
    pub(crate) is_early: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: QuicConnection,
    handshake: Handshake,
    /// Its responses are logged.
    is_logged: bool,
    stage: Stage,
    /// This side's control stream.
    control: StreamId,
    /// Bytes that the control stream has yet to take.
    control_bytes: Vec<u8>,
    streams: HashMap<StreamId, Stream>,
    /// How many of `streams` carry requests.
    requests_open: usize,
    /// Requests so far.
    requests: u32,
    /// The next stream ID after the last request's.
    next_id: u64,
    /// The peer's critical streams that are open.
    purposes: Vec<Purpose>,
    priorities: EarlyPriorities,
    budget: Budget,
    /// Longest field section that the client accepts, in bytes.
    section_bytes_max: u32,
    watch: Watch,
    /// Acknowledged bytes of closed streams.
    closed_acknowledged: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// The client has GOAWAY without a limit; requests in flight are still accepted.
    Announced,
    /// Requests from this stream ID on are rejected.
    Leaving(u64),
    /// The same, and no request is open: the client gets the last GOAWAY before CONNECTION_CLOSE.
    Parting(u64),
    /// CONNECTION_CLOSE is sent.
    Closed,
}

#[derive(Debug)]
enum Stream {
    Request(Box<RequestStream>),
    Unidirectional(Unidirectional),
}

impl Connection {
    /// Begins a connection. `None`, and the connection is closed, if the peer's stream limit
    /// permits no control stream.
    pub(crate) fn open(
        io: &mut dyn Io,
        shared: &mut Shared,
        id: QuicConnection,
        handshake: Handshake,
        is_logged: bool,
    ) -> Option<Self> {
        let Some(control) = io.open_unidirectional(id) else {
            let why = b"no control stream is permitted";
            io.close_quic(id, Code::GENERAL_PROTOCOL_ERROR.0, why);
            return None;
        };
        // GOAWAY does not wait for responses.
        io.prioritize(control, i32::MAX);
        let mut connection = Connection {
            id,
            handshake,
            is_logged,
            stage: Stage::Serving,
            control,
            control_bytes: vec![0],
            streams: HashMap::new(),
            requests_open: 0,
            requests: 0,
            next_id: 0,
            purposes: Vec::new(),
            priorities: EarlyPriorities::default(),
            budget: Budget::new(io.now_us()),
            section_bytes_max: u32::MAX,
            watch: Watch::default(),
            closed_acknowledged: 0,
        };
        let section_bytes_max = field_section::section_bytes_max(&shared.config) as u64;
        shared.section_bytes_max = shared.section_bytes_max.max(section_bytes_max);
        let section_bytes_max = shared.section_bytes_max;
        settings::write(&mut connection.control_bytes, section_bytes_max, id.0);
        connection.flush_control(io);
        connection.go_on(io, shared);
        Some(connection)
    }

    /// Handles an event of a stream, and advances as far as possible.
    pub(crate) fn on_event(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        (stream, quic): (StreamId, QuicStream),
        event: &AppEvent,
    ) {
        let result = match *event {
            AppEvent::Accepted { .. } => self.accepted(io, shared, stream, quic),
            AppEvent::Closed {
                acknowledged,
                retransmissions,
                ..
            } => {
                self.stream_closed(io, shared, stream, acknowledged, retransmissions);
                Ok(())
            }
            _ if self.stage == Stage::Closed => Ok(()),
            _ if stream == self.control => self.on_control(io, shared, event),
            _ => self.on_stream(io, shared, scratch, stream, event),
        };
        self.judge(io, shared, result);
        self.go_on(io, shared);
    }

    /// Handles news from the fetcher for a stream, and advances as far as possible.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        stream: StreamId,
        (ticket, news): (Ticket, OriginEvent),
    ) {
        let Some(Stream::Request(request)) = self.streams.get_mut(&stream) else {
            return;
        };
        let budget = &mut self.budget;
        let mut context = Context {
            shared,
            scratch,
            budget,
            section_bytes_max: self.section_bytes_max,
            identity: &self.handshake.tls.identity,
        };
        let result = request.on_news(io, &mut context, ticket, news);
        self.judge(io, shared, result);
        self.go_on(io, shared);
    }

    /// Resumes requests that waited for the handshake.
    pub(crate) fn on_handshake_complete(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
    ) {
        self.handshake.is_early = false;
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            if self.stage == Stage::Closed {
                return;
            }
            let Some(Stream::Request(request)) = self.streams.get_mut(&stream) else {
                continue;
            };
            let budget = &mut self.budget;
            let mut context = Context {
                shared,
                scratch,
                budget,
                section_bytes_max: self.section_bytes_max,
                identity: &self.handshake.tls.identity,
            };
            let result = request.on_handshake_complete(io, &mut context);
            self.judge(io, shared, result);
        }
        self.go_on(io, shared);
    }

    /// Begins a graceful shutdown: announces it, and closes once open requests are answered.
    pub(crate) fn drain(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        if self.stage == Stage::Serving {
            self.stage = Stage::Announced;
            self.send_goaway(io, GOAWAY_ID_MAX);
            self.watch.clear();
            io.set_timer(self.control, Some(ANNOUNCED_FOR));
        }
        self.go_on(io, shared);
    }

    /// Memory for all streams, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let streams = self.streams.values().map(|stream| match stream {
            Stream::Request(request) => request.memory_bytes(),
            Stream::Unidirectional(unidirectional) => unidirectional.memory_bytes(),
        });
        streams.sum::<usize>() + self.control_bytes.capacity()
    }

    /// The state of a stream, if it carries a request.
    pub(crate) fn info(&self, stream: StreamId) -> Option<ConnectionInfo> {
        match self.streams.get(&stream)? {
            Stream::Request(request) => Some(request.info()),
            Stream::Unidirectional(_) => None,
        }
    }

    fn accepted(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        quic: QuicStream,
    ) -> Result<(), Fault> {
        if quic.is_unidirectional() {
            let unidirectional = Stream::Unidirectional(Unidirectional::default());
            self.streams.insert(stream, unidirectional);
            return Ok(());
        }
        let accesses = self.is_logged && shared.access_log.is_some();
        // The control stream's number is unique among connections.
        let number = self.control.0;
        let Handshake { arrival, tls, .. } = &self.handshake;
        let accesses = accesses.then(|| Accesses::new(number, arrival, Some(tls)));
        let mut request = RequestStream::new(stream, quic, arrival, self.requests, accesses);
        if self.handshake.is_early {
            request.await_handshake();
        }
        self.requests = self.requests.saturating_add(1);
        self.requests_open += 1;
        if let Some(priority) = self.priorities.take(quic.id) {
            request.prioritize(io, priority);
        }
        let result = match self.stage {
            Stage::Leaving(id) | Stage::Parting(id) if quic.id >= id => {
                request.reject(io, shared);
                let spent = self.budget.spend(io.now_us(), STREAM_TOKENS);
                spent.map_err(Fault::from)
            }
            _ => {
                self.next_id = self.next_id.max(quic.id + 4);
                request.watch(io, shared);
                Ok(())
            }
        };
        self.streams
            .insert(stream, Stream::Request(Box::new(request)));
        result
    }

    fn stream_closed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        if let Some(Stream::Request(request)) = self.streams.remove(&stream) {
            self.requests_open -= 1;
            self.closed_acknowledged += acknowledged;
            request.closed(io, shared, acknowledged, retransmissions);
        }
    }

    fn on_control(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        event: &AppEvent,
    ) -> Result<(), Fault> {
        match event {
            AppEvent::Writable => self.flush_control(io),
            AppEvent::Timer => self.expired(io, shared),
            AppEvent::PeerStopped { .. } => return Err(critical_closed()),
            _ => {}
        }
        Ok(())
    }

    fn on_stream(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        stream: StreamId,
        event: &AppEvent,
    ) -> Result<(), Fault> {
        let acknowledged = match event {
            AppEvent::Timer => self.acknowledged_before(io, stream),
            _ => 0,
        };
        match self.streams.get_mut(&stream) {
            None => Ok(()),
            Some(Stream::Unidirectional(_)) => self.on_unidirectional(io, stream, event),
            Some(Stream::Request(request)) => {
                let budget = &mut self.budget;
                let mut context = Context {
                    shared,
                    scratch,
                    budget,
                    section_bytes_max: self.section_bytes_max,
                    identity: &self.handshake.tls.identity,
                };
                request.on_event(io, &mut context, event, acknowledged)
            }
        }
    }

    fn on_unidirectional(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        event: &AppEvent,
    ) -> Result<(), Fault> {
        let is_over = match event {
            AppEvent::Readable => false,
            AppEvent::PeerFinished | AppEvent::PeerReset { .. } => true,
            _ => return Ok(()),
        };
        let now_us = io.now_us();
        while let Some(Stream::Unidirectional(unidirectional)) = self.streams.get_mut(&stream) {
            let count = unidirectional.fill(io, stream);
            while let Some(Stream::Unidirectional(unidirectional)) = self.streams.get_mut(&stream)
                && let Some(notice) = unidirectional.next(now_us, &mut self.budget)?
            {
                self.take_notice(io, stream, notice)?;
            }
            if count == 0 {
                break;
            }
        }
        match self.streams.get(&stream) {
            Some(Stream::Unidirectional(it)) if is_over && it.is_critical() => {
                Err(critical_closed())
            }
            Some(Stream::Unidirectional(it)) if is_over && it.is_untyped() => {
                Ok(self.budget.spend(now_us, STREAM_TOKENS)?)
            }
            _ => Ok(()),
        }
    }

    fn take_notice(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        notice: Notice,
    ) -> Result<(), Fault> {
        match notice {
            Notice::Is(purpose) if self.purposes.contains(&purpose) => {
                let why = "a stream of which there is one already";
                Err(Fault::Connection(Code::STREAM_CREATION_ERROR, why))
            }
            Notice::Is(purpose) => {
                self.purposes.push(purpose);
                Ok(())
            }
            Notice::Unknown => {
                io.stop_sending(stream, Code::STREAM_CREATION_ERROR.0);
                Ok(self.budget.spend(io.now_us(), STREAM_TOKENS)?)
            }
            Notice::SectionMax(bytes) => {
                self.section_bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX);
                Ok(())
            }
            Notice::Priority(id, priority) => self.prioritize(io, id, priority),
        }
    }

    /// RFC 9218 §7.1, §7.2: the priority of a stream not opened yet is kept, unless the stream is
    /// beyond the client's limit.
    fn prioritize(&mut self, io: &mut dyn Io, id: u64, priority: Priority) -> Result<(), Fault> {
        if id >= self.next_id {
            if id / 4 >= io.peer_streams_max(self.id) {
                let why = "a priority of a stream beyond the limit";
                return Err(Fault::Connection(Code::ID_ERROR, why));
            }
            self.priorities.keep(id, priority);
            return Ok(());
        }
        let mut streams = self.streams.values_mut();
        let found = streams.find_map(|stream| match stream {
            Stream::Request(request) if request.id() == id => Some(request),
            _ => None,
        });
        if let Some(request) = found {
            request.prioritize(io, priority);
        }
        // The search went through all open streams.
        Ok(self.budget.spend(io.now_us(), FRAME_TOKENS)?)
    }

    /// Ends the connection if `result` is a fault.
    fn judge(&mut self, io: &mut dyn Io, shared: &mut Shared, result: Result<(), Fault>) {
        if let Err(Fault::Connection(code, why)) = result {
            tracing::debug!(
                connection = self.id.0,
                code = code.0,
                why,
                "connection error"
            );
            shared.counters.http3_connection_errors += 1;
            if code == Code::EXCESSIVE_LOAD {
                shared.counters.http3_excessive_loads += 1;
            }
            self.close(io, code, why);
        }
    }

    fn close(&mut self, io: &mut dyn Io, code: Code, why: &str) {
        if self.stage != Stage::Closed {
            self.stage = Stage::Closed;
            io.close_quic(self.id, code.0, why.as_bytes());
        }
    }

    /// Ends a connection without open requests, whose last GOAWAY, with this ID, is in flight.
    fn part(&mut self, io: &mut dyn Io, id: u64) {
        self.stage = Stage::Parting(id);
        self.watch.clear();
        io.set_timer(self.control, Some(PARTING_FOR));
    }

    /// True once the client has acknowledged all of the control stream.
    fn is_heard(&self, io: &dyn Io) -> bool {
        self.control_bytes.is_empty() && io.unacknowledged(self.control) == 0
    }

    /// Advances as far as possible.
    fn go_on(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        if let Stage::Leaving(id) = self.stage
            && self.requests_open == 0
        {
            self.part(io, id);
        }
        match self.stage {
            Stage::Parting(_) if self.is_heard(io) => {
                return self.close(io, Code::NO_ERROR, "");
            }
            // The timer is that of the stage.
            Stage::Closed | Stage::Announced | Stage::Parting(_) => return,
            Stage::Serving | Stage::Leaving(_) => {}
        }
        let wait = match (self.requests_open, self.requests) {
            (0, 0) => Wait::Head,
            (0, _) => Wait::Idle,
            _ => Wait::Progress,
        };
        if !self.watch.is_for(wait) {
            let progress = self.progress(io);
            let after = self.watch.set(wait, &progress, &shared.config);
            io.set_idle(self.control, wait != Wait::Progress);
            io.set_timer(self.control, Some(after));
        }
    }

    fn expired(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        match self.stage {
            Stage::Announced => {
                self.stage = Stage::Leaving(self.next_id);
                return self.send_goaway(io, self.next_id);
            }
            Stage::Parting(_) => return self.close(io, Code::NO_ERROR, ""),
            Stage::Serving | Stage::Leaving(_) | Stage::Closed => {}
        }
        let progress = self.progress(io);
        match self.watch.expire(&progress, &shared.config) {
            Expiry::Again(after) => io.set_timer(self.control, Some(after)),
            Expiry::Overdue(wait @ (Wait::Head | Wait::Idle)) => {
                match wait {
                    Wait::Head => shared.counters.head_timeouts += 1,
                    _ => shared.counters.idle_timeouts += 1,
                }
                self.send_goaway(io, self.next_id);
                self.part(io, self.next_id);
            }
            Expiry::TooSlow => {
                shared.counters.rate_timeouts += 1;
                if shared.slow_clients.begins(io.now_us()) {
                    tracing::warn!(
                        connection = self.id.0,
                        "a client takes less than rate_min: its connection is closed; later ones \
                         are only counted"
                    );
                }
                self.close(io, Code::EXCESSIVE_LOAD, "less than the least rate");
            }
            // Each stream has its own timeout.
            Expiry::Overdue(_) | Expiry::Stale => {}
        }
    }

    /// Acknowledged bytes of streams that precede this one, or take turns with it.
    fn acknowledged_before(&self, io: &dyn Io, stream: StreamId) -> u64 {
        let Some(Stream::Request(request)) = self.streams.get(&stream) else {
            return 0;
        };
        let others = self.streams.iter().filter(|(id, _)| **id != stream);
        let before = others.filter(|(_, other)| match other {
            Stream::Request(other) => other.priority() >= request.priority(),
            Stream::Unidirectional(_) => false,
        });
        before.map(|(&other, _)| io.acknowledged(other)).sum()
    }

    /// The client's progress with all streams.
    fn progress(&self, io: &dyn Io) -> Progress {
        let mut all = Progress {
            acknowledged: self.closed_acknowledged,
            unacknowledged: 0,
            waits_for_peer: false,
        };
        for stream in self.streams.values() {
            let Stream::Request(request) = stream else {
                continue;
            };
            let progress = request.progress(io);
            all.acknowledged += progress.acknowledged;
            all.unacknowledged += progress.unacknowledged;
            // Later streams wait for their turn.
            all.waits_for_peer |= progress.unacknowledged > 0 && progress.waits_for_peer;
        }
        all
    }

    fn send_goaway(&mut self, io: &mut dyn Io, id: u64) {
        let mut payload = Vec::new();
        varint::write(&mut payload, id);
        let header = Header {
            kind: kind::GOAWAY,
            payload_bytes: payload.len() as u64,
        };
        header.write(&mut self.control_bytes);
        self.control_bytes.extend_from_slice(&payload);
        self.flush_control(io);
    }

    fn flush_control(&mut self, io: &mut dyn Io) {
        let count = io.write(self.control, &self.control_bytes);
        self.control_bytes
            .drain(..count.min(self.control_bytes.len()));
    }
}

fn critical_closed() -> Fault {
    let why = "a stream that a connection needs is closed";
    Fault::Connection(Code::CLOSED_CRITICAL_STREAM, why)
}
