//! Changes of a network interface, notified by rtnetlink (`rtnetlink(7)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::interface::Interface;

/// A socket that receives the notifications of the network namespace in which it was opened.
pub(super) struct Watch {
    socket: Socket,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Opens a socket, which needs no privilege. Later changes are seen.
    pub(super) fn open() -> io::Result<Watch> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        // Only messages of the kernel.
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.add_membership(libc::RTNLGRP_LINK)?;
        socket.set_non_blocking(true)?;
        Ok(Watch { socket })
    }

    /// Returns a descriptor that is readable after a change of any interface.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Brings `interface` up to date. Does not wait.
    pub(super) fn update(&self, interface: &mut Interface) -> io::Result<()> {
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => read(&datagram, interface),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(()),
                    Some(libc::EINTR) => {}
                    // Notifications were lost. The answers have the same form.
                    Some(libc::ENOBUFS) => self.ask()?,
                    _ => return Err(error),
                },
            }
        }
    }

    /// Requests the present state of all interfaces.
    fn ask(&self) -> io::Result<()> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let mut request = NetlinkMessage::from(request);
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        match self.socket.send(&bytes, 0) {
            Ok(_) => Ok(()),
            // An answer is on its way already.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Applies the messages of a datagram that concern `interface`.
fn read(mut datagram: &[u8], interface: &mut Interface) {
    while let Some(length) = datagram.first_chunk().map(|it| u32::from_ne_bytes(*it)) {
        let length = (length as usize).max(16);
        let message = datagram.get(..length).unwrap_or(datagram);
        // Messages that the decoder does not know are skipped: a newer kernel may send more.
        if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message)
            && let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) =
                message.payload
            // Bridges report fewer attributes of their ports, in a family of their own.
            && link.header.interface_family == AddressFamily::Unspec
            && link.header.index == interface.index
        {
            interface.update(link);
        }
        // Messages are aligned to 4 bytes; the last one's padding may be missing.
        let next = length.next_multiple_of(4);
        datagram = datagram.get(next..).unwrap_or_default();
    }
}
