//! HTTP and TCP load balancer on the host stack's in-process stream interface.
//!
//! [`Proxy`] is an [`Application`](host::app::Application), as the content server is. A request
//! passes through
//!
//! 1. `session`, which reads its head, `forward`, which writes the head for a backend, and `route`,
//!    which finds its pool;
//! 2. `attempt`, which gets a connection to one of the pool's backends, chosen by `pools` and
//!    `balance`, and to another one if that fails;
//! 3. `body`, which moves the request's and the response's body, each framed by the proxy;
//! 4. `pools`, where the connection to the backend waits for reuse.
//!
//! In TCP mode, and after an upgrade, `joint` moves bytes between two streams instead.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `proxy` | the table of sessions, and the dispatch of events |
//! | `session`, `arrival` | the life of a client's connection; how it has arrived |
//! | `shared` | state shared by all sessions |
//! | `attempt` | how a session gets a connection to a backend |
//! | `joint` | two streams, joined: the seam for splicing |
//! | `shares` | holders of and waiters for the connections of a pool, by source |
//! | `pace` | whether a client sends or takes a body fast enough |
//! | `body`, `trailers` | a message's body on its way; its trailer section |
//! | `buffer` | buffered bytes |
//! | **`http2/`** (RFC 9113) | |
//! | `table`, `names` | connections from clients and to backends; names of their streams |
//! | `wanted` | streams to backends that no connection carries yet |
//! | `session_io` | streams as sessions see them |
//! | `connection/` | the life of one connection; `frames`: the effects of received frames; `backend`: to a backend |
//! | `stream` | bytes of one request and of its response |
//! | `request`, `response` | from a field block to HTTP/1.1 |
//! | `outgoing`, `writer` | from HTTP/1.1 to frames; frames on their way |
//! | **others** | |
//! | `forward` | the forwarded parts of a message, and their form |
//! | `answer` | responses that the proxy itself makes |
//! | `route` | the choice of a pool for a request |
//! | `pools` | pools and their backends at run time |
//! | `balance` | the choice of a backend: round robin, least connections, Maglev |
//! | `health`, `checks` | the usability of a backend; active health checks |
//! | `client_hello` | the server name of a TLS connection |
//! | `config`, `counters`, `note` | configuration; event counts; access log notes |
//!
//! The proxy handles streams, heads and bytes on their way. It never opens a file or looks up a
//! name.

#![forbid(unsafe_code)]

mod answer;
mod arrival;
mod attempt;
mod balance;
mod body;
mod buffer;
mod checks;
mod client_hello;
mod config;
mod counters;
mod forward;
mod health;
mod http2;
mod joint;
mod note;
mod pace;
mod pools;
mod proxy;
mod route;
mod session;
mod shared;
mod shares;
mod trailers;

pub use balance::{Balance, BalanceError, HashOn};
pub use client_address::Prefix;
pub use client_address::proxy_protocol::{Version, VersionError};
pub use config::{
    Backend, Check, CheckKind, Config, Ejection, Forwarded, Listener, Mode, NameError, Pool,
    Protocol,
};
pub use counters::{BackendCounters, Counters};
pub use proxy::{BackendView, Proxy};
pub use route::{HostPattern, HostPatternError, Rule};
