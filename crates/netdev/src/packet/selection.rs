//! Which frames a tap takes in.

use std::net::IpAddr;

/// Which frames a tap is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<'a> {
    /// Those that a port with these addresses receives.
    Received(&'a [IpAddr]),
    /// Those that ports with this mark send.
    SentWithMark(u32),
    /// All that this machine sends from these addresses, and ARP.
    SentFrom(&'a [IpAddr]),
}

/// Which of them, if not all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// IP packets from or to this address.
    pub host: Option<IpAddr>,
    /// TCP segments and UDP datagrams from or to this port.
    pub port: Option<u16>,
}
