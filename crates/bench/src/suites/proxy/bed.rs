//! Backends, which run throughout, and balancers, started for each run: Splitway's link can exist
//! once.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Pid;
use testbed::namespace::within;
use testbed::process::{Process, run as run_tool, tool};
use testbed::procfs::children;
use testbed::splitway::{LINK, Splitway};
use testbed::{Context, Failure, Result, wait};

use super::balancers::{Kind, Service, Subject, configuration};
use super::{Load, Settings};
use crate::CLIENT_CORE;
use crate::SERVER_CORE;
use crate::measure::results::{Measures, Results};
use crate::measure::run::{self, Server};
use crate::servers::cores::server_cores;
use crate::servers::link;
use crate::servers::nginx;
use crate::servers::peer_network::PeerNetwork;
use crate::servers::server_set::{
    Workspace, broker, end_splitway, pinned, processes, start_splitway, with_ends,
};
use crate::suites::sockets::client;

/// Time limit for a program to start, and to end.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Cost of balancer and host process together, which a splice reduces.
pub(super) const CONTROL: &str = "control";
pub(super) const CONTROL_PARTS: [&str; 2] = ["balancer", "host"];

/// See the [module documentation](self).
pub(super) struct Bed {
    workspace: Workspace,
    network: PeerNetwork,
    _backends: [Process; 3],
}

/// A running balancer.
struct Balancer {
    process: Option<Process>,
    splitway: Option<Splitway>,
    processes: Vec<(&'static str, Pid)>,
}

impl Bed {
    /// Starts Splitway once, so that the kernel's link can be made like its own.
    pub(super) fn start(workspace: Workspace, results: &mut Results) -> Result<Bed> {
        let mut model = start_own(&workspace, Subject::OwnTcp)?;
        let network = with_ends(&model, |ends| {
            results.machine().set_link(link::sizes(ends[1])?);
            PeerNetwork::new(ends, true)
        })?;
        model.end_with(rustix::process::Signal::TERM)?;
        Ok(Bed {
            _backends: [
                start_files(&workspace)?,
                start_echo(Service::Echo)?,
                start_echo(Service::Short)?,
            ],
            workspace,
            network,
        })
    }

    pub(super) fn output(&self) -> &Path {
        &self.workspace.output
    }

    /// Does one run of a load on a balancer started for it.
    pub(super) fn run(
        &self,
        settings: &Settings,
        subject: Subject,
        load: Load,
        results: &mut Results,
    ) -> Result<Measures> {
        let balancer = self.start_balancer(subject)?;
        let (at, _) = subject.addresses();
        let address = SocketAddr::from((at, load.service().port()));
        wait::until(WAIT_MAX, subject.name(), || {
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()
        })?;
        let server = Server::new(subject.name(), address, balancer.processes.clone());
        let arguments = self.arguments(settings, &server, load);
        let run = run::run_generator(&server, arguments, false)?;
        eprintln!("{load:?}: {run}");
        let mut measures = run.measures();
        for unit in ["cpu_s_per_gb", "cpu_us_per_request", "busy_cores"] {
            run::add_sum(&mut measures, unit, CONTROL, &CONTROL_PARTS);
        }
        if let Some(counted) = balancer.end()? {
            let joined = counted["host"]["splices_joined"].as_f64();
            if subject.has_splices() {
                let joined = joined.unwrap_or_default();
                if joined == 0.0 && load.is_long() {
                    return Err(Failure::new(format!("{}: no splice", subject.name())));
                }
                measures.insert("splices_joined".into(), joined);
            }
            results.count(counted);
        }
        Ok(measures)
    }

    fn arguments(&self, settings: &Settings, server: &Server, load: Load) -> Vec<String> {
        match load {
            Load::Files { closes, .. } => crate::load::Settings {
                discard: true,
                close: closes,
                ..self.workspace.load(
                    server,
                    settings.connections_of(load),
                    settings.seconds_of_run(),
                )
            }
            .arguments(),
            Load::Echo { message_bytes } | Load::Short { message_bytes } => client::Settings {
                server: server.addresses[0],
                connections: settings.connections_of(load),
                message_bytes,
                seconds: settings.seconds_of_run(),
                short: matches!(load, Load::Short { .. }),
            }
            .arguments(),
        }
    }

    fn start_balancer(&self, subject: Subject) -> Result<Balancer> {
        match subject.kind() {
            Kind::Haproxy => {
                let line = format!("taskset --cpu-list {} haproxy -q -db -f", server_cores(1));
                let mut command = within(self.network.holder(), &line);
                let (_, path) = written(&self.workspace, subject)?;
                let process = Process::spawn(command.arg(path).stdin(Stdio::null()))?;
                Ok(Balancer {
                    processes: vec![("balancer", process.pid())],
                    process: Some(process),
                    splitway: None,
                })
            }
            Kind::Nginx => {
                let line = format!("taskset --cpu-list {} nginx -e", server_cores(1));
                let mut command = within(self.network.holder(), &line);
                let (own, path) = written(&self.workspace, subject)?;
                command.arg(own.join("error.log")).arg("-c").arg(path);
                let process = Process::spawn(command.stdin(Stdio::null()))?;
                Ok(Balancer {
                    processes: vec![("balancer", only_child(process.pid())?)],
                    process: Some(process),
                    splitway: None,
                })
            }
            Kind::HaproxyRun => self.start_run(subject),
            Kind::Own => {
                let splitway = start_own(&self.workspace, subject)?;
                Ok(Balancer {
                    processes: processes(&splitway).into(),
                    process: None,
                    splitway: Some(splitway),
                })
            }
        }
    }

    /// Starts HAProxy by `splitway run`, and a stack for it.
    fn start_run(&self, subject: Subject) -> Result<Balancer> {
        let (own, path) = written(&self.workspace, subject)?;
        let sockets = own.join("sockets");
        let served = format!("--sockets={}", sockets.display());
        let splitway = start_splitway(&self.workspace, &["--report-json", &served])?;
        place(&splitway)?;
        let mut command = pinned(&server_cores(1), &self.workspace.splitway);
        command.arg("run").arg("--sockets").arg(&sockets);
        command.args(["--connect", "10.77.0.0/24"]);
        if subject.has_splices() {
            command.args(["--splice", "any"]);
        }
        command.args(["--", "haproxy", "-q", "-db", "-f"]);
        let process = Process::spawn(command.arg(path).stdin(Stdio::null()))?;
        let haproxy = ("balancer", only_child(process.pid())?);
        let broker = broker(&splitway)?.map(|pid| ("broker", pid));
        let of_stack = processes(&splitway).into_iter().chain(broker);
        Ok(Balancer {
            processes: std::iter::once(haproxy).chain(of_stack).collect(),
            process: Some(process),
            splitway: Some(splitway),
        })
    }
}

impl Balancer {
    /// Ends the balancer; returns Splitway's counters if it took part.
    fn end(mut self) -> Result<Option<serde_json::Value>> {
        if let Some(process) = &mut self.process {
            process.stop(WAIT_MAX)?;
        }
        self.splitway.as_mut().map(end_splitway).transpose()
    }
}

/// Returns a subject's directory, and its configuration there.
fn written(
    workspace: &Workspace,
    subject: Subject,
) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    let name = subject.name().replace(", ", "-").replace(' ', "-");
    let own = workspace.site.outside().join(name);
    fs::create_dir_all(&own).context(|| format!("creating {}", own.display()))?;
    let path = own.join("configuration");
    fs::write(&path, configuration(subject, &own))
        .context(|| format!("writing {}", path.display()))?;
    Ok((own, path))
}

fn start_own(workspace: &Workspace, subject: Subject) -> Result<Splitway> {
    let (_, path) = written(workspace, subject)?;
    let mut command = pinned(&server_cores(1), &workspace.splitway);
    command.args(["proxy", "--report-json", "--config"]);
    command.arg(path);
    if subject == Subject::OwnHandedOn {
        command.arg("--no-steering");
    }
    let splitway = Splitway::start(&mut command)?;
    place(&splitway)?;
    Ok(splitway)
}

/// Steers the kernel's work for client and backends, and for the stack, to their cores; and sets
/// the congestion control of the kernel's connections.
fn place(splitway: &Splitway) -> Result<()> {
    with_ends(splitway, |[kernel, stack]| {
        link::steer(kernel, CLIENT_CORE)?;
        link::steer(stack, SERVER_CORE)
    })?;
    let route = format!("ip route replace 10.77.0.0/24 dev {LINK} src 10.77.0.1 congctl cubic");
    run_tool(&mut tool(&route)).map(drop)
}

fn only_child(of: Pid) -> Result<Pid> {
    wait::until(WAIT_MAX, "the process that balances", || {
        children(of).ok()?.first().copied()
    })
}

/// Starts nginx, which serves the files.
fn start_files(workspace: &Workspace) -> Result<Process> {
    let own = workspace.site.outside().join("backend");
    fs::create_dir_all(&own).context(|| format!("creating {}", own.display()))?;
    let (root, port) = (workspace.site.root(), Service::Files.backend_port());
    let server = format!("    server {{ listen {port}; root {}; }}\n", root.display());
    let path = own.join("configuration");
    let text = nginx::configuration(&own, 1, &server);
    fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
    let mut command = tool(&format!("taskset --cpu-list {CLIENT_CORE} nginx -e"));
    command.arg(own.join("error.log")).arg("-c").arg(path);
    let process = Process::spawn(command.stdin(Stdio::null()))?;
    listens(port)?;
    Ok(process)
}

/// Starts the server program of `sockets` on the kernel's.
fn start_echo(service: Service) -> Result<Process> {
    let own = std::env::current_exe().context(|| "finding this program".into())?;
    let port = service.backend_port();
    let mut command = tool(&format!("taskset --cpu-list {CLIENT_CORE}"));
    command
        .arg(own)
        .args(["sockets-server", "--sockets=kernel"]);
    command.arg(format!("--listen={}", SocketAddr::from(([0; 4], port))));
    if service == Service::Short {
        command.arg(format!("--close-after={}", super::SHORT_BYTES));
    }
    let process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
    listens(port)?;
    Ok(process)
}

fn listens(port: u16) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait::until(WAIT_MAX, "a backend", || TcpStream::connect(address).ok()).map(drop)
}
