//! Unix sockets that keep messages apart (`SOCK_SEQPACKET`), and the identity of their peers.

use std::os::fd::OwnedFd;

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Gid, Uid};

/// Creates a socket that does not block.
pub fn non_blocking() -> rustix::io::Result<OwnedFd> {
    seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Connects a socket that blocks.
pub fn connect(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let socket = seqpacket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Creates two sockets that are connected to each other.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    pair_with(SocketFlags::CLOEXEC)
}

/// Creates two connected sockets that do not block.
pub fn non_blocking_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    pair_with(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

fn pair_with(flags: SocketFlags) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the process at the other end of a connected socket: for a listener's, the one that began
/// to listen. `None` if it is not visible in our process namespace.
pub fn peer_pid(socket: &OwnedFd) -> Option<i32> {
    let credentials = nix::sys::socket::getsockopt(socket, PeerCredentials).ok()?;
    (credentials.pid() > 0).then_some(credentials.pid())
}

/// Returns the user of the process at the other end of a connected socket.
pub fn peer_user(socket: &OwnedFd) -> rustix::io::Result<Uid> {
    let credentials = nix::sys::socket::getsockopt(socket, PeerCredentials)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    Ok(Uid::from_raw(credentials.uid()))
}

/// The process at the other end of a connected socket, as of its connecting, or of making the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `None` if the process is not visible in our process namespace.
    pub pid: Option<i32>,
    /// Its effective user.
    pub uid: Uid,
    /// Its effective group.
    pub gid: Gid,
}

/// Returns the process at the other end of a connected socket (unix(7), `SO_PEERCRED`).
pub fn peer(socket: &OwnedFd) -> rustix::io::Result<Peer> {
    let credentials = nix::sys::socket::getsockopt(socket, PeerCredentials)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    Ok(Peer {
        pid: (credentials.pid() > 0).then_some(credentials.pid()),
        uid: Uid::from_raw(credentials.uid()),
        gid: Gid::from_raw(credentials.gid()),
    })
}

fn seqpacket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}
