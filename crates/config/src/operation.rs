//! How the server is run.

use std::net::SocketAddr;
use std::path::PathBuf;

use contract::limits::HEARTBEAT_SECONDS;
use serde::{Deserialize, Serialize};

use super::text::{Text, Time};

/// How the server is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Operation {
    /// Where `splitway ctl` reaches this server. Without it, under `/run/splitway` or
    /// `$XDG_RUNTIME_DIR/splitway`.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub control_socket: Option<PathBuf>,
    /// Address and port, of the machine's own kernel, for monitoring: `/metrics` for Prometheus,
    /// `/healthz` and `/readyz`. Any client that can connect sees all of it: `"127.0.0.1:9180"` is
    /// for this machine alone.
    pub admin: Option<SocketAddr>,
    /// How long `splitway ctl drain` and SIGQUIT wait for responses that are under way; then the
    /// connections are reset.
    pub drain_timeout: Text<Time>,
    /// How long a process of the server may stand still. A NIC process, fetcher, broker or observer
    /// that gives no heartbeat for so long is killed and replaced; a host process is reported, and
    /// left to the service manager's watchdog, since its connections would end with it. `"0s"`: no
    /// process is watched.
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
