//! Text output, in the style of `ss -ti` as far as that has the terms.

use std::fmt::{self, Write as _};

use super::rates::Rates;
use crate::terminal::grouped;
use netem::conditions::Rate;
use processes::ipc::stat_report::{
    Application, Backend, Connection, Document, Fetcher, Host, Nic, Process, QuicConnection, Tcp,
};

/// Escape sequences: cursor to the upper left corner; clear to the right; clear below.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Formats the whole report.
pub(super) fn whole(document: &Document, rates: &Rates) -> String {
    let mut text = String::new();
    for line in lines(document, rates) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Formats the lines that fit the terminal, to replace the previous report.
pub(super) fn screen(document: &Document, rates: &Rates) -> String {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    let (rows, columns) = match size {
        Ok(size) if size.ws_row > 1 && size.ws_col > 1 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    };
    fitted(lines(document, rates), rows.into(), columns.into())
}

fn fitted(lines: Vec<String>, rows: usize, columns: usize) -> String {
    let mut text = HOME.to_owned();
    let shown = match lines.len() < rows {
        true => lines.len(),
        // The last line counts the omitted ones, and the cursor stays in its row.
        false => rows - 2,
    };
    for line in lines.iter().take(shown) {
        // The width of a tab depends on its column.
        let line = line.replace('\t', "    ");
        text.extend(line.chars().take(columns));
        text.push_str(CLEAR_LINE);
        text.push('\n');
    }
    if shown < lines.len() {
        let more = lines.len() - shown;
        // Writing to a string does not fail.
        let _ = writeln!(text, "… and {more} more lines{CLEAR_LINE}");
    }
    text.push_str(CLEAR_BELOW);
    text
}

fn lines(document: &Document, rates: &Rates) -> Vec<String> {
    let mut lines = summary(document, rates);
    if !document.backends.is_empty() {
        lines.push(String::new());
        let cells: Vec<_> = document.backends.iter().map(backend_cells).collect();
        lines.extend(table(BACKEND_TITLES, &cells));
    }
    if !document.applications.is_empty() {
        lines.push(String::new());
        let cells = |application| application_cells(application, rates);
        let cells: Vec<_> = document.applications.iter().map(cells).collect();
        lines.extend(table(APPLICATION_TITLES, &cells));
    }
    if !document.connections.is_empty() {
        lines.push(String::new());
        let cells: Vec<_> = document.connections.iter().map(cells).collect();
        let mut rows = table(CONNECTION_TITLES, &cells).into_iter();
        lines.extend(rows.next());
        for (connection, row) in document.connections.iter().zip(rows) {
            let rate = rates.acked(connection.stream);
            lines.push(row);
            lines.push(format!("\t {}", details(connection, rate)));
        }
    }
    if !document.quic_connections.is_empty() {
        lines.push(String::new());
        let cells: Vec<_> = document.quic_connections.iter().map(quic_cells).collect();
        lines.extend(table(QUIC_TITLES, &cells));
    }
    lines
}

const QUIC_TITLES: [&str; 6] = [
    "State",
    "Streams",
    "Local Address:Port",
    "Peer Address:Port",
    "NIC",
    "QUIC",
];

fn quic_cells(connection: &QuicConnection) -> [String; 6] {
    let mut words = vec![
        format!("rtt:{}", milliseconds(connection.srtt_us)),
        format!("cwnd:{}", connection.cwnd_bytes),
        format!("bytes_sent:{}", connection.bytes_sent),
        format!("lost:{}", connection.packets_lost),
    ];
    if connection.is_offloaded {
        words.push("offloaded".to_owned());
    }
    if connection.is_opened_by_nic {
        words.push("receive:nic".to_owned());
    }
    if connection.packets_opened_by_nic > 0 {
        words.push(format!("opened:{}", connection.packets_opened_by_nic));
    }
    if connection.sends_outstanding > 0 {
        words.push(format!("sends:{}", connection.sends_outstanding));
    }
    if connection.waits {
        words.push("waits".to_owned());
    }
    [
        connection.state.clone(),
        connection.streams.to_string(),
        connection.local.to_string(),
        connection.peer.to_string(),
        format!("{}/{}", connection.nic, connection.worker),
        words.join(" "),
    ]
}

const BACKEND_TITLES: [&str; 6] = [
    "Pool",
    "Backend",
    "State",
    "Connections",
    "Idle",
    "Last failure",
];

fn backend_cells(backend: &Backend) -> [String; 6] {
    [
        shown(&backend.pool),
        shown(&backend.backend),
        backend.state.clone(),
        grouped(backend.connections),
        grouped(backend.connections_idle),
        shown(&backend.failures.join("; ")),
    ]
}

const CONNECTION_TITLES: [&str; 6] = [
    "State",
    "Send-Q",
    "Local Address:Port",
    "Peer Address:Port",
    "NIC",
    "File",
];

const APPLICATION_TITLES: [&str; 13] = [
    "Application",
    "PID",
    "UID",
    "Processes",
    "Sockets",
    "Listening",
    "Connections",
    "Files",
    "Memory",
    "Received",
    "Sent",
    "Of files",
    "Offloaded",
];

/// Formats titles and rows, each column as wide as its longest cell.
fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    let titles = titles.map(str::to_owned);
    let mut widths = titles.each_ref().map(String::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let line = |row: &[String; N]| {
        let padded = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let padded: Vec<String> = padded.collect();
        padded.join("  ").trim_end().to_owned()
    };
    std::iter::once(&titles).chain(rows).map(line).collect()
}

fn application_cells(application: &Application, rates: &Rates) -> [String; 13] {
    let name = application.name.as_deref().map(shown);
    let name = name.unwrap_or_else(|| application.application.to_string());
    let share = application.offloaded_share.map(percent);
    let mut offloaded = share.unwrap_or_else(|| "-".to_owned());
    if let Some(rate) = rates.sent(application.application) {
        let _ = write!(offloaded, "  sent_rate {}", bit_rate(rate));
    }
    if !application.has_default_modes() {
        let _ = write!(offloaded, "  modes {}", modes(&application.modes));
    }
    if application.turns_used_up > 0 {
        let turns = grouped(application.turns_used_up);
        let _ = write!(offloaded, "  turns_used_up {turns}");
    }
    if application.is_detached {
        offloaded.push_str("  detached");
    }
    [
        name,
        application
            .pid
            .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        application.uid.to_string(),
        grouped(application.processes as u64),
        grouped(application.sockets as u64),
        grouped(application.listeners.into()),
        grouped(application.connections as u64),
        grouped(application.files.into()),
        grouped(application.memory_bytes),
        grouped(application.received_bytes),
        grouped(
            application
                .sent_bytes
                .saturating_add(application.file_bytes),
        ),
        grouped(application.file_bytes),
        offloaded,
    ]
}

/// Formats the names of modes as one word.
fn modes(names: &[String]) -> String {
    if names.is_empty() {
        "-".to_owned()
    } else {
        shown(&names.join(","))
    }
}

/// Formats a fraction of 1 in percent, with one decimal.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn summary(document: &Document, rates: &Rates) -> Vec<String> {
    let server = &document.server;
    let mut lines = vec![format!(
        "splitway {}: supervisor {}",
        server.version,
        process(&server.supervisor)
    )];
    if let Some(host) = &server.host {
        lines.push(format!("host process: {}", process(host)));
    }
    for nic in &server.nics {
        let used = nic.process.as_ref().map_or_else(String::new, used);
        lines.push(format!("{}{used}", nic.status));
        lines.extend(cache(nic));
    }
    lines.extend(server.fetcher.iter().flat_map(fetcher));
    let Some(host) = &document.host else {
        return lines;
    };
    let usage = &host.usage;
    lines.push(format!(
        "connections: {}; {} of them orphaned; {} in TIME-WAIT, {} half-open",
        grouped(usage.connections as u64),
        grouped(usage.orphans as u64),
        grouped(usage.time_waits as u64),
        grouped(usage.half_open as u64),
    ));
    if usage.parted > 0 {
        let parted = grouped(usage.parted as u64);
        lines.push(format!("{parted} more in teardown at NIC stacks"));
    }
    if usage.quic_connections > 0 {
        lines.push(format!(
            "QUIC: {} connections with {} streams",
            grouped(usage.quic_connections as u64),
            grouped(usage.quic_streams as u64),
        ));
    }
    let count = |name| grouped(host.counters.get(name).copied().unwrap_or(0));
    if let Some(syns) = &host.syns {
        let set_up = count("connections_set_up");
        lines.push(format!(
            "NIC workers answer SYNs ({syns}): {set_up} connections so far"
        ));
    }
    lines.push(so_far(host));
    lines.push(format!(
        "now: {} files open, {} SENDs at the NIC stacks",
        grouped(usage.files as u64),
        grouped(usage.sends_outstanding),
    ));
    if let Some(rates) = rates.server {
        lines.push(format!(
            "per second: {} handed down, {} requests, {} connections",
            bit_rate(rates.bytes),
            grouped(rates.requests),
            grouped(rates.connections),
        ));
    }
    lines.extend(workers(host));
    lines
}

/// Formats the host process's totals since its start.
fn so_far(host: &Host) -> String {
    let count = |name| host.counters.get(name).copied().unwrap_or(0);
    let proxied = count("proxy_requests");
    let requests = count("http_requests").saturating_add(proxied);
    let mut line = format!(
        "so far: {} connections, {} requests",
        grouped(count("connections_accepted")),
        grouped(requests),
    );
    if proxied > 0 {
        let _ = write!(line, " ({} through the proxy)", grouped(proxied));
    }
    let sent = count("real_bytes").saturating_add(count("virtual_bytes"));
    let again = count("retransmitted_bytes") as f64 / sent.max(1) as f64;
    let _ = write!(
        line,
        "; {} bytes sent by TCP, {} of them again; {} timeouts",
        grouped(sent),
        percent(again),
        grouped(count("timeouts")),
    );
    line
}

/// Formats the workers of all NIC stacks.
fn workers(host: &Host) -> Vec<String> {
    let mut lines = Vec::new();
    for nic in &host.nics {
        if nic.workers_min < nic.workers_max {
            lines.push(format!(
                "NIC {}: {} of {} workers in use, at least {}",
                nic.nic, nic.workers_in_use, nic.workers_max, nic.workers_min
            ));
        }
    }
    for worker in &host.workers {
        let mut line = format!(
            "NIC {}/{}: {} connections",
            worker.nic,
            worker.worker,
            grouped(worker.connections as u64)
        );
        for (count, what) in [
            (worker.connections_waiting, "of them wait for room"),
            (worker.commands_waiting, "commands wait"),
        ] {
            if count > 0 {
                let _ = write!(line, ", {} {what}", grouped(count as u64));
            }
        }
        if !worker.is_there {
            line.push_str(", gone");
        } else if worker.busy_share > 0.0 {
            let _ = write!(line, ", {} busy", percent(worker.busy_share));
        }
        if !worker.is_in_use {
            line.push_str(", not in use");
        }
        lines.push(line);
    }
    lines
}

/// Formats the bytes that a NIC stack has sent, and their sources.
fn cache(nic: &Nic) -> Option<String> {
    let count = |name| nic.counters.get(name).copied();
    let (hits, misses) = (count("block_hits")?, count("block_misses")?);
    let found = match (hits * 100).checked_div(hits + misses) {
        Some(percent) => format!("{percent} % of {} blocks", grouped(hits + misses)),
        None => "no block needed yet".to_owned(),
    };
    Some(format!(
        "  {} bytes of files sent as they are, {} sealed, in {} superpackets; {} bytes read; in \
         the cache: {found}",
        grouped(count("file_sent_bytes")?),
        grouped(count("sealed_sent_bytes").unwrap_or(0)),
        grouped(count("superpackets")?),
        grouped(count("read_bytes")?),
    ))
}

/// Formats the fetcher's state and totals.
fn fetcher(fetcher: &Fetcher) -> [String; 2] {
    let who = fetcher.process.as_ref();
    let who = who.map_or_else(|| "none at the moment".to_owned(), process);
    let count = |name: &str| fetcher.counters.get(name).copied().unwrap_or(0);
    let asked = count("origin_asked");
    let hits = match (count("origin_hits") * 100).checked_div(asked) {
        Some(percent) => format!("{percent} % hits of {}", grouped(asked)),
        None => "no request yet".to_owned(),
    };
    [
        format!("fetcher: {who}"),
        format!(
            "  {hits}; {} requests, {} failed; {} bytes fetched; {} objects, {} of {} bytes kept",
            grouped(count("origin_requests")),
            grouped(count("origin_failures")),
            grouped(count("origin_fetched_bytes")),
            grouped(count("origin_cached_objects")),
            grouped(count("origin_cached_bytes")),
            grouped(fetcher.cache_max_bytes),
        ),
    ]
}

fn process(process: &Process) -> String {
    format!("process {}{}", process.pid, used(process))
}

fn used(process: &Process) -> String {
    let cpu = process
        .cpu_us
        .map(|us| format!("CPU {} s", thousandths(us / 1_000)));
    let memory = process
        .memory_bytes
        .map(|bytes| format!("{} kB", grouped(bytes / 1_000)));
    let used: Vec<String> = cpu.into_iter().chain(memory).collect();
    if used.is_empty() {
        String::new()
    } else {
        format!(" ({})", used.join(", "))
    }
}

fn cells(connection: &Connection) -> [String; 6] {
    let file = connection.file.as_ref().map(|file| {
        let object = connection
            .http
            .as_ref()
            .and_then(|http| http.object.as_deref());
        let path = shown(object.unwrap_or(&file.path));
        format!("{path} @ {} of {}", file.offset_bytes, file.size_bytes)
    });
    [
        connection.state.clone(),
        connection.tcp.queued_bytes.to_string(),
        connection.local.to_string(),
        connection.peer.to_string(),
        format!("{}/{}", connection.nic, connection.worker),
        file.unwrap_or_default(),
    ]
}

/// Replaces control characters in file names, which could move the cursor.
fn shown(path: &str) -> String {
    let is_plain = |letter: &char| !letter.is_control();
    path.chars()
        .map(|letter| if is_plain(&letter) { letter } else { '?' })
        .collect()
}

fn details(connection: &Connection, acked_rate: Option<u64>) -> String {
    let tcp = &connection.tcp;
    let mut words: Vec<String> = Vec::new();
    for (is, word) in [(tcp.timestamps, "ts"), (tcp.sack, "sack"), (tcp.ecn, "ecn")] {
        if is {
            words.push(word.to_owned());
        }
    }
    words.push(tcp.congestion.clone());
    if tcp.ca_state != "open" {
        words.push(format!("ca_state:{}", tcp.ca_state));
    }
    if let (Some(snd), Some(rcv)) = (tcp.snd_wscale, tcp.rcv_wscale) {
        words.push(format!("wscale:{snd},{rcv}"));
    }
    words.push(format!("rto:{}", milliseconds(tcp.rto_us)));
    words.extend(round_trips(tcp));
    words.push(format!("mss:{}", tcp.mss_bytes));
    words.push(format!("cwnd:{}", tcp.cwnd_bytes));
    let counts = [
        ("ssthresh", tcp.ssthresh_bytes.unwrap_or(0)),
        ("backoff", tcp.backoff.into()),
        ("bytes_sent", tcp.bytes_sent),
        ("bytes_retrans", tcp.bytes_retransmitted),
        ("bytes_acked", tcp.bytes_acked),
        ("bytes_received", tcp.bytes_received),
        ("unacked", tcp.flight_bytes),
        ("undeparted", tcp.undeparted_bytes),
        ("sacked", tcp.sacked_bytes),
        ("lost", tcp.lost_bytes),
        ("retrans", tcp.retransmissions),
        ("timeouts", tcp.timeouts),
        ("sends", connection.sends_outstanding),
        ("unread", tcp.unread_bytes),
        ("snd_wnd", tcp.snd_wnd_bytes),
        ("rcv_wnd", tcp.rcv_wnd_bytes),
    ];
    for (name, count) in counts {
        if count > 0 {
            words.push(format!("{name}:{count}"));
        }
    }
    if let Some(rate) = tcp.pacing_bytes_per_second {
        words.push(format!("pacing_rate {}", bit_rate(rate)));
    }
    if let Some(rate) = acked_rate {
        words.push(format!("acked_rate {}", bit_rate(rate)));
    }
    words.push(format!("age:{}", milliseconds(tcp.age_us)));
    words.push(format!("lastack:{}", milliseconds(tcp.since_progress_us)));
    if let Some(tls) = &connection.tls {
        let version = tls.version.as_deref().unwrap_or("handshake");
        words.push(format!("tls:{version}"));
        words.extend(tls.cipher.clone());
    }
    if let Some(http) = &connection.http {
        words.push(format!("http:{} requests:{}", http.phase, http.requests));
        words.extend(http.site.as_ref().map(|site| format!("site:{site}")));
    }
    if connection.waits {
        words.push("waits".to_owned());
    }
    words.join(" ")
}

fn round_trips(tcp: &Tcp) -> Option<String> {
    let (srtt_us, rttvar_us) = tcp.srtt_us.zip(tcp.rttvar_us)?;
    let least = tcp
        .min_rtt_us
        .map_or_else(String::new, |us| format!(" minrtt:{}", milliseconds(us)));
    Some(format!(
        "rtt:{}/{}{least}",
        milliseconds(srtt_us),
        milliseconds(rttvar_us)
    ))
}

/// Formats microseconds as milliseconds, without trailing zeros.
fn milliseconds(us: u64) -> String {
    thousandths(us)
}

/// Formats a thousandth of a number.
fn thousandths(value: u64) -> String {
    let text = format!("{}.{:03}", value / 1_000, value % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn bit_rate(bytes_per_second: u64) -> impl fmt::Display {
    Rate::of_bytes_per_second(bytes_per_second).shown()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use processes::ipc::stat_report::{Division, File, Http, SCHEMA, Server, Tls, Usage, Worker};
    use socket_channel::attach::MODE_NAMES;

    /// A connection that is being sent a file.
    pub(in crate::commands::stat) fn connection() -> Connection {
        Connection {
            stream: 1 << 32,
            local: "10.77.0.2:80".parse().unwrap(),
            peer: "10.77.0.1:40312".parse().unwrap(),
            state: "ESTABLISHED".to_owned(),
            nic: 0,
            worker: 1,
            sends_outstanding: 3,
            waits: false,
            tls: Some(Tls {
                version: Some("TLSv1.3".to_owned()),
                cipher: Some("AES-128-GCM".to_owned()),
                alpn: None,
                is_resumed: Some(false),
            }),
            http: Some(Http {
                phase: "reading".to_owned(),
                requests: 2,
                site: None,
                object: None,
            }),
            file: Some(File {
                path: "films/movie\x1b[2J.mp4".to_owned(),
                offset_bytes: 1000,
                size_bytes: 5000,
            }),
            tcp: Tcp {
                congestion: "cubic".to_owned(),
                ca_state: "recovery".to_owned(),
                mss_bytes: 1448,
                cwnd_bytes: 144_800,
                ssthresh_bytes: None,
                srtt_us: Some(20_310),
                rttvar_us: Some(80),
                min_rtt_us: Some(20_000),
                rto_us: 220_000,
                backoff: 0,
                bytes_sent: 3000,
                bytes_acked: 1200,
                bytes_received: 77,
                bytes_retransmitted: 1448,
                retransmissions: 1,
                timeouts: 0,
                queued_bytes: 4000,
                unread_bytes: 0,
                flight_bytes: 1800,
                pipe_bytes: 1800,
                undeparted_bytes: 0,
                sacked_bytes: 0,
                lost_bytes: 0,
                snd_wnd_bytes: 65_535,
                rcv_wnd_bytes: 65_535,
                pacing_bytes_per_second: Some(1_562_500),
                timestamps: true,
                sack: true,
                ecn: false,
                snd_wscale: Some(7),
                rcv_wscale: Some(5),
                age_us: 61_000_500,
                since_progress_us: 1_000,
            },
        }
    }

    /// An application that sends mostly files.
    pub(in crate::commands::stat) fn application(number: u32) -> Application {
        Application {
            application: number,
            pid: Some(4000 + number),
            name: Some("web\x1b[2Jserver".to_owned()),
            uid: 33,
            modes: vec!["async-send".to_owned(), "eager-receive".to_owned()],
            is_detached: false,
            processes: 2,
            sockets: 1_300,
            listeners: 3,
            connections: 1_290,
            files: 7,
            handles: 1_310,
            memory_bytes: 9_000_000,
            sent_bytes: 30_000,
            file_bytes: 970_000,
            received_bytes: 4_500,
            offloaded_share: Some(0.97),
            turns_used_up: 0,
        }
    }

    /// A worker in use, and one not in use.
    fn two_workers(connections: usize) -> Vec<Worker> {
        let worker = Worker {
            nic: 0,
            worker: 0,
            is_there: true,
            is_in_use: true,
            busy_share: 0.425,
            connections,
            connections_waiting: 2,
            commands_waiting: 0,
        };
        let asleep = Worker {
            worker: 1,
            is_in_use: false,
            busy_share: 0.0,
            connections: 0,
            connections_waiting: 0,
            ..worker.clone()
        };
        vec![worker, asleep]
    }

    fn quic_connection() -> QuicConnection {
        QuicConnection {
            connection: 7,
            local: "10.77.0.2:443".parse().unwrap(),
            peer: "10.77.0.1:50000".parse().unwrap(),
            state: "ESTABLISHED".to_owned(),
            nic: 0,
            worker: 0,
            is_offloaded: true,
            is_opened_by_nic: true,
            packets_opened_by_nic: 40,
            sends_outstanding: 2,
            waits: false,
            tls: None,
            streams: 3,
            bytes_sent: 70_000,
            srtt_us: 1_250,
            cwnd_bytes: 14_520,
            packets_lost: 1,
        }
    }

    fn host_counters() -> BTreeMap<String, u64> {
        [
            ("http_requests", 12_345),
            ("proxy_requests", 1000),
            ("real_bytes", 2000),
            ("virtual_bytes", 8000),
            ("retransmitted_bytes", 250),
            // A retransmission may carry any number of bytes.
            ("retransmissions", 7),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into()
    }

    fn backend() -> Backend {
        Backend {
            pool: "pool".to_owned(),
            backend: "app.test:9001".to_owned(),
            address: None,
            state: "unresolved".to_owned(),
            connections: 1_000,
            connections_idle: 2,
            failures: vec!["looking up its name: it is \x1b[2Junknown".to_owned()],
        }
    }

    pub(in crate::commands::stat) fn document(connections: usize) -> Document {
        let process = |pid| Process {
            pid,
            cpu_us: Some(1_250_000),
            memory_bytes: Some(12_345_678),
        };
        Document {
            schema: SCHEMA,
            unix_time_s: 1_800_000_000,
            server: Server {
                version: "0.1.0".to_owned(),
                supervisor: process(10),
                host: Some(process(11)),
                is_host_asked: true,
                nics: vec![Nic {
                    nic: 0,
                    name: "NIC process".to_owned(),
                    serves: true,
                    since_s: 5,
                    workers: 1,
                    process: Some(process(12)),
                    counters: [
                        ("file_sent_bytes", 5_000_000),
                        ("sealed_sent_bytes", 7_000_000),
                        ("superpackets", 21),
                        ("read_bytes", 65_536),
                        ("block_hits", 30),
                        ("block_misses", 10),
                    ]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into(),
                    status: "NIC process: serves for 5 s, 1 worker, process 12".to_owned(),
                }],
                fetcher: Some(Fetcher {
                    process: Some(process(13)),
                    cache_max_bytes: 10_000_000,
                    counters: [
                        ("origin_asked", 40),
                        ("origin_hits", 30),
                        ("origin_requests", 12),
                    ]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into(),
                }),
            },
            host: Some(Host {
                usage: Usage {
                    connections,
                    orphans: 0,
                    half_open: 0,
                    time_waits: 4,
                    parted: 0,
                    quic_connections: 0,
                    quic_streams: 0,
                    files: 1,
                    sends_outstanding: 3,
                    commands_waiting: 0,
                },
                syns: None,
                nics: vec![Division {
                    nic: 0,
                    workers_in_use: 1,
                    workers_min: 1,
                    workers_max: 2,
                }],
                workers: two_workers(connections),
                counters: host_counters(),
            }),
            applications: vec![application(100), application(102)],
            backends: vec![backend()],
            quic_connections: vec![quic_connection()],
            connections: vec![connection(); connections],
        }
    }

    #[test]
    fn a_connection_reads_like_a_line_of_ss() {
        let text = whole(&document(1), &Rates::default());
        for piece in [
            "host process: process 11 (CPU 1.25 s, 12,345 kB)",
            "NIC process: serves for 5 s, 1 worker, process 12 (CPU",
            "  5,000,000 bytes of files sent as they are, 7,000,000 sealed, in 21 superpackets; \
             65,536 bytes read; in the cache: 75 % of 40 blocks",
            "fetcher: process 13 (CPU 1.25 s, 12,345 kB)",
            "  75 % hits of 40; 12 requests, 0 failed; 0 bytes fetched; 0 objects, 0 of \
             10,000,000 bytes kept",
            "so far: 0 connections, 13,345 requests (1,000 through the proxy); 10,000 bytes sent \
             by TCP, 2.5 % of them again; 0 timeouts",
            "NIC 0: 1 of 2 workers in use, at least 1",
            "pool  app.test:9001  unresolved  1,000        2     looking up its name: it is \
             ?[2Junknown",
            "NIC 0/0: 1 connections, 2 of them wait for room, 42.5 % busy",
            "NIC 0/1: 0 connections, not in use",
            "ESTABLISHED  4000    10.77.0.2:80        10.77.0.1:40312    0/1  films/movie?[2J.mp4 \
             @ 1000 of 5000",
            "ts sack cubic ca_state:recovery wscale:7,5 rto:220 rtt:20.31/0.08 minrtt:20 mss:1448 \
             cwnd:144800",
            "bytes_retrans:1448",
            "unacked:1800",
            "retrans:1 ",
            "pacing_rate 12.5 Mbit/s",
            "age:61000.5 lastack:1 tls:TLSv1.3 AES-128-GCM http:reading requests:2",
        ] {
            assert!(text.contains(piece), "no {piece} in\n{text}");
        }
        assert!(!text.contains('\x1b'), "nothing moves the cursor");
    }

    #[test]
    fn an_application_is_a_row_with_what_it_holds_and_has_moved() {
        let mut document = document(0);
        document.applications[1].pid = None;
        document.applications[1].name = None;
        document.applications[1].offloaded_share = None;
        document.applications[1].is_detached = true;
        let every = MODE_NAMES.map(|(name, _)| name.to_owned());
        document.applications[0].modes = every[1..].to_vec();
        document.applications[1].modes = every.to_vec();
        let text = whole(&document, &Rates::default());
        let words = |start: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(start));
            let line = line.unwrap_or_else(|| panic!("no {start} in\n{text}"));
            line.split_whitespace().map(str::to_owned).collect()
        };
        let known = "web?[2Jserver 4100 33 2 1,300 3 1,290 7 9,000,000 4,500 1,000,000 970,000 \
                     97.0 %";
        let known: Vec<&str> = known.split(' ').collect();
        assert_eq!(words("web"), known);
        let unknown = words("102 ");
        assert_eq!(unknown[1], "-");
        let modes = every.join(",");
        assert_eq!(
            unknown[unknown.len() - 4..],
            ["-", "modes", &modes, "detached"]
        );
        document.applications.clear();
        assert!(!whole(&document, &Rates::default()).contains("Offloaded"));
    }

    #[test]
    fn a_screen_holds_what_fits_and_says_how_much_does_not() {
        let document = document(100);
        let all = lines(&document, &Rates::default());
        let text = fitted(all.clone(), 20, 60);
        let shown: Vec<&str> = text.lines().collect();
        // The last one ends with a line feed: the cursor is in the twentieth row.
        assert_eq!(shown.len(), 20, "{text}");
        let more = format!("… and {} more lines", all.len() - 18);
        assert!(text.contains(&more), "{text}");
        for line in &shown {
            let visible = line.replace(HOME, "").replace(CLEAR_LINE, "");
            assert!(
                visible.replace(CLEAR_BELOW, "").chars().count() <= 60,
                "{line}"
            );
        }
        let whole = fitted(all.clone(), all.len() + 1, 1000);
        assert!(!whole.contains("more lines"), "{whole}");
    }

    #[test]
    fn a_document_survives_json() {
        let document = document(2);
        let json = serde_json::to_string(&document).unwrap();
        assert!(!json.contains('\n'), "a line of its own");
        assert_eq!(serde_json::from_str::<Document>(&json).unwrap(), document);
    }
}
