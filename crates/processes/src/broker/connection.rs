//! A connection of an application's process: packets with descriptors, without waiting.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netsetup::seqpacket::{self, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg,
};
use socket_channel::attach::{
    BadPacket, HANDLES_MAX, PACKET_BYTES_MAX, REQUEST_DESCRIPTORS, Reply, Request,
};

const SENT_BYTES: usize = rustix::cmsg_space!(ScmRights(HANDLES_MAX as usize));
const RECEIVED_BYTES: usize = rustix::cmsg_space!(ScmRights(REQUEST_DESCRIPTORS));

/// The kernel raises it to its minimum, which holds two answers: descriptors do not pile up on the
/// way to a process that does not read.
const SEND_BUFFER_BYTES: usize = 1;

/// A packet, or why there is none.
#[derive(Debug)]
pub(crate) enum Received {
    /// No packet has come.
    Nothing,
    /// The other end is closed, or the socket is not connected.
    Gone,
    /// A request, with the descriptor of [`Request::Adopt`] or [`Request::PassFile`] if that was
    /// taken.
    Request(Request, Option<OwnedFd>),
    /// A packet that is no request of this version, and its descriptors.
    Bad(BadPacket, Vec<OwnedFd>),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) peer: Peer,
}

impl Connection {
    /// Fails with EPROTOTYPE unless it is a Unix socket that keeps packets apart.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, (Errno, OwnedFd)> {
        match prepare(&socket) {
            Ok(peer) => Ok(Self { socket, peer }),
            Err(errno) => Err((errno, socket)),
        }
    }

    /// The next packet. Descriptors are left to the kernel unless `takes_descriptors`: it
    /// drops them without asking their file systems.
    pub(crate) fn receive(&self, takes_descriptors: bool) -> Received {
        // One byte more than the longest, so that a longer packet does not decode.
        let mut packet = [0; PACKET_BYTES_MAX + 1];
        let mut space = [MaybeUninit::uninit(); RECEIVED_BYTES];
        let room = if takes_descriptors { RECEIVED_BYTES } else { 0 };
        let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::io::retry_on_intr(|| {
            let pieces = &mut [IoSliceMut::new(&mut packet)];
            recvmsg(&self.socket, pieces, &mut ancillary, flags)
        });
        let bytes = match received {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(Errno::AGAIN) => return Received::Nothing,
            _ => return Received::Gone,
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        let packet = packet.get(..bytes).unwrap_or_default();
        match Request::decode(packet) {
            Ok(request) if request.descriptors() >= descriptors.len() => {
                Received::Request(request, descriptors.pop())
            }
            Ok(_) => Received::Bad(BadPacket::Malformed, descriptors),
            Err(bad) => Received::Bad(bad, descriptors),
        }
    }

    /// True if the socket takes an answer. Otherwise the application has not read earlier answers,
    /// and the socket becomes writable once it has.
    pub(crate) fn is_writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        let polled = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        polled == Ok(1) && fds[0].revents().contains(PollFlags::OUT)
    }

    /// Sends an answer with its descriptors.
    pub(crate) fn send(
        &self,
        reply: &Reply,
        descriptors: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        debug_assert_eq!(reply.descriptors(), descriptors.len());
        let packet = reply.encode();
        let mut space = [MaybeUninit::uninit(); SENT_BYTES];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::io::retry_on_intr(|| {
            sendmsg(
                &self.socket,
                &[IoSlice::new(&packet)],
                &mut ancillary,
                flags,
            )
        })?;
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Looks whether a socket is one for packets, and who is at its other end.
fn prepare(socket: &OwnedFd) -> rustix::io::Result<Peer> {
    let kind = (socket_domain(socket)?, socket_type(socket)?);
    if kind != (AddressFamily::UNIX, SocketType::SEQPACKET) {
        return Err(Errno::PROTOTYPE);
    }
    set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES)?;
    seqpacket::peer(socket)
}
