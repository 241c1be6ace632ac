//! The document of `splitway stat --json`, and the lines that carry it from the host process;
//! `docs/stat.md` describes each field.
//!
//! Fields may be added; while [`SCHEMA`] stays the same, no field changes its meaning or is
//! removed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use observer::Report;
use proxy::{BackendCounters, BackendView};
use socket_channel::attach::{MODE_NAMES, MODE_SPLIT_TCP};

/// Version of the document.
pub const SCHEMA: u32 = 2;

/// State of a server at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of the document; docs/stat.md lists what changes it.
    pub schema: u32,
    /// Time of the request, in seconds since the epoch.
    pub unix_time_s: u64,
    /// State of the supervisor and its processes.
    pub server: Server,
    /// `null` if the host process has not answered in time.
    pub host: Option<Host>,
    /// Applications in other processes, by number.
    #[serde(default)]
    pub applications: Vec<Application>,
    /// Backends of the proxy, in the order of the configuration.
    #[serde(default)]
    pub backends: Vec<Backend>,
    /// Connections, in no order.
    pub connections: Vec<Connection>,
    /// Connections of QUIC, in no order.
    #[serde(default)]
    pub quic_connections: Vec<QuicConnection>,
}

/// State of the supervisor and its processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Version of the program.
    pub version: String,
    /// The supervisor.
    pub supervisor: Process,
    /// The host process.
    pub host: Option<Process>,
    /// `false`: the host process takes no requests any more.
    pub is_host_asked: bool,
    /// NIC stacks, by number.
    pub nics: Vec<Nic>,
    /// `null`: no origin is configured.
    pub fetcher: Option<Fetcher>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Process identifier.
    pub pid: u32,
    /// CPU time in user mode and in the kernel, in microseconds.
    pub cpu_us: Option<u64>,
    /// Resident set, in bytes.
    pub memory_bytes: Option<u64>,
}

/// A NIC stack, as the supervisor knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// The NIC stack, from 0.
    pub nic: usize,
    /// Name of the NIC stack in the configuration.
    pub name: String,
    /// Whether the host stack uses it.
    pub serves: bool,
    /// Time since it began to serve, or ceased to, in seconds.
    pub since_s: u64,
    /// Number of workers.
    pub workers: usize,
    /// `null`: not started by this server, or not running.
    pub process: Option<Process>,
    /// Sum of its workers' counters; empty before the first report, or if this server did not start
    /// the process.
    pub counters: BTreeMap<String, u64>,
    /// State in one line, for people.
    pub status: String,
}

/// The fetcher, as the supervisor knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fetcher {
    /// `null`: not running at the moment.
    pub process: Option<Process>,
    /// Largest size of the cache directory, in bytes.
    pub cache_max_bytes: u64,
    /// Counters of all origins together; empty before the first report.
    pub counters: BTreeMap<String, u64>,
}

/// State of the host process except connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Objects that the host stack holds.
    pub usage: Usage,
    /// How NIC workers get the SYNs that they answer: `steered`, or `handed on` by the host; `null`
    /// if they answer none.
    #[serde(default)]
    pub syns: Option<String>,
    /// Workers in use of each NIC stack.
    #[serde(default)]
    pub nics: Vec<Division>,
    /// Workers of all NIC stacks.
    pub workers: Vec<Worker>,
    /// Counters since the start, by metric name without prefix and `_total`.
    pub counters: BTreeMap<String, u64>,
}

/// Objects that the host stack holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Connections that are open or closing.
    pub connections: usize,
    /// Connections whose FIN is sent.
    pub orphans: usize,
    /// Connections in SYN-RECEIVED.
    pub half_open: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Connections whose end a NIC stack runs.
    pub parted: usize,
    /// QUIC connections.
    #[serde(default)]
    pub quic_connections: usize,
    /// Streams of QUIC connections.
    #[serde(default)]
    pub quic_streams: usize,
    /// Open files.
    pub files: usize,
    /// SENDs that have not departed.
    pub sends_outstanding: u64,
    /// Commands that wait for room in a ring.
    pub commands_waiting: usize,
}

/// Workers of a NIC stack that the host stack uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// The NIC stack, from 0.
    pub nic: usize,
    /// Number of workers that new connections go to: the first ones.
    pub workers_in_use: usize,
    /// Fewest workers in use.
    pub workers_min: usize,
    /// Number of all workers.
    pub workers_max: usize,
}

/// A NIC worker, as the host stack knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// The NIC stack, from 0.
    pub nic: usize,
    /// Number of the worker within the NIC stack, from 0.
    pub worker: usize,
    /// Whether the worker takes commands.
    pub is_there: bool,
    /// Whether new connections may go to it.
    #[serde(default)]
    pub is_in_use: bool,
    /// Share of recent time in which it had work, from 0 to 1.
    #[serde(default)]
    pub busy_share: f64,
    /// Connections that it sends for.
    pub connections: usize,
    /// Connections that wait for room in its ring.
    pub connections_waiting: usize,
    /// Commands that wait for room in its ring.
    pub commands_waiting: usize,
}

/// A backend of the proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    /// Name of its pool.
    pub pool: String,
    /// Its name in logs and metrics.
    pub backend: String,
    /// Its address; `null`: its name has no address.
    pub address: Option<SocketAddr>,
    /// `up`, `down`, `unresolved`, `ejected` or `draining`.
    pub state: String,
    /// Connections in use.
    pub connections: u64,
    /// Idle connections, for reuse.
    pub connections_idle: u64,
    /// Why the last lookup of its name, and the last check, failed.
    pub failures: Vec<String>,
}

impl Backend {
    pub(crate) fn of(view: &BackendView<'_>) -> Self {
        let counters = &view.counters;
        let state = match counters {
            BackendCounters {
                unresolved: 1.., ..
            } => "unresolved",
            BackendCounters { up: 0, .. } => "down",
            BackendCounters { draining: 1.., .. } => "draining",
            BackendCounters { ejected: 1.., .. } => "ejected",
            _ => "up",
        };
        Self {
            pool: view.pool.to_owned(),
            backend: view.name.to_owned(),
            address: (counters.unresolved == 0).then_some(view.address),
            state: state.to_owned(),
            connections: counters.connections,
            connections_idle: counters.connections_idle,
            failures: view.failures.clone(),
        }
    }
}

/// An application in other processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// Its number, never used twice.
    pub application: u32,
    /// The first attached process; `null`: none is attached any more.
    pub pid: Option<u32>,
    /// The kernel's name for the process; the host process does not know it.
    pub name: Option<String>,
    /// Its user.
    pub uid: u32,
    /// Names of the modes that are on.
    pub modes: Vec<String>,
    /// Whether it is detached, and disappears when its processes have ended.
    pub is_detached: bool,
    /// Attached processes.
    pub processes: usize,
    /// Sockets of all kinds.
    pub sockets: usize,
    /// Listening sockets.
    pub listeners: u32,
    /// Sockets that are connected or connecting.
    pub connections: usize,
    /// Open files.
    pub files: u32,
    /// Descriptors that stand for sockets, including those without one yet.
    pub handles: usize,
    /// Memory of its segment that holds bytes in transit.
    pub memory_bytes: u64,
    /// Bytes taken from it for sending.
    pub sent_bytes: u64,
    /// Bytes of files that it has queued, without reading them.
    pub file_bytes: u64,
    /// Bytes delivered to it.
    pub received_bytes: u64,
    /// Share of `file_bytes` in all that it has sent, from 0 to 1; `null`: nothing was sent.
    pub offloaded_share: Option<f64>,
    /// Turns of the host stack in which it used up its share, so that other commands waited.
    pub turns_used_up: u64,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The name of the connection in logs, never used twice.
    pub stream: u64,
    /// Our address and port.
    pub local: SocketAddr,
    /// The address and port of the client.
    pub peer: SocketAddr,
    /// State of the connection (RFC 9293, section 3.3.2).
    pub state: String,
    /// The NIC stack that sends for it.
    pub nic: usize,
    /// Number of the worker within that NIC stack.
    pub worker: usize,
    /// SENDs that have not departed.
    pub sends_outstanding: u64,
    /// Whether it waits for a neighbour, room in a ring, a NIC stack, a file or its turn.
    pub waits: bool,
    /// `null` without TLS.
    pub tls: Option<Tls>,
    /// `null` before the first byte of a request.
    pub http: Option<Http>,
    /// The file at SND.UNA; `null` if no file is there.
    pub file: Option<File>,
    /// State of TCP.
    pub tcp: Tcp,
}

/// A QUIC connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuicConnection {
    /// The name of the connection in logs, never used twice.
    pub connection: u64,
    /// Our address and port.
    pub local: SocketAddr,
    /// The address and port of the client.
    pub peer: SocketAddr,
    /// `HANDSHAKE`, `ESTABLISHED`, or `CLOSED`: ended, but still answering stray packets.
    pub state: String,
    /// The NIC stack that sends for it.
    pub nic: usize,
    /// Number of the worker within that NIC stack.
    pub worker: usize,
    /// Whether that worker has a key, and seals and sends its packets.
    pub is_offloaded: bool,
    /// Whether that worker has the client's key, and opens its packets.
    pub is_opened_by_nic: bool,
    /// Packets of the client that NIC workers have opened.
    pub packets_opened_by_nic: u64,
    /// QSENDs that have not departed.
    pub sends_outstanding: u64,
    /// Whether it waits for a neighbour, room in a ring, a NIC stack or a file.
    pub waits: bool,
    /// `null` until the handshake is over.
    pub tls: Option<Tls>,
    /// Open streams.
    pub streams: usize,
    /// Bytes in datagrams passed to NIC stacks.
    pub bytes_sent: u64,
    /// Smoothed round-trip time (RFC 9002).
    pub srtt_us: u64,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
}

/// TLS of a connection. Negotiated values are `null` until the handshake is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tls {
    /// Protocol version.
    pub version: Option<String>,
    /// Cipher suite.
    pub cipher: Option<String>,
    /// Protocol agreed on by ALPN.
    pub alpn: Option<String>,
    /// Whether the session is resumed (RFC 8446, section 2.2).
    pub is_resumed: Option<bool>,
}

/// HTTP of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Http {
    /// Phase of the current request; docs/stat.md lists the phases.
    pub phase: String,
    /// Requests so far.
    pub requests: u32,
    /// First name of the site of the last request.
    pub site: Option<String>,
    /// Path and query of the last request, if an origin's object answers it.
    #[serde(default)]
    pub object: Option<String>,
}

/// The file that contains the first byte not acknowledged by the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Path below the root of the NIC stack.
    pub path: String,
    /// Offset of the first byte not acknowledged.
    pub offset_bytes: u64,
    /// Size of the file.
    pub size_bytes: u64,
}

/// TCP of a connection: [`tcp::Info`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Congestion control algorithm.
    pub congestion: String,
    /// `open`, `recovery` or `loss`.
    pub ca_state: String,
    /// Payload of a full segment.
    pub mss_bytes: u64,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Slow start threshold; `null` before there was congestion.
    pub ssthresh_bytes: Option<u64>,
    /// Smoothed round-trip time (RFC 6298).
    pub srtt_us: Option<u64>,
    /// Variation of the round-trip time (RFC 6298).
    pub rttvar_us: Option<u64>,
    /// Least round-trip time.
    pub min_rtt_us: Option<u64>,
    /// Retransmission timeout, with backoff.
    pub rto_us: u64,
    /// How often the timeout is doubled.
    pub backoff: u16,
    /// Payload sent for the first time.
    pub bytes_sent: u64,
    /// Payload acknowledged.
    pub bytes_acked: u64,
    /// Payload received in order.
    pub bytes_received: u64,
    /// Payload sent again.
    pub bytes_retransmitted: u64,
    /// Superpackets sent again.
    pub retransmissions: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Send queue: queued and not acknowledged.
    pub queued_bytes: u64,
    /// Receive queue: received and not read.
    pub unread_bytes: u64,
    /// Issued and not acknowledged.
    pub flight_bytes: u64,
    /// Neither delivered nor lost (RFC 6675).
    pub pipe_bytes: u64,
    /// Still at the NIC stack.
    pub undeparted_bytes: u64,
    /// Delivered by SACK.
    pub sacked_bytes: u64,
    /// Marked as lost.
    pub lost_bytes: u64,
    /// Window of the peer.
    pub snd_wnd_bytes: u64,
    /// Our window.
    pub rcv_wnd_bytes: u64,
    /// Pacing rate; `null`: not paced.
    pub pacing_bytes_per_second: Option<u64>,
    /// Timestamps are in use (RFC 7323).
    pub timestamps: bool,
    /// SACK is in use (RFC 2018).
    pub sack: bool,
    /// ECN is in use (RFC 3168).
    pub ecn: bool,
    /// Window scale of the peer; `null`: none.
    pub snd_wscale: Option<u8>,
    /// Our window scale; `null`: none.
    pub rcv_wscale: Option<u8>,
    /// Time since it was opened.
    pub age_us: u64,
    /// Time since the last acknowledgement of new data.
    pub since_progress_us: u64,
}

/// A line that the host process writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Host(Host),
    /// A backend of the proxy.
    Backend(Backend),
    /// An application in other processes.
    Application(Application),
    /// A connection.
    Connection(Box<Connection>),
    /// A QUIC connection.
    QuicConnection(Box<QuicConnection>),
    /// The last line: without it, the report is incomplete.
    End {},
}

/// The NIC stack's counters in the report: the supervisor's answer is short.
const NIC_COUNTERS: [&str; 10] = [
    "superpackets",
    "file_sent_bytes",
    "inline_sent_bytes",
    "sealed_sent_bytes",
    "read_bytes",
    "block_hits",
    "block_misses",
    "blocks_evicted",
    "block_waits",
    "port_drops",
];

impl Nic {
    /// Returns the sum of the workers' counters.
    pub fn counters(workers: &[Report]) -> BTreeMap<String, u64> {
        let mut sum = Report::default();
        for report in workers {
            sum.absorb(report);
        }
        let told = NIC_COUNTERS
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), sum.counter(name)?)));
        told.collect()
    }
}

impl Host {
    /// `counters` are those of the stack and its applications.
    pub fn of(stack: &host::Stack, counters: Vec<(String, u64)>) -> Self {
        let usage = stack.usage();
        let workers = stack.workers().map(|worker| Worker {
            nic: worker.nic,
            worker: worker.worker,
            is_there: worker.is_there,
            is_in_use: worker.is_in_use,
            busy_share: worker.busy_permille as f64 / 1000.0,
            connections: worker.connections,
            connections_waiting: worker.connections_waiting,
            commands_waiting: worker.commands_waiting,
        });
        Self {
            usage: Usage {
                connections: usage.connections,
                orphans: usage.orphans,
                half_open: usage.half_open,
                time_waits: usage.time_waits,
                parted: usage.parted,
                quic_connections: usage.quic_connections,
                quic_streams: usage.quic_streams,
                files: usage.files,
                sends_outstanding: usage.sends_outstanding,
                commands_waiting: usage.commands_waiting,
            },
            syns: stack.syn_path().map(str::to_owned),
            nics: stack.division().map(Division::from).collect(),
            workers: workers.collect(),
            counters: counters.into_iter().collect(),
        }
    }
}

impl From<host::DivisionView> for Division {
    fn from(view: host::DivisionView) -> Self {
        Self {
            nic: view.nic,
            workers_in_use: view.workers_in_use,
            workers_min: view.workers_min,
            workers_max: view.workers_max,
        }
    }
}

impl Application {
    /// Returns whether the modes are those of a program that requests none.
    pub fn has_default_modes(&self) -> bool {
        let mut names = MODE_NAMES.into_iter();
        names.all(|(name, mode)| {
            let is_on = self.modes.iter().any(|it| it == name);
            is_on == (mode != MODE_SPLIT_TCP)
        })
    }

    /// Returns the report on an application, from the sockets' state.
    pub fn of(view: &sockets::ApplicationView) -> Self {
        let modes = MODE_NAMES.into_iter();
        let modes = modes.filter(|(_, mode)| view.modes & mode != 0);
        Self {
            application: view.app.0,
            pid: Some(view.pid).filter(|pid| *pid != 0),
            name: None,
            uid: view.uid,
            modes: modes.map(|(name, _)| name.to_owned()).collect(),
            is_detached: view.is_detached,
            processes: view.processes,
            sockets: view.sockets,
            listeners: view.listeners,
            connections: view.connections,
            files: view.files,
            handles: view.handles,
            memory_bytes: view.fifo_bytes,
            sent_bytes: view.sent_bytes,
            file_bytes: view.file_bytes,
            received_bytes: view.received_bytes,
            offloaded_share: view.offloaded_share(),
            turns_used_up: view.turns_used_up,
        }
    }
}

impl Connection {
    /// Returns the report on a connection, from the state of both layers.
    pub fn of(info: &host::ConnectionInfo<'_>, app: &server::Server) -> Self {
        let http = app.connection_info(info.stream).map(|http| {
            let site = http.site.as_ref().and_then(|site| site.names.first());
            Http {
                phase: http.phase.to_owned(),
                requests: http.requests,
                site: site.map(ToString::to_string),
                object: http.object.as_deref().map(str::to_owned),
            }
        });
        let file = info.file.map(|file| File {
            path: String::from_utf8_lossy(file.path).into_owned(),
            offset_bytes: file.offset,
            size_bytes: file.size,
        });
        Self {
            stream: info.stream.0,
            local: info.local,
            peer: info.remote,
            state: info.tcp.state.name().to_owned(),
            nic: info.nic,
            worker: info.worker,
            sends_outstanding: info.sends_outstanding,
            waits: info.waits,
            tls: (info.tls.is_some() || info.in_tls_handshake).then(|| Tls::of(info.tls)),
            http,
            file,
            tcp: Tcp::of(&info.tcp),
        }
    }
}

impl QuicConnection {
    /// Returns the report on a connection, from the host stack's state.
    pub fn of(info: &host::QuicInfo<'_>) -> Self {
        let state = match (info.is_closed, info.tls) {
            (true, _) => "CLOSED",
            (false, Some(_)) => "ESTABLISHED",
            (false, None) => "HANDSHAKE",
        };
        Self {
            connection: info.connection.0,
            local: info.local,
            peer: info.remote,
            state: state.to_owned(),
            nic: info.nic,
            worker: info.worker,
            is_offloaded: info.is_offloaded,
            is_opened_by_nic: info.is_opened_by_nic,
            packets_opened_by_nic: info.packets_opened_by_nic,
            sends_outstanding: info.sends_outstanding,
            waits: info.waits,
            tls: info.tls.map(|agreed| Tls::of(Some(agreed))),
            streams: info.streams,
            bytes_sent: info.sent_bytes,
            srtt_us: u64::try_from(info.round_trip.as_micros()).unwrap_or(u64::MAX),
            cwnd_bytes: info.congestion_window,
            packets_lost: info.packets_lost,
        }
    }
}

impl Tls {
    fn of(agreed: Option<&tls::Agreed>) -> Self {
        let version = agreed.map(|agreed| match agreed.suite.version {
            tls::Version::Tls12 => "TLSv1.2",
            tls::Version::Tls13 => "TLSv1.3",
        });
        let cipher = agreed.map(|agreed| match agreed.suite.cipher {
            tls::Cipher::Aes128Gcm => "AES-128-GCM",
            tls::Cipher::Aes256Gcm => "AES-256-GCM",
            tls::Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        });
        let alpn = agreed.and_then(|agreed| agreed.alpn.as_deref());
        Self {
            version: version.map(str::to_owned),
            cipher: cipher.map(str::to_owned),
            alpn: alpn.map(|alpn| String::from_utf8_lossy(alpn).into_owned()),
            is_resumed: agreed.map(|agreed| agreed.is_resumed),
        }
    }
}

impl Tcp {
    fn of(info: &tcp::Info) -> Self {
        let (snd_wscale, rcv_wscale) = info.window_shifts.unzip();
        Self {
            congestion: info.congestion.name().to_owned(),
            ca_state: info.ca_state.name().to_owned(),
            mss_bytes: info.mss,
            cwnd_bytes: info.cwnd,
            ssthresh_bytes: info.ssthresh,
            srtt_us: info.srtt_us,
            rttvar_us: info.rttvar_us,
            min_rtt_us: info.min_rtt_us,
            rto_us: info.rto_us,
            backoff: info.backoff,
            bytes_sent: info.bytes_sent,
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            bytes_retransmitted: info.bytes_retransmitted,
            retransmissions: info.retransmissions,
            timeouts: info.timeouts,
            queued_bytes: info.queued,
            unread_bytes: info.unread,
            flight_bytes: info.flight,
            pipe_bytes: info.pipe,
            undeparted_bytes: info.undeparted,
            sacked_bytes: info.sacked,
            lost_bytes: info.lost,
            snd_wnd_bytes: info.snd_wnd,
            rcv_wnd_bytes: info.rcv_wnd,
            pacing_bytes_per_second: info.pacing_rate,
            timestamps: info.timestamps,
            sack: info.sack,
            ecn: info.ecn,
            snd_wscale,
            rcv_wscale,
            age_us: info.age_us,
            since_progress_us: info.since_progress_us,
        }
    }
}

impl Process {
    /// Reads a process's state from /proc (proc(5)).
    pub fn look_at(pid: u32) -> Self {
        let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        // The name may hold any character; behind it, the state is the third field.
        let stat = read("stat");
        let fields = stat.as_deref().and_then(|text| text.rsplit_once(')'));
        let cpu_ticks = fields.and_then(|(_, fields)| {
            let mut fields = fields.split_ascii_whitespace().skip(11);
            let mut ticks = || fields.next()?.parse::<u64>().ok();
            Some(ticks()? + ticks()?)
        });
        let statm = read("statm");
        let resident = statm.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Self {
            pid,
            cpu_us: cpu_ticks.map(|ticks| ticks * tick_us),
            memory_bytes: resident.map(|pages| pages * rustix::param::page_size() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use observer::counter_names;

    #[test]
    fn counters_of_nic_stacks_add_up() {
        let counted = counter_names::nic(&nic::Counters::default());
        for name in NIC_COUNTERS {
            assert!(counted.iter().any(|(known, _)| known == name), "{name}");
        }
        let worker = |bytes| Report {
            counters: vec![("read_bytes".to_owned(), bytes), ("sleeps".to_owned(), 5)],
            ..Report::default()
        };
        let told = Nic::counters(&[worker(7), Report::default(), worker(30)]);
        assert_eq!(told, [("read_bytes".to_owned(), 37)].into());
        assert!(Nic::counters(&[]).is_empty());
    }

    #[test]
    fn a_process_is_found_by_its_number() {
        let own = Process::look_at(std::process::id());
        assert!(own.memory_bytes.unwrap() > 100_000, "{own:?}");
        assert!(own.cpu_us.is_some(), "{own:?}");
        let none = Process::look_at(u32::MAX);
        assert_eq!((none.cpu_us, none.memory_bytes), (None, None));
    }
}
