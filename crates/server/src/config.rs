//! The content that a server serves, its limits, and their defaults.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use client_address::Prefix;
use client_address::forwarded::ForwardedField;

use crate::semantics::relative_path::RelativePath;
use crate::semantics::site::Site;

/// Sites, limits on peers, and timeouts. [`Config::default`] suits the open internet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sites by name. The first site also serves requests for unknown names. Default: one site of
    /// all files below the root.
    pub sites: Vec<Site>,
    /// Directory below the NIC stack's root in which no client may name a file: the store of
    /// objects from origins. Default: none.
    pub hidden: Option<RelativePath>,
    /// Files come first, and an origin is asked for missing ones. If false, the root contains only
    /// objects from origins. Default: true.
    pub files_come_first: bool,
    /// Responses with content from an origin have `Cache-Status` (RFC 9211). Default: false.
    pub cache_status: bool,
    /// Longest request head: request line, header fields and the empty lines before and after.
    /// Beyond: 431. A connection's input buffer grows up to it. Default: 16 KiB.
    pub head_bytes_max: usize,
    /// Longest request line, with its line end. Beyond: 414. Default: 8 KiB; RFC 9112 §3 asks for
    /// 8000 bytes at least.
    pub request_line_bytes_max: usize,
    /// Longest request body that is skipped to reach the next request. A GET or HEAD with a longer
    /// one is answered 413; after any other refusal the connection closes instead. Default: 64 KiB.
    pub body_bytes_max: u64,
    /// Most ranges of one request; a request for more gets the whole file. Those that overlap or
    /// nearly touch become one, so that no byte is sent twice. Default: 256, since clients that
    /// update a copy ask for up to 255.
    pub ranges_max: usize,
    /// Files may come from any of several machines, whose roots are copies of each other with the
    /// same times of modification. Entity tags then omit the machine-specific inode, device and
    /// time of status change. Default: false.
    pub roots_are_replicas: bool,
    /// Highest rate of one connection, in bytes per second. Default: no limit.
    pub connection_bytes_per_second_max: Option<NonZeroU64>,
    /// Highest total rate of the sending connections of a source, in bytes per second: of an IPv4
    /// address, or of an IPv6 network of 64 bits. Connections have equal shares. Default: no limit.
    pub source_bytes_per_second_max: Option<NonZeroU64>,
    /// Most queued responses of one connection that the peer has not completely acknowledged.
    /// Further requests wait in the receive window. Default: 32.
    pub responses_in_flight_max: usize,
    /// From a connection's start, or from a request's first byte, to the end of the head (and of
    /// the body of the request before it). Beyond: 408 if part of a head is there. Default: 15 s.
    pub head_timeout: Duration,
    /// From the last response's acknowledgement to the next request's first byte. Default: 75 s.
    pub idle_timeout: Duration,
    /// Longest time without an acknowledgement of a response before the connection is aborted, and
    /// longest time for OPEN before the answer is 503. Measured in quarters: up to a quarter more
    /// may pass. Default: 60 s.
    pub stall_timeout: Duration,
    /// Lowest rate of acknowledgements, in bytes per second averaged over `rate_period`, while only
    /// the client delays queued bytes; a slower client is reset. A client that acknowledges nothing
    /// at all has until `stall_timeout`. Neither time in which the NIC stack or a rate limit bounds
    /// the response counts, nor bytes that are not queued yet. `None`: any rate. Default: 500.
    pub bytes_per_second_min: Option<NonZeroU64>,
    /// Period over which `bytes_per_second_min` is averaged. Default: 30 s.
    pub rate_period: Duration,
    /// From the acknowledgement of all bytes sent until the peer must have closed as well; then the
    /// connection is aborted. The peer's application may still be reading data that its kernel has
    /// acknowledged, and RST would discard that data. Default: 60 s, as Linux keeps FIN-WAIT-2.
    pub linger_timeout: Duration,
    /// Most bytes read and discarded after the last response; then the receive window closes.
    /// Default: 4 MiB.
    pub linger_bytes_max: u64,
    /// HTTP/2 is served without TLS, to clients that begin with its preface (RFC 9113 §3.3).
    /// Default: false.
    pub http2_prior_knowledge: bool,
    /// Most concurrent streams of a connection of HTTP/2. Further ones are refused. Default: 100.
    pub http2_streams_max: u32,
    /// Requests over HTTP/2 and HTTP/3 for a host that is neither the server name of the handshake
    /// nor a name of its certificate get 421 (RFC 9110 §7.4). Default: true.
    pub rejects_misdirected: bool,
    /// Networks of proxies that name the clients of their requests. Applies to connections that
    /// begin from then on. Default: none.
    pub forwarded_from: Vec<Prefix>,
    /// The field in which they do. Default: `X-Forwarded-For`.
    pub forwarded: ForwardedField,
    /// UDP port that serves the same content over HTTP/3, for `Alt-Svc` (RFC 9114 §3.1.1). Default:
    /// none.
    pub http3_port: Option<NonZeroU16>,
}

impl Config {
    /// # Panics
    /// If the configuration permits no request.
    pub(crate) fn check(&self) {
        assert!(self.head_bytes_max > 0, "a request head needs room");
        assert!(
            self.responses_in_flight_max > 0,
            "a response must be allowed to be in flight"
        );
        assert!(!self.sites.is_empty(), "a server serves something");
    }

    /// Takes the sites, each in its own `Arc`: requests keep theirs across reconfigurations.
    pub(crate) fn take_sites(&mut self) -> Vec<Arc<Site>> {
        let sites = std::mem::take(&mut self.sites).into_iter();
        let sites = sites.map(|mut site| {
            site.offer_each_coding_once();
            Arc::new(site)
        });
        sites.collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            sites: vec![Site::default()],
            hidden: None,
            files_come_first: true,
            cache_status: false,
            head_bytes_max: 16 << 10,
            request_line_bytes_max: 8 << 10,
            body_bytes_max: 64 << 10,
            ranges_max: 256,
            roots_are_replicas: false,
            connection_bytes_per_second_max: None,
            source_bytes_per_second_max: None,
            responses_in_flight_max: 32,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            bytes_per_second_min: NonZeroU64::new(500),
            rate_period: Duration::from_secs(30),
            linger_timeout: Duration::from_secs(60),
            linger_bytes_max: 4 << 20,
            http2_prior_knowledge: false,
            http2_streams_max: 100,
            rejects_misdirected: true,
            forwarded_from: Vec::new(),
            forwarded: ForwardedField::default(),
            http3_port: None,
        }
    }
}
