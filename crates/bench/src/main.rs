//! Measures Splitway against nginx and lighttpd, on one machine.
//!
//! Each server has a namespace of its own and a veth pair to the namespace of the client, which is
//! a load generator in a process of its own. Servers run on core 0, the client on core 1. Runs
//! against the servers take turns within one invocation; what is reported are medians and their
//! spread.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`results`] | what a benchmark has come to: samples, tables, plots, JSON |
//! | [`paper`] | what IO-TCP's authors have published |
//! | [`bed`] | files, servers, links |
//! | [`link`] | veth pairs, and on which core the kernel does their receive work |
//! | [`nginx`], [`lighttpd`] | the peers |
//! | [`load`] | the load generator |
//! | [`cross_check`] | another one, to compare with |
//! | `cores` | which cores servers have |
//! | [`rounds`] | how often, and for how long |
//! | [`run`] | one run: load on a server, and what that cost |
//! | [`perf`] | system calls, and where time goes |
//! | `spread`, [`table`] | medians with their spread; columns that several tables have |
//! | [`publish`] | where results go |
//! | [`plain`] | files in memory |
//! | [`disk`] | files that are not in memory |
//! | [`workers`] | one NIC worker against several |
//! | [`tls`] | files over TLS, and handshakes |
//! | [`targets`] | the targets of the project, all in one run |
//! | [`figures`] | IO-TCP's figures that are a throughput over something |
//! | [`table1`] | where CPU time goes |
//! | [`table2`] | what a second core is good for |
//! | [`all`] | several of these |
//! | [`index`] | the page of all that was measured together |
//! | `plan` | how long it takes |
//! | [`ceiling`] | how much one host core controls |
//! | [`model`] | simulated: hardware that is not here, and 100 to 800 Gbit/s |
//! | [`latency`] | one client of an idle server |
//! | [`figure10`] | the split's corrections, with and without: figure 10 of IO-TCP |
//! | [`load_mix`] | everything at once: sizes, ranges, slow readers, clients that go away, reloads |
//! | [`soak`] | whether anything is left behind: millions of connections, reloads, deaths |
//! | [`goodput`] | goodput and fairness over emulated links |
#![forbid(unsafe_code)]

mod all;
mod bed;
mod ceiling;
mod cores;
mod cross_check;
mod disk;
mod figure10;
mod figures;
mod goodput;
mod index;
mod latency;
mod lighttpd;
mod link;
mod load;
mod load_mix;
mod model;
mod nginx;
mod paper;
mod perf;
mod plain;
mod plan;
mod publish;
mod results;
mod rounds;
mod run;
mod soak;
mod spread;
mod table;
mod table1;
mod table2;
mod targets;
mod tls;
mod workers;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use testbed::namespace::{self, Privilege};

use crate::plan::Plan;

/// Core of the servers, and of the kernel's receive work for them.
const SERVER_CORE: usize = 0;

/// How long no data at all may arrive before it is a failure.
const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Core of the client, and of the kernel's receive work for it.
const CLIENT_CORE: usize = 1;

/// Measures Splitway against nginx and lighttpd on links of the same kind, each with one worker:
/// CPU time per gigabyte of each process, throughput, latency, memory. Needs two cores, nginx and
/// lighttpd.
///
/// Several benchmarks may be named, and are run one after the other; without a name all are, but
/// `link`, `load-mix` and `soak`.
#[derive(Parser, Debug)]
#[command(
    name = "splitway-bench",
    version,
    override_usage = "splitway-bench [BENCHMARK]... [OPTION]..."
)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

/// What there is to measure, and what a measurement starts of itself.
#[derive(Subcommand, Debug)]
enum Benchmark {
    /// The targets, all in one run: what is measured of each, and whether it is met.
    Targets(targets::Settings),
    /// Files in memory, against nginx and lighttpd.
    Plain(plain::Settings),
    /// Files that are not in memory, against nginx with and without the page cache.
    Disk(disk::Settings),
    /// Files in memory with one NIC worker and with two, on any core.
    Workers(workers::Settings),
    /// Files over TLS, and handshakes, against nginx and lighttpd.
    Tls(tls::Settings),
    /// nginx and lighttpd on one core, over file sizes (IO-TCP, figure 2).
    Figure2(figures::Settings),
    /// Where CPU time goes, by function (IO-TCP, table 1). Needs root and `perf`.
    Table1(table1::Settings),
    /// What a second core is good for (IO-TCP, table 2).
    Table2(table2::Settings),
    /// Throughput over cores, plain and TLS (IO-TCP, figure 7).
    Figure7(figures::Settings),
    /// Throughput over file sizes (IO-TCP, figure 8a).
    #[command(name = "figure8a")]
    Figure8a(figures::Settings),
    /// Throughput over file sizes, TLS (IO-TCP, figure 8b).
    #[command(name = "figure8b")]
    Figure8b(figures::Settings),
    /// TLS throughput over connections (IO-TCP, figure 9).
    Figure9(figures::Settings),
    /// What the echo and the timestamp correction are good for, with a slow disk (IO-TCP, figure
    /// 10).
    #[command(aliases = ["figure10a", "figure10b"])]
    Figure10(figure10::Settings),
    /// Throughput over connections, files of 300 KB (IO-TCP, figure 11a).
    #[command(name = "figure11a")]
    Figure11a(figures::Settings),
    /// Throughput over connections, files of 10 KB (IO-TCP, figure 11b).
    #[command(name = "figure11b")]
    Figure11b(figures::Settings),
    /// Throughput over additional delay of the control plane (IO-TCP, figure 12b).
    #[command(name = "figure12b")]
    Figure12b(figures::Settings),
    /// Latency of single files from an idle server (IO-TCP, §5.4).
    Latency(latency::Settings),
    /// Fairness between flows through one queue, against the kernel's TCP (IO-TCP, §5.2).
    Fairness(goodput::FairnessSettings),
    /// Goodput over emulated links, against the kernel's TCP.
    Link(goodput::Settings),
    /// Measures how much one host core controls, with a stub in the NIC stack's place.
    Ceiling(ceiling::Settings),
    /// What part of a core it takes to saturate disks, simulated (IO-TCP, figure 3).
    Figure3(model::Settings),
    /// Lookups of connections beside disk I/O, simulated (IO-TCP, figure 12a).
    #[command(name = "figure12a")]
    Figure12a(model::Settings),
    /// Instructions per cycle of the control plane, simulated (IO-TCP, table 4).
    Table4(model::Settings),
    /// Host cores, and what else it takes to reach 100 to 800 Gbit/s, simulated (IO-TCP, figure 7).
    Cores(model::Settings),
    /// All that is simulated: `figure3`, `figure12a`, `table4`, `cores`.
    Model(model::Settings),
    /// Runs a host stack for `ceiling`.
    #[command(hide = true)]
    CeilingHost(ceiling::host_process::Settings),
    /// Runs that and what it has around it in one thread.
    #[command(hide = true)]
    CeilingLockstep(ceiling::lockstep::Settings),
    /// Thousands of connections of different kinds while the configuration is read again every
    /// second, against nginx.
    LoadMix(load_mix::Settings),
    /// Millions of short connections, aborts, reloads and deaths of the NIC process: what each
    /// process holds before and after.
    Soak(soak::Settings),
    /// Generates load.
    #[command(hide = true)]
    Load(load::Settings),
    /// Generates that of `load-mix`.
    #[command(hide = true)]
    LoadMixClient(load_mix::client::Settings),
    /// Shakes hands.
    #[command(hide = true)]
    Handshakes(tls::handshakes::Settings),
    /// Fetches files over an emulated link.
    #[command(hide = true)]
    Fetch(goodput::fetch::Settings),
}

/// Set in the process that runs within the namespaces: whether it has privileges over the machine.
const INSIDE: &str = "SPLITWAY_BENCH_INSIDE";
const PRIVILEGED: &str = "privileged";
const UNPRIVILEGED: &str = "unprivileged";

/// Whether what the machine has only one of may be changed. Within a user namespace everybody is
/// root.
fn is_privileged() -> bool {
    std::env::var_os(INSIDE).is_none_or(|inside| inside == PRIVILEGED)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (names, options) = all::split(&words);
    let asks = ["-h", "--help", "-V", "--version"];
    if names.len() != 1 && !options.iter().any(|option| asks.contains(&option.as_str())) {
        return all::run(names, options);
    }
    let arguments = Arguments::parse();
    let done = match arguments.benchmark {
        Benchmark::Load(settings) => load::generate(&settings),
        Benchmark::LoadMixClient(settings) => load_mix::client::generate(&settings),
        Benchmark::Handshakes(settings) => tls::handshakes::generate(&settings),
        Benchmark::Fetch(settings) => goodput::fetch::fetch(&settings),
        Benchmark::Ceiling(settings) => ceiling::measure(&settings),
        Benchmark::Figure3(settings) => model::draw(&[model::Name::Figure3], &settings),
        Benchmark::Figure12a(settings) => model::draw(&[model::Name::Figure12a], &settings),
        Benchmark::Table4(settings) => model::draw(&[model::Name::Table4], &settings),
        Benchmark::Cores(settings) => model::draw(&[model::Name::Cores], &settings),
        Benchmark::Model(settings) => model::draw(&model::Name::ALL, &settings),
        Benchmark::CeilingHost(settings) => ceiling::host_process::serve(&settings),
        Benchmark::CeilingLockstep(settings) => ceiling::lockstep::count(&settings),
        _ if std::env::var_os(INSIDE).is_none() => return enter(),
        benchmark => measure(benchmark),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("splitway-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn measure(benchmark: Benchmark) -> testbed::Result<()> {
    perf::show_events();
    match benchmark {
        Benchmark::Targets(settings) => targets::measure(&settings),
        Benchmark::Plain(settings) => plain::measure(&settings),
        Benchmark::Disk(settings) => disk::measure(&settings),
        Benchmark::Workers(settings) => workers::measure(&settings),
        Benchmark::Tls(settings) => tls::measure(&settings),
        Benchmark::Figure10(settings) => figure10::measure(&settings),
        Benchmark::Figure2(settings) => figures::measure(figures::Name::Figure2, &settings),
        Benchmark::Figure7(settings) => figures::measure(figures::Name::Figure7, &settings),
        Benchmark::Figure8a(settings) => figures::measure(figures::Name::Figure8a, &settings),
        Benchmark::Figure8b(settings) => figures::measure(figures::Name::Figure8b, &settings),
        Benchmark::Figure9(settings) => figures::measure(figures::Name::Figure9, &settings),
        Benchmark::Figure11a(settings) => figures::measure(figures::Name::Figure11a, &settings),
        Benchmark::Figure11b(settings) => figures::measure(figures::Name::Figure11b, &settings),
        Benchmark::Figure12b(settings) => figures::measure(figures::Name::Figure12b, &settings),
        Benchmark::Table1(settings) => table1::measure(&settings),
        Benchmark::Table2(settings) => table2::measure(&settings),
        Benchmark::Latency(settings) => latency::measure(&settings),
        Benchmark::LoadMix(settings) => load_mix::measure(&settings),
        Benchmark::Soak(settings) => soak::measure(&settings),
        Benchmark::Fairness(settings) => goodput::measure(&settings.settings()),
        Benchmark::Link(settings) => goodput::measure(&settings),
        Benchmark::Load(_)
        | Benchmark::LoadMixClient(_)
        | Benchmark::Handshakes(_)
        | Benchmark::Fetch(_)
        | Benchmark::Ceiling(_)
        | Benchmark::Figure3(_)
        | Benchmark::Figure12a(_)
        | Benchmark::Table4(_)
        | Benchmark::Cores(_)
        | Benchmark::Model(_)
        | Benchmark::CeilingHost(_)
        | Benchmark::CeilingLockstep(_) => {
            unreachable!("they need no namespaces")
        }
    }
}

/// How long a benchmark takes; nothing of what a measurement starts of itself.
fn plan(benchmark: &Benchmark) -> Plan {
    use figures::Name;
    match benchmark {
        Benchmark::Targets(settings) => targets::plan(settings),
        Benchmark::Plain(settings) => plain::plan(settings),
        Benchmark::Disk(settings) => disk::plan(settings),
        Benchmark::Workers(settings) => workers::plan(settings),
        Benchmark::Tls(settings) => tls::plan(settings),
        Benchmark::Figure10(settings) => figure10::plan(settings),
        Benchmark::Figure2(settings) => figures::plan(Name::Figure2, settings),
        Benchmark::Figure7(settings) => figures::plan(Name::Figure7, settings),
        Benchmark::Figure8a(settings) => figures::plan(Name::Figure8a, settings),
        Benchmark::Figure8b(settings) => figures::plan(Name::Figure8b, settings),
        Benchmark::Figure9(settings) => figures::plan(Name::Figure9, settings),
        Benchmark::Figure11a(settings) => figures::plan(Name::Figure11a, settings),
        Benchmark::Figure11b(settings) => figures::plan(Name::Figure11b, settings),
        Benchmark::Figure12b(settings) => figures::plan(Name::Figure12b, settings),
        Benchmark::Table1(settings) => table1::plan(settings),
        Benchmark::Table2(settings) => table2::plan(settings),
        Benchmark::Latency(settings) => latency::plan(settings),
        Benchmark::LoadMix(settings) => load_mix::plan(settings),
        Benchmark::Soak(settings) => soak::plan(settings),
        Benchmark::Fairness(settings) => goodput::plan(&settings.settings()),
        Benchmark::Link(settings) => goodput::plan(settings),
        Benchmark::Ceiling(settings) => ceiling::plan(settings),
        Benchmark::Model(settings) => model::plan(&model::Name::ALL, settings),
        Benchmark::Figure3(settings) => model::plan(&[model::Name::Figure3], settings),
        Benchmark::Figure12a(settings) => model::plan(&[model::Name::Figure12a], settings),
        Benchmark::Table4(settings) => model::plan(&[model::Name::Table4], settings),
        Benchmark::Cores(settings) => model::plan(&[model::Name::Cores], settings),
        Benchmark::Load(_)
        | Benchmark::LoadMixClient(_)
        | Benchmark::Handshakes(_)
        | Benchmark::Fetch(_)
        | Benchmark::CeilingHost(_)
        | Benchmark::CeilingLockstep(_) => Plan::default(),
    }
}

/// Runs this program again in namespaces that take everything with them when they end.
fn enter() -> ExitCode {
    let privileges = if rustix::process::geteuid().is_root() {
        PRIVILEGED
    } else {
        UNPRIVILEGED
    };
    let entered = std::env::current_exe().and_then(|executable| {
        namespace::command(Privilege::AsIs, executable)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, privileges)
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
