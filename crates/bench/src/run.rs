//! One run: load on a server, and what that cost.

use std::fmt::{Display, Formatter};
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use testbed::process::Process;
use testbed::procfs::{
    MachineTime, cpu_ns, device_read_bytes, huge_mappings, machine_time, memory,
};
use testbed::{Context, Failure, Result};

use crate::load::{Outcome, READY, Settings};

/// A server, and the processes that it consists of.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    processes: Vec<(&'static str, Pid)>,
}

impl Server {
    pub(crate) fn new(
        name: &'static str,
        address: SocketAddr,
        processes: impl IntoIterator<Item = (&'static str, Pid)>,
    ) -> Server {
        Server {
            name,
            address,
            processes: processes.into_iter().collect(),
        }
    }
}

/// What one process did in a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProcessCost {
    pub(crate) name: &'static str,
    /// CPU time, user and system.
    pub(crate) cpu_ns: u64,
    /// Memory at the end of the run, without the block cache; what is shared with other processes is divided among them.
    pub(crate) memory_bytes: u64,
    /// What the block cache took then. A server without one has the kernel keep its files, in memory that is no process's.
    pub(crate) cache_bytes: u64,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) server: &'static str,
    pub(crate) connections: usize,
    pub(crate) load: Outcome,
    pub(crate) processes: Vec<ProcessCost>,
    /// CPU time of the whole machine: servers, client, kernel, and whatever else ran.
    pub(crate) machine_ns: u64,
    /// Of that, time in interrupts.
    pub(crate) interrupt_ns: u64,
    /// Bytes that the machine has read from its disks.
    pub(crate) device_read_bytes: u64,
}

impl Run {
    /// CPU time per gigabyte, in seconds, of one process.
    pub(crate) fn process_s_per_gb(&self, name: &str) -> f64 {
        let of_name = self.processes.iter().filter(|process| process.name == name);
        self.s_per_gb(of_name.map(|process| process.cpu_ns).sum())
    }

    /// CPU time per gigabyte, in seconds, of all processes of the server.
    pub(crate) fn server_s_per_gb(&self) -> f64 {
        self.s_per_gb(self.processes.iter().map(|process| process.cpu_ns).sum())
    }

    /// CPU time per gigabyte, in seconds, of the whole machine.
    pub(crate) fn machine_s_per_gb(&self) -> f64 {
        self.s_per_gb(self.machine_ns)
    }

    // Nanoseconds per byte are seconds per gigabyte.
    fn s_per_gb(&self, ns: u64) -> f64 {
        ns as f64 / self.load.body_bytes as f64
    }

    /// The part of the bytes served that came from a disk within the run; more than one if some were read twice.
    pub(crate) fn device_share(&self) -> f64 {
        self.device_read_bytes as f64 / self.load.body_bytes as f64
    }

    /// Throughput, in gigabits per second.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        8.0 * self.load.body_bytes as f64 / self.load.elapsed_ns as f64
    }

    /// Memory of all processes of the server without the block cache, and the block cache, in bytes.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        let sum = |bytes: fn(&ProcessCost) -> u64| self.processes.iter().map(bytes).sum();
        (
            sum(|process| process.memory_bytes),
            sum(|process| process.cache_bytes),
        )
    }
}

impl Display for Run {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:9} {:6.2} Gbit/s", self.server, self.gbit_per_s())?;
        for process in &self.processes {
            write!(
                f,
                "  {} {:.4} s/GB",
                process.name,
                self.process_s_per_gb(process.name)
            )?;
        }
        write!(
            f,
            "  machine {:.4} s/GB  {} compared",
            self.machine_s_per_gb(),
            self.load.compared
        )
    }
}

/// Runs the load generator against a server, and reads what that costs within its measured span.
pub(crate) fn run(server: &Server, load: &Settings) -> Result<Run> {
    let (outcome, cost): (Outcome, Cost) = generate(server, load.arguments())?;
    if outcome.body_bytes == 0 {
        return Err(Failure::new(format!(
            "{}: no byte in {} s",
            server.name, load.seconds
        )));
    }
    Ok(Run {
        server: server.name,
        connections: load.connections,
        load: outcome,
        processes: cost.processes,
        machine_ns: cost.machine_ns,
        interrupt_ns: cost.interrupt_ns,
        device_read_bytes: cost.device_read_bytes,
    })
}

/// What a load has cost, within its measured span.
pub(crate) struct Cost {
    pub(crate) processes: Vec<ProcessCost>,
    pub(crate) machine_ns: u64,
    interrupt_ns: u64,
    device_read_bytes: u64,
}

/// Runs this program as a load generator with these arguments; what it says, and what that costs the server.
pub(crate) fn generate<O: DeserializeOwned>(
    server: &Server,
    arguments: Vec<String>,
) -> Result<(O, Cost)> {
    let own = std::env::current_exe().context(|| "finding this program".into())?;
    let mut command = Command::new(own);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut generator = Process::spawn(&mut command)?;
    let stdout = generator
        .child()
        .stdout
        .take()
        .expect("a pipe, as asked for");
    let mut lines = BufReader::new(stdout).lines();

    let ready = next_line(&mut lines, server)?;
    if ready != READY {
        return Err(Failure::new(format!(
            "the load generator printed {ready:?}"
        )));
    }
    let before = Reading::take(server)?;
    let outcome = next_line(&mut lines, server)?;
    let after = Reading::take(server)?;
    drop(generator.child().stdin.take());

    let outcome = serde_json::from_str(&outcome)
        .context(|| format!("the load generator printed {outcome:?}"))?;
    generator.wait(Duration::from_secs(10))?;
    let costs = server
        .processes
        .iter()
        .enumerate()
        .map(|(index, &(name, _))| ProcessCost {
            name,
            cpu_ns: after.cpu_ns[index] - before.cpu_ns[index],
            memory_bytes: after.memory_bytes[index].0,
            cache_bytes: after.memory_bytes[index].1,
        });
    let cost = Cost {
        processes: costs.collect(),
        machine_ns: after.machine.busy_ns - before.machine.busy_ns,
        interrupt_ns: after.machine.interrupt_ns - before.machine.interrupt_ns,
        device_read_bytes: after.device_read_bytes - before.device_read_bytes,
    };
    Ok((outcome, cost))
}

fn next_line(lines: &mut Lines<BufReader<ChildStdout>>, server: &Server) -> Result<String> {
    match lines.next() {
        Some(line) => line.context(|| "reading from the load generator".into()),
        // It has said on standard error why.
        None => Err(Failure::new(format!(
            "the load on {} has failed",
            server.name
        ))),
    }
}

/// Counters of a server's processes and of the machine, at one moment.
struct Reading {
    cpu_ns: Vec<u64>,
    /// Without the block cache, and of it.
    memory_bytes: Vec<(u64, u64)>,
    machine: MachineTime,
    device_read_bytes: u64,
}

impl Reading {
    fn take(server: &Server) -> Result<Reading> {
        let pids = || server.processes.iter().map(|&(_, pid)| pid);
        Ok(Reading {
            machine: machine_time()?,
            device_read_bytes: device_read_bytes()?,
            cpu_ns: pids().map(cpu_ns).collect::<Result<_>>()?,
            // Last, for it takes longest.
            memory_bytes: pids().map(memory_bytes).collect::<Result<_>>()?,
        })
    }
}

/// Memory of a process without the block cache, and of the block cache, in bytes.
fn memory_bytes(pid: Pid) -> Result<(u64, u64)> {
    let all = memory(pid)?.proportional_bytes;
    let huge = huge_mappings(pid)?;
    // Read one after the other.
    let rest = all.saturating_sub(huge.advised_bytes);
    Ok((rest, huge.advised_bytes + huge.set_aside_bytes))
}
