//! The command line.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Parser, Subcommand, value_parser};
use host::CongestionAlgorithm;
use netsetup::cidr::Cidr;

use crate::bench::{BENCH_HELP, BenchArgs};
use crate::cache_option::CacheOption;
use crate::capture::{CAPTURE_HELP, CaptureArgs};
use crate::config::Text;
use crate::control_link::{ControlLink, NicPlace};
use crate::ctl::{CTL_HELP, CtlArgs};
use crate::demo::{DEMO_HELP, DemoArgs};
use crate::emulate::{LINK_HELP, LinkArgs};
use crate::generate::GenerateArgs;
use crate::http_options::HttpOptions;
use crate::log_options::LogOptions;
use crate::measuring::{HostMeasuring, NicMeasuring};
use crate::nic_process::NicSettings;
use crate::origin_options::OriginOptions;
use crate::sim::{SIM_HELP, SimArgs};
use crate::stat::{STAT_HELP, StatArgs};
use crate::tcp_options::TcpOptions;
use crate::tls_options::{CertificateOptions, TlsOptions};

/// Where a NIC process that runs alone listens for its host stack.
pub(crate) const NIC_SOCKET: &str = "/run/splitway-nic.sock";

#[derive(Debug, Parser)]
#[command(
    name = "splitway",
    version,
    about = "Serves files over a transport stack cut in two",
    long_about = "Serves files over a transport stack cut in two.\n\n\
        The host process decides: connections, loss, congestion, HTTP. The NIC process moves bytes: it reads \
        the files, builds the packets and sends them. The host process never touches the content of a file; \
        it locks itself out of the file system before it accepts a connection.",
    after_help = "\
Try it, without any privileges:
  splitway demo

Serve a directory to this machine, on a link made for it (http://10.77.0.2/):
  sudo splitway serve ./site

Serve it to a network, on an interface and with an address of its own:
  sudo splitway serve ./site --dev eth0 --addr 192.0.2.10/24 --gateway 192.0.2.1

`splitway COMMAND --help` tells more about each command.",
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// What to log on standard error: nothing less urgent than this
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn",
          value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub(crate) log: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory over HTTP
    Serve(Box<ServeArgs>),
    /// Check a configuration file, and the files that it names, without serving
    Check(CheckArgs),
    /// Run the NIC stack alone, for host stacks that attach to it
    Nic(NicArgs),
    /// Ask a running server for something
    Ctl(CtlArgs),
    /// Show the connections of a running server, and what it is at
    Stat(StatArgs),
    /// Write what a running server sends and receives to a file for Wireshark
    Capture(CaptureArgs),
    /// Write a fresh key for a host stack and a NIC stack on two machines
    Keygen(KeygenArgs),
    /// Show everything at work in a namespace of its own, without privileges
    Demo(DemoArgs),
    /// Emulate a link: join two interfaces with delay, rate, loss and more
    Link(LinkArgs),
    /// Run the deterministic simulation of both stacks
    Sim(SimArgs),
    /// Measure against nginx and lighttpd, and draw the figures of the IO-TCP paper
    Bench(BenchArgs),
    /// Write manual pages or shell completions, for packages of this program
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// The host process of `serve`
    #[command(hide = true)]
    Host,
    /// The NIC process of `serve` and `nic`
    #[command(hide = true)]
    NicProcess,
    /// The fetcher of `serve`
    #[command(hide = true)]
    Fetcher,
    /// The observer process of `serve`
    #[command(hide = true)]
    Observer,
    /// The relay of `serve`, in the place of a NIC process on another machine
    #[command(hide = true)]
    HostRelay,
    /// The relay of `nic --control`, in the place of a host process on another machine
    #[command(hide = true)]
    NicRelay,
}

/// What `splitway serve` is told on the command line. What a file can say as well is said over it: see `config`.
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

    /// File that says what to serve, and how, in TOML (docs/config.md). What is said here as well takes the place of what it
    /// says; a list takes the place of a list
    #[arg(long, value_name = "FILE", groups = ["content", "addresses", "interface", "stacks", "tls_ports"])]
    pub(crate) config: Option<PathBuf>,

    /// Print the whole configuration that this line leads to, as a file for --config, and end
    #[arg(long)]
    pub(crate) print_config: bool,

    /// TCP port to serve HTTP on, without TLS; may be repeated [default: 80, or none with --tls-listen]
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub(crate) listen: Vec<u16>,

    /// Ethernet interface to attach the stack to, in this network namespace
    #[arg(
        long,
        value_name = "IFACE",
        requires = "addresses",
        group = "interface"
    )]
    pub(crate) dev: Option<String>,

    /// The stack's own address with the length of its on-link prefix; several may follow
    #[arg(long, value_name = "CIDR", requires = "interface", group = "addresses", num_args = 1.., value_delimiter = ',')]
    pub(crate) addr: Vec<Cidr>,

    /// Router to everything that is not on the link, one each for IPv4 and IPv6
    #[arg(long, value_name = "IP", requires = "interface", num_args = 1.., value_delimiter = ',')]
    pub(crate) gateway: Vec<IpAddr>,

    /// Do not ask the link whether another machine has the stack's addresses
    #[arg(long, requires = "interface")]
    pub(crate) no_dad: bool,

    /// Congestion control of the connections: cubic, bbr or newreno [default: cubic]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<CongestionAlgorithm>,

    #[command(flatten)]
    pub(crate) tcp: TcpOptions,

    /// NIC workers, each a thread with its own port and its share of the cache [default: 1]
    #[arg(long, value_name = "N", requires = "content", value_parser = value_parser!(u16).range(1..=64))]
    pub(crate) workers: Option<u16>,

    #[command(flatten)]
    pub(crate) cache: CacheOption,

    /// Most connections of one source: of an IPv4 address, or of an IPv6 network of 64 bits [default: no limit]
    #[arg(long, value_name = "N")]
    pub(crate) connections_per_source: Option<NonZeroU32>,

    /// Most connections that wait for their clients alone to acknowledge the end, or to end their side. Beyond, the
    /// one that has waited longest is reset [default: 32768]
    #[arg(long, value_name = "N")]
    pub(crate) orphans: Option<NonZeroU32>,

    /// MTU of the veth pair, in bytes [default: 1500]
    #[arg(long, value_name = "BYTES", conflicts_with = "dev",
          value_parser = value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    /// Attach to the NIC process that listens on this socket, or, as eth:IFACE,MAC, to the NIC stack of the machine
    /// with this address on the link of an interface. Several --nic are several NIC stacks, besides one for ROOT if that
    /// is given: each request is served by one that has the file
    #[arg(
        long,
        value_name = "SOCKET|eth:IFACE,MAC",
        requires = "interface",
        group = "stacks"
    )]
    pub(crate) nic: Vec<NicPlace>,

    /// The roots of all NIC stacks are copies of each other, times of modification included (rsync -a, cp -a): if one
    /// goes away, responses go on from another that has a file of the same path, size and time
    #[arg(long)]
    pub(crate) replicas: bool,

    /// File with the key that both machines share, for --nic eth:…; `splitway keygen` makes one
    #[arg(long, value_name = "FILE", requires = "stacks")]
    pub(crate) key_file: Option<PathBuf>,

    /// Where `splitway ctl` reaches this server [default: under /run/splitway or $XDG_RUNTIME_DIR/splitway]
    #[arg(long, value_name = "PATH")]
    pub(crate) control_socket: Option<PathBuf>,

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
    pub(crate) logs: LogOptions,

    #[command(flatten)]
    pub(crate) host_measuring: HostMeasuring,

    #[command(flatten)]
    pub(crate) nic_measuring: NicMeasuring,

    /// At the end, print all counters of both processes as a line of JSON
    #[arg(long, help_heading = "For measurements only")]
    pub(crate) report_json: bool,

    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) end_with_parent: bool,
}

/// The check of a configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// The file, as for `serve --config`
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

pub(crate) const SERVE_HELP: &str = "\
Without --dev, Splitway makes a link of its own: a veth pair whose end on this machine is splitway0 with \
10.77.0.1/24 and fd77::1/64; the stack answers at 10.77.0.2 and fd77::2. The pair vanishes with Splitway, \
however that ends. This needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN (sudo has them).

With --dev and --addr the stack joins the network of an interface that exists, as one more machine: choose \
an address that nobody uses, not the kernel's own. This needs CAP_NET_RAW. This machine itself does not \
see packets that it sends on its own interface; try the URL from another one.

Examples:
  sudo splitway serve ./site
  curl http://10.77.0.2/
  curl 'http://[fd77::2]/'

  sudo splitway serve ./site --listen 8080 --workers 2

  sudo splitway serve --config /etc/splitway/splitway.toml

  sudo splitway serve ./site --dev eth0 --addr 192.0.2.10/24 fd00::10/64 --gateway 192.0.2.1

  sudo splitway serve --origin https://origin.example --cache-dir /var/cache/splitway

  sudo splitway serve ./site --tls-listen 443 --tls-self-signed

  sudo splitway serve ./site --tls-listen 443 --tls-cert chain.pem --tls-key key.pem \\
    --dev eth0 --addr 192.0.2.10/24

  sudo splitway nic ./site --dev eth0 --socket /run/splitway-nic.sock &
  sudo splitway serve --nic /run/splitway-nic.sock --dev eth0 --addr 192.0.2.10/24

  sudo splitway serve --nic eth:eth1,02:00:5e:10:00:01 --key-file key --dev eth0 --addr 192.0.2.10/24

  sudo splitway serve --nic eth:eth1,02:00:5e:10:00:01 --nic eth:eth1,02:00:5e:10:00:02 --replicas \\
    --key-file key --dev eth0 --addr 192.0.2.10/24

End it with Ctrl-C: it prints what the processes have done.";

/// The NIC stack.
#[derive(Clone, Debug, Args)]
pub(crate) struct NicArgs {
    #[command(flatten)]
    root: RootOption,

    /// Ethernet interface to send packets on
    #[arg(long, value_name = "IFACE")]
    pub(crate) dev: String,

    /// Workers, each a thread with its own port and its share of the cache
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,

    #[command(flatten)]
    pub(crate) cache: CacheOption,

    /// Unix socket on which to wait for a host stack
    #[arg(long, value_name = "PATH", default_value = NIC_SOCKET, conflicts_with = "control")]
    pub(crate) socket: PathBuf,

    /// Wait for the host stack of another machine, on the link of this interface
    #[arg(long, value_name = "eth:IFACE", requires = "key_file")]
    pub(crate) control: Option<ControlLink>,

    /// File with the key that both machines share, for --control; `splitway keygen` makes one
    #[arg(long, value_name = "FILE", requires = "control")]
    pub(crate) key_file: Option<PathBuf>,

    // Its heading holds for all options that follow.
    #[command(flatten)]
    pub(crate) measuring: NicMeasuring,
}

impl NicArgs {
    /// Directory below which files are opened, and never outside.
    pub(crate) fn root(&self) -> &Path {
        let RootOption { root, root_option } = &self.root;
        // One of them is required.
        let root = root.as_deref().or(root_option.as_deref());
        root.unwrap_or(Path::new(""))
    }

    /// What a NIC process starts with that serves one host stack.
    pub(crate) fn settings(&self) -> NicSettings {
        NicSettings {
            device: self.dev.clone(),
            root: self.root().to_owned(),
            workers: self.workers,
            cache: self.cache.cache.map(Text),
            reports_counters: false,
            ablation: self.measuring.clone(),
        }
    }
}

/// The same directory in either of two ways.
#[derive(Clone, Debug, Args)]
#[group(id = "content", required = true, multiple = false)]
struct RootOption {
    /// Directory below which files are opened, and never outside
    #[arg(value_name = "ROOT")]
    root: Option<PathBuf>,

    /// The same, as an option
    #[arg(long = "root", value_name = "DIR")]
    root_option: Option<PathBuf>,
}

pub(crate) const NIC_HELP: &str = "\
The NIC process takes commands from one host stack at a time. Only processes of the same user can connect \
to its socket. When a host stack has gone, it waits for the next one. It needs CAP_NET_RAW.

Example:
  sudo splitway nic ./site --dev eth0 --socket /run/splitway-nic.sock &
  sudo splitway serve --nic /run/splitway-nic.sock --dev eth0 --addr 192.0.2.10/24

With --control it takes commands from another machine, over Ethernet frames that a key authenticates and \
encrypts. Data leaves on --dev, with the host's IP addresses; what clients send goes to the host directly.

Example:
  splitway keygen key            # and copy it to the other machine
  sudo splitway nic ./site --control eth:eth1 --key-file key --dev eth0";

/// A new key.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeygenArgs {
    /// The file to write, which must not be there yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

impl Cli {
    /// The command line with the long explanations attached.
    pub(crate) fn command_line() -> clap::Command {
        use clap::CommandFactory;
        Self::command()
            .mut_subcommand("serve", |command| command.after_help(SERVE_HELP))
            .mut_subcommand("nic", |command| command.after_help(NIC_HELP))
            .mut_subcommand("ctl", |command| command.after_help(CTL_HELP))
            .mut_subcommand("stat", |command| command.after_help(STAT_HELP))
            .mut_subcommand("capture", |command| command.after_help(CAPTURE_HELP))
            .mut_subcommand("demo", |command| command.after_help(DEMO_HELP))
            .mut_subcommand("link", |command| command.after_help(LINK_HELP))
            .mut_subcommand("bench", |command| command.after_help(BENCH_HELP))
            .mut_subcommand("sim", |command| command.after_help(SIM_HELP))
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::config::{self, Config};

    fn parse(line: &str) -> Result<Cli, String> {
        let matches = Cli::command_line()
            .try_get_matches_from(line.split_whitespace())
            .map_err(|error| error.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    fn serve(line: &str) -> ServeArgs {
        match parse(line).unwrap().command {
            Command::Serve(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn config(line: &str) -> Config {
        config::load(&serve(line)).unwrap()
    }

    /// Those without TLS, and those with it.
    fn ports(config: &Config) -> [Vec<u16>; 2] {
        [false, true].map(|tls| config.ports(tls).collect())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command_line().debug_assert();
    }

    /// The options below a heading of the help of a command.
    fn below(command: &str, heading: Option<&str>) -> Vec<String> {
        let program = Cli::command_line();
        let command = program.find_subcommand(command).unwrap();
        let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
        let below = arguments.filter(|it| it.get_help_heading() == heading);
        below
            .filter_map(|it| it.get_long().map(str::to_owned))
            .collect()
    }

    #[test]
    fn every_option_stands_below_its_heading() {
        let measuring = Some("For measurements only");
        assert_eq!(
            below("serve", measuring),
            [
                "no-echo-rto",
                "rtt-from-timestamps",
                "rto-min",
                "ack-delay",
                "no-timestamp-fix",
                "read-delay",
                "report-json"
            ]
        );
        assert_eq!(below("nic", measuring), ["no-timestamp-fix", "read-delay"]);
        let general = below("serve", None);
        for option in ["control-socket", "key-file", "orphans", "listen", "ecn"] {
            assert!(general.iter().any(|it| it == option), "{option}");
        }
        let general = below("nic", None);
        for option in ["socket", "control", "key-file", "workers", "cache"] {
            assert!(general.iter().any(|it| it == option), "{option}");
        }
    }

    #[test]
    fn the_simplest_line_has_sensible_defaults() {
        let config = config("splitway serve site");
        assert_eq!(config.nic.root, Some(PathBuf::from("site")));
        assert_eq!(ports(&config), [vec![80], vec![]]);
        assert_eq!((config.nic.workers, config.network.mtu), (1, None));
        assert!(config.network.interface.is_none() && config.nic.attach.is_empty());
    }

    #[test]
    fn addresses_may_be_repeated_or_listed() {
        let lines = [
            "splitway serve site --dev eth0 --addr 192.0.2.3/24 fd00::3/64 --gateway 192.0.2.1 --listen 8080",
            "splitway serve site --dev eth0 --addr 192.0.2.3/24 --addr fd00::3/64 --gateway 192.0.2.1 --listen 8080",
            "splitway serve --dev eth0 --addr 192.0.2.3/24,fd00::3/64 --gateway 192.0.2.1 --listen 8080 site",
        ];
        for line in lines {
            let config = config(line);
            let network = &config.network;
            assert_eq!(
                (network.addresses.len(), network.gateways.len()),
                (2, 1),
                "{line}"
            );
            assert_eq!(ports(&config)[0], [8080], "{line}");
            assert_eq!(config.nic.root, Some(PathBuf::from("site")), "{line}");
        }
    }

    #[test]
    fn whoever_asks_for_tls_gets_http_without_it_if_he_asks_for_that_too() {
        let plain = |rest| {
            let line = format!("splitway serve site {rest}");
            let [plain, _] = ports(&config(&line));
            plain
        };
        assert_eq!(plain("--tls-listen 443 --tls-self-signed"), [0; 0]);
        assert_eq!(
            plain("--tls-listen 443 --tls-self-signed --listen 80"),
            [80]
        );
        assert_eq!(plain("--listen 8080 --listen 8081"), [8080, 8081]);
    }

    #[test]
    fn the_simulation_takes_one_seed_or_a_range() {
        let sim = |line: &str| match parse(line).unwrap().command {
            Command::Sim(args) => args,
            other => panic!("{other:?}"),
        };
        assert_eq!(sim("splitway sim --seed 7 --trace").seed, Some(7));
        assert_eq!(sim("splitway sim --seeds 3..9").seeds, Some(3..9));
        for line in [
            "sim",
            "sim --seeds 9..3",
            "sim --seeds 5",
            "sim --seeds 0..9 --trace",
        ] {
            assert!(parse(&format!("splitway {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn numbers_have_bounds() {
        for rest in [
            "--listen 0",
            "--listen 65536",
            "--listen http",
            "--workers 0",
            "--workers 65",
            "--mtu 1279",
            "--mtu 65536",
            "--cache 1T",
            "--connections-per-source 0",
            "--orphans 0",
        ] {
            let option = rest.split_whitespace().next().unwrap();
            let message = parse(&format!("splitway serve site {rest}")).unwrap_err();
            assert!(message.contains(option), "{rest}: {message}");
        }
    }

    #[test]
    fn options_that_need_each_other_say_so() {
        assert!(
            parse("splitway serve site --dev eth0")
                .unwrap_err()
                .contains("--addr")
        );
        assert!(
            parse("splitway serve site --addr 192.0.2.3/24")
                .unwrap_err()
                .contains("--dev")
        );
        assert!(parse("splitway serve").unwrap_err().contains("ROOT"));
        assert!(
            parse("splitway serve --nic /x")
                .unwrap_err()
                .contains("--dev")
        );
        let both = "splitway serve site --nic /x --nic /y --dev eth0 --addr 192.0.2.3/24";
        parse(both).unwrap();
        let alone = "splitway serve --nic /x --dev eth0 --addr 192.0.2.3/24";
        for of_the_other in ["--workers 2", "--cache 64M", "--read-delay 1ms..2ms"] {
            let message = parse(&format!("{alone} {of_the_other}")).unwrap_err();
            assert!(message.contains("ROOT"), "{message}");
        }
        parse("splitway serve --nic /x --dev eth0 --addr 192.0.2.3/24").unwrap();
        let root = |line: &str| match parse(line).map(|cli| cli.command) {
            Ok(Command::Nic(args)) => Ok(args.root().to_owned()),
            other => Err(format!("{other:?}")),
        };
        for line in [
            "splitway nic site --dev eth0",
            "splitway nic --root site --dev eth0",
        ] {
            assert_eq!(root(line), Ok("site".into()));
        }
        assert!(
            root("splitway nic --dev eth0")
                .unwrap_err()
                .contains("ROOT")
        );
        assert!(
            root("splitway nic a --root b --dev eth0")
                .unwrap_err()
                .contains("--root")
        );
        let nic = "splitway nic --control eth:eth1 --root . --dev eth0";
        assert!(parse(nic).unwrap_err().contains("--key-file"));
        parse(&format!("{nic} --key-file key")).unwrap();
        let control = format!("{nic} --key-file key --socket s");
        assert!(parse(&control).unwrap_err().contains("--control"));
    }
}
