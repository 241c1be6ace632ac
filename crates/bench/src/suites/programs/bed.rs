//! The programs, over the kernel's sockets in the network of the peers, or over split ones by
//! `splitway run` on the stack that serves the same files.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use testbed::namespace::within;
use testbed::process::{Process, tool};
use testbed::procfs::children;
use testbed::splitway::STACK_V4;
use testbed::{Context, Result, wait};

use crate::measure::results::Results;
use crate::measure::run::Server;
use crate::servers::cores::server_cores;
use crate::servers::nginx;
use crate::servers::server_set::{ServerSet, Workspace};

/// Time limit for a program to start.
const BEGIN_WAIT: Duration = Duration::from_secs(10);

/// Time limit for a program to end.
const END_WAIT: Duration = Duration::from_secs(10);

/// Descriptor limit, above the need of any comparison.
const DESCRIPTORS_MAX: usize = 16384;

/// Kind of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::suites) enum Kind {
    Nginx,
    Lighttpd,
    Redis,
}

/// Kind of its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::suites) enum Sockets {
    Kernel,
    Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::suites) struct Subject {
    pub(in crate::suites) kind: Kind,
    pub(in crate::suites) sockets: Sockets,
}

impl Subject {
    pub(in crate::suites) fn name(self) -> &'static str {
        match (self.kind, self.sockets) {
            (Kind::Nginx, Sockets::Kernel) => "nginx",
            (Kind::Nginx, Sockets::Split) => "nginx, split",
            (Kind::Lighttpd, Sockets::Kernel) => "lighttpd",
            (Kind::Lighttpd, Sockets::Split) => "lighttpd, split",
            (Kind::Redis, Sockets::Kernel) => "redis",
            (Kind::Redis, Sockets::Split) => "redis, split",
        }
    }

    /// Returns the ports where connections persist, and where they are closed after each response.
    /// Peers use others.
    fn ports(self) -> [u16; 2] {
        match self.kind {
            Kind::Nginx => [9080, 9081],
            Kind::Lighttpd => [9082, 9083],
            Kind::Redis => [6379, 6379],
        }
    }
}

/// A running program.
pub(in crate::suites) struct Program {
    subject: Subject,
    process: Process,
    address: IpAddr,
}

/// Environment of the programs.
pub(in crate::suites) struct Bed {
    workspace: Workspace,
    servers: ServerSet,
    broker: PathBuf,
}

impl Bed {
    /// Starts the servers. With `steer_requests`, the kernel receives the clients' packets on the
    /// servers' core.
    pub(in crate::suites) fn start(
        workspace: Workspace,
        splitway: &[String],
        steer_requests: bool,
    ) -> Result<Bed> {
        let (servers, broker) = ServerSet::start_with_broker(&workspace, splitway, steer_requests)?;
        Ok(Bed {
            workspace,
            servers,
            broker,
        })
    }

    pub(in crate::suites) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    pub(in crate::suites) fn describe(&self, results: &mut Results) -> Result<()> {
        self.servers.describe(results)
    }

    pub(in crate::suites) fn end(self, results: &mut Results) -> Result<()> {
        self.servers.end(results)
    }

    /// Starts a program, and waits until it listens.
    pub(in crate::suites) fn start_program(&self, subject: Subject) -> Result<Program> {
        let (holder, kernels) = self.servers.peer_network();
        let pinned = format!("taskset --cpu-list {}", server_cores(1));
        let (mut command, address) = match subject.sockets {
            Sockets::Kernel => (within(holder, &pinned), kernels.into()),
            Sockets::Split => {
                let mut command = tool(&pinned);
                command.arg(&self.workspace.splitway).arg("run");
                command.arg("--sockets").arg(&self.broker).arg("--");
                (command, STACK_V4)
            }
        };
        self.add_program(&mut command, subject, address)?;
        let process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        let [port, _] = subject.ports();
        wait::until(BEGIN_WAIT, subject.name(), || {
            let address = SocketAddr::from((address, port));
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()
        })?;
        Ok(Program {
            subject,
            process,
            address,
        })
    }

    /// Adds the program and its arguments to a command.
    fn add_program(&self, command: &mut Command, subject: Subject, at: IpAddr) -> Result<()> {
        let name = subject.name().replace(", ", "-");
        let own = self.workspace.site.outside().join(&name);
        fs::create_dir_all(&own).context(|| format!("creating {}", own.display()))?;
        let configuration = own.join("configuration");
        let root = self.workspace.site.root();
        let ports = subject.ports();
        let text = match subject.kind {
            Kind::Nginx => nginx_configuration(&own, root, at, ports),
            Kind::Lighttpd => lighttpd_configuration(root, at, ports),
            Kind::Redis => format!(
                "bind {at}\nport {}\nsave \"\"\nprotected-mode no\n",
                ports[0]
            ),
        };
        fs::write(&configuration, text)
            .context(|| format!("writing {}", configuration.display()))?;
        match subject.kind {
            Kind::Nginx => command
                .args(["nginx", "-e"])
                .arg(own.join("error.log"))
                .arg("-c"),
            Kind::Lighttpd => command.args(["lighttpd", "-D", "-f"]),
            Kind::Redis => command.current_dir(&own).arg("redis-server"),
        };
        command.arg(&configuration);
        Ok(())
    }

    /// Returns the processes of a program, and those of the stack for split sockets.
    pub(in crate::suites) fn server(&self, program: &Program, closes: bool) -> Result<Server> {
        let [own, _, _] = self.servers.servers()?;
        let broker = self.servers.broker()?.map(|pid| ("broker", pid));
        let [stays, ends] = program.subject.ports();
        let port = if closes { ends } else { stays };
        let itself = [("program", program.serving()?)].into_iter();
        let of_stack = own.processes.into_iter().chain(broker);
        let processes: Vec<_> = match program.subject.sockets {
            Sockets::Kernel => itself.collect(),
            Sockets::Split => itself.chain(of_stack).collect(),
        };
        let address = SocketAddr::from((program.address, port));
        Ok(Server::new(program.subject.name(), address, processes))
    }

    /// Returns Splitway's own server.
    pub(in crate::suites) fn own(&self) -> Result<Server> {
        let [own, _, _] = self.servers.servers()?;
        Ok(own)
    }
}

impl Program {
    /// Returns the process that serves: for nginx, the worker.
    fn serving(&self) -> Result<Pid> {
        let started = self.process.pid();
        let only_child = |pid: Pid, what: &'static str| {
            wait::until(BEGIN_WAIT, what, || children(pid).ok()?.first().copied())
        };
        let program = match self.subject.sockets {
            Sockets::Kernel => started,
            Sockets::Split => only_child(started, "the program of `splitway run`")?,
        };
        match self.subject.kind {
            Kind::Nginx => only_child(program, "the worker of nginx"),
            Kind::Lighttpd | Kind::Redis => Ok(program),
        }
    }
}

impl Drop for Program {
    /// `splitway run` forwards the signal, and waits for the program. A program left running would
    /// take CPU time from the next measurement.
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.stop(END_WAIT);
    }
}

/// Control plane: cost of program and host process together, and for each request.
pub(in crate::suites) const CONTROL: &str = "control";
pub(in crate::suites) const CONTROL_PARTS: [&str; 2] = ["program", "host"];

fn nginx_configuration(own: &Path, root: &Path, at: IpAddr, [stays, ends]: [u16; 2]) -> String {
    let root = root.display();
    let servers = format!(
        "    server {{ listen {at}:{stays}; root {root}; }}
    server {{ listen {at}:{ends}; root {root}; keepalive_timeout 0; }}
"
    );
    nginx::configuration(own, 1, &servers)
}

fn lighttpd_configuration(root: &Path, at: IpAddr, [stays, ends]: [u16; 2]) -> String {
    format!(
        "server.document-root = {root:?}
server.bind = \"{at}\"
server.port = {stays}
server.max-fds = {DESCRIPTORS_MAX}
server.max-connections = {}
server.max-keep-alive-requests = 1000000000
server.max-keep-alive-idle = 600
$SERVER[\"socket\"] == \"{at}:{ends}\" {{ server.max-keep-alive-requests = 0 }}
",
        DESCRIPTORS_MAX / 2
    )
}
