//! Messages for the user when a server has started.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use failure::Failure;
use netsetup::seqpacket;
use rustix::io::Errno;
use sandbox::lockdown::LockedOut;

use crate::supervisor::attachment::Attachment;
use crate::supervisor::children::{Children, Role};
use crate::supervisor::control_socket::Control;
use crate::supervisor::fetcher::FetcherSupervisor;
use crate::supervisor::nic_source::NicSource;
use crate::terminal::say;
use crate::url::{self, Scheme};
use config::Config;
use config::control_link::MacAddress;
use config::root;
use config::self_signed;

/// A NIC stack in the announcement.
pub(crate) enum AnnouncedNic {
    Root(PathBuf),
    Attached { path: PathBuf, pid: Option<i32> },
    Remote { interface: String, peer: MacAddress },
}

impl AnnouncedNic {
    pub(crate) fn of(source: &NicSource) -> Self {
        match source {
            NicSource::Root(root) => Self::Root(root.clone()),
            NicSource::Attached { path, socket } => Self::Attached {
                path: path.clone(),
                pid: socket.as_ref().and_then(seqpacket::peer_pid),
            },
            NicSource::Remote {
                interface, peer, ..
            } => Self::Remote {
                interface: interface.clone(),
                peer: *peer,
            },
        }
    }

    /// Prints the task of the NIC process.
    fn announce(&self, pid: Option<u32>, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
        match (self, pid) {
            (Self::Root(root), Some(pid)) => {
                let leads_to = root::is_link(root)
                    .then(|| root.canonicalize().ok())
                    .flatten();
                let leads_to = leads_to.map_or_else(String::new, |directory| {
                    format!(" (which leads to {})", directory.display())
                });
                line(format_args!(
                    "nic process {pid}: reads {}{leads_to} and nothing else",
                    root.display()
                ));
            }
            (Self::Attached { path, pid }, _) => {
                let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                line(format_args!(
                    "nic process {pid}: attached at {}",
                    path.display()
                ));
            }
            (Self::Remote { interface, peer }, Some(pid)) => line(format_args!(
                "relay process {pid}: joined with the NIC stack at {peer} on {interface}"
            )),
            (Self::Root(_) | Self::Remote { .. }, None) => {}
        }
    }
}

/// A server that has started, for [`announce`].
pub(crate) struct Started<'a> {
    pub(crate) config: &'a Config,
    pub(crate) attachment: &'a Attachment,
    pub(crate) children: &'a Children,
    pub(crate) nics: &'a [AnnouncedNic],
    /// Why a NIC stack is missing, by number.
    pub(crate) missing: &'a [Option<Failure>],
    pub(crate) fetcher: &'a FetcherSupervisor,
    /// Socket at which programs attach.
    pub(crate) sockets: Option<&'a Path>,
    pub(crate) locked_out: &'a LockedOut,
    pub(crate) control: Option<&'a Control>,
    /// The self-signed certificate.
    pub(crate) trusted: Option<&'a Path>,
}

/// Prints the URLs of the server. A line with a URL means that it serves now.
pub(crate) fn announce(started: &Started<'_>) {
    let Started {
        config,
        attachment,
        children,
        ..
    } = *started;
    let mut text = String::new();
    let urls = |scheme, port| {
        let addresses = attachment.addresses().into_iter();
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
    if let Some(pid) = children.pid(Role::Host) {
        let locked_out = started.locked_out;
        line(format_args!(
            "host process {pid}: locked out of the file system (Landlock ABI {}: opening {} gives \
             {})",
            locked_out.landlock_abi,
            locked_out.probe.display(),
            Errno::from_raw_os_error(locked_out.probe_errno),
        ));
    }
    for (number, nic) in started.nics.iter().enumerate() {
        let pid = children.pid(Role::Nic(number));
        match started.missing.get(number).and_then(Option::as_ref) {
            Some(failure) => line(format_args!("missing, and tried again: {failure}")),
            None => nic.announce(pid, &mut line),
        }
    }
    announce_helpers(started, &mut line);
    if let Some(address) = config.operation.admin {
        line(format_args!("dashboard and metrics: http://{address}/"));
    }
    if let Some(control) = started.control {
        line(format_args!("control socket: {}", control.path().display()));
    }
    if let Some(file) = started.trusted {
        let days = self_signed::VALID_DAYS;
        line(format_args!(
            "certificate for trying out, for {days} days: {}",
            file.display()
        ));
    }
    announce_addresses(started, &mut line);
    for port in config.http3_ports() {
        line(format_args!("HTTP/3 on UDP port {port} as well"));
    }
    for url in plain.iter().chain(&tls) {
        line(format_args!("{url}"));
    }
    announce_proxy(started, &mut line);
    let root = match started.nics {
        [AnnouncedNic::Root(root)] => Some(root.as_path()),
        _ => None,
    };
    for (urls, trusted) in [(&plain, None), (&tls, started.trusted)] {
        if let Some(url) = urls.first() {
            let curl = url::curl_line(url, root, trusted);
            line(format_args!("Try:  {curl}"));
        }
    }
    line(format_args!("End with Ctrl-C."));
    say(&text);
}

/// Prints the restrictions of the addresses.
fn announce_addresses(started: &Started<'_>, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let attachment = started.attachment;
    if attachment.lacks_ipv6() {
        line(format_args!(
            "IPv6 is switched off on this machine: serving over IPv4 only."
        ));
    }
    if attachment.shared.is_some() {
        let device = &attachment.device;
        line(format_args!(
            "sharing the addresses of {device} with the kernel: its firewall does not see packets \
             of the ports below"
        ));
    } else if started.config.network.interface.is_some() {
        line(format_args!(
            "the kernel's firewall does not see packets of the addresses below"
        ));
    }
}

/// Prints the URLs of the proxy.
fn announce_proxy(started: &Started<'_>, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let addresses = &started.attachment.addresses();
    for listen in &started.config.proxy.listen {
        let port = listen.port.get();
        for cidr in addresses {
            let address = cidr.address;
            if listen.is_http() {
                let scheme = match listen.tls {
                    true => Scheme::Https,
                    false => Scheme::Http,
                };
                line(format_args!("{}", url::of(scheme, address, port)));
            } else {
                let place = std::net::SocketAddr::new(address, port);
                line(format_args!("tcp://{place}"));
            }
        }
    }
}

/// Prints the tasks of the processes beside the two stacks.
fn announce_helpers(started: &Started<'_>, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let children = started.children;
    if let Some(pid) = children.pid(Role::Fetcher) {
        let does = started.fetcher.describe();
        line(format_args!("fetcher process {pid}: {does}"));
    }
    if let (Some(pid), Some(path)) = (children.pid(Role::Broker), started.sockets) {
        let path = path.display();
        line(format_args!(
            "broker process {pid}: programs attach at {path}"
        ));
    }
}
