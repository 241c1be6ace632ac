//! Use of the cores: once a second, how long each thread of server and load generator waited for a
//! core, and which others ran meanwhile. When a load stalls, this shows whether a thread was not
//! scheduled, and which threads ran instead.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use testbed::Result;
use testbed::procfs::{MachineTime, Runner, Wait, machine_time, runners, waits};

/// Most runners named, by CPU time.
const NAMED_MAX: usize = 4;

/// Observation at one moment.
#[derive(Clone, Debug)]
struct Look {
    at: Duration,
    /// Waits of server and load generator, by process.
    waits: Vec<(String, Wait)>,
    /// All visible processes.
    runners: Vec<Runner>,
    busy_ns: u64,
}

/// The longest wait of a thread between two looks.
#[derive(Clone, Debug, PartialEq)]
struct Worst {
    process: String,
    thread: String,
    waited_ns: u64,
    /// Times of the two looks, since the beginning.
    from: Duration,
    until: Duration,
    /// Runners meanwhile, with their CPU time in cores.
    runners: Vec<(String, f64)>,
}

/// Observes the use of the cores.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Instant,
    last: Option<Look>,
    /// Longest waits, by process.
    worst: BTreeMap<String, Worst>,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch {
            begun: Instant::now(),
            last: None,
            worst: BTreeMap::new(),
        }
    }

    /// Observes these named processes; one that has ended meanwhile is skipped.
    pub(super) fn look(&mut self, processes: &[(String, Pid)]) -> Result<()> {
        let MachineTime { busy_ns, .. } = machine_time()?;
        let waits = processes.iter().flat_map(|(name, pid)| {
            let waits = waits(*pid).unwrap_or_default().into_iter();
            waits.map(move |wait| (name.clone(), wait))
        });
        let look = Look {
            waits: waits.collect(),
            runners: runners()?,
            busy_ns,
            at: self.begun.elapsed(),
        };
        self.note(look);
        Ok(())
    }

    fn note(&mut self, look: Look) {
        if let Some(before) = self.last.take() {
            for (process, wait) in &look.waits {
                let earlier = before
                    .waits
                    .iter()
                    .find(|(_, earlier)| earlier.thread == wait.thread);
                let waited_ns = wait.waited_ns
                    - earlier.map_or(0, |(_, earlier)| earlier.waited_ns.min(wait.waited_ns));
                if self
                    .worst
                    .get(process)
                    .is_none_or(|worst| waited_ns > worst.waited_ns)
                {
                    let worst = Worst {
                        process: process.clone(),
                        thread: wait.name.clone(),
                        waited_ns,
                        from: before.at,
                        until: look.at,
                        runners: between(&before, &look),
                    };
                    self.worst.insert(process.clone(), worst);
                }
            }
        }
        self.last = Some(look);
    }

    /// Returns the longest wait of each process, in milliseconds.
    pub(super) fn waited_ms(&self) -> impl Iterator<Item = (&str, f64)> {
        let worst = self.worst.values();
        worst.map(|worst| (worst.process.as_str(), worst.waited_ns as f64 / 1e6))
    }
}

/// Returns the runners between two looks, in cores; invisible processes and the kernel are summed
/// up as the others.
fn between(before: &Look, after: &Look) -> Vec<(String, f64)> {
    let elapsed_ns = (after.at - before.at).as_nanos().max(1) as f64;
    let cores = |ns: u64| ns as f64 / elapsed_ns;
    let had = after.runners.iter().map(|runner| {
        let earlier = before
            .runners
            .iter()
            .find(|earlier| earlier.pid == runner.pid);
        let ns = runner
            .cpu_ns
            .saturating_sub(earlier.map_or(0, |earlier| earlier.cpu_ns));
        (runner, ns)
    });
    let mut had: Vec<_> = had.filter(|(_, ns)| *ns > 0).collect();
    had.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    let seen_ns: u64 = had.iter().map(|(_, ns)| ns).sum();
    // The kernel's steal and I/O wait times may decrease.
    let busy_ns = after.busy_ns.saturating_sub(before.busy_ns);
    let others_ns = busy_ns.saturating_sub(seen_ns);
    let named = had.into_iter().take(NAMED_MAX).map(|(runner, ns)| {
        let how = if runner.is_real_time {
            " (real-time)"
        } else {
            ""
        };
        (format!("{}{how}", runner.name), cores(ns))
    });
    named
        .chain([(
            "processes that are not seen here".to_owned(),
            cores(others_ns),
        )])
        .collect()
}

impl Display for Worst {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} (thread {}) waited {:.0} ms for a core between {:.1} and {:.1} s, when these had \
             the cores:",
            self.process,
            self.thread,
            self.waited_ns as f64 / 1e6,
            self.from.as_secs_f64(),
            self.until.as_secs_f64(),
        )?;
        for (index, (name, cores)) in self.runners.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {name} {cores:.2}")?;
        }
        Ok(())
    }
}

impl Display for Watch {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for (index, worst) in self.worst.values().enumerate() {
            let semicolon = if index == 0 { "" } else { "; " };
            write!(f, "{semicolon}{worst}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(second: u64, waited_ms: [u64; 2], intruder_ms: u64) -> Look {
        let wait = |process: &str, thread, waited_ms: u64| {
            let wait = Wait {
                thread,
                name: format!("{process}-0"),
                waited_ns: waited_ms * 1_000_000,
            };
            (process.to_owned(), wait)
        };
        let runner = |pid, name: &str, ms: u64, is_real_time| Runner {
            pid,
            name: name.to_owned(),
            cpu_ns: ms * 1_000_000,
            is_real_time,
        };
        Look {
            at: Duration::from_secs(second),
            waits: vec![
                wait("nic", 7, waited_ms[0]),
                wait("load generator", 8, waited_ms[1]),
            ],
            runners: vec![
                runner(7, "splitway", 100 * second, false),
                runner(9, "intruder", intruder_ms, true),
            ],
            busy_ns: second * 1_500_000_000,
        }
    }

    #[test]
    fn the_longest_wait_is_reported_with_the_thread_in_the_way() {
        let mut watch = Watch::new();
        for look in [
            look(0, [0, 0], 0),
            look(1, [5, 1], 0),
            look(2, [905, 3], 1000),
            look(3, [910, 4], 1000),
        ] {
            watch.note(look);
        }
        let waited: Vec<_> = watch.waited_ms().collect();
        assert_eq!(waited, [("load generator", 2.0), ("nic", 900.0)]);
        let text = watch.to_string();
        for part in [
            "nic (thread nic-0) waited 900 ms for a core between 1.0 and 2.0 s",
            "intruder (real-time) 1.00, splitway 0.10, processes that are not seen here 0.40",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_thread_that_is_new_has_waited_since_its_beginning() {
        let mut watch = Watch::new();
        let mut first = look(0, [0, 0], 0);
        first.waits.clear();
        watch.note(first);
        watch.note(look(1, [40, 0], 0));
        assert_eq!(watch.waited_ms().last(), Some(("nic", 40.0)));
    }

    #[test]
    fn processes_that_are_there_can_be_looked_at() {
        let mut watch = Watch::new();
        let own = [("test".to_owned(), rustix::process::getpid())];
        watch.look(&own).unwrap();
        watch.look(&own).unwrap();
        assert!(watch.to_string().starts_with("test (thread "));
    }
}
