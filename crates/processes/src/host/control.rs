//! The host process's end of its control socket. The host process can neither start a NIC process
//! nor connect to one, so the supervisor passes the socket for their hello, just as it passes
//! configurations, fetchers, the pipes that `splitway stat` reads, and requests ([`ToHost`]).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use contract::control::{HostSession, host_hello};
use failure::Failure;
use host::{Changeable, NicLoss, NicRefusal, NicSource, Proxies, QuicSecret, Stack};
use proxy::Proxy;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use server::Server;

use crate::host::apps::App;
use crate::host::broker_link::BrokerLink;
use crate::host::counter_reporter::CounterReporter;
use crate::host::fetch_client::FetcherSlot;
use crate::host::qlog;
use crate::host::stat_writer::Readers;
use crate::ipc::child::tell;
use crate::ipc::fd_passing;
use crate::ipc::host_configuration::{self, HostConfiguration, Observed};
use crate::ipc::log_lines;
use crate::ipc::messages::{FromHost, NicFate, ToHost};
use crate::ipc::qlog_request::QlogRequest;
use crate::ipc::shared_link::NewAddresses;
use config::AccessNetworks;
use config::certificates;
use config::place::Problem;
use config::socket_values::AddressRange;

/// A descriptor, or the failure to receive it.
type Descriptor = Result<OwnedFd, Failure>;

/// A descriptor that the supervisor has passed.
#[derive(Debug)]
enum Received {
    /// The number of a NIC stack, and the socket to its process.
    Nic(usize, Descriptor),
    Configuration(Descriptor),
    Observer(Descriptor),
}

/// A request, carried out between two turns.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Drain,
    Pong,
    /// Detach the application with this process.
    Detach(u32),
    /// Follow the kernel's addresses.
    Addresses(NewAddresses),
    /// Deny a network until a time, in microseconds, or for good.
    Deny(AddressRange, Option<u64>),
    /// Take a denial back.
    Allow(AddressRange),
}

const OBSERVER_SOCKET: &str = "socket to the observer process";

/// Longest message of the supervisor, in bytes.
const MESSAGE_BYTES_MAX: usize = 256;

/// Initial state of the host process.
pub struct Start {
    /// Configuration of HTTP.
    pub http: server::Config,
    /// Configuration of the proxy.
    pub proxy: proxy::Config,
    /// Settings of the stack that a reload may change.
    pub stack: Changeable,
    /// Proxies in front of the server and the proxy.
    pub proxies: Proxies,
    /// Records for the observer.
    pub observed: Observed,
    /// Secret of QUIC, which no reload changes.
    pub quic_secret: Option<QuicSecret>,
}

/// In the host process: the link to the supervisor, which passes NIC processes.
#[derive(Debug)]
pub struct HostControl {
    control: OwnedFd,
    /// Epoch before the first.
    base: u64,
    /// Number of processes received for each NIC stack.
    come: Vec<u64>,
    /// Generation in use of each NIC stack.
    used: Vec<u64>,
    /// Certificates of TLS listeners.
    certificates: Option<Arc<tls::Certificates>>,
    /// Networks in use that may connect, or may not.
    access: AccessNetworks,
    /// Configurations that are to replace the current one, in the order received. One certificate
    /// is checked at a time.
    replacing: VecDeque<Result<Replacing, Failure>>,
    orders: VecDeque<Order>,
    /// Whether a drain is under way, and [`FromHost::Drained`] not yet sent.
    is_draining: bool,
    /// Destination of fetchers' sockets.
    slot: Option<FetcherSlot>,
    /// Link to a new broker, until the sockets take it.
    broker: Option<BrokerLink>,
    /// Readable while a configuration, an order or a broker is pending.
    wakeup: Arc<OwnedFd>,
    /// Clients of `splitway stat`.
    readers: Readers,
    /// New clients of `splitway qlog`, and their pipes.
    qlogs: Vec<(QlogRequest, OwnedFd)>,
    /// Reports counters to the observer.
    reporter: Option<CounterReporter>,
    /// Whether the observer wants counters.
    reports_counters: bool,
    /// Readable while any work is pending.
    wake: Arc<OwnedFd>,
}

/// A configuration whose certificates are being checked.
#[derive(Debug)]
struct Replacing {
    http: server::Config,
    proxy: proxy::Config,
    stack: Changeable,
    proxies: Proxies,
    access: AccessNetworks,
    observed: Observed,
    /// Number of certificates and their check, with TLS.
    certificates: Option<(usize, tls::Checking)>,
}

impl HostControl {
    /// Receives from the supervisor behind `control`, which passes processes of `nics` NIC stacks;
    /// epochs are counted from `base`.
    pub fn new(control: OwnedFd, nics: usize, base: u64) -> Result<Self, Failure> {
        let failed = |errno| Failure::broken("watching the supervisor", errno);
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [&control, &wakeup] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&wake, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self {
            control,
            base,
            come: vec![0; nics],
            used: vec![0; nics],
            certificates: None,
            access: AccessNetworks::default(),
            replacing: VecDeque::new(),
            orders: VecDeque::new(),
            is_draining: false,
            slot: None,
            broker: None,
            wakeup: Arc::new(wakeup),
            readers: Readers::default(),
            qlogs: Vec::new(),
            reporter: None,
            reports_counters: false,
            wake: Arc::new(wake),
        })
    }

    /// Sets the destination of fetchers' sockets.
    pub fn expect_fetchers(&mut self, slot: FetcherSlot) {
        self.slot = Some(slot);
    }

    fn on_fetcher(&self, socket: Descriptor) {
        match (&self.slot, socket) {
            (Some(slot), Ok(socket)) => slot.put(socket),
            (None, Ok(_)) => tracing::error!("a fetcher has come although none is expected"),
            (_, Err(failure)) => tracing::error!("{failure}"),
        }
    }

    /// Takes the socket of a new broker, which replaces the current one.
    fn on_broker(&mut self, socket: Descriptor) {
        match socket {
            Ok(socket) => {
                self.broker = Some(BrokerLink::new(socket));
                wake(&self.wakeup);
            }
            Err(failure) => tracing::error!("{failure}"),
        }
    }

    /// Returns the server's part of a configuration, and sets the cache of the fetchers' slot.
    fn http_of(&self, configuration: &HostConfiguration) -> Result<server::Config, Failure> {
        let http = http_of(configuration)?;
        if let (Some(slot), Some(cache)) = (&self.slot, configuration.content.cache()) {
            slot.show(cache);
        }
        Ok(http)
    }

    /// Waits for the initial configuration, which precedes any NIC process, and with TLS checks its
    /// certificates; `None` if `stop` becomes readable before. Later configurations replace it.
    pub fn configuration(
        &mut self,
        with_tls: bool,
        stop: BorrowedFd<'_>,
    ) -> Result<Option<Start>, Failure> {
        while self.wait(stop)? {
            let message = match self.receive()? {
                Some(Received::Configuration(message)) => message?,
                Some(Received::Nic(..) | Received::Observer(_)) => {
                    let failure = "something else came before it";
                    return Err(Failure::broken(host_configuration::WHAT, failure));
                }
                None => continue,
            };
            let configuration = HostConfiguration::receive(message)?;
            let proxy = proxy_of(&configuration)?;
            let start = Start {
                http: self.http_of(&configuration)?,
                proxies: proxies_of(&configuration, &proxy),
                proxy,
                stack: configuration.changeable(),
                observed: configuration.observed,
                quic_secret: configuration.content.quic_secret(),
            };
            self.access = configuration.content.access().clone();
            if with_tls {
                let certificates = tls::Certificates::new(&configuration.certificates)
                    .map_err(|error| Failure::input(certificates::WHAT, error))?;
                self.certificates = Some(Arc::new(certificates));
            }
            return Ok(Some(start));
        }
        Ok(None)
    }

    /// Makes the stack use the networks of the initial configuration, which reloads replace.
    pub fn apply_access(&self, stack: &mut Stack) {
        self.access.apply(stack, host::monotonic_us());
    }

    /// Returns the certificates of TLS listeners, which reloads replace.
    pub fn certificates(&self) -> Option<Arc<tls::Certificates>> {
        self.certificates.clone()
    }

    /// Sets which records and counters the observer gets.
    pub fn observe(&mut self, observed: Observed, server: &mut Server, proxy: &mut Proxy) {
        server.set_access_log(observed.accesses);
        proxy.set_access_log(observed.accesses);
        let Some(reporter) = &self.reporter else {
            return;
        };
        let changed = match (self.reports_counters, observed.counters) {
            (false, true) => {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&self.wake, reporter, data, epoll::EventFlags::IN)
            }
            (true, false) => epoll::delete(&self.wake, reporter),
            (true, true) | (false, false) => Ok(()),
        };
        match changed {
            Ok(()) => self.reports_counters = observed.counters,
            Err(errno) => tracing::error!(%errno, "counters are reported as before"),
        }
    }

    /// Waits for the socket to the observer, which comes after the configuration and before any NIC
    /// process; `None` if `stop` becomes readable before.
    pub fn observer(&mut self, stop: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Failure> {
        while self.wait(stop)? {
            match self.receive()? {
                Some(Received::Observer(socket)) => {
                    let socket = socket?;
                    let copy = socket.try_clone();
                    let copy = copy.map_err(|error| Failure::broken(OBSERVER_SOCKET, error))?;
                    self.reporter = Some(CounterReporter::new(copy)?);
                    return Ok(Some(socket));
                }
                Some(Received::Configuration(message)) => self.replace(message),
                Some(Received::Nic(..)) => {
                    let failure = "a NIC process came before its socket";
                    return Err(Failure::broken(OBSERVER_SOCKET, failure));
                }
                None => {}
            }
        }
        Ok(None)
    }

    /// Takes a further configuration, which applies to new connections and requests once it is
    /// checked. If it is invalid, the current one stays.
    fn replace(&mut self, message: Descriptor) {
        let has_tls = self.certificates.is_some();
        let replacing = || -> Result<Replacing, Failure> {
            let configuration = HostConfiguration::receive(message?)?;
            let http = self.http_of(&configuration)?;
            let proxy = proxy_of(&configuration)?;
            let proxies = proxies_of(&configuration, &proxy);
            let (stack, observed) = (configuration.changeable(), configuration.observed);
            let access = configuration.content.access().clone();
            let files = configuration.certificates;
            let count = files.len();
            let checking = || {
                tls::Checking::new(files).map_err(|error| Failure::input(certificates::WHAT, error))
            };
            let certificates = if has_tls {
                Some((count, checking()?))
            } else {
                None
            };
            Ok(Replacing {
                http,
                proxy,
                stack,
                proxies,
                access,
                observed,
                certificates,
            })
        };
        self.replacing.push_back(replacing());
        wake(&self.wakeup);
    }

    /// Schedules an order, to be carried out between two turns.
    fn take_order(&mut self, order: Order) {
        self.orders.push_back(order);
        wake(&self.wakeup);
    }

    /// Checks one certificate of the first pending configuration; once all are valid, applies it.
    fn check_certificate(
        &mut self,
        now_us: u64,
        stack: &mut Stack,
        server: &mut Server,
        proxy: &mut Proxy,
    ) {
        let Some(replacing) = self.replacing.front_mut() else {
            return;
        };
        let is_good = check_one(self.certificates.as_deref(), replacing);
        if let Ok(false) = is_good {
            return;
        }
        let replaced = self.replacing.pop_front();
        let message = match (is_good, replaced) {
            (Ok(_), Some(Ok(new))) => {
                stack.change(&new.stack);
                stack.set_proxies(new.proxies);
                // A long list is not built again with each look-up of a name.
                let mut ended = 0;
                if new.access != self.access {
                    ended = new.access.apply(stack, now_us);
                    self.access = new.access;
                }
                server.reconfigure(new.http);
                proxy.reconfigure(new.proxy);
                self.observe(new.observed, server, proxy);
                FromHost::Reloaded {
                    certificates: new.certificates.map_or(0, |(count, _)| count),
                    ended,
                }
            }
            (Err(failure), _) | (_, Some(Err(failure))) => {
                FromHost::ReloadRefused(failure.to_string())
            }
            (Ok(_), None) => return,
        };
        report(message);
    }

    /// Adds a client that reads the connections from this pipe.
    fn add_reader(&mut self, pipe: Descriptor) {
        let now_us = host::monotonic_us();
        let added = pipe.and_then(|pipe| self.readers.add(&self.wake, pipe, now_us));
        if let Err(failure) = added {
            tracing::warn!("{failure}");
        }
    }

    /// Waits for the next message; returns false if `stop` becomes readable before.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<bool, Failure> {
        let mut fds = [
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))
            .map_err(|errno| Failure::broken("waiting for the supervisor", errno))?;
        Ok(fds[1].revents().is_empty())
    }

    /// Waits for the first NIC process of any NIC stack; `None` if `stop` becomes readable before.
    pub fn first(&mut self, stop: BorrowedFd<'_>) -> Result<Option<(usize, HostSession)>, Failure> {
        while self.wait(stop)? {
            let (nic, socket) = match self.receive()? {
                Some(Received::Nic(nic, socket)) => (nic, socket),
                // Early configurations wait until the server runs.
                Some(Received::Configuration(message)) => {
                    self.replace(message);
                    continue;
                }
                Some(Received::Observer(_)) | None => continue,
            };
            // A process that has died since its hello is no failure: others may follow, and
            // otherwise the supervisor ends this one.
            match socket.and_then(|socket| self.meet(socket)) {
                Ok(session) => return Ok(Some((nic, session))),
                Err(failure) => self.refuse(nic, failure.to_string()),
            }
        }
        Ok(None)
    }

    /// Receives the next message. Handles it here if it needs no more state, and returns it
    /// otherwise; `None` if it was handled or there is none.
    fn receive(&mut self) -> Result<Option<Received>, Failure> {
        let received = fd_passing::receive(&self.control, &mut [0; MESSAGE_BYTES_MAX])?;
        let Some((message, descriptor)) = received else {
            return Ok(None);
        };
        // The kernel drops a descriptor that would exceed the limit.
        let arrived = |what| {
            descriptor.ok_or_else(|| {
                Failure::broken(what, "its descriptor did not arrive").remedy(
                    "The host process has too many descriptors open: raise the limit (ulimit -n, \
                     LimitNOFILE=).",
                )
            })
        };
        match message {
            ToHost::Configure => {
                let message = arrived(host_configuration::WHAT);
                return Ok(Some(Received::Configuration(message)));
            }
            ToHost::Observer => return Ok(Some(Received::Observer(arrived(OBSERVER_SOCKET)))),
            ToHost::Nic(nic) => {
                let Some(come) = self.come.get_mut(nic) else {
                    let why = format!("there is no NIC stack {nic}");
                    return Err(Failure::broken("NIC process", why));
                };
                *come += 1;
                return Ok(Some(Received::Nic(nic, arrived("NIC process"))));
            }
            ToHost::Fetcher => self.on_fetcher(arrived("fetcher")),
            ToHost::Broker => self.on_broker(arrived("broker")),
            ToHost::Stat => self.add_reader(arrived("pipe for connections")),
            ToHost::Qlog(wanted) => match arrived("pipe for a trace") {
                Ok(pipe) => {
                    self.qlogs.push((wanted, pipe));
                    wake(&self.wakeup);
                }
                Err(failure) => tracing::warn!("{failure}"),
            },
            ToHost::Drain => self.take_order(Order::Drain),
            ToHost::Ping => self.take_order(Order::Pong),
            ToHost::Detach(pid) => self.take_order(Order::Detach(pid)),
            ToHost::Deny { network, until_us } => self.take_order(Order::Deny(network.0, until_us)),
            ToHost::Allow(network) => self.take_order(Order::Allow(network.0)),
            ToHost::LogLevel(level) => log_lines::set_level(level.0),
            ToHost::Addresses => {
                let addresses = NewAddresses::read(&arrived("addresses")?)?;
                self.take_order(Order::Addresses(addresses));
            }
        }
        Ok(None)
    }

    /// Reports that the last process received for a NIC stack is refused.
    fn refuse(&self, nic: usize, why: String) {
        report_nic(nic, self.come[nic], NicFate::Refused { why });
    }

    /// Sends the hello. The supervisor has seen the NIC process's hello, so this does not wait.
    fn meet(&mut self, socket: OwnedFd) -> Result<HostSession, Failure> {
        let come: u64 = self.come.iter().sum();
        let epoch = self.base.wrapping_add(come);
        host_hello(socket, epoch)
            .map_err(|error| Failure::broken("connecting to the NIC process", error))
    }
}

impl NicSource<App> for HostControl {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn take(&mut self) -> Option<(usize, HostSession)> {
        let received = self.receive();
        let received = received.inspect_err(|failure| tracing::error!("{failure}"));
        let (nic, socket) = match received.ok()? {
            Some(Received::Nic(nic, socket)) => (nic, socket),
            Some(Received::Configuration(message)) => {
                self.replace(message);
                return None;
            }
            // The observer's socket never changes.
            Some(Received::Observer(_)) | None => return None,
        };
        match socket.and_then(|socket| self.meet(socket)) {
            Ok(session) => Some((nic, session)),
            Err(failure) => {
                self.refuse(nic, failure.to_string());
                None
            }
        }
    }

    fn on_wake(&mut self, now_us: u64, stack: &mut Stack, app: &mut App) {
        self.readers.tell(&self.wake, now_us, stack, app);
        stack.flush_quic_trace();
        for (wanted, pipe) in std::mem::take(&mut self.qlogs) {
            let begun = qlog::begin(stack, now_us, wanted, pipe, &self.wake);
            if let Err(failure) = begun {
                tracing::warn!("{failure}");
            }
        }
        if let Some(reporter) = self.reporter.as_ref().filter(|_| self.reports_counters) {
            reporter.on_wake(now_us, stack, app);
        }
        let App {
            server,
            proxy,
            others,
        } = app;
        if let Some(broker) = self.broker.take()
            && let Err(error) = others.set_broker(Box::new(broker))
        {
            tracing::error!(%error, "no application can attach: the broker is not watched");
        }
        // A wakeup that arrives meanwhile is not lost.
        let _ = rustix::io::read(&self.wakeup, &mut [0u8; 8]);
        self.check_certificate(now_us, stack, server, proxy);
        if !self.replacing.is_empty() {
            wake(&self.wakeup);
        }
        for order in std::mem::take(&mut self.orders) {
            match order {
                Order::Pong => report(FromHost::Pong),
                Order::Detach(pid) => {
                    let found = others.application_of(pid);
                    let is_known = found.is_some_and(|app| others.detach(app));
                    report(FromHost::Detached { pid, is_known });
                }
                Order::Addresses(new) => {
                    let addresses = new.addresses.iter();
                    let addresses = addresses.map(|cidr| (cidr.0.address, cidr.0.prefix_len));
                    stack.set_addresses(addresses.collect(), new.gateways);
                }
                Order::Deny(network, until_us) => {
                    let ended = stack.deny(now_us, network.network(), until_us);
                    report(FromHost::AccessChanged {
                        ended: ended.unwrap_or_default(),
                    });
                }
                Order::Allow(network) => {
                    stack.take_denial_back(now_us, network.network());
                    report(FromHost::AccessChanged { ended: 0 });
                }
                Order::Drain => {
                    stack.stop_listening();
                    let wakeup = Arc::clone(&self.wakeup);
                    server.drain(move || wake(&wakeup));
                    let wakeup = Arc::clone(&self.wakeup);
                    proxy.drain(move || wake(&wakeup));
                    self.is_draining = true;
                }
            }
        }
        // Connections that the server has forgotten or never had may still wait for their peers.
        let usage = stack.usage();
        let is_idle = usage.connections == 0 && usage.parted == 0;
        let is_empty = server.connections() == 0 && proxy.sessions() == 0;
        if self.is_draining && is_empty && is_idle {
            self.is_draining = false;
            report(FromHost::Drained);
        }
    }

    fn on_joined(&mut self, nic: usize) {
        self.used[nic] = self.come[nic];
        report_nic(nic, self.used[nic], NicFate::Joined);
    }

    fn on_refused(&mut self, nic: usize, refusal: NicRefusal) {
        self.refuse(nic, refusal.to_string());
    }

    fn on_silent(&mut self, nic: usize, worker: usize) {
        report_nic(nic, self.used[nic], NicFate::Silent { worker });
    }

    fn on_lost(&mut self, nic: usize, loss: NicLoss) {
        let why = loss.to_string();
        report_nic(nic, self.used[nic], NicFate::Lost { why });
    }
}

/// Makes the eventfd readable. Its counter never reaches its maximum.
fn wake(wakeup: &OwnedFd) {
    let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
}

/// Returns the server's part of a configuration.
fn http_of(configuration: &HostConfiguration) -> Result<server::Config, Failure> {
    configuration.content.server_config().map_err(refused)
}

/// Returns the proxy's part of a configuration.
fn proxy_of(configuration: &HostConfiguration) -> Result<proxy::Config, Failure> {
    configuration.forwarding.proxy_config().map_err(refused)
}

/// Returns the proxies in front of the server, or of the proxy.
fn proxies_of(configuration: &HostConfiguration, proxy: &proxy::Config) -> Proxies {
    let mut proxies = configuration.content.proxies();
    proxies.header_ports.extend(proxy.proxies().header_ports);
    proxies
}

fn refused(problems: Vec<Problem>) -> Failure {
    let problems = problems.iter();
    let told: Vec<String> = problems
        .map(|problem| format!("{}: {}", problem.place, problem.why))
        .collect();
    Failure::input(host_configuration::WHAT, told.join("; "))
}

/// Checks the next certificate. Once all are valid, replaces those in use and returns true.
fn check_one(
    certificates: Option<&tls::Certificates>,
    replacing: &mut Result<Replacing, Failure>,
) -> Result<bool, Failure> {
    let replacing = replacing.as_mut().map_err(|failure| failure.clone())?;
    let (Some((_, checking)), Some(certificates)) = (&mut replacing.certificates, certificates)
    else {
        return Ok(true);
    };
    let is_checked = checking.step(certificates);
    is_checked
        .and_then(|_| certificates.replace_by(checking))
        .map_err(|error| Failure::input(certificates::WHAT, error))
}

fn report_nic(nic: usize, generation: u64, fate: NicFate) {
    report(FromHost::Nic {
        nic,
        generation,
        fate,
    });
}

/// Sends a message to the supervisor. If the supervisor has ended, this process ends as well.
fn report(message: FromHost) {
    if let Err(failure) = tell(message) {
        tracing::error!("{failure}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use contract::control::{nic_hello, peek_hello};
    use rustix::net::{Shutdown, shutdown};

    use sockets::Sockets;

    use super::*;
    use crate::ipc::fd_passing::pass;
    use config::{self, Config, Content};
    use netsetup::seqpacket;

    /// Returns the host's end for `nics` NIC stacks, and the supervisor's end.
    fn supervisor(nics: usize) -> (HostControl, OwnedFd) {
        let (own, control) = seqpacket::pair().unwrap();
        (HostControl::new(control, nics, 0).unwrap(), own)
    }

    /// Returns the host's socket of a NIC process that has sent its hello, and lives on or not.
    fn greeted(lives: bool) -> (OwnedFd, thread::JoinHandle<bool>) {
        let (host, nic) = seqpacket::pair().unwrap();
        let other = nic.try_clone().unwrap();
        let greeting = thread::spawn(move || nic_hello(nic, 1).is_ok());
        loop {
            match peek_hello(&host).unwrap() {
                Some(1) => break,
                _ => thread::yield_now(),
            }
        }
        if !lives {
            shutdown(&other, Shutdown::Both).unwrap();
        }
        (host, greeting)
    }

    #[test]
    fn one_that_dies_before_it_is_answered_does_not_end_the_start_of_others() {
        let (mut supervisor, own) = supervisor(2);
        let (_never, stop) = UnixStream::pair().unwrap();
        let (dead, died) = greeted(false);
        let (living, lives) = greeted(true);
        pass(&own, &ToHost::Nic(0), Some(&dead)).unwrap();
        pass(&own, &ToHost::Nic(1), Some(&living)).unwrap();
        let first = supervisor.first(stop.as_fd()).unwrap();
        let (nic, session) = first.expect("the second one has come");
        assert_eq!((nic, session.channels.len()), (1, 1));
        assert!(lives.join().unwrap() && !died.join().unwrap());
        assert_eq!(supervisor.come, [1, 1]);
        supervisor.on_joined(nic);
        assert_eq!(supervisor.used, [0, 1]);
    }

    /// Returns an idle stack.
    fn stack() -> Stack {
        let config = host::StackConfig {
            connections_max: 1,
            orphans_max: 1,
            ..host::StackConfig::new(Vec::new(), vec![80], [0; 16])
        };
        let link = host::Link {
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            ipv4_superpacket_max: 65_535,
            ipv6_superpacket_max: 65_535,
        };
        Stack::awaiting(config, link, 1, 0)
    }

    fn is_awake(supervisor: &HostControl) -> bool {
        let wake = supervisor.wake_fd();
        let mut fds = [PollFd::new(&wake, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap() > 0
    }

    #[test]
    fn of_many_certificates_one_is_checked_at_a_time_and_nic_processes_do_not_wait() {
        const COUNT: usize = 5;
        let made = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            tls::Files::from_pem("made", &certificate.pem(), &key.serialize_pem())
        };
        let files: Vec<tls::Files> = std::iter::repeat_with(made).take(COUNT).collect();
        let (mut supervisor, own) = supervisor(1);
        let mut app = App {
            server: Server::new(server::Config::default()),
            proxy: Proxy::new(proxy::Config::default()),
            others: Sockets::without_descriptors(),
        };
        let mut stack = stack();
        let first = tls::Certificates::new(&files[..1]).unwrap();
        supervisor.certificates = Some(Arc::new(first));
        assert!(!is_awake(&supervisor));
        // Valid certificates, then an empty list, which is invalid.
        for files in [&files[..], &files[..0]] {
            let message = HostConfiguration {
                content: Content::without_secrets(&Config::default()),
                forwarding: config::Forwarding::default(),
                tcp: config::Tcp::default(),
                quic: config::Quic::default(),
                observed: Observed::default(),
                certificates: files.to_vec(),
            };
            let message = message.message().unwrap();
            pass(&own, &ToHost::Configure, Some(&message)).unwrap();
        }
        let (nic, greeting) = greeted(true);
        pass(&own, &ToHost::Nic(0), Some(&nic)).unwrap();
        let left = |supervisor: &HostControl| supervisor.replacing.len();
        for count in 1..=2 {
            assert!(supervisor.take().is_none());
            assert_eq!(left(&supervisor), count);
        }
        assert!(supervisor.take().is_some(), "it has overtaken them");
        greeting.join().unwrap();
        for _ in 1..COUNT {
            assert!(is_awake(&supervisor) && supervisor.take().is_none());
            supervisor.on_wake(0, &mut stack, &mut app);
            assert_eq!(left(&supervisor), 2);
        }
        for left_then in [1, 0] {
            assert!(is_awake(&supervisor) && supervisor.take().is_none());
            supervisor.on_wake(0, &mut stack, &mut app);
            assert_eq!(left(&supervisor), left_then);
        }
        assert!(!is_awake(&supervisor));
    }

    #[test]
    fn a_nic_process_whose_socket_was_lost_on_the_way_is_refused_and_not_forgotten() {
        let (mut supervisor, own) = supervisor(2);
        pass(&own, &ToHost::Nic(1), None).unwrap();
        let Some(Received::Nic(nic, socket)) = supervisor.receive().unwrap() else {
            panic!("it has come");
        };
        assert_eq!((nic, supervisor.come[1]), (1, 1));
        let failure = socket.unwrap_err().to_string();
        assert!(failure.contains("ulimit -n"), "{failure}");
    }
}
