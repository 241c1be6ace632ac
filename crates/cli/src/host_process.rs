//! The host process: the host stack and the HTTP server, locked out of the file system. NIC processes come and go;
//! the supervisor brings each.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use failure::Failure;
use host::{
    Admission, CongestionAlgorithm, Duplicate, Link, NicSource as _, Polling, Shard, Stack,
    StackConfig, monotonic_us,
};
use netdev::packet::PacketPort;
use netsetup::cidr::Cidr;
use netsetup::device;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::CapabilitySet;
use sandbox::{descriptors, lockdown, seccomp};

use crate::capture::asked::HOST_MARK;
use crate::control_link::MacAddress;
use crate::fetching::Fetching;
use crate::handover::Supervisor;
use crate::host_counters::counters;
use crate::measuring::HostMeasuring;
use crate::messages::{Message, Report};
use crate::observe::SocketSink;
use crate::signals::Signals;
use crate::tcp_options::TcpOptions;
use crate::tls_options::TlsOptions;
use crate::{certificates, child, heap};

/// The host process.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostArgs {
    /// Interface
    #[arg(long)]
    pub(crate) dev: String,
    /// Own addresses
    #[arg(long, num_args = 1..)]
    pub(crate) addr: Vec<Cidr>,
    /// Routers
    #[arg(long, num_args = 1..)]
    pub(crate) gateway: Vec<IpAddr>,
    /// Ask the link whether another machine has the addresses
    #[arg(long)]
    pub(crate) dad: bool,
    /// TCP ports without TLS
    #[arg(long)]
    pub(crate) listen: Vec<u16>,
    /// Congestion control
    #[arg(long)]
    pub(crate) congestion: CongestionAlgorithm,
    #[command(flatten)]
    pub(crate) tcp: TcpOptions,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    /// Most connections of one source
    #[arg(long)]
    pub(crate) connections_per_source: Option<u32>,
    /// Most connections that wait for their clients alone
    #[arg(long)]
    pub(crate) orphans: u32,
    /// Most memory that all connections hold, in bytes
    #[arg(long)]
    pub(crate) connection_memory: u64,
    /// Most RSTs per second to segments of no connection
    #[arg(long)]
    pub(crate) resets_per_second: u32,
    /// Most echo replies per second
    #[arg(long)]
    pub(crate) echo_replies_per_second: u32,
    #[command(flatten)]
    pub(crate) measuring: HostMeasuring,
    /// NIC stacks
    #[arg(long, default_value = "1")]
    pub(crate) nics: u8,
    /// Those of them, by number, that are on other machines
    #[arg(long, num_args = 1..)]
    pub(crate) elsewhere: Vec<u8>,
    /// Their roots are copies of each other
    #[arg(long)]
    pub(crate) replicas: bool,
    /// The supervisor passes a socket that leads to an observer
    #[arg(long)]
    pub(crate) observed: bool,
    /// Tell the observer what is counted
    #[arg(long, requires = "observed")]
    pub(crate) tell_counters: bool,
    /// How long a NIC worker may give no heartbeat, in milliseconds; zero: forever
    #[arg(long)]
    pub(crate) heartbeat_ms: u64,
    /// Directory that must be out of reach once the process is locked out of the file system
    #[arg(long)]
    pub(crate) probe: PathBuf,
}

/// Longest time that the shard looks for work before it sleeps, in microseconds, if there are cores enough
/// that looking takes none from those who bring the work.
const SPIN_US_MAX: u64 = 20;

/// Cores enough: one for either stack, and some for the rest of the machine.
const SPIN_CORES_MIN: usize = 4;

/// Longest pause in which work gathers while the NIC stack is busy, in microseconds: short beside the
/// round-trip times of the Internet, and only taken while what waits in the NIC stack takes twice as long.
const PAUSE_US_MAX: u64 = 4_000;

/// The same with several NIC stacks, of which one may have little to do while others have much.
const SHARED_PAUSE_US_MAX: u64 = 1_000;

/// Runs until the supervisor ends it.
pub(crate) fn run(args: &HostArgs) -> Result<(), Failure> {
    let control = child::adopt_control_socket(c"splitway-host")?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let own: Vec<IpAddr> = args.addr.iter().map(|cidr| cidr.address).collect();
    let mut port = PacketPort::open(&args.dev, &own)
        .map_err(|error| device::port_failed(&args.dev, &error))?;
    if args.dad {
        check_duplicates(&mut port, &args.dev, &own)?;
    }

    if let Err(error) = port.set_mark(HOST_MARK) {
        tracing::debug!(%error, "captures will not tell what this process sends");
    }

    let nics = usize::from(args.nics);
    let mut supervisor = Supervisor::new(control, nics, u64::from_ne_bytes(random()?))?;
    // Origins may be named later.
    let (fetching, door) = Fetching::new()?;
    supervisor.expect_fetchers(door);
    let with_tls = !args.tls.tls_listen.is_empty();
    let Some(http) = supervisor.configuration(with_tls, signals.as_fd())? else {
        return Ok(());
    };
    let tls = supervisor.certificates();
    let tls = tls.map(|certificates| tls_config(args, certificates));
    let tls = tls.transpose()?;
    let mut observer = None;
    if args.observed {
        observer = supervisor.observer(signals.as_fd())?;
        if observer.is_none() {
            return Ok(());
        }
    }
    if let (Some(socket), true) = (&observer, args.tell_counters) {
        supervisor.tell_counters(socket)?;
    }
    let Some((nic, session)) = supervisor.first(signals.as_fd())? else {
        return Ok(());
    };

    // Two event descriptors for each worker of each NIC stack, also of those that come later.
    descriptors::raise();

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    let locked_out = lockdown::lock_out(&args.probe)?;

    let mut config = StackConfig {
        addresses: args
            .addr
            .iter()
            .map(|cidr| (cidr.address, cidr.prefix_len))
            .collect(),
        gateways: args.gateway.clone(),
        listen_ports: args.listen.clone(),
        tcp: tcp::Config {
            congestion: args.congestion,
            ..tcp::Config::default()
        },
        connections_max: StackConfig::CONNECTIONS_MAX,
        orphans_max: usize::try_from(args.orphans).unwrap_or(usize::MAX),
        echo_replies_per_second: args.echo_replies_per_second,
        connection_memory_bytes_max: usize::try_from(args.connection_memory).unwrap_or(usize::MAX),
        resets_per_second: args.resets_per_second,
        admission: Admission {
            connections_per_source: args.connections_per_source,
            ..Admission::default()
        },
        departs_at_issue: false,
        roots_are_replicas: args.replicas,
        secret: random()?,
    };
    args.tcp.apply(&mut config.tcp);
    args.measuring.apply(&mut config);
    let mut stack = Stack::awaiting(config, Link::of(&port), nics, monotonic_us());
    for number in &args.elsewhere {
        stack.set_nic_elsewhere(usize::from(*number));
    }
    stack
        .on_nic_come(nic, session.channels)
        .map_err(|refusal| Failure::broken("NIC process", refusal))?;
    for (port, config) in args.tls.tls_listen.iter().zip(tls.iter().cycle()) {
        stack.serve_tls(*port, Arc::clone(config));
    }
    stack.announce(monotonic_us());
    let mut server = server::Server::with_origins(http, Box::new(fetching));
    if let Some(socket) = observer {
        server.log_accesses(Box::new(SocketSink(socket)));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spin_us_max = if cores >= SPIN_CORES_MIN {
        SPIN_US_MAX
    } else {
        0
    };
    let pause_us_max = match nics {
        1 => PAUSE_US_MAX,
        _ => SHARED_PAUSE_US_MAX,
    };
    let polling = Polling::new(spin_us_max, pause_us_max);
    let mut shard = Shard::new(stack, (nic, session.socket), port, server, polling);
    shard.set_frame_delay(args.measuring.frame_delay_us());
    shard.set_heartbeat(args.heartbeat_ms.saturating_mul(1_000));

    // Threads cannot be started afterwards.
    heap::give_back_when_idle();
    seccomp::allow_only(seccomp::Kind::Host)?;
    // Before it says that it is ready: who connects then finds it, also where another machine had its addresses.
    shard
        .turn(monotonic_us())
        .map_err(|error| Failure::broken("host process", error))?;
    supervisor.on_joined(nic);
    child::tell(&Message::HostReady(locked_out))?;
    let ended = shard.run(&mut supervisor, signals.as_fd());
    child::tell(&Message::Report(Report::now(counters(
        &shard.stack().counters(),
        shard.app().counters(),
    ))))?;
    ended.map_err(|error| Failure::broken("host process", error))
}

/// Fails if another machine on the link has one of the addresses.
fn check_duplicates(port: &mut PacketPort, device: &str, own: &[IpAddr]) -> Result<(), Failure> {
    let what = format!("asking the link of {device} for the stack's addresses");
    let found = host::find_duplicate(port, own).map_err(|error| Failure::broken(&what, error))?;
    let Some(Duplicate { address, holder }) = found else {
        return Ok(());
    };
    let holder = MacAddress(holder);
    let why = format!("{address} is in use by the machine with hardware address {holder}");
    Err(Failure::input(what, why).remedy(
        "Give the stack another address, or stop the other machine. If both are to have it, --no-dad (network.dad) skips this.",
    ))
}

/// What the connections of all TLS listeners have in common: a session of one may be resumed at another.
fn tls_config(
    args: &HostArgs,
    certificates: Arc<tls::Certificates>,
) -> Result<Arc<tls::Config>, Failure> {
    let settings = args.tls.settings();
    tls::Config::new(certificates, &settings, certificates::unix_time())
        .map(Arc::new)
        .map_err(|error| Failure::broken("setting up TLS", error))
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    // Up to 256 bytes come whole or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Failure::broken("asking the kernel for random bytes", errno))?;
    Ok(bytes)
}
