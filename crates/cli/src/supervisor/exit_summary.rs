//! The table of counters at the end.

use std::fmt::Write as _;

use sandbox::lockdown::LockedOut;

use crate::terminal::grouped;
use observer::Report;

/// Source of a cell.
enum Cell {
    /// The counter with this name; blank if the process has none.
    Counter(&'static str),
    /// A constant.
    Value(u64),
    Blank,
}

/// Rows: label, cell of the host process, cell of the NIC process.
const ROWS: [(&str, Cell, Cell); 20] = [
    // Zero for the host process, which was locked out of the file system before it served.
    (
        "bytes of content touched",
        Cell::Value(0),
        Cell::Counter("read_bytes"),
    ),
    (
        "bytes of content sent",
        Cell::Value(0),
        Cell::Counter("file_sent_bytes"),
    ),
    (
        "bytes of sealed content sent",
        Cell::Value(0),
        Cell::Counter("sealed_sent_bytes"),
    ),
    (
        "bytes of headers sent",
        Cell::Counter("real_bytes"),
        Cell::Counter("inline_sent_bytes"),
    ),
    (
        "OPEN commands",
        Cell::Counter("opens"),
        Cell::Counter("opens"),
    ),
    (
        "LIST commands",
        Cell::Counter("lists"),
        Cell::Counter("lists"),
    ),
    (
        "SEND commands",
        Cell::Counter("sends"),
        Cell::Counter("sends"),
    ),
    (
        "ACKD commands",
        Cell::Counter("ackds"),
        Cell::Counter("ackds"),
    ),
    (
        "CLOS commands",
        Cell::Counter("closes"),
        Cell::Counter("closes"),
    ),
    ("events", Cell::Counter("events"), Cell::Blank),
    (
        "connections",
        Cell::Counter("connections_accepted"),
        Cell::Blank,
    ),
    ("requests", Cell::Counter("http_requests"), Cell::Blank),
    (
        "TLS handshakes",
        Cell::Counter("tls_handshakes"),
        Cell::Blank,
    ),
    (
        "TLS records sealed",
        Cell::Blank,
        Cell::Counter("records_sealed"),
    ),
    (
        "frames received",
        Cell::Counter("frames_received"),
        Cell::Blank,
    ),
    (
        "packets sent",
        Cell::Counter("packets_sent"),
        Cell::Counter("packets"),
    ),
    (
        "in superpackets",
        Cell::Blank,
        Cell::Counter("superpackets"),
    ),
    (
        "retransmissions",
        Cell::Counter("retransmissions"),
        Cell::Blank,
    ),
    (
        "bytes of retransmissions",
        Cell::Counter("retransmitted_bytes"),
        Cell::Blank,
    ),
    (
        "NIC processes that followed another",
        Cell::Counter("nic_restarts"),
        Cell::Blank,
    ),
];

/// Returns the table of the processes' counters. A NIC process that was not started here has no
/// column.
pub(crate) fn table(locked_out: &LockedOut, host: Option<&Report>, nic: Option<&Report>) -> String {
    let columns: Vec<(&str, &Report, bool)> = host
        .map(|report| ("host process", report, true))
        .into_iter()
        .chain(nic.map(|report| {
            // The sum of NIC processes and relays.
            let carries = report.counter("control_link_frames_sent").is_some();
            let serves = report.counter("sends").is_some();
            let title = match (carries, serves) {
                (true, true) => "NIC and relay",
                (true, false) => "relay process",
                (false, _) => "NIC process",
            };
            (title, report, false)
        }))
        .collect();
    let mut text = String::new();
    let mut row = |label: &str, cells: &mut dyn Iterator<Item = String>| {
        let _ = write!(text, "{label:<36}");
        for cell in cells {
            let _ = write!(text, "{cell:>16}");
        }
        text.push('\n');
    };
    row(
        "",
        &mut columns.iter().map(|(title, ..)| (*title).to_owned()),
    );
    for (label, host_cell, nic_cell) in &ROWS {
        let cell = |report: &Report, is_host: bool| match if is_host { host_cell } else { nic_cell }
        {
            Cell::Counter(name) => report.counter(name).map_or_else(String::new, grouped),
            Cell::Value(value) => grouped(*value),
            Cell::Blank => String::new(),
        };
        row(
            label,
            &mut columns
                .iter()
                .map(|(_, report, is_host)| cell(report, *is_host)),
        );
    }
    row(
        "CPU time",
        &mut columns.iter().map(|(_, report, _)| milliseconds(report)),
    );
    row(
        "memory, at most",
        &mut columns
            .iter()
            .map(|(_, report, _)| megabytes(report.memory_bytes_max)),
    );
    text.extend(nic.and_then(control_link));
    let _ = writeln!(
        text,
        "The host process could not have read a file: Landlock (ABI {}) had locked it out before.",
        locked_out.landlock_abi
    );
    text
}

/// Returns a relay's counters in a line; `None` if the process is no relay.
pub(crate) fn control_link(relay: &Report) -> Option<String> {
    let counter = |name| relay.counter(name).map(grouped);
    Some(format!(
        "Control link: {} frames sent, {} received, {} more refused; {} parcels sent again.\n",
        counter("control_link_frames_sent")?,
        counter("control_link_frames_received")?,
        counter("control_link_frames_dropped")?,
        counter("control_link_parcels_repeated")?,
    ))
}

/// Returns all counters: a line with a JSON object, which has an object for each process.
pub(crate) fn json(
    host: Option<&Report>,
    nic: Option<&Report>,
    fetcher: Option<&Report>,
    broker: Option<&Report>,
) -> String {
    let counters = |report: &Report| -> serde_json::Map<String, serde_json::Value> {
        let rows = report.counters.iter().cloned();
        rows.map(|(name, value)| (name, value.into())).collect()
    };
    let mut line = serde_json::json!({ "host": host.map(counters), "nic": nic.map(counters) });
    if let Some(fetcher) = fetcher {
        line["fetcher"] = counters(fetcher).into();
    }
    if let Some(broker) = broker {
        line["broker"] = counters(broker).into();
    }
    format!("{line}\n")
}

/// Returns the fetcher's counters, a line each.
pub(crate) fn fetcher(report: &Report) -> String {
    list("fetcher", "origin_", report)
}

/// Returns the broker's counters, a line each.
pub(crate) fn broker(report: &Report) -> String {
    list("broker", "broker_", report)
}

fn list(process: &str, prefix: &str, report: &Report) -> String {
    let mut text = format!("{process}\n");
    for (name, value) in &report.counters {
        let name = name.trim_start_matches(prefix).replace('_', " ");
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<20} {:>15}", grouped(*value));
    }
    text
}

fn milliseconds(report: &Report) -> String {
    let total_us = report.cpu_user_us.saturating_add(report.cpu_system_us);
    format!("{}.{} ms", grouped(total_us / 1000), total_us % 1000 / 100)
}

fn megabytes(bytes: u64) -> String {
    format!(
        "{}.{} MB",
        grouped(bytes / 1_000_000),
        bytes % 1_000_000 / 100_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use observer::counter_names;

    fn report(counters: &[(&str, u64)]) -> Report {
        Report {
            counters: counters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            cpu_user_us: 1_000_000,
            cpu_system_us: 234_560,
            memory_bytes_max: 12_345_678,
        }
    }

    fn locked_out() -> LockedOut {
        LockedOut {
            landlock_abi: 7,
            probe: "/srv".into(),
            probe_errno: 13,
        }
    }

    #[test]
    fn the_line_of_json_has_every_counter() {
        let host = report(&[("sends", 12), ("events", 1500)]);
        let line: serde_json::Value =
            serde_json::from_str(&json(Some(&host), None, None, None)).unwrap();
        assert_eq!(line["host"]["events"], 1500);
        assert!(line["nic"].is_null());
    }
    #[test]
    fn each_process_has_its_column() {
        let (host, nic) = (
            report(&[("sends", 12), ("events", 1500)]),
            report(&[("sends", 12)]),
        );
        let table = table(&locked_out(), Some(&host), Some(&nic));
        let cells = |label: &str| {
            let line = table
                .lines()
                .find(|line| line.starts_with(label))
                .expect(label);
            line[36..].split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(cells("SEND commands"), "12 12");
        assert_eq!(cells("events"), "1,500");
        assert_eq!(cells("CPU time"), "1,234.5 ms 1,234.5 ms");
        assert_eq!(cells("memory"), "12.3 MB 12.3 MB");
        assert_eq!(cells("bytes of content sent"), "0");
        assert!(table.contains("Landlock (ABI 7)"));
    }

    #[test]
    fn counters_of_a_relay_are_printed() {
        let counters = contract::ethernet::session::Counters {
            frames_sent: 12_345,
            frames_dropped: 6,
            parcels_repeated: 7,
            ..Default::default()
        };
        let relay = Report::now(counter_names::control_link(&counters));
        let table = table(&locked_out(), None, Some(&relay));
        assert!(table.contains("relay process"), "{table}");
        let line = "12,345 frames sent, 0 received, 6 more refused; 7 parcels sent again";
        assert!(table.contains(line), "{table}");
        assert_eq!(control_link(&report(&[("sends", 12)])), None);
    }

    #[test]
    fn the_column_of_several_kinds_is_named_after_both() {
        let relay = report(&[("control_link_frames_sent", 1)]);
        let mut both = report(&[("sends", 12)]);
        for (sum, title) in [
            (relay.clone(), "relay process"),
            (both.clone(), "NIC process"),
        ] {
            assert!(table(&locked_out(), None, Some(&sum)).contains(title));
        }
        both.absorb(&relay);
        assert!(table(&locked_out(), None, Some(&both)).contains("NIC and relay"));
    }

    #[test]
    fn every_counter_named_here_exists() {
        let host = counter_names::host(&host::Counters::default(), &server::Counters::default());
        let nic = counter_names::nic(&nic::Counters::default());
        for (label, host_cell, nic_cell) in &ROWS {
            for (cell, counters) in [(host_cell, &host), (nic_cell, &nic)] {
                if let Cell::Counter(name) = cell {
                    assert!(
                        counters.iter().any(|(own, _)| own == name),
                        "{label}: no counter {name}"
                    );
                }
            }
        }
    }
}
