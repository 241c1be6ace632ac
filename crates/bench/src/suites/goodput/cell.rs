//! Conditions of the link in each cell of the matrix.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The cells to measure.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Matrix {
    /// Percentages of packets lost, in both directions.
    #[arg(long, value_delimiter = ',', default_value = "0,0.1,1,5")]
    loss: Vec<f64>,
    /// Round-trip times, in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0.2,20,100")]
    rtt: Vec<f64>,
    /// Percentages of packets that others overtake.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    reorder: Vec<f64>,
    /// Numbers of flows.
    #[arg(long, value_delimiter = ',', default_value = "1,16,200")]
    flows: Vec<usize>,
    /// Rate of the link, in megabits per second: high enough to matter, and low enough that neither
    /// the two cores nor the emulator limit it.
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
}

impl Matrix {
    /// Only numbers of flows.
    pub(crate) fn without_loss(rtt_ms: f64, flows: Vec<usize>) -> Matrix {
        Matrix {
            loss: vec![0.0],
            rtt: vec![rtt_ms],
            reorder: vec![0.0],
            flows,
            rate: 200.0,
        }
    }

    /// Returns every loss with every round-trip time and every reordering, with `flows` flows.
    pub(crate) fn of(
        loss: &[f64],
        rtt_ms: &[f64],
        reorder: &[f64],
        flows: usize,
        rate: f64,
    ) -> Matrix {
        Matrix {
            loss: loss.to_vec(),
            rtt: rtt_ms.to_vec(),
            reorder: reorder.to_vec(),
            flows: vec![flows],
            rate,
        }
    }

    /// Returns all cells, or for quick runs some of each kind.
    pub(crate) fn cells(&self, quick: bool) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &rtt_ms in &self.rtt {
            for &reorder in &self.reorder {
                for &loss in &self.loss {
                    for &flows in &self.flows {
                        cells.push(Cell {
                            loss,
                            rtt_ms,
                            reorder,
                            flows,
                            mbit_per_s: self.rate,
                        });
                    }
                }
            }
        }
        // A stride without a common factor with the lengths of the lists meets every value of each.
        const STRIDE: usize = 7;
        if quick && cells.len() > STRIDE {
            cells = cells.into_iter().step_by(STRIDE).collect();
        }
        cells
    }
}

/// Conditions of the link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Cell {
    /// Packets lost, in percent.
    pub(crate) loss: f64,
    /// Round-trip time without queues, in milliseconds.
    pub(crate) rtt_ms: f64,
    /// Packets overtaken, in percent.
    pub(crate) reorder: f64,
    /// Flows at once.
    pub(crate) flows: usize,
    /// Rate in each direction, in megabits per second.
    mbit_per_s: f64,
}

/// Two superpackets: senders within one machine hand over up to 64 KB at once, where a NIC would
/// spread them.
const QUEUE_BYTES_MIN: f64 = 131_072.0;

impl Cell {
    #[cfg(test)]
    pub(crate) fn without_loss(flows: usize) -> Cell {
        Matrix::without_loss(1.0, vec![flows]).cells(false)[0]
    }

    /// Returns true if flows have equal conditions, so that only sharing decides their goodput.
    pub(crate) fn shows_fairness(&self) -> bool {
        self.flows > 1 && self.loss == 0.0 && self.reorder == 0.0
    }

    /// Round-trip time without queues.
    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros((self.rtt_ms * 1000.0) as u64)
    }

    /// Returns one bandwidth-delay product, the usual buffer for one flow of NewReno.
    fn queue_bytes(&self) -> f64 {
        (self.mbit_per_s * self.rtt_ms * 125.0).max(QUEUE_BYTES_MIN)
    }

    /// With flows that take turns at a full queue with the precision of a clock, drops depend on
    /// the order of arrival, not on rates: phase effects (Floyd and Jacobson 1992). The kernel's
    /// sender, which answers within the emulator's own system call, is that precise. Where flows
    /// are compared, arrivals differ by some packets' time.
    fn jitter_us(&self) -> u32 {
        if self.shows_fairness() { 100 } else { 0 }
    }

    /// Returns the conditions as options of `splitway link`.
    pub(crate) fn options(&self, seed: u64) -> Vec<String> {
        // Within RACK's allowance for reordering once it has observed some: a quarter of the
        // round-trip time (RFC 8985 §6.2).
        let reorder_by_us = (self.rtt_ms * 1000.0 / 8.0).max(100.0);
        [
            ("--delay", format!("{}us", self.rtt_ms * 500.0)),
            ("--rate", format!("{}mbit", self.mbit_per_s)),
            ("--queue", format!("{}b", self.queue_bytes())),
            ("--loss", format!("{}%", self.loss)),
            ("--reorder", format!("{}%", self.reorder)),
            ("--reorder-by", format!("{reorder_by_us}us")),
            ("--jitter", format!("{}us", self.jitter_us())),
            ("--seed", seed.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell {
            loss,
            rtt_ms,
            reorder,
            flows,
            ..
        } = self;
        write!(
            f,
            "{loss} % loss, {rtt_ms} ms, {reorder} % reordered, {flows} flows"
        )
    }
}
