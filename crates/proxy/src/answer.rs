//! Responses that the proxy itself makes.

use std::io::Write as _;

use http::StatusCode;

/// Why no backend answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The request is invalid.
    Request(StatusCode),
    /// The head, or the body, has not arrived in time.
    RequestTimeout,
    /// The body's framing is malformed.
    BrokenBody,
    /// No rule matches the request.
    NoPool,
    /// No backend of the pool is usable.
    NoBackend,
    /// Too many requests wait for a backend, or this one has waited too long.
    QueueFull,
    QueueTimeout,
    /// Other requests wait for the connection to a backend, and the client delays this one.
    Evicted,
    /// No local port is left for a connection to a backend.
    NoPort,
    /// No connection to a backend could be established.
    ConnectFailed,
    ConnectTimeout,
    /// The backend closed the connection before a response.
    NoResponse,
    /// The backend has refused the request, or closes the connection, and has not processed it.
    Unprocessed,
    /// Another protocol is asked for, and backends of HTTP/2 cannot change theirs.
    NoUpgrade,
    /// The backend's bytes are no response, or one whose end is in doubt.
    BadResponse,
    /// No response has arrived in time.
    ResponseTimeout,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Refusal::Request(status) => status,
            Refusal::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Refusal::BrokenBody => StatusCode::BAD_REQUEST,
            Refusal::NoPool => StatusCode::NOT_FOUND,
            Refusal::NoBackend
            | Refusal::QueueFull
            | Refusal::QueueTimeout
            | Refusal::Evicted
            | Refusal::Unprocessed
            | Refusal::NoPort => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::NoUpgrade => StatusCode::NOT_IMPLEMENTED,
            Refusal::ConnectFailed | Refusal::NoResponse | Refusal::BadResponse => {
                StatusCode::BAD_GATEWAY
            }
            Refusal::ConnectTimeout | Refusal::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn why(self) -> &'static str {
        match self {
            Refusal::Request(status) => match status.as_u16() {
                400 => "the request cannot be read",
                414 => "the request line is too long",
                417 => "the expectation is not known",
                431 => "the request head is too long",
                501 => "the method or a transfer coding is not known",
                505 => "the version of HTTP is not known",
                _ => "the request is refused",
            },
            Refusal::RequestTimeout => "the request has not come in time",
            Refusal::BrokenBody => "the request body cannot be read",
            Refusal::NoPool => "nothing is served under this name and path",
            Refusal::NoBackend => "no backend is available",
            Refusal::QueueFull => "too many requests wait for a backend",
            Refusal::QueueTimeout => "no backend has become free in time",
            Refusal::Evicted => "the request is too slow while others wait",
            Refusal::NoPort => "no port is left for a connection to a backend",
            Refusal::ConnectFailed => "no backend could be reached",
            Refusal::ConnectTimeout => "no backend could be reached in time",
            Refusal::NoResponse => "the backend has closed the connection without a response",
            Refusal::Unprocessed => "the backend has refused the request",
            Refusal::NoUpgrade => "the backend cannot change to another protocol",
            Refusal::BadResponse => "the response of the backend cannot be read",
            Refusal::ResponseTimeout => "the backend has not answered in time",
        }
    }
}

/// Appends the complete response.
pub(crate) fn write(refusal: Refusal, is_head: bool, closes: bool, out: &mut Vec<u8>) {
    let status = refusal.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let body = format!("{} {reason}: {}\n", status.as_u16(), refusal.why());
    let connection = if closes { "Connection: close\r\n" } else { "" };
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 {} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\n{connection}\r\n",
        status.as_u16(),
        body.len()
    );
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_why_and_a_head_has_no_body() {
        let text = |is_head, closes| {
            let mut out = Vec::new();
            write(Refusal::NoBackend, is_head, closes, &mut out);
            String::from_utf8(out).unwrap()
        };
        let whole = text(false, true);
        assert!(
            whole.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
            "{whole}"
        );
        assert!(whole.contains("\r\nConnection: close\r\n"));
        assert!(whole.ends_with("\r\n\r\n503 Service Unavailable: no backend is available\n"));
        assert!(text(true, false).ends_with("\r\nCache-Control: no-store\r\n\r\n"));
    }
}
