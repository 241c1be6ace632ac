//! TCP sockets of the kernel's, in whose place split ones are put: what they are, where they are,
//! and which of their options split sockets have as well.

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

/// Of `linux/tcp.h`.
const TCP_NOTSENT_LOWAT: c_int = 25;

/// Bytes of the largest of their values.
pub const VALUE_BYTES: usize = size_of::<libc::timeval>();

/// Makes what a socket says of an option what is to be set on another: of a buffer it says twice
/// what was asked for (socket(7)).
pub fn make_settable(level: c_int, name: c_int, value: &mut [u8]) {
    let is_buffer = [libc::SO_RCVBUF, libc::SO_SNDBUF].contains(&name);
    if level == libc::SOL_SOCKET
        && is_buffer
        && let Some(number) = value.first_chunk_mut()
    {
        *number = (i32::from_ne_bytes(*number) / 2).to_ne_bytes();
    }
}

/// The family of a stream socket of one of these protocols.
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

/// Where a socket is bound.
pub fn bound(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
    (address.port() != 0 || !address.ip().is_unspecified()).then_some(address)
}

/// Where the kernel binds a socket that is to listen without an address: all addresses, and a port
/// that it chooses.
pub fn unspecified(family: Family) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// A new TCP socket.
pub fn tcp_socket(family: Family) -> Result<OwnedFd> {
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    socket_with(domain, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}
