//! The peer: nginx, in a namespace of its own behind a veth pair.

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

use crate::servers::cores::server_cores;
use crate::servers::link::Device;
use crate::servers::peer_network::{PeerNetwork, SERVER};
use crate::suites::tls::identity::Identity;

/// Ports with `sendfile`, with reads past the page cache in threads, with TLS, and with HTTP/2 over
/// TLS.
const SENDFILE_PORT: u16 = 80;
const DIRECT_PORT: u16 = 81;
const TLS_PORT: u16 = 443;
const HTTP2_PORT: u16 = 444;

/// Connection limit, above the need of any comparison.
const CONNECTIONS_MAX: usize = 16384;

/// A running nginx.
#[derive(Debug)]
pub(crate) struct Nginx {
    master: Process,
    network: PeerNetwork,
    workers: usize,
}

impl Nginx {
    /// Serves `root`, with a worker on each of `cores` cores; `prefix` is an empty directory for
    /// nginx's own files. The two ends of its link, the client's and the server's, are made like
    /// those of `model`. With `steer_requests`, the kernel receives the client's packets on the
    /// server's core. With an identity, nginx also speaks TLS.
    pub(crate) fn start(
        root: &Path,
        prefix: &Path,
        model: [Device<'_>; 2],
        steer_requests: bool,
        identity: Option<&Identity>,
        cores: usize,
    ) -> Result<Nginx> {
        let network = PeerNetwork::new(model, steer_requests)?;
        Ok(Nginx {
            master: serve(network.holder(), SERVER, root, prefix, identity, cores)?,
            network,
            workers: cores,
        })
    }

    /// Returns the address that serves with `sendfile`.
    pub(crate) fn address(&self) -> SocketAddr {
        (SERVER, SENDFILE_PORT).into()
    }

    /// Returns the address that reads past the page cache, in threads (`aio threads`, `directio`).
    pub(crate) fn direct_address(&self) -> SocketAddr {
        (SERVER, DIRECT_PORT).into()
    }

    /// Returns the TLS address, if nginx speaks TLS.
    pub(crate) fn tls_address(&self) -> SocketAddr {
        (SERVER, TLS_PORT).into()
    }

    /// Returns the address with HTTP/2 over TLS, if nginx speaks TLS.
    pub(crate) fn http2_address(&self) -> SocketAddr {
        (SERVER, HTTP2_PORT).into()
    }

    /// Returns a process in its network, so that others can serve from there, at the same address.
    pub(crate) fn network(&self) -> (Pid, Ipv4Addr) {
        (self.network.holder(), SERVER)
    }

    /// Returns its master process.
    pub(crate) fn master(&self) -> Pid {
        self.master.pid()
    }

    /// Returns its worker processes. The listening socket accepts connections before these exist.
    pub(crate) fn workers(&self) -> Result<Vec<Pid>> {
        let master = self.master.pid();
        wait::until(
            Duration::from_secs(10),
            "nginx starting its workers",
            || {
                let workers = children(master).ok()?;
                (workers.len() == self.workers).then_some(workers)
            },
        )
    }
}

/// Starts nginx in the network namespace of a process, on two ports of an address there that can be
/// reached from here.
pub(crate) fn serve(
    namespace: Pid,
    address: Ipv4Addr,
    root: &Path,
    prefix: &Path,
    identity: Option<&Identity>,
    cores: usize,
) -> Result<Process> {
    let configuration = prefix.join("nginx.conf");
    let tls = identity.map(|identity| tls_server(address, root, identity));
    let text = configuration_for(address, root, prefix, &tls.unwrap_or_default(), cores);
    fs::write(&configuration, text).context(|| format!("writing {}", configuration.display()))?;
    let mut command = within(
        namespace,
        &format!("taskset --cpu-list {} nginx", server_cores(cores)),
    );
    command.arg("-p").arg(prefix).arg("-c").arg(&configuration);
    command
        .arg("-e")
        .arg(prefix.join("error.log"))
        .stdin(Stdio::null());
    let master = Process::spawn(&mut command)?;
    wait::until(Duration::from_secs(10), "nginx answering", || {
        TcpStream::connect_timeout(&(address, SENDFILE_PORT).into(), Duration::from_secs(1))
            .ok()
            .map(drop)
    })?;
    Ok(master)
}

fn configuration_for(
    address: Ipv4Addr,
    root: &Path,
    prefix: &Path,
    tls: &str,
    workers: usize,
) -> String {
    let root = root.display();
    let servers = format!(
        "    server {{
        listen {address}:{SENDFILE_PORT};
        root {root};
    }}
    server {{
        listen {address}:{DIRECT_PORT};
        root {root};
        sendfile off;
        aio threads;
        directio 4k;
        output_buffers 2 512k;
    }}
{tls}"
    );
    configuration(prefix, workers, &servers)
}

/// Returns a configuration with these servers; `prefix` is a directory for nginx's own files.
pub(crate) fn configuration(prefix: &Path, workers: usize, servers: &str) -> String {
    let prefix = prefix.display();
    format!(
        "daemon off;
user root root;
worker_processes {workers};
worker_rlimit_nofile {CONNECTIONS_MAX};
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections {CONNECTIONS_MAX}; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 600;
    keepalive_requests 1000000000;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
{servers}}}
"
    )
}

/// Returns a TLS 1.3 server, with HTTP/1.1 and with HTTP/2; all else is nginx's default: session
/// tickets, records of 16 KiB.
fn tls_server(address: Ipv4Addr, root: &Path, identity: &Identity) -> String {
    let Identity { certificate, key } = identity;
    let (root, certificate, key) = (root.display(), certificate.display(), key.display());
    format!(
        "    server {{
        listen {address}:{TLS_PORT} ssl;
        listen {address}:{HTTP2_PORT} ssl http2;
        root {root};
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.3;
    }}
"
    )
}
