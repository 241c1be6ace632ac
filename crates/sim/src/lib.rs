//! Deterministic simulation: the real stacks in a world that one seed determines.
//!
//! [`run`] draws a scenario from a seed, puts the real host stack, real NIC workers and the real
//! HTTP server on a simulated network with simulated disks, and lets clients download files. Time
//! is virtual; there are no threads, no sockets and no clocks. The invariants of the code under
//! test are checked at every step, and a run that breaks one ends with a [`Violation`]. The same
//! seed always gives the same run, to the last bit of every packet.
//!
//! | Module | Contents |
//! |---|---|
//! | `scenario` | parameters drawn from a seed; start here |
//! | `world` | event loop; checks at every step, and at the end |
//! | `crowd` | hundreds of clients instead of a scenario |
//! | `machine`, `addresses` | the server: both stacks; its addresses |
//! | `worker_slot`, `channel_tap` | a worker with its disk and port; its channel to the host |
//! | `control_link` | the stacks on two machines: relays, sessions, and the link between them |
//! | `peer` | a client of either transport |
//! | `client`, `responses` | our own TCP on the client's side, which compares every byte |
//! | `client_http2` | a client's HTTP/2, whose responses are compared as those of HTTP/1.1 |
//! | `client_quic`, `http3_response` | quinn on the client's side, which does the same |
//! | `hostile` | an attacker |
//! | `client_tls`, `oracle` | a client's TLS; an independent implementation of the record layer |
//! | `site`, `entropy` | the server's certificate and settings; seeded cryptography |
//! | [`wire_watch`] | no two QUIC packets under one key and number |
//! | `nonce_check`, `event_drain` | no nonce for two plaintexts; events of ended workers |
//! | `link`, `router` | rate, delay, queues, faults; neighbours, "too big" |
//! | `ports`, `gro` | ports that are busy or drop; merged packets at the receiver |
//! | `disk`, `file_versions`, `content` | slow and failing reads; file versions; file content |
//! | `nic_crash_stats` | operations under way when NIC processes died |
//! | `tls_counters`, `quic_counters` | counters of connections that use TLS, or QUIC |
//! | `setup_counters` | counters of SYNs that NIC workers answer |
//! | `teardown_counters` | counters of connections whose end NIC stacks run |
//! | `division_counters` | counters of worker load and workers in use |
//! | `audit` | audit of the wire: sequence space and windows |
//! | `cwnd_check`, `fairness`, `flow_affinity` | congestion window; turns; workers of flows |
//! | `trace`, `pcap` | a run as text, as a capture, as a hash |
//! | [`random`], `violation` | small tools |
//! | [`model`] | a performance model of hardware that is not available; runs no stack |
//!
//! This crate sees both stacks, through their public interfaces only.

#![forbid(unsafe_code)]

mod addresses;
mod audit;
mod channel_tap;
mod client;
mod client_http2;
mod client_quic;
mod client_tls;
mod content;
mod control_link;
mod crowd;
mod cwnd_check;
mod disk;
mod division_counters;
mod entropy;
mod event_drain;
mod fairness;
mod file_versions;
mod flow_affinity;
mod gro;
mod hostile;
mod http3_response;
mod link;
mod machine;
pub mod model;
mod nic_crash_stats;
mod nonce_check;
mod oracle;
mod pcap;
mod peer;
mod ports;
mod quic_counters;
pub mod random;
mod responses;
mod router;
mod scenario;
mod setup_counters;
mod site;
mod teardown_counters;
mod tls_counters;
mod trace;
mod violation;
pub mod wire_watch;
mod worker_slot;
mod world;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use scenario::Scenario;
use trace::Trace;
use world::World;

pub use control_link::ControlLinkCounters;
pub use crowd::{Crowd, CrowdReport, WorkerShare, run_crowd};
pub use division_counters::DivisionCounters;
pub use nic_crash_stats::NicCrashStats;
pub use quic_counters::QuicCounters;
pub use setup_counters::SetupCounters;
pub use teardown_counters::TeardownCounters;
pub use tls_counters::TlsCounters;
pub use trace::{Options, Sink};
pub use violation::Violation;

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Virtual duration, in microseconds.
    pub elapsed_us: u64,
    /// Bytes received by clients, response heads included.
    pub bytes_received: u64,
    /// Packets lost.
    pub frames_lost: u64,
    /// SENDs and packets that repeat bytes.
    pub retransmissions: u64,
    /// Deaths of NIC processes, by the operations under way.
    pub nic_deaths: NicCrashStats,
    /// Moves of connections to a worker of another NIC stack.
    pub connections_moved: u64,
    /// Workers put in and out of use, and moves of connections for it within their NIC stack.
    pub division: DivisionCounters,
    /// SYNs offered to NIC workers.
    pub setup: SetupCounters,
    /// Connections whose end was offered to a NIC stack.
    pub teardown: TeardownCounters,
    /// Connections that ended early: a violation follows.
    pub connections_lost: u64,
    /// Counters of TLS connections.
    pub tls: TlsCounters,
    /// Counters of QUIC connections.
    pub quic: QuicCounters,
    /// Counters of the link between the machines, if the stacks are on two.
    pub control_link: ControlLinkCounters,
    /// Events that have happened.
    pub happenings: u64,
    /// Hash of all events: equal for equal runs.
    pub hash: u64,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
}

/// Runs the scenario of a seed. A panic of the code under test is a violation too.
pub fn run(seed: u64, options: &Options<'_>) -> Report {
    let mut scenario = Scenario::draw(seed);
    if options.teardown {
        scenario.draw_teardown(seed);
    }
    if options.setup {
        scenario.draw_setup(seed);
    }
    if let Some(sink) = options.trace {
        let _ = write!(sink.borrow_mut(), "{scenario}");
    }
    let mut world = World::new(seed, scenario, Trace::new(*options));
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match result {
        Ok(result) => result.err(),
        Err(panic) => Some(Violation(format!("panic: {}", message_of(&*panic)))),
    };
    Report {
        seed,
        elapsed_us: world.elapsed_us(),
        bytes_received: world.bytes_received(),
        frames_lost: world.frames_lost,
        retransmissions: world.retransmissions(),
        nic_deaths: world.nic_deaths(),
        connections_moved: world.connections_moved(),
        division: world.division(),
        setup: world.setup(),
        teardown: world.teardown(),
        connections_lost: world.connections_lost(),
        tls: world.tls(),
        quic: world.quic(),
        control_link: world.control_link(),
        happenings: world.happenings,
        hash: world.trace.hash(),
        violation,
    }
}

/// Returns the number of NIC processes that are to die in the scenario of a seed.
pub fn nic_deaths_planned(seed: u64) -> usize {
    Scenario::draw(seed).deaths_planned()
}

/// Returns the number of NIC stacks in the scenario of a seed, and whether their roots are
/// replicas.
pub fn nic_stacks(seed: u64) -> (usize, bool) {
    let scenario = Scenario::draw(seed);
    (scenario.nic_stacks, scenario.replicas)
}

/// Reports whether the number of workers in use follows the load in the scenario of a seed.
pub fn has_loads(seed: u64) -> bool {
    !Scenario::draw(seed).loads.is_empty()
}

/// Reports whether clients use TLS in the scenario of a seed.
pub fn has_tls(seed: u64) -> bool {
    Scenario::draw(seed).has_tls()
}

/// Reports whether clients use QUIC in the scenario of a seed.
pub fn has_quic(seed: u64) -> bool {
    Scenario::draw(seed).has_quic()
}

/// Reports whether the stacks are on two machines in the scenario of a seed.
pub fn has_two_machines(seed: u64) -> bool {
    Scenario::draw(seed).control.is_some()
}

/// Returns the command that replays the run of a seed.
pub fn replay_command(seed: u64) -> String {
    format!("cargo run --release -p splitway-sim -- --seed {seed} --trace")
}

/// Returns the command that replays a run in which NIC stacks run the end of connections.
pub fn replay_command_with_teardown(seed: u64) -> String {
    format!("{} --teardown-offload", replay_command(seed))
}

/// Returns the command that replays a run in which NIC workers answer SYNs.
pub fn replay_command_with_setup(seed: u64) -> String {
    format!("{} --setup-offload", replay_command(seed))
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            seed,
            elapsed_us,
            bytes_received,
            frames_lost,
            retransmissions,
            nic_deaths,
            connections_moved: _,
            division: _,
            setup: _,
            teardown: _,
            connections_lost,
            tls,
            quic,
            control_link: _,
            happenings,
            hash,
            violation,
        } = self;
        write!(
            f,
            "seed {seed}: {bytes_received} bytes received, {frames_lost} packets lost, \
             {retransmissions} retransmissions, {} NIC deaths, {connections_lost} connections \
             lost, {} TLS handshakes, {} reset for records in doubt, {} QUIC connections, \
             {happenings} happenings in \
             {:.3} s, hash {hash:016x}",
            nic_deaths.all,
            tls.handshakes,
            tls.unproven,
            quic.connections,
            *elapsed_us as f64 / 1e6
        )?;
        match violation {
            None => Ok(()),
            Some(violation) => write!(f, "\nVIOLATION: {violation}"),
        }
    }
}
