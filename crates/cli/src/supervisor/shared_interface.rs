//! An interface whose addresses the stack shares with the kernel: its ports are kept from the
//! kernel and its programs, and its addresses are followed. Everything here ends with the process,
//! however it ends: the programs at the ingress, and the sockets that hold ports.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use failure::Failure;
use netdev::steering::{AddressSet, Share, keep_from_kernel};
use netsetup::address_lock::AddressLock;
use netsetup::device::Inventory;
use netsetup::held_ports::{HeldPort, HoldError, Transport};
use netsetup::shared::{Addressing, Follower};
use sandbox::privileges;

use config::{Config, Text};
use processes::ipc::shared_link::{NewAddresses, SharedLink};

/// Number of the loopback device, the same in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Ports that are locked together for the connections of one stack.
const LOCKED_TOGETHER: u16 = 256;

/// How long packets to an address that has gone still come to the stack: a peer may go on after the
/// resets that end its connections, and is to be answered.
const LEAVES_FOR: Duration = Duration::from_secs(1);

/// Where the kernel's own choice of ports is configured.
const KERNELS_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const KERNELS_EXCEPTIONS: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// See the [module documentation](self).
pub(crate) struct SharedInterface {
    device: String,
    link: SharedLink,
    set: AddressSet,
    follower: Follower,
    addressing: Addressing,
    /// By address.
    held: BTreeMap<IpAddr, Vec<HeldPort>>,
    /// Addresses that have gone and are still in the set, with the time at which they leave it.
    leaving: BTreeMap<IpAddr, Instant>,
    _at_ingress: [OwnedFd; 2],
    _locks: Vec<AddressLock>,
}

impl SharedInterface {
    /// Takes the configured ports of the interface's addresses.
    pub(crate) fn take(device: &str, config: &Config) -> Result<Self, Failure> {
        let what = format!("sharing the addresses of {device}");
        let index = Inventory::take()?.device(device)?.index;
        let link = shared_link(config);
        let is_low = |port: &u16| *port < 1024;
        let needed = match link.tcp.iter().any(is_low) {
            true => privileges::FOR_SHARE.union(privileges::FOR_LOW_PORTS),
            false => privileges::FOR_SHARE,
        };
        privileges::require(&what, needed)?;
        let locks = match link.local {
            Some((first, last)) => lock_local_ports(first..=last, index)?,
            None => Vec::new(),
        };
        let failed = |error: &dyn std::fmt::Display| Failure::broken(&what, error);
        let mut follower = Follower::new(index).map_err(|error| failed(&error))?;
        let addressing = follower.look().map_err(|error| failed(&error))?;
        if addressing.addresses.is_empty() {
            let why = format!("the kernel has no address on {device}");
            return Err(Failure::input(what, why).remedy(
                "Name the interface that has the machine's address: of a bridge or a bond, that \
                 itself and not its\nports. Or give the stack an address of its own with --addr.",
            ));
        }
        let set = AddressSet::new().map_err(|error| failed(&error))?;
        let ports = link.ports();
        let share = Share {
            addresses: set.descriptor().as_fd(),
            ports: &ports,
        };
        let keep = |index| {
            keep_from_kernel(index, share).map_err(|error| {
                failed(&error).remedy(
                    "It needs Linux 6.6 or later, with CONFIG_BPF_SYSCALL and CONFIG_NET_XGRESS.",
                )
            })
        };
        let at_ingress = [keep(index)?, keep(LOOPBACK_INDEX)?];
        let mut shared = Self {
            device: device.to_owned(),
            link,
            set,
            follower,
            addressing: Addressing::default(),
            held: BTreeMap::new(),
            leaving: BTreeMap::new(),
            _at_ingress: at_ingress,
            _locks: locks,
        };
        for cidr in &addressing.addresses {
            shared.add(cidr.address)?;
        }
        shared.addressing = addressing;
        Ok(shared)
    }

    /// Returns the present addresses and gateways.
    pub(crate) fn addressing(&self) -> &Addressing {
        &self.addressing
    }

    /// Returns the stack's ports.
    pub(crate) fn link(&self) -> &SharedLink {
        &self.link
    }

    /// Returns the set of addresses, for the processes that take their frames.
    pub(crate) fn addresses(&self) -> &OwnedFd {
        self.set.descriptor()
    }

    /// Returns when [`SharedInterface::follow`] is to be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.leaving.values().min().copied()
    }

    /// Follows the kernel's addresses and routes. Returns the new ones, if they have changed.
    pub(crate) fn follow(&mut self) -> Option<NewAddresses> {
        self.forget_gone(Instant::now());
        if !self.follower.has_changed() {
            return None;
        }
        let mut new = match self.follower.look() {
            Ok(new) => new,
            Err(error) => {
                tracing::error!(%error, "the addresses stay as they are");
                return None;
            }
        };
        let device = self.device.clone();
        new.addresses.retain(|cidr| {
            let address = cidr.address;
            if self.held.contains_key(&address) {
                return true;
            }
            let added = self.add(address);
            match &added {
                Ok(()) => tracing::warn!(%address, device, "an address was added"),
                Err(failure) => tracing::error!(%address, device, "not served: {failure}"),
            }
            added.is_ok()
        });
        let gone: Vec<IpAddr> = self.held.keys().copied().collect();
        let is_there = |address: &IpAddr| new.addresses.iter().any(|it| it.address == *address);
        for address in gone.into_iter().filter(|address| !is_there(address)) {
            tracing::warn!(%address, device, "an address was removed");
            self.remove(address);
        }
        if new == self.addressing {
            return None;
        }
        self.addressing = new.clone();
        Some(NewAddresses {
            addresses: new.addresses.into_iter().map(Text).collect(),
            gateways: new.gateways,
        })
    }

    /// Takes the ports of an address.
    fn add(&mut self, address: IpAddr) -> Result<(), Failure> {
        let mut held = Vec::new();
        let tcp = self.link.tcp.iter().map(|port| (Transport::Tcp, *port));
        let udp = self.link.udp.iter().map(|port| (Transport::Udp, *port));
        for (transport, port) in tcp.chain(udp) {
            let port_held = HeldPort::new(transport, address, port);
            held.push(port_held.map_err(|error| refused(transport, address, port, &error))?);
        }
        self.set.insert(address).map_err(|error| {
            Failure::broken(format!("sharing {address} of {}", self.device), error)
        })?;
        self.leaving.remove(&address);
        self.held.insert(address, held);
        Ok(())
    }

    /// Gives up the ports of an address. Its packets come for a while longer.
    fn remove(&mut self, address: IpAddr) {
        self.held.remove(&address);
        self.leaving.insert(address, Instant::now() + LEAVES_FOR);
    }

    /// Takes addresses whose time has come out of the set.
    fn forget_gone(&mut self, now: Instant) {
        for (address, _) in self
            .leaving
            .extract_if(.., |_, leaves_at| *leaves_at <= now)
        {
            if let Err(error) = self.set.remove(address) {
                tracing::error!(%error, %address, "its ports stay with the stack");
            }
        }
    }
}

impl AsFd for SharedInterface {
    /// Returns a descriptor that is readable when [`SharedInterface::follow`] is to be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.follower.as_fd()
    }
}

/// Returns the stack's ports. Only a proxy opens connections.
fn shared_link(config: &Config) -> SharedLink {
    let tcp = config.ports(false).chain(config.ports(true));
    let range = config.network.local_ports.0;
    SharedLink {
        tcp: tcp.chain(config.proxy_ports()).collect(),
        udp: config
            .http3_ports()
            .map(std::num::NonZeroU16::get)
            .collect(),
        local: config.is_proxy().then_some((range.first(), range.last())),
    }
}

fn refused(transport: Transport, address: IpAddr, port: u16, error: &HoldError) -> Failure {
    let transport = match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    };
    let what = format!("{transport} port {port} of {address}");
    match error {
        HoldError::Taken(_) => Failure::input(what, error).remedy(
            "End that program or give it another port, or have Splitway listen on another one. A \
             port can be\nshared with no program of the kernel.",
        ),
        HoldError::System(_) => Failure::broken(what, error),
    }
}

/// Locks ports for connections that the stack opens: neither the kernel nor another stack may use
/// them.
fn lock_local_ports(ports: RangeInclusive<u16>, index: u32) -> Result<Vec<AddressLock>, Failure> {
    let what = || {
        let (first, last) = ports.clone().into_inner();
        format!("local ports {first}-{last} (network.local_ports)")
    };
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let (range, exceptions) = (text(KERNELS_RANGE), text(KERNELS_EXCEPTIONS));
    if let Some(port) = chosen_by_kernel(&ports, &range, &exceptions) {
        let (first, last) = ports.clone().into_inner();
        let why = format!("the kernel gives port {port} to programs (ip_local_port_range)");
        return Err(Failure::input(what(), why).remedy(format!(
            "Name others with local_ports; or reserve them with\n  \
             sysctl net.ipv4.ip_local_reserved_ports={first}-{last}"
        )));
    }
    let blocks = ports.start() / LOCKED_TOGETHER..=ports.end() / LOCKED_TOGETHER;
    let lock = |block| {
        let name = format!("{index} local ports {}", block * LOCKED_TOGETHER);
        AddressLock::acquire(name)
            .map_err(|error| Failure::input(what(), error).remedy("Name others with local_ports."))
    };
    blocks.map(lock).collect()
}

/// Returns a port that the kernel may choose for a program's connection; `range` and `exceptions`
/// are the contents of the kernel's settings.
fn chosen_by_kernel(ports: &RangeInclusive<u16>, range: &str, exceptions: &str) -> Option<u16> {
    let mut bounds = range.split_ascii_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (bounds.next(), bounds.next()) else {
        return None;
    };
    let exceptions: Vec<(u16, u16)> = exceptions
        .trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        })
        .collect();
    let is_excepted = |port: u16| exceptions.iter().any(|&(a, b)| (a..=b).contains(&port));
    ports
        .clone()
        .find(|port| (first..=last).contains(port) && !is_excepted(*port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_the_kernel_may_choose_are_found() {
        let chosen = |first, last, range: &str, exceptions: &str| {
            chosen_by_kernel(&(first..=last), range, exceptions)
        };
        let default = "32768\t60999\n";
        assert_eq!(chosen(61_000, 65_535, default, "\n"), None);
        assert_eq!(chosen(60_990, 61_010, default, "\n"), Some(60_990));
        assert_eq!(
            chosen(60_990, 61_010, default, "60990-60998\n"),
            Some(60_999)
        );
        assert_eq!(chosen(60_990, 61_010, default, "22,60990-60999\n"), None);
        assert_eq!(
            chosen(61_000, 65_535, "1024 65535\n", "61000-65534"),
            Some(65_535)
        );
        assert_eq!(chosen(61_000, 65_535, "", ""), None);
    }
}
