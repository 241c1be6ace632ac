//! HTTP content server on the host stack's in-process stream interface.
//!
//! [`Server`] is an [`Application`](host::app::Application): the shard reports streams and bytes,
//! and the server answers with response headers (real bytes) and file ranges (virtual bytes). A
//! request passes through
//!
//! 1. a codec, `http1`, `http2` or `http3`, which takes received bytes and judges the request's
//!    head;
//! 2. `exchange::lifecycle`: `semantics::target` turns the target into a path below its site's
//!    root, and the NIC stack opens that path, or another one that `semantics::attempt` names;
//! 3. `semantics::answer`, which decides which part of the file the client gets,
//!    `exchange::response`, which writes status and header fields, and `exchange::output`, which
//!    queues these and the file's ranges;
//! 4. the codec again, which continues the connection or ends the stream as soon as the response is
//!    queued.
//!
//! `semantics` (RFC 9110) and `exchange` never import a codec. `exchange::version` abstracts the
//! differences between codecs. Frames, field blocks and windows of HTTP/2 are crate `http2`'s.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `server` | the table of connections, and their shared state |
//! | `config`, `counters` | limits and their defaults; event counts |
//! | `access` | the access log's record of each response |
//! | **`http1/`** (RFC 9112) | |
//! | `connection` | the life of one connection |
//! | `request` | from bytes to a request, or to a refusal |
//! | `head` | status line and field lines of a response |
//! | `plain` | the response to a request without TLS at a port of HTTPS |
//! | **`http2/`** (RFC 9113) | |
//! | `connection/` | the life of one connection; `frames`: the effects of received frames |
//! | `stream`, `stream_io` | the life of one stream; a stream as an exchange sees it |
//! | `frame_writer` | frames on their way |
//! | `head`, `request` | the head of a response; from a field block to a request |
//! | **`http3/`** (RFC 9114) | |
//! | `connection` | the life of one QUIC connection |
//! | `request_stream` | the life of one request stream |
//! | `unidirectional` | the control stream of a peer, and those of its QPACK |
//! | `request` | from a field section to a request, or to a refusal |
//! | `head` | HEADERS of a response, and DATA around its body |
//! | `frame`, `varint`, `settings` | frames; integers; the limits that peers announce |
//! | `qpack/` | QPACK (RFC 9204): `decode`, `encode`, `static_table` |
//! | `code` | error codes |
//! | **`exchange/`** | |
//! | `lifecycle` | the life of one exchange: `resolve`, `answer`, `listing` |
//! | `shared` | state shared by the exchanges of a server |
//! | `client` | the client of a request, behind proxies or not |
//! | `request` | a parsed request |
//! | `input` | received bytes, not consumed |
//! | `version` | the differences between versions of HTTP |
//! | `response`, `lines` | statuses, header fields, error pages; fields as lines of text |
//! | `field_section` | from the fields of HTTP/2 and HTTP/3 to a request, or to a refusal |
//! | `misdirected` | requests for a host that their connection is not for |
//! | `multipart` | several ranges as one body |
//! | `output` | the unqueued part of a response |
//! | `watch` | the event that a stream waits for, and its deadline |
//! | **`semantics/`** | |
//! | `site` | virtual hosts: content and rules of host names |
//! | `target`, `relative_path` | from a request target to a path; paths that an operator writes |
//! | `rule`, `pattern` | rules for some requests; patterns of paths |
//! | `criteria`, `glob` | further criteria of rules; texts with stars |
//! | `request_limit` | requests of a client that a rule answers in a time |
//! | `joined_rules` | the rule for a request: one, or several that apply together |
//! | `method` | methods of requests |
//! | `template` | paths that a rule makes of a request's |
//! | `scheme`, `versions` | the scheme of a connection; versions of HTTP, and their sets |
//! | `redirect`, `signed`, `rate`, `cors` | redirections; signed URLs; rates; cross-origin access |
//! | `early_hints` | links that browsers follow before the response arrives |
//! | `hsts` | HTTP Strict Transport Security |
//! | `fields` | header fields that are looked up on demand |
//! | `attempt`, `encoding` | files that may answer a request; accepted codings |
//! | `answer` | the part of a file that a request gets |
//! | `conditional`, `etag`, `range` | preconditions; entity tags; byte ranges |
//! | `listing` | listings of directories without an index |
//! | `pull` | content from origins |
//! | `passed` | fields of an origin's answer that a client gets |
//! | `content` | files and objects in segments |
//! | `open_failure` | from an `errno` of OPEN to a status |
//! | `mime`, `date` | media types; `Date` and `Last-Modified` |
//!
//! The server handles streams, requests and metadata. It never sees packets, sequence numbers or a
//! byte of content.

#![forbid(unsafe_code)]

mod access;
mod config;
mod counters;
mod exchange;
mod http1;
mod http2;
mod http3;
mod semantics;
mod server;

pub use client_address::Prefix;
pub use client_address::forwarded::{ForwardedField, ForwardedFieldError};
pub use config::Config;
pub use counters::Counters;
pub use exchange::lifecycle::ConnectionInfo;
pub use http_message::access::{AccessRecord, AccessSink, AccessTls, NO_RESPONSE};
pub use semantics::cors::{Cors, OriginError};
pub use semantics::criteria::Criteria;
pub use semantics::early_hints::{
    EARLY_HINTS_BYTES_MAX, EARLY_HINTS_MAX, EarlyHint, EarlyHintError,
};
pub use semantics::encoding::{Coding, CodingError};
pub use semantics::glob::Glob;
pub use semantics::hsts::Hsts;
pub use semantics::method::{Method, MethodError};
pub use semantics::mime::{MediaTypeError, MediaTypes};
pub use semantics::pattern::{Pattern, PatternError};
pub use semantics::pull::{
    CacheStatus, Object, OriginEvent, Origins, Passed, Pull, RulePull, Ticket,
};
pub use semantics::rate::Pace;
pub use semantics::redirect::{Redirect, RedirectError};
pub use semantics::relative_path::{RelativePath, RelativePathError};
pub use semantics::request_limit::RequestLimit;
pub use semantics::rule::{ExtraField, ExtraFieldError, Fallback, Rule, RuleError};
pub use semantics::scheme::{Scheme, SchemeError};
pub use semantics::signed::{SigningKeyError, SigningKeys};
pub use semantics::site::{HostName, HostNameError, Site};
pub use semantics::template::{Template, TemplateError};
pub use semantics::versions::{HttpVersion, HttpVersionError, Versions};
pub use server::Server;
