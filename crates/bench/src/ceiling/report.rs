//! What the ceiling is, as a table and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use testbed::Result;

use super::costs::Costs;
use super::far::{Acks, Load};
use super::run::Run;
use crate::publish::publish;
use crate::table::{Spread, verdict};

/// What is meant to be reached with this many connections, in Gbit/s for each host core.
const TARGET_GBIT_PER_S: f64 = 400.0;
const TARGET_CONNECTIONS: usize = 1600;

/// A load, and what its runs have come to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) load: Load,
    pub(crate) runs: Vec<Run>,
}

/// What an ACK, a SEND and a request cost the host, by number of connections.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CostRow {
    pub(crate) connections: usize,
    /// CPU time, in nanoseconds.
    pub(crate) ns: Option<Costs>,
    /// Instructions; none if they were not counted.
    pub(crate) instructions: Option<Costs>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) settings: super::Settings,
    /// Clock of the cores, in GHz.
    pub(crate) core_ghz: f64,
    pub(crate) cells: Vec<Cell>,
    pub(crate) costs: Vec<CostRow>,
}

const NOTE: &str = "\
One process on a core of its own runs the host stack and the HTTP server as `splitway serve` does. Another plays the NIC
stack, which reports each SEND's departure at once, and all clients, which ask for file after file and acknowledge at
once. Commands, events and frames cross between the two in rings in shared memory; there is no kernel and no network
between them, and no byte of a file. So this is what one host core can decide, not what a machine can send.

*Gbit/s per core* divides bytes of files by CPU time of the host process, *Gbit/s by the clock* by the time that went by.
*Busy* is the quotient of the two; the rest of the time the host waits for the other process.";

impl Cell {
    pub(crate) fn spread(&self, value: impl Fn(&Run) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(value))
    }

    /// The run in the middle, by CPU time for each response.
    pub(crate) fn typical(&self) -> Option<&Run> {
        let cost = |run: &Run| run.host_cpu_ns as f64 / run.counts.responses as f64;
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        runs.get(runs.len() / 2).copied()
    }
}

impl Report {
    pub(crate) fn publish(&self, directory: &Path) -> Result<()> {
        publish(directory, "ceiling", self.markdown(), self, [])
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# How much one host core controls\n\n");
        let _ = writeln!(text, "{NOTE}\n");
        text.push_str(
            "| Connections | File bytes | Superpackets up to | One ACK for | Gbit/s per core | Gbit/s by the clock | \
             Busy | ns for a response | ACKs, SENDs for a response | Host's memory, MB |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for cell in &self.cells {
            let each = |value: fn(&Run) -> u64| {
                cell.spread(|run| value(run) as f64 / run.counts.responses as f64)
                    .median
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {:.0} % | {:.0} | {:.1}, {:.1} | {:.0} |",
                cell.load.connections,
                cell.load.file_bytes,
                cell.load.superpacket_bytes,
                match cell.load.acks {
                    Acks::Superpacket => "a superpacket",
                    Acks::TwoPackets => "two packets",
                },
                cell.spread(Run::gbit_per_cpu_s).cell(0),
                cell.spread(Run::gbit_per_s).cell(0),
                100.0 * cell.spread(Run::host_share).median,
                each(|run| run.host_cpu_ns),
                each(|run| run.counts.acks),
                each(|run| run.counts.sends),
                cell.spread(|run| run.host_bytes as f64 / 1e6).median,
            );
        }
        text.push_str(
            "\nWhat each costs the host by itself, from loads that have more of one and less of another:\n\n\
             | Connections | ns: ACK, SEND, request | Instructions: ACK, SEND, request |\n|---|---|---|\n",
        );
        for row in &self.costs {
            let cell = |costs: Option<Costs>| {
                costs.map_or("not told apart or not counted".to_owned(), |costs| {
                    let Costs { ack, send, request } = costs;
                    format!("{ack:.0}, {send:.0}, {request:.0}")
                })
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                row.connections,
                cell(row.ns),
                cell(row.instructions)
            );
        }
        let _ = writeln!(text, "\nThe cores' clock: {:.2} GHz.", self.core_ghz);
        for cell in self.targeted() {
            let reached = cell.spread(Run::gbit_per_cpu_s).median;
            let _ = writeln!(
                text,
                "\nMeant with {TARGET_CONNECTIONS} connections and one ACK for a superpacket of up to {} bytes: at least \
                 {TARGET_GBIT_PER_S} Gbit/s per core. Reached: {reached:.0}, {}.",
                cell.load.superpacket_bytes,
                verdict(reached >= TARGET_GBIT_PER_S)
            );
        }
        text
    }

    fn targeted(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| {
            let load = &cell.load;
            load.connections == TARGET_CONNECTIONS
                && load.file_bytes == self.settings.file_bytes
                && load.acks == Acks::Superpacket
        })
    }
}
