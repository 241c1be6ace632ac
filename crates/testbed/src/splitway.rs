//! `splitway serve`, started, awaited, and always ended.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::process::{Process, signal};
use crate::{Context, Failure, Result};

/// The stack's IPv4 address on the link that it makes.
pub const STACK_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// The stack's IPv6 address on the link that it makes.
pub const STACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));

/// Its HTTP server over IPv4.
pub const HTTP_V4: SocketAddr = SocketAddr::new(STACK_V4, 80);

/// Its HTTP server over IPv6.
pub const HTTP_V6: SocketAddr = SocketAddr::new(STACK_V6, 80);

/// The kernel's end of the link that it makes.
pub const LINK: &str = "splitway0";

/// Time limit to start and to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `splitway serve`.
#[derive(Debug)]
pub struct Splitway {
    supervisor: Process,
    host: Pid,
    nic: Option<Pid>,
    output: Receiver<String>,
    seen: Vec<String>,
}

impl Splitway {
    /// Starts `splitway serve ROOT` with further arguments, and waits until it serves.
    pub fn serve<A: AsRef<OsStr>>(
        program: &Path,
        root: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Splitway> {
        let mut command = Command::new(program);
        command.arg("serve").arg(root).args(arguments);
        Splitway::start(&mut command)
    }

    /// Starts a command that leads to `splitway serve`, and waits until it serves.
    pub fn start(command: &mut Command) -> Result<Splitway> {
        let (reader, writer) = std::io::pipe().context(|| "pipe".into())?;
        let twin = writer.try_clone().context(|| "dup of a pipe".into())?;
        command.stdin(Stdio::null()).stdout(writer).stderr(twin);
        let spawned = Process::spawn(command);
        // The command holds the pipe's write end: while it exists, the output does not end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut supervisor = spawned?;

        let (sender, output) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines() {
                // An error means the end: of the pipe, or of the receiver.
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });

        let deadline = Instant::now() + PATIENCE;
        let (mut host, mut nic, mut seen) = (None, None, Vec::new());
        let failure = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match output.recv_timeout(left) {
                Ok(line) => {
                    host = host.or_else(|| pid_in(&line, "host process "));
                    nic = nic.or_else(|| pid_in(&line, "nic process "));
                    let ready = line.starts_with("http") || line.starts_with("tcp://");
                    seen.push(line);
                    // The line with the processes precedes that with the address; it omits a NIC
                    // process that existed before.
                    if let (true, Some(host)) = (ready, host) {
                        return Ok(Splitway {
                            supervisor,
                            host,
                            nic,
                            output,
                            seen,
                        });
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    break format!("did not serve within {PATIENCE:?}");
                }
                Err(RecvTimeoutError::Disconnected) => {
                    break format!("ended: {}", supervisor.wait(PATIENCE)?);
                }
            }
        };
        Err(Failure::new(format!(
            "splitway {failure}\n{}",
            seen.join("\n")
        )))
    }

    /// Returns the started process.
    pub fn supervisor(&self) -> Pid {
        self.supervisor.pid()
    }

    /// Returns the process of the host stack.
    pub fn host(&self) -> Pid {
        self.host
    }

    /// Returns the process of its own NIC stack. Panics if it was attached to an existing one.
    pub fn nic(&self) -> Pid {
        self.nic.expect("a NIC process of its own")
    }

    /// Sends the supervisor a signal, and waits for its end.
    pub fn end_with(&mut self, with: rustix::process::Signal) -> Result<ExitStatus> {
        signal(self.supervisor.pid(), with)?;
        self.wait()
    }

    /// Waits for the supervisor's end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.supervisor.wait(PATIENCE)
    }

    /// Returns the first line of its output for which `is` is true; fails if the output ends
    /// without one.
    pub fn line(&mut self, is: impl Fn(&str) -> bool) -> Result<String> {
        if let Some(line) = self.seen.iter().find(|line| is(line)) {
            return Ok(line.clone());
        }
        while let Ok(line) = self.output.recv_timeout(PATIENCE) {
            self.seen.push(line.clone());
            if is(&line) {
                return Ok(line);
            }
        }
        let said = self.seen.join("\n");
        Err(Failure::new(format!(
            "splitway did not print what was awaited\n{said}"
        )))
    }

    /// Returns all output so far, of both streams.
    pub fn output(&mut self) -> &[String] {
        self.seen.extend(self.output.try_iter());
        &self.seen
    }
}

impl Drop for Splitway {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.supervisor.stop(PATIENCE);
        if std::thread::panicking() {
            eprintln!("splitway printed:\n{}", self.output().join("\n"));
        }
    }
}

fn pid_in(line: &str, before: &str) -> Option<Pid> {
    let (_, rest) = line.split_once(before)?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Pid::from_raw(digits.parse().ok()?)
}
