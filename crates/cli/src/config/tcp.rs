//! TCP, for all connections.

use std::num::NonZeroU32;

use host::CongestionAlgorithm;
use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::tcp_options::{EcnOption, KeepaliveOption};

/// TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tcp {
    /// Congestion control: `"cubic"`, `"bbr"` or `"newreno"`.
    pub(crate) congestion: Text<CongestionAlgorithm>,
    /// Explicit congestion notification: `"accept"` it from clients that ask for it, or `"off"`.
    pub(crate) ecn: Text<EcnOption>,
    /// After how long a silence to ask clients whether they are still there, from `"1s"` to `"168h"`, or `"off"`.
    pub(crate) keepalive: Text<KeepaliveOption>,
    /// Most connections of one source: of an IPv4 address, or of an IPv6 network of 64 bits. Without it, there is no limit.
    pub(crate) connections_per_source: Option<NonZeroU32>,
    /// Most connections that wait for their clients alone to acknowledge the end, or to end their side. Beyond, the one that
    /// has waited longest is reset.
    pub(crate) orphans: NonZeroU32,
}

const ORPHANS: NonZeroU32 =
    NonZeroU32::new(host::StackConfig::ORPHANS_MAX as u32).expect("some are allowed");

impl Default for Tcp {
    fn default() -> Self {
        Self {
            congestion: Text::default(),
            ecn: Text::default(),
            keepalive: Text::default(),
            connections_per_source: None,
            orphans: ORPHANS,
        }
    }
}
