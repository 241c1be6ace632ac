//! The parts of a message that are forwarded, and their form (RFC 9110 §7.6, RFC 9112).
//!
//! Heads are written again, field by field. The framing that a receiver sees is the proxy's own, so
//! that two parties cannot find two ends of one message.

use std::net::SocketAddr;

use http::StatusCode;
use http_message::authority;
use http_message::chunked::Decoder;
use http_message::framing::{Body, Framing, list};
use http_message::request::{self, Limits, Parsed};
use http_message::response::{self, ResponseError};
use httparse::Header;

use crate::balance::{Balance, HashOn, maglev};
use crate::body::{Decode, Encode};
use crate::config::{Config, Listener};
use crate::route;

/// A request, and its form for the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Length of the received head, in bytes.
    pub(crate) head_bytes: usize,
    pub(crate) is_head: bool,
    pub(crate) is_http_1_0: bool,
    /// The client gets trailers.
    pub(crate) takes_trailers: bool,
    /// The backend speaks HTTP/2, and gets trailers.
    pub(crate) is_to_http2: bool,
    /// The request is a call of gRPC to such a backend: either side may be silent for long, and has
    /// deadlines of its own.
    pub(crate) is_grpc: bool,
    /// The request may be sent twice (RFC 9110 §9.2.2).
    pub(crate) is_idempotent: bool,
    /// The client's connection may carry another request.
    pub(crate) persists: bool,
    /// The request asks for another protocol.
    pub(crate) upgrades: bool,
    /// The client sends the body after 100 (Continue), or after a while.
    pub(crate) expects_continue: bool,
    pub(crate) body: Body,
    /// Number of the request's pool.
    pub(crate) pool: Option<usize>,
    /// Key in Maglev's table.
    pub(crate) key: u64,
    /// Head for the backend.
    pub(crate) head: Vec<u8>,
}

impl Request {
    pub(crate) fn has_body(&self) -> bool {
        self.body != Body::Bytes(0)
    }

    /// Returns the coding of the body, as received and as forwarded.
    pub(crate) fn coding(&self) -> (Decode, Encode) {
        match self.body {
            Body::Bytes(count) => (Decode::Length(count), Encode::Plain),
            Body::Chunked if self.is_to_http2 => {
                (Decode::Chunked(Decoder::with_trailers()), Encode::Chunked)
            }
            Body::Chunked => (Decode::Chunked(Default::default()), Encode::Chunked),
        }
    }
}

/// Configuration and addresses of a request's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) listener: &'a Listener,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The client's connection speaks TLS.
    pub(crate) is_tls: bool,
    /// The client speaks HTTP/2.
    pub(crate) is_http2: bool,
}

/// Parses a request from the bytes received so far.
pub(crate) fn parse_request(bytes: &[u8], context: &Context<'_>) -> Parsed<Request> {
    let limits = Limits {
        head_bytes_max: context.config.head_bytes_max,
        line_bytes_max: context.config.request_line_bytes_max,
    };
    request::parse(bytes, limits, |head| {
        // A bare LF ends a line for one party, and is part of a value for another (RFC 9112 §2.2).
        if has_bare_lf(&bytes[..head.head_bytes]) {
            return Err(StatusCode::BAD_REQUEST);
        }
        judge(head, context)
    })
}

fn has_bare_lf(bytes: &[u8]) -> bool {
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    lines.into_iter().any(|line| !line.ends_with(b"\r\n"))
}

fn judge(head: &request::Head<'_>, context: &Context<'_>) -> Result<Request, StatusCode> {
    let mut framing = Framing::default();
    let (mut host, mut expects) = (None, false);
    let (mut names_protocol, mut names_http) = (false, false);
    for header in head.headers {
        if framing.note(header)? {
            continue;
        }
        if is(header, "host") {
            let names_host = header.value.is_empty() || authority::is_valid(header.value);
            if host.is_some() || !names_host {
                return Err(StatusCode::BAD_REQUEST);
            }
            host = Some(header.value);
        } else if is(header, "expect") {
            expects = !head.is_http_1_0;
            let is_known = header.value.eq_ignore_ascii_case(b"100-continue");
            if expects && !is_known {
                return Err(StatusCode::EXPECTATION_FAILED);
            }
        } else if is(header, "upgrade") {
            names_protocol = true;
            names_http |= list(header.value).any(is_http);
        }
    }
    if host.is_none() && !head.is_http_1_0 {
        return Err(StatusCode::BAD_REQUEST);
    }
    let (target, named) = target(head)?;
    let body = framing.body(head.is_http_1_0)?.unwrap_or(Body::Bytes(0));
    let upgrades = framing.upgrade
        && !head.is_http_1_0
        && body == Body::Bytes(0)
        && names_protocol
        && !names_http;
    let own = context.local.to_string();
    let host = named.or(host.and_then(|host| std::str::from_utf8(host).ok()));
    let host = host.unwrap_or(&own);
    let path = target.split('?').next();
    let listener = context.listener;
    let pool = route::find(&listener.rules, Some(&route::canonical(host)), path);
    let pool = pool.or(listener.pool);
    let is_to_http2 = context.config.speaks_http2(pool);
    let mut out = Vec::with_capacity(head.head_bytes + 256);
    line(&mut out, &[head.method, " ", target, " HTTP/1.1"]);
    field(&mut out, "Host", host.as_bytes());
    let own_fields = ["host", "forwarded", "x-forwarded-for", "via"];
    let names_proto = context.is_tls && context.config.forwarded.has_x_forwarded_for();
    let skip = |header: &Header<'_>| {
        (is(header, "expect") && !expects)
            || own_fields.iter().any(|name| is(header, name))
            || names_proto && is(header, "x-forwarded-proto")
    };
    pass_on(&mut out, head.headers, upgrades, skip);
    add_origin(&mut out, head.headers, context);
    let via = version(context.is_http2, head.is_http_1_0);
    add_via(&mut out, head.headers, context.config, via);
    add_te(&mut out, head.headers, is_to_http2);
    end_head(&mut out, body, framing.content_length.is_some());
    Ok(Request {
        head_bytes: head.head_bytes,
        is_head: head.method == "HEAD",
        is_http_1_0: head.is_http_1_0,
        takes_trailers: context.is_http2,
        is_to_http2,
        is_grpc: is_to_http2 && is_grpc(head.headers),
        is_idempotent: IDEMPOTENT.contains(&head.method),
        persists: framing.persists(head.is_http_1_0),
        upgrades,
        expects_continue: expects,
        body,
        pool,
        key: pool.map_or(0, |pool| {
            key(&context.config.pools[pool].balance, head.headers, context)
        }),
        head: out,
    })
}

/// The version that a peer speaks, as `Via` has it.
fn version(is_http2: bool, is_http_1_0: bool) -> &'static str {
    match (is_http2, is_http_1_0) {
        (true, _) => "2.0",
        (false, true) => "1.0",
        (false, false) => "1.1",
    }
}

/// True for a protocol that carries requests, which the proxy would not inspect.
fn is_http(protocol: &[u8]) -> bool {
    let protocol = protocol.to_ascii_lowercase();
    [&b"h2"[..], b"h3", b"http"]
        .iter()
        .any(|it| protocol.starts_with(it))
}

/// Appends the framing of a request's body, and the end of the head.
fn end_head(out: &mut Vec<u8>, body: Body, has_length: bool) {
    match body {
        Body::Chunked => field(out, "Transfer-Encoding", b"chunked"),
        // A method that has no meaning for content goes without a length.
        Body::Bytes(0) if !has_length => {}
        Body::Bytes(count) => field(out, "Content-Length", count.to_string().as_bytes()),
    }
    out.extend_from_slice(b"\r\n");
}

/// True if the content is of gRPC's media type, with or without the format of its messages.
fn is_grpc(headers: &[Header<'_>]) -> bool {
    let mut types = headers.iter().filter(|header| is(header, "content-type"));
    types.any(|header| {
        let (name, rest) = header
            .value
            .split_at(header.value.len().min(GRPC_TYPE.len()));
        let is_end = rest.first().is_none_or(|byte| b"+; \t".contains(byte));
        name.eq_ignore_ascii_case(GRPC_TYPE) && is_end
    })
}

/// Appends the only value of `TE` that HTTP/2 permits (RFC 9113 §8.2.2), if the client has it.
fn add_te(out: &mut Vec<u8>, headers: &[Header<'_>], is_to_http2: bool) {
    let mut values = headers.iter().filter(|header| is(header, "te"));
    let is_trailers = |option: &[u8]| option.eq_ignore_ascii_case(b"trailers");
    if is_to_http2 && values.any(|it| list(it.value).any(is_trailers)) {
        field(out, "TE", b"trailers");
    }
}

const GRPC_TYPE: &[u8] = b"application/grpc";

const IDEMPOTENT: [&str; 6] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];

/// Returns the target for the backend, and the host that the target names (RFC 9112 §3.2).
fn target<'a>(head: &request::Head<'a>) -> Result<(&'a str, Option<&'a str>), StatusCode> {
    let target = head.target;
    if head.method == "CONNECT" {
        return Err(StatusCode::NOT_IMPLEMENTED);
    }
    if target.starts_with('/') || (target == "*" && head.method == "OPTIONS") {
        return Ok((target, None));
    }
    let is_scheme =
        |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let rest = target
        .split_once("://")
        .filter(|(scheme, _)| is_scheme(scheme));
    let (_, rest) = rest.ok_or(StatusCode::BAD_REQUEST)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    if !authority::is_valid(host.as_bytes()) || path.starts_with('?') {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok((if path.is_empty() { "/" } else { path }, Some(host)))
}

/// Returns the key in Maglev's table.
fn key(balance: &Balance, headers: &[Header<'_>], context: &Context<'_>) -> u64 {
    if let Balance::Maglev(HashOn::Header(name)) = balance
        && let Some(header) = headers.iter().find(|header| is(header, name))
    {
        return maglev::hash(0, header.value);
    }
    source_key(context.peer)
}

/// Returns the key of a client's address.
pub(crate) fn source_key(peer: SocketAddr) -> u64 {
    match peer.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => maglev::hash(0, &ip.octets()),
        std::net::IpAddr::V6(ip) => maglev::hash(0, &ip.octets()),
    }
}

fn is(header: &Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

fn line(out: &mut Vec<u8>, words: &[&str]) {
    for word in words {
        out.extend_from_slice(word.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Fields that concern one connection, or framing (RFC 9110 §7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
];

/// Fields that a `Connection` field cannot remove: they concern the message itself.
const END_TO_END: [&str; 2] = ["host", "cache-control"];

/// Appends the forwarded fields, and with `upgrades` those that ask for another protocol.
fn pass_on(
    out: &mut Vec<u8>,
    headers: &[Header<'_>],
    upgrades: bool,
    skip: impl Fn(&Header<'_>) -> bool,
) {
    let connection = headers.iter().filter(|header| is(header, "connection"));
    let options: Vec<&[u8]> = connection.flat_map(|header| list(header.value)).collect();
    for header in headers {
        let is_upgrade = upgrades && is(header, "upgrade");
        let is_hop_by_hop = HOP_BY_HOP.iter().any(|name| is(header, name));
        let name = header.name.as_bytes();
        let is_named = options
            .iter()
            .any(|option| option.eq_ignore_ascii_case(name))
            && !END_TO_END.iter().any(|name| is(header, name));
        if is_upgrade || !(is_hop_by_hop || is_named || skip(header)) {
            field(out, header.name, header.value);
        }
    }
    if upgrades {
        field(out, "Connection", b"Upgrade");
    }
}

/// Appends all values of a field as one list, followed by `last`.
fn append(out: &mut Vec<u8>, headers: &[Header<'_>], name: &'static str, last: Option<&str>) {
    let values = headers.iter().filter(|it| is(it, name)).map(|it| it.value);
    // Values behind an open quote would be part of the quoted string.
    let values = values.filter(|value| name != "Forwarded" || closes_its_quotes(value));
    let values = values.chain(last.map(str::as_bytes));
    let all: Vec<&[u8]> = values.filter(|value| !value.is_empty()).collect();
    if !all.is_empty() {
        field(out, name, &all.join(&b", "[..]));
    }
}

/// True if each quoted string (RFC 9110 §5.6.4) is closed.
fn closes_its_quotes(value: &[u8]) -> bool {
    let (mut is_quoted, mut bytes) = (false, value.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted => {
                let _ = bytes.next();
            }
            _ => {}
        }
    }
    !is_quoted
}

/// Appends the fields that identify the client.
fn add_origin(out: &mut Vec<u8>, headers: &[Header<'_>], context: &Context<'_>) {
    let ip = context.peer.ip().to_canonical();
    let fields = context.config.forwarded;
    let (for_field, forwarded) = (fields.has_x_forwarded_for(), fields.has_forwarded());
    let node = match ip {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("\"[{ip}]\""),
    };
    let proto = if context.is_tls { "https" } else { "http" };
    let element = format!("for={node};proto={proto}");
    let address = ip.to_string();
    append(
        out,
        headers,
        "X-Forwarded-For",
        for_field.then_some(&address),
    );
    // Without TLS, the client's own value stays, as those of the other fields do.
    if for_field && context.is_tls {
        field(out, "X-Forwarded-Proto", b"https");
    }
    append(out, headers, "Forwarded", forwarded.then_some(&element));
}

fn add_via(out: &mut Vec<u8>, headers: &[Header<'_>], config: &Config, version: &str) {
    let own = config.via.as_ref().map(|name| format!("{version} {name}"));
    append(out, headers, "Via", own.as_deref());
}

/// Kind of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 1xx: another response follows.
    Interim,
    /// 101: another protocol follows.
    Switching,
    Final,
}

/// A response, and its form for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// Length of the received head, in bytes.
    pub(crate) head_bytes: usize,
    pub(crate) status: u16,
    pub(crate) kind: Kind,
    /// Coding of the body, as received and as forwarded.
    pub(crate) coding: (Decode, Encode),
    /// The connection to the backend may be used again.
    pub(crate) persists: bool,
    /// The client's connection ends with this response.
    pub(crate) closes: bool,
    /// Head for the client; may be empty for [`Kind::Interim`].
    pub(crate) head: Vec<u8>,
}

/// Parses a response from the bytes received so far; `None` if more must arrive first. `closes`:
/// the client's connection ends in any case.
pub(crate) fn parse_response(
    bytes: &[u8],
    config: &Config,
    request: &Request,
    closes: bool,
) -> Result<Option<Response>, ResponseError> {
    response::parse(bytes, config.head_bytes_max, |head| {
        judge_response(head, config, request, closes)
    })
}

fn judge_response(
    head: &response::Head<'_>,
    config: &Config,
    request: &Request,
    closes: bool,
) -> Result<Response, ResponseError> {
    let kind = match head.status {
        // A protocol that the client did not ask for cannot be forwarded.
        101 if !request.upgrades => return Err(ResponseError::Malformed),
        101 => Kind::Switching,
        100..=199 => Kind::Interim,
        _ => Kind::Final,
    };
    // Such a response ends at its head, regardless of its fields (RFC 9112 §6.3).
    let has_body = kind == Kind::Final && !request.is_head && ![204, 304].contains(&head.status);
    let mut framing = Framing::default();
    let mut is_sound = true;
    for header in head.headers {
        is_sound &= framing.note(header).is_ok();
    }
    let body = framing.body(head.is_http_1_0);
    is_sound &= body.is_ok();
    let decode = match body {
        _ if !has_body => Decode::Length(0),
        _ if !is_sound => return Err(ResponseError::Malformed),
        Ok(Some(Body::Bytes(count))) => Decode::Length(count),
        Ok(Some(Body::Chunked)) if request.takes_trailers => {
            Decode::Chunked(Decoder::with_trailers())
        }
        Ok(Some(Body::Chunked)) => Decode::Chunked(Default::default()),
        Ok(None) | Err(_) => Decode::UntilEnd,
    };
    let has_length = matches!(decode, Decode::Length(_));
    let encode = match has_length || request.is_http_1_0 {
        true => Encode::Plain,
        false => Encode::Chunked,
    };
    let closes = closes || !request.persists || (!has_length && request.is_http_1_0);
    let persists = is_sound && framing.persists(head.is_http_1_0) && decode != Decode::UntilEnd;
    let mut out = Vec::with_capacity(head.head_bytes + 128);
    if kind != Kind::Interim || !request.is_http_1_0 {
        line(
            &mut out,
            &["HTTP/1.1 ", &head.status.to_string(), " ", head.reason],
        );
        pass_on(&mut out, head.headers, kind == Kind::Switching, |header| {
            is(header, "via")
        });
        let version = version(request.is_to_http2, head.is_http_1_0);
        add_via(&mut out, head.headers, config, version);
        // For HEAD and 304, the length that the body would have (RFC 9110 §8.6).
        let length = match kind {
            Kind::Final if head.status != 204 && is_sound => framing.content_length,
            _ => None,
        };
        if let Some(length) = length {
            field(&mut out, "Content-Length", length.to_string().as_bytes());
        }
        if encode == Encode::Chunked {
            field(&mut out, "Transfer-Encoding", b"chunked");
        }
        if kind == Kind::Final && closes {
            field(&mut out, "Connection", b"close");
        } else if kind == Kind::Final && request.is_http_1_0 {
            field(&mut out, "Connection", b"keep-alive");
        }
        out.extend_from_slice(b"\r\n");
    }
    Ok(Response {
        head_bytes: head.head_bytes,
        status: head.status,
        kind,
        coding: (decode, encode),
        persists,
        closes,
        head: out,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Forwarded, Mode, Pool};

    fn config() -> Config {
        let mut pool = Pool::new("web");
        pool.balance = Balance::Maglev(HashOn::Header("x-user".to_owned()));
        Config {
            listeners: vec![Listener {
                port: 80,
                mode: Mode::Http,
                rules: Vec::new(),
                pool: Some(0),
                http2_prior_knowledge: false,
                proxy_from: Vec::new(),
            }],
            pools: vec![pool],
            ..Config::default()
        }
    }

    fn context(config: &Config) -> Context<'_> {
        Context {
            config,
            listener: &config.listeners[0],
            peer: "192.0.2.1:5".parse().unwrap(),
            local: "10.0.0.1:80".parse().unwrap(),
            is_tls: false,
            is_http2: false,
        }
    }

    fn parse(config: &Config, text: &str) -> Parsed<Request> {
        parse_request(text.as_bytes(), &context(config))
    }

    #[test]
    fn over_tls_backends_get_the_scheme_in_place_of_the_clients() {
        let text = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: ftp\r\n\r\n";
        let head = |forwarded, is_tls| {
            let config = Config {
                forwarded,
                ..config()
            };
            let context = Context {
                is_tls,
                ..context(&config)
            };
            match parse_request(text.as_bytes(), &context) {
                Parsed::Complete(request) => String::from_utf8(request.head).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let is_in = |head: &str, line: &str| head.contains(&format!("\r\n{line}\r\n"));
        let both = head(Forwarded::Both, true);
        assert!(is_in(&both, "X-Forwarded-Proto: https"), "{both}");
        assert!(is_in(&both, "Forwarded: for=192.0.2.1;proto=https"));
        assert!(!both.contains("ftp"));
        for (forwarded, is_tls) in [(Forwarded::Both, false), (Forwarded::Forwarded, true)] {
            let head = head(forwarded, is_tls);
            assert!(is_in(&head, "X-Forwarded-Proto: ftp"), "{head}");
        }
    }

    fn request(config: &Config, text: &str) -> Request {
        match parse(config, text) {
            Parsed::Complete(request) => request,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn head_of(config: &Config, text: &str) -> String {
        String::from_utf8(request(config, text).head).unwrap()
    }

    #[test]
    fn fields_of_the_connection_stay_and_framing_is_written_again() {
        let config = Config {
            via: Some("p".to_owned()),
            forwarded: Forwarded::Both,
            ..config()
        };
        let head = head_of(
            &config,
            "POST /a?b HTTP/1.1\r\nhost: H.example\r\nConnection: close, X-Own, Host\r\n\
             X-Own: 1\r\nTE: trailers\r\nUpgrade: websocket\r\n\
             X-Forwarded-For: 10.1.1.1\r\nVia: 1.0 q\r\nKeep-Alive: 5\r\n\
             Transfer-Encoding: chunked\r\nX-Other: 2\r\n\r\n",
        );
        assert_eq!(
            head,
            "POST /a?b HTTP/1.1\r\nHost: H.example\r\nX-Other: 2\r\n\
             X-Forwarded-For: 10.1.1.1, 192.0.2.1\r\nForwarded: for=192.0.2.1;proto=http\r\n\
             Via: 1.0 q, 1.1 p\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
    }

    #[test]
    fn targets_come_in_three_forms() {
        let config = config();
        let head = |line: &str| head_of(&config, &format!("{line}\r\nHost: other\r\n\r\n"));
        let starts = |line: &str, start: &str| {
            let head = head(line);
            assert!(head.starts_with(start), "{line}: {head}");
        };
        starts("GET /x HTTP/1.1", "GET /x HTTP/1.1\r\nHost: other\r\n");
        starts(
            "GET http://a.org/x HTTP/1.1",
            "GET /x HTTP/1.1\r\nHost: a.org\r\n",
        );
        starts(
            "GET HTTP://a.org HTTP/1.1",
            "GET / HTTP/1.1\r\nHost: a.org\r\n",
        );
        starts("OPTIONS * HTTP/1.1", "OPTIONS * HTTP/1.1\r\n");
        for (line, status) in [
            ("GET x HTTP/1.1", 400),
            ("GET * HTTP/1.1", 400),
            ("GET ftp://a/ HTTP/1.1", 400),
            ("GET http://a@b/ HTTP/1.1", 400),
            ("CONNECT a:443 HTTP/1.1", 501),
        ] {
            let text = format!("{line}\r\nHost: other\r\n\r\n");
            let refused = Parsed::Broken(StatusCode::from_u16(status).unwrap());
            assert_eq!(parse(&config, &text), refused, "{line}");
        }
        let old = head_of(&config, "GET / HTTP/1.0\r\n\r\n");
        assert!(old.contains("\r\nHost: 10.0.0.1:80\r\n"), "{old}");
    }

    #[test]
    fn framing_in_doubt_is_refused() {
        for fields in [
            "Host: a\r\nHost: a\r\n",
            "X: y\r\n",
            "Host: a b\r\n",
            "Host: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Host: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
            "Host: h\r\nTransfer-Encoding: chunked, identity\r\n",
            "Host: h\r\nTransfer-Encoding : chunked\r\n",
            "Host: h\r\nX: a\r\n folded\r\n",
            "Host: h\r\nContent-Length: +1\r\n",
            "Host: h\r\nX: a\nContent-Length: 1\r\n",
            "Host: h\n",
            "Host: h\r\nX: a\rContent-Length: 1\r\n",
            "Host: h\r\nX: a\0\r\n",
            "Host: h\r\n X: a\r\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\n{fields}\r\n");
            let refused = Parsed::Broken(StatusCode::BAD_REQUEST);
            assert_eq!(parse(&config(), &text), refused, "{fields}");
        }
    }

    #[test]
    fn upgrades_go_on_unless_they_are_of_http() {
        let config = config();
        let text = |protocol: &str, more: &str| {
            format!(
                "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
                 Upgrade: {protocol}\r\n{more}\r\n"
            )
        };
        let websocket = request(&config, &text("websocket", ""));
        assert!(websocket.upgrades);
        let head = String::from_utf8(websocket.head).unwrap();
        assert!(
            head.contains("Upgrade: websocket\r\nConnection: Upgrade\r\n"),
            "{head}"
        );
        for protocol in [
            "h2c",
            "H2",
            "websocket, h2c",
            "HTTP/2.0",
            "h2c\r\nUpgrade: websocket",
        ] {
            let request = request(&config, &text(protocol, ""));
            let head = String::from_utf8(request.head).unwrap();
            assert!(!request.upgrades && !head.contains("pgrade"), "{head}");
        }
        assert!(!request(&config, &text("websocket", "Content-Length: 1\r\n")).upgrades);
    }

    #[test]
    fn the_key_is_a_field_or_the_address() {
        let config = config();
        let key = |field: &str| {
            request(
                &config,
                &format!("GET / HTTP/1.1\r\nHost: h\r\n{field}\r\n"),
            )
            .key
        };
        assert_eq!(key("X-User: a\r\n"), key("x-user: a\r\n"));
        assert_ne!(key("X-User: a\r\n"), key("X-User: b\r\n"));
        assert_eq!(key(""), source_key("192.0.2.1:9".parse().unwrap()));
    }

    fn response(request_text: &str, text: &str) -> Result<Option<Response>, ResponseError> {
        let config = config();
        let request = request(&config, request_text);
        parse_response(text.as_bytes(), &config, &request, false)
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    const GET_1_0: &str = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n";

    #[test]
    fn bodies_of_responses_end_where_rfc_9112_says() {
        let coding = |request, text| response(request, text).unwrap().unwrap().coding;
        let with_length = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n";
        assert_eq!(coding(GET, with_length), (Decode::Length(7), Encode::Plain));
        assert_eq!(
            coding(HEAD, with_length),
            (Decode::Length(0), Encode::Plain)
        );
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let decode = Decode::Chunked(Default::default());
        assert_eq!(coding(GET, chunked), (decode.clone(), Encode::Chunked));
        assert_eq!(coding(GET_1_0, chunked), (decode, Encode::Plain));
        let until_end = "HTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(coding(GET, until_end), (Decode::UntilEnd, Encode::Chunked));
        assert_eq!(
            coding(GET_1_0, until_end),
            (Decode::UntilEnd, Encode::Plain)
        );
        for text in [
            "HTTP/1.1 204 No\r\n\r\n",
            "HTTP/1.1 304 No\r\nContent-Length: 7\r\n\r\n",
            "HTTP/1.1 100 Go\r\n\r\n",
        ] {
            assert_eq!(
                coding(GET, text),
                (Decode::Length(0), Encode::Plain),
                "{text}"
            );
        }
    }

    #[test]
    fn responses_without_a_body_end_at_their_head_whatever_their_fields_are() {
        for framing in [
            "Content-Length: 5\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: x\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
        ] {
            let text = |status| format!("HTTP/1.1 {status} Text\r\nA: b\r\n{framing}\r\n");
            for status in [100, 103, 199, 204, 304] {
                let text = text(status);
                let response = response(GET, &text).unwrap().unwrap();
                assert_eq!(response.head_bytes, text.len(), "{text}");
                assert_eq!(response.coding, (Decode::Length(0), Encode::Plain));
            }
            let early_hints = response(GET, &text(103)).unwrap().unwrap();
            assert_eq!(early_hints.kind, Kind::Interim);
            assert_eq!(early_hints.head, b"HTTP/1.1 103 Text\r\nA: b\r\n\r\n");
            assert!(response(HEAD, &text(200)).is_ok(), "{framing}");
        }
        // A backend that contradicts itself gets no further request on this connection.
        let both = "HTTP/1.1 204 No\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(!response(GET, both).unwrap().unwrap().persists);
    }

    #[test]
    fn connections_end_or_go_on() {
        let ends = |request, text: &str| {
            let response = response(request, text).unwrap().unwrap();
            (response.persists, response.closes)
        };
        let with = |fields: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n{fields}\r\n");
        assert_eq!(ends(GET, &with("")), (true, false));
        assert_eq!(ends(GET, &with("Connection: close\r\n")), (false, false));
        let close = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        assert_eq!(ends(close, &with("")), (true, true));
        assert_eq!(ends(GET, "HTTP/1.1 200 OK\r\n\r\n"), (false, false));
        assert_eq!(ends(GET_1_0, "HTTP/1.1 200 OK\r\n\r\n"), (false, true));
        assert_eq!(ends(GET_1_0, &with("")), (true, false));
    }

    #[test]
    fn responses_in_doubt_are_refused() {
        for text in [
            "HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert_eq!(response(GET, text), Err(ResponseError::Malformed), "{text}");
        }
    }
}
