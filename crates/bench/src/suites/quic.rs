//! `splitway-bench quic`: files over HTTP/3, against plain quinn and other servers.
//!
//! Splitway and plain quinn share the QUIC implementation, quinn-proto, the certificate, cipher and
//! acknowledgment frequency, and the client, which also uses quinn-proto. Plain quinn has one
//! thread, Splitway a host and a NIC thread: they differ in which thread reads, seals and sends.
//! Other servers have their own implementations, and the same certificate, cipher, files and
//! client.
//!
//! | Module | Contents |
//! |---|---|
//! | `driver` | a quinn-proto endpoint on a UDP socket |
//! | `client` | the load generator |
//! | `server`, `plain` | the plain quinn server, and its process |
//! | `http3` | the HTTP/3 that both need |
//! | `receive` | the host or NIC workers open clients' packets |
//! | `idle` | idle connections |
//! | `profile` | profiles of the processes |
//! | `report` | tables and targets |
//! | `link`, `fetch` | `splitway-bench quic-link`: goodput over emulated links, and its client |

pub(crate) mod client;
mod driver;
pub(crate) mod fetch;
mod http3;
pub(crate) mod idle;
pub(crate) mod link;
mod plain;
mod profile;
mod receive;
mod report;
pub(crate) mod server;

use std::path::Path;

use serde::Serialize;
use testbed::{Failure, Result};

use self::plain::Plain;
use self::server::LossDetection;
use crate::measure::plan::Plan;
use crate::measure::results::{Measures, Results};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server, WARM_UP_SECONDS};
use crate::servers::http3_peers::{Http3Peer, Peer};
use crate::servers::server_set::{SPLITWAY, ServerSet, Wanted, Workspace};
use crate::suites::tls::identity::Identity;

/// The name of the plain quinn server.
const QUINN: &str = "quinn";

/// The application protocol.
const ALPN: &[u8] = b"h3";

/// The port of both plain quinn and Splitway.
const PORT: u16 = 443;

/// Stream receive window of clients, in bytes: quinn's default.
const STREAM_WINDOW_BYTES: u32 = 1_250_000;

/// The same over emulated links: more than path and queue hold.
const LINK_WINDOW_BYTES: u32 = 16_000_000;

/// Ack-eliciting threshold that servers request, as Splitway does.
const PACKETS_PER_ACK: u32 = 10;

/// The part of the results about files.
const FILES: &str = "files";

/// The part of the results about idle connections.
const IDLE: &str = "idle connections";

/// The name of the number of connections among the conditions.
const CONNECTIONS: &str = "connections";

/// Numbers of connections, also for quick runs.
const CONNECTION_COUNTS: [usize; 2] = [1, 40];
const CONNECTION_COUNTS_QUICK: [usize; 1] = [40];

/// Number of connections for `receive`, if it is among the numbers.
const RECEIVE_CONNECTIONS: usize = 40;

/// Bytes of a file, also for quick runs.
const FILE_BYTES: u64 = 10_000_000;
const FILE_BYTES_QUICK: u64 = 1_000_000;

/// Rate of the warm-up, a handshake and two responses, on a machine with two cores.
const BYTES_BEFORE_PER_S: f64 = 0.4e9;

/// Time to start and end a peer.
const PEER_SECONDS: f64 = 0.3;

/// Longest warm-up of a load on a peer, in seconds: aioquic would need minutes for two responses
/// on each connection.
const PEER_RAMP_UP_SECONDS: f64 = 10.0;
const PEER_RAMP_UP_SECONDS_QUICK: f64 = 0.5;

/// `perf` takes this multiple of a run to report.
const PERF: f64 = 1.0;

/// Time of each sequential handshake.
const HANDSHAKE_SECONDS: f64 = 0.002;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file; several numbers are measured in turn [default:
    /// 1,40, or 40 for quick runs]
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Servers beside plain quinn's; those not installed are left out
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Peer::ALL)]
    peers: Vec<Peer>,
    /// Only the server of plain quinn
    #[arg(long, conflicts_with = "peers")]
    no_peers: bool,
    /// Number of files, requested at random
    #[arg(long, default_value_t = 10)]
    files: usize,
    /// Size of each file, in bytes; 10 MB, or 1 MB for quick runs
    #[arg(long)]
    file_bytes: Option<u64>,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

impl Settings {
    fn connections(&self) -> &[usize] {
        match (&self.connections[..], self.rounds.is_quick()) {
            ([], false) => &CONNECTION_COUNTS,
            ([], true) => &CONNECTION_COUNTS_QUICK,
            (given, _) => given,
        }
    }

    fn peers(&self) -> &[Peer] {
        if self.no_peers { &[] } else { &self.peers }
    }

    fn peer_ramp_up_seconds(&self) -> f64 {
        if self.rounds.is_quick() {
            PEER_RAMP_UP_SECONDS_QUICK
        } else {
            PEER_RAMP_UP_SECONDS
        }
    }

    /// The number of connections for `receive`.
    fn receive_connections(&self) -> usize {
        let all = self.connections();
        if all.contains(&RECEIVE_CONNECTIONS) {
            RECEIVE_CONNECTIONS
        } else {
            all[0]
        }
    }

    fn file_bytes(&self) -> u64 {
        let default = if self.rounds.is_quick() {
            FILE_BYTES_QUICK
        } else {
            FILE_BYTES
        };
        self.file_bytes.unwrap_or(default)
    }
}

/// The planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(settings.files, settings.file_bytes());
    plan.beds(1);
    plan.also(settings.peers().len(), PEER_SECONDS);
    let bytes_before = |connections: usize| {
        2.0 * connections as f64 * settings.file_bytes() as f64 / BYTES_BEFORE_PER_S
    };
    for &connections in settings.connections() {
        let servers = 2 + settings.peers().len();
        let mut runs = servers * rounds.count();
        plan.turns(rounds, servers, connections, settings.file_bytes());
        if !rounds.is_quick() {
            // Servers with processes of ours are profiled in separate runs.
            let profiled = 2;
            runs += servers + profiled;
            let seconds = (1.0 + PERF) * rounds.seconds();
            plan.runs(profiled, connections, settings.file_bytes(), seconds);
        }
        plan.also(runs, bytes_before(connections));
        if settings.peers().contains(&Peer::Aioquic) {
            let runs = rounds.count() + usize::from(!rounds.is_quick());
            plan.also(runs, settings.peer_ramp_up_seconds());
        }
    }
    if !rounds.is_quick() {
        let connections = settings.receive_connections();
        let beds = receive::Mode::ALL.len() * rounds.count();
        plan.splitways(beds);
        plan.runs(beds, connections, settings.file_bytes(), rounds.seconds());
        plan.also(beds, bytes_before(connections));
        let beds = idle::Kind::QUIC.len() * rounds.count();
        plan.splitways(beds);
        plan.also(beds * idle::CONNECTIONS, HANDSHAKE_SECONDS);
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    if settings.connections().contains(&0) || settings.files == 0 {
        return Err(Failure::new("a load has connections, and asks for files"));
    }
    let workspace = Workspace::prepare(settings.files, settings.file_bytes())?;
    let wanted = Wanted {
        splitway: std::iter::once("--http3".to_owned())
            .chain(settings.splitway.iter().cloned())
            .collect(),
        tls: true,
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let identity = server_set.identity().cloned();
    let identity = identity.ok_or_else(|| Failure::new("there is no certificate"))?;
    let title = format!(
        "HTTP/3 over QUIC, AES-128-GCM: files of {} bytes in memory",
        settings.file_bytes()
    );
    let mut results = Results::new("quic", title, settings)?;
    server_set.describe(&mut results)?;
    let network = server_set.peer_network();
    let root = workspace.site.root();
    let by_itself = LossDetection::QUINN;
    let plain = Plain::start(network, root, &identity, STREAM_WINDOW_BYTES, by_itself)?;
    let peers = start_peers(settings, &workspace, network, &identity, &mut results)?;
    let [splitway, ..] = server_set.tls_servers()?;
    let quinn = Server::new(QUINN, plain.address(), [("quinn", plain.pid())]);
    let others = peers.iter().map(|(peer, running)| {
        let process = (peer.name(), running.pid());
        Server::new(peer.name(), running.address().into(), [process])
    });
    let mut servers: Vec<Server> = [splitway, quinn].into_iter().chain(others).collect();
    for server in &mut servers {
        server.certificate = Some(identity.certificate.clone());
    }
    for &connections in settings.connections() {
        let place = workspace.site.outside();
        measure_files(settings, &servers, connections, place, &mut results)?;
    }
    drop((plain, peers));
    server_set.end(&mut results)?;
    if !rounds.is_quick() {
        receive::measure(settings, &workspace, &identity, &mut results)?;
        rounds.take_turns(&idle::Kind::QUIC, |&kind| {
            let measures = idle::measure(&workspace, &identity, kind, &mut results)?;
            results.add(IDLE, kind.name(), &[], measures);
            Ok(())
        })?;
    }
    report::report(&mut results, settings.connections());
    results.publish(rounds.output(&workspace.output))
}

/// Measures all servers with this many connections.
fn measure_files(
    settings: &Settings,
    servers: &[Server],
    connections: usize,
    place: &Path,
    results: &mut Results,
) -> Result<()> {
    let rounds = &settings.rounds;
    if !rounds.is_quick() {
        for server in servers {
            try_one(settings, server, connections, WARM_UP_SECONDS, results)?;
        }
    }
    rounds.take_turns(servers, |server| {
        let seconds = rounds.seconds();
        if let Some(run) = try_one(settings, server, connections, seconds, results)? {
            eprintln!("{connections} connections: {run}");
            let conditions = [(CONNECTIONS, connections as f64)];
            results.add(FILES, server.name, &conditions, measures(&run));
        }
        Ok(())
    })?;
    if !rounds.is_quick() {
        // Other servers come without symbols.
        for server in &servers[..2] {
            profile_one(settings, server, connections, place, results)?;
        }
    }
    Ok(())
}

/// Does one run; `None` for a peer that fails with this many connections, which the results note.
fn try_one(
    settings: &Settings,
    server: &Server,
    connections: usize,
    seconds: f64,
    results: &mut Results,
) -> Result<Option<run::Run>> {
    let at = connections as f64;
    if results.has_failed(FILES, server.name, CONNECTIONS, at) {
        return Ok(None);
    }
    match run_one(settings, server, connections, seconds) {
        Ok(run) => Ok(Some(run)),
        Err(failure) if is_peer(server) => {
            eprintln!("{connections} connections: {failure}");
            let reason = failure.to_string();
            results.fail(FILES, server.name, &[(CONNECTIONS, at)], reason);
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// True for all but Splitway and plain quinn.
fn is_peer(server: &Server) -> bool {
    ![SPLITWAY, QUINN].contains(&server.name)
}

/// Starts the installed peers; notes the version of each, or that it is missing. A peer that does
/// not start has failed.
fn start_peers(
    settings: &Settings,
    workspace: &Workspace,
    network: (rustix::process::Pid, std::net::Ipv4Addr),
    identity: &Identity,
    results: &mut Results,
) -> Result<Vec<(Peer, Http3Peer)>> {
    let mut started = Vec::new();
    for &peer in settings.peers() {
        let Some(program) = peer.program(workspace) else {
            let note = format!("{} is not installed, and left out.", peer.name());
            eprintln!("{note}");
            results.note(note);
            continue;
        };
        let version = peer.version(&program);
        if !version.is_empty() {
            results.note(format!("{} is {version}.", peer.name()));
        }
        let (root, own) = (workspace.site.root(), workspace.site.outside());
        match Http3Peer::start(peer, &program, network, root, own, identity) {
            Ok(running) => started.push((peer, running)),
            Err(failure) => {
                eprintln!("{failure}");
                for &connections in settings.connections() {
                    let conditions = [(CONNECTIONS, connections as f64)];
                    results.fail(FILES, peer.name(), &conditions, failure.to_string());
                }
            }
        }
    }
    Ok(started)
}

/// The measures of a run.
fn measures(run: &run::Run) -> Measures {
    let mut measures = run.measures();
    // A peer's one process compares with both of Splitway's together.
    let parts = ["server", "client"];
    run::add_sum(&mut measures, "cpu_s_per_gb", "both_ends", &parts);
    measures
}

/// Does one run with a server's processes profiled, which slows it down.
fn profile_one(
    settings: &Settings,
    server: &Server,
    connections: usize,
    place: &Path,
    results: &mut Results,
) -> Result<()> {
    let seconds = settings.rounds.seconds();
    let (run, profiles) = profile::during(&server.processes, place, || {
        run_one(settings, server, connections, seconds)
    })?;
    let cpu = run.measures();
    for (process, stacks) in profiles {
        let cpu_s_per_gb = cpu[&format!("cpu_s_per_gb.{process}")];
        if let Some(measures) = profile::measures(&stacks, cpu_s_per_gb) {
            let conditions = [(CONNECTIONS, connections as f64)];
            results.add(report::PROFILE, process, &conditions, measures);
        }
    }
    Ok(())
}

/// Arguments for a Splitway of its own, with HTTP/3 beside TLS over TCP.
fn own_arguments(identity: &Identity) -> Vec<String> {
    vec![
        "--report-json".to_owned(),
        "--http3".to_owned(),
        format!("--tls-listen={PORT}"),
        format!("--tls-cert={}", identity.certificate.display()),
        format!("--tls-key={}", identity.key.display()),
    ]
}

/// Does one run of this many seconds.
fn run_one(
    settings: &Settings,
    server: &Server,
    connections: usize,
    seconds: f64,
) -> Result<run::Run> {
    let certificate = server.certificate.clone();
    let load = client::Settings {
        server: server.addresses[0],
        certificate: certificate.expect("a server that speaks TLS"),
        connections,
        files: settings.files,
        file_bytes: settings.file_bytes(),
        seconds,
        ramp_up_seconds: is_peer(server).then(|| settings.peer_ramp_up_seconds()),
    };
    run::run_generator(server, load.arguments(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::{read, settings};

    #[test]
    fn a_quick_run_has_fewer_connections_and_smaller_files() {
        let quick = settings::<Settings>(&["--quick"]);
        assert_eq!(quick.connections(), CONNECTION_COUNTS_QUICK);
        assert_eq!(quick.file_bytes(), FILE_BYTES_QUICK);
        let all = settings::<Settings>(&[]);
        assert_eq!(all.connections(), CONNECTION_COUNTS);
        assert!(plan(&quick).seconds() < plan(&all).seconds() / 10.0);
        let given = settings::<Settings>(&["--quick", "--connections=1,2", "--file-bytes=7"]);
        assert_eq!((given.connections(), given.file_bytes()), (&[1, 2][..], 7));
        assert_eq!(given.receive_connections(), 1);
        assert_eq!(all.receive_connections(), RECEIVE_CONNECTIONS);
    }

    #[test]
    fn peers_are_measured_unless_told() {
        let peers = |options: &[&str]| settings::<Settings>(options).peers().to_vec();
        assert_eq!(peers(&[]), Peer::ALL);
        assert_eq!(peers(&["--peers=caddy"]), [Peer::Caddy]);
        assert_eq!(peers(&["--no-peers"]), []);
        let own = [Peer::QuicGo, Peer::Aioquic];
        assert_eq!(peers(&["--peers=quic-go,aioquic"]), own);
        let few = plan(&settings::<Settings>(&["--no-peers"]));
        assert!(few.seconds() < plan(&settings::<Settings>(&[])).seconds());
    }

    #[test]
    fn arguments_of_the_load_are_those_that_it_reads() {
        let load = client::Settings {
            server: "192.0.2.1:443".parse().unwrap(),
            certificate: "certificate.pem".into(),
            connections: 3,
            files: 4,
            file_bytes: 5,
            seconds: 0.5,
            ramp_up_seconds: Some(1.5),
        };
        let arguments = load.arguments();
        let read = read::<client::Settings>(&arguments);
        assert_eq!(read.arguments(), arguments);
        assert_eq!(read.ramp_up_seconds, load.ramp_up_seconds);
    }
}
