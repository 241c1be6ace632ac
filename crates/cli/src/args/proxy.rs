//! Options of `splitway proxy`.

use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches as _};

use crate::args::serve::ServeArgs;
use config::log_level::LogLevel;

/// Options of `splitway proxy`: nearly all is said in its file.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProxyArgs {
    /// File with ports, rules and backends, in TOML (docs/proxy.md, docs/config.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// `--log`, which all commands have.
    #[arg(skip)]
    pub(crate) log: Option<LogLevel>,

    /// Control socket for `splitway ctl` [default: under /run/splitway or
    /// $XDG_RUNTIME_DIR/splitway]
    #[arg(long, value_name = "PATH")]
    control_socket: Option<PathBuf>,

    /// Print the complete configuration of this command line, as a file for --config, and exit
    #[arg(long)]
    pub(crate) print_config: bool,

    /// Have the host forward frames that packet filters could steer to the NIC stack
    #[arg(long, help_heading = "For measurements only")]
    no_steering: bool,

    /// On exit, print all counters of both processes as a line of JSON
    #[arg(long, help_heading = "For measurements only")]
    report_json: bool,

    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

impl ProxyArgs {
    /// The same as options of `serve`, whose processes a proxy has; `root` is what its NIC process
    /// reads below, if the file does not say.
    pub(crate) fn to_serve(&self, root: Option<&Path>) -> Result<ServeArgs, clap::Error> {
        let command = ServeArgs::augment_args(clap::Command::new("proxy")).no_binary_name(true);
        let file = [std::ffi::OsStr::new("--config"), self.config.as_os_str()];
        let mut args = ServeArgs::from_arg_matches(&command.try_get_matches_from(file)?)?;
        args.root = root.map(Path::to_owned);
        args.is_proxy = true;
        args.log = self.log;
        args.control_socket.clone_from(&self.control_socket);
        args.print_config = self.print_config;
        args.host_ablation.no_steering = self.no_steering;
        args.report_json = self.report_json;
        args.end_with_parent = self.end_with_parent;
        Ok(args)
    }
}

pub(crate) const PROXY_HELP: &str = "The proxy forwards HTTP requests and TCP connections to \
backends, and can terminate TLS. It listens on addresses of its own, as `serve` does. \
`splitway check FILE` checks the file, `splitway ctl reload` reloads it, `splitway ctl drain` ends \
the proxy without losing a response.

Examples:
  sudo splitway proxy --config /etc/splitway/proxy.toml

  [[proxy.listen]]
  port = 80
  pool = \"web\"

  [[proxy.pool]]
  name = \"web\"
  check = \"http\"

  [[proxy.pool.backend]]
  address = \"192.0.2.7:8080\"";
