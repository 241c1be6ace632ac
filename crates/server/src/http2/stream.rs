//! The life of a stream (RFC 9113 §5.1): a request, an exchange, a response.
//!
//! ```text
//!        field block             all written, END_STREAM        all acknowledged
//!  idle ────────────▶ an exchange ─────────────────────▶ Finished ─────────────▶ gone
//!    └───── malformed, reset, refused ─────────────────────────────────────────────▲
//! ```
//!
//! The response begins once the request's head has arrived. Meanwhile the request's body and
//! trailers are checked and discarded.

use std::num::NonZeroU64;

use host::app::{AppEvent, Io, StreamId};
use http::StatusCode;

use crate::access::Accesses;
use crate::exchange::client::Arrival;
use crate::exchange::field_section::Read;
use crate::exchange::lifecycle::{ConnectionInfo, Exchange};
use crate::exchange::request::Request;
use crate::exchange::shared::Shared;
use crate::exchange::watch::{Expiry, Progress, Wait};
use crate::http2::frame_writer::FrameWriter;
use crate::http2::head::Http2;
use crate::http2::stream_io::{Output, Owners, StreamIo};
use crate::semantics::pull::{OriginEvent, Ticket};
use crate::semantics::rate;
use http2::code::Code;
use http2::priority::Priority;
use http2::scheduler::Place;
use http2::window::{ReceiveWindow, SendWindow};

/// The connection's state that a stream needs.
pub(crate) struct Context<'a> {
    pub(crate) io: &'a mut dyn Io,
    pub(crate) shared: &'a mut Shared,
    pub(crate) writer: &'a mut FrameWriter,
    /// See [`StreamIo::other_rates`].
    pub(crate) other_rates: &'a mut Vec<(StreamId, Option<u64>)>,
    pub(crate) owners: &'a mut Owners,
}

/// How a stream has used its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has written, and may have more.
    Wrote,
    /// It has nothing to write until an event comes, or its window opens.
    Idle,
    /// END_STREAM is written.
    Finished,
    /// The rest of the body is unavailable.
    Lost,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    exchange: Exchange<Http2>,
    pub(crate) output: Output,
    /// Streams with a greater priority precede this one.
    priority: i32,
    /// A PRIORITY_UPDATE has arrived, which overrides the field `Priority` (RFC 9218 §7).
    is_prioritized: bool,
    /// Its place among the streams that are ready.
    pub(crate) place: Option<Place>,
    /// Its rate permits the next bytes at this time, in microseconds.
    paced_until_us: u64,
    /// The window of the request's body.
    pub(crate) receive: ReceiveWindow,
    /// END_STREAM of the request has arrived, or its rest is unwanted.
    pub(crate) request_ended: bool,
    /// `Content-Length` of the request.
    content_bytes: Option<u64>,
    /// Bytes of its body so far.
    body_bytes: u64,
}

const _: () = assert!(
    size_of::<Stream>() <= 560,
    "a hundred streams of a connection fit into sixty kilobytes"
);

/// Most bytes of a turn: the longest DATA frame.
pub(crate) const TURN_BYTES: u64 = 64 << 10;

/// Length of a turn at a bounded rate, in microseconds.
const PACED_TURN_US: u64 = 20_000;

/// Fewest bytes of such a turn.
const PACED_BYTES_MIN: u64 = 1000;

impl Stream {
    /// `requests`: number of earlier requests on the connection.
    pub(crate) fn new(
        (id, name): (u32, StreamId),
        (carrier, arrival): (StreamId, &Arrival),
        window: SendWindow,
        requests: u32,
        accesses: Option<Accesses>,
    ) -> Self {
        Stream {
            exchange: Exchange::new(name, carrier, arrival, requests, accesses),
            output: Output::new(id, name, window),
            priority: Priority::default().of_request(ordinal(id)),
            is_prioritized: false,
            place: None,
            paced_until_us: 0,
            receive: ReceiveWindow::INITIAL,
            request_ended: false,
            content_bytes: None,
            body_bytes: 0,
        }
    }

    /// Memory for the request and the response, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.exchange.memory_bytes() + self.output.memory_bytes()
    }

    /// The current state of the stream.
    pub(crate) fn info(&self) -> ConnectionInfo {
        self.exchange.info("lingering")
    }

    /// Streams with a greater priority precede this one.
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    /// Changes the response's priority.
    pub(crate) fn prioritize(&mut self, priority: Priority) {
        self.is_prioritized = true;
        self.priority = priority.of_request(ordinal(self.output.id));
    }

    /// The rest of the request is longer than the server reads.
    pub(crate) fn is_too_long(&self, body_bytes_max: u64) -> bool {
        self.body_bytes.max(self.content_bytes.unwrap_or(0)) > body_bytes_max
    }

    /// The request or the response is not complete: the stream counts as concurrent.
    pub(crate) fn is_open(&self) -> bool {
        !(self.request_ended && self.output.is_ended())
    }

    /// Everything is written and acknowledged.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_open() && self.output.unacknowledged() == 0
    }

    /// Takes the request's head, or its refusal.
    ///
    /// # Errors
    /// The code with which the stream is reset.
    pub(crate) fn take_request(
        &mut self,
        context: &mut Context<'_>,
        head: &[u8],
        read: Result<Read<Http2>, StatusCode>,
    ) -> Result<(), Code> {
        let request = match read {
            Ok(read) => {
                self.content_bytes = read.content_bytes;
                if let Some(priority) = read.priority.filter(|_| !self.is_prioritized) {
                    self.priority = priority.of_request(ordinal(self.output.id));
                }
                read.request
            }
            Err(status) => Request::broken(head, Http2, status),
        };
        self.check_length(self.request_ended)?;
        if !self.exchange.input.append(head, &mut context.shared.pool) {
            return Err(Code::INTERNAL_ERROR);
        }
        self.with(context, |exchange, io, shared| {
            exchange.take_up(io, shared, request);
        });
        self.go_on(context);
        Ok(())
    }

    /// Takes bytes of the request's body.
    ///
    /// # Errors
    /// The code with which the stream is reset.
    pub(crate) fn take_body(&mut self, bytes: u32, ends_stream: bool) -> Result<(), Code> {
        self.body_bytes += u64::from(bytes);
        self.check_length(ends_stream)?;
        self.request_ended = ends_stream;
        Ok(())
    }

    /// The window for more of the request's body, unless that is too long.
    pub(crate) fn refill(&mut self, body_bytes_max: u64) -> Option<u32> {
        let is_wanted = !self.request_ended && self.body_bytes <= body_bytes_max;
        is_wanted.then(|| self.receive.refill()).flatten()
    }

    /// Takes trailers, which end the request.
    ///
    /// # Errors
    /// The code with which the stream is reset.
    pub(crate) fn take_trailers(&mut self, ends_stream: bool) -> Result<(), Code> {
        if !ends_stream {
            return Err(Code::PROTOCOL_ERROR);
        }
        self.check_length(true)?;
        self.request_ended = true;
        Ok(())
    }

    /// RFC 9113 §8.1.1: the body has the length that `Content-Length` states.
    fn check_length(&self, ends_stream: bool) -> Result<(), Code> {
        let Some(content_bytes) = self.content_bytes else {
            return Ok(());
        };
        let differs = ends_stream && self.body_bytes != content_bytes;
        match differs || self.body_bytes > content_bytes {
            true => Err(Code::PROTOCOL_ERROR),
            false => Ok(()),
        }
    }

    /// Handles an event of the stream's files, or of its acknowledgments.
    pub(crate) fn on_event(&mut self, context: &mut Context<'_>, event: &AppEvent) {
        match *event {
            AppEvent::OpenFailed { file, .. } | AppEvent::Listed { file, .. } => {
                self.output.forget_file(file, context.owners);
            }
            _ => {}
        }
        self.with(context, |exchange, io, shared| {
            exchange.on_event(io, shared, event);
        });
        self.go_on(context);
    }

    /// Handles news from the fetcher.
    pub(crate) fn on_news(&mut self, context: &mut Context<'_>, ticket: Ticket, news: OriginEvent) {
        self.with(context, |exchange, io, shared| {
            exchange.on_news(io, shared, ticket, news);
        });
        self.go_on(context);
    }

    /// Settles acknowledged bytes, and sets the timer for the next outside event.
    pub(crate) fn go_on(&mut self, context: &mut Context<'_>) {
        let wait = match self.exchange.is_busy() || self.output.unacknowledged() > 0 {
            true => Some(Wait::Progress),
            false => (!self.request_ended).then_some(Wait::Head),
        };
        let others = self.others_acknowledged(context.writer);
        self.with(context, |exchange, io, shared| {
            exchange.settle(io, shared);
            let Some(wait) = wait else {
                exchange.watch.clear();
                io.output.deadline_us = None;
                return;
            };
            if !exchange.watch.is_for(wait) {
                let mut progress = exchange.progress(io);
                progress.acknowledged += others;
                let after = exchange.watch.set(wait, &progress, &shared.config);
                let name = exchange.stream();
                io.set_timer(name, Some(after));
            }
        });
    }

    /// Writes, as far as the windows, the rate and the turn permit.
    pub(crate) fn take_turn(&mut self, context: &mut Context<'_>) -> Turn {
        let now_us = context.io.now_us();
        let rate = self.rate(context.shared);
        let turn_bytes = rate.map_or(TURN_BYTES, paced_bytes);
        let before = self.output.queued();
        if std::mem::take(&mut self.output.wants_writable) {
            self.with(context, |exchange, io, shared| {
                exchange.on_event(io, shared, &AppEvent::Writable);
            });
        }
        // One DATA frame, so that streams of equal priority take turns by frames.
        let frame_bytes = context.writer.data_bytes_max();
        let grant_bytes = turn_bytes.min(frame_bytes);
        let is_complete = self.with_grant(context, grant_bytes, |exchange, io, shared| {
            exchange.queue(io, shared).is_some()
        });
        let written = self.output.queued() - before;
        if let Some(rate) = rate {
            let us = u128::from(written) * 1_000_000 / u128::from(rate.get());
            let us = u64::try_from(us).unwrap_or(u64::MAX);
            self.paced_until_us = self.paced_until_us.max(now_us).saturating_add(us);
        }
        self.go_on(context);
        if self.exchange.is_lost() {
            Turn::Lost
        } else if is_complete {
            Turn::Finished
        } else if written > 0 || self.output.wants_writable {
            Turn::Wrote
        } else {
            Turn::Idle
        }
    }

    /// When the stream's rate permits its next turn, if that is later than now.
    pub(crate) fn paced_until_us(&self, now_us: u64) -> Option<u64> {
        (self.paced_until_us > now_us).then_some(self.paced_until_us)
    }

    /// The rate that bounds the stream, in bytes per second.
    fn rate(&self, shared: &Shared) -> Option<NonZeroU64> {
        let own = self.output.pacing_rate.and_then(NonZeroU64::new);
        rate::least(
            own,
            shared.rates.share_of_source(self.exchange.client.source()),
        )
    }

    /// Bytes of the connection whose acknowledgment is progress of the stream: a stream that waits
    /// for its turn is not stalled while others progress, one that waits for its own window is.
    fn others_acknowledged(&self, writer: &FrameWriter) -> u64 {
        match self.output.waits_for_window() {
            true => 0,
            false => writer.progress(),
        }
    }

    /// The timer of the stream has expired.
    ///
    /// # Errors
    /// The code with which the stream is reset.
    pub(crate) fn expired(&mut self, context: &mut Context<'_>) -> Result<(), Code> {
        let has_response = self.output.is_begun();
        let others = self.others_acknowledged(context.writer);
        let outcome = self.with(context, |exchange, io, shared| {
            let own = exchange.progress(io);
            let progress = Progress {
                acknowledged: own.acknowledged + others,
                unacknowledged: own.unacknowledged,
                // The least rate applies to connections.
                waits_for_peer: false,
            };
            match exchange.watch.expire(&progress, &shared.config) {
                Expiry::Again(after) => {
                    let name = exchange.stream();
                    io.set_timer(name, Some(after));
                    Ok(())
                }
                Expiry::Overdue(Wait::Head) => {
                    shared.counters.head_timeouts += 1;
                    Err(Code::NO_ERROR)
                }
                Expiry::Overdue(_) => match exchange.late_status().filter(|_| !has_response) {
                    Some(status) => {
                        exchange.answer_late(io, shared, Http2, status);
                        Ok(())
                    }
                    None => {
                        shared.counters.stall_timeouts += 1;
                        Err(Code::CANCEL)
                    }
                },
                Expiry::Stale | Expiry::TooSlow => Ok(()),
            }
        });
        self.go_on(context);
        outcome
    }

    /// The stream is over: releases its resources. `is_cancelled`: the response is not complete,
    /// and its rest is not written.
    pub(crate) fn closed(mut self, context: &mut Context<'_>, is_cancelled: bool) {
        if is_cancelled {
            self.with(context, |exchange, io, shared| exchange.cancel(io, shared));
        }
        self.output
            .close_files(context.io, context.writer, context.owners);
        let acknowledged = self.output.acknowledged();
        let Stream {
            exchange,
            mut output,
            ..
        } = self;
        let mut io = StreamIo {
            io: &mut *context.io,
            writer: &mut *context.writer,
            output: &mut output,
            grant_bytes: 0,
            other_rates: &mut *context.other_rates,
            owners: &mut *context.owners,
        };
        let retransmissions = io.retransmissions(io.output.name);
        exchange.closed(&mut io, context.shared, acknowledged, retransmissions);
    }

    /// Runs a part of the exchange that writes nothing.
    fn with<T>(
        &mut self,
        context: &mut Context<'_>,
        run: impl FnOnce(&mut Exchange<Http2>, &mut StreamIo<'_>, &mut Shared) -> T,
    ) -> T {
        self.with_grant(context, 0, run)
    }

    /// Runs a part of the exchange, which may write this much of the body.
    fn with_grant<T>(
        &mut self,
        context: &mut Context<'_>,
        grant_bytes: u64,
        run: impl FnOnce(&mut Exchange<Http2>, &mut StreamIo<'_>, &mut Shared) -> T,
    ) -> T {
        // The client may have changed it since the request.
        self.exchange.section_bytes_max = context.writer.settings.section_bytes_max;
        let mut io = StreamIo {
            io: &mut *context.io,
            writer: &mut *context.writer,
            output: &mut self.output,
            grant_bytes,
            other_rates: &mut *context.other_rates,
            owners: &mut *context.owners,
        };
        run(&mut self.exchange, &mut io, context.shared)
    }
}

/// Bytes of a turn at this rate, in bytes per second.
fn paced_bytes(rate: NonZeroU64) -> u64 {
    let bytes = rate.get().saturating_mul(PACED_TURN_US) / 1_000_000;
    bytes.clamp(PACED_BYTES_MIN, TURN_BYTES)
}

/// Every other stream ID is a request's.
fn ordinal(id: u32) -> u64 {
    u64::from(id) / 2
}
