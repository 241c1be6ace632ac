//! The identity of a connection on the wire.

use std::net::SocketAddr;

use wire::frame::{TcpPacket, TcpTemplate};

/// Addresses and ports of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Addresses {
    local: SocketAddr,
    remote: SocketAddr,
}

impl Addresses {
    /// Returns the addresses and ports of packets that are sent.
    pub(crate) fn of(template: &TcpTemplate) -> Addresses {
        Addresses {
            local: template.source,
            remote: template.destination,
        }
    }

    /// Returns the addresses and ports of the connection that an arrived packet belongs to.
    pub(crate) fn of_arriving(packet: &TcpPacket<'_>) -> Addresses {
        let header = &packet.segment.header;
        Addresses {
            local: SocketAddr::new(packet.destination, header.destination_port),
            remote: SocketAddr::new(packet.source, header.source_port),
        }
    }
}
