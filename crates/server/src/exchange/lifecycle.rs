//! The life of one exchange, from a request to its response, in any version of HTTP.
//!
//! ```text
//!           take_up                             Opened            all queued
//!  Idle ──────────────▶ Opening, Listing, Asking ────▶ Sending ─────────────▶ Idle
//!                                                         └── content gone ──▶ Lost
//! ```
//!
//! A version's codec reads requests and hands them over. When [`Exchange::queue`] reports that a
//! response is queued, the codec decides how its connection or stream continues.

mod answer;
mod listing;
mod resolve;

use std::collections::VecDeque;
use std::sync::Arc;

use host::app::{AppEvent, FileHandle, Io, StreamId};
use http::StatusCode;
use http_message::access::NO_RESPONSE;

use crate::access::{Accesses, Begun};
use crate::exchange::client::{Arrival, Client};
use crate::exchange::input::Input;
use crate::exchange::output::{Flushed, Output};
use crate::exchange::request::Request;
use crate::exchange::shared::Shared;
use crate::exchange::version::Version;
use crate::exchange::watch::{Progress, Watch};
use crate::semantics::attempt::Attempt;
use crate::semantics::listing::Listing;
use crate::semantics::mime::MediaType;
use crate::semantics::pull::{Object, OriginEvent, Passed, Ticket};
use crate::semantics::rate::{self, Bound, Peer};
use crate::semantics::scheme::Scheme;
use crate::semantics::site::Site;

/// Bytes of a target shown to operators, at most.
const SHOWN_BYTES_MAX: usize = 200;

/// State of a connection, or of an HTTP/3 stream, for operators.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Current phase: `reading` a request, `deferred` until the handshake is complete, `asking` an
    /// origin for an object, `opening` the file, `listing` the directory, `sending` until the
    /// stream has taken the whole response, `lingering` after the last response, `aborted`.
    /// `sending` ends when the response is queued, not when it is acknowledged.
    pub phase: &'static str,
    /// Requests so far, including malformed ones.
    pub requests: u32,
    /// Site of the last request that could be parsed.
    pub site: Option<Arc<Site>>,
    /// Path and query of the last request if an origin's object answers it, since the name of the
    /// segment file is meaningless to operators. Truncated if long.
    pub object: Option<Arc<str>>,
}

/// State kept for origins.
#[derive(Debug, Default)]
struct Held {
    /// Queued objects with their end offsets in the stream; the fetcher keeps them until
    /// acknowledged.
    queued: VecDeque<(u64, Ticket)>,
    /// Fields of the origin's response, for a refusal that is not written yet.
    passed: Option<Box<Passed>>,
}

/// The current exchange of a stream. On HTTP/1.1 exchanges follow one another; an HTTP/3 stream has
/// one.
#[derive(Debug)]
pub(crate) struct Exchange<V: Version> {
    stream: StreamId,
    connection: V::Connection,
    pub(crate) client: Client,
    /// Scheme of the connection.
    scheme: Scheme,
    stage: Stage<V>,
    /// Received bytes. Begins with the head of the request in hand, if there is one.
    pub(crate) input: Input,
    output: Output,
    pub(crate) watch: Watch,
    /// Site of the last request that was assigned to one.
    site: Option<Arc<Site>>,
    /// See [`ConnectionInfo::object`].
    object: Option<Arc<str>>,
    /// Requests so far, including malformed ones.
    requests: u32,
    /// Memory held for a listing, in bytes.
    listing_bytes: u32,
    /// Longest field section that the client accepts, in bytes; `u32::MAX`: no limit.
    pub(crate) section_bytes_max: u32,
    /// `None` for most exchanges.
    held: Option<Box<Held>>,
    /// Rate limit of the stream itself.
    rate_max: Bound,
    /// Rate limit once the stream has drained, if part of the response waits for that.
    later_rate_max: Bound,
    /// State for the access log, if there is one.
    accesses: Option<Box<Accesses>>,
    /// The request may be early data, which can be replayed (RFC 8470 §2).
    pub(crate) is_early: bool,
}

#[derive(Debug)]
enum Stage<V> {
    /// No request in hand.
    Idle,
    /// Waiting for the NIC stack to open a file. The request's head is still in the input.
    Opening {
        file: FileHandle,
        media_type: MediaType,
        request: Request<V>,
        wanted: OpenPurpose,
    },
    /// Waiting for a part of a directory listing. The request's head is still in the input.
    Listing {
        file: FileHandle,
        request: Request<V>,
        listing: Box<Listing>,
    },
    /// Waiting for an origin. The request's head is still in the input.
    Asking {
        ticket: Ticket,
        request: Request<V>,
        awaited: Option<Box<Awaited>>,
    },
    /// Waiting until the handshake is complete: early data is not forwarded to origins (RFC 8470
    /// §3, §5.2). The request's head is still in the input.
    Deferred {
        origin: Arc<str>,
        request: Request<V>,
    },
    /// Queueing a response.
    Sending { version: V },
    /// The rest of a response is unavailable or no longer wanted.
    Lost,
}

/// A known object, and the segment that must be present before its response begins.
#[derive(Debug)]
struct Awaited {
    object: Box<Object>,
    segment: u64,
}

/// Purpose of opening a file.
#[derive(Clone, Copy, Debug)]
enum OpenPurpose {
    /// The file may be the requested one.
    Content(Attempt),
    /// The file is the site's page for an error with this status.
    ErrorPage(StatusCode),
}

impl<V: Version> Exchange<V> {
    /// `requests`: number of earlier requests on the connection.
    pub(crate) fn new(
        stream: StreamId,
        connection: V::Connection,
        arrival: &Arrival,
        requests: u32,
        accesses: Option<Accesses>,
    ) -> Self {
        Exchange {
            stream,
            connection,
            client: Client::new(arrival),
            scheme: arrival.scheme,
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

    /// Memory for the request and the unqueued part of the response, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_stage = match &self.stage {
            // While a listing is sent, its page is in the output.
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

    /// A request is in hand whose response is not completely queued.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Lost)
    }

    /// The rest of the body is unavailable; only a reset can signal that.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.stage, Stage::Lost)
    }

    /// Length of everything that the stream has taken so far, in bytes.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.output.queued_bytes()
    }

    /// Handles an event about files or about the stream's progress.
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

    /// Handles an event from the fetcher.
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

    /// Queues as much of a response as the stream takes. When the response is completely queued,
    /// returns the version of its request, which decides how the connection continues.
    pub(crate) fn queue(&mut self, io: &mut dyn Io, shared: &mut Shared) -> Option<V> {
        let Stage::Sending { version } = self.stage else {
            // Interim responses come while it is awaited.
            if self.is_busy() {
                let counters = &mut shared.counters;
                self.output.flush(io, self.stream, counters, None);
            }
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
        // The object is completely queued, though perhaps not the bytes that follow it.
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

    /// Notes the peer's acknowledgements, and releases resources that are no longer needed.
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

    /// Describes the current state; `idle_phase` is the phase without a request in hand.
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

    /// Handles the end of the stream: releases all resources.
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

    /// Handles the client's cancellation of the request: logs it if it has no response, then
    /// [`Exchange::abandon`].
    pub(crate) fn cancel(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.note_unanswered(shared, io.acknowledged(self.stream));
        self.abandon(shared);
    }

    /// Adds a request to which no response has begun to the access log.
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

    /// Prepares to abort the stream: nothing more is requested or queued.
    pub(crate) fn abandon(&mut self, shared: &mut Shared) {
        if let Stage::Asking { ticket, .. } = self.stage {
            shared.end_ticket(ticket);
        }
        self.input.release(&mut shared.pool);
        self.stage = Stage::Lost;
    }

    /// The status to answer with if the awaited event does not come in time; `None` if no request
    /// waits.
    pub(crate) fn late_status(&self) -> Option<StatusCode> {
        match self.stage {
            Stage::Opening { .. } | Stage::Listing { .. } => Some(StatusCode::SERVICE_UNAVAILABLE),
            Stage::Asking { .. } => Some(StatusCode::GATEWAY_TIMEOUT),
            Stage::Deferred { .. } => Some(StatusCode::TOO_EARLY),
            Stage::Idle | Stage::Sending { .. } | Stage::Lost => None,
        }
    }

    /// Answers with this status, since the awaited event did not come in time.
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
        // A late result finds no request that awaits it.
        let request = Request::broken(self.input.bytes(), version, status);
        self.take_up(io, shared, request);
    }

    /// The client's progress with the stream.
    pub(crate) fn progress(&self, io: &dyn Io) -> Progress {
        Progress {
            acknowledged: io.acknowledged(self.stream),
            unacknowledged: io.unacknowledged(self.stream),
            waits_for_peer: self.rate_max.is_none() && io.waits_for_peer(self.stream),
        }
    }

    /// Releases objects whose bytes all lie within the first `acknowledged` bytes of the stream.
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

    /// Ends all requests to the fetcher.
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

    /// Handles the acknowledgement of everything queued, unless more has been queued since.
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
            source: self.client.source(),
            connection: V::multiplexed(self.connection),
        }
    }

    /// Limits the rate from now on. The limit does not rise while earlier bytes are unacknowledged.
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

    /// Abandons a response whose remaining object bytes are unavailable.
    fn give_up(&mut self, shared: &mut Shared) {
        tracing::debug!(
            stream = self.stream.0,
            "the rest of an object is not to be had"
        );
        shared.counters.contents_lost += 1;
        self.abandon(shared);
    }
}
