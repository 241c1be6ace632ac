//! The host process: the host stack and the HTTP server, locked out of the file system. The
//! supervisor passes each NIC process to it.

pub mod apps;
pub mod broker_link;
pub mod control;
pub mod counter_reporter;
pub mod fetch_client;
pub mod key_log;
pub mod qlog;
pub mod stat_writer;

use std::ffi::CStr;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use failure::Failure;
use host::app::{Bind, BindingId, Owner, StreamOptions};
use host::{
    Applications, Duplicate, Link, NicSource as _, Polling, QuicListener, QuicSettings, Shard,
    Stack, StackConfig, monotonic_us,
};
use netdev::packet::PacketPort;
use netdev::steering::SteeringMap;
use netsetup::cidr::Cidr;
use netsetup::device;
use proxy::Proxy;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::CapabilitySet;
use sandbox::{descriptors, lockdown, seccomp};
use serde::{Deserialize, Serialize};
use sockets::Sockets;

use crate::heap;
use crate::host::control::HostControl;
use crate::host::fetch_client::FetchClient;
use crate::host::key_log::KeyLogger;
use crate::ipc::ablation::HostAblation;
use crate::ipc::capture_request::HOST_MARK;
use crate::ipc::child;
use crate::ipc::launch::{self, Launched, Settings};
use crate::ipc::messages::FromHost;
use crate::ipc::shared_link::{Shared, SharedLink};
use crate::ipc::signals::Signals;
use config::certificates;
use config::control_link::MacAddress;
use config::socket_values::OffloadOption;
use config::{Quic, Text, TlsSettings};
use observer::SocketSink;

/// Settings at the start of the host process. Settings that a reload may change come as a
/// [`HostConfiguration`](crate::ipc::host_configuration::HostConfiguration).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostSettings {
    /// Interface to the clients.
    pub device: String,
    /// Own addresses of the stack on it.
    pub addresses: Vec<Text<Cidr>>,
    /// Gateways of the addresses.
    pub gateways: Vec<IpAddr>,
    /// The stack's ports, if the kernel has the addresses as well. The set of addresses comes as
    /// the first further descriptor.
    #[serde(default)]
    pub share: Option<SharedLink>,
    /// Whether to check the link for duplicates of the addresses.
    pub dad: bool,
    /// TCP ports without TLS.
    pub ports: Vec<u16>,
    /// TCP ports with TLS.
    pub tls_ports: Vec<u16>,
    /// UDP ports with HTTP/3.
    pub http3_ports: Vec<u16>,
    /// TCP ports of the proxy.
    pub proxy_ports: Vec<u16>,
    /// TCP ports of the proxy with TLS.
    pub proxy_tls_ports: Vec<u16>,
    /// Settings of TLS.
    pub tls: TlsSettings,
    /// Settings of QUIC.
    pub quic: Quic,
    /// Number of NIC stacks.
    pub nics: usize,
    /// Numbers of NIC stacks on other machines.
    pub remote_nics: Vec<usize>,
    /// Whether their roots are copies of each other.
    pub replicas: bool,
    /// Fewest workers in use of each NIC stack.
    pub workers_min: u16,
    /// Whether NIC workers answer SYNs. A steering map may come as a further descriptor.
    pub setup_offload: OffloadOption,
    /// Whether NIC stacks run the end of connections.
    pub teardown_offload: OffloadOption,
    /// Longest time without a heartbeat of a NIC worker; zero: forever.
    pub heartbeat: Duration,
    /// Directory that must be inaccessible once the process is locked out of the file system.
    #[serde(with = "launch::path")]
    pub probe: PathBuf,
    /// Whether the observer gets the secrets of each connection, for its key log.
    #[serde(default)]
    pub key_log: bool,
    /// Switches for measurements.
    pub ablation: HostAblation,
}

impl Settings for HostSettings {
    const NAME: &'static str = "host process";
    const COMMAND: &'static str = "host";
    const TASK_NAME: &'static CStr = c"splitway-host";
}

/// Longest time that the shard polls for work before it sleeps, in microseconds, if there are
/// enough cores that polling does not slow the producers of work.
const SPIN_US_MAX: u64 = 20;

/// Fewest cores for polling: one for either stack, and some for the rest of the machine.
const SPIN_CORES_MIN: usize = 4;

/// Longest pause in which work accumulates while the NIC stack is busy, in microseconds: short
/// compared to Internet round-trip times, and taken only while the work queued in the NIC stack
/// takes twice as long.
const PAUSE_US_MAX: u64 = 4_000;

/// Same limit with several NIC stacks, since one may be almost idle while others are busy.
const SHARED_PAUSE_US_MAX: u64 = 1_000;

/// Runs until the supervisor ends it.
pub fn run() -> Result<(), Failure> {
    let mut launched = launch::enter::<HostSettings>()?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let (port, map) = open_port(&mut launched)?;
    let (settings, control) = (launched.settings, launched.control);

    let mut supervisor = HostControl::new(control, settings.nics, u64::from_ne_bytes(random()?))?;
    // A reload may name the first origin.
    let (fetch_client, slot) = FetchClient::new()?;
    supervisor.expect_fetchers(slot);
    let with_tls = !settings.tls_ports.is_empty() || !settings.proxy_tls_ports.is_empty();
    let Some(start) = supervisor.configuration(with_tls, signals.as_fd())? else {
        return Ok(());
    };
    let Some(observer) = supervisor.observer(signals.as_fd())? else {
        return Ok(());
    };
    let key_log = key_log(&settings, &observer)?;
    let Some((nic, session)) = supervisor.first(signals.as_fd())? else {
        return Ok(());
    };

    // Two event descriptors for each worker of each NIC stack, including later processes.
    descriptors::raise();

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    let locked_out = lockdown::lock_out(&settings.probe)?;

    let config = stack_config(&settings, random()?);
    let mut stack = Stack::awaiting(config, Link::of(&port), settings.nics, monotonic_us());
    stack.change(&start.stack);
    stack.set_proxies(start.proxies);
    supervisor.apply_access(&mut stack);
    map.into_iter().for_each(|map| stack.steer_with(map));
    for number in &settings.remote_nics {
        stack.set_nic_elsewhere(*number);
    }
    stack
        .on_nic_come(monotonic_us(), nic, session.channels)
        .map_err(|refusal| Failure::broken("NIC process", refusal))?;
    if let Some(certificates) = supervisor.certificates() {
        serve_tls(&mut stack, &settings, &certificates, &key_log)?;
        let congestion = start.stack.congestion;
        let mut quic = settings.quic.settings(&settings.tls, congestion);
        (quic.key_log, quic.secret) = (key_log, start.quic_secret);
        serve_http3(&mut stack, &settings.http3_ports, &quic, &certificates)?;
    }
    stack.announce(monotonic_us());
    let mut proxy = proxy(start.proxy, &settings.proxy_ports, &mut stack, &observer)?;
    let mut server = server::Server::with_origins(start.http, Box::new(fetch_client));
    server.log_accesses(Box::new(SocketSink(observer)));
    supervisor.observe(start.observed, &mut server, &mut proxy);
    let others =
        Sockets::new().map_err(|error| Failure::broken("waiting for applications", error))?;
    let app = Applications {
        server,
        proxy,
        others,
    };
    let polling = polling(settings.nics);
    let mut shard = Shard::new(stack, (nic, session.socket), port, app, polling);
    shard.set_frame_delay(settings.ablation.frame_delay_us());
    shard.set_heartbeat(u64::try_from(settings.heartbeat.as_micros()).unwrap_or(u64::MAX));

    // Threads cannot be started later.
    heap::give_back_when_idle();
    seccomp::allow_only(seccomp::Kind::Host)?;
    // Before the process reports that it is ready: clients reach it then, also where another
    // machine had its addresses.
    shard
        .turn(monotonic_us())
        .map_err(|error| Failure::broken("host process", error))?;
    supervisor.on_joined(nic);
    child::tell(FromHost::Ready(locked_out))?;
    let ended = shard.run(&mut supervisor, signals.as_fd());
    child::report(counter_reporter::counted(shard.stack(), shard.app()))?;
    ended.map_err(|error| Failure::broken("host process", error))
}

/// Returns the key log, if it is enabled.
fn key_log(
    settings: &HostSettings,
    observer: &OwnedFd,
) -> Result<Option<Arc<dyn tls::KeyLog>>, Failure> {
    let logger = settings.key_log.then(|| KeyLogger::new(observer));
    Ok(logger.transpose()?.map(|logger| Arc::new(logger) as _))
}

/// Has the server and the proxy accept connections of TLS over TCP.
fn serve_tls(
    stack: &mut Stack,
    settings: &HostSettings,
    certificates: &Arc<tls::Certificates>,
    key_log: &Option<Arc<dyn tls::KeyLog>>,
) -> Result<(), Failure> {
    let config = tls_config(&settings.tls, Arc::clone(certificates), key_log)?;
    for port in &settings.tls_ports {
        stack.serve_tls(*port, Arc::clone(&config));
    }
    for port in &settings.proxy_tls_ports {
        stack.terminate_tls(*port, Arc::clone(&config));
    }
    Ok(())
}

/// Has the server accept QUIC connections.
fn serve_http3(
    stack: &mut Stack,
    ports: &[u16],
    quic: &QuicSettings,
    certificates: &Arc<tls::Certificates>,
) -> Result<(), Failure> {
    // The endpoints compute the age of tokens with it.
    stack.set_unix_time(certificates::unix_time());
    for port in ports {
        let listener = QuicListener {
            port: *port,
            certificates: Arc::clone(certificates),
            settings: quic.clone(),
        };
        let served = stack.serve_quic(monotonic_us(), &listener);
        served.map_err(|error| {
            Failure::broken(format!("serving HTTP/3 on UDP port {port}"), error)
        })?;
    }
    Ok(())
}

/// Starts the proxy, which listens on these ports.
fn proxy(
    config: proxy::Config,
    ports: &[u16],
    stack: &mut Stack,
    observer: &OwnedFd,
) -> Result<Proxy, Failure> {
    let mut proxy = Proxy::new(config);
    // The server has the observer's socket as well.
    let socket = observer.try_clone();
    let socket = socket.map_err(|error| Failure::broken("making a socket", error))?;
    proxy.log_accesses(Box::new(SocketSink(socket)));
    for (number, port) in ports.iter().enumerate() {
        proxy.add_listener(listen(stack, *port)?, number);
    }
    Ok(proxy)
}

/// Has the proxy accept connections to a port of all addresses.
fn listen(stack: &mut Stack, port: u16) -> Result<BindingId, Failure> {
    let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let binding = stack.bind(&Bind::new(Owner::PROXY, all));
    let listens = binding.and_then(|binding| {
        stack.listen(binding, StreamOptions::default())?;
        Ok(binding)
    });
    listens.map_err(|error| Failure::broken(format!("listening on port {port}"), error))
}

/// Opens the port for all frames to the stack's addresses, which belong to this machine alone,
/// except those that a steering map, if any, assigns to NIC workers.
fn open_port(
    launched: &mut Launched<HostSettings>,
) -> Result<(PacketPort, Option<SteeringMap>), Failure> {
    let shared = match launched.settings.share.clone() {
        Some(link) => Some(Shared::new(&link, launched.take_socket()?)),
        None => None,
    };
    let (shared, map) = (shared.as_ref(), launched.take_any_socket());
    let settings = &launched.settings;
    let own: Vec<IpAddr> = settings
        .addresses
        .iter()
        .map(|cidr| cidr.0.address)
        .collect();
    let device = &settings.device;
    let steered = map.map(|map| steered_port(device, shared, &own, &map));
    let (mut port, map) = match steered.transpose() {
        Ok(Some((port, map))) => (port, Some(map)),
        not => {
            if let Err(why) = not {
                tracing::warn!(why, "frames are not steered");
            }
            let port = match shared {
                Some(shared) => PacketPort::open_shared(device, shared.share(), None),
                None => PacketPort::open(device, &own),
            };
            let port = port.map_err(|error| device::port_failed(device, &error))?;
            (port, None)
        }
    };
    if settings.dad {
        check_duplicates(&mut port, &settings.device, &own)?;
    }
    if let Err(error) = port.set_mark(HOST_MARK) {
        tracing::debug!(%error, "captures cannot mark packets of this process");
    }
    Ok((port, map))
}

/// Opens the port with a steering map; the error is the reason for having none.
fn steered_port(
    device: &str,
    shared: Option<&Shared>,
    own: &[IpAddr],
    map: &OwnedFd,
) -> Result<(PacketPort, SteeringMap), String> {
    let port = match shared {
        Some(shared) => PacketPort::open_shared(device, shared.share(), Some(map.as_fd())),
        None => PacketPort::open_steered(device, own, map.as_fd()),
    };
    let port = port.map_err(|error| error.to_string())?;
    let key = random().map_err(|failure| failure.to_string())?;
    let map = SteeringMap::open(map.as_fd(), key);
    Ok((port, map.map_err(|error| error.to_string())?))
}

/// Returns the settings that no reload changes; [`Stack::change`] sets the others.
fn stack_config(settings: &HostSettings, secret: [u8; 16]) -> StackConfig {
    let addresses = settings.addresses.iter();
    let addresses = addresses.map(|cidr| (cidr.0.address, cidr.0.prefix_len));
    let mut config = StackConfig {
        gateways: settings.gateways.clone(),
        is_shared: settings.share.is_some(),
        roots_are_replicas: settings.replicas,
        workers_min: usize::from(settings.workers_min),
        setup_offload: settings.setup_offload.policy(),
        teardown_offload: settings.teardown_offload.policy(),
        ..StackConfig::new(addresses.collect(), settings.ports.clone(), secret)
    };
    if let Some((first, last)) = settings.share.as_ref().and_then(|share| share.local) {
        config.ephemeral_ports = first..=last;
    }
    settings.ablation.apply(&mut config);
    config
}

fn polling(nics: usize) -> Polling {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spin_us_max = if cores >= SPIN_CORES_MIN {
        SPIN_US_MAX
    } else {
        0
    };
    let pause_us_max = if nics == 1 {
        PAUSE_US_MAX
    } else {
        SHARED_PAUSE_US_MAX
    };
    Polling::new(spin_us_max, pause_us_max)
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
        "Give the stack another address, or stop the other machine. If both are to have it, \
         --no-dad (network.dad) skips this.",
    ))
}

/// Returns the configuration that all TLS listeners share, so that a session of one can be resumed
/// at another.
fn tls_config(
    settings: &TlsSettings,
    certificates: Arc<tls::Certificates>,
    key_log: &Option<Arc<dyn tls::KeyLog>>,
) -> Result<Arc<tls::Config>, Failure> {
    let mut settings = settings.to_tls();
    settings.key_log.clone_from(key_log);
    tls::Config::new(certificates, &settings, certificates::unix_time())
        .map(Arc::new)
        .map_err(|error| Failure::broken("setting up TLS", error))
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    // Up to 256 bytes are never returned in part.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Failure::broken("asking the kernel for random bytes", errno))?;
    Ok(bytes)
}
