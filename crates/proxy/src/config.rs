//! What a proxy forwards, and where to; limits, times, and their defaults.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::balance::Balance;
use crate::proxy_protocol::Version;
use crate::route::Rule;

/// What a proxy does. [`Config::default`] has no listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ports, each with what becomes of its connections.
    pub listeners: Vec<Listener>,
    /// Pools of backends, which rules and listeners name by number.
    pub pools: Vec<Pool>,
    /// Longest request head, beyond which 431, and longest response head, beyond which 502.
    /// Default: 16 KiB.
    pub head_bytes_max: usize,
    /// Longest request line; beyond: 414. Default: 8 KiB.
    pub request_line_bytes_max: usize,
    /// How long a connection to a backend may take to be established. Default: 5 s.
    pub connect_timeout: Duration,
    /// From a connection's start, or a request's first byte, to the end of the head; beyond: 408.
    /// In TCP mode, to the end of the ClientHello. Default: 15 s.
    pub head_timeout: Duration,
    /// From a response's end to the next request's first byte. Default: 75 s.
    pub keepalive_timeout: Duration,
    /// From a request's end to the end of the response's head; beyond: 504. Default: 60 s.
    pub response_timeout: Duration,
    /// How long no byte of a body may move. Default: 60 s.
    pub idle_timeout: Duration,
    /// Bytes per second that a client must send of a body, or acknowledge, while it alone delays
    /// that; a slower one gets 408, or a reset once its response has begun. Default: 500.
    pub bytes_per_second_min: Option<NonZeroU64>,
    /// The period over which that is averaged. Default: 30 s.
    pub rate_period: Duration,
    /// The same of connections in TCP mode and after an upgrade. Default: 1 h.
    pub tunnel_timeout: Duration,
    /// Tunnels that have moved 64 KiB are joined in the NIC stack. Default: no.
    pub splice: bool,
    /// How long a connection to a backend may wait to be used again. Default: 30 s.
    pub backend_idle_timeout: Duration,
    /// Which fields say from where a request came. Default: `X-Forwarded-For`.
    pub forwarded: Forwarded,
    /// The name in `Via`; without, there is no such field. Default: none.
    pub via: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Config {
            listeners: Vec::new(),
            pools: Vec::new(),
            head_bytes_max: 16 << 10,
            request_line_bytes_max: 8 << 10,
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

/// A port, and what becomes of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// TCP port, on all addresses of the stack.
    pub port: u16,
    /// What is spoken there.
    pub mode: Mode,
    /// The first rule that is about a request counts.
    pub rules: Vec<Rule>,
    /// The pool for what no rule is about; without, 404 or, in TCP mode, the end.
    pub pool: Option<usize>,
    /// From these addresses connections begin with a header of the PROXY protocol; from others they
    /// do not.
    pub proxy_from: Vec<Prefix>,
}

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// HTTP/1.1: each request finds its pool.
    Http,
    /// Anything: each connection finds its pool, by the server name of a TLS ClientHello if there
    /// are rules.
    Tcp,
}

/// A text that names none of the values that there are.
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

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// One of them.
    pub address: IpAddr,
    /// In how many bits they are alike.
    pub bits: u8,
}

impl Prefix {
    /// The address is one of them. An IPv4 address mapped into IPv6 is an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                let differing = u32::from(own) ^ u32::from(address);
                differing.checked_shr(32 - bits.min(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                let differing = u128::from(own) ^ u128::from(address);
                differing.checked_shr(128 - bits.min(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Backends of which each can answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// How requests are spread.
    pub balance: Balance,
    /// The backends.
    pub backends: Vec<Backend>,
    /// Active health checks.
    pub check: Option<Check>,
    /// Passive health checks.
    pub ejection: Option<Ejection>,
    /// What connections to the backends begin with.
    pub send_proxy: Option<Version>,
    /// Most connections in use to a backend. Default: 1024.
    pub connections_max: NonZeroU32,
    /// Most connections to a backend that wait to be used again; 0: none is. Default: 64.
    pub idle_max: u32,
    /// Most requests that wait for a backend; beyond: 503. Default: 1024.
    pub queue_max: u32,
    /// How long a request may wait for a backend; beyond: 503. Default: 10 s.
    pub queue_timeout: Duration,
    /// A request with a body gets a connection when the body is there, or so many bytes of it; 0:
    /// with its head. Default: 64 KiB.
    pub request_buffer_bytes: usize,
    /// For a request that has waited for so long, a session gives up its connection, if it waits
    /// for its client; `None`: none does. Default: 50 ms.
    pub evict_after: Option<Duration>,
    /// How many more backends a request may try. Default: 2.
    pub retries: u8,
}

impl Pool {
    /// A pool without backends, and with defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Pool {
            name: name.into(),
            balance: Balance::default(),
            backends: Vec::new(),
            check: None,
            ejection: Some(Ejection::default()),
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
    /// As it is called, in logs and in Maglev's table.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// It gets nothing new; what it has goes on.
    pub drains: bool,
    /// Its name has no address, and `address` only the port: it is down.
    pub is_unresolved: bool,
    /// Why the last lookup of its name failed; the addresses from before may still be in use.
    pub lookup_failure: Option<String>,
}

/// How a backend is asked whether it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub kind: CheckKind,
    /// From one check's beginning to the next one's. Default: 5 s.
    pub interval: Duration,
    /// How long a check may take. Default: 2 s.
    pub timeout: Duration,
    /// So many good ones in a row bring a backend back. Default: 2.
    pub rise: u32,
    /// So many bad ones in a row take a backend out. Default: 3.
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

/// What a check asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// For a connection.
    Tcp,
    /// For a path, by GET.
    Http {
        /// The target.
        path: String,
        /// The value of `Host`; empty for the backend's address.
        host: String,
        /// The statuses of a backend that works.
        statuses: RangeInclusive<u16>,
    },
}

/// When a backend is taken out because requests fail there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// So many failures in a row. Default: 5.
    pub failures: u32,
    /// For so long. Default: 10 s.
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

/// Which fields say from where a request came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// None is added.
    Off,
    /// `X-Forwarded-For`: the client's address is appended.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239): an element with `for` and `proto` is appended.
    Forwarded,
    /// Both.
    Both,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_what_begins_like_them() {
        let prefix = |address: &str, bits| Prefix {
            address: address.parse().unwrap(),
            bits,
        };
        let contains = |prefix: Prefix, address: &str| prefix.contains(address.parse().unwrap());
        assert!(contains(prefix("10.1.0.0", 16), "10.1.255.1"));
        assert!(!contains(prefix("10.1.0.0", 16), "10.2.0.0"));
        assert!(contains(prefix("10.1.2.3", 32), "::ffff:10.1.2.3"));
        assert!(contains(prefix("0.0.0.0", 0), "192.0.2.1"));
        assert!(!contains(prefix("0.0.0.0", 0), "fd00::1"));
        assert!(contains(prefix("fd00::", 8), "fdff::1"));
        assert!(!contains(prefix("fd00::1", 128), "fd00::2"));
        assert!(contains(prefix("::", 0), "fd00::2"));
    }
}
