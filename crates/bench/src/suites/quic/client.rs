//! The load generator: HTTP/3 connections through one UDP socket, each requesting file after file,
//! on one thread and one core.
//!
//! It opens every packet, as quinn does. It compares the beginning of each received piece of a body
//! with the file, and one response in [`SAMPLE`] byte by byte.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, Dir, Event, ReadError, StreamEvent, StreamId, TransportConfig, VarInt,
};
use rustls::CipherSuite;
use rustls::crypto::aws_lc_rs as provider;
use testbed::site::KnownFile;
use testbed::{Context, Failure, Result};

use super::driver::Driver;
use super::http3::{self, Response};
use super::{ALPN, STREAM_WINDOW_BYTES};
use crate::RECEIVE_WAIT_MAX;
use crate::load::{
    Latencies, Outcome, Percentiles, READY, compare, conclude, file_name, print_line, take_place,
};
use crate::suites::tls::{identity, session};

/// One response in this many is compared byte by byte.
const SAMPLE: u64 = 100;

/// Bytes compared at the beginning of each piece of other responses.
const COMPARED_BYTES: usize = 32;

/// Longest wait of a turn.
const PATIENCE: Duration = Duration::from_millis(100);

/// The load to generate.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server
    #[arg(long)]
    pub(crate) server: SocketAddr,
    /// The server's certificate
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    /// Number of connections
    #[arg(long)]
    pub(crate) connections: usize,
    /// Number of files
    #[arg(long)]
    pub(crate) files: usize,
    /// Size of each file, in bytes
    #[arg(long)]
    pub(crate) file_bytes: u64,
    /// Length of the measured span, in seconds
    #[arg(long)]
    pub(crate) seconds: f64,
    /// Longest warm-up, in seconds, after which a part of a response per connection suffices.
    /// Without it, the warm-up ends after a response on each connection, and two on average
    #[arg(long)]
    pub(crate) ramp_up_seconds: Option<f64>,
}

impl Settings {
    /// The settings as command-line arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "quic-load".into(),
            format!("--server={}", self.server),
            format!("--certificate={}", self.certificate.display()),
            format!("--connections={}", self.connections),
            format!("--files={}", self.files),
            format!("--file-bytes={}", self.file_bytes),
            format!("--seconds={}", self.seconds),
        ];
        let ramp_up = self.ramp_up_seconds;
        arguments.extend(ramp_up.map(|seconds| format!("--ramp-up-seconds={seconds}")));
        arguments
    }
}

/// Generates load until the measured span is over; prints [`READY`] and then the [`Outcome`].
pub(crate) fn generate(settings: &Settings) -> Result<()> {
    take_place()?;
    let mut driver = Driver::new((Ipv4Addr::UNSPECIFIED, 0).into(), None)?;
    let config = config(&settings.certificate, STREAM_WINDOW_BYTES)?;
    let mut load = Load::new(settings);
    for _ in 0..settings.connections {
        let index = driver.connect(config.clone(), settings.server, identity::NAME)?;
        load.connections.resize_with(index + 1, Exchange::default);
    }
    let span = Duration::from_secs_f64(settings.seconds);
    let ramp_up = settings.ramp_up_seconds.map(Duration::from_secs_f64);
    let joined = Instant::now();
    let mut began: Option<(Instant, Outcome)> = None;
    loop {
        match began {
            None if load.is_under_way(ramp_up.is_some_and(|most| joined.elapsed() >= most)) => {
                print_line(READY)?;
                load.latencies = Latencies::new();
                began = Some((Instant::now(), load.total));
            }
            Some((start, before)) if start.elapsed() >= span => {
                return conclude(&load.outcome(before, start.elapsed()));
            }
            _ => {}
        }
        driver.turn(PATIENCE, &mut |index, quinn, event| {
            load.on_event(index, quinn, event)
        })?;
        if load.last_arrival.elapsed() > RECEIVE_WAIT_MAX {
            return Err(Failure::new(format!(
                "{}: nothing has come for {RECEIVE_WAIT_MAX:?} on {} connections, after {} \
                 responses",
                settings.server, settings.connections, load.total.responses
            )));
        }
    }
}

/// TLS 1.3 with AES-128-GCM, which every QUIC server has, so that all seal alike, and a receive
/// window of `window_bytes` per stream.
pub(super) fn config(certificate: &Path, window_bytes: u32) -> Result<ClientConfig> {
    let making = || "configuring a client of QUIC".to_owned();
    let mut crypto = provider::default_provider();
    let wanted = CipherSuite::TLS13_AES_128_GCM_SHA256;
    crypto.cipher_suites.retain(|suite| suite.suite() == wanted);
    crypto.kx_groups = vec![provider::kx_group::X25519];
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(crypto))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context(making)?
        .with_root_certificates(session::roots(certificate)?)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let quic = QuicClientConfig::try_from(tls).context(making)?;
    let mut config = ClientConfig::new(Arc::new(quic));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(window_bytes));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// A connection's current request.
struct Exchange {
    stream: Option<StreamId>,
    file: usize,
    /// The response is compared byte by byte.
    compare: bool,
    response: Response,
    offset: u64,
    asked: Instant,
    first_byte: Option<Instant>,
    /// The connection has had a response.
    is_served: bool,
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            stream: None,
            file: 0,
            compare: false,
            response: Response::default(),
            offset: 0,
            asked: Instant::now(),
            first_byte: None,
            is_served: false,
        }
    }
}

struct Load {
    files: Vec<(KnownFile, Vec<u8>)>,
    connections: Vec<Exchange>,
    random: u64,
    asked: u64,
    served: usize,
    total: Outcome,
    latencies: Latencies,
    last_arrival: Instant,
}

impl Load {
    fn new(settings: &Settings) -> Load {
        let known = |index| {
            let file = KnownFile::whole(&file_name(index), settings.file_bytes);
            let request = http3::request(&format!("/{}", file.name()));
            (file, request)
        };
        Load {
            files: (0..settings.files.max(1)).map(known).collect(),
            connections: Vec::new(),
            random: 0x5eed,
            asked: 0,
            served: 0,
            total: Outcome::default(),
            latencies: Latencies::new(),
            last_arrival: Instant::now(),
        }
    }

    /// True once every connection has had a response, and on average two. Late in the warm-up, a
    /// part of a response is enough.
    fn is_under_way(&self, is_late: bool) -> bool {
        let has_part = |exchange: &Exchange| exchange.is_served || exchange.offset > 0;
        if is_late && self.connections.iter().all(has_part) {
            return true;
        }
        self.served >= self.connections.len()
            && self.total.responses >= 2 * self.connections.len() as u64
    }

    fn outcome(&self, before: Outcome, elapsed: Duration) -> Outcome {
        Outcome {
            body_bytes: self.total.body_bytes - before.body_bytes,
            responses: self.total.responses - before.responses,
            compared: self.total.compared,
            elapsed_ns: elapsed.as_nanos() as u64,
            first_byte: Percentiles::of(&self.latencies.first_byte_ns),
            response: Percentiles::of(&self.latencies.response_ns),
        }
    }

    fn on_event(&mut self, index: usize, quinn: &mut Connection, event: Event) -> Result<()> {
        match event {
            Event::Connected => {
                let control = quinn.streams().open(Dir::Uni);
                let control = control.ok_or_else(|| Failure::new("no control stream"))?;
                write(quinn, control, &http3::control_stream())?;
                self.ask(index, quinn)
            }
            Event::ConnectionLost { reason } => {
                Err(Failure::new(format!("a connection is lost: {reason}")))
            }
            Event::Stream(StreamEvent::Readable { id }) => self.read(index, quinn, id),
            _ => Ok(()),
        }
    }

    /// Requests a file.
    fn ask(&mut self, index: usize, quinn: &mut Connection) -> Result<()> {
        let stream = quinn.streams().open(Dir::Bi);
        let stream = stream.ok_or_else(|| Failure::new("the server permits no stream"))?;
        // Xorshift: the same sequence in each run.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let file = (self.random % self.files.len() as u64) as usize;
        write(quinn, stream, &self.files[file].1)?;
        let finished = quinn.send_stream(stream).finish();
        finished.context(|| "ending a request".into())?;
        let exchange = &mut self.connections[index];
        *exchange = Exchange {
            stream: Some(stream),
            file,
            compare: self.asked.is_multiple_of(SAMPLE),
            is_served: exchange.is_served,
            ..Exchange::default()
        };
        self.asked += 1;
        Ok(())
    }

    /// Reads available bytes of a stream.
    fn read(&mut self, index: usize, quinn: &mut Connection, stream: StreamId) -> Result<()> {
        if self.connections[index].stream != Some(stream) {
            // The server's control and QPACK streams.
            return Ok(());
        }
        self.last_arrival = Instant::now();
        let mut receiving = quinn.recv_stream(stream);
        let reading = || "reading a stream".to_owned();
        let mut chunks = receiving.read(true).context(reading)?;
        let is_over = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.take(index, &chunk.bytes)?,
                Ok(None) => break true,
                Err(ReadError::Blocked) => break false,
                Err(error) => return Err(error).context(reading),
            }
        };
        // Flow-control updates leave with the next packets.
        let _ = chunks.finalize();
        if is_over {
            self.complete(index)?;
            self.ask(index, quinn)?;
        }
        Ok(())
    }

    fn take(&mut self, index: usize, mut bytes: &[u8]) -> Result<()> {
        let exchange = &mut self.connections[index];
        let (file, _) = &self.files[exchange.file];
        while let Some(body) = exchange.response.next(&mut bytes)? {
            let first = body.len().min(COMPARED_BYTES);
            let compared = if exchange.compare {
                body
            } else {
                &body[..first]
            };
            compare(file, exchange.offset, compared)?;
            exchange.offset += body.len() as u64;
            exchange.first_byte.get_or_insert_with(Instant::now);
            self.total.body_bytes += body.len() as u64;
        }
        Ok(())
    }

    fn complete(&mut self, index: usize) -> Result<()> {
        let exchange = &mut self.connections[index];
        let size = self.files[exchange.file].0.size();
        if exchange.offset != size {
            return Err(Failure::new(format!(
                "a response has {} bytes, and its file {size}",
                exchange.offset
            )));
        }
        let first_byte = exchange.first_byte.unwrap_or(exchange.asked);
        self.latencies
            .record(exchange.asked, first_byte, Instant::now());
        self.total.responses += 1;
        self.total.compared += u64::from(exchange.compare);
        if !std::mem::replace(&mut exchange.is_served, true) {
            self.served += 1;
        }
        Ok(())
    }
}

/// Writes a short message on a stream with room.
pub(super) fn write(quinn: &mut Connection, stream: StreamId, bytes: &[u8]) -> Result<()> {
    let written = quinn.send_stream(stream).write(bytes);
    match written.context(|| "writing on a stream".into())? {
        all if all == bytes.len() => Ok(()),
        some => Err(Failure::new(format!(
            "a stream has no room for {} bytes, but for {some}",
            bytes.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_under_way_when_each_connection_is_served_and_late_when_each_has_begun() {
        let mut load = Load::new(&Settings {
            server: "192.0.2.1:443".parse().unwrap(),
            certificate: "certificate.pem".into(),
            connections: 2,
            files: 1,
            file_bytes: 10,
            seconds: 1.0,
            ramp_up_seconds: None,
        });
        load.connections.resize_with(2, Exchange::default);
        load.connections[0].offset = 1;
        assert!(!load.is_under_way(true), "one has nothing");
        load.connections[1].offset = 1;
        assert!(load.is_under_way(true));
        assert!(!load.is_under_way(false), "none has all");
        (load.served, load.total.responses) = (2, 3);
        assert!(!load.is_under_way(false), "three responses");
        load.total.responses = 4;
        assert!(load.is_under_way(false));
    }
}
