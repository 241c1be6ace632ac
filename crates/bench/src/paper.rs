//! What Kim et al. have published (*Rearchitecting the TCP Stack for I/O-Offloaded Content
//! Delivery*, NSDI 2023): the values that its text and tables state. Points that are only drawn in
//! its figures are not here.
//!
//! Its server has a Xeon Silver 4210 at 2.2 GHz, two BlueField-2 with 100 Gbit/s each, and four
//! Optane 900P; files come from the disks, and clients are other machines with `wrk`, on 1,600
//! connections unless stated otherwise.

pub(crate) mod figure10;
pub(crate) mod figures;
pub(crate) mod table1;
pub(crate) mod table2;

use crate::measure::results::Published;

/// A throughput.
const fn gbit_per_s(
    source: &'static str,
    series: &'static str,
    x: Option<f64>,
    value: f64,
) -> Published {
    Published {
        source,
        series,
        measure: "gbit_per_s",
        x,
        value,
        unit: "Gbit/s",
    }
}

/// A value that has no counterpart in a plot, or none that is measured here.
const fn told(
    source: &'static str,
    series: &'static str,
    value: f64,
    unit: &'static str,
) -> Published {
    Published {
        source,
        series,
        measure: "",
        x: None,
        value,
        unit,
    }
}

const KB: f64 = 1000.0;

/// Over file sizes, one core.
pub(crate) const FIGURE_2: &[Published] = &[gbit_per_s(
    "figure 2, §2.1: about half of a disk",
    "nginx and lighttpd, one core, from disk",
    Some(300.0 * KB),
    10.0,
)];

/// Part of CPU time, in percent.
pub(crate) const TABLE_1: &[Published] = &[
    share("read from disk to a kernel buffer", 33.53),
    share("memory management", 21.93),
    share("move to the TCP send buffer", 10.30),
    share("open files and stat", 6.00),
    share("control plane", 28.24),
];

const fn share(series: &'static str, percent: f64) -> Published {
    Published {
        source: "table 1",
        series,
        measure: "percent",
        x: None,
        value: percent,
        unit: "% of nginx's CPU time",
    }
}

/// Over ways to use a SmartNIC and a core, files of 300 KB.
pub(crate) const TABLE_2: &[Published] = &[
    gbit_per_s("table 2", "lighttpd on BlueField-2 alone", None, 11.98),
    gbit_per_s(
        "table 2",
        "lighttpd on BlueField-2 and on one core",
        None,
        22.02,
    ),
    gbit_per_s("table 2", "IO-TCP on BlueField-2 and one core", None, 44.13),
];

/// Over cores, files of 500 KB.
pub(crate) const FIGURE_7: &[Published] = &[
    gbit_per_s("figure 7, §5.2", "IO-TCP", Some(1.0), 78.1),
    gbit_per_s("figure 7, §1", "IO-TCP, TLS", Some(1.0), 77.4),
    gbit_per_s("figure 7, §5.2: at most", "lighttpd", Some(10.0), 57.0),
    gbit_per_s("figure 7, §1", "lighttpd, TLS", Some(10.0), 37.4),
    gbit_per_s("figure 7, §5.2", "Atlas, TLS", Some(10.0), 44.2),
    gbit_per_s(
        "figure 7, §5.2: as much as IO-TCP",
        "Atlas",
        Some(4.0),
        78.1,
    ),
    gbit_per_s("§5.2", "TAS", Some(10.0), 8.0),
    gbit_per_s("§5.2", "mTCP", Some(10.0), 21.4),
    gbit_per_s("§5.2", "F-Stack", Some(10.0), 36.0),
];

/// Over file sizes; maxima, over any number of cores.
pub(crate) const FIGURE_8A: &[Published] = &[
    gbit_per_s("figure 8a, §5.2", "IO-TCP", Some(500.0 * KB), 78.1),
    told(
        "figure 8a, §5.2",
        "IO-TCP against lighttpd on Linux",
        1.38,
        "× (to 1.51 ×) its throughput",
    ),
    gbit_per_s(
        "figure 8a, §5.2: 10 cores",
        "lighttpd",
        Some(500.0 * KB),
        57.0,
    ),
];

/// The same over TLS.
pub(crate) const FIGURE_8B: &[Published] = &[
    gbit_per_s("figure 8b, §1", "IO-TCP, TLS", Some(500.0 * KB), 77.4),
    gbit_per_s(
        "figure 8b, §1: with 10 cores",
        "lighttpd, TLS",
        Some(500.0 * KB),
        37.4,
    ),
    gbit_per_s(
        "figure 8b, §5.2: with 10 cores",
        "Atlas, TLS",
        Some(500.0 * KB),
        44.2,
    ),
    told(
        "figure 8b, §5.2",
        "lighttpd on Linux, TLS against plain",
        0.37,
        "× (to 0.52 ×) its throughput",
    ),
];

/// Over connections, TLS.
pub(crate) const FIGURE_9: &[Published] = &[
    told(
        "figure 9, §5.2",
        "IO-TCP, one core: lost at 4,000 connections",
        5.0,
        "% of throughput",
    ),
    gbit_per_s("figure 9, §5.2", "IO-TCP, two cores", Some(4000.0), 80.0),
];

/// Corrections of time measurement.
pub(crate) const FIGURE_10: &[Published] = &[
    gbit_per_s(
        "figure 10a, §5.3",
        "IO-TCP without the timer correction",
        Some(1600.0),
        63.12,
    ),
    gbit_per_s(
        "figure 10a, §5.3: 22.6 % more",
        "IO-TCP with it",
        Some(1600.0),
        77.4,
    ),
    rtt("IO-TCP with corrected timestamps", 1.0),
    rtt("IO-TCP without", 5.0),
];

const fn rtt(series: &'static str, ms: f64) -> Published {
    Published {
        source: "figure 10b, §5.3",
        series,
        measure: "timestamp_rtt_ms",
        x: Some(200.0),
        value: ms,
        unit: "ms",
    }
}

/// Over connections, files of 300 KB.
pub(crate) const FIGURE_11A: &[Published] = &[
    told(
        "figure 11a, §5.4",
        "Linux against IO-TCP, one connection",
        1.5,
        "× its throughput, or more",
    ),
    told(
        "figure 11a, §5.4",
        "IO-TCP is ahead of Linux from",
        4.0,
        "connections on",
    ),
];

/// The same with files of 10 KB.
pub(crate) const FIGURE_11B: &[Published] = &[
    told(
        "figure 11b, §5.4",
        "Linux has its most at",
        4.0,
        "connections",
    ),
    told(
        "figure 11b, §5.4",
        "IO-TCP has its most at",
        64.0,
        "connections",
    ),
];

/// One file after another.
pub(crate) const LATENCY: &[Published] = &[
    told("§5.4", "IO-TCP beyond Linux, 10 KB", 50.0, "µs (to 80 µs)"),
    told(
        "§5.4",
        "IO-TCP beyond Linux, 300 KB",
        150.0,
        "µs (to 200 µs)",
    ),
];

/// Jain's index.
pub(crate) const FAIRNESS: &[Published] = &[
    told(
        "§5.2",
        "IO-TCP, over numbers of connections",
        0.91,
        "(to 0.97)",
    ),
    told("§5.2", "Linux, the same", 0.90, "(to 0.97)"),
];
