//! Effect of the split's two corrections: figure 10 of IO-TCP (Kim et al., NSDI 2023).
//!
//! The disk is slow: each read takes 1 to 5 ms longer. The link loses nothing, so that every
//! retransmission timeout is spurious. Figure 10a counts these with and without the echo, over
//! numbers of connections; figure 10b compares the round-trip times from TCP timestamps with and
//! without their correction.

use serde::{Deserialize, Serialize};
use testbed::{Context, Failure, Result};

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Measures, Plot, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run;
use crate::paper;
use crate::servers::server_set::{Workspace, end_splitway, splitway_server, start_splitway};

/// Enough files that most reads find nothing in the NIC stack's memory.
const FILES: usize = 800;
const FILE_BYTES: u64 = 500_000;

/// The connections of the run that must see no timeout, and its length in seconds.
const PROMISE_CONNECTIONS: usize = 200;
const PROMISE_SECONDS: f64 = 10.0;
const QUICK_PROMISE_SECONDS: f64 = 2.0;

/// The settings of the benchmark.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Numbers of connections [default: 1,4,16,64,200, or 64 for quick runs]
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Additional delay of each read
    #[arg(long, default_value = "1ms..5ms")]
    read_delay: String,
}

impl Settings {
    fn connections(&self) -> &[usize] {
        match (self.connections.as_slice(), self.rounds.is_quick()) {
            ([], true) => &[64],
            ([], false) => &[1, 4, 16, 64, 200],
            (given, _) => given,
        }
    }
}

/// Parts of the results.
const TIMERS: &str = "timers";
const TIMESTAMPS: &str = "timestamps";
const PROMISE: &str = "promise";

/// A way to run Splitway.
struct Variant {
    name: &'static str,
    switches: &'static [&'static str],
}

/// With IO-TCP's own estimator, which takes round-trip times from timestamps, the echo is all that
/// differs.
const TIMER_VARIANTS: [Variant; 6] = [
    Variant {
        name: "Splitway as it is, RTO min 200 ms",
        switches: &[],
    },
    Variant {
        name: "no echo, RTO min 200 ms",
        switches: &["--no-echo-rto", "--rtt-from-timestamps"],
    },
    Variant {
        name: "Splitway as it is, RTO min 5 ms",
        switches: &["--rto-min=5ms"],
    },
    Variant {
        name: "echo, RTT by timestamps, RTO min 5 ms",
        switches: &["--rto-min=5ms", "--rtt-from-timestamps"],
    },
    Variant {
        name: "no echo, RTT by timestamps, RTO min 5 ms",
        switches: &["--rto-min=5ms", "--rtt-from-timestamps", "--no-echo-rto"],
    },
    Variant {
        name: "no echo at all, RTO min 5 ms",
        switches: &["--rto-min=5ms", "--no-echo-rto"],
    },
];

const TIMESTAMP_VARIANTS: [Variant; 2] = [
    Variant {
        name: "timestamps corrected",
        switches: &["--rtt-from-timestamps"],
    },
    Variant {
        name: "timestamps as issued",
        switches: &["--rtt-from-timestamps", "--no-timestamp-fix"],
    },
];

/// Returns the variants measured for each part.
fn parts(rounds: &Rounds) -> [(&'static str, &'static [Variant]); 2] {
    // With the least RTO that is usual, this disk makes no difference.
    let first = if rounds.is_quick() { 3 } else { 0 };
    [
        (TIMERS, &TIMER_VARIANTS[first..]),
        (TIMESTAMPS, &TIMESTAMP_VARIANTS),
    ]
}

/// The counters that are looked at, of the line that `--report-json` prints.
#[derive(Deserialize)]
struct Counted {
    host: HostCounted,
    nic: NicCounted,
}

#[derive(Deserialize)]
struct HostCounted {
    timeouts: u64,
    spurious_timeouts: u64,
    retransmissions: u64,
    round_trips: u64,
    round_trips_us: u64,
    timestamp_round_trips: u64,
    timestamp_round_trips_us: u64,
    packets_dropped: u64,
}

#[derive(Deserialize)]
struct NicCounted {
    reads: u64,
    block_hits: u64,
    #[serde(rename = "port_drops")]
    dropped: u64,
    #[serde(rename = "port_failures")]
    refused: u64,
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(FILES, FILE_BYTES);
    for (_, variants) in parts(rounds) {
        for &connections in settings.connections() {
            let runs = variants.len() * rounds.count();
            plan.splitways(runs);
            plan.runs(runs, connections, FILE_BYTES, rounds.seconds());
        }
    }
    plan.splitways(1);
    plan.runs(1, PROMISE_CONNECTIONS, FILE_BYTES, promise_seconds(rounds));
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let workspace = Workspace::prepare(FILES, FILE_BYTES)?;
    let rounds = &settings.rounds;
    let title = format!(
        "Figure 10: what the echo and the timestamp correction are good for. {FILES} files of \
         {FILE_BYTES} bytes, each read takes {} longer",
        settings.read_delay
    );
    let mut results = Results::new("figure10", title, settings)?;
    for (part, variants) in parts(rounds) {
        for &connections in settings.connections() {
            rounds.take_turns(variants, |variant| {
                let measures = run(
                    &workspace,
                    settings,
                    variant.switches,
                    connections,
                    rounds.seconds(),
                )?;
                let conditions = [("connections", connections as f64)];
                eprintln!("{:45} {}", variant.name, told(&measures));
                results.add(part, variant.name, &conditions, measures);
                Ok(())
            })?;
        }
    }
    let seconds = promise_seconds(rounds);
    let measures = run(&workspace, settings, &[], PROMISE_CONNECTIONS, seconds)?;
    eprintln!("{AS_SHIPPED:45} {}", told(&measures));
    let timeouts = measures["timeouts"];
    let conditions = [("connections", PROMISE_CONNECTIONS as f64)];
    results.add(PROMISE, AS_SHIPPED, &conditions, measures);
    report(&mut results, timeouts);
    results.publish(rounds.output(&workspace.output))?;
    if timeouts > 0.0 {
        Err(Failure::new(format!(
            "{timeouts} timeouts on a link that loses nothing, with the corrections on"
        )))
    } else {
        Ok(())
    }
}

/// Length of the run that must see no timeout, in seconds. The promise is for ten seconds,
/// independent of the length of the other runs.
fn promise_seconds(rounds: &Rounds) -> f64 {
    if rounds.is_quick() {
        QUICK_PROMISE_SECONDS
    } else {
        PROMISE_SECONDS
    }
}

/// The series of the run that must see no timeout.
const AS_SHIPPED: &str = "Splitway as it is";

/// Serves for a while with these switches, with a NIC stack and a host stack of its own.
fn run(
    workspace: &Workspace,
    settings: &Settings,
    switches: &[&str],
    connections: usize,
    seconds: f64,
) -> Result<Measures> {
    let delay = format!("--read-delay={}", settings.read_delay);
    let arguments = [switches, &["--report-json", &delay]].concat();
    let mut splitway = start_splitway(workspace, &arguments)?;
    let server = splitway_server(&splitway);
    let run = run::run(&server, &workspace.load(&server, connections, seconds))?;
    let counted = end_splitway(&mut splitway)?;
    let counted = serde_json::from_value(counted).context(|| "reading counters".into())?;
    let mut measures = run.measures();
    tell(&counted, &mut measures);
    Ok(measures)
}

fn tell(Counted { host, nic }: &Counted, measures: &mut Measures) {
    let mean_ms = |sum_us: u64, count: u64| sum_us as f64 / count.max(1) as f64 / 1000.0;
    let needed = (nic.reads + nic.block_hits).max(1);
    for (name, value) in [
        ("timeouts", host.timeouts as f64),
        // Those that TCP itself has found to be mistakes.
        ("spurious_timeouts", host.spurious_timeouts as f64),
        ("retransmissions", host.retransmissions as f64),
        // Mean of the round-trip times that the RTO was computed from.
        ("rtt_ms", mean_ms(host.round_trips_us, host.round_trips)),
        (
            "timestamp_rtt_ms",
            mean_ms(host.timestamp_round_trips_us, host.timestamp_round_trips),
        ),
        // The part of the blocks needed that had to be read.
        ("read_share", nic.reads as f64 / needed as f64),
        // Packets that the link, or the host's port, did not take: without any, each timeout is a
        // mistake.
        (
            "drops",
            (host.packets_dropped + nic.dropped + nic.refused) as f64,
        ),
    ] {
        measures.insert(name.to_owned(), value);
    }
}

fn told(measures: &Measures) -> String {
    format!(
        "{:6.2} Gbit/s {:6} timeouts {:6} retransmissions, RTT {:7.3} ms, by timestamps {:7.3} ms, \
         {:2.0} % read, {} dropped",
        measures["gbit_per_s"],
        measures["timeouts"],
        measures["retransmissions"],
        measures["rtt_ms"],
        measures["timestamp_rtt_ms"],
        100.0 * measures["read_share"],
        measures["drops"],
    )
}

fn report(results: &mut Results, timeouts: f64) {
    for (part, title) in [
        (TIMERS, "10a: retransmission timers"),
        (TIMESTAMPS, "10b: round-trip times by timestamps"),
        (PROMISE, "With the corrections on"),
    ] {
        let columns = vec![
            column("gbit_per_s", "Gbit/s", 2),
            column("timeouts", "Timeouts", 0),
            column("spurious_timeouts", "Found to be spurious", 0),
            column("retransmissions", "Retransmissions", 0),
            column("rtt_ms", "RTT for the RTO, ms", 3),
            column("timestamp_rtt_ms", "RTT by timestamps, ms", 3),
            column("read_share", "Blocks read", 2),
            column("drops", "Packets dropped", 0),
        ];
        let table = Table::of(part, columns).titled(title).of_each("Variant");
        results.table(table.over(&[("connections", "Connections")]));
    }
    for (file, part, title, y) in [
        (
            "figure10a",
            TIMERS,
            "Figure 10a: throughput behind a slow disk",
            ("gbit_per_s", "Gbit/s"),
        ),
        (
            "figure10a-timeouts",
            TIMERS,
            "Figure 10a: timeouts on a link that loses nothing",
            ("timeouts", "timeouts"),
        ),
        (
            "figure10b",
            TIMESTAMPS,
            "Figure 10b: mean round-trip time by timestamps",
            ("timestamp_rtt_ms", "milliseconds"),
        ),
    ] {
        results.plot(Plot::lines(file, part, ("connections", "connections"), y).titled(title));
    }
    results.check("timeouts, as shipped", timeouts, Bound::AtMost(0.0));
    results.publish_beside(paper::FIGURE_10);
    results.note("The link loses nothing: every timeout is a mistake.");
    results.note("1 ms is the least that a timestamp can tell.");
    results.note(
        "IO-TCP had 600 times as many timeouts without the echo as with it, with 8 disks \
        and 100 Gbit/s.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted() -> Counted {
        let json = serde_json::json!({
            "host": {
                "timeouts": 7, "spurious_timeouts": 1, "retransmissions": 9,
                "round_trips": 10, "round_trips_us": 25_000,
                "timestamp_round_trips": 0, "timestamp_round_trips_us": 0, "packets_dropped": 1,
                "sends": 5,
            },
            "nic": {
                "reads": 30, "block_hits": 10, "port_drops": 2,
                "port_failures": 3,
            },
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn counters_become_measures() {
        let mut measures = Measures::new();
        tell(&counted(), &mut measures);
        for (name, value) in [
            ("timeouts", 7.0),
            ("rtt_ms", 2.5),
            ("timestamp_rtt_ms", 0.0),
            ("read_share", 0.75),
            ("drops", 6.0),
        ] {
            assert_eq!(measures[name], value, "{name}");
        }
    }

    #[test]
    fn a_timeout_breaks_the_promise() {
        for (timeouts, met) in [(0.0, true), (1.0, false)] {
            let mut results = Results::new("figure10", "Figure 10", &()).unwrap();
            report(&mut results, timeouts);
            assert_eq!(results.checks()[0].met, met);
        }
    }
}
