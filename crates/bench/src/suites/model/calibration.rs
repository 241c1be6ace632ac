//! Calibration of the model by the measured ceiling of a host core.

use std::path::Path;

use sim::model::Calibration;
use testbed::{Failure, Result};

use crate::suites::ceiling::costs::Costs;
use crate::suites::ceiling::saved_results::{BENCHMARK, Found};
use crate::suites::ceiling::stub_nic::Acks;

/// Measurements that the model uses.
#[derive(Debug)]
pub(crate) struct Measured {
    found: Found,
}

/// Resources of the host with a number of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub(super) connections: usize,
    /// CPU time for a response.
    pub(super) ns: f64,
    pub(super) memory_bytes: f64,
}

impl Measured {
    /// Reads the measurements from this file, or from the benchmark's default location.
    pub(super) fn read(file: Option<&Path>, output: &Path) -> Result<Measured> {
        let found = match file {
            Some(file) => Some(Found::read(file)?),
            None => Found::beside(output)?,
        };
        let found = found.ok_or_else(|| {
            Failure::new(format!(
                "the model computes with what one host core was measured to control, and there is \
                 no {BENCHMARK}.json in {}; `splitway-bench {BENCHMARK}` writes it, `--calibration \
                 FILE` takes another one",
                output.display()
            ))
        })?;
        Ok(Measured { found })
    }

    /// Returns a sentence with the source.
    pub(super) fn source(&self) -> String {
        format!("Calibrated with {}.", self.found.file.display())
    }

    pub(super) fn calibration(&self, connections: usize) -> Result<Calibration> {
        let of = |acks| {
            self.found.of_content(connections, acks).ok_or_else(|| {
                Failure::new(format!(
                    "the calibration has nothing measured with {connections} connections; \
                     `splitway-bench {BENCHMARK} --connections {connections}` measures it"
                ))
            })
        };
        let (superpacket, two_packets) = (of(Acks::Superpacket)?, of(Acks::TwoPackets)?);
        Ok(Calibration {
            connections,
            superpacket_s_per_gb: superpacket.cpu_s_per_gb,
            superpacket_acks_per_gb: superpacket.acks_per_gb,
            two_packets_s_per_gb: two_packets.cpu_s_per_gb,
            two_packets_acks_per_gb: two_packets.acks_per_gb,
        })
    }

    /// Returns the hosts for all numbers of connections, ascending.
    pub(super) fn hosts(&self) -> Vec<Host> {
        let of = |connections| {
            let of = self.found.of_content(connections, Acks::Superpacket)?;
            Some(Host {
                connections,
                ns: of.ns_per_response,
                memory_bytes: 1e6 * of.memory_mb,
            })
        };
        self.found
            .connections()
            .into_iter()
            .filter_map(of)
            .collect()
    }

    /// Returns the cost of an ACK, a SEND and a request, in nanoseconds and in instructions; `None`
    /// unless both were measured.
    pub(super) fn costs(&self, connections: usize) -> Option<(Costs, Costs)> {
        let ns = self.found.ns(connections)?;
        Some((ns, self.found.instructions(connections)?))
    }

    /// Returns the clock frequency of the cores, in GHz.
    pub(super) fn core_ghz(&self) -> Result<f64> {
        self.found.core_ghz()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::measured;

    #[test]
    fn a_core_controls_what_was_measured_less_the_reception_of_frames() {
        let directory = tempfile::tempdir().unwrap();
        let calibration = measured(directory.path()).calibration(1600).unwrap();
        // 20 ms for a gigabyte, and 16,000 ACKs of 70 ns each.
        let gbit_per_s = calibration.gbit_per_core(sim::model::pipeline::Acks::Superpacket);
        assert!(
            (gbit_per_s - 8.0 / (0.020 + 0.00112)).abs() < 0.1,
            "{gbit_per_s}"
        );
    }

    #[test]
    fn what_was_not_measured_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let failure = measured(directory.path())
            .calibration(7)
            .unwrap_err()
            .to_string();
        assert!(failure.contains("--connections 7"), "{failure}");
    }
}
