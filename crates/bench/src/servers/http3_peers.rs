//! Peers that speak HTTP/3: ngtcp2's server and Caddy, in the network of nginx, on one core. One
//! that is not installed is left out.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Pid;
use serde::Serialize;
use testbed::namespace::within;
use testbed::process::{Process, run, tool};
use testbed::{Context, Result, wait};

use crate::servers::cores::server_cores;
use crate::servers::server_set::Workspace;
use crate::suites::tls::identity::Identity;

/// Which peer.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Peer {
    Ngtcp2,
    Caddy,
}

/// The program of ngtcp2's server, with GnuTLS, as Debian has it.
const NGTCP2: &str = "gtlsserver";

/// That of Caddy.
const CADDY: &str = "caddy";

/// Where a program of an administrator is that the search path of others lacks.
const ADMINISTRATORS: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];

impl Peer {
    pub(crate) const ALL: [Peer; 2] = [Peer::Ngtcp2, Peer::Caddy];

    /// What it is called, and its process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Ngtcp2 => "ngtcp2",
            Peer::Caddy => "caddy",
        }
    }

    /// Where it answers, beside the server of plain quinn.
    fn port(self) -> u16 {
        match self {
            Peer::Ngtcp2 => 4433,
            Peer::Caddy => 4434,
        }
    }

    /// Its program, if it is installed: below the target folder, where `scripts/setup.sh` puts
    /// what no distribution has, or on the search path.
    pub(crate) fn program(self, workspace: &Workspace) -> Option<PathBuf> {
        let own = match self {
            Peer::Ngtcp2 => None,
            Peer::Caddy => Some(workspace.output.with_file_name(CADDY).join(CADDY)),
        };
        let name = match self {
            Peer::Ngtcp2 => NGTCP2,
            Peer::Caddy => CADDY,
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        own.filter(|own| own.exists()).or_else(|| find(name, &path))
    }

    /// What it says of its version; nothing if it says none.
    pub(crate) fn version(self, program: &Path) -> String {
        if self == Peer::Ngtcp2 {
            // It has no option for that.
            return String::new();
        }
        let printed = |what: &str| {
            let line = format!("{} {what}", program.display());
            run(&mut tool(&line)).unwrap_or_default()
        };
        caddy_version(&printed("version"), &printed("build-info"))
    }
}

/// The version of a Caddy: what it says itself, or, of one that was built as a module, what Go says
/// of that.
fn caddy_version(version: &str, build_info: &str) -> String {
    let own = version.split_whitespace().next().unwrap_or_default();
    let module = || {
        let mut lines = build_info.lines();
        let words = lines.find_map(|line| line.strip_prefix("mod"))?;
        words.split_whitespace().nth(1)
    };
    let version = if own == "unknown" { module() } else { None };
    version.unwrap_or(own).to_owned()
}

/// A program by name, on a search path or where administrators have theirs.
fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    let places = std::env::split_paths(path).chain(ADMINISTRATORS.map(PathBuf::from));
    let mut programs = places.map(|place| place.join(name));
    programs.find(|program| program.is_file())
}

/// A running peer.
#[derive(Debug)]
pub(crate) struct Http3Peer {
    process: Process,
    address: SocketAddrV4,
}

impl Http3Peer {
    /// Serves `root` from the network namespace of a process, at an address there; `prefix` is a
    /// directory for its configuration.
    pub(crate) fn start(
        peer: Peer,
        program: &Path,
        (namespace, address): (Pid, Ipv4Addr),
        root: &Path,
        prefix: &Path,
        identity: &Identity,
    ) -> Result<Http3Peer> {
        let address = SocketAddrV4::new(address, peer.port());
        let line = format!("taskset --cpu-list {}", server_cores(1));
        let mut command = within(namespace, &line);
        command.arg(program).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match peer {
            Peer::Ngtcp2 => {
                command.args(["--quiet", "--no-quic-dump", "--no-http-dump", "--cc=cubic"]);
                command.arg("--htdocs").arg(root);
                command.arg(address.ip().to_string());
                command.arg(address.port().to_string());
                command.args([&identity.key, &identity.certificate]);
            }
            Peer::Caddy => {
                let configuration = prefix.join("Caddyfile");
                let text = caddyfile(address, root, prefix, identity);
                let writing = || format!("writing {}", configuration.display());
                fs::write(&configuration, text).context(writing)?;
                command.args(["run", "--adapter", "caddyfile", "--config"]);
                command.arg(&configuration);
                // One core, one thread that runs code; what else it keeps is here.
                command.env("GOMAXPROCS", "1");
                command.env("HOME", prefix).env("XDG_DATA_HOME", prefix);
                command.env("XDG_CONFIG_HOME", prefix);
            }
        }
        let peer_process = Http3Peer {
            process: Process::spawn(&mut command)?,
            address,
        };
        let what = format!("{} answering", peer.name());
        wait::until(Duration::from_secs(10), &what, || {
            let sockets = format!("/proc/{}/net/udp", namespace.as_raw_nonzero());
            let sockets = fs::read_to_string(sockets).ok()?;
            has_socket(&sockets, address).then_some(())
        })?;
        Ok(peer_process)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Where it answers.
    pub(crate) fn address(&self) -> SocketAddrV4 {
        self.address
    }
}

/// HTTP/3 beside what Caddy has anyway, without its administration.
fn caddyfile(address: SocketAddrV4, root: &Path, prefix: &Path, identity: &Identity) -> String {
    let Identity { certificate, key } = identity;
    let (ip, port) = (address.ip(), address.port());
    let (root, prefix) = (root.display(), prefix.display());
    let (certificate, key) = (certificate.display(), key.display());
    format!(
        "{{
    admin off
    auto_https off
    storage file_system {prefix}
    log {{
        level ERROR
    }}
}}
https://:{port} {{
    bind {ip}
    tls {certificate} {key}
    root * {root}
    file_server
}}
"
    )
}

/// Whether a socket of UDP at this address is in what `/proc/net/udp` says: addresses are there as
/// numbers of this machine's byte order, in hexadecimal.
fn has_socket(sockets: &str, address: SocketAddrV4) -> bool {
    let ip = u32::from_ne_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let mut lines = sockets.lines().skip(1);
    lines.any(|line| line.split_whitespace().nth(1) == Some(local.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_found_by_its_address() {
        let address = SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, 2), 4433);
        let ip = u32::from_ne_bytes([10, 78, 0, 2]);
        let sockets = format!(
            "   sl  local_address rem_address   st tx_queue rx_queue\n  \
             512: {ip:08X}:1151 00000000:0000 07 00000000:00000000\n"
        );
        assert!(has_socket(&sockets, address));
        let other = SocketAddrV4::new(*address.ip(), 443);
        assert!(!has_socket(&sockets, other));
        assert!(!has_socket("", address));
    }

    #[test]
    fn a_program_is_found_on_the_search_path_or_it_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("a-server-of-http3");
        let path = directory.path().as_os_str();
        assert_eq!(find("a-server-of-http3", path), None);
        fs::write(&program, "").unwrap();
        assert_eq!(find("a-server-of-http3", path), Some(program));
    }

    #[test]
    fn a_caddy_has_a_version_however_it_was_built() {
        let built = "path\tgithub.com/x\nmod\tgithub.com/x\tv2.10.2\th1:g/g=\n";
        assert_eq!(caddy_version("unknown\n", built), "v2.10.2");
        assert_eq!(caddy_version("v2.6.2 h1:x=\n", built), "v2.6.2");
        assert_eq!(caddy_version("", ""), "");
    }

    #[test]
    fn caddy_serves_the_files_where_it_is_asked_to() {
        let identity = Identity {
            certificate: "/x/certificate.pem".into(),
            key: "/x/key.pem".into(),
        };
        let address = SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, 2), 4434);
        let text = caddyfile(address, Path::new("/files"), Path::new("/own"), &identity);
        for expected in [
            "https://:4434 {\n    bind 10.78.0.2\n",
            "tls /x/certificate.pem /x/key.pem\n",
            "root * /files\n",
            "storage file_system /own\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
