//! Status lines, header fields and error pages (RFC 9112 §4, RFC 9110 §15).

use std::fmt::Display;
use std::io::Write;
use std::ops::Range;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, EXPIRES};
use http::{HeaderName, HeaderValue, StatusCode};
use httpdate::HttpDate;

use crate::http1::output::Splice;
use crate::http1::request::Persistence;
use crate::semantics::cors::Cors;
use crate::semantics::date;
use crate::semantics::encoding::Coding;
use crate::semantics::etag::ETag;
use crate::semantics::mime;
use crate::semantics::pull::Object;
use crate::semantics::rule::{self, Rule};

/// What every response of a server has in common.
pub(crate) struct Common<'a> {
    /// `Date`'s value.
    pub(crate) date: Option<&'a str>,
    /// What becomes of the connection.
    pub(crate) persistence: Persistence,
    /// The answer to HEAD: the same header fields, and no body (RFC 9110 §9.3.2).
    pub(crate) head_only: bool,
    /// What is special about the path.
    pub(crate) rule: Option<&'a Rule>,
    /// The origin of the page that asks.
    pub(crate) origin: Option<&'a [u8]>,
    /// Now, since the epoch.
    pub(crate) unix_time: Duration,
}

impl Common<'_> {
    fn cors(&self) -> Option<&Cors> {
        self.rule.and_then(|rule| rule.cors.as_ref())
    }
}

/// Length of the head of a response, in bytes.
pub(crate) fn head_bytes(response: &[u8]) -> usize {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    end.map_or(response.len(), |end| end + 4)
}

/// What is said about a file.
#[derive(Clone, Copy)]
pub(crate) struct Entity<'a> {
    /// All of it, in bytes.
    pub(crate) size_bytes: u64,
    pub(crate) media_type: &'a str,
    pub(crate) last_modified: Option<HttpDate>,
    pub(crate) etag: ETag,
    /// How the bytes are coded.
    pub(crate) coding: Option<Coding>,
    /// They might have been coded otherwise for another client.
    pub(crate) varies: bool,
    /// What its origin says of it, if it comes from one.
    pub(crate) object: Option<&'a Object>,
    /// Also how it has come from there.
    pub(crate) tells_how: bool,
}

impl Entity<'_> {
    fn fields(&self, out: &mut Vec<u8>, common: &Common<'_>) {
        if let Some(coding) = self.coding {
            text(out, "Content-Encoding", coding.name());
        }
        for (name, value) in self.object.iter().flat_map(|object| &object.content) {
            if name != CONTENT_TYPE {
                said(out, name, value);
            }
        }
        self.validators(out, common);
        text(out, "Accept-Ranges", "bytes");
    }

    /// What caches need to know, also of what they have already.
    fn validators(&self, out: &mut Vec<u8>, common: &Common<'_>) {
        if let Some(date) = self.last_modified {
            field(out, "Last-Modified", date);
        }
        etag(out, &self.etag);
        let Some(object) = self.object else {
            return;
        };
        let rule = common.rule;
        let is_ruled =
            rule.is_some_and(|rule| rule.cache_control.is_some() || rule.expires.is_some());
        for (name, value) in &object.caching {
            if !(is_ruled && (name == CACHE_CONTROL || name == EXPIRES)) {
                said(out, name, value);
            }
        }
        field(out, "Age", object.age_s);
        if self.tells_how {
            text(out, "Cache-Status", object.how.cache_status());
        }
    }

    fn content_type(&self, out: &mut Vec<u8>) {
        match self.object.and_then(|object| object.content(&CONTENT_TYPE)) {
            Some(value) => line(out, "Content-Type", value.as_bytes()),
            None => content_type(out, self.media_type),
        }
    }
}

/// Writes the head of a 200 whose body is a whole file.
pub(crate) fn whole(out: &mut Vec<u8>, common: &Common<'_>, entity: &Entity<'_>) {
    let size_bytes = Some(entity.size_bytes);
    begin(out, common, StatusCode::OK, size_bytes, entity.varies);
    entity.content_type(out);
    entity.fields(out, common);
    end(out);
}

/// Writes the head of a 206 whose body is one range of a file (RFC 9110 §15.3.7.1).
pub(crate) fn part(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    entity: &Entity<'_>,
    range: &Range<u64>,
) {
    begin(
        out,
        common,
        StatusCode::PARTIAL_CONTENT,
        Some(range.end - range.start),
        entity.varies,
    );
    entity.content_type(out);
    content_range(out, range, entity.size_bytes);
    entity.fields(out, common);
    end(out);
}

/// Writes a 206 with several ranges of a file but for these themselves (RFC 9110 §15.3.7.2), and
/// returns where they belong. `scratch` is overwritten; `salt` makes the boundary another one for
/// each response.
pub(crate) fn parts(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    entity: &Entity<'_>,
    ranges: Vec<Range<u64>>,
    scratch: &mut Vec<u8>,
    salt: u64,
) -> Vec<Splice> {
    // RFC 2046 §5.1.1: at most 70 characters, none of which needs quotes here. No file knows its
    // own tag, since that hangs on when it was written.
    let mut boundary = entity.etag.opaque().to_vec();
    put(&mut boundary, format_args!("{salt:016x}"));

    scratch.clear();
    let mut splices = Vec::with_capacity(ranges.len());
    let mut body_bytes = 0;
    for range in ranges {
        if !scratch.is_empty() {
            scratch.extend_from_slice(b"\r\n");
        }
        delimiter(scratch, &boundary);
        end(scratch);
        entity.content_type(scratch);
        content_range(scratch, &range, entity.size_bytes);
        end(scratch);
        body_bytes += range.end - range.start;
        splices.push(Splice {
            after_bytes: scratch.len(),
            range,
        });
    }
    scratch.extend_from_slice(b"\r\n");
    delimiter(scratch, &boundary);
    scratch.extend_from_slice(b"--\r\n");
    body_bytes += scratch.len() as u64;

    begin(
        out,
        common,
        StatusCode::PARTIAL_CONTENT,
        Some(body_bytes),
        entity.varies,
    );
    out.extend_from_slice(b"Content-Type: multipart/byteranges; boundary=");
    out.extend_from_slice(&boundary);
    end(out);
    entity.fields(out, common);
    end(out);
    for splice in &mut splices {
        splice.after_bytes += out.len();
    }
    out.extend_from_slice(scratch);
    splices
}

/// Writes a 304 (RFC 9110 §15.4.5): what the client needs to go on with what it has.
pub(crate) fn not_modified(out: &mut Vec<u8>, common: &Common<'_>, entity: &Entity<'_>) {
    begin(out, common, StatusCode::NOT_MODIFIED, None, entity.varies);
    entity.validators(out, common);
    end(out);
}

/// What is said about a listing of a directory.
pub(crate) struct Listed {
    pub(crate) media_type: &'static str,
    pub(crate) etag: ETag,
    /// How many entries it has, if there are more.
    pub(crate) truncated_after: Option<usize>,
}

impl Listed {
    fn validators(&self, out: &mut Vec<u8>) {
        // Beside what `begin` may have said of other fields: lists may come in several lines (RFC
        // 9110 §5.3).
        text(out, "Vary", "Accept");
        etag(out, &self.etag);
        if let Some(count) = self.truncated_after {
            field(out, "Listing-Truncated", count);
        }
    }
}

/// Writes a 200 with a listing of a directory.
pub(crate) fn listing(out: &mut Vec<u8>, common: &Common<'_>, listed: &Listed, body: &[u8]) {
    begin(out, common, StatusCode::OK, Some(body.len() as u64), false);
    content_type(out, listed.media_type);
    listed.validators(out);
    end(out);
    if !common.head_only {
        out.extend_from_slice(body);
    }
}

/// Writes a 304 for a listing of a directory.
pub(crate) fn listing_not_modified(out: &mut Vec<u8>, common: &Common<'_>, listed: &Listed) {
    begin(out, common, StatusCode::NOT_MODIFIED, None, false);
    listed.validators(out);
    end(out);
}

/// Writes a 416 (RFC 9110 §15.5.17), which tells how long the file is.
pub(crate) fn unsatisfiable(out: &mut Vec<u8>, common: &Common<'_>, size_bytes: u64) {
    page(out, common, StatusCode::RANGE_NOT_SATISFIABLE, |out| {
        field(out, "Content-Range", format_args!("bytes */{size_bytes}"));
    });
}

/// Writes a redirect.
pub(crate) fn moved(out: &mut Vec<u8>, common: &Common<'_>, status: StatusCode, location: &[u8]) {
    page(out, common, status, |out| line(out, "Location", location));
}

/// Writes a 204 that says what may be done: what a page of another origin may, if `preflight`.
pub(crate) fn options(out: &mut Vec<u8>, common: &Common<'_>, preflight: bool) {
    begin(out, common, StatusCode::NO_CONTENT, None, false);
    text(out, "Allow", ALLOW);
    if let Some(cors) = common.cors() {
        cors.write(common.origin, preflight, out);
    }
    end(out);
}

/// Writes a refusal or failure.
pub(crate) fn error(out: &mut Vec<u8>, common: &Common<'_>, status: StatusCode) {
    page(out, common, status, |out| error_fields(out, status));
}

/// Writes the head of a refusal or failure whose page is a file.
pub(crate) fn error_with_file(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    status: StatusCode,
    size_bytes: u64,
    media_type: &str,
) {
    begin(out, common, status, Some(size_bytes), false);
    content_type(out, media_type);
    error_fields(out, status);
    end(out);
}

/// What may be done with files.
const ALLOW: &str = "GET, HEAD, OPTIONS";

fn error_fields(out: &mut Vec<u8>, status: StatusCode) {
    // RFC 9110 §15.5.6: 405 must say what is allowed.
    if status == StatusCode::METHOD_NOT_ALLOWED {
        text(out, "Allow", ALLOW);
    }
}

fn page(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    status: StatusCode,
    fields: impl FnOnce(&mut Vec<u8>),
) {
    const BEFORE: &str = "<!doctype html>\n<html lang=\"en\">\n<title>";
    const BETWEEN: &str = "</title>\n<h1>";
    const AFTER: &str = "</h1>\n</html>\n";
    let (code, reason) = (status.as_str(), reason(status));
    let title_bytes = code.len() + 1 + reason.len();
    let size_bytes = BEFORE.len() + BETWEEN.len() + AFTER.len() + 2 * title_bytes;

    begin(out, common, status, Some(size_bytes as u64), false);
    content_type(out, "text/html");
    fields(out);
    end(out);
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

/// Writes the status line and the fields of every response. `None` where there is no body to have a
/// length.
fn begin(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    status: StatusCode,
    content_bytes: Option<u64>,
    varies_by_encoding: bool,
) {
    out.clear();
    for piece in ["HTTP/1.1 ", status.as_str(), " ", reason(status), "\r\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
    if let Some(date) = common.date {
        text(out, "Date", date);
    }
    text(out, "Server", "splitway");
    match common.persistence {
        Persistence::Close => text(out, "Connection", "close"),
        Persistence::KeepAlive => text(out, "Connection", "keep-alive"),
        Persistence::Default => {}
    }
    let varies_by_origin = common.cors().is_some_and(Cors::varies);
    match (varies_by_encoding, varies_by_origin) {
        (true, true) => text(out, "Vary", "Accept-Encoding, Origin"),
        (true, false) => text(out, "Vary", "Accept-Encoding"),
        (false, true) => text(out, "Vary", "Origin"),
        (false, false) => {}
    }
    if let Some(rule) = common.rule {
        rule_fields(out, common, rule, status);
    }
    if let Some(count) = content_bytes {
        field(out, "Content-Length", count);
    }
}

fn rule_fields(out: &mut Vec<u8>, common: &Common<'_>, rule: &Rule, status: StatusCode) {
    if rule::may_be_kept(status) {
        if let Some(value) = &rule.cache_control {
            line(out, "Cache-Control", value.as_bytes());
        }
        let expires = rule
            .expires
            .and_then(|after| date::http_date(common.unix_time.saturating_add(after).as_secs()));
        if let Some(date) = expires {
            field(out, "Expires", date);
        }
    }
    for extra in &rule.fields {
        line(out, extra.name.as_str(), extra.value.as_bytes());
    }
    // The answer to a preflight says more, and in its own place.
    if let Some(cors) = rule
        .cors
        .as_ref()
        .filter(|_| status != StatusCode::NO_CONTENT)
    {
        cors.write(common.origin, false, out);
    }
}

/// What an origin says, in its own words.
fn said(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    line(out, name.as_str(), value.as_bytes());
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    end(out);
}

fn content_type(out: &mut Vec<u8>, media_type: &str) {
    let charset = if mime::is_text(media_type) {
        "; charset=utf-8"
    } else {
        ""
    };
    for piece in ["Content-Type: ", media_type, charset, "\r\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
}

fn content_range(out: &mut Vec<u8>, range: &Range<u64>, size_bytes: u64) {
    let (first, last) = (range.start, range.end - 1);
    let value = format_args!("bytes {first}-{last}/{size_bytes}");
    put(out, format_args!("Content-Range: {value}\r\n"));
}

fn etag(out: &mut Vec<u8>, etag: &ETag) {
    out.extend_from_slice(b"ETag: ");
    etag.write(out);
    end(out);
}

fn delimiter(out: &mut Vec<u8>, boundary: &[u8]) {
    out.extend_from_slice(b"--");
    out.extend_from_slice(boundary);
}

fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    for piece in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: impl Display) {
    // In pieces: a format string of several costs more than all that it puts together.
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    put(out, format_args!("{value}"));
    end(out);
}

fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a `Vec` cannot fail.
    let _ = out.write_fmt(text);
}
