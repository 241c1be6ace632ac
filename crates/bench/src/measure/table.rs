//! Columns about servers for the tables of several benchmarks.

use crate::measure::results::{Column, Results, Table, column};
use crate::measure::spread::Conditions;

/// Cost columns: throughput, and the cost of each process, the server and the machine.
pub(crate) const COST: [Column; 6] = [
    column("gbit_per_s", "Gbit/s", 2),
    column("requests_per_s", "requests/s", 0),
    column("cpu_s_per_gb.*", "CPU s/GB, each process", 4),
    column("cpu_s_per_gb.server", "CPU s/GB, server", 4),
    column("cpu_s_per_gb.machine", "CPU s/GB, machine", 4),
    column("busy_cores.server", "server's cores busy", 2),
];

/// Latency of requests.
const LATENCY: [Column; 6] = [
    column("first_byte_us.p50", "first byte p50, µs", 0),
    column("first_byte_us.p90", "p90", 0),
    column("first_byte_us.p99", "p99", 0),
    column("response_us.p50", "whole response p50, µs", 0),
    column("response_us.p90", "p90", 0),
    column("response_us.p99", "p99", 0),
];

/// Mode of execution of the processes.
const PROCESSES: [Column; 5] = [
    column("user_s_per_gb.*", "user CPU s/GB", 4),
    column("system_s_per_gb.*", "system CPU s/GB", 4),
    column("voluntary_switches_per_gb.*", "voluntary switches/GB", 0),
    column(
        "involuntary_switches_per_gb.*",
        "involuntary switches/GB",
        0,
    ),
    column("resident_mb.*", "resident, MB", 0),
];

/// Adds the tables of a part: cost, latency, processes.
pub(crate) fn add(results: &mut Results, part: &'static str, conditions: Conditions) {
    add_titled(results, part, "", conditions);
}

/// The same, below a title.
pub(crate) fn add_titled(
    results: &mut Results,
    part: &'static str,
    title: &'static str,
    conditions: Conditions,
) {
    let tables = [&COST[..], &LATENCY, &PROCESSES];
    for (index, columns) in tables.into_iter().enumerate() {
        let title = if index == 0 { title } else { "" };
        results.table(
            Table::of(part, columns.to_vec())
                .titled(title)
                .over(conditions),
        );
    }
}
