//! Options that a program has set on a socket of the kernel before an address made it split.

use std::os::fd::{AsFd, BorrowedFd};

use capi::Family;
use capi::abi::{option_bytes_of, option_value_of};
use capi::client::{Client, OptionValue, is_of_descriptor};
use preload::kernels::{OPTIONS, make_settable, tcp_socket};
use rustix::io::Result;
use rustix::net::sockopt::{Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_nodelay};

use crate::sys;

/// The two options that the kernel needs as well, since it reads and writes.
const TIMEOUTS: [(i32, Timeout); 2] = [
    (libc::SO_RCVTIMEO, Timeout::Recv),
    (libc::SO_SNDTIMEO, Timeout::Send),
];

/// True for an option that the kernel needs as well.
pub(crate) fn is_timeout(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && TIMEOUTS.iter().any(|(timeout, _)| *timeout == name)
}

/// True for an option of the program's end of a pair alone.
pub(crate) fn is_of_pair(level: i32, name: i32) -> bool {
    is_of_descriptor(level, name)
}

/// True for an option of split sockets that is missing here: its bytes are in the pair.
pub(crate) fn is_missing(level: i32, name: i32) -> bool {
    (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
}

/// Returns `SO_RCVTIMEO` or `SO_SNDTIMEO` of a split socket.
pub(crate) fn timeout(
    client: &Client,
    split: BorrowedFd<'_>,
    name: i32,
) -> Option<std::time::Duration> {
    match client.option(split, libc::SOL_SOCKET, name) {
        Ok(OptionValue::Timeout(timeout)) => timeout,
        _ => None,
    }
}

/// Gives the program's end of a pair the timeouts of its split socket.
pub(crate) fn copy_timeouts(
    client: &Client,
    split: BorrowedFd<'_>,
    programs: BorrowedFd<'_>,
) -> Result<()> {
    for (name, which) in TIMEOUTS {
        if let Some(timeout) = timeout(client, split, name) {
            set_socket_timeout(programs, which, Some(timeout))?;
        }
    }
    Ok(())
}

/// Sets the options of a kernel socket that differ from a fresh socket's on a split socket. An
/// option without effect there is lost, as it would be if it were set now.
pub(crate) fn copy_to_split(
    client: &Client,
    (from, family): (BorrowedFd<'_>, Family),
    split: BorrowedFd<'_>,
) -> Result<()> {
    let fresh = tcp_socket(family)?;
    for (level, name) in OPTIONS {
        let found = sys::option_bytes(from, level, name);
        let usual = sys::option_bytes(fresh.as_fd(), level, name);
        let (Ok(mut found), Ok(usual)) = (found, usual) else {
            continue;
        };
        if found == usual {
            continue;
        }
        if is_missing(level, name) {
            continue;
        }
        make_settable(level, name, &mut found);
        if let Ok(value) = option_value_of(level, name, &found) {
            let _ = client.set_option(split, level, name, &value);
        }
    }
    Ok(())
}

/// Returns the value of an option of a split socket, as bytes.
pub(crate) fn bytes_of_split(
    client: &Client,
    split: BorrowedFd<'_>,
    level: i32,
    name: i32,
) -> Result<Vec<u8>> {
    let value = client.option(split, level, name)?;
    Ok(option_bytes_of(level, name, &value))
}

/// Sets the options of a split socket on one of the kernel's that takes its place.
pub(crate) fn copy_from_split(client: &Client, split: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let is_on = |level, name| match client.option(split, level, name) {
        Ok(OptionValue::Number(value)) => value != 0,
        _ => false,
    };
    // All other options keep the kernel's defaults.
    let _ = set_tcp_nodelay(to, is_on(libc::IPPROTO_TCP, libc::TCP_NODELAY));
    let _ = set_socket_keepalive(to, is_on(libc::SOL_SOCKET, libc::SO_KEEPALIVE));
    let _ = copy_timeouts(client, split, to);
}
