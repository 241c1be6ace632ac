//! Ports that several sockets of one user share (`SO_REUSEPORT`). To the stack node, all programs
//! of this node belong to one user, that of the gate; so this node separates them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket_channel::SocketId;

/// The bound address of a socket that shares its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedPort {
    pub(crate) uid: u32,
    pub(crate) address: SocketAddr,
    pub(crate) v6_only: bool,
}

/// A bind(2) with `SO_REUSEPORT`, pending or successful.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    pub(crate) socket: SocketId,
    pub(crate) request: u32,
    pub(crate) port: SharedPort,
}

/// Addresses of a family: one, or all.
#[derive(Clone, Copy, Debug)]
enum Covered<A> {
    One(A),
    All,
}

impl<A: PartialEq> Covered<A> {
    fn of(address: A, unspecified: A) -> Covered<A> {
        if address == unspecified {
            Covered::All
        } else {
            Covered::One(address)
        }
    }

    fn overlaps(this: Option<Covered<A>>, other: Option<Covered<A>>) -> bool {
        match (this, other) {
            (Some(Covered::One(this)), Some(Covered::One(other))) => this == other,
            (Some(_), Some(_)) => true,
            _ => false,
        }
    }
}

impl SharedPort {
    /// Whether a connection could reach either socket, and they are of two users.
    pub(crate) fn conflicts(&self, other: &SharedPort) -> bool {
        let (port, other_port) = (self.address.port(), other.address.port());
        // Port 0 stands for a port that no other socket has.
        let is_same = port == other_port && port != 0;
        let (v4, v6) = self.covered();
        let (other_v4, other_v6) = other.covered();
        let overlaps = Covered::overlaps(v4, other_v4) || Covered::overlaps(v6, other_v6);
        self.uid != other.uid && is_same && overlaps
    }

    fn covered(&self) -> (Option<Covered<Ipv4Addr>>, Option<Covered<Ipv6Addr>>) {
        let (v4, v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        match self.address.ip().to_canonical() {
            IpAddr::V4(ip) => (Some(Covered::of(ip, v4)), None),
            IpAddr::V6(ip) if ip == v6 && !self.v6_only => (Some(Covered::All), Some(Covered::All)),
            IpAddr::V6(ip) => (None, Some(Covered::of(ip, v6))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(uid: u32, address: &str, v6_only: bool) -> SharedPort {
        SharedPort {
            uid,
            address: address.parse().unwrap(),
            v6_only,
        }
    }

    #[test]
    fn users_share_no_port_where_connections_could_come_to_both() {
        let conflicting = [
            ("0.0.0.0:80", "0.0.0.0:80", false),
            ("0.0.0.0:80", "10.0.0.1:80", false),
            ("10.0.0.1:80", "10.0.0.1:80", false),
            ("[::]:80", "10.0.0.1:80", false),
            ("[::]:80", "[::1]:80", true),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80", false),
        ];
        let apart = [
            ("0.0.0.0:80", "0.0.0.0:81", false),
            ("0.0.0.0:0", "0.0.0.0:0", false),
            ("10.0.0.1:80", "10.0.0.2:80", false),
            ("[::]:80", "10.0.0.1:80", true),
            ("[::1]:80", "0.0.0.0:80", false),
        ];
        for (pairs, is_conflict) in [(&conflicting[..], true), (&apart[..], false)] {
            for (one, other, v6_only) in pairs {
                let (mine, theirs) = (port(1, one, *v6_only), port(2, other, *v6_only));
                assert_eq!(mine.conflicts(&theirs), is_conflict, "{one} {other}");
                assert_eq!(theirs.conflicts(&mine), is_conflict, "{other} {one}");
                assert!(!mine.conflicts(&port(1, other, *v6_only)), "of one user");
            }
        }
    }
}
