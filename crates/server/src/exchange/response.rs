//! Statuses, header fields and error pages (RFC 9110 §15).

use std::io::Write;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::time::Duration;

use http::header::{CONTENT_TYPE, DATE, STRICT_TRANSPORT_SECURITY};
use http::{HeaderName, HeaderValue, StatusCode};
use httpdate::HttpDate;

use crate::exchange::multipart::{self, Multipart};
use crate::exchange::version::Version;
use crate::semantics::cors::Cors;
use crate::semantics::date;
use crate::semantics::encoding::Coding;
use crate::semantics::etag::ETag;
use crate::semantics::hsts::Hsts;
use crate::semantics::mime;
use crate::semantics::passed;
use crate::semantics::pull::{CacheStatus, Passed};
use crate::semantics::rule::{self, Rule};
use crate::semantics::site::Site;

/// Context of a response head.
pub(crate) struct Common<'a, V> {
    /// `Date`'s value.
    pub(crate) date: Option<&'a str>,
    /// HTTP version, with the persistence of the connection.
    pub(crate) version: V,
    /// The answer to HEAD: the same header fields, and no body (RFC 9110 §9.3.2).
    pub(crate) head_only: bool,
    /// Rule for the path.
    pub(crate) rule: Option<&'a Rule>,
    /// Fields of the origin's response.
    pub(crate) passed: Option<&'a Passed>,
    /// `Origin` of the requesting page.
    pub(crate) origin: Option<&'a [u8]>,
    /// Current time since the epoch.
    pub(crate) unix_time: Duration,
    /// Port of HTTP/3.
    pub(crate) http3_port: Option<NonZeroU16>,
    /// The connection has TLS.
    pub(crate) is_https: bool,
    /// `Strict-Transport-Security`, if the response has that field.
    pub(crate) hsts: Option<&'a Hsts>,
    /// Another `Accept-Encoding` might have selected another response.
    pub(crate) varies_by_encoding: bool,
    /// The site, if another rule might have applied with other fields of the request.
    pub(crate) varies_by_fields: Option<&'a Site>,
    /// Time after which the client may repeat the request, in seconds.
    pub(crate) retry_after_s: Option<NonZeroU32>,
}

impl<V> Common<'_, V> {
    fn cors(&self) -> Option<&Cors> {
        self.rule.and_then(|rule| rule.cors.as_ref())
    }

    /// True if the response may have this field of a rule or of an origin. RFC 6797 §7.2: one
    /// `Strict-Transport-Security`, and none without TLS.
    fn may_have(&self, name: &HeaderName) -> bool {
        *name != STRICT_TRANSPORT_SECURITY || self.is_https && self.hsts.is_none()
    }

    /// Returns the length of the body of a response with this content length, in bytes.
    fn body_bytes(&self, content_bytes: u64) -> u64 {
        if self.head_only { 0 } else { content_bytes }
    }
}

/// Metadata of a file or object.
#[derive(Clone, Copy)]
pub(crate) struct Entity<'a> {
    /// Total size, in bytes.
    pub(crate) size_bytes: u64,
    pub(crate) media_type: &'a str,
    pub(crate) last_modified: Option<HttpDate>,
    pub(crate) etag: Option<ETag>,
    /// Content coding.
    pub(crate) coding: Option<Coding>,
    /// Ranges of the bytes are served only to a client that already has a part.
    pub(crate) is_indivisible: bool,
    /// Role of the cache, if responses state it.
    pub(crate) how: Option<CacheStatus>,
}

impl Entity<'_> {
    fn fields<V: Version>(&self, out: &mut Vec<u8>, version: V) {
        if let Some(coding) = self.coding {
            version.text(out, "Content-Encoding", coding.name());
        }
        self.validators(out, version);
        version.text(out, "Accept-Ranges", "bytes");
    }

    /// Writes the fields that a cache needs, for stored responses too.
    fn validators<V: Version>(&self, out: &mut Vec<u8>, version: V) {
        if let Some(date) = self.last_modified {
            version.display(out, "Last-Modified", date);
        }
        if let Some(tag) = &self.etag {
            etag(out, version, tag);
        }
        if let Some(how) = self.how {
            version.text(out, "Cache-Status", how.cache_status());
        }
    }

    fn content_type<V: Version>(&self, out: &mut Vec<u8>, common: &Common<'_, V>) {
        let version = common.version;
        version.field_with(out, "Content-Type", |out| {
            self.write_content_type(out, common.passed);
        });
    }

    /// Creates a multipart body of `ranges`.
    pub(crate) fn multipart(
        &self,
        ranges: Vec<Range<u64>>,
        boundary: [u64; 2],
        passed: Option<&Passed>,
    ) -> Multipart {
        let mut content_type = Vec::new();
        self.write_content_type(&mut content_type, passed);
        Multipart::new(ranges, boundary, content_type.into(), self.size_bytes)
    }

    fn write_content_type(&self, out: &mut Vec<u8>, passed: Option<&Passed>) {
        write_content_type_of(out, self.media_type, passed);
    }
}

/// Longest head of a part of a multipart body, in bytes.
pub(crate) fn part_head_bytes_max(
    media_type: &str,
    passed: Option<&Passed>,
    size_bytes: u64,
) -> u64 {
    let mut content_type = Vec::new();
    write_content_type_of(&mut content_type, media_type, passed);
    multipart::head_bytes_max(content_type.len(), size_bytes)
}

/// Writes an interim response with links (RFC 8297 §2).
pub(crate) fn early_hints<'a, V: Version>(
    out: &mut Vec<u8>,
    version: V,
    links: impl IntoIterator<Item = &'a HeaderValue>,
) {
    out.clear();
    version.begin(out, StatusCode::EARLY_HINTS);
    for link in links {
        version.field(out, "Link", link.as_bytes());
    }
    version.end_interim(out);
}

/// Writes the head of a 200 whose body is a whole file.
pub(crate) fn whole<V: Version>(out: &mut Vec<u8>, common: &Common<'_, V>, entity: &Entity<'_>) {
    // A client that sends HEAD before range requests would take this length for that of the file
    // whose ranges it gets. RFC 9110 §9.3.2 permits omitting the field.
    let has_length = !(common.head_only && entity.is_indivisible);
    let size_bytes = has_length.then_some(entity.size_bytes);
    begin(out, common, StatusCode::OK, size_bytes);
    entity.content_type(out, common);
    entity.fields(out, common.version);
    common
        .version
        .end(out, common.body_bytes(entity.size_bytes));
}

/// Writes the head of a 206 whose body is one range of a file (RFC 9110 §15.3.7.1).
pub(crate) fn part<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    entity: &Entity<'_>,
    range: &Range<u64>,
) {
    begin(
        out,
        common,
        StatusCode::PARTIAL_CONTENT,
        Some(range.end - range.start),
    );
    let version = common.version;
    entity.content_type(out, common);
    version.field_with(out, "Content-Range", |out| {
        multipart::write_content_range(out, range, entity.size_bytes);
    });
    entity.fields(out, version);
    version.end(out, range.end - range.start);
}

/// Writes the head of a 206 whose body is several ranges of a file (RFC 9110 §15.3.7.2).
pub(crate) fn parts<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    entity: &Entity<'_>,
    parts: &Multipart,
) {
    let body_bytes = parts.body_bytes();
    begin(out, common, StatusCode::PARTIAL_CONTENT, Some(body_bytes));
    let version = common.version;
    version.field_with(out, "Content-Type", |out| {
        out.extend_from_slice(b"multipart/byteranges; boundary=");
        out.extend_from_slice(parts.boundary());
    });
    entity.fields(out, version);
    version.end(out, body_bytes);
}

/// Writes a 304 (RFC 9110 §15.4.5): the fields that update the client's stored response.
pub(crate) fn not_modified<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    entity: &Entity<'_>,
) {
    begin(out, common, StatusCode::NOT_MODIFIED, None);
    entity.validators(out, common.version);
    common.version.end(out, 0);
}

/// Metadata of a directory listing.
pub(crate) struct Listed {
    pub(crate) media_type: &'static str,
    pub(crate) etag: ETag,
    /// Number of listed entries, if the directory has more.
    pub(crate) truncated_after: Option<usize>,
}

impl Listed {
    fn validators<V: Version>(&self, out: &mut Vec<u8>, version: V) {
        // `begin` may have written another `Vary` line: a list may span several lines (RFC 9110
        // §5.3).
        version.text(out, "Vary", "Accept");
        etag(out, version, &self.etag);
        if let Some(count) = self.truncated_after {
            version.display(out, "Listing-Truncated", count);
        }
    }
}

/// Writes a 200 with a listing of a directory.
pub(crate) fn listing<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    listed: &Listed,
    body: &[u8],
) {
    begin(out, common, StatusCode::OK, Some(body.len() as u64));
    let version = common.version;
    content_type(out, version, listed.media_type);
    listed.validators(out, version);
    version.end(out, common.body_bytes(body.len() as u64));
    if !common.head_only {
        out.extend_from_slice(body);
    }
}

/// Writes a 304 for a listing of a directory.
pub(crate) fn listing_not_modified<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    listed: &Listed,
) {
    begin(out, common, StatusCode::NOT_MODIFIED, None);
    listed.validators(out, common.version);
    common.version.end(out, 0);
}

/// Writes a 416 (RFC 9110 §15.5.17) with the size of the file.
pub(crate) fn unsatisfiable<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    size_bytes: u64,
) {
    page(out, common, StatusCode::RANGE_NOT_SATISFIABLE, |out| {
        let value = format_args!("bytes */{size_bytes}");
        common.version.display(out, "Content-Range", value);
    });
}

/// Writes a redirect.
pub(crate) fn moved<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    status: StatusCode,
    location: &[u8],
) {
    page(out, common, status, |out| {
        common.version.field(out, "Location", location);
    });
}

/// Writes the 204 for OPTIONS: the allowed methods, and CORS fields, for a preflight if
/// `preflight`.
pub(crate) fn options<V: Version>(out: &mut Vec<u8>, common: &Common<'_, V>, preflight: bool) {
    begin(out, common, StatusCode::NO_CONTENT, None);
    let version = common.version;
    version.text(out, "Allow", ALLOW);
    if let Some(cors) = common.cors() {
        cors.write(common.origin, preflight, |name, value| {
            version.display(out, name, value);
        });
    }
    version.end(out, 0);
}

/// Writes an error.
pub(crate) fn error<V: Version>(out: &mut Vec<u8>, common: &Common<'_, V>, status: StatusCode) {
    page(out, common, status, |out| {
        error_fields(out, common, status);
    });
}

/// Writes an error with an explanation in plain text, for people at a terminal.
pub(crate) fn message<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    status: StatusCode,
    message: &str,
) {
    let size_bytes = message.len() as u64;
    begin(out, common, status, Some(size_bytes));
    content_type(out, common.version, "text/plain");
    common.version.end(out, common.body_bytes(size_bytes));
    if !common.head_only {
        out.extend_from_slice(message.as_bytes());
    }
}

/// Writes the head of an error whose page is a file.
pub(crate) fn error_with_file<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    status: StatusCode,
    size_bytes: u64,
    media_type: &str,
) {
    begin(out, common, status, Some(size_bytes));
    let version = common.version;
    content_type(out, version, media_type);
    error_fields(out, common, status);
    version.end(out, common.body_bytes(size_bytes));
}

/// Methods that files allow.
const ALLOW: &str = "GET, HEAD, OPTIONS";

fn error_fields<V: Version>(out: &mut Vec<u8>, common: &Common<'_, V>, status: StatusCode) {
    let version = common.version;
    // RFC 9110 §15.5.6: 405 requires `Allow`.
    if status == StatusCode::METHOD_NOT_ALLOWED {
        version.text(out, "Allow", ALLOW);
    }
    // RFC 6585 §4.
    if let Some(seconds) = common.retry_after_s {
        version.display(out, "Retry-After", seconds);
    }
}

fn page<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    status: StatusCode,
    fields: impl FnOnce(&mut Vec<u8>),
) {
    const BEFORE: &str = "<!doctype html>\n<html lang=\"en\">\n<title>";
    const BETWEEN: &str = "</title>\n<h1>";
    const AFTER: &str = "</h1>\n</html>\n";
    let (code, reason) = (status.as_str(), reason(status));
    let title_bytes = code.len() + 1 + reason.len();
    let size_bytes = BEFORE.len() + BETWEEN.len() + AFTER.len() + 2 * title_bytes;

    begin(out, common, status, Some(size_bytes as u64));
    content_type(out, common.version, "text/html");
    fields(out);
    common
        .version
        .end(out, common.body_bytes(size_bytes as u64));
    if !common.head_only {
        put(
            out,
            format_args!("{BEFORE}{code} {reason}{BETWEEN}{code} {reason}{AFTER}"),
        );
    }
}

fn reason(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Error")
}

/// Writes the status and the fields of every response. `content_bytes`: `Content-Length`, if the
/// response has that field.
fn begin<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    status: StatusCode,
    content_bytes: Option<u64>,
) {
    let version = common.version;
    out.clear();
    version.begin(out, status);
    // RFC 9110 §6.6.1: an origin's response keeps its date.
    match common.passed.and_then(|passed| passed.value(&DATE)) {
        Some(date) => version.field(out, "Date", date.as_bytes()),
        None => {
            if let Some(date) = common.date {
                version.text(out, "Date", date);
            }
        }
    }
    version.text(out, "Server", "splitway");
    version.connection(out);
    if let Some(port) = common.http3_port {
        version.display(out, "Alt-Svc", format_args!("h3=\":{port}\"; ma=86400"));
    }
    if let Some(hsts) = common.hsts {
        version.display(out, "Strict-Transport-Security", hsts);
    }
    let varies_by_origin = common.cors().is_some_and(Cors::varies);
    match (common.varies_by_encoding, varies_by_origin) {
        (true, true) => version.text(out, "Vary", "Accept-Encoding, Origin"),
        (true, false) => version.text(out, "Vary", "Accept-Encoding"),
        (false, true) => version.text(out, "Vary", "Origin"),
        (false, false) => {}
    }
    if let Some(site) = common.varies_by_fields {
        version.field_with(out, "Vary", |out| site.write_varies(out));
    }
    if let Some(rule) = common.rule {
        rule_fields(out, common, rule, status);
    }
    if let Some(passed) = common.passed {
        let head_only = common.head_only;
        let fields = passed::sent(passed, status, head_only, common.rule);
        for (name, value) in fields.filter(|(name, _)| common.may_have(name)) {
            version.field(out, name.as_str(), value.as_bytes());
        }
        if let Some(age_s) = passed.age_s {
            version.display(out, "Age", age_s);
        }
    }
    if let Some(count) = content_bytes {
        version.display(out, "Content-Length", count);
    }
}

fn rule_fields<V: Version>(
    out: &mut Vec<u8>,
    common: &Common<'_, V>,
    rule: &Rule,
    status: StatusCode,
) {
    let version = common.version;
    if rule::may_be_kept(status) {
        if let Some(value) = &rule.cache_control {
            version.field(out, "Cache-Control", value.as_bytes());
        }
        let expires = rule
            .expires
            .and_then(|after| date::http_date(common.unix_time.saturating_add(after).as_secs()));
        if let Some(date) = expires {
            version.display(out, "Expires", date);
        }
    }
    for extra in rule
        .fields
        .iter()
        .filter(|extra| common.may_have(&extra.name))
    {
        version.field(out, &extra.written, extra.value.as_bytes());
    }
    if status == StatusCode::OK {
        for hint in &rule.early_hints {
            version.field(out, "Link", hint.value().as_bytes());
        }
    }
    // `options` writes the CORS fields of a 204.
    if let Some(cors) = rule
        .cors
        .as_ref()
        .filter(|_| status != StatusCode::NO_CONTENT)
    {
        cors.write(common.origin, false, |name, value| {
            version.display(out, name, value);
        });
    }
}

fn content_type<V: Version>(out: &mut Vec<u8>, version: V, media_type: &str) {
    version.field_with(out, "Content-Type", |out| {
        write_content_type(out, media_type);
    });
}

/// Writes the origin's value, if there is one, or that of the media type.
fn write_content_type_of(out: &mut Vec<u8>, media_type: &str, passed: Option<&Passed>) {
    match passed.and_then(|passed| passed.value(&CONTENT_TYPE)) {
        Some(value) => out.extend_from_slice(value.as_bytes()),
        None => write_content_type(out, media_type),
    }
}

fn write_content_type(out: &mut Vec<u8>, media_type: &str) {
    out.extend_from_slice(media_type.as_bytes());
    if mime::is_text(media_type) {
        out.extend_from_slice(b"; charset=utf-8");
    }
}

fn etag<V: Version>(out: &mut Vec<u8>, version: V, etag: &ETag) {
    version.field_with(out, "ETag", |out| etag.write(out));
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a `Vec` cannot fail.
    let _ = out.write_fmt(text);
}
