//! `splitway-bench http2`: files over HTTP/2 and TLS 1.3 with AES-256-GCM, against nginx and
//! against HTTP/1.1 of the same Splitway, and memory of idle connections.
//!
//! All use the same certificate, and take turns in each round. The client is h2load, which decrypts
//! all that it receives.
//!
//! | Module | Contents |
//! |---|---|
//! | [`load`] | h2load, as a load generator |

pub(crate) mod load;

use serde::Serialize;
use testbed::{Failure, Result};

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::measure::table;
use crate::servers::server_set::{NGINX, SPLITWAY, ServerSet, Wanted, Workspace};
use crate::suites::quic::idle;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Number of files of each size, requested in turn
    #[arg(long, default_value_t = 100)]
    files: usize,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// Splitway with HTTP/1.1 over TLS.
const OWN_HTTP1: &str = "splitway, HTTP/1.1";

/// A load: files of a size, on streams of connections.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// The part of the results.
    part: &'static str,
    folder: &'static str,
    file_bytes: u64,
    connections: usize,
    /// Requests at a time on each connection.
    streams: usize,
}

const LARGE: Load = Load {
    part: "files of 500 KB",
    folder: "large",
    file_bytes: 500_000,
    connections: 16,
    streams: 4,
};

const SMALL: Load = Load {
    part: "files of 10 KB",
    folder: "small",
    file_bytes: 10_000,
    connections: 16,
    streams: 4,
};

const STREAMS: Load = Load {
    part: "64 streams of 1 MB",
    folder: "streams",
    file_bytes: 1_000_000,
    connections: 1,
    streams: 64,
};

const REQUESTS: Load = Load {
    part: "requests for 1 KB",
    folder: "tiny",
    file_bytes: 1000,
    connections: 50,
    streams: 32,
};

const LOADS: [Load; 4] = [LARGE, SMALL, STREAMS, REQUESTS];

/// The part of the results about idle connections.
const IDLE: &str = "idle connections";

/// Promised limit of the host process: CPU time per gigabyte, relative to nginx's worker.
const HOST_RATIO_MAX: f64 = 1.0 / 30.0;

/// Promised limit of both processes, relative to nginx's worker.
const BOTH_RATIO_MAX: f64 = 0.35;

/// Promised throughput, as a multiple of nginx's.
const THROUGHPUT_RATIO_MIN: f64 = 2.5;

/// Promised limit of both processes, relative to HTTP/1.1 of the same Splitway.
const OWN_RATIO_MAX: f64 = 1.1;

/// Promised requests per second, as a multiple of nginx's.
const REQUESTS_RATIO_MIN: f64 = 1.0;

/// Promised memory of an idle connection in the host process, relative to one of HTTP/1.1.
const IDLE_RATIO_MAX: f64 = 1.3;

const NOTE: &str = "CPU time is user and system time of all threads of a process. Servers run on \
    one core, h2load on another, with what it receives; it decrypts everything. Where a server's \
    core is not busy all the time, it is the client that was slow, and the throughput says little. \
    HTTP/1.1 has a connection for each stream of HTTP/2. Machines are noisy: compare ratios of one \
    invocation.";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.beds(1);
    for load in LOADS {
        plan.files(settings.files, load.file_bytes);
        let seconds = load::WARM_UP_SECONDS + rounds.seconds();
        let connections = load.connections * load.streams;
        plan.runs(3 * rounds.count(), connections, 0, seconds);
    }
    if !rounds.is_quick() {
        plan.splitways(idle::Kind::HTTP2.len() * rounds.count());
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    if settings.files == 0 {
        return Err(Failure::new("a load asks for files"));
    }
    load::must_be_there()?;
    let workspace = Workspace::prepare(0, 0)?;
    for load in LOADS {
        make_files(&workspace, &load, settings.files)?;
    }
    let wanted = Wanted {
        splitway: settings.splitway.clone(),
        tls: true,
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let identity = server_set.identity().cloned();
    let identity = identity.ok_or_else(|| Failure::new("there is no certificate"))?;
    let [splitway, nginx] = server_set.http2_servers()?;
    let http1 = Server {
        name: OWN_HTTP1,
        ..splitway.clone()
    };
    let servers = [splitway, nginx, http1];
    let title = "HTTP/2 over TLS 1.3, AES-256-GCM, ECDSA P-256: files in memory";
    let mut results = Results::new("http2", title.to_owned(), settings)?;
    server_set.describe(&mut results)?;
    for load in LOADS {
        rounds.take_turns(&servers, |server| {
            let run = one_run(settings, &workspace, &load, server)?;
            eprintln!("{}: {run}", load.part);
            results.add(load.part, server.name, &[], run.measures());
            Ok(())
        })?;
    }
    server_set.end(&mut results)?;
    if !rounds.is_quick() {
        rounds.take_turns(&idle::Kind::HTTP2, |&kind| {
            let measures = idle::measure(&workspace, &identity, kind, &mut results)?;
            results.add(IDLE, kind.name(), &[], measures);
            Ok(())
        })?;
    }
    report(&mut results);
    results.publish(rounds.output(&workspace.output))
}

fn make_files(workspace: &Workspace, load: &Load, files: usize) -> Result<()> {
    use testbed::Context;
    let folder = workspace.site.root().join(load.folder);
    std::fs::create_dir(&folder).context(|| format!("creating {}", folder.display()))?;
    for index in 0..files {
        let name = format!("{}/{index}", load.folder);
        workspace.site.file(&name, load.file_bytes)?;
    }
    Ok(())
}

fn one_run(
    settings: &Settings,
    workspace: &Workspace,
    load: &Load,
    server: &Server,
) -> Result<run::Run> {
    let is_http1 = server.name == OWN_HTTP1;
    let (connections, streams) = match is_http1 {
        true => (load.connections * load.streams, 1),
        false => (load.connections, load.streams),
    };
    let arguments = load::Settings {
        server: server.addresses[0],
        folder: load.folder.to_owned(),
        files: settings.files,
        file_bytes: load.file_bytes,
        connections,
        streams,
        http1: is_http1,
        seconds: settings.rounds.seconds(),
        place: workspace.site.outside().to_owned(),
    };
    run::run_generator(server, arguments.arguments(), false)
}

fn report(results: &mut Results) {
    for load in LOADS {
        let columns = table::COST.to_vec();
        results.table(Table::of(load.part, columns).titled(load.part));
    }
    for load in [LARGE, SMALL, STREAMS] {
        check_files(results, &load);
    }
    let rate = "requests_per_s";
    let least = Bound::AtLeast(REQUESTS_RATIO_MIN);
    for (peer, bound) in [(NGINX, least), (OWN_HTTP1, Bound::None)] {
        let ratio = results.ratio(REQUESTS.part, (SPLITWAY, rate), (peer, rate));
        results.check(format!("requests per second, against {peer}"), ratio, bound);
    }
    if results.has(IDLE) {
        let columns = vec![column(idle::MEASURE, "host memory, KB each", 1)];
        results.table(Table::of(IDLE, columns).titled("Idle connections"));
        let [http2, tls] = idle::Kind::HTTP2.map(|kind| (kind.name(), idle::MEASURE));
        let ratio = results.ratio(IDLE, http2, tls);
        let what = "memory of an idle connection, against HTTP/1.1";
        results.check(what, ratio, Bound::AtMost(IDLE_RATIO_MAX));
    }
    results.note(NOTE);
}

/// Checks the ratios of a load of files; the promises are about large ones.
fn check_files(results: &mut Results, load: &Load) {
    let (host, all, rate) = ("cpu_s_per_gb.host", "cpu_s_per_gb.server", "gbit_per_s");
    let (host_what, both) = ("host CPU per GB", "host and NIC CPU per GB");
    let least = Bound::AtLeast(THROUGHPUT_RATIO_MIN);
    for ((own, what), (peer, theirs), bound) in [
        (
            (host, host_what),
            (NGINX, all),
            Bound::AtMost(HOST_RATIO_MAX),
        ),
        ((all, both), (NGINX, all), Bound::AtMost(BOTH_RATIO_MAX)),
        ((rate, "throughput"), (NGINX, rate), least),
        ((all, both), (OWN_HTTP1, all), Bound::AtMost(OWN_RATIO_MAX)),
    ] {
        let bound = match load.part == SMALL.part {
            true => Bound::None,
            false => bound,
        };
        let ratio = results.ratio(load.part, (SPLITWAY, own), (peer, theirs));
        let what = format!("{}: {what}, against {peer}", load.part);
        results.check(what, ratio, bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

    const GB: u64 = 1_000_000_000;

    /// Whether the promises are kept if the host process costs this much per gigabyte.
    fn is_kept(host_ns: u64) -> bool {
        let mut results = Results::new("http2", "HTTP/2", &()).unwrap();
        for load in LOADS {
            for run in [
                run(
                    SPLITWAY,
                    3 * GB,
                    &[("host", 3 * host_ns), ("nic", 3 * GB / 4)],
                ),
                run(NGINX, GB, &[("worker", GB)]),
                run(
                    OWN_HTTP1,
                    3 * GB,
                    &[("host", 3 * host_ns), ("nic", 3 * GB / 4)],
                ),
            ] {
                results.add(load.part, run.server, &[], run.measures());
            }
        }
        for (kind, kb) in idle::Kind::HTTP2.into_iter().zip([13.0, 10.0]) {
            let measures = [(idle::MEASURE.to_owned(), kb)];
            results.add(IDLE, kind.name(), &[], measures.into());
        }
        report(&mut results);
        results.is_kept()
    }

    #[test]
    fn the_report_says_which_promises_are_kept() {
        assert!(is_kept(33_000_000));
        assert!(!is_kept(34_000_000));
    }
}
