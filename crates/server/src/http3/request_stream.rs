//! The life of a request stream (RFC 9114 §4.1): frames in, an exchange, frames out.
//!
//! ```text
//!          HEADERS                   all queued, FIN
//!  Head ────────────▶ an exchange ───────────────────▶ Finished ──▶ Closed
//!    └───── malformed, cancelled, stalled ───────────▶ Aborted ────▶ Closed
//! ```
//!
//! The response begins once the request's head has arrived. Meanwhile the stream reads, checks and
//! discards the request's body and trailers.

use host::app::{AppEvent, Io, QuicStream, StreamId, TlsIdentity};
use http::StatusCode;

use crate::access::Accesses;
use crate::exchange::client::Arrival;
use crate::exchange::field_section::{Problem, Scratch};
use crate::exchange::input::Input;
use crate::exchange::lifecycle::{ConnectionInfo, Exchange};
use crate::exchange::misdirected::is_misdirected;
use crate::exchange::request::Request;
use crate::exchange::shared::Shared;
use crate::exchange::watch::{Expiry, Progress, Wait};
use crate::http3::code::{Code, Fault};
use crate::http3::frame::{self, Header, kind};
use crate::http3::head::Http3;
use crate::http3::request;
use crate::semantics::pull::{OriginEvent, Ticket};
use http2::budget::{Budget, STREAM_TOKENS};
use http2::priority::Priority;

/// The connection's state that a stream needs.
pub(crate) struct Context<'a> {
    pub(crate) shared: &'a mut Shared,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) budget: &'a mut Budget,
    /// Longest field section that the client accepts, in bytes.
    pub(crate) section_bytes_max: u32,
    /// The hosts that the connection is for.
    pub(crate) identity: &'a TlsIdentity,
}

/// A request stream.
#[derive(Debug)]
pub(crate) struct RequestStream {
    exchange: Exchange<Http3>,
    /// The QUIC stream ID.
    id: u64,
    /// Streams with a greater priority precede this one.
    priority: i32,
    phase: Phase,
    /// Next part of the request.
    part: Part,
    /// Received bytes, not consumed.
    raw: Input,
    /// The length of a HEADERS frame whose payload is awaited.
    headers_bytes: Option<u64>,
    /// Remaining payload bytes of a discarded frame.
    skip_bytes: u64,
    /// The stream may hold unread bytes.
    unread: bool,
    /// The peer has sent FIN.
    peer_finished: bool,
    /// The rest of the request is still read.
    reads: bool,
    /// `Content-Length` of the request.
    content_bytes: Option<u64>,
    /// Payload bytes of its DATA frames so far.
    body_bytes: u64,
    /// A PRIORITY_UPDATE has arrived, which overrides the field `Priority` (RFC 9218 §7).
    is_prioritized: bool,
}

const _: () = assert!(
    size_of::<RequestStream>() <= 456,
    "a hundred streams of a connection fit into fifty kilobytes"
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reading a request, or answering it.
    Open,
    /// Everything is queued, including FIN.
    Finished,
    /// The stream was reset; `Closed` follows.
    Aborted,
}

/// RFC 9114 §4.1: HEADERS, any number of DATA, and HEADERS again for trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Body,
    Ended,
}

impl RequestStream {
    /// `requests`: number of earlier requests on the connection.
    pub(crate) fn new(
        stream: StreamId,
        quic: QuicStream,
        arrival: &Arrival,
        requests: u32,
        accesses: Option<Accesses>,
    ) -> Self {
        RequestStream {
            exchange: Exchange::new(stream, quic.connection, arrival, requests, accesses),
            id: quic.id,
            priority: Priority::default().of_request(ordinal(quic.id)),
            phase: Phase::Open,
            part: Part::Head,
            raw: Input::default(),
            headers_bytes: None,
            skip_bytes: 0,
            unread: false,
            peer_finished: false,
            reads: true,
            content_bytes: None,
            body_bytes: 0,
            is_prioritized: false,
        }
    }

    /// The QUIC stream ID.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Memory for the request and the response, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.raw.memory_bytes() + self.exchange.memory_bytes()
    }

    /// The current state of the stream.
    pub(crate) fn info(&self) -> ConnectionInfo {
        self.exchange.info(match self.phase {
            Phase::Open => "reading",
            Phase::Finished => "lingering",
            Phase::Aborted => "aborted",
        })
    }

    /// The client's progress with the stream.
    pub(crate) fn progress(&self, io: &dyn Io) -> Progress {
        self.exchange.progress(io)
    }

    /// Advances as far as possible after any event. `acknowledged`: acknowledged bytes of the
    /// connection's streams that precede this one.
    ///
    /// # Errors
    /// A fault that ends the connection.
    pub(crate) fn on_event(
        &mut self,
        io: &mut dyn Io,
        context: &mut Context<'_>,
        event: &AppEvent,
        acknowledged: u64,
    ) -> Result<(), Fault> {
        self.exchange.section_bytes_max = context.section_bytes_max;
        match *event {
            AppEvent::Readable => self.unread = true,
            AppEvent::PeerFinished => (self.unread, self.peer_finished) = (true, true),
            AppEvent::PeerReset { .. } => {
                // If the stream is no longer read, this answers STOP_SENDING.
                let is_cancelled = self.reads && self.phase == Phase::Open;
                (self.peer_finished, self.reads) = (true, false);
                if is_cancelled {
                    self.cancel(io, context)?;
                }
            }
            AppEvent::PeerStopped { .. } if self.phase != Phase::Aborted => {
                self.cancel(io, context)?;
            }
            AppEvent::Timer => self.expired(io, context.shared, acknowledged),
            _ => self.exchange.on_event(io, context.shared, event),
        }
        self.go_on(io, context)
    }

    /// Handles news from the fetcher, and advances as far as possible.
    ///
    /// # Errors
    /// As [`RequestStream::on_event`].
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        context: &mut Context<'_>,
        ticket: Ticket,
        news: OriginEvent,
    ) -> Result<(), Fault> {
        self.exchange.section_bytes_max = context.section_bytes_max;
        self.exchange.on_news(io, context.shared, ticket, news);
        self.go_on(io, context)
    }

    /// Its request may be early data.
    pub(crate) fn await_handshake(&mut self) {
        self.exchange.is_early = true;
    }

    /// The handshake is complete; advances as far as possible.
    ///
    /// # Errors
    /// As [`RequestStream::on_event`].
    pub(crate) fn on_handshake_complete(
        &mut self,
        io: &mut dyn Io,
        context: &mut Context<'_>,
    ) -> Result<(), Fault> {
        self.exchange.section_bytes_max = context.section_bytes_max;
        self.exchange.on_handshake_complete(io, context.shared);
        self.go_on(io, context)
    }

    /// Changes the response's priority.
    pub(crate) fn prioritize(&mut self, io: &mut dyn Io, priority: Priority) {
        self.is_prioritized = true;
        self.set_priority(io, priority);
    }

    fn set_priority(&mut self, io: &mut dyn Io, priority: Priority) {
        self.priority = priority.of_request(ordinal(self.id));
        io.prioritize(self.exchange.stream(), self.priority);
    }

    /// Streams with a greater priority precede this one.
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    /// Rejects the request (RFC 9114 §4.1.1).
    pub(crate) fn reject(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.abort(io, shared, Code::REQUEST_REJECTED);
    }

    /// The stream is over: releases its resources.
    pub(crate) fn closed(
        mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        self.raw.release(&mut shared.pool);
        let exchange = self.exchange;
        exchange.closed(io, shared, acknowledged, retransmissions);
    }

    fn go_on(&mut self, io: &mut dyn Io, context: &mut Context<'_>) -> Result<(), Fault> {
        let mut spent = Ok(());
        match self.advance(io, context) {
            Ok(()) => {}
            Err(Fault::Stream(code)) => {
                context.shared.counters.http3_stream_errors += 1;
                self.abort(io, context.shared, code);
                // The request may have had a file opened.
                spent = context.budget.spend(io.now_us(), STREAM_TOKENS);
            }
            Err(fault) => return Err(fault),
        }
        let shared = &mut *context.shared;
        self.exchange.settle(io, shared);
        match self.raw.is_empty() {
            true => self.raw.release(&mut shared.pool),
            // Part of a frame.
            false => self.raw.shrink(&mut shared.pool),
        }
        self.watch(io, shared);
        Ok(spent?)
    }

    /// Sets the timer for the next outside event.
    pub(crate) fn watch(&mut self, io: &mut dyn Io, shared: &Shared) {
        let stream = self.exchange.stream();
        match self.wait(io) {
            Some(wait) if !self.exchange.watch.is_for(wait) => {
                let progress = self.exchange.progress(io);
                let after = self.exchange.watch.set(wait, &progress, &shared.config);
                io.set_timer(stream, Some(after));
            }
            Some(_) => {}
            None => self.exchange.watch.clear(),
        }
    }

    /// Reads the request, and queues the response.
    fn advance(&mut self, io: &mut dyn Io, context: &mut Context<'_>) -> Result<(), Fault> {
        self.read(io, context)?;
        if self.phase != Phase::Open {
            return Ok(());
        }
        if self.exchange.queue(io, context.shared).is_some() {
            io.shutdown(self.exchange.stream());
            self.phase = Phase::Finished;
            context.budget.earn();
        } else if self.exchange.is_lost() {
            self.abort(io, context.shared, Code::INTERNAL_ERROR);
        }
        Ok(())
    }

    /// Reads available bytes of the request.
    fn read(&mut self, io: &mut dyn Io, context: &mut Context<'_>) -> Result<(), Fault> {
        let stream = self.exchange.stream();
        while self.reads {
            if self.step(io, context)? {
                continue;
            }
            if self.unread {
                self.unread = self.raw.fill(io, stream, &mut context.shared.pool) > 0;
            } else if self.peer_finished {
                self.reads = false;
                self.ended()?;
            } else {
                break;
            }
        }
        if !self.reads {
            self.raw.release(&mut context.shared.pool);
        }
        Ok(())
    }

    /// Consumes received bytes; false if more must arrive first.
    fn step(&mut self, io: &mut dyn Io, context: &mut Context<'_>) -> Result<bool, Fault> {
        let bytes = self.raw.bytes();
        if self.skip_bytes > 0 {
            let skipped = usize::try_from(self.skip_bytes).unwrap_or(usize::MAX);
            let skipped = skipped.min(bytes.len());
            self.raw.consume(skipped);
            self.skip_bytes -= skipped as u64;
            return Ok(skipped > 0);
        }
        if let Some(headers_bytes) = self.headers_bytes {
            // Only this much of the section is parsed.
            let bytes_max = context.shared.config.head_bytes_max as u64;
            let section_bytes = headers_bytes.min(bytes_max) as usize;
            if bytes.len() < section_bytes {
                return Ok(false);
            }
            let is_cut = headers_bytes > bytes_max;
            self.take_section(io, context, section_bytes, is_cut)?;
            self.headers_bytes = None;
            return Ok(true);
        }
        let Some((header, header_bytes)) = Header::read(bytes) else {
            return Ok(false);
        };
        self.raw.consume(header_bytes);
        self.take_header(io, context, header)?;
        Ok(true)
    }

    fn take_header(
        &mut self,
        io: &mut dyn Io,
        context: &mut Context<'_>,
        header: Header,
    ) -> Result<(), Fault> {
        match (header.kind, self.part) {
            (kind::HEADERS, Part::Head) => self.headers_bytes = Some(header.payload_bytes),
            (kind::HEADERS, Part::Body) => {
                context.budget.spend_frame(io.now_us(), 0)?;
                self.headers_bytes = Some(header.payload_bytes);
            }
            (kind::DATA, Part::Body) => {
                context.budget.spend_frame(io.now_us(), 0)?;
                self.skip_bytes = header.payload_bytes;
                self.body_bytes += header.payload_bytes;
                if self
                    .content_bytes
                    .is_some_and(|bytes| self.body_bytes > bytes)
                {
                    return Err(Fault::Stream(Code::MESSAGE_ERROR));
                }
                if self.body_bytes > context.shared.config.body_bytes_max {
                    self.stop_reading(io);
                }
            }
            (
                kind::DATA
                | kind::HEADERS
                | kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_PUSH,
                _,
            ) => return Err(unexpected()),
            (other, _) if frame::is_of_http2(other) => return Err(unexpected()),
            // RFC 9114 §9: unknown frames are ignored.
            _ => {
                let payload_bytes = header.payload_bytes;
                context.budget.spend_frame(io.now_us(), payload_bytes)?;
                self.skip_bytes = payload_bytes;
            }
        }
        Ok(())
    }

    /// Takes a complete field section of this length: the request's head, or trailers.
    fn take_section(
        &mut self,
        io: &mut dyn Io,
        context: &mut Context<'_>,
        section_bytes: usize,
        is_cut: bool,
    ) -> Result<(), Fault> {
        let section = &self.raw.bytes()[..section_bytes];
        let shared = &mut *context.shared;
        if self.part == Part::Body {
            self.part = Part::Ended;
            if is_cut {
                self.stop_reading(io);
                return Ok(());
            }
            request::check_trailers(section, &shared.config, context.scratch).map_err(fault_of)?;
            self.raw.consume(section_bytes);
            return Ok(());
        }
        self.part = Part::Body;
        let result = request::read(section, is_cut, &shared.config, context.scratch);
        self.raw.consume(section_bytes);
        let head = &context.scratch.head;
        let head = &head[..head.len().min(shared.config.head_bytes_max)];
        let (request, stops) = match result {
            Ok(read)
                if is_misdirected(Some(context.identity), head, &read.request, &shared.config) =>
            {
                shared.counters.misdirected_requests += 1;
                let status = StatusCode::MISDIRECTED_REQUEST;
                (Request::broken(head, Http3, status), true)
            }
            Ok(read) => {
                self.content_bytes = read.content_bytes;
                if !self.is_prioritized {
                    self.set_priority(io, read.priority.unwrap_or_default());
                }
                let is_too_long = read.content_bytes > Some(shared.config.body_bytes_max);
                (read.request, is_too_long)
            }
            Err(Problem::Refused(status)) => (Request::broken(head, Http3, status), true),
            Err(problem) => return Err(fault_of(problem)),
        };
        if !self.exchange.input.append(head, &mut shared.pool) {
            return Err(Fault::Stream(Code::INTERNAL_ERROR));
        }
        shared.counters.http3_requests += 1;
        self.exchange.take_up(io, shared, request);
        if stops {
            self.stop_reading(io);
        }
        Ok(())
    }

    /// The peer has sent FIN.
    fn ended(&self) -> Result<(), Fault> {
        if self.skip_bytes > 0 || self.headers_bytes.is_some() || !self.raw.is_empty() {
            // RFC 9114 §7.1
            let why = "a stream that ends within a frame";
            return Err(Fault::Connection(Code::FRAME_ERROR, why));
        }
        if self.part == Part::Head {
            return Err(Fault::Stream(Code::REQUEST_INCOMPLETE));
        }
        // RFC 9114 §4.1.2
        if self
            .content_bytes
            .is_some_and(|bytes| bytes != self.body_bytes)
        {
            return Err(Fault::Stream(Code::MESSAGE_ERROR));
        }
        Ok(())
    }

    /// Stops reading: the response does not depend on the rest of the request (RFC 9114 §4.1).
    fn stop_reading(&mut self, io: &mut dyn Io) {
        if self.reads {
            self.reads = false;
            if !self.peer_finished || self.unread {
                io.stop_sending(self.exchange.stream(), Code::NO_ERROR.0);
            }
        }
    }

    /// The client has cancelled the request. That costs tokens if the response is not complete.
    fn cancel(&mut self, io: &mut dyn Io, context: &mut Context<'_>) -> Result<(), Fault> {
        let stream = self.exchange.stream();
        let queued_bytes = self.exchange.queued_bytes();
        let is_over = self.phase == Phase::Finished && io.acknowledged(stream) >= queued_bytes;
        self.abort(io, context.shared, Code::REQUEST_CANCELLED);
        if is_over {
            return Ok(());
        }
        Ok(context.budget.spend(io.now_us(), STREAM_TOKENS)?)
    }

    /// Resets the stream in both directions.
    fn abort(&mut self, io: &mut dyn Io, shared: &mut Shared, code: Code) {
        let stream = self.exchange.stream();
        self.exchange.cancel(io, shared);
        self.raw.release(&mut shared.pool);
        io.reset_stream(stream, code.0);
        if !self.peer_finished {
            io.stop_sending(stream, code.0);
        }
        io.abort(stream);
        (self.reads, self.phase) = (false, Phase::Aborted);
    }

    /// The outside event that the stream waits for.
    fn wait(&self, io: &dyn Io) -> Option<Wait> {
        if self.phase == Phase::Aborted {
            None
        } else if self.exchange.is_busy() || io.unacknowledged(self.exchange.stream()) > 0 {
            Some(Wait::Progress)
        } else {
            self.reads.then_some(Wait::Head)
        }
    }

    fn expired(&mut self, io: &mut dyn Io, shared: &mut Shared, acknowledged: u64) {
        let stream = self.exchange.stream();
        let own = self.exchange.progress(io);
        let progress = Progress {
            // A stream that waits for its turn is not stalled while earlier ones progress.
            acknowledged: own.acknowledged + acknowledged,
            unacknowledged: own.unacknowledged,
            // The minimum rate applies to connections.
            waits_for_peer: false,
        };
        match self.exchange.watch.expire(&progress, &shared.config) {
            Expiry::Again(after) => io.set_timer(stream, Some(after)),
            Expiry::Overdue(Wait::Head) => {
                shared.counters.head_timeouts += 1;
                let has_begun = self.headers_bytes.is_some() || !self.raw.is_empty();
                if self.part != Part::Head {
                    self.stop_reading(io);
                } else if has_begun {
                    let request = Request::broken(b"", Http3, StatusCode::REQUEST_TIMEOUT);
                    self.part = Part::Body;
                    self.exchange.take_up(io, shared, request);
                    self.stop_reading(io);
                } else {
                    self.abort(io, shared, Code::REQUEST_INCOMPLETE);
                }
            }
            Expiry::Overdue(_) => {
                let status = self.exchange.late_status();
                if let Some(status) = status.filter(|_| io.unacknowledged(stream) == 0) {
                    self.exchange.answer_late(io, shared, Http3, status);
                } else {
                    shared.counters.stall_timeouts += 1;
                    self.abort(io, shared, Code::REQUEST_CANCELLED);
                }
            }
            Expiry::Stale | Expiry::TooSlow => {}
        }
    }
}

/// Every fourth stream ID is a request's.
fn ordinal(id: u64) -> u64 {
    id / 4
}

fn unexpected() -> Fault {
    let why = "a frame that a request cannot have there";
    Fault::Connection(Code::FRAME_UNEXPECTED, why)
}

fn fault_of(problem: Problem) -> Fault {
    match problem {
        Problem::Undecodable => {
            let why = "a field section that is not well-formed";
            Fault::Connection(Code::QPACK_DECOMPRESSION_FAILED, why)
        }
        Problem::Malformed => Fault::Stream(Code::MESSAGE_ERROR),
        // Trailers get no response.
        Problem::Refused(_) => Fault::Stream(Code::MESSAGE_ERROR),
    }
}
