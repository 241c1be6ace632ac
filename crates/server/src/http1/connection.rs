//! The life of one connection.
//!
//! ```text
//!             head complete                all queued
//!  Reading ───────────────▶ an exchange ───────────────▶ Reading …
//!     │                          └───────────────────────▶ Lingering ──▶ Closed
//!     └── no further request ─────────────────────────────────▲   (`Connection: close`)
//! ```
//!
//! One request is in hand at a time, so that responses leave in the order of requests (RFC 9112
//! §9.3.2). Queueing a file costs nothing, so the next request is taken up as soon as the response
//! to the last one is queued, not when it is acknowledged; the number of responses in flight is
//! bounded.

use std::collections::VecDeque;
use std::net::IpAddr;

use host::app::{AppEvent, Io, StreamId};
use http::StatusCode;
use http_message::request::without_empty_lines;

use crate::access::Accesses;
use crate::exchange::client::Arrival;
use crate::exchange::input::Input;
use crate::exchange::lifecycle::{ConnectionInfo, Exchange};
use crate::exchange::request::Request;
use crate::exchange::shared::Shared;
use crate::exchange::watch::{Expiry, Wait};
use crate::http1::head::{Http1, Persistence};
use crate::http1::request::{self, Parsed};
use crate::semantics::pull::{OriginEvent, Ticket};

/// Most unsent bytes of earlier responses when a pipelined request is taken up: few compared with a
/// file, and enough to keep a link busy until the next file is open.
const NEARLY_SENT_BYTES: u64 = 64 << 10;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    exchange: Exchange<Http1>,
    phase: Phase,
    /// The stream may hold unread bytes.
    unread: bool,
    /// The peer will send no more than the unread bytes of the stream.
    peer_finished: bool,
    /// A response has been sent, so that waiting for another request is idling.
    answered: bool,
    /// Bytes to read and discard: the rest of the last request's body, or the most that are read
    /// while lingering.
    discard_bytes: u64,
    /// Ends in the stream of queued responses that are not acknowledged.
    in_flight: VecDeque<u64>,
}

const _: () = assert!(
    size_of::<Connection>() <= 392,
    "ten thousand idle connections fit into a few megabytes"
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for a request, or answering one.
    Open,
    /// All bytes are queued, FIN included. Further bytes from the peer are read and discarded,
    /// since closing with unread bytes would send RST and destroy the response in flight (RFC 9112
    /// §9.6).
    Lingering,
    /// RST is sent; `Closed` is on its way.
    Aborted,
}

impl Connection {
    pub(crate) fn new(stream: StreamId, arrival: &Arrival, accesses: Option<Accesses>) -> Self {
        Connection {
            exchange: Exchange::new(stream, (), arrival, 0, accesses),
            phase: Phase::Open,
            unread: false,
            peer_finished: false,
            answered: false,
            discard_bytes: 0,
            in_flight: VecDeque::new(),
        }
    }

    /// Continues with bytes that were received before; `unread`: there may be more.
    pub(crate) fn resume(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        (input, unread, peer_finished): (Input, bool, bool),
    ) {
        self.exchange.input = input;
        (self.unread, self.peer_finished) = (unread, peer_finished);
        self.go_on(io, shared);
    }

    /// Handles an event, and advances as far as possible.
    pub(crate) fn on_event(&mut self, io: &mut dyn Io, shared: &mut Shared, event: &AppEvent) {
        match *event {
            AppEvent::Readable => self.unread = true,
            AppEvent::PeerFinished => (self.unread, self.peer_finished) = (true, true),
            AppEvent::Timer => self.expired(io, shared),
            _ => self.exchange.on_event(io, shared, event),
        }
        self.go_on(io, shared);
    }

    /// Handles an event from the fetcher, and advances as far as possible.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        ticket: Ticket,
        news: OriginEvent,
    ) {
        self.exchange.on_news(io, shared, ticket, news);
        self.go_on(io, shared);
    }

    /// Advances as far as possible.
    pub(crate) fn go_on(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        while self.advance(io, shared) {}
        if !self.exchange.is_busy() {
            self.exchange.input.shrink(&mut shared.pool);
        }
        self.exchange.settle(io, shared);
        let wait = self.wait(io);
        if let Some(wait) = wait.filter(|&wait| !self.exchange.watch.is_for(wait)) {
            let progress = self.exchange.progress(io);
            let after = self.exchange.watch.set(wait, &progress, &shared.config);
            io.set_idle(self.exchange.stream(), wait == Wait::Idle);
            io.set_timer(self.exchange.stream(), Some(after));
        }
    }

    /// Memory for requests and responses, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let in_flight = self.in_flight.capacity() * size_of::<u64>();
        self.exchange.memory_bytes() + in_flight
    }

    /// The client of the last request, if a proxy has named it.
    pub(crate) fn forwarded(&self) -> Option<IpAddr> {
        self.exchange.client.forwarded_ip()
    }

    /// Describes the state of the connection.
    pub(crate) fn info(&self) -> ConnectionInfo {
        self.exchange.info(match self.phase {
            Phase::Open => "reading",
            Phase::Lingering => "lingering",
            Phase::Aborted => "aborted",
        })
    }

    /// Handles the end of the connection: releases its resources.
    pub(crate) fn closed(
        self,
        io: &mut dyn Io,
        shared: &mut Shared,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        let exchange = self.exchange;
        exchange.closed(io, shared, acknowledged, retransmissions);
    }

    /// Advances by one step, if one is possible.
    fn advance(&mut self, io: &mut dyn Io, shared: &mut Shared) -> bool {
        match self.phase {
            Phase::Aborted => false,
            Phase::Lingering => {
                self.discard(io, shared);
                false
            }
            Phase::Open if self.exchange.is_lost() => {
                self.abort(io, shared);
                false
            }
            Phase::Open if self.exchange.is_busy() => {
                let Some(version) = self.exchange.queue(io, shared) else {
                    return false;
                };
                self.discard_bytes = version.body_bytes.into();
                self.answered = true;
                self.in_flight.push_back(self.exchange.queued_bytes());
                if version.persistence == Persistence::Close {
                    self.finish(io, shared);
                }
                true
            }
            Phase::Open => self.read(io, shared),
        }
    }

    /// Discards further bytes from the peer, up to a bound.
    fn discard(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let stream = self.exchange.stream();
        let (unread, bytes_left) = (&mut self.unread, &mut self.discard_bytes);
        let input = &mut self.exchange.input;
        input.discard(io, stream, &mut shared.pool, unread, bytes_left);
    }

    /// Takes up the next request, or reads more bytes.
    fn read(&mut self, io: &mut dyn Io, shared: &mut Shared) -> bool {
        let stream = self.exchange.stream();
        let acknowledged = io.acknowledged(stream);
        while self
            .in_flight
            .front()
            .is_some_and(|&end| end <= acknowledged)
        {
            self.in_flight.pop_front();
        }
        if self.in_flight.len() >= shared.config.responses_in_flight_max {
            return false;
        }
        // A file opened for a response far from being sent would be held for nothing, 32 files by a
        // client that pipelines and does not read.
        let has_bytes = self.unread || !self.exchange.input.is_empty();
        if !self.in_flight.is_empty() && has_bytes && io.unsent(stream) > NEARLY_SENT_BYTES {
            io.set_notsent_lowat(stream, NEARLY_SENT_BYTES);
            return false;
        }

        let input = &mut self.exchange.input;
        let skipped = usize::try_from(self.discard_bytes)
            .unwrap_or(usize::MAX)
            .min(input.bytes().len());
        input.consume(skipped);
        self.discard_bytes -= skipped as u64;
        if self.discard_bytes == 0 {
            match request::parse(input.bytes(), &shared.config) {
                Parsed::Partial => {}
                Parsed::Complete(request) => {
                    self.take_up(io, shared, request);
                    return true;
                }
                Parsed::Broken(status) => {
                    self.take_up_broken(io, shared, status);
                    return true;
                }
            }
        }

        if self.unread {
            self.unread = self.exchange.input.fill(io, stream, &mut shared.pool) > 0;
        } else if self.peer_finished || shared.is_draining && self.is_idle() {
            self.finish(io, shared);
        } else {
            return false;
        }
        true
    }

    /// True if the connection waits for the first byte of another request.
    fn is_idle(&self) -> bool {
        self.answered && self.exchange.input.is_empty() && self.discard_bytes == 0
    }

    fn take_up(&mut self, io: &mut dyn Io, shared: &mut Shared, mut request: Request<Http1>) {
        if shared.is_draining {
            request.version.persistence = Persistence::Close;
        }
        self.exchange.take_up(io, shared, request);
    }

    /// Refuses the malformed request in the input, after which the connection ends.
    fn take_up_broken(&mut self, io: &mut dyn Io, shared: &mut Shared, status: StatusCode) {
        let request = Request::broken(self.exchange.input.bytes(), Http1::CLOSE, status);
        self.exchange.take_up(io, shared, request);
    }

    /// Sends FIN after all queued bytes: no further response follows.
    fn finish(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.exchange.input.release(&mut shared.pool);
        io.shutdown(self.exchange.stream());
        self.phase = Phase::Lingering;
        self.discard_bytes = shared.config.linger_bytes_max;
    }

    fn abort(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.exchange.abandon(shared);
        io.abort(self.exchange.stream());
        self.phase = Phase::Aborted;
    }

    /// Returns the outside event that must come next.
    fn wait(&self, io: &dyn Io) -> Option<Wait> {
        match self.phase {
            Phase::Aborted => None,
            Phase::Open if self.exchange.is_busy() => Some(Wait::Progress),
            _ if io.unacknowledged(self.exchange.stream()) > 0 => Some(Wait::Progress),
            Phase::Lingering => Some(Wait::Linger),
            Phase::Open if self.is_idle() => Some(Wait::Idle),
            Phase::Open => Some(Wait::Head),
        }
    }

    fn expired(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let stream = self.exchange.stream();
        let progress = self.exchange.progress(io);
        match self.exchange.watch.expire(&progress, &shared.config) {
            Expiry::Stale => {}
            Expiry::Again(after) => io.set_timer(stream, Some(after)),
            Expiry::Overdue(Wait::Head) => {
                shared.counters.head_timeouts += 1;
                // 408 only if part of a request head has arrived.
                let is_empty = without_empty_lines(self.exchange.input.bytes()).is_empty();
                if self.discard_bytes > 0 || is_empty {
                    self.finish(io, shared);
                } else {
                    self.take_up_broken(io, shared, StatusCode::REQUEST_TIMEOUT);
                }
            }
            Expiry::Overdue(Wait::Idle) => {
                shared.counters.idle_timeouts += 1;
                self.finish(io, shared);
            }
            Expiry::Overdue(Wait::Progress) => {
                let status = self.exchange.late_status();
                if let Some(status) = status.filter(|_| io.unacknowledged(stream) == 0) {
                    self.exchange.answer_late(io, shared, Http1::CLOSE, status);
                } else {
                    shared.counters.stall_timeouts += 1;
                    self.abort(io, shared);
                }
            }
            Expiry::TooSlow => {
                shared.note_slow_client(io.now_us(), stream);
                self.abort(io, shared);
            }
            Expiry::Overdue(Wait::Linger) => {
                shared.counters.linger_timeouts += 1;
                self.abort(io, shared);
            }
        }
    }
}
