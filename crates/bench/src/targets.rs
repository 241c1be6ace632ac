//! The targets of the project, all in one run: what is measured of each, and whether it is met.
//!
//! | Part | Against nginx |
//! |---|---|
//! | files of 500 KB in memory, plain and over TLS | CPU time per gigabyte, throughput |
//! | files of 10 KB in memory | CPU time per request |
//! | 4,000 connections | Splitway's CPU time per gigabyte with 64 |
//! | one connection that rests before each request | time to the first byte |
//!
//! How much one host core controls is measured by another program, which leaves its result where this one finds it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use testbed::{Context, Result};

use crate::bed::{Bed, Ground, NGINX, SPLITWAY, Wanted};
use crate::latency::idle;
use crate::plain;
use crate::results::{Bound, Results};
use crate::rounds::Rounds;
use crate::run::{self, Server};
use crate::table::{self, Spread};

/// What is measured.
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
const LARGE_BYTES: u64 = 500_000;
const SMALL_BYTES: u64 = 10_000;

/// Parts of the results.
const PLAIN: &str = "plain";
const TLS: &str = "TLS";
const SMALL: &str = "10 KB";
const MANY: &str = "4,000 connections";
const LATENCY: &str = "latency";

const ALL: &str = "cpu_s_per_gb.server";
const HOST: &str = "cpu_s_per_gb.host";
const RATE: &str = "gbit_per_s";
const PER_REQUEST: &str = "cpu_us_per_request.server";
const FIRST_BYTE: &str = "first_byte_us.p50";

/// Where the benchmark of the control plane alone leaves its result.
const CEILING_FILE: &str = "ceiling.json";

/// Which of its loads the target is about.
const CEILING_CONNECTIONS: usize = 1600;
const CEILING_ACKS: &str = "superpacket";

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    let mut results = Results::new("targets", "Targets", settings)?;
    let wanted = Wanted {
        splitway: settings.splitway.clone(),
        tls: true,
        ..Wanted::default()
    };

    let ground = Ground::prepare(200, LARGE_BYTES)?;
    let bed = Bed::start(&ground, &wanted)?;
    bed.describe(&mut results)?;
    let [splitway, nginx, _] = bed.servers()?;
    compare(
        &mut results,
        PLAIN,
        &ground,
        rounds,
        &[splitway.clone(), nginx],
    )?;
    // Beside each other in time, so that what else the machine does concerns both.
    let counts = [CONNECTIONS, MANY_CONNECTIONS];
    rounds.take_turns(&counts, |&connections| {
        let load = ground.load(&splitway, connections, rounds.seconds());
        let run = run::run(&splitway, &load)?;
        eprintln!("{connections:5} connections  {run}");
        let conditions = [("connections", connections as f64)];
        results.add(MANY, SPLITWAY, &conditions, run.measures());
        Ok(())
    })?;
    let [splitway, nginx, _] = bed.tls_servers()?;
    compare(&mut results, TLS, &ground, rounds, &[splitway, nginx])?;
    bed.end(&mut results)?;
    let output = rounds.output(&ground.output).to_owned();
    drop(ground);

    let ground = Ground::prepare(1000, SMALL_BYTES)?;
    let wanted = Wanted {
        tls: false,
        ..wanted
    };
    let bed = Bed::start(&ground, &wanted)?;
    let [splitway, nginx, _] = bed.servers()?;
    let servers = [splitway, nginx];
    compare(&mut results, SMALL, &ground, rounds, &servers)?;
    rounds.take_turns(&servers, |server| {
        let run = run::run(server, &idle(&ground, server, rounds.seconds()))?;
        eprintln!(
            "{:9} first byte {:.0} µs",
            server.name, run.load.first_byte.p50_us
        );
        results.add(LATENCY, server.name, &[], run.measures());
        Ok(())
    })?;
    bed.end(&mut results)?;

    report(&mut results, ceiling(&output)?);
    results.publish(&output)
}

/// Has servers take turns.
fn compare(
    results: &mut Results,
    part: &'static str,
    ground: &Ground,
    rounds: &Rounds,
    servers: &[Server],
) -> Result<()> {
    for server in servers {
        run::warm_up(rounds, server, ground.load(server, CONNECTIONS, 1))?;
    }
    rounds.take_turns(servers, |server| {
        let run = run::run(server, &ground.load(server, CONNECTIONS, rounds.seconds()))?;
        eprintln!("{part:5} {run}");
        results.add(part, server.name, &[], run.measures());
        Ok(())
    })
}

/// What another benchmark has found, as far as it concerns a target.
#[derive(Deserialize)]
struct Ceiling {
    cells: Vec<CeilingCell>,
}

#[derive(Deserialize)]
struct CeilingCell {
    load: CeilingLoad,
    runs: Vec<CeilingRun>,
}

#[derive(Deserialize)]
struct CeilingLoad {
    connections: usize,
    acks: String,
    file_bytes: u64,
}

#[derive(Deserialize)]
struct CeilingRun {
    host_cpu_ns: u64,
    counts: CeilingCounts,
}

#[derive(Deserialize)]
struct CeilingCounts {
    body_bytes: u64,
}

/// Gigabits per second that one core of the host controls: of the loads that the target is about, the one that is
/// hardest. No number if it has not been measured.
fn ceiling(output: &Path) -> Result<f64> {
    let path = output.join(CEILING_FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(f64::NAN),
        text => text.context(|| format!("reading {}", path.display()))?,
    };
    let found: Ceiling =
        serde_json::from_str(&text).context(|| format!("reading {}", path.display()))?;
    let is_meant = |load: &CeilingLoad| {
        let CeilingLoad {
            connections,
            acks,
            file_bytes,
        } = load;
        (*connections, acks.as_str(), *file_bytes)
            == (CEILING_CONNECTIONS, CEILING_ACKS, LARGE_BYTES)
    };
    let cells = found.cells.iter().filter(|cell| is_meant(&cell.load));
    let medians = cells.map(|cell| {
        let runs = cell.runs.iter();
        Spread::of(runs.map(|run| 8.0 * run.counts.body_bytes as f64 / run.host_cpu_ns as f64))
            .median
    });
    Ok(medians.fold(f64::NAN, f64::min))
}

fn report(results: &mut Results, ceiling: f64) {
    let ratio = |part, own: &str, theirs: &str| {
        let median = |server: &str, measure: &str| results.of(part, server).median(measure);
        median(SPLITWAY, own) / median(NGINX, theirs)
    };
    let many = |connections: usize, measure: &str| {
        let selection = results.at(MANY, SPLITWAY, "connections", connections as f64);
        selection.median(measure)
    };
    // Bytes per second of CPU time.
    let efficiency = |connections| 1.0 / many(connections, ALL);
    let lost = 100.0 * (1.0 - efficiency(MANY_CONNECTIONS) / efficiency(CONNECTIONS));
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
            "4,000 connections against 64: bytes per second of CPU time lost, %",
            lost,
            Bound::AtMost(5.0),
        ),
        (
            "control plane alone, 1,600 connections: Gbit/s per host core",
            ceiling,
            Bound::AtLeast(400.0),
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
        "Plain, files of 500 KB, over connections",
        &[("connections", "Connections")],
    );
    table::add_titled(
        results,
        LATENCY,
        "One connection that rests before each request, files of 10 KB",
        &[],
    );
    results.note(plain::NOTE);
    if ceiling.is_nan() {
        results.note(format!(
            "What the control plane alone can do is measured by a benchmark of its own, which writes {CEILING_FILE} to the \
             same directory before this one."
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Measures;
    use crate::run::tests::run;

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
            let own = run(SPLITWAY, GB, &[("nic", nic_ns)]);
            let conditions = [("connections", connections as f64)];
            results.add(MANY, SPLITWAY, &conditions, own.measures());
        }
        results.add(LATENCY, SPLITWAY, &[], first_byte(81.0));
        results.add(LATENCY, NGINX, &[], first_byte(50.0));
        report(&mut results, f64::NAN);
        let met: Vec<bool> = results.checks().iter().map(|check| check.met).collect();
        let expected = [
            true, true, true, true, false, false, false, true, false, false,
        ];
        assert_eq!(met, expected, "{:#?}", results.checks());
        let last = results.checks().last().unwrap().value.unwrap();
        assert_eq!(last, 31.0);
    }

    #[test]
    fn the_ceiling_is_where_its_benchmark_leaves_it() {
        let directory = tempfile::tempdir().unwrap();
        assert!(ceiling(directory.path()).unwrap().is_nan());
        let path = directory.path().join(CEILING_FILE);
        let cell = |connections, acks, body_bytes: u64| {
            let run = serde_json::json!({ "host_cpu_ns": 1_000_000_000u64, "counts": { "body_bytes": body_bytes } });
            let load = serde_json::json!({ "connections": connections, "acks": acks, "file_bytes": 500_000 });
            serde_json::json!({ "load": load, "runs": [run] })
        };
        let gb = 1_000_000_000;
        let cells = [
            cell(1600, "superpacket", 60 * gb),
            cell(1600, "superpacket", 50 * gb),
            cell(16, "superpacket", gb),
            cell(1600, "two_packets", gb),
        ];
        fs::write(&path, serde_json::json!({ "cells": cells }).to_string()).unwrap();
        assert_eq!(ceiling(directory.path()).unwrap(), 400.0);
        fs::write(&path, "no JSON").unwrap();
        assert!(ceiling(directory.path()).is_err());
    }
}
