//! Ports: how frames leave and reach a stack.
//!
//! A port sends superpackets (a header and slices of payload, cut by the kernel or the NIC) and
//! receives frames, with checksum and segmentation metadata. It knows no connections and no files.
//!
//! | Module | Contents |
//! |---|---|
//! | [`packet`] | AF_PACKET: any Linux link. Start here: [`packet::PacketPort::open`] |
//! | [`memory`] | two ports joined in memory, for tests and simulation |
//! | `segment` | superpackets, cut in software |
//! | [`steering`] | which port gets a frame: a map, and packet filters that read it |
//! | `uring` | datagrams by io_uring, for measurements |
//! | [`fault`] | a port that loses, repeats, reorders and damages received frames |
//!
//! This room may touch system calls and drivers.

#![deny(unsafe_code)]

pub mod fault;
pub mod memory;
pub mod packet;
pub mod steering;
#[cfg(feature = "uring")]
pub mod uring;

mod segment;

use std::io;
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;

use steering::Target;

/// A packet to send. If `payload` is longer than a packet's, the port (kernel or hardware) cuts it.
#[derive(Debug)]
pub struct Superpacket<'a> {
    /// Ethernet, IP and TCP or UDP headers, lengths filled in: those of all packets together. The
    /// checksum field of TCP or UDP holds the pseudo-header sum that partial checksum offload
    /// wants, and the port completes it.
    pub header: &'a [u8],
    /// Payload, in order.
    pub payload: &'a [io::IoSlice<'a>],
    /// Work that the port still has to do.
    pub offload: Offload,
}

/// Work that a port still has to do on an outgoing packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: the frame is complete (ARP, neighbour discovery, ICMP).
    None,
    /// Complete the TCP checksum, and cut the payload into packets of `mss` bytes if it is longer.
    Tcp {
        /// Offset of the TCP header in `header`, in bytes.
        tcp_offset: u16,
        /// Largest TCP payload of a packet, in bytes.
        mss: u16,
        /// IPv6 rather than IPv4.
        ipv6: bool,
    },
    /// Complete the UDP checksum, and cut the payload into datagrams of `payload_bytes` if it is
    /// longer; the last may be shorter. At most [`UDP_SUPERPACKET_BYTES_MAX`] are cut.
    Udp {
        /// Offset of the UDP header in `header`, in bytes.
        udp_offset: u16,
        /// Payload of each datagram but the last, in bytes.
        payload_bytes: u16,
        /// IPv6 rather than IPv4.
        ipv6: bool,
    },
}

/// Largest IP packet of datagrams that a port cuts, in bytes: the length fields of UDP and IP have
/// 16 bits.
pub const UDP_SUPERPACKET_BYTES_MAX: usize = 65_535;

/// A frame received. It may hold several packets, merged: by GRO, or never cut because their sender
/// is on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header on.
    pub bytes: &'a [u8],
    /// The kernel or the NIC vouches for the transport checksum.
    pub checksum_valid: bool,
    /// Payload of each datagram but the last, in bytes, if the frame holds several datagrams behind
    /// one UDP header. `None` for any other frame, and if the port does not know.
    pub segment_bytes: Option<NonZeroU16>,
}

/// Reasons why a packet was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The port is busy; try again when it is writable.
    WouldBlock,
    /// The link dropped it, or some of its packets, as links may (a full queue): TCP and QUIC will
    /// notice.
    Dropped,
    /// The port is unusable: the link is gone or down, or the packet can never be sent.
    Failed(io::Error),
}

/// A change of a port's link: see [`Port::mac`], [`Port::mtu`] and [`Port::superpacket_max`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// Frames pass again.
    pub came_up: bool,
    /// No frame passes any more.
    pub went_down: bool,
}

/// A place where frames leave and arrive.
pub trait Port {
    /// Returns the link's hardware address.
    fn mac(&self) -> [u8; 6];
    /// Largest IP packet on the wire, in bytes.
    fn mtu(&self) -> usize;
    /// Largest IP packet that [`Port::send`] takes for cutting, in bytes; of datagrams, at most
    /// [`UDP_SUPERPACKET_BYTES_MAX`].
    fn superpacket_max(&self, ipv6: bool) -> usize;
    /// Sends a packet.
    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError>;
    /// Hands up to `budget` received frames to `handle`; returns their number.
    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize>;
    /// Puts the next received frame into `buffer`. For a user that sends while it looks at frames;
    /// a port may do it with less copying than [`Port::receive`].
    fn receive_into<'a>(&mut self, buffer: &'a mut Vec<u8>) -> io::Result<Option<Frame<'a>>> {
        let mut received = None;
        self.receive(1, &mut |frame| {
            buffer.clear();
            buffer.extend_from_slice(frame.bytes);
            received = Some((frame.checksum_valid, frame.segment_bytes));
        })?;
        Ok(received.map(|(checksum_valid, segment_bytes)| Frame {
            bytes: buffer,
            checksum_valid,
            segment_bytes,
        }))
    }
    /// Descriptors that become readable when a frame has arrived.
    fn receive_fds(&self) -> Vec<BorrowedFd<'_>>;
    /// The descriptor that becomes writable when a send would no longer block.
    fn send_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Returns the port's name in a steering map: the port receives the frames that the map gives
    /// to this name, and no others. `None` for the host's port, and for one that receives nothing.
    fn target(&self) -> Option<Target> {
        None
    }
    /// The descriptor that becomes readable when the link may have changed.
    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Reads changes of the link. Does not wait.
    fn follow_link(&mut self) -> io::Result<Option<LinkChange>> {
        Ok(None)
    }
}

/// Checks that a packet fits the link once it has been cut, and does not exceed the port's limit
/// for cutting; returns the reason if not.
fn check_size(
    packet: &Superpacket<'_>,
    mtu: usize,
    superpacket_max: usize,
) -> Result<(), &'static str> {
    let payload: usize = packet.payload.iter().map(|slice| slice.len()).sum();
    let ip_header = packet
        .header
        .len()
        .saturating_sub(wire::ethernet::HEADER_BYTES);
    let (longest, superpacket_max) = match packet.offload {
        Offload::Tcp { mss: 0, .. }
        | Offload::Udp {
            payload_bytes: 0, ..
        } => return Err("the largest payload of a packet is 0"),
        Offload::Tcp { mss, .. } => (payload.min(mss.into()), superpacket_max),
        Offload::Udp { payload_bytes, .. } => (
            payload.min(payload_bytes.into()),
            superpacket_max.min(UDP_SUPERPACKET_BYTES_MAX),
        ),
        Offload::None => (payload, superpacket_max),
    };
    if ip_header + longest > mtu {
        return Err("the packet is longer than the link's MTU");
    }
    if ip_header + payload > superpacket_max.max(mtu) {
        return Err("the packet is longer than what the port cuts");
    }
    Ok(())
}
