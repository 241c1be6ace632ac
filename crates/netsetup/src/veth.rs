//! A veth pair of Splitway's own, to which the stack is attached where no interface is named.
//!
//! The pair's outer end, `splitway0`, lies in the namespace in which the user started Splitway; the
//! inner end lies in a namespace without a name that only Splitway's processes are in. When the
//! last process has ended, in any way, the kernel destroys that namespace and with it the pair.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use wire::ip::SUPERPACKET_BYTES_MAX;

use crate::cidr::Cidr;
use crate::device::name_of;
use crate::netlink::{Interface, Netlink, NetlinkError};
use failure::Failure;

/// Name of the pair's outer end.
pub const OUTER_NAME: &str = "splitway0";

/// Name of the pair's inner end.
pub const INNER_NAME: &str = "inner0";

const OUTER_V4: Cidr = Cidr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 24);
const OUTER_V6: Cidr = Cidr::new(IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)), 64);
/// The stack's IPv4 address on the pair.
pub const STACK_V4: Cidr = Cidr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), 24);
const STACK_V6: Cidr = Cidr::new(IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)), 64);

/// Longest wait for the removal of a pair whose namespace has lost its last process.
const STALE_PAIR_WAIT: Duration = Duration::from_secs(3);

/// A veth pair. Dropping it deletes both ends.
pub struct VethPair {
    /// Socket in the namespace of the outer end.
    outer: Netlink,
    outer_index: u32,
    /// Addresses of the stack on this link: IPv4, and IPv6 if the kernel's side has it.
    pub stack_addresses: Vec<Cidr>,
}

impl VethPair {
    /// Creates the pair and leaves the calling thread, which must be the only one, in the inner
    /// namespace; so are all processes that it starts from now on.
    pub fn create(mtu: u32) -> Result<Self, Failure> {
        let mut outer = Netlink::open().map_err(setup_failed)?;
        check_vacant(&mut outer)?;

        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
            Failure::broken("creating a network namespace for the stack", errno).remedy(
                "Is it forbidden by a container's seccomp profile, or by user.max_net_namespaces?",
            )
        })?;
        let namespace = File::open("/proc/thread-self/ns/net")
            .map_err(|error| Failure::broken("opening /proc/thread-self/ns/net", error))?;
        let mut inner = Netlink::open().map_err(setup_failed)?;

        outer
            .create_veth(OUTER_NAME, INNER_NAME, namespace.as_fd(), mtu)
            .map_err(|error| match error.errno() {
                Some(Errno::OPNOTSUPP) => Failure::input(
                    "creating the veth pair",
                    "the kernel has \
                    no veth",
                )
                .remedy(
                    "Load it with `modprobe veth`, or use an interface that exists: --dev \
                        and --addr.",
                ),
                _ => setup_failed(error),
            })?;
        let outer_index = find(&mut outer, OUTER_NAME)
            .map_err(setup_failed)?
            .ok_or_else(|| {
                Failure::broken(
                    "creating the veth pair",
                    format!("{OUTER_NAME} vanished at once"),
                )
            })?;
        let mut pair = Self {
            outer,
            outer_index: outer_index.index,
            stack_addresses: vec![STACK_V4],
        };

        let inner_index = find(&mut inner, INNER_NAME)
            .map_err(setup_failed)?
            .ok_or_else(|| {
                Failure::broken("creating the veth pair", "its inner end vanished at once")
            })?
            .index;
        if let Err(error) = inner.disable_ipv6_address_generation(inner_index) {
            // A kernel without IPv6 generates no address either.
            tracing::debug!("{error}");
        }
        // Four times longer superpackets cost the whole machine a third less for each byte.
        let bytes = SUPERPACKET_BYTES_MAX as u32;
        if let Err(error) = inner.set_gso_ipv4_max_size(inner_index, bytes) {
            tracing::debug!("{error}; superpackets stay at 64 KB");
        }
        inner.set_up(inner_index).map_err(setup_failed)?;
        pair.outer.set_up(pair.outer_index).map_err(setup_failed)?;
        pair.outer
            .add_address(pair.outer_index, OUTER_V4)
            .map_err(setup_failed)?;
        match pair.outer.add_address(pair.outer_index, OUTER_V6) {
            Ok(()) => pair.stack_addresses.push(STACK_V6),
            Err(error) if ipv6_is_off(&error) => {}
            Err(error) => return Err(setup_failed(error)),
        }
        Ok(pair)
    }

    /// Deletes the pair. When this returns, it is gone.
    pub fn remove(mut self) -> Result<(), Failure> {
        let result = self.delete().map_err(|error| {
            Failure::broken(format!("removing {OUTER_NAME}"), error)
                .remedy(format!("Remove it with `ip link delete {OUTER_NAME}`."))
        });
        self.outer_index = 0;
        result
    }

    fn delete(&mut self) -> Result<(), NetlinkError> {
        match self.outer.delete(self.outer_index) {
            // Another program has deleted it.
            Err(error) if error.errno() == Some(Errno::NODEV) => Ok(()),
            result => result,
        }
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        if self.outer_index != 0 {
            let _ = self.delete();
        }
    }
}

/// Returns true if IPv6 is switched off for the interface or the machine, or left out of the
/// kernel.
fn ipv6_is_off(error: &NetlinkError) -> bool {
    matches!(
        error.errno(),
        Some(Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP | Errno::AFNOSUPPORT)
    )
}

fn setup_failed(error: NetlinkError) -> Failure {
    Failure::broken("setting up the network", error)
}

fn find(netlink: &mut Netlink, name: &str) -> Result<Option<Interface>, NetlinkError> {
    Ok(netlink
        .interfaces()?
        .into_iter()
        .find(|interface| interface.name == name))
}

/// Fails if the name or the addresses of the pair are taken.
fn check_vacant(netlink: &mut Netlink) -> Result<(), Failure> {
    // After a SIGKILL of all its processes a pair lives on for the moment that the kernel needs to
    // destroy its namespace. Only the list of interfaces shows that it is gone.
    let deadline = Instant::now() + STALE_PAIR_WAIT;
    while find(netlink, OUTER_NAME).map_err(setup_failed)?.is_some() {
        if Instant::now() > deadline {
            return Err(Failure::input(
                format!("interface {OUTER_NAME}"),
                "it exists \
                already",
            )
            .remedy(format!(
                "No running splitway owns it. Remove it with `sudo ip link delete {OUTER_NAME}`,\n\
                 or use an interface that exists: --dev and --addr."
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let interfaces = netlink.interfaces().map_err(setup_failed)?;
    for taken in netlink.addresses().map_err(setup_failed)? {
        if taken.cidr.overlaps(&OUTER_V4) || taken.cidr.overlaps(&OUTER_V6) {
            let name = name_of(&interfaces, taken.interface_index);
            let why = format!("overlaps with {} on {name}", taken.cidr);
            let ours = if taken.cidr.address.is_ipv4() {
                OUTER_V4
            } else {
                OUTER_V6
            };
            return Err(
                Failure::input(format!("network {ours} for {OUTER_NAME}"), why).remedy(
                    "Use an interface that exists, with an address of your choice: --dev and \
                    --addr.",
                ),
            );
        }
    }
    Ok(())
}
