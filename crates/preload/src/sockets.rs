//! Calls on sockets and their addresses.

use std::os::fd::BorrowedFd;

use capi::abi::{
    address_of, last_error, set_errno, sw_accept4, sw_bind, sw_connect, sw_getpeername,
    sw_getsockname, sw_listen, sw_shutdown,
};
use capi::client::tally::{self, Counted};
use libc::{c_int, sockaddr, socklen_t};
use rustix::io::Errno;

use crate::attached::{client, is_split};
use crate::cancel::point;
use crate::convert::{Purpose, convert, convert_unbound, revert, tcp_family};
use crate::descriptors::to_standard;
use crate::kernel::kernel;
use crate::kernels::bound;
use crate::library;
use crate::pending;
use crate::settings::settings;
use crate::streams;

/// Sets `errno`, and returns -1.
fn fail(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Reports whether the socket is split, after converting it if a rule holds the address.
unsafe fn ensure_split(
    fd: c_int,
    at: *const sockaddr,
    len: socklen_t,
    purpose: Purpose,
) -> Result<bool, Errno> {
    if is_split(fd) {
        return Ok(true);
    }
    // SAFETY: `at` has `len` readable bytes, by the caller's contract.
    let Some(address) = (unsafe { address_of(at, len) }) else {
        return Ok(false);
    };
    if fd < 0 {
        return Ok(false);
    }
    // SAFETY: the number is not -1; the kernel reports a closed one.
    convert(unsafe { BorrowedFd::borrow_raw(fd) }, address, purpose)
}

/// socket(2). Creates a kernel socket, which an address may later convert.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: it takes numbers.
    let fd = unsafe { kernel!(SYS_socket, domain, kind, protocol) } as c_int;
    let is_stream = kind & 15 == libc::SOCK_STREAM;
    let is_inet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let may_be_split =
        settings().is_some_and(|told| !told.connect.is_empty() || !told.listen.is_empty());
    if fd >= 0 && is_stream && is_inet && may_be_split {
        pending::insert(fd);
    }
    fd
}

/// bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_bind(
    fd: c_int,
    at: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for bind(2), by the caller's contract.
    unsafe {
        match ensure_split(fd, at, len, Purpose::Listen) {
            Ok(true) => sw_bind(fd, at, len),
            Ok(false) => kernel!(SYS_bind, fd, at, len) as c_int,
            Err(errno) => fail(errno),
        }
    }
}

/// listen(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_listen(fd: c_int, backlog: c_int) -> c_int {
    // A socket without an address becomes split if a rule holds the unspecified address.
    let becomes_split = match is_split(fd) {
        false if fd >= 0 => {
            // SAFETY: the number is not -1; the kernel reports a closed one.
            convert_unbound(unsafe { BorrowedFd::borrow_raw(fd) })
        }
        is_split => Ok(is_split),
    };
    match becomes_split {
        Ok(true) => sw_listen(fd, backlog),
        Ok(false) => {
            let listened = listens(fd);
            // SAFETY: it takes numbers.
            let done = unsafe { kernel!(SYS_listen, fd, backlog) as c_int };
            if done == 0 && !listened {
                note_kernels(fd, Counted::KernelListeners);
            }
            done
        }
        Err(errno) => fail(errno),
    }
}

/// connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_connect(
    fd: c_int,
    at: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for connect(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            return match revert_for(fd, at, len) {
                Ok(true) => noted_connect(fd, kernel!(SYS_connect, fd, at, len) as c_int),
                Ok(false) => point(|| sw_connect(fd, at, len)),
                Err(errno) => fail(errno),
            };
        }
        // The program's bound address, which the split socket takes over as its source.
        let from = (fd >= 0)
            .then(|| bound(BorrowedFd::borrow_raw(fd)))
            .flatten();
        match ensure_split(fd, at, len, Purpose::Connect) {
            Ok(true) => {
                if let (Some(from), Some(client)) = (from, client())
                    && let Err(errno) = client.bind(BorrowedFd::borrow_raw(fd), from)
                {
                    return fail(errno);
                }
                point(|| sw_connect(fd, at, len))
            }
            Ok(false) => noted_connect(fd, library::connect(fd, at, len)),
            Err(errno) => fail(errno),
        }
    }
}

/// Reports whether a kernel socket is a listener, if listeners are counted.
fn listens(fd: c_int) -> bool {
    if fd < 0 || !tally::is_counting() {
        return false;
    }
    // SAFETY: the number is not -1; the kernel reports a closed one.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::net::sockopt::socket_acceptconn(fd) == Ok(true)
}

/// Counts a TCP socket that remains the kernel's after a successful call on it.
fn note_kernels(fd: c_int, what: Counted) {
    if tally::is_counting() {
        // SAFETY: the descriptor is open, since the call has succeeded.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        tally::count(what, usize::from(tcp_family(fd).is_some()));
    }
}

/// Counts a kernel connection if the call has started it; returns the call's result.
fn noted_connect(fd: c_int, done: c_int) -> c_int {
    if done == 0 || last_error() == Errno::INPROGRESS {
        note_kernels(fd, Counted::KernelConnections);
    }
    done
}

/// Converts a split socket back to a kernel socket if the peer's address requires it; true if done.
unsafe fn revert_for(fd: c_int, at: *const sockaddr, len: socklen_t) -> Result<bool, Errno> {
    // SAFETY: `at` has `len` readable bytes, by the caller's contract.
    let peer = unsafe { address_of(at, len) };
    // SAFETY: the number of a split socket is not -1.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match (client(), peer) {
        (Some(client), Some(peer)) => revert(client, fd, peer),
        _ => Ok(false),
    }
}

unsafe fn accept_split(fd: c_int, at: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the arguments are valid for accept4(2), by the caller's contract.
    let accepted = to_standard(unsafe { point(|| sw_accept4(fd, at, len, flags)) });
    streams::note_split(accepted);
    accepted
}

/// accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_accept(
    fd: c_int,
    at: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for accept(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            accept_split(fd, at, len, 0)
        } else {
            library::accept(fd, at, len)
        }
    }
}

/// accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_accept4(
    fd: c_int,
    at: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are valid for accept4(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            accept_split(fd, at, len, flags)
        } else {
            library::accept4(fd, at, len, flags)
        }
    }
}

/// getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_getsockname(
    fd: c_int,
    at: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for getsockname(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            sw_getsockname(fd, at, len)
        } else {
            kernel!(SYS_getsockname, fd, at, len) as c_int
        }
    }
}

/// getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_getpeername(
    fd: c_int,
    at: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for getpeername(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            sw_getpeername(fd, at, len)
        } else {
            kernel!(SYS_getpeername, fd, at, len) as c_int
        }
    }
}

/// shutdown(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_shutdown(fd: c_int, how: c_int) -> c_int {
    if is_split(fd) {
        return sw_shutdown(fd, how);
    }
    // SAFETY: it takes numbers.
    unsafe { kernel!(SYS_shutdown, fd, how) as c_int }
}
