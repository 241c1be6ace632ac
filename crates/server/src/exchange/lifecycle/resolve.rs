//! From a request to the source of its answer: a file, a directory listing, an origin, or the rules
//! of its site alone.

use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;

use host::Source;
use host::app::{FileHandle, Io};
use http::{HeaderValue, StatusCode};

use super::{Exchange, OpenPurpose, Stage};
use crate::exchange::request::{Place, Request, Rewritten};
use crate::exchange::response;
use crate::exchange::shared::Shared;
use crate::exchange::version::Version;
use crate::semantics::attempt::Attempt;
use crate::semantics::conditional;
use crate::semantics::early_hints::{self, EarlyHint};
use crate::semantics::encoding::Acceptable;
use crate::semantics::fields::{Field, Head};
use crate::semantics::method::Method;
use crate::semantics::mime::MediaType;
use crate::semantics::pull::{RulePull, Ticket};
use crate::semantics::range;
use crate::semantics::redirect::Redirected;
use crate::semantics::request_limit::ClientKey;
use crate::semantics::rule::{Asked, Rule};
use crate::semantics::signed;
use crate::semantics::site::Site;
use crate::semantics::target::{self, Kind};
use crate::semantics::versions::HttpVersion;

/// Field with which a server in front of this one marks a request as early data (RFC 8470 §5.1).
const EARLY_DATA: &str = "early-data";

impl<V: Version> Exchange<V> {
    /// Begins to answer the request that is in the input.
    pub(crate) fn take_up(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut request: Request<V>,
    ) {
        self.note_request(io, shared, &request);
        // A request without a target has no site.
        if let (Some(status), true) = (request.refusal, request.target.is_empty()) {
            return self.refuse(io, shared, request, status);
        }
        let target = &self.input.bytes()[request.target.clone()];
        // RFC 9110 §9.3.7: options of the server as a whole.
        let is_refused = request.refusal.is_some();
        if request.method == Method::Options && target == b"*" && !is_refused {
            return self.tell_options(io, shared, request);
        }
        let resolved = self.find_place(shared, &mut request);
        let client = self.client.forwarded_ip();
        if client.is_some_and(|client| io.refuses_client(client)) {
            return self.refuse(io, shared, request, StatusCode::FORBIDDEN);
        }
        let kind = match (request.refusal, resolved) {
            (None, Ok(kind)) => kind,
            (Some(status), _) | (None, Err(status)) => {
                return self.refuse(io, shared, request, status);
            }
        };
        if request.method == Method::Options {
            return self.tell_options(io, shared, request);
        }
        if let Some(retry_after_s) = self.exceeds_limit(io, shared, &request) {
            request.retry_after_s = Some(retry_after_s);
            return self.refuse(io, shared, request, StatusCode::TOO_MANY_REQUESTS);
        }
        match self.apply_rule(io, shared, &mut request, kind) {
            Outcome::Serve(kind) => self.find_content(io, shared, request, kind),
            Outcome::Redirect(status) => self.send_elsewhere(io, shared, request, status),
            Outcome::Refuse(status) => self.refuse(io, shared, request, status),
        }
    }

    /// Finds the site and the rule of a request; resolves its target into `shared.path`, and into
    /// `shared.file_path` with slashes if the site has rules.
    fn find_place(
        &mut self,
        shared: &mut Shared,
        request: &mut Request<V>,
    ) -> Result<Kind, StatusCode> {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let target = &self.input.bytes()[request.target.clone()];
        let resolved = target::resolve(target, &mut shared.path);
        let number = shared.site(head, target);
        let site = Arc::clone(&shared.sites[number]);
        self.object = None;
        request.scheme = self.scheme;
        let mut rule = None;
        if let Ok(kind) = resolved
            && !(site.rules.is_empty() && site.pulls.is_empty())
        {
            target::absolute(&shared.path, kind, &mut shared.file_path);
            let asked = Asked {
                path: &shared.file_path,
                scheme: self.scheme,
                version: V::VERSION,
                method: request.method,
                head,
                query: target::split_query(target).1,
            };
            let rules = &mut shared.rules[number];
            rule = rules.choose(&asked);
            request.varies = rules.varies();
        }
        self.site = Some(Arc::clone(&site));
        request.place = Some(Place { site, rule });
        resolved
    }

    /// Counts a request against the limit of its rule; if it is one too many, returns the time
    /// after which the client may make the next one, in seconds.
    fn exceeds_limit(
        &self,
        io: &dyn Io,
        shared: &mut Shared,
        request: &Request<V>,
    ) -> Option<NonZeroU32> {
        let limit = request.rule()?.request_limit.as_ref()?;
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let by = limit.by.as_ref();
        let value = by.and_then(|name| head.values_named(name.as_str()).next());
        let source = self.client.source();
        let client = value.map_or(ClientKey::Source(source), ClientKey::Field);
        let now_us = io.now_us();
        let wait_us = shared.request_counts.count(now_us, limit, client).err()?;
        shared.counters.requests_over_limit += 1;
        if shared.many_requests.begins(now_us) {
            tracing::warn!(
                %source,
                "a client makes more requests than request_limit allows: it gets 429; later ones \
                 are only counted"
            );
        }
        let wait_s = u32::try_from(wait_us.div_ceil(1_000_000)).unwrap_or(u32::MAX);
        NonZeroU32::new(wait_s)
    }

    /// Applies the rule of a request, and returns the outcome: an error, a redirect to
    /// `shared.location`, or content of this kind, whose path is in `shared.path`.
    fn apply_rule(
        &self,
        io: &dyn Io,
        shared: &mut Shared,
        request: &mut Request<V>,
        kind: Kind,
    ) -> Outcome {
        let (Some(rule), Some(site)) = (request.rule(), request.site()) else {
            return Outcome::Serve(kind);
        };
        let target = &self.input.bytes()[request.target.clone()];
        if let Some(keys) = &rule.signed
            && let Err(why) = keys.verify(target::without_authority(target), io.unix_time())
        {
            tracing::debug!(stream = self.stream.0, ?why, "a URL is not good");
            return Outcome::Refuse(StatusCode::FORBIDDEN);
        }
        let captured = || rule.pattern.captures(&shared.file_path).unwrap_or_default();
        if let Some(redirect) = &rule.redirect {
            let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
            let redirected = Redirected {
                captured: captured(),
                authority: authority(head, target, site),
                target,
            };
            return match redirect.location(redirected, &mut shared.location) {
                true => Outcome::Redirect(redirect.status()),
                false => Outcome::Refuse(StatusCode::BAD_REQUEST),
            };
        }
        if let Some(error) = &rule.error {
            return Outcome::Refuse(error.status);
        }
        let Some(template) = &rule.rewrite else {
            return Outcome::Serve(kind);
        };
        let rewritten = template.target(captured(), target::split_query(target).1);
        let resolved = target::resolve(&rewritten, &mut shared.path);
        request.rewritten = Some(Box::new(Rewritten(rewritten)));
        resolved.map_or_else(Outcome::Refuse, Outcome::Serve)
    }

    /// Begins to look for content: at an origin, or among files. Its path is in `shared.path`.
    fn find_content(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        kind: Kind,
    ) {
        let Some(site) = request.place.as_ref().map(|place| Arc::clone(&place.site)) else {
            return self.refuse(io, shared, request, StatusCode::NOT_FOUND);
        };
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let acceptable = acceptable(head, &request, &site);
        let hints = hints_of_rule(&request);
        if !hints.is_empty() && early_hints::is_navigation(head) {
            self.hint(shared, &request, hints.iter().map(EarlyHint::value));
        }
        if !shared.config.files_come_first {
            let (path, absolute) = (&shared.path, &mut shared.file_path);
            let origin = pulled(&site, request.rule(), path, kind, absolute).map(Arc::clone);
            if let Some(origin) = origin {
                return self.ask(io, shared, request, &origin);
            }
        }
        self.open(io, shared, request, Attempt::new(kind, acceptable));
    }

    /// Returns the target that is served: the requested one, or the rule's in its place.
    pub(super) fn served_target<'a>(&'a self, request: &'a Request<V>) -> &'a [u8] {
        match &request.rewritten {
            Some(rewritten) => &rewritten.0,
            None => &self.input.bytes()[request.target.clone()],
        }
    }

    /// Puts the next fallback of the rule in the place of the missing file, and its path into
    /// `shared.path`; after the last fallback, the first target of the rule.
    fn fall_back(&self, shared: &mut Shared, request: &mut Request<V>) -> Option<Kind> {
        let rule = request.rule()?;
        let fallback = rule.fallback.as_ref()?;
        let target = &self.input.bytes()[request.target.clone()];
        let kind = target::resolve(target, &mut shared.path).ok()?;
        target::absolute(&shared.path, kind, &mut shared.file_path);
        let next = fallback.paths.get(usize::from(request.fallbacks));
        let (template, pattern) = match next {
            Some(template) => (Some(template), &fallback.pattern),
            None => (rule.rewrite.as_ref(), &rule.pattern),
        };
        let query = target::split_query(target).1;
        let rewritten = template.map(|template| {
            let captured = pattern.captures(&shared.file_path).unwrap_or_default();
            Box::new(Rewritten(template.target(captured, query)))
        });
        let is_fallback = next.is_some();
        request.rewritten = rewritten;
        if !is_fallback {
            return None;
        }
        request.fallbacks = request.fallbacks.saturating_add(1);
        target::resolve(&request.rewritten.as_ref()?.0, &mut shared.path).ok()
    }

    /// Sends links before the response, if the client's version permits that: old clients of
    /// HTTP/1.1 take an interim response for the response (RFC 8297 §3).
    pub(super) fn hint<'a>(
        &mut self,
        shared: &mut Shared,
        request: &Request<V>,
        links: impl Iterator<Item = &'a HeaderValue> + Clone,
    ) {
        let is_possible = V::VERSION != HttpVersion::Http1 && request.method == Method::Get;
        if !is_possible || links.clone().next().is_none() {
            return;
        }
        response::early_hints(&mut shared.out, request.version, links);
        if !V::has_longer_section(&shared.out, self.section_bytes_max) {
            self.output.add_interim(&shared.out);
            shared.counters.response(StatusCode::EARLY_HINTS);
        }
    }

    /// Counts a request, and notes it for the access log.
    fn note_request(&mut self, io: &mut dyn Io, shared: &mut Shared, request: &Request<V>) {
        shared.counters.requests += 1;
        self.requests = self.requests.saturating_add(1);
        if let Some(accesses) = &mut self.accesses {
            // A request that timed out while it waited is already noted.
            match self.stage {
                Stage::Opening { .. }
                | Stage::Listing { .. }
                | Stage::Asking { .. }
                | Stage::Deferred { .. } => {}
                _ => accesses.on_request(io.now_us(), self.requests),
            }
        }
        self.note_client(io, shared, request);
    }

    /// Notes the client that a trusted proxy names in the request.
    fn note_client(&mut self, io: &mut dyn Io, shared: &mut Shared, request: &Request<V>) {
        // A request that timed out while it waited has its client already.
        if self.is_busy() {
            return;
        }
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let head = Some(head).filter(|_| !request.target.is_empty());
        let Some((named, is_malformed)) = self.client.named(&shared.config, head) else {
            return;
        };
        shared.counters.forwarded_invalid += u64::from(is_malformed);
        if Source::from(named.ip()) != self.client.source() {
            // Earlier responses do not count against the new source.
            shared.rates.end(io, self.stream, self.peer());
        }
        self.client.set(named);
        if let Some(accesses) = &mut self.accesses {
            accesses.on_client(named);
        }
    }

    /// Opens the file of an attempt; `shared.path` is the resolved target.
    pub(super) fn open(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut request: Request<V>,
        mut attempt: Attempt,
    ) {
        let Some(site) = request.site() else {
            return self.refuse(io, shared, request, StatusCode::NOT_FOUND);
        };
        let hidden = shared.config.hidden.as_ref();
        let mut is_negotiated = request.is_negotiated;
        let found = loop {
            let found = attempt.path(site, &shared.path, &mut shared.file_path);
            is_negotiated |= attempt.is_negotiated;
            match (found, attempt.next(site)) {
                (Some(_), _) if hidden.is_some_and(|hidden| hidden.holds(&shared.file_path)) => {
                    break Err(Some(StatusCode::NOT_FOUND));
                }
                (Some(media_type), _) if attempt.is_acceptable() => break Ok(media_type),
                (_, Some(next)) => attempt = next,
                (Some(_), None) => break Err(Some(StatusCode::NOT_ACCEPTABLE)),
                (None, None) => break Err(None),
            }
        };
        request.is_negotiated = is_negotiated;
        let media_type = match found {
            Ok(media_type) => media_type,
            Err(Some(status)) => return self.refuse(io, shared, request, status),
            Err(None) => return self.not_found(io, shared, request),
        };
        self.stage = Stage::Opening {
            file: io.open(self.stream, &shared.file_path, request.growth()),
            media_type,
            request,
            wanted: OpenPurpose::Content(attempt),
        };
    }

    /// Takes the request that awaits this file; `None` if there is none.
    pub(super) fn request_awaiting(
        &mut self,
        awaited: FileHandle,
    ) -> Option<(MediaType, Request<V>, OpenPurpose)> {
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Opening {
                file,
                media_type,
                request,
                wanted,
            } if file == awaited => {
                // A response has the whole stall timeout, no matter how long OPEN took.
                self.watch.clear();
                Some((media_type, request, wanted))
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Asks an origin for the object that the request names.
    fn ask(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        origin: &Arc<str>,
    ) {
        // RFC 8470 §5.2: only the server in front knows whether its client's handshake is complete.
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        if head.values_named(EARLY_DATA).any(|value| value == b"1") {
            return self.refuse(io, shared, request, StatusCode::TOO_EARLY);
        }
        if self.is_early {
            let origin = Arc::clone(origin);
            self.stage = Stage::Deferred { origin, request };
            return;
        }
        let target = self.served_target(&request);
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
        let carrier = V::carrier(self.connection, self.stream);
        shared.tickets.insert(ticket, (self.stream, carrier));
        let fields = self.selecting(&request, origins.selecting());
        origins.ask(ticket, origin, &wanted, &fields);
        self.stage = Stage::Asking {
            ticket,
            request,
            awaited: None,
        };
    }

    /// Handles the completion of the handshake: the request is no replay.
    pub(crate) fn on_handshake_complete(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.is_early = false;
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Deferred { origin, request } => {
                // An origin has the whole stall timeout.
                self.watch.clear();
                self.ask(io, shared, request, &origin);
            }
            other => self.stage = other,
        }
    }

    /// Returns the request's fields with these names, without values that are not UTF-8.
    fn selecting(
        &self,
        request: &Request<V>,
        names: &[&'static str],
    ) -> Vec<(&'static str, String)> {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let lines = names.iter().flat_map(|&name| {
            let values = head.values_named(name);
            values.filter_map(move |value| Some((name, str::from_utf8(value).ok()?.to_owned())))
        });
        lines.collect()
    }

    /// Handles a missing file: tries the rule's fallbacks, asks an origin, lists the directory, or
    /// answers 404.
    pub(super) fn not_found(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut request: Request<V>,
    ) {
        if let Some(kind) = self.fall_back(shared, &mut request) {
            let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
            let site = request.site();
            let acceptable = site.map(|site| acceptable(head, &request, site));
            let attempt = Attempt::new(kind, acceptable.unwrap_or(Acceptable::IDENTITY));
            return self.open(io, shared, request, attempt);
        }
        let target = self.served_target(&request);
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
}

/// Outcome of a rule for a request.
enum Outcome {
    /// Content of this kind is served.
    Serve(Kind),
    /// The client is sent to `shared.location`.
    Redirect(StatusCode),
    /// The answer is an error.
    Refuse(StatusCode),
}

/// Returns the host of a request, perhaps with a port: without one, the site's first.
fn authority<'a>(head: Head<'a>, target: &'a [u8], site: &'a Site) -> Option<&'a [u8]> {
    let own = target::authority(target).or_else(|| head.value(Field::Host));
    own.or_else(|| site.host())
}

/// Returns the links that the request's rule sends ahead to a browser that loads a page.
fn hints_of_rule<V>(request: &Request<V>) -> &[EarlyHint] {
    let rule = request.rule();
    rule.map(|rule| &rule.early_hints[..]).unwrap_or_default()
}

/// Returns the forms of files that the client accepts, in the order in which to try them.
fn acceptable<V>(head: Head<'_>, request: &Request<V>, site: &Site) -> Acceptable {
    if site.precompressed.is_empty() {
        return Acceptable::IDENTITY;
    }
    let acceptable = Acceptable::new(head.values(Field::AcceptEncoding), &site.precompressed);
    let range = head.value(Field::Range).filter(|_| !request.head_only());
    match range.is_some_and(range::is_valid) {
        true => acceptable.for_range(conditional::coding_named(head)),
        false => acceptable,
    }
}

/// Returns the origin of a target that is no file; `path` is the result of [`target::resolve`] for
/// the target.
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
