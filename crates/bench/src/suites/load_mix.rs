//! Mixed load: thousands of connections that request files and parts of files of all sizes, read
//! slowly and abort, while the server reloads its configuration every second. Against nginx under
//! the same load.
//!
//! | Module | Contents |
//! |---|---|
//! | [`client`] | the clients, which compare every byte and account for every request |
//! | [`pace`] | punctuality of the load generator |
//! | [`watch`] | threads that used the cores |
//! | [`shelf`] | the files, requests for them, and checks of the responses |

pub(crate) mod client;
mod pace;
mod shelf;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid};
use serde::Serialize;
use testbed::process::{run, signal};
use testbed::procfs::{MachineTime, children, huge_mappings, machine_time, memory, processes};
use testbed::{Context, Failure, Result};

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Measures, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run::Generator;
use crate::servers::server_set::{NGINX, SPLITWAY, ServerSet, Wanted, Workspace};
use crate::suites::load_mix::client::Outcome;
use crate::suites::load_mix::shelf::Shelf;
use crate::suites::load_mix::watch::Watch;

/// The one part of the results.
const PART: &str = "load-mix";

/// Interval of configuration reloads and memory samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Growth limit of the memory between the first third of the span and the last, in megabytes.
const GROWTH_MB_MAX: f64 = 10.0;

/// Time for the first response on every connection before a run, and for the open ones after it.
const BEFORE_AND_AFTER_SECONDS: f64 = 10.0;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections at any time: six in ten request files, two ranges, one reads slowly, one closes
    /// again and again [default: 4000, or 400 for quick runs]
    #[arg(long)]
    connections: Option<usize>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A further argument for `splitway serve`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

impl Settings {
    fn connections(&self) -> usize {
        let usual = if self.rounds.is_quick() { 400 } else { 4000 };
        self.connections.unwrap_or(usual)
    }

    fn seconds(&self) -> f64 {
        self.rounds.seconds_of(3.0, 60.0)
    }
}

/// The way to make a server reload its configuration.
enum Reload {
    /// `splitway ctl reload`, which waits for the reload and fails if it fails. The file's content
    /// differs each time.
    Ask {
        program: PathBuf,
        socket: PathBuf,
        configuration: PathBuf,
    },
    /// SIGHUP, as `nginx -s reload` sends it.
    HangUp,
}

impl Reload {
    /// Reloads for the `number`th time.
    fn carry_out(&self, parent: Pid, number: u32) -> Result<()> {
        match self {
            Reload::HangUp => signal(parent, Signal::HUP),
            Reload::Ask {
                program,
                socket,
                configuration,
            } => {
                write_configuration(configuration, number)?;
                let mut command = std::process::Command::new(program);
                command.args(["ctl", "reload", "--socket"]).arg(socket);
                run(&mut command).map(drop)
            }
        }
    }
}

/// Writes a configuration whose content differs for each number.
pub(crate) fn write_configuration(path: &Path, number: u32) -> Result<()> {
    let text =
        format!("[[site]]\n[[site.rule]]\npath = \"*\"\ncache_control = \"max-age={number}\"\n");
    std::fs::write(path, text).context(|| format!("writing {}", path.display()))
}

/// A server, and its name in reports.
struct Subject {
    name: &'static str,
    address: std::net::SocketAddr,
    /// Its first process, the ancestor of all others.
    parent: Pid,
    reload: Reload,
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    plan.files(1, Shelf::new().files().iter().map(|file| file.size()).sum());
    plan.beds(1);
    plan.also(
        2 * settings.rounds.count_or(1),
        settings.seconds() + BEFORE_AND_AFTER_SECONDS,
    );
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let workspace = Workspace::prepare(0, 0)?;
    for file in Shelf::new().files() {
        workspace.site.file(file.name(), file.size())?;
    }
    let title = format!(
        "{} connections of different kinds for {} s, with a reload every second",
        settings.connections(),
        settings.seconds()
    );
    let mut results = Results::new("load-mix", title, settings)?;
    let socket = workspace.site.outside().join("control");
    let mut splitway = settings.splitway.clone();
    let configuration = workspace.site.outside().join("splitway.toml");
    write_configuration(&configuration, 0)?;
    splitway.push(format!("--config={}", configuration.display()));
    splitway.push(format!("--control-socket={}", socket.display()));
    let server_set = ServerSet::start(
        &workspace,
        &Wanted {
            splitway,
            // A certificate to reload.
            tls: true,
            ..Wanted::default()
        },
    )?;
    server_set.describe(&mut results)?;
    let [own, nginx] = server_set.parents();
    let [own_server, nginx_server, _] = server_set.servers()?;
    let program = workspace.splitway.clone();
    let subjects = [
        Subject {
            name: SPLITWAY,
            address: own_server.addresses[0],
            parent: own,
            reload: Reload::Ask {
                program,
                socket,
                configuration,
            },
        },
        Subject {
            name: NGINX,
            address: nginx_server.addresses[0],
            parent: nginx,
            reload: Reload::HangUp,
        },
    ];
    let mut failures = 0;
    for _ in 0..settings.rounds.count_or(1) {
        for subject in &subjects {
            let (outcome, measures, watch) = load_watched(settings, subject)?;
            eprintln!("{:9} {}", subject.name, told(&outcome, &measures));
            for complaint in &outcome.complaints {
                results.note(format!("{}: {complaint}", subject.name));
            }
            for seen in [outcome.pauses.to_string(), watch.to_string()] {
                eprintln!("{:9} {seen}", "");
                results.note(format!("{}: {seen}.", subject.name));
            }
            if subject.name == SPLITWAY {
                failures += outcome.wrong + outcome.lost;
            }
            results.add(PART, subject.name, &[], measures);
        }
    }
    server_set.end(&mut results)?;
    report(&mut results);
    results.publish(settings.rounds.output(&workspace.output))?;
    match failures {
        0 => Ok(()),
        some => Err(Failure::new(format!(
            "{some} answers of Splitway were wrong or lost"
        ))),
    }
}

/// Loads a server, and watches from its start to its end which threads use the cores. A failure is
/// reported with them: the server may not be its cause.
fn load_watched(settings: &Settings, subject: &Subject) -> Result<(Outcome, Measures, Watch)> {
    let (loaded, watch) = scope(|scope| {
        let (end, ended) = channel::<()>();
        let watcher = scope.spawn(move || -> Result<Watch> {
            let mut watch = Watch::new();
            loop {
                watch.look(&watched(subject)?)?;
                if ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return Ok(watch);
                }
            }
        });
        let loaded = load(settings, subject);
        drop(end);
        (loaded, watcher.join().expect("it does not panic"))
    });
    let watch = watch?;
    let (outcome, mut measures) =
        loaded.map_err(|failure| Failure::new(format!("{failure}; {watch}")))?;
    for (process, ms) in watch.waited_ms() {
        measures.insert(format!("waited_ms.{process}"), ms);
    }
    Ok((outcome, measures, watch))
}

/// Process name of a load generator, in the kernel.
const GENERATOR: &str = "splitway-bench";

/// The processes of a server, its load generator, and this one.
fn watched(subject: &Subject) -> Result<Vec<(String, Pid)>> {
    let servers = family(subject.parent)?.into_iter();
    let mut watched: Vec<(String, Pid)> =
        servers.map(|pid| (subject.name.to_owned(), pid)).collect();
    let names = processes()?;
    let is_generator = |pid: &Pid| {
        let mut names = names.iter();
        names.any(|(number, name)| *number == pid.as_raw_nonzero().get() && name == GENERATOR)
    };
    let generators = children(getpid())?.into_iter().filter(is_generator);
    watched.extend(generators.map(|pid| ("load generator".to_owned(), pid)));
    watched.push(("benchmark".to_owned(), getpid()));
    Ok(watched)
}

/// Returns a process and all its descendants.
fn family(parent: Pid) -> Result<Vec<Pid>> {
    let mut family = Vec::new();
    let mut left = vec![parent];
    while let Some(pid) = left.pop() {
        left.extend(children(pid)?);
        family.push(pid);
    }
    Ok(family)
}

/// Loads a server, and samples its memory.
fn load(settings: &Settings, subject: &Subject) -> Result<(Outcome, Measures)> {
    let arguments = client::Settings {
        server: subject.address,
        connections: settings.connections(),
        seconds: settings.seconds(),
        seed: settings.seed,
    };
    let mut generator = Generator::start(subject.name, arguments.arguments())?;
    let start = Instant::now();
    let busy_before = machine_time()?;
    let mut reloads = Reloads::default();
    let mut samples = Vec::new();
    while start.elapsed() < Duration::from_secs_f64(settings.seconds()) {
        reloads.carry_out(subject)?;
        samples.push(Sample::take(subject.parent)?);
        sleep((start + reloads.count * PERIOD).saturating_duration_since(Instant::now()));
    }
    let busy_after = machine_time()?;
    let outcome = generator.outcome()?;
    generator.end()?;
    let measures = measures(&outcome, &samples, reloads, [busy_before, busy_after]);
    Ok((outcome, measures))
}

/// Number of reloads, and the duration of the longest.
#[derive(Clone, Copy, Debug, Default)]
struct Reloads {
    count: u32,
    longest: Duration,
}

impl Reloads {
    fn carry_out(&mut self, subject: &Subject) -> Result<()> {
        self.count += 1;
        let begun = Instant::now();
        subject.reload.carry_out(subject.parent, self.count)?;
        self.longest = self.longest.max(begun.elapsed());
        Ok(())
    }
}

/// Memory of all processes of a server at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    processes: usize,
    /// Without the block cache.
    memory_bytes: u64,
    cache_bytes: u64,
}

impl Sample {
    /// Samples a process and all its descendants.
    fn take(parent: Pid) -> Result<Sample> {
        let mut sample = Sample::default();
        for pid in family(parent)? {
            // The process may have ended since: nginx's former workers do.
            let (Ok(memory), Ok(huge)) = (memory(pid), huge_mappings(pid)) else {
                continue;
            };
            sample.processes += 1;
            sample.memory_bytes += memory.proportional_bytes.saturating_sub(huge.advised_bytes);
            sample.cache_bytes += huge.advised_bytes + huge.set_aside_bytes;
        }
        Ok(sample)
    }
}

/// Returns the maximum of a third of the samples: the first, or the last.
fn most(samples: &[Sample], is_last: bool, of: impl Fn(&Sample) -> u64) -> f64 {
    let third = samples.len().div_ceil(3);
    let samples = if is_last {
        &samples[samples.len() - third..]
    } else {
        &samples[..third]
    };
    samples.iter().map(of).max().unwrap_or(0) as f64
}

fn measures(
    outcome: &Outcome,
    samples: &[Sample],
    reloads: Reloads,
    busy: [MachineTime; 2],
) -> Measures {
    let elapsed_s = outcome.elapsed_ns as f64 / 1e9;
    let [first, last] = [false, true].map(|last| most(samples, last, |sample| sample.memory_bytes));
    let busy_ns = busy[1].busy_ns - busy[0].busy_ns;
    let values = [
        (
            "gbit_per_s",
            8.0 * outcome.body_bytes as f64 / outcome.elapsed_ns as f64,
        ),
        ("requests_per_s", outcome.responses as f64 / elapsed_s),
        (
            "cpu_s_per_gb.machine",
            busy_ns as f64 / outcome.body_bytes as f64,
        ),
        ("reloads", f64::from(reloads.count)),
        ("reload_ms", 1e3 * reloads.longest.as_secs_f64()),
        ("kept_ms", outcome.pauses.kept_ms),
        ("silent_ms", outcome.pauses.silent_ms),
        ("compared_gb", outcome.compared_bytes as f64 / 1e9),
        ("opened", outcome.opened as f64),
        ("aborted", outcome.aborted as f64),
        ("repeated", outcome.repeated as f64),
        ("wrong", outcome.wrong as f64),
        ("lost", outcome.lost as f64),
        (
            "processes",
            most(samples, true, |sample| sample.processes as u64),
        ),
        ("memory_mb.first", first / 1e6),
        ("memory_mb.last", last / 1e6),
        ("memory_mb.growth", (last - first) / 1e6),
        (
            "cache_mb",
            most(samples, true, |sample| sample.cache_bytes) / 1e6,
        ),
    ];
    values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn told(outcome: &Outcome, measures: &Measures) -> String {
    format!(
        "{:.2} Gbit/s, {:.1} GB compared, {} connections opened, {} answers aborted, {} requests \
         sent again, {} wrong, {} lost, memory {:.1} MB and {:.1} MB later, {} processes",
        measures["gbit_per_s"],
        measures["compared_gb"],
        outcome.opened,
        outcome.aborted,
        outcome.repeated,
        outcome.wrong,
        outcome.lost,
        measures["memory_mb.first"],
        measures["memory_mb.last"],
        measures["processes"],
    )
}

fn report(results: &mut Results) {
    for columns in [
        vec![
            column("gbit_per_s", "Gbit/s", 2),
            column("requests_per_s", "requests/s", 0),
            column("cpu_s_per_gb.machine", "CPU s/GB, machine", 4),
            column("reloads", "reloads", 0),
            column("reload_ms", "the longest, ms", 0),
        ],
        vec![
            column("compared_gb", "compared, GB", 1),
            column("wrong", "wrong answers", 0),
            column("lost", "lost requests", 0),
            column("repeated", "sent again", 0),
            column("aborted", "given up by clients", 0),
            column("opened", "connections opened", 0),
        ],
        vec![
            column("memory_mb.first", "memory in the first third, MB", 1),
            column("memory_mb.last", "in the last, MB", 1),
            column("memory_mb.growth", "growth, MB", 1),
            column("cache_mb", "block cache, MB", 0),
            column("processes", "processes", 0),
        ],
        vec![
            column("silent_ms", "nothing came for, ms", 0),
            column("kept_ms", "load generator kept from its core, ms", 0),
            column(
                "waited_ms.*",
                "a thread waited for a core, ms within a second",
                0,
            ),
        ],
    ] {
        results.table(Table::of(PART, columns));
    }
    for (measure, what, most) in [
        ("wrong", "answers with a wrong byte", 0.0),
        ("lost", "requests that were not answered", 0.0),
        ("repeated", "requests that had to be sent again", 0.0),
        ("memory_mb.growth", "growth of memory, MB", GROWTH_MB_MAX),
    ] {
        for (server, bound) in [(SPLITWAY, Bound::AtMost(most)), (NGINX, Bound::None)] {
            let most = results.of(PART, server).spread(measure).max;
            results.check(format!("{what}, {server}"), most, bound);
        }
    }
    results.note(
        "Every byte is compared. A request is sent again if a server closes a connection between \
         two answers, and lost if it is not answered to its end otherwise. Memory is that of all \
         processes together, without the block cache; of each third of the span, the most counts. \
         Where the load generator was kept from its core for long, or a thread waited for one, the \
         machine was doing something else, and silence says nothing of the server.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_between_the_ends_of_the_span() {
        let samples: Vec<Sample> = [5, 9, 7, 100, 8, 12, 11]
            .into_iter()
            .map(|mb| Sample {
                processes: 2,
                memory_bytes: mb * 1_000_000,
                cache_bytes: 0,
            })
            .collect();
        let busy = MachineTime {
            busy_ns: 0,
            interrupt_ns: 0,
        };
        let outcome = Outcome {
            body_bytes: 1,
            elapsed_ns: 1,
            ..Outcome::default()
        };
        let measures = measures(&outcome, &samples, Reloads::default(), [busy, busy]);
        assert_eq!(measures["memory_mb.first"], 9.0);
        assert_eq!(measures["memory_mb.growth"], 3.0);
    }
}
