//! The client: flows that begin together, each downloading one long file, until time is up.
//!
//! It reads and discards: the kernel drops bodies unread (`MSG_TRUNC`), so that the client is never
//! the bottleneck. It measures goodput: bytes that TCP has delivered in order.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use testbed::http::request;
use testbed::{Context, Failure, Result};

use crate::CLIENT_CORE;
use crate::load::begin_connection;

/// Most bytes read at once.
const READ_BYTES_MAX: usize = 1 << 20;

/// The downloads.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Addresses of the servers; flows are assigned to them in turn.
    #[arg(long, required = true)]
    server: Vec<SocketAddr>,
    /// Number of flows.
    #[arg(long)]
    flows: usize,
    /// Name of the file.
    #[arg(long)]
    file: String,
    /// Time to run, in milliseconds.
    #[arg(long)]
    milliseconds: u64,
    /// Start of the fairness measurement, in milliseconds.
    #[arg(long)]
    fair_from: u64,
}

impl Settings {
    pub(crate) fn new(
        server: &[SocketAddr],
        flows: usize,
        file: &str,
        length: Duration,
        fair_from: Duration,
    ) -> Settings {
        Settings {
            server: server.to_vec(),
            flows,
            file: file.to_owned(),
            milliseconds: length.as_millis() as u64,
            fair_from: fair_from.as_millis() as u64,
        }
    }

    /// Returns the arguments for these settings.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "fetch".into(),
            format!("--flows={}", self.flows),
            format!("--file={}", self.file),
            format!("--milliseconds={}", self.milliseconds),
            format!("--fair-from={}", self.fair_from),
        ];
        arguments.extend(
            self.server
                .iter()
                .map(|server| format!("--server={server}")),
        );
        arguments
    }
}

/// Bytes received by one flow.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// Bytes from the first SYN on.
    pub(crate) bytes: u64,
    /// Bytes after the start of the fairness measurement.
    pub(crate) fair_bytes: u64,
}

/// Result of the downloads, printed as one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Flows in the order in which they began.
    pub(crate) flows: Vec<Flow>,
    /// From the first SYN to the end, in nanoseconds.
    pub(crate) elapsed_ns: u64,
}

struct Connection {
    socket: OwnedFd,
    asked: bool,
    flow: Flow,
}

/// Fetches until time is up; prints the [`Outcome`].
pub(crate) fn fetch(settings: &Settings) -> Result<()> {
    let mut core = CpuSet::new();
    core.set(CLIENT_CORE);
    sched_setaffinity(None, &core).context(|| format!("moving to core {CLIENT_CORE}"))?;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context(|| "epoll_create".into())?;
    let began = Instant::now();
    let mut connections = Vec::with_capacity(settings.flows);
    for index in 0..settings.flows {
        let connection = Connection {
            socket: begin_connection(settings.server[index % settings.server.len()])?,
            asked: false,
            flow: Flow::default(),
        };
        let data = epoll::EventData::new_u64(index as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&waiting, &connection.socket, data, flags).context(|| "epoll_ctl".into())?;
        connections.push(connection);
    }
    let request = request("GET", &settings.file);
    let length = Duration::from_millis(settings.milliseconds);
    let fair_from = Duration::from_millis(settings.fair_from);
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut events = Vec::with_capacity(256);
    loop {
        let left = length.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        events.clear();
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&waiting, spare, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context(|| "epoll_wait".into()),
        }
        let fair = began.elapsed() >= fair_from;
        for event in &events {
            let connection = &mut connections[event.data.u64() as usize];
            if !connection.asked {
                connection.ask(&request)?;
            }
            let taken = connection.take(&mut buffer)?;
            connection.flow.bytes += taken;
            connection.flow.fair_bytes += if fair { taken } else { 0 };
        }
    }
    let outcome = Outcome {
        flows: connections
            .iter()
            .map(|connection| connection.flow)
            .collect(),
        elapsed_ns: began.elapsed().as_nanos() as u64,
    };
    println!(
        "{}",
        serde_json::to_string(&outcome).context(|| "writing JSON".into())?
    );
    Ok(())
}

impl Connection {
    fn ask(&mut self, request: &str) -> Result<()> {
        let failed = |errno: Errno| Failure::new(format!("a connection has failed: {errno}"));
        socket_error(&self.socket)
            .context(|| "getsockopt".into())?
            .map_err(failed)?;
        match send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.asked = sent == request.len();
                Ok(())
            }
            // Not connected yet.
            Err(Errno::AGAIN | Errno::NOTCONN) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Receives all available bytes; returns their number, with the head of the response.
    fn take(&mut self, buffer: &mut [u8]) -> Result<u64> {
        let mut taken = 0;
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((_, 0)) => {
                    return Err(Failure::new(
                        "the server has closed a connection: is the file long enough?",
                    ));
                }
                Ok((_, len)) => taken += len as u64,
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(taken),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context(|| "receiving".into()),
            }
        }
    }
}
