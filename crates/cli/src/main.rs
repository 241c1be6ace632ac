//! The `splitway` program.
//!
//! | Module | What it does |
//! |---|---|
//! | `args` | the command line |
//! | `config` | the configuration: a file, and over it the command line |
//! | `check` | `splitway check` |
//! | `serve` | `splitway serve`: the supervisor |
//! | `nic_keeper`, `backoff`, `program` | keeping a NIC process: its restart, its replacement |
//! | `rolling` | replacing NIC processes one after the other |
//! | `heartbeat` | noticing processes that stand still |
//! | `root` | a root that is a symbolic link |
//! | `desk` | requests of operators that wait for their answer |
//! | `control`, `ctl` | the control socket, and `splitway ctl` |
//! | `nic_listener` | `splitway nic`: waits for host stacks |
//! | `nic_machine`, `carry_process` | the two stacks on two machines |
//! | `door_process` | the carrier of `splitway nic --control` |
//! | `control_link`, `key_file` | where the other machine is, and what it must know |
//! | `http_options`, `tcp_options`, `tls_options`, `log_options` | what is asked for with options |
//! | `cache_option`, `connection_memory`, `measuring` | sizes of memory; switches for measurements |
//! | `certificates`, `self_signed` | where certificates come from |
//! | `drain` | the end without losing anything |
//! | `notice` | what a service manager is told |
//! | `configuration`, `reload` | the settings that the host process gets at its start and on reload |
//! | `observe`, `observer`, `telling` | the process for logs and metrics, its supervision, its reports |
//! | `log_lines` | how lines reach standard error |
//! | `stat` | `splitway stat`, and how connections are told of |
//! | `capture` | `splitway capture` |
//! | `demo` | `splitway demo` |
//! | `emulate` | `splitway link` |
//! | `sim` | `splitway sim` |
//! | `bench` | `splitway bench` |
//! | `generate` | manual pages and completions for packages |
//! | `host_process`, `nic_process` | the two processes that do the work |
//! | `origin_options`, `origin_place` | origins: what is asked for; the values that settings name |
//! | `fetch_keeper`, `fetch_process`, `fetching` | the fetcher: keeping it, itself, and the host process's end of it |
//! | `handover`, `fd_passing` | how a NIC process comes to the host process |
//! | `host_counters` | what the host process reports of its counters |
//! | `family`, `child`, `messages`, `signals` | supervision: processes, what they say, how they end |
//! | `heap` | memory that goes back to the kernel |
//! | `report`, `suggestions`, `url` | what people read |
//!
//! This room may touch processes, namespaces, interfaces and both stacks' front doors. It never touches
//! packets, commands or, outside the demonstration's comparison, file content.

#![forbid(unsafe_code)]

mod announce;
mod args;
mod attachment;
mod backoff;
mod bench;
mod cache_option;
mod capture;
mod carry_process;
mod certificates;
mod check;
mod child;
mod children;
mod config;
mod connection_memory;
mod control;
mod control_link;
mod ctl;
mod demo;
mod desk;
mod door_process;
mod drain;
mod emulate;
mod fd_passing;
mod fetch_keeper;
mod fetch_process;
mod fetching;
mod generate;
mod handover;
mod heap;
mod heartbeat;
mod host_configuration;
mod host_counters;
mod host_process;
mod http_options;
mod key_file;
mod launch;
mod log_lines;
mod log_options;
mod measuring;
mod messages;
mod nic_keeper;
mod nic_listener;
mod nic_machine;
mod nic_process;
mod nic_source;
mod notice;
mod observe;
mod observer;
mod origin_options;
mod origin_place;
mod program;
mod reload;
mod report;
mod rolling;
mod root;
mod sealed;
mod self_signed;
mod serve;
mod signals;
mod sim;
mod startup;
mod stat;
mod suggestions;
mod supervisor;
mod tcp_options;
mod telling;
mod tls_options;
mod url;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    sandbox::descriptors::close_inherited();
    let cli = match Cli::command_line()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return usage(error),
    };
    if has_log(&cli.command) {
        // Colours are for people, not for files.
        let is_for_file = matches!(&cli.command, Command::Serve(args) if args.logs.error_log.is_some() || args.config.is_some());
        log_lines::start(&cli.log, std::io::stderr().is_terminal() && !is_for_file);
    }
    let result = match &cli.command {
        Command::Host => return child::end(host_process::run()),
        Command::NicProcess => return child::end(nic_process::run()),
        Command::Fetcher => return child::end(fetch_process::run()),
        Command::Observer => return child::end(observe::run()),
        Command::HostRelay => return child::end(carry_process::run()),
        Command::NicRelay => return child::end(door_process::run()),
        Command::Nic(args) => match &args.control {
            Some(control) => nic_machine::run(args, control, &cli.log),
            None => nic_listener::run(args, &cli.log),
        },
        Command::Keygen(args) => key_file::generate(&args.file),
        Command::Serve(args) => serve::run(args, &cli.log),
        Command::Check(args) => check::run(&args.file),
        Command::Ctl(args) => ctl::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Demo(args) => demo::run(args, &cli.log),
        Command::Link(args) => emulate::run(args),
        Command::Sim(args) => sim::run_seeds(args),
        Command::Bench(args) => bench::run(args),
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

/// Help, the version, or a line that cannot be understood.
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

fn complain(text: &str) {
    // There is nobody else to tell.
    let _ = std::io::stderr()
        .lock()
        .write_all(format!("splitway: {text}").as_bytes());
}

/// Writes to standard output at once. Whoever has closed it does not want to read it.
pub(crate) fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Whether the log of a command starts at once. A simulation, which is full of failures on purpose, has a log of its own;
/// a process that a supervisor has started gets the level with its settings.
fn has_log(command: &Command) -> bool {
    !matches!(
        command,
        Command::Sim(_)
            | Command::Host
            | Command::NicProcess
            | Command::Fetcher
            | Command::Observer
            | Command::HostRelay
            | Command::NicRelay
    )
}
