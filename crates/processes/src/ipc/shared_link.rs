//! Settings of the processes that have ports on an interface whose addresses the stack shares with
//! the kernel. The set of addresses comes as a descriptor of its own.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use netdev::steering::{Share, SharedPorts};
use netsetup::cidr::Cidr;
use serde::{Deserialize, Serialize};

use crate::ipc::sealed;
use config::Text;

/// The stack's ports of shared addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLink {
    /// TCP ports of listeners.
    pub tcp: Vec<u16>,
    /// UDP ports.
    pub udp: Vec<u16>,
    /// First and last port of connections that the stack opens; `None` if it opens none.
    pub local: Option<(u16, u16)>,
}

impl SharedLink {
    /// Returns the ports for programs that take frames.
    pub fn ports(&self) -> SharedPorts {
        SharedPorts {
            tcp: self.tcp.clone(),
            udp: self.udp.clone(),
            local: self.local.map(|(first, last)| first..=last),
        }
    }
}

/// The ports and the set of addresses in a process.
#[derive(Debug)]
pub struct Shared {
    ports: SharedPorts,
    addresses: OwnedFd,
}

impl Shared {
    /// Puts the two together.
    pub fn new(link: &SharedLink, addresses: OwnedFd) -> Self {
        Self {
            ports: link.ports(),
            addresses,
        }
    }

    /// Returns both for opening a port.
    pub fn share(&self) -> Share<'_> {
        Share {
            addresses: self.addresses.as_fd(),
            ports: &self.ports,
        }
    }
}

/// Addresses and gateways of the stack, in transit to the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewAddresses {
    /// With their on-link prefixes.
    pub addresses: Vec<Text<Cidr>>,
    /// At most one for each family.
    pub gateways: Vec<IpAddr>,
}

const WHAT: &str = "addresses of the interface";

impl NewAddresses {
    /// Encodes a message for the host process.
    pub fn message(&self) -> Result<OwnedFd, Failure> {
        let bytes = serde_json::to_vec(self).map_err(|error| Failure::broken(WHAT, error))?;
        sealed::write(&[&bytes]).map_err(|error| Failure::broken(WHAT, error))
    }

    /// Decodes it.
    pub fn read(message: &OwnedFd) -> Result<Self, Failure> {
        let bytes = sealed::read(message).map_err(|error| Failure::broken(WHAT, error))?;
        serde_json::from_slice(&bytes).map_err(|error| Failure::broken(WHAT, error))
    }
}
