//! `splitway qlog`: writes the events of QUIC connections of a running server to files, one per
//! connection, for qvis and other tools.
//!
//! The supervisor has the host process write to a pipe, whose other end the client reads
//! (`processes::ipc::qlog_request`), and writes to files (`trace_file`).

mod trace_file;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::trace_file::TraceFile;
use crate::commands::ctl;
use crate::supervisor::control_socket::Request;
use config::size::Size;
use processes::ipc::qlog_request::{CONNECTIONS_MAX, QlogLine, QlogRequest};
use processes::ipc::signals::Signals;

/// Most bytes read from the pipe at a time.
const BATCH_BYTES: usize = 256 << 10;

/// What is to be traced.
#[derive(Clone, Debug, Args)]
pub(crate) struct QlogArgs {
    /// Control socket of the server, as the server printed it [default: that of this user's only
    /// server]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Directory for the files, one per connection: NUMBER.sqlog; created if missing
    #[arg(short = 'd', long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Only connections of this client
    #[arg(long, value_name = "IP", conflicts_with = "connection")]
    host: Option<IpAddr>,

    /// Only this existing connection: its number in `splitway stat --json`
    #[arg(long, value_name = "NUMBER")]
    connection: Option<u64>,

    /// Maximum connections to trace; the command exits when all of these have ended
    #[arg(long, value_name = "N", default_value = "100",
          value_parser = value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    connections: u32,

    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..))]
    seconds: Option<u32>,

    /// Stop when the files reach this total size
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    bytes: Size,
}

pub(crate) const QLOG_HELP: &str = "A file has a header and an event on each line \
(draft-ietf-quic-qlog-main-schema, JSON-SEQ): packets with their numbers and frames, losses, the \
state of recovery and congestion control, keys, and the host stack's commands to the NIC stack. \
New connections are traced from their first packet on, existing ones from now on. qvis draws such \
files.

The server never waits for this command: events not read in time are missing, and the file says \
how many. Stop it with Ctrl-C. Only the user who runs the server, and root, may trace.

Examples:
  sudo splitway qlog -d traces
  sudo splitway qlog -d traces --host 192.0.2.7 --seconds 60
  sudo splitway stat --json | jq '.quic_connections[] | {connection, peer}'
  sudo splitway qlog -d traces --connection 8592031744";

/// Traces until a signal, a limit or the server's end.
pub(crate) fn run(args: &QlogArgs) -> Result<(), Failure> {
    prepare(&args.dir)?;
    let mut signals = Signals::catch_ends()?;
    let wanted = QlogRequest {
        connection: args.connection,
        host: args.host,
        connections_max: args.connections,
    };
    let answer = ctl::ask(args.socket.as_deref(), Request::Qlog(wanted))?;
    let Some(pipe) = answer.descriptors.into_iter().next() else {
        return Err(Failure::broken(
            "tracing connections",
            "the pipe to read from has not arrived",
        )
        .remedy("Too many descriptors are open: raise the limit (ulimit -n)."));
    };
    let mut traces = Traces::new(args);
    let ended = traces.run(&pipe, &mut signals);
    // Events read so far are kept in any case.
    let written = traces.end();
    ended.and(written)
}

/// Creates the directory, and checks that files can be created there.
fn prepare(directory: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let what = format!("directory {}", directory.display());
        Failure::input(what, error).remedy("Choose a directory where this user may write with -d.")
    };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(directory).map_err(failed)?;
    // Only creating a file proves it.
    let trial = directory.join(format!(".splitway-qlog-{}", std::process::id()));
    fs::File::create_new(&trial).map_err(failed)?;
    fs::remove_file(&trial).map_err(failed)
}

/// Traces of all connections.
struct Traces<'a> {
    args: &'a QlogArgs,
    unix_time_us: u64,
    /// Files of open connections.
    files: BTreeMap<u64, TraceFile>,
    /// Connections traced so far.
    connections: u32,
    /// Bytes written for connections that have ended.
    ended_bytes: u64,
    events: u64,
    dropped: u64,
}

impl<'a> Traces<'a> {
    fn new(args: &'a QlogArgs) -> Self {
        Self {
            args,
            unix_time_us: 0,
            files: BTreeMap::new(),
            connections: 0,
            ended_bytes: 0,
            events: 0,
            dropped: 0,
        }
    }

    /// Writes events until a signal, a limit or the server's end.
    fn run(&mut self, pipe: &OwnedFd, signals: &mut Signals) -> Result<(), Failure> {
        let seconds = self.args.seconds.map(|it| Duration::from_secs(it.into()));
        let deadline = seconds.map(|seconds| Instant::now() + seconds);
        let mut buffer = vec![0; BATCH_BYTES];
        // Start of an incomplete line.
        let mut begun = Vec::new();
        loop {
            match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut buffer[..])) {
                Ok(0) => {
                    tracing::warn!("the server has ended, or its host process");
                    return Ok(());
                }
                Ok(count) => {
                    begun.extend_from_slice(&buffer[..count]);
                    self.take_lines(&mut begun)?;
                }
                Err(Errno::AGAIN) => self.wait(pipe, signals, deadline)?,
                Err(errno) => return Err(Failure::broken("reading the trace", errno)),
            }
            let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            if is_late || signals.take() || self.is_complete() {
                return Ok(());
            }
        }
    }

    /// Sleeps until the pipe is readable, a signal arrives or the deadline passes.
    fn wait(
        &mut self,
        pipe: &OwnedFd,
        signals: &Signals,
        deadline: Option<Instant>,
    ) -> Result<(), Failure> {
        for file in self.files.values_mut() {
            file.flush()?;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds =
            [pipe.as_fd(), signals.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))
            .map_err(|errno| Failure::broken("waiting for events", errno))?;
        Ok(())
    }

    /// Returns whether all connections to trace have ended, or the size limit is reached.
    fn is_complete(&self) -> bool {
        let connections_max = match self.args.connection {
            Some(_) => 1,
            None => self.args.connections,
        };
        let are_over = self.files.is_empty() && self.connections >= connections_max;
        let bytes: u64 = self.files.values().map(TraceFile::bytes).sum();
        are_over || self.ended_bytes + bytes >= self.args.bytes.0
    }

    /// Handles and removes the complete lines at the front.
    fn take_lines(&mut self, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let mut taken = 0;
        while let Some(len) = bytes[taken..].iter().position(|&byte| byte == b'\n') {
            let line = &bytes[taken..taken + len];
            let line = serde_json::from_slice(line).map_err(|error| {
                Failure::broken("answer of the host process", error)
                    .remedy("It runs another version of Splitway: use its own program.")
            })?;
            self.take(line)?;
            taken += len + 1;
        }
        bytes.drain(..taken);
        Ok(())
    }

    fn take(&mut self, line: QlogLine) -> Result<(), Failure> {
        match line {
            QlogLine::Refused { why } => return Err(self.refused(&why)),
            QlogLine::Began { unix_time_us } => {
                self.unix_time_us = unix_time_us;
                // Started with sudo, the program has the privilege that it needs.
                let directory = self.args.dir.display();
                let _ = writeln!(io::stderr(), "splitway: writing traces to {directory}");
            }
            QlogLine::Connection {
                connection,
                local,
                peer,
            } => {
                let path = self.args.dir.join(format!("{connection}.sqlog"));
                let title = format!("connection {connection}: {peer} to {local}");
                let file = TraceFile::create(path, &title, self.unix_time_us)?;
                self.files.insert(connection, file);
                self.connections += 1;
            }
            QlogLine::Event {
                connection,
                time_us,
                name,
                data,
            } => {
                self.events += 1;
                if let Some(file) = self.files.get_mut(&connection) {
                    file.event(time_us, &name, &data)?;
                }
            }
            QlogLine::Dropped {
                connection,
                events,
                time_us,
            } => {
                self.dropped += events;
                if let Some(file) = self.files.get_mut(&connection) {
                    let data = serde_json::json!({ "events": events });
                    file.event(time_us, "splitway:events_dropped", &data)?;
                }
            }
            QlogLine::End { connection } => {
                if let Some(file) = self.files.remove(&connection) {
                    self.ended_bytes += file.end()?;
                }
            }
        }
        Ok(())
    }

    fn refused(&self, why: &str) -> Failure {
        let failure = match self.args.connection {
            Some(connection) => Failure::input(format!("--connection {connection}"), why),
            None => Failure::input("tracing connections of QUIC", why),
        };
        failure.remedy(
            "`splitway stat --json` lists connections (quic_connections); one `splitway qlog` \
             runs at a time, of a server that serves HTTP/3.",
        )
    }

    /// Ends the open files, and prints a summary.
    fn end(&mut self) -> Result<(), Failure> {
        let mut ended = Ok(());
        for (_, file) in std::mem::take(&mut self.files) {
            ended = ended.and(file.end().map(|_| ()));
        }
        if self.unix_time_us > 0 {
            let missing = match self.dropped {
                0 => "none is missing".to_owned(),
                count => format!("{count} came faster than they were written, and are missing"),
            };
            let (connections, events) = (self.connections, self.events);
            let text = format!("splitway: {connections} connections, {events} events; {missing}\n");
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
        ended
    }
}
