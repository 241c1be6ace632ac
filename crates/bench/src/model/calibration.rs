//! What the ceiling of a host core tells the model.

use std::path::Path;

use serde::Deserialize;
use sim::model::Calibration;
use testbed::{Context, Failure, Result};

use crate::ceiling::far::Acks;
use crate::ceiling::report::{Cell, CostRow};

/// Superpackets, in bytes, of all NICs.
const SUPERPACKET_BYTES: usize = 65_535;

/// What was measured, as far as the model wants it.
#[derive(Debug, Deserialize)]
pub(super) struct Measured {
    pub(super) cells: Vec<Cell>,
    pub(super) costs: Vec<CostRow>,
    /// Clock of the cores, in GHz.
    pub(super) core_ghz: f64,
}

impl Measured {
    pub(super) fn read(path: &Path) -> Result<Measured> {
        let text = std::fs::read_to_string(path).context(|| {
            format!(
                "reading the calibration {}, which `splitway-bench ceiling` writes",
                path.display()
            )
        })?;
        serde_json::from_str(&text).context(|| format!("understanding {}", path.display()))
    }

    /// The cell with the largest files, which are what content is, and superpackets as all NICs have them.
    fn cell(&self, connections: usize, acks: Acks) -> Option<&Cell> {
        let cells = self.cells.iter().filter(|cell| {
            let load = &cell.load;
            load.connections == connections
                && load.acks == acks
                && load.superpacket_bytes == SUPERPACKET_BYTES
        });
        cells.max_by_key(|cell| cell.load.file_bytes)
    }

    pub(super) fn calibration(&self, connections: usize) -> Result<Calibration> {
        let costs = |acks| {
            let run = self.cell(connections, acks).and_then(Cell::typical);
            let run = run.ok_or_else(|| {
                Failure::new(format!(
                    "the calibration has nothing measured with {connections} connections; \
                     `splitway-bench ceiling --connections {connections}` measures it"
                ))
            })?;
            let gb = run.counts.body_bytes as f64 / 1e9;
            let s_per_gb = run.host_cpu_ns as f64 / 1e9 / gb;
            Ok((s_per_gb, run.counts.acks as f64 / gb))
        };
        let (superpacket_s_per_gb, superpacket_acks_per_gb) = costs(Acks::Superpacket)?;
        let (two_packets_s_per_gb, two_packets_acks_per_gb) = costs(Acks::TwoPackets)?;
        Ok(Calibration {
            connections,
            superpacket_s_per_gb,
            superpacket_acks_per_gb,
            two_packets_s_per_gb,
            two_packets_acks_per_gb,
        })
    }

    /// All numbers of connections, ascending, with CPU time and memory of the host for them: nanoseconds for a response,
    /// and bytes.
    pub(super) fn by_connections(&self) -> Vec<(usize, f64, u64)> {
        let mut numbers: Vec<usize> = self.costs.iter().map(|row| row.connections).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let of = |connections| {
            let cell = self.cell(connections, Acks::Superpacket)?;
            let run = cell.typical()?;
            let ns = run.host_cpu_ns as f64 / run.counts.responses as f64;
            Some((connections, ns, run.host_bytes))
        };
        numbers.into_iter().filter_map(of).collect()
    }
}
