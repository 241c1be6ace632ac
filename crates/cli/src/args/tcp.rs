//! Options about TCP.

use clap::Args;

use config::tcp_values::{EcnOption, KeepaliveOption, PacingOption};

/// Options of `splitway serve`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TcpOptions {
    /// Explicit congestion notification: accept it from clients that ask for it, or keep it off
    /// [default: accept]
    #[arg(long, value_name = "accept|off")]
    pub(crate) ecn: Option<EcnOption>,

    /// After how long a silence to ask clients whether they are still there, such as 90s, 30m or
    /// 2h, or off [default: 2h]
    #[arg(long, value_name = "TIME|off")]
    pub(crate) keepalive: Option<KeepaliveOption>,

    /// Pace what CUBIC and NewReno send to clients more than 2 ms away, so that a window leaves
    /// spread over a round trip instead of in bursts; BBR always paces [default: on]
    #[arg(long, value_name = "on|off")]
    pub(crate) pacing: Option<PacingOption>,

    /// Take what clients send with their SYN, and answer before the handshake is over (TCP Fast
    /// Open): such a request may come twice; docs/offload.md says more
    #[arg(long)]
    pub(crate) fast_open: bool,
}
