//! `splitway stat`: the state of a running server, seen from initial_netns.
//!
//! The supervisor returns its own state, and passes the ends of a pipe to the client and to the
//! host process, which writes the rest. NIC stacks are not asked, so a stalled one does not delay
//! the answer.
//!
//! | Module | Purpose |
//! |---|---|
//! | `asked` | the supervisor's part |
//! | `selection` | which connections are shown, and in which order |
//! | `rates` | how fast it goes, from one look to the next |
//! | `text` | output for people |

mod rates;
mod selection;
mod text;

use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::rates::Sample;
use self::selection::Selection;
use clap::{Args, value_parser};
use failure::Failure;
use processes::ipc::stat_report::{Application, Connection, Document, Host, Line, SCHEMA, Server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::commands::ctl;
use crate::supervisor::control_socket::Request;

/// The host process writes at least once in this time.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatArgs {
    /// Control socket of the server, as the server printed it [default: that of this user's only
    /// server]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print a JSON document, on one line
    #[arg(long)]
    json: bool,

    /// Repeat every so many seconds [without a number: 1]; on a terminal, each report replaces the
    /// last
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = value_parser!(u32).range(1..=86_400))]
    watch: Option<u32>,

    /// With --watch: number of reports
    #[arg(long, value_name = "N", requires = "watch", value_parser = value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// Omit the connections
    #[arg(long)]
    summary: bool,

    #[command(flatten)]
    selection: Selection,
}

pub(crate) const STAT_HELP: &str = "Each connection takes two lines, as in `ss -ti`: state, \
unacknowledged bytes, addresses, the NIC stack and worker that send for it, the file being sent, \
and the offset; then the state of TCP. Sizes are in bytes, times in milliseconds unless they say \
otherwise. The command does not query NIC stacks: it works even if none is left.

Only the user who runs the server, and root, may use it. The exit code is 0 only if the host \
process reported everything.

Examples:
  sudo splitway stat
  sudo splitway stat --watch
  sudo splitway stat --state established --peer 192.0.2.0/24
  sudo splitway stat --watch --sort send-q --limit 20
  sudo splitway stat --json | jq '.connections[] | {peer, file: .file.path, srtt: .tcp.srtt_us}'
  sudo splitway stat --json --watch 10 >> stat.jsonl";

/// Asks and prints the answer, once or at the interval of `--watch`.
pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    let mut left = args.watch.map_or(1, |_| args.count.unwrap_or(u32::MAX));
    let mut before: Option<Sample> = None;
    let on_terminal = std::io::stdout().is_terminal();
    loop {
        let (document, complete) = ask(args)?;
        let sample = Sample::of(&document);
        let rates = before
            .map(|before| sample.since(&before))
            .unwrap_or_default();
        before = Some(sample);
        let text = match args.json {
            true => {
                let json = serde_json::to_string(&document);
                json.map_err(|error| Failure::broken("stat", error))? + "\n"
            }
            false if args.watch.is_some() && on_terminal => text::screen(&document, &rates),
            false => text::whole(&document, &rates),
        };
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(text.as_bytes());
        if written.and_then(|()| stdout.flush()).is_err() {
            // The output is closed.
            return Ok(());
        }
        left -= 1;
        let again = args.watch.filter(|_| left > 0);
        let Some(seconds) = again else {
            return complete;
        };
        if let Err(failure) = complete {
            tracing::warn!("{failure}");
        }
        if !args.json && !on_terminal {
            crate::terminal::say("\n");
        }
        std::thread::sleep(Duration::from_secs(seconds.into()));
    }
}

/// Asks the server; returns its state, and whether that is complete.
fn ask(args: &StatArgs) -> Result<(Document, Result<(), Failure>), Failure> {
    let unix_time = SystemTime::now().duration_since(UNIX_EPOCH);
    let answer = ctl::ask(args.socket.as_deref(), Request::Stat)?;
    let server: Server = serde_json::from_str(&answer.text)
        .map_err(|error| different_version("the server", &error))?;
    let mut document = Document {
        schema: SCHEMA,
        unix_time_s: unix_time.map_or(0, |time| time.as_secs()),
        server,
        host: None,
        applications: Vec::new(),
        backends: Vec::new(),
        connections: Vec::new(),
        quic_connections: Vec::new(),
    };
    let pipe = answer.descriptors.into_iter().next();
    let complete = match (pipe, document.server.is_host_asked) {
        (Some(pipe), _) => read(&pipe, args, &mut document),
        (None, false) => Err(hangs("takes no requests any more")),
        (None, true) => Err(Failure::broken(WHAT, "the pipe did not arrive")
            .remedy("Too many descriptors are open: raise the limit (ulimit -n).")),
    };
    args.selection.order(&mut document.connections);
    Ok((document, complete))
}

fn read(pipe: &OwnedFd, args: &StatArgs, document: &mut Document) -> Result<(), Failure> {
    let mut lines = Lines::new(pipe);
    loop {
        match lines.next()? {
            Line::Host(host) => document.host = Some(Host::clone(&host)),
            Line::Backend(backend) => document.backends.push(backend),
            Line::Application(application) => {
                let mut application = Application::clone(&application);
                application.name = application.pid.and_then(name_of);
                document.applications.push(application);
            }
            Line::Connection(connection) => {
                if !args.summary && args.selection.takes(&connection) {
                    document.connections.push(Connection::clone(&connection));
                }
            }
            Line::QuicConnection(connection) => {
                if !args.summary && args.selection.takes_quic(&connection) {
                    document.quic_connections.push(*connection);
                }
            }
            Line::End {} => return Ok(()),
        }
    }
}

/// Returns the kernel's name of a process (proc(5)).
fn name_of(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// Lines that the host process writes.
struct Lines<'a> {
    pipe: &'a OwnedFd,
    bytes: Vec<u8>,
    /// Start of the next line, and the offset before which it does not end.
    start: usize,
    searched: usize,
}

impl<'a> Lines<'a> {
    fn new(pipe: &'a OwnedFd) -> Self {
        Self {
            pipe,
            bytes: Vec::new(),
            start: 0,
            searched: 0,
        }
    }

    fn next(&mut self) -> Result<Line, Failure> {
        loop {
            let unsearched = self.bytes.get(self.searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let line = self.bytes.get(self.start..end).unwrap_or_default();
                let line = serde_json::from_slice(line)
                    .map_err(|error| different_version("the host process", &error));
                (self.start, self.searched) = (end + 1, end + 1);
                return line;
            }
            self.bytes.drain(..self.start);
            (self.start, self.searched) = (0, self.bytes.len());
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<(), Failure> {
        const PIECE_BYTES: usize = 64 << 10;
        let failed = |errno| Failure::broken(WHAT, errno);
        let mut fds = [PollFd::new(self.pipe, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).map_err(failed)? == 0 {
            return Err(hangs(&format!("has said nothing for {PATIENCE:?}")));
        }
        let end = self.bytes.len();
        self.bytes.resize(end + PIECE_BYTES, 0);
        let into = self.bytes.get_mut(end..).unwrap_or_default();
        let count = rustix::io::retry_on_intr(|| rustix::io::read(self.pipe, &mut *into))
            .map_err(failed)?;
        self.bytes.truncate(end + count);
        if count == 0 {
            return Err(Failure::broken(WHAT, "the host process stopped early")
                .remedy("It ended, or has too many such clients already: try again."));
        }
        Ok(())
    }
}

const WHAT: &str = "reading of connections";

fn hangs(how: &str) -> Failure {
    Failure::broken(WHAT, format!("the host process {how}"))
        .remedy("It hangs, or gets no CPU: look at it with `top` or `cat /proc/PID/stack`.")
}

fn different_version(who: &str, error: &serde_json::Error) -> Failure {
    Failure::broken(format!("answer of {who}"), error)
        .remedy("It runs another version of Splitway: use its own program.")
}
