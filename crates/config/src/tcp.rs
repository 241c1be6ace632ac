//! TCP, for all connections.

use std::num::NonZeroU32;

use host::{Changeable, CongestionAlgorithm, QuicReceive};
use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::connection_memory::ConnectionMemory;
use crate::tcp_values::{EcnOption, KeepaliveOption, PacingOption};

/// TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Tcp {
    /// Congestion control: `"cubic"`, `"bbr"` or `"newreno"`.
    pub congestion: Text<CongestionAlgorithm>,
    /// Explicit congestion notification: `"accept"` it from clients that ask for it, or `"off"`.
    pub ecn: Text<EcnOption>,
    /// After how long a silence to ask clients whether they are still there, from `"1s"` to
    /// `"168h"`, or `"off"`.
    pub keepalive: Text<KeepaliveOption>,
    /// Pace what CUBIC and NewReno send to clients more than 2 ms away, `"on"` or `"off"`: a window
    /// leaves spread over a round trip instead of in bursts. BBR always paces.
    pub pacing: Text<PacingOption>,
    /// Take what clients send with their first packet, and answer before the handshake is over
    /// (TCP Fast Open, RFC 7413): a round trip less for clients that come again. Such a packet may
    /// arrive twice, and what it asks for then happens twice.
    pub fast_open: bool,
    /// Most connections of one source: of an IPv4 address, or of an IPv6 network of 64 bits.
    /// Without it, there is no limit.
    pub connections_per_source: Option<NonZeroU32>,
    /// Most connections that wait for their clients alone to acknowledge the end, or to end their
    /// side. Beyond, the one that has waited longest is reset.
    pub orphans: NonZeroU32,
    /// Most memory that all connections together may make the host process hold, such as `"512M"`:
    /// what clients send and is not read, what is to be sent and does not come from files, and
    /// buffers of TLS. Above three quarters, receive windows shrink; beyond, the connections that
    /// hold most are reset.
    pub connection_memory: Text<ConnectionMemory>,
    /// Most resets per second that answer segments of no connection; as many stateless resets of
    /// QUIC from each port, by the value when the server starts.
    pub resets_per_second: NonZeroU32,
    /// Most replies to pings per second.
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
    /// The same for a stack that runs: all of it may change, and where packets of QUIC are opened.
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
