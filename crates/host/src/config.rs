//! What a shard is told at its start.

use std::net::IpAddr;

/// Configuration of a [`crate::Stack`].
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Own addresses with the length of the on-link prefix, in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next hops for what is not on the link, at most one per address family.
    pub gateways: Vec<IpAddr>,
    /// TCP ports on which connections are accepted.
    pub listen_ports: Vec<u16>,
    /// TCP's parameters. `mss` is set by the stack from the link's MTU.
    pub tcp: tcp::Config,
    /// Most connections at once, half-open ones included. TIME-WAIT has a bound of its own.
    pub connections_max: usize,
    /// Secret from which initial sequence numbers (RFC 6528), timestamp offsets and hash keys are
    /// derived. Random in production; fixed in a simulation.
    pub secret: [u8; 16],
}

impl StackConfig {
    /// Default of [`StackConfig::connections_max`].
    pub const CONNECTIONS_MAX: usize = 1 << 17;

    /// True if the address is one of ours.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|&(address, _)| address == ip)
    }
}
