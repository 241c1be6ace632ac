//! Processes: running tools, ending processes, waiting for their end.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::{Context, Failure, Result};

/// Runs a tool to its end; returns its standard output, or a failure with its standard error.
pub fn run(command: &mut Command) -> Result<String> {
    let line = || format!("{command:?}").replace('"', "");
    let shown = line();
    let output = command.output().context(|| shown.clone())?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::new(format!(
            "{shown}: {}: {complaint}",
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Installs a program. Another process writes the file: a descriptor open for writing in this
/// process could be inherited by a child that another thread starts meanwhile, and a file open for
/// writing cannot be executed (ETXTBSY).
pub fn install(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let mut install = Command::new("install");
    install.args(["-m", "755", "--"]).arg(from.as_ref());
    run(install.arg(to.as_ref())).map(drop)
}

/// Installs a script.
pub fn install_script(text: &str, to: impl AsRef<Path>) -> Result<()> {
    let to = to.as_ref();
    let from = to.with_extension("text");
    std::fs::write(&from, text).context(|| format!("writing {}", from.display()))?;
    install(&from, to)
}

/// Returns the command for a line of words without quotes: `tool("ip link set lo up")`.
pub fn tool(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Waits for the end of a process, whether a child or not. A zombie has ended.
pub fn await_end(pid: Pid, limit: Duration) -> Result<()> {
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno).context(|| format!("pidfd_open of process {pid:?}")),
    };
    let timeout = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(Failure::new(format!(
            "process {} still runs after {limit:?}",
            pid.as_raw_nonzero()
        ))),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno).context(|| format!("poll of process {pid:?}")),
    }
}

/// Sends a signal.
pub fn signal(pid: Pid, signal: Signal) -> Result<()> {
    kill_process(pid, signal)
        .context(|| format!("signal {signal:?} to process {}", pid.as_raw_nonzero()))
}

/// A child process that ends, at the latest, when this value is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts the process.
    pub fn spawn(command: &mut Command) -> Result<Process> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().context(|| format!("starting {name}"))?;
        Ok(Process { child, name })
    }

    /// Returns its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the child, with its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        await_end(self.pid(), limit).context(|| self.name.clone())?;
        self.child
            .wait()
            .context(|| format!("waiting for {}", self.name))
    }

    /// Sends SIGTERM, and SIGKILL if the process does not end.
    pub fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        signal(self.pid(), Signal::TERM)?;
        match self.wait(limit) {
            Ok(status) => Ok(status),
            Err(failure) => {
                self.kill();
                Err(failure)
            }
        }
    }

    fn kill(&mut self) {
        // Either fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
