//! Options of `splitway nic`.

use std::path::{Path, PathBuf};

use clap::{Args, value_parser};

use crate::args::cache::CacheOption;
use config::Text;
use config::control_link::ControlLink;
use config::size::Size;
use processes::ipc::ablation::NicAblation;
use processes::nic::NicSettings;

/// Where a NIC process that runs alone listens for its host stack.
pub(crate) const NIC_SOCKET: &str = "/run/splitway-nic.sock";

/// The NIC stack.
#[derive(Clone, Debug, Args)]
pub(crate) struct NicArgs {
    #[command(flatten)]
    root: RootOption,

    /// Ethernet interface to send packets on
    #[arg(long, value_name = "IFACE")]
    pub(crate) dev: String,

    /// Workers, each a thread with its own port and its share of the cache
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = value_parser!(u16).range(1..=64),
    )]
    pub(crate) workers: u16,

    #[command(flatten)]
    pub(crate) cache: CacheOption,

    /// Unix socket on which to wait for a host stack
    #[arg(long, value_name = "PATH", default_value = NIC_SOCKET, conflicts_with = "control")]
    pub(crate) socket: PathBuf,

    /// Wait for a host stack on another machine, on this interface's link
    #[arg(long, value_name = "eth:IFACE", requires = "key_file")]
    pub(crate) control: Option<ControlLink>,

    /// File with the key that both machines share, for --control; `splitway keygen` creates one
    #[arg(long, value_name = "FILE", requires = "control")]
    pub(crate) key_file: Option<PathBuf>,

    // Its heading holds for all options that follow.
    #[command(flatten)]
    pub(crate) measuring: NicAblation,
}

impl NicArgs {
    /// Directory below which files are opened, and never outside.
    pub(crate) fn root(&self) -> &Path {
        let RootOption { root, root_option } = &self.root;
        // `clap` requires one or the other.
        let root = root.as_deref().or(root_option.as_deref());
        root.unwrap_or(Path::new(""))
    }

    /// Returns the settings of a NIC process for one host stack. `cache_default` is its memory for
    /// content if no size is given.
    pub(crate) fn settings(&self, cache_default: Option<Size>) -> NicSettings {
        NicSettings {
            device: self.dev.clone(),
            root: self.root().to_owned(),
            workers: self.workers,
            cache: self.cache.cache.map(Text),
            cache_default: cache_default.map(Text),
            reports_counters: false,
            awaits_files: false,
            steered_to: Vec::new(),
            share: None,
            is_first: false,
            ablation: self.measuring.clone(),
        }
    }
}

/// The same directory in either of two ways.
#[derive(Clone, Debug, Args)]
#[group(id = "content", required = true, multiple = false)]
struct RootOption {
    /// Directory to serve; files outside it are never opened
    #[arg(value_name = "ROOT")]
    root: Option<PathBuf>,

    /// The same, as an option
    #[arg(long = "root", value_name = "DIR")]
    root_option: Option<PathBuf>,
}

pub(crate) const NIC_HELP: &str = "The NIC process takes commands from one host stack at a time. \
Only processes of the same user can connect to its socket. When the host stack goes away, the NIC \
process waits for the next. It needs CAP_NET_RAW.

Example:
  sudo splitway nic ./site --dev eth0 --socket /run/splitway-nic.sock &
  sudo splitway serve --nic /run/splitway-nic.sock --dev eth0 --addr 192.0.2.10/24

With --control it takes commands from another machine, over Ethernet frames that a key \
authenticates and encrypts. Data leaves on --dev, with the host's IP addresses; packets from \
clients go to the host directly.

Example:
  splitway keygen key            # and copy it to the other machine
  sudo splitway nic ./site --control eth:eth1 --key-file key --dev eth0";
