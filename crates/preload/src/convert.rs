//! A split socket in the place of one of the kernel's: it has its number, its flags, the options
//! that were set, and its place in an epoll set.

use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use capi::Family;
use capi::abi::sw_setsockopt;
use capi::client::{DescriptorFlags, EpollChange, EpollEvent};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, FdFlags, Result, fcntl_getfd};
use rustix::net::sockopt::{socket_domain, socket_protocol, socket_type};
use rustix::net::{AddressFamily, SocketType, getsockname, ipproto};

use crate::kernel::kernel;
use crate::pending;
use crate::settings::settings;
use crate::start::complain;

/// Options that a program may set before an address is known: level and name.
const OPTIONS: [(libc::c_int, libc::c_int); 18] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
];

const TCP_NOTSENT_LOWAT: libc::c_int = 25;

/// Bytes of the largest of their values.
const VALUE_BYTES: usize = size_of::<libc::timeval>();

/// The direction that an address is used in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Listen,
    Connect,
}

/// A TCP socket of the kernel's: its family.
fn tcp_family(fd: BorrowedFd<'_>) -> Option<Family> {
    let family = match socket_domain(fd).ok()? {
        AddressFamily::INET => Family::V4,
        AddressFamily::INET6 => Family::V6,
        _ => return None,
    };
    let is_tcp =
        socket_type(fd) == Ok(SocketType::STREAM) && socket_protocol(fd) == Ok(Some(ipproto::TCP));
    is_tcp.then_some(family)
}

/// Makes a socket of the kernel's split if a rule holds the address. True if it is split then.
///
/// Fails if the host stack gives no socket: it never stays with the kernel silently.
pub(crate) fn convert(fd: BorrowedFd<'_>, address: SocketAddr, purpose: Purpose) -> Result<bool> {
    let Some(settings) = settings() else {
        return Ok(false);
    };
    let rules = match purpose {
        Purpose::Listen => &settings.listen,
        Purpose::Connect => &settings.connect,
    };
    if !rules.hold(address) {
        return Ok(false);
    }
    let Some(family) = tcp_family(fd) else {
        return Ok(false);
    };
    replace(fd, family).inspect_err(|errno| {
        let verb = match purpose {
            Purpose::Listen => "bind to",
            Purpose::Connect => "connect to",
        };
        let why = match capi::abi::init_error() {
            why if why.is_empty() => errno.to_string(),
            why => why,
        };
        complain(&format!(
            "cannot {verb} {address} on the split stack: {why}"
        ));
    })?;
    Ok(true)
}

/// Where a socket of the kernel's is bound.
pub(crate) fn bound(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
    (address.port() != 0 || !address.ip().is_unspecified()).then_some(address)
}

fn replace(fd: BorrowedFd<'_>, family: Family) -> Result<()> {
    let client = capi::abi::attach_from_environment()?;
    let flags = DescriptorFlags {
        nonblocking: fcntl_getfl(fd)?.contains(OFlags::NONBLOCK),
        close_on_exec: fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC),
    };
    let new = client.socket(family, flags)?;
    copy_options(fd, new.as_raw_fd(), family)?;
    let cloexec = if flags.close_on_exec {
        libc::O_CLOEXEC
    } else {
        0
    };
    // SAFETY: both are open; what the program has at this number is the split socket from now on.
    if unsafe { kernel!(SYS_dup3, new.as_raw_fd(), fd.as_raw_fd(), cloexec) } < 0 {
        return Err(last_error());
    }
    let interest = pending::remove(fd.as_raw_fd());
    // SAFETY: the number is a duplicate, which is given back to the program below.
    let own = unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) };
    let own = client.note_duplicate(std::os::fd::AsFd::as_fd(&new), own);
    own.map(std::os::fd::IntoRawFd::into_raw_fd)?;
    client.close(new)?;
    if let Some(interest) = interest {
        // SAFETY: a number of the program's; that it is open is looked at by the call.
        let epoll = unsafe { BorrowedFd::borrow_raw(interest.epoll) };
        let event = EpollEvent {
            events: interest.events,
            data: interest.data,
        };
        client.epoll_extend(epoll)?;
        client.epoll_change(epoll, fd, EpollChange::Add(event))?;
    }
    Ok(())
}

/// Sets the options that differ from those of a new socket.
fn copy_options(from: BorrowedFd<'_>, to: libc::c_int, family: Family) -> Result<()> {
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let fresh = rustix::net::socket_with(domain, SocketType::STREAM, flags, None)?;
    for (level, name) in OPTIONS {
        let (Some(value), Some(usual)) = (
            option(from.as_raw_fd(), level, name),
            option(fresh.as_raw_fd(), level, name),
        ) else {
            continue;
        };
        if value == usual {
            continue;
        }
        let (mut bytes, len) = value;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVBUF)
            || (level, name) == (libc::SOL_SOCKET, libc::SO_SNDBUF)
        {
            // What the kernel says is twice what was asked for (socket(7)).
            if let Some(number) = bytes.first_chunk_mut() {
                *number = (i32::from_ne_bytes(*number) / 2).to_ne_bytes();
            }
        }
        // One that has no effect here has none, as it would have had if it were set now.
        // SAFETY: the pointer and the length are those of an array.
        let _ = unsafe { sw_setsockopt(to, level, name, bytes.as_ptr().cast(), len) };
    }
    Ok(())
}

/// The value of an option of a socket of the kernel's, and its length.
fn option(
    fd: libc::c_int,
    level: libc::c_int,
    name: libc::c_int,
) -> Option<([u8; VALUE_BYTES], libc::socklen_t)> {
    let mut bytes = [0; VALUE_BYTES];
    let mut len = VALUE_BYTES as libc::socklen_t;
    let at = bytes.as_mut_ptr();
    // SAFETY: the pointers are those of an array and of its length.
    let got = unsafe { kernel!(SYS_getsockopt, fd, level, name, at, &raw mut len) };
    (got == 0).then_some((bytes, len))
}

/// The error of a system call that has just failed.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
