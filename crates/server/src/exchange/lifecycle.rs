//! The life of one exchange, from a request to its response, whatever the version of HTTP.
//!
//! ```text
//!           take_up                             Opened            all queued
//!  Idle ──────────────▶ Opening, Listing, Asking ────▶ Sending ─────────────▶ Idle
//!                                                         └── content gone ──▶ Lost
//! ```
//!
//! A version's codec reads requests and hands them over; it learns from [`Exchange::queue`] that a
//! response is queued, and decides how its connection or stream goes on.

mod answer;
mod listing;
mod resolve;

use std::collections::VecDeque;
use std::sync::Arc;

use host::Source;
use host::app::{AppEvent, FileHandle, Io, StreamId};
use http::StatusCode;
use http_message::access::NO_RESPONSE;

use crate::access::{Accesses, Begun};
use crate::exchange::input::Input;
use crate::exchange::output::{Flushed, Output};
use crate::exchange::request::Request;
use crate::exchange::shared::Shared;
use crate::exchange::version::Version;
use crate::exchange::watch::{Progress, Watch};
use crate::semantics::attempt::Attempt;
use crate::semantics::listing::Listing;
use crate::semantics::pull::{Object, OriginEvent, Passed, Ticket};
use crate::semantics::rate::{self, Bound, Peer};
use crate::semantics::site::Site;

/// So much of a target is shown to people, in bytes.
const SHOWN_BYTES_MAX: usize = 200;

/// A connection, or a stream of HTTP/3, as people are shown it.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// What it is at: `reading` a request, `deferred` until the handshake is complete, `asking` for
    /// an object of an origin, `opening` its file, `listing` its directory, `sending` the response
    /// as far as the stream takes it, `lingering` after the last one, `aborted`. A response that is
    /// queued to its end is not waited for.
    pub phase: &'static str,
    /// Requests so far, whole or broken.
    pub requests: u32,
    /// The site of the last request that could be read.
    pub site: Option<Arc<Site>>,
    /// Path and query of the last request, if an origin's object answers it: the name of the file
    /// that is sent means nothing to people. Long ones are cut.
    pub object: Option<Arc<str>>,
}

/// State kept for origins.
#[derive(Debug, Default)]
struct Held {
    /// Queued objects and their ends in the stream; the fetcher keeps them until acknowledged.
    queued: VecDeque<(u64, Ticket)>,
    /// Fields of the origin for a refusal not written yet.
    passed: Option<Box<Passed>>,
}

/// The exchange that a stream is at. One follows another on a connection of HTTP/1.1; a stream of
/// HTTP/3 has one.
#[derive(Debug)]
pub(crate) struct Exchange<V: Version> {
    stream: StreamId,
    connection: V::Connection,
    source: Source,
    stage: Stage<V>,
    /// While a request is in hand, it begins with the request's head.
    pub(crate) input: Input,
    output: Output,
    pub(crate) watch: Watch,
    /// The site of the last request that was for one.
    site: Option<Arc<Site>>,
    /// See [`ConnectionInfo::object`].
    object: Option<Arc<str>>,
    /// Requests so far, whole or broken.
    requests: u32,
    /// Memory that it holds for a listing, in bytes.
    listing_bytes: u32,
    /// Longest field section that the client accepts, in bytes; `u32::MAX`: any.
    pub(crate) section_bytes_max: u32,
    /// Most have none.
    held: Option<Box<Held>>,
    /// How fast the stream may be sent to for its own sake.
    rate_max: Bound,
    /// The same once the stream has drained, if a part of the response waits for that.
    later_rate_max: Bound,
    /// What the access log is to have of it, if there is one.
    accesses: Option<Box<Accesses>>,
    /// Its request may be early data, and come more than once (RFC 8470 §2).
    pub(crate) is_early: bool,
}

#[derive(Debug)]
enum Stage<V> {
    /// No request is in hand.
    Idle,
    /// Waiting for the NIC stack to open a file. The request's head is still in the input.
    Opening {
        file: FileHandle,
        media_type: &'static str,
        request: Request<V>,
        wanted: OpenPurpose,
    },
    /// Waiting for part of what is in a directory. The request's head is still in the input.
    Listing {
        file: FileHandle,
        request: Request<V>,
        listing: Box<Listing>,
    },
    /// Waiting for what comes from an origin. The request's head is still in the input.
    Asking {
        ticket: Ticket,
        request: Request<V>,
        awaited: Option<Box<Awaited>>,
    },
    /// Waiting until the handshake is complete: no origin is asked before (RFC 8470 §3, §5.2). The
    /// request's head is still in the input.
    Deferred {
        origin: Arc<str>,
        request: Request<V>,
    },
    /// Queueing a response.
    Sending { version: V },
    /// The rest of a response is not to be had, or is not wanted any more.
    Lost,
}

/// An object that is known, and the segment without which its response does not begin.
#[derive(Debug)]
struct Awaited {
    object: Box<Object>,
    segment: u64,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug)]
enum OpenPurpose {
    /// It may be what was asked for.
    Content(Attempt),
    /// It tells of a refusal or failure with this status.
    ErrorPage(StatusCode),
}

impl<V: Version> Exchange<V> {
    /// `requests`: how many came before on the connection.
    pub(crate) fn new(
        stream: StreamId,
        connection: V::Connection,
        source: Source,
        requests: u32,
        accesses: Option<Accesses>,
    ) -> Self {
        Exchange {
            stream,
            connection,
            source,
            stage: Stage::Idle,
            input: Input::default(),
            output: Output::default(),
            watch: Watch::default(),
            site: None,
            object: None,
            requests,
            listing_bytes: 0,
            section_bytes_max: u32::MAX,
            held: None,
            rate_max: None,
            later_rate_max: None,
            accesses: accesses.map(Box::new),
            is_early: false,
        }
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Memory for the request and what is not queued of the response, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_stage = match &self.stage {
            // A page that is being sent is the output.
            Stage::Listing { .. } => self.listing_bytes as usize,
            Stage::Asking { awaited, .. } => awaited
                .as_ref()
                .map_or(0, |it| it.object.passed.memory_bytes()),
            _ => 0,
        };
        let passed = self.held.as_ref().and_then(|held| held.passed.as_ref());
        let passed = passed.map_or(0, |passed| passed.memory_bytes());
        self.input.memory_bytes() + self.output.memory_bytes() + of_stage + passed
    }

    /// A request is in hand whose response is not queued to its end.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Lost)
    }

    /// What was promised is not to be had: nothing but an abort tells the client.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.stage, Stage::Lost)
    }

    /// Length of all that the stream has taken so far, in bytes.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.output.queued_bytes()
    }

    /// Takes what an event says of files, and of how far the stream has come.
    pub(crate) fn on_event(&mut self, io: &mut dyn Io, shared: &mut Shared, event: &AppEvent) {
        match *event {
            AppEvent::Opened { file, ref meta } => self.opened(io, shared, file, meta),
            AppEvent::OpenFailed { file, errno } => self.open_failed(io, shared, file, errno),
            AppEvent::Listed { file, ref part } => self.listed(io, shared, file, part),
            AppEvent::Drained => self.drained(io, shared),
            AppEvent::Writable => self.output.on_writable(),
            AppEvent::Accepted { .. }
            | AppEvent::Connected
            | AppEvent::Readable
            | AppEvent::PeerFinished
            | AppEvent::PeerReset { .. }
            | AppEvent::PeerStopped { .. }
            | AppEvent::Timer
            | AppEvent::Splice(_)
            | AppEvent::Closed { .. } => {}
        }
    }

    /// The exchange awaits news from the fetcher for this ticket.
    pub(crate) fn has_ticket(&mut self, ticket: Ticket) -> bool {
        let asks = matches!(self.stage, Stage::Asking { ticket: asked, .. } if asked == ticket);
        asks || self.output.ticket() == Some(ticket)
    }

    /// Takes what the fetcher has for it.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        ticket: Ticket,
        news: OriginEvent,
    ) {
        if self.output.ticket() != Some(ticket) {
            self.answered(io, shared, ticket, news);
        } else if !self.output.on_news(io, self.stream, &news) {
            self.give_up(shared);
        }
    }

    /// Queues what the stream takes of a response. Once that was the rest of it, returns what its
    /// request has said of the connection.
    pub(crate) fn queue(&mut self, io: &mut dyn Io, shared: &mut Shared) -> Option<V> {
        let Stage::Sending { version } = self.stage else {
            return None;
        };
        let ticket = self.output.ticket();
        let origins = shared.origins.as_deref_mut();
        let counters = &mut shared.counters;
        let flushed = self.output.flush(io, self.stream, counters, origins);
        if let Some(accesses) = &mut self.accesses {
            let is_all = flushed == Flushed::All;
            accesses.on_queued(io.now_us(), self.output.queued_bytes(), is_all);
        }
        // All of its object is queued, though perhaps not what follows.
        if let Some(ticket) = ticket.filter(|_| self.output.ticket().is_none()) {
            shared.tickets.remove(&ticket);
            let end = self.output.queued_bytes();
            let held = self.held.get_or_insert_default();
            held.queued.push_back((end, ticket));
        }
        if flushed != Flushed::All {
            return None;
        }
        shared.out = self.output.take_buffer();
        if self.listing_bytes > 0 {
            // Too large to be kept for the next response.
            shared.out = Vec::new();
            self.hold(shared, 0);
        }
        self.stage = Stage::Idle;
        Some(version)
    }

    /// Notes what the peer has acknowledged, and gives back what is not needed any more.
    pub(crate) fn settle(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        if let (Some(accesses), Some(log)) = (&mut self.accesses, &mut shared.access_log) {
            let acknowledged = io.acknowledged(self.stream);
            let retransmissions = io.retransmissions(self.stream);
            accesses.on_acknowledged(log, io.now_us(), acknowledged, retransmissions);
        }
        if self.held.is_some() {
            self.release(shared, io.acknowledged(self.stream));
        }
        self.input.release_if_empty(&mut shared.pool);
    }

    /// What it is like at the moment; without a request in hand, in this phase.
    pub(crate) fn info(&self, idle_phase: &'static str) -> ConnectionInfo {
        ConnectionInfo {
            phase: match self.stage {
                Stage::Idle => idle_phase,
                Stage::Asking { .. } => "asking",
                Stage::Deferred { .. } => "deferred",
                Stage::Opening { .. } => "opening",
                Stage::Listing { .. } => "listing",
                Stage::Sending { .. } => "sending",
                Stage::Lost => "aborted",
            },
            requests: self.requests,
            site: self.site.clone(),
            object: self.object.clone(),
        }
    }

    /// The stream is over: gives back what it holds.
    pub(crate) fn closed(
        mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        self.end_ticket(shared);
        self.hold(shared, 0);
        self.note_unanswered(shared, acknowledged);
        if let (Some(accesses), Some(log)) = (self.accesses.take(), &mut shared.access_log) {
            accesses.on_closed(log, io.now_us(), acknowledged, retransmissions);
        }
        self.input.release(&mut shared.pool);
        shared.rates.end(io, self.stream, self.peer());
    }

    /// Nothing is to come of the request, whose client has taken it back: else as
    /// [`Exchange::abandon`].
    pub(crate) fn cancel(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.note_unanswered(shared, io.acknowledged(self.stream));
        self.abandon(shared);
    }

    /// Has the access log know of a request to which no response has begun.
    fn note_unanswered(&mut self, shared: &mut Shared, acknowledged: u64) {
        let request = match &self.stage {
            Stage::Opening { request, .. }
            | Stage::Listing { request, .. }
            | Stage::Asking { request, .. }
            | Stage::Deferred { request, .. } => request,
            Stage::Idle | Stage::Sending { .. } | Stage::Lost => return,
        };
        if let (Some(accesses), Some(log)) = (&mut self.accesses, &mut shared.access_log) {
            let site = request.site_name();
            let begun = Begun {
                request: &self.input.bytes()[..request.head_bytes],
                site: site.map(|name| name as &dyn std::fmt::Display),
                status: NO_RESPONSE,
                start: acknowledged,
                head_bytes: 0,
                file_bytes: 0,
            };
            accesses.on_response(log, &begun);
        }
    }

    /// The stream is going to be aborted: nothing more is asked for or queued.
    pub(crate) fn abandon(&mut self, shared: &mut Shared) {
        if let Stage::Asking { ticket, .. } = self.stage {
            shared.end_ticket(ticket);
        }
        self.input.release(&mut shared.pool);
        self.stage = Stage::Lost;
    }

    /// The status that tells that what the request waits for has not come, if it waits.
    pub(crate) fn late_status(&self) -> Option<StatusCode> {
        match self.stage {
            Stage::Opening { .. } | Stage::Listing { .. } => Some(StatusCode::SERVICE_UNAVAILABLE),
            Stage::Asking { .. } => Some(StatusCode::GATEWAY_TIMEOUT),
            Stage::Deferred { .. } => Some(StatusCode::TOO_EARLY),
            Stage::Idle | Stage::Sending { .. } | Stage::Lost => None,
        }
    }

    /// Answers with this status, since what the request waits for has not come.
    pub(crate) fn answer_late(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        version: V,
        status: StatusCode,
    ) {
        shared.counters.open_timeouts += 1;
        self.end_ticket(shared);
        self.hold(shared, 0);
        // Should the answer come after all, no request awaits it.
        let request = Request::broken(self.input.bytes(), version, status);
        self.take_up(io, shared, request);
    }

    /// How far the client has come.
    pub(crate) fn progress(&self, io: &dyn Io) -> Progress {
        Progress {
            acknowledged: io.acknowledged(self.stream),
            unacknowledged: io.unacknowledged(self.stream),
            waits_for_peer: self.rate_max.is_none() && io.waits_for_peer(self.stream),
        }
    }

    /// Objects of which so many bytes of the stream hold all are not needed any more.
    fn release(&mut self, shared: &mut Shared, acknowledged: u64) {
        let Some(held) = self.held.as_deref_mut() else {
            return;
        };
        while let Some((_, ticket)) = held.queued.pop_front_if(|(end, _)| *end <= acknowledged) {
            if let Some(origins) = &mut shared.origins {
                origins.done(ticket);
            }
        }
        if held.queued.is_empty() && held.passed.is_none() {
            self.held = None;
        }
    }

    /// Whatever it has asked an origin for is not needed any more.
    fn end_ticket(&mut self, shared: &mut Shared) {
        self.release(shared, u64::MAX);
        let asked = match self.stage {
            Stage::Asking { ticket, .. } => Some(ticket),
            _ => None,
        };
        for ticket in asked.into_iter().chain(self.output.ticket()) {
            shared.end_ticket(ticket);
        }
    }

    /// All that was queued is acknowledged, unless more has been queued since.
    fn drained(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        if io.unacknowledged(self.stream) > 0 {
            return;
        }
        if self.output.go_on() {
            self.limit(io, shared, self.later_rate_max);
        } else if self.output.is_done() {
            shared.rates.end(io, self.stream, self.peer());
        }
    }

    fn peer(&self) -> Peer {
        Peer {
            source: self.source,
            connection: V::multiplexed(self.connection),
        }
    }

    /// Bounds the rate for what is queued from now on. What is queued already is not hurried.
    fn limit(&mut self, io: &mut dyn Io, shared: &mut Shared, response: Bound) {
        let mut rate_max = shared.rates.bound(response);
        let are_shared = shared.rates.are_shared(self.peer());
        if (rate_max, self.rate_max) == (None, None) && !are_shared {
            return;
        }
        if io.unacknowledged(self.stream) > 0 {
            rate_max = rate::least(rate_max, self.rate_max);
        }
        if rate_max != self.rate_max || are_shared {
            self.rate_max = rate_max;
            let peer = self.peer();
            shared.rates.begin(io, self.stream, peer, rate_max);
        }
    }

    /// What has been promised is not to be had.
    fn give_up(&mut self, shared: &mut Shared) {
        tracing::debug!(
            stream = self.stream.0,
            "the rest of an object is not to be had"
        );
        shared.counters.contents_lost += 1;
        self.abandon(shared);
    }
}
