//! From what has been found to a response that is being queued.

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
use crate::semantics::mime;
use crate::semantics::open_failure;
use crate::semantics::pull::{Object, OriginEvent, Passed, Ticket};
use crate::semantics::range::Limits;
use crate::semantics::target;

/// What of the content a response has.
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

    /// Answers with a refusal or failure, and the page that the site has for it.
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
        response::error_with_file(&mut shared.out, &common, status, size_bytes, media_type);
        let body = if request.head_only() || size_bytes == 0 {
            io.close_file(file);
            None
        } else {
            Some(Body::one(Content::File(file), 0..size_bytes))
        };
        self.send_content(io, shared, request, status, body);
    }

    /// Answers with content that has been found, or what of it is asked for.
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
            media_type,
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
        let body = match ranges {
            Ranges::None => {
                self.let_go(io, shared, &content);
                None
            }
            Ranges::One(range) => Some(Body::one(content, range)),
            Ranges::Several(parts) => Some(Body::several(content, parts)),
        };
        if let Some(accesses) = &mut self.accesses {
            accesses.on_coding(coding);
        }
        self.send_content(io, shared, request, status, body);
    }

    /// A boundary for the response that begins: another one for each response of a connection, and
    /// for each connection. No file contains it by intention, which hangs on when it is sent.
    fn boundary(&self, now: Duration) -> [u64; 2] {
        let mut hasher = SipHasher13::new();
        hasher.write(&now.as_nanos().to_le_bytes());
        let number = self.stream.0.rotate_left(32) ^ self.output.queued_bytes();
        [hasher.finish(), number]
    }

    /// The request has more ranges than it may have.
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

    /// Which of its content the request gets.
    #[inline]
    fn decide(&self, io: &dyn Io, shared: &Shared, request: &Request<V>, found: &Found) -> Answer {
        if !request.present.has_conditions() {
            return Answer::Whole;
        }
        self.decide_by_fields(io, shared, request, found)
    }

    /// The same if the request has conditions or ranges.
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
            response::part_head_bytes_max(found.media_type, passed, found.size_bytes)
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

    /// Content that has been found is not needed.
    fn let_go(&self, io: &mut dyn Io, shared: &mut Shared, content: &Content) {
        if let Content::Segments(segments) = content {
            shared.tickets.remove(&segments.ticket);
        }
        content.close(io, shared.origins.as_deref_mut());
    }

    /// What an origin says with a refusal, until that is written.
    fn hold_passed(&mut self, passed: Option<Box<Passed>>) {
        match (&mut self.held, passed) {
            (None, None) => {}
            (held, passed) => held.get_or_insert_default().passed = passed,
        }
    }

    /// The answer to what was asked of an origin.
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
        let how = match &news {
            OriginEvent::Object(object) => Some(object.how),
            OriginEvent::Refused { how, .. } => Some(*how),
            OriginEvent::Segment(_) | OriginEvent::Lost { .. } => None,
        };
        if let (Some(accesses), Some(how)) = (&mut self.accesses, how) {
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
                // It was not asked for.
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

    /// An object, as the content that its path is answered with.
    fn found(
        &self,
        shared: &mut Shared,
        ticket: Ticket,
        request: &Request<V>,
        object: Box<Object>,
    ) -> Found {
        let target = &self.input.bytes()[request.target.clone()];
        let media_type = match target::resolve(target, &mut shared.path) {
            Ok(_) => mime::media_type(&shared.path),
            Err(_) => mime::media_type(b""),
        };
        Found {
            size_bytes: object.size_bytes,
            media_type,
            validators: Validators::of_number(object.tag, object.last_modified_s),
            coding: None,
            content: Content::object(ticket, object),
        }
    }

    /// Answers with an object once the first segment is there that the response needs: as long as
    /// no head has left, an origin that does not give it after all is 502, and not a response that
    /// breaks off.
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

    /// Answers with a refusal or failure: opens the page that the site has for it.
    pub(super) fn refuse(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
    ) {
        let site = request.site();
        let page = site.and_then(|site| Some((site, site.error_page(status)?)));
        let Some((site, page)) = page else {
            return self.send_error(io, shared, request, status);
        };
        site.path(page, &mut shared.file_path);
        self.stage = Stage::Opening {
            file: io.open(self.stream, &shared.file_path, Growth::Forbidden),
            media_type: mime::media_type(&shared.file_path),
            request,
            wanted: OpenPurpose::ErrorPage(status),
        };
    }

    /// The same with a page that says no more than the status.
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

    /// Answers OPTIONS (RFC 9110 §9.3.7), and with it a browser that asks what a page of another
    /// origin may.
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

    /// Answers without a file; `write` is given what all answers have in common, and
    /// `shared.location`.
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

    /// Begins to send the response in `shared.out`, and what of some content belongs to it.
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

    /// Bounds the rate of the response that begins, as its path's rule and the configuration have
    /// it.
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

    /// Begins to send the response in `shared.out`, and what of a file belongs to it.
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
                start: self.output.queued_bytes(),
                head_bytes: V::body_start(&shared.out),
                file_bytes: body.as_ref().map_or(0, Body::file_bytes),
            };
            accesses.on_response(log, &begun);
        }
        self.input.consume(request.head_bytes);
        // Lent, not copied: it comes back when the stream has taken it.
        self.output.begin(mem::take(&mut shared.out), body);
        self.stage = Stage::Sending {
            version: request.version,
        };
    }
}

impl<V: Version> Exchange<V> {
    /// The client does not accept so long a head (RFC 9114 §4.2.2).
    #[inline]
    fn is_too_long(&self, response: &[u8]) -> bool {
        V::has_longer_section(response, self.section_bytes_max)
    }

    /// Replaces the response in `shared.out` by an error without any field of the origin or a rule.
    #[cold]
    fn write_shorter(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        (request, status): (&Request<V>, StatusCode),
        body: Option<Body>,
    ) {
        tracing::debug!(stream = self.stream.0, "the client accepts no head so long");
        shared.counters.http3_oversized_heads += 1;
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

/// Content that a request is answered with, or with a part of it.
struct Found {
    content: Content,
    size_bytes: u64,
    media_type: &'static str,
    validators: Validators,
    coding: Option<Coding>,
}

/// The page of a refusal or failure, which is open.
struct ErrorPage {
    file: FileHandle,
    size_bytes: u64,
    media_type: &'static str,
}

/// True if the bytes of some content are coded: no field tells whether a coding is that of a part
/// or of the whole.
fn is_coded(content: &Content, coding: Option<Coding>) -> bool {
    match content {
        Content::File(_) => coding.is_some(),
        Content::Segments(it) => it.object.passed.value(&CONTENT_ENCODING).is_some(),
    }
}

/// Writes the head of an answer to a request for some content; `None` if a precondition has failed,
/// which is a refusal. `boundary` is that of a multipart body.
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

/// What the answer to a request says in any case.
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
        varies_by_encoding: request.is_negotiated,
    }
}
