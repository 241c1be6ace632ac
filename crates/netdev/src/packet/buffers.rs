//! How much the kernel keeps for a packet socket, beyond the limit for everybody where it may be.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;

/// Bytes for frames that have arrived, as the kernel counts them.
pub(super) fn enlarge_receive(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    // Beyond the limit only with CAP_NET_ADMIN; without, the kernel takes what it allows.
    sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))
}

/// Bytes for frames on their way out, as the kernel counts them.
pub(super) fn enlarge_send(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes))
}
