//! Processes of a running Splitway, from both sides: how the supervisor starts a child, receives
//! its messages and ends it, and how a child binds its life to the supervisor's.
//!
//! A child finds its control socket on its standard input, and writes messages to its standard
//! output.

use std::ffi::{CStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use crate::ipc::messages::{FromChild, Line, LineBuffer};
use observer::Report;

/// Longest time that a supervisor waits for the end of a killed process when it drops it. A process
/// whose read hangs in the kernel, on a disk or a network file system, does not end before that
/// read.
const GONE_WAIT: Duration = Duration::from_secs(1);

/// Most bytes received from a child's standard output at once: the largest capacity of a pipe
/// (`fs.pipe-max-size`), so that the last messages of a process that has ended are received whole.
const RECEIVED_BYTES_MAX: usize = 1 << 20;

/// Most lines of each child that are logged although they are no messages. Later ones are dropped,
/// since a child could fill the log with them.
const STRAY_LINES_MAX: u32 = 100;

/// A child process of this supervisor. Dropped, it is killed.
#[derive(Debug)]
pub struct Child {
    /// Name in messages: `host process` or `NIC process`.
    pub name: &'static str,
    process: std::process::Child,
    /// Readable when the process has ended.
    pidfd: OwnedFd,
    output: Option<std::process::ChildStdout>,
    lines: LineBuffer,
    /// Number of lines that were no messages.
    stray_lines: u32,
}

impl Child {
    /// Runs `program` with `arguments`, in the thread's present namespaces, with `control` as its
    /// standard input and `stderr` for its log. The child has a process group of its own, so that
    /// Ctrl-C does not reach it.
    pub fn spawn(
        name: &'static str,
        program: &Path,
        arguments: impl IntoIterator<Item = OsString>,
        control: OwnedFd,
        stderr: Stdio,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::broken(format!("starting the {name}"), error);
        let mut process = Command::new(program)
            .arg0("splitway")
            .args(arguments)
            .stdin(Stdio::from(control))
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = process.stdout.take();
        let watch = || -> io::Result<OwnedFd> {
            if let Some(output) = &output {
                rustix::io::ioctl_fionbio(output, true)?;
            }
            let pid = Pid::from_child(&process);
            Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
        };
        match watch() {
            Ok(pidfd) => Ok(Self {
                name,
                process,
                pidfd,
                output,
                lines: LineBuffer::default(),
                stray_lines: 0,
            }),
            Err(error) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(failed(error))
            }
        }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns descriptors that are readable when the child has written or ended.
    pub fn watch(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let output = self.output.as_ref().map(AsFd::as_fd);
        output.into_iter().chain([self.watch_end()])
    }

    /// Returns the lines written since the last call, without blocking.
    pub fn receive<M: FromChild>(&mut self) -> Vec<Line<M>> {
        let mut bytes = [0; 4096];
        let mut left = RECEIVED_BYTES_MAX / bytes.len();
        while let Some(output) = &mut self.output
            && left > 0
        {
            left -= 1;
            match output.read(&mut bytes) {
                Ok(0) => self.output = None,
                Ok(count) => self.lines.push(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.output = None,
            }
        }
        let mut messages = Vec::new();
        while let Some(line) = self.lines.next_line() {
            match serde_json::from_slice(&line) {
                Ok(message) => messages.push(message),
                Err(_) => self.log_stray(&line),
            }
        }
        messages
    }

    /// Logs a line that is no message of this child.
    fn log_stray(&mut self, line: &[u8]) {
        self.stray_lines = self.stray_lines.saturating_add(1);
        if self.stray_lines <= STRAY_LINES_MAX {
            let line = String::from_utf8_lossy(line);
            tracing::warn!("{} wrote to its standard output: {line}", self.name);
        }
        if self.stray_lines == STRAY_LINES_MAX {
            tracing::warn!("{}: further such lines are not logged", self.name);
        }
    }

    /// Returns the descriptor that is readable when the child has ended.
    pub fn watch_end(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns whether the process has ended; it is not reaped yet, so its ID stays valid.
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options),
            Ok(None)
        )
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait()
    }

    /// Asks the process to end in order.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the process.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // A process that has ended but is not reaped takes any signal and ignores it.
        if let Err(errno) = rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            tracing::debug!("signalling the {}: {errno}", self.name);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec::try_from(GONE_WAIT).ok();
        let _ = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
        let _ = self.process.try_wait();
    }
}

/// Describes how a process ended.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(number)) => {
            let name = match number {
                4 => " (SIGILL)",
                6 => " (SIGABRT)",
                7 => " (SIGBUS)",
                9 => " (SIGKILL)",
                11 => " (SIGSEGV)",
                15 => " (SIGTERM)",
                31 => {
                    " (SIGSYS): it made a system call that it may not make. The kernel's log names \
                     it (`dmesg | grep type=1326`); report it, as a defect or as an attack"
                }
                _ => "",
            };
            format!("was killed by signal {number}{name}")
        }
        (None, None) => format!("ended: {status}"),
    }
}

/// In a child: sets its task name, binds its life to the supervisor's, and takes the control socket
/// from standard input.
pub fn adopt_control_socket(name: &CStr) -> Result<OwnedFd, Failure> {
    // For `ps` and `top`; at most 15 bytes.
    let _ = rustix::thread::set_name(name);
    let what = "taking over the control socket from standard input";
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Failure::broken("binding the process to its supervisor", errno))?;
    // The supervisor may have died before that took effect; then standard output has no reader.
    let stdout = rustix::stdio::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let polled = rustix::io::retry_on_intr(|| {
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )
    });
    if polled.is_ok() && fds[0].revents().contains(PollFlags::ERR) {
        return Err(Failure::broken(what, "the supervisor is gone"));
    }
    let control = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Failure::broken(what, error))?;
    rustix::net::sockopt::socket_type(&control).map_err(|_| {
        Failure::input(what, "it is not a socket")
            .remedy("Only `splitway serve` starts its processes.")
    })?;
    Ok(control)
}

/// In a child that catches signals: has its supervisor's death send SIGTERM instead of SIGKILL.
pub fn outlive_supervisor() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|errno| Failure::broken("outliving the supervisor", errno))
}

/// In a child: sends a message to the supervisor.
pub fn tell(message: impl FromChild) -> Result<(), Failure> {
    write(&Line::Says(message))
}

/// In a child: sends a message that fits into a page, unless that would block; returns whether it
/// was sent.
pub fn tell_if_writable(message: impl FromChild) -> bool {
    let stdout = io::stdout().lock();
    let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
    // A writable pipe has room for a whole message.
    let may = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
    may == Ok(1) && fds[0].revents() == PollFlags::OUT && Line::Says(message).write(stdout).is_ok()
}

/// In a child: sends its final report.
pub fn report(counters: Vec<(String, u64)>) -> Result<(), Failure> {
    write::<Unused>(&Line::Report(Report::now(counters)))
}

/// Type of messages in lines without one.
#[derive(serde::Serialize, serde::Deserialize)]
enum Unused {}

impl FromChild for Unused {}

fn write<M: FromChild>(line: &Line<M>) -> Result<(), Failure> {
    line.write(io::stdout().lock())
        .map_err(|error| Failure::broken("reporting to the supervisor", error))
}

/// In a child: returns the exit code. The supervisor prints a failure.
pub fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    let code = ExitCode::from(failure.exit_code());
    if write::<Unused>(&Line::Failed(failure.clone())).is_err() {
        tracing::error!("{failure}");
    }
    code
}
