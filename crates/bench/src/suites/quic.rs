//! `splitway-bench quic`: files over HTTP/3, against a server of plain quinn.
//!
//! Both have the same QUIC implementation, quinn-proto, one thread or one host and one NIC thread,
//! the same certificate, cipher and acknowledgment frequency, and the same client, which is made of
//! quinn-proto too. What is different is who reads, seals and sends.
//!
//! | Module | What it holds |
//! |---|---|
//! | `driver` | an endpoint of quinn-proto on a UDP socket |
//! | `client` | the load generator |
//! | `server` | the server of plain quinn |
//! | `http3` | as much of HTTP/3 as both need |
//! | `idle` | connections that do nothing |
//! | `profile` | the host process's share of AEAD |
//! | `report` | tables, targets |

pub(crate) mod client;
mod driver;
mod http3;
pub(crate) mod idle;
mod profile;
mod report;
pub(crate) mod server;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use serde::Serialize;
use testbed::namespace::within;
use testbed::process::Process;
use testbed::{Context, Failure, Result};

use crate::load::READY;
use crate::measure::plan::Plan;
use crate::measure::results::Results;
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server, WARM_UP_SECONDS};
use crate::servers::cores::server_cores;
use crate::servers::server_set::{SPLITWAY, ServerSet, Wanted, Workspace};
use crate::suites::tls::identity::Identity;

/// The name of a server of plain quinn.
const QUINN: &str = "quinn";

/// The application protocol.
const ALPN: &[u8] = b"h3";

/// Where the server of plain quinn answers; Splitway answers there as well.
const PORT: u16 = 443;

/// What a client may be sent on a stream before it has read it, in bytes: quinn's default.
const STREAM_WINDOW_BYTES: u32 = 1_250_000;

/// After how many packets servers ask to be acknowledged: what Splitway asks for.
const PACKETS_PER_ACK: u32 = 10;

/// What is the same in each of them.
const FILES: &str = "files";

/// What idle connections take.
const IDLE: &str = "idle connections";

/// What connections are called among the conditions.
const CONNECTIONS: &str = "connections";

/// Numbers of connections, and if it is to be quick.
const CONNECTION_COUNTS: [usize; 2] = [1, 40];
const CONNECTION_COUNTS_QUICK: [usize; 1] = [40];

/// Bytes of a file, and if it is to be quick.
const FILE_BYTES: u64 = 10_000_000;
const FILE_BYTES_QUICK: u64 = 1_000_000;

/// A handshake and two responses before the measured span, on a machine of two cores.
const BYTES_BEFORE_PER_S: f64 = 0.4e9;

/// A handshake, one after the other.
const HANDSHAKE_SECONDS: f64 = 0.002;

/// What is measured.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file; several numbers are measured one after the
    /// other; 1 and 40, and 40 if it is to be quick
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Number of files, asked for at random
    #[arg(long, default_value_t = 10)]
    files: usize,
    /// Size of each file, in bytes; 10 MB, and 1 MB if it is to be quick
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

    fn file_bytes(&self) -> u64 {
        let default = if self.rounds.is_quick() {
            FILE_BYTES_QUICK
        } else {
            FILE_BYTES
        };
        self.file_bytes.unwrap_or(default)
    }
}

/// How long it takes.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = &settings.rounds;
    let mut plan = Plan::new();
    plan.files(settings.files, settings.file_bytes());
    plan.beds(1);
    for &connections in settings.connections() {
        let servers = 2;
        let mut runs = servers * rounds.count();
        plan.turns(rounds, servers, connections, settings.file_bytes());
        if !rounds.is_quick() {
            runs += servers + 1;
            // The host process is profiled in a run of its own.
            plan.runs(1, connections, settings.file_bytes(), rounds.seconds());
        }
        let bytes_before = 2.0 * connections as f64 * settings.file_bytes() as f64;
        plan.also(runs, bytes_before / BYTES_BEFORE_PER_S);
    }
    if !rounds.is_quick() {
        let beds = idle::Kind::ALL.len() * rounds.count();
        plan.splitways(beds);
        plan.also(beds * idle::CONNECTIONS, HANDSHAKE_SECONDS);
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    let workspace = Workspace::prepare(settings.files, settings.file_bytes())?;
    let wanted = Wanted {
        splitway: std::iter::once("--http3".to_owned())
            .chain(settings.splitway.iter().cloned())
            .collect(),
        tls: true,
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let plain = Plain::start(&workspace, &server_set)?;
    let [mut splitway, ..] = server_set.tls_servers()?;
    let certificate = splitway.certificate.take();
    let quinn = Server::new(QUINN, plain.address, [("quinn", plain.process.pid())]);
    let servers = [splitway, quinn].map(|server| Server {
        certificate: certificate.clone(),
        ..server
    });
    let title = format!(
        "HTTP/3 over QUIC, AES-128-GCM: files of {} bytes in memory",
        settings.file_bytes()
    );
    let mut results = Results::new("quic", title, settings)?;
    server_set.describe(&mut results)?;
    for &connections in settings.connections() {
        if !rounds.is_quick() {
            for server in &servers {
                run_one(settings, server, connections, WARM_UP_SECONDS)?;
            }
        }
        let conditions = [(CONNECTIONS, connections as f64)];
        rounds.take_turns(&servers, |server| {
            let run = run_one(settings, server, connections, rounds.seconds())?;
            eprintln!("{connections} connections: {run}");
            let mut measures = run.measures();
            // The plain server's one process is what both of Splitway's are together.
            run::add_sum(
                &mut measures,
                "cpu_s_per_gb",
                "both_ends",
                &["server", "client"],
            );
            results.add(FILES, server.name, &conditions, measures);
            Ok(())
        })?;
        if !rounds.is_quick() {
            let file = workspace.site.outside().join("host.perf");
            let share = profile::aead_share(&servers[0], &file, || {
                run_one(settings, &servers[0], connections, rounds.seconds()).map(drop)
            })?;
            if let Some(share) = share {
                let measures = [(report::AEAD_SHARE.to_owned(), share)].into();
                results.add(report::PROFILE, SPLITWAY, &conditions, measures);
            }
        }
    }
    drop(plain);
    let identity = server_set.identity().cloned();
    server_set.end(&mut results)?;
    if let Some(identity) = identity.filter(|_| !rounds.is_quick()) {
        rounds.take_turns(&idle::Kind::ALL, |&kind| {
            let measures = idle::measure(&workspace, &identity, kind, &mut results)?;
            results.add(IDLE, kind.name(), &[], measures);
            Ok(())
        })?;
    }
    report::report(&mut results, settings.connections());
    results.publish(rounds.output(&workspace.output))
}

/// How Splitway is started for connections that do nothing.
fn idle_arguments(identity: &Identity) -> Vec<String> {
    vec![
        "--report-json".to_owned(),
        "--http3".to_owned(),
        format!("--tls-listen={PORT}"),
        format!("--tls-cert={}", identity.certificate.display()),
        format!("--tls-key={}", identity.key.display()),
    ]
}

/// One run of so many seconds.
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
    };
    run::run_generator(server, load.arguments(), false)
}

/// The server of plain quinn, as a process in the network of the peers.
struct Plain {
    process: Process,
    address: SocketAddr,
}

impl Plain {
    /// Starts it, and waits until it answers.
    fn start(workspace: &Workspace, servers: &ServerSet) -> Result<Plain> {
        let identity = servers.identity();
        let identity = identity.ok_or_else(|| Failure::new("there is no certificate"))?;
        let (holder, address) = servers.peer_network();
        let address = SocketAddr::from((address, PORT));
        let own = std::env::current_exe().context(|| "finding this program".into())?;
        let mut command = within(holder, &format!("taskset --cpu-list {}", server_cores(1)));
        command.arg(own).arg("quic-server");
        command.arg(format!("--listen={address}"));
        command.arg("--files").arg(workspace.site.root());
        command.arg("--certificate").arg(&identity.certificate);
        command.arg("--key").arg(&identity.key);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        let stdout = process.child().stdout.take().expect("a pipe, as asked for");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .context(|| "reading from the server".into())?;
        if line.trim_end() == READY {
            Ok(Plain { process, address })
        } else {
            // It has said on standard error why.
            Err(Failure::new("the server of plain quinn does not answer"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

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
        };
        let arguments = load.arguments();
        let options: Vec<&str> = arguments[1..].iter().map(String::as_str).collect();
        let read = settings::<client::Settings>(&options);
        assert_eq!(read.arguments(), arguments);
    }
}
