//! `splitway serve`: the supervisor. It checks what was asked, sets the network up, starts the NIC process
//! and the host process, and then sleeps until the host process or the user ends it, or the NIC process is to be
//! started anew. It is small on purpose: whatever happens to the two processes, the network is cleaned up.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::args::ServeArgs;
use crate::child::Child;
use crate::cidr::Cidr;
use crate::claim::{Claim, ClaimError};
use crate::control::{Control, Request};
use crate::control_link::{MacAddress, NicPlace};
use crate::error::Failure;
use crate::family::{Family, Happening, Role};
use crate::link::{self, INNER_NAME, Inventory, OUTER_NAME, VethPair};
use crate::lockdown::LockedOut;
use crate::messages::Message;
use crate::nic_keeper::{NicKeeper, NicNews, NicOrigin};
use crate::program::Program;
use crate::signals::EndSignals;
use crate::{features, key_file, privileges, report, say, socket, url};

/// How long the two processes may take until they serve.
const READY_WAIT: Duration = Duration::from_secs(20);

/// Serves until the user or a failure ends it.
pub(crate) fn run(args: &ServeArgs, log: &str) -> Result<(), Failure> {
    let source = Source::check(args)?;
    features::require()?;
    // From here on Ctrl-C leads through the cleaning up.
    let mut family = Family::new(EndSignals::catch()?);
    if args.end_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|errno| Failure::broken("binding the process to its parent", errno))?;
    }
    let link = Link::attach(args)?;
    let announced = Announced::of(&source);
    let mut served = start(&mut family, args, source, &link, log);
    let result = match &mut served {
        Ok((keeper, locked_out)) => control(args).and_then(|control| {
            announce(
                &family,
                args,
                &announced,
                &link,
                locked_out,
                control.as_ref(),
            );
            supervise(&mut family, keeper, control)
        }),
        Err(failure) => Err(failure.clone()),
    };
    // The host process first: it takes leave of its connections through the NIC process.
    family.dismiss(Role::NextNic);
    let ended = family.end(&[Role::Host, Role::Nic, Role::PastNic]);
    let removed = link.remove();
    result?;
    let (keeper, locked_out) = served?;
    let (host, nic) = (family.report(Role::Host), keeper.report(&family));
    say(&format!(
        "\n{}",
        report::table(&locked_out, host, nic.as_ref())
    ));
    if args.report_json {
        say(&report::json(host, nic.as_ref()));
    }
    ended.and(removed)
}

/// The control socket. Where there is no usual place for it, the server does without.
fn control(args: &ServeArgs) -> Result<Option<Control>, Failure> {
    match &args.control_socket {
        Some(path) => Control::bind(path).map(Some),
        None => Ok(Control::bind_in_usual_place()
            .inspect_err(|failure| tracing::info!("no control socket: {failure}"))
            .ok()),
    }
}

/// Where the content comes from.
enum Source {
    /// A NIC process of our own reads below this directory.
    Root(PathBuf),
    /// A NIC process that is there already, to which this socket is connected.
    Attached { path: PathBuf, socket: OwnedFd },
    /// A NIC stack on another machine.
    Elsewhere {
        interface: String,
        peer: MacAddress,
        key_file: PathBuf,
    },
}

impl Source {
    fn check(args: &ServeArgs) -> Result<Self, Failure> {
        match (&args.root, &args.nic) {
            (_, Some(NicPlace::Socket(path))) => Ok(Self::Attached {
                path: path.clone(),
                socket: connect(path)?,
            }),
            (_, Some(NicPlace::Ethernet { interface, peer })) => {
                let key_file = args.key_file.clone().ok_or_else(|| {
                    Failure::input(
                        format!("--nic eth:{interface},{peer}"),
                        "--key-file is missing",
                    )
                    .remedy("Both machines need the same key: `splitway keygen FILE` makes one.")
                })?;
                key_file::read(&key_file)?;
                Inventory::take()?.device(interface)?;
                Ok(Self::Elsewhere {
                    interface: interface.clone(),
                    peer: *peer,
                    key_file,
                })
            }
            (Some(root), None) => {
                check_root(root)?;
                args.cache.check(args.workers)?;
                Ok(Self::Root(root.clone()))
            }
            (None, None) => Err(Failure::input("serve", "ROOT is missing")),
        }
    }
}

/// Fails unless `root` is a directory whose files can be listed and opened.
pub(crate) fn check_root(root: &Path) -> Result<(), Failure> {
    let what = format!("root {}", root.display());
    let stat = rustix::fs::stat(root).map_err(|errno| match errno {
        Errno::NOENT => Failure::input(&what, "no such directory"),
        errno => Failure::input(&what, errno),
    })?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Failure::input(what, "not a directory")
            .remedy("Give the directory that holds the file."));
    }
    rustix::fs::accessat(
        CWD,
        root,
        Access::READ_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    )
    .map_err(|errno| {
        Failure::input(what, format!("not readable: {errno}"))
            .remedy("This user needs permission to read and to search it.")
    })
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
    socket::connect(&address).map_err(failed)
}

/// What the stack is attached to.
struct Link {
    /// The interface, as the two processes see it.
    device: String,
    addresses: Vec<Cidr>,
    pair: Option<VethPair>,
    _claims: Vec<Claim>,
}

impl Link {
    fn attach(args: &ServeArgs) -> Result<Self, Failure> {
        match &args.dev {
            Some(device) => Self::attach_to_device(device, args),
            None => Self::attach_to_pair(args),
        }
    }

    fn attach_to_device(device: &str, args: &ServeArgs) -> Result<Self, Failure> {
        let inventory = Inventory::take()?;
        let interface = inventory.device(device)?;
        inventory.check_addresses(&args.addr)?;
        link::check_gateways(&args.gateway, &args.addr)?;
        privileges::require(
            &format!("sending packets on {device}"),
            privileges::FOR_DEVICE,
        )?;
        let claim = |cidr: &Cidr| {
            Claim::take(format!("{} {}", interface.index, cidr.address)).map_err(|error| {
                claim_failed(args.listen, cidr.address, &error).remedy(
                    "Give this one an address of its own with --addr, or end the other one.",
                )
            })
        };
        let claims = args.addr.iter().map(claim).collect::<Result<_, _>>()?;
        Ok(Self {
            device: device.to_owned(),
            addresses: args.addr.clone(),
            pair: None,
            _claims: claims,
        })
    }

    fn attach_to_pair(args: &ServeArgs) -> Result<Self, Failure> {
        privileges::require(
            &format!("making the link {OUTER_NAME}"),
            privileges::FOR_VETH_PAIR,
        )?;
        let claim = Claim::take(OUTER_NAME).map_err(|error| {
            claim_failed(args.listen, link::STACK_V4.address, &error).remedy(format!(
                "Both would make the link {OUTER_NAME}. Give this one an interface and an address of its own\n\
                 with --dev and --addr, or end the other one."
            ))
        })?;
        let pair = VethPair::create(args.mtu)?;
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

    fn remove(self) -> Result<(), Failure> {
        self.pair.map_or(Ok(()), VethPair::remove)
    }
}

/// A stack answers for all ports of its addresses, so that two with one address are refused even where
/// their ports differ.
fn claim_failed(port: u16, address: IpAddr, error: &ClaimError) -> Failure {
    let what = format!("port {port} of {address}");
    match error {
        ClaimError::Taken(_) => Failure::input(what, format!("the address is {error}")),
        ClaimError::System(_) => Failure::broken(what, error),
    }
}

/// Starts the processes and waits until they serve.
fn start(
    family: &mut Family,
    args: &ServeArgs,
    source: Source,
    link: &Link,
    log: &str,
) -> Result<(NicKeeper, LockedOut), Failure> {
    let program = Program::own()?;
    let (to_host, host_socket) = socket::pair()
        .map_err(|errno| Failure::broken("making a socket for the host process", errno))?;
    family.adopt(
        Role::Host,
        Child::spawn(
            "host process",
            &program.image(),
            host_arguments(args, &source, link, log),
            host_socket,
        )?,
    );
    let (origin, socket) = match source {
        Source::Elsewhere { .. } => {
            let arguments = carrier_arguments(&source, link, log);
            (NicOrigin::Program { program, arguments }, None)
        }
        Source::Root(root) => {
            let arguments = nic_arguments(args, &root, link, log);
            (NicOrigin::Program { program, arguments }, None)
        }
        Source::Attached { path, socket } => (NicOrigin::Socket(path), Some(socket)),
    };
    let mut nic_ready = socket.is_some();
    let mut host_ready = None;
    let mut keeper = NicKeeper::new(origin, to_host);
    keeper.start_first(family, socket)?;

    let deadline = Instant::now() + READY_WAIT;
    loop {
        let watched: Vec<_> = keeper.watch().into_iter().collect();
        let happening = family.next_or_readable(&watched, Some(deadline))?;
        match &happening {
            Happening::Said(_, Message::HostReady(locked_out)) => {
                host_ready = Some(locked_out.clone());
                keeper.on(family, &Happening::Said(Role::Host, Message::NicJoined(1)));
            }
            Happening::Said(_, Message::NicReady { .. }) => nic_ready = true,
            Happening::Said(_, Message::Failed(_)) | Happening::Ended(_) => {
                return Err(family.diagnose());
            }
            Happening::Signal => {
                return Err(Failure::broken("serve", "interrupted while starting"));
            }
            Happening::Nothing => {
                let late = match (nic_ready, &host_ready) {
                    (false, _) => "the NIC process",
                    _ => "the host process",
                };
                return Err(Failure::broken(
                    late,
                    format!("not ready within {READY_WAIT:?}"),
                ));
            }
            Happening::Said(..) | Happening::Readable => {
                if let Some(NicNews::Failed(failure)) = keeper.on(family, &happening) {
                    return Err(failure);
                }
            }
        }
        if let (true, Some(locked_out)) = (nic_ready, &host_ready) {
            return Ok((keeper, locked_out.clone()));
        }
    }
}

/// Keeps a NIC process serving, and does what it is asked for, until the user ends it; an error if something else
/// does.
fn supervise(
    family: &mut Family,
    keeper: &mut NicKeeper,
    mut control: Option<Control>,
) -> Result<(), Failure> {
    loop {
        let watched: Vec<_> = keeper
            .watch()
            .into_iter()
            .chain(control.as_ref().and_then(Control::watch))
            .collect();
        let deadlines = [
            keeper.deadline(),
            control.as_ref().and_then(Control::deadline),
        ];
        let deadline = deadlines.into_iter().flatten().min();
        let happening = family.next_or_readable(&watched, deadline)?;
        match &happening {
            Happening::Signal => return Ok(()),
            Happening::Ended(Role::Host) | Happening::Said(Role::Host, Message::Failed(_)) => {
                return Err(family.diagnose());
            }
            _ => {}
        }
        let news = keeper.on(family, &happening);
        if let Some(news) = news {
            tell(family, news, control.as_mut());
        }
        if let Some(control) = &mut control
            && let Some(Request::RestartNic) = control.next()
            && let Err(failure) = keeper.replace(family)
        {
            control.answer(Err(failure.to_string()));
        }
    }
}

/// Tells whoever is concerned what has become of a NIC process.
fn tell(family: &Family, news: NicNews, control: Option<&mut Control>) {
    let answer = match news {
        NicNews::Serves => {
            let serves = match family.pid(Role::Nic) {
                Some(pid) => format!("nic process {pid}: serves in the place of the one before"),
                None => "a NIC process serves in the place of the one before".to_owned(),
            };
            say(&format!("{serves}\n"));
            Ok(serves)
        }
        NicNews::Lost(failure, wait) => {
            let when = match wait.is_zero() {
                true => "now".to_owned(),
                false => format!("in {wait:?}"),
            };
            tracing::warn!("{failure}; connections wait, another one is started {when}");
            return;
        }
        NicNews::Failed(failure) => {
            tracing::error!("no other NIC process: {failure}");
            Err(failure.to_string())
        }
    };
    if let Some(control) = control {
        control.answer(answer);
    }
}

fn nic_arguments(args: &ServeArgs, root: &Path, link: &Link, log: &str) -> Vec<OsString> {
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
    arguments.extend(["--workers".into(), args.workers.to_string().into()]);
    arguments.extend(args.cache.arguments());
    arguments.extend(args.nic_measuring.arguments());
    arguments.push(option("--root", root.as_os_str()));
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

fn host_arguments(args: &ServeArgs, source: &Source, link: &Link, log: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["host", "--log", log, "--dev", &link.device]
        .map(OsString::from)
        .into();
    arguments.extend(["--listen".into(), args.listen.to_string().into()]);
    arguments.extend(["--congestion".into(), args.congestion.name().into()]);
    arguments.extend(args.tcp.arguments());
    for cidr in &link.addresses {
        arguments.extend(["--addr".into(), cidr.to_string().into()]);
    }
    for gateway in &args.gateway {
        arguments.extend(["--gateway".into(), gateway.to_string().into()]);
    }
    if let Some(limit) = args.connections_per_source {
        arguments.extend(["--connections-per-source".into(), limit.to_string().into()]);
    }
    arguments.extend(["--orphans".into(), args.orphans.to_string().into()]);
    arguments.extend(args.host_measuring.arguments());
    let probe = match source {
        Source::Root(root) => root,
        Source::Attached { .. } | Source::Elsewhere { .. } => Path::new("/"),
    };
    arguments.push(option("--probe", probe.as_os_str()));
    arguments
}

/// `--name=value` in one word, whatever the value begins with.
pub(crate) fn option(name: &str, value: &std::ffi::OsStr) -> OsString {
    let mut word = OsString::from(name);
    word.push("=");
    word.push(value);
    word
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
                pid: socket::peer_pid(socket),
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
    args: &ServeArgs,
    source: &Announced,
    link: &Link,
    locked_out: &LockedOut,
    control: Option<&Control>,
) {
    let mut text = String::new();
    let urls: Vec<String> = link
        .addresses
        .iter()
        .map(|cidr| url::of(cidr.address, args.listen))
        .collect();
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
    match source {
        Announced::Root(root) => {
            if let Some(pid) = family.pid(Role::Nic) {
                line(format_args!(
                    "nic process {pid}: reads {} and nothing else",
                    root.display()
                ));
            }
        }
        Announced::Attached { path, pid } => {
            let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
            line(format_args!(
                "nic process {pid}: attached at {}",
                path.display()
            ));
        }
        Announced::Elsewhere { interface, peer } => {
            if let Some(pid) = family.pid(Role::Nic) {
                line(format_args!(
                    "carrier process {pid}: joined with the NIC stack at {peer} on {interface}"
                ));
            }
        }
    }
    if let Some(control) = control {
        line(format_args!("control socket: {}", control.path().display()));
    }
    if link.lacks_ipv6() {
        line(format_args!(
            "IPv6 is switched off on this machine: serving over IPv4 only."
        ));
    }
    for url in &urls {
        line(format_args!("{url}"));
    }
    if let Some(url) = urls.first() {
        let root = match source {
            Announced::Root(root) => Some(root.as_path()),
            Announced::Attached { .. } | Announced::Elsewhere { .. } => None,
        };
        line(format_args!("Try:  {}", url::curl_line(url, root)));
    }
    line(format_args!("End with Ctrl-C."));
    say(&text);
}
