//! Buffer sizes of packet sockets, beyond the system's limit where that is permitted.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;

/// Sets the bytes for frames that have arrived, as the kernel counts them.
pub(super) fn enlarge_receive(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    // Beyond the limit only with CAP_NET_ADMIN; without, the kernel lowers the size to the limit.
    sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))
}

/// Sets the bytes for frames on their way out, as the kernel counts them.
pub(super) fn enlarge_send(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes))
}
