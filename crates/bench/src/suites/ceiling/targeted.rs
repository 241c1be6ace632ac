//! The target's load, measured within another benchmark.

use testbed::Result;

use super::report::{TARGET_CONNECTIONS, TARGET_GBIT_PER_S, gbit_per_core, loads_table};
use super::stub_nic::{Acks, Load};
use super::{SUPERPACKETS_BYTES, measure_load, plan_loads};
use crate::load::take_place;
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results};
use crate::measure::rounds::Rounds;

/// Returns a load with files of `file_bytes` bytes, in superpackets that any NIC segments: the host
/// decides more often than with longer ones.
fn load(file_bytes: u64) -> Load {
    Load {
        connections: TARGET_CONNECTIONS,
        acks: Acks::Superpacket,
        superpacket_bytes: SUPERPACKETS_BYTES[0],
        file_bytes,
    }
}

/// Adds its time.
pub(crate) fn plan(plan: &mut Plan, rounds: &Rounds, file_bytes: u64) {
    plan_loads(plan, rounds, &[load(file_bytes)]);
}

/// Measures the load. This thread stays on the core of load generators.
pub(crate) fn measure(results: &mut Results, rounds: &Rounds, file_bytes: u64) -> Result<()> {
    take_place()?;
    let load = load(file_bytes);
    for _ in 0..rounds.count() {
        measure_load(results, &load, rounds.seconds())?;
    }
    Ok(())
}

/// The target.
pub(crate) const WANTED: Bound = Bound::AtLeast(TARGET_GBIT_PER_S);

/// Returns the gigabits per second that one core of the host controls; NaN if not measured.
pub(crate) fn reached(results: &Results, file_bytes: u64) -> f64 {
    gbit_per_core(results, &load(file_bytes))
}

/// Adds the table.
pub(crate) fn report(results: &mut Results) {
    results.table(loads_table().titled("The control plane alone"));
}

#[cfg(test)]
mod tests {
    use super::super::report::add;
    use super::super::{run, saved_results};
    use super::*;

    #[test]
    fn what_is_measured_is_reached() {
        const FILE_BYTES: u64 = 500_000;
        let mut results = Results::new("targets", "Targets", &()).unwrap();
        assert!(reached(&results, FILE_BYTES).is_nan());
        let run = saved_results::tests::run(8, 1);
        for host_cpu_ns in [run.host_cpu_ns, 2 * run.host_cpu_ns, 2 * run.host_cpu_ns] {
            let run = run::Run { host_cpu_ns, ..run };
            add(&mut results, &load(FILE_BYTES), &run);
        }
        assert_eq!(reached(&results, FILE_BYTES), 200.0);
    }
}
