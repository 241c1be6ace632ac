//! Files in memory, without TLS: Splitway against nginx and lighttpd, all with `sendfile` or its
//! equivalent.

use testbed::Result;

use crate::load;
use crate::load::cross_check;
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::measure::table;
use crate::servers::server_set::{NGINX, SPLITWAY, ServerSet, Wanted, Workspace};

/// Promised limit of the host process: CPU time per gigabyte, relative to nginx's worker.
const HOST_RATIO_MAX: f64 = 0.2;

/// Promised limit of both processes together.
const BOTH_RATIO_MAX: f64 = 1.5;

/// Promised limit of the memory of both processes together, in megabytes. The block cache, limited
/// by `--cache`, is not counted: nginx's is the kernel's.
const MEMORY_MB_MAX: f64 = 300.0;

/// Number of connections for measurements of memory and system calls.
const MEMORY_CONNECTIONS: usize = 1000;

/// Parts of the results.
const FILES: &str = "files";
const MANY: &str = "many connections";
const CROSS_CHECK: &str = "wrk";

/// Note for the reader about CPU time, common to several benchmarks.
pub(crate) const NOTE: &str = "CPU time is user and system time of all threads of a process. The \
    kernel charges the time of soft interrupts (receiving packets, freeing sent ones) to whatever \
    process they interrupt, so that some of one process's work may stand in another's account; the \
    column of the whole machine, with client and kernel in it, has no such error. Servers run on \
    one core, the client on another, with what it receives: where a server's core is not busy all \
    the time, it is the client that was slow. Machines are noisy: compare ratios of one \
    invocation, not seconds of two.";

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, serde::Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files, requested at random
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// Let the client drop bodies unread: then only Splitway touches payload, and the client's core
    /// falls asleep between packets
    #[arg(long)]
    discard: bool,
    /// Let the kernel receive the clients' packets on the servers' core, instead of in the context
    /// of the sending client: as between machines, plus an interrupt from core to core for each
    #[arg(long)]
    steer_requests: bool,
    /// Measure each server with `wrk` as well, to check that the load generator is not the limit
    #[arg(long)]
    cross_check: bool,
    /// A further argument for `splitway serve`, such as `--splitway=--mtu=9000`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(settings.files, settings.file_bytes);
    plan.beds(1);
    plan.turns(rounds, 3, settings.connections, settings.file_bytes);
    let seconds = rounds.seconds().min(2.0);
    plan.runs(3, MEMORY_CONNECTIONS, settings.file_bytes, seconds);
    if settings.cross_check {
        plan.runs(
            3,
            settings.connections,
            settings.file_bytes,
            rounds.seconds().ceil(),
        );
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    if settings.cross_check {
        cross_check::must_be_there()?;
    }
    let rounds = &settings.rounds;
    let workspace = Workspace::prepare(settings.files, settings.file_bytes)?;
    let wanted = Wanted {
        splitway: settings.splitway.clone(),
        steer_requests: settings.steer_requests,
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let servers = server_set.servers()?;
    let title = format!(
        "Files of {} bytes in memory, {} connections",
        settings.file_bytes, settings.connections
    );
    let mut results = Results::new("plain", title, settings)?;
    server_set.describe(&mut results)?;

    let load = |server: &Server, connections, seconds| load::Settings {
        discard: settings.discard,
        ..workspace.load(server, connections, seconds)
    };
    for server in &servers {
        run::warm_up(
            rounds,
            server,
            load(server, settings.connections, rounds.seconds()),
        )?;
    }
    rounds.take_turns(&servers, |server| {
        let run = run::run(
            server,
            &load(server, settings.connections, rounds.seconds()),
        )?;
        eprintln!("{run}");
        results.add(FILES, server.name, &[], run.measures());
        Ok(())
    })?;
    for server in &servers {
        let seconds = rounds.seconds().min(2.0);
        let run = run::run_counting(server, &load(server, MEMORY_CONNECTIONS, seconds))?;
        let connections = [("connections", MEMORY_CONNECTIONS as f64)];
        results.add(MANY, server.name, &connections, run.measures());
        if settings.cross_check {
            let seconds = rounds.seconds();
            let measures = cross_check::run(&workspace, server, settings.connections, seconds)?;
            results.add(CROSS_CHECK, server.name, &[], measures);
        }
    }
    server_set.end(&mut results)?;
    report(&mut results);
    results.publish(rounds.output(&workspace.output))
}

fn report(results: &mut Results) {
    table::add(results, FILES, &[]);
    let columns = vec![
        column("memory_mb.server", "MB, block cache apart", 0),
        column("cache_mb.server", "MB of block cache", 0),
        column("resident_mb.*", "resident, MB", 0),
        column("system_calls_per_gb.*", "system calls/GB", 0),
    ];
    results.table(
        Table::of(MANY, columns)
            .titled("Memory and system calls (runs of their own: counting calls makes them dearer)")
            .over(&[("connections", "Connections")]),
    );
    let columns = vec![
        column("gbit_per_s", "Gbit/s", 2),
        column("requests_per_s", "requests/s", 0),
    ];
    results.table(Table::of(CROSS_CHECK, columns).titled("The same by wrk"));
    let ratio = |own, theirs| results.ratio(FILES, (SPLITWAY, own), (NGINX, theirs));
    let server = "cpu_s_per_gb.server";
    let machine = "cpu_s_per_gb.machine";
    let memory = results.of(MANY, SPLITWAY).median("memory_mb.server");
    let checks = [
        (
            "host CPU per GB, against nginx's worker".to_owned(),
            ratio("cpu_s_per_gb.host", server),
            Bound::AtMost(HOST_RATIO_MAX),
        ),
        (
            "host and NIC CPU per GB, against nginx's worker".to_owned(),
            ratio(server, server),
            Bound::AtMost(BOTH_RATIO_MAX),
        ),
        (
            "machine CPU per GB, against the same with nginx".to_owned(),
            ratio(machine, machine),
            Bound::None,
        ),
        (
            "throughput, against nginx".to_owned(),
            ratio("gbit_per_s", "gbit_per_s"),
            Bound::None,
        ),
        (
            format!("MB of both processes at {MEMORY_CONNECTIONS} connections, block cache apart"),
            memory,
            Bound::AtMost(MEMORY_MB_MAX),
        ),
    ];
    for (what, value, bound) in checks {
        results.check(what, value, bound);
    }
    results.note(NOTE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

    #[test]
    fn the_report_says_which_promises_are_kept() {
        let mut results = Results::new("plain", "Files", &()).unwrap();
        let gb = 1_000_000_000;
        let own = run(SPLITWAY, gb, &[("host", 40_000_000), ("nic", 270_000_000)]);
        let nginx = run(NGINX, gb, &[("worker", 200_000_000)]);
        results.add(FILES, SPLITWAY, &[], own.measures());
        results.add(MANY, SPLITWAY, &[], own.measures());
        results.add(FILES, NGINX, &[], nginx.measures());
        report(&mut results);
        let told = |what: &str| {
            let mut checks = results.checks().iter();
            let found = checks.find(|check| check.what.starts_with(what)).unwrap();
            (found.value.unwrap(), found.met)
        };
        assert!((told("host CPU").0 - 0.2).abs() < 1e-9 && told("host CPU").1);
        assert!(!told("host and NIC CPU").1);
        assert_eq!(told("throughput"), (1.0, true));
    }
}
