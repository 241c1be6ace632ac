//! socket to getpeername, shutdown, close.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};

use super::global::{behind_descriptor, borrow, client, client_if_attached};
use super::memory::{address, address_to_bind, is_unspecified, put_address, raw_address};
use super::outcome::{descriptor, number, zero};
use crate::client::DescriptorFlags;
use crate::client::handle_names::is_handle;
use crate::{Family, How};

const DESCRIPTOR_FLAGS: libc::c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// `SOCK_TYPE_MASK`, `SOCK_MAX` and `IPPROTO_MAX` of Linux.
const SOCK_TYPE_MASK: libc::c_int = 15;
const SOCK_MAX: libc::c_int = 11;
const PROTOCOLS_END: libc::c_int = 263;

/// Converts the flags of socket(2) and accept4(2).
fn descriptor_flags(bits: libc::c_int) -> DescriptorFlags {
    DescriptorFlags {
        nonblocking: bits & libc::SOCK_NONBLOCK != 0,
        close_on_exec: bits & libc::SOCK_CLOEXEC != 0,
    }
}

/// socket(2): a TCP socket of the split stack. `domain` is AF_INET or AF_INET6, `type` SOCK_STREAM,
/// optionally with SOCK_NONBLOCK and SOCK_CLOEXEC, `protocol` 0 or IPPROTO_TCP.
///
/// EAFNOSUPPORT, ESOCKTNOSUPPORT, EPROTONOSUPPORT for others; EMFILE, ENFILE, ENOBUFS; the errors
/// of `sw_init`.
#[unsafe(no_mangle)]
pub extern "C" fn sw_socket(
    domain: libc::c_int,
    kind: libc::c_int,
    protocol: libc::c_int,
) -> libc::c_int {
    descriptor(socket(domain, kind, protocol))
}

fn socket(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> Result<OwnedFd> {
    if kind & !(SOCK_TYPE_MASK | DESCRIPTOR_FLAGS) != 0 {
        return Err(Errno::INVAL);
    }
    let family = match domain {
        libc::AF_INET => Family::V4,
        libc::AF_INET6 => Family::V6,
        _ => return Err(Errno::AFNOSUPPORT),
    };
    let kind_only = kind & SOCK_TYPE_MASK;
    if kind_only >= SOCK_MAX || !(0..PROTOCOLS_END).contains(&protocol) {
        return Err(Errno::INVAL);
    }
    if kind_only != libc::SOCK_STREAM {
        return Err(Errno::SOCKTNOSUPPORT);
    }
    if protocol != 0 && protocol != libc::IPPROTO_TCP {
        return Err(Errno::PROTONOSUPPORT);
    }
    client()?.socket(family, descriptor_flags(kind))
}

/// bind(2). EINVAL if the socket has an address; EADDRINUSE, EADDRNOTAVAIL, EACCES, EAFNOSUPPORT.
///
/// # Safety
/// `at` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_bind(
    fd: libc::c_int,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> libc::c_int {
    let bind = || {
        let (client, fd) = (client()?, borrow(fd)?);
        let family = client.family(fd)?;
        // SAFETY: `at` is null or has `len` bytes, by the caller's contract.
        let bytes = unsafe { raw_address(at, len)? };
        client.bind(fd, address_to_bind(bytes, family)?)
    };
    zero(bind())
}

/// listen(2). EINVAL if the socket is connected; EADDRINUSE.
#[unsafe(no_mangle)]
pub extern "C" fn sw_listen(fd: libc::c_int, backlog: libc::c_int) -> libc::c_int {
    let listen = || client()?.listen(borrow(fd)?, backlog);
    zero(listen())
}

/// connect(2). AF_UNSPEC ends the socket's connection or its listening. After an error the socket
/// may connect again. EINPROGRESS, EALREADY, EISCONN; ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH,
/// ENETUNREACH, EADDRNOTAVAIL, EACCES; EINTR, after which the connection continues to open.
///
/// # Safety
/// `at` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_connect(
    fd: libc::c_int,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> libc::c_int {
    // SAFETY: `at` is null or has `len` bytes, by the caller's contract.
    let bytes = unsafe { raw_address(at, len) };
    let connect = || {
        let bytes = behind_descriptor(fd, bytes)?;
        let is_unspecified = behind_descriptor(fd, is_unspecified(bytes))?;
        let (client, fd) = (client()?, borrow(fd)?);
        if is_unspecified {
            return client.disconnect(fd);
        }
        client.connect_by(fd, |family| address(bytes, family))
    };
    zero(connect())
}

/// accept(2).
///
/// # Safety
/// As for `sw_accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_accept(
    fd: libc::c_int,
    at: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> libc::c_int {
    // SAFETY: `at` is null or has as many bytes as `len` points to, by the caller's contract.
    unsafe { sw_accept4(fd, at, len, 0) }
}

/// accept4(2). EAGAIN, EINVAL if `fd` is no listener, EMFILE, EINTR. `at` and `len` may both be
/// null.
///
/// # Safety
/// `at` is null or has as many bytes as `len` points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_accept4(
    fd: libc::c_int,
    at: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    flags: libc::c_int,
) -> libc::c_int {
    let accept = || {
        if flags & !DESCRIPTOR_FLAGS != 0 {
            return Err(Errno::INVAL);
        }
        let (accepted, peer) = client()?.accept(borrow(fd)?, descriptor_flags(flags))?;
        if at.is_null() {
            return Ok(accepted);
        }
        // SAFETY: `at` has as many bytes as `len` points to, by the caller's contract.
        match unsafe { put_address(at, len, peer) } {
            Ok(()) => Ok(accepted),
            Err(errno) => {
                client()?.close(accepted)?;
                Err(errno)
            }
        }
    };
    descriptor(accept())
}

/// getsockname(2).
///
/// # Safety
/// `at` is null or has as many bytes as `len` points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_getsockname(
    fd: libc::c_int,
    at: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> libc::c_int {
    let local = || client()?.local_address(borrow(fd)?);
    // SAFETY: `at` is null or has as many bytes as `len` points to, by the caller's contract.
    zero(local().and_then(|local| unsafe { put_address(at, len, local) }))
}

/// getpeername(2). ENOTCONN if there is no connection.
///
/// # Safety
/// `at` is null or has as many bytes as `len` points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_getpeername(
    fd: libc::c_int,
    at: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> libc::c_int {
    let peer = || client()?.peer_address(borrow(fd)?);
    // SAFETY: `at` is null or has as many bytes as `len` points to, by the caller's contract.
    zero(peer().and_then(|peer| unsafe { put_address(at, len, peer) }))
}

/// shutdown(2). ENOTCONN if there is no connection; EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn sw_shutdown(fd: libc::c_int, how: libc::c_int) -> libc::c_int {
    let shutdown = || {
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return behind_descriptor(fd, Err(Errno::INVAL)),
        };
        client()?.shutdown(borrow(fd)?, how)
    };
    zero(shutdown())
}

/// close(2), of a descriptor of any kind. The connection ends when the last descriptor of the
/// socket is closed in all processes; data already sent is still delivered. After `close` on a
/// split descriptor, this library still takes the number for that socket, even if it is reused.
#[unsafe(no_mangle)]
pub extern "C" fn sw_close(fd: libc::c_int) -> libc::c_int {
    let close = || {
        // Also checks that `fd` is open: an `OwnedFd` must not close a free number.
        rustix::io::fcntl_getfd(borrow(fd)?)?;
        let client = client_if_attached();
        let was_in_store = client.map(|client| client.let_go_of_number(fd));
        let was_in_store = was_in_store.transpose()?;
        // SAFETY: `fd` is open, and the caller gives it up, as in close(2).
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if was_in_store == Some(true) {
            // The program has not opened it, or has closed it.
            return Err(Errno::BADF);
        }
        client.map_or(Ok(()), |client| client.close(fd))
    };
    zero(close())
}

/// Turns a descriptor from another process of this application, received in an `SCM_RIGHTS`
/// message, into the split socket or file that it was there. `fork` and `dup` need no such call.
///
/// Returns 1 for a split socket or a file of the NIC stack, 0 for another descriptor; -1: EBADF if
/// the descriptor is not open, or its socket has ended; EMFILE; ECONNRESET if the host stack is
/// gone.
#[unsafe(no_mangle)]
pub extern "C" fn sw_recover(fd: libc::c_int) -> libc::c_int {
    number(recover(fd).map(libc::c_int::from))
}

fn recover(fd: libc::c_int) -> Result<bool> {
    let fd = borrow(fd)?;
    rustix::io::fcntl_getfd(fd)?;
    match client_if_attached() {
        Some(client) => client.recover(fd),
        // Other descriptors are no reason to attach.
        None if is_handle(fd) => client()?.recover(fd),
        None => Ok(false),
    }
}
