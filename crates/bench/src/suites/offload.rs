//! Short connections with setup and teardown offloaded to the NIC stack, against the kernel's
//! sockets: the cost of the program and the host process for each.
//!
//! | Part | Comparison |
//! |---|---|
//! | redis | redis, unmodified, and `redis-benchmark`, which closes connections after one request |
//! | short | the server of `sockets`, one echo of 64 bytes per connection, closed by the server |
//!
//! | Module | Contents |
//! |---|---|
//! | `report` | tables, plots, targets |

mod report;

use std::fs;

use capi::client::Modes;
use serde::Serialize;
use testbed::{Context, Failure, Result};

use crate::measure::plan::Plan;
use crate::measure::results::{Measures, Results};
use crate::measure::rounds::Rounds;
use crate::servers::server_set::Workspace;
use crate::suites::programs::{bed as programs, redis};
use crate::suites::sockets::{SHORT_LOAD, bed as sockets};

/// Parts of the results.
const REDIS: &str = "redis";
const SHORT: &str = "short";

/// Concurrent clients of redis, with one connection after another.
const CLIENTS: usize = 50;

/// Connections of the other server at a time, and bytes on each.
const CONNECTIONS: usize = 64;
const SHORT_BYTES: u64 = 64;

/// Seconds of each run of the other server.
const SECONDS: f64 = 3.0;

/// Seconds of a run with redis, start and end included; also for quick runs.
const REDIS_SECONDS: f64 = 2.5;
const REDIS_QUICK_SECONDS: f64 = 1.0;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Workloads to measure: `redis`, `short`
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
}

/// The workloads.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    Redis,
    Short,
}

impl Workload {
    const ALL: [Workload; 2] = [Workload::Redis, Workload::Short];
}

/// Kind of sockets, and the parts of a connection that NIC stacks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Kernel,
    Split,
    Setup,
    Teardown,
    Both,
}

impl Variant {
    const ALL: [Variant; 5] = [
        Variant::Kernel,
        Variant::Split,
        Variant::Setup,
        Variant::Teardown,
        Variant::Both,
    ];

    /// Variants that targets concern.
    const QUICK: [Variant; 2] = [Variant::Kernel, Variant::Both];

    fn name(self) -> &'static str {
        match self {
            Variant::Kernel => "kernel sockets",
            Variant::Split => "split sockets",
            Variant::Setup => "with setup offloaded",
            Variant::Teardown => "with teardown offloaded",
            Variant::Both => "with both offloaded",
        }
    }

    /// Returns further arguments for `splitway serve`.
    fn arguments(self) -> Vec<String> {
        let arguments: &[&str] = match self {
            Variant::Kernel | Variant::Split => &[],
            Variant::Setup => &["--setup-offload"],
            Variant::Teardown => &["--teardown-offload"],
            Variant::Both => &["--setup-offload", "--teardown-offload"],
        };
        arguments.iter().map(|&it| it.to_owned()).collect()
    }

    fn is_kernel(self) -> bool {
        self == Variant::Kernel
    }
}

impl Settings {
    fn variants(&self) -> &'static [Variant] {
        if self.rounds.is_quick() {
            &Variant::QUICK
        } else {
            &Variant::ALL
        }
    }

    fn seconds_of_run(&self) -> f64 {
        self.rounds.seconds_or(SECONDS)
    }
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let runs = settings.variants().len() * settings.rounds.count();
    let mut plan = Plan::new();
    for workload in &settings.workloads {
        plan.beds(runs);
        match (workload, settings.rounds.is_quick()) {
            (Workload::Redis, false) => plan.also(runs, REDIS_SECONDS),
            (Workload::Redis, true) => plan.also(runs, REDIS_QUICK_SECONDS),
            (Workload::Short, _) => {
                plan.runs(runs, CONNECTIONS, SHORT_BYTES, settings.seconds_of_run());
            }
        }
    }
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let title = "Short connections, with setup and teardown offloaded";
    let mut results = Results::new("offload", title, settings)?;
    allow_connections()?;
    let mut output = None;
    for workload in &settings.workloads {
        let part = match workload {
            Workload::Redis => REDIS,
            Workload::Short => SHORT,
        };
        settings
            .rounds
            .take_turns(settings.variants(), |&variant| {
                let workspace = Workspace::prepare(1, 1)?;
                output = Some(workspace.output.clone());
                let measures = match workload {
                    Workload::Redis => run_redis(settings, workspace, variant, &mut results)?,
                    Workload::Short => run_short(settings, workspace, variant, &mut results)?,
                };
                results.add(part, variant.name(), &[], measures);
                Ok(())
            })?;
    }
    let output = output.ok_or_else(|| Failure::new("there is nothing to measure"))?;
    report::report(&mut results);
    results.publish(settings.rounds.output(&output))
}

/// Widens the range of client ports, and permits reuse of those in TIME-WAIT.
fn allow_connections() -> Result<()> {
    for (name, value) in [
        ("ip_local_port_range", "10000 65535"),
        ("tcp_tw_reuse", "1"),
    ] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).context(|| format!("writing {path}"))?;
    }
    Ok(())
}

fn run_redis(
    settings: &Settings,
    workspace: Workspace,
    variant: Variant,
    results: &mut Results,
) -> Result<Measures> {
    let bed = programs::Bed::start(workspace, &variant.arguments(), true)?;
    bed.describe(results)?;
    let program = bed.start_program(programs::Subject {
        kind: programs::Kind::Redis,
        sockets: if variant.is_kernel() {
            programs::Sockets::Kernel
        } else {
            programs::Sockets::Split
        },
    })?;
    let server = bed.server(&program, true)?;
    let load = redis::Load {
        clients: CLIENTS,
        pipelined: 1,
        stays: false,
    };
    let measures = redis::run(&server, load, settings.rounds.is_quick())?;
    let (rate, us) = (
        measures["requests_per_s"],
        measures["cpu_us_per_request.control"],
    );
    eprintln!(
        "redis, {}: {rate:.0} connections/s, {us:.2} µs each",
        variant.name()
    );
    drop(program);
    bed.end(results)?;
    Ok(measures)
}

fn run_short(
    settings: &Settings,
    workspace: Workspace,
    variant: Variant,
    results: &mut Results,
) -> Result<Measures> {
    let bed = sockets::Bed::of(workspace, &variant.arguments(), true)?;
    bed.describe(results)?;
    let subject = if variant.is_kernel() {
        sockets::Subject::Kernel
    } else {
        sockets::Subject::Split(Modes::default())
    };
    let seconds = settings.seconds_of_run();
    let measures = bed.run(variant.name(), subject, SHORT_LOAD, seconds, false)?;
    bed.end(results)?;
    Ok(measures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

    #[test]
    fn what_targets_are_about_is_measured_also_if_it_is_to_be_quick() {
        let quick = settings::<Settings>(&["--quick"]);
        assert_eq!(quick.variants(), Variant::QUICK);
        let all = settings::<Settings>(&[]);
        assert_eq!(all.variants().len(), 5);
        assert!(plan(&quick).seconds() < plan(&all).seconds() / 10.0);
        let redis = settings::<Settings>(&["--workloads=redis"]);
        assert!(plan(&redis).seconds() < plan(&all).seconds());
    }

    #[test]
    fn each_variant_has_what_it_is_called_by() {
        for variant in Variant::ALL {
            let arguments = variant.arguments();
            let has = |word: &str| arguments.iter().any(|it| it.contains(word));
            for (word, with) in [
                ("setup", [Variant::Setup, Variant::Both]),
                ("teardown", [Variant::Teardown, Variant::Both]),
            ] {
                assert_eq!(has(word), with.contains(&variant), "{variant:?}");
            }
        }
    }
}
