//! `splitway-bench quic-engines`: the cost of sending datagrams, by method, and the cost of sealing
//! beside it.
//!
//! One thread sends superpackets' worth of datagrams over a veth pair, for some time, in each of
//! the ways in [`Engine`]. The other end drops each packet on receipt: it has another link address.
//! The result is this thread's CPU time, including the link's.
//!
//! | Module | Contents |
//! |---|---|
//! | `engine` | the ways |
//! | `batch` | datagrams, and their sealing |

mod batch;
mod engine;

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use testbed::namespace::Network;
use testbed::process::{run, tool};
use testbed::{Context, Failure, Result};

use self::batch::{Batch, DATAGRAM_BYTES};
use self::engine::Engine;
use crate::SERVER_CORE;
use crate::measure::plan::Plan;
use crate::measure::publish::results_directory;
use crate::measure::results::{Bound, Measures, Plot, Results, Table, column};
use crate::measure::rounds::Rounds;

/// The sending end of the link, its address and network, and the destination: a neighbor whose link
/// address no device has.
const DEVICE: &str = "engine0";
const ADDRESS: &str = "10.79.0.1";
const NETWORK_BITS: u8 = 24;
const NEIGHBOUR: &str = "10.79.0.2";
const NEIGHBOUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x79];

/// Datagrams per call, for engines that take several: as many as UDP's length fields permit in one
/// superpacket.
const DATAGRAMS: usize = 65_507 / DATAGRAM_BYTES;

/// Series: datagrams sent unsealed or sealed, and sealing alone.
const PLAIN: &str = "as they are";
const SEALED: &str = "sealed";
const ALONE: &str = "AES-128-GCM alone";

/// Parts of the results.
const SENT: &str = "sent";

/// Default seconds of a run; [`QUICK_SECONDS`] for quick runs.
const SECONDS: f64 = 0.5;
const QUICK_SECONDS: f64 = 0.1;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Ways to send datagrams
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Engine::ALL)]
    engines: Vec<Engine>,
    /// Datagrams per call, for engines that take several
    #[arg(long, default_value_t = DATAGRAMS, value_parser = datagrams)]
    datagrams: usize,
}

impl Settings {
    fn seconds(&self) -> f64 {
        self.rounds.seconds_of(QUICK_SECONDS, SECONDS)
    }

    /// Returns the runs that take turns.
    fn runs(&self) -> Vec<Run> {
        let engines = self.engines.iter().copied();
        let sent = engines.flat_map(|engine| {
            [false, true].map(|seals| Run {
                engine: Some(engine),
                seals,
            })
        });
        let alone = Run {
            engine: None,
            seals: true,
        };
        sent.chain([alone]).collect()
    }
}

/// Parses a number of datagrams, up to that of one superpacket.
fn datagrams(text: &str) -> std::result::Result<usize, String> {
    let count: usize = text.parse().map_err(|error| format!("{error}"))?;
    if (1..=DATAGRAMS).contains(&count) {
        Ok(count)
    } else {
        Err(format!("1 to {DATAGRAMS} are meant"))
    }
}

/// Datagrams sent in one way, or only sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    engine: Option<Engine>,
    seals: bool,
}

impl Run {
    fn name(self) -> String {
        let kind = if self.seals { SEALED } else { PLAIN };
        self.engine.map_or(ALONE.to_owned(), |engine| {
            format!("{}, {kind}", engine.name())
        })
    }
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    let runs = settings.runs().len() * settings.rounds.count();
    plan.also(runs, settings.seconds());
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let _other_end = make_link()?;
    let title = format!(
        "How datagrams of {DATAGRAM_BYTES} bytes leave, {} at a time where several can",
        settings.datagrams
    );
    let mut results = Results::new("quic-engines", title, settings)?;
    let mut core = CpuSet::new();
    core.set(SERVER_CORE);
    sched_setaffinity(None, &core).context(|| format!("moving to core {SERVER_CORE}"))?;
    let runs = settings.runs();
    settings.rounds.take_turns(&runs, |&run| {
        let measures = run_one(settings, run)?;
        let (ns, rate) = (measures["cpu_ns_per_packet"], measures["packets_per_cpu_s"]);
        eprintln!(
            "{:36} {ns:6.0} ns each, {rate:9.0} packets/s of CPU time",
            run.name()
        );
        results.add(SENT, run.name(), &[], measures);
        Ok(())
    })?;
    report(&mut results, &runs);
    let output = results_directory()?;
    results.publish(settings.rounds.output(&output))
}

/// Creates a veth pair. This end sends; the other end is in a namespace of its own, which ends when
/// the returned value is dropped.
fn make_link() -> Result<Network> {
    let other = Network::new()?;
    let pid = other.holder().as_raw_nonzero();
    let mac = NEIGHBOUR_MAC.map(|byte| format!("{byte:02x}")).join(":");
    for line in [
        format!("ip link add {DEVICE} type veth peer name {DEVICE} netns {pid}"),
        // The kernel must not send datagrams of its own.
        format!("ip link set {DEVICE} addrgenmode none"),
        format!("ip address add {ADDRESS}/{NETWORK_BITS} dev {DEVICE}"),
        format!("ip link set {DEVICE} up"),
        format!("ip neigh replace {NEIGHBOUR} dev {DEVICE} lladdr {mac} nud permanent"),
    ] {
        run(&mut tool(&line))?;
    }
    let up = format!("ip link set {DEVICE} up");
    run(&mut testbed::namespace::within(other.holder(), &up))?;
    Ok(other)
}

fn run_one(settings: &Settings, run: Run) -> Result<Measures> {
    let mut batch = Batch::new(settings.datagrams)?;
    let mut sender = run.engine.map(Engine::open).transpose()?;
    let span = Duration::from_secs_f64(settings.seconds());
    let before = sent_bytes()?;
    let (begun, cpu_before) = (Instant::now(), cpu_time());
    let mut packets = 0;
    let elapsed = loop {
        if run.seals {
            batch.seal()?;
        }
        if let Some(sender) = &mut sender {
            sender.send(&batch)?;
        }
        packets += batch.len() as u64;
        let elapsed = begun.elapsed();
        if elapsed >= span {
            break elapsed;
        }
    };
    let cpu = cpu_time() - cpu_before;
    let bytes = packets * DATAGRAM_BYTES as u64;
    let left = sent_bytes()? - before;
    if sender.is_some() && left < bytes {
        return Err(Failure::new(format!(
            "{}: of {bytes} bytes, the link has had {left}",
            run.name()
        )));
    }
    Ok(measures(packets, elapsed, cpu))
}

fn measures(packets: u64, elapsed: Duration, cpu: Duration) -> Measures {
    let (packets, cpu_s) = (packets as f64, cpu.as_secs_f64());
    let bytes = packets * DATAGRAM_BYTES as f64;
    [
        ("packets_per_s", packets / elapsed.as_secs_f64()),
        ("packets_per_cpu_s", packets / cpu_s),
        ("cpu_ns_per_packet", 1e9 * cpu_s / packets),
        ("cpu_s_per_gb", 1e9 * cpu_s / bytes),
        ("gbit_per_cpu_s", 8e-9 * bytes / cpu_s),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the bytes sent through the device.
fn sent_bytes() -> Result<u64> {
    let path = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(path).context(|| format!("reading {path}"))?;
    let missing = || Failure::new(format!("{path} does not say what {DEVICE} has sent"));
    sent_bytes_in(&text).ok_or_else(missing)
}

/// Returns the bytes sent, from the text of `/proc/net/dev`: a line for each device, with eight
/// columns about reception, then those about transmission, bytes first.
fn sent_bytes_in(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'))?;
    line.split_whitespace().nth(8)?.parse().ok()
}

fn report(results: &mut Results, runs: &[Run]) {
    let columns = vec![
        column("cpu_ns_per_packet", "CPU ns each", 0),
        column("cpu_s_per_gb", "CPU s/GB", 4),
        column("packets_per_cpu_s", "packets/s of one core", 0),
        column("gbit_per_cpu_s", "Gbit/s of one core", 2),
        column("packets_per_s", "packets/s by the clock", 0),
    ];
    results.table(Table::of(SENT, columns).of_each("Datagrams"));
    let y = ("packets_per_cpu_s", "datagrams for each second of CPU time");
    results.plot(Plot::bars("quic-engines", SENT, y));
    // The part of AES-GCM's own rate that remains with each way to send.
    for run in runs.iter().filter(|run| run.seals && run.engine.is_some()) {
        let measure = "packets_per_cpu_s";
        let ratio = results.ratio(SENT, (&run.name(), measure), (ALONE, measure));
        let what = format!("{}, against {ALONE}", run.name());
        results.check(what, ratio, Bound::None);
    }
    results.note(
        "One thread, one flow, a veth pair whose other end drops each packet as one for another \
         machine. Superpackets cross it whole, as they would reach a NIC that cuts them, and no \
         checksum is computed in software. CPU time is that of the thread; that of soft interrupts \
         on its core, in which the other end drops, is in it.",
    );
    results.note(
        "AES-128-GCM is that of aws-lc, in place, each datagram with 21 bytes of header and 16 of \
         tag; header protection is not in it. *AF_PACKET* is Splitway's own port: one write of a \
         frame with a virtio header, cut by the kernel or the link (GSO_UDP_L4). A request \
         of io_uring takes the way of sendmsg through the kernel, and spares its system call.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::settings;

    #[test]
    fn each_engine_sends_as_it_is_and_sealed_and_sealing_has_a_run_of_its_own() {
        let all = settings::<Settings>(&[]).runs();
        assert_eq!(all.len(), 2 * Engine::ALL.len() + 1);
        let mut names: Vec<String> = all.iter().map(|run| run.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        let few = settings::<Settings>(&["--engines=packet", "--datagrams=7"]);
        assert_eq!((few.runs().len(), few.datagrams), (3, 7));
        assert!(datagrams("0").is_err() && datagrams("46").is_err() && datagrams("x").is_err());
        let quick = plan(&settings::<Settings>(&["--quick"]));
        assert!(quick.seconds() < plan(&settings::<Settings>(&[])).seconds() / 10.0);
    }

    #[test]
    fn what_a_device_has_sent_is_found() {
        let text = "Inter-|   Receive  |  Transmit\n \
             face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n  \
             lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n \
             engine0: 1 2 3 4 5 6 7 8 99 10 11 12 13 14 15 16\n";
        assert_eq!(sent_bytes_in(text), Some(99));
        assert_eq!(sent_bytes_in("  lo: 1 2 3"), None);
    }

    #[test]
    fn rates_are_for_each_second_of_cpu_time() {
        let second = Duration::from_secs(1);
        let measures = measures(1_000_000, 2 * second, second);
        assert_eq!(measures["packets_per_s"], 500_000.0);
        assert_eq!(measures["packets_per_cpu_s"], 1_000_000.0);
        assert_eq!(measures["cpu_ns_per_packet"], 1000.0);
        let gb = 1e-3 * DATAGRAM_BYTES as f64;
        assert!((measures["cpu_s_per_gb"] - 1.0 / gb).abs() < 1e-9);
    }
}
