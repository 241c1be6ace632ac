//! The load of TLS handshakes, many at once, on one thread and one core.
//!
//! A handshake counts once the server's ticket has arrived: with TLS 1.3 the server sends it after
//! the client's Finished. The connection is closed then, and another one takes its place. A client
//! computes more than a server, as it has to verify two signatures where the server makes one. So
//! that the client is not the bottleneck, only one handshake in [`SAMPLE`] is verified; all others
//! trust any server.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
    WebPkiServerVerifier,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, NamedGroup,
    SignatureScheme,
};
use serde::{Deserialize, Serialize};
use testbed::{Context, Failure, Result};

use super::session;
use crate::RECEIVE_WAIT_MAX;
use crate::load::{READY, conclude, print_line, take_place};

/// One handshake in this many is verified.
const SAMPLE: u64 = 100;

/// Most tickets kept.
const TICKETS_MAX: usize = 4096;

/// The load to generate.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server.
    #[arg(long)]
    pub(crate) server: SocketAddr,
    /// The server's certificate.
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    /// Number of connections at a time.
    #[arg(long)]
    pub(crate) connections: usize,
    /// Length of the measured span, in seconds.
    #[arg(long)]
    pub(crate) seconds: f64,
    /// Resume sessions, each with an earlier ticket.
    #[arg(long)]
    pub(crate) resume: bool,
}

impl Settings {
    /// Returns the arguments for these settings.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "handshakes".into(),
            format!("--server={}", self.server),
            format!("--certificate={}", self.certificate.display()),
            format!("--connections={}", self.connections),
            format!("--seconds={}", self.seconds),
        ];
        if self.resume {
            arguments.push("--resume".into());
        }
        arguments
    }
}

/// Result of the load, printed as one line of JSON.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Handshakes within the measured span.
    pub(crate) handshakes: u64,
    /// Handshakes verified since the beginning.
    pub(crate) verified: u64,
    /// The measured span, in nanoseconds.
    pub(crate) elapsed_ns: u64,
}

/// A connection in its handshake.
struct Greeting {
    stream: TcpStream,
    tls: ClientConnection,
    /// The connection resumes a session.
    has_ticket: bool,
}

struct Generator<'a> {
    settings: &'a Settings,
    config: Arc<ClientConfig>,
    verifier: Arc<Sampling>,
    tickets: Arc<Tickets>,
    waiting: OwnedFd,
    handshakes: u64,
}

/// Does handshakes until the measured span is over; prints [`READY`] and then the [`Outcome`].
pub(crate) fn generate(settings: &Settings) -> Result<()> {
    take_place()?;
    let verifier = Arc::new(Sampling::new(&settings.certificate)?);
    let tickets = Arc::new(Tickets::default());
    let dangerous = ClientConfig::builder_with_provider(Arc::new(session::crypto()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context(|| "choosing TLS 1.3".into())?
        .dangerous();
    let mut config = dangerous
        .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
        .with_no_client_auth();
    config.resumption = if settings.resume {
        Resumption::store(Arc::clone(&tickets) as _)
    } else {
        Resumption::disabled()
    };
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context(|| "epoll_create".into())?;
    let mut generator = Generator {
        settings,
        config: Arc::new(config),
        verifier,
        tickets,
        waiting,
        handshakes: 0,
    };
    generator.run()
}

impl Generator<'_> {
    fn run(&mut self) -> Result<()> {
        let count = self.settings.connections;
        let mut greetings = Vec::with_capacity(count);
        for index in 0..count {
            greetings.push(self.greet(index)?);
        }
        let span = Duration::from_secs_f64(self.settings.seconds);
        let mut began: Option<(Instant, u64)> = None;
        let mut events = Vec::with_capacity(256);
        loop {
            match began {
                // Until the average is two handshakes for each connection.
                None if self.handshakes >= 2 * count as u64 => {
                    print_line(READY)?;
                    began = Some((Instant::now(), self.handshakes));
                }
                Some((start, before)) if start.elapsed() >= span => {
                    return conclude(&Outcome {
                        handshakes: self.handshakes - before,
                        verified: self.verifier.verified.load(Relaxed),
                        elapsed_ns: start.elapsed().as_nanos() as u64,
                    });
                }
                _ => {}
            }
            let patience = Timespec {
                tv_sec: RECEIVE_WAIT_MAX.as_secs() as i64,
                tv_nsec: 0,
            };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.waiting, spare, Some(&patience)).context(|| "epoll_wait".into())?;
            if events.is_empty() {
                return Err(Failure::new(format!(
                    "{}: nothing has come for {RECEIVE_WAIT_MAX:?} on {count} connections, after \
                     {} handshakes",
                    self.settings.server, self.handshakes
                )));
            }
            for event in &events {
                let index = event.data.u64() as usize;
                if self.advance(&mut greetings[index])? {
                    // For resumption, the first handshakes only fetch tickets.
                    let has_ticket = greetings[index].has_ticket;
                    self.handshakes += u64::from(has_ticket == self.settings.resume);
                    // The assignment drops, and so closes, the previous connection.
                    greetings[index] = self.greet(index)?;
                }
            }
        }
    }

    /// Begins a handshake. `index` identifies its events.
    fn greet(&self, index: usize) -> Result<Greeting> {
        let server = self.settings.server;
        let family = match server {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)
            .context(|| "making a socket".into())?;
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno).context(|| format!("connecting to {server}")),
        }
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.waiting, &socket, data, wanted).context(|| "epoll_ctl".into())?;
        let stream = TcpStream::from(socket);
        stream
            .set_nodelay(true)
            .context(|| "setting options of a socket".into())?;
        let has_ticket = !self.tickets.lock().is_empty();
        let tls = ClientConnection::new(Arc::clone(&self.config), session::name())
            .context(|| "beginning TLS".into())?;
        Ok(Greeting {
            stream,
            tls,
            has_ticket,
        })
    }

    /// Continues a handshake. Returns true if it is complete.
    fn advance(&self, greeting: &mut Greeting) -> Result<bool> {
        let Greeting {
            stream,
            tls,
            has_ticket,
        } = greeting;
        let failed = || format!("shaking hands with {}", self.settings.server);
        loop {
            while tls.wants_write() {
                if would_block(tls.write_tls(stream))
                    .context(failed)?
                    .is_none()
                {
                    return Ok(false);
                }
            }
            if !tls.is_handshaking() && tls.tls13_tickets_received() > 0 {
                break;
            }
            match would_block(tls.read_tls(stream)).context(failed)? {
                None => return Ok(false),
                Some(0) => {
                    return Err(Failure::new(format!(
                        "{}: the server has closed the connection",
                        failed()
                    )));
                }
                Some(_) => {
                    tls.process_new_packets().context(failed)?;
                }
            }
        }
        let is_resumed = tls.handshake_kind() == Some(HandshakeKind::Resumed);
        if is_resumed != *has_ticket {
            return Err(Failure::new(format!(
                "{}: the server does not take its own ticket",
                failed()
            )));
        }
        tls.send_close_notify();
        would_block(tls.write_tls(stream)).context(failed)?;
        Ok(true)
    }
}

/// Returns `None` if the call would block.
fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        // Not connected yet.
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(None),
        Err(error) => Err(error),
    }
}

/// Verifies one handshake in [`SAMPLE`].
#[derive(Debug)]
struct Sampling {
    strict: Arc<WebPkiServerVerifier>,
    seen: AtomicU64,
    verified: AtomicU64,
}

impl Sampling {
    fn new(certificate: &Path) -> Result<Sampling> {
        let roots = Arc::new(session::roots(certificate)?);
        let crypto = Arc::new(session::crypto());
        let strict = WebPkiServerVerifier::builder_with_provider(roots, crypto)
            .build()
            .context(|| "verifying a certificate".into())?;
        Ok(Sampling {
            strict,
            seen: AtomicU64::new(0),
            verified: AtomicU64::new(0),
        })
    }
}

impl ServerCertVerifier for Sampling {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let strict = &self.strict;
        if self.seen.load(Relaxed).is_multiple_of(SAMPLE) {
            strict.verify_server_cert(end_entity, intermediates, name, ocsp, now)
        } else {
            Ok(ServerCertVerified::assertion())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.strict
            .verify_tls12_signature(message, certificate, signed)
    }

    /// Comes after the certificate in each handshake.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        if !self.seen.fetch_add(1, Relaxed).is_multiple_of(SAMPLE) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        let strict = &self.strict;
        let valid = strict.verify_tls13_signature(message, certificate, signed)?;
        self.verified.fetch_add(1, Relaxed);
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

/// Tickets of all connections, each used once. There is one server.
#[derive(Debug, Default)]
struct Tickets(Mutex<VecDeque<Tls13ClientSessionValue>>);

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Tls13ClientSessionValue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut tickets = self.lock();
        if tickets.len() < TICKETS_MAX {
            tickets.push_back(ticket);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().pop_front()
    }
}
