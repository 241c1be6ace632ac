//! The preferred address (RFC 9000 §9.6), to which clients with support for it migrate once their
//! handshake is confirmed.
//!
//! quinn-proto announces it, but tells paths apart by the peer's address alone. Packets to the
//! preferred address therefore get another source address, an *alias* of the peer's, so that
//! quinn-proto sees a separate path: responses to challenges go back on it, only authenticated
//! packets migrate to it, the highest packet number decides (§9.3), and the amplification limit
//! holds until it is validated (§8.2).
//!
//! Until the peer has answered a challenge from the preferred address, non-probing packets leave
//! from the address of the handshake (§9.6.2). A connection that has moved does not move back:
//! packets to the address of the handshake are dropped.
//!
//! ```text
//!  client                                    address of the handshake   preferred address
//!    PATH_CHALLENGE ------------------------------------------------------> on_datagram
//!    <---------------------------------------------------------------- PATH_RESPONSE
//!    anything that is more than a probe ----------------------------------> engine: migrates
//!    <---------------------------------------------------------------- PATH_CHALLENGE
//!    <-------------------------------------- STREAM, ACK
//!    PATH_RESPONSE -------------------------------------------------------> has_moved
//!    <---------------------------------------------------------------- STREAM, ACK
//! ```

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::config::PreferredAddress;
use crate::engine::amplification::AmplificationLimit;
use crate::frames::{PathToken, Probe};

/// Flow labels that mark aliases, by family. No real peer address has one.
const ALIAS_V4: u32 = 1;
const ALIAS_V6: u32 = 2;

/// The address that quinn-proto sees for a peer that sends to the preferred address.
pub(super) fn alias(remote: SocketAddr) -> SocketAddr {
    let (ip, label) = match remote.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), ALIAS_V4),
        IpAddr::V6(ip) => (ip, ALIAS_V6),
    };
    SocketAddrV6::new(ip, remote.port(), label, 0).into()
}

pub(super) fn is_alias(remote: SocketAddr) -> bool {
    matches!(remote, SocketAddr::V6(it) if it.flowinfo() != 0)
}

/// The peer's real address, from itself or from its alias.
pub(super) fn real(remote: SocketAddr) -> SocketAddr {
    match remote {
        SocketAddr::V6(it) if it.flowinfo() == ALIAS_V4 => {
            SocketAddr::new(it.ip().to_canonical(), it.port())
        }
        SocketAddr::V6(it) => SocketAddrV6::new(*it.ip(), it.port(), 0, it.scope_id()).into(),
        SocketAddr::V4(_) => remote,
    }
}

impl PreferredAddress {
    /// The preferred address for a peer of this IP version.
    fn towards(&self, remote: SocketAddr) -> Option<IpAddr> {
        match remote {
            SocketAddr::V4(_) => self.v4.map(IpAddr::V4),
            SocketAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// True if `local` is a preferred address.
    pub(super) fn is(&self, local: Option<IpAddr>) -> bool {
        local.is_some_and(|local| match local {
            IpAddr::V4(ip) => self.v4 == Some(ip),
            IpAddr::V6(ip) => self.v6 == Some(ip),
        })
    }
}

/// The peer's address, and the server's.
pub(super) type Path = (SocketAddr, Option<IpAddr>);

/// The migration state of a connection that began elsewhere.
#[derive(Debug)]
pub(super) struct Preferred {
    address: PreferredAddress,
    /// The server's address in the handshake.
    home: Option<IpAddr>,
    /// The peer's address when quinn-proto last had it at `home`.
    origin: SocketAddr,
    /// The last alias that sent something, with its amplification limit.
    seen: Option<(SocketAddr, AmplificationLimit)>,
    /// A challenge sent from the preferred address, and its alias.
    challenge: Option<(PathToken, SocketAddr)>,
    has_moved: bool,
}

impl Preferred {
    /// For a connection that began with this peer, at this address of the server.
    pub(super) fn new(address: PreferredAddress, (origin, home): Path) -> Self {
        Self {
            address,
            home,
            origin,
            seen: None,
            challenge: None,
            has_moved: false,
        }
    }

    /// A datagram of `bytes` bytes has come from a peer or an alias, while quinn-proto has the peer
    /// at `current`. False if the connection drops it.
    pub(super) fn admits(&mut self, remote: SocketAddr, bytes: usize, current: SocketAddr) -> bool {
        if !is_alias(current) {
            self.origin = current;
        }
        if !is_alias(remote) {
            return !self.has_moved;
        }
        match &mut self.seen {
            Some((seen, limit)) if *seen == remote => limit.on_received(bytes),
            _ => {
                let is_validated = real(remote) == self.origin;
                self.seen = Some((remote, AmplificationLimit::new(is_validated, bytes)));
            }
        }
        true
    }

    /// The unanswered challenge, while quinn-proto has the peer at `current`.
    pub(super) fn awaited(&mut self, current: SocketAddr) -> Option<PathToken> {
        // A challenge is void once the peer has left that path.
        self.challenge.take_if(|(_, alias)| *alias != current);
        self.challenge.map(|(token, _)| token)
    }

    /// The peer has answered: the connection has moved.
    pub(super) fn on_answered(&mut self) {
        self.challenge = None;
        self.has_moved = true;
    }

    /// The path of non-probing packets, while quinn-proto has the peer at `current`.
    pub(super) fn path(&self, current: SocketAddr) -> Path {
        let remote = real(current);
        match self.address.towards(remote) {
            Some(local) if self.has_moved => (remote, Some(local)),
            _ if is_alias(current) => (self.origin, self.home),
            _ => (remote, self.home),
        }
    }

    /// The path of a transmission of `bytes` bytes to `to`. `probe`: set for a probing packet.
    pub(super) fn route(
        &mut self,
        to: SocketAddr,
        bytes: usize,
        probe: Option<Probe>,
        current: SocketAddr,
    ) -> Path {
        let Some(probe) = probe.filter(|_| !self.has_moved) else {
            return self.path(to);
        };
        // After a migration quinn-proto challenges the old path in a probing packet, and the new
        // one in a non-probing packet, which must not leave from the preferred address yet. So the
        // challenge for the old path goes out on the new one.
        let is_of_old_path = !is_alias(to) && is_alias(current) && probe.challenge.is_some();
        let to = if is_of_old_path && self.may_send(current, bytes) {
            current
        } else {
            to
        };
        if !is_alias(to) {
            return (to, self.home);
        }
        if let Some(token) = probe.challenge {
            self.challenge = Some((token, to));
        }
        let remote = real(to);
        (remote, self.address.towards(remote).or(self.home))
    }

    fn may_send(&mut self, alias: SocketAddr, bytes: usize) -> bool {
        match &mut self.seen {
            Some((seen, limit)) if *seen == alias && limit.datagrams_max(bytes, 1) == 1 => {
                limit.on_sent(bytes);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::quic::QuicConnectionId;
    use tcp::Instant;

    use super::*;
    use crate::config::Settings;
    use crate::engine::Endpoint;
    use crate::engine::tests::{NOW, connected_at, deliver_to};
    use crate::types::{Arrival, EventKind, Handle, Opened, Output, Segment};

    const PING: &[u8] = &[1];
    const TOKEN: PathToken = [8, 7, 6, 5, 4, 3, 2, 1];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn home() -> IpAddr {
        ip("192.0.2.2")
    }

    fn there() -> IpAddr {
        ip("198.51.100.7")
    }

    fn settings() -> Settings {
        Settings {
            preferred_address: PreferredAddress {
                v4: Some("198.51.100.7".parse().expect("an address")),
                v6: None,
                port: 443,
            },
            ..Settings::default()
        }
    }

    /// A packet that was sent.
    #[derive(Debug)]
    struct Left {
        remote: SocketAddr,
        local: IpAddr,
        plaintext: Vec<u8>,
    }

    impl Left {
        fn is_probe(&self) -> bool {
            crate::frames::probe(&self.plaintext).is_some()
        }

        fn challenge(&self) -> Option<PathToken> {
            crate::frames::probe(&self.plaintext)?.challenge
        }
    }

    /// An endpoint, and a connection whose client the test plays.
    struct Scene {
        endpoint: Endpoint,
        connection: Handle,
        id: QuicConnectionId,
        remote: SocketAddr,
        now: Instant,
        next: u64,
    }

    impl Scene {
        fn new(begins_at: IpAddr) -> Self {
            let (mut endpoint, mut client) = connected_at(Some(begins_at), &settings());
            client.request(b"file").expect("a stream");
            deliver_to(Some(begins_at), &mut client, &mut endpoint);
            let opened = std::iter::from_fn(|| endpoint.poll_event());
            let opened = opened.filter(|event| matches!(event.kind, EventKind::Opened(_)));
            let connection = opened.last().expect("a stream").connection;
            let id = endpoint.connection_ids(connection).next();
            let mut scene = Self {
                next: endpoint.next_received(connection),
                endpoint,
                connection,
                id: id.expect("it has IDs"),
                remote: client.local,
                now: NOW,
            };
            scene.left();
            scene
        }

        /// A packet of the client arrives at an address of the server. False if it is dropped.
        fn arrive(&mut self, local: IpAddr, number: u64, plaintext: &[u8]) -> bool {
            let arrival = Arrival {
                remote: self.remote,
                local_ip: Some(local),
                ecn: None,
            };
            let opened = Opened {
                arrived: self.now,
                generation: 0,
                number,
                id: &self.id,
                first: 0x41,
                plaintext,
            };
            let Self {
                endpoint,
                connection,
                ..
            } = self;
            endpoint.on_opened(self.now, *connection, &arrival, &opened)
        }

        /// The same, with the next packet number.
        fn arrive_next(&mut self, local: IpAddr, plaintext: &[u8]) -> bool {
            self.next += 1;
            self.arrive(local, self.next - 1, plaintext)
        }

        fn left(&mut self) -> Vec<Left> {
            let mut left = Vec::new();
            while let Some(output) = self.endpoint.poll_output(self.now) {
                let Output::Send(send) = output else {
                    continue;
                };
                for packet in send.packets() {
                    let mut plaintext = Vec::new();
                    for segment in packet.segments() {
                        match segment {
                            Segment::Inline(bytes) => plaintext.extend_from_slice(bytes),
                            Segment::File { .. } => panic!("there is no file"),
                        }
                    }
                    left.push(Left {
                        remote: send.route.remote,
                        local: send.route.local_ip.expect("an address"),
                        plaintext,
                    });
                }
                self.endpoint.on_departed(send.connection, send.id);
            }
            left
        }

        fn path(&self) -> (SocketAddr, IpAddr) {
            let path = self.endpoint.addresses(self.connection);
            let (remote, local) = path.expect("a connection");
            (remote, local.expect("an address"))
        }

        /// The challenge sent from the preferred address, which must be alone. All else leaves from
        /// the address of the handshake.
        fn challenged(&mut self) -> Option<PathToken> {
            let left = self.left();
            let (probes, others): (Vec<_>, Vec<_>) = left.iter().partition(|it| it.is_probe());
            assert!(others.iter().all(|it| it.local == home()), "{left:?}");
            let mut probes = probes.into_iter().filter(|it| it.local == there());
            let challenge = probes.find_map(Left::challenge);
            assert!(probes.next().is_none(), "{left:?}");
            challenge
        }
    }

    fn with_token(kind: u8, token: PathToken) -> Vec<u8> {
        let mut plaintext = vec![0; 1150];
        plaintext[0] = kind;
        plaintext[1..9].copy_from_slice(&token);
        plaintext
    }

    fn challenge() -> Vec<u8> {
        with_token(0x1a, TOKEN)
    }

    fn answer(token: PathToken) -> Vec<u8> {
        with_token(0x1b, token)
    }

    #[test]
    fn an_alias_leads_back_to_its_peer() {
        for peer in [
            "192.0.2.1:5000",
            "[2001:db8::1]:5000",
            "[::ffff:192.0.2.1]:5",
        ] {
            let peer: SocketAddr = peer.parse().expect("an address");
            assert!(is_alias(alias(peer)) && !is_alias(peer));
            assert_ne!(alias(peer), peer);
            assert_eq!((real(alias(peer)), real(peer)), (peer, peer));
        }
    }

    /// RFC 9000 §9.6.2, step by step.
    #[test]
    fn a_connection_moves_once_its_path_is_validated() {
        let mut scene = Scene::new(home());
        let remote = scene.remote;
        assert!(scene.arrive_next(there(), &challenge()));
        let left = scene.left();
        let answered = left.iter().find(|it| it.local == there());
        let answered = answered.expect("an answer");
        assert!(answered.is_probe() && answered.plaintext.starts_with(&answer(TOKEN)[..9]));
        assert_eq!(answered.remote, remote);
        assert_eq!(scene.path(), (remote, home()));
        // The client has moved.
        assert!(scene.arrive_next(there(), PING));
        let token = scene.challenged().expect("a challenge");
        assert_eq!(scene.path(), (remote, home()));
        // Neither the number of another challenge nor a late packet changes anything.
        assert!(scene.arrive_next(there(), &answer(TOKEN)));
        scene.next += 10;
        assert!(scene.arrive(there(), scene.next - 1, PING));
        assert!(scene.arrive(home(), scene.next - 5, PING));
        assert_eq!(scene.challenged(), None);
        assert_eq!(scene.path(), (remote, home()));
        // So has the server.
        assert!(scene.arrive_next(there(), &answer(token)));
        assert_eq!(scene.path(), (remote, there()));
        let left = scene.left();
        assert!(left.iter().all(|it| it.local == there()), "{left:?}");
        let engines = left.iter().any(|it| it.plaintext.contains(&0x1a));
        assert!(engines, "the engine's own challenge: {left:?}");
    }

    #[test]
    fn a_connection_that_has_moved_stays() {
        let mut scene = Scene::new(home());
        let remote = scene.remote;
        scene.arrive_next(there(), PING);
        let token = scene.challenged().expect("a challenge");
        scene.arrive_next(there(), &answer(token));
        assert_eq!(scene.path(), (remote, there()));
        scene.left();
        for plaintext in [PING, &challenge()] {
            assert!(!scene.arrive_next(home(), plaintext));
            assert!(scene.left().is_empty());
        }
        // The challenge was never answered: the engine gives up the path.
        scene.now = Instant::from_us(scene.now.as_us() + 20_000_000);
        scene.endpoint.on_timeout(scene.now);
        scene.left();
        assert_eq!(scene.path(), (remote, there()));
        // The client may have another address on the new path.
        scene.remote.set_port(6000);
        scene.arrive_next(there(), PING);
        assert_eq!(scene.path(), (scene.remote, there()));
        let left = scene.left();
        assert!(left.iter().all(|it| it.local == there()), "{left:?}");
        assert!(left.iter().any(|it| it.remote == scene.remote));
    }

    #[test]
    fn a_client_that_goes_on_elsewhere_has_not_moved() {
        let mut scene = Scene::new(home());
        let remote = scene.remote;
        scene.arrive_next(there(), PING);
        let token = scene.challenged().expect("a challenge");
        scene.arrive_next(home(), PING);
        scene.left();
        scene.arrive_next(there(), &answer(token));
        assert_eq!(scene.path(), (remote, home()));
        let left = scene.left();
        assert!(left.iter().all(|it| it.local == home()), "{left:?}");
    }

    #[test]
    fn a_challenge_whose_answer_is_lost_is_followed_by_another() {
        let mut scene = Scene::new(home());
        scene.arrive_next(there(), PING);
        let lost = scene.challenged().expect("a challenge");
        scene.now = Instant::from_us(scene.now.as_us() + 10_000_000);
        scene.endpoint.on_timeout(scene.now);
        scene.challenged();
        scene.arrive_next(there(), PING);
        let token = scene.challenged().expect("another challenge");
        assert_ne!(token, lost);
        scene.arrive_next(there(), &answer(lost));
        assert_eq!(scene.path(), (scene.remote, home()));
        scene.arrive_next(there(), &answer(token));
        assert_eq!(scene.path(), (scene.remote, there()));
    }

    /// What an on-path attacker may do: send its own datagrams, and replay the client's.
    #[test]
    fn nothing_moves_that_is_forged_or_comes_again() {
        let mut scene = Scene::new(home());
        scene.arrive_next(home(), PING);
        scene.left();
        let arrival = Arrival {
            remote: scene.remote,
            local_ip: Some(there()),
            ecn: None,
        };
        for len in 1..1200 {
            let mut datagram = vec![0x41];
            datagram.extend_from_slice(scene.id.as_bytes());
            datagram.resize(1 + scene.id.as_bytes().len() + len, 7);
            scene.endpoint.on_datagram(NOW, &arrival, &datagram);
        }
        assert!(scene.arrive(there(), scene.next - 1, PING));
        let left = scene.left();
        assert!(left.iter().all(|it| it.local == home()), "{left:?}");
        assert_eq!(scene.path(), (scene.remote, home()));
        // A client packet redirected to the preferred address causes a challenge that the client
        // does not answer.
        scene.arrive_next(there(), PING);
        assert!(scene.challenged().is_some());
        assert_eq!(scene.path(), (scene.remote, home()));
    }

    #[test]
    fn another_address_of_the_client_gets_no_more_than_it_may() {
        for has_probed in [false, true] {
            let mut scene = Scene::new(home());
            let before = scene.remote;
            scene.remote.set_ip(ip("203.0.113.9"));
            if has_probed {
                scene.arrive_next(there(), &challenge());
                assert_eq!(scene.challenged(), None);
            }
            scene.arrive_next(there(), PING);
            let left = scene.left();
            let (mut there_bytes, mut challenges) = (0, 0);
            for packet in &left {
                if packet.remote == scene.remote {
                    assert_eq!(packet.local, there());
                    there_bytes += packet.plaintext.len();
                    challenges += usize::from(packet.challenge().is_some());
                } else {
                    assert_eq!((packet.remote, packet.local), (before, home()));
                }
            }
            assert_eq!(challenges, usize::from(has_probed), "{left:?}");
            assert!(has_probed || there_bytes == 0, "{left:?}");
            assert_eq!(scene.path(), (before, home()));
        }
    }

    #[test]
    fn a_connection_that_begins_there_has_nowhere_to_go() {
        let mut scene = Scene::new(there());
        for local in [there(), home()] {
            scene.arrive_next(local, PING);
            scene.arrive_next(local, &challenge());
            assert_eq!(scene.path(), (scene.remote, there()));
            let left = scene.left();
            assert!(!left.is_empty());
            for packet in left {
                assert_eq!((packet.remote, packet.local), (scene.remote, there()));
                assert_eq!(packet.challenge(), None);
            }
        }
    }
}
