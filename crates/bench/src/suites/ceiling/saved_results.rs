//! Saved results of the ceiling, as input of the model.

use std::path::{Path, PathBuf};

use testbed::{Failure, Result};

use super::costs::Costs;
use super::report::{
    CLOCK, CONNECTIONS, CORES, COSTS, FILE_BYTES, GBIT_PER_CORE, GHZ, INSTRUCTIONS, LOADS, NS,
    conditions, series,
};
use super::stub_nic::{Acks, Load};
use crate::measure::publish::results_directory;
use crate::measure::results::Saved;

/// Name of the benchmark, and of its files.
pub(crate) const BENCHMARK: &str = "ceiling";

/// Results of a run of the benchmark.
#[derive(Debug)]
pub(crate) struct Found {
    /// Path of the file.
    pub(crate) file: PathBuf,
    saved: Saved,
}

/// Medians of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of {
    pub(crate) gbit_per_core: f64,
    /// CPU time of the host process, and number of ACKs received, for each gigabyte.
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) acks_per_gb: f64,
    pub(crate) ns_per_response: f64,
    pub(crate) memory_mb: f64,
}

impl Found {
    /// Reads the results from this run's output, or else from the default directory; `None` if
    /// neither has them.
    pub(crate) fn beside(output: &Path) -> Result<Option<Found>> {
        let file = |directory: &Path| directory.join(format!("{BENCHMARK}.json"));
        let places = [file(output), file(&results_directory()?)];
        let found = places.into_iter().find(|file| file.exists());
        found.map(|file| Found::read(&file)).transpose()
    }

    /// Reads the results from a file.
    pub(crate) fn read(file: &Path) -> Result<Found> {
        Ok(Found {
            file: file.to_owned(),
            saved: Saved::read_file(file, BENCHMARK)?,
        })
    }

    /// Returns the medians of a load; `None` if it was not measured.
    fn of(&self, load: &Load) -> Option<Of> {
        let (series, conditions) = (series(load.acks), conditions(load));
        let median = |measure| {
            let spread = self.saved.spread(LOADS, series, &conditions, measure);
            spread.median
        };
        let of = Of {
            gbit_per_core: median(GBIT_PER_CORE),
            cpu_s_per_gb: median("cpu_s_per_gb"),
            acks_per_gb: median("acks_per_gb"),
            ns_per_response: median("ns_per_response"),
            memory_mb: median("memory_mb"),
        };
        of.gbit_per_core.is_finite().then_some(of)
    }

    /// Returns the medians of a load with the largest files, as in content delivery, and with
    /// superpackets that all NICs support.
    pub(crate) fn of_content(&self, connections: usize, acks: Acks) -> Option<Of> {
        self.of(&Load {
            connections,
            acks,
            superpacket_bytes: super::SUPERPACKETS_BYTES[0],
            file_bytes: *self.numbers(FILE_BYTES).last()? as u64,
        })
    }

    /// Returns all numbers of connections, ascending.
    pub(crate) fn connections(&self) -> Vec<usize> {
        let numbers = self.numbers(CONNECTIONS).into_iter();
        numbers.map(|number| number as usize).collect()
    }

    fn numbers(&self, condition: &str) -> Vec<f64> {
        self.saved.values_of(LOADS, condition)
    }

    /// Returns the cost of an ACK, a SEND and a request with this number of connections, in
    /// nanoseconds.
    pub(crate) fn ns(&self, connections: usize) -> Option<Costs> {
        self.costs(NS, connections)
    }

    /// Returns the same in instructions, which are counted with one number of connections only.
    pub(crate) fn instructions(&self, connections: usize) -> Option<Costs> {
        self.costs(INSTRUCTIONS, connections)
    }

    fn costs(&self, unit: &str, connections: usize) -> Option<Costs> {
        let conditions = [(CONNECTIONS, connections as f64)];
        let of = |measure| {
            let cost = self.saved.spread(COSTS, unit, &conditions, measure).median;
            cost.is_finite().then_some(cost)
        };
        Some(Costs {
            ack: of("ack")?,
            send: of("send")?,
            request: of("request")?,
        })
    }

    /// Returns the clock frequency of the cores, in GHz.
    pub(crate) fn core_ghz(&self) -> Result<f64> {
        let ghz = self.saved.spread(CLOCK, CORES, &[], GHZ).median;
        if ghz.is_finite() {
            Ok(ghz)
        } else {
            Err(Failure::new(format!(
                "{} does not say how fast the cores are; `splitway-bench {BENCHMARK}` measures it",
                self.file.display()
            )))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::host_process::Account;
    use super::super::report::{add, add_clock, add_costs, report};
    use super::super::run::Run;
    use super::super::stub_nic::Counts;
    use super::*;
    use crate::measure::results::Results;

    /// Returns a run with 10 µs for each response of 500 KB, and `acks` ACKs.
    pub(crate) fn run(acks: u64, host_bytes: u64) -> Run {
        Run {
            elapsed_ns: 2_000_000_000,
            host_cpu_ns: 1_000_000_000,
            counts: Counts {
                sends: 200_000,
                acks: acks * 100_000,
                requests: 100_000,
                responses: 100_000,
                body_bytes: 50_000_000_000,
                ..Counts::default()
            },
            host_bytes,
            account: Account::default(),
        }
    }

    pub(crate) fn load(connections: usize, acks: Acks) -> Load {
        Load {
            connections,
            acks,
            superpacket_bytes: 65_535,
            file_bytes: 500_000,
        }
    }

    /// Returns results of 16 and of 1,600 connections: 20 ms for a gigabyte, 300 ns and
    /// instructions for an ACK, at 3 GHz.
    pub(crate) fn found(directory: &Path) -> Found {
        let mut results = Results::new(BENCHMARK, "Ceiling", &()).unwrap();
        for (connections, host_bytes) in [(16, 10_000_000), (1600, 30_000_000)] {
            let costs = Costs {
                ack: 300.0,
                send: 500.0,
                request: 6_000.0,
            };
            add(
                &mut results,
                &load(connections, Acks::Superpacket),
                &run(8, host_bytes),
            );
            add(
                &mut results,
                &load(connections, Acks::TwoPackets),
                &run(173, host_bytes),
            );
            add_costs(&mut results, NS, connections, costs);
            add_costs(&mut results, INSTRUCTIONS, connections, costs);
        }
        add_clock(&mut results, 3.0);
        report(&mut results, &[load(1600, Acks::Superpacket)]);
        results.publish(directory).unwrap();
        Found::beside(directory).unwrap().unwrap()
    }

    #[test]
    fn what_was_measured_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let found = found(directory.path());
        assert_eq!(found.file, directory.path().join("ceiling.json"));
        assert_eq!(found.connections(), [16, 1600]);
        let of = found.of_content(1600, Acks::TwoPackets).unwrap();
        assert_eq!((of.gbit_per_core, of.cpu_s_per_gb), (400.0, 0.02));
        assert_eq!(
            (of.acks_per_gb, of.ns_per_response, of.memory_mb),
            (346_000.0, 10_000.0, 30.0)
        );
        assert!(found.of(&load(7, Acks::Superpacket)).is_none());
        assert_eq!(found.ns(16).unwrap().request, 6_000.0);
        assert!(found.instructions(7).is_none());
        assert_eq!(found.core_ghz().unwrap(), 3.0);
    }

    #[test]
    fn the_ceiling_is_held_against_its_target() {
        let mut results = Results::new(BENCHMARK, "Ceiling", &()).unwrap();
        let load = load(TARGET, Acks::Superpacket);
        add(&mut results, &load, &run(8, 1));
        let other = Load {
            connections: 16,
            ..load
        };
        report(&mut results, &[load, other]);
        let met: Vec<_> = results
            .checks()
            .iter()
            .map(|check| (check.value, check.met))
            .collect();
        assert_eq!(met, [(Some(400.0), true), (None, false)]);
    }

    const TARGET: usize = super::super::report::TARGET_CONNECTIONS;
}
