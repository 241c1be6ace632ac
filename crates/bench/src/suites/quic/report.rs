//! Tables and targets.

use super::idle::{self, Kind};
use super::receive::{Mode, RECEIVE};
use super::{CONNECTIONS, FILES, IDLE, PACKETS_PER_ACK, QUINN};
use crate::measure::results::{Bound, Column, Plot, Results, Table, column};
use crate::measure::table;
use crate::servers::server_set::SPLITWAY;
use crate::suites::plain;

/// Target for the host process's CPU time per gigabyte, as a multiple of the plain quinn server's.
const HOST_RATIO_MAX: f64 = 0.4;

/// Target for both processes together.
const BOTH_RATIO_MAX: f64 = 0.65;

/// Target for throughput, as a multiple of plain quinn's.
const THROUGHPUT_RATIO_MIN: f64 = 1.5;

/// Target for the host process's AEAD, in percent of its time.
const AEAD_SHARE_MAX: f64 = 1.0;

/// Target for the host process's memory per idle connection, as a multiple of TLS over TCP's.
const MEMORY_RATIO_MAX: f64 = 2.0;

/// The part of the results with profiles, and Splitway's process with a target there.
pub(super) const PROFILE: &str = "profile";
const HOST: &str = "host";
const AEAD_SHARE: &str = "percent.aead";

/// Columns of profiles: shares of the samples, and of the CPU time.
const PERCENT: [Column; 5] = [
    column("percent.aead", "AEAD, %", 2),
    column("percent.header_protection", "header protection, %", 2),
    column("percent.copies", "copies, %", 2),
    column("percent.kernel", "kernel, %", 2),
    column("percent.control", "control, %", 2),
];
const SECONDS: [Column; 5] = [
    column("cpu_s_per_gb.aead", "AEAD, CPU s/GB", 4),
    column("cpu_s_per_gb.header_protection", "header protection", 4),
    column("cpu_s_per_gb.copies", "copies", 4),
    column("cpu_s_per_gb.kernel", "kernel", 4),
    column("cpu_s_per_gb.control", "control", 4),
];

pub(super) fn report(results: &mut Results, connections: &[usize]) {
    for &connections in connections {
        check(results, connections as f64);
    }
    if results.has(IDLE) {
        let [quic, tls] = Kind::QUIC.map(Kind::name);
        let ratio = results.ratio(IDLE, (quic, idle::MEASURE), (tls, idle::MEASURE));
        let what = "host memory of an idle connection, against TLS over TCP";
        results.check(what, ratio, Bound::AtMost(MEMORY_RATIO_MAX));
    }
    if results.has(RECEIVE) {
        let [host, nic] = Mode::ALL.map(Mode::name);
        let measure = "cpu_s_per_gb.host";
        let ratio = results.ratio(RECEIVE, (nic, measure), (host, measure));
        let what = "host CPU per GB with `receive = \"nic\"`, against `\"host\"`";
        results.check(what, ratio, Bound::None);
    }
    add_tables(results);
    let x = (CONNECTIONS, "connections");
    for (file, title, y) in [
        (
            "quic",
            "HTTP/3: CPU time",
            (
                "cpu_s_per_gb.server",
                "CPU s/GB of all of a server's processes",
            ),
        ),
        (
            "quic-throughput",
            "HTTP/3: throughput",
            ("gbit_per_s", "Gbit/s"),
        ),
    ] {
        results.plot(Plot::lines(file, FILES, x, y).titled(title));
    }
    add_notes(results);
}

fn add_tables(results: &mut Results) {
    let over: &[_] = &[(CONNECTIONS, "Connections")];
    table::add(results, FILES, over);
    let client = vec![
        column("cpu_s_per_gb.client", "CPU s/GB, client", 4),
        column("cpu_s_per_gb.both_ends", "CPU s/GB, server and client", 4),
    ];
    results.table(Table::of(FILES, client).titled("The client").over(over));
    if results.has(RECEIVE) {
        let columns = vec![
            column("cpu_s_per_gb.host", "CPU s/GB, host", 4),
            column("cpu_s_per_gb.nic", "CPU s/GB, NIC", 4),
            column("cpu_s_per_gb.server", "CPU s/GB, both", 4),
            column("cpu_s_per_gb.machine", "CPU s/GB, machine", 4),
            column("gbit_per_s", "Gbit/s", 2),
        ];
        let receive = Table::of(RECEIVE, columns).titled("Who opens what clients send");
        results.table(receive.of_each("`[quic] receive`").over(over));
    }
    if results.has(PROFILE) {
        for (title, columns) in [
            ("What processes spend their time on", PERCENT),
            ("", SECONDS),
        ] {
            let profile = Table::of(PROFILE, columns.to_vec()).titled(title);
            results.table(profile.of_each("Process").over(over));
        }
    }
    if results.has(IDLE) {
        let columns = vec![column(idle::MEASURE, "KB of the host process, each", 1)];
        let table = Table::of(IDLE, columns).titled("Idle connections, 1,000 of them");
        results.table(table.of_each("Connections"));
    }
}

fn add_notes(results: &mut Results) {
    if results.has(PROFILE) {
        results.note(
            "What processes spend their time on is sampled by the software clock (`perf`), in a \
             run of its own; the innermost function decides. *Copies* are those of user mode and \
             of the kernel, *kernel* is all else there: system calls, packets, the link. *Header \
             protection* is every block of AES that is encrypted alone, and of these GCM itself \
             has one in each packet, for the tag. *Control* is the rest of user mode.",
        );
    }
    results.note(format!(
        "The client is the same, made of quinn-proto and quinn-udp, with superpackets in (GRO), \
         and offers AES-128-GCM only; it opens every packet, compares the beginning of each \
         piece of a body that it reads, and one response in a hundred byte by byte. All servers \
         have the same certificate and one core. Splitway and plain quinn ask for an \
         acknowledgment every {PACKETS_PER_ACK} packets (draft-ietf-quic-ack-frequency), and have \
         datagrams of up to 1,452 bytes, and CUBIC; other servers are as they come. The server of \
         plain quinn has one thread, rustls with aws-lc, as many datagrams in a superpacket as \
         UDP permits, which is more than quinn itself sends at once, and reads files with `pread` \
         from the page cache, 64 KiB at a time."
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
    // Without a profile there is nothing to check.
    let profiled = results.at(PROFILE, HOST, CONNECTIONS, connections);
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

    /// The report's checks for this CPU time of the host process per gigabyte.
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
        results.add(PROFILE, HOST, &[(CONNECTIONS, 40.0)], measures);
        for (mode, cpu_s_per_gb) in Mode::ALL.into_iter().zip([0.4, 0.3]) {
            let measures = [("cpu_s_per_gb.host".to_owned(), cpu_s_per_gb)].into();
            results.add(RECEIVE, mode.name(), &[(CONNECTIONS, 40.0)], measures);
        }
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
        assert_eq!(met(&reached), [true; 6], "{reached:?}");
        let (_, gained, _) = &reached[5];
        assert!((gained - 0.75).abs() < 1e-9, "{reached:?}");
        let missed = checks(401_000_000, 2);
        assert_eq!(
            met(&missed),
            [false, false, false, true, true, true],
            "{missed:?}"
        );
    }
}
