//! Figure 3: part of a core needed to saturate disks.

use sim::model::disks::{FIO, NIC_WORKER, ReadCost};
use sim::model::hardware::OPTANE_900P;
use sim::model::paper;
use testbed::Result;

use super::{Settings, measures};
use crate::measure::results::{Plot, Published, Results, Table, column};

const DISKS_MAX: usize = 8;

/// Readers, with their cost and the size of a block in bytes.
const READERS: [(&str, ReadCost, u64); 5] = [
    ("fio", FIO, 4 << 10),
    ("fio", FIO, 16 << 10),
    ("fio", FIO, 64 << 10),
    ("fio", FIO, 256 << 10),
    ("Splitway's NIC worker", NIC_WORKER, 64 << 10),
];

const PART: &str = "disks";

const X: (&str, &str) = ("disks", "Disks");

pub(super) fn results(settings: &Settings) -> Result<Results> {
    let title = "Figure 3: what part of a core it takes to saturate disks (Intel Optane 900P)";
    let mut results = Results::simulated("figure3", title, settings)?;
    for (reader, cost, block_bytes) in READERS {
        for disks in 1..=DISKS_MAX {
            let percent = 100.0 * cost.core_share(&OPTANE_900P, disks, block_bytes);
            results.add(
                PART,
                format!("{reader}, {} KiB", block_bytes >> 10),
                &[(X.0, disks as f64)],
                // A core cannot exceed its capacity.
                measures([
                    ("wanted_percent", percent),
                    ("core_percent", percent.min(100.0)),
                ]),
            );
        }
    }
    results.table(
        Table::of(
            PART,
            vec![
                column("wanted_percent", "% of a core wanted", 0),
                column("core_percent", "% of the core", 0),
            ],
        )
        .of_each("Reader, block")
        .over(&[X]),
    );
    results.plot(Plot::lines(
        "figure3",
        PART,
        X,
        ("core_percent", "% of a core"),
    ));
    results.publish_beside(&paper::FIO.map(most));
    results.note(
        "The paper says of fio on a Xeon Silver 4210: one core does not saturate two disks with \
         reads of 4 KB, and saturates up to three with reads of 16 KB. Where more than 100 % is \
         wanted, a core does not saturate them. The model's cost of a read, and of each page of \
         it, lies within what these two statements leave; our NIC worker's was measured.",
    );
    Ok(results)
}

/// Returns the number of disks that a core saturates with reads of one size.
fn most((block_bytes, saturated, _): (u64, usize, usize)) -> Published {
    let series = match block_bytes >> 10 {
        4 => "as many as a core saturates, 4 KiB",
        _ => "as many as a core saturates, 16 KiB",
    };
    Published {
        source: "figure 3, §2.2",
        series,
        measure: "core_percent",
        x: Some(saturated as f64),
        value: 100.0,
        unit: "% of a core",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn a_core_saturates_what_the_paper_says_and_no_more() {
        let results = results(&settings()).unwrap();
        for (block_bytes, saturated, not) in paper::FIO {
            let wanted = |disks: usize| {
                let series = format!("fio, {} KiB", block_bytes >> 10);
                results
                    .at(PART, &series, X.0, disks as f64)
                    .median("wanted_percent")
            };
            assert!(
                wanted(saturated) <= 100.0 && wanted(not) > 100.0,
                "{block_bytes}"
            );
        }
    }
}
