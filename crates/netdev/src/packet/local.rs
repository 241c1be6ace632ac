//! The way to the machine's own kernel, for an address that the stack shares with it.
//!
//! Packets of the machine to its own addresses cross the loopback device, where packet sockets take
//! them as on any link. The way back goes through raw sockets (`raw(7)`): the kernel routes such
//! packets as its own output, so that they arrive over loopback with a route. Frames that a packet
//! socket sent on loopback would have none, and the kernel drops frames with an own source then
//! (`accept_local`).
//!
//! The hardware address of the loopback device is zero, which is that of no other machine: it
//! selects this way.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto::RAW, sendto, socket_with,
};
use wire::ethernet;

use super::interface::Interface;
use super::socket;
use crate::{Offload, SendError, Superpacket, segment};

/// The loopback device's name, which the kernel fixes.
pub(super) const LOOPBACK: &str = "lo";

/// Hardware address of the loopback device.
pub const LOOPBACK_MAC: [u8; 6] = [0; 6];

/// Raw sockets, and their limit.
#[derive(Debug)]
pub(super) struct LocalPath {
    v4: OwnedFd,
    /// `None` where the kernel has no IPv6.
    v6: Option<OwnedFd>,
    /// Longest IP packet, in bytes.
    bytes_max: usize,
}

impl LocalPath {
    /// Opens the way. Needs `CAP_NET_RAW`.
    pub(super) fn open(loopback: &Interface) -> io::Result<LocalPath> {
        let raw = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(family, SocketType::RAW, flags, Some(RAW))
        };
        let v6 = match raw(AddressFamily::INET6) {
            Ok(v6) => {
                socket::include_ipv6_header(&v6)?;
                Some(v6)
            }
            Err(Errno::AFNOSUPPORT) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(LocalPath {
            v4: raw(AddressFamily::INET)?,
            v6,
            bytes_max: loopback.mtu.min(usize::from(u16::MAX)),
        })
    }

    /// Sends a packet to the kernel. TCP segments may be longer than the connection's MSS, as far
    /// as loopback's MTU permits. Unsent segments count as dropped by the link.
    pub(super) fn send(&self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        let header = packet.header;
        let room = (self.bytes_max + ethernet::HEADER_BYTES).saturating_sub(header.len());
        match (self.send_cut(packet, room)?, packet.offload) {
            (Ok(()), _) => Ok(()),
            // The MTU has become smaller since the port was opened.
            (Err(Errno::MSGSIZE), Offload::Tcp { mss, .. }) => {
                let cut = self.send_cut(packet, mss.into())?;
                cut.map_err(|_| SendError::Dropped)
            }
            // The address may be gone by now.
            (Err(_), _) => Err(SendError::Dropped),
        }
    }

    /// Sends a packet as segments of at most `tcp_bytes` of payload, up to the first that the
    /// kernel refuses.
    fn send_cut(
        &self,
        packet: &Superpacket<'_>,
        tcp_bytes: usize,
    ) -> Result<Result<(), Errno>, SendError> {
        let mut sent = Ok(());
        let mut emit = |frame: Vec<u8>| {
            if sent.is_ok() {
                sent = self.send_frame(&frame);
            }
        };
        let (header, payload) = (packet.header, packet.payload);
        let cut = match packet.offload {
            Offload::Tcp { .. } => segment::cut(header, payload, tcp_bytes, &mut emit),
            Offload::Udp { payload_bytes, .. } => {
                segment::cut_datagrams(header, payload, payload_bytes.into(), &mut emit)
            }
            Offload::None => {
                emit(segment::join(header, payload));
                Ok(())
            }
        };
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        cut.map_err(|error| SendError::Failed(invalid(error)))?;
        Ok(sent)
    }

    fn send_frame(&self, frame: &[u8]) -> Result<(), Errno> {
        let (Some(packet), Some(to)) = (frame.get(ethernet::HEADER_BYTES..), destination(frame))
        else {
            return Err(Errno::INVAL);
        };
        let socket = match (to, &self.v6) {
            (IpAddr::V4(_), _) => &self.v4,
            (IpAddr::V6(_), Some(v6)) => v6,
            (IpAddr::V6(_), None) => return Err(Errno::AFNOSUPPORT),
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendto(socket, packet, flags, &SocketAddr::new(to, 0)).map(drop)
    }
}

/// Returns the destination of an IP packet.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let (ether_type, packet) = (frame.get(12..14)?, frame.get(ethernet::HEADER_BYTES..)?);
    match u16::from_be_bytes([ether_type[0], ether_type[1]]) {
        ethernet::IPV4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        ethernet::IPV6 => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}
