//! `splitway proxy` against HAProxy and nginx over the kernel's sockets, and HAProxy over split
//! ones, between a client and backends of the kernel.
//!
//! | Part | Comparison |
//! |---|---|
//! | files | files of nginx, on persistent connections and on ones closed after each response |
//! | echo | messages of 1 KB on persistent connections |
//! | short | one message of 64 bytes on each connection |
//!
//! | Module | Contents |
//! |---|---|
//! | `balancers` | names and configurations |
//! | `bed` | backends, and balancers started and measured |
//! | `report` | tables, plots, targets |

mod balancers;
mod bed;
mod report;

use serde::Serialize;
use testbed::{Failure, Result};

use self::balancers::{Service, Subject};
use self::bed::Bed;
use crate::measure::plan::Plan;
use crate::measure::results::Results;
use crate::measure::rounds::Rounds;
use crate::servers::server_set::Workspace;

/// Parts of the results.
const KEEP_ALIVE: &str = "keep-alive";
const CLOSE: &str = "close";
const ECHO: &str = "echo";
const SHORT: &str = "short";

/// Lengths of files; only the first for quick runs.
const LENGTHS: [u64; 2] = [500_000, 100_000_000];

/// Total size of the files of a length, and the limit of their number.
const FILES_BYTES: u64 = 200_000_000;
const FILES_MAX: u64 = 200;

const CONNECTIONS: usize = 64;

/// Most bytes of files in flight at once: a run begins when each connection has had two.
const UNDER_WAY_BYTES_MAX: u64 = 800_000_000;

const ECHO_BYTES: usize = 1024;
const SHORT_BYTES: usize = 64;

/// Seconds of each run.
const SECONDS: f64 = 2.0;

/// A balancer, started and ended.
const BALANCER_SECONDS: f64 = 0.9;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Workloads to measure: `files`, `echo`, `short` [default: all, or `files` for quick runs]
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Lengths of files, in bytes [default: 500000,100000000, or 500000 for quick runs]
    #[arg(long, value_delimiter = ',', value_name = "BYTES",
        value_parser = clap::value_parser!(u64).range(1..=FILES_BYTES))]
    file_bytes: Vec<u64>,
    /// Connections at a time; fewer for large files, so that at most 800 MB are in flight
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
}

/// The workloads.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    Files,
    Echo,
    Short,
}

/// Load of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Files { bytes: u64, closes: bool },
    Echo { message_bytes: usize },
    Short { message_bytes: usize },
}

impl Load {
    const ECHO: Load = Load::Echo {
        message_bytes: ECHO_BYTES,
    };
    const SHORT: Load = Load::Short {
        message_bytes: SHORT_BYTES,
    };

    fn part(self) -> &'static str {
        match self {
            Load::Files { closes: false, .. } => KEEP_ALIVE,
            Load::Files { closes: true, .. } => CLOSE,
            Load::Echo { .. } => ECHO,
            Load::Short { .. } => SHORT,
        }
    }

    fn service(self) -> Service {
        match self {
            Load::Files { .. } => Service::Files,
            Load::Echo { .. } => Service::Echo,
            Load::Short { .. } => Service::Short,
        }
    }

    /// Returns true if its connections carry enough data for a splice.
    fn is_long(self) -> bool {
        matches!(self, Load::Files { closes: false, .. } | Load::Echo { .. })
    }

    /// Returns the bytes in flight on each connection.
    fn bytes(self) -> u64 {
        match self {
            Load::Files { bytes, .. } => bytes,
            Load::Echo { message_bytes } | Load::Short { message_bytes } => message_bytes as u64,
        }
    }

    fn conditions(self) -> Vec<(&'static str, f64)> {
        match self {
            Load::Files { bytes, .. } => vec![("file_bytes", bytes as f64)],
            Load::Echo { .. } | Load::Short { .. } => Vec::new(),
        }
    }
}

impl Settings {
    fn has(&self, workload: Workload) -> bool {
        if self.workloads.is_empty() {
            workload == Workload::Files || !self.rounds.is_quick()
        } else {
            self.workloads.contains(&workload)
        }
    }

    fn lengths(&self) -> Vec<u64> {
        match (self.file_bytes.as_slice(), self.rounds.is_quick()) {
            _ if !self.has(Workload::Files) => Vec::new(),
            ([], true) => LENGTHS[..1].to_vec(),
            ([], false) => LENGTHS.to_vec(),
            (chosen, _) => chosen.to_vec(),
        }
    }

    fn seconds_of_run(&self) -> f64 {
        self.rounds.seconds_or(SECONDS)
    }

    fn connections_of(&self, load: Load) -> usize {
        let most = (UNDER_WAY_BYTES_MAX / load.bytes()).max(1);
        self.connections.min(most as usize)
    }

    /// Returns the loads on files of a length, or without a length all others.
    fn loads(&self, file_bytes: Option<u64>) -> Vec<Load> {
        match file_bytes {
            Some(bytes) => {
                let files = |closes| Load::Files { bytes, closes };
                let closes = !self.rounds.is_quick();
                std::iter::once(files(false))
                    .chain(closes.then(|| files(true)))
                    .collect()
            }
            None => [(Workload::Echo, Load::ECHO), (Workload::Short, Load::SHORT)]
                .into_iter()
                .filter(|(workload, _)| self.has(*workload))
                .map(|(_, load)| load)
                .collect(),
        }
    }

    /// Returns the balancers of a load: HTTP only for files, splices only for long connections.
    fn subjects(&self, load: Load) -> Vec<Subject> {
        let all = if self.rounds.is_quick() {
            &Subject::QUICK[..]
        } else {
            &Subject::ALL
        };
        let is_on = |subject: &&Subject| match load {
            Load::Files { .. } => true,
            Load::Echo { .. } => !subject.is_http(),
            Load::Short { .. } => !subject.is_http() && !subject.has_splices(),
        };
        all.iter().filter(is_on).copied().collect()
    }

    /// Returns the stages: files of each length, and then no files.
    fn stages(&self) -> impl Iterator<Item = Option<u64>> {
        self.lengths().into_iter().map(Some).chain([None])
    }
}

fn file_count(file_bytes: u64) -> usize {
    (FILES_BYTES / file_bytes).clamp(1, FILES_MAX) as usize
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    for stage in settings.stages() {
        let loads = settings.loads(stage);
        if loads.is_empty() {
            continue;
        }
        if let Some(bytes) = stage {
            plan.files(file_count(bytes), bytes);
        }
        plan.splitways(1);
        for load in loads {
            let count = settings.subjects(load).len() * settings.rounds.count();
            let connections = settings.connections_of(load);
            plan.also(count, BALANCER_SECONDS);
            plan.runs(count, connections, load.bytes(), settings.seconds_of_run());
        }
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    if settings.connections == 0 {
        return Err(Failure::new("a load has connections"));
    }
    let title = "splitway proxy, HAProxy and nginx, between a client and backends";
    let mut results = Results::new("proxy", title, settings)?;
    let mut output = None;
    for stage in settings.stages() {
        let loads = settings.loads(stage);
        if loads.is_empty() {
            continue;
        }
        let bytes = stage.unwrap_or(1);
        let files = stage.map_or(1, file_count);
        let bed = Bed::start(Workspace::prepare(files, bytes)?, &mut results)?;
        output = Some(settings.rounds.output(bed.output()).to_owned());
        for load in loads {
            let subjects = settings.subjects(load);
            settings.rounds.take_turns(&subjects, |&subject| {
                let measures = bed.run(settings, subject, load, &mut results)?;
                results.add(load.part(), subject.name(), &load.conditions(), measures);
                Ok(())
            })?;
        }
    }
    let output = output.ok_or_else(|| Failure::new("there is nothing to measure"))?;
    report::report(&mut results);
    results.publish(&output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

    #[test]
    fn what_targets_are_about_is_measured_also_if_it_is_to_be_quick() {
        let quick = settings::<Settings>(&["--quick"]);
        assert_eq!(quick.lengths(), LENGTHS[..1]);
        assert_eq!(quick.loads(None), []);
        let [load] = quick.loads(Some(LENGTHS[0]))[..] else {
            panic!("one load");
        };
        assert_eq!((load.part(), quick.connections_of(load)), (KEEP_ALIVE, 64));
        assert_eq!(quick.subjects(load), Subject::QUICK);
        let all = settings::<Settings>(&[]);
        assert_eq!(all.loads(None), [Load::ECHO, Load::SHORT]);
        assert!(plan(&quick).seconds() < plan(&all).seconds() / 20.0);
    }

    #[test]
    fn large_files_have_fewer_connections() {
        let settings = settings::<Settings>(&[]);
        let of = |bytes| {
            let closes = false;
            settings.connections_of(Load::Files { bytes, closes })
        };
        assert_eq!([of(1), of(500_000), of(100_000_000)], [64, 64, 8]);
        assert_eq!(of(FILES_BYTES), 4);
    }

    #[test]
    fn what_cannot_be_spliced_is_measured_without() {
        let settings = settings::<Settings>(&["--workloads=short"]);
        assert_eq!(settings.stages().collect::<Vec<_>>(), [None]);
        let subjects = settings.subjects(Load::SHORT);
        assert!(subjects.contains(&Subject::OwnTcp));
        assert!(!subjects.iter().any(|it| it.has_splices() || it.is_http()));
    }
}
