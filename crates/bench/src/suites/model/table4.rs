//! Table 4: instructions per cycle of the control plane, with and without the data plane on the
//! same CPU.

use sim::model::cache::{HIT_NS, MISS_NS};
use sim::model::paper;
use testbed::Result;

use super::calibration::Measured;
use super::figure12a::lookups;
use super::{Settings, measures};
use crate::measure::results::{Plot, Published, Results, Table, column};

const PART: &str = "functions";
const IPC: &str = "instructions_per_cycle";

/// Cache lines of a connection that an ACK, a SEND and a request touch. Assumed from the sizes of a
/// connection's entry, the ring's record and the frame.
const LINES: [(&str, f64); 3] = [("an ACK", 12.0), ("a SEND", 12.0), ("a request", 60.0)];

pub(super) fn results(settings: &Settings, measured: &Measured) -> Result<Results> {
    let title = "Table 4: instructions per cycle of the control plane";
    let mut results = Results::simulated("table4", title, settings)?;
    let ghz = measured.core_ghz()?;
    let mut is_counted = false;
    for lookups in lookups(measured) {
        let Some((ns, instructions)) = measured.costs(lookups.connections) else {
            continue;
        };
        is_counted = true;
        let costs = [
            (ns.ack, instructions.ack),
            (ns.send, instructions.send),
            (ns.request, instructions.request),
        ];
        for ((function, lines), (ns, instructions)) in LINES.into_iter().zip(costs) {
            let longer_ns = lines * lookups.more_misses() * (MISS_NS - HIT_NS);
            for (when, ns) in [
                ("before (simulated)", ns + longer_ns),
                ("after (measured)", ns),
            ] {
                results.add(
                    PART,
                    format!("{function}, {} connections: {when}", lookups.connections),
                    &[],
                    measures([(IPC, instructions / (ns * ghz))]),
                );
            }
        }
    }
    results.table(
        Table::of(PART, vec![column(IPC, "instructions per cycle", 2)]).of_each("Splitway's host"),
    );
    results.plot(Plot::bars("table4", PART, (IPC, "instructions per cycle")));
    results.publish_beside(&of_paper());
    results.note(
        "*Before*: the data plane on the same CPU; the paper's is measured, Splitway's is \
         simulated with the misses of `figure12a`. *After*: without it, measured; Splitway's are \
         instructions by callgrind, CPU time by the kernel, and cycles by a chain of \
         multiplications, on this machine.",
    );
    if !is_counted {
        results.note(
            "The calibration has no instructions: they take valgrind, and `splitway-bench \
            ceiling` without `--quick`.",
        );
    }
    results.note(measured.source());
    Ok(results)
}

/// Returns the paper's rows, before and after.
fn of_paper() -> Vec<Published> {
    let of = |row: paper::Ipc| {
        [
            ("table 4, before", row.before),
            ("table 4, after", row.after),
        ]
        .map(|(source, value)| Published {
            source,
            series: row.function,
            measure: IPC,
            x: None,
            value,
            unit: "instructions per cycle",
        })
    };
    paper::TABLE_4.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, settings};
    use super::*;

    #[test]
    fn cycles_are_time_by_the_clock() {
        let directory = tempfile::tempdir().unwrap();
        let results = results(&settings(), &measured(directory.path())).unwrap();
        let ipc = |series: &str| results.of(PART, series).median(IPC);
        // 300 instructions in 300 ns of 3 GHz.
        let after = ipc("an ACK, 1600 connections: after (measured)");
        assert!((after - 1.0 / 3.0).abs() < 1e-9, "{after}");
        assert!(ipc("an ACK, 1600 connections: before (simulated)") < after);
    }

    #[test]
    fn all_of_the_papers_rows_are_there() {
        let values: Vec<f64> = of_paper().iter().map(|published| published.value).collect();
        assert_eq!(
            values,
            [0.82, 1.57, 0.92, 1.89, 2.65, 3.26, 0.13, 1.24, 0.93, 1.47]
        );
    }
}
