//! Leaks: millions of short connections, aborts, reloads and deaths of the NIC process, and the
//! memory and the descriptors of every process before and after.
//!
//! The first part of the load is the base: after it, tables and caches have their size, and the
//! one-time costs of the first reload and the first death are included. After the last connection,
//! memory must return to that level within [`SETTLING_MAX`].
//!
//! | Module | Contents |
//! |---|---|
//! | [`clients`] | the clients, which compare every byte |

mod clients;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::Serialize;
use testbed::process::{run, signal};
use testbed::procfs::{children, descriptors, memory};
use testbed::splitway::Splitway;
use testbed::{Context, Failure, Result, wait};

use self::clients::{Clients, Tally};
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Measures, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::servers::server_set::{Workspace, start_splitway_anywhere};
use crate::suites::load_mix::write_configuration;

/// The one part of the results.
const PART: &str = "soak";

/// Limit of a process's resident memory after the last connection, as a multiple of that after the
/// first part.
const GROWTH_MAX: f64 = 1.1;

/// Time limit after the last connection: TIME-WAIT lasts a minute, and an idle process returns
/// memory within another.
const SETTLING_MAX: Duration = Duration::from_secs(120);

/// Time limit for the replacement of a NIC process.
const REPLACEMENT_MAX: Duration = Duration::from_secs(20);

/// Connections per second that a plan assumes.
const CONNECTIONS_PER_S: f64 = 6000.0;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Short connections, with one request each [default: 10000000, or 100000 for quick runs]
    #[arg(long)]
    connections: Option<u64>,
    /// Further connections, which the client resets amid a response [default: 100000, or 1000 for
    /// quick runs]
    #[arg(long)]
    aborts: Option<u64>,
    /// Reloads of the configuration [default: 1000, or 20 for quick runs]
    #[arg(long)]
    reloads: Option<u64>,
    /// Kills of the NIC process [default: 100, or 3 for quick runs]
    #[arg(long)]
    deaths: Option<u64>,
    /// Clients at a time
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// A further argument for `splitway serve`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// Numbers of connections and disturbances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    connections: u64,
    aborts: u64,
    reloads: u64,
    deaths: u64,
}

impl Settings {
    fn counts(&self) -> Counts {
        let is_quick = self.rounds.is_quick();
        let of = |given: Option<u64>, quick, usual| {
            given.unwrap_or(if is_quick { quick } else { usual })
        };
        Counts {
            connections: of(self.connections, 100_000, 10_000_000),
            aborts: of(self.aborts, 1000, 100_000),
            reloads: of(self.reloads, 20, 1000),
            deaths: of(self.deaths, 3, 100),
        }
    }
}

impl Counts {
    /// Returns the first part: a hundredth, but enough connections and aborts for tables to reach
    /// their size, and at least one of each disturbance.
    fn base(self) -> Counts {
        let part = |count: u64, least: u64| (count / 100).max(least).min(count);
        Counts {
            connections: part(self.connections, 50_000),
            aborts: part(self.aborts, 500),
            reloads: part(self.reloads, 1),
            deaths: part(self.deaths, 1),
        }
    }

    fn minus(self, other: Counts) -> Counts {
        Counts {
            connections: self.connections - other.connections,
            aborts: self.aborts - other.aborts,
            reloads: self.reloads - other.reloads,
            deaths: self.deaths - other.deaths,
        }
    }
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let counts = settings.counts();
    let mut plan = Plan::new();
    plan.splitways(1);
    let opened = (counts.connections + counts.aborts) as f64;
    plan.also(1, opened / CONNECTIONS_PER_S);
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let workspace = Workspace::prepare(0, 0)?;
    let counts = settings.counts();
    let title = format!(
        "{} short connections, {} aborts, {} reloads, {} deaths of the NIC process",
        counts.connections, counts.aborts, counts.reloads, counts.deaths
    );
    let mut results = Results::new("soak", title, settings)?;
    clients::make_ports_suffice()?;
    let clients = Clients::prepare(&workspace.site, settings.clients.max(1))?;
    let mut subject = Subject::start(&workspace, settings)?;

    let base = counts.base();
    let mut tally = subject.endure(&clients, base)?;
    let before = subject.usage()?;
    eprintln!("after {} connections: {}", tally.served, told(&before));
    tally.add(subject.endure(&clients, counts.minus(base))?);
    eprintln!(
        "after {} connections: {}",
        tally.served,
        told(&subject.usage()?)
    );
    let (after, settling) = subject.settle(&before)?;
    eprintln!("idle for {:.1} s: {}", settling.as_secs_f64(), told(&after));

    report(&mut results, &tally, counts, &before, &after, settling);
    let is_kept = results.is_kept();
    results.publish(settings.rounds.output(&workspace.output))?;
    let mut complaints = tally.complaints.iter();
    match complaints.next() {
        Some(complaint) => Err(Failure::new(format!(
            "{} of {} connections were not served: {complaint}",
            tally.failed, counts.connections
        ))),
        None if !is_kept => Err(Failure::new("something was left behind: see the table")),
        None => Ok(()),
    }
}

/// Resources of a process.
#[derive(Clone, Copy, Debug)]
struct Usage {
    resident_bytes: u64,
    descriptors: usize,
}

/// Resources by process.
type Usages = BTreeMap<String, Usage>;

fn told(usages: &Usages) -> String {
    let each = usages.iter().map(|(name, usage)| {
        let mb = usage.resident_bytes as f64 / 1e6;
        format!("{name} {mb:.1} MB, {} descriptors", usage.descriptors)
    });
    each.collect::<Vec<_>>().join("; ")
}

/// Splitway under test.
struct Subject {
    splitway: Splitway,
    nic: Pid,
    /// NIC processes killed.
    dead: HashSet<Pid>,
    program: PathBuf,
    socket: PathBuf,
    configuration: PathBuf,
    reloads: u32,
}

impl Subject {
    fn start(workspace: &Workspace, settings: &Settings) -> Result<Subject> {
        let socket = workspace.site.outside().join("control");
        let configuration = workspace.site.outside().join("splitway.toml");
        write_configuration(&configuration, 0)?;
        let mut arguments = vec![
            format!("--config={}", configuration.display()),
            format!("--control-socket={}", socket.display()),
        ];
        arguments.extend(settings.splitway.iter().cloned());
        let splitway = start_splitway_anywhere(workspace, &arguments)?;
        Ok(Subject {
            nic: splitway.nic(),
            splitway,
            dead: HashSet::new(),
            program: workspace.splitway.clone(),
            socket,
            configuration,
            reloads: 0,
        })
    }

    /// Runs the clients for these connections, with reloads and deaths spread over them.
    fn endure(&mut self, clients: &Clients, counts: Counts) -> Result<Tally> {
        clients.run(counts.connections, counts.aborts, |progress| {
            let (mut reloads, mut deaths) = (0, 0);
            while reloads < counts.reloads || deaths < counts.deaths {
                let share = progress.wait_for_next(
                    [(reloads, counts.reloads), (deaths, counts.deaths)]
                        .into_iter()
                        .filter(|(done, of)| done < of)
                        .map(|(done, of)| (done as f64 + 0.5) / of as f64),
                );
                if reloads < counts.reloads
                    && share >= (reloads as f64 + 0.5) / counts.reloads as f64
                {
                    self.reload()?;
                    reloads += 1;
                }
                if deaths < counts.deaths && share >= (deaths as f64 + 0.5) / counts.deaths as f64 {
                    self.kill_nic()?;
                    deaths += 1;
                }
            }
            Ok(())
        })
    }

    /// Reloads the configuration, whose content differs each time.
    fn reload(&mut self) -> Result<()> {
        self.reloads += 1;
        write_configuration(&self.configuration, self.reloads)?;
        let mut command = Command::new(&self.program);
        command
            .args(["ctl", "reload", "--socket"])
            .arg(&self.socket);
        run(&mut command).map(drop)
    }

    /// Kills the NIC process, and waits until another serves.
    fn kill_nic(&mut self) -> Result<()> {
        signal(self.nic, Signal::KILL)?;
        self.dead.insert(self.nic);
        let dead = &self.dead;
        let splitway = &mut self.splitway;
        self.nic = wait::until(REPLACEMENT_MAX, "another NIC process", || {
            let serving = splitway.output().iter().rev();
            serving
                .filter_map(|line| serving_pid(line))
                .find(|pid| !dead.contains(pid))
        })?;
        Ok(())
    }

    /// Returns the resources of each process. Short-lived processes are not counted.
    fn usage(&self) -> Result<Usages> {
        let supervisor = self.splitway.supervisor();
        let mut named = vec![("supervisor".to_owned(), supervisor)];
        for pid in children(supervisor)? {
            let name = match pid {
                pid if pid == self.splitway.host() => "host".to_owned(),
                pid if pid == self.nic => "nic".to_owned(),
                pid => mode_of(pid)?,
            };
            named.push((name, pid));
        }
        named
            .into_iter()
            .map(|(name, pid)| {
                let usage = Usage {
                    resident_bytes: memory(pid)?.resident_bytes,
                    descriptors: descriptors(pid)?,
                };
                Ok((name, usage))
            })
            .collect()
    }

    /// Waits until each process's memory is within [`GROWTH_MAX`] of `before`, and its descriptors
    /// are no more, or for [`SETTLING_MAX`]; returns the resources then, and the time waited.
    fn settle(&self, before: &Usages) -> Result<(Usages, Duration)> {
        let begun = Instant::now();
        loop {
            let after = self.usage()?;
            let elapsed = begun.elapsed();
            let is_back = after.iter().all(|(name, usage)| {
                before.get(name).is_some_and(|before| {
                    growth(before, usage) <= GROWTH_MAX && usage.descriptors <= before.descriptors
                })
            });
            if is_back || elapsed > SETTLING_MAX {
                return Ok((after, elapsed));
            }
            // The kernel sends no event when a process returns memory.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn growth(before: &Usage, after: &Usage) -> f64 {
    after.resident_bytes as f64 / before.resident_bytes as f64
}

/// Parses the NIC process in a line of output which reports that it has replaced another.
fn serving_pid(line: &str) -> Option<Pid> {
    let (_, rest) = line.split_once("nic process ")?;
    let (digits, _) = rest.split_once(": serves")?;
    Pid::from_raw(digits.parse().ok()?)
}

/// Returns the mode of a process of Splitway: its first argument.
fn mode_of(pid: Pid) -> Result<String> {
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    let line = std::fs::read(&path).context(|| format!("reading {path}"))?;
    let argument = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    Ok(String::from_utf8_lossy(argument).into_owned())
}

fn report(
    results: &mut Results,
    tally: &Tally,
    counts: Counts,
    before: &Usages,
    after: &Usages,
    settling: Duration,
) {
    let names: HashSet<&String> = before.keys().chain(after.keys()).collect();
    let mut names: Vec<&String> = names.into_iter().collect();
    names.sort();
    for name in names {
        let mut measures = Measures::new();
        for (when, usages) in [("before", before), ("after", after)] {
            if let Some(usage) = usages.get(name) {
                let mb = usage.resident_bytes as f64 / 1e6;
                measures.insert(format!("resident_mb.{when}"), mb);
                measures.insert(format!("descriptors.{when}"), usage.descriptors as f64);
            }
        }
        results.add(PART, name.as_str(), &[], measures);
    }
    let columns = vec![
        column("resident_mb.before", "resident before, MB", 1),
        column("resident_mb.after", "resident after, MB", 1),
        column("descriptors.before", "descriptors before", 0),
        column("descriptors.after", "descriptors after", 0),
    ];
    results.table(Table::of(PART, columns).of_each("Process"));
    let done = tally.failed + tally.served;
    results.check(
        "connections not served",
        tally.failed as f64,
        Bound::AtMost(0.0),
    );
    let opened = (counts.connections + counts.aborts) as f64;
    results.check("connections opened", done as f64, Bound::AtLeast(opened));
    for (name, usage) in after {
        let (grown, more) = match before.get(name) {
            Some(before) => (
                growth(before, usage),
                usage.descriptors as f64 - before.descriptors as f64,
            ),
            None => (f64::NAN, f64::NAN),
        };
        let what = format!("resident after / before, {name}");
        results.check(what, grown, Bound::AtMost(GROWTH_MAX));
        let what = format!("descriptors that are left, {name}");
        results.check(what, more, Bound::AtMost(0.0));
    }
    let base = counts.base();
    results.note(format!(
        "Every byte of every response was compared. \"Before\" is after the first {} connections, \
         {} aborts, {} reloads and {} deaths; \"after\" is {:.1} s behind the last connection: at \
         most {} s are waited for memory to come back.",
        base.connections,
        base.aborts,
        base.reloads,
        base.deaths,
        settling.as_secs_f64(),
        SETTLING_MAX.as_secs(),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_holds_some_of_everything_and_never_more_than_there_is() {
        let full = Counts {
            connections: 10_000_000,
            aborts: 100_000,
            reloads: 1000,
            deaths: 100,
        };
        let base = full.base();
        assert_eq!((base.connections, base.aborts), (100_000, 1000));
        assert_eq!((base.reloads, base.deaths), (10, 1));
        let few = Counts {
            connections: 10,
            aborts: 1,
            reloads: 1,
            deaths: 0,
        };
        assert_eq!(few.base(), few);
        assert_eq!(few.minus(few.base()).connections, 0);
    }

    #[test]
    fn the_nic_process_that_serves_is_found_in_what_is_printed() {
        let line = "2026-11-23 nic process 712: serves in the place of the one before";
        assert_eq!(serving_pid(line), Pid::from_raw(712));
        assert_eq!(
            serving_pid("nic process 5: reads /srv and nothing else"),
            None
        );
    }
}
