//! `splitway serve`: checks the options, sets the network up, starts the processes, supervises
//! them, and cleans up, however the server ends.

use std::fs;
use std::path::Path;

use failure::Failure;
use sandbox::{descriptors, kernel};

use crate::args::overlay;
use crate::args::serve::ServeArgs;
use crate::supervisor::announce::{AnnouncedNic, Started, announce};
use crate::supervisor::attachment::Attachment;
use crate::supervisor::broker::{BrokerPlan, BrokerSupervisor};
use crate::supervisor::certificate_watch::CertificateWatch;
use crate::supervisor::children::{Children, Role};
use crate::supervisor::control_socket::Control;
use crate::supervisor::denials::Denials;
use crate::supervisor::directory_watch::DirectoryWatch;
use crate::supervisor::drain::Drain;
use crate::supervisor::exit_summary;
use crate::supervisor::heartbeat::Heartbeat;
use crate::supervisor::initial_netns::InitialNetns;
use crate::supervisor::key_log::KeyLogFile;
use crate::supervisor::nic_source::NicSource;
use crate::supervisor::observer::ObserverSupervisor;
use crate::supervisor::origin_plan::OriginPlan;
use crate::supervisor::pending_requests::PendingRequests;
use crate::supervisor::reload::{Reload, odd};
use crate::supervisor::resolver::Resolver;
use crate::supervisor::rolling::Rolling;
use crate::supervisor::service_manager::ServiceManager;
use crate::supervisor::startup::{Served, Startup};
use crate::supervisor::{RequestSignals, Supervisor, ready_status};
use crate::terminal::say;
use config::certificates::CertificateSource;
use config::key_file::SecretBytes;
use config::root;
use config::temporary;
use config::{Config, Content};
use observer::Report;
use processes::ipc::log_lines;
use processes::ipc::signals::{HangUp, Signals};

/// Serves until a signal or a failure ends it.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = overlay::load(args)?;
    log_lines::set_level(config.logs.level.0);
    if config.is_proxy() && !args.is_proxy {
        return Err(Failure::input("[[proxy.listen]]", "serve does not forward")
            .remedy("`splitway proxy --config FILE` runs a proxy."));
    }
    if args.print_config {
        say(&config.to_toml()?);
        return Ok(());
    }
    for line in odd(&config) {
        tracing::warn!("{line}");
    }
    temporary::sweep();
    let mut observer = observer(args, &config)?;
    let result = serve(args, &config, &mut observer);
    if args.programs_alone {
        remove_places(&config);
    }
    if let Err(failure) = &result {
        observer.on_end(failure);
    }
    result
}

/// Removes the directories that `run` has created for its own stack: `run` may have been killed.
fn remove_places(config: &Config) {
    let root = config.nic.root.as_deref();
    let socket = config.sockets.path.as_deref();
    let parent = Path::parent;
    let places = [root, socket.and_then(parent), root.and_then(parent)];
    for place in places.into_iter().flatten() {
        // A directory that is not empty stays.
        let _ = fs::remove_dir(place);
    }
}

/// Serves with the observer in place.
fn serve(
    args: &ServeArgs,
    config: &Config,
    observer: &mut ObserverSupervisor,
) -> Result<(), Failure> {
    let origins = OriginPlan::check(config)?;
    let sources = NicSource::check_all(config)?;
    descriptors::require(sources.len(), config.nic.workers)?;
    let certificates = CertificateSource::check(config, None)?;
    let quic_secret = config.quic.secret()?;
    let content = Content::read(config, origins.as_ref().map(|plan| &plan.place))?;
    let content = content.with_quic_secret(quic_secret.as_ref());
    let resolver = Resolver::here()?;
    let forwarding = resolver.read(config, None);
    kernel::require()?;
    // From now on Ctrl-C cleans up.
    let is_link = config.nic.root.as_deref().is_some_and(root::is_link);
    let may_reload = args.config.is_some() || certificates.is_some() || is_link;
    let (ends, signals) = catch_signals(may_reload)?;
    let mut children = Children::new(ends);
    if args.end_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|errno| Failure::broken("binding the process to its parent", errno))?;
    }
    let initial_netns = InitialNetns::here()?;
    let broker = BrokerPlan::bind(config)?;
    let attachment = Attachment::attach(config)?;
    let mut service_manager = ServiceManager::of_environment();
    let announced: Vec<_> = sources.iter().map(AnnouncedNic::of).collect();
    let startup = Startup {
        args,
        config,
        sources,
        content,
        forwarding,
        certificates: certificates.as_ref(),
        origins: origins.as_ref(),
        broker,
        initial_netns,
        attachment: &attachment,
    };
    let mut served = startup.run(&mut children, observer);
    let server = Server {
        args,
        config,
        certificates: certificates.as_ref(),
        quic_secret,
        attachment: &attachment,
        nics: &announced,
    };
    let result = match &mut served {
        Ok(served) => server.supervise(
            (served, resolver),
            &mut children,
            observer,
            signals,
            &mut service_manager,
        ),
        Err(failure) => Err(failure.clone()),
    };
    let ended = end(&mut children, announced.len(), &mut service_manager);
    let removed = attachment.remove();
    result?;
    print_summary(&served?, &children, args.report_json);
    ended.and(removed)
}

/// Catches the signals that end a server, and those that request something.
fn catch_signals(may_reload: bool) -> Result<(Signals, RequestSignals), Failure> {
    let (ends, hang_up) = if may_reload {
        (Signals::catch_ends_but_hang_up()?, Some(HangUp::catch()?))
    } else {
        (Signals::catch_ends()?, None)
    };
    let signals = RequestSignals {
        hang_up,
        quit: Signals::catch_quit()?,
        reopen: Signals::catch_reopen()?,
    };
    Ok((ends, signals))
}

/// Returns the supervisor of logs, metrics and the key log.
fn observer(args: &ServeArgs, config: &Config) -> Result<ObserverSupervisor, Failure> {
    let key_log = args.key_log.as_deref();
    let key_log = key_log.map(|path| KeyLogFile::open(path, config));
    ObserverSupervisor::new(config, key_log.transpose()?)
}

/// Inputs of a running server.
struct Server<'a> {
    args: &'a ServeArgs,
    config: &'a Config,
    certificates: Option<&'a CertificateSource>,
    quic_secret: Option<SecretBytes>,
    attachment: &'a Attachment,
    nics: &'a [AnnouncedNic],
}

impl Server<'_> {
    /// Keeps the started processes serving.
    fn supervise(
        &self,
        (served, resolver): (&mut Served, Resolver),
        children: &mut Children,
        observer: &mut ObserverSupervisor,
        signals: RequestSignals,
        service_manager: &mut ServiceManager,
    ) -> Result<(), Failure> {
        let (args, config) = (self.args, self.config);
        let control = control(config)?;
        announce(&Started {
            config,
            attachment: self.attachment,
            children,
            nics: self.nics,
            missing: &served.missing,
            fetcher: &served.fetcher,
            sockets: served.broker.as_ref().map(BrokerSupervisor::path),
            locked_out: &served.locked_out,
            control: control.as_ref(),
            trusted: self.certificates.and_then(|c| c.file_to_trust()),
        });
        let to_host = served
            .to_host
            .try_clone()
            .map_err(|error| Failure::broken("making a socket for the host process", error))?;
        service_manager.ready(&ready_status(config, self.attachment));
        let mut supervisor = Supervisor {
            children,
            nics: &mut served.nics,
            fetcher: &mut served.fetcher,
            broker: served.broker.as_mut(),
            observer,
            to_host: &served.to_host,
            attachment: self.attachment,
            remote_nics: config.nic.remotes(),
            host_heartbeat: Heartbeat::new(config.operation.heartbeat.0.0),
            reload: Reload::new(
                args,
                config.clone(),
                self.certificates.cloned(),
                self.quic_secret.clone(),
                served.in_host.clone(),
                self.attachment.ip_addresses(),
                (resolver, to_host),
            ),
            certificates: CertificateWatch::default(),
            directories: DirectoryWatch::new()?,
            drain: Drain::new(config.operation.drain_timeout.0.0),
            denials: Denials::default(),
            rolling: Rolling::default(),
            signals,
            service_manager,
            pending: PendingRequests::new(control),
        };
        supervisor.run()
    }
}

/// Ends all processes, each before those that it needs.
fn end(
    children: &mut Children,
    nics: usize,
    service_manager: &mut ServiceManager,
) -> Result<(), Failure> {
    // The host process closes its connections through the NIC processes.
    let mut order = vec![Role::Host];
    for number in 0..nics {
        children.forget(Role::NextNic(number));
        order.extend([Role::Nic(number), Role::PastNic(number)]);
    }
    // The observer logs what all others report at their end.
    order.extend([Role::Fetcher, Role::Broker, Role::Observer]);
    service_manager.stopping(Children::end_wait(order.len()));
    children.end(&order)
}

/// Prints the counters of the processes.
fn print_summary(served: &Served, children: &Children, with_json: bool) {
    let host = children.report(Role::Host);
    let mut nic: Option<Report> = None;
    for report in served.nics.iter().filter_map(|it| it.report(children)) {
        nic.get_or_insert_default().absorb(&report);
    }
    say(&format!(
        "\n{}",
        exit_summary::table(&served.locked_out, host, nic.as_ref())
    ));
    let fetcher = children.report(Role::Fetcher);
    if let Some(fetcher) = fetcher {
        say(&exit_summary::fetcher(fetcher));
    }
    let broker = children.report(Role::Broker);
    if let Some(broker) = broker {
        say(&exit_summary::broker(broker));
    }
    if with_json {
        say(&exit_summary::json(host, nic.as_ref(), fetcher, broker));
    }
}

/// Binds the control socket. Without a default directory, the server runs without one.
fn control(config: &Config) -> Result<Option<Control>, Failure> {
    match &config.operation.control_socket {
        Some(path) => Control::bind(path).map(Some),
        None => Ok(Control::bind_in_usual_place()
            .inspect_err(|failure| {
                tracing::warn!(
                    "no control socket, so that `splitway ctl` and \
                `splitway stat` cannot reach this server: {failure}"
                )
            })
            .ok()),
    }
}
