//! TCP, for all connections.

use std::num::NonZeroU32;

use host::{Changeable, CongestionAlgorithm, QuicReceive};
use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::connection_memory::ConnectionMemory;
use crate::tcp_values::{EcnOption, KeepaliveOption, PacingOption};

/// TCP connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Tcp {
    /// Congestion control: `"cubic"`, `"bbr"` or `"newreno"`.
    pub congestion: Text<CongestionAlgorithm>,
    /// Explicit congestion notification: `"accept"` it from clients that request it, or `"off"`.
    pub ecn: Text<EcnOption>,
    /// Idle time before the server probes whether a client is still there, from `"1s"` to `"168h"`,
    /// or `"off"`.
    pub keepalive: Text<KeepaliveOption>,
    /// Pacing of CUBIC and NewReno to clients more than 2 ms away, `"on"` or `"off"`: it spreads a
    /// window over a round trip instead of bursts. BBR always paces.
    pub pacing: Text<PacingOption>,
    /// Accept data in the SYN, and answer before the handshake is over (TCP Fast Open, RFC 7413):
    /// returning clients save a round trip. Such a SYN may arrive twice, and its request then takes
    /// effect twice.
    pub fast_open: bool,
    /// Maximum connections per source: an IPv4 address, or an IPv6 network of 64 bits. Default: no
    /// limit.
    pub connections_per_source: Option<NonZeroU32>,
    /// Maximum orphaned connections, which only wait for their client to acknowledge the end, or to
    /// close its side. Beyond, the one that has waited longest is reset.
    pub orphans: NonZeroU32,
    /// Maximum memory of the host process for all connections together, over TCP and QUIC, such as
    /// `"512M"`: unread data from clients, data to send that is not from files, TLS buffers,
    /// request heads, and buffers of the proxy. Above three quarters, receive windows shrink;
    /// beyond the maximum, the source that holds most loses its largest connection first.
    pub connection_memory: Text<ConnectionMemory>,
    /// Maximum resets per second in reply to segments of no connection. The value at the start of
    /// the server also limits stateless resets of QUIC, from each port.
    pub resets_per_second: NonZeroU32,
    /// Maximum ping replies per second.
    pub echo_replies_per_second: NonZeroU32,
}

const ORPHANS: NonZeroU32 =
    NonZeroU32::new(host::StackConfig::ORPHANS_MAX as u32).expect("some are allowed");

const REPLIES_PER_SECOND: NonZeroU32 =
    NonZeroU32::new(host::StackConfig::REPLIES_PER_SECOND).expect("some are allowed");

impl Default for Tcp {
    fn default() -> Self {
        Self {
            congestion: Text::default(),
            ecn: Text::default(),
            keepalive: Text::default(),
            pacing: Text::default(),
            fast_open: false,
            connections_per_source: None,
            orphans: ORPHANS,
            connection_memory: Text::default(),
            resets_per_second: REPLIES_PER_SECOND,
            echo_replies_per_second: REPLIES_PER_SECOND,
        }
    }
}

impl Tcp {
    /// The settings that may change while a stack runs, with `quic_receive`.
    pub fn changeable(&self, quic_receive: QuicReceive) -> Changeable {
        let bytes_max = self.connection_memory.0.bytes();
        Changeable {
            congestion: self.congestion.0,
            ecn: self.ecn.0.policy(),
            keepalive: self.keepalive.0.keepalive(),
            pace: self.pacing.0 == PacingOption::On,
            fast_open: self.fast_open,
            orphans_max: usize::try_from(self.orphans.get()).unwrap_or(usize::MAX),
            connections_per_source: self.connections_per_source.map(NonZeroU32::get),
            connection_memory_bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            resets_per_second: self.resets_per_second.get(),
            echo_replies_per_second: self.echo_replies_per_second.get(),
            quic_receive,
        }
    }
}
