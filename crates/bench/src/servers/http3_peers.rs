//! HTTP/3 peers in the network of nginx, on one core: ngtcp2's server, Caddy, and small file
//! servers on quic-go and aioquic. Peers that are not installed are left out.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use serde::Serialize;
use testbed::namespace::within;
use testbed::process::{Process, run};
use testbed::{Context, Failure, Result, wait};

use crate::servers::cores::server_cores;
use crate::servers::server_set::Workspace;
use crate::suites::tls::identity::Identity;

/// The peers.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    Ngtcp2,
    Caddy,
    QuicGo,
    Aioquic,
}

/// Debian's program of ngtcp2's server, with GnuTLS.
const NGTCP2: &str = "gtlsserver";

/// The program of Caddy.
const CADDY: &str = "caddy";

/// The folder, beside that of the results, for servers from `scripts/setup.sh`.
const OWN_SERVERS: &str = "http3-servers";

/// The server on aioquic.
const AIOQUIC_SERVER: &str = include_str!("http3_peers/aioquic_server.py");

/// Folders of administrators' programs, which the search path of other users lacks.
const ADMINISTRATORS: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];

impl Peer {
    pub(crate) const ALL: [Peer; 4] = [Peer::Ngtcp2, Peer::Caddy, Peer::QuicGo, Peer::Aioquic];

    /// The name of the peer and of its process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Ngtcp2 => "ngtcp2",
            Peer::Caddy => "caddy",
            Peer::QuicGo => "quic-go",
            Peer::Aioquic => "aioquic",
        }
    }

    /// Its port, different from that of plain quinn's server.
    fn port(self) -> u16 {
        match self {
            Peer::Ngtcp2 => 4433,
            Peer::Caddy => 4434,
            Peer::QuicGo => 4435,
            Peer::Aioquic => 4436,
        }
    }

    /// Its program, if installed: below the target folder, for those from `scripts/setup.sh`, or on
    /// the search path.
    pub(crate) fn program(self, workspace: &Workspace) -> Option<PathBuf> {
        let beside = |folder: &str| workspace.output.with_file_name(folder);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = match self {
            Peer::Ngtcp2 => return find(NGTCP2, &path),
            Peer::Caddy => beside(CADDY).join(CADDY),
            Peer::QuicGo => beside(OWN_SERVERS).join("quic-go"),
            Peer::Aioquic => beside(OWN_SERVERS).join("aioquic/bin/python"),
        };
        let packaged = || (self == Peer::Caddy).then(|| find(CADDY, &path)).flatten();
        own.exists().then_some(own).or_else(packaged)
    }

    /// Its version as it reports it; empty if it reports none.
    pub(crate) fn version(self, program: &Path) -> String {
        let printed = |arguments: &[&str]| {
            let printed = run(Command::new(program).args(arguments));
            printed.unwrap_or_default().trim().to_owned()
        };
        match self {
            // It has no option for its version.
            Peer::Ngtcp2 => String::new(),
            Peer::Caddy => caddy_version(&printed(&["version"]), &printed(&["build-info"])),
            Peer::QuicGo => printed(&["version"]),
            Peer::Aioquic => printed(&["-c", "import aioquic; print(aioquic.__version__)"]),
        }
    }

    /// Sets arguments and environment of its program.
    fn set_up(self, command: &mut Command, place: &Place<'_>) -> Result<()> {
        let Place {
            address,
            root,
            prefix,
            identity: Identity { certificate, key },
        } = *place;
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        match self {
            Peer::Ngtcp2 => {
                command.args(["--quiet", "--no-quic-dump", "--no-http-dump", "--cc=cubic"]);
                command.arg("--htdocs").arg(root).args([ip, port]);
                command.args([key, certificate]);
            }
            Peer::Caddy => {
                let configuration = write(prefix, "Caddyfile", &caddyfile(place))?;
                command.args(["run", "--adapter", "caddyfile", "--config"]);
                command.arg(configuration);
                // Its other files go here.
                command.env("HOME", prefix).env("XDG_DATA_HOME", prefix);
                command.env("XDG_CONFIG_HOME", prefix);
            }
            Peer::QuicGo => {
                command.arg(address.to_string()).arg(root);
                command.args([certificate, key]);
            }
            Peer::Aioquic => {
                command.arg(write(prefix, "aioquic_server.py", AIOQUIC_SERVER)?);
                command.args([ip, port]).arg(root).args([certificate, key]);
            }
        }
        if matches!(self, Peer::Caddy | Peer::QuicGo) {
            // One core: one thread that runs Go code.
            command.env("GOMAXPROCS", "1");
        }
        Ok(())
    }
}

/// Address and files of a peer.
#[derive(Clone, Copy)]
struct Place<'a> {
    address: SocketAddrV4,
    root: &'a Path,
    /// A directory for its own files.
    prefix: &'a Path,
    identity: &'a Identity,
}

fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// The version of a Caddy: as it reports it, or for one built as a module, as Go reports it.
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

/// Finds a program by name, on a search path or in [`ADMINISTRATORS`].
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
    /// Serves `root` in the network namespace of a process, at an address there; `prefix` is a
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
        let place = Place {
            address,
            root,
            prefix,
            identity,
        };
        peer.set_up(&mut command, &place)?;
        let mut process = Process::spawn(&mut command)?;
        let what = format!("{} answering", peer.name());
        let ended = wait::until(Duration::from_secs(10), &what, || {
            if let Ok(Some(status)) = process.child().try_wait() {
                return Some(Some(status));
            }
            let sockets = format!("/proc/{}/net/udp", namespace.as_raw_nonzero());
            let sockets = fs::read_to_string(sockets).ok()?;
            has_socket(&sockets, address).then_some(None)
        })?;
        match ended {
            Some(status) => Err(Failure::new(format!("{what}: it has ended: {status}"))),
            None => Ok(Http3Peer { process, address }),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The address of its UDP socket.
    pub(crate) fn address(&self) -> SocketAddrV4 {
        self.address
    }
}

/// Caddy's defaults plus HTTP/3, without its admin endpoint.
fn caddyfile(place: &Place<'_>) -> String {
    let Place {
        address,
        root,
        prefix,
        identity: Identity { certificate, key },
    } = *place;
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

/// True if `/proc/net/udp` lists a socket at this address: it has addresses as hexadecimal numbers
/// in native byte order.
fn has_socket(sockets: &str, address: SocketAddrV4) -> bool {
    let ip = u32::from_ne_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let mut lines = sockets.lines().skip(1);
    lines.any(|line| line.split_whitespace().nth(1) == Some(local.as_str()))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

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

    /// A peer's arguments, and its `GOMAXPROCS`.
    fn command_of(peer: Peer, prefix: &Path) -> (Vec<String>, Option<String>) {
        let identity = Identity {
            certificate: "/x/certificate.pem".into(),
            key: "/x/key.pem".into(),
        };
        let place = Place {
            address: SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, 2), peer.port()),
            root: Path::new("/files"),
            prefix,
            identity: &identity,
        };
        let mut command = Command::new("program");
        peer.set_up(&mut command, &place).unwrap();
        let text = |text: &OsStr| text.to_str().unwrap().to_owned();
        let mut variables = command.get_envs();
        let threads = variables.find(|(name, _)| *name == "GOMAXPROCS");
        let threads = threads.and_then(|(_, value)| value).map(text);
        (command.get_args().map(text).collect(), threads)
    }

    #[test]
    fn ngtcp2_serves_the_files_where_it_is_asked_to() {
        let (arguments, threads) = command_of(Peer::Ngtcp2, Path::new("/own"));
        let end = "--htdocs /files 10.78.0.2 4433 /x/key.pem /x/certificate.pem";
        assert!(arguments.join(" ").ends_with(end), "{arguments:?}");
        assert!(arguments.contains(&"--cc=cubic".to_owned()));
        assert_eq!(threads, None);
    }

    #[test]
    fn caddy_serves_the_files_where_it_is_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().to_str().unwrap();
        let (arguments, threads) = command_of(Peer::Caddy, directory.path());
        let [.., configuration] = &arguments[..] else {
            panic!("no arguments");
        };
        assert_eq!(threads.as_deref(), Some("1"));
        let text = fs::read_to_string(configuration).unwrap();
        for expected in [
            "https://:4434 {\n    bind 10.78.0.2\n",
            "tls /x/certificate.pem /x/key.pem\n",
            "root * /files\n",
            &format!("storage file_system {own}\n"),
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn quic_go_serves_the_files_where_it_is_asked_to() {
        let (arguments, threads) = command_of(Peer::QuicGo, Path::new("/own"));
        let expected = [
            "10.78.0.2:4435",
            "/files",
            "/x/certificate.pem",
            "/x/key.pem",
        ];
        assert_eq!(arguments, expected);
        assert_eq!(threads.as_deref(), Some("1"));
    }

    #[test]
    fn aioquic_serves_the_files_where_it_is_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let (arguments, threads) = command_of(Peer::Aioquic, directory.path());
        let (script, others) = arguments.split_first().unwrap();
        let expected = [
            "10.78.0.2",
            "4436",
            "/files",
            "/x/certificate.pem",
            "/x/key.pem",
        ];
        assert_eq!(others, expected);
        assert_eq!(threads, None);
        assert_eq!(fs::read_to_string(script).unwrap(), AIOQUIC_SERVER);
    }

    #[test]
    fn every_peer_has_a_name_and_a_port_of_its_own() {
        for (at, peer) in Peer::ALL.into_iter().enumerate() {
            for other in &Peer::ALL[at + 1..] {
                assert_ne!(peer.name(), other.name());
                assert_ne!(peer.port(), other.port());
            }
            let value = peer.to_possible_value().unwrap();
            assert_eq!(peer.name(), value.get_name());
        }
    }
}
