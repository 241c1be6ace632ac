//! Plain quinn: a server of files on quinn-proto and quinn-udp, one thread, with rustls and aws-lc,
//! which reads files with `pread` and seals every packet itself.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    AckFrequencyConfig, Connection, Dir, Event, ReadError, ServerConfig, StreamEvent, StreamId,
    TransportConfig, VarInt, WriteError,
};
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use testbed::{Context, Failure, Result};

use super::driver::Driver;
use super::{ALPN, PACKETS_PER_ACK, STREAM_WINDOW_BYTES, http3};
use crate::load::{READY, print_line};

/// Most bytes of one `pread`.
const READ_BYTES_MAX: usize = 64 << 10;

/// Longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 4096;

/// H3_REQUEST_REJECTED (RFC 9114 §8.1).
const REJECTED: u32 = 0x10b;

/// The files to serve, and the address.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// Directory of the files
    #[arg(long)]
    pub(crate) files: PathBuf,
    /// The server's certificate
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    /// The certificate's key
    #[arg(long)]
    pub(crate) key: PathBuf,
    /// Stream receive window of clients, in bytes
    #[arg(long, default_value_t = STREAM_WINDOW_BYTES)]
    pub(crate) window_bytes: u32,
    #[command(flatten)]
    pub(crate) loss_detection: LossDetection,
}

/// When a packet counts as lost, and when clients acknowledge; quinn's defaults unless given.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossDetection {
    /// Packet threshold: later packets acknowledged (RFC 9002 §6.1.1)
    #[arg(long, default_value_t = 3)]
    pub(crate) packet_threshold: u32,
    /// Time threshold, in round trips, once a later packet is acknowledged (RFC 9002 §6.1.2)
    #[arg(long, default_value_t = 1.125)]
    pub(crate) time_threshold: f32,
    /// Clients acknowledge at once when this many arrive out of order; 0 for never
    /// (draft-ietf-quic-ack-frequency)
    #[arg(long, default_value_t = 2)]
    pub(crate) reordering_threshold: u32,
}

impl LossDetection {
    /// quinn's defaults.
    pub(crate) const QUINN: LossDetection = LossDetection {
        packet_threshold: 3,
        time_threshold: 1.125,
        reordering_threshold: 2,
    };

    /// Splitway's: the time threshold alone.
    pub(crate) const BY_TIME: LossDetection = LossDetection {
        packet_threshold: u32::MAX,
        time_threshold: 1.25,
        reordering_threshold: 1,
    };

    /// The settings as command-line arguments.
    pub(crate) fn arguments(&self) -> [String; 3] {
        [
            format!("--packet-threshold={}", self.packet_threshold),
            format!("--time-threshold={}", self.time_threshold),
            format!("--reordering-threshold={}", self.reordering_threshold),
        ]
    }
}

/// Serves until it is killed; prints [`READY`] when it answers.
pub(crate) fn serve(settings: &Settings) -> Result<()> {
    let mut driver = Driver::new(settings.listen, Some(Arc::new(config(settings)?)))?;
    let mut server = Server {
        root: settings.files.clone(),
        files: HashMap::new(),
        requests: HashMap::new(),
        responses: HashMap::new(),
    };
    print_line(READY)?;
    loop {
        driver.turn(Duration::from_secs(1), &mut |index, quinn, event| {
            server.on_event(index, quinn, event)
        })?;
    }
}

/// quinn's defaults, except for Splitway's settings unrelated to sealing: it requests as few
/// acknowledgments.
fn config(settings: &Settings) -> Result<ServerConfig> {
    let making = || "configuring a server of QUIC".to_owned();
    let certificate = CertificateDer::from_pem_file(&settings.certificate).context(making)?;
    let key = PrivateKeyDer::from_pem_file(&settings.key).context(making)?;
    let mut tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .context(making)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .context(making)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let quic = QuicServerConfig::try_from(tls).context(making)?;
    let mut config = ServerConfig::with_crypto(Arc::new(quic));
    let mut frequency = AckFrequencyConfig::default();
    frequency
        .ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK))
        .reordering_threshold(VarInt::from_u32(
            settings.loss_detection.reordering_threshold,
        ));
    let mut transport = TransportConfig::default();
    transport
        .packet_threshold(settings.loss_detection.packet_threshold)
        .time_threshold(settings.loss_detection.time_threshold)
        .ack_frequency_config(Some(frequency))
        // A client's window, and as much again to keep sending.
        .send_window(2 * u64::from(settings.window_bytes));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

struct Server {
    root: PathBuf,
    /// Files stay open, as with nginx's `open_file_cache`.
    files: HashMap<String, (Arc<File>, u64)>,
    /// Partial requests.
    requests: HashMap<(usize, StreamId), Vec<u8>>,
    responses: HashMap<(usize, StreamId), Sending>,
}

/// A response not fully written.
struct Sending {
    file: Arc<File>,
    offset: u64,
    end: u64,
    /// Read, and not written.
    unwritten: Bytes,
}

impl Server {
    fn on_event(&mut self, index: usize, quinn: &mut Connection, event: Event) -> Result<()> {
        match event {
            Event::Connected => {
                if let Some(control) = quinn.streams().open(Dir::Uni) {
                    let stream = http3::control_stream();
                    let written = quinn.send_stream(control).write(&stream);
                    written.context(|| "beginning a control stream".into())?;
                }
                Ok(())
            }
            Event::ConnectionLost { .. } => {
                self.requests.retain(|(of, _), _| *of != index);
                self.responses.retain(|(of, _), _| *of != index);
                Ok(())
            }
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                while let Some(stream) = quinn.streams().accept(Dir::Bi) {
                    self.requests.insert((index, stream), Vec::new());
                    self.read(index, quinn, stream)?;
                }
                Ok(())
            }
            Event::Stream(StreamEvent::Readable { id }) => self.read(index, quinn, id),
            Event::Stream(StreamEvent::Writable { id }) => self.write(index, quinn, id),
            Event::Stream(StreamEvent::Stopped { id, .. }) => {
                self.responses.remove(&(index, id));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn read(&mut self, index: usize, quinn: &mut Connection, stream: StreamId) -> Result<()> {
        let Some(request) = self.requests.get_mut(&(index, stream)) else {
            // The client's control stream, which is ignored.
            return Ok(());
        };
        let mut receiving = quinn.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else {
            return Ok(());
        };
        let is_over = loop {
            match chunks.next(REQUEST_BYTES_MAX) {
                Ok(Some(chunk)) => request.extend_from_slice(&chunk.bytes),
                Ok(None) => break true,
                Err(ReadError::Blocked) => break false,
                Err(ReadError::Reset(_)) => {
                    self.requests.remove(&(index, stream));
                    return Ok(());
                }
            }
        };
        // Flow-control updates leave with the next packets.
        let _ = chunks.finalize();
        if request.len() > REQUEST_BYTES_MAX {
            return Err(Failure::new("a request is longer than any of the load"));
        }
        if !is_over {
            return Ok(());
        }
        let request = self.requests.remove(&(index, stream)).unwrap_or_default();
        let found = http3::path(&request).and_then(|path| self.file(&path));
        match found {
            Some((file, size)) => {
                let sending = Sending {
                    file,
                    offset: 0,
                    end: size,
                    unwritten: http3::response_head(size).into(),
                };
                self.responses.insert((index, stream), sending);
                self.write(index, quinn, stream)
            }
            None => {
                // A client that has gone needs no answer.
                let _ = quinn.send_stream(stream).reset(VarInt::from_u32(REJECTED));
                Ok(())
            }
        }
    }

    /// The file for a request's path, which is a name in the directory.
    fn file(&mut self, path: &str) -> Option<(Arc<File>, u64)> {
        if let Some(known) = self.files.get(path) {
            return Some(known.clone());
        }
        let name = path.strip_prefix('/')?;
        let is_name = !name.contains('/') && name != "..";
        let file = is_name.then(|| File::open(self.root.join(name)).ok())??;
        let size = file.metadata().ok()?.len();
        let known = (Arc::new(file), size);
        self.files.insert(path.to_owned(), known.clone());
        Some(known)
    }

    /// Writes as much of a response as the connection takes.
    fn write(&mut self, index: usize, quinn: &mut Connection, stream: StreamId) -> Result<()> {
        let Some(sending) = self.responses.get_mut(&(index, stream)) else {
            return Ok(());
        };
        let mut to = quinn.send_stream(stream);
        loop {
            if sending.unwritten.is_empty() {
                if sending.offset == sending.end {
                    // A stream that the client has stopped needs no end.
                    let _ = to.finish();
                    break;
                }
                sending.read()?;
            }
            match to.write_chunks(std::slice::from_mut(&mut sending.unwritten)) {
                Ok(_) => {}
                Err(WriteError::Blocked) => return Ok(()),
                Err(_) => break,
            }
        }
        self.responses.remove(&(index, stream));
        Ok(())
    }
}

impl Sending {
    fn read(&mut self) -> Result<()> {
        let len = (self.end - self.offset).min(READ_BYTES_MAX as u64) as usize;
        let mut bytes = vec![0; len];
        let reading = || "reading a file".to_owned();
        self.file
            .read_exact_at(&mut bytes, self.offset)
            .context(reading)?;
        self.offset += len as u64;
        self.unwritten = bytes.into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

    #[test]
    fn quinn_decides_by_itself_unless_told() {
        let required = [
            "--listen=192.0.2.1:443",
            "--files=files",
            "--certificate=certificate.pem",
            "--key=key.pem",
        ];
        let read = settings::<Settings>(&required);
        assert_eq!(read.loss_detection, LossDetection::QUINN);
        assert_eq!(read.window_bytes, STREAM_WINDOW_BYTES);
        let arguments = LossDetection::BY_TIME.arguments();
        let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let read = settings::<Settings>(&[&required[..], &given].concat());
        assert_eq!(read.loss_detection, LossDetection::BY_TIME);
    }
}
