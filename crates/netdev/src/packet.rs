//! AF_PACKET: a port on any Linux link.
//!
//! **Out**, a superpacket is one `sendmsg` with `PACKET_VNET_HDR`: the kernel completes checksums
//! and cuts packets, or leaves that to the NIC. Datagrams are cut here if the kernel does not.
//! **In**, three sockets (IPv4, IPv6, ARP) have a ring each, from which frames are taken without a
//! system call. They are bound to those protocols rather than to all, so that the port does not
//! receive this machine's own frames, and filter by destination address, so that a port can share a
//! link with the kernel's own stack and with other ports. Where they share addresses as well, one
//! socket takes all protocols, before the kernel drops those frames (`shared`).
//!
//! The ring's status word shows whether a frame's checksum is vouched for; `PACKET_VNET_HDR`
//! carries the length of a frame's datagrams, if the kernel knows it (`segmentation`).

mod buffers;
pub mod capture;
mod control;
mod datagrams;
mod error;
mod filter;
mod interface;
mod local;
mod offload;
mod promiscuous;
mod ring;
mod segmentation;
mod selection;
mod send;
mod shared;
mod socket;
mod tapped;
pub mod virtio;
mod watch;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg, sockopt};
use wire::{ethernet, ip};

pub use control::ControlPort;
pub use error::OpenError;
use error::System;
pub(crate) use filter::ALL_NODES;
use interface::Interface;
pub use local::LOOPBACK_MAC;
use local::LocalPath;
pub use promiscuous::{Arrival, PromiscuousPort};
use ring::{Ring, Slot};
use send::send;
pub use socket::receive_nothing;
use virtio::VirtioNetHeader;
use watch::Watch;

use crate::steering::{self, Family, Target};
use crate::{Frame, LinkChange, Offload, Port, SendError, Superpacket, check_size};

/// Slots of the rings: some milliseconds of ACKs at full speed. 8 MiB each.
const IP_RING_SLOTS: usize = 4096;
const ARP_RING_SLOTS: usize = 64;

/// Slots of the rings of a NIC worker's port: for SYNs and frames of its flows, which come while it
/// does other work. 4 MiB each.
const STEERED_RING_SLOTS: usize = 2048;

/// Memory for packets on their way to the wire, in bytes as the kernel counts them. It takes 4 ms
/// of 10 Gbit/s, enough for a driver's ring and a shaper; the default holds two superpackets.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// Memory for frames that wait in the queue because they do not fit into a slot, in bytes as the
/// kernel counts them.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// Successive idle calls of [`Port::receive`] after which the sockets are checked for errors.
const IDLE_TURNS_MAX: u32 = 64;

/// Largest IPv6 packet without a jumbo payload option, in bytes, the header not counted twice.
const IPV6_BYTES_MAX: usize = 65_535;

/// A port on a network interface. MTU and hardware address are those that it had when it was
/// opened, or [`Port::follow_link`] was called last.
#[derive(Debug)]
pub struct PacketPort {
    interface: Interface,
    watch: Watch,
    sender: OwnedFd,
    /// The kernel refuses superpackets of datagrams.
    cuts_datagrams: bool,
    receivers: Vec<Receiver>,
    /// The receiver that comes first in the next turn.
    first: usize,
    idle_turns: u32,
    /// Buffer for frames that do not fit into a slot.
    large: Vec<u8>,
    dropped: u64,
    target: Option<Target>,
    /// The way to this machine's kernel, if it shares the stack's addresses.
    local: Option<LocalPath>,
}

/// Filter of the frames that a socket receives.
enum Filter {
    Classic(Vec<libc::sock_filter>),
    Extended(OwnedFd),
}

#[derive(Debug)]
struct Receiver {
    // The ring goes before its socket.
    ring: Ring,
    socket: OwnedFd,
}

impl PacketPort {
    /// Opens a port that sends, and receives ARP and packets to the addresses `own`. Needs
    /// `CAP_NET_RAW`.
    pub fn open(interface: &str, own: &[IpAddr]) -> Result<PacketPort, OpenError> {
        let ip = [
            (ethernet::IPV4, Filter::Classic(filter::ipv4(own))),
            (ethernet::IPV6, Filter::Classic(filter::ipv6(own))),
        ];
        PacketPort::open_with(interface, own, ip)
    }

    /// As [`PacketPort::open`], without the frames that a steering map gives to other ports. Also
    /// needs `CAP_BPF`, where the kernel restricts `bpf(2)`.
    pub fn open_steered(
        interface: &str,
        own: &[IpAddr],
        map: BorrowedFd<'_>,
    ) -> Result<PacketPort, OpenError> {
        let ip = steered(map, own, None).map_err(|system| system.on(interface))?;
        PacketPort::open_with(interface, own, ip)
    }

    fn open_with(
        interface: &str,
        own: &[IpAddr],
        ip: [(u16, Filter); 2],
    ) -> Result<PacketPort, OpenError> {
        let mut port = PacketPort::send_only(interface)?;
        port.listen(interface, ip, IP_RING_SLOTS)?;
        let arp = (ethernet::ARP, Filter::Classic(filter::arp()));
        port.listen(interface, [arp], ARP_RING_SLOTS)?;
        for mac in filter::multicast_macs(own) {
            socket::join_multicast(&port.sender, port.interface.index, mac)
                .map_err(|error| System::new("joining a multicast group", error).on(interface))?;
        }
        Ok(port)
    }

    /// Opens a port that only sends. Needs `CAP_NET_RAW`.
    pub fn send_only(interface: &str) -> Result<PacketPort, OpenError> {
        let watch = Watch::open()
            .map_err(|error| System::new("opening a netlink socket", error).on(interface))?;
        let found = Interface::find(interface)?;
        let sender = open_sender(found.index).map_err(|system| system.on(interface))?;
        Ok(PacketPort {
            interface: found,
            watch,
            sender,
            cuts_datagrams: false,
            receivers: Vec::new(),
            first: 0,
            idle_turns: 0,
            large: Vec::new(),
            dropped: 0,
            target: None,
            local: None,
        })
    }

    /// Receives from now on the frames that a steering map gives to `target`; the stack has the
    /// addresses `own`. Needs the privileges of [`PacketPort::open_steered`].
    pub fn receive_steered(
        &mut self,
        map: BorrowedFd<'_>,
        own: &[IpAddr],
        target: Target,
    ) -> Result<(), OpenError> {
        let interface = self.interface.name.clone();
        let ip = steered(map, own, Some(target)).map_err(|system| system.on(&interface))?;
        self.listen(&interface, ip, STEERED_RING_SLOTS)?;
        self.target = Some(target);
        Ok(())
    }

    fn listen(
        &mut self,
        interface: &str,
        filters: impl IntoIterator<Item = (u16, Filter)>,
        slots: usize,
    ) -> Result<(), OpenError> {
        for (ether_type, filter) in filters {
            let receiver = Receiver::open(self.interface.index, ether_type, filter, slots);
            self.receivers
                .push(receiver.map_err(|system| system.on(interface))?);
        }
        Ok(())
    }

    /// Marks the port's packets, by which [`capture`] distinguishes them from others. Needs
    /// `CAP_NET_RAW`, and before Linux 5.17 `CAP_NET_ADMIN`.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        socket::set_mark(&self.sender, mark)
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// Returns the number of frames for this port that were dropped since it was opened, because
    /// they came faster than they were taken.
    pub fn dropped(&mut self) -> io::Result<u64> {
        for receiver in &self.receivers {
            self.dropped += socket::drops(&receiver.socket)?;
        }
        Ok(self.dropped)
    }

    /// Checks that a packet fits the link. The port's copy of the link's state may be out of date:
    /// it is updated before a packet is refused.
    fn check(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        let ipv6 = match packet.offload {
            Offload::Tcp { ipv6, .. } | Offload::Udp { ipv6, .. } => ipv6,
            Offload::None => false,
        };
        let fits = |it: &Self| check_size(packet, it.interface.mtu, it.superpacket_max(ipv6));
        let checked = fits(self).or_else(|why| match self.follow_link() {
            Ok(Some(_)) => fits(self),
            _ => Err(why),
        });
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        checked.map_err(|why| SendError::Failed(invalid(why)))
    }

    /// Ends a turn of reception; `has_received` if there may have been frames.
    fn end_turn(&mut self, has_received: bool) -> io::Result<()> {
        // Each receiver comes first in its turn, lest a flood of one protocol starve the others.
        self.first = (self.first + 1) % self.receivers.len().max(1);
        self.idle_turns = if has_received { 0 } else { self.idle_turns + 1 };
        if self.idle_turns == IDLE_TURNS_MAX {
            self.idle_turns = 0;
            self.take_errors()?;
        }
        Ok(())
    }

    /// Reads the sockets' pending errors, which keep them readable until then.
    fn take_errors(&mut self) -> io::Result<()> {
        for receiver in &self.receivers {
            match sockopt::socket_error(&receiver.socket)? {
                Ok(()) => {}
                Err(Errno::NETDOWN) => self.interface.still_there(&self.sender)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns the largest IP packet on an interface that a port can be opened on, in bytes.
pub fn mtu_of(interface: &str) -> Result<usize, OpenError> {
    Ok(Interface::find(interface)?.mtu)
}

/// Returns the longest IP packet that is cut by the driver or on its behalf, in bytes: the kernel
/// compares the frame's length with the link's setting and wants it below (`gso_features_check`).
fn superpacket_max(interface: &Interface, ipv6: bool) -> usize {
    let (gso_max_size, bytes_max) = if ipv6 {
        (interface.gso_max_size, IPV6_BYTES_MAX)
    } else {
        (interface.gso_ipv4_max_size, ip::SUPERPACKET_BYTES_MAX)
    };
    gso_max_size
        .saturating_sub(ethernet::HEADER_BYTES + 1)
        .min(bytes_max)
}

/// Returns the filters of a steered port's sockets.
fn steered(
    map: BorrowedFd<'_>,
    own: &[IpAddr],
    target: Option<Target>,
) -> Result<[(u16, Filter); 2], System> {
    let program = |family| {
        let program = steering::load(map, family, own, target);
        program.map_err(|error| System::new("loading a program that steers frames", error))
    };
    Ok([
        (ethernet::IPV4, Filter::Extended(program(Family::V4)?)),
        (ethernet::IPV6, Filter::Extended(program(Family::V6)?)),
    ])
}

fn open_sender(index: u32) -> Result<OwnedFd, System> {
    let sender = socket::open().map_err(|error| System::new("opening a packet socket", error))?;
    socket::set_integer(&sender, libc::PACKET_VNET_HDR, 1)
        .map_err(|error| System::new("sending with segmentation (PACKET_VNET_HDR)", error))?;
    buffers::enlarge_send(&sender, SEND_BUFFER_BYTES)
        .map_err(|error| System::new("enlarging the send buffer", error.into()))?;
    socket::bind(&sender, index, 0)
        .map_err(|error| System::new("binding to the interface", error))?;
    Ok(sender)
}

impl Receiver {
    fn open(index: u32, ether_type: u16, filter: Filter, slots: usize) -> Result<Receiver, System> {
        let socket =
            socket::open().map_err(|error| System::new("opening a packet socket", error))?;
        // Before the socket is bound, so that nothing else ever gets in.
        let attached = match filter {
            Filter::Classic(mut program) => socket::attach_filter(&socket, &mut program),
            Filter::Extended(program) => socket::attach_program(&socket, &program),
        };
        attached.map_err(|error| System::new("filtering by address", error))?;
        buffers::enlarge_receive(&socket, RECEIVE_BUFFER_BYTES)
            .map_err(|error| System::new("enlarging the receive buffer", error.into()))?;
        if ether_type == libc::ETH_P_ALL as u16 {
            socket::set_integer(&socket, socket::PACKET_IGNORE_OUTGOING, 1)
                .map_err(|error| System::new("ignoring frames that this machine sends", error))?;
        }
        let has_virtio = segmentation::ask(&socket);
        let ring = Ring::new(&socket, slots, has_virtio)
            .map_err(|error| System::new("setting up a reception ring (TPACKET_V2)", error))?;
        socket::bind(&socket, index, ether_type)
            .map_err(|error| System::new("binding to the interface", error))?;
        Ok(Receiver { ring, socket })
    }

    /// Takes up to `budget` frames out of the ring; returns their number, and the number lost.
    fn receive(
        &mut self,
        budget: usize,
        large: &mut Vec<u8>,
        handle: &mut dyn FnMut(Frame<'_>),
    ) -> (usize, u64) {
        let mut lost = 0;
        let has_virtio = self.ring.has_virtio();
        for taken in 0..budget {
            let Some(slot) = self.ring.next() else {
                return (taken, lost);
            };
            if slot.bytes.len() == slot.len {
                handle(Frame {
                    bytes: slot.bytes,
                    checksum_valid: slot.checksum_valid(),
                    segment_bytes: slot.segment_bytes,
                });
            } else if take_queued(&self.socket, &slot, has_virtio, large) {
                handle(Frame {
                    bytes: &large[..slot.len],
                    checksum_valid: slot.checksum_valid(),
                    segment_bytes: slot.segment_bytes,
                });
            } else {
                lost += 1;
            }
        }
        (budget, lost)
    }

    /// Takes a frame out of the ring, or loses one.
    fn receive_into(&mut self, buffer: &mut Vec<u8>) -> Option<Taken> {
        let has_virtio = self.ring.has_virtio();
        let slot = self.ring.next()?;
        let len = slot.len;
        if slot.bytes.len() == len {
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            buffer[..len].copy_from_slice(slot.bytes);
        } else if !take_queued(&self.socket, &slot, has_virtio, buffer) {
            return Some(Taken::Lost);
        }
        Some(Taken::Frame {
            len,
            checksum_valid: slot.checksum_valid(),
            segment_bytes: slot.segment_bytes,
        })
    }
}

/// A frame taken out of a ring.
enum Taken {
    /// A frame, which lies in the buffer.
    Frame {
        len: usize,
        checksum_valid: bool,
        segment_bytes: Option<NonZeroU16>,
    },
    Lost,
}

/// Takes a frame that did not fit into its slot out of the socket's queue, whole. False if it is
/// not there.
fn take_queued(socket: &OwnedFd, slot: &Slot<'_>, has_virtio: bool, buffer: &mut Vec<u8>) -> bool {
    if !slot.is_queued() {
        return false;
    }
    if buffer.len() < slot.len {
        buffer.resize(slot.len, 0);
    }
    // Ignored: the header in the slot has the same content.
    let mut virtio = [0; VirtioNetHeader::BYTES];
    let virtio_bytes = if has_virtio { virtio.len() } else { 0 };
    let mut iov = [
        IoSliceMut::new(&mut virtio[..virtio_bytes]),
        IoSliceMut::new(buffer),
    ];
    let mut no_control = RecvAncillaryBuffer::default();
    recvmsg(socket, &mut iov, &mut no_control, RecvFlags::DONTWAIT)
        .is_ok_and(|message| message.bytes == virtio_bytes + slot.len)
}

/// Slices of a packet that are handed to the kernel without an allocation.
const SLICES_INLINE: usize = 40;

/// Sends a packet; `virtio` describes the kernel's remaining work.
fn send_one(
    sender: &OwnedFd,
    packet: &Superpacket<'_>,
    virtio: VirtioNetHeader,
) -> Result<(), SendError> {
    let virtio = virtio.to_bytes();
    let slices = packet.payload.len() + 2;
    let mut inline = [IoSlice::new(&[]); SLICES_INLINE];
    let mut allocated;
    let iov = match inline.get_mut(..slices) {
        Some(inline) => inline,
        None => {
            allocated = vec![IoSlice::new(&[]); slices];
            &mut allocated[..]
        }
    };
    iov[0] = IoSlice::new(&virtio);
    iov[1] = IoSlice::new(packet.header);
    iov[2..].copy_from_slice(packet.payload);
    send(sender, iov)
}

impl Port for PacketPort {
    fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    fn mtu(&self) -> usize {
        self.interface.mtu
    }

    fn superpacket_max(&self, ipv6: bool) -> usize {
        superpacket_max(&self.interface, ipv6)
    }

    fn target(&self) -> Option<Target> {
        self.target
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        // The kernel does not check the packets that it cuts against the MTU, and not every driver
        // survives longer ones.
        self.check(packet)?;
        if let Some(local) = &self.local
            && packet.header.starts_with(&LOOPBACK_MAC)
        {
            return local.send(packet);
        }
        let virtio = VirtioNetHeader::of(packet);
        if virtio.gso_type == virtio::GSO_UDP_L4 {
            return self.send_datagrams(packet, virtio);
        }
        send_one(&self.sender, packet, virtio)
    }

    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        let mut taken = 0;
        let receivers = self.receivers.len();
        for turn in 0..receivers {
            let receiver = &mut self.receivers[(self.first + turn) % receivers];
            let (frames, lost) = receiver.receive(budget - taken, &mut self.large, handle);
            taken += frames;
            self.dropped += lost;
        }
        self.end_turn(taken > 0)?;
        Ok(taken)
    }

    fn receive_into<'a>(&mut self, buffer: &'a mut Vec<u8>) -> io::Result<Option<Frame<'a>>> {
        let receivers = self.receivers.len();
        for turn in 0..receivers {
            let receiver = &mut self.receivers[(self.first + turn) % receivers];
            while let Some(taken) = receiver.receive_into(buffer) {
                let Taken::Frame {
                    len,
                    checksum_valid,
                    segment_bytes,
                } = taken
                else {
                    self.dropped += 1;
                    continue;
                };
                self.end_turn(true)?;
                return Ok(Some(Frame {
                    bytes: &buffer[..len],
                    checksum_valid,
                    segment_bytes,
                }));
            }
        }
        self.end_turn(false)?;
        Ok(None)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.receivers
            .iter()
            .map(|receiver| receiver.socket.as_fd())
            .collect()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sender.as_fd())
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.fd())
    }

    fn follow_link(&mut self) -> io::Result<Option<LinkChange>> {
        let before = self.interface.clone();
        self.watch.update(&mut self.interface)?;
        let changed = before != self.interface;
        Ok(changed.then_some(LinkChange {
            came_up: self.interface.carrier && !before.carrier,
            went_down: before.carrier && !self.interface.carrier,
        }))
    }
}
