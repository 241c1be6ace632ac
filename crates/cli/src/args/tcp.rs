//! Options about TCP.

use clap::Args;

use crate::args::named::named;
use config::tcp_values::{EcnOption, KeepaliveOption, PacingOption};

/// Options of `splitway serve`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TcpOptions {
    /// Explicit congestion notification: accept it from clients that request it, or off [default:
    /// accept]
    #[arg(long, value_name = "accept|off", hide_possible_values = true,
        value_parser = named::<EcnOption>(["accept", "off"]))]
    pub(crate) ecn: Option<EcnOption>,

    /// Idle time before the server probes whether a client is still there, such as 90s, 30m or 2h,
    /// or off [default: 2h]
    #[arg(long, value_name = "TIME|off")]
    pub(crate) keepalive: Option<KeepaliveOption>,

    /// Pacing of CUBIC and NewReno to clients more than 2 ms away, which spreads a window over a
    /// round trip instead of bursts; BBR always paces [default: on]
    #[arg(long, value_name = "on|off", hide_possible_values = true,
        value_parser = named::<PacingOption>(["on", "off"]))]
    pub(crate) pacing: Option<PacingOption>,

    /// Accept data in the SYN, and answer before the handshake is over (TCP Fast Open): such a
    /// request may arrive twice; docs/offload.md says more
    #[arg(long)]
    pub(crate) fast_open: bool,
}
