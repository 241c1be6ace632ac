//! Recognition of handles by the name of their other end (`handle_name` of the channel).

use std::os::fd::BorrowedFd;

use rustix::net::SocketAddrUnix;
use socket_channel::attach::Key;
use socket_channel::{HandleId, handle_name};

/// Returns the handle, of the application with `key`, that a descriptor is by its name.
pub(crate) fn handle_of(fd: BorrowedFd<'_>, key: &Key) -> Option<HandleId> {
    handle_name::decode(key, handle_name_of(fd)?.abstract_name()?)
}

/// Reports whether a descriptor has the name of a handle, of any application.
pub(crate) fn is_handle(fd: BorrowedFd<'_>) -> bool {
    handle_name_of(fd).is_some()
}

/// Returns the name of a descriptor's other end, if it is that of a handle.
pub(crate) fn handle_name_of(fd: BorrowedFd<'_>) -> Option<SocketAddrUnix> {
    let name = SocketAddrUnix::try_from(rustix::net::getpeername(fd).ok()??).ok()?;
    let is_handle = |name: &[u8]| name.starts_with(handle_name::PREFIX.as_bytes());
    name.abstract_name().is_some_and(is_handle).then_some(name)
}
