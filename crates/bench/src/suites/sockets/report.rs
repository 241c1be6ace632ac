//! Tables, plots, targets.

use super::bed::{CONTROL, ENDS, IN_PROCESS, KERNEL, NGINX, SPLIT};
use super::{CALLS, Cell, ECHO, FILES, MODES, OVER_BYTES, OVER_CONNECTIONS, SHORT};
use crate::measure::results::{Bound, Column, Plot, Results, Table, column};
use crate::measure::table;
use crate::suites::plain;

/// Target for files: CPU time of application and host process per gigabyte, as a multiple of that
/// of the host process that serves the files itself.
const FILES_RATIO_MAX: f64 = 1.3;

/// Target for echoes of 1 KB on 64 connections: CPU time of the whole machine for each, as a
/// multiple of that with the kernel's sockets.
const ECHO_RATIO_MAX: f64 = 1.2;

const COST: [Column; 9] = [
    column("requests_per_s", "requests/s", 0),
    column("response_us.p50", "p50, µs", 0),
    column("response_us.p99", "p99", 0),
    column("response_us.p99_9", "p99.9", 0),
    column("cpu_us_per_request.*", "CPU µs/request, each process", 2),
    column("cpu_us_per_request.server", "server", 2),
    column("cpu_us_per_request.machine", "machine", 2),
    column("cpu_s_per_gb.*", "CPU s/GB, each process", 3),
    column("cpu_s_per_gb.machine", "machine", 3),
];

const AXES: &[(&str, &str)] = &[
    ("message_bytes", "Message, bytes"),
    ("connections", "Connections"),
];

pub(super) fn report(results: &mut Results) {
    check(results);
    let mut add = |part, title, conditions: &'static [_]| {
        let table = Table::of(part, COST.to_vec()).titled(title);
        results.table(table.over(conditions));
    };
    add(ECHO, "Echo", AXES);
    add(
        SHORT,
        "Short connections: one echo of 64 bytes on each",
        &[],
    );
    add(
        MODES,
        "Modes: echo of 1 KB on 64 connections, and short connections (1)",
        &[("short", "Short")],
    );
    table::add_titled(results, FILES, "Files, 64 connections", &[]);
    let columns = vec![
        column("system_calls_per_request.*", "system calls/request", 3),
        column("voluntary_switches_per_gb.*", "voluntary switches/GB", 0),
    ];
    let title = "System calls (runs of their own: counting calls makes them dearer)";
    results.table(Table::of(CALLS, columns).titled(title));
    draw(results);
    results.note(
        "The same program is the server over the kernel's sockets and over split ones: one thread, \
         one epoll set by edges, files kept open. Server program, host process and NIC process \
         share a core. The client compares every byte of an echo, the length of every file and one \
         file in a hundred byte by byte. Both kernels' ends use CUBIC.",
    );
    results.note(plain::NOTE);
}

fn draw(results: &mut Results) {
    let y = (
        "cpu_us_per_request.machine",
        "CPU µs of the machine per echo",
    );
    for (file, part, x) in [
        (
            "sockets-bytes",
            OVER_BYTES,
            ("message_bytes", "bytes of a message"),
        ),
        (
            "sockets-connections",
            OVER_CONNECTIONS,
            ("connections", "connections"),
        ),
    ] {
        if results.has(part) {
            results.plot(Plot::lines(file, part, x, y).titled("Echo"));
        }
    }
    let y = ("requests_per_s", "requests/s");
    if results.has(SHORT) {
        results.plot(Plot::bars("sockets-short", SHORT, y).titled("Short connections"));
    }
    let y = (
        "cpu_s_per_gb.control",
        "CPU s/GB of application and host process",
    );
    if results.has(FILES) {
        results.plot(Plot::bars("sockets-files", FILES, y).titled("Files"));
    }
}

fn check(results: &mut Results) {
    let control = format!("cpu_s_per_gb.{CONTROL}");
    let files = |own: &str, theirs: (&str, &str)| results.ratio(FILES, (SPLIT, own), theirs);
    let target = Cell::TARGET.conditions();
    let echo = |measure: &str| {
        let of = |series| results.under(ECHO, series, &target).median(measure);
        of(SPLIT) / of(KERNEL)
    };
    let short = |measure| results.ratio(SHORT, (SPLIT, measure), (KERNEL, measure));
    let machine = "cpu_us_per_request.machine";
    let ends = format!("cpu_us_per_request.{ENDS}");
    let calls = |series: &str| {
        let found = results.of(CALLS, series);
        found.median("system_calls_per_request.application")
    };
    let all = "cpu_s_per_gb.server";
    let rows = [
        (
            FILES,
            "files: application and host CPU per GB, against the in-process server's host",
            files(&control, (IN_PROCESS, "cpu_s_per_gb.host")),
            Bound::AtMost(FILES_RATIO_MAX),
        ),
        (
            FILES,
            "files: all of the server's CPU per GB, against the in-process server",
            files(all, (IN_PROCESS, all)),
            Bound::None,
        ),
        (
            FILES,
            "files: application and host CPU per GB, against nginx's worker",
            files(&control, (NGINX, all)),
            Bound::None,
        ),
        (
            FILES,
            "files: the same, against the same program over kernel sockets",
            files(&control, (KERNEL, all)),
            Bound::None,
        ),
        (
            ECHO,
            "echo, 1 KB, 64 connections: machine CPU per request, against kernel sockets",
            echo(machine),
            Bound::AtMost(ECHO_RATIO_MAX),
        ),
        (
            ECHO,
            "the same of server's and client's processes alone",
            echo(&ends),
            Bound::None,
        ),
        (
            SHORT,
            "short connections: machine CPU per connection, against kernel sockets",
            short(machine),
            Bound::None,
        ),
        (
            CALLS,
            "system calls of the application per echo",
            calls("split sockets, echo"),
            Bound::None,
        ),
        (
            CALLS,
            "system calls of the application per file",
            calls("split sockets, file"),
            Bound::None,
        ),
    ];
    for (part, what, value, bound) in rows {
        if results.has(part) {
            results.check(what, value, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;
    use crate::suites::sockets::bed::add_sums;

    /// One run of each subject with these CPU times: name and nanoseconds of each process.
    type Costs = [(&'static str, &'static [(&'static str, u64)])];

    fn results(files: &Costs, machines_ns: [(&'static str, u64); 2]) -> Results {
        let mut results = Results::new("sockets", "Sockets", &()).unwrap();
        for (subject, processes) in files {
            let mut measures = run(subject, 1_000_000_000, processes).measures();
            add_sums(&mut measures);
            results.add(FILES, *subject, &[], measures);
        }
        for (subject, machine_ns) in machines_ns {
            let mut run = run(subject, 1_024_000, &[("application", 1_000)]);
            run.cost.machine_ns = machine_ns;
            let mut measures = run.measures();
            add_sums(&mut measures);
            results.add(ECHO, subject, &Cell::TARGET.conditions(), measures);
        }
        report(&mut results);
        results
    }

    fn told(results: &Results, what: &str) -> (Option<f64>, bool) {
        let mut checks = results.checks().iter();
        let check = checks.find(|check| check.what.starts_with(what)).unwrap();
        let value = check.value.map(|value| (value * 1e6).round() / 1e6);
        (value, check.met)
    }

    #[test]
    fn targets_are_held_against_their_bounds() {
        let in_process: &[_] = &[("host", 20_000_000), ("nic", 90_000_000)];
        let split = |application, host| -> &'static [(&'static str, u64)] {
            let nic = ("nic", 100_000_000);
            vec![("application", application), ("host", host), nic].leak()
        };
        let files = "files: application and host CPU per GB, against the in-process";
        let echo = "echo, 1 KB, 64 connections";
        let near = results(
            &[
                (IN_PROCESS, in_process),
                (SPLIT, split(5_000_000, 21_000_000)),
            ],
            [(KERNEL, 10_000_000), (SPLIT, 12_000_000)],
        );
        assert_eq!(told(&near, files), (Some(1.3), true));
        assert_eq!(told(&near, echo), (Some(1.2), true));
        let far = results(
            &[
                (IN_PROCESS, in_process),
                (SPLIT, split(9_000_000, 21_000_000)),
            ],
            [(KERNEL, 10_000_000), (SPLIT, 13_000_000)],
        );
        assert_eq!(told(&far, files), (Some(1.5), false));
        assert_eq!(told(&far, echo), (Some(1.3), false));
    }

    #[test]
    fn sums_are_of_control_plane_and_of_both_ends() {
        let processes = [
            ("application", 2_000_000),
            ("host", 3_000_000),
            ("nic", 5_000_000),
        ];
        let mut measures = run(SPLIT, 1_000_000_000, &processes).measures();
        add_sums(&mut measures);
        assert_eq!(measures["cpu_us_per_request.control"], 5.0);
        // The client of the test takes 0.3 s.
        assert_eq!(measures["cpu_us_per_request.both_ends"], 310.0);
    }
}
