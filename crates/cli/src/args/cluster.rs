//! Options of `splitway sockets-node` and `splitway sockets-gate`.

use std::path::PathBuf;

use clap::Args;

use config::control_link::NodePlace;

/// The application node.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArgs {
    /// Stack node: the interface on this machine, and the node's MAC address
    #[arg(long, value_name = "eth:IFACE,MAC")]
    pub(crate) stack: NodePlace,

    /// File with the key that both nodes share; `splitway keygen` creates one
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,

    /// Unix socket at which programs of this machine attach
    #[arg(long, value_name = "PATH")]
    pub(crate) sockets: PathBuf,
}

/// The gate of a stack node.
#[derive(Clone, Debug, Args)]
pub(crate) struct GateArgs {
    /// Application node: the interface on this machine, and the node's MAC address
    #[arg(long, value_name = "eth:IFACE,MAC")]
    pub(crate) node: NodePlace,

    /// File with the key that both nodes share
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,

    /// Unix socket of `serve --sockets`
    #[arg(long, value_name = "PATH")]
    pub(crate) sockets: PathBuf,

    /// User whose [sockets] rules apply to the application node
    #[arg(long, value_name = "USER")]
    pub(crate) user: String,
}
