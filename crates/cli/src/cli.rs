//! The command line: all commands.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Parser, Subcommand};

use crate::args::cluster::{GateArgs, NodeArgs};
use crate::args::nic::{NIC_HELP, NicArgs};
use crate::args::proxy::{PROXY_HELP, ProxyArgs};
use crate::args::serve::{SERVE_HELP, ServeArgs};
use crate::commands::capture::{CAPTURE_HELP, CaptureArgs};
use crate::commands::check::CheckArgs;
use crate::commands::companion::{BENCH_HELP, CompanionArgs, SIM_HELP};
use crate::commands::ctl::{CTL_HELP, CtlArgs};
use crate::commands::demo::{DEMO_HELP, DemoArgs};
use crate::commands::generate::GenerateArgs;
use crate::commands::keygen::KeygenArgs;
use crate::commands::link::{LINK_HELP, LinkArgs};
use crate::commands::qlog::{QLOG_HELP, QlogArgs};
use crate::commands::run::{RUN_HELP, RunArgs};
use crate::commands::stat::{STAT_HELP, StatArgs};
use config::log_level::LogLevel;

#[derive(Debug, Parser)]
#[command(
    name = "splitway",
    version,
    about = "Serves files over a transport stack cut in two",
    long_about = "Serves files over a transport stack cut in two.\n\nThe host process decides: \
        connections, loss, congestion, HTTP. The NIC process moves bytes: it reads the files, \
        builds the packets and sends them. The host process never touches the content of a file; \
        it gives up access to the file system before it accepts a connection.",
    after_help = "\
Try it without privileges:
  splitway demo

Serve a directory to this machine, on a link of its own (http://10.77.0.2/):
  sudo splitway serve ./site

Serve it to a network, on an interface, with its own address:
  sudo splitway serve ./site --dev eth0 --addr 192.0.2.10/24 --gateway 192.0.2.1

`splitway COMMAND --help` has more about each command.",
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log level for standard error [default: warn]
    #[arg(long, global = true, value_name = "LEVEL",
          value_parser = PossibleValuesParser::new(LogLevel::names())
              .try_map(|name| name.parse::<LogLevel>()))]
    pub(crate) log: Option<LogLevel>,
}

#[derive(Debug, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, for the life of the process"
)]
pub(crate) enum Command {
    /// Serve a directory over HTTP
    Serve(Box<ServeArgs>),
    /// Forward requests and connections to backends
    Proxy(ProxyArgs),
    /// Run a program, unmodified, with its sockets on the split stack
    Run(RunArgs),
    /// Check a configuration file, and the files that it names, without serving
    Check(CheckArgs),
    /// Run the NIC stack alone, for host stacks that attach to it
    Nic(NicArgs),
    /// Give programs of this machine sockets on a stack node, which runs their TCP
    SocketsNode(NodeArgs),
    /// Admit programs of an application node, on a stack node with `serve --sockets`
    SocketsGate(GateArgs),
    /// Control a running server
    Ctl(CtlArgs),
    /// Show the connections and counters of a running server
    Stat(StatArgs),
    /// Write the packets of a running server to a file for Wireshark
    Capture(CaptureArgs),
    /// Trace QUIC connections of a running server to files, in qlog format
    Qlog(QlogArgs),
    /// Create a key for a host stack and a NIC stack on two machines, or a secret for QUIC
    Keygen(KeygenArgs),
    /// Demonstrate everything in its own namespace, without privileges
    Demo(DemoArgs),
    /// Emulate a link: join two interfaces with delay, rate, loss and more
    Link(LinkArgs),
    /// Run the deterministic simulation of both stacks
    Sim(CompanionArgs),
    /// Measure against nginx and lighttpd, and draw the figures of the IO-TCP paper
    Bench(CompanionArgs),
    /// Write manual pages or shell completions, for packagers
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// The host process of `serve`
    #[command(hide = true)]
    Host,
    /// The NIC process of `serve` and `nic`
    #[command(hide = true)]
    NicProcess,
    /// The broker of `serve`
    #[command(hide = true)]
    Broker,
    /// The fetcher of `serve`
    #[command(hide = true)]
    Fetcher,
    /// The observer process of `serve`
    #[command(hide = true)]
    Observer,
    /// The relay of `serve`, in place of a NIC process on another machine
    #[command(hide = true)]
    HostRelay,
    /// The relay of `nic --control`, in place of a host process on another machine
    #[command(hide = true)]
    NicRelay,
    /// The node process of `sockets-node`
    #[command(hide = true)]
    NodeProcess,
    /// The gate process of `sockets-gate`
    #[command(hide = true)]
    GateProcess,
}

impl Cli {
    /// The command line with the long explanations attached.
    pub(crate) fn command_line() -> clap::Command {
        use clap::CommandFactory;
        Self::command()
            .mut_subcommand("serve", |command| command.after_help(SERVE_HELP))
            .mut_subcommand("proxy", |command| command.after_help(PROXY_HELP))
            .mut_subcommand("run", |command| command.after_help(RUN_HELP))
            .mut_subcommand("nic", |command| command.after_help(NIC_HELP))
            .mut_subcommand("ctl", |command| command.after_help(CTL_HELP))
            .mut_subcommand("stat", |command| command.after_help(STAT_HELP))
            .mut_subcommand("capture", |command| command.after_help(CAPTURE_HELP))
            .mut_subcommand("qlog", |command| command.after_help(QLOG_HELP))
            .mut_subcommand("demo", |command| command.after_help(DEMO_HELP))
            .mut_subcommand("link", |command| command.after_help(LINK_HELP))
            .mut_subcommand("bench", |command| command.after_help(BENCH_HELP))
            .mut_subcommand("sim", |command| command.after_help(SIM_HELP))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::FromArgMatches;

    use super::*;
    use crate::args::overlay;
    use config::Config;

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
        overlay::load(&serve(line)).unwrap()
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
                "no-steering",
                "rtt-from-timestamps",
                "rto-min",
                "ack-delay",
                "no-timestamp-fix",
                "quic-reorder",
                "read-delay",
                "report-json"
            ]
        );
        assert_eq!(
            below("nic", measuring),
            ["no-timestamp-fix", "quic-reorder", "read-delay"]
        );
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
            "splitway serve site --dev eth0 --addr 192.0.2.3/24 fd00::3/64 --gateway 192.0.2.1 \
             --listen 8080",
            "splitway serve site --dev eth0 --addr 192.0.2.3/24 --addr fd00::3/64 --gateway \
             192.0.2.1 --listen 8080",
            "splitway serve --dev eth0 --addr 192.0.2.3/24,fd00::3/64 --gateway 192.0.2.1 --listen \
             8080 site",
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
    fn with_tls_plain_http_is_served_only_if_it_is_asked_for() {
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
    fn every_name_that_help_lists_is_a_value() {
        let program = Cli::command_line();
        let command = program.find_subcommand("serve").unwrap();
        let mut options = 0;
        for argument in command.get_arguments() {
            let Some(option) = argument.get_long() else {
                continue;
            };
            // A flag has the values true and false, which it does not take.
            let takes_values = argument.get_action().takes_values();
            let names = argument.get_possible_values();
            options += usize::from(takes_values && !names.is_empty());
            for name in names.iter().filter(|_| takes_values) {
                let name = name.get_name();
                let tls = "--tls-listen 443 --tls-self-signed";
                parse(&format!("splitway serve site {tls} --{option}={name}")).unwrap();
            }
        }
        assert!(options >= 9, "{options}");
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
