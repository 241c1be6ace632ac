//! Figure 12a: lookups of connections beside disk I/O.

use sim::model::cache::{LINE_BYTES, TABLE_BYTES, XEON_SILVER_4210};
use sim::model::paper;
use testbed::Result;

use super::calibration::Measured;
use super::{Settings, measures, published};
use crate::measure::results::{Plot, Results, Table, column};

const PART: &str = "lookups";
const OWN: &str = "Splitway's connections";

/// The rate of the paper's disks is a series of its own, so that its points are on the line.
const MODEL: &str = "model";

const X: (&str, &str) = ("disk_gb_per_s", "Disk I/O, GB/s");
const CONNECTIONS: (&str, &str) = ("connections", "Connections");

/// Disk rates: none, the paper's disks one by one, then the needs of 100 to 800 Gbit/s, which take
/// long and are left out of quick runs.
const DISK_GB_PER_S: [f64; 9] = [0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 25.0, 50.0, 100.0];
const QUICK_GB_PER_S: [f64; 5] = [0.0, 2.5, 5.0, 7.5, 10.0];

/// Rate of the paper's four disks.
const PAPER_GB_PER_S: f64 = 10.0;

/// Cache behavior of lookups in the host stack's connection table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookups {
    pub(super) connections: usize,
    bytes: f64,
    miss_ratio_alone: f64,
    miss_ratio_beside: f64,
    /// Rate of lookups, as a part of that without disk I/O.
    rate: f64,
    /// Measured, without any disk I/O on this CPU.
    ns_per_response: f64,
}

impl Lookups {
    /// Returns the additional misses per access.
    pub(super) fn more_misses(&self) -> f64 {
        self.miss_ratio_beside - self.miss_ratio_alone
    }
}

pub(super) fn lookups(measured: &Measured) -> Vec<Lookups> {
    let hosts = measured.hosts();
    // The host's memory with few connections: code, rings.
    let least = hosts
        .iter()
        .map(|host| host.memory_bytes)
        .fold(f64::INFINITY, f64::min);
    let of = |host: &super::calibration::Host| {
        let bytes = (host.memory_bytes - least).max(LINE_BYTES as f64);
        let [alone, beside] =
            [0.0, PAPER_GB_PER_S].map(|disks| XEON_SILVER_4210.look_up(bytes as usize, disks));
        Lookups {
            connections: host.connections,
            bytes,
            miss_ratio_alone: alone.miss_ratio,
            miss_ratio_beside: beside.miss_ratio,
            rate: alone.ns / beside.ns,
            ns_per_response: host.ns,
        }
    };
    hosts.iter().map(of).collect()
}

pub(super) fn results(settings: &Settings, measured: &Measured) -> Result<Results> {
    let title = "Figure 12a: lookups of connections beside disk I/O";
    let mut results = Results::simulated("figure12a", title, settings)?;
    let alone = XEON_SILVER_4210.look_up(TABLE_BYTES, 0.0);
    let rates = if settings.rounds.is_quick() {
        &QUICK_GB_PER_S[..]
    } else {
        &DISK_GB_PER_S
    };
    for &disk_gb_per_s in rates {
        let beside = XEON_SILVER_4210.look_up(TABLE_BYTES, disk_gb_per_s);
        let values = [
            ("missed_percent", 100.0 * beside.miss_ratio),
            ("miss_factor", beside.miss_ratio / alone.miss_ratio),
            ("lost_percent", 100.0 * (1.0 - alone.ns / beside.ns)),
        ];
        results.add(PART, MODEL, &[(X.0, disk_gb_per_s)], measures(values));
    }
    for lookups in lookups(measured) {
        let values = [
            ("memory_mb", lookups.bytes / 1e6),
            ("missed_alone_percent", 100.0 * lookups.miss_ratio_alone),
            ("missed_percent", 100.0 * lookups.miss_ratio_beside),
            ("lost_percent", 100.0 * (1.0 - lookups.rate)),
            ("ns_per_response", lookups.ns_per_response),
        ];
        let conditions = [(CONNECTIONS.0, lookups.connections as f64)];
        results.add(OWN, "splitway", &conditions, measures(values));
    }
    report(&mut results);
    results.note(measured.source());
    Ok(results)
}

fn report(results: &mut Results) {
    results.table(
        Table::of(
            PART,
            vec![
                column("missed_percent", "lines missed, %", 2),
                column("miss_factor", "times as many as without", 1),
                column("lost_percent", "lookups lost, %", 0),
            ],
        )
        .of_each("")
        .over(&[X]),
    );
    results.table(
        Table::of(
            OWN,
            vec![
                column("memory_mb", "memory of them, MB", 1),
                column("missed_alone_percent", "lines missed alone, %", 1),
                column("missed_percent", "beside 10 GB/s, %", 1),
                column("lost_percent", "lookups lost, %", 0),
                column("ns_per_response", "measured alone, ns for a response", 0),
            ],
        )
        .titled(
            "The same for what Splitway's host keeps of its connections (measured): what a host \
             stack loses that has the data plane on its own CPU",
        )
        .of_each("")
        .over(&[CONNECTIONS]),
    );
    results.plot(Plot::lines(
        "figure12a",
        PART,
        X,
        ("lost_percent", "% of lookups lost"),
    ));
    let misses = Plot::lines(
        "figure12a-misses",
        PART,
        X,
        ("miss_factor", "times the misses"),
    );
    results.plot(misses.titled("Simulated: Figure 12a: cache misses of lookups beside disk I/O"));
    let x = Some(PAPER_GB_PER_S);
    results.publish_beside(&[
        published(
            &paper::LOOKUP_LOSS,
            "lost_percent",
            x,
            100.0 * paper::LOOKUP_LOSS.value,
            "% of the lookups",
        ),
        published(
            &paper::LOOKUP_MISS_FACTOR,
            "miss_factor",
            x,
            paper::LOOKUP_MISS_FACTOR.value,
            "times as many",
        ),
    ]);
    results.note(
        "A cache like that of the paper's CPU, into two ways of which disks write. The size of the \
         table of connections is calibrated with the paper's factor of misses; the lookups that \
         are lost follow. The paper's disk I/O is what its four disks read.",
    );
}
