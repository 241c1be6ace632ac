//! Ports on an interface whose addresses the kernel keeps ([`crate::steering::Share`]).
//!
//! The kernel must not handle the stack's frames, so a program drops them at the interface's
//! ingress. Sockets of one protocol come after it; those of every protocol come before, and so one
//! socket takes all of the stack's frames of an interface. It does not see frames of this machine
//! (`PACKET_IGNORE_OUTGOING`). A second one, on the loopback device, takes the machine's own frames
//! to the shared addresses; `local` is the way back.

use std::os::fd::BorrowedFd;

use super::error::{OpenError, System};
use super::interface::{self, Interface};
use super::local::{LOOPBACK, LocalPath};
use super::{Filter, IP_RING_SLOTS, PacketPort, Receiver, STEERED_RING_SLOTS};
use crate::steering::{Share, Target, load_shared};

/// `ETH_P_ALL`.
const EVERY_PROTOCOL: u16 = libc::ETH_P_ALL as u16;

impl PacketPort {
    /// Opens a port that sends, and receives the stack's frames for shared addresses, without those
    /// that a steering map gives to other ports. Needs `CAP_NET_RAW`, and `CAP_BPF` where the
    /// kernel restricts `bpf(2)`.
    pub fn open_shared(
        interface: &str,
        share: Share<'_>,
        map: Option<BorrowedFd<'_>>,
    ) -> Result<PacketPort, OpenError> {
        let mut port = PacketPort::send_only_shared(interface)?;
        port.listen_shared(share, map, None)?;
        Ok(port)
    }

    /// Opens a port that only sends, to the link and to this machine. Needs `CAP_NET_RAW`.
    pub fn send_only_shared(interface: &str) -> Result<PacketPort, OpenError> {
        let mut port = PacketPort::send_only(interface)?;
        let loopback = loopback(interface)?;
        let local = LocalPath::open(&loopback)
            .map_err(|error| System::new("opening raw sockets", error).on(interface))?;
        port.local = Some(local);
        Ok(port)
    }

    /// As [`PacketPort::receive_steered`], of frames for shared addresses.
    pub fn receive_steered_shared(
        &mut self,
        share: Share<'_>,
        map: BorrowedFd<'_>,
        target: Target,
    ) -> Result<(), OpenError> {
        self.listen_shared(share, Some(map), Some(target))?;
        self.target = Some(target);
        Ok(())
    }

    fn listen_shared(
        &mut self,
        share: Share<'_>,
        map: Option<BorrowedFd<'_>>,
        target: Option<Target>,
    ) -> Result<(), OpenError> {
        let interface = self.interface.name.clone();
        let slots = match target {
            None => IP_RING_SLOTS,
            Some(_) => STEERED_RING_SLOTS,
        };
        let loopback = loopback(&interface)?.index;
        for (index, slots) in [
            (self.interface.index, slots),
            (loopback, STEERED_RING_SLOTS),
        ] {
            let program = load_shared(share, map, target).map_err(|error| {
                System::new("loading a program that takes frames", error).on(&interface)
            })?;
            let filter = Filter::Extended(program);
            let receiver = Receiver::open(index, EVERY_PROTOCOL, filter, slots);
            self.receivers
                .push(receiver.map_err(|system| system.on(&interface))?);
        }
        Ok(())
    }
}

/// Returns the loopback device, for a port on `interface`.
fn loopback(interface: &str) -> Result<Interface, OpenError> {
    let interfaces = interface::list()
        .map_err(|error| System::new("listing the network interfaces", error).on(interface))?;
    let mut interfaces = interfaces.into_iter();
    interfaces
        .find(|other| other.name == LOOPBACK)
        .ok_or_else(|| OpenError::NoSuchInterface {
            interface: LOOPBACK.to_owned(),
            existing: Vec::new(),
        })
}
