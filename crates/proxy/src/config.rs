//! Configuration of a proxy: listeners, pools, limits, timeouts, and their defaults.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use client_address::Prefix;
use client_address::proxy_protocol::Version;
use host::{HeaderPort, Proxies};

use crate::balance::Balance;
use crate::route::Rule;

/// Configuration of a proxy. [`Config::default`] has no listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ports, and the handling of their connections.
    pub listeners: Vec<Listener>,
    /// Pools of backends, which rules and listeners name by number.
    pub pools: Vec<Pool>,
    /// Longest request head; beyond: 431. Longest response head; beyond: 502. Default: 16 KiB.
    pub head_bytes_max: usize,
    /// Longest request line; beyond: 414. Default: 8 KiB.
    pub request_line_bytes_max: usize,
    /// Longest time for a connection to a backend to be established. Default: 5 s.
    pub connect_timeout: Duration,
    /// Most concurrent streams of an HTTP/2 connection; a further one is refused. Default: 100.
    pub http2_streams_max: u32,
    /// From a connection's start, or a request's first byte, to the end of the head; beyond: 408.
    /// In TCP mode, to the end of the ClientHello. Default: 15 s.
    pub head_timeout: Duration,
    /// From a response's end to the next request's first byte. Default: 75 s.
    pub keepalive_timeout: Duration,
    /// From a request's end to the end of the response's head; beyond: 504. Default: 60 s.
    pub response_timeout: Duration,
    /// Longest time in which no byte of a body moves. Default: 60 s.
    pub idle_timeout: Duration,
    /// Bytes per second that a client must send of a body, or acknowledge, while only the client
    /// delays the body; a slower one gets 408, or a reset once its response has begun. Default:
    /// 500.
    pub bytes_per_second_min: Option<NonZeroU64>,
    /// Period over which `bytes_per_second_min` is averaged. Default: 30 s.
    pub rate_period: Duration,
    /// Longest time in which no byte moves in TCP mode or after an upgrade. Default: 1 h.
    pub tunnel_timeout: Duration,
    /// Whether tunnels that have moved 64 KiB are joined in the NIC stack. Default: no.
    pub splice: bool,
    /// Longest time that an idle connection to a backend is kept for reuse. Default: 30 s.
    pub backend_idle_timeout: Duration,
    /// Fields that identify a request's client to the backend. Default: `X-Forwarded-For`.
    pub forwarded: Forwarded,
    /// Name in `Via`; `None`: no such field. Default: none.
    pub via: Option<String>,
}

impl Config {
    /// The proxies in front of this one, which the stack has to know.
    pub fn proxies(&self) -> Proxies {
        let listeners = self.listeners.iter();
        let ports = listeners.filter(|listener| !listener.proxy_from.is_empty());
        let ports = ports.map(|listener| HeaderPort {
            port: listener.port,
            networks: listener.proxy_from.clone(),
            timeout: self.head_timeout,
        });
        Proxies {
            header_ports: ports.collect(),
            forwarding: Vec::new(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Config {
            listeners: Vec::new(),
            pools: Vec::new(),
            head_bytes_max: 16 << 10,
            request_line_bytes_max: 8 << 10,
            http2_streams_max: 100,
            connect_timeout: seconds(5),
            head_timeout: seconds(15),
            keepalive_timeout: seconds(75),
            response_timeout: seconds(60),
            idle_timeout: seconds(60),
            bytes_per_second_min: NonZeroU64::new(500),
            rate_period: seconds(30),
            tunnel_timeout: seconds(3600),
            splice: false,
            backend_idle_timeout: seconds(30),
            forwarded: Forwarded::default(),
            via: None,
        }
    }
}

impl Config {
    /// True if the backends of a pool, by its number, speak HTTP/2.
    pub(crate) fn speaks_http2(&self, pool: Option<usize>) -> bool {
        let pool = pool.and_then(|pool| self.pools.get(pool));
        pool.is_some_and(|pool| pool.protocol == Protocol::H2c)
    }
}

/// A port, and the handling of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// TCP port, on all addresses of the stack.
    pub port: u16,
    /// Protocol on the port.
    pub mode: Mode,
    /// Rules, of which the first match applies.
    pub rules: Vec<Rule>,
    /// Pool for connections and requests that match no rule; `None`: 404 or, in TCP mode, a reset.
    pub pool: Option<usize>,
    /// In HTTP mode, without TLS: a client may begin with HTTP/2 (RFC 9113 §3.3).
    pub http2_prior_knowledge: bool,
    /// Addresses whose connections begin with a header of the PROXY protocol; connections from
    /// others do not.
    pub proxy_from: Vec<Prefix>,
}

/// Protocol on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// HTTP/1.1, and HTTP/2 as clients negotiate it: each request is assigned to a pool.
    Http,
    /// Any protocol: each connection is assigned to a pool, by the server name of a TLS ClientHello
    /// if there are rules.
    Tcp,
}

/// A text that names no known value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    text: String,
    known: &'static str,
}

impl NameError {
    fn new(text: &str, known: &'static str) -> Self {
        let text = text.to_owned();
        NameError { text, known }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is none of {}", self.text, self.known)
    }
}

impl std::error::Error for NameError {}

impl FromStr for Mode {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "http" => Ok(Mode::Http),
            "tcp" => Ok(Mode::Tcp),
            _ => Err(NameError::new(text, "http, tcp")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Http => "http",
            Mode::Tcp => "tcp",
        })
    }
}

/// Protocol that a pool's backends speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1: a connection carries one request at a time.
    #[default]
    Http1,
    /// HTTP/2 without TLS, with prior knowledge (RFC 9113 §3.3): a connection carries many.
    H2c,
}

impl FromStr for Protocol {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "http/1.1" => Ok(Protocol::Http1),
            "h2c" => Ok(Protocol::H2c),
            _ => Err(NameError::new(text, "http/1.1, h2c")),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Http1 => "http/1.1",
            Protocol::H2c => "h2c",
        })
    }
}

impl FromStr for Forwarded {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "off" => Ok(Forwarded::Off),
            "x-forwarded-for" => Ok(Forwarded::XForwardedFor),
            "forwarded" => Ok(Forwarded::Forwarded),
            "both" => Ok(Forwarded::Both),
            _ => Err(NameError::new(
                text,
                "off, x-forwarded-for, forwarded, both",
            )),
        }
    }
}

impl fmt::Display for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forwarded::Off => "off",
            Forwarded::XForwardedFor => "x-forwarded-for",
            Forwarded::Forwarded => "forwarded",
            Forwarded::Both => "both",
        })
    }
}

/// Backends, each of which can answer any of the pool's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name of the pool.
    pub name: String,
    /// Distribution of requests.
    pub balance: Balance,
    /// The backends.
    pub backends: Vec<Backend>,
    /// Active health checks.
    pub check: Option<Check>,
    /// Passive health checks.
    pub ejection: Option<Ejection>,
    /// Protocol of the backends. Default: HTTP/1.1.
    pub protocol: Protocol,
    /// Version of the PROXY protocol header that connections to the backends begin with; `None`: no
    /// header.
    pub send_proxy: Option<Version>,
    /// Most connections in use to a backend, or streams of HTTP/2. Default: 1024.
    pub connections_max: NonZeroU32,
    /// Most idle connections to a backend that are kept for reuse; 0: none. Default: 64.
    pub idle_max: u32,
    /// Most requests that wait for a backend; beyond: 503. Default: 1024.
    pub queue_max: u32,
    /// How long a request may wait for a backend; beyond: 503. Default: 10 s.
    pub queue_timeout: Duration,
    /// Bytes of a request's body that must have arrived before the request gets a connection,
    /// unless the body is shorter; 0: only its head. A body without a length goes to HTTP/2 at
    /// once: its client may wait for a response. Default: 64 KiB.
    pub request_buffer_bytes: usize,
    /// Time that a request waits until a session that waits for its client gives up its connection
    /// for the request; `None`: no session does. Default: 50 ms.
    pub evict_after: Option<Duration>,
    /// Most further backends that a request may try. Default: 2.
    pub retries: u8,
}

impl Pool {
    /// Creates a pool without backends, and with defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Pool {
            name: name.into(),
            balance: Balance::default(),
            backends: Vec::new(),
            check: None,
            ejection: Some(Ejection::default()),
            protocol: Protocol::default(),
            send_proxy: None,
            connections_max: NonZeroU32::new(1024).expect("it is not zero"),
            idle_max: 64,
            queue_max: 1024,
            queue_timeout: Duration::from_secs(10),
            request_buffer_bytes: 64 << 10,
            evict_after: Some(Duration::from_millis(50)),
            retries: 2,
        }
    }
}

/// A server that requests are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Name in logs and in Maglev's table.
    pub name: String,
    /// Address on which the backend listens.
    pub address: SocketAddr,
    /// The backend gets no new requests; those in hand continue.
    pub drains: bool,
    /// The backend's name has no address, and `address` only the port: the backend is down.
    pub is_unresolved: bool,
    /// Why the last lookup of the name failed; earlier addresses may still be in use.
    pub lookup_failure: Option<String>,
}

/// Active health check of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Kind of the check.
    pub kind: CheckKind,
    /// From the beginning of one check to that of the next. Default: 5 s.
    pub interval: Duration,
    /// Longest time of a check. Default: 2 s.
    pub timeout: Duration,
    /// Consecutive passed checks that bring a backend back. Default: 2.
    pub rise: u32,
    /// Consecutive failed checks that take a backend out. Default: 3.
    pub fall: u32,
}

impl Default for Check {
    fn default() -> Self {
        Check {
            kind: CheckKind::Tcp,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

/// Kind of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// A connection.
    Tcp,
    /// A GET for a path.
    Http {
        /// The target.
        path: String,
        /// The value of `Host`; empty for the backend's address.
        host: String,
        /// The statuses of a working backend.
        statuses: RangeInclusive<u16>,
    },
}

/// Passive health check: the ejection of a backend whose requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Consecutive failures before an ejection. Default: 5.
    pub failures: u32,
    /// Duration of an ejection. Default: 10 s.
    pub time: Duration,
}

impl Default for Ejection {
    fn default() -> Self {
        Ejection {
            failures: 5,
            time: Duration::from_secs(10),
        }
    }
}

/// Fields that identify the client of a forwarded request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// No field is added.
    Off,
    /// `X-Forwarded-For`: the client's address is appended. Over TLS, `X-Forwarded-Proto` is
    /// `https`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239): an element with `for` and `proto` is appended.
    Forwarded,
    /// Both.
    Both,
}

impl Forwarded {
    pub(crate) fn has_x_forwarded_for(self) -> bool {
        matches!(self, Forwarded::XForwardedFor | Forwarded::Both)
    }

    pub(crate) fn has_forwarded(self) -> bool {
        matches!(self, Forwarded::Forwarded | Forwarded::Both)
    }
}
