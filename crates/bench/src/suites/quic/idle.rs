//! Idle connections: the host process's memory for each, with QUIC, with TLS over TCP, and with
//! HTTP/2 over that.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::Event;
use rustls::{ClientConfig, ClientConnection};
use testbed::procfs::memory;
use testbed::splitway::STACK_V4;
use testbed::{Context, Failure, Result};

use super::client;
use super::driver::Driver;
use super::{PORT, STREAM_WINDOW_BYTES, own_arguments};
use crate::RECEIVE_WAIT_MAX;
use crate::load::{Outcome, READY, conclude, print_line, take_place};
use crate::measure::results::{Measures, Results};
use crate::measure::run::{self, Server};
use crate::servers::server_set::{SPLITWAY, Workspace, end_splitway, processes, start_splitway};
use crate::suites::tls::identity::{self, Identity};
use crate::suites::tls::session;

/// Number of connections.
pub(in crate::suites) const CONNECTIONS: usize = 1000;

/// The measure.
pub(in crate::suites) const MEASURE: &str = "memory_kb_per_connection.host";

/// The protocol of the connections.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Quic,
    Tls,
    Http2,
}

impl Kind {
    /// Those of the suite `quic`, and of `http2`.
    pub(super) const QUIC: [Kind; 2] = [Kind::Quic, Kind::Tls];
    pub(in crate::suites) const HTTP2: [Kind; 2] = [Kind::Http2, Kind::Tls];

    pub(in crate::suites) fn name(self) -> &'static str {
        match self {
            Kind::Quic => "QUIC",
            Kind::Tls => "TLS over TCP",
            Kind::Http2 => "HTTP/2",
        }
    }

    fn argument(self) -> &'static str {
        match self {
            Kind::Quic => "quic",
            Kind::Tls => "tls",
            Kind::Http2 => "http2",
        }
    }
}

/// The connections to hold.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Their protocol
    #[arg(long)]
    kind: Kind,
    /// Address of the server
    #[arg(long)]
    server: SocketAddr,
    /// The server's certificate
    #[arg(long)]
    certificate: PathBuf,
    /// Number of connections
    #[arg(long)]
    connections: usize,
}

/// Opens connections, prints [`READY`] and an empty [`Outcome`], and keeps them until standard
/// input ends.
pub(crate) fn hold(settings: &Settings) -> Result<()> {
    take_place()?;
    match settings.kind {
        Kind::Quic => {
            let _held = quic(settings)?;
            hold_them()
        }
        Kind::Tls => {
            let _held = tls(settings)?;
            hold_them()
        }
        Kind::Http2 => {
            let _held = http2(settings)?;
            hold_them()
        }
    }
}

fn hold_them() -> Result<()> {
    print_line(READY)?;
    conclude(&Outcome::default())
}

fn quic(settings: &Settings) -> Result<Driver> {
    let mut driver = Driver::new((Ipv4Addr::UNSPECIFIED, 0).into(), None)?;
    let config = client::config(&settings.certificate, STREAM_WINDOW_BYTES)?;
    let begun = Instant::now();
    let mut connected = 0;
    for _ in 0..settings.connections {
        driver.connect(config.clone(), settings.server, identity::NAME)?;
        // One after the other: a crowd of handshakes would meet Retry.
        let wanted = connected + 1;
        while connected < wanted {
            driver.turn(Duration::from_millis(100), &mut |_, _, event| {
                match event {
                    Event::Connected => connected += 1,
                    Event::ConnectionLost { reason } => {
                        return Err(Failure::new(format!("a connection is lost: {reason}")));
                    }
                    _ => {}
                }
                Ok(())
            })?;
            if begun.elapsed() > RECEIVE_WAIT_MAX {
                return Err(Failure::new(format!(
                    "of {} connections, {connected} are there after {RECEIVE_WAIT_MAX:?}",
                    settings.connections
                )));
            }
        }
    }
    Ok(driver)
}

type Held = Vec<(TcpStream, ClientConnection)>;

fn tls(settings: &Settings) -> Result<Held> {
    tls_with(settings, session::config(&settings.certificate)?)
}

/// The frames that a client sends first: the preface, SETTINGS with large windows, a window of the
/// connection, and the acknowledgment of SETTINGS.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \0\0\x06\x04\0\0\0\0\0\0\x04\0\x10\0\0\0\0\x04\x08\0\0\0\0\0\x01\0\0\0\0\0\0\x04\x01\0\0\0\0";

/// Connections whose SETTINGS are acknowledged.
fn http2(settings: &Settings) -> Result<Held> {
    let mut config = (*session::config(&settings.certificate)?).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut held = tls_with(settings, Arc::new(config))?;
    for (stream, tls) in &mut held {
        let mut both = rustls::Stream::new(tls, stream);
        let greeted = both.write_all(GREETING).and_then(|()| both.flush());
        greeted.context(|| "greeting a server of HTTP/2".into())?;
        // SETTINGS of the server, and its acknowledgment of the client's: a frame of no length.
        let mut received = Vec::new();
        while !received.ends_with(&[0, 0, 0, 4, 1, 0, 0, 0, 0]) {
            let mut byte = [0];
            let read = both.read_exact(&mut byte);
            read.context(|| "reading SETTINGS of a server".into())?;
            received.push(byte[0]);
        }
    }
    Ok(held)
}

fn tls_with(settings: &Settings, config: Arc<ClientConfig>) -> Result<Held> {
    let server = settings.server;
    let connecting = || format!("connecting to {server}");
    let mut held = Held::new();
    for _ in 0..settings.connections {
        let connected = TcpStream::connect_timeout(&server, RECEIVE_WAIT_MAX);
        let mut stream = connected.context(connecting)?;
        let waits = stream.set_read_timeout(Some(RECEIVE_WAIT_MAX));
        waits.context(connecting)?;
        let begun = ClientConnection::new(Arc::clone(&config), session::name());
        let mut tls = begun.context(connecting)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).context(connecting)?;
        }
        held.push((stream, tls));
    }
    Ok(held)
}

/// Memory per connection of one protocol in the host process of a fresh Splitway.
pub(in crate::suites) fn measure(
    workspace: &Workspace,
    identity: &Identity,
    kind: Kind,
    results: &mut Results,
) -> Result<Measures> {
    let mut splitway = start_splitway(workspace, &own_arguments(identity))?;
    let server = Server::new(SPLITWAY, (STACK_V4, PORT).into(), processes(&splitway));
    let before = memory(splitway.host())?.proportional_bytes;
    let arguments = vec![
        "idle-connections".to_owned(),
        format!("--kind={}", kind.argument()),
        format!("--server={}", server.addresses[0]),
        format!("--certificate={}", identity.certificate.display()),
        format!("--connections={CONNECTIONS}"),
    ];
    let (_, cost): (Outcome, _) = run::generate(&server, arguments, false)?;
    let host = cost.processes.iter().find(|process| process.name == "host");
    let host = host.ok_or_else(|| Failure::new("there is no host process"))?;
    let bytes = host.memory_bytes.saturating_sub(before);
    results.count(end_splitway(&mut splitway)?);
    let each_kb = bytes as f64 / 1e3 / CONNECTIONS as f64;
    eprintln!(
        "{CONNECTIONS} idle connections, {}: {each_kb:.1} KB each",
        kind.name()
    );
    Ok([(MEASURE.to_owned(), each_kb)].into())
}
