//! HTTP/1.1 content server on the host stack's in-process stream interface.
//!
//! [`Server`] is an [`Application`](host::app::Application): the shard tells it of streams and
//! bytes, it answers with response headers (real bytes) and file ranges (virtual bytes). A request
//! lives through
//!
//! 1. `http1::input` takes received bytes, at most one request head of them;
//! 2. `http1::request` judges the head, which `http_message` parses, `semantics::target` turns its
//!    target into a path below its site's root;
//! 3. `http1::connection` has the NIC stack open that path, or one of those that
//!    `semantics::attempt` names in its place;
//! 4. `semantics::answer` decides what of it the client gets, `http1::response` writes the status
//!    line and header fields, and `http1::output` queues these and the file's ranges;
//! 5. the next request of the connection is parsed as soon as that is queued.
//!
//! `semantics` (RFC 9110) never imports `http1` (RFC 9112): another version of HTTP stands beside
//! `http1`.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `server` | the table of connections, and what they share |
//! | `config`, `counters` | limits and their defaults; what has happened so far |
//! | `access` | what is noted of each response |
//! | **`http1/`** | |
//! | `connection` | the life of one connection |
//! | `watch` | what a connection waits for, and for how long |
//! | `input` | received bytes that are not consumed yet |
//! | `request` | from bytes to a request, or to a refusal |
//! | `response` | status lines, header fields, error pages |
//! | `output` | what the stream has not taken yet |
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
mod http1;
mod semantics;
mod server;

pub use config::Config;
pub use counters::Counters;
pub use http_message::access::{AccessRecord, AccessSink, AccessTls, NO_RESPONSE};
pub use http1::connection::ConnectionInfo;
pub use semantics::cors::{Cors, OriginError};
pub use semantics::encoding::{Coding, CodingError};
pub use semantics::pattern::{Pattern, PatternError};
pub use semantics::pull::{CacheStatus, Object, OriginEvent, Origins, Pull, RulePull, Ticket};
pub use semantics::rate::Pace;
pub use semantics::redirect::{Redirect, RedirectError};
pub use semantics::relative_path::{RelativePath, RelativePathError};
pub use semantics::rule::{ExtraField, ExtraFieldError, Rule};
pub use semantics::signed::{SigningKeyError, SigningKeys};
pub use semantics::site::{HostName, HostNameError, Site};
pub use server::Server;
