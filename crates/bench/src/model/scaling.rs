//! Where the bottleneck is, and what it takes to reach a rate.

use std::fmt::Write as _;

use serde::Serialize;
use sim::model::hardware::{
    BLUEFIELD_2, BLUEFIELD_3, Disk, Nic, OPTANE_900P, PCIE_4_DISK, PCIE_5_DISK,
};
use sim::model::pipeline::{Acks, Server, needs};
use sim::model::{Calibration, paper};
use testbed::Result;

use crate::results::{Chart, Line};

const RATES_GBIT_PER_S: [f64; 5] = [50.0, 100.0, 200.0, 400.0, 800.0];

/// NICs with the disks of their time.
const GENERATIONS: [(Nic, Disk); 2] = [(BLUEFIELD_2, PCIE_4_DISK), (BLUEFIELD_3, PCIE_5_DISK)];

/// A published measurement, and what the model says of it.
#[derive(Debug, Serialize)]
pub(super) struct Published {
    what: &'static str,
    place: &'static str,
    paper_gbit_per_s: f64,
    model_gbit_per_s: f64,
    slowest: &'static str,
    calibrated_with: bool,
}

pub(super) fn published(calibration: &Calibration) -> Vec<Published> {
    let of_paper = |nics, disks| Server {
        nic: BLUEFIELD_2,
        nics,
        disk: OPTANE_900P,
        disks,
        host_cores: 1,
    };
    let next = Server {
        nic: BLUEFIELD_3,
        disk: PCIE_5_DISK,
        ..of_paper(1, 8)
    };
    let rows = [
        (paper::PLAIN, of_paper(2, 4), false),
        (paper::TLS, of_paper(2, 4), false),
        (paper::ONE_NIC, of_paper(1, 4), false),
        (paper::DISKS_TO_SPARE, of_paper(2, 8), true),
        (paper::NO_DISK, of_paper(1, 0), true),
        (paper::BLUEFIELD_3_EXPECTED, next, false),
    ];
    let row = |(point, server, calibrated_with): (paper::Point, Server, bool)| {
        let (station, rate) = server.bottleneck(calibration, Acks::Superpacket);
        Published {
            what: point.what,
            place: point.place,
            paper_gbit_per_s: point.value,
            model_gbit_per_s: rate,
            slowest: station.name(),
            calibrated_with,
        }
    };
    rows.into_iter().map(row).collect()
}

pub(super) fn published_table(rows: &[Published]) -> String {
    let mut text = String::from(
        "## The paper's hardware\n\nGbit/s of files; two BlueField-2 with two Optane 900P each unless said otherwise.\n\n\
         | Measured | Paper | Model | Slowest in the model | Calibrated with it |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {} ({}) | {:.1} | {:.1} | {} | {} |",
            row.what,
            row.place,
            row.paper_gbit_per_s,
            row.model_gbit_per_s,
            row.slowest,
            if row.calibrated_with { "yes" } else { "no" }
        );
    }
    text
}

/// What it takes to reach a rate.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    gbit_per_s: f64,
    nic: &'static str,
    nics: usize,
    nics_for: &'static str,
    disk: &'static str,
    disks: usize,
    host_cores: usize,
    host_cores_two_packets: usize,
    software_nic_cores: usize,
}

pub(super) fn rows(calibration: &Calibration) -> Vec<Row> {
    let row = |gbit_per_s, (nic, disk)| {
        let [usual, many] = [Acks::Superpacket, Acks::TwoPackets]
            .map(|acks| needs(gbit_per_s, nic, disk, calibration, acks));
        Row {
            gbit_per_s,
            nic: nic.name,
            nics: usual.nics,
            nics_for: usual.nics_for.name(),
            disk: disk.name,
            disks: usual.disks,
            host_cores: usual.host_cores,
            host_cores_two_packets: many.host_cores,
            software_nic_cores: usual.software_nic_cores,
        }
    };
    let rates = RATES_GBIT_PER_S.into_iter();
    let rows = rates.flat_map(|rate| GENERATIONS.map(|generation| row(rate, generation)));
    rows.collect()
}

pub(super) fn table(rows: &[Row], calibration: &Calibration) -> String {
    let [usual, many] =
        [Acks::Superpacket, Acks::TwoPackets].map(|acks| calibration.gbit_per_core(acks));
    let mut text = format!(
        "## What it takes\n\nA host core controls {usual:.0} Gbit/s with one ACK for a superpacket of 64 KB, and {many:.0} with one \
         for two packets ({} connections, measured, and a packet socket's ring in the model). Cores of a software NIC take \
         the NICs' place.\n\n\
         | Gbit/s | Host cores | The same, one ACK for two packets | NICs | So many for their | Disks | Or cores of a software NIC |\n\
         |---|---|---|---|---|---|---|\n",
        calibration.connections
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {:.0} | {} | {} | {} {} | {} | {} {} | {} |",
            row.gbit_per_s,
            row.host_cores,
            row.host_cores_two_packets,
            row.nics,
            row.nic,
            row.nics_for,
            row.disks,
            row.disk,
            row.software_nic_cores
        );
    }
    text
}

pub(super) fn plot(rows: &[Row]) -> Result<String> {
    let line = |name: &str, of: Option<&str>, value: fn(&Row) -> usize| Line {
        name: name.to_owned(),
        points: rows
            .iter()
            .filter(|row| of.is_none_or(|nic| row.nic == nic))
            .map(|row| (row.gbit_per_s, value(row) as f64))
            .collect(),
        is_published: false,
    };
    let first = Some(BLUEFIELD_2.name);
    let chart = Chart {
        title: "Simulated: what it takes (host cores as measured)",
        x: "Gbit/s of files",
        y: "how many",
        lines: vec![
            line("host cores", first, |row| row.host_cores),
            line("host cores, one ACK for two packets", first, |row| {
                row.host_cores_two_packets
            }),
            line("BlueField-2", first, |row| row.nics),
            line("BlueField-3", Some(BLUEFIELD_3.name), |row| row.nics),
            line("or cores of a software NIC", first, |row| {
                row.software_nic_cores
            }),
            Line::published("one host core (figure 7)", (paper::PLAIN.value, 1.0)),
            Line::published("two BlueField-2 (§5.2)", (paper::DISKS_TO_SPARE.value, 2.0)),
        ],
    };
    chart.svg()
}

/// What each station of a NIC carries.
#[derive(Debug, Serialize)]
pub(super) struct StationRow {
    nic: &'static str,
    station: &'static str,
    gbit_per_s: f64,
}

pub(super) fn stations(calibration: &Calibration) -> Vec<StationRow> {
    let of = |(nic, disk): (Nic, Disk)| {
        let server = Server {
            nic,
            nics: 1,
            disk,
            disks: 8,
            host_cores: 1,
        };
        let rates = server.rates(calibration, Acks::Superpacket).into_iter();
        rates.map(move |(station, gbit_per_s)| StationRow {
            nic: nic.name,
            station: station.name(),
            gbit_per_s,
        })
    };
    let mut rows: Vec<StationRow> = GENERATIONS.into_iter().flat_map(of).collect();
    rows.sort_by(|a, b| {
        (a.nic, a.gbit_per_s)
            .partial_cmp(&(b.nic, b.gbit_per_s))
            .expect("numbers")
    });
    rows
}

pub(super) fn station_table(rows: &[StationRow]) -> String {
    let mut text = String::from(
        "## Where the bottleneck is\n\nOne NIC, eight disks of its time, one host core; slowest first.\n\n\
         | NIC | Station | Gbit/s |\n|---|---|---|\n",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} |",
            row.nic, row.station, row.gbit_per_s
        );
    }
    text
}
