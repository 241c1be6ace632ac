//! The life of one connection.
//!
//! ```text
//!             head complete          Opened            all queued
//!  Reading ───────────────▶ Opening ────────▶ Sending ───────────▶ Reading …
//!     │  └──── refused ──────────────────────────▲ └─────────────▶ Lingering ──▶ Closed
//!     └── no further request ─────────────────────────────────────────▲   (`Connection: close`)
//! ```
//!
//! One request is in hand at a time, so that responses leave in the order of requests (RFC 9112
//! §9.3.2). Queueing a file costs nothing, so the next request is taken up as soon as the response
//! to the last one is queued, not when it is acknowledged; how many responses may be under way is
//! bounded.

mod listing;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use host::app::{AppEvent, FileHandle, FileMeta, Io, StreamId};
use host::{Episode, Growth};
use http::StatusCode;
use http::header::CONTENT_ENCODING;
use http_message::access::AccessLog;
use http_message::request::without_empty_lines;

use crate::access::{Accesses, Begun};
use crate::config::Config;
use crate::counters::Counters;
use crate::http1::input::{Input, Pool};
use crate::http1::output::{Body, Flushed, Output, Splice};
use crate::http1::request::{self, Method, Parsed, Persistence, Place, Request};
use crate::http1::response::{self, Common, Entity};
use crate::http1::watch::{Expiry, Progress, Wait, Watch};
use crate::semantics::answer::{self, Answer};
use crate::semantics::attempt::Attempt;
use crate::semantics::conditional::Validators;
use crate::semantics::content::Content;
use crate::semantics::date::{self, DateCache};
use crate::semantics::encoding::{Acceptable, Coding};
use crate::semantics::etag::ETag;
use crate::semantics::fields::{Field, Head};
use crate::semantics::listing::Listing;
use crate::semantics::mime;
use crate::semantics::open_failure;
use crate::semantics::pull::{OriginEvent, Origins, RulePull, Ticket};
use crate::semantics::rate::{self, Bound, Rates, Source};
use crate::semantics::rule::Rule;
use crate::semantics::signed;
use crate::semantics::site::{Names, Site};
use crate::semantics::target;
use crate::semantics::target::Kind;

/// A pipelined request is taken up when no more of the responses before it is unsent, in bytes:
/// little beside what one file costs, and enough to keep a link busy until the next one is open.
const NEARLY_SENT_BYTES: u64 = 64 << 10;

/// What all connections of a server share.
pub(crate) struct Shared {
    /// Without its sites.
    pub(crate) config: Config,
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) counters: Counters,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) date: DateCache,
    pub(crate) pool: Pool,
    /// The response being written.
    pub(crate) out: Vec<u8>,
    /// The path being resolved.
    pub(crate) path: Vec<u8>,
    /// The `Location` being written.
    pub(crate) location: Vec<u8>,
    /// What stands between the parts of the body being written.
    pub(crate) between: Vec<u8>,
    /// The path being opened, below the NIC stack's root.
    pub(crate) file_path: Vec<u8>,
    /// Sites by name.
    pub(crate) names: Names,
    pub(crate) rates: Rates,
    /// Each connection closes with its next response, or when it has nothing to do.
    pub(crate) is_draining: bool,
    /// Memory that connections hold for listings, in bytes.
    pub(crate) listings_bytes: usize,
    /// Clients that are slower than the least rate.
    pub(crate) slow_clients: Episode,
    /// The fetcher of objects from origins.
    pub(crate) origins: Option<Box<dyn Origins>>,
    /// Whose tickets they are.
    pub(crate) tickets: HashMap<Ticket, StreamId>,
    pub(crate) ticket_last: u64,
}

impl Shared {
    /// A wish of a connection's is over.
    fn end_ticket(&mut self, ticket: Ticket) {
        self.tickets.remove(&ticket);
        if let Some(origins) = &mut self.origins {
            origins.done(ticket);
        }
    }

    /// The site that a request is for: the one of its target's authority, else that of its `Host`.
    fn site(&mut self, head: Head<'_>, target: &[u8]) -> usize {
        if self.names.is_empty() {
            return 0;
        }
        let authority = target::authority(target).or_else(|| head.value(Field::Host));
        self.names.site(authority.unwrap_or_default())
    }
}

/// Objects that are queued, and where they end in the stream; who fetches them keeps them until
/// that is acknowledged.
#[derive(Debug, Default)]
struct Held(VecDeque<(u64, Ticket)>);

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: StreamId,
    source: Source,
    phase: Phase,
    input: Input,
    /// The stream may hold bytes that were not read yet.
    unread: bool,
    /// The peer will send no more than what is in the stream.
    peer_finished: bool,
    /// What is left of the last request's body, in bytes.
    body_bytes: u64,
    /// A response has been sent, so that waiting for another request is idling.
    answered: bool,
    /// The site of the last request that was for one.
    site: Option<Arc<Site>>,
    /// See [`ConnectionInfo::object`].
    object: Option<Arc<str>>,
    /// Requests so far, whole or broken.
    requests: u32,
    output: Output,
    /// Where queued responses end in the stream, as far as they are not acknowledged.
    in_flight: VecDeque<u64>,
    /// Most connections have none.
    held: Option<Box<Held>>,
    /// How fast it may be sent to for its own sake.
    rate_max: Bound,
    /// The same once the stream has drained, if a part of the response waits for that.
    later_rate_max: Bound,
    watch: Watch,
    /// Memory that it holds for a listing, in bytes.
    listing_bytes: u32,
    /// What the access log is to have of it, if there is one.
    accesses: Option<Box<Accesses>>,
}

const _: () = assert!(
    size_of::<Connection>() <= 392,
    "ten thousand idle connections fit into a few megabytes"
);

/// So much of a target is shown to people, in bytes.
const SHOWN_BYTES_MAX: usize = 200;

/// A connection, as people are shown it.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// What it is at: `reading` a request, `asking` for an object of an origin, `opening` its file,
    /// `listing` its directory, `sending` the response as far as the stream takes it, `lingering`
    /// after the last one, `aborted`. A response that is queued to its end is not waited for.
    pub phase: &'static str,
    /// Requests so far, whole or broken.
    pub requests: u32,
    /// The site of the last request that could be read.
    pub site: Option<Arc<Site>>,
    /// Path and query of the last request, if an origin's object answers it: the name of the file
    /// that is sent means nothing to people. Long ones are cut.
    pub object: Option<Arc<str>>,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for a request.
    Reading,
    /// Waiting for the NIC stack to open a file. The request's head is still in the input.
    Opening {
        file: FileHandle,
        media_type: &'static str,
        request: Request,
        wanted: OpenPurpose,
    },
    /// Waiting for part of what is in a directory. The request's head is still in the input.
    Listing {
        file: FileHandle,
        request: Request,
        listing: Box<Listing>,
    },
    /// Waiting for what comes from an origin. The request's head is still in the input.
    Asking { ticket: Ticket, request: Request },
    /// Queueing a response.
    Sending { close: bool },
    /// All is queued, FIN as well. What the peer still sends is read and thrown away, since closing
    /// with unread bytes would send RST and destroy the response on its way (RFC 9112 §9.6).
    Lingering { budget_bytes: u64 },
    /// RST is sent; `Closed` is on its way.
    Aborted,
}

/// What of the content a response has.
#[derive(Debug)]
enum Ranges {
    None,
    One(Range<u64>),
    Several(Vec<Splice>),
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug)]
enum OpenPurpose {
    /// It may be what was asked for.
    Content(Attempt),
    /// It tells of a refusal or failure with this status.
    ErrorPage(StatusCode),
}

impl Connection {
    pub(crate) fn new(stream: StreamId, source: Source, accesses: Option<Accesses>) -> Self {
        Connection {
            stream,
            source,
            phase: Phase::Reading,
            input: Input::default(),
            unread: false,
            peer_finished: false,
            body_bytes: 0,
            answered: false,
            site: None,
            object: None,
            requests: 0,
            output: Output::default(),
            in_flight: VecDeque::new(),
            held: None,
            rate_max: None,
            later_rate_max: None,
            watch: Watch::default(),
            listing_bytes: 0,
            accesses: accesses.map(Box::new),
        }
    }

    /// Whatever has happened, goes on as far as possible.
    pub(crate) fn on_event(&mut self, io: &mut dyn Io, shared: &mut Shared, event: &AppEvent) {
        match *event {
            AppEvent::Readable => self.unread = true,
            AppEvent::PeerFinished => (self.unread, self.peer_finished) = (true, true),
            AppEvent::Opened { file, ref meta } => self.opened(io, shared, file, meta),
            AppEvent::OpenFailed { file, errno } => self.open_failed(io, shared, file, errno),
            AppEvent::Listed { file, ref part } => self.listed(io, shared, file, part),
            AppEvent::Timer => self.expired(io, shared),
            AppEvent::Drained => self.drained(io, shared),
            AppEvent::Writable => self.output.on_writable(),
            AppEvent::Accepted { .. }
            | AppEvent::Connected
            | AppEvent::Splice(_)
            | AppEvent::PeerReset { .. }
            | AppEvent::PeerStopped { .. }
            | AppEvent::Closed { .. } => {}
        }
        self.go_on(io, shared);
    }

    /// Takes what the fetcher has for it, and goes on as far as possible.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        ticket: Ticket,
        news: OriginEvent,
    ) {
        if self.output.ticket() == Some(ticket) {
            if !self.output.on_news(io, self.stream, &news) {
                self.give_up(io, shared);
            }
        } else {
            self.answered(io, shared, ticket, news);
        }
        self.go_on(io, shared);
    }

    /// Goes on as far as possible.
    pub(crate) fn go_on(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        while self.advance(io, shared) {}
        if let (Some(accesses), Some(log)) = (&mut self.accesses, &mut shared.access_log) {
            let acknowledged = io.acknowledged(self.stream);
            let retransmissions = io.retransmissions(self.stream);
            accesses.on_acknowledged(log, io.now_us(), acknowledged, retransmissions);
        }
        if self.held.is_some() {
            self.release(shared, io.acknowledged(self.stream));
        }
        self.input.release_if_empty(&mut shared.pool);
        if let Some(wait) = self.wait(io).filter(|&wait| !self.watch.is_for(wait)) {
            let after = self.watch.set(wait, &self.progress(io), &shared.config);
            io.set_idle(self.stream, wait == Wait::Idle);
            io.set_timer(self.stream, Some(after));
        }
    }

    /// What it is like at the moment.
    pub(crate) fn info(&self) -> ConnectionInfo {
        ConnectionInfo {
            phase: match self.phase {
                Phase::Reading => "reading",
                Phase::Asking { .. } => "asking",
                Phase::Opening { .. } => "opening",
                Phase::Listing { .. } => "listing",
                Phase::Sending { .. } => "sending",
                Phase::Lingering { .. } => "lingering",
                Phase::Aborted => "aborted",
            },
            requests: self.requests,
            site: self.site.clone(),
            object: self.object.clone(),
        }
    }

    /// The connection is over: gives back what it holds.
    pub(crate) fn closed(
        mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        self.end_ticket(shared);
        self.hold(shared, 0);
        if let (Some(accesses), Some(log)) = (self.accesses, &mut shared.access_log) {
            let unanswered = match &self.phase {
                Phase::Opening { request, .. }
                | Phase::Listing { request, .. }
                | Phase::Asking { request, .. } => {
                    let head = &self.input.bytes()[..request.head_bytes];
                    Some((head, request.site_name()))
                }
                _ => None,
            };
            let unanswered = unanswered
                .as_ref()
                .map(|(head, site)| (*head, site.map(|name| name as &dyn std::fmt::Display)));
            accesses.on_closed(log, io.now_us(), acknowledged, retransmissions, unanswered);
        }
        self.input.release(&mut shared.pool);
        shared.rates.end(io, self.stream, self.source);
    }

    /// Objects of which so many bytes of the stream hold all are not needed any more.
    fn release(&mut self, shared: &mut Shared, acknowledged: u64) {
        let Some(Held(held)) = self.held.as_deref_mut() else {
            return;
        };
        while let Some((_, ticket)) = held.pop_front_if(|(end, _)| *end <= acknowledged) {
            if let Some(origins) = &mut shared.origins {
                origins.done(ticket);
            }
        }
        if held.is_empty() {
            self.held = None;
        }
    }

    /// Whatever it has asked an origin for is not needed any more.
    fn end_ticket(&mut self, shared: &mut Shared) {
        self.release(shared, u64::MAX);
        let asked = match self.phase {
            Phase::Asking { ticket, .. } => Some(ticket),
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
            shared.rates.end(io, self.stream, self.source);
        }
    }

    /// Bounds the rate for what is queued from now on. What is queued already is not hurried.
    fn limit(&mut self, io: &mut dyn Io, shared: &mut Shared, response: Bound) {
        let mut rate_max = shared.rates.bound(response);
        if (rate_max, self.rate_max) == (None, None) && !shared.rates.are_shared() {
            return;
        }
        if io.unacknowledged(self.stream) > 0 {
            rate_max = rate::least(rate_max, self.rate_max);
        }
        if rate_max != self.rate_max || shared.rates.are_shared() {
            self.rate_max = rate_max;
            shared.rates.begin(io, self.stream, self.source, rate_max);
        }
    }

    /// One step, if one is possible.
    fn advance(&mut self, io: &mut dyn Io, shared: &mut Shared) -> bool {
        match self.phase {
            Phase::Reading => self.read(io, shared),
            Phase::Sending { close } => {
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
                    self.held.get_or_insert_default().0.push_back((end, ticket));
                }
                if flushed != Flushed::All {
                    return false;
                }
                shared.out = self.output.take_buffer();
                if self.listing_bytes > 0 {
                    // Too large to be kept for the next response.
                    shared.out = Vec::new();
                    self.hold(shared, 0);
                }
                self.answered = true;
                self.in_flight.push_back(self.output.queued_bytes());
                if close {
                    self.finish(io, shared)
                } else {
                    self.phase = Phase::Reading
                }
                true
            }
            Phase::Lingering {
                ref mut budget_bytes,
            } => {
                while self.unread && *budget_bytes > 0 {
                    let count = self.input.fill(io, self.stream, &mut shared.pool);
                    self.input.consume(count);
                    *budget_bytes = budget_bytes.saturating_sub(count as u64);
                    self.unread = count > 0;
                }
                self.input.release(&mut shared.pool);
                false
            }
            Phase::Opening { .. }
            | Phase::Listing { .. }
            | Phase::Asking { .. }
            | Phase::Aborted => false,
        }
    }

    /// Takes up the next request, or takes in more bytes.
    fn read(&mut self, io: &mut dyn Io, shared: &mut Shared) -> bool {
        let acknowledged = io.acknowledged(self.stream);
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
        // A file that is opened for a response far from being sent is held for nothing, 32 of them
        // by a client that pipelines and does not read.
        let has_bytes = self.unread || !self.input.is_empty();
        if !self.in_flight.is_empty() && has_bytes && io.unsent(self.stream) > NEARLY_SENT_BYTES {
            io.set_notsent_lowat(self.stream, NEARLY_SENT_BYTES);
            return false;
        }

        let skipped = usize::try_from(self.body_bytes)
            .unwrap_or(usize::MAX)
            .min(self.input.bytes().len());
        self.input.consume(skipped);
        self.body_bytes -= skipped as u64;
        if self.body_bytes == 0 {
            match request::parse(self.input.bytes(), &shared.config) {
                Parsed::Partial => {}
                Parsed::Complete(request) => {
                    self.take_up(io, shared, request);
                    return true;
                }
                Parsed::Broken(status) => {
                    self.take_up(io, shared, Request::broken(self.input.bytes(), status));
                    return true;
                }
            }
        }

        if self.unread {
            self.unread = self.input.fill(io, self.stream, &mut shared.pool) > 0;
        } else if self.peer_finished || shared.is_draining && self.is_idle() {
            self.finish(io, shared);
        } else {
            return false;
        }
        true
    }

    /// It waits for another request, of which nothing is there yet.
    fn is_idle(&self) -> bool {
        self.answered && self.input.is_empty() && self.body_bytes == 0
    }

    fn take_up(&mut self, io: &mut dyn Io, shared: &mut Shared, mut request: Request) {
        shared.counters.requests += 1;
        if shared.is_draining {
            request.persistence = Persistence::Close;
        }
        self.requests = self.requests.saturating_add(1);
        if let Some(accesses) = &mut self.accesses {
            // One that was not opened in time has been in hand already.
            match self.phase {
                Phase::Opening { .. } | Phase::Listing { .. } | Phase::Asking { .. } => {}
                _ => accesses.on_request(io.now_us(), self.requests),
            }
        }
        // What could not be read is about no place.
        if let (Some(status), true) = (request.refusal, request.target.is_empty()) {
            return self.refuse(io, shared, request, status);
        }
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let target = &self.input.bytes()[request.target.clone()];
        // RFC 9110 §9.3.7: the server as a whole.
        let is_refused = request.refusal.is_some();
        if request.method == Method::Options && target == b"*" && !is_refused {
            return self.tell_options(io, shared, request);
        }
        let resolved = target::resolve(target, &mut shared.path);
        let number = shared.site(head, target);
        let site = Arc::clone(&shared.sites[number]);
        self.site = Some(Arc::clone(&site));
        self.object = None;
        let found = match resolved {
            Err(_) => None,
            Ok(_) if site.rules.is_empty() && site.pulls.is_empty() => None,
            Ok(kind) => {
                target::absolute(&shared.path, kind, &mut shared.file_path);
                site.rule(&shared.file_path)
            }
        };
        request.place = Some(Place {
            site: Arc::clone(&site),
            rule: found.map(|(rule, _)| rule),
        });
        let kind = match (request.refusal, resolved) {
            (None, Ok(kind)) => kind,
            (Some(status), _) | (None, Err(status)) => {
                return self.refuse(io, shared, request, status);
            }
        };
        if request.method == Method::Options {
            return self.tell_options(io, shared, request);
        }
        if let Some(keys) =
            found.and_then(|(rule, _)| site.rules[usize::from(rule)].signed.as_ref())
            && let Err(why) = keys.verify(target::without_authority(target), io.unix_time())
        {
            tracing::debug!(stream = self.stream.0, ?why, "a URL is not good");
            return self.refuse(io, shared, request, StatusCode::FORBIDDEN);
        }
        if let Some((rule, captured)) = found
            && let Some(redirect) = &site.rules[usize::from(rule)].redirect
        {
            let query = target::split_query(target).1;
            redirect.location(captured, query, &mut shared.location);
            let status = redirect.status();
            return self.send_elsewhere(io, shared, request, status);
        }
        if !shared.config.files_come_first {
            let (path, absolute) = (&shared.path, &mut shared.file_path);
            let origin = pulled(&site, request.rule(), path, kind, absolute).map(Arc::clone);
            if let Some(origin) = origin {
                return self.ask(io, shared, request, &origin);
            }
        }
        let acceptable = if site.precompressed.is_empty() {
            Acceptable::IDENTITY
        } else {
            Acceptable::new(head.values(Field::AcceptEncoding), &site.precompressed)
        };
        self.open(io, shared, request, Attempt::new(kind, acceptable));
    }

    /// Opens the file that is to be tried; `shared.path` is what the target names.
    fn open(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        mut attempt: Attempt,
    ) {
        let Some(site) = request.site() else {
            return self.refuse(io, shared, request, StatusCode::NOT_FOUND);
        };
        let hidden = shared.config.hidden.as_ref();
        let media_type = loop {
            let found = attempt.path(site, &shared.path, &mut shared.file_path);
            match (found, attempt.next(site)) {
                (Some(_), _) if hidden.is_some_and(|hidden| hidden.holds(&shared.file_path)) => {
                    return self.refuse(io, shared, request, StatusCode::NOT_FOUND);
                }
                (Some(media_type), _) if attempt.is_acceptable() => break media_type,
                (_, Some(next)) => attempt = next,
                (Some(_), None) => {
                    return self.refuse(io, shared, request, StatusCode::NOT_ACCEPTABLE);
                }
                (None, None) => return self.not_found(io, shared, request),
            }
        };
        self.phase = Phase::Opening {
            file: io.open(self.stream, &shared.file_path, request.growth()),
            media_type,
            request,
            wanted: OpenPurpose::Content(attempt),
        };
    }

    /// The request that waits for this file; `None` if none does, any more.
    fn request_awaiting(
        &mut self,
        awaited: FileHandle,
    ) -> Option<(&'static str, Request, OpenPurpose)> {
        match mem::replace(&mut self.phase, Phase::Reading) {
            Phase::Opening {
                file,
                media_type,
                request,
                wanted,
            } if file == awaited => {
                // A response has the whole of the stall timeout, however long OPEN took.
                self.watch.clear();
                Some((media_type, request, wanted))
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    fn opened(&mut self, io: &mut dyn Io, shared: &mut Shared, file: FileHandle, meta: &FileMeta) {
        let origins = shared.origins.as_deref_mut();
        match self.output.on_opened(io, file, meta, origins) {
            None => {}
            Some(true) => return,
            Some(false) => return self.give_up(io, shared),
        }
        let Some((media_type, request, wanted)) = self.request_awaiting(file) else {
            return io.close_file(file);
        };
        let now = io.unix_time();
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let common = common(&mut shared.date, &request, head, now);
        let out = &mut shared.out;
        let attempt = match wanted {
            OpenPurpose::Content(attempt) => attempt,
            OpenPurpose::ErrorPage(status) => {
                response::error_with_file(out, &common, status, meta.size, media_type);
                let is_empty = request.head_only() || meta.size == 0;
                let after_bytes = out.len();
                let body = if is_empty {
                    io.close_file(file);
                    None
                } else {
                    Some(Body::one(Content::File(file), after_bytes, 0..meta.size))
                };
                return self.send_content(io, shared, request, status, body);
            }
        };
        let modified_s = date::modified_s(meta.mtime_ns);
        let etag = ETag::new(
            meta,
            attempt.coding(),
            now,
            shared.config.roots_are_replicas,
        );
        let found = Found {
            content: Content::File(file),
            size_bytes: meta.size,
            media_type,
            validators: Validators { etag, modified_s },
            coding: attempt.coding(),
            varies: attempt.is_negotiated,
        };
        self.answer(io, shared, request, found);
    }

    /// Answers with content that has been found, or what of it is asked for.
    fn answer(&mut self, io: &mut dyn Io, shared: &mut Shared, request: Request, found: Found) {
        let Found {
            content,
            size_bytes,
            media_type,
            validators,
            coding,
            varies,
        } = found;
        let now = io.unix_time();
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let common = common(&mut shared.date, &request, head, now);
        let out = &mut shared.out;
        let object = match &content {
            Content::File(_) => None,
            Content::Segments(segments) => Some(&*segments.object),
        };
        let entity = Entity {
            size_bytes,
            media_type,
            last_modified: validators
                .modified_s
                .and_then(|second| date::last_modified(second, now)),
            etag: validators.etag,
            coding,
            varies,
            object,
            tells_how: shared.config.cache_status,
        };
        // Nothing says whether a coding is that of a part or of what the parts come from.
        let is_coded = object.is_some_and(|it| it.content(&CONTENT_ENCODING).is_some());
        let ranges_max = if coding.is_some() || is_coded {
            1
        } else {
            shared.config.ranges_max
        };
        let answer = answer::of(
            head,
            request.head_only(),
            &validators,
            size_bytes,
            now,
            ranges_max,
        );
        let (status, ranges) = match answer {
            Answer::Whole => {
                response::whole(out, &common, &entity);
                let is_empty = request.head_only() || size_bytes == 0;
                let ranges = if is_empty {
                    Ranges::None
                } else {
                    Ranges::One(0..size_bytes)
                };
                (StatusCode::OK, ranges)
            }
            Answer::Part(range) => {
                response::part(out, &common, &entity, &range);
                (StatusCode::PARTIAL_CONTENT, Ranges::One(range))
            }
            Answer::Parts(ranges) => {
                // Another one for each response of a connection, and for each connection.
                let salt = self.stream.0.rotate_left(32) ^ self.output.queued_bytes();
                let between = &mut shared.between;
                let splices = response::parts(out, &common, &entity, ranges, between, salt);
                (StatusCode::PARTIAL_CONTENT, Ranges::Several(splices))
            }
            Answer::NotModified => {
                response::not_modified(out, &common, &entity);
                (StatusCode::NOT_MODIFIED, Ranges::None)
            }
            Answer::PreconditionFailed => {
                self.let_go(io, shared, &content);
                return self.refuse(io, shared, request, StatusCode::PRECONDITION_FAILED);
            }
            Answer::Unsatisfiable => {
                response::unsatisfiable(out, &common, size_bytes);
                (StatusCode::RANGE_NOT_SATISFIABLE, Ranges::None)
            }
        };
        let head_bytes = shared.out.len();
        let body = match ranges {
            Ranges::None => {
                self.let_go(io, shared, &content);
                None
            }
            Ranges::One(range) => Some(Body::one(content, head_bytes, range)),
            Ranges::Several(splices) => Some(Body::several(content, splices)),
        };
        if let Some(accesses) = &mut self.accesses {
            accesses.on_coding(coding);
        }
        self.send_content(io, shared, request, status, body);
    }

    /// Content that has been found is not needed.
    fn let_go(&self, io: &mut dyn Io, shared: &mut Shared, content: &Content) {
        if let Content::Segments(segments) = content {
            shared.tickets.remove(&segments.ticket);
        }
        content.close(io, shared.origins.as_deref_mut());
    }

    /// Asks an origin for what the request names; `shared.path` is what its target names.
    fn ask(&mut self, io: &mut dyn Io, shared: &mut Shared, request: Request, origin: &Arc<str>) {
        let target = &self.input.bytes()[request.target.clone()];
        let Ok(kind) = target::resolve(target, &mut shared.path) else {
            return self.refuse(io, shared, request, StatusCode::BAD_REQUEST);
        };
        let rule = request.rule();
        let is_signed = rule.is_some_and(|rule| rule.signed.is_some());
        let query = target::split_query(target).1;
        let unsigned = query.filter(|_| is_signed).map(signed::unsigned);
        let query = match &unsigned {
            Some(unsigned) => unsigned.as_deref(),
            None => query,
        };
        let wanted = target::at_origin(&shared.path, kind, query);
        let Some(origins) = &mut shared.origins else {
            return self.refuse(io, shared, request, StatusCode::SERVICE_UNAVAILABLE);
        };
        shared.ticket_last += 1;
        let ticket = Ticket(shared.ticket_last);
        shared.tickets.insert(ticket, self.stream);
        let fields = self.selecting(&request, origins.selecting());
        origins.ask(ticket, origin, &wanted, &fields);
        self.phase = Phase::Asking { ticket, request };
    }

    /// The lines of a request that have one of these names, as far as they are text.
    fn selecting(&self, request: &Request, names: &[&'static str]) -> Vec<(&'static str, String)> {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let lines = names.iter().flat_map(|&name| {
            let values = head.values_named(name);
            values.filter_map(move |value| Some((name, str::from_utf8(value).ok()?.to_owned())))
        });
        lines.collect()
    }

    /// The answer to what was asked of an origin.
    fn answered(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        ticket: Ticket,
        news: OriginEvent,
    ) {
        let request = match mem::replace(&mut self.phase, Phase::Reading) {
            Phase::Asking {
                ticket: asked,
                request,
            } if asked == ticket => request,
            other => {
                self.phase = other;
                return;
            }
        };
        self.watch.clear();
        let how = match &news {
            OriginEvent::Object(object) => Some(object.how),
            OriginEvent::Refused { how, .. } => Some(*how),
            OriginEvent::Segment(_) | OriginEvent::Lost => None,
        };
        if let (Some(accesses), Some(how)) = (&mut self.accesses, how) {
            accesses.on_how(how);
        }
        match news {
            OriginEvent::Object(object) => {
                let target = &self.input.bytes()[request.target.clone()];
                let shown = &target[..target.len().min(SHOWN_BYTES_MAX)];
                self.object = Some(String::from_utf8_lossy(shown).into());
                let media_type = match target::resolve(target, &mut shared.path) {
                    Ok(_) => mime::media_type(&shared.path),
                    Err(_) => mime::media_type(b""),
                };
                let found = Found {
                    size_bytes: object.size_bytes,
                    media_type,
                    validators: Validators {
                        etag: ETag::of_number(object.tag),
                        modified_s: object.last_modified_s,
                    },
                    coding: None,
                    varies: false,
                    content: Content::object(ticket, object),
                };
                self.answer(io, shared, request, found);
            }
            OriginEvent::Refused {
                status, location, ..
            } => {
                shared.tickets.remove(&ticket);
                match location {
                    Some(location) => {
                        shared.location.clear();
                        shared.location.extend_from_slice(location.as_bytes());
                        self.send_elsewhere(io, shared, request, status);
                    }
                    None => self.refuse(io, shared, request, status),
                }
            }
            OriginEvent::Lost => {
                shared.tickets.remove(&ticket);
                self.refuse(io, shared, request, StatusCode::BAD_GATEWAY);
            }
            // It was not asked for.
            OriginEvent::Segment(_) => self.phase = Phase::Asking { ticket, request },
        }
    }

    /// What has been promised is not to be had.
    fn give_up(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        tracing::debug!(
            stream = self.stream.0,
            "the rest of an object is not to be had"
        );
        shared.counters.contents_lost += 1;
        self.abort(io, shared);
    }

    fn open_failed(&mut self, io: &mut dyn Io, shared: &mut Shared, file: FileHandle, errno: u16) {
        let origins = shared.origins.as_deref_mut();
        match self.output.on_open_failed(file, errno, origins) {
            None => {}
            Some(true) => return,
            Some(false) => return self.give_up(io, shared),
        }
        if self.listing_failed(io, shared, file, errno) {
            return;
        }
        let Some((_, request, wanted)) = self.request_awaiting(file) else {
            return;
        };
        let attempt = match wanted {
            OpenPurpose::Content(attempt) => attempt,
            OpenPurpose::ErrorPage(status) => {
                tracing::warn!(stream = self.stream.0, errno, %status, "the page of an error could \
                    not be opened");
                return self.send_error(io, shared, request, status);
            }
        };
        let target = &self.input.bytes()[request.target.clone()];
        let is_directory = i32::from(errno) == libc::EISDIR && attempt.coding().is_none();
        if is_directory
            && target::redirect(target, &mut shared.path, &mut shared.location).is_some()
        {
            return self.send_elsewhere(io, shared, request, StatusCode::MOVED_PERMANENTLY);
        }
        let mut status = open_failure::status(errno);
        if status == StatusCode::NOT_FOUND || attempt.coding().is_some() {
            let site = request.site();
            if let Some(next) = site.and_then(|site| attempt.next(site)) {
                // It could be resolved before.
                let _ = target::resolve(target, &mut shared.path);
                return self.open(io, shared, request, next);
            }
            if attempt.coding().is_some() {
                status = StatusCode::NOT_ACCEPTABLE;
            }
        }
        if status == StatusCode::NOT_FOUND {
            return self.not_found(io, shared, request);
        }
        if status.is_server_error() {
            tracing::warn!(stream = self.stream.0, errno, %status, "a file could not be opened");
        }
        self.refuse(io, shared, request, status);
    }

    /// No file is there. An origin may have what is asked for, or it is a directory that is listed.
    fn not_found(&mut self, io: &mut dyn Io, shared: &mut Shared, request: Request) {
        let target = &self.input.bytes()[request.target.clone()];
        let site = request.site();
        let origin = site.and_then(|site| {
            let kind = target::resolve(target, &mut shared.path).ok()?;
            let (path, absolute) = (&shared.path, &mut shared.file_path);
            pulled(site, request.rule(), path, kind, absolute).map(Arc::clone)
        });
        match origin {
            Some(origin) => self.ask(io, shared, request, &origin),
            None => {
                if let Some(request) = self.list(io, shared, request) {
                    self.refuse(io, shared, request, StatusCode::NOT_FOUND);
                }
            }
        }
    }

    /// Answers with a refusal or failure, and the page that the site has for it.
    fn refuse(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        status: StatusCode,
    ) {
        let site = request.site();
        let page = site.and_then(|site| Some((site, site.error_page(status)?)));
        let Some((site, page)) = page else {
            return self.send_error(io, shared, request, status);
        };
        site.path(page, &mut shared.file_path);
        self.phase = Phase::Opening {
            file: io.open(self.stream, &shared.file_path, Growth::Forbidden),
            media_type: mime::media_type(&shared.file_path),
            request,
            wanted: OpenPurpose::ErrorPage(status),
        };
    }

    /// The same with a page that says no more than the status.
    fn send_error(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        status: StatusCode,
    ) {
        self.send_head(io, shared, request, status, |out, common, _| {
            response::error(out, common, status);
        });
    }

    /// Answers with a redirect to `shared.location`.
    fn send_elsewhere(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        status: StatusCode,
    ) {
        self.send_head(io, shared, request, status, |out, common, location| {
            response::moved(out, common, status, location);
        });
    }

    /// Answers OPTIONS (RFC 9110 §9.3.7), and with it a browser that asks what a page of another
    /// origin may.
    fn tell_options(&mut self, io: &mut dyn Io, shared: &mut Shared, request: Request) {
        let preflight = request.present.has(Field::AccessControlRequestMethod);
        let status = StatusCode::NO_CONTENT;
        self.send_head(io, shared, request, status, |out, common, _| {
            response::options(out, common, preflight);
        });
    }

    /// Answers without a file; `write` is given what all answers have in common, and
    /// `shared.location`.
    fn send_head(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        status: StatusCode,
        write: impl FnOnce(&mut Vec<u8>, &Common<'_>, &[u8]),
    ) {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let now = io.unix_time();
        let common = common(&mut shared.date, &request, head, now);
        write(&mut shared.out, &common, &shared.location);
        self.send(shared, request, status, None);
    }

    /// Begins to send the response in `shared.out`, and what of some content belongs to it.
    fn send_content(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        status: StatusCode,
        mut body: Option<Body>,
    ) {
        if let Some(body) = &mut body {
            self.pace(io, shared, &request, body);
        }
        self.send(shared, request, status, body);
    }

    /// Bounds the rate of the response that begins, as its path's rule and the configuration have
    /// it.
    fn pace(&mut self, io: &mut dyn Io, shared: &mut Shared, request: &Request, body: &mut Body) {
        let pace = request.rule().and_then(|rule| rule.pace);
        let Some(pace) = pace else {
            return self.limit(io, shared, None);
        };
        let rate_max = Some(pace.bytes_per_second);
        self.later_rate_max = rate_max;
        if body.pause_after(pace.at_once_bytes) {
            self.limit(io, shared, None)
        } else {
            self.limit(io, shared, rate_max)
        }
    }

    /// Begins to send the response in `shared.out`, and what of a file belongs to it.
    fn send(
        &mut self,
        shared: &mut Shared,
        request: Request,
        status: StatusCode,
        body: Option<Body>,
    ) {
        tracing::debug!(stream = self.stream.0, %status, "response");
        shared.counters.response(status);
        if let (Some(accesses), Some(log)) = (&mut self.accesses, &mut shared.access_log) {
            let site = request.site_name();
            let begun = Begun {
                request: &self.input.bytes()[..request.head_bytes],
                site: site.map(|name| name as &dyn std::fmt::Display),
                status: status.as_u16(),
                start: self.output.queued_bytes(),
                head_bytes: response::head_bytes(&shared.out),
                file_bytes: body.as_ref().map_or(0, Body::file_bytes),
            };
            accesses.on_response(log, &begun);
        }
        self.input.consume(request.head_bytes);
        self.body_bytes = request.body_bytes;
        // Lent, not copied: it comes back when the stream has taken it.
        self.output.begin(mem::take(&mut shared.out), body);
        self.phase = Phase::Sending {
            close: request.persistence == Persistence::Close,
        };
    }

    /// No further response: FIN after all that is queued.
    fn finish(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.input.release(&mut shared.pool);
        io.shutdown(self.stream);
        self.phase = Phase::Lingering {
            budget_bytes: shared.config.linger_bytes_max,
        };
    }

    fn abort(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        if let Phase::Asking { ticket, .. } = self.phase {
            shared.end_ticket(ticket);
        }
        self.input.release(&mut shared.pool);
        io.abort(self.stream);
        self.phase = Phase::Aborted;
    }

    /// How far the client has come.
    fn progress(&self, io: &dyn Io) -> Progress {
        Progress {
            acknowledged: io.acknowledged(self.stream),
            unacknowledged: io.unacknowledged(self.stream),
            waits_for_peer: self.rate_max.is_none() && io.waits_for_peer(self.stream),
        }
    }

    /// What has to happen next from outside.
    fn wait(&self, io: &dyn Io) -> Option<Wait> {
        match self.phase {
            Phase::Aborted => None,
            Phase::Opening { .. }
            | Phase::Listing { .. }
            | Phase::Asking { .. }
            | Phase::Sending { .. } => Some(Wait::Progress),
            Phase::Reading | Phase::Lingering { .. } if io.unacknowledged(self.stream) > 0 => {
                Some(Wait::Progress)
            }
            Phase::Lingering { .. } => Some(Wait::Linger),
            Phase::Reading if self.is_idle() => Some(Wait::Idle),
            Phase::Reading => Some(Wait::Head),
        }
    }

    fn expired(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        match self.watch.expire(&self.progress(io), &shared.config) {
            Expiry::Stale => {}
            Expiry::Again(after) => io.set_timer(self.stream, Some(after)),
            Expiry::Overdue(Wait::Head) => {
                shared.counters.head_timeouts += 1;
                // Who has asked nothing, or has been answered already, expects no 408.
                if self.body_bytes > 0 || without_empty_lines(self.input.bytes()).is_empty() {
                    self.finish(io, shared);
                } else {
                    let request = Request::broken(self.input.bytes(), StatusCode::REQUEST_TIMEOUT);
                    self.take_up(io, shared, request);
                }
            }
            Expiry::Overdue(Wait::Idle) => {
                shared.counters.idle_timeouts += 1;
                self.finish(io, shared);
            }
            Expiry::Overdue(Wait::Progress) => {
                let status = match self.phase {
                    Phase::Opening { .. } | Phase::Listing { .. } => {
                        Some(StatusCode::SERVICE_UNAVAILABLE)
                    }
                    Phase::Asking { .. } => Some(StatusCode::GATEWAY_TIMEOUT),
                    _ => None,
                };
                if let Some(status) = status.filter(|_| io.unacknowledged(self.stream) == 0) {
                    shared.counters.open_timeouts += 1;
                    self.end_ticket(shared);
                    self.hold(shared, 0);
                    // Should the answer come after all, no request awaits it.
                    let request = Request::broken(self.input.bytes(), status);
                    self.take_up(io, shared, request);
                } else {
                    shared.counters.stall_timeouts += 1;
                    self.abort(io, shared);
                }
            }
            Expiry::TooSlow => {
                shared.counters.rate_timeouts += 1;
                if shared.slow_clients.begins(io.now_us()) {
                    tracing::warn!(
                        stream = self.stream.0,
                        "a client takes less than rate_min: it is reset; later ones are only \
                         counted"
                    );
                }
                self.abort(io, shared);
            }
            Expiry::Overdue(Wait::Linger) => {
                shared.counters.linger_timeouts += 1;
                self.abort(io, shared);
            }
        }
    }
}

/// Content that a request is answered with, or with a part of it.
struct Found {
    content: Content,
    size_bytes: u64,
    media_type: &'static str,
    validators: Validators,
    coding: Option<Coding>,
    varies: bool,
}

/// The origin that what a request names comes from, if it is no file; `path` is what
/// [`target::resolve`] has made of its target.
fn pulled<'a>(
    site: &'a Site,
    rule: Option<&'a Rule>,
    path: &[u8],
    kind: Kind,
    absolute: &mut Vec<u8>,
) -> Option<&'a Arc<str>> {
    match rule.and_then(|rule| rule.pull.as_ref()) {
        Some(RulePull::Off) => None,
        Some(RulePull::From(origin)) => Some(origin),
        None if site.pulls.is_empty() => None,
        None => {
            target::absolute(path, kind, absolute);
            site.pull(absolute).map(|pull| &pull.origin)
        }
    }
}

/// What the answer to a request says in any case.
fn common<'a>(
    date: &'a mut DateCache,
    request: &'a Request,
    head: Head<'a>,
    unix_time: Duration,
) -> Common<'a> {
    let rule = request.rule();
    let cors = rule.and_then(|rule| rule.cors.as_ref());
    Common {
        date: date.at(unix_time),
        persistence: request.persistence,
        head_only: request.head_only(),
        rule,
        origin: cors.and_then(|_| head.value(Field::Origin)),
        unix_time,
    }
}
