//! `splitway-bench tls`: files over TLS 1.3 with AES-256-GCM, and handshakes, against nginx and
//! lighttpd with OpenSSL.
//!
//! All three use the same certificate, and take turns in each round.
//!
//! | Module | Contents |
//! |---|---|
//! | [`identity`] | the certificate |
//! | [`session`] | the client's end of TLS |
//! | [`handshakes`] | the load generator for handshakes |

pub(crate) mod handshakes;
pub(crate) mod identity;
pub(crate) mod session;

use serde::Serialize;
use testbed::Result;
use testbed::process::{run as run_tool, tool};

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Measures, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::measure::table;
use crate::servers::server_set::{LIGHTTPD, NGINX, SPLITWAY, ServerSet, Wanted, Workspace};

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file, or doing handshakes
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files, requested at random
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// Start of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Resumed,
}

/// Parts of the results.
const FILES: &str = "files";
const NEW: &str = "new handshakes";
const RESUMED: &str = "resumed handshakes";

impl Kind {
    fn part(self) -> &'static str {
        match self {
            Kind::New => NEW,
            Kind::Resumed => RESUMED,
        }
    }
}

/// Promised limit of both processes: CPU time per gigabyte, relative to nginx's worker.
const BOTH_RATIO_MAX: f64 = 0.35;

/// Promised limit of the host process alone.
const HOST_RATIO_MAX: f64 = 1.0 / 40.0;

/// Promised throughput, as a multiple of nginx's.
const THROUGHPUT_RATIO_MIN: f64 = 2.0;

/// Promised handshakes, per second and per second of CPU time, as a multiple of nginx's.
const HANDSHAKE_RATIO_MIN: f64 = 1.0;

const NOTE: &str = "CPU time is user and system time of all threads of a process. Servers run on \
    one core, the client on another, with what it receives. The client decrypts one response in a \
    hundred, and counts the records of the others; it verifies one handshake in a hundred. Where a \
    server's core is not busy all the time, it is the client that was slow, and its rate says \
    little. Machines are noisy: compare ratios of one invocation.";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(settings.files, settings.file_bytes);
    plan.beds(1);
    plan.tls_turns(rounds, 3, settings.connections, settings.file_bytes);
    let kinds: usize = [SPLITWAY, NGINX, LIGHTTPD]
        .iter()
        .map(|server| kinds(server).len())
        .sum();
    plan.runs(
        kinds * rounds.count(),
        settings.connections,
        0,
        rounds.seconds(),
    );
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    let workspace = Workspace::prepare(settings.files, settings.file_bytes)?;
    let wanted = Wanted {
        splitway: settings.splitway.clone(),
        tls: true,
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    // Thousands of short connections: the clients' ports are reusable after a second.
    for setting in ["tcp_tw_reuse=1", "ip_local_port_range=10000 65535"] {
        run_tool(tool("sysctl -qw").arg(format!("net.ipv4.{setting}")))?;
    }
    let servers = server_set.tls_servers()?;
    let title = format!(
        "TLS 1.3, AES-256-GCM, ECDSA P-256: files of {} bytes in memory, and handshakes, {} \
         connections",
        settings.file_bytes, settings.connections
    );
    let mut results = Results::new("tls", title, settings)?;
    server_set.describe(&mut results)?;
    for server in &servers {
        run::warm_up(
            rounds,
            server,
            workspace.load(server, settings.connections, rounds.seconds()),
        )?;
    }
    rounds.take_turns(&servers, |server| {
        let load = workspace.load(server, settings.connections, rounds.seconds());
        let run = run::run(server, &load)?;
        eprintln!("{run}");
        results.add(FILES, server.name, &[], run.measures());
        Ok(())
    })?;
    rounds.take_turns(&servers, |server| {
        for kind in kinds(server.name) {
            let measures = shake_hands(settings, server, *kind)?;
            eprintln!(
                "{:9} {}: {:.0} per s, {:.0} per CPU-s",
                server.name,
                kind.part(),
                measures["handshakes_per_s"],
                measures["handshakes_per_cpu_s"],
            );
            results.add(kind.part(), server.name, &[], measures);
        }
        Ok(())
    })?;
    server_set.end(&mut results)?;
    report(&mut results);
    results.publish(rounds.output(&workspace.output))
}

/// Returns the kinds of handshakes to measure. lighttpd issues no ticket in a resumed session, so
/// that the client cannot resume the next one.
fn kinds(server: &str) -> &'static [Kind] {
    match server {
        LIGHTTPD => &[Kind::New],
        _ => &[Kind::New, Kind::Resumed],
    }
}

fn shake_hands(settings: &Settings, server: &Server, kind: Kind) -> Result<Measures> {
    let load = handshakes::Settings {
        server: server.addresses[0],
        certificate: server
            .certificate
            .clone()
            .expect("a server that speaks TLS"),
        connections: settings.connections,
        seconds: settings.rounds.seconds(),
        resume: kind == Kind::Resumed,
    };
    let (outcome, cost) = run::generate(server, load.arguments(), false)?;
    Ok(handshake_measures(&outcome, cost.cpu_ns()))
}

fn handshake_measures(outcome: &handshakes::Outcome, cpu_ns: u64) -> Measures {
    let handshakes = outcome.handshakes as f64;
    [
        (
            "handshakes_per_s",
            handshakes / outcome.elapsed_ns as f64 * 1e9,
        ),
        ("handshakes_per_cpu_s", handshakes / cpu_ns as f64 * 1e9),
        // The server's CPU time as a part of its core.
        (
            "busy_cores.server",
            cpu_ns as f64 / outcome.elapsed_ns as f64,
        ),
        ("verified", outcome.verified as f64),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn report(results: &mut Results) {
    table::add(results, FILES, &[]);
    for (part, title) in [(NEW, "New handshakes"), (RESUMED, "Resumed handshakes")] {
        let columns = vec![
            column("handshakes_per_s", "per s", 0),
            column("handshakes_per_cpu_s", "per CPU-s", 0),
            column("busy_cores.server", "its core busy", 2),
        ];
        results.table(Table::of(part, columns).titled(title));
    }
    let all = "cpu_s_per_gb.server";
    let rows = [
        (
            FILES,
            all,
            all,
            "host and NIC CPU per GB",
            Bound::AtMost(BOTH_RATIO_MAX),
        ),
        (
            FILES,
            "cpu_s_per_gb.host",
            all,
            "host CPU per GB",
            Bound::AtMost(HOST_RATIO_MAX),
        ),
        (
            FILES,
            "gbit_per_s",
            "gbit_per_s",
            "throughput",
            Bound::AtLeast(THROUGHPUT_RATIO_MIN),
        ),
    ];
    let handshakes = [NEW, RESUMED].into_iter().flat_map(|part| {
        let rates = ["handshakes_per_s", "handshakes_per_cpu_s"];
        rates.map(|rate| (part, rate, rate, part, Bound::AtLeast(HANDSHAKE_RATIO_MIN)))
    });
    for (part, own, theirs, what, bound) in rows.into_iter().chain(handshakes) {
        let unit = match own {
            "handshakes_per_s" => " per s",
            "handshakes_per_cpu_s" => " per CPU-s",
            _ => "",
        };
        for (peer, bound) in [(NGINX, bound), (LIGHTTPD, Bound::None)] {
            let ratio = results.ratio(part, (SPLITWAY, own), (peer, theirs));
            // Some measures exist for one peer only.
            if peer == NGINX || ratio.is_finite() {
                results.check(format!("{what}{unit}, against {peer}"), ratio, bound);
            }
        }
    }
    results.note(NOTE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

    const GB: u64 = 1_000_000_000;

    fn checks(gb: u64, nic_ns: u64, new: u64) -> Vec<(String, f64, bool)> {
        let mut results = Results::new("tls", "TLS", &()).unwrap();
        let own = [("host", 25_000_000 * gb), ("nic", nic_ns * gb)];
        for run in [
            run(SPLITWAY, gb * GB, &own),
            run(NGINX, GB, &[("worker", GB)]),
            run(LIGHTTPD, GB, &[("worker", 2 * GB)]),
        ] {
            results.add(FILES, run.server, &[], run.measures());
        }
        for (server, kind, handshakes, cpu_ns) in [
            (NGINX, Kind::New, 4000, GB),
            (NGINX, Kind::Resumed, 4000, GB),
            (LIGHTTPD, Kind::New, 4000, GB),
            (SPLITWAY, Kind::New, new, GB),
            (SPLITWAY, Kind::Resumed, 8000, GB / 2),
        ] {
            let outcome = handshakes::Outcome {
                handshakes,
                verified: 1,
                elapsed_ns: GB,
            };
            results.add(
                kind.part(),
                server,
                &[],
                handshake_measures(&outcome, cpu_ns),
            );
        }
        report(&mut results);
        let checks = results.checks().iter();
        checks
            .map(|check| (check.what.clone(), check.value.unwrap(), check.met))
            .collect()
    }

    #[test]
    fn the_report_says_which_promises_are_kept() {
        let told = |checks: &[(String, f64, bool)], name: &str| {
            let (_, value, met) = checks.iter().find(|(what, ..)| what == name).unwrap();
            ((value * 1000.0).round() / 1000.0, *met)
        };
        let kept = checks(2, 325_000_000, 4000);
        for (what, value) in [
            ("host and NIC CPU per GB, against nginx", 0.35),
            ("host CPU per GB, against nginx", 0.025),
            ("throughput, against nginx", 2.0),
            ("new handshakes per s, against nginx", 1.0),
            ("resumed handshakes per CPU-s, against nginx", 4.0),
            ("host and NIC CPU per GB, against lighttpd", 0.175),
        ] {
            assert_eq!(told(&kept, what), (value, true), "{what}");
        }
        assert!(
            kept.iter()
                .all(|(what, ..)| !what.starts_with("resumed") || !what.ends_with("lighttpd"))
        );
        let broken = checks(1, 326_000_000, 3999);
        for what in [
            "host and NIC CPU per GB",
            "throughput",
            "new handshakes per s",
        ] {
            assert!(
                !told(&broken, &format!("{what}, against nginx")).1,
                "{what}"
            );
        }
    }
}
