//! Measures Splitway against nginx and lighttpd, on one machine.
//!
//! Each server has a namespace of its own and a veth pair to the namespace of the client, which is
//! a load generator in a process of its own. Servers run on core 0, the client on core 1. Runs
//! against the servers take turns within one invocation; tables report medians and their spread.
//!
//! | Folder | Contents |
//! |---|---|
//! | [`suites`] | the benchmarks, by name |
//! | [`paper`] | IO-TCP's published results, and the same figures and tables on this machine |
//! | [`servers`] | Splitway and its peers, their files, links and cores |
//! | [`load`] | the load generator, and another one to compare with |
//! | `measure` | rounds, runs and their cost; results, tables, plots, pages |
#![forbid(unsafe_code)]

mod load;
mod measure;
mod paper;
mod servers;
mod suites;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use testbed::namespace::{self, Privilege};

use crate::measure::plan::Plan;

/// Core of the servers, and of the kernel's receive work for them.
const SERVER_CORE: usize = 0;

/// Longest time without any received data before the run fails.
const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Core of the client, and of the kernel's receive work for it.
const CLIENT_CORE: usize = 1;

/// Measures Splitway against nginx and lighttpd on links of the same kind, each with one worker:
/// CPU time per gigabyte of each process, throughput, latency, memory. Needs two cores, nginx and
/// lighttpd.
///
/// Several benchmarks may be named, and run one after the other; without a name, all run but
/// `link`, `load-mix`, `programs`, `quic-link` and `soak`.
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

/// The benchmarks, and the programs that they start.
#[derive(Subcommand, Debug)]
enum Benchmark {
    /// The targets, all in one run: the measurement of each, and whether it is met.
    Targets(suites::targets::Settings),
    /// Files in memory, against nginx and lighttpd.
    Plain(suites::plain::Settings),
    /// Files that are not in memory, against nginx with and without the page cache.
    Disk(suites::disk::Settings),
    /// Files in memory with one NIC worker and with two, on any core.
    Workers(suites::workers::Settings),
    /// Files over TLS, and handshakes, against nginx and lighttpd.
    Tls(suites::tls::Settings),
    /// Files over HTTP/2, against nginx and Splitway's HTTP/1.1 over TLS.
    Http2(suites::http2::Settings),
    /// Addresses shared with the kernel, against a link of Splitway's own and against DNAT.
    Share(suites::share::Settings),
    /// nginx and lighttpd on one core, over file sizes (IO-TCP, figure 2).
    Figure2(paper::figures::Settings),
    /// Where CPU time goes, by function (IO-TCP, table 1). Needs root and `perf`.
    Table1(paper::table1::Settings),
    /// The benefit of a second core (IO-TCP, table 2).
    Table2(paper::table2::Settings),
    /// Throughput over cores, plain and TLS (IO-TCP, figure 7).
    Figure7(paper::figures::Settings),
    /// Throughput over file sizes (IO-TCP, figure 8a).
    #[command(name = "figure8a")]
    Figure8a(paper::figures::Settings),
    /// Throughput over file sizes, TLS (IO-TCP, figure 8b).
    #[command(name = "figure8b")]
    Figure8b(paper::figures::Settings),
    /// TLS throughput over connections (IO-TCP, figure 9).
    Figure9(paper::figures::Settings),
    /// The benefit of the echo and the timestamp correction with a slow disk (IO-TCP, figure 10).
    #[command(aliases = ["figure10a", "figure10b"])]
    Figure10(paper::figure10::Settings),
    /// Throughput over connections, files of 300 KB (IO-TCP, figure 11a).
    #[command(name = "figure11a")]
    Figure11a(paper::figures::Settings),
    /// Throughput over connections, files of 10 KB (IO-TCP, figure 11b).
    #[command(name = "figure11b")]
    Figure11b(paper::figures::Settings),
    /// Throughput over additional delay of the control plane (IO-TCP, figure 12b).
    #[command(name = "figure12b")]
    Figure12b(paper::figures::Settings),
    /// Latency of single files from an idle server (IO-TCP, §5.4).
    Latency(suites::latency::Settings),
    /// Fairness between flows through one queue, against the kernel's TCP (IO-TCP, §5.2).
    Fairness(suites::goodput::FairnessSettings),
    /// Goodput over emulated links, against the kernel's TCP.
    Link(suites::goodput::Settings),
    /// Connections and throughput that one host core controls, with a stub NIC stack.
    Ceiling(suites::ceiling::Settings),
    /// Share of a core needed to saturate disks, simulated (IO-TCP, figure 3).
    Figure3(suites::model::Settings),
    /// Lookups of connections beside disk I/O, simulated (IO-TCP, figure 12a).
    #[command(name = "figure12a")]
    Figure12a(suites::model::Settings),
    /// Instructions per cycle of the control plane, simulated (IO-TCP, table 4).
    Table4(suites::model::Settings),
    /// Host cores and other hardware for 100 to 800 Gbit/s, simulated (IO-TCP, figure 7).
    Cores(suites::model::Settings),
    /// All simulations: `figure3`, `figure12a`, `table4`, `cores`.
    Model(suites::model::Settings),
    /// Runs a host stack for `ceiling`.
    #[command(hide = true)]
    CeilingHost(suites::ceiling::host_process::Settings),
    /// Runs the host stack and its surroundings in one thread.
    #[command(hide = true)]
    CeilingLockstep(suites::ceiling::lockstep::Settings),
    /// Thousands of connections of different kinds, with a reload of the configuration every
    /// second, against nginx.
    LoadMix(suites::load_mix::Settings),
    /// Millions of short connections, aborts, reloads and kills of the NIC process: the resources
    /// of each process before and after.
    Soak(suites::soak::Settings),
    /// Programs on split sockets, against the kernel's sockets and the server in the host process.
    Sockets(suites::sockets::Settings),
    /// Unmodified programs on split sockets, against the same on the kernel's: nginx, lighttpd,
    /// redis.
    Programs(suites::programs::Settings),
    /// `splitway proxy`, spliced and not, against HAProxy and nginx, and HAProxy on split sockets.
    Proxy(suites::proxy::Settings),
    /// Short connections of redis and of a server of our own, with setup and teardown offloaded or
    /// not, against the kernel's sockets.
    Offload(suites::offload::Settings),
    /// Files over HTTP/3, against servers of plain quinn, ngtcp2, quic-go and aioquic, and Caddy.
    Quic(suites::quic::Settings),
    /// Ways to send datagrams, with and without sealing, and the cost of sealing alone.
    QuicEngines(suites::quic_engines::Settings),
    /// Goodput of HTTP/3 over emulated links, against plain quinn and Splitway's TCP.
    QuicLink(suites::quic::link::Settings),
    /// Serves files with plain quinn.
    #[command(hide = true)]
    QuicServer(suites::quic::server::Settings),
    /// Generates load on a server of HTTP/3.
    #[command(hide = true)]
    QuicLoad(suites::quic::client::Settings),
    /// Fetches files over HTTP/3 and an emulated link.
    #[command(hide = true)]
    QuicFetch(suites::quic::fetch::Settings),
    /// Holds idle connections.
    #[command(hide = true)]
    IdleConnections(suites::quic::idle::Settings),
    /// Runs the server program of `sockets`.
    #[command(hide = true)]
    SocketsServer(suites::sockets::server::Settings),
    /// Generates load on an echo server.
    #[command(hide = true)]
    EchoLoad(suites::sockets::client::Settings),
    /// Generates load.
    #[command(hide = true)]
    Load(load::Settings),
    /// Generates the load of `load-mix`.
    #[command(hide = true)]
    LoadMixClient(suites::load_mix::client::Settings),
    /// Runs h2load on a server.
    #[command(hide = true)]
    Http2Load(suites::http2::load::Settings),
    /// Does TLS handshakes.
    #[command(hide = true)]
    Handshakes(suites::tls::handshakes::Settings),
    /// Fetches files over an emulated link.
    #[command(hide = true)]
    Fetch(suites::goodput::fetch::Settings),
}

/// Set in the process that runs within the namespaces: whether it has privileges over the machine.
const INSIDE: &str = "SPLITWAY_BENCH_INSIDE";
const PRIVILEGED: &str = "privileged";
const UNPRIVILEGED: &str = "unprivileged";

/// Reports whether machine-wide settings may be changed. The user id does not decide: within a user
/// namespace every process is root.
fn is_privileged() -> bool {
    std::env::var_os(INSIDE).is_none_or(|inside| inside == PRIVILEGED)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (names, options) = suites::all::split(&words);
    let asks = ["-h", "--help", "-V", "--version"];
    if names.len() != 1 && !options.iter().any(|option| asks.contains(&option.as_str())) {
        return suites::all::run(names, options);
    }
    let arguments = Arguments::parse();
    let done = match arguments.benchmark {
        Benchmark::Load(settings) => load::generate(&settings),
        Benchmark::LoadMixClient(settings) => suites::load_mix::client::generate(&settings),
        Benchmark::SocketsServer(settings) => suites::sockets::server::serve(&settings),
        Benchmark::EchoLoad(settings) => suites::sockets::client::generate(&settings),
        Benchmark::QuicServer(settings) => suites::quic::server::serve(&settings),
        Benchmark::QuicLoad(settings) => suites::quic::client::generate(&settings),
        Benchmark::QuicFetch(settings) => suites::quic::fetch::fetch(&settings),
        Benchmark::IdleConnections(settings) => suites::quic::idle::hold(&settings),
        Benchmark::Handshakes(settings) => suites::tls::handshakes::generate(&settings),
        Benchmark::Http2Load(settings) => suites::http2::load::generate(&settings),
        Benchmark::Fetch(settings) => suites::goodput::fetch::fetch(&settings),
        Benchmark::Ceiling(settings) => suites::ceiling::measure(&settings),
        Benchmark::Figure3(settings) => {
            suites::model::draw(&[suites::model::Name::Figure3], &settings)
        }
        Benchmark::Figure12a(settings) => {
            suites::model::draw(&[suites::model::Name::Figure12a], &settings)
        }
        Benchmark::Table4(settings) => {
            suites::model::draw(&[suites::model::Name::Table4], &settings)
        }
        Benchmark::Cores(settings) => suites::model::draw(&[suites::model::Name::Cores], &settings),
        Benchmark::Model(settings) => suites::model::draw(&suites::model::Name::ALL, &settings),
        Benchmark::CeilingHost(settings) => suites::ceiling::host_process::serve(&settings),
        Benchmark::CeilingLockstep(settings) => suites::ceiling::lockstep::count(&settings),
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
    measure::perf::show_events();
    match benchmark {
        Benchmark::Targets(settings) => suites::targets::measure(&settings),
        Benchmark::Plain(settings) => suites::plain::measure(&settings),
        Benchmark::Disk(settings) => suites::disk::measure(&settings),
        Benchmark::Workers(settings) => suites::workers::measure(&settings),
        Benchmark::Tls(settings) => suites::tls::measure(&settings),
        Benchmark::Http2(settings) => suites::http2::measure(&settings),
        Benchmark::Share(settings) => suites::share::measure(&settings),
        Benchmark::Figure10(settings) => paper::figure10::measure(&settings),
        Benchmark::Figure2(settings) => {
            paper::figures::measure(paper::figures::Name::Figure2, &settings)
        }
        Benchmark::Figure7(settings) => {
            paper::figures::measure(paper::figures::Name::Figure7, &settings)
        }
        Benchmark::Figure8a(settings) => {
            paper::figures::measure(paper::figures::Name::Figure8a, &settings)
        }
        Benchmark::Figure8b(settings) => {
            paper::figures::measure(paper::figures::Name::Figure8b, &settings)
        }
        Benchmark::Figure9(settings) => {
            paper::figures::measure(paper::figures::Name::Figure9, &settings)
        }
        Benchmark::Figure11a(settings) => {
            paper::figures::measure(paper::figures::Name::Figure11a, &settings)
        }
        Benchmark::Figure11b(settings) => {
            paper::figures::measure(paper::figures::Name::Figure11b, &settings)
        }
        Benchmark::Figure12b(settings) => {
            paper::figures::measure(paper::figures::Name::Figure12b, &settings)
        }
        Benchmark::Table1(settings) => paper::table1::measure(&settings),
        Benchmark::Table2(settings) => paper::table2::measure(&settings),
        Benchmark::Latency(settings) => suites::latency::measure(&settings),
        Benchmark::LoadMix(settings) => suites::load_mix::measure(&settings),
        Benchmark::Soak(settings) => suites::soak::measure(&settings),
        Benchmark::Sockets(settings) => suites::sockets::measure(&settings),
        Benchmark::Programs(settings) => suites::programs::measure(&settings),
        Benchmark::Proxy(settings) => suites::proxy::measure(&settings),
        Benchmark::Offload(settings) => suites::offload::measure(&settings),
        Benchmark::Quic(settings) => suites::quic::measure(&settings),
        Benchmark::QuicEngines(settings) => suites::quic_engines::measure(&settings),
        Benchmark::QuicLink(settings) => suites::quic::link::measure(&settings),
        Benchmark::Fairness(settings) => suites::goodput::measure(&settings.settings()),
        Benchmark::Link(settings) => suites::goodput::measure(&settings),
        Benchmark::Load(_)
        | Benchmark::LoadMixClient(_)
        | Benchmark::SocketsServer(_)
        | Benchmark::EchoLoad(_)
        | Benchmark::QuicServer(_)
        | Benchmark::QuicLoad(_)
        | Benchmark::QuicFetch(_)
        | Benchmark::IdleConnections(_)
        | Benchmark::Handshakes(_)
        | Benchmark::Http2Load(_)
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

/// Returns the planned duration of a benchmark, without starting a measurement.
fn plan(benchmark: &Benchmark) -> Plan {
    use paper::figures::Name;
    match benchmark {
        Benchmark::Targets(settings) => suites::targets::plan(settings),
        Benchmark::Plain(settings) => suites::plain::plan(settings),
        Benchmark::Disk(settings) => suites::disk::plan(settings),
        Benchmark::Workers(settings) => suites::workers::plan(settings),
        Benchmark::Tls(settings) => suites::tls::plan(settings),
        Benchmark::Http2(settings) => suites::http2::plan(settings),
        Benchmark::Share(settings) => suites::share::plan(settings),
        Benchmark::Figure10(settings) => paper::figure10::plan(settings),
        Benchmark::Figure2(settings) => paper::figures::plan(Name::Figure2, settings),
        Benchmark::Figure7(settings) => paper::figures::plan(Name::Figure7, settings),
        Benchmark::Figure8a(settings) => paper::figures::plan(Name::Figure8a, settings),
        Benchmark::Figure8b(settings) => paper::figures::plan(Name::Figure8b, settings),
        Benchmark::Figure9(settings) => paper::figures::plan(Name::Figure9, settings),
        Benchmark::Figure11a(settings) => paper::figures::plan(Name::Figure11a, settings),
        Benchmark::Figure11b(settings) => paper::figures::plan(Name::Figure11b, settings),
        Benchmark::Figure12b(settings) => paper::figures::plan(Name::Figure12b, settings),
        Benchmark::Table1(settings) => paper::table1::plan(settings),
        Benchmark::Table2(settings) => paper::table2::plan(settings),
        Benchmark::Latency(settings) => suites::latency::plan(settings),
        Benchmark::LoadMix(settings) => suites::load_mix::plan(settings),
        Benchmark::Soak(settings) => suites::soak::plan(settings),
        Benchmark::Sockets(settings) => suites::sockets::plan(settings),
        Benchmark::Programs(settings) => suites::programs::plan(settings),
        Benchmark::Proxy(settings) => suites::proxy::plan(settings),
        Benchmark::Offload(settings) => suites::offload::plan(settings),
        Benchmark::Quic(settings) => suites::quic::plan(settings),
        Benchmark::QuicEngines(settings) => suites::quic_engines::plan(settings),
        Benchmark::QuicLink(settings) => suites::quic::link::plan(settings),
        Benchmark::Fairness(settings) => suites::goodput::plan(&settings.settings()),
        Benchmark::Link(settings) => suites::goodput::plan(settings),
        Benchmark::Ceiling(settings) => suites::ceiling::plan(settings),
        Benchmark::Model(settings) => suites::model::plan(&suites::model::Name::ALL, settings),
        Benchmark::Figure3(settings) => {
            suites::model::plan(&[suites::model::Name::Figure3], settings)
        }
        Benchmark::Figure12a(settings) => {
            suites::model::plan(&[suites::model::Name::Figure12a], settings)
        }
        Benchmark::Table4(settings) => {
            suites::model::plan(&[suites::model::Name::Table4], settings)
        }
        Benchmark::Cores(settings) => suites::model::plan(&[suites::model::Name::Cores], settings),
        Benchmark::Load(_)
        | Benchmark::LoadMixClient(_)
        | Benchmark::SocketsServer(_)
        | Benchmark::EchoLoad(_)
        | Benchmark::QuicServer(_)
        | Benchmark::QuicLoad(_)
        | Benchmark::QuicFetch(_)
        | Benchmark::IdleConnections(_)
        | Benchmark::Handshakes(_)
        | Benchmark::Http2Load(_)
        | Benchmark::Fetch(_)
        | Benchmark::CeilingHost(_)
        | Benchmark::CeilingLockstep(_) => Plan::default(),
    }
}

/// Runs this program again in namespaces that end with all their processes.
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
