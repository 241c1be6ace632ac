//! Results of the ceiling, in the form of all benchmarks.

use super::costs::Costs;
use super::run::Run;
use super::stub_nic::{Acks, Load};
use crate::measure::results::{Bound, Measures, Plot, Results, Table, column};

/// Target in Gbit/s for each host core, and its number of connections.
pub(super) const TARGET_GBIT_PER_S: f64 = 400.0;
pub(super) const TARGET_CONNECTIONS: usize = 1600;

/// Parts of the results.
pub(super) const LOADS: &str = "loads";
pub(super) const COSTS: &str = "costs";
pub(super) const CLOCK: &str = "clock";

/// Conditions of a load.
pub(super) const CONNECTIONS: &str = "connections";
pub(super) const FILE_BYTES: &str = "file_bytes";
pub(super) const SUPERPACKET_BYTES: &str = "superpacket_bytes";

/// Series of [`COSTS`], and of [`CLOCK`].
pub(super) const NS: &str = "ns";
pub(super) const INSTRUCTIONS: &str = "instructions";
pub(super) const CORES: &str = "cores";

pub(super) const GBIT_PER_CORE: &str = "gbit_per_core";
pub(super) const GHZ: &str = "ghz";

const NOTE: &str = "One process on a core of its own runs the host stack and the HTTP server as \
    `splitway serve` does. Another plays the NIC stack, which reports each SEND's departure at \
    once, and all clients, which ask for file after file and acknowledge at once. Commands, events \
    and frames cross between the two in rings in shared memory; there is no kernel and no network \
    between them, and no byte of a file. So this is what one host core can decide, not what a \
    machine can send.";

const COLUMNS_NOTE: &str = "*Gbit/s per core* divides bytes of files by CPU time of the host \
    process, *Gbit/s by the clock* by the time that went by. *Busy* is the quotient of the two; \
    the rest of the time the host waits for the other process.";

/// Returns the series of a load, by its clients' acknowledgments.
pub(super) fn series(acks: Acks) -> &'static str {
    match acks {
        Acks::Superpacket => "an ACK for a superpacket",
        Acks::TwoPackets => "an ACK for two packets",
    }
}

/// Returns the conditions that differ between loads of one series.
pub(super) fn conditions(load: &Load) -> [(&'static str, f64); 3] {
    [
        (CONNECTIONS, load.connections as f64),
        (FILE_BYTES, load.file_bytes as f64),
        (SUPERPACKET_BYTES, load.superpacket_bytes as f64),
    ]
}

impl Run {
    /// Returns all measures of the run.
    pub(super) fn measures(&self) -> Measures {
        let counts = &self.counts;
        let each = |value: u64| value as f64 / counts.responses as f64;
        // Nanoseconds per byte are seconds per gigabyte.
        let per_byte = |value: u64| value as f64 / counts.body_bytes as f64;
        [
            (GBIT_PER_CORE, self.gbit_per_cpu_s()),
            ("gbit_per_s", self.gbit_per_s()),
            ("busy", self.host_share()),
            ("ns_per_response", each(self.host_cpu_ns)),
            ("acks_per_response", each(counts.acks)),
            ("sends_per_response", each(counts.sends)),
            ("cpu_s_per_gb", per_byte(self.host_cpu_ns)),
            ("acks_per_gb", 1e9 * per_byte(counts.acks)),
            ("sends_per_gb", 1e9 * per_byte(counts.sends)),
            ("responses", counts.responses as f64),
            ("memory_mb", self.host_bytes as f64 / 1e6),
            ("retransmissions", self.account.retransmissions as f64),
            ("timeouts", self.account.timeouts as f64),
            ("sleeps", self.account.sleeps as f64),
            ("pauses", self.account.pauses as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// Adds a run.
pub(super) fn add(results: &mut Results, load: &Load, run: &Run) {
    results.add(LOADS, series(load.acks), &conditions(load), run.measures());
}

/// Adds the cost of an ACK, a SEND and a request, in nanoseconds or instructions.
pub(super) fn add_costs(
    results: &mut Results,
    unit: &'static str,
    connections: usize,
    costs: Costs,
) {
    let Costs { ack, send, request } = costs;
    let measures = [("ack", ack), ("send", send), ("request", request)];
    let measures = measures.map(|(name, value)| (name.to_owned(), value));
    results.add(
        COSTS,
        unit,
        &[(CONNECTIONS, connections as f64)],
        measures.into(),
    );
}

/// Adds the clock frequency of a core.
pub(super) fn add_clock(results: &mut Results, ghz: f64) {
    results.add(CLOCK, CORES, &[], [(GHZ.to_owned(), ghz)].into());
}

/// Returns the table of loads.
pub(super) fn loads_table() -> Table {
    Table::of(
        LOADS,
        vec![
            column(GBIT_PER_CORE, "Gbit/s per core", 0),
            column("gbit_per_s", "Gbit/s by the clock", 0),
            column("busy", "busy", 2),
            column("ns_per_response", "ns for a response", 0),
            column("acks_per_response", "ACKs for a response", 1),
            column("sends_per_response", "SENDs for a response", 1),
            column("memory_mb", "host's memory, MB", 0),
        ],
    )
    .of_each("Clients send")
    .over(&[
        (CONNECTIONS, "Connections"),
        (FILE_BYTES, "File, bytes"),
        (SUPERPACKET_BYTES, "Superpackets up to, bytes"),
    ])
}

/// Adds tables, plots, and the target; `targeted` are its loads.
pub(super) fn report(results: &mut Results, targeted: &[Load]) {
    results.table(loads_table());
    results.table(
        Table::of(
            COSTS,
            vec![
                column("ack", "ACK", 0),
                column("send", "SEND", 0),
                column("request", "request", 0),
            ],
        )
        .titled(
            "What each costs the host by itself, from loads that have more of one and less of \
            another",
        )
        .of_each("In")
        .over(&[(CONNECTIONS, "Connections")]),
    );
    results.table(
        Table::of(CLOCK, vec![column(GHZ, "GHz", 2)])
            .titled("The cores' clock")
            .of_each(""),
    );
    let x = (CONNECTIONS, "connections");
    let lines = Plot::lines("ceiling", COSTS, x, ("ack", "an ACK: ns, or instructions"));
    results.plot(lines.titled("What an ACK costs the host, over connections"));
    for load in targeted {
        results.check(
            format!(
                "{} connections, an ACK for a superpacket of up to {} bytes: Gbit/s per core",
                load.connections, load.superpacket_bytes
            ),
            gbit_per_core(results, load),
            Bound::AtLeast(TARGET_GBIT_PER_S),
        );
    }
    results.note(NOTE);
    results.note(COLUMNS_NOTE);
}

/// Returns the median of a load, in Gbit/s for each core of the host.
pub(super) fn gbit_per_core(results: &Results, load: &Load) -> f64 {
    let runs = results.under(LOADS, series(load.acks), &conditions(load));
    runs.median(GBIT_PER_CORE)
}
