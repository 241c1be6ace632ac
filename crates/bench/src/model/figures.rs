//! IO-TCP's figures 3 and 12a, and its table 4.

use std::fmt::Write as _;

use serde::Serialize;
use sim::model::cache::{HIT_NS, LINE_BYTES, MISS_NS, TABLE_BYTES, XEON_SILVER_4210};
use sim::model::disks::{FIO, NIC_WORKER};
use sim::model::hardware::OPTANE_900P;
use sim::model::paper;
use testbed::Result;

use super::calibration::Measured;
use crate::results::{Chart, Line};

const DISKS_MAX: usize = 8;

/// Who reads, and in blocks of how many bytes.
const READERS: [(&str, sim::model::disks::ReadCost, u64); 5] = [
    ("fio", FIO, 4 << 10),
    ("fio", FIO, 16 << 10),
    ("fio", FIO, 64 << 10),
    ("fio", FIO, 256 << 10),
    ("Splitway's NIC worker", NIC_WORKER, 64 << 10),
];

/// What part of a core so many disks take.
#[derive(Debug, Serialize)]
pub(super) struct DiskRow {
    reader: &'static str,
    block_bytes: u64,
    /// With 1, 2 ... disks.
    core_shares: Vec<f64>,
}

pub(super) fn disk_rows() -> Vec<DiskRow> {
    let row = |(reader, cost, block_bytes): (_, sim::model::disks::ReadCost, _)| DiskRow {
        reader,
        block_bytes,
        core_shares: (1..=DISKS_MAX)
            .map(|disks| cost.core_share(&OPTANE_900P, disks, block_bytes))
            .collect(),
    };
    READERS.into_iter().map(row).collect()
}

pub(super) fn disk_table(rows: &[DiskRow]) -> String {
    let mut text = String::from(
        "## Figure 3: what part of a core it takes to saturate disks\n\nOptane 900P. The paper says of fio: one core does not \
         saturate two disks with reads of 4 KB, and saturates up to three with reads of 16 KB. Above 100 % it does not.\n\n\
         | Reader | Block, KiB |",
    );
    for disks in 1..=DISKS_MAX {
        let _ = write!(text, " {disks} |");
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(DISKS_MAX));
    for row in rows {
        let _ = write!(text, "| {} | {} |", row.reader, row.block_bytes >> 10);
        for share in &row.core_shares {
            let _ = write!(text, " {:.0} % |", 100.0 * share);
        }
        text.push('\n');
    }
    text
}

pub(super) fn disk_plot(rows: &[DiskRow]) -> Result<String> {
    let line = |row: &DiskRow| Line {
        name: format!("{}, {} KiB", row.reader, row.block_bytes >> 10),
        // A core has no more than itself to give.
        points: (1..)
            .zip(&row.core_shares)
            .map(|(disks, share)| (f64::from(disks), 100.0 * share.min(1.0)))
            .collect(),
        is_published: false,
    };
    let mut lines: Vec<Line> = rows.iter().map(line).collect();
    for (block_bytes, saturated, _) in paper::FIO {
        let what = format!("as many as a core saturates, {} KiB", block_bytes >> 10);
        lines.push(Line::published(what, (saturated as f64, 100.0)));
    }
    let chart = Chart {
        title: "Simulated: a core that reads from disks (IO-TCP, figure 3)",
        x: "disks",
        y: "% of a core",
        lines,
    };
    chart.svg()
}

/// Lookups of connections beside disk I/O.
#[derive(Debug, Serialize)]
pub(super) struct LookupRow {
    disk_gb_per_s: f64,
    miss_ratio: f64,
    /// By what it is larger than without disk I/O.
    miss_factor: f64,
    /// Lookups, as a part of those without.
    lookups: f64,
}

/// None, the paper's disks one by one, then what 100 to 800 Gbit/s need.
const DISK_GB_PER_S: [f64; 9] = [0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 25.0, 50.0, 100.0];

pub(super) fn lookup_rows() -> Vec<LookupRow> {
    let alone = XEON_SILVER_4210.look_up(TABLE_BYTES, 0.0);
    let row = |disk_gb_per_s| {
        let beside = XEON_SILVER_4210.look_up(TABLE_BYTES, disk_gb_per_s);
        LookupRow {
            disk_gb_per_s,
            miss_ratio: beside.miss_ratio,
            miss_factor: beside.miss_ratio / alone.miss_ratio,
            lookups: alone.ns / beside.ns,
        }
    };
    DISK_GB_PER_S.into_iter().map(row).collect()
}

/// The same for what the host stack keeps of its connections.
#[derive(Debug, Serialize)]
pub(super) struct TableRow {
    connections: usize,
    bytes: u64,
    miss_ratio_alone: f64,
    miss_ratio_beside: f64,
    lookups: f64,
    /// Measured, without any disk I/O on this CPU.
    measured_ns_per_response: f64,
}

/// What the paper's four disks read.
const PAPER_GB_PER_S: f64 = 10.0;

pub(super) fn table_rows(measured: &Measured) -> Vec<TableRow> {
    let by_connections = measured.by_connections();
    // What the host has with no connections to speak of: code, rings.
    let least = by_connections.iter().map(|row| row.2).min();
    let row = |&(connections, measured_ns_per_response, host_bytes): &(usize, f64, u64)| {
        let bytes = (host_bytes - least.unwrap_or(0)).max(LINE_BYTES as u64);
        let [alone, beside] =
            [0.0, PAPER_GB_PER_S].map(|disks| XEON_SILVER_4210.look_up(bytes as usize, disks));
        TableRow {
            connections,
            bytes,
            miss_ratio_alone: alone.miss_ratio,
            miss_ratio_beside: beside.miss_ratio,
            lookups: alone.ns / beside.ns,
            measured_ns_per_response,
        }
    };
    by_connections.iter().map(row).collect()
}

pub(super) fn lookup_table(rows: &[LookupRow], tables: &[TableRow]) -> String {
    let mut text = format!(
        "## Figure 12a: lookups of connections beside disk I/O\n\nA cache like that of the paper's CPU, into two ways of which \
         disks write. The paper: {} times the misses, {:.0} % of the lookups lost. The size of its table is calibrated with \
         the first, the second follows.\n\n\
         | Disk I/O, GB/s | Lines missed | Times as many as without | Lookups per second, relative |\n|---|---|---|---|\n",
        paper::LOOKUP_MISS_FACTOR.value,
        100.0 * paper::LOOKUP_LOSS.value
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {:.1} | {:.2} % | {:.1} | {:.2} |",
            row.disk_gb_per_s,
            100.0 * row.miss_ratio,
            row.miss_factor,
            row.lookups
        );
    }
    let _ = writeln!(
        text,
        "\nThe same for what Splitway's host keeps of its connections (measured), with {PAPER_GB_PER_S:.0} GB/s beside: what a host \
         stack loses that has the data plane on its own CPU.\n\n\
         | Connections | Memory of them, MB | Lines missed alone | Beside disk I/O | Lookups per second, relative | Measured alone, ns for a response |\n\
         |---|---|---|---|---|---|"
    );
    for row in tables {
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} % | {:.1} % | {:.2} | {:.0} |",
            row.connections,
            row.bytes as f64 / 1e6,
            100.0 * row.miss_ratio_alone,
            100.0 * row.miss_ratio_beside,
            row.lookups,
            row.measured_ns_per_response
        );
    }
    text
}

pub(super) fn lookup_plot(rows: &[LookupRow]) -> Result<String> {
    let points = |value: fn(&LookupRow) -> f64| {
        let drawn = rows.iter().filter(|row| row.disk_gb_per_s > 0.0);
        drawn.map(|row| (row.disk_gb_per_s, value(row))).collect()
    };
    let line = |name: &str, points| Line {
        name: name.to_owned(),
        points,
        is_published: false,
    };
    let chart = Chart {
        title: "Simulated: lookups of connections beside disk I/O (IO-TCP, figure 12a)",
        x: "disk I/O, GB/s",
        y: "% of lookups lost; times the misses",
        lines: vec![
            line(
                "% of lookups lost",
                points(|row| 100.0 * (1.0 - row.lookups)),
            ),
            line("times the misses", points(|row| row.miss_factor)),
            Line::published(
                "% of lookups lost",
                (PAPER_GB_PER_S, 100.0 * paper::LOOKUP_LOSS.value),
            ),
            Line::published(
                "times the misses",
                (PAPER_GB_PER_S, paper::LOOKUP_MISS_FACTOR.value),
            ),
        ],
    };
    chart.svg()
}

/// Instructions per cycle.
#[derive(Debug, Serialize)]
pub(super) struct IpcRow {
    function: String,
    /// With the data plane on the same CPU; the paper's is measured, Splitway's simulated.
    before: Option<f64>,
    /// Without, measured.
    after: f64,
}

/// Lines of a connection that an ACK, a SEND and a request touch. Assumed: what the entry of a connection, the ring and the
/// frame are long.
const LINES: [(&str, f64); 3] = [("an ACK", 12.0), ("a SEND", 12.0), ("a request", 60.0)];

pub(super) fn ipc_rows(measured: &Measured, tables: &[TableRow]) -> Vec<IpcRow> {
    let of_paper = paper::TABLE_4.into_iter().map(|row| IpcRow {
        function: format!("paper: {}", row.function),
        before: Some(row.before),
        after: row.after,
    });
    let of_splitway = measured.costs.iter().flat_map(|row| {
        let (Some(ns), Some(instructions)) = (row.ns, row.instructions) else {
            return Vec::new();
        };
        let table = tables
            .iter()
            .find(|table| table.connections == row.connections);
        let more_misses = table.map(|table| table.miss_ratio_beside - table.miss_ratio_alone);
        let costs = [
            (ns.ack, instructions.ack),
            (ns.send, instructions.send),
            (ns.request, instructions.request),
        ];
        let row = |((function, lines), (ns, instructions)): ((&str, f64), (f64, f64))| {
            let ipc = |ns: f64| instructions / (ns * measured.core_ghz);
            IpcRow {
                function: format!("Splitway: {function}, {} connections", row.connections),
                before: more_misses.map(|misses| ipc(ns + lines * misses * (MISS_NS - HIT_NS))),
                after: ipc(ns),
            }
        };
        LINES.into_iter().zip(costs).map(row).collect()
    });
    of_paper.chain(of_splitway).collect()
}

pub(super) fn ipc_table(rows: &[IpcRow]) -> String {
    let mut text = String::from(
        "## Table 4: instructions per cycle\n\n*Before*: the data plane on the same CPU; the paper's are measured, Splitway's are \
         simulated with the misses above. *After*: without it, measured; Splitway's are instructions by callgrind, CPU time by \
         the kernel, and cycles by a chain of multiplications, on this machine.\n\n\
         | | Before | After |\n|---|---|---|\n",
    );
    for row in rows {
        let before = row.before.map_or("—".to_owned(), |ipc| format!("{ipc:.2}"));
        let _ = writeln!(text, "| {} | {before} | {:.2} |", row.function, row.after);
    }
    text
}
