//! Programs on Splitway's sockets, against the kernel's sockets and the server in the host process.
//!
//! | Part | Comparison |
//! |---|---|
//! | echo | the same server over kernel and split sockets, over message lengths and connections |
//! | short connections | one echo on each, then the server closes |
//! | modes | echo and short connections, with each mode of TCP Servers reversed |
//! | files | the same server, the one in the host process, and nginx |
//! | system calls | of each process, for each echo and each file, in runs of their own |
//!
//! | Module | Contents |
//! |---|---|
//! | `calls` | the calls of the server: the kernel's, or those of `libsplitway` |
//! | [`server`] | the server |
//! | [`client`] | the load that compares every byte |
//! | `bed` | servers, started and measured |
//! | `report` | tables, plots, targets |

pub(super) mod bed;
mod calls;
pub(crate) mod client;
mod report;
pub(crate) mod server;

use capi::client::Modes;
use serde::Serialize;
use testbed::{Context, Failure, Result};

use self::bed::{Bed, Load, Subject};
use crate::measure::plan::Plan;
use crate::measure::results::Results;
use crate::measure::rounds::Rounds;

/// Parts of the results.
const ECHO: &str = "echo";
/// Echoes along one axis, for the plots.
const OVER_BYTES: &str = "echo over lengths";
const OVER_CONNECTIONS: &str = "echo over connections";
const SHORT: &str = "short connections";
const MODES: &str = "modes";
const FILES: &str = "files";
const CALLS: &str = "system calls";

/// Length and number of connections that targets concern; the fixed value of either axis while the
/// other varies.
const MESSAGE_BYTES: usize = 1024;
const CONNECTIONS: usize = 64;

/// Length of the message on a short connection.
const SHORT_BYTES: usize = 64;

/// Number of files, except for large ones, and their size.
const FILE_COUNT: usize = 200;
const FILE_BYTES: u64 = 500_000;

/// Total size of larger files.
const FILES_BYTES: u64 = FILE_COUNT as u64 * FILE_BYTES;

/// Most bytes of messages in flight at once: more exceed the buffers.
const UNDER_WAY_BYTES_MAX: usize = 512 << 20;

/// Seconds of each run, also for quick runs.
const SECONDS: f64 = 3.0;
const QUICK_SECONDS: f64 = 0.3;

/// A server program, started and ended.
const PROGRAM_SECONDS: f64 = 0.08;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Workloads to measure: `echo`, `short`, `modes`, `files`, `calls`
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// Lengths of messages, in bytes [default: 64,1024,16384,1048576, or 1024 for quick runs]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    message_bytes: Vec<usize>,
    /// Numbers of connections [default: 1,64,1000,4000, or 64 for quick runs]
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Length of files, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = FILE_BYTES,
        value_parser = clap::value_parser!(u64).range(1..=FILES_BYTES))]
    file_bytes: u64,
    /// Measure each length with each number of connections, not only lengths with 64 connections
    /// and connections with 1 KB
    #[arg(long)]
    every_cell: bool,
    /// Let the kernel receive the clients' packets on the servers' core, instead of in the context
    /// of the sending client
    #[arg(long)]
    steer_requests: bool,
    /// A further argument for `splitway serve`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// The workloads.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    Echo,
    Short,
    Modes,
    Files,
    Calls,
}

impl Workload {
    const ALL: [Workload; 5] = [
        Workload::Echo,
        Workload::Short,
        Workload::Modes,
        Workload::Files,
        Workload::Calls,
    ];
}

/// One kind of echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    message_bytes: usize,
    connections: usize,
}

impl Cell {
    const TARGET: Cell = Cell {
        message_bytes: MESSAGE_BYTES,
        connections: CONNECTIONS,
    };

    fn conditions(self) -> [(&'static str, f64); 2] {
        [
            ("message_bytes", self.message_bytes as f64),
            ("connections", self.connections as f64),
        ]
    }

    /// Returns the parts to which it belongs.
    fn parts(self) -> Vec<&'static str> {
        let axes = [
            (OVER_BYTES, self.connections == CONNECTIONS),
            (OVER_CONNECTIONS, self.message_bytes == MESSAGE_BYTES),
        ];
        let axes = axes.into_iter().filter(|(_, is_on_it)| *is_on_it);
        std::iter::once(ECHO)
            .chain(axes.map(|(part, _)| part))
            .collect()
    }

    fn load(self) -> Load {
        Load::Echo {
            cell: self,
            short: false,
        }
    }
}

impl Settings {
    fn seconds(&self) -> f64 {
        self.rounds.seconds_of(QUICK_SECONDS, SECONDS)
    }

    fn file_count(&self) -> usize {
        FILE_COUNT.min((FILES_BYTES / self.file_bytes) as usize)
    }

    fn has(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload)
    }

    /// Returns the cells to measure.
    fn cells(&self) -> Result<Vec<Cell>> {
        let chosen = |given: &[usize], usual: &[usize], quick: usize| match (given, self.is_quick())
        {
            ([], true) => vec![quick],
            ([], false) => usual.to_vec(),
            (given, _) => given.to_vec(),
        };
        let lengths = [64, MESSAGE_BYTES, 16 << 10, 1 << 20];
        let lengths = chosen(&self.message_bytes, &lengths, MESSAGE_BYTES);
        let numbers = [1, CONNECTIONS, 1000, 4000];
        let numbers = chosen(&self.connections, &numbers, CONNECTIONS);
        let base = |values: &[usize], usual: usize| {
            let is_there = values.contains(&usual);
            if is_there { usual } else { values[0] }
        };
        let [base_length, base_number] =
            [base(&lengths, MESSAGE_BYTES), base(&numbers, CONNECTIONS)];
        let mut cells = Vec::new();
        for &message_bytes in &lengths {
            for &connections in &numbers {
                let cell = Cell {
                    message_bytes,
                    connections,
                };
                if message_bytes == 0 || connections == 0 {
                    return Err(Failure::new("messages have bytes, and loads connections"));
                }
                if message_bytes.saturating_mul(connections) > UNDER_WAY_BYTES_MAX {
                    // Of every cell, only possible ones.
                    if self.every_cell {
                        continue;
                    }
                    if message_bytes == base_length || connections == base_number {
                        return Err(Failure::new(format!(
                            "{connections} messages of {message_bytes} bytes are more than \
                             {UNDER_WAY_BYTES_MAX} bytes at once"
                        )));
                    }
                }
                let is_on_axis = message_bytes == base_length || connections == base_number;
                if self.every_cell || is_on_axis {
                    cells.push(cell);
                }
            }
        }
        Ok(cells)
    }

    fn is_quick(&self) -> bool {
        self.rounds.is_quick()
    }
}

/// Returns the variants of the modes: their names, and the modes.
fn variants() -> [(&'static str, Modes); 7] {
    let usual = Modes::default();
    let turned = |mode: Modes| Modes::from_bits(usual.bits() ^ mode.bits());
    [
        ("default modes", usual),
        ("with split-tcp", turned(Modes::SPLIT_TCP)),
        ("without async-send", turned(Modes::ASYNC_SEND)),
        ("without eager-receive", turned(Modes::EAGER_RECEIVE)),
        ("without eager-accept", turned(Modes::EAGER_ACCEPT)),
        (
            "without setup-with-accept",
            turned(Modes::SETUP_WITH_ACCEPT),
        ),
        (
            "without buffers-on-demand",
            turned(Modes::BUFFERS_ON_DEMAND),
        ),
    ]
}

/// One echo of 64 bytes on each connection, on 64 at a time.
pub(super) const SHORT_LOAD: Load = Load::Echo {
    cell: Cell {
        message_bytes: SHORT_BYTES,
        connections: CONNECTIONS,
    },
    short: true,
};

/// A name and the measured subject.
type Series = (&'static str, Subject);

/// Conditions that differ between runs of the same series.
type Conditions = [(&'static str, f64)];

/// The loads whose system calls are counted; only the first for quick runs.
const COUNTED: [(&str, Load); 3] = [
    (
        "echo",
        Load::Echo {
            cell: Cell::TARGET,
            short: false,
        },
    ),
    ("short", SHORT_LOAD),
    ("file", Load::Files),
];

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let rounds = settings.rounds.count();
    let mut plan = Plan::new();
    plan.files(settings.file_count(), settings.file_bytes);
    plan.beds(1);
    let mut runs = |count: usize, connections: usize, bytes: u64| {
        plan.runs(count, connections, bytes, settings.seconds());
        plan.also(count, PROGRAM_SECONDS);
    };
    if settings.has(Workload::Echo) {
        for cell in settings.cells().unwrap_or_default() {
            runs(2 * rounds, cell.connections, cell.message_bytes as u64);
        }
    }
    if settings.has(Workload::Short) {
        runs(2 * rounds, CONNECTIONS, SHORT_BYTES as u64);
    }
    if settings.has(Workload::Modes) && !settings.is_quick() {
        runs(
            2 * variants().len() * rounds,
            CONNECTIONS,
            MESSAGE_BYTES as u64,
        );
    }
    if settings.has(Workload::Files) {
        runs(4 * rounds, CONNECTIONS, settings.file_bytes);
    }
    if settings.has(Workload::Calls) {
        let (echoes, files) = if settings.is_quick() { (1, 0) } else { (2, 1) };
        runs(2 * echoes, CONNECTIONS, MESSAGE_BYTES as u64);
        runs(2 * files, CONNECTIONS, settings.file_bytes);
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let cells = settings.cells().context(|| "what to measure".into())?;
    let mut results = Results::new("sockets", "Programs on split sockets", settings)?;
    let bed = Bed::start(
        (settings.file_count(), settings.file_bytes),
        &settings.splitway,
        settings.steer_requests,
    )?;
    bed.describe(&mut results)?;
    let usual = Subject::Split(Modes::default());
    let programs = [Subject::Kernel, usual].map(|subject| (subject.name(), subject));
    let mut turns = |parts: &[&'static str], conditions: &Conditions, load, subjects: &[Series]| {
        settings.rounds.take_turns(subjects, |&(name, subject)| {
            let measures = bed.run(name, subject, load, settings.seconds(), false)?;
            for &part in parts {
                results.add(part, name, conditions, measures.clone());
            }
            Ok(())
        })
    };
    if settings.has(Workload::Echo) {
        for cell in &cells {
            turns(&cell.parts(), &cell.conditions(), cell.load(), &programs)?;
        }
    }
    if settings.has(Workload::Short) {
        turns(&[SHORT], &[], SHORT_LOAD, &programs)?;
    }
    if settings.has(Workload::Files) {
        let others = [Subject::InProcess, Subject::Nginx];
        let subjects = others.map(|subject| (subject.name(), subject));
        let subjects: Vec<_> = programs.into_iter().chain(subjects).collect();
        turns(&[FILES], &[], Load::Files, &subjects)?;
    }
    // Single runs are too noisy for a comparison of modes.
    if settings.has(Workload::Modes) && !settings.is_quick() {
        let subjects = variants().map(|(name, modes)| (name, Subject::Split(modes)));
        for (is_short, load) in [(0.0, Cell::TARGET.load()), (1.0, SHORT_LOAD)] {
            turns(&[MODES], &[("short", is_short)], load, &subjects)?;
        }
    }
    if settings.has(Workload::Calls) {
        let kinds = if settings.is_quick() {
            1
        } else {
            COUNTED.len()
        };
        for (what, load) in COUNTED.into_iter().take(kinds) {
            for (name, subject) in &programs {
                let measures = bed.run(name, *subject, load, settings.seconds(), true)?;
                results.add(CALLS, format!("{name}, {what}"), &[], measures);
            }
        }
    }
    let output = settings.rounds.output(bed.output()).to_owned();
    bed.end(&mut results)?;
    report::report(&mut results);
    results.publish(&output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

    fn cells(options: &[&str]) -> Vec<(usize, usize)> {
        let cells = settings::<Settings>(options).cells().unwrap().into_iter();
        cells
            .map(|cell| (cell.message_bytes, cell.connections))
            .collect()
    }

    #[test]
    fn lengths_and_connections_are_axes_through_the_target() {
        let expected = [
            (64, 64),
            (1024, 1),
            (1024, 64),
            (1024, 1000),
            (1024, 4000),
            (16 << 10, 64),
            (1 << 20, 64),
        ];
        assert_eq!(cells(&[]), expected);
        assert_eq!(cells(&["--quick"]), [(1024, 64)]);
        let chosen = [
            "--message-bytes=10,20",
            "--connections=3,64",
            "--every-cell",
        ];
        assert_eq!(cells(&chosen), [(10, 3), (10, 64), (20, 3), (20, 64)]);
        assert_eq!(cells(&chosen[..2]), [(10, 3), (10, 64), (20, 64)]);
    }

    #[test]
    fn a_load_that_fits_nowhere_is_refused_or_left_out() {
        let large = ["--message-bytes=1048576", "--connections=64,4000"];
        assert!(settings::<Settings>(&large).cells().is_err());
        let every = [large[0], large[1], "--every-cell"];
        assert_eq!(cells(&every), [(1 << 20, 64)]);
        assert!(settings::<Settings>(&["--connections=0"]).cells().is_err());
    }

    #[test]
    fn each_mode_is_turned_round_once() {
        let [(_, usual), others @ ..] = variants();
        let turned = others.map(|(_, modes)| modes.bits() ^ usual.bits());
        assert!(turned.iter().all(|bits| bits.count_ones() == 1));
        assert_eq!(turned.iter().fold(0, |all, bits| all | bits), 63);
    }

    #[test]
    fn what_is_not_wanted_takes_no_time() {
        let all = plan(&settings(&["--quick"])).seconds();
        let echo = plan(&settings(&["--quick", "--workloads=echo"])).seconds();
        assert!(echo < all);
    }
}
