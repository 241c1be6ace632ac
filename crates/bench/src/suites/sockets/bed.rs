//! Servers, started and measured: Splitway and nginx run throughout, the server program is another
//! process in each run.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use capi::client::Modes;
use rustix::process::Pid;
use testbed::namespace::within;
use testbed::process::{Process, tool};
use testbed::splitway::STACK_V4;
use testbed::{Context, Result};

use super::Cell;
use super::client;
use crate::load::await_ready;
use crate::measure::results::{Measures, Results};
use crate::measure::run::{self, Server};
use crate::servers::cores::server_cores;
use crate::servers::server_set::{ServerSet, Workspace};

/// Port of the server program: nginx and lighttpd have other ports.
const PORT: u16 = 7000;

/// Measured server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::suites) enum Subject {
    Kernel,
    Split(Modes),
    /// The server in the host process.
    InProcess,
    Nginx,
}

impl Subject {
    pub(in crate::suites) fn name(self) -> &'static str {
        match self {
            Subject::Kernel => KERNEL,
            Subject::Split(_) => SPLIT,
            Subject::InProcess => IN_PROCESS,
            Subject::Nginx => NGINX,
        }
    }
}

/// Names of series.
pub(in crate::suites) const KERNEL: &str = "kernel sockets";
pub(in crate::suites) const SPLIT: &str = "split sockets";
pub(in crate::suites) const IN_PROCESS: &str = "in-process server";
pub(in crate::suites) const NGINX: &str = "nginx";

/// Kind of load.
#[derive(Clone, Copy, Debug)]
pub(in crate::suites) enum Load {
    Echo { cell: Cell, short: bool },
    Files,
}

/// Environment of the servers.
pub(in crate::suites) struct Bed {
    workspace: Workspace,
    servers: ServerSet,
    broker: PathBuf,
}

/// A server program.
struct Program {
    process: Process,
}

impl Bed {
    pub(in crate::suites) fn start(
        (files, file_bytes): (usize, u64),
        splitway: &[String],
        steer_requests: bool,
    ) -> Result<Bed> {
        let workspace = Workspace::prepare(files, file_bytes)?;
        Bed::of(workspace, splitway, steer_requests)
    }

    /// Starts the servers with existing files.
    pub(in crate::suites) fn of(
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

    pub(in crate::suites) fn describe(&self, results: &mut Results) -> Result<()> {
        self.servers.describe(results)
    }

    pub(in crate::suites) fn output(&self) -> &Path {
        &self.workspace.output
    }

    pub(in crate::suites) fn end(self, results: &mut Results) -> Result<()> {
        self.servers.end(results)
    }

    /// Does one run of a load on a subject; returns all its measures.
    pub(in crate::suites) fn run(
        &self,
        name: &'static str,
        subject: Subject,
        load: Load,
        seconds: f64,
        count_calls: bool,
    ) -> Result<Measures> {
        let program = self.program(subject, load)?;
        let server = self.server(name, subject, program.as_ref())?;
        let arguments = self.load(&server, load, seconds);
        let run = run::run_generator(&server, arguments, count_calls)?;
        drop(program);
        let mut measures = run.measures();
        add_sums(&mut measures);
        let request_us = measures["cpu_us_per_request.server"];
        eprintln!(
            "{run}  {:.0} requests/s  {request_us:.2} µs each",
            measures["requests_per_s"]
        );
        Ok(measures)
    }

    fn load(&self, server: &Server, load: Load, seconds: f64) -> Vec<String> {
        match load {
            Load::Echo { cell, short } => client::Settings {
                server: server.addresses[0],
                connections: cell.connections,
                message_bytes: cell.message_bytes,
                seconds,
                short,
            }
            .arguments(),
            Load::Files => self
                .workspace
                .load(server, super::CONNECTIONS, seconds)
                .arguments(),
        }
    }

    /// Returns the server program's network namespace, if not this one, and its address there.
    fn network(&self, subject: Subject) -> Option<(Option<Pid>, IpAddr)> {
        let (holder, address) = self.servers.peer_network();
        match subject {
            Subject::Kernel => Some((Some(holder), address.into())),
            Subject::Split(_) => Some((None, STACK_V4)),
            Subject::InProcess | Subject::Nginx => None,
        }
    }

    fn program(&self, subject: Subject, load: Load) -> Result<Option<Program>> {
        let Some((holder, address)) = self.network(subject) else {
            return Ok(None);
        };
        let line = format!("taskset --cpu-list {}", server_cores(1));
        let mut command = holder.map_or_else(|| tool(&line), |holder| within(holder, &line));
        let own = std::env::current_exe().context(|| "finding this program".into())?;
        command.arg(own).arg("sockets-server");
        match subject {
            Subject::Split(modes) => {
                command.arg("--sockets=split");
                command.arg(format!("--broker={}", self.broker.display()));
                command.arg(format!("--modes={modes}"));
            }
            _ => {
                command.arg("--sockets=kernel");
            }
        }
        command.arg(format!("--listen={}", SocketAddr::from((address, PORT))));
        match load {
            Load::Echo { cell, short: true } => {
                command.arg(format!("--close-after={}", cell.message_bytes));
            }
            Load::Echo { short: false, .. } => {}
            Load::Files => {
                command.arg("--files").arg(self.workspace.site.root());
            }
        }
        Program::start(command.stdin(Stdio::null())).map(Some)
    }

    fn server(
        &self,
        name: &'static str,
        subject: Subject,
        program: Option<&Program>,
    ) -> Result<Server> {
        let [own, nginx, _] = self.servers.servers()?;
        let application = program.map(|program| ("application", program.process.pid()));
        let server = match (subject, self.network(subject)) {
            (Subject::Nginx, _) => nginx,
            (_, None) => own,
            (Subject::Kernel, Some((_, address))) => {
                Server::new(name, (address, PORT).into(), application)
            }
            (_, Some((_, address))) => {
                let broker = self.servers.broker()?.map(|pid| ("broker", pid));
                let processes = application.into_iter().chain(own.processes).chain(broker);
                Server::new(name, (address, PORT).into(), processes)
            }
        };
        Ok(Server { name, ..server })
    }
}

impl Program {
    /// Starts the program, and waits until it listens.
    fn start(command: &mut std::process::Command) -> Result<Program> {
        let mut process = Process::spawn(command.stdout(Stdio::piped()))?;
        await_ready(&mut process, "the server has not begun to listen")?;
        Ok(Program { process })
    }
}

/// Control plane, and server and client: names of sums.
pub(in crate::suites) const CONTROL: &str = "control";
pub(in crate::suites) const ENDS: &str = "both_ends";

/// Adds the cost of application and host process together, and of server and client.
pub(in crate::suites) fn add_sums(measures: &mut Measures) {
    for unit in ["cpu_s_per_gb", "cpu_us_per_request"] {
        for (sum, parts) in [
            (CONTROL, ["application", "host"]),
            (ENDS, ["server", "client"]),
        ] {
            run::add_sum(measures, unit, sum, &parts);
        }
    }
}
