//! `splitway serve`: the supervisor. It checks what was asked, sets the network up, starts the NIC process
//! and the host process, and then sleeps until the host process or the user ends it, or the NIC process is to be
//! started again. It is small on purpose: whatever happens to the others, the network is cleaned up.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::address_lock::{AddressLock, AddressLockError};
use netsetup::cidr::Cidr;
use netsetup::device::Inventory;
use netsetup::veth::{INNER_NAME, OUTER_NAME, VethPair};
use netsetup::{device, seqpacket, veth};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use sandbox::lockdown::LockedOut;
use sandbox::{descriptors, kernel, privileges};

use crate::args::ServeArgs;
use crate::cache_option::CacheOption;
use crate::certificates::CertificateSource;
use crate::child::{Child, option};
use crate::config::{self, Config, Content, Network};
use crate::control::{Control, Request};
use crate::control_link::{MacAddress, NicPlace};
use crate::desk::Desk;
use crate::drain::Drain;
use crate::family::{Family, Happening, Role};
use crate::fetch_keeper::{FetchKeeper, Outside};
use crate::heartbeat::{Due, Heartbeat};
use crate::messages::{Message, Report};
use crate::nic_keeper::{NicKeeper, NicNews, NicOrigin, START_WAIT};
use crate::notice::Notice;
use crate::observe::{Standing, pass};
use crate::observer::Observer;
use crate::origin_options::OriginPlan;
use crate::program::Program;
use crate::reload::{self, Reload};
use crate::rolling::Rolling;
use crate::root::check_root;
use crate::self_signed::Fresh;
use crate::signals::{HangUp, Hint, Signals};
use crate::tcp_options::TcpOptions;
use crate::tls_options::TlsOptions;
use crate::url::Scheme;
use crate::{capture, fd_passing, handover, key_file, report, root, say, self_signed, stat, url};

/// How long the processes may take until they serve. Who is missing is known before.
const READY_WAIT: Duration = Duration::from_secs(25);

const _: () = assert!(
    START_WAIT.as_secs() < READY_WAIT.as_secs(),
    "a NIC stack that is silent does not end a server that has others"
);

/// What was asked for: the configuration, and what is said with options only.
#[derive(Clone, Copy)]
struct Asked<'a> {
    args: &'a ServeArgs,
    config: &'a Config,
    log: &'a str,
}

/// Serves until the user or a failure ends it.
pub(crate) fn run(args: &ServeArgs, log: &str) -> Result<(), Failure> {
    let config = config::load(args)?;
    if args.print_config {
        say(&config.to_toml()?);
        return Ok(());
    }
    let asked = Asked {
        args,
        config: &config,
        log,
    };
    let plan = OriginPlan::check(&config)?;
    let sources = Source::check_all(&config)?;
    descriptors::require(sources.len(), config.nic.workers)?;
    let certificates = CertificateSource::check(&config, None)?;
    let content = Content::read(&config, plan.as_ref().map(|plan| &plan.place))?;
    kernel::require()?;
    // From here on Ctrl-C leads through the cleaning up.
    let is_link = config.nic.root.as_deref().is_some_and(root::is_link);
    let may_reload = args.config.is_some() || certificates.is_some() || is_link;
    let (signals, hang_up) = match may_reload {
        true => (Signals::catch_ends_but_hang_up()?, Some(HangUp::catch()?)),
        false => (Signals::catch_ends()?, None),
    };
    let quit = Signals::catch_quit()?;
    let reopen = Signals::catch_reopen()?;
    let mut family = Family::new(signals);
    if args.end_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|errno| Failure::broken("binding the process to its parent", errno))?;
    }
    let outside = Outside::here()?;
    let mut observer = Observer::new(&config, log)?;
    let link = Link::attach(&config)?;
    let mut notice = Notice::of_environment();
    let announced: Vec<_> = sources.iter().map(Announced::of).collect();
    let numbers = 0..sources.len();
    let told = (content, certificates.as_ref());
    let mut served = start(
        &mut family,
        asked,
        sources,
        told,
        (plan.as_ref(), outside),
        &link,
        observer.as_mut(),
    );
    let result = match &mut served {
        Ok(Served {
            keepers,
            locked_out,
            missing,
            to_host,
            fetcher,
        }) => control(&config).and_then(|control| {
            let trusted = certificates.as_ref().and_then(|c| c.file_to_trust());
            announce(
                &family,
                &config,
                (&announced, missing),
                &link,
                (locked_out, fetcher),
                (control.as_ref(), trusted),
            );
            let mut desk = Desk::new(control);
            let handed = to_host.try_clone();
            let handed = handed
                .map_err(|error| Failure::broken("making a socket for the host process", error))?;
            let reload = Reload::new(
                args,
                config.clone(),
                certificates.clone(),
                link.ip_addresses(),
                handed,
            );
            let elsewhere = |place: &&NicPlace| matches!(place, NicPlace::Ethernet { .. });
            let reach = Reach {
                to_host,
                link: &link,
                nics_elsewhere: args.nic.iter().filter(elsewhere).count(),
            };
            notice.ready(&ready_status(&config, &link));
            let orders = Orders {
                host: Heartbeat::new(config.operation.heartbeat.0.0),
                reload,
                drain: Drain::new(config.operation.drain_timeout.0.0),
                hang_up,
                quit,
                reopen,
                notice: &mut notice,
            };
            let helpers = (&mut keepers[..], fetcher, observer.as_mut());
            supervise(&mut family, helpers, &reach, orders, &mut desk)
        }),
        Err(failure) => Err(failure.clone()),
    };
    // The host process first: it takes leave of its connections through the NIC processes.
    let mut order = vec![Role::Host];
    for number in numbers {
        family.dismiss(Role::NextNic(number));
        order.extend([Role::Nic(number), Role::PastNic(number)]);
    }
    order.push(Role::Fetcher);
    // Last of all: the others have last words.
    order.push(Role::Observer);
    notice.stopping(Family::end_wait(order.len()));
    let ended = family.end(&order);
    drop(observer);
    let removed = link.remove();
    result?;
    let Served {
        keepers,
        locked_out,
        ..
    } = served?;
    let host = family.report(Role::Host);
    let mut nic: Option<Report> = None;
    for report in keepers.iter().filter_map(|keeper| keeper.report(&family)) {
        nic.get_or_insert_default().absorb(&report);
    }
    say(&format!(
        "\n{}",
        report::table(&locked_out, host, nic.as_ref())
    ));
    let fetcher = family.report(Role::Fetcher);
    if let Some(fetcher) = fetcher {
        say(&report::fetcher(fetcher));
    }
    if args.report_json {
        say(&report::json(host, nic.as_ref(), fetcher));
    }
    ended.and(removed)
}

/// The control socket. Where there is no usual place for it, the server does without.
fn control(config: &Config) -> Result<Option<Control>, Failure> {
    match &config.operation.control_socket {
        Some(path) => Control::bind(path).map(Some),
        None => Ok(Control::bind_in_usual_place()
            .inspect_err(|failure| tracing::warn!("no control socket, so that `splitway ctl` and `splitway stat` cannot reach this server: {failure}"))
            .ok()),
    }
}

/// Where the content comes from.
enum Source {
    /// A NIC process of our own reads below this directory.
    Root(PathBuf),
    /// A NIC process that is there already, to which this socket is connected.
    Attached {
        path: PathBuf,
        /// `None`: it is not there yet.
        socket: Option<OwnedFd>,
    },
    /// A NIC stack on another machine.
    Elsewhere {
        interface: String,
        peer: MacAddress,
        key_file: PathBuf,
    },
}

impl Source {
    /// The NIC stacks that were asked for, in the order of their numbers. One that is missing is an error only if there
    /// is no other.
    fn check_all(config: &Config) -> Result<Vec<Self>, Failure> {
        let nic = &config.nic;
        let mut sources = Vec::new();
        if let Some(root) = &nic.root {
            check_root(root)?;
            sources.push(Self::Root(root.clone()));
        }
        let is_alone = nic.root.is_none() && nic.attach.len() == 1;
        for place in &nic.attach {
            sources.push(Self::check(&place.0, nic.key_file.as_deref(), is_alone)?);
        }
        Ok(sources)
    }

    fn check(place: &NicPlace, key_file: Option<&Path>, is_alone: bool) -> Result<Self, Failure> {
        match place {
            NicPlace::Socket(path) => {
                let socket = match connect(path) {
                    Err(failure) if is_alone => return Err(failure),
                    connected => connected.ok(),
                };
                Ok(Self::Attached {
                    path: path.clone(),
                    socket,
                })
            }
            NicPlace::Ethernet { interface, peer } => {
                let key_file = key_file.unwrap_or(Path::new(""));
                key_file::read(key_file)?;
                Inventory::take()?.device(interface)?;
                Ok(Self::Elsewhere {
                    interface: interface.clone(),
                    peer: *peer,
                    key_file: key_file.to_owned(),
                })
            }
        }
    }

    /// What people call the NIC stack.
    fn name(&self) -> String {
        match self {
            Self::Root(_) => "NIC process".to_owned(),
            Self::Attached { path, .. } => format!("NIC process at {}", path.display()),
            Self::Elsewhere {
                interface, peer, ..
            } => format!("NIC stack at {peer} on {interface}"),
        }
    }
}

/// Connects to a NIC process that runs alone.
fn connect(path: &Path) -> Result<OwnedFd, Failure> {
    let what = format!("NIC socket {}", path.display());
    let remedy = format!(
        "Start one with `splitway nic DIR --dev IFACE --socket {}`.",
        path.display()
    );
    let failed = |errno| match errno {
        Errno::NOENT => Failure::input(&what, "there is none").remedy(&remedy),
        Errno::CONNREFUSED => {
            Failure::input(&what, "no NIC process listens there any more").remedy(&remedy)
        }
        Errno::ACCESS => Failure::input(&what, errno)
            .remedy("Only the user who runs the NIC process may connect."),
        errno => Failure::input(&what, errno),
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    seqpacket::connect(&address).map_err(failed)
}

/// What the stack is attached to.
struct Link {
    /// The interface, as host and NIC process see it.
    device: String,
    addresses: Vec<Cidr>,
    pair: Option<VethPair>,
    _claims: Vec<AddressLock>,
}

impl Link {
    fn attach(config: &Config) -> Result<Self, Failure> {
        match &config.network.interface {
            Some(device) => Self::attach_to_device(device, config),
            None => Self::attach_to_pair(config),
        }
    }

    fn attach_to_device(device: &str, config: &Config) -> Result<Self, Failure> {
        let inventory = Inventory::take()?;
        let interface = inventory.device(device)?;
        let addresses = config.network.addresses.iter();
        let addresses: Vec<Cidr> = addresses.map(|address| address.0).collect();
        inventory.check_addresses(&addresses)?;
        device::check_gateways(&config.network.gateways, &addresses)?;
        privileges::require(
            &format!("sending packets on {device}"),
            privileges::FOR_DEVICE,
        )?;
        let claim = |cidr: &Cidr| {
            AddressLock::acquire(format!("{} {}", interface.index, cidr.address)).map_err(|error| {
                claim_failed(config, cidr.address, &error).remedy(
                    "Give this one an address of its own with --addr, or end the other one.",
                )
            })
        };
        let claims = addresses.iter().map(claim).collect::<Result<_, _>>()?;
        Ok(Self {
            device: device.to_owned(),
            addresses,
            pair: None,
            _claims: claims,
        })
    }

    fn attach_to_pair(config: &Config) -> Result<Self, Failure> {
        privileges::require(
            &format!("making the link {OUTER_NAME}"),
            privileges::FOR_VETH_PAIR,
        )?;
        let claim = AddressLock::acquire(OUTER_NAME).map_err(|error| {
            claim_failed(config, veth::STACK_V4.address, &error).remedy(format!(
                "Both would make the link {OUTER_NAME}. Give this one an interface and an address of its own\n\
                 with --dev and --addr, or end the other one."
            ))
        })?;
        let pair = VethPair::create(config.network.mtu.unwrap_or(Network::MTU))?;
        Ok(Self {
            device: INNER_NAME.to_owned(),
            addresses: pair.stack_addresses.clone(),
            pair: Some(pair),
            _claims: vec![claim],
        })
    }

    /// Addresses of the kind are missing although the stack could have them.
    fn lacks_ipv6(&self) -> bool {
        self.pair.is_some() && !self.addresses.iter().any(|cidr| cidr.address.is_ipv6())
    }

    fn ip_addresses(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(|cidr| cidr.address).collect()
    }

    fn remove(self) -> Result<(), Failure> {
        self.pair.map_or(Ok(()), VethPair::remove)
    }
}

/// A stack answers for all ports of its addresses, so that two with one address are refused even where
/// their ports differ.
fn claim_failed(config: &Config, address: IpAddr, error: &AddressLockError) -> Failure {
    let ports = config.ports(false).chain(config.ports(true));
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
    let what = format!("port {} of {address}", ports.join(", "));
    match error {
        AddressLockError::Taken(_) => Failure::input(what, format!("the address is {error}")),
        AddressLockError::System(_) => Failure::broken(what, error),
    }
}

/// The processes serve.
struct Served {
    /// Of each NIC stack.
    keepers: Vec<NicKeeper>,
    locked_out: LockedOut,
    /// Why those are not there which are not, by their numbers.
    missing: Vec<Option<Failure>>,
    /// Leads to the host process.
    to_host: OwnedFd,
    fetcher: FetchKeeper,
}

/// Starts the processes and waits until they serve: the host process, and at least one NIC stack; of the others it is
/// known that they are not there.
fn start(
    family: &mut Family,
    asked: Asked<'_>,
    sources: Vec<Source>,
    (content, certificates): (Content, Option<&CertificateSource>),
    (plan, outside): (Option<&OriginPlan>, Outside),
    link: &Link,
    mut observer: Option<&mut Observer>,
) -> Result<Served, Failure> {
    if let Some(observer) = &mut observer {
        observer.start(family)?;
    }
    let (to_host, host_socket) = seqpacket::pair()
        .map_err(|errno| Failure::broken("making a socket for the host process", errno))?;
    family.adopt(
        Role::Host,
        Child::spawn(
            "host process",
            &Program::own()?.image(),
            host_arguments(asked, &sources, link, observer.as_deref()),
            host_socket,
        )?,
    );
    let fresh = reload::pass(
        (content, asked.config.tcp.clone()),
        certificates,
        &link.ip_addresses(),
        &to_host,
    )?;
    // Without it nothing is served.
    fresh.map_or(Ok(()), Fresh::put_in_place)?;
    if let Some(socket) = observer.as_deref().and_then(Observer::host_socket) {
        fd_passing::pass(&to_host, handover::OBSERVER, Some(socket))
            .map_err(|errno| Failure::broken("handing a socket to the host process", errno))?;
    }
    let heartbeat = asked.config.operation.heartbeat.0.0;
    let mut fetcher = FetchKeeper::new(outside, &to_host, asked.log, heartbeat)?;
    fetcher.prepare(family, plan)?;
    let mut starting = Starting {
        awaits_fetcher: fetcher.is_needed(),
        observer_ready: observer.is_none(),
        ..Starting::default()
    };
    for (number, source) in sources.into_iter().enumerate() {
        let to_host = to_host
            .try_clone()
            .map_err(|error| Failure::broken("making a socket for the host process", error))?;
        starting.add(family, number, source, to_host, asked, link)?;
    }
    let deadline = Instant::now() + READY_WAIT;
    loop {
        if let Some(locked_out) = starting.ready()? {
            fetcher.on_ready();
            if let Some(observer) = observer {
                observer.on_ready();
            }
            return Ok(Served {
                keepers: starting.keepers,
                locked_out,
                missing: starting.missing,
                to_host,
                fetcher,
            });
        }
        let watched: Vec<_> = starting
            .keepers
            .iter()
            .filter_map(NicKeeper::watch)
            .collect();
        let deadlines = starting.keepers.iter().filter_map(NicKeeper::deadline);
        let next = deadlines.chain([deadline]).min();
        let happening = family.next_or_readable(&watched, next)?;
        starting.on(family, &happening)?;
        if Instant::now() >= deadline && starting.ready()?.is_none() {
            return Err(starting.late());
        }
    }
}

/// The processes while they are being started.
#[derive(Default)]
struct Starting {
    keepers: Vec<NicKeeper>,
    joined: Vec<bool>,
    missing: Vec<Option<Failure>>,
    nic_ready: bool,
    observer_ready: bool,
    host_ready: Option<LockedOut>,
    /// There is to be a fetcher, and it is not ready.
    awaits_fetcher: bool,
}

impl Starting {
    /// Starts what leads to a NIC stack.
    fn add(
        &mut self,
        family: &mut Family,
        number: usize,
        source: Source,
        to_host: OwnedFd,
        asked: Asked<'_>,
        link: &Link,
    ) -> Result<(), Failure> {
        let name = source.name();
        let program = Program::own()?;
        let (origin, socket) = match source {
            Source::Elsewhere { .. } => {
                let origin = NicOrigin::Program {
                    program,
                    arguments: carrier_arguments(&source, link, asked.log),
                    root: None,
                };
                (origin, None)
            }
            Source::Root(root) => {
                let origin = NicOrigin::Program {
                    program,
                    arguments: nic_arguments(asked, link),
                    root: Some(root::follow(&root)?),
                };
                (origin, None)
            }
            Source::Attached { path, socket } => (NicOrigin::Socket(path), socket),
        };
        self.nic_ready |= socket.is_some();
        let mut keeper = NicKeeper::new(number, name, origin, to_host);
        let failure = keeper.start_first(family, socket);
        if let Some(failure) = &failure {
            keeper.is_news(failure);
        }
        self.keepers.push(keeper);
        self.joined.push(false);
        self.missing.push(failure);
        Ok(())
    }

    fn on(&mut self, family: &mut Family, happening: &Happening) -> Result<(), Failure> {
        let is_alone = self.keepers.len() == 1;
        match happening {
            Happening::Said(Role::Host, Message::HostReady(locked_out)) => {
                self.host_ready = Some(locked_out.clone());
            }
            Happening::Said(Role::Fetcher, Message::FetcherReady) => self.awaits_fetcher = false,
            Happening::Said(Role::Observer, Message::ObserverReady) => self.observer_ready = true,
            Happening::Said(Role::Host | Role::Fetcher | Role::Observer, Message::Failed(_))
            | Happening::Ended(Role::Host | Role::Fetcher | Role::Observer) => {
                return Err(family.diagnose());
            }
            Happening::Said(_, Message::Failed(_)) | Happening::Ended(_) if is_alone => {
                return Err(family.diagnose());
            }
            Happening::Said(_, Message::NicReady { .. }) => self.nic_ready = true,
            Happening::Signal => {
                return Err(Failure::broken("serve", "interrupted while starting"));
            }
            _ => {}
        }
        for keeper in &mut self.keepers {
            let number = keeper.number();
            match keeper.on(family, happening) {
                Some(NicNews::Serves) => {
                    self.joined[number] = true;
                    self.missing[number] = None;
                }
                Some(NicNews::Failed(failure)) if is_alone => return Err(failure),
                Some(NicNews::Failed(failure) | NicNews::Lost(failure, _)) => {
                    // It is told when all is known.
                    keeper.is_news(&failure);
                    self.joined[number] = false;
                    self.missing[number] = Some(failure);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// All is known, and something is served.
    fn ready(&self) -> Result<Option<LockedOut>, Failure> {
        let states = self.joined.iter().zip(&self.missing);
        if !states
            .clone()
            .all(|(joined, missing)| *joined || missing.is_some())
        {
            return Ok(None);
        }
        if let (false, Some(failure)) = (
            self.joined.contains(&true),
            self.missing.iter().flatten().next(),
        ) {
            return Err(failure.clone());
        }
        let is_ready = self.nic_ready && !self.awaits_fetcher && self.observer_ready;
        Ok(self.host_ready.clone().filter(|_| is_ready))
    }

    fn late(&self) -> Failure {
        let late = match (self.joined.contains(&true), &self.host_ready) {
            (false, _) => "the NIC process",
            (true, Some(_)) if self.awaits_fetcher => "the fetcher",
            _ if !self.observer_ready => "the observer process",
            _ => "the host process",
        };
        Failure::broken(late, format!("not ready within {READY_WAIT:?}"))
    }
}

/// Where there is something to tell for those who ask.
struct Reach<'a> {
    to_host: &'a OwnedFd,
    link: &'a Link,
    /// NIC stacks on other machines.
    nics_elsewhere: usize,
}

/// What others than the processes may ask for while they serve, and how that stands.
struct Orders<'a, 'b> {
    /// The host process's.
    host: Heartbeat,
    reload: Reload<'a>,
    drain: Drain,
    hang_up: Option<HangUp>,
    quit: Signals,
    reopen: Signals,
    notice: &'b mut Notice,
}

/// Whoever manages the server is to wait until responses have had their time, and the processes theirs.
fn tell_end(notice: &mut Notice, drain: &Drain) {
    if let Some(left) = drain.left() {
        notice.stopping(left.saturating_add(Family::end_wait(1)));
    }
}

/// What a service manager shows of a server.
fn ready_status(config: &Config, link: &Link) -> String {
    let ports = config.ports(false).chain(config.ports(true));
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
    let addresses: Vec<String> = link.ip_addresses().iter().map(IpAddr::to_string).collect();
    format!(
        "serves port {} of {}",
        ports.join(", "),
        addresses.join(", ")
    )
}

/// Keeps NIC processes serving, and does what it is asked for, until the user ends it; an error if something else
/// does.
fn supervise(
    family: &mut Family,
    (keepers, fetcher, mut observer): (&mut [NicKeeper], &mut FetchKeeper, Option<&mut Observer>),
    reach: &Reach<'_>,
    orders: Orders<'_, '_>,
    desk: &mut Desk,
) -> Result<(), Failure> {
    let Orders {
        host: mut heartbeat,
        mut reload,
        mut drain,
        mut hang_up,
        mut quit,
        mut reopen,
        notice,
    } = orders;
    let is_alone = keepers.len() == 1;
    let mut rolling = Rolling::default();
    loop {
        notice.extend_if_due();
        let due = heartbeat.on_time(Instant::now());
        if due == Due::Silent {
            tracing::error!(
                "no heartbeat of the host process: no connection goes on, and replacing it would end them all; \
                 restart the server if it does not recover"
            );
        }
        if notice.is_to_ask() || due == Due::Ask {
            // If it is gone, that is noticed otherwise.
            let _ = fd_passing::pass(reach.to_host, handover::ARE_YOU_TURNING, None);
        }
        if let Some(observer) = &mut observer {
            observer.tell(Standing {
                nics: keepers.iter().map(NicKeeper::trouble).collect(),
                is_draining: drain.left().is_some(),
            });
        }
        let watched: Vec<_> = keepers
            .iter()
            .filter_map(NicKeeper::watch)
            .chain(desk.control.as_ref().and_then(Control::watch))
            .chain(hang_up.as_ref().map(AsFd::as_fd))
            .chain([quit.as_fd(), reopen.as_fd()])
            .collect();
        let deadlines = keepers.iter().filter_map(NicKeeper::deadline);
        let deadline = deadlines
            .chain(desk.control.as_ref().and_then(Control::deadline))
            .chain(drain.deadline())
            .chain(notice.deadline())
            .chain(heartbeat.deadline())
            .chain(fetcher.deadline())
            .chain(observer.as_ref().and_then(|observer| observer.deadline()))
            .min();
        let happening = family.next_or_readable(&watched, deadline)?;
        match &happening {
            Happening::Signal => return Ok(()),
            Happening::Ended(Role::Host) | Happening::Said(Role::Host, Message::Failed(_)) => {
                return Err(family.diagnose());
            }
            Happening::Said(Role::Host, Message::Reloaded(count)) => {
                let mut outcome = reload.on_used(*count);
                let is_cache_below = fetcher.is_needed();
                let text = root::follow_again(reload.root(), keepers, family, is_cache_below);
                if let (Some(outcome), Some(text)) = (&mut outcome, text) {
                    outcome.add(&text);
                }
                desk.on_outcome(outcome);
                fetcher.limit(reload.cache_limits());
                drain.set_timeout(reload.drain_timeout());
                tell_end(notice, &drain);
                notice.reloaded();
            }
            Happening::Said(Role::Host, Message::ReloadRefused(why)) => {
                desk.on_outcome(reload.on_refused(why));
                fetcher.limit(reload.cache_limits());
                notice.reloaded();
            }
            Happening::Said(Role::Host, Message::Turning) => {
                if heartbeat.on_answer() {
                    tracing::warn!("the host process does its work again");
                }
                notice.host_turns(!keepers.iter().any(NicKeeper::is_silent));
            }
            Happening::Said(Role::Host, Message::Drained) => {
                say("drained: every response was sent to its end\n");
                return Ok(());
            }
            _ => {}
        }
        // As long as it is that one's who has told it: another may take its place now.
        if let (Some(observer), Some(told)) = (&observer, fetcher.told(&happening)) {
            observer.pass_on(pass::FETCHER, &told);
        }
        fetcher.on(family, &happening);
        let mut outcomes = Vec::new();
        for keeper in keepers.iter_mut() {
            if let Some(news) = keeper.on(family, &happening) {
                match &news {
                    NicNews::Serves => outcomes.push((keeper.number(), true)),
                    NicNews::Failed(_) => outcomes.push((keeper.number(), false)),
                    NicNews::Lost(..) => {}
                }
                tell(family, keeper, news, is_alone, desk);
            }
            if let (Some(observer), Some(told)) = (&observer, keeper.told(&happening)) {
                observer.pass_on(pass::WORKER, &told);
            }
        }
        if let Some(news) = observer.as_mut().and_then(|it| it.on(family, &happening)) {
            desk.on_observer(news);
        }
        let request = desk.control.as_mut().and_then(Control::next);
        match request {
            Some(Request::RestartNic) => {
                desk.ask(keepers.iter().map(NicKeeper::number));
                rolling.begin(keepers.iter().map(NicKeeper::number));
            }
            Some(Request::Nics) => {
                let lines = keepers.iter().map(|keeper| keeper.status(family));
                let text = lines.collect::<Vec<_>>().join("\n");
                if let Some(control) = &mut desk.control {
                    control.answer(Ok(text));
                }
            }
            Some(Request::Stat) => {
                if let Some(control) = &mut desk.control {
                    stat::asked::answer(control, family, (keepers, fetcher), reach.to_host);
                }
            }
            Some(Request::Capture(wanted)) => {
                if let Some(control) = &mut desk.control {
                    let Reach { link, .. } = reach;
                    let (device, own) = (&link.device, link.ip_addresses());
                    capture::asked::answer(control, wanted, device, &own, reach.nics_elsewhere);
                }
            }
            Some(Request::Reload | Request::Drain | Request::Reopen) | None => {}
        }
        for (number, is_done) in outcomes {
            desk.skip(keepers, rolling.on_outcome(number, is_done));
        }
        while let Some(number) = rolling.next() {
            let keeper = &mut keepers[number];
            if let Err(failure) = keeper.replace(family) {
                desk.answer(keeper, is_alone, Err(failure.to_string()));
                desk.skip(keepers, rolling.on_outcome(number, false));
            }
        }
        let is_asked = request == Some(Request::Reopen);
        if reopen.take() || is_asked {
            desk.on_reopening(
                is_asked,
                observer
                    .as_mut()
                    .filter(|observer| observer.has_logs())
                    .map(|observer| observer.reopen()),
            );
        }
        let is_asked = request == Some(Request::Drain);
        if is_asked || quit.take() {
            let outcome = drain.begin(is_asked, reach.to_host);
            desk.on_outcome(Some(outcome));
            tell_end(notice, &drain);
        }
        if drain.is_over() {
            tracing::warn!(
                "not all responses were sent to their end in time: their connections are reset"
            );
            return Ok(());
        }
        let hint = hang_up.as_mut().and_then(HangUp::take);
        if hint == Some(Hint::End) {
            return Ok(());
        }
        let is_asked = request == Some(Request::Reload);
        if is_asked || hint == Some(Hint::ReadAnew) {
            notice.reloading();
            let outcome = reload.begin(is_asked, |plan| fetcher.prepare(family, plan));
            if outcome.is_some() {
                fetcher.limit(reload.cache_limits());
                notice.reloaded();
            }
            desk.on_outcome(outcome);
        }
    }
}

/// Tells whoever is concerned what has become of a NIC process.
fn tell(family: &Family, keeper: &mut NicKeeper, news: NicNews, is_alone: bool, desk: &mut Desk) {
    let name = match is_alone {
        true => String::new(),
        false => format!("{}: ", keeper.name()),
    };
    let answer = match news {
        NicNews::Serves => {
            let serves = match family.pid(Role::Nic(keeper.number())) {
                Some(pid) => format!("nic process {pid}: serves in the place of the one before"),
                None => "a NIC process serves in the place of the one before".to_owned(),
            };
            say(&format!("{name}{serves}\n"));
            Ok(serves)
        }
        NicNews::Lost(failure, wait) => {
            let when = match wait.is_zero() {
                true => "now".to_owned(),
                false => format!("in {wait:?}"),
            };
            let meanwhile = match is_alone {
                true => "connections wait",
                false => "connections go on through another one that has their files, or wait",
            };
            tracing::warn!("{name}{failure}; {meanwhile}, another one is started {when}");
            return;
        }
        NicNews::Failed(failure) => {
            if keeper.is_news(&failure) {
                tracing::error!("{name}no other NIC process: {failure}");
            }
            Err(failure.to_string())
        }
    };
    desk.answer(keeper, is_alone, answer);
}

fn nic_arguments(asked: Asked<'_>, link: &Link) -> Vec<OsString> {
    let Asked { args, config, log } = asked;
    let cache = CacheOption {
        cache: config.nic.cache.map(|size| size.0),
    };
    let mut arguments: Vec<OsString> = [
        "nic",
        "--control-stdin",
        "--log",
        log,
        "--dev",
        &link.device,
    ]
    .map(OsString::from)
    .into();
    arguments.extend(["--workers".into(), config.nic.workers.to_string().into()]);
    arguments.extend(cache.arguments());
    arguments.extend(args.nic_measuring.arguments());
    arguments.push("--tell-counters".into());
    arguments
}

fn carrier_arguments(source: &Source, link: &Link, log: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["carry", "--log", log, "--dev", &link.device]
        .map(OsString::from)
        .into();
    if let Source::Elsewhere {
        interface,
        peer,
        key_file,
    } = source
    {
        arguments.push(option("--interface", interface.as_ref()));
        arguments.extend(["--peer".into(), peer.to_string().into()]);
        arguments.push(option("--key-file", key_file.as_os_str()));
    }
    arguments
}

fn host_arguments(
    asked: Asked<'_>,
    sources: &[Source],
    link: &Link,
    observer: Option<&Observer>,
) -> Vec<OsString> {
    let Asked { args, config, log } = asked;
    let tcp = &config.tcp;
    let mut arguments: Vec<OsString> = ["host", "--log", log, "--dev", &link.device]
        .map(OsString::from)
        .into();
    // The pair that is made without an interface has no other machine on it.
    if config.network.interface.is_some() && config.network.dad {
        arguments.push("--dad".into());
    }
    for port in config.ports(false) {
        arguments.extend(["--listen".into(), port.to_string().into()]);
    }
    arguments.extend(["--congestion".into(), tcp.congestion.0.name().into()]);
    arguments.extend(TcpOptions::of(tcp).arguments());
    arguments.extend(TlsOptions::of(config).arguments());
    for cidr in &link.addresses {
        arguments.extend(["--addr".into(), cidr.to_string().into()]);
    }
    for gateway in &config.network.gateways {
        arguments.extend(["--gateway".into(), gateway.to_string().into()]);
    }
    if let Some(limit) = tcp.connections_per_source {
        arguments.extend(["--connections-per-source".into(), limit.to_string().into()]);
    }
    for (option, number) in [
        ("--orphans", tcp.orphans),
        ("--resets-per-second", tcp.resets_per_second),
        ("--echo-replies-per-second", tcp.echo_replies_per_second),
    ] {
        arguments.extend([option.into(), number.to_string().into()]);
    }
    let connection_memory = tcp.connection_memory.0.bytes().to_string();
    arguments.extend(["--connection-memory".into(), connection_memory.into()]);
    arguments.extend(args.host_measuring.arguments());
    arguments.extend(["--nics".into(), sources.len().to_string().into()]);
    for (number, source) in sources.iter().enumerate() {
        if let Source::Elsewhere { .. } = source {
            arguments.extend(["--elsewhere".into(), number.to_string().into()]);
        }
    }
    let heartbeat_ms = config.operation.heartbeat.0.0.as_millis();
    arguments.extend(["--heartbeat-ms".into(), heartbeat_ms.to_string().into()]);
    if config.nic.replicas {
        arguments.push("--replicas".into());
    }
    if observer.and_then(Observer::host_socket).is_some() {
        arguments.push("--observed".into());
        if config.operation.admin.is_some() {
            arguments.push("--tell-counters".into());
        }
    }
    let mut roots = sources.iter().filter_map(|source| match source {
        Source::Root(root) => Some(root.as_path()),
        Source::Attached { .. } | Source::Elsewhere { .. } => None,
    });
    let probe = roots.next_back().unwrap_or(Path::new("/"));
    arguments.push(option("--probe", probe.as_os_str()));
    arguments
}

/// What the user is told of where the content comes from.
enum Announced {
    Root(PathBuf),
    Attached { path: PathBuf, pid: Option<i32> },
    Elsewhere { interface: String, peer: MacAddress },
}

impl Announced {
    fn of(source: &Source) -> Self {
        match source {
            Source::Root(root) => Self::Root(root.clone()),
            Source::Attached { path, socket } => Self::Attached {
                path: path.clone(),
                pid: socket.as_ref().and_then(seqpacket::peer_pid),
            },
            Source::Elsewhere {
                interface, peer, ..
            } => Self::Elsewhere {
                interface: interface.clone(),
                peer: *peer,
            },
        }
    }
}

/// Tells the user where to find what is served. The line with the URL means that it is served now.
fn announce(
    family: &Family,
    config: &Config,
    (sources, missing): (&[Announced], &[Option<Failure>]),
    link: &Link,
    (locked_out, fetcher): (&LockedOut, &FetchKeeper),
    (control, trusted): (Option<&Control>, Option<&Path>),
) {
    let mut text = String::new();
    let urls = |scheme, port| {
        let addresses = link.addresses.iter();
        addresses.map(move |cidr| url::of(scheme, cidr.address, port))
    };
    let plain = config.ports(false);
    let plain: Vec<String> = plain.flat_map(|port| urls(Scheme::Http, port)).collect();
    let tls = config.ports(true);
    let tls: Vec<String> = tls.flat_map(|port| urls(Scheme::Https, port)).collect();
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    if let Some(pid) = family.pid(Role::Host) {
        line(format_args!(
            "host process {pid}: locked out of the file system (Landlock ABI {}: opening {} gives {})",
            locked_out.landlock_abi,
            locked_out.probe.display(),
            Errno::from_raw_os_error(locked_out.probe_errno),
        ));
    }
    for (number, source) in sources.iter().enumerate() {
        let pid = family.pid(Role::Nic(number));
        let failure = missing.get(number).and_then(Option::as_ref);
        match (source, pid, failure) {
            (_, _, Some(failure)) => line(format_args!("missing, and tried again: {failure}")),
            (Announced::Root(root), Some(pid), None) => {
                let leads_to = match root::is_link(root) {
                    true => root.canonicalize().ok(),
                    false => None,
                };
                let leads_to = leads_to.map_or_else(String::new, |directory| {
                    format!(" (which leads to {})", directory.display())
                });
                line(format_args!(
                    "nic process {pid}: reads {}{leads_to} and nothing else",
                    root.display()
                ));
            }
            (Announced::Attached { path, pid }, ..) => {
                let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                line(format_args!(
                    "nic process {pid}: attached at {}",
                    path.display()
                ));
            }
            (Announced::Elsewhere { interface, peer }, Some(pid), None) => line(format_args!(
                "carrier process {pid}: joined with the NIC stack at {peer} on {interface}"
            )),
            (Announced::Root(_) | Announced::Elsewhere { .. }, None, None) => {}
        }
    }
    if let Some(pid) = family.pid(Role::Fetcher) {
        let does = fetcher.describe();
        line(format_args!("fetcher process {pid}: {does}"));
    }
    if let Some(address) = config.operation.admin {
        line(format_args!("dashboard and metrics: http://{address}/"));
    }
    if let Some(control) = control {
        line(format_args!("control socket: {}", control.path().display()));
    }
    if let Some(file) = trusted {
        let days = self_signed::VALID_DAYS;
        line(format_args!(
            "certificate for trying out, for {days} days: {}",
            file.display()
        ));
    }
    if link.lacks_ipv6() {
        line(format_args!(
            "IPv6 is switched off on this machine: serving over IPv4 only."
        ));
    }
    for url in plain.iter().chain(&tls) {
        line(format_args!("{url}"));
    }
    let root = match sources {
        [Announced::Root(root)] => Some(root.as_path()),
        _ => None,
    };
    for (urls, trusted) in [(&plain, None), (&tls, trusted)] {
        if let Some(url) = urls.first() {
            let curl = url::curl_line(url, root, trusted);
            line(format_args!("Try:  {curl}"));
        }
    }
    line(format_args!("End with Ctrl-C."));
    say(&text);
}
