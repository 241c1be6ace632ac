//! From what has been found to a response that is being queued.

use std::mem;
use std::ops::Range;
use std::time::Duration;

use host::Growth;
use host::app::{FileHandle, FileMeta, Io};
use http::StatusCode;
use http::header::CONTENT_ENCODING;

use super::{Awaited, Exchange, OpenPurpose, SHOWN_BYTES_MAX, Stage};
use crate::access::Begun;
use crate::config::Config;
use crate::exchange::output::{Body, Splice};
use crate::exchange::request::Request;
use crate::exchange::response::{self, Common, Entity};
use crate::exchange::shared::Shared;
use crate::exchange::version::Version;
use crate::semantics::answer::{self, Answer};
use crate::semantics::conditional::Validators;
use crate::semantics::content::{Content, Segments};
use crate::semantics::date::{self, DateCache};
use crate::semantics::encoding::Coding;
use crate::semantics::etag::ETag;
use crate::semantics::fields::{Field, Head};
use crate::semantics::mime;
use crate::semantics::open_failure;
use crate::semantics::pull::{Object, OriginEvent, Passed, Ticket};
use crate::semantics::target;

/// What of the content a response has.
#[derive(Debug)]
enum Ranges {
    None,
    One(Range<u64>),
    Several(Vec<Splice>),
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
        let now = io.unix_time();
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let common = Common {
            passed: self.held.as_ref().and_then(|held| held.passed.as_deref()),
            ..common(&mut shared.date, &shared.config, &request, head, now)
        };
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
    fn answer(&mut self, io: &mut dyn Io, shared: &mut Shared, request: Request<V>, found: Found) {
        let answer = self.decide(io, shared, &request, &found);
        let Found {
            mut content,
            size_bytes,
            media_type,
            validators,
            coding,
            varies,
        } = found;
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
        let entity = Entity {
            size_bytes,
            media_type,
            last_modified: validators
                .modified_s
                .and_then(|second| date::last_modified(second, now)),
            etag: validators.etag,
            coding,
            varies,
            how: how.filter(|_| shared.config.cache_status),
        };
        // Another boundary for each response of a connection, and for each connection.
        let salt = self.stream.0.rotate_left(32) ^ self.output.queued_bytes();
        let between = &mut shared.between;
        let written = write_answer(out, between, &common, &entity, answer, salt);
        let passed = content
            .segments()
            .map(|it| mem::take(&mut it.object.passed));
        let Some((status, ranges)) = written else {
            self.let_go(io, shared, &content);
            self.hold_passed(passed.map(Box::new));
            return self.refuse(io, shared, request, StatusCode::PRECONDITION_FAILED);
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

    /// Which of its content the request gets.
    fn decide(&self, io: &dyn Io, shared: &Shared, request: &Request<V>, found: &Found) -> Answer {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        // Nothing says whether a coding is that of a part or of what the parts come from.
        let is_coded = match &found.content {
            Content::File(_) => found.coding.is_some(),
            Content::Segments(it) => it.object.passed.value(&CONTENT_ENCODING).is_some(),
        };
        let ranges_max = if is_coded {
            1
        } else {
            shared.config.ranges_max
        };
        answer::of(
            head,
            request.head_only(),
            &found.validators,
            found.size_bytes,
            io.unix_time(),
            ranges_max,
        )
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
            OriginEvent::Lost => {
                shared.tickets.remove(&ticket);
                self.refuse(io, shared, request, StatusCode::BAD_GATEWAY);
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
            validators: Validators {
                etag: ETag::of_number(object.tag),
                modified_s: object.last_modified_s,
            },
            coding: None,
            varies: false,
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
            Answer::Whole if !request.head_only() => 0..found.size_bytes,
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

    /// Answers with a refusal or failure, and the page that the site has for it.
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
        self.send(shared, request, status, None);
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
        self.send(shared, request, status, body);
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
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
        body: Option<Body>,
    ) {
        self.hold_passed(None);
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

/// Content that a request is answered with, or with a part of it.
struct Found {
    content: Content,
    size_bytes: u64,
    media_type: &'static str,
    validators: Validators,
    coding: Option<Coding>,
    varies: bool,
}

/// Writes the head of an answer to a request for some content, and what stands between its parts;
/// `None` if a precondition has failed, which is a refusal. `salt` makes boundaries differ.
fn write_answer<V: Version>(
    out: &mut Vec<u8>,
    between: &mut Vec<u8>,
    common: &Common<'_, V>,
    entity: &Entity<'_>,
    answer: Answer,
    salt: u64,
) -> Option<(StatusCode, Ranges)> {
    let size_bytes = entity.size_bytes;
    Some(match answer {
        Answer::Whole => {
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
            let splices = response::parts(out, common, entity, ranges, between, salt);
            (StatusCode::PARTIAL_CONTENT, Ranges::Several(splices))
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
    }
}
