//! The proxy: ports, rules, and pools of backends.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::time::Duration;

use ::proxy::{Balance, Forwarded, HostPattern, Mode, Protocol, Version};
use serde::{Deserialize, Serialize};

use super::place::{Place, Problem};
use super::ranges::{check_number, check_time};
use super::text::{Text, Time};
use crate::http::LeastRate;
use crate::size::Size;
use crate::socket_values::AddressRange;

/// Proxy: `splitway proxy` forwards requests and connections to backends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Proxy {
    /// Longest head of a request (a longer one gets 431) and of a response (502).
    pub head_max: Text<Size>,
    /// Longest request line; a longer one gets 414.
    pub request_line_max: Text<Size>,
    /// Maximum concurrent streams of an HTTP/2 connection, 1 to 1000.
    pub http2_streams_max: u32,
    /// Time to establish a connection to a backend.
    pub connect_timeout: Text<Time>,
    /// Time from a connection's start, or from a request's first byte, to the end of the head;
    /// after that, 408. In TCP mode, to the end of the ClientHello.
    pub head_timeout: Text<Time>,
    /// Time from a response's end to the next request's first byte.
    pub keepalive_timeout: Text<Time>,
    /// Time from a request's end to the end of the response's head; after that, 504.
    pub response_timeout: Text<Time>,
    /// Time in which no byte of a body may move or be acknowledged.
    pub idle_timeout: Text<Time>,
    /// Minimum rate at which a client must send the body of a request and receive that of a
    /// response, averaged over `rate_period`, or `"off"`; a slower one gets 408, or a reset once
    /// its response has begun. Only time in which the client alone delays the body counts; a client
    /// that sends or receives nothing has the `idle_timeout`.
    pub rate_min: Text<LeastRate>,
    /// Period over which `rate_min` is averaged.
    pub rate_period: Text<Time>,
    /// Time that a tunnel may stall, in TCP mode and after an upgrade.
    pub tunnel_timeout: Text<Time>,
    /// Splice tunnels in the NIC stack, in TCP mode and after an upgrade, once they have moved 64
    /// KiB: docs/offload.md says when that is worth it.
    pub splice: bool,
    /// Time that an idle backend connection is kept for reuse.
    pub backend_idle_timeout: Text<Time>,
    /// Time from one lookup of backends whose names have no address to the next.
    pub resolve_interval: Text<Time>,
    /// Fields added to requests to name the client: `"x-forwarded-for"`, `"forwarded"`, `"both"` or
    /// `"off"`.
    pub forwarded: Text<Forwarded>,
    /// Name of the proxy in `Via`. Default: no such field.
    pub via: Option<String>,
    /// TCP ports to serve on, one table for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<ProxyListen>,
    /// Routing rules, one table for each. The first that matches a request counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<ProxyRule>,
    /// Pools of backends, one table for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<ProxyPool>,
}

/// A port of the proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProxyListen {
    /// TCP port, on all addresses of the stack.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub port: NonZeroU16,
    /// Mode: `"http"` routes each request to a pool, `"tcp"` each connection, whose TLS passes
    /// through untouched.
    #[serde(default = "http")]
    pub mode: Text<Mode>,
    /// Terminate TLS on the port, with the certificates of `[tls]`. For mode `"http"`.
    #[serde(default)]
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub tls: bool,
    /// Let clients begin with HTTP/2 where there is no TLS to negotiate it. For mode `"http"`.
    #[serde(default)]
    pub http2_prior_knowledge: bool,
    /// Default pool, if no rule matches. Without it, such a request gets 404; in TCP mode, such a
    /// connection is reset.
    #[serde(default)]
    pub pool: Option<String>,
    /// Addresses, such as `["10.0.0.0/8"]`, from which every connection begins with a PROXY
    /// protocol header, version 1 or 2; from others none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxy_protocol_from: Vec<Text<AddressRange>>,
}

impl ProxyListen {
    /// Whether the proxy speaks HTTP on the port.
    pub fn is_http(&self) -> bool {
        self.mode.0 == Mode::Http
    }
}

fn http() -> Text<Mode> {
    Text(Mode::Http)
}

/// A routing rule. A criterion that it omits matches anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProxyRule {
    /// Name of the pool.
    pub pool: String,
    /// Ports that the rule applies to. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<NonZeroU16>,
    /// Hosts to match, or in TCP mode TLS server names: `"example.org"`, or `"*.example.org"` for
    /// all names below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Text<HostPattern>>,
    /// Prefixes of the path as it stands in the request: `"/api/"`. In TCP mode there is no path,
    /// and such a rule matches nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_prefixes: Vec<String>,
}

/// Backends of which each can answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProxyPool {
    /// Name, for rules, logs and metrics, of at most 64 bytes. Required.
    pub name: String,
    /// Load balancing: `"round-robin"`, `"least-connections"`, `"maglev"`: consistent hashing of
    /// the client's address, or `"maglev-header:NAME"`: of a request field.
    pub balance: Text<Balance>,
    /// Protocol of the backends: `"http/1.1"`, or `"h2c"`: HTTP/2 without TLS, with prior
    /// knowledge, which gRPC needs.
    pub protocol: Text<Protocol>,
    /// Begin backend connections with a PROXY protocol header: `"v1"` or `"v2"`. Each then serves
    /// one client.
    pub send_proxy: Option<Text<Version>>,
    /// Maximum connections in use per backend, with `"h2c"` maximum streams; further requests wait.
    pub connections_max: u32,
    /// Maximum idle connections kept per backend.
    pub idle_max: u32,
    /// Maximum requests waiting for a backend; further ones get 503.
    pub queue_max: u32,
    /// Time that a request may wait for a backend; after that, 503.
    pub queue_timeout: Text<Time>,
    /// Bytes of a request's body to wait for before it takes a connection to a backend; of a
    /// shorter body, all. With `"0"` it takes one as soon as its head has arrived, as requests with
    /// `Expect: 100-continue` always do, and with `"h2c"` those without `Content-Length`.
    pub request_buffer: Text<Size>,
    /// Time a request waits for a backend before the slowest session delayed by its client, of the
    /// source with most connections, loses its connection; `"0s"`: never.
    pub evict_after: Text<Time>,
    /// Maximum further backends that a request may try before its response has begun.
    pub retries: u8,
    /// Failures of requests in a row that eject a backend; 0: none.
    pub eject_failures: u32,
    /// Time that a backend stays ejected.
    pub eject_time: Text<Time>,
    /// Health check of backends: `"off"`, `"tcp"` for a connection, or `"http"` for a response.
    pub check: Text<CheckMode>,
    /// Path of HTTP checks.
    pub check_path: String,
    /// `Host` of HTTP checks. Default: the address of the backend.
    pub check_host: Option<String>,
    /// Statuses of a healthy backend, the first and the last.
    pub check_statuses: Text<StatusRange>,
    /// Time from one check to the next.
    pub check_interval: Text<Time>,
    /// Time that a check may take.
    pub check_timeout: Text<Time>,
    /// Passed checks in a row that bring a backend back.
    pub check_rise: u32,
    /// Failed checks in a row that take a backend out.
    pub check_fall: u32,
    /// Backends, one table for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backend: Vec<ProxyBackend>,
}

/// A server that is forwarded to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProxyBackend {
    /// Address: `"192.0.2.7:8080"`, `"[2001:db8::7]:8080"`, or a name, `"app.internal:8080"`,
    /// resolved at startup and at each reload; each address found is a backend. A name without an
    /// address is a backend that is down, and is looked up again every `resolve_interval`.
    pub address: Text<BackendAddress>,
    /// Send the backend nothing new; existing requests and connections continue.
    #[serde(default)]
    pub drain: bool,
}

impl Default for Proxy {
    fn default() -> Self {
        let ::proxy::Config {
            head_bytes_max,
            request_line_bytes_max,
            http2_streams_max,
            connect_timeout,
            head_timeout,
            keepalive_timeout,
            response_timeout,
            idle_timeout,
            bytes_per_second_min,
            rate_period,
            tunnel_timeout,
            splice,
            backend_idle_timeout,
            forwarded,
            via,
            listeners: _,
            pools: _,
        } = ::proxy::Config::default();
        let size = |bytes: usize| Text(Size(bytes as u64));
        let time = |time| Text(Time(time));
        Self {
            head_max: size(head_bytes_max),
            request_line_max: size(request_line_bytes_max),
            http2_streams_max,
            connect_timeout: time(connect_timeout),
            head_timeout: time(head_timeout),
            keepalive_timeout: time(keepalive_timeout),
            response_timeout: time(response_timeout),
            idle_timeout: time(idle_timeout),
            rate_min: Text(LeastRate(bytes_per_second_min)),
            rate_period: time(rate_period),
            tunnel_timeout: time(tunnel_timeout),
            splice,
            backend_idle_timeout: time(backend_idle_timeout),
            resolve_interval: Text(RESOLVE_INTERVAL),
            forwarded: Text(forwarded),
            via,
            listen: Vec::new(),
            rule: Vec::new(),
            pool: Vec::new(),
        }
    }
}

impl Default for ProxyPool {
    fn default() -> Self {
        let pool = ::proxy::Pool::new("");
        let check = ::proxy::Check::default();
        let ejection = ::proxy::Ejection::default();
        Self {
            name: String::new(),
            balance: Text(Balance::default()),
            protocol: Text(Protocol::default()),
            send_proxy: None,
            connections_max: pool.connections_max.get(),
            idle_max: pool.idle_max,
            queue_max: pool.queue_max,
            queue_timeout: Text(Time(pool.queue_timeout)),
            request_buffer: Text(Size(pool.request_buffer_bytes as u64)),
            evict_after: Text(Time(pool.evict_after.unwrap_or_default())),
            retries: pool.retries,
            eject_failures: ejection.failures,
            eject_time: Text(Time(ejection.time)),
            check: Text(CheckMode::Off),
            check_path: "/".to_owned(),
            check_host: None,
            check_statuses: Text(StatusRange(200, 399)),
            check_interval: Text(Time(check.interval)),
            check_timeout: Text(Time(check.timeout)),
            check_rise: check.rise,
            check_fall: check.fall,
            backend: Vec::new(),
        }
    }
}

/// Health check of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMode {
    /// No check.
    Off,
    /// A connection is enough.
    Tcp,
    /// A response is required.
    Http,
}

impl CheckMode {
    /// Names in the configuration.
    pub(crate) const NAMES: [(Self, &str); 3] =
        [(Self::Off, "off"), (Self::Tcp, "tcp"), (Self::Http, "http")];
}

impl FromStr for CheckMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(value, _)| *value)
            .ok_or_else(|| "it is off, tcp or http".to_owned())
    }
}

impl fmt::Display for CheckMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(value, _)| value == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

/// Statuses from the first to the last: `200-399`, or `204` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange(u16, u16);

impl FromStr for StatusRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let status = |text: &str| text.parse::<u16>().ok();
        let range = status(first).zip(status(last));
        let range = range.filter(|(first, last)| first <= last && (100..1000).contains(first));
        range
            .map(|(first, last)| Self(first, last))
            .ok_or_else(|| format!("{text:?} names no statuses: write 200, or 200-399"))
    }
}

impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 == self.1 {
            true => write!(f, "{}", self.0),
            false => write!(f, "{}-{}", self.0, self.1),
        }
    }
}

/// A host and a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAddress {
    /// An address, IPv6 without brackets, or a name.
    host: String,
    port: NonZeroU16,
}

impl BackendAddress {
    /// An address, or a name to look up.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.get()
    }

    /// The address; `None` if the host is a name.
    fn address(&self) -> Option<SocketAddr> {
        let ip = self.host.parse().ok()?;
        Some(SocketAddr::new(ip, self.port()))
    }

    /// An unspecified address for a name that is not resolved.
    fn placeholder(&self) -> SocketAddr {
        SocketAddr::from(([0; 4], self.port()))
    }
}

impl FromStr for BackendAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no host with a port, such as 192.0.2.7:8080, [2001:db8::7]:8080 or \
                 app.internal:8080"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let in_brackets = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_good = match in_brackets {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                !host.is_empty() && host.bytes().all(may_stand)
            }
        };
        if !is_good {
            return Err(wrong());
        }
        let host = in_brackets.unwrap_or(host).to_owned();
        Ok(Self { host, port })
    }
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

const RESOLVE_INTERVAL: Time = Time::from_secs(10);

/// Longest head, as that of the content server.
const HEAD_MAX: Size = Size(1 << 20);

/// Most bytes of a body to wait for, since they occupy memory of the host process.
const REQUEST_BUFFER_MAX: Size = Size(1 << 20);

/// Most pools, rules, and backends of a pool: they are searched linearly, and have numbers.
const COUNT_MAX: usize = 4096;

/// Longest name of a pool, in bytes.
pub(crate) const POOL_NAME_MAX: usize = 64;

/// The part that is sent to the host process, which can look up no name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forwarding {
    proxy: Proxy,
    /// Addresses by host and port of each backend.
    addresses: BTreeMap<String, Vec<SocketAddr>>,
    /// Cause of the last failed lookup of each name. The name may have addresses from before.
    unresolved: BTreeMap<String, String>,
}

/// Result of a lookup: addresses, or the cause of the failure.
pub type Answer = Result<Vec<SocketAddr>, String>;

impl Forwarding {
    /// Resolves a section: `look_up` gets each name once. A name that fails, or has no answer,
    /// keeps its addresses of `before`.
    pub fn read(
        proxy: &Proxy,
        before: Option<&Self>,
        look_up: impl FnOnce(&[BackendAddress]) -> Vec<(BackendAddress, Answer)>,
    ) -> Self {
        let mut forwarding = Self {
            proxy: proxy.clone(),
            ..Self::default()
        };
        let mut names = Vec::new();
        let backends = proxy.pool.iter().flat_map(|pool| &pool.backend);
        for Text(backend) in backends.map(|backend| &backend.address) {
            let name = backend.to_string();
            if forwarding.is_known(&name) {
                continue;
            }
            if let Some(address) = backend.address() {
                forwarding.addresses.insert(name, vec![address]);
                continue;
            }
            if let Some(known) = before.and_then(|before| before.addresses.get(&name)) {
                forwarding.addresses.insert(name.clone(), known.clone());
            }
            let why = "the resolver does not answer".to_owned();
            forwarding.unresolved.insert(name, why);
            names.push(backend.clone());
        }
        if !names.is_empty() {
            for (backend, answer) in look_up(&names) {
                forwarding.take(backend.to_string(), answer);
            }
        }
        forwarding
    }

    fn is_known(&self, name: &str) -> bool {
        self.addresses.contains_key(name) || self.unresolved.contains_key(name)
    }

    fn take(&mut self, name: String, answer: Answer) {
        match answer {
            Ok(found) if !found.is_empty() => {
                self.unresolved.remove(&name);
                self.addresses.insert(name, found);
            }
            Ok(_) => {
                self.unresolved
                    .insert(name, "the name has no address".to_owned());
            }
            Err(why) => {
                self.unresolved.insert(name, why);
            }
        }
    }

    /// Backends whose last lookup failed.
    pub fn unresolved(&self) -> Vec<BackendAddress> {
        let backends = self.proxy.pool.iter().flat_map(|pool| &pool.backend);
        let backends = backends.map(|backend| &backend.address.0);
        let mut unresolved: Vec<BackendAddress> = backends
            .filter(|backend| self.unresolved.contains_key(&backend.to_string()))
            .cloned()
            .collect();
        unresolved.dedup();
        unresolved
    }

    /// Warnings for the operator about unresolved backends, in a line each.
    pub fn warnings(&self) -> Vec<String> {
        let unresolved = self.unresolved.iter();
        let lines = unresolved.map(|(name, why)| {
            let then = match self.addresses.contains_key(name) {
                true => "the addresses from before stay in use",
                false => "it is down",
            };
            format!("looking up the backend {name}: {why}; {then}")
        });
        lines.collect()
    }

    /// The section with the answers of later lookups.
    pub fn with(&self, answers: &[(BackendAddress, Answer)]) -> Self {
        let mut forwarding = self.clone();
        for (backend, answer) in answers {
            let name = backend.to_string();
            if forwarding.unresolved.contains_key(&name) {
                forwarding.take(name, answer.clone());
            }
        }
        forwarding
    }

    /// Time from one lookup of unresolved names to the next.
    pub fn resolve_interval(&self) -> Duration {
        self.proxy.resolve_interval.0.0
    }

    /// All problems of a section, without looking up names.
    pub(super) fn problems(proxy: &Proxy) -> Vec<Problem> {
        let known = Self::read(proxy, None, |names| {
            let answers = names
                .iter()
                .map(|name| (name.clone(), Ok(vec![name.placeholder()])));
            answers.collect()
        });
        known.proxy_config().err().unwrap_or_default()
    }

    /// The proxy's configuration, or all problems.
    ///
    /// # Errors
    ///
    /// Invalid values.
    pub fn proxy_config(&self) -> Result<::proxy::Config, Vec<Problem>> {
        let mut problems = Vec::new();
        let proxy = &self.proxy;
        self.check_limits(&mut problems);
        self.check_counts(&mut problems);
        let place = Place::of("proxy").key("pool");
        let pools = proxy.pool.iter().enumerate();
        let pools = pools.map(|(at, pool)| self.lower_pool(pool, &place.index(at), &mut problems));
        let pools = pools.collect();
        let listeners = self.lower_listeners(&mut problems);
        let bytes = |Text(Size(bytes)): Text<Size>| usize::try_from(bytes).unwrap_or(usize::MAX);
        let config = ::proxy::Config {
            listeners,
            pools,
            head_bytes_max: bytes(proxy.head_max),
            request_line_bytes_max: bytes(proxy.request_line_max),
            http2_streams_max: proxy.http2_streams_max,
            connect_timeout: proxy.connect_timeout.0.0,
            head_timeout: proxy.head_timeout.0.0,
            keepalive_timeout: proxy.keepalive_timeout.0.0,
            response_timeout: proxy.response_timeout.0.0,
            idle_timeout: proxy.idle_timeout.0.0,
            bytes_per_second_min: proxy.rate_min.0.0,
            rate_period: proxy.rate_period.0.0,
            tunnel_timeout: proxy.tunnel_timeout.0.0,
            splice: proxy.splice,
            backend_idle_timeout: proxy.backend_idle_timeout.0.0,
            forwarded: proxy.forwarded.0,
            via: proxy.via.clone(),
        };
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }

    fn check_limits(&self, problems: &mut Vec<Problem>) {
        let proxy = &self.proxy;
        let here = |key: &str| Place::of("proxy").key(key);
        for (key, Text(size)) in [
            ("head_max", proxy.head_max),
            ("request_line_max", proxy.request_line_max),
        ] {
            if !(1..=HEAD_MAX.0).contains(&size.0) {
                let why = format!("{size} is not from 1 byte to {HEAD_MAX}");
                problems.push(Problem::new(here(key), why));
            }
        }
        let streams_max = proxy.http2_streams_max.into();
        let key = "http2_streams_max";
        check_number(here(key), "proxy.http2_streams_max", streams_max, problems);
        for (key, time) in [
            ("connect_timeout", proxy.connect_timeout),
            ("head_timeout", proxy.head_timeout),
            ("keepalive_timeout", proxy.keepalive_timeout),
            ("response_timeout", proxy.response_timeout),
            ("idle_timeout", proxy.idle_timeout),
            ("rate_period", proxy.rate_period),
            ("tunnel_timeout", proxy.tunnel_timeout),
            ("backend_idle_timeout", proxy.backend_idle_timeout),
            ("resolve_interval", proxy.resolve_interval),
        ] {
            check_time(here(key), &format!("proxy.{key}"), time, problems);
        }
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if let Some(via) = &proxy.via
            && (via.is_empty() || !via.bytes().all(is_token))
        {
            let why = format!("{via:?} is no name of letters, digits, dots and hyphens");
            problems.push(Problem::new(here("via"), why));
        }
    }

    fn check_counts(&self, problems: &mut Vec<Problem>) {
        let place = Place::of("proxy");
        let counts = [
            ("rule", self.proxy.rule.len()),
            ("pool", self.proxy.pool.len()),
        ];
        for (key, count) in counts {
            if count > COUNT_MAX {
                let why = format!("{count} are more than {COUNT_MAX}");
                problems.push(Problem::new(place.key(key), why));
            }
        }
        if self.proxy.listen.is_empty() && self.proxy != Proxy::default() {
            let why = "no port is named to serve on: add [[proxy.listen]]";
            problems.push(Problem::new(place, why));
        }
    }

    /// The number of a pool.
    fn pool(&self, name: &str, place: Place, problems: &mut Vec<Problem>) -> usize {
        let found = self.proxy.pool.iter().position(|pool| pool.name == name);
        found.unwrap_or_else(|| {
            let why = format!("there is no pool {name:?}");
            problems.push(Problem::new(place, why).remedy("Add it with [[proxy.pool]]."));
            0
        })
    }

    fn lower_listeners(&self, problems: &mut Vec<Problem>) -> Vec<::proxy::Listener> {
        let proxy = &self.proxy;
        let here = Place::of("proxy").key("listen");
        let there = Place::of("proxy").key("rule");
        let mut rules = Vec::new();
        for (at, rule) in proxy.rule.iter().enumerate() {
            let place = there.index(at);
            let is_path = |prefix: &String| prefix.starts_with('/');
            if !rule.path_prefixes.iter().all(is_path) {
                let why = "a path begins with a slash";
                problems.push(Problem::new(place.key("path_prefixes"), why));
            }
            let is_known = |port: &NonZeroU16| proxy.listen.iter().any(|it| it.port == *port);
            if let Some(port) = rule.ports.iter().find(|port| !is_known(port)) {
                let why = format!("no [[proxy.listen]] has port {port}");
                problems.push(Problem::new(place.key("ports"), why));
            }
            let lowered = ::proxy::Rule {
                hosts: rule.hosts.iter().map(|Text(host)| host.clone()).collect(),
                path_prefixes: rule.path_prefixes.clone(),
                pool: self.pool(&rule.pool, place.key("pool"), problems),
            };
            rules.push((&rule.ports, lowered));
        }
        let mut listeners = Vec::new();
        for (at, listen) in proxy.listen.iter().enumerate() {
            let place = here.index(at);
            if proxy.listen[..at].iter().any(|it| it.port == listen.port) {
                let why = format!("port {} is given twice", listen.port);
                problems.push(Problem::new(place.key("port"), why));
            }
            check_listen_tls(listen, &place, problems);
            self.check_listen_pools(listen, &place, problems);
            let pool = listen.pool.as_ref();
            let of_port = |ports: &[NonZeroU16]| ports.is_empty() || ports.contains(&listen.port);
            let own = rules.iter().filter(|(ports, _)| of_port(ports));
            let networks = listen.proxy_protocol_from.iter();
            listeners.push(::proxy::Listener {
                port: listen.port.get(),
                mode: listen.mode.0,
                http2_prior_knowledge: listen.http2_prior_knowledge,
                rules: own.map(|(_, rule)| rule.clone()).collect(),
                pool: pool.map(|name| self.pool(name, place.key("pool"), problems)),
                proxy_from: networks.map(|range| range.0.network()).collect(),
            });
        }
        listeners
    }

    /// In TCP mode, connections are joined whatever they carry.
    fn check_listen_pools(&self, listen: &ProxyListen, place: &Place, problems: &mut Vec<Problem>) {
        let proxy = &self.proxy;
        let of_port =
            |rule: &&ProxyRule| rule.ports.is_empty() || rule.ports.contains(&listen.port);
        let rules = proxy.rule.iter().filter(of_port).map(|rule| &rule.pool);
        let named: Vec<&String> = rules.chain(&listen.pool).collect();
        let is_h2c =
            |pool: &&ProxyPool| pool.protocol.0 == Protocol::H2c && named.contains(&&pool.name);
        if let Some(pool) = proxy.pool.iter().find(is_h2c)
            && listen.mode.0 == Mode::Tcp
        {
            let why = format!(
                "mode \"tcp\" cannot speak \"h2c\" with pool {:?}",
                pool.name
            );
            problems.push(
                Problem::new(place.key("mode"), why)
                    .remedy("Leave the pool's protocol out: bytes pass as they are."),
            );
        }
    }

    fn lower_pool(
        &self,
        pool: &ProxyPool,
        place: &Place,
        problems: &mut Vec<Problem>,
    ) -> ::proxy::Pool {
        let mut same = self.proxy.pool.iter().filter(|it| it.name == pool.name);
        if !(1..=POOL_NAME_MAX).contains(&pool.name.len()) {
            let why = format!("a pool has a name of at most {POOL_NAME_MAX} bytes");
            problems.push(Problem::new(place.key("name"), why));
        } else if same.nth(1).is_some() {
            let why = format!("two pools are called {:?}", pool.name);
            problems.push(Problem::new(place.key("name"), why));
        }
        let connections_max = NonZeroU32::new(pool.connections_max).unwrap_or_else(|| {
            let why = "at least one connection is needed";
            problems.push(Problem::new(place.key("connections_max"), why));
            NonZeroU32::MIN
        });
        check_of_pool(place, "queue_timeout", pool.queue_timeout, problems);
        check_of_pool(place, "eject_time", pool.eject_time, problems);
        check_of_pool(place, "evict_after", pool.evict_after, problems);
        let Text(request_buffer) = pool.request_buffer;
        if request_buffer.0 > REQUEST_BUFFER_MAX.0 {
            let why = format!("{request_buffer} is more than {REQUEST_BUFFER_MAX}");
            problems.push(Problem::new(place.key("request_buffer"), why));
        }
        let mut backends = Vec::new();
        for backend in &pool.backend {
            let name = backend.address.0.to_string();
            let placeholder = [backend.address.0.placeholder()];
            let found = self.addresses.get(&name).map(Vec::as_slice);
            let addresses = found.unwrap_or(&placeholder);
            // One name may resolve to several backends.
            let is_alone = addresses.len() == 1;
            backends.extend(addresses.iter().map(|&address| ::proxy::Backend {
                name: match is_alone {
                    true => name.clone(),
                    false => address.to_string(),
                },
                address,
                drains: backend.drain,
                is_unresolved: found.is_none(),
                lookup_failure: self.unresolved.get(&name).cloned(),
            }));
        }
        if backends.len() > COUNT_MAX {
            let why = format!("{} are more than {COUNT_MAX}", backends.len());
            problems.push(Problem::new(place.key("backend"), why));
        }
        ::proxy::Pool {
            name: pool.name.clone(),
            balance: pool.balance.0.clone(),
            backends,
            check: lower_check(pool, place, problems),
            ejection: (pool.eject_failures > 0).then_some(::proxy::Ejection {
                failures: pool.eject_failures,
                time: pool.eject_time.0.0,
            }),
            protocol: pool.protocol.0,
            send_proxy: pool.send_proxy.map(|version| version.0),
            connections_max,
            idle_max: pool.idle_max,
            queue_max: pool.queue_max,
            queue_timeout: pool.queue_timeout.0.0,
            request_buffer_bytes: pool.request_buffer.0.0 as usize,
            evict_after: Some(pool.evict_after.0.0).filter(|after| !after.is_zero()),
            retries: pool.retries,
        }
    }
}

fn check_listen_tls(listen: &ProxyListen, place: &Place, problems: &mut Vec<Problem>) {
    if listen.tls && listen.mode.0 == Mode::Tcp {
        let why = "mode \"tcp\" passes TLS through, and cannot terminate it";
        problems.push(
            Problem::new(place.key("tls"), why)
                .remedy("Say mode = \"http\" to terminate TLS, or leave tls out."),
        );
    }
    if listen.http2_prior_knowledge && (listen.tls || listen.mode.0 == Mode::Tcp) {
        let why = "it is for mode \"http\" without TLS, which negotiates HTTP/2 by itself";
        problems.push(Problem::new(place.key("http2_prior_knowledge"), why));
    }
}

fn check_of_pool(place: &Place, key: &str, time: Text<Time>, problems: &mut Vec<Problem>) {
    check_time(place.key(key), &format!("proxy.pool.{key}"), time, problems);
}

fn lower_check(
    pool: &ProxyPool,
    place: &Place,
    problems: &mut Vec<Problem>,
) -> Option<::proxy::Check> {
    check_of_pool(place, "check_interval", pool.check_interval, problems);
    check_of_pool(place, "check_timeout", pool.check_timeout, problems);
    for (key, count) in [
        ("check_rise", pool.check_rise),
        ("check_fall", pool.check_fall),
    ] {
        let name = format!("proxy.pool.{key}");
        check_number(place.key(key), &name, count.into(), problems);
    }
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !pool.check_path.starts_with('/') || !is_plain(&pool.check_path) {
        let why = format!("{:?} is no path that begins with a slash", pool.check_path);
        problems.push(Problem::new(place.key("check_path"), why));
    }
    if let Some(host) = pool.check_host.as_ref().filter(|host| !is_plain(host)) {
        let why = format!("{host:?} is no host");
        problems.push(Problem::new(place.key("check_host"), why));
    }
    let StatusRange(first, last) = pool.check_statuses.0;
    let kind = match pool.check.0 {
        CheckMode::Off => return None,
        CheckMode::Tcp => ::proxy::CheckKind::Tcp,
        CheckMode::Http => ::proxy::CheckKind::Http {
            path: pool.check_path.clone(),
            host: pool.check_host.clone().unwrap_or_default(),
            statuses: first..=last,
        },
    };
    Some(::proxy::Check {
        kind,
        interval: pool.check_interval.0.0,
        timeout: pool.check_timeout.0.0,
        rise: pool.check_rise,
        fall: pool.check_fall,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(text: &str) -> Proxy {
        let config: crate::Config = toml::from_str(text).unwrap();
        config.proxy
    }

    const GOOD: &str = "
        [[proxy.listen]]
        port = 80
        pool = 'web'
        proxy_protocol_from = ['10.0.0.0/8', '::1']
        [[proxy.listen]]
        port = 443
        mode = 'tcp'
        [[proxy.rule]]
        pool = 'tls'
        ports = [443]
        hosts = ['*.example.org']
        [[proxy.pool]]
        name = 'web'
        check = 'http'
        check_path = '/health'
        [[proxy.pool.backend]]
        address = 'app.internal:8080'
        [[proxy.pool.backend]]
        address = '[2001:db8::7]:8080'
        drain = true
        [[proxy.pool]]
        name = 'tls'
        eject_failures = 0
        [[proxy.pool.backend]]
        address = '192.0.2.7:443'
    ";

    fn look_up(names: &[BackendAddress]) -> Vec<(BackendAddress, Answer)> {
        let [name] = names else {
            panic!("each name is looked up once, and no address: {names:?}");
        };
        assert_eq!((name.host(), name.port()), ("app.internal", 8080));
        let found = ["192.0.2.1:8080", "192.0.2.2:8080"].map(|it| it.parse().unwrap());
        vec![(name.clone(), Ok(found.to_vec()))]
    }

    #[test]
    fn names_become_backends_and_rules_go_to_their_ports() {
        let forwarding = Forwarding::read(&proxy(GOOD), None, look_up);
        assert!(forwarding.unresolved().is_empty());
        let config = forwarding.proxy_config().unwrap();
        let backends = |pool: usize| {
            let backends = config.pools[pool].backends.iter();
            let backends = backends.map(|it| (it.name.as_str(), it.address.port(), it.drains));
            backends.collect::<Vec<_>>()
        };
        assert_eq!(
            backends(0),
            [
                ("192.0.2.1:8080", 8080, false),
                ("192.0.2.2:8080", 8080, false),
                ("[2001:db8::7]:8080", 8080, true)
            ]
        );
        assert_eq!(backends(1), [("192.0.2.7:443", 443, false)]);
        let [http, tls] = &config.listeners[..] else {
            panic!("two listeners");
        };
        assert_eq!(
            (http.pool, http.rules.len(), http.proxy_from.len()),
            (Some(0), 0, 2)
        );
        assert_eq!((tls.pool, tls.rules.len(), tls.mode), (None, 1, Mode::Tcp));
        assert!(config.pools[0].check.is_some() && config.pools[1].check.is_none());
        assert!(config.pools[1].ejection.is_none());
    }

    #[test]
    fn a_name_without_an_address_is_a_backend_that_is_down_until_it_has_one() {
        let unknown = |names: &[BackendAddress]| {
            let why = "no such name".to_owned();
            names
                .iter()
                .map(|name| (name.clone(), Err(why.clone())))
                .collect()
        };
        let forwarding = Forwarding::read(&proxy(GOOD), None, unknown);
        let backends = |forwarding: &Forwarding| {
            let pool = forwarding.proxy_config().unwrap().pools.remove(0);
            let backends = pool.backends.into_iter();
            let backends = backends.map(|backend| (backend.name, backend.is_unresolved));
            backends.collect::<Vec<_>>()
        };
        let other = ("[2001:db8::7]:8080".to_owned(), false);
        let down = ("app.internal:8080".to_owned(), true);
        assert_eq!(backends(&forwarding), [down, other.clone()]);
        let [warning] = &forwarding.warnings()[..] else {
            panic!("a warning");
        };
        assert!(
            warning.contains("app.internal:8080: no such name; it is down"),
            "{warning}"
        );

        let [name] = &forwarding.unresolved()[..] else {
            panic!("a name");
        };
        let failed = [(name.clone(), Ok(Vec::new()))];
        let unresolved = forwarding.with(&failed).unresolved();
        assert_eq!(unresolved, std::slice::from_ref(name));
        let found = vec!["192.0.2.1:8080".parse().unwrap()];
        let resolved = forwarding.with(&[(name.clone(), Ok(found))]);
        let up = ("app.internal:8080".to_owned(), false);
        assert_eq!(backends(&resolved), [up.clone(), other.clone()]);
        assert!(resolved.unresolved().is_empty() && resolved.warnings().is_empty());

        // A reload that fails to resolve a name keeps its addresses.
        let again = Forwarding::read(&proxy(GOOD), Some(&resolved), unknown);
        assert_eq!(backends(&again), [up, other]);
        assert_eq!(again.unresolved(), std::slice::from_ref(name));
        assert!(again.warnings()[0].contains("from before stay in use"));
        // A silent resolver keeps the addresses as well.
        let silent = Forwarding::read(&proxy(GOOD), Some(&resolved), |_| Vec::new());
        assert_eq!(backends(&silent), backends(&again));
        assert!(silent.warnings()[0].contains("the resolver does not answer"));
    }

    #[test]
    fn what_makes_no_sense_has_its_place() {
        let long = format!("name = '{}'", "x".repeat(POOL_NAME_MAX + 1));
        for (from, to, place) in [
            ("name = 'tls'", &*long, "proxy.pool[1].name"),
            ("pool = 'web'", "pool = 'wed'", "proxy.listen[0].pool"),
            ("pool = 'tls'", "pool = 'x'", "proxy.rule[0].pool"),
            ("ports = [443]", "ports = [444]", "proxy.rule[0].ports"),
            ("port = 443", "port = 80", "proxy.listen[1].port"),
            ("name = 'tls'", "name = 'web'", "proxy.pool[0].name"),
            (
                "mode = 'tcp'",
                "mode = 'tcp'\ntls = true",
                "proxy.listen[1].tls",
            ),
            (
                "mode = 'tcp'",
                "mode = 'tcp'\nhttp2_prior_knowledge = true",
                "proxy.listen[1].http2_prior_knowledge",
            ),
            (
                "name = 'tls'",
                "name = 'tls'\nprotocol = 'h2c'",
                "proxy.listen[1].mode",
            ),
            (
                "hosts =",
                "path_prefixes = ['x']\nhosts =",
                "proxy.rule[0].path_prefixes",
            ),
            (
                "eject_failures = 0",
                "connections_max = 0",
                "proxy.pool[1].connections_max",
            ),
            (
                "check_path = '/health'",
                "check_path = 'x'",
                "proxy.pool[0].check_path",
            ),
            (
                "check_path = '/health'",
                "check_rise = 0",
                "proxy.pool[0].check_rise",
            ),
            (
                "eject_failures = 0",
                "queue_timeout = '0s'",
                "proxy.pool[1].queue_timeout",
            ),
            (
                "eject_failures = 0",
                "request_buffer = '2M'",
                "proxy.pool[1].request_buffer",
            ),
            (
                "eject_failures = 0",
                "evict_after = '8d'",
                "proxy.pool[1].evict_after",
            ),
        ] {
            let problems = Forwarding::problems(&proxy(&GOOD.replacen(from, to, 1)));
            let mut places = problems.iter().map(|problem| problem.place.to_string());
            assert!(places.any(|it| it == place), "{to}: {problems:?}");
        }
        assert_eq!(Forwarding::problems(&proxy(GOOD)), []);
        assert_eq!(Forwarding::problems(&Proxy::default()), []);
        let without_port = Forwarding::problems(&proxy("[[proxy.pool]]\nname = 'a'"));
        assert_eq!(without_port.len(), 1);
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["192.0.2.7:8080", "[2001:db8::7]:1", "app.internal:65535"] {
            assert_eq!(text.parse::<BackendAddress>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "a",
            "a:0",
            "a:65536",
            ":80",
            "2001:db8::7:80",
            "[a]:80",
            "a/b:80",
        ] {
            assert!(text.parse::<BackendAddress>().is_err(), "{text}");
        }
    }
}
