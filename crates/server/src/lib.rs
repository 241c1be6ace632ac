//! HTTP/1.1 content server on the host stack's in-process stream interface.
//!
//! [`Server`] is an [`Application`](host::app::Application): the shard tells it of streams and bytes,
//! it answers with response headers (real bytes) and file ranges (virtual bytes). A request lives
//! through
//!
//! 1. `input` takes received bytes, at most one request head of them;
//! 2. `request` parses and judges the head, `target` turns its target into a path below its site's root;
//! 3. `connection` has the NIC stack open that path, or one of those that `attempt` knows in its place, and waits;
//! 4. `answer` decides what of it the client gets, `response` writes the status line and header fields, and
//!    `output` queues these and the file's ranges;
//! 5. the next request of the connection is parsed as soon as that is queued.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `server` | the table of connections, and what they share |
//! | `connection` | the life of one connection |
//! | `watch` | what a connection waits for, and for how long |
//! | `input` | received bytes that are not consumed yet |
//! | `request` | from bytes to a request, or to a refusal |
//! | `authority` | which texts name a host |
//! | `fields` | header fields that are looked for when they matter |
//! | `site` | what is served under which names, and from where |
//! | `rule` | what is special about some paths |
//! | `pattern` | which paths a rule is about |
//! | `redirect` | where an operator sends clients |
//! | `signed` | who has a signed URL may have the file |
//! | `rate` | how fast responses are sent |
//! | `cors` | what pages of other origins may do |
//! | `encoding` | which variants of a file a client takes |
//! | `attempt` | which files may answer a request |
//! | `target` | from a request target to a path |
//! | `listing` | what a directory without an index is answered with |
//! | `answer` | what of a file a request gets |
//! | `conditional` | whether a file is what the client thinks it is |
//! | `etag` | which version of a file it is |
//! | `range` | which bytes are asked for |
//! | `pull` | what comes from an origin elsewhere |
//! | `content` | files and objects in segments |
//! | `output` | what the stream has not taken yet |
//! | `response` | status lines, header fields, error pages |
//! | `open_failure` | from an `errno` of OPEN to a status |
//! | `number` | sizes and offsets in header fields
//! | `mime` | from a file name to a media type |
//! | `date` | `Date` and `Last-Modified` |
//! | `config` | limits and their defaults |
//! | `counters` | what has happened so far |
//! | `access` | what is noted of each response |
//!
//! This room may touch streams, requests and metadata. It never sees packets, sequence numbers or a
//! byte of content.

#![forbid(unsafe_code)]

mod access;
mod answer;
mod attempt;
mod authority;
mod conditional;
mod config;
mod connection;
mod content;
mod cors;
mod counters;
mod date;
mod encoding;
mod etag;
mod fields;
mod input;
mod listing;
mod mime;
mod number;
mod open_failure;
mod output;
mod pattern;
mod pull;
mod range;
mod rate;
mod redirect;
mod request;
mod response;
mod rule;
mod server;
mod signed;
mod site;
mod target;
mod watch;

pub use access::{AccessRecord, AccessSink, NO_RESPONSE};
pub use config::Config;
pub use connection::ConnectionInfo;
pub use cors::{Cors, OriginError};
pub use counters::Counters;
pub use encoding::{Coding, CodingError};
pub use pattern::{Pattern, PatternError};
pub use pull::{How, News, Object, Origins, Pull, RulePull, Ticket};
pub use rate::Pace;
pub use redirect::{Redirect, RedirectError};
pub use rule::{ExtraField, ExtraFieldError, Rule};
pub use server::Server;
pub use signed::{SigningKeyError, SigningKeys};
pub use site::{HostName, HostNameError, RelativePath, RelativePathError, Site};
