//! Cost of an ACK, a SEND and a request, each by itself.
//!
//! Loads differ in the number of each per response, and so in cost: as many equations as unknowns.
//! The cost of a SEND includes its departure; the cost of a request includes OPEN, CLOS, the
//! response's head and its timers.

use super::stub_nic::Counts;

/// Cost of each, in nanoseconds or in instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    pub(crate) ack: f64,
    pub(crate) send: f64,
    pub(crate) request: f64,
}

impl Costs {
    /// Computes the costs from the counts and total cost of three loads. `None` if these are too
    /// similar to separate the costs.
    pub(crate) fn of(loads: [(&Counts, f64); 3]) -> Option<Costs> {
        // Per response, so that loads of any length weigh the same.
        let rows = loads.map(|(counts, cost)| {
            let each = |count: u64| count as f64 / counts.responses as f64;
            let row = [each(counts.acks), each(counts.sends), each(counts.requests)];
            (row, cost / counts.responses as f64)
        });
        let matrix = rows.map(|(row, _)| row);
        let whole = determinant(&matrix);
        // Cramer's rule: few unknowns, and no pivots to choose.
        let unknown = |column: usize| {
            let mut replaced = matrix;
            for (row, (_, cost)) in replaced.iter_mut().zip(&rows) {
                row[column] = *cost;
            }
            determinant(&replaced) / whole
        };
        (whole.abs() > 0.1).then(|| Costs {
            ack: unknown(0),
            send: unknown(1),
            request: unknown(2),
        })
    }
}

fn determinant(m: &[[f64; 3]; 3]) -> f64 {
    let minor = |a: usize, b: usize| m[1][a] * m[2][b] - m[1][b] * m[2][a];
    m[0][0] * minor(1, 2) - m[0][1] * minor(0, 2) + m[0][2] * minor(0, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(responses: u64, acks: u64, sends: u64) -> Counts {
        Counts {
            responses,
            requests: responses,
            acks: responses * acks,
            sends: responses * sends,
            ..Counts::default()
        }
    }

    #[test]
    fn costs_are_distinguished() {
        let loads = [counts(10, 8, 2), counts(20, 173, 2), counts(5, 1, 1)];
        let cost = |counts: &Counts| {
            let Counts {
                acks,
                sends,
                requests,
                ..
            } = *counts;
            300.0 * acks as f64 + 800.0 * sends as f64 + 5_000.0 * requests as f64
        };
        let costs = Costs::of([0, 1, 2].map(|n| (&loads[n], cost(&loads[n])))).unwrap();
        for (found, meant) in [
            (costs.ack, 300.0),
            (costs.send, 800.0),
            (costs.request, 5_000.0),
        ] {
            assert!((found - meant).abs() < 1e-6, "{costs:?}");
        }
    }

    #[test]
    fn loads_that_are_alike_tell_nothing() {
        let load = counts(10, 8, 2);
        assert_eq!(Costs::of([(&load, 1.0); 3]), None);
    }
}
