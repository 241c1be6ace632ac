//! Locks on addresses: two stacks that answer for the same address of a link would reset each
//! other's connections, so the second one does not start.
//!
//! A lock is an abstract Unix socket in the listening state. Its name belongs to the network
//! namespace in which it was opened, and the kernel releases it when the process ends, however it
//! ends.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::seqpacket;

/// A lock, released when dropped.
#[derive(Debug)]
pub struct AddressLock {
    _listener: OwnedFd,
}

/// Reason for refusing a lock.
#[derive(Debug, PartialEq, Eq)]
pub enum AddressLockError {
    /// Another process holds the lock: this one, if it is visible in our process namespace.
    Taken(Option<i32>),
    /// The kernel refuses.
    System(Errno),
}

impl AddressLock {
    /// Locks `name` in the thread's present network namespace.
    pub fn acquire(name: impl fmt::Display) -> Result<Self, AddressLockError> {
        let address = SocketAddrUnix::new_abstract_name(format!("splitway/{name}").as_bytes())
            .map_err(AddressLockError::System)?;
        let listener = seqpacket::non_blocking().map_err(AddressLockError::System)?;
        match rustix::net::bind(&listener, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(AddressLockError::Taken(owner(&address))),
            Err(errno) => return Err(AddressLockError::System(errno)),
        }
        rustix::net::listen(&listener, 128).map_err(AddressLockError::System)?;
        Ok(Self {
            _listener: listener,
        })
    }
}

/// Returns the process that listens on the socket, as the kernel noted it when listening began.
fn owner(address: &SocketAddrUnix) -> Option<i32> {
    let socket = seqpacket::non_blocking().ok()?;
    rustix::net::connect(&socket, address).ok()?;
    seqpacket::peer_pid(&socket)
}

impl fmt::Display for AddressLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(Some(pid)) => write!(f, "in use by another splitway (process {pid})"),
            Self::Taken(None) => f.write_str("in use by another splitway"),
            Self::System(errno) => write!(f, "locking it failed: {errno}"),
        }
    }
}

impl std::error::Error for AddressLockError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_exclusive_until_it_is_dropped() {
        let name = format!("test {:?}", std::thread::current().id());
        let own = rustix::process::getpid().as_raw_pid();
        let lock = AddressLock::acquire(&name).unwrap();
        assert_eq!(
            AddressLock::acquire(&name).unwrap_err(),
            AddressLockError::Taken(Some(own))
        );
        AddressLock::acquire(format!("{name} other")).unwrap();
        drop(lock);
        AddressLock::acquire(&name).unwrap();
    }
}
