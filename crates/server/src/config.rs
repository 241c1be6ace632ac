//! What a server serves, limits, and their defaults.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use crate::semantics::relative_path::RelativePath;
use crate::semantics::site::Site;

/// What is served, what a peer may ask of the server, and how long it may take. [`Config::default`]
/// suits the open internet.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is served under which names. The first one serves also what is asked of none of them.
    /// Default: one, of all that is below the root.
    pub sites: Vec<Site>,
    /// A directory below the NIC stack's root of which no client may name a file: where what comes
    /// from origins lies. Default: none.
    pub hidden: Option<RelativePath>,
    /// Files come first, and an origin is asked for what is not there. If not, there is nothing
    /// below the root but what comes from origins. Default: true.
    pub files_come_first: bool,
    /// What comes from an origin says how, in `Cache-Status` (RFC 9211). Default: false.
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
    /// same times of modification. Entity tags then leave out what is each machine's own: inode,
    /// device, time of status change. Default: false.
    pub roots_are_replicas: bool,
    /// How fast one connection is sent to at most, in bytes per second. Default: as fast as it
    /// goes.
    pub connection_bytes_per_second_max: Option<NonZeroU64>,
    /// How fast all connections of a source that are being sent to are at most, together, in bytes
    /// per second: of an IPv4 address, or of an IPv6 network of 64 bits. Each has the same share.
    /// Default: as fast as it goes.
    pub source_bytes_per_second_max: Option<NonZeroU64>,
    /// Most responses queued on one connection that the peer has not wholly acknowledged. Further
    /// requests wait in the receive window. Default: 32.
    pub responses_in_flight_max: usize,
    /// From a connection's start, or from a request's first byte, to the end of the head (and of
    /// the body of the request before it). Beyond: 408 if part of a head is there. Default: 15 s.
    pub head_timeout: Duration,
    /// From the last response's acknowledgement to the next request's first byte. Default: 75 s.
    pub idle_timeout: Duration,
    /// How long a response may go without any acknowledgement before the connection is aborted, and
    /// how long OPEN may take before the answer is 503. Measured in quarters: up to a quarter more
    /// may pass. Default: 60 s.
    pub stall_timeout: Duration,
    /// What a client must acknowledge at least, in bytes per second averaged over `rate_period`,
    /// while it alone delays what is queued; one that takes less is reset. One that acknowledges
    /// nothing at all has until `stall_timeout`. Neither the time for which the NIC stack or a rate
    /// bounds the response counts, nor what is not queued yet. `None`: any rate. Default: 500.
    pub bytes_per_second_min: Option<NonZeroU64>,
    /// Over how long `bytes_per_second_min` is averaged. Default: 30 s.
    pub rate_period: Duration,
    /// From the acknowledgement of all that was sent until the peer must have closed as well; then
    /// the connection is aborted. The peer's application may still be reading what its kernel has
    /// acknowledged, and RST would take that away. Default: 60 s, as Linux keeps FIN-WAIT-2.
    pub linger_timeout: Duration,
    /// Most bytes read and thrown away after the last response; then the receive window closes.
    /// Default: 4 MiB.
    pub linger_bytes_max: u64,
    /// HTTP/2 is served without TLS, to clients that begin with its preface (RFC 9113 §3.3).
    /// Default: false.
    pub http2_prior_knowledge: bool,
    /// Most concurrent streams of a connection of HTTP/2. Further ones are refused. Default: 100.
    pub http2_streams_max: u32,
    /// The UDP port at which the same is served over HTTP/3, for `Alt-Svc` (RFC 9114 §3.1.1).
    /// Default: none.
    pub http3_port: Option<NonZeroU16>,
}

impl Config {
    /// # Panics
    /// If nothing could be served with it.
    pub(crate) fn check(&self) {
        assert!(self.head_bytes_max > 0, "a request head needs room");
        assert!(
            self.responses_in_flight_max > 0,
            "a response must be allowed to be in flight"
        );
        assert!(!self.sites.is_empty(), "a server serves something");
    }

    /// Its sites, each for itself: requests keep theirs, whatever becomes of the configuration.
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
            http3_port: None,
        }
    }
}
