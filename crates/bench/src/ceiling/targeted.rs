//! The loads that the target is about, measured within another benchmark.

use testbed::Result;

use super::far::{Acks, Load};
use super::report::{TARGET_CONNECTIONS, TARGET_GBIT_PER_S, add, gbit_per_core, loads_table};
use super::{SUPERPACKETS_BYTES, plan_loads, run};
use crate::load::take_place;
use crate::plan::Plan;
use crate::results::{Bound, Results};
use crate::rounds::Rounds;

/// Files of so many bytes, which are acknowledged superpacket for superpacket.
fn loads(file_bytes: u64) -> [Load; 2] {
    SUPERPACKETS_BYTES.map(|superpacket_bytes| Load {
        connections: TARGET_CONNECTIONS,
        acks: Acks::Superpacket,
        superpacket_bytes,
        file_bytes,
    })
}

/// How long it takes.
pub(crate) fn plan(plan: &mut Plan, rounds: &Rounds, file_bytes: u64) {
    plan_loads(plan, rounds, &loads(file_bytes));
}

/// Measures them. This thread stays on the core of load generators.
pub(crate) fn measure(results: &mut Results, rounds: &Rounds, file_bytes: u64) -> Result<()> {
    take_place()?;
    rounds.take_turns(&loads(file_bytes), |load| {
        let run = run::run(load, rounds.seconds())?;
        let gbit = run.gbit_per_cpu_s();
        eprintln!("control plane alone: {gbit:.0} Gbit/s per core");
        add(results, load, &run);
        Ok(())
    })
}

/// What is wanted.
pub(crate) const WANTED: Bound = Bound::AtLeast(TARGET_GBIT_PER_S);

/// Gigabits per second that one core of the host controls, of the load that is hardest. No number if none was measured.
pub(crate) fn reached(results: &Results, file_bytes: u64) -> f64 {
    let of = loads(file_bytes).map(|load| gbit_per_core(results, &load));
    of.into_iter().fold(f64::NAN, f64::min)
}

/// Adds the table.
pub(crate) fn report(results: &mut Results) {
    results.table(loads_table().titled("The control plane alone"));
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn the_hardest_load_decides() {
        const FILE_BYTES: u64 = 500_000;
        let mut results = Results::new("targets", "Targets", &()).unwrap();
        assert!(reached(&results, FILE_BYTES).is_nan());
        let [usual, large] = loads(FILE_BYTES);
        add(&mut results, &large, &found::tests::run(2, 1));
        assert_eq!(reached(&results, FILE_BYTES), 400.0);
        let run = found::tests::run(8, 1);
        let slow = run::Run {
            host_cpu_ns: 2 * run.host_cpu_ns,
            ..run
        };
        add(&mut results, &usual, &slow);
        assert_eq!(reached(&results, FILE_BYTES), 200.0);
    }
}
