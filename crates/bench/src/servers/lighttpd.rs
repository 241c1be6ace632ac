//! Another peer: lighttpd, with OpenSSL where it speaks TLS, in the network of nginx.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Pid;
use testbed::namespace::within;
use testbed::process::Process;
use testbed::procfs::children;
use testbed::{Context, Result, wait};

use crate::suites::tls::identity::Identity;

/// Ports with `sendfile`, and over TLS. The next ones up belong to a second lighttpd.
const PORT: u16 = 8080;
const TLS_PORT: u16 = 8443;

/// Descriptor limit; connections may use half, more than any comparison opens.
const DESCRIPTORS_MAX: usize = 16384;

/// A running lighttpd.
#[derive(Debug)]
pub(crate) struct Lighttpd {
    process: Process,
    address: Ipv4Addr,
    number: u16,
    workers: usize,
}

/// Place of a lighttpd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// A process in its network namespace, and its address there.
    pub(crate) network: (Pid, Ipv4Addr),
    /// Cores, for `taskset`.
    pub(crate) cores: &'a str,
    /// Number of worker processes.
    pub(crate) workers: usize,
    /// Number of this instance, from 0, different among those that run at the same time.
    pub(crate) number: u16,
}

impl Lighttpd {
    /// Serves `root`, over TLS as well with an identity; `prefix` is a directory for its
    /// configuration.
    pub(crate) fn start(
        place: Place<'_>,
        root: &Path,
        prefix: &Path,
        identity: Option<&Identity>,
    ) -> Result<Lighttpd> {
        let (namespace, address) = place.network;
        let configuration = prefix.join(format!("lighttpd-{}.conf", place.number));
        fs::write(
            &configuration,
            configuration_for(&place, root, prefix, identity),
        )
        .context(|| format!("writing {}", configuration.display()))?;
        let line = format!("taskset --cpu-list {} lighttpd -D", place.cores);
        let mut command = within(namespace, &line);
        command.arg("-f").arg(&configuration).stdin(Stdio::null());
        let process = Process::spawn(&mut command)?;
        let lighttpd = Lighttpd {
            process,
            address,
            number: place.number,
            workers: place.workers,
        };
        wait::until(Duration::from_secs(10), "lighttpd answering", || {
            TcpStream::connect_timeout(&lighttpd.address(), Duration::from_secs(1))
                .ok()
                .map(drop)
        })?;
        Ok(lighttpd)
    }

    /// Returns the address that serves with `sendfile`.
    pub(crate) fn address(&self) -> SocketAddr {
        (self.address, PORT + self.number).into()
    }

    /// Returns the TLS address, if it speaks TLS.
    pub(crate) fn tls_address(&self) -> SocketAddr {
        (self.address, TLS_PORT + self.number).into()
    }

    /// Returns the worker processes. With one worker, the started process is itself the worker.
    pub(crate) fn workers(&self) -> Result<Vec<Pid>> {
        let parent = self.process.pid();
        if self.workers == 1 {
            return Ok(vec![parent]);
        }
        wait::until(
            Duration::from_secs(10),
            "lighttpd starting its workers",
            || {
                let workers = children(parent).ok()?;
                (workers.len() == self.workers).then_some(workers)
            },
        )
    }
}

fn configuration_for(
    place: &Place<'_>,
    root: &Path,
    prefix: &Path,
    identity: Option<&Identity>,
) -> String {
    let (_, address) = place.network;
    let (port, tls_port) = (PORT + place.number, TLS_PORT + place.number);
    let root = root.display();
    let log = prefix.join("lighttpd.log");
    let log = log.display();
    let mut text = format!(
        r#"server.document-root = "{root}"
server.bind = "{address}"
server.port = {port}
server.max-fds = {DESCRIPTORS_MAX}
server.errorlog = "{log}"
server.max-keep-alive-idle = 600
server.max-keep-alive-requests = 65535
"#
    );
    if place.workers > 1 {
        text += &format!("server.max-worker = {}\n", place.workers);
    }
    if let Some(Identity { certificate, key }) = identity {
        let (certificate, key) = (certificate.display(), key.display());
        text += &format!(
            r#"server.modules = ("mod_openssl")
$SERVER["socket"] == "{address}:{tls_port}" {{
    ssl.engine = "enable"
    ssl.pemfile = "{certificate}"
    ssl.privkey = "{key}"
    ssl.openssl.ssl-conf-cmd = ("MinProtocol" => "TLSv1.3")
}}
"#
        );
    }
    text
}
