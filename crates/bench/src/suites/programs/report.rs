//! Tables, plots, targets.

use super::bed::{CONTROL, Kind, Sockets, Subject};
use super::{CLOSE, KEEP_ALIVE, REDIS, TARGET_BYTES, TARGET_CLIENTS};
use crate::measure::results::{Bound, Plot, Results, Table, column};
use crate::measure::table;
use crate::suites::plain;

/// Targets for nginx with files of 500 KB, relative to nginx over the kernel's sockets: CPU time
/// per gigabyte of program and host process, and of all processes, and throughput.
const CONTROL_RATIO_MAX: f64 = 0.2;
const SERVER_RATIO_MAX: f64 = 1.5;
const THROUGHPUT_RATIO_MIN: f64 = 0.95;

/// Target for redis with 50 clients: requests per second, as a multiple.
const REDIS_RATIO_MIN: f64 = 0.9;

const OVER_LENGTHS: &[(&str, &str)] = &[("file_bytes", "File, bytes")];
const OVER_LOADS: &[(&str, &str)] = &[("clients", "Clients"), ("pipelined", "Pipelined")];

fn name(kind: Kind, sockets: Sockets) -> &'static str {
    Subject { kind, sockets }.name()
}

pub(super) fn report(results: &mut Results) {
    check(results);
    for (part, title) in [
        (KEEP_ALIVE, "Files, connections that stay"),
        (CLOSE, "Files, a connection for each"),
    ] {
        table::add_titled(results, part, title, OVER_LENGTHS);
    }
    let columns = vec![
        column("requests_per_s", "requests/s", 0),
        column("cpu_us_per_request.*", "CPU µs/request, each process", 2),
        column("cpu_us_per_request.control", "program and host", 2),
    ];
    results.table(
        Table::of(REDIS, columns)
            .titled("redis: GET")
            .over(OVER_LOADS),
    );
    if results.has(KEEP_ALIVE) {
        let x = ("file_bytes", "bytes of a file");
        let y = (
            "cpu_s_per_gb.control",
            "CPU s/GB of program and host process",
        );
        results.plot(Plot::lines("programs-files", KEEP_ALIVE, x, y).titled("Files"));
    }
    results.note(
        "Programs are Debian's, unmodified, with one worker each and the same configuration over \
         the kernel's sockets and over split ones (`splitway run`). Program, host process and NIC \
         process share a core, redis-benchmark and the other client have the other.",
    );
    results.note(plain::NOTE);
}

fn check(results: &mut Results) {
    let at = [("file_bytes", TARGET_BYTES as f64)];
    let files = |part, kind, own: &str, theirs: &str| {
        let of = |sockets, measure: &str| {
            let series = name(kind, sockets);
            results.under(part, series, &at).median(measure)
        };
        of(Sockets::Split, own) / of(Sockets::Kernel, theirs)
    };
    let control = format!("cpu_s_per_gb.{CONTROL}");
    let (server, machine) = ("cpu_s_per_gb.server", "cpu_s_per_gb.machine");
    let mut rows = Vec::new();
    for (part, kind, of) in [
        (KEEP_ALIVE, Kind::Nginx, "nginx"),
        (KEEP_ALIVE, Kind::Lighttpd, "lighttpd"),
        (CLOSE, Kind::Nginx, "nginx, close"),
        (CLOSE, Kind::Lighttpd, "lighttpd, close"),
    ] {
        let is_target = part == KEEP_ALIVE && kind == Kind::Nginx;
        let wanted = |bound| if is_target { bound } else { Bound::None };
        for (what, value, bound) in [
            (
                "program and host CPU per GB",
                files(part, kind, &control, server),
                Bound::AtMost(CONTROL_RATIO_MAX),
            ),
            (
                "all of the server's CPU per GB",
                files(part, kind, server, server),
                Bound::AtMost(SERVER_RATIO_MAX),
            ),
            (
                "machine CPU per GB",
                files(part, kind, machine, machine),
                Bound::None,
            ),
            (
                "throughput",
                files(part, kind, "gbit_per_s", "gbit_per_s"),
                Bound::AtLeast(THROUGHPUT_RATIO_MIN),
            ),
        ] {
            let what = format!("{of}, files of 500 KB: {what}, against kernel sockets");
            rows.push((what, value, wanted(bound)));
        }
    }
    let clients = [("clients", TARGET_CLIENTS as f64), ("pipelined", 1.0)];
    let rate = |sockets| {
        let series = name(Kind::Redis, sockets);
        let found = results.under(REDIS, series, &clients);
        found.median("requests_per_s")
    };
    let redis = rate(Sockets::Split) / rate(Sockets::Kernel);
    let what =
        format!("redis, GET of {TARGET_CLIENTS} clients: requests/s, against kernel sockets");
    rows.push((what, redis, Bound::AtLeast(REDIS_RATIO_MIN)));
    for (what, value, bound) in rows {
        // NaN if the length or the load was not measured.
        if !value.is_nan() {
            results.check(what, value, bound);
        }
    }
}
