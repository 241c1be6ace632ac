//! From an opened file, an object or a failure to a queued response.

use std::hash::Hasher;
use std::mem;
use std::ops::Range;
use std::time::Duration;

use host::Growth;
use host::app::{FileHandle, FileMeta, Io};
use http::StatusCode;
use http::header::CONTENT_ENCODING;
use siphasher::sip::SipHasher13;

use super::{Awaited, Exchange, OpenPurpose, SHOWN_BYTES_MAX, Stage};
use crate::access::Begun;
use crate::config::Config;
use crate::exchange::multipart::Multipart;
use crate::exchange::output::Body;
use crate::exchange::request::Request;
use crate::exchange::response::{self, Common, Entity};
use crate::exchange::shared::Shared;
use crate::exchange::version::Version;
use crate::semantics::answer::{self, Answer, Opened};
use crate::semantics::conditional::Validators;
use crate::semantics::content::{Content, Segments};
use crate::semantics::date::{self, DateCache};
use crate::semantics::encoding::Coding;
use crate::semantics::fields::{Field, Head};
use crate::semantics::mime::{MediaType, MediaTypes};
use crate::semantics::open_failure;
use crate::semantics::pull::{Object, OriginEvent, Passed, Ticket};
use crate::semantics::range::Limits;
use crate::semantics::target;

/// Ranges of the content in a response body.
#[derive(Debug)]
enum Ranges {
    None,
    One(Range<u64>),
    Several(Multipart),
}

impl<V: Version> Exchange<V> {
    pub(super) fn opened(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        file: FileHandle,
        meta: &FileMeta,
    ) {
        let origins = shared.origins.as_deref_mut();
        match self.output.on_opened(io, file, meta, origins) {
            None => {}
            Some(true) => return,
            Some(false) => return self.give_up(shared),
        }
        let Some((media_type, request, wanted)) = self.request_awaiting(file) else {
            return io.close_file(file);
        };
        let attempt = match wanted {
            OpenPurpose::Content(attempt) => attempt,
            OpenPurpose::ErrorPage(status) => {
                let page = ErrorPage {
                    file,
                    size_bytes: meta.size,
                    media_type,
                };
                return self.send_error_page(io, shared, request, status, page);
            }
        };
        let now = io.unix_time();
        let coding = attempt.coding();
        let is_anywhere = shared.config.roots_are_replicas;
        let found = Found {
            content: Content::File(file),
            size_bytes: meta.size,
            media_type,
            validators: Validators::of_file(meta, coding, now, is_anywhere),
            coding,
        };
        self.answer(io, shared, request, found);
    }

    /// Answers with an error and the site's page for it.
    #[cold]
    fn send_error_page(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
        page: ErrorPage,
    ) {
        let ErrorPage {
            file,
            size_bytes,
            media_type,
        } = page;
        let now = io.unix_time();
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let common = Common {
            passed: self.held.as_ref().and_then(|held| held.passed.as_deref()),
            ..common(&mut shared.date, &shared.config, &request, head, now)
        };
        response::error_with_file(&mut shared.out, &common, status, size_bytes, &media_type);
        let body = if request.head_only() || size_bytes == 0 {
            io.close_file(file);
            None
        } else {
            Some(Body::one(Content::File(file), 0..size_bytes))
        };
        self.send_content(io, shared, request, status, body);
    }

    /// Answers with the content, or with the requested ranges.
    fn answer(&mut self, io: &mut dyn Io, shared: &mut Shared, request: Request<V>, found: Found) {
        let answer = self.decide(io, shared, &request, &found);
        let Found {
            mut content,
            size_bytes,
            media_type,
            validators,
            coding,
        } = found;
        if matches!(answer, Answer::PreconditionFailed | Answer::Unsatisfiable)
            && let Some(segments) = content.segments()
        {
            segments.object.passed.drop_freshness();
        }
        let now = io.unix_time();
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let object = match &content {
            Content::File(_) => None,
            Content::Segments(segments) => Some(&*segments.object),
        };
        let common = Common {
            passed: object.map(|object| &object.passed),
            ..common(&mut shared.date, &shared.config, &request, head, now)
        };
        let out = &mut shared.out;
        let how = object.map(|object| object.how);
        let is_coded = is_coded(&content, coding);
        let entity = Entity {
            size_bytes,
            media_type: &media_type,
            last_modified: validators
                .modified_s
                .filter(|_| validators.is_dated)
                .and_then(|second| date::last_modified(second, now)),
            etag: validators.etag,
            coding,
            is_indivisible: is_coded && request.present.has(Field::AcceptEncoding),
            how: how.filter(|_| shared.config.cache_status),
        };
        let is_over_limit = answer == Answer::TooManyRanges;
        let written = write_answer(out, &common, &entity, answer, || self.boundary(now));
        if is_over_limit {
            self.note_too_many_ranges(io, shared);
        }
        let passed = content
            .segments()
            .map(|it| mem::take(&mut it.object.passed));
        let Some((status, ranges)) = written else {
            self.let_go(io, shared, &content);
            self.hold_passed(passed.map(Box::new));
            return self.refuse(io, shared, request, StatusCode::PRECONDITION_FAILED);
        };
        let tail = self.take_trailers(shared, &request, status, &mut content);
        let tail_bytes = tail.len();
        let mut body = match ranges {
            Ranges::None => {
                self.let_go(io, shared, &content);
                None
            }
            Ranges::One(range) => Some(Body::one(content, range)),
            Ranges::Several(parts) => Some(Body::several(content, parts)),
        };
        match &mut body {
            Some(body) => body.end_with(tail),
            None => shared.out.extend_from_slice(&tail),
        }
        if let Some(accesses) = &mut self.accesses {
            accesses.on_coding(coding);
            accesses.on_trailers(tail_bytes);
        }
        self.send_content(io, shared, request, status, body);
    }

    /// Takes the trailers of an object, for a response with the whole object, if its version and
    /// its client accept them; the head in `shared.out` then announces them.
    fn take_trailers(
        &self,
        shared: &mut Shared,
        request: &Request<V>,
        status: StatusCode,
        content: &mut Content,
    ) -> Vec<u8> {
        let mut tail = Vec::new();
        let Some(segments) = content.segments() else {
            return tail;
        };
        let fields = mem::take(&mut segments.object.trailers);
        let is_whole = status == StatusCode::OK && !request.head_only();
        if !is_whole || fields.is_empty() || !request.version.trailers(&mut tail, &fields) {
            return tail;
        }
        if V::has_longer_section(&tail, self.section_bytes_max) {
            return Vec::new();
        }
        V::expect_trailers(&mut shared.out, tail.len() as u64);
        tail
    }

    /// Returns a multipart boundary that differs between the responses of a connection, and between
    /// connections. It depends on the time of sending, so a file cannot contain it by intention.
    fn boundary(&self, now: Duration) -> [u64; 2] {
        let mut hasher = SipHasher13::new();
        hasher.write(&now.as_nanos().to_le_bytes());
        let number = self.stream.0.rotate_left(32) ^ self.output.queued_bytes();
        [hasher.finish(), number]
    }

    /// Notes a request with more ranges than the limit.
    fn note_too_many_ranges(&self, io: &dyn Io, shared: &mut Shared) {
        shared.counters.ranges_over_limit += 1;
        if shared.many_ranges.begins(io.now_us()) {
            tracing::warn!(
                stream = self.stream.0,
                "a request has more ranges than ranges_max: it gets the whole file; later ones are \
                 only counted"
            );
        }
    }

    /// Decides which part of the content the request gets.
    #[inline]
    fn decide(&self, io: &dyn Io, shared: &Shared, request: &Request<V>, found: &Found) -> Answer {
        if !request.present.has_conditions() {
            return Answer::Whole;
        }
        self.decide_by_fields(io, shared, request, found)
    }

    /// Decides for a request with conditions or ranges.
    #[inline(never)]
    fn decide_by_fields(
        &self,
        io: &dyn Io,
        shared: &Shared,
        request: &Request<V>,
        found: &Found,
    ) -> Answer {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let passed = match &found.content {
            Content::File(_) => None,
            Content::Segments(segments) => Some(&segments.object.passed),
        };
        let gap_bytes_max = if request.present.has(Field::Range) {
            response::part_head_bytes_max(&found.media_type, passed, found.size_bytes)
        } else {
            0
        };
        let limits = Limits {
            ranges_max: shared.config.ranges_max,
            gap_bytes_max,
        };
        let opened = Opened {
            validators: &found.validators,
            size_bytes: found.size_bytes,
            is_coded: is_coded(&found.content, found.coding),
        };
        answer::of(head, request.head_only(), opened, io.unix_time(), limits)
    }

    /// Releases content that is not needed.
    fn let_go(&self, io: &mut dyn Io, shared: &mut Shared, content: &Content) {
        if let Content::Segments(segments) = content {
            shared.tickets.remove(&segments.ticket);
        }
        content.close(io, shared.origins.as_deref_mut());
    }

    /// Keeps the fields of an origin's response until the refusal is written.
    fn hold_passed(&mut self, passed: Option<Box<Passed>>) {
        match (&mut self.held, passed) {
            (None, None) => {}
            (held, passed) => held.get_or_insert_default().passed = passed,
        }
    }

    /// Handles the fetcher's answer to a request.
    pub(super) fn answered(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        ticket: Ticket,
        news: OriginEvent,
    ) {
        let (request, awaited) = match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Asking {
                ticket: asked,
                request,
                awaited,
            } if asked == ticket => (request, awaited),
            other => {
                self.stage = other;
                return;
            }
        };
        self.watch.clear();
        if let (Some(accesses), Some(how)) = (&mut self.accesses, news.how()) {
            accesses.on_how(how);
        }
        match news {
            OriginEvent::Object(object) => {
                let target = &self.input.bytes()[request.target.clone()];
                let shown = &target[..target.len().min(SHOWN_BYTES_MAX)];
                self.object = Some(String::from_utf8_lossy(shown).into());
                let found = self.found(shared, ticket, &request, object);
                self.answer_if_there(io, shared, request, found);
            }
            OriginEvent::EarlyHints(links) => {
                if awaited.is_none() {
                    self.hint(shared, &request, links.iter());
                }
                self.stage = Stage::Asking {
                    ticket,
                    request,
                    awaited,
                };
            }
            OriginEvent::Refused {
                status,
                location,
                passed,
                ..
            } => {
                shared.tickets.remove(&ticket);
                self.hold_passed(passed);
                match location {
                    Some(location) => {
                        shared.location.clear();
                        shared.location.extend_from_slice(location.as_bytes());
                        self.send_elsewhere(io, shared, request, status);
                    }
                    None => self.refuse(io, shared, request, status),
                }
            }
            OriginEvent::Lost { status } => {
                shared.tickets.remove(&ticket);
                self.refuse(io, shared, request, status);
            }
            OriginEvent::Segment(segment) => match awaited {
                Some(awaited) if awaited.segment == segment => {
                    let mut object = awaited.object;
                    object.present.push((segment, segment + 1));
                    let found = self.found(shared, ticket, &request, object);
                    self.answer(io, shared, request, found);
                }
                // Not the awaited segment.
                awaited => {
                    self.stage = Stage::Asking {
                        ticket,
                        request,
                        awaited,
                    }
                }
            },
        }
    }

    /// Describes an object as content for its path.
    fn found(
        &self,
        shared: &mut Shared,
        ticket: Ticket,
        request: &Request<V>,
        object: Box<Object>,
    ) -> Found {
        let path = match target::resolve(self.served_target(request), &mut shared.path) {
            Ok(_) => &shared.path[..],
            Err(_) => b"",
        };
        let media_type = match request.site() {
            Some(site) => site.media_types.of(path),
            None => MediaTypes::default().of(path),
        };
        Found {
            size_bytes: object.size_bytes,
            media_type,
            validators: Validators::of_number(object.tag, object.last_modified_s),
            coding: None,
            content: Content::object(ticket, object),
        }
    }

    /// Answers with an object once the first segment that the response needs is present: before the
    /// head is sent, an origin that does not deliver the segment causes a 502, not a truncated
    /// response.
    fn answer_if_there(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        found: Found,
    ) {
        let needed = match self.decide(io, shared, &request, &found) {
            Answer::Whole | Answer::TooManyRanges if !request.head_only() => 0..found.size_bytes,
            Answer::Part(range) => range,
            Answer::Parts(ranges) => ranges.into_iter().next().unwrap_or_default(),
            _ => 0..0,
        };
        match (found.content, &mut shared.origins) {
            (Content::Segments(segments), Some(origins))
                if !needed.is_empty()
                    && !segments
                        .object
                        .has(segments.object.segment_of(needed.start).0) =>
            {
                let Segments { ticket, object, .. } = *segments;
                let (segment, ..) = object.segment_of(needed.start);
                let end = needed.end.div_ceil(object.segment_bytes.get());
                origins.want(ticket, segment..end);
                self.stage = Stage::Asking {
                    ticket,
                    request,
                    awaited: Some(Box::new(Awaited { object, segment })),
                };
            }
            (content, _) => self.answer(io, shared, request, Found { content, ..found }),
        }
    }

    pub(super) fn open_failed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        file: FileHandle,
        errno: u16,
    ) {
        let origins = shared.origins.as_deref_mut();
        match self.output.on_open_failed(file, errno, origins) {
            None => {}
            Some(true) => return,
            Some(false) => return self.give_up(shared),
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
        // A slash at the end of the requested target makes a directory of no fallback.
        if is_directory
            && request.fallbacks == 0
            && target::redirect(target, &mut shared.path, &mut shared.location).is_some()
        {
            return self.send_elsewhere(io, shared, request, StatusCode::MOVED_PERMANENTLY);
        }
        let mut status = open_failure::status(errno);
        if status == StatusCode::NOT_FOUND || attempt.coding().is_some() {
            let site = request.site();
            if let Some(next) = site.and_then(|site| attempt.next(site)) {
                // The target was resolved before.
                let target = self.served_target(&request);
                let _ = target::resolve(target, &mut shared.path);
                return self.open(io, shared, request, next);
            }
            if attempt.coding().is_some() {
                status = match attempt.refuses_plain() {
                    true => StatusCode::NOT_ACCEPTABLE,
                    false => StatusCode::NOT_FOUND,
                };
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

    /// Answers with an error: opens the site's page for the status, if there is one.
    pub(super) fn refuse(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
    ) {
        let own = request.rule().and_then(|rule| rule.error_page(status));
        let page = request.site().and_then(|site| {
            let page = own.or_else(|| site.error_page(status))?;
            Some((site, page))
        });
        let Some((site, page)) = page else {
            return self.send_error(io, shared, request, status);
        };
        site.path(page, &mut shared.file_path);
        self.stage = Stage::Opening {
            file: io.open(self.stream, &shared.file_path, Growth::Forbidden),
            media_type: site.media_types.of(&shared.file_path),
            request,
            wanted: OpenPurpose::ErrorPage(status),
        };
    }

    /// Answers with the built-in page of the status.
    pub(super) fn send_error(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
    ) {
        self.send_head(io, shared, request, status, |out, common, _| {
            response::error(out, common, status);
        });
    }

    /// Answers with a redirect to `shared.location`.
    pub(super) fn send_elsewhere(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
    ) {
        self.send_head(io, shared, request, status, |out, common, location| {
            response::moved(out, common, status, location);
        });
    }

    /// Answers OPTIONS (RFC 9110 §9.3.7), including CORS preflights.
    pub(super) fn tell_options(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
    ) {
        let preflight = request.present.has(Field::AccessControlRequestMethod);
        let status = StatusCode::NO_CONTENT;
        self.send_head(io, shared, request, status, |out, common, _| {
            response::options(out, common, preflight);
        });
    }

    /// Answers without a file; `write` gets the context of the head and `shared.location`.
    fn send_head(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
        write: impl FnOnce(&mut Vec<u8>, &Common<'_, V>, &[u8]),
    ) {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let now = io.unix_time();
        let common = Common {
            passed: self.held.as_ref().and_then(|held| held.passed.as_deref()),
            ..common(&mut shared.date, &shared.config, &request, head, now)
        };
        write(&mut shared.out, &common, &shared.location);
        self.send(io, shared, request, status, None);
    }

    /// Begins to send the response in `shared.out` and its body, at the rate of the path's rule.
    fn send_content(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
        mut body: Option<Body>,
    ) {
        if let Some(body) = &mut body {
            self.pace(io, shared, &request, body);
        }
        self.send(io, shared, request, status, body);
    }

    /// Limits the rate of the response as its path's rule and the configuration require.
    fn pace(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: &Request<V>,
        body: &mut Body,
    ) {
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

    /// Begins to send the response in `shared.out` and its body.
    pub(super) fn send(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        mut status: StatusCode,
        mut body: Option<Body>,
    ) {
        self.hold_passed(None);
        if self.is_too_long(&shared.out) {
            status = StatusCode::BAD_GATEWAY;
            self.write_shorter(io, shared, (&request, status), body.take());
            if self.is_too_long(&shared.out) {
                return self.abandon(shared);
            }
        }
        tracing::debug!(stream = self.stream.0, %status, "response");
        shared.counters.response(status);
        if let (Some(accesses), Some(log)) = (&mut self.accesses, &mut shared.access_log) {
            let site = request.site_name();
            let begun = Begun {
                request: &self.input.bytes()[..request.head_bytes],
                site: site.map(|name| name as &dyn std::fmt::Display),
                status: status.as_u16(),
                start: self.output.next_start(),
                head_bytes: V::body_start(&shared.out),
                file_bytes: body.as_ref().map_or(0, Body::file_bytes),
            };
            accesses.on_response(log, &begun);
        }
        self.input.consume(request.head_bytes);
        // Moved, not copied: `queue` returns the buffer to `shared.out`.
        self.output.begin(mem::take(&mut shared.out), body);
        self.stage = Stage::Sending {
            version: request.version,
        };
    }
}

impl<V: Version> Exchange<V> {
    /// True if the client does not accept a head of this length (RFC 9114 §4.2.2).
    #[inline]
    fn is_too_long(&self, response: &[u8]) -> bool {
        V::has_longer_section(response, self.section_bytes_max)
    }

    /// Replaces the response in `shared.out` by an error without fields of the origin or of a rule.
    #[cold]
    fn write_shorter(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        (request, status): (&Request<V>, StatusCode),
        body: Option<Body>,
    ) {
        tracing::debug!(stream = self.stream.0, "the client accepts no head so long");
        shared.counters.oversized_heads += 1;
        if let Some(body) = &body {
            self.let_go(io, shared, body.content());
        }
        let now = io.unix_time();
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let common = Common {
            rule: None,
            varies_by_encoding: false,
            ..common(&mut shared.date, &shared.config, request, head, now)
        };
        response::error(&mut shared.out, &common, status);
    }
}

/// Content that answers a request, in whole or in part.
struct Found {
    content: Content,
    size_bytes: u64,
    media_type: MediaType,
    validators: Validators,
    coding: Option<Coding>,
}

/// An open error page.
struct ErrorPage {
    file: FileHandle,
    size_bytes: u64,
    media_type: MediaType,
}

/// True if the content is coded: no field states whether a coding applies to a part or to the
/// whole.
fn is_coded(content: &Content, coding: Option<Coding>) -> bool {
    match content {
        Content::File(_) => coding.is_some(),
        Content::Segments(it) => it.object.passed.value(&CONTENT_ENCODING).is_some(),
    }
}

/// Writes the head of the answer to a request for content; `None` if a precondition failed, which
/// is an error. `boundary` returns the boundary of a multipart body.
fn write_answer<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    entity: &Entity<'_>,
    answer: Answer,
    boundary: impl FnOnce() -> [u64; 2],
) -> Option<(StatusCode, Ranges)> {
    let size_bytes = entity.size_bytes;
    Some(match answer {
        Answer::Whole | Answer::TooManyRanges => {
            response::whole(out, common, entity);
            let is_empty = common.head_only || size_bytes == 0;
            let ranges = if is_empty {
                Ranges::None
            } else {
                Ranges::One(0..size_bytes)
            };
            (StatusCode::OK, ranges)
        }
        Answer::Part(range) => {
            response::part(out, common, entity, &range);
            (StatusCode::PARTIAL_CONTENT, Ranges::One(range))
        }
        Answer::Parts(ranges) => {
            let parts = entity.multipart(ranges, boundary(), common.passed);
            response::parts(out, common, entity, &parts);
            (StatusCode::PARTIAL_CONTENT, Ranges::Several(parts))
        }
        Answer::NotModified => {
            response::not_modified(out, common, entity);
            (StatusCode::NOT_MODIFIED, Ranges::None)
        }
        Answer::PreconditionFailed => return None,
        Answer::Unsatisfiable => {
            response::unsatisfiable(out, common, size_bytes);
            (StatusCode::RANGE_NOT_SATISFIABLE, Ranges::None)
        }
    })
}

/// Returns the context of a response head, without fields of an origin.
pub(super) fn common<'a, V: Version>(
    date: &'a mut DateCache,
    config: &Config,
    request: &'a Request<V>,
    head: Head<'a>,
    unix_time: Duration,
) -> Common<'a, V> {
    let rule = request.rule();
    let cors = rule.and_then(|rule| rule.cors.as_ref());
    Common {
        date: date.at(unix_time),
        version: request.version,
        head_only: request.head_only(),
        rule,
        passed: None,
        origin: cors.and_then(|_| head.value(Field::Origin)),
        unix_time,
        http3_port: config.http3_port,
        is_https: request.is_https(),
        hsts: request.hsts(),
        varies_by_encoding: request.is_negotiated,
        retry_after_s: request.retry_after_s,
        varies_by_fields: request.site().filter(|_| request.varies),
    }
}
