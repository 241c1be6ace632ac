//! HTTP: limits, timeouts, and defaults of all sites.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use netem::conditions::Rate;
use serde::{Deserialize, Serialize};
use server::{Coding, ForwardedField, RelativePath};

use super::text::{Text, Time};
use crate::size::Size;
use crate::socket_values::AddressRange;

/// HTTP: limits, timeouts, and defaults of all sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Index files of directories, in sites that set none; the first that exists is served.
    pub index: Vec<Text<RelativePath>>,
    /// Codings of precompressed files to look for, the best first, of `"br"` (`NAME.br`), `"zstd"`
    /// (`NAME.zst`) and `"gzip"` (`NAME.gz`), in sites that set none.
    pub precompressed: Vec<Text<Coding>>,
    /// List directories that have no index, in sites that do not set this: as a page, or as JSON
    /// for clients that prefer it. Listings omit names that begin with a dot.
    pub listing: bool,
    /// Maximum send rate of a connection, such as `"20mbit"`. Default: no limit.
    pub rate_per_connection: Option<Text<Rate>>,
    /// Maximum send rate of all connections of one source together: an IPv4 address, or an IPv6
    /// network of 64 bits. Default: no limit.
    pub rate_per_source: Option<Text<Rate>>,
    /// Longest request head; a longer one gets 431.
    pub head_max: Text<Size>,
    /// Longest request line; a longer one gets 414.
    pub request_line_max: Text<Size>,
    /// Media types of files by extension, before those that the server knows:
    /// `{ md = "text/markdown; charset=utf-8" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub media_types: BTreeMap<String, String>,
    /// Longest request body skipped to reach the next request; a GET with a longer one gets 413.
    pub body_max: Text<Size>,
    /// Maximum ranges in one request; a request for more gets the whole file.
    pub ranges_max: u32,
    /// Maximum responses queued on one connection and not fully acknowledged; further requests
    /// wait.
    pub responses_in_flight_max: u32,
    /// Maximum concurrent requests of an HTTP/2 connection; the server refuses further ones.
    pub http2_streams_max: u32,
    /// Serve HTTP/2 on ports without TLS as well, to clients that begin with it.
    pub http2_prior_knowledge: bool,
    /// Addresses of proxies, such as `["10.0.0.0/8"]`, that name the client in each request. The
    /// client is the last address in their field that is not among these. It counts for the access
    /// log and `rate_per_source`. Applies to connections accepted from then on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forwarded_from: Vec<Text<AddressRange>>,
    /// The field in which they name it: `"x-forwarded-for"`, or `"forwarded"` (RFC 7239). They must
    /// append to it, or replace it: what a client writes into any other field does not count.
    pub forwarded: Text<ForwardedField>,
    /// Answer 421 over HTTP/2 and HTTP/3 to a request for a host that is neither the server name of
    /// the TLS handshake nor a name of its certificate: the client repeats it on a connection of
    /// its own. False if a proxy in front sends another `:authority` than server name.
    pub reject_misdirected: bool,
    /// Time from a connection's start, or from a request's first byte, to the end of the head;
    /// after that, 408.
    pub head_timeout: Text<Time>,
    /// Time from the last response's acknowledgement to the next request's first byte.
    pub idle_timeout: Text<Time>,
    /// Time that a response may go without any acknowledgement before the server aborts the
    /// connection.
    pub stall_timeout: Text<Time>,
    /// Minimum rate at which a client must receive, averaged over `rate_period`, or `"off"`; the
    /// server resets slower ones. Only time in which the client alone delays a response counts; a
    /// client that receives nothing has the `stall_timeout`.
    pub rate_min: Text<LeastRate>,
    /// Period over which `rate_min` is averaged.
    pub rate_period: Text<Time>,
    /// Time from the acknowledgement of everything sent until the peer must have closed as well.
    pub linger_timeout: Text<Time>,
    /// Maximum bytes read and discarded after the last response of a connection.
    pub linger_max: Text<Size>,
}

impl Default for Http {
    fn default() -> Self {
        let server::Config {
            head_bytes_max,
            request_line_bytes_max,
            body_bytes_max,
            ranges_max,
            responses_in_flight_max,
            http2_streams_max,
            http2_prior_knowledge,
            forwarded,
            rejects_misdirected,
            head_timeout,
            idle_timeout,
            stall_timeout,
            bytes_per_second_min,
            rate_period,
            linger_timeout,
            linger_bytes_max,
            ..
        } = server::Config::default();
        let size = |bytes: usize| Text(Size(bytes as u64));
        let time = |time| Text(Time(time));
        Self {
            index: server::Site::default()
                .index
                .into_iter()
                .map(Text)
                .collect(),
            precompressed: Vec::new(),
            listing: false,
            rate_per_connection: None,
            rate_per_source: None,
            head_max: size(head_bytes_max),
            request_line_max: size(request_line_bytes_max),
            body_max: Text(Size(body_bytes_max)),
            ranges_max: ranges_max as u32,
            responses_in_flight_max: responses_in_flight_max as u32,
            http2_streams_max,
            http2_prior_knowledge,
            forwarded_from: Vec::new(),
            media_types: BTreeMap::new(),
            forwarded: Text(forwarded),
            reject_misdirected: rejects_misdirected,
            head_timeout: time(head_timeout),
            idle_timeout: time(idle_timeout),
            stall_timeout: time(stall_timeout),
            rate_min: Text(LeastRate(bytes_per_second_min)),
            rate_period: time(rate_period),
            linger_timeout: time(linger_timeout),
            linger_max: Text(Size(linger_bytes_max)),
        }
    }
}

/// A rate in bytes per second; slower clients are disconnected. `None` is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastRate(pub Option<NonZeroU64>);

impl FromStr for LeastRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(LeastRate(None));
        }
        let Rate(bits) = text.parse().map_err(|error| format!("{error}, or off"))?;
        NonZeroU64::new(bits / 8)
            .map(|rate| LeastRate(Some(rate)))
            .ok_or_else(|| format!("{text:?} is less than a byte per second: use off"))
    }
}

impl fmt::Display for LeastRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(bytes) => Rate(bytes.get().saturating_mul(8)).fmt(f),
        }
    }
}
