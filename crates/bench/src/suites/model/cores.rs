//! Host cores and other hardware needed: IO-TCP's figure 7 on the paper's hardware, and 100 to 800
//! Gbit/s.

use sim::model::hardware::{
    BLUEFIELD_2, BLUEFIELD_3, Disk, Nic, OPTANE_900P, PCIE_4_DISK, PCIE_5_DISK,
};
use sim::model::pipeline::{Acks, Needs, Server, needs};
use sim::model::{Calibration, paper};
use testbed::Result;

use super::calibration::Measured;
use super::{Settings, measures};
use crate::measure::results::{Plot, Published, Results, Table, column};
use crate::paper::FIGURE_7;

const RATES_GBIT_PER_S: [f64; 5] = [50.0, 100.0, 200.0, 400.0, 800.0];

/// NICs, each with disks of its generation.
const GENERATIONS: [(Nic, Disk); 2] = [(BLUEFIELD_2, PCIE_4_DISK), (BLUEFIELD_3, PCIE_5_DISK)];

/// Number of cores of the paper's CPU.
const CORES_MAX: usize = 10;

/// Acknowledgment modes of clients, and their names in the results.
const ACKS: [(Acks, &str); 2] = [
    (Acks::Superpacket, "ACKs for superpackets"),
    (Acks::TwoPackets, "ACKs for two packets"),
];

/// Parts of the results.
const OVER_CORES: &str = "over cores";
const NEEDS: &str = "needs";
const COUNTS: &str = "counts";
const STATIONS: &str = "stations";
const PAPER: &str = "paper";

const CORES: (&str, &str) = ("cores", "Host cores");
const RATE: (&str, &str) = ("gbit_per_s", "Gbit/s of files");
const GBIT: (&str, &str) = ("gbit_per_s", "Gbit/s");
const COUNT: (&str, &str) = ("count", "how many");
const CARRIED: (&str, &str) = ("carried_gbit_per_s", "Gbit/s");

pub(super) fn results(
    settings: &Settings,
    measured: &Measured,
    connections: usize,
) -> Result<Results> {
    let calibration = measured.calibration(connections)?;
    let title = "Host cores: throughput over them, and what it takes to reach 100 to 800 Gbit/s";
    let mut results = Results::simulated("cores", title, settings)?;
    add_over_cores(&mut results, &calibration);
    add_needs(&mut results, &calibration);
    add_stations(&mut results, &calibration);
    add_of_paper(&mut results, &calibration);
    report(&mut results, &calibration);
    results.note(measured.source());
    Ok(results)
}

/// Two NICs with two disks each, as in the paper.
const OF_PAPER: Server = Server {
    nic: BLUEFIELD_2,
    nics: 2,
    disk: OPTANE_900P,
    disks: 4,
    host_cores: 1,
};

/// Returns NICs and disks for the highest rate.
fn largest(calibration: &Calibration) -> Server {
    let highest = RATES_GBIT_PER_S[RATES_GBIT_PER_S.len() - 1];
    let needs = needs(
        highest,
        BLUEFIELD_3,
        PCIE_5_DISK,
        calibration,
        Acks::Superpacket,
    );
    Server {
        nic: BLUEFIELD_3,
        nics: needs.nics,
        disk: PCIE_5_DISK,
        disks: needs.disks,
        host_cores: 1,
    }
}

fn add_over_cores(results: &mut Results, calibration: &Calibration) {
    for server in [OF_PAPER, largest(calibration)] {
        for (acks, what) in ACKS {
            for host_cores in 1..=CORES_MAX {
                let server = Server {
                    host_cores,
                    ..server
                };
                let (_, gbit_per_s) = server.bottleneck(calibration, acks);
                results.add(
                    OVER_CORES,
                    format!(
                        "{} {}, {} disks, {what}",
                        server.nics, server.nic.name, server.disks
                    ),
                    &[(CORES.0, host_cores as f64)],
                    measures([(GBIT.0, gbit_per_s)]),
                );
            }
        }
    }
}

fn add_needs(results: &mut Results, calibration: &Calibration) {
    for gbit_per_s in RATES_GBIT_PER_S {
        let rate = [(RATE.0, gbit_per_s)];
        for (nic, disk) in GENERATIONS {
            let [usual, many] =
                ACKS.map(|(acks, _)| needs(gbit_per_s, nic, disk, calibration, acks));
            let values = [
                ("host_cores", usual.host_cores),
                ("host_cores_two_packets", many.host_cores),
                ("nics", usual.nics),
                ("disks", usual.disks),
                ("software_nic_cores", usual.software_nic_cores),
            ];
            results.add(
                NEEDS,
                format!(
                    "{}, as many as their {} asks for; {}",
                    nic.name,
                    usual.nics_for.name(),
                    disk.name
                ),
                &rate,
                measures(values.map(|(name, count)| (name, count as f64))),
            );
            let is_first = nic == BLUEFIELD_2;
            let mut count = |series: &str, count: usize| {
                results.add(COUNTS, series, &rate, measures([(COUNT.0, count as f64)]));
            };
            count(nic.name, usual.nics);
            // Host cores do not depend on NICs.
            if is_first {
                let Needs {
                    host_cores,
                    software_nic_cores,
                    ..
                } = usual;
                count("host cores", host_cores);
                count("host cores, an ACK for two packets", many.host_cores);
                count("or cores of a software NIC", software_nic_cores);
            }
        }
    }
}

/// Adds the rate of each station of a NIC, the slowest first.
fn add_stations(results: &mut Results, calibration: &Calibration) {
    for (nic, disk) in GENERATIONS {
        let server = Server {
            nic,
            nics: 1,
            disk,
            disks: 8,
            host_cores: 1,
        };
        let mut rates = server.rates(calibration, Acks::Superpacket);
        rates.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (station, gbit_per_s) in rates {
            let series = format!("{}: {}", nic.name, station.name());
            results.add(STATIONS, series, &[], measures([(CARRIED.0, gbit_per_s)]));
        }
    }
}

/// Adds the paper's measurements, and the model's values for them.
fn add_of_paper(results: &mut Results, calibration: &Calibration) {
    let next = Server {
        nic: BLUEFIELD_3,
        nics: 1,
        disk: PCIE_5_DISK,
        disks: 8,
        host_cores: 1,
    };
    let one = Server {
        nics: 1,
        ..OF_PAPER
    };
    const CALIBRATED: &str = ", calibrated with it";
    for (point, server, how) in [
        (paper::PLAIN, OF_PAPER, ""),
        (paper::TLS, OF_PAPER, ""),
        (paper::ONE_NIC, one, ""),
        (
            paper::DISKS_TO_SPARE,
            Server {
                disks: 8,
                ..OF_PAPER
            },
            CALIBRATED,
        ),
        (paper::NO_DISK, Server { disks: 0, ..one }, CALIBRATED),
        (paper::BLUEFIELD_3_EXPECTED, next, ""),
    ] {
        let (station, rate) = server.bottleneck(calibration, Acks::Superpacket);
        let series = format!(
            "{} ({}); slowest: {}{how}",
            point.what,
            point.place,
            station.name()
        );
        let values = [
            ("paper_gbit_per_s", point.value),
            ("model_gbit_per_s", rate),
        ];
        results.add(PAPER, series, &[], measures(values));
    }
}

fn report(results: &mut Results, calibration: &Calibration) {
    results.table(
        Table::of(
            NEEDS,
            vec![
                column("host_cores", "host cores", 0),
                column(
                    "host_cores_two_packets",
                    "the same, an ACK for two packets",
                    0,
                ),
                column("nics", "NICs", 0),
                column("disks", "disks", 0),
                column(
                    "software_nic_cores",
                    "or, in the NICs' place, cores of a software NIC",
                    0,
                ),
            ],
        )
        .titled("What it takes")
        .of_each("With")
        .over(&[RATE]),
    );
    results.table(
        Table::of(STATIONS, vec![column(CARRIED.0, CARRIED.1, 0)])
            .titled(
                "Where the bottleneck is: one NIC, eight disks of its time, one host core; \
                slowest first",
            )
            .of_each("Station"),
    );
    results.table(
        Table::of(
            PAPER,
            vec![
                column("paper_gbit_per_s", "paper, Gbit/s", 1),
                column("model_gbit_per_s", "model, Gbit/s", 1),
            ],
        )
        .titled(
            "The paper's hardware: two BlueField-2 with two Optane 900P each unless said otherwise",
        )
        .of_each("Measured by its authors"),
    );
    results.table(
        Table::of(OVER_CORES, vec![column(GBIT.0, GBIT.1, 1)])
            .titled(
                "Throughput over host cores: BlueField-2 with Intel Optane 900P as in the \
                paper, BlueField-3 with NVMe on PCIe 5.0",
            )
            .of_each("Server")
            .over(&[CORES]),
    );
    let scaling = Plot::lines("cores", COUNTS, RATE, COUNT);
    results.plot(scaling.titled("Simulated: what it takes (host cores as measured)"));
    let over_cores = Plot::lines("cores-figure7", OVER_CORES, CORES, GBIT);
    results.plot(over_cores.titled("Simulated: throughput over host cores (IO-TCP, figure 7)"));
    let stations = Plot::bars("cores-stations", STATIONS, CARRIED);
    results.plot(stations.titled("Simulated: what each station carries"));
    results.publish_beside(FIGURE_7);
    results.publish_beside(&[
        count_of_paper("host cores (figure 7)", paper::PLAIN, 1.0),
        count_of_paper("BlueField-2 (§5.2)", paper::DISKS_TO_SPARE, 2.0),
    ]);
    let [usual, many] = ACKS.map(|(acks, _)| calibration.gbit_per_core(acks));
    results.note(format!(
        "A host core controls {usual:.0} Gbit/s with one ACK for a superpacket of 64 KB, and \
         {many:.0} with one for two packets ({} connections, measured, and a packet socket's ring \
         in the model). The paper's host core was at 78.1 Gbit/s, where its disks ended.",
        calibration.connections
    ));
}

/// Returns the paper's count of a component at a rate.
fn count_of_paper(series: &'static str, point: paper::Point, count: f64) -> Published {
    Published {
        source: point.place,
        series,
        measure: COUNT.0,
        x: Some(point.value),
        value: count,
        unit: "of them",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, settings};
    use super::*;

    #[test]
    fn all_rates_are_there_and_higher_ones_never_take_less() {
        let directory = tempfile::tempdir().unwrap();
        let results = results(&settings(), &measured(directory.path()), 1600).unwrap();
        for series in ["host cores", "BlueField-2", "BlueField-3"] {
            let counts = RATES_GBIT_PER_S
                .map(|rate| results.at(COUNTS, series, RATE.0, rate).median(COUNT.0));
            assert!(
                counts.iter().all(|count| *count >= 1.0),
                "{series}: {counts:?}"
            );
            assert!(counts.is_sorted(), "{series}: {counts:?}");
        }
        let bars = results.of(STATIONS, "BlueField-2: NIC memory bandwidth");
        assert!((bars.median(CARRIED.0) - 47.6).abs() < 0.1);
    }

    #[test]
    fn the_papers_hardware_ends_with_its_disks_however_many_cores_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let results = results(&settings(), &measured(directory.path()), 1600).unwrap();
        let series = "2 BlueField-2, 4 disks, ACKs for superpackets";
        for cores in 1..=CORES_MAX {
            let reached = results
                .at(OVER_CORES, series, CORES.0, cores as f64)
                .median(GBIT.0);
            assert_eq!(reached, 80.0);
        }
    }
}
