//! Measures Splitway against nginx, on one machine.
//!
//! Each server has a namespace of its own and a veth pair to the namespace of the client, which is a load
//! generator in a process of its own. Servers run on core 0, the client on core 1. Runs against the two
//! servers alternate within one invocation; what is reported are medians and their spread.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`goodput`] | another measurement: goodput over emulated links |
//! | [`link`] | veth pairs, and on which core the kernel does their receive work |
//! | [`nginx`], [`lighttpd`] | the peers |
//! | [`load`] | the load generator |
//! | [`rounds`] | how often, and for how long |
//! | [`run`] | one run: load on a server, and what that cost |
//! | [`report`] | files in memory: ratios and what is promised of them |
//! | [`table`] | medians and their spread, what a server costs |
//! | [`disk`] | another measurement: files that are not in memory |
//! | [`figure10`] | the split's corrections, with and without: figure 10 of IO-TCP |
//! | [`workers`] | another measurement: one NIC worker against several |
//! | [`tls`] | another measurement: files over TLS, and handshakes |
//! | [`plot`] | line charts |
//! | [`publish`] | where results go |
#![forbid(unsafe_code)]

mod disk;
mod figure10;
mod goodput;
mod lighttpd;
mod link;
mod load;
mod nginx;
mod plot;
mod publish;
mod report;
mod rounds;
mod run;
mod table;
mod tls;
mod workers;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use rustix::process::Signal;
use testbed::namespace::{self, Privilege};
use testbed::process::{run as run_tool, tool};
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, LINK, Splitway};
use testbed::{Context, Failure, Result};

use crate::link::Device;
use crate::nginx::Nginx;
use crate::report::Report;
use crate::rounds::Rounds;
use crate::run::Server;
use crate::tls::identity::Identity;

/// Core of the servers, and of the kernel's receive work for them.
const SERVER_CORE: usize = 0;

/// Core of the client, and of the kernel's receive work for it.
const CLIENT_CORE: usize = 1;

/// Connections with which memory is measured.
const MEMORY_CONNECTIONS: usize = 1000;

/// Measures Splitway against nginx (sendfile, one worker) on the same kind of link: CPU time per gigabyte of
/// each process, throughput, and memory at a thousand connections. Needs root, two cores, and nginx.
#[derive(Parser, Debug)]
#[command(
    name = "splitway-bench",
    version,
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Other measurements, and what a measurement starts of itself.
#[derive(Subcommand, Debug)]
enum Part {
    /// Measures what the echo and the timestamp correction are good for, with a slow disk (IO-TCP, figure 10).
    Figure10(figure10::Settings),
    /// Measures serving files that are not in memory, against nginx with and without the page cache.
    Disk(disk::Settings),
    /// Measures files in memory with one NIC worker and with two, on any core.
    Workers(workers::Settings),
    /// Measures files over TLS, and handshakes, against nginx and lighttpd.
    Tls(tls::Settings),
    /// Measures goodput over emulated links, against the kernel's TCP.
    Link(goodput::Settings),
    /// Generates load.
    #[command(hide = true)]
    Load(load::Settings),
    /// Shakes hands.
    #[command(hide = true)]
    Handshakes(tls::handshakes::Settings),
    /// Fetches files over an emulated link.
    #[command(hide = true)]
    Fetch(goodput::fetch::Settings),
}

/// What is measured.
#[derive(clap::Args, Clone, Debug, serde::Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files, asked for at random.
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes.
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// Has the client drop bodies unread: then nobody but Splitway ever touches a byte, and the client's core
    /// falls asleep between packets.
    #[arg(long)]
    discard: bool,
    /// Has the kernel receive the clients' packets on the servers' core, instead of in the context of the client
    /// that sends them: as between machines, but for an interrupt from core to core with each.
    #[arg(long)]
    steer_requests: bool,
    /// A further argument for `splitway serve`, such as `--splitway=--mtu=9000`; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

impl Settings {
    fn load(&self, server: std::net::SocketAddr) -> load::Settings {
        load::Settings {
            server,
            connections: self.connections,
            files: self.files,
            file_bytes: self.file_bytes,
            seconds: self.rounds.seconds(),
            discard: self.discard,
            once: false,
            certificate: None,
        }
    }
}

/// Set in the process that runs within the namespaces.
const INSIDE: &str = "SPLITWAY_BENCH_INSIDE";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.part {
        Some(Part::Load(settings)) => load::generate(&settings),
        Some(Part::Handshakes(settings)) => tls::handshakes::generate(&settings),
        Some(Part::Fetch(settings)) => goodput::fetch::fetch(&settings),
        _ if std::env::var_os(INSIDE).is_none() => return enter(),
        Some(Part::Disk(settings)) => disk::measure(&settings),
        Some(Part::Figure10(settings)) => figure10::measure(&settings),
        Some(Part::Workers(settings)) => workers::measure(&settings),
        Some(Part::Tls(settings)) => tls::measure(&settings),
        Some(Part::Link(settings)) => goodput::measure(&settings),
        None => measure(&arguments.settings),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("splitway-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program again in namespaces that take everything with them when they end.
fn enter() -> ExitCode {
    let entered = std::env::current_exe().and_then(|executable| {
        namespace::command(Privilege::AsIs, executable)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .status()
    });
    match entered {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("splitway-bench: unshare: {error}; install util-linux");
            ExitCode::FAILURE
        }
    }
}

/// What every measurement needs: the program, files to serve, and a place for the results.
pub(crate) struct Ground {
    splitway: PathBuf,
    output: PathBuf,
    site: Site,
    _directory: tempfile::TempDir,
}

impl Ground {
    /// Makes so many files of this size.
    pub(crate) fn prepare(files: usize, file_bytes: u64) -> Result<Ground> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores < 2 {
            return Err(Failure::new(
                "servers and client need a core each, and there is only one",
            ));
        }
        let own = std::env::current_exe().context(|| "finding this program".into())?;
        // target/release/splitway-bench
        let beside = own.parent().expect("an absolute path");
        let splitway = beside.join("splitway");
        if !splitway.exists() {
            return Err(Failure::new(format!(
                "{} is not there; `make bench` builds it",
                splitway.display()
            )));
        }
        let output = beside.parent().unwrap_or(beside).join("bench");
        std::fs::create_dir_all(&output).context(|| format!("creating {}", output.display()))?;
        let directory = tempfile::tempdir_in(&output).context(|| "creating a directory".into())?;
        let site = Site::at(directory.path().to_owned())?;
        for index in 0..files {
            site.file(&load::file_name(index), file_bytes)?;
        }
        run_tool(&mut tool("ip link set lo up"))?;
        Ok(Ground {
            splitway,
            output,
            site,
            _directory: directory,
        })
    }
}

fn measure(settings: &Settings) -> Result<()> {
    let ground = Ground::prepare(settings.files, settings.file_bytes)?;
    let mut splitway = start_splitway(&ground, &settings.splitway, settings.steer_requests)?;
    let nginx = start_nginx(&ground, &splitway, settings.steer_requests, None)?;
    let servers = [
        splitway_server(&splitway),
        Server::new("nginx", nginx.address(), [("worker", nginx.worker()?)]),
    ];

    let mut report = Report::new(settings.clone());
    for server in &servers {
        // Caches warm up, windows open, and the way is seen to be clear.
        run::run(
            server,
            &load::Settings {
                seconds: 1,
                ..settings.load(server.address)
            },
        )?;
    }
    for round in 0..settings.rounds.count() {
        // The order turns with each round, so that neither server always comes after the other.
        for place in 0..servers.len() {
            let server = &servers[(place + round) % servers.len()];
            let run = run::run(server, &settings.load(server.address))?;
            eprintln!("{run}");
            report.add(run);
        }
    }
    for server in &servers {
        let load = load::Settings {
            connections: MEMORY_CONNECTIONS,
            seconds: 2,
            ..settings.load(server.address)
        };
        report.add_memory(run::run(server, &load)?);
    }
    splitway.end_with(Signal::TERM)?;
    eprintln!(
        "\nSplitway's own account of all these runs:\n{}",
        splitway.output().join("\n")
    );
    report.publish(&ground.output)
}

/// nginx on a link like Splitway's.
fn start_nginx(
    ground: &Ground,
    splitway: &Splitway,
    steer_requests: bool,
    identity: Option<&Identity>,
) -> Result<Nginx> {
    let stack_device = stack_device(splitway)?;
    let ends = [
        Device {
            namespace: None,
            name: LINK,
        },
        stack_end(splitway, &stack_device),
    ];
    let site = &ground.site;
    Nginx::start(site.root(), site.outside(), ends, steer_requests, identity)
}

/// Splitway's two processes.
fn splitway_server(splitway: &Splitway) -> Server {
    Server::new(
        "splitway",
        HTTP_V4,
        [("host", splitway.host()), ("nic", splitway.nic())],
    )
}

/// Splitway on the servers' core, with the kernel's work where it belongs.
fn start_splitway<A: AsRef<OsStr>>(
    ground: &Ground,
    arguments: &[A],
    steer_requests: bool,
) -> Result<Splitway> {
    let splitway = start_as(pinned(SERVER_CORE, &ground.splitway), ground, arguments)?;
    if steer_requests {
        link::steer(stack_end(&splitway, &stack_device(&splitway)?), SERVER_CORE)?;
    }
    Ok(splitway)
}

/// Splitway on whatever core the kernel gives each of its threads.
fn start_splitway_anywhere<A: AsRef<OsStr>>(ground: &Ground, arguments: &[A]) -> Result<Splitway> {
    start_as(Command::new(&ground.splitway), ground, arguments)
}

/// Splitway by this command, with the kernel's work for the client where that is.
fn start_as<A: AsRef<OsStr>>(
    mut command: Command,
    ground: &Ground,
    arguments: &[A],
) -> Result<Splitway> {
    command.arg("serve").arg(ground.site.root()).args(arguments);
    let splitway = Splitway::start(&mut command)?;
    link::steer(
        Device {
            namespace: None,
            name: LINK,
        },
        CLIENT_CORE,
    )?;
    Ok(splitway)
}

/// The name of the stack's end of the link.
fn stack_device(splitway: &Splitway) -> Result<String> {
    let mut devices = namespace::devices_of(splitway.host())?;
    devices
        .pop()
        .ok_or_else(|| Failure::new("the host process has no device"))
}

fn stack_end<'a>(splitway: &Splitway, name: &'a str) -> Device<'a> {
    Device {
        namespace: Some(splitway.host()),
        name,
    }
}

/// A command that runs on one core.
fn pinned(core: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", &core.to_string()])
        .arg(PathBuf::from(program));
    command
}
