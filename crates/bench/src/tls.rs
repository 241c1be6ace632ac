//! `splitway-bench tls`: files over TLS 1.3 with AES-256-GCM, and handshakes, against nginx and lighttpd with OpenSSL.
//!
//! All three show the same certificate, and take turns in each round.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`identity`] | the certificate |
//! | [`session`] | the client's end of TLS |
//! | [`handshakes`] | another load generator |
//! | [`report`] | ratios, what is promised of them, tables |

pub(crate) mod handshakes;
pub(crate) mod identity;
mod report;
pub(crate) mod session;

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::process::Signal;
use serde::Serialize;
use testbed::Result;
use testbed::process::{run as run_tool, tool};
use testbed::splitway::STACK_V4;

use crate::lighttpd::Lighttpd;
use crate::publish::publish;
use crate::rounds::Rounds;
use crate::run::{self, ProcessCost, Server};
use crate::{Ground, load, start_nginx, start_splitway};
use identity::Identity;
use report::Report;

/// Where Splitway speaks TLS.
const PORT: u16 = 443;

/// What is measured.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file, or shaking hands
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files, asked for at random
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
    /// Where tables go [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// What sessions begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    New,
    Resumed,
}

/// A run of handshakes.
#[derive(Clone, Debug, Serialize)]
struct HandshakeRun {
    server: &'static str,
    kind: Kind,
    load: handshakes::Outcome,
    processes: Vec<ProcessCost>,
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let ground = Ground::prepare(settings.files, settings.file_bytes)?;
    let (root, outside) = (ground.site.root(), ground.site.outside());
    let identity = Identity::make(outside)?;
    let mut arguments = vec![
        format!("--tls-listen={PORT}"),
        format!("--tls-cert={}", identity.certificate.display()),
        format!("--tls-key={}", identity.key.display()),
    ];
    arguments.extend(settings.splitway.iter().cloned());
    let mut splitway = start_splitway(&ground, &arguments, false)?;
    let nginx = start_nginx(&ground, &splitway, false, Some(&identity))?;
    let lighttpd = Lighttpd::start(nginx.network(), root, outside, &identity)?;
    // Thousands of short connections: the clients' ports are free again after a second.
    for setting in ["tcp_tw_reuse=1", "ip_local_port_range=10000 65535"] {
        run_tool(tool("sysctl -qw").arg(format!("net.ipv4.{setting}")))?;
    }
    let servers = [
        Server::new(
            report::SPLITWAY,
            SocketAddr::new(STACK_V4, PORT),
            [("host", splitway.host()), ("nic", splitway.nic())],
        ),
        Server::new(
            report::NGINX,
            nginx.tls_address(),
            [("worker", nginx.worker()?)],
        ),
        Server::new(
            report::LIGHTTPD,
            lighttpd.address(),
            [("server", lighttpd.pid())],
        ),
    ];

    let mut report = Report::new(settings.clone());
    let load = |server: &Server, seconds| load::Settings {
        server: server.address,
        connections: settings.connections,
        files: settings.files,
        file_bytes: settings.file_bytes,
        seconds,
        discard: false,
        once: false,
        certificate: Some(identity.certificate.clone()),
    };
    for server in &servers {
        // Caches warm up, and the way is seen to be clear.
        run::run(server, &load(server, 1))?;
    }
    for round in 0..settings.rounds.count() {
        // The order turns with each round, so that none always comes after another.
        for place in 0..servers.len() {
            let server = &servers[(place + round) % servers.len()];
            let run = run::run(server, &load(server, settings.rounds.seconds()))?;
            eprintln!("{run}");
            report.runs.push(run);
        }
    }
    for round in 0..settings.rounds.count() {
        for place in 0..servers.len() {
            let server = &servers[(place + round) % servers.len()];
            for kind in kinds(server.name) {
                let run = shake_hands(settings, &identity, server, *kind)?;
                eprintln!("{run}");
                report.handshakes.push(run);
            }
        }
    }
    splitway.end_with(Signal::TERM)?;
    eprintln!(
        "\nSplitway's own account of all these runs:\n{}",
        splitway.output().join("\n")
    );
    let output = settings.output.as_ref().unwrap_or(&ground.output);
    publish(output, "tls", report.markdown(), &report, [])
}

/// What a server's handshakes are measured with. lighttpd gives a session that is resumed no ticket for the next one, of
/// which the client lives.
fn kinds(server: &str) -> &'static [Kind] {
    match server {
        report::LIGHTTPD => &[Kind::New],
        _ => &[Kind::New, Kind::Resumed],
    }
}

fn shake_hands(
    settings: &Settings,
    identity: &Identity,
    server: &Server,
    kind: Kind,
) -> Result<HandshakeRun> {
    let load = handshakes::Settings {
        server: server.address,
        certificate: identity.certificate.clone(),
        connections: settings.connections,
        seconds: settings.rounds.seconds(),
        resume: kind == Kind::Resumed,
    };
    let (outcome, cost) = run::generate(server, load.arguments())?;
    Ok(HandshakeRun {
        server: server.name,
        kind,
        load: outcome,
        processes: cost.processes,
    })
}
