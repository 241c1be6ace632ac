//! The life of a client's connection.
//!
//! ```text
//!   Head ─▶ Exchange ─▶ Head … ─▶ Answer ─▶ Linger       HTTP
//!               └──101──▶ Tunnel
//!   Hello ─▶ Opening ─▶ Tunnel                           TCP
//! ```
//!
//! Every event leads to [`Session::advance`], which advances as far as possible and may be called
//! at any time; so no event is lost, and their order does not matter.

mod eviction;
mod gather;
mod http;
mod tunnel;

use std::net::SocketAddr;
use std::time::Duration;

use host::Source;
use host::app::{AppEvent, CloseReason, Io, StreamId, StreamMemory};

use self::http::Exchange;
use self::tunnel::{Opened, Tunnel};
use crate::answer::Refusal;
use crate::arrival::Arrival;
use crate::attempt::refusal_of;
use crate::buffer::Buffer;
use crate::config::{Listener, Mode};
use crate::note::Outcome;
use crate::pace;
use crate::shared::{Leave, Shared};
use crate::shares::Holder;

/// Time that the client has after the last response to end its side.
const LINGER: Duration = Duration::from_secs(30);

/// Most bytes read and discarded after the last response.
const LINGER_BYTES_MAX: u64 = 4 << 20;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Session {
    key: u64,
    client: StreamId,
    /// The stream whose timer is the session's: the client's, while there is one.
    timer: StreamId,
    arrival: Arrival,
    /// Number of the client's listener.
    listener: usize,
    /// The client's address, and the local one of its connection, as far as they are known.
    peer: SocketAddr,
    local: SocketAddr,
    /// Bytes from the client, not consumed.
    input: Buffer,
    /// Bytes that the client's stream has not taken.
    output: Buffer,
    /// The client has sent FIN.
    has_ended: bool,
    phase: Phase,
    /// Requests so far.
    requests: u32,
    /// Time at which a byte moved last, in microseconds.
    moved_us: u64,
    /// Bytes that the peers had acknowledged at the last look.
    acknowledged: u64,
}

#[derive(Debug)]
enum Phase {
    /// Waits for the head of a request, which may have arrived in part.
    Head {
        has_begun: bool,
    },
    /// The client has begun with HTTP/2: a connection takes its place.
    Preface,
    Exchange(Box<Exchange>),
    /// Waits for a ClientHello.
    Hello,
    /// Waits for a connection to a backend, in TCP mode.
    Opening(Box<Opened>),
    Tunnel(Box<Tunnel>),
    /// A response of the proxy itself is on its way.
    Answer {
        closes: bool,
    },
    /// Everything is sent; further bytes from the client are discarded.
    Linger {
        left: u64,
    },
    /// The session is over.
    Over,
}

/// The next phase, and whether it can advance at once.
type Step = (Phase, bool);

/// The session is over: the client's connection is reset.
const RESET: Step = (Phase::Over, false);

impl Session {
    /// Begins a session for a client that has connected.
    pub(crate) fn new(
        io: &mut dyn Io,
        shared: &Shared,
        key: u64,
        client: StreamId,
        arrival: Arrival,
    ) -> Self {
        let Arrival {
            listener,
            peer,
            local,
            ..
        } = arrival;
        let settings = &shared.config.listeners[listener];
        let mut session = Session {
            key,
            client,
            timer: client,
            arrival,
            listener,
            peer,
            local,
            input: Buffer::default(),
            output: Buffer::default(),
            has_ended: false,
            phase: begin(settings),
            requests: 0,
            moved_us: io.now_us(),
            acknowledged: 0,
        };
        session.arm(io, shared.config.head_timeout);
        session
    }

    /// The client's stream.
    pub(crate) fn client(&self) -> StreamId {
        self.client
    }

    /// Describes the session as a holder of a connection to a backend.
    fn holder(&self) -> Holder {
        Holder {
            session: self.key,
            source: Source::from(self.peer.ip()),
        }
    }

    /// True if the client speaks HTTP/2, and a connection has to take its place.
    pub(crate) fn has_preface(&self) -> bool {
        matches!(self.phase, Phase::Preface)
    }

    /// How the client has arrived, and the bytes received.
    pub(crate) fn into_arrival(self) -> (Arrival, Buffer) {
        (self.arrival, self.input)
    }

    /// True if the session is over, and can be removed.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Handles an event of the client's stream.
    pub(crate) fn on_client(&mut self, io: &mut dyn Io, shared: &mut Shared, event: &AppEvent) {
        match event {
            AppEvent::PeerFinished => {
                self.has_ended = true;
                if let Phase::Tunnel(tunnel) = &mut self.phase {
                    tunnel.on_peer_finished(self.client);
                }
            }
            AppEvent::Timer => return self.on_timer(io, shared),
            AppEvent::Splice(event) => self.on_splice(io, shared, event),
            AppEvent::Closed { reason, .. } => {
                return self.on_client_closed(io, shared, *reason);
            }
            _ => {}
        }
        self.advance(io, shared);
    }

    fn on_client_closed(&mut self, io: &mut dyn Io, shared: &mut Shared, reason: CloseReason) {
        match &mut self.phase {
            // Bytes from the client may still be on their way to the backend.
            Phase::Tunnel(tunnel) if reason == CloseReason::Finished => {
                tunnel.on_closed(io, self.client);
                self.timer = tunnel.backend();
                let timeout = shared.config.tunnel_timeout;
                self.arm_idle(io, timeout, Some(self.timer));
                self.advance(io, shared);
            }
            _ => self.drop_all(io, shared),
        }
    }

    /// Handles an event of the stream to the backend.
    pub(crate) fn on_backend(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        event: &AppEvent,
    ) {
        match event {
            AppEvent::Connected => match &mut self.phase {
                Phase::Exchange(exchange) => exchange.attempt.on_connected(shared),
                Phase::Opening(opened) => opened.attempt.on_connected(shared),
                _ => {}
            },
            AppEvent::PeerFinished => match &mut self.phase {
                Phase::Exchange(exchange) => exchange.has_ended = true,
                Phase::Tunnel(tunnel) => tunnel.on_peer_finished(stream),
                _ => {}
            },
            AppEvent::Timer if self.timer == stream => return self.on_timer(io, shared),
            AppEvent::Closed { reason, .. } => {
                return self.on_backend_closed(io, shared, stream, *reason);
            }
            _ => {}
        }
        self.advance(io, shared);
    }

    /// A connection of HTTP/2 carries the stream to the backend.
    pub(crate) fn on_carried(&mut self, io: &mut dyn Io, shared: &mut Shared, is_reused: bool) {
        if let Phase::Exchange(exchange) = &mut self.phase {
            exchange.attempt.on_carried(shared, is_reused);
        }
        self.advance(io, shared);
    }

    /// The stream to the backend cannot be opened, for a reason on this side.
    pub(crate) fn on_not_opened(&mut self, io: &mut dyn Io, shared: &mut Shared, why: Refusal) {
        if let Phase::Exchange(exchange) = &mut self.phase {
            exchange.attempt.on_not_opened(io, shared, why);
        }
        self.advance(io, shared);
    }

    /// The backend has not processed the stream to it.
    pub(crate) fn on_unprocessed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        is_refused: bool,
    ) {
        let step = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Exchange(exchange) => self.retry_unprocessed(io, shared, exchange, is_refused),
            other => (other, false),
        };
        self.go_on(io, shared, step);
    }

    fn on_backend_closed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        reason: CloseReason,
    ) {
        let step = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Exchange(mut exchange) => {
                exchange.take_unread(io, stream, reason);
                self.lost_backend(io, shared, exchange, reason)
            }
            Phase::Opening(mut opened) => {
                let why = (refusal_of(reason), Leave::Gone);
                match opened.attempt.fail(io, shared, why, true) {
                    Ok(()) => (Phase::Opening(opened), true),
                    Err(why) => self.refuse_opening(io, shared, *opened, why),
                }
            }
            // Bytes from the backend may still be on their way to the client.
            Phase::Tunnel(mut tunnel) if reason == CloseReason::Finished => {
                tunnel.on_closed(io, stream);
                tunnel.attempt.leave(io, shared, Leave::Gone);
                (Phase::Tunnel(tunnel), true)
            }
            Phase::Tunnel(tunnel) => {
                self.break_tunnel(io, shared, *tunnel, Leave::Gone);
                io.abort(self.client);
                RESET
            }
            other => (other, false),
        };
        self.go_on(io, shared, step);
    }

    /// Ends a wait: a backend may have room, or none ever will.
    pub(crate) fn on_woken(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        match &mut self.phase {
            Phase::Exchange(exchange) => exchange.attempt.on_woken(),
            Phase::Opening(opened) => opened.attempt.on_woken(),
            _ => return,
        }
        self.advance(io, shared);
    }

    /// Updates the number of the pool.
    pub(crate) fn renumber(&mut self, pools: &[Option<usize>]) {
        match &mut self.phase {
            Phase::Exchange(exchange) => exchange.attempt.renumber(pools),
            Phase::Opening(opened) => opened.attempt.renumber(pools),
            Phase::Tunnel(tunnel) => tunnel.attempt.renumber(pools),
            _ => {}
        }
    }

    /// Memory charged to the client's stream, or to the backend's, whose events fill it.
    pub(crate) fn memory(&self, stream: StreamId) -> StreamMemory {
        let [up, down] = match &self.phase {
            Phase::Exchange(exchange) => exchange.memory_bytes(),
            Phase::Tunnel(tunnel) => tunnel.memory_bytes(),
            _ => [0; 2],
        };
        let is_client = stream == self.client;
        StreamMemory {
            bytes: match is_client {
                true => self.input.memory_bytes() + self.output.memory_bytes() + up,
                false => down,
            },
            serves: (!is_client).then_some(self.client),
            client: Some(self.peer.ip()),
        }
    }

    /// Advances as far as possible.
    pub(crate) fn advance(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        self.go_on(io, shared, (phase, true));
    }

    fn go_on(&mut self, io: &mut dyn Io, shared: &mut Shared, mut step: Step) {
        while let (phase, true) = step {
            step = match phase {
                Phase::Head { has_begun } => self.read_head(io, shared, has_begun),
                Phase::Exchange(exchange) => self.exchange(io, shared, exchange),
                Phase::Preface => (Phase::Preface, false),
                Phase::Hello => self.read_hello(io, shared),
                Phase::Opening(opened) => self.open(io, shared, opened),
                Phase::Tunnel(tunnel) => self.tunnel(io, shared, tunnel),
                Phase::Answer { closes } => self.answer(io, shared, closes),
                Phase::Linger { left } => self.linger(io, shared, left),
                Phase::Over => (Phase::Over, false),
            };
        }
        self.phase = step.0;
    }

    /// Returns the common part of the outcome of a request or a tunnel.
    fn outcome(&self, io: &dyn Io, status: u16) -> Outcome<'static> {
        Outcome {
            client: self.peer,
            proxy: self.arrival.proxy,
            tls: self.arrival.tls,
            connection: self.arrival.connection.0,
            request: self.arrival.requests_before.saturating_add(self.requests),
            status,
            body_bytes: 0,
            retransmissions: io.retransmissions(self.client),
            is_cut_short: false,
            backend: None,
            retries: 0,
        }
    }

    fn arm(&mut self, io: &mut dyn Io, after: Duration) {
        io.set_timer(self.timer, Some(after));
    }

    /// Sets the timer for an idle timeout that begins now.
    fn arm_idle(&mut self, io: &mut dyn Io, timeout: Duration, backend: Option<StreamId>) {
        self.moved_us = io.now_us();
        self.acknowledged = self.acknowledged_by(io, backend);
        self.arm(io, timeout);
    }

    /// Sets the timer for a body that moves, which is examined at intervals.
    fn arm_body(
        &mut self,
        io: &mut dyn Io,
        shared: &Shared,
        (timeout, backend): (Duration, Option<StreamId>),
    ) {
        let look = pace::look_interval(&shared.config);
        self.arm_idle(io, timeout.min(look), backend);
    }

    /// Bytes that the client, and a backend, have acknowledged.
    fn acknowledged_by(&self, io: &dyn Io, backend: Option<StreamId>) -> u64 {
        let streams = backend.into_iter().chain([self.client]);
        streams.map(|stream| io.acknowledged(stream)).sum()
    }

    /// True if the client, or a backend, has acknowledged queued bytes since the last call, and
    /// some are still unacknowledged: a slow peer may need a minute for them.
    fn is_taking(&mut self, io: &dyn Io, backend: Option<StreamId>) -> bool {
        let acknowledged = self.acknowledged_by(io, backend);
        let has_moved = std::mem::replace(&mut self.acknowledged, acknowledged) != acknowledged;
        let mut streams = backend.into_iter().chain([self.client]);
        has_moved && streams.any(|stream| io.unacknowledged(stream) > 0)
    }

    /// True if no byte has moved for `timeout`; otherwise sets the timer for that time, but no
    /// later than `look` from now.
    fn is_idle_for(
        &mut self,
        io: &mut dyn Io,
        (timeout, look): (Duration, Duration),
        backend: Option<StreamId>,
    ) -> bool {
        if self.is_taking(io, backend) {
            self.moved_us = io.now_us();
        }
        let since = Duration::from_micros(io.now_us().saturating_sub(self.moved_us));
        let left = timeout.saturating_sub(since);
        if !left.is_zero() {
            self.arm(io, left.min(look));
        }
        left.is_zero()
    }

    fn on_timer(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let step = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Hello => {
                io.abort(self.client);
                RESET
            }
            Phase::Head { has_begun: false } => match self.is_taking(io, None) {
                true => {
                    self.arm(io, shared.config.keepalive_timeout);
                    (Phase::Head { has_begun: false }, false)
                }
                false => self.close(io),
            },
            Phase::Head { has_begun: true } => {
                self.refuse_head(io, shared, Refusal::RequestTimeout)
            }
            Phase::Exchange(exchange) => self.exchange_late(io, shared, exchange),
            Phase::Opening(mut opened) => {
                let is_queued = opened.attempt.is_queued();
                let why = (Refusal::ConnectTimeout, Leave::Abort);
                match opened.attempt.fail(io, shared, why, true) {
                    Ok(()) => (Phase::Opening(opened), true),
                    Err(_) if is_queued => {
                        shared.counters.queue_timeouts += 1;
                        self.refuse_opening(io, shared, *opened, Refusal::QueueTimeout)
                    }
                    Err(why) => self.refuse_opening(io, shared, *opened, why),
                }
            }
            Phase::Tunnel(tunnel) => {
                let times = (shared.config.tunnel_timeout, Duration::MAX);
                match self.is_idle_for(io, times, Some(tunnel.backend())) {
                    false => (Phase::Tunnel(tunnel), false),
                    true => {
                        self.break_tunnel(io, shared, *tunnel, Leave::Abort);
                        io.abort(self.client);
                        RESET
                    }
                }
            }
            Phase::Answer { closes } if self.is_taking(io, None) => {
                self.arm(io, shared.config.idle_timeout);
                (Phase::Answer { closes }, false)
            }
            Phase::Linger { left } if self.is_taking(io, None) => {
                self.arm(io, LINGER);
                (Phase::Linger { left }, false)
            }
            // The client has acknowledged everything, but may not have read it: a reset might
            // discard it.
            Phase::Linger { .. } if io.unacknowledged(self.client) == 0 => {
                io.close(self.client);
                (Phase::Over, false)
            }
            Phase::Preface | Phase::Answer { .. } | Phase::Linger { .. } | Phase::Over => {
                io.abort(self.client);
                RESET
            }
        };
        self.go_on(io, shared, step);
    }

    /// Ends the use of backends, since the client's stream is over, or about to be.
    fn drop_all(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Exchange(mut exchange) => {
                let backend = exchange.attempt.backend(shared);
                exchange.attempt.leave(io, shared, Leave::Abort);
                let name = backend.as_ref().map(|(name, _)| &**name);
                self.end_exchange(io, shared, *exchange, (None, name, true));
            }
            Phase::Opening(mut opened) => {
                opened.attempt.leave(io, shared, Leave::Abort);
                self.note_opening(io, shared, *opened, NO_SESSION);
            }
            Phase::Tunnel(tunnel) => self.break_tunnel(io, shared, *tunnel, Leave::Abort),
            _ => {}
        }
    }

    /// Ends the client's connection after all queued bytes.
    fn close(&mut self, io: &mut dyn Io) -> Step {
        io.shutdown(self.client);
        self.arm_idle(io, LINGER, None);
        let left = LINGER_BYTES_MAX;
        (Phase::Linger { left }, true)
    }

    fn answer(&mut self, io: &mut dyn Io, shared: &mut Shared, closes: bool) -> Step {
        if !self.output.flush(io, self.client) {
            return (Phase::Answer { closes }, false);
        }
        if closes {
            return self.close(io);
        }
        self.next_request(io, shared)
    }

    fn linger(&mut self, io: &mut dyn Io, shared: &mut Shared, mut left: u64) -> Step {
        self.input.clear();
        loop {
            let count = io.read(self.client, &mut shared.scratch) as u64;
            if count == 0 {
                break;
            }
            left = left.saturating_sub(count);
            if left == 0 {
                io.abort(self.client);
                return RESET;
            }
        }
        if self.has_ended {
            io.close(self.client);
            return (Phase::Over, false);
        }
        (Phase::Linger { left }, false)
    }
}

fn begin(listener: &Listener) -> Phase {
    match listener.mode {
        Mode::Http => Phase::Head { has_begun: false },
        Mode::Tcp => Phase::Hello,
    }
}

/// Status of a session in TCP mode whose client left before a backend was connected.
const NO_SESSION: u16 = http_message::access::NO_RESPONSE;
