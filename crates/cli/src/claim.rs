//! Claims on addresses: two stacks that answer for the same address of a link would reset each other's
//! connections, so the second one must be told before it starts.
//!
//! A claim is an abstract Unix socket that somebody listens on. Its name belongs to the network namespace
//! in which it was opened, and the kernel gives it back when the process is gone, however it went.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::socket;

/// A claim, given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _listener: OwnedFd,
}

/// Why a claim was not granted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClaimError {
    /// Another process has it: this one, if the kernel can tell in our process namespace.
    Taken(Option<i32>),
    System(Errno),
}

impl Claim {
    /// Claims `name` in the thread's present network namespace.
    pub(crate) fn take(name: impl fmt::Display) -> Result<Self, ClaimError> {
        let address = SocketAddrUnix::new_abstract_name(format!("splitway/{name}").as_bytes())
            .map_err(ClaimError::System)?;
        let listener = socket::non_blocking().map_err(ClaimError::System)?;
        match rustix::net::bind(&listener, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(ClaimError::Taken(owner(&address))),
            Err(errno) => return Err(ClaimError::System(errno)),
        }
        rustix::net::listen(&listener, 128).map_err(ClaimError::System)?;
        Ok(Self {
            _listener: listener,
        })
    }
}

/// Whoever listens on the socket, as the kernel noted it when listening began.
fn owner(address: &SocketAddrUnix) -> Option<i32> {
    let socket = socket::non_blocking().ok()?;
    rustix::net::connect(&socket, address).ok()?;
    socket::peer_pid(&socket)
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(Some(pid)) => write!(f, "in use by another splitway (process {pid})"),
            Self::Taken(None) => f.write_str("in use by another splitway"),
            Self::System(errno) => write!(f, "claiming it failed: {errno}"),
        }
    }
}

impl std::error::Error for ClaimError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_exclusive_until_it_is_dropped() {
        let name = format!("test {:?}", std::thread::current().id());
        let own = rustix::process::getpid().as_raw_pid();
        let claim = Claim::take(&name).unwrap();
        assert_eq!(
            Claim::take(&name).unwrap_err(),
            ClaimError::Taken(Some(own))
        );
        Claim::take(format!("{name} other")).unwrap();
        drop(claim);
        Claim::take(&name).unwrap();
    }
}
