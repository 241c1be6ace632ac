//! Requests without TLS at a port of HTTPS.

use std::time::Duration;

use http::StatusCode;

use crate::exchange::response::{self, Common};
use crate::exchange::shared::Shared;
use crate::http1::head::Http1;

/// Body of the response. It does not repeat the client's bytes.
const MESSAGE: &str = "This port serves HTTPS, and the request came without TLS. \
                       Use a URL that begins with https://.\n";

/// Returns the response, after which the connection ends.
pub(crate) fn response(shared: &mut Shared, unix_time: Duration, is_head: bool) -> Vec<u8> {
    let status = StatusCode::BAD_REQUEST;
    let common = Common {
        date: shared.date.at(unix_time),
        version: Http1::CLOSE,
        head_only: is_head,
        rule: None,
        passed: None,
        origin: None,
        unix_time,
        http3_port: None,
        is_https: false,
        hsts: None,
        varies_by_encoding: false,
        varies_by_fields: None,
        retry_after_s: None,
    };
    let mut out = Vec::new();
    response::message(&mut out, &common, status, MESSAGE);
    shared.counters.requests += 1;
    shared.counters.response(status);
    shared.counters.real_bytes += out.len() as u64;
    out
}
