//! `splitway-bench quic-link`: goodput of HTTP/3 over emulated links that lose, delay and reorder,
//! against plain quinn, and against Splitway's own TCP.
//!
//! All senders are in one namespace, behind one interface, and reach the client through one
//! emulator, as in `link`. Each run starts its own server, so that no packet of the previous run is
//! in flight.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use testbed::namespace::within;
use testbed::path::{self, Path, UPLINK};
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::{Context, Failure, Result};

use super::plain::Plain;
use super::receive::Mode;
use super::server::LossDetection;
use super::{LINK_WINDOW_BYTES, PORT, fetch, own_arguments};
use crate::SERVER_CORE;
use crate::measure::plan::Plan;
use crate::measure::results::{Column, Plot, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::spread::Conditions;
use crate::servers::server_set::Workspace;
use crate::suites::goodput::cell::{Cell, Matrix};
use crate::suites::goodput::fetch as tcp_fetch;
use crate::suites::goodput::{
    AROUND_SECONDS, FILE, FILE_BYTES, KERNEL, ROUND_TRIPS, SPLITWAY, fetched, fix_neighbours,
    run_punctually,
};
use crate::suites::tls::identity::Identity;

/// The port of Splitway over TCP.
const HTTP_PORT: u16 = 80;

/// Loss and reordering, in percent, and round-trip times, in milliseconds; each also for quick
/// runs.
const LOSS: [f64; 4] = [0.0, 0.1, 1.0, 5.0];
const LOSS_QUICK: [f64; 2] = [0.0, 1.0];
const REORDER: [f64; 4] = [0.0, 1.0, 5.0, 10.0];
const REORDER_QUICK: [f64; 2] = [0.0, 5.0];
const RTT_MS: [f64; 2] = [20.0, 100.0];
const RTT_MS_QUICK: [f64; 1] = [20.0];

/// Parts of the results: runs, ratios of runs with the same seed, and data of plots.
const GOODPUT: &str = "goodput";
const PAIRS: &str = "pairs";
const OVER_LOSS: &str = "over loss";
const OVER_REORDERING: &str = "over reordering";
const BY_DETECTION: &str = "over reordering, by loss detection";
const BY_ORDER: &str = "over reordering, by order";

const LOST: &str = "loss_percent";
const REORDERED: &str = "reorder_percent";
const CONDITIONS: Conditions = &[
    ("rtt_ms", "RTT, ms"),
    (REORDERED, "Reordered, %"),
    (LOST, "Lost, %"),
];

/// The cells to measure.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Percentages of packets lost, in both directions [default: 0,0.1,1,5, or 0,1 for quick runs]
    #[arg(long, value_delimiter = ',')]
    loss: Vec<f64>,
    /// Percentages of packets that others overtake [default: 0,1,5,10, or 0,5 for quick runs]
    #[arg(long, value_delimiter = ',')]
    reorder: Vec<f64>,
    /// Round-trip times, in milliseconds [default: 20,100, or 20 for quick runs]
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<f64>,
    /// Connections, each downloading one long file
    #[arg(long, default_value_t = 4)]
    flows: usize,
    /// Rate of the link, in megabits per second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Seed of the first round; the others follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Senders [default: splitway,quinn,tcp, and except in quick runs the others as well for cells
    /// with reordering and no loss]
    #[arg(long, value_enum, value_delimiter = ',')]
    senders: Vec<Sender>,
    /// A further argument for `splitway serve`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// The senders.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sender {
    /// Splitway, over HTTP/3
    Splitway,
    /// Plain quinn
    Quinn,
    /// The same, with Splitway's loss detection: the time threshold alone, and out-of-order packets
    /// are acknowledged at once
    QuinnByTime,
    /// That, without immediate acknowledgments
    QuinnLateAcks,
    /// Splitway, over TCP
    Tcp,
    /// Splitway, over HTTP/3, where NIC workers open and order clients' packets
    Nic,
    /// The same, ordered by a linear list
    NicLinear,
    /// The same, in order of arrival
    NicOff,
}

impl Sender {
    const USUAL: [Sender; 3] = [Sender::Splitway, Sender::Quinn, Sender::Tcp];

    /// Senders to compare under reordering, by loss detection and by where clients' packets are
    /// ordered.
    const BY_DETECTION: [Sender; 2] = [Sender::QuinnByTime, Sender::QuinnLateAcks];
    const BY_ORDER: [Sender; 3] = [Sender::Nic, Sender::NicLinear, Sender::NicOff];

    fn name(self) -> &'static str {
        match self {
            Sender::Splitway => "Splitway, HTTP/3",
            Sender::Quinn => "plain quinn, HTTP/3",
            Sender::QuinnByTime => "plain quinn, by time, ACK at once",
            Sender::QuinnLateAcks => "plain quinn, by time, no ACK at once",
            Sender::Tcp => "Splitway, TCP",
            Sender::Nic => "Splitway, receive = nic, ring",
            Sender::NicLinear => "Splitway, receive = nic, linear list",
            Sender::NicOff => "Splitway, receive = nic, not put in order",
        }
    }

    fn address(self) -> SocketAddr {
        let (host, port) = match self {
            Sender::Quinn | Sender::QuinnByTime | Sender::QuinnLateAcks => (KERNEL, PORT),
            Sender::Tcp => (SPLITWAY, HTTP_PORT),
            Sender::Splitway | Sender::Nic | Sender::NicLinear | Sender::NicOff => (SPLITWAY, PORT),
        };
        (path::addresses(host)[0], port).into()
    }

    /// How NIC workers put packets in order, if they open them.
    fn reorder(self) -> Option<&'static str> {
        match self {
            Sender::Nic => Some("ring"),
            Sender::NicLinear => Some("linear"),
            Sender::NicOff => Some("off"),
            _ => None,
        }
    }

    /// How plain quinn detects loss, if it sends.
    fn loss_detection(self) -> Option<LossDetection> {
        match self {
            Sender::Quinn => Some(LossDetection::QUINN),
            Sender::QuinnByTime => Some(LossDetection::BY_TIME),
            Sender::QuinnLateAcks => Some(LossDetection {
                reordering_threshold: 0,
                ..LossDetection::BY_TIME
            }),
            _ => None,
        }
    }

    /// The parts of the results, plotted by reordering, that include this sender.
    fn plotted(self) -> &'static [&'static str] {
        match self {
            Sender::Splitway => &[OVER_REORDERING, BY_DETECTION, BY_ORDER],
            Sender::Quinn => &[OVER_REORDERING, BY_DETECTION],
            Sender::Tcp => &[OVER_REORDERING],
            Sender::QuinnByTime | Sender::QuinnLateAcks => &[BY_DETECTION],
            Sender::Nic | Sender::NicLinear | Sender::NicOff => &[BY_ORDER],
        }
    }
}

impl Settings {
    fn cells(&self) -> Vec<Cell> {
        let is_quick = self.rounds.is_quick();
        let of = |given: &'_ [f64], all: &'_ [f64], quick: &'_ [f64]| -> Vec<f64> {
            let default = if is_quick { quick } else { all };
            let chosen = if given.is_empty() { default } else { given };
            chosen.to_vec()
        };
        let loss = of(&self.loss, &LOSS, &LOSS_QUICK);
        let rtt = of(&self.rtt, &RTT_MS, &RTT_MS_QUICK);
        let reorder = of(&self.reorder, &REORDER, &REORDER_QUICK);
        Matrix::of(&loss, &rtt, &reorder, self.flows, self.rate).cells(false)
    }

    /// The senders that take turns in a cell.
    fn senders(&self, cell: &Cell) -> Vec<Sender> {
        if !self.senders.is_empty() {
            return self.senders.clone();
        }
        let mut senders = Sender::USUAL.to_vec();
        if cell.loss == 0.0 && cell.reorder > 0.0 && !self.rounds.is_quick() {
            senders.extend(Sender::BY_DETECTION);
            senders.extend(Sender::BY_ORDER);
        }
        senders
    }

    fn rounds(&self) -> u64 {
        self.rounds.count_or(3) as u64
    }

    /// Length of a run: windows grow and shrink by the round trip.
    fn length(&self, cell: &Cell) -> Duration {
        let seconds = Duration::from_secs_f64(self.rounds.seconds_or(3.0));
        seconds + cell.rtt() * ROUND_TRIPS
    }
}

/// The planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    plan.beds(1);
    for cell in settings.cells() {
        let runs = settings.senders(&cell).len() * settings.rounds() as usize;
        plan.also(runs, settings.length(&cell).as_secs_f64() + AROUND_SECONDS);
    }
    plan
}

/// Runs the measurements.
pub(crate) fn measure(settings: &Settings) -> Result<()> {
    if settings.flows == 0 {
        return Err(Failure::new("a load has connections"));
    }
    let workspace = Workspace::prepare(0, 0)?;
    run_punctually();
    workspace.site.sparse_file(FILE, FILE_BYTES, Vec::new())?;
    let links = Links::make(&workspace, settings)?;
    let title = format!(
        "HTTP/3 over emulated links of {} Mbit/s, {} connections",
        settings.rate, settings.flows
    );
    let mut results = Results::new("quic-link", title, settings)?;
    for cell in settings.cells() {
        eprintln!("{cell}");
        let senders = settings.senders(&cell);
        for round in 0..settings.rounds() {
            let mut rates = Vec::new();
            for place in 0..senders.len() {
                // The order turns with each round, so that no sender always comes after another.
                let sender = senders[(place + round as usize) % senders.len()];
                let rate = links.run(&cell, sender, settings.seed + round, &mut results)?;
                rates.push((sender, rate));
            }
            add_pairs(&mut results, &cell, &rates);
        }
    }
    report(&mut results);
    results.publish(settings.rounds.output(&workspace.output))
}

/// The testbed.
struct Links<'a> {
    splitway: &'a FilePath,
    settings: &'a Settings,
    path: Path,
    site: &'a Site,
    identity: Identity,
    receive_nic: PathBuf,
}

/// The server of a run.
enum Server {
    Splitway(Box<Splitway>),
    Plain { _process: Plain },
}

impl<'a> Links<'a> {
    fn make(workspace: &'a Workspace, settings: &'a Settings) -> Result<Links<'a>> {
        let path = Path::new()?;
        fix_neighbours(&path)?;
        let own = workspace.site.outside();
        Ok(Links {
            splitway: &workspace.splitway,
            settings,
            path,
            site: &workspace.site,
            identity: Identity::make(own)?,
            receive_nic: Mode::Nic.configuration(own)?,
        })
    }

    fn start(&self, sender: Sender) -> Result<Server> {
        let root = self.site.root();
        if let Some(loss_detection) = sender.loss_detection() {
            let IpAddr::V4(address) = path::addresses(KERNEL)[0] else {
                return Err(Failure::new("the first address is that of IPv4"));
            };
            let network = (self.path.beyond(), address);
            let window = LINK_WINDOW_BYTES;
            let process = Plain::start(network, root, &self.identity, window, loss_detection)?;
            return Ok(Server::Plain { _process: process });
        }
        let pinned = format!("taskset --cpu-list {SERVER_CORE}");
        let mut command = within(self.path.beyond(), &pinned);
        command.arg(self.splitway).arg("serve").arg(root);
        let address = format!("{}/24", path::addresses(SPLITWAY)[0]);
        command.args(["--dev", UPLINK, "--addr", &address]);
        command.arg(format!("--listen={HTTP_PORT}"));
        command.args(own_arguments(&self.identity));
        if let Some(reorder) = sender.reorder() {
            command.arg("--config").arg(&self.receive_nic);
            command.arg(format!("--quic-reorder={reorder}"));
        }
        command.args(&self.settings.splitway);
        let splitway = Splitway::start(&mut command)?;
        Ok(Server::Splitway(Box::new(splitway)))
    }

    /// Does one run; returns its goodput, in megabits per second.
    fn run(&self, cell: &Cell, sender: Sender, seed: u64, results: &mut Results) -> Result<f64> {
        let mut server = self.start(sender)?;
        let emulator = self.path.emulate(self.splitway, cell.options(seed))?;
        let outcome = fetched(self.client(cell, sender))?;
        let emulator = emulator.end()?;
        let emulator = serde_json::from_str(&emulator)
            .context(|| format!("splitway link printed {emulator:?}"))?;
        if let Server::Splitway(splitway) = &mut server {
            splitway.end_with(Signal::TERM)?;
        }
        let mut measures = outcome.measures(&emulator);
        measures.insert("seed".into(), seed as f64);
        let (rate, late) = (measures["mbit_per_s"], measures["unpunctual_permille"]);
        eprintln!("  {:42} {rate:7.2} Mbit/s  late {late:.2} ‰", sender.name());
        results.add(GOODPUT, sender.name(), &conditions(cell), measures.clone());
        let of_path = format!("{}, {} ms", sender.name(), cell.rtt_ms);
        if cell.reorder == 0.0 && Sender::USUAL.contains(&sender) {
            let lost = [(LOST, cell.loss)];
            results.add(OVER_LOSS, of_path.clone(), &lost, measures.clone());
        }
        if cell.loss == 0.0 {
            for part in sender.plotted() {
                let reordered = [(REORDERED, cell.reorder)];
                results.add(part, of_path.clone(), &reordered, measures.clone());
            }
        }
        Ok(rate)
    }

    /// The client of a run, as arguments of this program.
    fn client(&self, cell: &Cell, sender: Sender) -> Vec<String> {
        let length = self.settings.length(cell);
        if sender == Sender::Tcp {
            let servers = [sender.address()];
            return tcp_fetch::Settings::new(&servers, cell.flows, FILE, length, length)
                .arguments();
        }
        let client = fetch::Settings {
            server: sender.address(),
            certificate: self.identity.certificate.clone(),
            flows: cell.flows,
            milliseconds: length.as_millis() as u64,
        };
        client.arguments()
    }
}

fn conditions(cell: &Cell) -> [(&'static str, f64); 3] {
    [
        ("rtt_ms", cell.rtt_ms),
        (REORDERED, cell.reorder),
        (LOST, cell.loss),
    ]
}

/// Adds Splitway's goodput over HTTP/3 as a multiple of others' with the same seed.
fn add_pairs(results: &mut Results, cell: &Cell, rates: &[(Sender, f64)]) {
    let own = rates.iter().find(|(sender, _)| *sender == Sender::Splitway);
    let Some((_, own)) = own else { return };
    for (sender, rate) in rates
        .iter()
        .filter(|(sender, _)| *sender != Sender::Splitway)
    {
        let measures = [("ratio".to_owned(), own / rate)].into();
        results.add(PAIRS, sender.name(), &conditions(cell), measures);
    }
}

fn report(results: &mut Results) {
    let goodput: Vec<Column> = vec![
        column("mbit_per_s", "Mbit/s", 2),
        column("lost", "packets of data lost", 0),
        column("unpunctual_permille", "Late or overrun, ‰", 2),
    ];
    let table = Table::of(GOODPUT, goodput).titled("Goodput");
    results.table(table.of_each("Sender").over(CONDITIONS));
    let ratio = vec![column("ratio", "Ratio of goodput", 3)];
    let table = Table::of(PAIRS, ratio).titled("Splitway over HTTP/3, runs under the same seed");
    results.table(table.of_each("Against").over(CONDITIONS));
    let lost = (LOST, "packets lost, %");
    let reordered = (REORDERED, "packets overtaken, %");
    for (part, file, title, x) in [
        (
            OVER_LOSS,
            "quic-link-loss",
            "Goodput over loss, packets in order",
            lost,
        ),
        (
            OVER_REORDERING,
            "quic-link-reordering",
            "Goodput over reordering, without loss",
            reordered,
        ),
        (
            BY_DETECTION,
            "quic-link-detection",
            "Goodput over reordering, by loss detection",
            reordered,
        ),
        (
            BY_ORDER,
            "quic-link-order",
            "Goodput over reordering, by where what clients send is put in order",
            reordered,
        ),
    ] {
        if results.has(part) {
            let y = ("mbit_per_s", "Mbit/s");
            results.plot(Plot::lines(file, part, x, y).titled(title));
        }
    }
    results.note(
        "Loss and reordering happen in both directions; a packet that others overtake is held \
         back for an eighth of the round-trip time. The queue takes one bandwidth-delay product. \
         Goodput counts from the first packet of the handshake. Both servers of HTTP/3 have \
         CUBIC, and the client's windows are larger than what path and queue take.",
    );
    results.note(
        "Where packets are overtaken and none is lost, two ablations are measured as well. Of \
         plain quinn, with thresholds of RFC 9002 (three packets, 9/8 of a round trip), with those \
         of Splitway (5/4 of a round trip alone) and acknowledgments at once for what \
         comes out of order, and without these. Of Splitway, how NIC workers put the client's \
         packets in order that they open (`[quic] receive = \"nic\"`): in a ring, in a linear \
         list, or not at all.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::{read, settings};

    #[test]
    fn order_is_varied_where_packets_are_overtaken_and_none_is_lost() {
        let all = settings::<Settings>(&[]);
        let cells = all.cells();
        assert_eq!(cells.len(), LOSS.len() * REORDER.len() * RTT_MS.len());
        for cell in &cells {
            let varies = cell.loss == 0.0 && cell.reorder > 0.0;
            let senders = all.senders(cell);
            assert_eq!(senders.contains(&Sender::NicLinear), varies, "{cell}");
            assert!(Sender::USUAL.iter().all(|sender| senders.contains(sender)));
        }
        let few = settings::<Settings>(&["--senders=quinn", "--loss=2", "--rtt=5", "--reorder=0"]);
        let cells = few.cells();
        assert_eq!(cells.len(), 1);
        assert_eq!((cells[0].loss, cells[0].rtt_ms), (2.0, 5.0));
        assert_eq!(few.senders(&cells[0]), [Sender::Quinn]);
    }

    #[test]
    fn a_quick_run_ends_in_two_minutes() {
        let quick = settings::<Settings>(&["--quick"]);
        assert_eq!(quick.cells().len(), LOSS_QUICK.len() * REORDER_QUICK.len());
        assert!(plan(&quick).seconds() < 60.0);
    }

    #[test]
    fn ratios_are_of_splitway_against_each_other_sender() {
        let cell = settings::<Settings>(&["--quick"]).cells()[0];
        let mut results = Results::new("quic-link", "Links", &()).unwrap();
        let rates = [
            (Sender::Quinn, 40.0),
            (Sender::Splitway, 50.0),
            (Sender::Tcp, 100.0),
        ];
        add_pairs(&mut results, &cell, &rates);
        add_pairs(&mut results, &cell, &rates[..1]);
        let ratio = |sender: Sender| results.of(PAIRS, sender.name()).median("ratio");
        assert_eq!((ratio(Sender::Quinn), ratio(Sender::Tcp)), (1.25, 0.5));
        assert!(ratio(Sender::Splitway).is_nan());
    }

    #[test]
    fn arguments_of_the_client_are_those_that_it_reads() {
        let client = fetch::Settings {
            server: "192.0.2.1:443".parse().unwrap(),
            certificate: "certificate.pem".into(),
            flows: 3,
            milliseconds: 500,
        };
        let arguments = client.arguments();
        let read = read::<fetch::Settings>(&arguments);
        assert_eq!(read.arguments(), arguments);
    }
}
