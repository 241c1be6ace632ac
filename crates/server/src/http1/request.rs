//! From bytes to a request, or to a refusal (RFC 9112).
//!
//! Refusals that leave the end of the request in doubt must be the last response on a connection,
//! or one party's body is another party's request (smuggling, RFC 9112 §11.2). They are
//! [`Parsed::Broken`]; all other refusals are requests like any other, with a status to answer.
//!
//! The result depends on the bytes alone, not on how they were split in transit.

use http::StatusCode;
use http_message::authority;
use http_message::framing::{Body, Framing, list};
use http_message::request::{self, Head, Limits};

use crate::config::Config;
use crate::exchange::request::{Expectation, Request, method_refusal};
use crate::http1::head::{Http1, Persistence};
use crate::semantics::fields::{Field, Present};
use crate::semantics::method::Method;
use crate::semantics::scheme::Scheme;

/// The result of parsing the bytes received so far.
pub(crate) type Parsed = request::Parsed<Request<Http1>>;

/// Parses a request from the bytes received so far, at most `config.head_bytes_max`.
pub(crate) fn parse(bytes: &[u8], config: &Config) -> Parsed {
    let limits = Limits {
        head_bytes_max: config.head_bytes_max,
        line_bytes_max: config.request_line_bytes_max,
    };
    request::parse(bytes, limits, |head| judge(head, config))
}

/// Judges a head that parses. An error is a status after which the connection must end.
fn judge(head: &Head<'_>, config: &Config) -> Result<Request<Http1>, StatusCode> {
    let (method, target) = (head.method, head.target);
    let fields = Fields::read(head.headers)?;
    let http_1_0 = head.is_http_1_0;

    // RFC 9112 §3.2: exactly one Host, from HTTP/1.1 on.
    if !http_1_0 && !fields.host {
        return Err(StatusCode::BAD_REQUEST);
    }
    let body = fields.framing.body(http_1_0)?.unwrap_or(Body::Bytes(0));

    // RFC 9110 §10.1.1: HTTP/1.0 knows no expectations.
    let expectation = if http_1_0 {
        Expectation::None
    } else {
        fields.expectation
    };
    if expectation == Expectation::Unknown {
        return Err(StatusCode::EXPECTATION_FAILED);
    }
    let expects_continue = expectation == Expectation::Continue;

    let refusal = method_refusal(method.as_bytes()).or(match body {
        Body::Chunked => Some(StatusCode::LENGTH_REQUIRED),
        Body::Bytes(count) if count > config.body_bytes_max => Some(StatusCode::PAYLOAD_TOO_LARGE),
        Body::Bytes(_) => None,
    });

    // The next request can be reached only past a body of known and modest length that will come: a
    // client that waits for "100 Continue" may never send it.
    let (reachable, body_bytes) = match body {
        Body::Bytes(0) => (true, 0),
        Body::Bytes(count) => match u32::try_from(count) {
            Ok(bytes) => (count <= config.body_bytes_max && !expects_continue, bytes),
            Err(_) => (false, 0),
        },
        Body::Chunked => (false, 0),
    };
    let persistence = if !reachable || !fields.framing.persists(http_1_0) {
        Persistence::Close
    } else if http_1_0 {
        Persistence::KeepAlive
    } else {
        Persistence::Default
    };

    Ok(Request {
        head_bytes: head.head_bytes,
        target: head.target_start..head.target_start + target.len(),
        method: Method::of(method.as_bytes()),
        version: Http1 {
            persistence,
            body_bytes,
        },
        refusal,
        present: fields.present,
        place: None,
        is_negotiated: false,
        scheme: Scheme::Http,
        varies: false,
        fallbacks: 0,
        retry_after_s: None,
        rewritten: None,
    })
}

/// Header fields that matter to the codec.
#[derive(Default)]
struct Fields {
    host: bool,
    framing: Framing,
    expectation: Expectation,
    present: Present,
}

impl Fields {
    fn read(headers: &[httparse::Header<'_>]) -> Result<Self, StatusCode> {
        let mut fields = Fields::default();
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if fields.framing.note(header)? {
                continue;
            }
            if is("host") {
                // Empty where the target has no authority (RFC 9110 §7.2).
                let names_host = header.value.is_empty() || authority::is_valid(header.value);
                if fields.host || !names_host {
                    return Err(StatusCode::BAD_REQUEST);
                }
                fields.host = true;
                fields.present.insert(Field::Host);
            } else if is("expect") {
                list(header.value).for_each(|member| fields.expectation.note(member));
            } else if let Some(field) = Field::named(header.name) {
                fields.present.insert(field);
            }
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use http_message::request::HEADER_COUNT_MAX;

    use super::*;

    fn parsed(text: &str) -> Parsed {
        parse(text.as_bytes(), &Config::default())
    }

    fn complete(text: &str) -> Request<Http1> {
        match parsed(text) {
            Parsed::Complete(request) => request,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn broken(text: &str) -> u16 {
        match parsed(text) {
            Parsed::Broken(status) => status.as_u16(),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_head_says_where_its_target_is() {
        let text = "\r\nGET /a?b HTTP/1.1\r\nHost: h\r\n\r\nGET";
        let request = complete(text);
        assert_eq!(&text[request.target.clone()], "/a?b");
        assert_eq!(&text[request.head_bytes..], "GET");
        assert_eq!(
            (request.method, request.version.persistence, request.refusal),
            (Method::Get, Persistence::Default, None)
        );
    }

    #[test]
    fn bare_line_feeds_end_lines() {
        assert!(complete("HEAD / HTTP/1.1\nHost: h\n\n").head_only());
    }

    #[test]
    fn persistence_follows_version_and_connection() {
        use Persistence::{Close, Default, KeepAlive};
        for (version, connection, expected) in [
            ("1.1", "", Default),
            ("1.1", "Connection: keep-alive\r\n", Default),
            ("1.1", "Connection: Close\r\n", Close),
            (
                "1.1",
                "Connection: x\r\nconnection: keep-alive ,\tclose\r\n",
                Close,
            ),
            ("1.1", "Connection: closed\r\n", Default),
            ("1.0", "", Close),
            ("1.0", "Connection: Keep-Alive\r\n", KeepAlive),
            ("1.0", "Connection: keep-alive, close\r\n", Close),
        ] {
            let request = complete(&format!(
                "GET / HTTP/{version}\r\nHost: h\r\n{connection}\r\n"
            ));
            assert_eq!(
                request.version.persistence, expected,
                "{version} {connection}"
            );
        }
    }

    #[test]
    fn host_is_required_once_and_plausible() {
        assert_eq!(broken("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(broken("GET http://h/ HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(broken("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
        assert_eq!(broken("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
        for host in [
            "a b", "a/b", "a@b", "a\"b", "h\u{e9}", "..", "a..b", "fd77::2", "[", ":80",
        ] {
            assert_eq!(
                broken(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")),
                400,
                "{host}"
            );
        }
        for host in [
            "",
            "example.org",
            "example.org:8080",
            "[fd77::2]:80",
            "10.77.0.2",
        ] {
            complete(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        }
        complete("GET / HTTP/1.0\r\n\r\n");
    }

    #[test]
    fn methods_are_known_allowed_or_neither() {
        for (method, status) in [
            ("GET", None),
            ("HEAD", None),
            ("POST", Some(405)),
            ("OPTIONS", None),
            ("TRACE", Some(405)),
            ("CONNECT", Some(405)),
            ("get", Some(501)),
            ("BREW", Some(501)),
        ] {
            let request = complete(&format!("{method} * HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!(
                request.refusal.map(|status| status.as_u16()),
                status,
                "{method}"
            );
            assert_eq!(request.version.persistence, Persistence::Default);
        }
    }

    #[test]
    fn versions_are_ours_or_unsupported_or_nonsense() {
        for (version, status) in [
            ("HTTP/2.0", 505),
            ("HTTP/3.0", 505),
            ("HTTP/0.9", 505),
            ("HTTP/1.x", 400),
            ("HTTP/11", 400),
            ("HTPP/1.1", 400),
        ] {
            let text = format!("GET / {version}\r\n");
            assert_eq!(broken(&text), status, "{version}");
            for end in 0..text.len() - 1 {
                assert_eq!(parsed(&text[..end]), Parsed::Partial, "{:?}", &text[..end]);
            }
        }
        for version in ["HTTP/1.2", "HTTP/1.9"] {
            let request = |version| format!("\nGET /a {version}\r\nHost: h\r\n\r\n");
            let text = request(version);
            assert_eq!(parsed(&text), parsed(&request("HTTP/1.1")), "{version}");
            for end in 0..text.len() {
                assert_eq!(parsed(&text[..end]), Parsed::Partial, "{:?}", &text[..end]);
            }
        }
        assert_eq!(broken("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
        assert_eq!(broken("GET /\r\n"), 400);
        assert_eq!(broken("GET  / HTTP/1.1\r\n"), 400);
        assert_eq!(broken("\u{16}\u{3}\u{1}"), 400);
    }

    #[test]
    fn bodies_are_skipped_or_end_the_connection() {
        let with = |method: &str, fields: &str| {
            complete(&format!("{method} / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"))
        };
        let summary = |request: Request<Http1>| {
            (
                request.refusal.map(|status| status.as_u16()),
                request.version.persistence == Persistence::Close,
                request.version.body_bytes,
            )
        };
        assert_eq!(
            summary(with("GET", "Content-Length: 0\r\n")),
            (None, false, 0)
        );
        assert_eq!(
            summary(with("GET", "Content-Length: 65536\r\n")),
            (None, false, 65536)
        );
        assert_eq!(
            summary(with("GET", "Content-Length: 65537\r\n")),
            (Some(413), true, 65537)
        );
        assert_eq!(
            summary(with("POST", "Content-Length: 10\r\n")),
            (Some(405), false, 10)
        );
        assert!(matches!(
            summary(with("POST", "Content-Length: 99999999999999999999\r\n")),
            (Some(405), true, _)
        ));
        assert_eq!(
            summary(with("GET", "Transfer-Encoding: chunked\r\n")),
            (Some(411), true, 0)
        );
        assert_eq!(
            summary(with("PUT", "Transfer-Encoding: Chunked\r\n")),
            (Some(405), true, 0)
        );
    }

    #[test]
    fn framing_in_doubt_is_broken() {
        for fields in [
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: \"chunked\"\r\n",
            "Transfer-Encoding:\r\n",
            "Transfer-Encoding : chunked\r\n",
            "Transfer-Encoding: chunked\r\n folded\r\n",
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length: 1 1\r\n",
            "Content-Length:\r\n",
            "Content-Length\r\n",
            " Content-Length: 1\r\n",
            "X: a\rContent-Length: 1\r\n",
            "X: a\0\r\n",
        ] {
            assert_eq!(
                broken(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")),
                400,
                "{fields:?}"
            );
        }
        assert_eq!(
            broken("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400
        );
        assert_eq!(
            broken("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
            501
        );
    }

    #[test]
    fn expectations_are_met_by_a_final_answer_or_not_at_all() {
        let with = |version: &str, fields: &str| {
            parsed(&format!("GET / HTTP/{version}\r\nHost: h\r\n{fields}\r\n"))
        };
        let persistence = |parsed| match parsed {
            Parsed::Complete(request) => request.version.persistence,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            persistence(with("1.1", "Expect: 100-Continue\r\n")),
            Persistence::Default
        );
        assert_eq!(
            persistence(with("1.1", "Expect: 100-continue\r\nContent-Length: 1\r\n")),
            Persistence::Close
        );
        assert_eq!(
            persistence(with("1.1", "Expect:\r\nExpect: ,\r\n")),
            Persistence::Default
        );
        assert_eq!(
            with("1.1", "Expect: teapot\r\n"),
            Parsed::Broken(StatusCode::EXPECTATION_FAILED)
        );
        assert_eq!(
            with("1.1", "Expect: 100-continue\r\nExpect: 100-continue\r\n"),
            Parsed::Broken(StatusCode::EXPECTATION_FAILED)
        );
        assert_eq!(
            persistence(with("1.0", "Expect: teapot\r\nConnection: keep-alive\r\n")),
            Persistence::KeepAlive
        );
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let config = Config::default();
        let line = |bytes: usize| {
            format!(
                "GET /{} HTTP/1.1\r\n",
                "x".repeat(bytes - "GET / HTTP/1.1\r\n".len())
            )
        };
        let head = |line: &str, bytes: usize| {
            let rest = "Host: h\r\nX: \r\n\r\n".len() + line.len();
            format!("{line}Host: h\r\nX: {}\r\n\r\n", "y".repeat(bytes - rest))
        };
        complete(&head(&line(config.request_line_bytes_max), 10_000));
        assert_eq!(
            broken(&head(&line(config.request_line_bytes_max + 1), 10_000)),
            414
        );
        complete(&head(&line(100), config.head_bytes_max));
        assert_eq!(broken(&head(&line(100), config.head_bytes_max + 1)), 431);
        assert_eq!(broken(&"\r\n".repeat(config.head_bytes_max)), 431);

        let fields = |count: usize| {
            format!(
                "GET / HTTP/1.1\r\nHost: h\r\n{}\r\n",
                "a: b\r\n".repeat(count - 1)
            )
        };
        complete(&fields(HEADER_COUNT_MAX));
        assert_eq!(broken(&fields(HEADER_COUNT_MAX + 1)), 431);
    }
}
