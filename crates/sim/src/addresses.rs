//! Addresses and ports of the server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The server's hardware address.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Address to which QUIC clients may migrate if the server prefers it.
pub(crate) const PREFERRED_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 7);
pub(crate) const PREFERRED_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 7);
pub(crate) const PORT: u16 = 80;
/// Port of the TLS listener.
pub(crate) const TLS_PORT: u16 = 443;
/// Port of a TLS 1.3 listener whose keys soon reach their record limit.
pub(crate) const WEARING_PORT: u16 = 8443;

/// Port of HTTP/3, over UDP.
pub(crate) const QUIC_PORT: u16 = 443;

/// Returns the server's address of a family.
pub(crate) fn address(ipv6: bool) -> IpAddr {
    if ipv6 {
        ADDRESS_V6.into()
    } else {
        ADDRESS_V4.into()
    }
}

/// Returns the preferred address of a family.
pub(crate) fn preferred(ipv6: bool) -> IpAddr {
    if ipv6 {
        PREFERRED_V6.into()
    } else {
        PREFERRED_V4.into()
    }
}
