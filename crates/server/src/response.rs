//! Status lines, header fields and error pages (RFC 9112 §4, RFC 9110 §15).

use std::io::Write;

use http::StatusCode;
use httpdate::HttpDate;

use crate::mime;
use crate::request::Persistence;

/// What every response of a server has in common.
pub(crate) struct Common<'a> {
    /// `Date`'s value.
    pub(crate) date: Option<&'a str>,
    /// What becomes of the connection.
    pub(crate) persistence: Persistence,
    /// The answer to HEAD: the same header fields, and no body (RFC 9110 §9.3.2).
    pub(crate) head_only: bool,
}

/// Writes the head of a 200 whose body is a whole file.
pub(crate) fn file(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    size_bytes: u64,
    media_type: &str,
    last_modified: Option<HttpDate>,
) {
    begin(out, common, StatusCode::OK, size_bytes, media_type);
    if let Some(date) = last_modified {
        field(out, "Last-Modified", date);
    }
    field(out, "Accept-Ranges", "none");
    end(out);
}

/// Writes a 301 to another path of this server.
pub(crate) fn moved(out: &mut Vec<u8>, common: &Common<'_>, location: &[u8]) {
    page(out, common, StatusCode::MOVED_PERMANENTLY, |out| {
        out.extend_from_slice(b"Location: ");
        out.extend_from_slice(location);
        out.extend_from_slice(b"\r\n");
    });
}

/// Writes a refusal or failure.
pub(crate) fn error(out: &mut Vec<u8>, common: &Common<'_>, status: StatusCode) {
    page(out, common, status, |out| {
        // RFC 9110 §15.5.6: 405 must say what is allowed.
        if status == StatusCode::METHOD_NOT_ALLOWED {
            field(out, "Allow", "GET, HEAD");
        }
    });
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

    begin(out, common, status, size_bytes as u64, "text/html");
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

fn begin(
    out: &mut Vec<u8>,
    common: &Common<'_>,
    status: StatusCode,
    size_bytes: u64,
    media_type: &str,
) {
    out.clear();
    put(
        out,
        format_args!("HTTP/1.1 {} {}\r\n", status.as_str(), reason(status)),
    );
    if let Some(date) = common.date {
        field(out, "Date", date);
    }
    field(out, "Server", "splitway");
    field(out, "Content-Length", size_bytes);
    let charset = if mime::is_text(media_type) {
        "; charset=utf-8"
    } else {
        ""
    };
    field(out, "Content-Type", format_args!("{media_type}{charset}"));
    match common.persistence {
        Persistence::Close => field(out, "Connection", "close"),
        Persistence::KeepAlive => field(out, "Connection", "keep-alive"),
        Persistence::Default => {}
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    put(out, format_args!("{name}: {value}\r\n"));
}

fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a `Vec` cannot fail.
    let _ = out.write_fmt(text);
}
