//! Tables, plots, targets.

use super::balancers::Subject;
use super::{CLOSE, ECHO, KEEP_ALIVE, LENGTHS, SHORT};
use crate::measure::results::{Bound, Column, Plot, Results, Table, column};
use crate::suites::plain;

/// Targets of a splice: CPU time of the host process per gigabyte, as a multiple of that of HAProxy
/// over the kernel's sockets, and throughput, as a multiple of that of HAProxy with splice.
const HOST_RATIO_MAX: f64 = 0.05;
const THROUGHPUT_RATIO_MIN: f64 = 0.9;

const FILES: [Column; 9] = [
    column("gbit_per_s", "Gbit/s", 2),
    column("cpu_s_per_gb.*", "CPU s/GB, each process", 4),
    column("cpu_s_per_gb.control", "balancer and host", 4),
    column("cpu_s_per_gb.server", "whole balancer", 4),
    column("cpu_s_per_gb.machine", "machine", 4),
    column("busy_cores.server", "balancer's cores busy", 2),
    column("response_us.p50", "response p50, µs", 0),
    column("response_us.p99", "p99", 0),
    column("splices_joined", "splices", 0),
];

const EACH: [Column; 5] = [
    column("requests_per_s", "per second", 0),
    column("cpu_us_per_request.*", "CPU µs each, each process", 1),
    column("cpu_us_per_request.control", "balancer and host", 1),
    column("cpu_us_per_request.server", "whole balancer", 1),
    column("cpu_us_per_request.machine", "machine", 1),
];

const MESSAGES: [Column; 9] = [
    column("requests_per_s", "per second", 0),
    column("response_us.p50", "p50, µs", 0),
    column("response_us.p99", "p99", 0),
    column("cpu_us_per_request.*", "CPU µs each, each process", 2),
    column("cpu_us_per_request.control", "balancer and host", 2),
    column("cpu_us_per_request.server", "whole balancer", 2),
    column("cpu_us_per_request.machine", "machine", 2),
    column("busy_cores.server", "balancer's cores busy", 2),
    column("splices_joined", "splices", 0),
];

pub(super) fn report(results: &mut Results) {
    check(results);
    let over: &[_] = &[("file_bytes", "File, bytes")];
    for (part, title) in [
        (KEEP_ALIVE, "Files, connections that stay"),
        (CLOSE, "Files, a connection for each"),
    ] {
        let table = Table::of(part, FILES.to_vec()).titled(title);
        results.table(table.of_each("Balancer").over(over));
    }
    let table = Table::of(CLOSE, EACH.to_vec()).titled("The same, for each connection");
    results.table(table.of_each("Balancer").over(over));
    for (part, title) in [
        (ECHO, "Echo of 1 KB, connections that stay"),
        (SHORT, "Echo of 64 bytes, a connection for each"),
    ] {
        let table = Table::of(part, MESSAGES.to_vec()).titled(title);
        results.table(table.of_each("Balancer"));
    }
    if results.has(KEEP_ALIVE) {
        let x = ("file_bytes", "bytes of a file");
        let y = (
            "cpu_s_per_gb.control",
            "CPU s/GB of balancer and host process",
        );
        results.plot(Plot::lines("proxy-files", KEEP_ALIVE, x, y).titled("Files"));
    }
    results.note(
        "Client and backends (nginx with `sendfile`, and an echo server) share a core and a \
         namespace, and a balancer has the other core, and the kernel's receive work for it. Each \
         reaches both over one veth pair. The client checks the length of each response, and one \
         in a hundred byte by byte; the kernel drops the others unread. It compares every byte of \
         an echo. A balancer is started for each run, with one thread of HAProxy, one worker of \
         nginx, one of the NIC process.",
    );
    results.note(
        "What a CPU second per GB is of a balancer is of all that its processes do: what soft \
         interrupts do while none of them runs is in that of the machine alone.",
    );
    results.note(plain::NOTE);
}

fn check(results: &mut Results) {
    let mut rows = Vec::new();
    for bytes in LENGTHS {
        let at = [("file_bytes", bytes as f64)];
        let of = |subject: Subject, measure: &str| {
            let found = results.under(KEEP_ALIVE, subject.name(), &at);
            found.median(measure)
        };
        let ratio =
            |own: (Subject, &str), other: (Subject, &str)| of(own.0, own.1) / of(other.0, other.1);
        let (host, server) = ("cpu_s_per_gb.control", "cpu_s_per_gb.server");
        let (machine, rate) = ("cpu_s_per_gb.machine", "gbit_per_s");
        let (own, run) = (Subject::OwnSpliced, Subject::RunSpliced);
        for (what, value, bound) in [
            (
                "spliced: host CPU per GB, against HAProxy",
                ratio((own, host), (Subject::HaproxyTcp, server)),
                Bound::AtMost(HOST_RATIO_MAX),
            ),
            (
                "spliced: host CPU per GB, against HAProxy with splice",
                ratio((own, host), (Subject::HaproxySplice, server)),
                Bound::None,
            ),
            (
                "spliced: throughput, against HAProxy with splice",
                ratio((own, rate), (Subject::HaproxySplice, rate)),
                Bound::AtLeast(THROUGHPUT_RATIO_MIN),
            ),
            (
                "spliced: CPU of host and NIC process per GB, against HAProxy",
                ratio((own, server), (Subject::HaproxyTcp, server)),
                Bound::None,
            ),
            (
                "spliced: machine CPU per GB, against HAProxy with splice",
                ratio((own, machine), (Subject::HaproxySplice, machine)),
                Bound::None,
            ),
            (
                "HAProxy, split: program and host CPU per GB, against HAProxy with splice",
                ratio((run, host), (Subject::HaproxySplice, server)),
                Bound::None,
            ),
            (
                "HAProxy, split: throughput, against HAProxy with splice",
                ratio((run, rate), (Subject::HaproxySplice, rate)),
                Bound::None,
            ),
            (
                "copied: host CPU per GB, against HAProxy",
                ratio((Subject::OwnTcp, host), (Subject::HaproxyTcp, server)),
                Bound::None,
            ),
            (
                "copied: throughput, against HAProxy",
                ratio((Subject::OwnTcp, rate), (Subject::HaproxyTcp, rate)),
                Bound::None,
            ),
        ] {
            let length = if bytes == LENGTHS[0] {
                "500 KB"
            } else {
                "100 MB"
            };
            rows.push((format!("files of {length}, {what}"), value, bound));
        }
    }
    for (what, value, bound) in rows {
        // NaN if the length or the balancer was not measured.
        if !value.is_nan() {
            results.check(what, value, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::add_sum;
    use crate::measure::run::tests::run;
    use crate::suites::proxy::bed::{CONTROL, CONTROL_PARTS};

    fn results(splice_host_ns: u64, splice_ns: u64) -> Results {
        let mut results = Results::new("proxy", "Proxies", &()).unwrap();
        let at = [("file_bytes", LENGTHS[0] as f64)];
        let gb = 1_000_000_000;
        for (subject, elapsed_ns, processes) in [
            (Subject::HaproxyTcp, gb, &[("balancer", 400_000_000)][..]),
            (Subject::HaproxySplice, gb, &[("balancer", 200_000_000)]),
            (
                Subject::OwnSpliced,
                splice_ns,
                &[("host", splice_host_ns), ("nic", 300_000_000)],
            ),
        ] {
            let mut run = run(subject.name(), gb, processes);
            run.load.elapsed_ns = elapsed_ns;
            let mut measures = run.measures();
            add_sum(&mut measures, "cpu_s_per_gb", CONTROL, &CONTROL_PARTS);
            results.add(KEEP_ALIVE, subject.name(), &at, measures);
        }
        report(&mut results);
        results
    }

    fn told(results: &Results, what: &str) -> (f64, bool) {
        let mut checks = results.checks().iter();
        let check = checks.find(|check| check.what.ends_with(what)).unwrap();
        let value = check.value.unwrap();
        ((value * 1e6).round() / 1e6, check.met)
    }

    #[test]
    fn targets_are_held_against_their_bounds() {
        let (host, rate) = (
            "host CPU per GB, against HAProxy",
            "throughput, against HAProxy with splice",
        );
        let near = results(20_000_000, 1_111_111_111);
        assert_eq!(told(&near, host), (0.05, true));
        assert_eq!(told(&near, rate), (0.9, true));
        let far = results(22_000_000, 1_250_000_000);
        assert_eq!(told(&far, host), (0.055, false));
        assert_eq!(told(&far, rate), (0.8, false));
        assert!(!far.is_kept());
        assert!(
            far.checks()
                .iter()
                .all(|check| !check.what.contains("100 MB"))
        );
    }
}
