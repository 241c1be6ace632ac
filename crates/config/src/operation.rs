//! Control, monitoring and shutdown of the server.

use std::net::SocketAddr;
use std::path::PathBuf;

use contract::limits::HEARTBEAT_SECONDS;
use serde::{Deserialize, Serialize};

use super::text::{Text, Time};

/// Control, monitoring and shutdown of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Operation {
    /// Control socket for `splitway ctl`. Default: under `/run/splitway` or
    /// `$XDG_RUNTIME_DIR/splitway`.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub control_socket: Option<PathBuf>,
    /// Address and port for monitoring, on the machine's own kernel: `/metrics` for Prometheus,
    /// `/healthz` and `/readyz`. Any client that can connect sees all of it: `"127.0.0.1:9180"` is
    /// for this machine alone.
    pub admin: Option<SocketAddr>,
    /// Time that `splitway ctl drain` and SIGQUIT wait for responses in progress; then the server
    /// resets the connections.
    pub drain_timeout: Text<Time>,
    /// Time that a process of the server may stall. The supervisor kills and replaces a NIC
    /// process, fetcher, broker or observer that gives no heartbeat for so long. It only reports a
    /// host process, whose connections would end with it, and leaves it to the service manager's
    /// watchdog. `"0s"` disables this.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub heartbeat: Text<Time>,
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            control_socket: None,
            admin: None,
            drain_timeout: Text(Time::from_secs(5 * 60)),
            heartbeat: Text(Time::from_secs(HEARTBEAT_SECONDS)),
        }
    }
}
