//! Configuration of a shard.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use client_address::Prefix;
use client_address::prefix::any_contains;
use netdev::packet::LOOPBACK_MAC;

/// Configuration of a [`crate::Stack`].
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Own addresses with the length of the on-link prefix, in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next hops for destinations beyond the link, at most one per address family.
    pub gateways: Vec<IpAddr>,
    /// The machine's kernel has the addresses as well, and answers for them on the link. Packets to
    /// them, and to loopback addresses, go to the kernel. Default: the stack alone has them.
    pub is_shared: bool,
    /// TCP ports on which connections are accepted.
    pub listen_ports: Vec<u16>,
    /// Ports of connections that are opened without naming one. Default: 32,768 to 60,999, as
    /// Linux has them.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// TCP's parameters. `mss` is set by the stack from the link's MTU.
    pub tcp: tcp::Config,
    /// Most connections at once. Half-open ones and TIME-WAIT have bounds of their own. Default:
    /// 131,072.
    pub connections_max: usize,
    /// Most connections whose FIN has been sent and which wait for their peer alone. Beyond, the
    /// one that has waited longest is aborted. Default: 32,768.
    pub orphans_max: usize,
    /// Limits on new connections.
    pub admission: Admission,
    /// Most ICMP and ICMPv6 replies per second, to echo requests and to datagrams that nothing
    /// listens for. Default: 1,000, as Linux limits its ICMP messages.
    pub echo_replies_per_second: u32,
    /// Most memory of all connections together that peers control, in bytes: received and unread
    /// data, queued and unacknowledged real bytes, TLS buffers, and memory of applications
    /// ([`Application::memory`](crate::app::Application::memory)). Above three quarters, windows
    /// shrink; beyond the limit, the largest connections of the source that holds most are reset.
    /// Default: 512 MiB.
    pub connection_memory_bytes_max: usize,
    /// Most RSTs per second that answer segments of no connection, and stateless resets of QUIC
    /// from each port, by the value when it is served. Default: 1,000.
    pub resets_per_second: u32,
    /// Take a SEND as departed when it is issued, instead of waiting for the report: RTO,
    /// round-trip time and loss detection then include the NIC stack's reading time. For
    /// measurements only, to quantify the benefit of the reports.
    pub departs_at_issue: bool,
    /// The roots of all NIC stacks are copies of each other, times of modification included. A
    /// response may then go on from another NIC stack, if that has a file of the same path, size
    /// and time.
    pub roots_are_replicas: bool,
    /// Fewest workers in use of each NIC stack; under load, up to all its workers are used.
    /// Default: all, always.
    pub workers_min: usize,
    /// Interval of looks at the load of NIC workers, in microseconds; all other times of the
    /// division of labour are multiples of this interval. Default: half a second, in which a worker
    /// reports twice.
    pub load_interval_us: u64,
    /// Accept text in SYNs (RFC 7413), on listeners without an option of their own.
    pub fast_open: bool,
    /// Listeners whose SYNs NIC stacks answer.
    pub setup_offload: OffloadPolicy,
    /// Connections whose end NIC stacks run: FIN and its retransmission, answers, TIME-WAIT.
    pub teardown_offload: OffloadPolicy,
    /// Most connections in teardown by NIC stacks, some hundred bytes each. Beyond, the host runs
    /// the end itself. Default: 131,072.
    pub parted_max: usize,
    /// Where the 1-RTT packets of QUIC clients are opened. Default: in the host stack.
    pub quic_receive: QuicReceive,
    /// Most splices, about a kilobyte each in addition to their connections; beyond, applications
    /// continue to copy. Default: 32,768.
    pub splices_max: usize,
    /// Secret from which initial sequence numbers (RFC 6528), timestamp offsets and hash keys are
    /// derived. Random in production; fixed in a simulation.
    pub secret: [u8; 16],
}

/// Part of a [`StackConfig`] that may change while connections exist ([`crate::Stack::change`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changeable {
    /// Congestion control of the connections that begin from then on.
    pub congestion: tcp::CongestionAlgorithm,
    /// Explicit congestion notification of the connections that begin from then on.
    pub ecn: tcp::EcnPolicy,
    /// Keep-alive of the connections that begin from then on.
    pub keepalive: Option<tcp::Keepalive>,
    /// Pacing of the connections that begin from then on.
    pub pace: bool,
    /// See [`StackConfig::fast_open`].
    pub fast_open: bool,
    /// See [`StackConfig::orphans_max`]. If more exist, each further orphan aborts the oldest until
    /// the limit holds.
    pub orphans_max: usize,
    /// See [`Admission::connections_per_source`]. A source with more connections keeps them, and
    /// opens no other.
    pub connections_per_source: Option<u32>,
    /// See [`StackConfig::connection_memory_bytes_max`].
    pub connection_memory_bytes_max: usize,
    /// See [`StackConfig::resets_per_second`].
    pub resets_per_second: u32,
    /// See [`StackConfig::echo_replies_per_second`].
    pub echo_replies_per_second: u32,
    /// See [`StackConfig::quic_receive`]. Applies to existing connections, too.
    pub quic_receive: QuicReceive,
}

impl From<&StackConfig> for Changeable {
    fn from(config: &StackConfig) -> Self {
        Self {
            congestion: config.tcp.congestion,
            ecn: config.tcp.ecn,
            keepalive: config.tcp.keepalive,
            pace: config.tcp.pace,
            fast_open: config.fast_open,
            orphans_max: config.orphans_max,
            connections_per_source: config.admission.connections_per_source,
            connection_memory_bytes_max: config.connection_memory_bytes_max,
            resets_per_second: config.resets_per_second,
            echo_replies_per_second: config.echo_replies_per_second,
            quic_receive: config.quic_receive,
        }
    }
}

/// Proxies that pass on connections and requests of clients. [`Default`]: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// TCP ports to which some connections begin with a header of the PROXY protocol.
    pub header_ports: Vec<HeaderPort>,
    /// Networks of proxies that name clients in their requests. Like those above, they may have
    /// more than [`Admission::connections_per_source`].
    pub forwarding: Vec<Prefix>,
}

/// A TCP port to which some connections begin with a header of the PROXY protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderPort {
    /// The port.
    pub port: u16,
    /// Networks from which all connections do, and from others none.
    pub networks: Vec<Prefix>,
    /// Longest wait for the header.
    pub timeout: Duration,
}

impl Proxies {
    /// How long to wait for the header of this peer's connections to this port; `None` if they have
    /// none.
    pub(crate) fn header_timeout(&self, port: u16, peer: IpAddr) -> Option<Duration> {
        let mut ports = self.header_ports.iter();
        let port = ports.find(|it| it.port == port && any_contains(&it.networks, peer));
        port.map(|port| port.timeout)
    }

    /// True if the peer may name clients in its requests.
    pub(crate) fn is_forwarding(&self, peer: IpAddr) -> bool {
        any_contains(&self.forwarding, peer)
    }
}

/// Where the 1-RTT packets that a QUIC client sends are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuicReceive {
    /// The host stack.
    #[default]
    Host,
    /// The NIC worker of the connection, for the packets that it can open, and else the host stack.
    Nic {
        /// Number of bytes in 1-RTT datagrams that must have been sent, after the handshake.
        after_bytes: u64,
    },
}

impl QuicReceive {
    /// NIC workers open all packets that they can.
    pub const NIC: Self = Self::Nic { after_bytes: 0 };

    /// True if NIC workers open the packets of a connection that has sent this number of bytes.
    pub(crate) fn is_at_nic(self, sent_bytes: u64) -> bool {
        match self {
            Self::Host => false,
            Self::Nic { after_bytes } => sent_bytes >= after_bytes,
        }
    }
}

/// Listeners or connections whose work a NIC stack takes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadPolicy {
    /// None, even on request.
    #[default]
    Off,
    /// Those for which applications request it.
    OnRequest,
    /// All but those for which applications decline.
    On,
}

impl OffloadPolicy {
    /// True if the policy permits any.
    pub fn is_permitted(self) -> bool {
        self != OffloadPolicy::Off
    }

    /// True if the policy applies, given the application's request; `None`: none.
    pub fn applies(self, wanted: Option<bool>) -> bool {
        match self {
            OffloadPolicy::Off => false,
            OffloadPolicy::OnRequest => wanted == Some(true),
            OffloadPolicy::On => wanted != Some(false),
        }
    }
}

impl From<bool> for OffloadPolicy {
    /// All, or none.
    fn from(is_on: bool) -> OffloadPolicy {
        if is_on {
            OffloadPolicy::On
        } else {
            OffloadPolicy::Off
        }
    }
}

/// Limits on new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Most half-open connections. At this number, SYNs are answered with cookies (RFC 4987 §3.6).
    pub half_open_max: usize,
    /// Most established connections whose peers have sent no data yet: the accept backlog of a
    /// stack with its applications in the same process. Beyond, handshakes are not completed.
    pub backlog_max: usize,
    /// Files open for connections, or being opened. Beyond, the source with the most open files
    /// gives one up for each new file of a source with fewer. Default: 1,048,576, at about 200
    /// bytes each.
    pub files_max: usize,
    /// Most connections of one source, an IPv4 address or an IPv6 /64. `None`: no such limit.
    pub connections_per_source: Option<u32>,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            half_open_max: 4096,
            backlog_max: 1 << 14,
            files_max: 1 << 20,
            connections_per_source: None,
        }
    }
}

impl StackConfig {
    /// The key of tables that peers fill.
    pub(crate) fn hash_key(&self) -> [u8; 16] {
        let mut key = self.secret;
        key[0] ^= 0xff;
        key
    }

    /// Default of [`StackConfig::connections_max`].
    pub const CONNECTIONS_MAX: usize = 1 << 17;

    /// Default of [`StackConfig::splices_max`].
    pub const SPLICES_MAX: usize = 1 << 15;
    /// Default of [`StackConfig::parted_max`].
    pub const PARTED_MAX: usize = 1 << 17;

    /// Default of [`StackConfig::orphans_max`].
    pub const ORPHANS_MAX: usize = 1 << 15;

    /// Default of [`StackConfig::connection_memory_bytes_max`].
    pub const CONNECTION_MEMORY_BYTES_MAX: usize = 512 << 20;

    /// Default of [`StackConfig::echo_replies_per_second`] and [`StackConfig::resets_per_second`].
    pub const REPLIES_PER_SECOND: u32 = 1000;

    /// Returns a configuration with these addresses and ports; all else has its documented default,
    /// without gateways.
    pub fn new(addresses: Vec<(IpAddr, u8)>, listen_ports: Vec<u16>, secret: [u8; 16]) -> Self {
        Self {
            addresses,
            gateways: Vec::new(),
            is_shared: false,
            listen_ports,
            ephemeral_ports: 32_768..=60_999,
            tcp: tcp::Config::default(),
            connections_max: Self::CONNECTIONS_MAX,
            orphans_max: Self::ORPHANS_MAX,
            admission: Admission::default(),
            echo_replies_per_second: Self::REPLIES_PER_SECOND,
            connection_memory_bytes_max: Self::CONNECTION_MEMORY_BYTES_MAX,
            resets_per_second: Self::REPLIES_PER_SECOND,
            departs_at_issue: false,
            roots_are_replicas: false,
            workers_min: usize::MAX,
            load_interval_us: 2 * contract::limits::LOAD_PERIOD_US,
            fast_open: false,
            setup_offload: OffloadPolicy::Off,
            teardown_offload: OffloadPolicy::Off,
            parted_max: Self::PARTED_MAX,
            quic_receive: QuicReceive::default(),
            splices_max: Self::SPLICES_MAX,
            secret,
        }
    }

    /// True if the address is one of ours.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|&(address, _)| address == ip)
    }

    /// True if the address is one of ours, or a loopback address: 127/8 and ::1 (RFC 6890).
    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.has_address(ip)
    }

    /// True if frames may bring packets to this address: it is one of ours, or was one of those
    /// that are shared with the kernel.
    pub(crate) fn may_get(&self, destination: IpAddr) -> bool {
        self.is_shared || self.has_address(destination)
    }

    /// True if packets to this address return to this stack.
    pub(crate) fn loops(&self, ip: IpAddr) -> bool {
        !self.is_shared && self.is_own(ip)
    }

    /// True if no frame may bring a packet from `source` to `destination`: one of them is an own
    /// address where only a peer's may be (RFC 1122 §3.2.1.3), or a loopback address.
    pub(crate) fn is_martian(&self, frame: &[u8], source: IpAddr, destination: IpAddr) -> bool {
        let from_kernel = self.is_shared && frame.starts_with(&LOOPBACK_MAC);
        destination.is_loopback() || (self.is_own(source) && !from_kernel)
    }
}
