//! A stack for a program, where none runs: `splitway serve` without a server of its own.

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
    /// What it says at its end has a place to go.
    last_words: Option<JoinHandle<String>>,
    /// What the NIC stack has for its root, and the socket.
    _directory: TemporaryDirectory,
}

impl OwnStack {
    /// Starts it, and waits until programs may attach.
    pub(crate) fn start(log: LogLevel) -> Result<OwnStack, Failure> {
        let failed = |error: io::Error| Failure::broken("starting a stack", error);
        let directory = TemporaryDirectory::new().map_err(failed)?;
        // A listener locks the directory of its socket for a moment; this one stays locked.
        let [own, root] = ["run", "root"].map(|name| directory.path().join(name));
        for place in [&own, &root] {
            std::fs::create_dir(place).map_err(failed)?;
            // Whatever the umask says: processes of the program may be other users.
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
            // Ctrl-C is for the program; the stack ends when that has.
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

    /// Where programs attach.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Ends it in order; returns what it says of itself.
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
            // What was wrong stands on standard error already.
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
