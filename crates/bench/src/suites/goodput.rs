//! `splitway-bench link`: goodput over emulated links, Splitway against the kernel's TCP.
//!
//! Both senders are in one namespace, behind one interface, and reach the client through one
//! emulator ([`testbed::path`]). The kernel's sender is nginx with `sendfile`. For each cell of a
//! matrix of conditions the two take turns under the same seed, and the same client reads from
//! them; then both send at once, half of the flows each, to show how they share.
//!
//! | Module | Contents |
//! |---|---|
//! | [`cell`] | conditions of the link in each cell |
//! | [`fetch`] | the client |
//! | [`report`] | ratios, fairness, tables, JSON |

pub(super) mod cell;
pub(crate) mod fetch;
pub(super) mod report;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde::Serialize;
use testbed::namespace::within;
use testbed::path::{self, Path, UPLINK};
use testbed::process::{Process, run, tool};
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::{Context, Failure, Result, wait};

use crate::SERVER_CORE;
use crate::measure::plan::Plan;
use crate::measure::results::Results;
use crate::measure::rounds::Rounds;
use crate::servers::nginx;
use crate::servers::server_set::Workspace;
use cell::{Cell, Matrix};
use fetch::Outcome;

/// The file of every flow: a hole, so that no disk affects the result, and longer than any flow can
/// download.
pub(super) const FILE: &str = "long";
pub(super) const FILE_BYTES: u64 = 16 << 30;

/// Host number of the kernel's sender on the path's network, and of Splitway.
pub(super) const KERNEL: u8 = 2;
pub(super) const SPLITWAY: u8 = 3;

/// Round trips of each run, in addition to its seconds; round trips of each run about fairness, and
/// its factor of the seconds: CUBIC converges slowly to equal shares.
pub(super) const ROUND_TRIPS: u32 = 100;
const ROUND_TRIPS_FAIR: u32 = 300;
const SECONDS_FAIR: u32 = 8;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    matrix: Matrix,
    /// Seed of the first round; the others follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Congestion control of both senders.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Only the cells whose flows share a link between both senders.
    #[arg(long)]
    mixed_only: bool,
    /// A further argument for `splitway serve`; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
    /// Fairness only, over numbers of flows.
    #[arg(skip)]
    is_about_fairness: bool,
}

/// The settings of the fairness part alone.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FairnessSettings {
    #[command(flatten)]
    rounds: Rounds,
    /// Numbers of flows [default: 16,64,200, or 16 for quick runs]
    #[arg(long, value_delimiter = ',')]
    flows: Vec<usize>,
    /// Round-trip time, in milliseconds
    #[arg(long, default_value_t = 2.0)]
    rtt: f64,
}

impl FairnessSettings {
    /// Returns the settings of the whole benchmark.
    pub(crate) fn settings(&self) -> Settings {
        let flows = match (self.flows.as_slice(), self.rounds.is_quick()) {
            ([], true) => vec![16],
            ([], false) => vec![16, 64, 200],
            (given, _) => given.to_vec(),
        };
        Settings {
            rounds: self.rounds.clone(),
            matrix: Matrix::without_loss(self.rtt, flows),
            seed: 1,
            congestion: "cubic".into(),
            mixed_only: false,
            splitway: Vec::new(),
            is_about_fairness: true,
        }
    }
}

impl Settings {
    fn rounds(&self) -> u64 {
        self.rounds.count_or(3) as u64
    }

    /// Returns the senders that take turns in a cell.
    fn senders(&self, cell: &Cell) -> Vec<Sender> {
        let mut senders = Vec::new();
        if !self.mixed_only {
            senders.extend([Sender::Splitway, Sender::Kernel]);
        }
        if cell.shows_fairness() {
            senders.push(Sender::Mixed);
        }
        senders
    }

    /// Returns the length of a run of a cell. Windows grow and shrink by the round trip: on a long
    /// path, seconds alone would measure only slow start.
    fn length(&self, cell: &Cell) -> Duration {
        let seconds = Duration::from_secs_f64(self.rounds.seconds_or(3.0));
        if cell.shows_fairness() && !self.rounds.is_quick() {
            seconds * SECONDS_FAIR + cell.rtt() * ROUND_TRIPS_FAIR
        } else {
            seconds + cell.rtt() * ROUND_TRIPS
        }
    }
}

/// Sending side of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sender {
    Splitway,
    Kernel,
    /// Both, half of the flows each.
    Mixed,
}

impl Sender {
    fn addresses(self) -> Vec<SocketAddr> {
        let hosts: &[u8] = match self {
            Sender::Splitway => &[SPLITWAY],
            Sender::Kernel => &[KERNEL],
            Sender::Mixed => &[SPLITWAY, KERNEL],
        };
        let address = |host: &u8| (path::addresses(*host)[0], 80).into();
        hosts.iter().map(address).collect()
    }
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) sender: Sender,
    pub(crate) seed: u64,
    pub(crate) outcome: Outcome,
    /// The emulator's report.
    pub(crate) emulator: serde_json::Value,
}

/// The network of the measurement.
struct Paths<'a> {
    splitway: &'a FilePath,
    settings: &'a Settings,
    path: Path,
    site: &'a Site,
    _nginx: Process,
}

/// Time of each run for emulator, servers and their end.
pub(super) const AROUND_SECONDS: f64 = 0.8;

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    plan.beds(1);
    for cell in settings.matrix.cells(settings.rounds.is_quick()) {
        let runs = settings.senders(&cell).len() * settings.rounds() as usize;
        plan.also(runs, settings.length(&cell).as_secs_f64() + AROUND_SECONDS);
    }
    plan
}

/// Measures.
pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let workspace = Workspace::prepare(0, 0)?;
    run_punctually();
    workspace.site.sparse_file(FILE, FILE_BYTES, Vec::new())?;
    let paths = Paths::make(&workspace.splitway, settings, &workspace.site)?;
    let (name, title) = if settings.is_about_fairness {
        ("fairness", "Fairness: equal flows through one queue")
    } else {
        ("link", "Splitway and the kernel's TCP over emulated links")
    };
    let mut results = Results::new(name, title, settings)?;
    results
        .machine()
        .set_congestion_control(&settings.congestion);
    for cell in settings.matrix.cells(settings.rounds.is_quick()) {
        eprintln!("{cell}");
        let senders = settings.senders(&cell);
        let mut runs = Vec::new();
        for round in 0..settings.rounds() {
            for place in 0..senders.len() {
                // The order rotates with each round, so that no server always follows the other.
                let sender = senders[(place + round as usize) % senders.len()];
                runs.push(paths.run(&cell, sender, settings.seed + round)?);
            }
        }
        report::add(&mut results, &cell, &runs);
    }
    report::report(&mut results, settings);
    results.publish(settings.rounds.output(&workspace.output))
}

/// Schedules all processes with the emulator's real-time priority, where permitted. The kernel's
/// sender answers in the context of the emulator, which hands it the acknowledgment; on a busy
/// machine, Splitway's processes would wait for their turn, up to a tenth of a second each time,
/// and the waits would dominate the result.
pub(super) fn run_punctually() {
    let line = format!("chrt --rr --pid 1 {}", std::process::id());
    if run(&mut tool(&line)).is_err() {
        eprintln!("no real-time priority: distrust what follows if the machine does anything else");
    }
}

impl<'a> Paths<'a> {
    fn make(splitway: &'a FilePath, settings: &'a Settings, site: &'a Site) -> Result<Paths<'a>> {
        let path = Path::new()?;
        path.congestion_control(true, &settings.congestion)?;
        // Cached metrics of a connection would give the kernel's next one an advantage over
        // Splitway.
        let forget = "sysctl -qw net.ipv4.tcp_no_metrics_save=1";
        run(&mut tool(forget))?;
        run(&mut within(path.beyond(), forget))?;
        fix_neighbours(&path)?;
        let open = path.emulate(splitway, [""; 0])?;
        let IpAddr::V4(address) = path::addresses(KERNEL)[0] else {
            return Err(Failure::new("the first address is that of IPv4"));
        };
        let nginx = nginx::serve(path.beyond(), address, site.root(), site.outside(), None, 1)?;
        open.end()?;
        Ok(Paths {
            splitway,
            settings,
            path,
            site,
            _nginx: nginx,
        })
    }

    /// Starts Splitway, fresh for each run, without state from the previous one.
    fn start_splitway(&self) -> Result<Splitway> {
        let pinned = format!("taskset --cpu-list {SERVER_CORE}");
        let mut command = within(self.path.beyond(), &pinned);
        command
            .arg(self.splitway)
            .arg("serve")
            .arg(self.site.root());
        let address = format!("{}/24", path::addresses(SPLITWAY)[0]);
        command.args(["--dev", UPLINK, "--addr", &address]);
        command.args(&self.settings.splitway);
        Splitway::start(&mut command)
    }

    fn run(&self, cell: &Cell, sender: Sender, seed: u64) -> Result<Run> {
        let mut splitway = match sender {
            Sender::Kernel => None,
            Sender::Splitway | Sender::Mixed => Some(self.start_splitway()?),
        };
        let options = cell.options(seed);
        let emulator = self.path.emulate(self.splitway, &options)?;
        let length = self.settings.length(cell);
        let wanted =
            fetch::Settings::new(&sender.addresses(), cell.flows, FILE, length, length / 3);
        let outcome = fetched(wanted.arguments())?;
        let emulator = emulator.end()?;
        let emulator = serde_json::from_str(&emulator)
            .context(|| format!("splitway link printed {emulator:?}"))?;
        if let Some(splitway) = &mut splitway {
            splitway.end_with(Signal::TERM)?;
        }
        if sender != Sender::Splitway {
            self.settle()?;
        }
        let run = Run {
            sender,
            seed,
            outcome,
            emulator,
        };
        eprintln!("  {run}");
        Ok(run)
    }

    /// Waits until the kernel's sender has detected the end of the client: its remaining packets
    /// would disturb the next run.
    fn settle(&self) -> Result<()> {
        let open = self.path.emulate(self.splitway, [""; 0])?;
        wait::until(
            Duration::from_secs(60),
            "the end of all connections",
            || {
                let line = "ss -Htn state connected exclude time-wait";
                let left = run(&mut within(self.path.beyond(), line)).ok()?;
                left.trim().is_empty().then_some(())
            },
        )?;
        open.end().map(drop)
    }
}

/// Sets permanent neighbor entries on both sides of a path: address resolution is not under
/// measurement. Splitway has the interface's address.
pub(super) fn fix_neighbours(path: &Path) -> Result<()> {
    let client = mac(None, path::CLIENT)?;
    let uplink = mac(Some(path.beyond()), UPLINK)?;
    for host in [KERNEL, SPLITWAY] {
        permanent(None, path::addresses(host)[0], path::CLIENT, &uplink)?;
    }
    permanent(Some(path), path::CLIENT_ADDRESSES[0], UPLINK, &client)
}

/// Returns the link address of a device.
fn mac(namespace: Option<Pid>, device: &str) -> Result<String> {
    let line = format!("ip -oneline link show {device}");
    let shown = run(&mut namespace.map_or_else(|| tool(&line), |process| within(process, &line)))?;
    let mut words = shown
        .split_whitespace()
        .skip_while(|word| *word != "link/ether");
    words
        .nth(1)
        .map(str::to_owned)
        .ok_or_else(|| Failure::new(format!("no link address in {shown:?}")))
}

/// Adds a permanent neighbor entry to the kernel's table.
fn permanent(path: Option<&Path>, address: IpAddr, device: &str, mac: &str) -> Result<()> {
    let line = format!("ip neigh replace {address} dev {device} lladdr {mac} nud permanent");
    let mut command = path.map_or_else(|| tool(&line), |path| within(path.beyond(), &line));
    run(&mut command).map(drop)
}

/// Runs a client in a process of its own: this program with these arguments.
pub(super) fn fetched(arguments: Vec<String>) -> Result<Outcome> {
    let own = std::env::current_exe().context(|| "finding this program".into())?;
    let mut command = Command::new(own);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut client = Process::spawn(&mut command)?;
    let stdout = client.child().stdout.take().expect("a pipe, as asked for");
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context(|| "reading from the client".into())?;
    client.wait(Duration::from_secs(10))?;
    serde_json::from_str(&line).context(|| format!("the client printed {line:?}"))
}
