//! HTTP content server on the host stack's in-process stream interface.
//!
//! [`Server`] is an [`Application`](host::app::Application): the shard tells it of streams and
//! bytes, it answers with response headers (real bytes) and file ranges (virtual bytes). A request
//! lives through
//!
//! 1. a codec, `http1`, `http2` or `http3`, which takes received bytes and judges the request's
//!    head;
//! 2. `exchange::lifecycle`: `semantics::target` turns the target into a path below its site's
//!    root, and the NIC stack opens that path, or one of those that `semantics::attempt` names in
//!    its place;
//! 3. `semantics::answer`, which decides what of it the client gets, `exchange::response`, which
//!    writes status and header fields, and `exchange::output`, which queues these and the file's
//!    ranges;
//! 4. the codec again, which goes on with the connection or ends the stream as soon as that is
//!    queued.
//!
//! `semantics` (RFC 9110) and `exchange` never import a codec. What the codecs differ in is
//! `exchange::version`.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `server` | the table of connections, and what they share |
//! | `config`, `counters` | limits and their defaults; what has happened so far |
//! | `access` | what is noted of each response |
//! | **`http1/`** (RFC 9112) | |
//! | `connection` | the life of one connection |
//! | `request` | from bytes to a request, or to a refusal |
//! | `head` | status line and field lines of a response |
//! | `plain` | the response to a request without TLS at a port of HTTPS |
//! | **`http2/`** (RFC 9113) | |
//! | `connection/` | the life of one connection; `frames`: what each received frame does |
//! | `stream`, `stream_io` | the life of one stream; a stream as an exchange sees it |
//! | `frame_reader`, `frame_writer` | received bytes as frames; frames on their way |
//! | `frame`, `settings`, `window` | frame headers; SETTINGS; flow control |
//! | `scheduler` | which stream writes next |
//! | `head`, `request` | the head of a response; from a field block to a request |
//! | `hpack/` | field blocks (RFC 7541): `decode`, `encode`, `table`, `static_table` |
//! | `code` | error codes |
//! | **`http3/`** (RFC 9114) | |
//! | `connection` | the life of one QUIC connection |
//! | `request_stream` | the life of one request stream |
//! | `unidirectional` | the control stream of a peer, and those of its QPACK |
//! | `request` | from a field section to a request, or to a refusal |
//! | `head` | HEADERS of a response, and DATA around its body |
//! | `frame`, `varint`, `settings` | frames; integers; what peers tell each other first |
//! | `qpack/` | field sections (RFC 9204): `decode`, `encode`, `static_table` |
//! | `code` | error codes |
//! | **`exchange/`** | |
//! | `lifecycle` | the life of one exchange: `resolve`, `answer`, `listing` |
//! | `shared` | what exchanges of a server share |
//! | `request` | a request that has been read |
//! | `input` | received bytes that are not consumed yet |
//! | `version` | what versions of HTTP differ in |
//! | `response`, `lines` | statuses, header fields, error pages; fields as lines of text |
//! | `field_section` | from the fields of HTTP/2 and HTTP/3 to a request, or to a refusal |
//! | `priority` | which response comes first (RFC 9218) |
//! | `budget` | what a peer may ask for beside responses |
//! | `multipart` | several ranges as one body |
//! | `output` | what the stream has not taken yet |
//! | `watch` | what a stream waits for, and for how long |
//! | **`primitives/`** (RFC 7541 §5) | `integer`, `huffman` |
//! | **`semantics/`** | |
//! | `site` | what is served under which names |
//! | `target`, `relative_path` | from a request target to a path; paths that an operator writes |
//! | `rule`, `pattern` | what is special about some paths; which paths those are |
//! | `redirect`, `signed`, `rate`, `cors` | redirections; signed URLs; pacing; what pages of other origins may do |
//! | `fields` | header fields that are looked for when they matter |
//! | `attempt`, `encoding` | which files may answer a request; which codings a client takes |
//! | `answer` | what of a file a request gets |
//! | `conditional`, `etag`, `range` | preconditions; which version of a file it is; which bytes are asked for |
//! | `listing` | what a directory without an index is answered with |
//! | `pull` | what comes from an origin elsewhere |
//! | `passed` | which fields of an origin's answer a client gets |
//! | `content` | files and objects in segments |
//! | `open_failure` | from an `errno` of OPEN to a status |
//! | `mime`, `date` | media types; `Date` and `Last-Modified` |
//!
//! It may touch streams, requests and metadata. It never sees packets, sequence numbers or a
//! byte of content.

#![forbid(unsafe_code)]

mod access;
mod config;
mod counters;
mod exchange;
mod http1;
mod http2;
mod http3;
mod primitives;
mod semantics;
mod server;

pub use config::Config;
pub use counters::Counters;
pub use exchange::lifecycle::ConnectionInfo;
pub use http_message::access::{AccessRecord, AccessSink, AccessTls, NO_RESPONSE};
pub use semantics::cors::{Cors, OriginError};
pub use semantics::encoding::{Coding, CodingError};
pub use semantics::pattern::{Pattern, PatternError};
pub use semantics::pull::{
    CacheStatus, Object, OriginEvent, Origins, Passed, Pull, RulePull, Ticket,
};
pub use semantics::rate::Pace;
pub use semantics::redirect::{Redirect, RedirectError};
pub use semantics::relative_path::{RelativePath, RelativePathError};
pub use semantics::rule::{ExtraField, ExtraFieldError, Rule};
pub use semantics::signed::{SigningKeyError, SigningKeys};
pub use semantics::site::{HostName, HostNameError, Site};
pub use server::Server;
