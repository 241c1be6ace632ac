//! Tables, plots, targets.

use super::{REDIS, SHORT, Variant};
use crate::measure::results::{Bound, Column, Plot, Results, Table, column};
use crate::suites::plain;

/// Target with both offloads: CPU time of program and host process for a connection, as a multiple
/// of the program's over the kernel's sockets.
const CONTROL_RATIO_MAX: f64 = 0.5;

const COST: [Column; 7] = [
    column("requests_per_s", "connections/s", 0),
    column("cpu_us_per_request.*", "CPU µs each, each process", 2),
    column("cpu_us_per_request.control", "program and host", 2),
    column("cpu_us_per_request.server", "all of them", 2),
    column("cpu_us_per_request.machine", "machine", 2),
    column("response_us.p50", "p50, µs", 0),
    column("response_us.p99", "p99", 0),
];

pub(super) fn report(results: &mut Results) {
    check(results);
    for (part, title) in [
        (
            REDIS,
            "redis: GET, which the client closes the connection behind",
        ),
        (SHORT, "Echo of 64 bytes, behind which the server closes"),
    ] {
        let table = Table::of(part, COST.to_vec()).titled(title);
        results.table(table.of_each("Sockets"));
    }
    let y = (
        "cpu_us_per_request.control",
        "CPU µs of program and host per connection",
    );
    for (file, part, title) in [
        ("offload-redis", REDIS, "redis"),
        ("offload-short", SHORT, "Echo"),
    ] {
        if results.has(part) {
            results.plot(Plot::bars(file, part, y).titled(title));
        }
    }
    results.note(
        "The program, the host process and the NIC process share the servers' core, and the kernel \
         receives the clients' packets there: over the kernel's sockets what TCP costs is in the \
         program's CPU time, as far as it runs while that program does. Each run has Splitway and \
         the program started again.",
    );
    results.note(
        "What the host stack alone does for a connection is counted in instructions by `cargo \
         bench -p splitway-host --bench short_connection`, `short_connection_setup`, \
         `short_connection_offloaded` and `short_connection_both`.",
    );
    results.note(plain::NOTE);
}

fn check(results: &mut Results) {
    let (control, machine) = ("cpu_us_per_request.control", "cpu_us_per_request.machine");
    let kernel = Variant::Kernel.name();
    let mut rows = Vec::new();
    for (part, what) in [(REDIS, "redis"), (SHORT, "echo")] {
        for variant in Variant::ALL {
            if variant.is_kernel() {
                continue;
            }
            let name = variant.name();
            let ratio = |measure| results.ratio(part, (name, measure), (kernel, measure));
            let bound = if variant == Variant::Both {
                Bound::AtMost(CONTROL_RATIO_MAX)
            } else {
                Bound::None
            };
            for (of, value, bound) in [
                ("program and host CPU", ratio(control), bound),
                ("machine CPU", ratio(machine), Bound::None),
                ("connections/s", ratio("requests_per_s"), Bound::None),
            ] {
                let what = format!("{what}, {name}: {of} per connection, against kernel sockets");
                let what = what.replace("connections/s per connection", "connections/s");
                rows.push((what, value, bound));
            }
        }
    }
    for (what, value, bound) in rows {
        // NaN if the part or the variant was not measured.
        if !value.is_nan() {
            results.check(what, value, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::results::Measures;

    #[test]
    fn the_target_is_about_both() {
        let mut results = Results::new("offload", "Offload", &()).unwrap();
        for (variant, us) in [
            (Variant::Kernel, 20.0),
            (Variant::Split, 16.0),
            (Variant::Both, 10.5),
        ] {
            let measures: Measures = [
                ("cpu_us_per_request.control".to_owned(), us),
                ("cpu_us_per_request.machine".to_owned(), 2.0 * us),
                ("requests_per_s".to_owned(), 1e6 / us),
            ]
            .into();
            results.add(REDIS, variant.name(), &[], measures);
        }
        report(&mut results);
        let told: Vec<_> = results.checks().iter().collect();
        assert_eq!(told.len(), 6);
        let missed: Vec<_> = told.iter().filter(|check| !check.met).collect();
        let [missed] = missed[..] else {
            panic!("{missed:?}");
        };
        assert!(missed.what.starts_with("redis, with both offloaded"));
        assert_eq!(missed.value, Some(0.525));
    }
}
