//! socket(2), bind(2), getsockname(2), getpeername(2).

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, Result};
use socket_channel::message::BindFlags;
use socket_channel::{Command, Family, Flags, Side, SocketId};

use super::application::Client;
use super::handles::Handle;
use super::link::Answer;
use super::process::Process;
use super::socket::{Socket, note};

/// Flags of a new descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorFlags {
    /// Calls on it do not block: `SOCK_NONBLOCK`.
    pub nonblocking: bool,
    /// `exec` closes it: `SOCK_CLOEXEC`.
    pub close_on_exec: bool,
}

/// Gives a handle's descriptor, which was made close-on-exec, its flags.
pub(crate) fn set_flags(handle: &Handle, flags: DescriptorFlags) -> Result<()> {
    if Some(flags.nonblocking) != handle.is_nonblocking {
        let mut status = OFlags::RDWR;
        status.set(OFlags::NONBLOCK, flags.nonblocking);
        rustix::fs::fcntl_setfl(&handle.fd, status)?;
    }
    if !flags.close_on_exec {
        rustix::io::fcntl_setfd(&handle.fd, FdFlags::empty())?;
    }
    Ok(())
}

/// Returns the socket that an answer names; EPROTO if it names none.
pub(crate) fn named(answer: Answer) -> Result<SocketId> {
    match answer {
        Answer::Done {
            socket: Some(socket),
            ..
        } => Ok(socket),
        Answer::Done { .. } | Answer::Info(_) => Err(Errno::PROTO),
    }
}

impl Client {
    /// Creates a stream socket, as socket(2). EMFILE, ENFILE or ENOBUFS if there are too many;
    /// ECONNRESET if the host stack is gone.
    pub fn socket(&self, family: Family, flags: DescriptorFlags) -> Result<OwnedFd> {
        let process = self.process()?;
        let handle = process.take_handle(flags.nonblocking)?;
        let id = open(process, &handle, family)?;
        set_flags(&handle, flags)?;
        let fd = self.adopt(handle.fd, handle.id, id)?;
        if family == Family::V6 {
            self.socket_of(fd.as_fd())?.set_note(note::IS_V6, true);
        }
        Ok(fd)
    }

    /// Binds a socket to an address, as bind(2). EINVAL if it has one, EADDRINUSE, EADDRNOTAVAIL,
    /// EACCES if the application may not use it, EAFNOSUPPORT if its family differs. A mapped
    /// address binds to IPv4; EINVAL with `IPV6_V6ONLY`.
    pub fn bind(&self, fd: BorrowedFd<'_>, address: SocketAddr) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let look = socket.look_at_stream()?;
        check_family(&socket, address)?;
        let is_used = look.flags.has(Flags::LISTENER)
            || look.flags.has(Flags::CONNECTING)
            || look.flags.has(Flags::CONNECTED);
        if is_used || look.flags.has(Flags::BOUND) {
            return Err(Errno::INVAL);
        }
        let address = unmapped(&socket, address).ok_or(Errno::INVAL)?;
        let id = socket.id;
        let flags = bind_flags(socket.notes());
        socket.process.ask_for_address(|request| Command::Bind {
            request,
            socket: id,
            address,
            flags,
        })?;
        if address.is_ipv6() && !address.ip().is_unspecified() {
            // IPv4 clients cannot reach that address (`__inet6_bind`).
            socket.set_note(note::V6_ONLY, true);
        }
        Ok(())
    }

    /// Returns a socket's local address, as getsockname(2); zeros before it is bound.
    pub fn local_address(&self, fd: BorrowedFd<'_>) -> Result<SocketAddr> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        if flags.has(Flags::CONNECTED) && socket.record.local().is_none() {
            ask_address(&socket, Side::Local)?;
        }
        Ok(socket.local())
    }

    /// Returns a socket's ID, which no other socket of the same stack has had.
    pub fn socket_name(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        Ok(self.socket_of(fd)?.id.to_raw())
    }

    /// Returns the peer's address, as getpeername(2). ENOTCONN if there is none.
    pub fn peer_address(&self, fd: BorrowedFd<'_>) -> Result<SocketAddr> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        let is_connected = flags.has(Flags::CONNECTED) && !flags.has(Flags::CLOSED);
        if !is_connected {
            return Err(Errno::NOTCONN);
        }
        peer(&socket)?.ok_or(Errno::NOTCONN)
    }
}

/// Returns a connection's peer address; requests it from the host stack if the record lacks it.
pub(crate) fn peer(socket: &Socket<'_>) -> Result<Option<SocketAddr>> {
    if socket.record.peer().is_none() {
        ask_address(socket, Side::Peer)?;
    }
    let peer = socket.record.peer();
    Ok(peer.map(|peer| socket.as_named(peer)))
}

/// Makes the host stack write an address into the record of a connection.
fn ask_address(socket: &Socket<'_>, side: Side) -> Result<()> {
    let id = socket.id;
    let request = |request| Command::GetAddress {
        request,
        socket: id,
        side,
    };
    socket.process.link.ask(request).map(drop)
}

fn open(process: &Process, handle: &Handle, family: Family) -> Result<SocketId> {
    let handle = handle.id;
    let answer = process.link.ask(|request| Command::Open {
        request,
        handle,
        family,
    })?;
    named(answer)
}

/// EAFNOSUPPORT if the family of an address differs from the socket's.
pub(crate) fn check_family(socket: &Socket<'_>, address: SocketAddr) -> Result<()> {
    if socket.has_note(note::IS_V6) != address.is_ipv6() {
        return Err(Errno::AFNOSUPPORT);
    }
    Ok(())
}

/// Returns the address that a program means: for an IPv6 socket, a mapped address means the IPv4
/// one (RFC 4291 §2.5.5.2). `None` for a mapped address of a socket for IPv6 alone.
pub(crate) fn unmapped(socket: &Socket<'_>, address: SocketAddr) -> Option<SocketAddr> {
    let SocketAddr::V6(v6) = address else {
        return Some(address);
    };
    match v6.ip().to_ipv4_mapped() {
        Some(_) if socket.has_note(note::V6_ONLY) => None,
        Some(ip) => Some((ip, v6.port()).into()),
        None => Some(address),
    }
}

fn bind_flags(notes: u64) -> BindFlags {
    let flags = [
        (note::REUSE_ADDR, BindFlags::REUSE_ADDR),
        (note::REUSE_PORT, BindFlags::REUSE_PORT),
        (note::V6_ONLY, BindFlags::V6_ONLY),
    ];
    let set = flags.into_iter().filter(|(note, _)| notes & note != 0);
    set.fold(BindFlags::NONE, |all, (_, flag)| all.with(flag))
}
