//! The targets of the project, all in one run: the measurement of each, and whether it is met.
//!
//! | Part | Against nginx |
//! |---|---|
//! | files of 500 KB in memory, plain and over TLS | CPU time per gigabyte, throughput |
//! | files of 10 KB in memory | CPU time per request |
//! | 4,000 connections, data discarded | Splitway's CPU time per GB with 64; nginx's as well |
//! | one connection that rests before each request | time to the first byte |
//!
//! The load of one host core is measured as in `ceiling`, without nginx and without a network.

use serde::Serialize;
use testbed::Result;

use crate::load;
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::measure::table;
use crate::servers::server_set::{NGINX, SPLITWAY, ServerSet, Wanted, Workspace};
use crate::suites::ceiling::targeted;
use crate::suites::latency::idle;
use crate::suites::plain;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

const CONNECTIONS: usize = 64;
const MANY_CONNECTIONS: usize = 4000;
/// Length of each run over connections: with this many, five seconds are too short for steady
/// state.
const MANY_SECONDS: f64 = 10.0;

const LARGE_FILES: usize = 200;
const LARGE_BYTES: u64 = 500_000;
const SMALL_FILES: usize = 1000;
const SMALL_BYTES: u64 = 10_000;

/// Parts of the results.
const PLAIN: &str = "plain";
const TLS: &str = "TLS";
const SMALL: &str = "10 KB";
const MANY: &str = "over connections";
const LATENCY: &str = "latency";

const ALL: &str = "cpu_s_per_gb.server";
const HOST: &str = "cpu_s_per_gb.host";
const RATE: &str = "gbit_per_s";
const PER_REQUEST: &str = "cpu_us_per_request.server";
const FIRST_BYTE: &str = "first_byte_us.p50";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(LARGE_FILES, LARGE_BYTES);
    plan.beds(2);
    plan.turns(rounds, 2, CONNECTIONS, LARGE_BYTES);
    plan.tls_turns(rounds, 2, CONNECTIONS, LARGE_BYTES);
    for connections in [CONNECTIONS, MANY_CONNECTIONS] {
        plan.runs(
            2 * rounds.count(),
            connections,
            LARGE_BYTES,
            rounds.seconds_or(MANY_SECONDS),
        );
    }
    plan.files(SMALL_FILES, SMALL_BYTES);
    plan.turns(rounds, 2, CONNECTIONS, SMALL_BYTES);
    plan.runs(2 * rounds.count(), 1, SMALL_BYTES, rounds.seconds());
    targeted::plan(&mut plan, rounds, LARGE_BYTES);
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    let mut results = Results::new("targets", "Targets", settings)?;
    let wanted = Wanted {
        splitway: settings.splitway.clone(),
        tls: true,
        ..Wanted::default()
    };

    let workspace = Workspace::prepare(LARGE_FILES, LARGE_BYTES)?;
    let server_set = ServerSet::start(&workspace, &wanted)?;
    server_set.describe(&mut results)?;
    let [splitway, nginx, _] = server_set.servers()?;
    compare(
        &mut results,
        PLAIN,
        &workspace,
        rounds,
        &[splitway.clone(), nginx.clone()],
    )?;
    // Interleaved in time, so that other load of the machine affects both.
    let cells = [CONNECTIONS, MANY_CONNECTIONS]
        .map(|connections| [(&splitway, connections), (&nginx, connections)]);
    rounds.take_turns(cells.as_flattened(), |&(server, connections)| {
        let run = run::run(server, &many(&workspace, server, connections, rounds))?;
        eprintln!("{connections:5} connections  {run}");
        let conditions = [("connections", connections as f64)];
        results.add(MANY, server.name, &conditions, run.measures());
        Ok(())
    })?;
    let [splitway, nginx, _] = server_set.tls_servers()?;
    compare(&mut results, TLS, &workspace, rounds, &[splitway, nginx])?;
    server_set.end(&mut results)?;
    let output = rounds.output(&workspace.output).to_owned();
    drop(workspace);

    let workspace = Workspace::prepare(SMALL_FILES, SMALL_BYTES)?;
    let wanted = Wanted {
        tls: false,
        ..wanted
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let [splitway, nginx, _] = server_set.servers()?;
    let servers = [splitway, nginx];
    compare(&mut results, SMALL, &workspace, rounds, &servers)?;
    rounds.take_turns(&servers, |server| {
        let run = run::run(server, &idle(&workspace, server, rounds.seconds()))?;
        eprintln!(
            "{:9} first byte {:.0} µs",
            server.name, run.load.first_byte.p50_us
        );
        results.add(LATENCY, server.name, &[], run.measures());
        Ok(())
    })?;
    server_set.end(&mut results)?;

    targeted::measure(&mut results, rounds, LARGE_BYTES)?;
    report(&mut results);
    results.publish(&output)
}

/// Returns a load of many connections, in which the client is not the bottleneck. A client that
/// reads the data is slower than the server, and leaves up to a gigabyte in the receive buffers of
/// 4,000 connections: beyond every cache, so that the result would depend on the memory for these
/// copies instead of the server.
fn many(
    workspace: &Workspace,
    server: &Server,
    connections: usize,
    rounds: &Rounds,
) -> load::Settings {
    load::Settings {
        discard: true,
        ..workspace.load(server, connections, rounds.seconds_or(MANY_SECONDS))
    }
}

/// Measures servers in turns.
fn compare(
    results: &mut Results,
    part: &'static str,
    workspace: &Workspace,
    rounds: &Rounds,
    servers: &[Server],
) -> Result<()> {
    for server in servers {
        run::warm_up(
            rounds,
            server,
            workspace.load(server, CONNECTIONS, rounds.seconds()),
        )?;
    }
    rounds.take_turns(servers, |server| {
        let run = run::run(
            server,
            &workspace.load(server, CONNECTIONS, rounds.seconds()),
        )?;
        eprintln!("{part:5} {run}");
        results.add(part, server.name, &[], run.measures());
        Ok(())
    })
}

fn report(results: &mut Results) {
    let ratio = |part, own, theirs| results.ratio(part, (SPLITWAY, own), (NGINX, theirs));
    // Loss in bytes per second of CPU time.
    let lost = |server: &str| {
        let cost = |connections: usize| {
            results
                .at(MANY, server, "connections", connections as f64)
                .median(ALL)
        };
        100.0 * (1.0 - cost(CONNECTIONS) / cost(MANY_CONNECTIONS))
    };
    let first_byte = |server| results.of(LATENCY, server).median(FIRST_BYTE);
    let rows = [
        (
            "plain, 500 KB, 64 connections: host CPU per GB, against nginx",
            ratio(PLAIN, HOST, ALL),
            Bound::AtMost(1.0 / 15.0),
        ),
        (
            "plain, 500 KB, 64 connections: host and NIC CPU per GB, against nginx",
            ratio(PLAIN, ALL, ALL),
            Bound::AtMost(1.3),
        ),
        (
            "plain, 500 KB, 64 connections: throughput, against nginx",
            ratio(PLAIN, RATE, RATE),
            Bound::AtLeast(0.9),
        ),
        (
            "TLS 1.3 AES-256-GCM, the same: host CPU per GB, against nginx",
            ratio(TLS, HOST, ALL),
            Bound::AtMost(1.0 / 80.0),
        ),
        (
            "TLS 1.3 AES-256-GCM, the same: host and NIC CPU per GB, against nginx",
            ratio(TLS, ALL, ALL),
            Bound::AtMost(0.3),
        ),
        (
            "TLS 1.3 AES-256-GCM, the same: throughput, against nginx",
            ratio(TLS, RATE, RATE),
            Bound::AtLeast(2.5),
        ),
        (
            "plain, 10 KB, 64 connections: host and NIC CPU per request, against nginx",
            ratio(SMALL, PER_REQUEST, PER_REQUEST),
            Bound::AtMost(1.3),
        ),
        (
            "4,000 connections against 64, discarded: bytes per second of CPU time lost, %",
            lost(SPLITWAY),
            Bound::AtMost(5.0),
        ),
        ("the same of nginx", lost(NGINX), Bound::None),
        (
            "control plane alone, 1,600 connections: Gbit/s per host core",
            targeted::reached(results, LARGE_BYTES),
            targeted::WANTED,
        ),
        (
            "idle server, one connection: first byte later than nginx's, µs",
            first_byte(SPLITWAY) - first_byte(NGINX),
            Bound::AtMost(30.0),
        ),
    ];
    for (what, value, bound) in rows {
        results.check(what, value, bound);
    }
    table::add_titled(
        results,
        PLAIN,
        "Plain, files of 500 KB, 64 connections",
        &[],
    );
    table::add_titled(results, TLS, "TLS, the same", &[]);
    table::add_titled(results, SMALL, "Plain, files of 10 KB, 64 connections", &[]);
    table::add_titled(
        results,
        MANY,
        "Plain, files of 500 KB, over connections; the client discards what comes",
        &[("connections", "Connections")],
    );
    table::add_titled(
        results,
        LATENCY,
        "One connection that rests before each request, files of 10 KB",
        &[],
    );
    targeted::report(results);
    results.note(
        "Over connections, the client has the kernel drop bodies unread (`MSG_TRUNC`) but for one \
         response in a hundred, which it compares, with 64 connections as with 4,000 and with both \
         servers: else its core decides, and what it has not read yet waits in receive buffers by \
         the gigabyte, out of every cache. The measured span begins when every connection has had \
         a response.",
    );
    results.note(plain::NOTE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::results::Measures;
    use crate::measure::run::tests::run;

    fn first_byte(us: f64) -> Measures {
        [(FIRST_BYTE.to_owned(), us)].into()
    }

    #[test]
    fn each_target_is_held_against_its_bound() {
        const GB: u64 = 1_000_000_000;
        let mut results = Results::new("targets", "Targets", &()).unwrap();
        for (part, own_gb, host_ns, nic_ns) in [
            (PLAIN, 1, 13_000_000, 240_000_000),
            (TLS, 2, 4_000_000, 130_000_000),
            (SMALL, 1, 80_000_000, 190_000_000),
        ] {
            let own = run(SPLITWAY, own_gb * GB, &[("host", host_ns), ("nic", nic_ns)]);
            let nginx = run(NGINX, GB, &[("worker", 200_000_000)]);
            results.add(part, SPLITWAY, &[], own.measures());
            results.add(part, NGINX, &[], nginx.measures());
        }
        for (connections, nic_ns) in [(CONNECTIONS, 95_000_000), (MANY_CONNECTIONS, 99_000_000)] {
            let conditions = [("connections", connections as f64)];
            for (server, process) in [(SPLITWAY, "nic"), (NGINX, "worker")] {
                let run = run(server, GB, &[(process, nic_ns)]);
                results.add(MANY, server, &conditions, run.measures());
            }
        }
        results.add(LATENCY, SPLITWAY, &[], first_byte(81.0));
        results.add(LATENCY, NGINX, &[], first_byte(50.0));
        report(&mut results);
        let met: Vec<bool> = results.checks().iter().map(|check| check.met).collect();
        let expected = [
            true, true, true, true, false, false, false, true, true, false, false,
        ];
        assert_eq!(met, expected, "{:#?}", results.checks());
        let last = results.checks().last().unwrap().value.unwrap();
        assert_eq!(last, 31.0);
    }
}
