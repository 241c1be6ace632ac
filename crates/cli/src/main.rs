//! The `splitway` program.
//!
//! | Module | Purpose |
//! |---|---|
//! | `cli` | the command line: all commands |
//! | `commands` | the commands |
//! | `args` | options of `serve` and `nic`, over the configuration file |
//! | `supervisor` | `serve` and `nic` while they run: starting, watching and ending the processes |
//! | `terminal`, `suggestions`, `url` | what people read |
//!
//! It may touch processes, namespaces, interfaces and both stacks' front doors. It never touches
//! packets, commands or, outside the demonstration's comparison, file content.

#![forbid(unsafe_code)]

mod args;
mod cli;
mod commands;
mod suggestions;
mod supervisor;
mod terminal;
mod url;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::cli::{Cli, Command};
use crate::commands::{
    capture, check, companion, ctl, demo, generate, keygen, link, proxy, qlog, run, serve, stat,
};
use crate::supervisor::{cluster, remote_nic, standalone_nic};
use crate::terminal::complain;
use processes::ipc::{child, log_lines};
use processes::{broker, cluster as nodes, fetcher, host, nic, observer, relay};

fn main() -> ExitCode {
    let mut cli = match Cli::command_line()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return usage(error),
    };
    // `splitway run` passes inherited descriptors on to its program.
    if !matches!(cli.command, Command::Run(_)) {
        sandbox::descriptors::close_inherited();
    }
    match &mut cli.command {
        Command::Serve(args) => args.log = cli.log,
        Command::Proxy(args) => args.log = cli.log,
        _ => {}
    }
    let log = cli.log.unwrap_or_default();
    if has_log(&cli.command) {
        // Colours are for people, not for files.
        let is_for_file = matches!(
            &cli.command,
            Command::Serve(args) if args.logs.error_log.is_some() || args.config.is_some()
        ) || matches!(&cli.command, Command::Proxy(_));
        log_lines::start(log, std::io::stderr().is_terminal() && !is_for_file);
    }
    let result = match &cli.command {
        Command::Host => return child::end(host::run()),
        Command::NicProcess => return child::end(nic::run()),
        Command::Broker => return child::end(broker::run()),
        Command::Fetcher => return child::end(fetcher::run()),
        Command::Observer => return child::end(observer::run()),
        Command::HostRelay => return child::end(relay::host_side::run()),
        Command::NicRelay => return child::end(relay::nic_side::run()),
        Command::Nic(args) => match &args.control {
            Some(control) => remote_nic::run(args, control, log),
            None => standalone_nic::run(args, log),
        },
        Command::NodeProcess => return child::end(nodes::node_side::run()),
        Command::GateProcess => return child::end(nodes::stack_side::run()),
        Command::SocketsNode(args) => cluster::run_node(args, log),
        Command::SocketsGate(args) => cluster::run_gate(args, log),
        Command::Keygen(args) => keygen::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Proxy(args) => proxy::run(args),
        Command::Run(args) => match run::run(args, log) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Check(args) => check::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Qlog(args) => qlog::run(args),
        Command::Demo(args) => demo::run(args, log),
        Command::Link(args) => link::run(args),
        Command::Sim(args) => companion::execute(&companion::SIM, args),
        Command::Bench(args) => companion::execute(&companion::BENCH, args),
        Command::Generate(args) => generate::run(args, &Cli::command_line()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&format!("{failure}\n"));
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints help, the version, or the error in a command line that cannot be parsed.
fn usage(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    suggestions::improve(&mut error, std::env::args().skip(1));
    let text = error.render().to_string();
    complain(text.strip_prefix("error: ").unwrap_or(&text));
    ExitCode::from(2)
}

/// Whether the log of a command starts at once. A companion has a log of its own; a process that a
/// supervisor has started gets the level with its settings.
fn has_log(command: &Command) -> bool {
    !matches!(
        command,
        Command::Sim(_)
            | Command::Bench(_)
            | Command::Host
            | Command::NicProcess
            | Command::Broker
            | Command::Fetcher
            | Command::Observer
            | Command::HostRelay
            | Command::NicRelay
            | Command::NodeProcess
            | Command::GateProcess
    )
}
