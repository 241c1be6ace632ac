//! What the split's two corrections are good for: figure 10 of IO-TCP (Kim et al., NSDI 2023).
//!
//! The disk is slow: each read takes 1 to 5 ms longer. The link loses nothing, so that every retransmission timeout
//! is a mistake. Figure 10a counts these with and without the echo, over numbers of connections; figure 10b
//! compares the round-trip times that TCP timestamps tell with and without their correction.

use std::fmt::Write as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use testbed::splitway::Splitway;
use testbed::{Context, Failure, Result};

use crate::plot::{Chart, Line};
use crate::publish::publish;
use crate::run;
use crate::table::verdict;
use crate::{Ground, load, splitway_server, start_splitway};

/// Enough files that most reads find nothing in the NIC stack's memory.
const FILES: usize = 800;
const FILE_BYTES: u64 = 500_000;

/// The connections of the run that must see no timeout, and its length in seconds.
const PROMISE_CONNECTIONS: usize = 200;
const PROMISE_SECONDS: u64 = 10;

/// What is measured.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Fewer and shorter runs
    #[arg(long)]
    quick: bool,
    /// Seconds of each run; 5, or 2 if it is to be quick
    #[arg(long)]
    seconds: Option<u64>,
    /// Numbers of connections [default: 1,4,16,64,200, or 16,200 if it is to be quick]
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// How much longer each read takes
    #[arg(long, default_value = "1ms..5ms")]
    read_delay: String,
    /// Where tables and plots go [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// A way to run Splitway.
struct Variant {
    name: &'static str,
    switches: &'static [&'static str],
}

/// With IO-TCP's own estimator, which takes round-trip times from timestamps, the echo is all that differs.
const TIMERS: [Variant; 6] = [
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

const TIMESTAMPS: [Variant; 2] = [
    Variant {
        name: "timestamps corrected",
        switches: &["--rtt-from-timestamps"],
    },
    Variant {
        name: "timestamps as issued",
        switches: &["--rtt-from-timestamps", "--no-timestamp-fix"],
    },
];

/// What one run has come to.
#[derive(Clone, Debug, Serialize)]
struct Point {
    connections: usize,
    gbit_per_s: f64,
    timeouts: u64,
    /// Of these, those that TCP itself has found to be mistakes.
    found_spurious: u64,
    retransmissions: u64,
    /// Mean of the round-trip times that the RTO was computed from, in milliseconds.
    rtt_ms: f64,
    /// Mean of what timestamps tell.
    timestamp_rtt_ms: f64,
    /// Reads per second, and the part of the blocks needed that had to be read.
    reads: u64,
    read_share: f64,
    /// Packets that the link, or the host's port, did not take: without any, each timeout is a mistake.
    drops: u64,
}

#[derive(Debug, Serialize)]
struct Curve {
    name: &'static str,
    switches: &'static [&'static str],
    points: Vec<Point>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Figure10 {
    settings: Settings,
    timers: Vec<Curve>,
    timestamps: Vec<Curve>,
    /// The run that must see no timeout.
    promise: Point,
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
    #[serde(rename = "block hits")]
    block_hits: u64,
    #[serde(rename = "superpackets dropped by the link")]
    dropped: u64,
    #[serde(rename = "superpackets refused by the port")]
    refused: u64,
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let ground = Ground::prepare(FILES, FILE_BYTES)?;
    let seconds = settings
        .seconds
        .unwrap_or(if settings.quick { 2 } else { 5 });
    let connections = match (settings.connections.as_slice(), settings.quick) {
        ([], true) => &[16, 200][..],
        ([], false) => &[1, 4, 16, 64, 200],
        (given, _) => given,
    };
    let curve = |variant: &Variant| -> Result<Curve> {
        let points = connections.iter().map(|&connections| {
            let point = run(&ground, settings, variant.switches, connections, seconds)?;
            eprintln!("{:45} {point}", variant.name);
            Ok(point)
        });
        Ok(Curve {
            name: variant.name,
            switches: variant.switches,
            points: points.collect::<Result<_>>()?,
        })
    };
    let timers = TIMERS.iter().map(curve).collect::<Result<_>>()?;
    let timestamps = TIMESTAMPS.iter().map(curve).collect::<Result<_>>()?;
    let promise = run(&ground, settings, &[], PROMISE_CONNECTIONS, PROMISE_SECONDS)?;
    eprintln!("{:45} {promise}", "Splitway as it is, 10 s");
    let figure = Figure10 {
        settings: settings.clone(),
        timers,
        timestamps,
        promise,
    };
    let plots = [
        ("figure10a.svg", figure.throughput().svg()?),
        ("figure10a-timeouts.svg", figure.timeouts().svg()?),
        ("figure10b.svg", figure.round_trips().svg()?),
    ];
    let output = settings.output.as_ref().unwrap_or(&ground.output);
    publish(output, "figure10", figure.markdown(), &figure, plots)?;
    match figure.promise.timeouts {
        0 => Ok(()),
        count => Err(Failure::new(format!(
            "{count} timeouts on a link that loses nothing, with the corrections on"
        ))),
    }
}

/// Serves for a while with these switches, with a NIC stack and a host stack of its own.
fn run(
    ground: &Ground,
    settings: &Settings,
    switches: &[&str],
    connections: usize,
    seconds: u64,
) -> Result<Point> {
    let delay = format!("--read-delay={}", settings.read_delay);
    let arguments = [switches, &["--report-json", &delay]].concat();
    let mut splitway = start_splitway(ground, &arguments, false)?;
    let server = splitway_server(&splitway);
    let load = load::Settings {
        server: server.address,
        connections,
        files: FILES,
        file_bytes: FILE_BYTES,
        seconds,
        discard: false,
        once: false,
        certificate: None,
    };
    let run = run::run(&server, &load)?;
    let Counted { host, nic } = counted(&mut splitway)?;
    let mean_ms = |sum_us: u64, count: u64| sum_us as f64 / count.max(1) as f64 / 1000.0;
    Ok(Point {
        connections,
        gbit_per_s: run.gbit_per_s(),
        timeouts: host.timeouts,
        found_spurious: host.spurious_timeouts,
        retransmissions: host.retransmissions,
        rtt_ms: mean_ms(host.round_trips_us, host.round_trips),
        timestamp_rtt_ms: mean_ms(host.timestamp_round_trips_us, host.timestamp_round_trips),
        reads: nic.reads,
        read_share: nic.reads as f64 / (nic.reads + nic.block_hits).max(1) as f64,
        drops: host.packets_dropped + nic.dropped + nic.refused,
    })
}

/// Ends it, and takes its account.
fn counted(splitway: &mut Splitway) -> Result<Counted> {
    splitway.end_with(Signal::TERM)?;
    let line = splitway.line(|line| line.starts_with('{'))?;
    serde_json::from_str(&line).context(|| format!("splitway printed {line:?}"))
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:4} connections {:6.2} Gbit/s {:6} timeouts {:6} retransmissions, RTT {:7.3} ms, by timestamps \
             {:7.3} ms, {:2.0} % read, {} dropped",
            self.connections,
            self.gbit_per_s,
            self.timeouts,
            self.retransmissions,
            self.rtt_ms,
            self.timestamp_rtt_ms,
            100.0 * self.read_share,
            self.drops,
        )
    }
}

impl Figure10 {
    fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        line(format!(
            "# Figure 10: what the echo and the timestamp correction are good for\n\n\
             {FILES} files of {FILE_BYTES} bytes; each read takes {} longer. The link loses nothing: every \
             timeout is a mistake.\n\n\
             ## 10a: retransmission timers\n",
            self.settings.read_delay
        ));
        let head = "| Variant | Connections | Gbit/s | Timeouts | Found to be spurious | Retransmissions | RTT for the RTO, ms | \
                    RTT by timestamps, ms | Blocks read | Packets dropped |\n|---|---|---|---|---|---|---|---|---|---|";
        let rows = |curves: &[Curve]| -> String {
            let row =
                |curve: &Curve, point: &Point| format!("| {} | {} |", curve.name, point.cells());
            let rows = curves
                .iter()
                .flat_map(|curve| curve.points.iter().map(move |point| row(curve, point)));
            rows.collect::<Vec<_>>().join("\n")
        };
        line(format!("{head}\n{}", rows(&self.timers)));
        line(
            "\nIO-TCP, 8 disks and 100 Gbit/s: 63.1 Gbit/s without the correction, 22.6 % more with it, and \
             600 times as many timeouts without as with.\n\n## 10b: round-trip times by timestamps\n"
                .into(),
        );
        line(format!("{head}\n{}", rows(&self.timestamps)));
        line(
            "\nIO-TCP, 200 connections: 1 ms with the correction, 5 ms without. 1 ms is the least that a timestamp \
             can tell.\n\n## With the corrections on\n"
                .into(),
        );
        let verdict = verdict(self.promise.timeouts == 0);
        line(format!(
            "{PROMISE_CONNECTIONS} connections for {PROMISE_SECONDS} s, as shipped: {} timeouts, promised are none \
             ({verdict}).\n\n{head}\n| Splitway as it is | {} |",
            self.promise.timeouts,
            self.promise.cells()
        ));
        text
    }

    fn throughput(&self) -> Chart {
        chart(
            "Figure 10a: throughput behind a slow disk",
            "Gbit/s",
            &self.timers,
            |point| point.gbit_per_s,
        )
    }

    fn timeouts(&self) -> Chart {
        chart(
            "Figure 10a: timeouts on a link that loses nothing",
            "timeouts",
            &self.timers,
            |point| point.timeouts as f64,
        )
    }

    fn round_trips(&self) -> Chart {
        chart(
            "Figure 10b: mean round-trip time by timestamps",
            "milliseconds",
            &self.timestamps,
            |point| point.timestamp_rtt_ms,
        )
    }
}

impl Point {
    fn cells(&self) -> String {
        format!(
            "{} | {:.2} | {} | {} | {} | {:.3} | {:.3} | {:.0} % | {}",
            self.connections,
            self.gbit_per_s,
            self.timeouts,
            self.found_spurious,
            self.retransmissions,
            self.rtt_ms,
            self.timestamp_rtt_ms,
            100.0 * self.read_share,
            self.drops,
        )
    }
}

fn chart(title: &str, unit: &str, curves: &[Curve], value: impl Fn(&Point) -> f64) -> Chart {
    let line = |curve: &Curve| Line {
        name: curve.name.to_owned(),
        points: curve
            .points
            .iter()
            .map(|point| (point.connections as f64, value(point)))
            .collect(),
    };
    Chart {
        title: title.to_owned(),
        x: "connections".to_owned(),
        y: unit.to_owned(),
        lines: curves.iter().map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(timeouts: u64) -> Point {
        Point {
            connections: 200,
            gbit_per_s: 1.5,
            timeouts,
            found_spurious: 0,
            retransmissions: 4,
            rtt_ms: 0.1,
            timestamp_rtt_ms: 1.0,
            reads: 10,
            read_share: 0.5,
            drops: 0,
        }
    }

    fn figure(timeouts: u64) -> Figure10 {
        let curve = |name| Curve {
            name,
            switches: &[],
            points: vec![point(0), point(7)],
        };
        Figure10 {
            settings: Settings {
                quick: true,
                seconds: None,
                connections: Vec::new(),
                read_delay: "1ms..5ms".into(),
                output: None,
            },
            timers: vec![curve("with"), curve("without")],
            timestamps: vec![curve("corrected")],
            promise: point(timeouts),
        }
    }

    #[test]
    fn the_table_says_whether_the_promise_is_kept() {
        assert!(figure(0).markdown().contains("(met)"));
        assert!(
            figure(1)
                .markdown()
                .contains("1 timeouts, promised are none (NOT MET)")
        );
    }

    #[test]
    fn the_plots_name_every_variant() {
        let svg = figure(0).timeouts().svg().unwrap();
        for word in ["<svg", "without", "connections", "timeouts"] {
            assert!(svg.contains(word), "{word}");
        }
    }
}
