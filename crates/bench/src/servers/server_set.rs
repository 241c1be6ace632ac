//! The place of a measurement: files, and servers behind links of the same make, started, named and
//! ended.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};
use testbed::namespace;
use testbed::process::{run as run_tool, tool};
use testbed::procfs::children;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, LINK, STACK_V4, Splitway};
use testbed::{Context, Failure, Result};

use crate::CLIENT_CORE;
use crate::SERVER_CORE;
use crate::load;
use crate::measure::publish::results_directory;
use crate::measure::results::Results;
use crate::measure::run::Server;
use crate::servers::cores::server_cores;
use crate::servers::lighttpd::{self, Lighttpd};
use crate::servers::link::{self, Device};
use crate::servers::nginx::Nginx;
use crate::suites::tls::identity::Identity;

/// Names of the servers.
pub(crate) const SPLITWAY: &str = "splitway";
pub(crate) const NGINX: &str = "nginx";
pub(crate) const LIGHTTPD: &str = "lighttpd";

/// Process name, in the kernel, of the process to which programs attach.
const BROKER: &str = "splitway-broker";

/// Ports of Splitway, without and with TLS.
const PORT: u16 = 80;
const TLS_PORT: u16 = 443;

/// Base of every measurement: the program, files to serve, and a directory for the results.
pub(crate) struct Workspace {
    pub(crate) splitway: PathBuf,
    pub(crate) output: PathBuf,
    pub(crate) site: Site,
    files: usize,
    file_bytes: u64,
    _directory: tempfile::TempDir,
}

impl Workspace {
    /// Creates `files` files of `file_bytes` bytes.
    pub(crate) fn prepare(files: usize, file_bytes: u64) -> Result<Workspace> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores < 2 {
            return Err(Failure::new(
                "servers and client need a core each, and there is only one",
            ));
        }
        let own = std::env::current_exe().context(|| "finding this program".into())?;
        // target/release/splitway-bench
        let beside = own.parent().expect("an absolute path");
        let splitway = beside.join("splitway");
        if !splitway.exists() {
            return Err(Failure::new(format!(
                "{} is not there; `make bench` builds it",
                splitway.display()
            )));
        }
        let output = results_directory()?;
        let directory = tempfile::tempdir_in(&output).context(|| "creating a directory".into())?;
        let site = Site::at(directory.path().to_owned())?;
        for index in 0..files {
            site.file(&load::file_name(index), file_bytes)?;
        }
        run_tool(&mut tool("ip link set lo up"))?;
        Ok(Workspace {
            splitway,
            output,
            site,
            files,
            file_bytes,
            _directory: directory,
        })
    }

    pub(crate) fn files(&self) -> usize {
        self.files
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns a load on these files.
    pub(crate) fn load(&self, server: &Server, connections: usize, seconds: f64) -> load::Settings {
        load::Settings {
            server: server.addresses.clone(),
            connections,
            files: self.files,
            file_bytes: self.file_bytes,
            seconds,
            discard: false,
            once: false,
            close: false,
            certificate: server.certificate.clone(),
            rest_us: 0,
        }
    }
}

/// Options of the servers.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Further arguments for `splitway serve`.
    pub(crate) splitway: Vec<String>,
    /// TLS as well.
    pub(crate) tls: bool,
    /// The kernel receives the clients' packets on the servers' core.
    pub(crate) steer_requests: bool,
    /// Cores of each server, with a worker on each core.
    pub(crate) cores: usize,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            splitway: Vec::new(),
            tls: false,
            steer_requests: false,
            cores: 1,
        }
    }
}

/// Splitway and its peers, each on its link.
#[derive(Debug)]
pub(crate) struct ServerSet {
    splitway: Splitway,
    nginx: Nginx,
    lighttpd: Lighttpd,
    identity: Option<Identity>,
}

impl ServerSet {
    pub(crate) fn start(workspace: &Workspace, wanted: &Wanted) -> Result<ServerSet> {
        let outside = workspace.site.outside();
        let identity = wanted.tls.then(|| Identity::make(outside)).transpose()?;
        let mut arguments = vec!["--report-json".to_owned()];
        if wanted.cores > 1 {
            arguments.push(format!("--workers={}", wanted.cores));
        }
        if let Some(Identity { certificate, key }) = &identity {
            arguments.push(format!("--tls-listen={TLS_PORT}"));
            // With TLS, the plain port is not the default.
            arguments.push(format!("--listen={PORT}"));
            arguments.push(format!("--tls-cert={}", certificate.display()));
            arguments.push(format!("--tls-key={}", key.display()));
        }
        arguments.extend(wanted.splitway.iter().cloned());
        let cores = server_cores(wanted.cores);
        let splitway = start_as(pinned(&cores, &workspace.splitway), workspace, &arguments)?;
        let stack_device = stack_device(&splitway)?;
        if wanted.steer_requests {
            link::steer(stack_end(&splitway, &stack_device), SERVER_CORE)?;
        }
        let ends = [kernel_end(), stack_end(&splitway, &stack_device)];
        let root = workspace.site.root();
        let steer = wanted.steer_requests;
        let nginx = Nginx::start(root, outside, ends, steer, identity.as_ref(), wanted.cores)?;
        let place = lighttpd::Place {
            network: nginx.network(),
            cores: &cores,
            workers: wanted.cores,
            number: 0,
        };
        let lighttpd = Lighttpd::start(place, root, outside, identity.as_ref())?;
        Ok(ServerSet {
            splitway,
            nginx,
            lighttpd,
            identity,
        })
    }

    /// Starts the servers with a broker, to which programs may attach; returns the path of its
    /// socket.
    pub(crate) fn start_with_broker(
        workspace: &Workspace,
        splitway: &[String],
        steer_requests: bool,
    ) -> Result<(ServerSet, PathBuf)> {
        let broker = workspace.site.outside().join("sockets");
        let own = format!("--sockets={}", broker.display());
        let wanted = Wanted {
            splitway: std::iter::once(own)
                .chain(splitway.iter().cloned())
                .collect(),
            steer_requests,
            ..Wanted::default()
        };
        Ok((ServerSet::start(workspace, &wanted)?, broker))
    }

    /// Returns Splitway, nginx and lighttpd.
    pub(crate) fn servers(&self) -> Result<[Server; 3]> {
        self.servers_at(
            [HTTP_V4, self.nginx.address(), self.lighttpd.address()],
            None,
        )
    }

    /// Returns Splitway, nginx and lighttpd over TLS.
    pub(crate) fn tls_servers(&self) -> Result<[Server; 3]> {
        let splitway = SocketAddr::new(STACK_V4, TLS_PORT);
        let addresses = [
            splitway,
            self.nginx.tls_address(),
            self.lighttpd.tls_address(),
        ];
        self.servers_at(addresses, self.identity.as_ref())
    }

    /// Returns Splitway and nginx with HTTP/2 over TLS.
    pub(crate) fn http2_servers(&self) -> Result<[Server; 2]> {
        let splitway = SocketAddr::new(STACK_V4, TLS_PORT);
        let addresses = [
            splitway,
            self.nginx.http2_address(),
            self.lighttpd.tls_address(),
        ];
        let [splitway, nginx, _] = self.servers_at(addresses, self.identity.as_ref())?;
        Ok([splitway, nginx])
    }

    fn servers_at(
        &self,
        addresses: [SocketAddr; 3],
        identity: Option<&Identity>,
    ) -> Result<[Server; 3]> {
        let workers = self.nginx.workers()?.into_iter();
        let children = self.lighttpd.workers()?.into_iter();
        let [own, nginx, lighttpd] = addresses;
        let mut servers = [
            Server::new(SPLITWAY, own, processes(&self.splitway)),
            Server::new(NGINX, nginx, workers.map(|pid| ("worker", pid))),
            Server::new(LIGHTTPD, lighttpd, children.map(|pid| ("worker", pid))),
        ];
        for server in &mut servers {
            server.certificate = identity.map(|identity| identity.certificate.clone());
        }
        Ok(servers)
    }

    /// Returns Splitway's supervisor and nginx's master: the processes that reload a configuration
    /// on request, and the ancestors of all processes of the servers.
    pub(crate) fn parents(&self) -> [Pid; 2] {
        [self.splitway.supervisor(), self.nginx.master()]
    }

    /// Returns the common certificate and key of the servers, if they speak TLS.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Returns a process in the network of nginx, so that others can serve from there, and the
    /// address there.
    pub(crate) fn peer_network(&self) -> (Pid, Ipv4Addr) {
        self.nginx.network()
    }

    /// Returns Splitway's broker, if it has one.
    pub(crate) fn broker(&self) -> Result<Option<Pid>> {
        broker(&self.splitway)
    }

    /// Starts another lighttpd beside the first, on another core.
    pub(crate) fn second_lighttpd(&self, workspace: &Workspace, core: usize) -> Result<Lighttpd> {
        let place = lighttpd::Place {
            network: self.nginx.network(),
            cores: &core.to_string(),
            workers: 1,
            number: 1,
        };
        Lighttpd::start(place, workspace.site.root(), workspace.site.outside(), None)
    }

    /// Returns nginx at the address that reads past the page cache.
    pub(crate) fn nginx_direct(&self, name: &'static str) -> Result<Server> {
        let workers = self.nginx.workers()?.into_iter();
        let workers = workers.map(|pid| ("worker", pid));
        Ok(Server::new(name, self.nginx.direct_address(), workers))
    }

    /// Adds the sizes of the links to the results.
    pub(crate) fn describe(&self, results: &mut Results) -> Result<()> {
        let sizes = with_ends(&self.splitway, |[_, stack]| link::sizes(stack))?;
        results.machine().set_link(sizes);
        Ok(())
    }

    /// Ends all servers; Splitway's counters go to the results.
    pub(crate) fn end(mut self, results: &mut Results) -> Result<()> {
        results.count(end_splitway(&mut self.splitway)?);
        Ok(())
    }
}

/// Ends Splitway, which was started with `--report-json`, and returns its counters.
pub(crate) fn end_splitway(splitway: &mut Splitway) -> Result<serde_json::Value> {
    splitway.end_with(Signal::TERM)?;
    let line = splitway.line(|line| line.starts_with('{'))?;
    serde_json::from_str(&line).context(|| format!("splitway printed {line:?}"))
}

/// Returns Splitway with its two processes.
pub(crate) fn splitway_server(splitway: &Splitway) -> Server {
    Server::new(SPLITWAY, HTTP_V4, processes(splitway))
}

/// Returns host and NIC process.
pub(crate) fn processes(splitway: &Splitway) -> [(&'static str, Pid); 2] {
    [("host", splitway.host()), ("nic", splitway.nic())]
}

/// Starts Splitway alone on the servers' core, and steers the kernel's receive work to the
/// client's.
pub(crate) fn start_splitway<A: AsRef<OsStr>>(
    workspace: &Workspace,
    arguments: &[A],
) -> Result<Splitway> {
    start_as(
        pinned(&server_cores(1), &workspace.splitway),
        workspace,
        arguments,
    )
}

/// Starts Splitway unpinned: the kernel places its threads.
pub(crate) fn start_splitway_anywhere<A: AsRef<OsStr>>(
    workspace: &Workspace,
    arguments: &[A],
) -> Result<Splitway> {
    start_as(Command::new(&workspace.splitway), workspace, arguments)
}

/// Starts Splitway by this command, and steers the kernel's receive work to the client's core.
fn start_as<A: AsRef<OsStr>>(
    mut command: Command,
    workspace: &Workspace,
    arguments: &[A],
) -> Result<Splitway> {
    command
        .arg("serve")
        .arg(workspace.site.root())
        .args(arguments);
    let splitway = Splitway::start(&mut command)?;
    link::steer(kernel_end(), CLIENT_CORE)?;
    Ok(splitway)
}

/// Returns Splitway's broker, if it has one.
pub(crate) fn broker(splitway: &Splitway) -> Result<Option<Pid>> {
    let mut children = children(splitway.supervisor())?.into_iter();
    Ok(children.find(|pid| {
        let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
        std::fs::read_to_string(path).is_ok_and(|name| name.trim() == BROKER)
    }))
}

/// Calls `of` with the ends of Splitway's link, the kernel's and the stack's.
pub(crate) fn with_ends<T>(
    splitway: &Splitway,
    of: impl FnOnce([Device<'_>; 2]) -> Result<T>,
) -> Result<T> {
    let name = stack_device(splitway)?;
    of([kernel_end(), stack_end(splitway, &name)])
}

/// Returns the kernel's end of Splitway's link.
fn kernel_end() -> Device<'static> {
    Device {
        namespace: None,
        name: LINK,
    }
}

/// Returns the name of the stack's end of the link.
fn stack_device(splitway: &Splitway) -> Result<String> {
    let mut devices = namespace::devices_of(splitway.host())?;
    devices
        .pop()
        .ok_or_else(|| Failure::new("the host process has no device"))
}

fn stack_end<'a>(splitway: &Splitway, name: &'a str) -> Device<'a> {
    Device {
        namespace: Some(splitway.host()),
        name,
    }
}

/// Moves all threads of a process to a core.
pub(crate) fn move_to_core(pid: Pid, core: usize) -> Result<()> {
    let line = format!(
        "taskset --all-tasks --pid --cpu-list {core} {}",
        pid.as_raw_nonzero()
    );
    run_tool(&mut tool(&line)).map(drop)
}

/// Returns a command that runs on `cores`.
pub(crate) fn pinned(cores: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", cores]).arg(program);
    command
}
