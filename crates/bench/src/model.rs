//! What needs hardware that is not here, by `sim`'s model: IO-TCP's figures 3 and 12a and its table 4, and what it takes
//! to reach 100 to 800 Gbit/s. Simulated, calibrated with what `splitway-bench ceiling` has measured.

mod calibration;
mod figures;
mod scaling;

use std::path::PathBuf;

use serde::Serialize;
use testbed::Result;

use self::calibration::Measured;
use crate::publish::{publish, results_directory};

/// What is drawn, and from what.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// What `splitway-bench ceiling` has measured; by default, what it has left in the place of results.
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Connections of the calibration from which host cores are computed.
    #[arg(long, default_value_t = 1600)]
    connections: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    settings: Settings,
    published: Vec<scaling::Published>,
    scaling: Vec<scaling::Row>,
    stations: Vec<scaling::StationRow>,
    figure3: Vec<figures::DiskRow>,
    figure12a: Vec<figures::LookupRow>,
    splitway_lookups: Vec<figures::TableRow>,
    table4: Vec<figures::IpcRow>,
}

const NOTE: &str = "\
**Simulated.** Nothing here was measured on the hardware that it speaks of, except what is marked as the paper's (IO-TCP, Kim
et al., NSDI 2023) and the host stack's costs, which `splitway-bench ceiling` has measured on this machine. Parameters, their
sources, and what the model cannot tell: `docs/model.md`.";

/// Draws, and writes `model.md`, `model.json` and the plots.
pub(crate) fn draw(settings: &Settings) -> Result<()> {
    let directory = results_directory()?;
    let file = settings.calibration.clone();
    let measured = Measured::read(&file.unwrap_or_else(|| directory.join("ceiling.json")))?;
    let calibration = measured.calibration(settings.connections)?;
    let splitway_lookups = figures::table_rows(&measured);
    let report = Report {
        settings: settings.clone(),
        published: scaling::published(&calibration),
        scaling: scaling::rows(&calibration),
        stations: scaling::stations(&calibration),
        figure3: figures::disk_rows(),
        figure12a: figures::lookup_rows(),
        table4: figures::ipc_rows(&measured, &splitway_lookups),
        splitway_lookups,
    };
    let text = [
        format!("# Model\n\n{NOTE}\n"),
        scaling::published_table(&report.published),
        scaling::table(&report.scaling, &calibration),
        scaling::station_table(&report.stations),
        figures::disk_table(&report.figure3),
        figures::lookup_table(&report.figure12a, &report.splitway_lookups),
        figures::ipc_table(&report.table4),
    ];
    let plots = [
        ("model-scaling.svg", scaling::plot(&report.scaling)?),
        ("model-figure3.svg", figures::disk_plot(&report.figure3)?),
        (
            "model-figure12a.svg",
            figures::lookup_plot(&report.figure12a)?,
        ),
    ];
    publish(&directory, "model", text.join("\n"), &report, plots)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a run says that took 10 µs for each response of 500 KB, and so many ACKs.
    fn run(acks: u64, host_bytes: u64) -> serde_json::Value {
        json!({
            "elapsed_ns": 2_000_000_000_u64,
            "host_cpu_ns": 1_000_000_000,
            "counts": {
                "sends": 200_000, "acks": acks * 100_000, "requests": 100_000, "responses": 100_000,
                "body_bytes": 50_000_000_000_u64, "opens": 0, "closes": 0, "ackds": 0, "host_packets": 0,
                "repeated_sends": 0,
            },
            "host_bytes": host_bytes,
            "account": {
                "requests": 100_000, "retransmissions": 0, "timeouts": 0, "invalid": 0, "sleeps": 0, "pauses": 0,
            },
        })
    }

    fn measured() -> Measured {
        let load = |connections, acks| {
            json!({
                "connections": connections, "acks": acks, "superpacket_bytes": 65_535, "file_bytes": 500_000,
            })
        };
        let costs = json!({ "ack": 300.0, "send": 500.0, "request": 6_000.0 });
        serde_json::from_value(json!({
            "core_ghz": 3.0,
            "cells": [
                { "load": load(16, "superpacket"), "runs": [run(8, 10_000_000)] },
                { "load": load(1600, "superpacket"), "runs": [run(8, 30_000_000)] },
                { "load": load(1600, "two_packets"), "runs": [run(173, 30_000_000)] },
            ],
            "costs": [
                { "connections": 16, "ns": costs, "instructions": null },
                { "connections": 1600, "ns": costs, "instructions": costs },
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_core_controls_what_was_measured_less_the_reception_of_frames() {
        let calibration = measured().calibration(1600).unwrap();
        // 20 ms for a gigabyte, and 16,000 ACKs of 70 ns each.
        let gbit_per_s = calibration.gbit_per_core(sim::model::pipeline::Acks::Superpacket);
        assert!(
            (gbit_per_s - 8.0 / (0.020 + 0.00112)).abs() < 0.1,
            "{gbit_per_s}"
        );
    }

    #[test]
    fn what_was_not_measured_is_asked_for() {
        let failure = measured().calibration(7).unwrap_err().to_string();
        assert!(failure.contains("--connections 7"), "{failure}");
    }

    #[test]
    fn the_figures_are_drawn_with_the_papers_points() {
        let measured = measured();
        let rows = scaling::rows(&measured.calibration(1600).unwrap());
        for svg in [
            scaling::plot(&rows),
            figures::disk_plot(&figures::disk_rows()),
        ] {
            assert!(svg.unwrap().contains("published: "));
        }
        let table4 = figures::ipc_table(&figures::ipc_rows(
            &measured,
            &figures::table_rows(&measured),
        ));
        assert!(
            table4.contains("| paper: processing ACKs | 0.13 | 1.24 |"),
            "{table4}"
        );
        // 300 instructions in 300 ns of 3 GHz.
        let ack = table4
            .lines()
            .find(|line| line.contains("Splitway: an ACK, 1600"));
        assert!(
            ack.is_some_and(|line| line.ends_with("| 0.33 |")),
            "{table4}"
        );
    }
}
