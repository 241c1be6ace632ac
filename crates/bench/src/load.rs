//! The load generator: connections that ask for file after file, on one thread and one core.
//!
//! It reads responses as any client does, and compares one in [`SAMPLE`] byte by byte with the
//! file. With `--discard`, the kernel drops all other bodies unread (`MSG_TRUNC`). Over TLS it does
//! not decrypt them either ([`crate::suites::tls::session`]).

pub(crate) mod cross_check;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, connect, recv, socket_with};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use testbed::http::request;
use testbed::process::Process;
use testbed::site::KnownFile;
use testbed::{Context, Failure, Result};

use crate::CLIENT_CORE;
use crate::RECEIVE_WAIT_MAX;
use crate::suites::tls::session::{self, Content, Session};

/// One response in this many is compared byte by byte.
const SAMPLE: u64 = 100;

/// Longest response head that is accepted, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 4096;

/// Most bytes read at once. Discarded bytes are not limited.
const READ_BYTES_MAX: usize = 64 << 10;

/// Most bytes received from a connection in one turn.
const TURN_BYTES_MAX: usize = 1 << 20;

/// Load to generate.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server; connections are distributed over several in turn
    #[arg(long, required = true)]
    pub(crate) server: Vec<SocketAddr>,
    /// How many connections.
    #[arg(long)]
    pub(crate) connections: usize,
    /// How many files there are.
    #[arg(long)]
    pub(crate) files: usize,
    /// Their size, in bytes.
    #[arg(long)]
    pub(crate) file_bytes: u64,
    /// Length of the measured span, in seconds.
    #[arg(long)]
    pub(crate) seconds: f64,
    /// Have the kernel drop bodies unread.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Request each file once, one after the other, instead of at random; the measured span ends
    /// with the last response
    #[arg(long)]
    pub(crate) once: bool,
    /// Ask for the end of the connection with each request.
    #[arg(long)]
    pub(crate) close: bool,
    /// Speak TLS, with a server whose certificate is this one.
    #[arg(long)]
    pub(crate) certificate: Option<PathBuf>,
    /// Rest this long before each request, in microseconds, by half more or less, so that idle
    /// processes fall asleep
    #[arg(long, default_value_t = 0)]
    pub(crate) rest_us: u64,
}

impl Settings {
    /// Returns the arguments for these settings.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "load".into(),
            format!("--connections={}", self.connections),
            format!("--files={}", self.files),
            format!("--file-bytes={}", self.file_bytes),
            format!("--seconds={}", self.seconds),
            format!("--rest-us={}", self.rest_us),
        ];
        let servers = self.server.iter();
        arguments.extend(servers.map(|server| format!("--server={server}")));
        for (set, flag) in [
            (self.discard, "--discard"),
            (self.once, "--once"),
            (self.close, "--close"),
        ] {
            if set {
                arguments.push(flag.into());
            }
        }
        if let Some(certificate) = &self.certificate {
            arguments.push(format!("--certificate={}", certificate.display()));
        }
        arguments
    }
}

/// Result of a load, printed as one line of JSON.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Bytes of bodies within the measured span.
    pub(crate) body_bytes: u64,
    /// Responses completed within it.
    pub(crate) responses: u64,
    /// Responses compared byte by byte, since the beginning.
    pub(crate) compared: u64,
    /// The measured span, in nanoseconds.
    pub(crate) elapsed_ns: u64,
    /// From a request to the first byte of its response, of the responses completed in the span.
    pub(crate) first_byte: Percentiles,
    /// From a request to the last byte of its response.
    pub(crate) response: Percentiles,
}

/// Percentiles of a time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
}

impl Percentiles {
    pub(crate) fn of(times_ns: &Histogram<u64>) -> Percentiles {
        let at = |percentile| times_ns.value_at_percentile(percentile) as f64 / 1e3;
        Percentiles {
            p50_us: at(50.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            p99_9_us: at(99.9),
        }
    }
}

/// Histograms of the times that requests took.
pub(crate) struct Latencies {
    pub(crate) first_byte_ns: Histogram<u64>,
    pub(crate) response_ns: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Latencies {
        // Up to a minute, to three digits.
        let histogram = || {
            Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds and digits are sound")
        };
        Latencies {
            first_byte_ns: histogram(),
            response_ns: histogram(),
        }
    }

    pub(crate) fn record(&mut self, asked: Instant, first_byte: Instant, end: Instant) {
        let ns = |until: Instant| until.saturating_duration_since(asked).as_nanos() as u64;
        self.first_byte_ns.saturating_record(ns(first_byte));
        self.response_ns.saturating_record(ns(end));
    }
}

/// The line that is printed when the measured span begins.
pub(crate) const READY: &str = "ready";

/// Waits for [`READY`] from a server started with a pipe as its standard output. `problem` is the
/// failure on any other line.
pub(crate) fn await_ready(process: &mut Process, problem: &str) -> Result<()> {
    let stdout = process.child().stdout.take().expect("a pipe, as asked for");
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context(|| "reading from the server".into())?;
    if line.trim_end() == READY {
        Ok(())
    } else {
        // The server wrote the reason to standard error.
        Err(Failure::new(problem))
    }
}

/// The name of a file.
pub(crate) fn file_name(index: usize) -> String {
    format!("file-{index}")
}

/// State of a connection's response.
enum Phase {
    /// Reading status and header fields; the bytes received.
    Head(Vec<u8>),
    /// Reading a body.
    Body { offset: u64 },
}

struct Connection {
    stream: TcpStream,
    tls: Option<Box<Session>>,
    file: usize,
    /// Whether the response is compared byte by byte.
    compare: bool,
    phase: Phase,
    asked: Instant,
    /// When the response began, or the request if it has not.
    first_byte: Instant,
    /// The server closes the connection after this response.
    is_last: bool,
    /// The connection has had a response.
    is_served: bool,
}

struct Generator<'a> {
    settings: &'a Settings,
    tls: Option<Arc<ClientConfig>>,
    files: Vec<(KnownFile, String)>,
    buffer: Vec<u8>,
    random: u64,
    asked: u64,
    /// Connections that have had a response.
    served: usize,
    total: Outcome,
    latencies: Latencies,
}

/// Generates load until the measured span is over; prints [`READY`] and then the [`Outcome`]. The
/// connections stay open until standard input ends, so that the servers can be inspected with all
/// connections.
pub(crate) fn generate(settings: &Settings) -> Result<()> {
    take_place()?;
    let known = |index| {
        let file = KnownFile::whole(&file_name(index), settings.file_bytes);
        let mut request = request("GET", file.name());
        if settings.close {
            // Before the empty line.
            request.insert_str(request.len() - 2, "Connection: close\r\n");
        }
        (file, request)
    };
    let certificate = settings.certificate.as_deref();
    let mut generator = Generator {
        settings,
        tls: certificate.map(session::config).transpose()?,
        files: (0..settings.files.max(1)).map(known).collect(),
        buffer: vec![0; TURN_BYTES_MAX],
        random: 0x5eed,
        asked: 0,
        served: 0,
        total: Outcome::default(),
        latencies: Latencies::new(),
    };
    generator.run()
}

/// Begins a connection with CUBIC, on a socket that does not block.
pub(crate) fn begin_connection(server: SocketAddr) -> Result<OwnedFd> {
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)
        .context(|| "opening a socket".into())?;
    set_tcp_congestion(&socket, "cubic").context(|| "choosing CUBIC, which needs root".into())?;
    match connect(&socket, &server) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno).context(|| format!("connecting to {server}")),
    }
}

/// Pins the load generator to its core, and raises its limit of open files.
pub(crate) fn take_place() -> Result<()> {
    let mut core = CpuSet::new();
    core.set(CLIENT_CORE);
    sched_setaffinity(None, &core).context(|| format!("moving to core {CLIENT_CORE}"))?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context(|| "allowing more open files".into())
}

/// Prints the outcome as one line of JSON, and waits until standard input ends.
pub(crate) fn conclude(outcome: &impl Serialize) -> Result<()> {
    print_line(&serde_json::to_string(outcome).context(|| "writing JSON".into())?)?;
    let end = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    end.map(drop)
        .context(|| "waiting for standard input to end".into())
}

pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .context(|| "writing to standard output".into())
}

impl Generator<'_> {
    fn run(&mut self) -> Result<()> {
        let waiting =
            epoll::create(epoll::CreateFlags::CLOEXEC).context(|| "epoll_create".into())?;
        let mut connections = Vec::with_capacity(self.settings.connections);
        for index in 0..self.settings.connections {
            connections.push(self.join(index, &waiting)?);
        }

        let mut events = Vec::with_capacity(256);
        let span = Duration::from_secs_f64(self.settings.seconds);
        let mut began: Option<(Instant, Outcome)> = None;
        loop {
            match began {
                None if self.is_under_way() => {
                    print_line(READY)?;
                    self.latencies = Latencies::new();
                    began = Some((Instant::now(), self.total));
                }
                Some((start, before)) if start.elapsed() >= span || self.is_exhausted() => {
                    let outcome = Outcome {
                        body_bytes: self.total.body_bytes - before.body_bytes,
                        responses: self.total.responses - before.responses,
                        compared: self.total.compared,
                        elapsed_ns: start.elapsed().as_nanos() as u64,
                        first_byte: Percentiles::of(&self.latencies.first_byte_ns),
                        response: Percentiles::of(&self.latencies.response_ns),
                    };
                    return conclude(&outcome);
                }
                _ => {}
            }
            let patience = Timespec {
                tv_sec: RECEIVE_WAIT_MAX.as_secs() as i64,
                tv_nsec: 0,
            };
            events.clear();
            epoll::wait(
                &waiting,
                rustix::buffer::spare_capacity(&mut events),
                Some(&patience),
            )
            .context(|| "epoll_wait".into())?;
            if events.is_empty() {
                return Err(Failure::new(format!(
                    "{:?}: nothing has come for {RECEIVE_WAIT_MAX:?} on {} connections, after {} \
                     responses",
                    self.settings.server,
                    connections.len(),
                    self.total.responses
                )));
            }
            for event in &events {
                let index = event.data.u64() as usize;
                if self.turn(&mut connections[index])? {
                    connections[index] = self.join(index, &waiting)?;
                    // Its predecessor in this slot has had a response.
                    connections[index].is_served = true;
                }
            }
        }
    }

    /// Opens a connection and adds it to the epoll set.
    fn join(&mut self, index: usize, waiting: &OwnedFd) -> Result<Connection> {
        let connection = self.connect(index)?;
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(waiting, &connection.stream, data, epoll::EventFlags::IN)
            .context(|| "epoll_ctl".into())?;
        Ok(connection)
    }

    fn connect(&mut self, index: usize) -> Result<Connection> {
        let servers = &self.settings.server;
        let server = servers[index % servers.len()];
        let stream = TcpStream::connect_timeout(&server, RECEIVE_WAIT_MAX)
            .context(|| format!("connecting to {server}"))?;
        set_tcp_congestion(&stream, "cubic")
            .context(|| "choosing CUBIC, which needs root".into())?;
        stream
            .set_nodelay(true)
            .context(|| "setting options of a socket".into())?;
        let mut tls = match self.tls.clone() {
            Some(config) => {
                let session = self.begin_tls(config, &stream, index);
                let session = session.context(|| {
                    format!(
                        "connection {index} of {}, to {server}: TLS and a first response, for each \
                         piece of which there are {RECEIVE_WAIT_MAX:?}",
                        self.settings.connections
                    )
                });
                Some(Box::new(session?))
            }
            None => None,
        };
        stream
            .set_nonblocking(true)
            .context(|| "setting options of a socket".into())?;
        let mut connection = Connection {
            stream,
            tls: None,
            file: 0,
            compare: false,
            phase: Phase::Head(Vec::new()),
            asked: Instant::now(),
            first_byte: Instant::now(),
            is_last: false,
            is_served: false,
        };
        self.ask(&mut connection, tls.as_deref_mut())?;
        connection.tls = tls;
        Ok(connection)
    }

    /// Shakes hands, and takes a first response. On one connection in [`SAMPLE`] it is a whole
    /// file, of which every byte is decrypted and compared; on the others the head of one.
    fn begin_tls(
        &mut self,
        config: Arc<ClientConfig>,
        stream: &TcpStream,
        index: usize,
    ) -> Result<Session> {
        let (file, get) = &self.files[0];
        let is_whole = (index as u64).is_multiple_of(SAMPLE);
        let method = if is_whole {
            get.clone()
        } else {
            request("HEAD", file.name())
        };
        let session = Session::begin(config, stream, &method, |response| {
            let head = read_head(response)?;
            check_head(&head, self.settings.file_bytes)?;
            if !is_whole {
                return Ok(());
            }
            let mut offset = 0;
            while offset < self.settings.file_bytes {
                let left = (self.settings.file_bytes - offset).min(READ_BYTES_MAX as u64) as usize;
                let bytes = &mut self.buffer[..left];
                let read = response.read(bytes).context(|| "receiving".into())?;
                if read == 0 {
                    return Err(Failure::new("the server has closed a connection"));
                }
                compare(file, offset, &bytes[..read])?;
                offset += read as u64;
            }
            Ok(())
        })?;
        self.total.compared += u64::from(is_whole);
        Ok(session)
    }

    /// Returns true once every connection has had a response, so that its window is open, and the
    /// average two. With `--once`, some connections may get no response before the last file: only
    /// the average counts.
    fn is_under_way(&self) -> bool {
        let connections = self.settings.connections;
        (self.settings.once || self.served >= connections)
            && self.total.responses >= 2 * connections as u64
    }

    /// Returns true once each file has been requested once, and all have arrived.
    fn is_exhausted(&self) -> bool {
        self.settings.once && self.total.responses >= self.files.len() as u64
    }

    /// Returns the next file to request, if any.
    fn next_file(&mut self) -> Option<usize> {
        if self.settings.once {
            let next = self.asked as usize;
            return (next < self.files.len()).then_some(next);
        }
        // Xorshift: the same sequence in each run.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Some((self.random % self.files.len() as u64) as usize)
    }

    /// Requests a file, unless all have been requested.
    fn ask(&mut self, connection: &mut Connection, tls: Option<&mut Session>) -> Result<()> {
        let Some(file) = self.next_file() else {
            return Ok(());
        };
        connection.file = file;
        connection.compare = self.asked.is_multiple_of(SAMPLE);
        self.asked += 1;
        if self.settings.rest_us > 0 {
            let half_us = self.settings.rest_us / 2;
            let rest_us = half_us + self.random % (2 * half_us).max(1);
            std::thread::sleep(Duration::from_micros(rest_us));
        }
        let (_, request) = &self.files[connection.file];
        let sealed;
        let request = match tls {
            Some(session) => {
                sealed = session.seal(request.as_bytes());
                &sealed[..]
            }
            None => request.as_bytes(),
        };
        connection.asked = Instant::now();
        connection.first_byte = connection.asked;
        let sent = connection
            .stream
            .write(request)
            .context(|| "sending a request".into())?;
        if sent < request.len() {
            return Err(Failure::new(
                "a request does not fit into an empty send buffer",
            ));
        }
        Ok(())
    }

    /// Receives from a connection, up to [`TURN_BYTES_MAX`]. Returns true if the server closes it,
    /// and another must take its place.
    fn turn(&mut self, connection: &mut Connection) -> Result<bool> {
        let mut taken = 0;
        while taken < TURN_BYTES_MAX {
            let (limit, flags) = match &connection.phase {
                // Only the records show where a response ends.
                _ if connection.tls.is_some() => (READ_BYTES_MAX, RecvFlags::empty()),
                // Short, so that little of the body comes with it.
                Phase::Head(_) => (512, RecvFlags::empty()),
                Phase::Body { offset } => {
                    let discard = self.settings.discard && !connection.compare;
                    let (most, flags) = if discard {
                        (self.buffer.len(), RecvFlags::TRUNC)
                    } else {
                        (READ_BYTES_MAX, RecvFlags::empty())
                    };
                    let left = self.settings.file_bytes - offset;
                    (left.min(most as u64) as usize, flags)
                }
            };
            let received = match recv(&connection.stream, &mut self.buffer[..limit], flags) {
                Ok((_, received)) => received,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno).context(|| "receiving".into()),
            };
            if received == 0 {
                return Err(Failure::new("the server has closed a connection"));
            }
            taken += received;
            let buffer = std::mem::take(&mut self.buffer);
            let is_unread = !flags.is_empty();
            let done = match connection.tls.take() {
                Some(mut session) => {
                    let done = self.take_records(connection, &mut session, &buffer[..received]);
                    connection.tls = Some(session);
                    done
                }
                None if is_unread => self.take(connection, Content::Counted(received)),
                None => self.take(connection, Content::Opened(&buffer[..received])),
            };
            self.buffer = buffer;
            done?;
            if connection.is_last && matches!(connection.phase, Phase::Head(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take(&mut self, connection: &mut Connection, content: Content<'_>) -> Result<()> {
        match self.advance(connection, content)? {
            true if !connection.is_last => self.ask(connection, None),
            _ => Ok(()),
        }
    }

    fn take_records(
        &mut self,
        connection: &mut Connection,
        session: &mut Session,
        mut bytes: &[u8],
    ) -> Result<()> {
        loop {
            let is_wanted = connection.compare || matches!(connection.phase, Phase::Head(_));
            let Some(content) = session.next(&mut bytes, is_wanted)? else {
                return Ok(());
            };
            if self.advance(connection, content)? && !connection.is_last {
                self.ask(connection, Some(session))?;
            }
        }
    }

    /// Processes received content. Returns true if it completes a response.
    fn advance(&mut self, connection: &mut Connection, content: Content<'_>) -> Result<bool> {
        match &mut connection.phase {
            Phase::Head(head) => {
                let Content::Opened(bytes) = content else {
                    return Err(Failure::new("a header that was not read"));
                };
                if head.is_empty() {
                    connection.first_byte = Instant::now();
                }
                head.extend_from_slice(bytes);
                let Some(len) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
                    return if head.len() < HEAD_BYTES_MAX {
                        Ok(false)
                    } else {
                        Err(Failure::new("a header without end"))
                    };
                };
                check_head(&head[..len], self.settings.file_bytes)?;
                connection.is_last = is_last(&head[..len]);
                let body = head.split_off(len + 4);
                connection.phase = Phase::Body { offset: 0 };
                self.advance_body(connection, Content::Opened(&body))
            }
            Phase::Body { .. } => self.advance_body(connection, content),
        }
    }

    fn advance_body(&mut self, connection: &mut Connection, content: Content<'_>) -> Result<bool> {
        let Phase::Body { offset } = &mut connection.phase else {
            return Ok(false);
        };
        let received = match content {
            Content::Opened(bytes) if connection.compare => {
                let (file, _) = &self.files[connection.file];
                compare(file, *offset, bytes)?;
                bytes.len()
            }
            Content::Opened(bytes) => bytes.len(),
            Content::Counted(bytes) => bytes,
        };
        *offset += received as u64;
        self.total.body_bytes += received as u64;
        if *offset > self.settings.file_bytes {
            return Err(Failure::new("more bytes than the response was to have"));
        }
        if *offset < self.settings.file_bytes {
            return Ok(false);
        }
        let (asked, first_byte) = (connection.asked, connection.first_byte);
        self.latencies.record(asked, first_byte, Instant::now());
        self.total.responses += 1;
        self.total.compared += u64::from(connection.compare);
        if !connection.is_served {
            connection.is_served = true;
            self.served += 1;
        }
        connection.phase = Phase::Head(Vec::new());
        Ok(true)
    }
}

pub(crate) fn compare(file: &KnownFile, offset: u64, bytes: &[u8]) -> Result<()> {
    file.check(offset, bytes).map_err(|mismatch| {
        Failure::new(format!(
            "{}: wrong byte at {}",
            file.name(),
            mismatch.offset
        ))
    })
}

/// Reads status and header fields, without the empty line that follows.
fn read_head(response: &mut dyn Read) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while head.len() < HEAD_BYTES_MAX {
        response
            .read_exact(&mut byte)
            .context(|| "receiving".into())?;
        head.extend_from_slice(&byte);
        if head.ends_with(b"\r\n\r\n") {
            head.truncate(head.len() - 4);
            return Ok(head);
        }
    }
    Err(Failure::new("a header without end"))
}

/// Returns true if the server closes the connection after the response with this head. lighttpd
/// does after 65,535 requests.
fn is_last(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    text.lines().any(|line| {
        let (name, value) = line.split_once(':').unwrap_or_default();
        name.eq_ignore_ascii_case("connection") && value.trim().eq_ignore_ascii_case("close")
    })
}

fn check_head(head: &[u8], file_bytes: u64) -> Result<()> {
    let text = String::from_utf8_lossy(head);
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<u64>().ok())?
    });
    if text.starts_with("HTTP/1.1 200") && length == Some(file_bytes) {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "not the response that was expected: {text:?}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::new();
        let asked = Instant::now();
        for ms in 1..=100 {
            let end = asked + Duration::from_millis(ms);
            latencies.record(asked, end, end + Duration::from_secs(1));
        }
        let found = Percentiles::of(&latencies.first_byte_ns);
        for (value, expected) in [
            (found.p50_us, 50e3),
            (found.p90_us, 90e3),
            (found.p99_us, 99e3),
            (found.p99_9_us, 100e3),
        ] {
            assert!((value / expected - 1.0).abs() < 0.002, "{found:?}");
        }
        assert!(Percentiles::of(&latencies.response_ns).p50_us > 1e6);
    }

    fn generator(settings: &Settings, served: usize, responses: u64) -> Generator<'_> {
        Generator {
            settings,
            tls: None,
            files: Vec::new(),
            buffer: Vec::new(),
            random: 1,
            asked: 0,
            served,
            total: Outcome {
                responses,
                ..Outcome::default()
            },
            latencies: Latencies::new(),
        }
    }

    #[test]
    fn nothing_counts_until_every_window_is_open() {
        let mut settings = Settings {
            server: Vec::new(),
            connections: 4,
            files: 100,
            file_bytes: 1,
            seconds: 1.0,
            discard: true,
            once: false,
            close: false,
            certificate: None,
            rest_us: 0,
        };
        fn is_under_way(settings: &Settings, served: usize, responses: u64) -> bool {
            generator(settings, served, responses).is_under_way()
        }
        assert!(!is_under_way(&settings, 3, 800), "one has had no response");
        assert!(!is_under_way(&settings, 4, 7), "not two on average");
        assert!(is_under_way(&settings, 4, 8));
        // Of each file once, the last may be the first of a connection.
        settings.once = true;
        assert!(is_under_way(&settings, 3, 8));
        assert!(!is_under_way(&settings, 3, 7));
    }

    #[test]
    fn a_server_says_when_it_closes() {
        assert!(is_last(b"HTTP/1.1 200 OK\r\nconnection: Close\r\nx: y"));
        assert!(!is_last(b"HTTP/1.1 200 OK\r\nConnection: keep-alive"));
    }

    #[test]
    fn heads_must_promise_the_whole_file() {
        assert!(check_head(b"HTTP/1.1 200 OK\r\nContent-Length: 12", 12).is_ok());
        assert!(check_head(b"HTTP/1.1 200 OK\r\nContent-Length: 11", 12).is_err());
        assert!(check_head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 12", 12).is_err());
    }
}
