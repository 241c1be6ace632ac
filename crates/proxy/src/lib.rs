//! HTTP/1.1 and TCP load balancer on the host stack's in-process stream interface.
//!
//! [`Proxy`] is an [`Application`](host::app::Application), as the content server is one. A request
//! lives through
//!
//! 1. `session` reads its head, `forward` writes the head again that a backend gets, and `route`
//!    finds its pool;
//! 2. `attempt` comes to a connection to one of the pool's backends, which `pools` and `balance`
//!    choose, and to another one if that fails;
//! 3. `body` moves the request's and the response's body, each framed by the proxy;
//! 4. the connection to the backend waits in `pools` to be used again.
//!
//! In TCP mode, and after an upgrade, `joint` moves bytes between two streams instead.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `proxy` | the table of sessions, and what leads events to them |
//! | `session` | the life of a client's connection |
//! | `shared` | what all sessions have in common |
//! | `attempt` | how a session comes to a connection to a backend |
//! | `joint` | two streams, joined: the seam for splicing |
//! | `shares` | who holds the connections of a pool and who waits for one, by source |
//! | `pace` | whether a client sends or takes a body fast enough |
//! | `body`, `buffer` | a message's body on its way; bytes that wait |
//! | `forward` | which fields of a message go on, and in which words |
//! | `answer` | answers of the proxy's own |
//! | `route` | which pool a request is for |
//! | `pools` | pools and their backends at run time |
//! | `balance` | which backend of a pool is next: round robin, least connections, Maglev |
//! | `health`, `checks` | whether a backend can be used; asking it |
//! | `proxy_protocol` | the PROXY protocol, versions 1 and 2 |
//! | `client_hello` | the server name of a TLS connection |
//! | `config`, `counters`, `note` | what is forwarded where to; what has happened; what is logged |
//!
//! It may touch streams, heads and bytes on their way. It never opens a file or looks up a name.

#![forbid(unsafe_code)]

mod answer;
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
mod joint;
mod note;
mod pace;
mod pools;
mod proxy;
mod proxy_protocol;
mod route;
mod session;
mod shared;
mod shares;

pub use balance::{Balance, BalanceError, HashOn};
pub use config::{
    Backend, Check, CheckKind, Config, Ejection, Forwarded, Listener, Mode, NameError, Pool, Prefix,
};
pub use counters::{BackendCounters, Counters};
pub use proxy::{BackendView, Proxy};
pub use proxy_protocol::{Version, VersionError};
pub use route::{HostPattern, HostPatternError, Rule};
