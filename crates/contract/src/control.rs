//! The hello: how a host stack and a NIC stack meet over a Unix socket (`SOCK_SEQPACKET`).
//!
//! The NIC stack speaks first: version and number of workers. The host stack answers with version and
//! epoch, and passes for every worker a sealed memory file and two event descriptors. The socket then
//! stays open; its end tells each side that the other is gone.

use std::os::fd::OwnedFd;

use crate::channel::{HostChannel, NicChannel};

/// What can go wrong in the hello.
#[derive(Debug)]
pub enum HelloError {
    /// A system call failed.
    Io {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The peer speaks another version.
    Version {
        /// The peer's.
        peer: u16,
    },
    /// The peer sent something that is not a hello.
    Malformed,
    /// The peer closed the socket.
    Closed,
    /// The peer said nothing for [`crate::limits::HELLO_SECONDS_MAX`].
    Silent,
    /// More workers than [`crate::limits::WORKERS_MAX`], or none.
    Workers {
        /// How many.
        workers: usize,
    },
}

/// What the host stack learns.
#[derive(Debug)]
pub struct HostSession {
    /// One channel per worker, in the workers' order.
    pub channels: Vec<HostChannel>,
    /// Hangs up when the NIC stack is gone.
    pub socket: OwnedFd,
}

/// What the NIC stack learns.
#[derive(Debug)]
pub struct NicSession {
    /// One channel per worker, in the workers' order.
    pub channels: Vec<NicChannel>,
    /// The host's epoch.
    pub epoch: u64,
    /// Hangs up when the host stack is gone.
    pub socket: OwnedFd,
}

/// The host's part. Blocks until the NIC stack has spoken.
pub fn host_hello(_socket: OwnedFd, _epoch: u64) -> Result<HostSession, HelloError> {
    todo!()
}

/// The NIC stack's part. Blocks until the host has answered.
pub fn nic_hello(_socket: OwnedFd, _workers: usize) -> Result<NicSession, HelloError> {
    todo!()
}
