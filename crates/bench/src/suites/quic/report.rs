//! Tables, targets.

use super::idle::{self, Kind};
use super::{CONNECTIONS, FILES, IDLE, PACKETS_PER_ACK, QUINN};
use crate::measure::results::{Bound, Plot, Results, Table, column};
use crate::measure::table;
use crate::servers::server_set::SPLITWAY;
use crate::suites::plain;

/// What is wanted of the host process: its CPU time per gigabyte, as a multiple of that of the
/// server of plain quinn.
const HOST_RATIO_MAX: f64 = 0.4;

/// What is wanted of both processes together.
const BOTH_RATIO_MAX: f64 = 0.65;

/// What is wanted of throughput, as a multiple of plain quinn's.
const THROUGHPUT_RATIO_MIN: f64 = 1.5;

/// What is wanted of the host process's AEAD, in percent of its time.
const AEAD_SHARE_MAX: f64 = 1.0;

/// What is wanted of the host process's memory for an idle connection, as a multiple of what one of
/// TLS over TCP takes.
const MEMORY_RATIO_MAX: f64 = 2.0;

/// What is profiled.
pub(super) const PROFILE: &str = "profile";
pub(super) const AEAD_SHARE: &str = "aead_percent.host";

pub(super) fn report(results: &mut Results, connections: &[usize]) {
    for &connections in connections {
        check(results, connections as f64);
    }
    if results.has(IDLE) {
        let [quic, tls] = Kind::ALL.map(Kind::name);
        let ratio = results.ratio(IDLE, (quic, idle::MEASURE), (tls, idle::MEASURE));
        let what = "host memory of an idle connection, against TLS over TCP";
        results.check(what, ratio, Bound::AtMost(MEMORY_RATIO_MAX));
    }
    let over: &[_] = &[(CONNECTIONS, "Connections")];
    table::add(results, FILES, over);
    let client = vec![
        column("cpu_s_per_gb.client", "CPU s/GB, client", 4),
        column("cpu_s_per_gb.both_ends", "CPU s/GB, server and client", 4),
    ];
    results.table(Table::of(FILES, client).titled("The client").over(over));
    if results.has(PROFILE) {
        let columns = vec![column(
            AEAD_SHARE,
            "AEAD, % of the host process's samples",
            2,
        )];
        results.table(
            Table::of(PROFILE, columns)
                .titled("Host process")
                .over(over),
        );
    }
    if results.has(IDLE) {
        let columns = vec![column(idle::MEASURE, "KB of the host process, each", 1)];
        let table = Table::of(IDLE, columns).titled("Idle connections, 1,000 of them");
        results.table(table.of_each("Connections"));
    }
    let y = (
        "cpu_s_per_gb.server",
        "CPU s/GB of all of a server's processes",
    );
    results.plot(Plot::lines("quic", FILES, (CONNECTIONS, "connections"), y).titled("HTTP/3"));
    results.note(format!(
        "The client is the same, made of quinn-proto and quinn-udp, with superpackets in (GRO), \
         and offers AES-128-GCM only; it opens every packet, compares the beginning of each \
         piece of a body that it reads, and one response in a hundred byte by byte. Both \
         servers ask for an acknowledgment every {PACKETS_PER_ACK} packets \
         (draft-ietf-quic-ack-frequency), have the same certificate and datagrams of up to \
         1,452 bytes, and CUBIC. The server of plain quinn has one thread, rustls with aws-lc, \
         as many datagrams in a superpacket as UDP permits, which is more than quinn itself \
         sends at once, and reads files with `pread` from the page cache, 64 KiB at a time."
    ));
    results.note(plain::NOTE);
}

fn check(results: &mut Results, connections: f64) {
    let median = |results: &Results, series, measure| {
        let selection = results.at(FILES, series, CONNECTIONS, connections);
        selection.median(measure)
    };
    let all = "cpu_s_per_gb.server";
    for (own, theirs, what, bound) in [
        (
            "cpu_s_per_gb.host",
            all,
            "host CPU per GB",
            Bound::AtMost(HOST_RATIO_MAX),
        ),
        (
            all,
            all,
            "host and NIC CPU per GB",
            Bound::AtMost(BOTH_RATIO_MAX),
        ),
        (
            "gbit_per_s",
            "gbit_per_s",
            "throughput",
            Bound::AtLeast(THROUGHPUT_RATIO_MIN),
        ),
        (
            "cpu_s_per_gb.machine",
            "cpu_s_per_gb.machine",
            "machine CPU per GB",
            Bound::None,
        ),
    ] {
        let ratio = median(results, SPLITWAY, own) / median(results, QUINN, theirs);
        let what = format!("{what}, against plain quinn, connections: {connections}");
        results.check(what, ratio, bound);
    }
    // Without a profile there is nothing to say.
    let profiled = results.at(PROFILE, SPLITWAY, CONNECTIONS, connections);
    let share = profiled.median(AEAD_SHARE);
    if share.is_finite() {
        let what = format!("AEAD in the host process, %, connections: {connections}");
        results.check(what, share, Bound::AtMost(AEAD_SHARE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

    const GB: u64 = 1_000_000_000;

    /// What the report says with so much CPU time of the host process per gigabyte.
    fn checks(host_ns: u64, gb: u64) -> Vec<(String, f64, bool)> {
        let mut results = Results::new("quic", "QUIC", &()).unwrap();
        let own = [("host", host_ns * gb), ("nic", 250_000_000 * gb)];
        for run in [
            run(SPLITWAY, gb * GB, &own),
            run(QUINN, 2 * GB, &[("quinn", 2 * GB)]),
        ] {
            results.add(FILES, run.server, &[(CONNECTIONS, 40.0)], run.measures());
        }
        let measures = [(AEAD_SHARE.to_owned(), 0.5)].into();
        results.add(PROFILE, SPLITWAY, &[(CONNECTIONS, 40.0)], measures);
        report(&mut results, &[40]);
        let checks = results.checks().iter();
        checks
            .map(|check| (check.what.clone(), check.value.unwrap(), check.met))
            .collect()
    }

    #[test]
    fn targets_are_about_both_processes_and_about_the_host_alone() {
        let met = |checks: &[(String, f64, bool)]| -> Vec<bool> {
            checks.iter().map(|(.., met)| *met).collect()
        };
        let reached = checks(400_000_000, 3);
        assert_eq!(met(&reached), [true; 5], "{reached:?}");
        let missed = checks(401_000_000, 2);
        assert_eq!(
            met(&missed),
            [false, false, false, true, true],
            "{missed:?}"
        );
    }
}
