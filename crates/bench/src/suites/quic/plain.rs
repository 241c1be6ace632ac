//! The plain quinn server, as a process in another's network namespace.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;

use rustix::process::Pid;
use testbed::namespace::within;
use testbed::process::Process;
use testbed::{Context, Result};

use super::PORT;
use super::server::LossDetection;
use crate::load::await_ready;
use crate::servers::cores::server_cores;
use crate::suites::tls::identity::Identity;

/// See the [module documentation](self).
pub(super) struct Plain {
    process: Process,
    address: SocketAddr,
}

impl Plain {
    /// Starts the server in a process's network namespace, at an address there, and waits until it
    /// answers. Its send buffers suit a client with a window of `window_bytes`.
    pub(super) fn start(
        (namespace, address): (Pid, Ipv4Addr),
        root: &Path,
        identity: &Identity,
        window_bytes: u32,
        loss_detection: LossDetection,
    ) -> Result<Plain> {
        let address = SocketAddr::from((address, PORT));
        let own = std::env::current_exe().context(|| "finding this program".into())?;
        let line = format!("taskset --cpu-list {}", server_cores(1));
        let mut command = within(namespace, &line);
        command.arg(own).arg("quic-server");
        command.arg(format!("--listen={address}"));
        command.arg(format!("--window-bytes={window_bytes}"));
        command.args(loss_detection.arguments());
        command.arg("--files").arg(root);
        command.arg("--certificate").arg(&identity.certificate);
        command.arg("--key").arg(&identity.key);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        await_ready(&mut process, "the server of plain quinn does not answer")?;
        Ok(Plain { process, address })
    }

    pub(super) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The server's address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}
