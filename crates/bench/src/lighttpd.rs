//! Another peer, over TLS: lighttpd with OpenSSL, in the network of nginx.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Pid;
use testbed::namespace::within;
use testbed::process::Process;
use testbed::{Context, Result, wait};

use crate::SERVER_CORE;
use crate::tls::identity::Identity;

const TLS_PORT: u16 = 8443;

/// A running lighttpd.
#[derive(Debug)]
pub(crate) struct Lighttpd {
    process: Process,
    address: SocketAddr,
}

impl Lighttpd {
    /// Serves `root` in the network namespace of a process, at an address there that can be reached from here; `prefix`
    /// is a directory for what it is told.
    pub(crate) fn start(
        (namespace, address): (Pid, Ipv4Addr),
        root: &Path,
        prefix: &Path,
        identity: &Identity,
    ) -> Result<Lighttpd> {
        let configuration = prefix.join("lighttpd.conf");
        fs::write(&configuration, configuration_for(address, root, identity))
            .context(|| format!("writing {}", configuration.display()))?;
        let mut command = within(
            namespace,
            &format!("taskset --cpu-list {SERVER_CORE} lighttpd -D"),
        );
        command.arg("-f").arg(&configuration).stdin(Stdio::null());
        let process = Process::spawn(&mut command)?;
        let address = SocketAddr::from((address, TLS_PORT));
        wait::until(Duration::from_secs(10), "lighttpd answering", || {
            TcpStream::connect_timeout(&address, Duration::from_secs(1))
                .ok()
                .map(drop)
        })?;
        Ok(Lighttpd { process, address })
    }

    /// Where it speaks TLS.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its one process: what started it has become it.
    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }
}

fn configuration_for(address: Ipv4Addr, root: &Path, identity: &Identity) -> String {
    let Identity { certificate, key } = identity;
    let (root, certificate, key) = (root.display(), certificate.display(), key.display());
    format!(
        r#"server.modules = ("mod_openssl")
server.document-root = "{root}"
server.bind = "{address}"
server.port = {TLS_PORT}
server.max-fds = 4096
server.max-keep-alive-idle = 600
server.max-keep-alive-requests = 65535
ssl.engine = "enable"
ssl.pemfile = "{certificate}"
ssl.privkey = "{key}"
ssl.openssl.ssl-conf-cmd = ("MinProtocol" => "TLSv1.3")
"#
    )
}
