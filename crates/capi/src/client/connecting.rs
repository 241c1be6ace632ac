//! connect(2), listen(2), accept4(2).

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use socket_channel::{Command, Family, Flags, HandleId, Lock, SocketId};

use super::application::Client;
use super::blocking;
use super::handles::Handle;
use super::opening::{DescriptorFlags, check_family, named, peer, set_flags, unmapped};
use super::process::errno;
use super::socket::{Direction, Socket, note};
use super::tally::{self, Counted};
use super::unshared::{self, Reuse, Unshared};

/// Most connections that may wait for `accept`, as `net.core.somaxconn`.
const BACKLOG_MAX: u32 = 4096;

impl Client {
    /// Opens a connection, as connect(2). Non-blocking: EINPROGRESS, then EALREADY, and 0 once
    /// after it has succeeded. After an error the socket may connect again. EISCONN if there is a
    /// connection; ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EADDRNOTAVAIL, EACCES.
    pub fn connect(&self, fd: BorrowedFd<'_>, address: SocketAddr) -> Result<()> {
        self.connect_by(fd, |_| Ok(address))
    }

    /// Like [`Client::connect`]; evaluates `address` once the socket may connect.
    pub(crate) fn connect_by(
        &self,
        fd: BorrowedFd<'_>,
        address: impl FnOnce(Family) -> Result<SocketAddr>,
    ) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        if flags.has(Flags::LISTENER) {
            return Err(Errno::ISCONN);
        }
        if socket.has_note(note::CONNECT_BEGUN) {
            return await_connection(&socket, Errno::ALREADY);
        }
        if flags.has(Flags::CONNECTED) {
            return Err(Errno::ISCONN);
        }
        let address = address(socket.family())?;
        check_family(&socket, address)?;
        let address = destination(&socket, address)?;
        // Ensures that no connection goes to a listener that was closed before.
        socket.process.handles.settle_listeners();
        let id = socket.id;
        socket.process.link.ask(|request| Command::Connect {
            request,
            socket: id,
            address,
        })?;
        socket.set_note(note::CONNECT_BEGUN, true);
        tally::count(Counted::Begun, 1);
        if socket.is_nonblocking()? {
            // Even if the connection is already open, as in Linux.
            return Err(Errno::INPROGRESS);
        }
        await_connection(&socket, Errno::INPROGRESS)
    }

    /// Ends the socket's connection or its listening, as connect(2) to `AF_UNSPEC`: resets the
    /// connection, or those that wait at the listener. A port chosen by the program stays bound.
    pub fn disconnect(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        disconnect(&socket)
    }

    /// Reports whether a socket is neither connected, nor connecting, nor listening.
    pub fn is_unconnected(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        let states = [Flags::LISTENER, Flags::CONNECTING, Flags::CONNECTED];
        let has_state = states.into_iter().any(|state| flags.has(state));
        Ok(!has_state && !flags.is_over() && !socket.has_note(note::CONNECT_BEGUN))
    }

    /// Makes a socket a listener, or changes its backlog, as listen(2). A socket without an address
    /// gets a port. EINVAL if it is connected; EADDRINUSE.
    pub fn listen(&self, fd: BorrowedFd<'_>, backlog: i32) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        if flags.has(Flags::CONNECTING) || flags.has(Flags::CONNECTED) {
            return Err(Errno::INVAL);
        }
        if !flags.has(Flags::BOUND) && !flags.has(Flags::LISTENER) {
            let ip = socket.local().ip();
            self.bind(fd, SocketAddr::new(ip, 0))?;
        }
        // A negative number counts as a large one, as in Linux.
        let backlog = u32::try_from(backlog).map_or(BACKLOG_MAX, |it| it.min(BACKLOG_MAX));
        let id = socket.id;
        socket.process.ask_for_address(|request| Command::Listen {
            request,
            socket: id,
            backlog: backlog.max(1),
        })?;
        Ok(())
    }

    /// Accepts a connection, as accept4(2), and returns its peer's address. EAGAIN if there is none
    /// and the listener does not block, or after its `SO_RCVTIMEO`; EINVAL if the socket is no
    /// listener; ECONNRESET if the host stack no longer serves the program; EMFILE.
    pub fn accept(
        &self,
        fd: BorrowedFd<'_>,
        flags: DescriptorFlags,
    ) -> Result<(OwnedFd, SocketAddr)> {
        let listener = self.socket_of(fd)?;
        // Before the handle is taken, which a fork may copy from then on.
        let unshared = Unshared::now();
        let taken = take_or_wait(&listener, flags.nonblocking);
        if matches!(taken, Err(Errno::CONNRESET)) {
            listener.set_note(note::LEFT, true);
        }
        let (handle, id) = taken?;
        set_flags(&handle, flags)?;
        let flags = unshared::Flags {
            is_nonblocking: flags.nonblocking,
            closes_on_exec: flags.close_on_exec,
        };
        let reuse = Reuse::new(unshared, flags, handle.is_private);
        let fd = self.adopt(handle.fd, handle.id, id)?;
        self.allow_reuse(fd.as_fd(), reuse);
        let peer = self.finish_accept(&listener, fd.as_fd())?;
        tally::count(Counted::Accepted, 1);
        Ok((fd, peer))
    }

    /// Takes over the listener's options, and returns the peer's address of a connection just
    /// accepted.
    fn finish_accept(&self, listener: &Socket<'_>, fd: BorrowedFd<'_>) -> Result<SocketAddr> {
        let connection = self.socket_of(fd)?;
        connection.inherit(listener);
        Ok(peer(&connection)?.unwrap_or_else(|| listener.local()))
    }
}

/// Returns the destination of a connection. As in Linux (`tcp_v6_connect`), it is an IPv4 address
/// if the given one is mapped, or is unspecified while the socket is bound to a mapped one.
fn destination(socket: &Socket<'_>, address: SocketAddr) -> Result<SocketAddr> {
    let is_bound_to_v4 = socket.record.local().is_some_and(|local| local.is_ipv4());
    match unmapped(socket, address).ok_or(Errno::NETUNREACH)? {
        SocketAddr::V6(v6) if is_bound_to_v4 && v6.ip().is_unspecified() => {
            Ok((Ipv4Addr::LOCALHOST, v6.port()).into())
        }
        SocketAddr::V6(_) if is_bound_to_v4 => Err(Errno::AFNOSUPPORT),
        address => Ok(address),
    }
}

/// Takes a waiting connection, or waits for the next one.
fn take_or_wait(listener: &Socket<'_>, nonblocking: bool) -> Result<(Handle, SocketId)> {
    let take = || take(listener, nonblocking);
    if let Some(taken) = take()? {
        return Ok(taken);
    }
    if listener.is_nonblocking()? {
        return Err(Errno::AGAIN);
    }
    blocking::wait(listener, listener.timeout(Direction::Receive), take)
}

/// Returns the outcome of opening a connection; waits for it unless the socket is non-blocking.
fn await_connection(socket: &Socket<'_>, while_connecting: Errno) -> Result<()> {
    let mut outcome = how_it_went(socket)?;
    if outcome.is_none() {
        if socket.is_nonblocking()? {
            return Err(while_connecting);
        }
        let timeout = socket.timeout(Direction::Send);
        let waited = blocking::wait(socket, timeout, || how_it_went(socket));
        outcome = Some(waited.map_err(|errno| match errno {
            // tcp(7) names no error for this timeout; as in `inet_stream_connect`.
            Errno::AGAIN => while_connecting,
            errno => errno,
        })?);
    }
    socket.set_note(note::CONNECT_BEGUN, false);
    let outcome = outcome.unwrap_or(Ok(()));
    if outcome.is_err() {
        // A detached socket cannot be disconnected, and stays as it is.
        let _ = disconnect(socket);
    }
    outcome
}

/// Makes the host stack disconnect a socket. The locks keep all processes from using its FIFOs
/// meanwhile.
pub(crate) fn disconnect(socket: &Socket<'_>) -> Result<()> {
    socket.with_lock(Lock::Rx, || {
        socket.with_lock(Lock::Tx, || {
            let id = socket.id;
            socket.process.link.ask(|request| Command::Disconnect {
                request,
                socket: id,
            })?;
            let begun = note::CONNECT_BEGUN | note::SHUT_READ | note::SHUT_WRITE;
            socket.set_note(begun, false);
            Ok(())
        })?
    })??;
    // Waiting threads of this process look again.
    socket.process.link.watchers.notify(socket.id.index);
    socket.process.link.nudge();
    Ok(())
}

/// Returns the outcome of opening a connection; `None` while it is opening.
fn how_it_went(socket: &Socket<'_>) -> Result<Option<Result<()>>> {
    let flags = socket.look()?.flags;
    if flags.has(Flags::FAILED) || flags.has(Flags::CLOSED) || flags.has(Flags::DETACHED) {
        // An error that SO_ERROR has reported is not reported again.
        return Ok(Some(socket.take_error().and(Err(Errno::CONNABORTED))));
    }
    Ok(flags.has(Flags::CONNECTED).then_some(Ok(())))
}

/// Takes a connection from the accept queue, with its new handle.
fn take(listener: &Socket<'_>, nonblocking: bool) -> Result<Option<(Handle, SocketId)>> {
    let look = listener.look_at_stream()?;
    if !look.flags.has(Flags::LISTENER) {
        return Err(Errno::INVAL);
    }
    if look.waiting == 0 {
        let is_over = look.flags.is_over();
        return if is_over {
            Err(Errno::CONNRESET)
        } else {
            Ok(None)
        };
    }
    // The handle goes first: without one, the connection must stay in the queue.
    let process = listener.process;
    let handle = process.take_reusable_handle(nonblocking)?;
    let taken = listener.record.accept().map_err(errno);
    let taken = match taken {
        Ok(None) if listener.record.held() > 0 => ask_for_held(listener, handle.id),
        Ok(Some(socket)) => {
            listener.tell(&Command::Accept {
                socket,
                handle: handle.id,
            })?;
            Ok(Some(socket))
        }
        other => other,
    };
    match taken {
        Ok(Some(socket)) => Ok(Some((handle, socket))),
        Ok(None) => {
            process.handles.put_back(handle);
            Ok(None)
        }
        Err(errno) => {
            process.handles.put_back(handle);
            Err(errno)
        }
    }
}

/// Asks the host stack for the oldest connection that it holds, without Eager Accept.
fn ask_for_held(listener: &Socket<'_>, handle: HandleId) -> Result<Option<SocketId>> {
    let socket = listener.id;
    let answer = listener.process.link.ask(|request| Command::AcceptNext {
        request,
        socket,
        handle,
    });
    match answer {
        // Another thread has taken it.
        Err(Errno::AGAIN) => Ok(None),
        answer => named(answer?).map(Some),
    }
}
