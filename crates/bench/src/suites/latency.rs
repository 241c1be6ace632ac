//! Latency for one client of an idle server: of the first byte, and of a whole file.

use serde::Serialize;
use testbed::Result;

use crate::load;
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Plot, Results};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::measure::table;
use crate::paper;
use crate::servers::server_set::{NGINX, SPLITWAY, ServerSet, Wanted, Workspace};

/// The one part of the results.
const PART: &str = "latency";

/// Target: first bytes at most this much later than nginx's, in microseconds.
const FIRST_BYTE_LATER_US_MAX: f64 = 30.0;

/// Number of files of each size.
const FILES: usize = 100;

/// Rest of the client before each request: long enough for servers to fall asleep.
const REST_US: u64 = 2_000;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Sizes of files, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 300_000])]
    file_bytes: Vec<u64>,
    /// A further argument for `splitway serve`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// One connection, which rests before each request.
pub(crate) fn idle(workspace: &Workspace, server: &Server, seconds: f64) -> load::Settings {
    load::Settings {
        rest_us: REST_US,
        ..workspace.load(server, 1, seconds)
    }
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    for &file_bytes in &settings.file_bytes {
        plan.files(FILES, file_bytes);
        plan.beds(1);
        plan.turns(&settings.rounds, 3, 1, file_bytes);
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    let title = "Latency of single files: one connection to an idle server";
    let mut results = Results::new("latency", title, settings)?;
    let mut output = None;
    for &file_bytes in &settings.file_bytes {
        let workspace = Workspace::prepare(FILES, file_bytes)?;
        let wanted = Wanted {
            splitway: settings.splitway.clone(),
            ..Wanted::default()
        };
        let server_set = ServerSet::start(&workspace, &wanted)?;
        server_set.describe(&mut results)?;
        let servers = server_set.servers()?;
        for server in &servers {
            run::warm_up(rounds, server, workspace.load(server, 1, rounds.seconds()))?;
        }
        rounds.take_turns(&servers, |server| {
            let run = run::run(server, &idle(&workspace, server, rounds.seconds()))?;
            let (first, whole) = (run.load.first_byte, run.load.response);
            eprintln!(
                "{:9} {file_bytes:7} bytes: first byte {:.0} µs, all {:.0} µs",
                server.name, first.p50_us, whole.p50_us
            );
            let conditions = [("file_bytes", file_bytes as f64)];
            results.add(PART, server.name, &conditions, run.measures());
            Ok(())
        })?;
        server_set.end(&mut results)?;
        output = Some(rounds.output(&workspace.output).to_owned());
    }
    report(&mut results, &settings.file_bytes);
    match output {
        Some(output) => results.publish(&output),
        None => Ok(()),
    }
}

fn report(results: &mut Results, sizes: &[u64]) {
    table::add(results, PART, &[("file_bytes", "File, bytes")]);
    for (file, y) in [
        (
            "latency-first-byte",
            ("first_byte_us.p50", "median time to the first byte, µs"),
        ),
        (
            "latency-response",
            ("response_us.p50", "median time of a response, µs"),
        ),
    ] {
        results.plot(Plot::lines(
            file,
            PART,
            ("file_bytes", "bytes of the file"),
            y,
        ));
    }
    for &size in sizes {
        let median = |server, measure| {
            results
                .at(PART, server, "file_bytes", size as f64)
                .median(measure)
        };
        let later = |measure| median(SPLITWAY, measure) - median(NGINX, measure);
        let first = later("first_byte_us.p50");
        let whole = later("response_us.p50");
        results.check(
            format!("{size} bytes: first byte later than nginx's, µs"),
            first,
            Bound::AtMost(FIRST_BYTE_LATER_US_MAX),
        );
        results.check(
            format!("{size} bytes: all of it later than nginx's, µs"),
            whole,
            Bound::None,
        );
    }
    results.publish_beside(paper::LATENCY);
    results.note(format!(
        "The client rests for {REST_US} µs before each request, by half more or less, so that \
         every process sleeps when it comes: two wake-ups are in Splitway's time, one in a peer's. \
         IO-TCP's NIC stack has cores of its own that poll, on the other side of PCIe, and disks; \
         here all is in memory, and host and NIC process share a core."
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_that_of_medians_at_the_same_size() {
        let mut results = Results::new("latency", "Latency", &()).unwrap();
        for (server, size, us) in [
            (SPLITWAY, 10, 80.0),
            (NGINX, 10, 50.0),
            (SPLITWAY, 300, 99.0),
            (NGINX, 300, 60.0),
        ] {
            let measures =
                ["first_byte_us.p50", "response_us.p50"].map(|name| (name.to_owned(), us));
            results.add(
                PART,
                server,
                &[("file_bytes", f64::from(size))],
                measures.into(),
            );
        }
        report(&mut results, &[10, 300]);
        let told: Vec<_> = results
            .checks()
            .iter()
            .map(|check| (check.value.unwrap(), check.met))
            .collect();
        assert_eq!(
            told,
            [(30.0, true), (30.0, true), (39.0, false), (39.0, true)]
        );
    }
}
