//! The start of a server: the supervisor starts the processes, and waits until the host process and
//! at least one NIC stack serve, and until each other NIC stack serves or has failed with a reason.

use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use failure::Failure;
use sandbox::lockdown::LockedOut;

use crate::args::serve::ServeArgs;
use crate::supervisor::attachment::Attachment;
use crate::supervisor::broker::{BrokerPlan, BrokerSupervisor};
use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::supervisor::fetcher::FetcherSupervisor;
use crate::supervisor::initial_netns::InitialNetns;
use crate::supervisor::nic::{NicOrigin, NicOutcome, NicProgram, NicSupervisor};
use crate::supervisor::nic_source::NicSource;
use crate::supervisor::observer::ObserverSupervisor;
use crate::supervisor::origin_plan::OriginPlan;
use crate::supervisor::reload;
use config::certificates::CertificateSource;
use config::log_level::LogLevel;
use config::root;
use config::self_signed::Fresh;
use config::size::Size;
use config::{Config, Content, Forwarding, Text};
use processes::host::HostSettings;
use processes::ipc::child::Child;
use processes::ipc::fd_passing;
use processes::ipc::launch;
use processes::ipc::messages::{FromBroker, FromFetcher, FromHost, FromNic, FromObserver, ToHost};
use processes::ipc::timeouts::START_WAIT;
use processes::nic::{NicSettings, memory};
use processes::relay::host_side::HostRelaySettings;

/// Longest time until the processes serve. A silent NIC stack is detected before.
const READY_WAIT: Duration = Duration::from_secs(25);

const _: () = assert!(
    START_WAIT.as_secs() < READY_WAIT.as_secs(),
    "a NIC stack that is silent does not end a server that has others"
);

/// Inputs of a server's start.
pub(crate) struct Startup<'a> {
    pub(crate) args: &'a ServeArgs,
    pub(crate) config: &'a Config,
    pub(crate) sources: Vec<NicSource>,
    pub(crate) content: Content,
    pub(crate) forwarding: Forwarding,
    pub(crate) certificates: Option<&'a CertificateSource>,
    pub(crate) origins: Option<&'a OriginPlan>,
    /// `None` if no program may attach.
    pub(crate) broker: Option<BrokerPlan>,
    /// Network namespace of the fetcher.
    pub(crate) initial_netns: InitialNetns,
    pub(crate) attachment: &'a Attachment,
}

/// Processes that serve.
pub(crate) struct Served {
    /// One for each NIC stack.
    pub(crate) nics: Vec<NicSupervisor>,
    pub(crate) locked_out: LockedOut,
    /// Why a NIC stack is missing, by number.
    pub(crate) missing: Vec<Option<Failure>>,
    /// Socket to the host process.
    pub(crate) to_host: OwnedFd,
    /// Its initial state.
    pub(crate) in_host: reload::Served,
    pub(crate) fetcher: FetcherSupervisor,
    pub(crate) broker: Option<BrokerSupervisor>,
}

/// Starts the host process; returns it, and the socket to it.
fn start_host(
    settings: &HostSettings,
    log: LogLevel,
    attachment: &Attachment,
    map: Option<&OwnedFd>,
) -> Result<(Child, OwnedFd), Failure> {
    let shared = attachment.shared.as_ref().map(|shared| shared.borrow());
    let addresses = shared.as_ref().map(|shared| shared.addresses());
    let descriptors: Vec<_> = addresses.into_iter().chain(map).collect();
    launch::start(&Program::own()?.image(), settings, log, &descriptors)
}

impl Startup<'_> {
    /// Starts the processes.
    pub(crate) fn run(
        self,
        children: &mut Children,
        observer: &mut ObserverSupervisor,
    ) -> Result<Served, Failure> {
        observer.start(children)?;
        let (settings, cache_default) = (self.host_settings(), self.cache_default()?);
        let Self {
            args,
            config,
            sources,
            content,
            forwarding,
            certificates,
            origins,
            broker,
            initial_netns,
            attachment,
        } = self;
        let (log, map) = (config.logs.level.0, steering_map(config, args));
        let map = map.as_ref();
        let (host, to_host) = start_host(&settings, log, attachment, map)?;
        children.add(Role::Host, host);
        let loaded = certificates.map(|source| source.read(&attachment.ip_addresses()));
        let loaded = loaded.transpose()?.unwrap_or_default();
        let passing = reload::pass((content, forwarding), config, loaded, &to_host)?;
        for line in &passing.warnings {
            tracing::warn!("{line}");
        }
        // Clients cannot trust a certificate that is not in its place.
        passing.fresh.map_or(Ok(()), Fresh::put_in_place)?;
        fd_passing::pass(&to_host, &ToHost::Observer, Some(observer.host_socket()))
            .map_err(|errno| Failure::broken("handing a socket to the host process", errno))?;
        let heartbeat = config.operation.heartbeat.0.0;
        let mut fetcher = FetcherSupervisor::new(initial_netns, &to_host, log, heartbeat)?;
        fetcher.prepare(children, origins)?;
        let broker = broker.map(|plan| BrokerSupervisor::new(plan, &to_host, log, heartbeat));
        let mut broker = broker.transpose()?;
        if let Some(broker) = &mut broker {
            broker.start(children)?;
        }
        let mut starting = Starting {
            awaits_fetcher: fetcher.is_needed(),
            awaits_broker: broker.is_some(),
            observer_ready: !observer.is_needed(),
            ..Starting::default()
        };
        let nics = NicStarter {
            args,
            config,
            attachment,
            cache_default,
            map,
            to_host: &to_host,
        };
        for (number, source) in sources.into_iter().enumerate() {
            let (mut nic, socket) = nics.nic(number, source)?;
            if broker.is_some() {
                nic.take_files();
            }
            starting.add(children, (nic, socket));
        }
        let locked_out = starting.wait(children)?;
        fetcher.on_ready();
        if let Some(broker) = &mut broker {
            broker.on_ready();
        }
        if observer.is_needed() {
            observer.on_ready();
        }
        Ok(Served {
            nics: starting.nics,
            locked_out,
            missing: starting.missing,
            to_host,
            in_host: passing.served,
            fetcher,
            broker,
        })
    }

    /// Returns the default memory for content of each NIC process that is started here, if no size
    /// is configured.
    fn cache_default(&self) -> Result<Option<Size>, Failure> {
        let is_here = |source: &&NicSource| matches!(source, NicSource::Root(_));
        let stacks = self.sources.iter().filter(is_here).count();
        if stacks == 0 || self.config.nic.cache.is_some() {
            return Ok(None);
        }
        memory::default_cache(self.config.nic.workers, stacks).map(Some)
    }

    fn host_settings(&self) -> HostSettings {
        let Self {
            config, attachment, ..
        } = self;
        let remote = |(number, source): (usize, &NicSource)| {
            matches!(source, NicSource::Remote { .. }).then_some(number)
        };
        let mut roots = self.sources.iter().filter_map(|source| match source {
            NicSource::Root(root) => Some(root.as_path()),
            NicSource::Attached { .. } | NicSource::Remote { .. } => None,
        });
        HostSettings {
            device: attachment.device.clone(),
            addresses: attachment.addresses().into_iter().map(Text).collect(),
            gateways: attachment.gateways(),
            share: attachment.shared_link(),
            // The pair that is made without an interface has no other machine on it; shared
            // addresses have been checked by the kernel.
            dad: config.network.interface.is_some() && config.network.dad && !config.network.share,
            ports: config.ports(false).collect(),
            tls_ports: config.ports(true).collect(),
            proxy_ports: config.proxy_ports().collect(),
            proxy_tls_ports: config.proxy_tls_ports().collect(),
            http3_ports: config.http3_ports().map(NonZeroU16::get).collect(),
            tls: config.tls.settings(),
            quic: config.quic.without_files(),
            nics: self.sources.len(),
            remote_nics: self.sources.iter().enumerate().filter_map(remote).collect(),
            replicas: config.nic.replicas,
            workers_min: config.nic.workers_min,
            setup_offload: config.sockets.offload.setup,
            teardown_offload: config.sockets.offload.teardown,
            heartbeat: config.operation.heartbeat.0.0,
            probe: roots.next_back().unwrap_or(Path::new("/")).to_owned(),
            key_log: self.args.key_log.is_some(),
            ablation: self.args.host_ablation,
        }
    }
}

/// Creates the map by which packet filters steer frames to NIC workers: SYNs, frames of connections
/// that these have taken over, and QUIC packets that they open; `None` if no worker does any of
/// this. Without the map, as where `bpf(2)` is forbidden, the host stack forwards those frames.
fn steering_map(config: &Config, args: &ServeArgs) -> Option<OwnedFd> {
    let offload = &config.sockets.offload;
    let may_offload = [offload.setup, offload.teardown]
        .iter()
        .any(|option| option.policy().is_permitted());
    let splices = config.is_proxy() && config.proxy.splice;
    let programs_may_splice = config.sockets.path.is_some();
    let is_wanted = may_offload || splices || config.receives_quic_on_nic();
    if !(is_wanted || programs_may_splice) || args.host_ablation.no_steering {
        return None;
    }
    match netdev::steering::create_map() {
        Ok(map) => Some(map),
        Err(error) => {
            const WHAT: &str = "no packet filter can steer frames: the host hands them on";
            match is_wanted {
                true => tracing::warn!(%error, "{WHAT}"),
                false => tracing::info!(%error, "{WHAT}"),
            }
            None
        }
    }
}

fn try_clone(descriptor: &OwnedFd) -> Result<OwnedFd, Failure> {
    let cloned = descriptor.try_clone();
    cloned.map_err(|error| Failure::broken("duplicating a descriptor", error))
}

/// Inputs of the NIC processes' start.
struct NicStarter<'a> {
    args: &'a ServeArgs,
    config: &'a Config,
    attachment: &'a Attachment,
    /// Memory of each NIC process if no size is configured.
    cache_default: Option<Size>,
    map: Option<&'a OwnedFd>,
    to_host: &'a OwnedFd,
}

/// A NIC stack's supervisor, and the socket to its process if that runs already.
type Keeper = (NicSupervisor, Option<OwnedFd>);

impl NicStarter<'_> {
    fn nic(&self, number: usize, source: NicSource) -> Result<Keeper, Failure> {
        let to_host = try_clone(self.to_host)?;
        let name = source.name();
        let (origin, socket) = match source {
            NicSource::Remote {
                interface,
                peer,
                key_file,
            } => {
                let settings = NicProgram::Relay(HostRelaySettings {
                    interface,
                    peer: Text(peer),
                    key_file,
                    device: self.attachment.device.clone(),
                });
                (self.program(settings)?, None)
            }
            NicSource::Root(root) => {
                let settings = NicProgram::Nic(NicSettings {
                    device: self.attachment.device.clone(),
                    root: root::follow(&root)?,
                    workers: self.config.nic.workers,
                    cache: self.config.nic.cache,
                    cache_default: self.cache_default.map(Text),
                    reports_counters: true,
                    awaits_files: false,
                    steered_to: match self.map {
                        Some(_) => self.attachment.ip_addresses(),
                        None => Vec::new(),
                    },
                    share: self.attachment.shared_link().map(Box::new),
                    is_first: true,
                    ablation: self.args.nic_ablation.clone(),
                });
                (self.program(settings)?, None)
            }
            NicSource::Attached { path, socket } => (NicOrigin::Socket(path), socket),
        };
        let mut nic = NicSupervisor::new(number, name, origin, to_host);
        if let Some(map) = self.map {
            nic.steer_with(try_clone(map)?);
        }
        if let Some(shared) = &self.attachment.shared {
            nic.share(try_clone(shared.borrow().addresses())?);
        }
        Ok((nic, socket))
    }

    fn program(&self, settings: NicProgram) -> Result<NicOrigin, Failure> {
        Ok(NicOrigin::Program {
            program: Program::own()?,
            settings,
            log: self.config.logs.level.0,
        })
    }
}

/// Progress of the start.
#[derive(Default)]
struct Starting {
    nics: Vec<NicSupervisor>,
    joined: Vec<bool>,
    missing: Vec<Option<Failure>>,
    nic_ready: bool,
    observer_ready: bool,
    host_ready: Option<LockedOut>,
    /// Whether a fetcher is wanted and not ready.
    awaits_fetcher: bool,
    /// Whether a broker is wanted and not ready.
    awaits_broker: bool,
}

impl Starting {
    /// Starts the supervisor of a NIC stack.
    fn add(&mut self, children: &mut Children, (mut nic, socket): Keeper) {
        self.nic_ready |= socket.is_some();
        let failure = nic.start_first(children, socket);
        if let Some(failure) = &failure {
            nic.is_news(failure);
        }
        self.nics.push(nic);
        self.joined.push(false);
        self.missing.push(failure);
    }

    fn wait(&mut self, children: &mut Children) -> Result<LockedOut, Failure> {
        let deadline = Instant::now() + READY_WAIT;
        loop {
            if let Some(locked_out) = self.ready()? {
                return Ok(locked_out);
            }
            let watched: Vec<_> = self.nics.iter().filter_map(NicSupervisor::watch).collect();
            let deadlines = self.nics.iter().filter_map(NicSupervisor::deadline);
            let next = deadlines.chain([deadline]).min();
            let event = children.next_or_readable(&watched, next)?;
            self.on(children, &event)?;
            if Instant::now() >= deadline && self.ready()?.is_none() {
                return Err(self.late());
            }
        }
    }

    fn on(&mut self, children: &mut Children, event: &Event) -> Result<(), Failure> {
        let is_alone = self.nics.len() == 1;
        match event {
            Event::Host(FromHost::Ready(locked_out)) => {
                self.host_ready = Some(locked_out.clone());
            }
            Event::Fetcher(FromFetcher::Ready) => self.awaits_fetcher = false,
            Event::Broker(FromBroker::Ready) => self.awaits_broker = false,
            Event::Observer(FromObserver::Ready) => self.observer_ready = true,
            Event::Nic(_, FromNic::Ready { .. }) => self.nic_ready = true,
            Event::Failed(Role::Host | Role::Fetcher | Role::Broker | Role::Observer)
            | Event::Exited(Role::Host | Role::Fetcher | Role::Broker | Role::Observer) => {
                return Err(children.diagnose());
            }
            Event::Failed(_) | Event::Exited(_) if is_alone => return Err(children.diagnose()),
            Event::Signal => {
                return Err(Failure::broken("serve", "interrupted while starting"));
            }
            // The supervisors of NIC stacks handle theirs; the others need no more than the actions
            // above.
            Event::Host(_) | Event::Fetcher(_) | Event::Broker(_) => {}
            Event::Observer(_) | Event::Nic(..) => {}
            Event::Failed(_) | Event::Exited(_) | Event::Reported(_) => {}
            Event::Readable | Event::Timeout | Event::Relay(_) => {}
        }
        for nic in &mut self.nics {
            let number = nic.number();
            match nic.on(children, event) {
                Some(NicOutcome::Serves) => {
                    self.joined[number] = true;
                    self.missing[number] = None;
                }
                Some(NicOutcome::Failed(failure)) if is_alone => return Err(failure),
                Some(NicOutcome::Failed(failure) | NicOutcome::Lost(failure, _)) => {
                    // Printed when the server has started.
                    nic.is_news(&failure);
                    self.joined[number] = false;
                    self.missing[number] = Some(failure);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns once every NIC stack serves or is missing, and one serves.
    fn ready(&self) -> Result<Option<LockedOut>, Failure> {
        let mut states = self.joined.iter().zip(&self.missing);
        if !states.all(|(joined, missing)| *joined || missing.is_some()) {
            return Ok(None);
        }
        if let (false, Some(failure)) = (
            self.joined.contains(&true),
            self.missing.iter().flatten().next(),
        ) {
            return Err(failure.clone());
        }
        let awaits_any = self.awaits_fetcher || self.awaits_broker;
        let is_ready = self.nic_ready && !awaits_any && self.observer_ready;
        Ok(self.host_ready.clone().filter(|_| is_ready))
    }

    fn late(&self) -> Failure {
        let late = match (self.joined.contains(&true), &self.host_ready) {
            (false, _) => "the NIC process",
            (true, Some(_)) if self.awaits_fetcher => "the fetcher",
            (true, Some(_)) if self.awaits_broker => "the broker",
            _ if !self.observer_ready => "the observer process",
            _ => "the host process",
        };
        Failure::broken(late, format!("not ready within {READY_WAIT:?}"))
    }
}
