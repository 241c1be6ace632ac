//! Options of `splitway serve`. Each takes the place of a key of the configuration file
//! ([`overlay`](super::overlay)).

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{ArgGroup, Args, value_parser};
use host::CongestionAlgorithm;
use netsetup::cidr::Cidr;

use crate::args::cache::CacheOption;
use crate::args::firewall::FirewallOptions;
use crate::args::http::HttpOptions;
use crate::args::log::LogOptions;
use crate::args::named::named;
use crate::args::origin::OriginOptions;
use crate::args::tcp::TcpOptions;
use crate::args::tls::{CertificateOptions, TlsOptions};
use config::control_link::NicPlace;
use config::log_level::LogLevel;
use config::socket_values::OffloadOption;
use processes::ipc::ablation::{HostAblation, NicAblation};

/// Options of `splitway serve`. Each takes the place of what the configuration file says: see
/// `config`.
#[derive(Clone, Debug, Args)]
#[command(
    group = ArgGroup::new("content").multiple(true),
    group = ArgGroup::new("addresses").multiple(true),
    group = ArgGroup::new("interface").multiple(true),
    group = ArgGroup::new("stacks").multiple(true),
    group = ArgGroup::new("tls_ports").multiple(true),
)]
pub(crate) struct ServeArgs {
    /// Directory whose files are served
    #[arg(
        value_name = "ROOT",
        required_unless_present_any = ["nic", "config", "origin"],
        group = "content"
    )]
    pub(crate) root: Option<PathBuf>,

    /// Configuration file, in TOML (docs/config.md). Options on the command line override it; a
    /// list replaces a list
    #[arg(
        long,
        value_name = "FILE",
        groups = ["content", "addresses", "interface", "stacks", "tls_ports"],
    )]
    pub(crate) config: Option<PathBuf>,

    /// `--log`, which all commands have.
    #[arg(skip)]
    pub(crate) log: Option<LogLevel>,

    /// It is the proxy's.
    #[arg(skip)]
    pub(crate) is_proxy: bool,

    /// Print the complete configuration of this command line, as a file for --config, and exit
    #[arg(long)]
    pub(crate) print_config: bool,

    /// TCP port to serve HTTP on, without TLS; may be repeated [default: 80, or none with
    /// --tls-listen]
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub(crate) listen: Vec<u16>,

    /// Serve no files: the stack is for programs that attach.
    #[arg(
        long,
        hide = true,
        requires = "sockets",
        conflicts_with_all = ["listen", "tls_listen", "config"],
    )]
    pub(crate) programs_alone: bool,

    /// Ethernet interface to attach the stack to, in this network namespace
    #[arg(
        long,
        value_name = "IFACE",
        requires = "addresses",
        group = "interface"
    )]
    pub(crate) dev: Option<String>,

    /// Address of the stack with its on-link prefix length; several may follow
    #[arg(
        long,
        value_name = "CIDR",
        requires = "interface",
        group = "addresses",
        num_args = 1..,
        value_delimiter = ','
    )]
    pub(crate) addr: Vec<Cidr>,

    /// Share the interface's addresses with the kernel, which keeps all ports but those listened on
    #[arg(
        long,
        requires = "interface",
        group = "addresses",
        conflicts_with_all = ["addr", "gateway"]
    )]
    pub(crate) share: bool,

    /// Default gateway, one each for IPv4 and IPv6
    #[arg(long, value_name = "IP", requires = "interface", num_args = 1.., value_delimiter = ',')]
    pub(crate) gateway: Vec<IpAddr>,

    /// Skip duplicate address detection for the stack's addresses
    #[arg(long, requires = "interface")]
    pub(crate) no_dad: bool,

    /// Congestion control: cubic, bbr or newreno [default: cubic]
    #[arg(long, value_name = "NAME", hide_possible_values = true,
        value_parser = named::<CongestionAlgorithm>(
            CongestionAlgorithm::ALL.map(CongestionAlgorithm::name)))]
    pub(crate) congestion: Option<CongestionAlgorithm>,

    #[command(flatten)]
    pub(crate) tcp: TcpOptions,

    /// NIC workers, each a thread with its own port and its share of the cache; those that the load
    /// does not need sleep [default: 1]
    #[arg(
        long,
        value_name = "N",
        requires = "content",
        value_parser = value_parser!(u16).range(1..=64),
    )]
    pub(crate) workers: Option<u16>,

    /// Minimum NIC workers in use, per NIC stack; if equal to --workers, all always are [default:
    /// 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=64))]
    pub(crate) workers_min: Option<u16>,

    #[command(flatten)]
    pub(crate) cache: CacheOption,

    /// Maximum connections per source: an IPv4 address, or an IPv6 network of 64 bits [default: no
    /// limit]
    #[arg(long, value_name = "N")]
    pub(crate) connections_per_source: Option<NonZeroU32>,

    /// Maximum orphaned connections, which only wait for their client to acknowledge the end, or to
    /// close its side. Beyond, the one that has waited longest is reset [default: 32768]
    #[arg(long, value_name = "N")]
    pub(crate) orphans: Option<NonZeroU32>,

    /// MTU of the veth pair, in bytes [default: 1500]
    #[arg(long, value_name = "BYTES", conflicts_with = "dev",
          value_parser = value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    /// Attach to the NIC process that listens on this socket or, as eth:IFACE,MAC, to the NIC stack
    /// of the machine with this address on the interface's link. Each --nic adds a NIC stack,
    /// besides one for ROOT if given: each request is served by one that has the file
    #[arg(
        long,
        value_name = "SOCKET|eth:IFACE,MAC",
        requires = "interface",
        group = "stacks"
    )]
    pub(crate) nic: Vec<NicPlace>,

    /// Declare the roots of all NIC stacks copies of each other, modification times included (rsync
    /// -a, cp -a): if one stack goes away, responses continue from another that has a file of the
    /// same path, size and time
    #[arg(long)]
    pub(crate) replicas: bool,

    /// File with the key that both machines share, for --nic eth:…; `splitway keygen` creates one
    #[arg(long, value_name = "FILE", requires = "stacks")]
    pub(crate) key_file: Option<PathBuf>,

    /// Control socket for `splitway ctl` [default: under /run/splitway or
    /// $XDG_RUNTIME_DIR/splitway]
    #[arg(long, value_name = "PATH")]
    pub(crate) control_socket: Option<PathBuf>,

    /// Unix socket at which other programs attach, to use sockets of this stack; docs/config.md has
    /// the access rules [default: no program can]
    #[arg(long, value_name = "PATH")]
    pub(crate) sockets: Option<PathBuf>,

    /// Have NIC workers answer SYNs, with SYN cookies: for all listeners, or on-request of
    /// programs; docs/offload.md says when that is worth it
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "true",
        value_parser = named::<OffloadOption>(["true", "on-request", "false"]))]
    pub(crate) setup_offload: Option<OffloadOption>,

    /// Have NIC stacks run connection teardown (FIN and its retransmission, replies, TIME-WAIT):
    /// for all connections, or on-request of programs; docs/offload.md says when that is worth it
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "true",
        value_parser = named::<OffloadOption>(["true", "on-request", "false"]))]
    pub(crate) teardown_offload: Option<OffloadOption>,

    // Its heading holds for all options that follow without one of their own.
    #[command(flatten)]
    pub(crate) http: HttpOptions,

    #[command(flatten)]
    pub(crate) origins: OriginOptions,

    #[command(flatten)]
    pub(crate) tls: TlsOptions,

    #[command(flatten)]
    pub(crate) certificates: CertificateOptions,

    #[command(flatten)]
    pub(crate) firewall: FirewallOptions,

    #[command(flatten)]
    pub(crate) logs: LogOptions,

    #[command(flatten)]
    pub(crate) host_ablation: HostAblation,

    #[command(flatten)]
    pub(crate) nic_ablation: NicAblation,

    /// Append the secrets of every TLS and QUIC connection to this file, for Wireshark
    /// (SSLKEYLOGFILE): anyone who can read it can decrypt the traffic of clients and this server.
    /// The variable SSLKEYLOGFILE has no effect
    #[arg(long, value_name = "FILE", help_heading = "For debugging only")]
    pub(crate) key_log: Option<PathBuf>,

    /// On exit, print all counters of both processes as a line of JSON
    #[arg(long, help_heading = "For measurements only")]
    pub(crate) report_json: bool,

    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    pub(crate) end_with_parent: bool,
}

pub(crate) const SERVE_HELP: &str = "Without --dev, Splitway creates its own link: a veth pair \
whose end on this machine is splitway0 with 10.77.0.1/24 and fd77::1/64; the stack answers at \
10.77.0.2 and fd77::2. The pair vanishes when Splitway ends, however it ends. This needs \
CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN (sudo has them).

With --dev and --share the stack takes its ports of an interface's own addresses, and the kernel \
keeps all others. This machine reaches it there as well. The firewall does not see these ports. \
This needs Linux 6.6, CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.

With --dev and --addr the stack joins the network of an existing interface, as one more \
machine: choose an address that no other machine uses, not the kernel's own. This needs \
CAP_NET_RAW. This machine does not see packets that it sends on its own interface; try the URL \
from another machine.

Examples:
  sudo splitway serve ./site
  curl http://10.77.0.2/
  curl 'http://[fd77::2]/'

  sudo splitway serve ./site --listen 8080 --workers 2

  sudo splitway serve --config /etc/splitway/splitway.toml

  sudo splitway serve ./site --dev eth0 --share

  sudo splitway serve ./site --dev eth0 --addr 192.0.2.10/24 fd00::10/64 --gateway 192.0.2.1

  sudo splitway serve --origin https://origin.example --cache-dir /var/cache/splitway

  sudo splitway serve ./site --tls-listen 443 --tls-self-signed

  sudo splitway serve ./site --tls-listen 443 --tls-cert chain.pem --tls-key key.pem \\
    --dev eth0 --addr 192.0.2.10/24

  sudo splitway nic ./site --dev eth0 --socket /run/splitway-nic.sock &
  sudo splitway serve --nic /run/splitway-nic.sock --dev eth0 --addr 192.0.2.10/24

  sudo splitway serve --nic eth:eth1,02:00:5e:10:00:01 --key-file key \\
    --dev eth0 --addr 192.0.2.10/24

  sudo splitway serve --nic eth:eth1,02:00:5e:10:00:01 \\
    --nic eth:eth1,02:00:5e:10:00:02 --replicas --key-file key --dev eth0 --addr 192.0.2.10/24

Stop it with Ctrl-C; it prints a summary of its processes.";
