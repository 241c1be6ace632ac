//! One run: load on a server, and its cost.

use std::fmt::{Display, Formatter};
use std::io::{BufRead, BufReader, Lines, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use testbed::process::Process;
use testbed::procfs::{
    MachineTime, Schedule, cpu_ns, device_read_bytes, huge_mappings, machine_time, memory, schedule,
};
use testbed::{Context, Failure, Result};

use crate::load::{Outcome, READY, Settings};
use crate::measure::perf::CallCounter;
use crate::measure::results::Measures;
use crate::measure::rounds::Rounds;

/// A server and its processes.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    /// Addresses that accept connections, distributed over them in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) processes: Vec<(&'static str, Pid)>,
    /// Certificate of a server that speaks TLS.
    pub(crate) certificate: Option<PathBuf>,
}

impl Server {
    pub(crate) fn new(
        name: &'static str,
        address: SocketAddr,
        processes: impl IntoIterator<Item = (&'static str, Pid)>,
    ) -> Server {
        Server {
            name,
            addresses: vec![address],
            processes: processes.into_iter().collect(),
            certificate: None,
        }
    }
}

/// Adds the sum of some processes' costs, by this unit; 0 if none was measured.
pub(crate) fn add_sum(measures: &mut Measures, unit: &str, sum: &str, parts: &[&str]) {
    let of = |part: &&str| measures.get(&format!("{unit}.{part}")).copied();
    let value = parts.iter().filter_map(of).sum();
    measures.insert(format!("{unit}.{sum}"), value);
}

/// Cost of one process in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ProcessCost {
    pub(crate) name: &'static str,
    /// CPU time, user and system, as accounted by the scheduler.
    pub(crate) cpu_ns: u64,
    /// User mode's part of the CPU time.
    pub(crate) user_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    /// System calls, if they were counted.
    pub(crate) system_calls: Option<u64>,
    /// Resident at the end of the run.
    pub(crate) resident_bytes: u64,
    /// Memory at the end of the run, without the block cache; shared memory is divided among its
    /// processes.
    pub(crate) memory_bytes: u64,
    /// Size of the block cache at the end of the run. Without one, the kernel keeps the server's
    /// files, in memory that belongs to no process.
    pub(crate) cache_bytes: u64,
}

/// Names of the sums over a server's processes, of the machine, and of the load generator. No
/// server process has one of these names.
pub(crate) const ALL_NAMES: [&str; 3] = ["server", "machine", "client"];

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) server: &'static str,
    pub(crate) load: Outcome,
    pub(crate) cost: Cost,
}

impl Run {
    /// Throughput, in gigabits per second.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        8.0 * self.load.body_bytes as f64 / self.load.elapsed_ns as f64
    }

    /// Returns the part of the bytes served that came from a disk within the run; more than one if
    /// some were read twice.
    pub(crate) fn device_share(&self) -> f64 {
        self.cost.device_read_bytes as f64 / self.load.body_bytes as f64
    }

    /// Returns all measures. A process's measures end with a dot and its name; `server` is the sum
    /// of its processes, `machine` everything that ran: servers, client, kernel.
    pub(crate) fn measures(&self) -> Measures {
        let load = &self.load;
        let mut measures = Measures::new();
        let mut tell = |name: String, value: f64| {
            measures.insert(name, value);
        };
        tell("gbit_per_s".into(), self.gbit_per_s());
        let elapsed_s = load.elapsed_ns as f64 / 1e9;
        tell("requests_per_s".into(), load.responses as f64 / elapsed_s);
        // Without a complete response there are no times.
        let times = [
            ("first_byte_us", &load.first_byte),
            ("response_us", &load.response),
        ];
        let times = times.into_iter().filter(|_| load.responses > 0);
        for (name, percentiles) in times {
            for (rank, value) in [
                ("p50", percentiles.p50_us),
                ("p90", percentiles.p90_us),
                ("p99", percentiles.p99_us),
                ("p99_9", percentiles.p99_9_us),
            ] {
                tell(format!("{name}.{rank}"), value);
            }
        }
        tell("device_share".into(), self.device_share());
        // Nanoseconds per byte are seconds per gigabyte.
        let per_gb = |ns: u64| ns as f64 / load.body_bytes as f64;
        for (name, ns) in [
            ("machine", self.cost.machine_ns),
            ("client", self.cost.client_ns),
        ] {
            tell(format!("cpu_s_per_gb.{name}"), per_gb(ns));
            let us = ns as f64 / load.responses as f64 / 1e3;
            tell(format!("cpu_us_per_request.{name}"), us);
        }
        tell(
            "interrupt_s_per_gb.machine".into(),
            per_gb(self.cost.interrupt_ns),
        );
        let gb = load.body_bytes as f64 / 1e9;
        for process in self.cost.all_and_each() {
            let name = process.name;
            let ratio = |part: u64, whole: u64| part as f64 / whole as f64;
            for (measure, value) in [
                ("cpu_s_per_gb", per_gb(process.cpu_ns)),
                (
                    "cpu_us_per_request",
                    ratio(process.cpu_ns, load.responses) / 1e3,
                ),
                ("busy_cores", ratio(process.cpu_ns, load.elapsed_ns)),
                ("user_s_per_gb", per_gb(process.user_ns)),
                ("system_s_per_gb", per_gb(process.cpu_ns - process.user_ns)),
                (
                    "voluntary_switches_per_gb",
                    process.voluntary_switches as f64 / gb,
                ),
                (
                    "involuntary_switches_per_gb",
                    process.involuntary_switches as f64 / gb,
                ),
                ("resident_mb", process.resident_bytes as f64 / 1e6),
                ("memory_mb", process.memory_bytes as f64 / 1e6),
                ("cache_mb", process.cache_bytes as f64 / 1e6),
            ] {
                tell(format!("{measure}.{name}"), value);
            }
            if let Some(calls) = process.system_calls {
                tell(format!("system_calls_per_gb.{name}"), calls as f64 / gb);
                let each = calls as f64 / load.responses as f64;
                tell(format!("system_calls_per_request.{name}"), each);
            }
        }
        measures
    }
}

impl Display for Run {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:9} {:6.2} Gbit/s", self.server, self.gbit_per_s())?;
        let measures = self.measures();
        for process in &self.cost.processes {
            let cpu = measures[&format!("cpu_s_per_gb.{}", process.name)];
            write!(f, "  {} {cpu:.4} s/GB", process.name)?;
        }
        write!(
            f,
            "  machine {:.4} s/GB  {} compared",
            measures["cpu_s_per_gb.machine"], self.load.compared
        )
    }
}

/// Runs the load generator against a server, and measures the cost within its measured span.
pub(crate) fn run(server: &Server, load: &Settings) -> Result<Run> {
    measured(server, load, false)
}

/// Length of a warm-up, in seconds: enough to fill caches and open windows.
pub(crate) const WARM_UP_SECONDS: f64 = 1.0;

/// Fills caches and opens windows, and verifies that the server answers; quick runs skip it.
pub(crate) fn warm_up(rounds: &Rounds, server: &Server, load: Settings) -> Result<()> {
    if rounds.is_quick() {
        return Ok(());
    }
    run(
        server,
        &Settings {
            seconds: WARM_UP_SECONDS,
            ..load
        },
    )
    .map(drop)
}

/// Runs it with system calls counted, which makes them slower. Nothing is counted where that is not
/// permitted.
pub(crate) fn run_counting(server: &Server, load: &Settings) -> Result<Run> {
    measured(server, load, true)
}

fn measured(server: &Server, load: &Settings, count_calls: bool) -> Result<Run> {
    run_generator(server, load.arguments(), count_calls)
}

/// Runs this program as a load generator with these arguments against a server; counts system calls
/// on request.
pub(crate) fn run_generator(
    server: &Server,
    arguments: Vec<String>,
    count_calls: bool,
) -> Result<Run> {
    let (load, cost): (Outcome, Cost) = generate(server, arguments, count_calls)?;
    if load.body_bytes == 0 {
        return Err(Failure::new(format!(
            "{}: not a byte in its run",
            server.name
        )));
    }
    Ok(Run {
        server: server.name,
        load,
        cost,
    })
}

/// Cost of a load, within its measured span.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) processes: Vec<ProcessCost>,
    /// CPU time of the whole machine: servers, client, kernel, and everything else.
    pub(crate) machine_ns: u64,
    /// CPU time of the load generator.
    pub(crate) client_ns: u64,
    /// Interrupts' part of the machine's CPU time.
    pub(crate) interrupt_ns: u64,
    /// Bytes that the machine has read from its disks.
    pub(crate) device_read_bytes: u64,
}

impl Cost {
    /// CPU time of all processes of the server.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.processes.iter().map(|process| process.cpu_ns).sum()
    }

    /// Returns the processes, those of the same name added up, and the sum of all as `server`.
    fn all_and_each(&self) -> Vec<ProcessCost> {
        let mut sums: Vec<ProcessCost> = Vec::new();
        let is_free = |process: &ProcessCost| !ALL_NAMES.contains(&process.name);
        debug_assert!(self.processes.iter().all(is_free), "names of sums");
        for process in &self.processes {
            for name in [process.name, ALL_NAMES[0]] {
                match sums.iter_mut().find(|sum| sum.name == name) {
                    Some(sum) => sum.absorb(process),
                    None => sums.push(ProcessCost {
                        name,
                        ..process.clone()
                    }),
                }
            }
        }
        sums
    }
}

impl ProcessCost {
    fn absorb(&mut self, other: &ProcessCost) {
        self.cpu_ns += other.cpu_ns;
        self.user_ns += other.user_ns;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
        self.system_calls = self
            .system_calls
            .zip(other.system_calls)
            .map(|(a, b)| a + b);
        self.resident_bytes += other.resident_bytes;
        self.memory_bytes += other.memory_bytes;
        self.cache_bytes += other.cache_bytes;
    }
}

/// This program as a load generator, within its measured span.
pub(crate) struct Generator {
    /// Name of the loaded server.
    server: &'static str,
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Generator {
    /// Starts the generator with these arguments, and waits until its measured span begins.
    pub(crate) fn start(server: &'static str, arguments: Vec<String>) -> Result<Generator> {
        let own = std::env::current_exe().context(|| "finding this program".into())?;
        let mut command = Command::new(own);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        let stdout = process.child().stdout.take().expect("a pipe, as asked for");
        let mut generator = Generator {
            server,
            process,
            lines: BufReader::new(stdout).lines(),
        };
        match generator.next_line()? {
            ready if ready == READY => Ok(generator),
            other => Err(Failure::new(format!(
                "the load generator printed {other:?}"
            ))),
        }
    }

    /// Waits for the outcome at the end of the span. The connections stay until [`Generator::end`].
    pub(crate) fn outcome<O: DeserializeOwned>(&mut self) -> Result<O> {
        let outcome = self.next_line()?;
        serde_json::from_str(&outcome).context(|| format!("the load generator printed {outcome:?}"))
    }

    /// Ends the generator.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.process.child().stdin.take());
        self.process.wait(Duration::from_secs(10)).map(drop)
    }

    fn next_line(&mut self) -> Result<String> {
        match self.lines.next() {
            Some(line) => line.context(|| "reading from the load generator".into()),
            None => {
                let why = self.complaint();
                let (server, why) = (self.server, why.trim());
                Err(Failure::new(format!(
                    "the load on {server} has failed: {why}"
                )))
            }
        }
    }

    /// Returns the standard error of a generator that has ended, which has the reason.
    fn complaint(&mut self) -> String {
        let mut complaint = String::new();
        if let Some(mut stderr) = self.process.child().stderr.take() {
            // An unreadable message is omitted.
            let _ = stderr.read_to_string(&mut complaint);
        }
        complaint
    }
}

/// Runs this program as a load generator with these arguments; returns its outcome and the cost to
/// the server.
pub(crate) fn generate<O: DeserializeOwned>(
    server: &Server,
    arguments: Vec<String>,
    count_calls: bool,
) -> Result<(O, Cost)> {
    let mut generator = Generator::start(server.name, arguments)?;
    let pids = server.processes.iter().map(|&(_, pid)| pid);
    let counters: Vec<_> = if count_calls {
        pids.map(CallCounter::start).collect()
    } else {
        pids.map(|_| None).collect()
    };
    let client = generator.process.pid();
    let before = Reading::take(server)?;
    let client_before_ns = cpu_ns(client)?;
    let outcome = generator.outcome()?;
    let after = Reading::take(server)?;
    let client_ns = cpu_ns(client)? - client_before_ns;
    let calls: Vec<_> = counters
        .into_iter()
        .map(|counter| counter.and_then(CallCounter::stop))
        .collect();
    generator.end()?;
    let processes = server.processes.iter().zip(calls);
    let readings = before.processes.iter().zip(&after.processes);
    let costs = processes.zip(readings);
    let costs = costs.map(|((&(name, _), system_calls), (before, after))| {
        let (earlier, later) = (before.schedule, after.schedule);
        let cpu_ns = after.cpu_ns - before.cpu_ns;
        // The scheduler accounts the exact time, the clock's ticks its mode.
        let [user, system] = [
            later.user_ns.saturating_sub(earlier.user_ns),
            later.system_ns.saturating_sub(earlier.system_ns),
        ];
        let user_share = user as f64 / (user + system).max(1) as f64;
        ProcessCost {
            name,
            cpu_ns,
            user_ns: (cpu_ns as f64 * user_share) as u64,
            // Ended threads take their counts with them.
            voluntary_switches: later
                .voluntary_switches
                .saturating_sub(earlier.voluntary_switches),
            involuntary_switches: later
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            system_calls,
            resident_bytes: after.resident_bytes,
            memory_bytes: after.memory_bytes,
            cache_bytes: after.cache_bytes,
        }
    });
    let cost = Cost {
        processes: costs.collect(),
        machine_ns: after.machine.busy_ns - before.machine.busy_ns,
        client_ns,
        interrupt_ns: after.machine.interrupt_ns - before.machine.interrupt_ns,
        device_read_bytes: after.device_read_bytes - before.device_read_bytes,
    };
    Ok((outcome, cost))
}

/// Counters of a server's processes and of the machine, at one moment.
struct Reading {
    processes: Vec<ProcessReading>,
    machine: MachineTime,
    device_read_bytes: u64,
}

struct ProcessReading {
    cpu_ns: u64,
    schedule: Schedule,
    resident_bytes: u64,
    memory_bytes: u64,
    cache_bytes: u64,
}

impl Reading {
    fn take(server: &Server) -> Result<Reading> {
        let machine = machine_time()?;
        let device_read_bytes = device_read_bytes()?;
        let pids = || server.processes.iter().map(|&(_, pid)| pid);
        let times: Vec<u64> = pids().map(cpu_ns).collect::<Result<_>>()?;
        // Last, for it takes longest.
        let processes = pids().zip(times);
        let processes = processes.map(|(pid, cpu_ns)| ProcessReading::take(pid, cpu_ns));
        Ok(Reading {
            machine,
            device_read_bytes,
            processes: processes.collect::<Result<_>>()?,
        })
    }
}

impl ProcessReading {
    fn take(pid: Pid, cpu_ns: u64) -> Result<ProcessReading> {
        let schedule = schedule(pid)?;
        let memory = memory(pid)?;
        let huge = huge_mappings(pid)?;
        Ok(ProcessReading {
            cpu_ns,
            schedule,
            resident_bytes: memory.resident_bytes,
            // Read one after the other.
            memory_bytes: memory.proportional_bytes.saturating_sub(huge.advised_bytes),
            cache_bytes: huge.advised_bytes + huge.set_aside_bytes,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn run(
        server: &'static str,
        body_bytes: u64,
        processes: &[(&'static str, u64)],
    ) -> Run {
        let cost = |&(name, cpu_ns): &(&'static str, u64)| ProcessCost {
            name,
            cpu_ns,
            user_ns: cpu_ns / 4,
            resident_bytes: 3_000_000,
            ..ProcessCost::default()
        };
        Run {
            server,
            load: Outcome {
                body_bytes,
                responses: 1000,
                compared: 10,
                elapsed_ns: 1_000_000_000,
                ..Outcome::default()
            },
            cost: Cost {
                processes: processes.iter().map(cost).collect(),
                machine_ns: 1_000_000_000,
                client_ns: 300_000_000,
                interrupt_ns: 0,
                device_read_bytes: 500_000_000,
            },
        }
    }

    #[test]
    fn a_run_without_a_complete_response_has_no_latencies() {
        let mut run = run("aioquic", 2_000_000_000, &[("aioquic", 400_000_000)]);
        assert!(run.measures().contains_key("response_us.p50"));
        run.load.responses = 0;
        let measures = run.measures();
        assert_eq!(measures["cpu_s_per_gb.server"], 0.2);
        let is_latency = |name: &String| {
            let times = ["first_byte_us", "response_us"];
            times.iter().any(|time| name.starts_with(time))
        };
        assert!(!measures.keys().any(is_latency), "{measures:?}");
    }

    #[test]
    fn measures_are_of_each_process_and_of_all_of_them() {
        let processes = [
            ("worker", 200_000_000),
            ("worker", 100_000_000),
            ("master", 100_000_000),
        ];
        let measures = run("nginx", 2_000_000_000, &processes).measures();
        for (name, value) in [
            ("gbit_per_s", 16.0),
            ("requests_per_s", 1000.0),
            ("cpu_s_per_gb.worker", 0.15),
            ("cpu_s_per_gb.server", 0.2),
            ("cpu_s_per_gb.machine", 0.5),
            ("cpu_us_per_request.server", 400.0),
            ("cpu_us_per_request.machine", 1000.0),
            ("cpu_us_per_request.client", 300.0),
            ("busy_cores.master", 0.1),
            ("user_s_per_gb.server", 0.05),
            ("system_s_per_gb.server", 0.15),
            ("resident_mb.worker", 6.0),
            ("device_share", 0.25),
        ] {
            assert!(
                (measures[name] - value).abs() < 1e-9,
                "{name}: {measures:?}"
            );
        }
        assert!(
            !measures.contains_key("system_calls_per_gb.worker"),
            "not counted"
        );
    }
}
