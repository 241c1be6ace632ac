//! A stack for a program if none runs: `splitway serve` that serves no content itself.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use failure::Failure;
use rustix::process::{Pid, Signal};

use config::log_level::LogLevel;
use config::temporary::TemporaryDirectory;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct OwnStack {
    process: Child,
    socket: PathBuf,
    has_ended: bool,
    /// Reads the output of the process until its end.
    last_words: Option<JoinHandle<String>>,
    /// Holds the socket and the NIC stack's root.
    _directory: TemporaryDirectory,
}

impl OwnStack {
    /// Starts a stack, and waits until programs may attach.
    pub(crate) fn start(log: LogLevel) -> Result<OwnStack, Failure> {
        let failed = |error: io::Error| Failure::broken("starting a stack", error);
        let directory = TemporaryDirectory::new().map_err(failed)?;
        // A listener locks the directory of its socket for a moment; this one stays locked.
        let [own, root] = ["run", "root"].map(|name| directory.path().join(name));
        for place in [&own, &root] {
            std::fs::create_dir(place).map_err(failed)?;
            // Set regardless of the umask: processes of the program may run as other users.
            std::fs::set_permissions(place, Permissions::from_mode(0o755)).map_err(failed)?;
        }
        let socket = own.join("sockets");
        let mut process = Command::new("/proc/self/exe")
            .arg0("splitway")
            .args([
                "serve",
                "--end-with-parent",
                "--programs-alone",
                "--log",
                log.name(),
            ])
            .arg("--sockets")
            .arg(&socket)
            .args([OsStr::new("--"), root.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for the program; the stack ends after it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = process.stdout.take();
        let output = output.ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let mut stack = OwnStack {
            process,
            socket,
            has_ended: false,
            last_words: None,
            _directory: directory,
        };
        let mut lines = BufReader::new(output).lines();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.starts_with("End with") => break,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failed(error)),
                None => return Err(stack.failure()),
            }
        }
        stack.last_words = Some(std::thread::spawn(move || {
            let lines = lines.map_while(Result::ok);
            lines.map(|line| line + "\n").collect()
        }));
        Ok(stack)
    }

    /// Returns the socket at which programs attach.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns its process ID.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Ends the stack in order; returns the rest of its output.
    pub(crate) fn end(mut self) -> Result<String, Failure> {
        let _ = rustix::process::kill_process(self.pid(), Signal::TERM);
        self.has_ended = true;
        match self.process.wait() {
            Ok(status) if status.success() => {
                let said = self.last_words.take().map(JoinHandle::join);
                Ok(said.and_then(Result::ok).unwrap_or_default())
            }
            Ok(status) => Err(Failure::broken("the stack of the program", status)),
            Err(error) => Err(Failure::broken("the stack of the program", error)),
        }
    }

    fn failure(&mut self) -> Failure {
        self.has_ended = true;
        match self.process.wait() {
            // The process has printed the reason on standard error.
            Ok(status) => Failure::broken("starting a stack", status),
            Err(error) => Failure::broken("starting a stack", error),
        }
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = rustix::process::kill_process(self.pid(), Signal::TERM);
            let _ = self.process.wait();
        }
    }
}
