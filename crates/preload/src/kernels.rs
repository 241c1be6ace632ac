//! Kernel TCP sockets that split sockets replace: their family, their address, and the options that
//! split sockets share.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use capi::Family;
use libc::c_int;
use rustix::io::Result;
use rustix::net::sockopt::{socket_domain, socket_protocol, socket_type};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, getsockname, socket_with};

/// Options that a program may set before an address is known: level and name.
pub const OPTIONS: [(c_int, c_int); 25] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
];

/// From `linux/tcp.h`.
const TCP_NOTSENT_LOWAT: c_int = 25;

/// Size of the largest option value, in bytes.
pub const VALUE_BYTES: usize = size_of::<libc::timeval>();

/// Converts an option's reported value to the value to set: for buffers the kernel reports twice
/// the requested size (socket(7)).
pub fn make_settable(level: c_int, name: c_int, value: &mut [u8]) {
    let is_buffer = [libc::SO_RCVBUF, libc::SO_SNDBUF].contains(&name);
    if level == libc::SOL_SOCKET
        && is_buffer
        && let Some(number) = value.first_chunk_mut()
    {
        *number = (i32::from_ne_bytes(*number) / 2).to_ne_bytes();
    }
}

/// Returns the family of a stream socket whose protocol is one of `protocols`.
pub fn stream_family(fd: BorrowedFd<'_>, protocols: &[Protocol]) -> Option<Family> {
    let family = match socket_domain(fd).ok()? {
        AddressFamily::INET => Family::V4,
        AddressFamily::INET6 => Family::V6,
        _ => return None,
    };
    let protocol = socket_protocol(fd).ok()??;
    let is_one = protocols.contains(&protocol) && socket_type(fd) == Ok(SocketType::STREAM);
    is_one.then_some(family)
}

/// Returns the bound address of a socket, if any.
pub fn bound(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
    (address.port() != 0 || !address.ip().is_unspecified()).then_some(address)
}

/// Returns the address to which the kernel binds a socket that listens without one: all addresses,
/// and a port of the kernel's choice.
pub fn unspecified(family: Family) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// Opens a new TCP socket.
pub fn tcp_socket(family: Family) -> Result<OwnedFd> {
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    socket_with(domain, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}
