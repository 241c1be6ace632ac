//! Selection of the frames that a tap takes.

use std::net::IpAddr;

/// Direction and ports of the frames that a tap takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<'a> {
    /// Frames that a port with these addresses receives.
    Received(&'a [IpAddr]),
    /// Frames that ports with this mark send.
    SentWithMark(u32),
    /// All frames that this machine sends from these addresses, and ARP.
    SentFrom(&'a [IpAddr]),
}

/// Restriction to some of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// IP packets from or to this address.
    pub host: Option<IpAddr>,
    /// TCP segments and UDP datagrams from or to this port.
    pub port: Option<u16>,
}
