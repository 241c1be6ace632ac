//! Datagrams of any kind for a host's QUIC port, beside a client that downloads, also with early
//! data: any bytes, packets with long and short headers, what the client has sent with bytes
//! changed, cut, joined, from its own address or another. The stack stays alive and keeps nothing,
//! and the client gets every byte.

#![no_main]

#[path = "../../crates/host/tests/quic/app.rs"]
#[allow(dead_code, reason = "other programs use the rest")]
mod app;
#[path = "../../crates/host/tests/quic/nic.rs"]
#[allow(dead_code, reason = "other programs use the rest")]
mod nic;
#[path = "../../crates/host/tests/quic/opener.rs"]
#[allow(dead_code, reason = "other programs use the rest")]
mod opener;
#[path = "../../crates/host/tests/quic/world.rs"]
#[allow(dead_code, reason = "other programs use the rest")]
mod world;

use std::net::SocketAddr;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use host::QuicSettings;
use world::{Setup, World, server_address, settings};

#[derive(Arbitrary, Debug)]
enum Act<'a> {
    Bytes {
        from: Source,
        bytes: &'a [u8],
    },
    /// A packet with a long header (RFC 9000 §17.2).
    Long {
        from: Source,
        first: u8,
        version: Version,
        /// That of the client's connection, or another.
        id: Option<&'a [u8]>,
        source_id: &'a [u8],
        token: &'a [u8],
        /// What it says of its length, if that is not so.
        length: Option<u16>,
        payload: &'a [u8],
        /// An Initial packet has to be in so large a datagram.
        is_padded: bool,
    },
    /// A packet with a short header, of the client's connection.
    Short {
        from: Source,
        first: u8,
        payload: &'a [u8],
    },
    /// What the client has sent, ...
    Overheard {
        from: Source,
        which: u8,
        patches: Vec<(u16, u8)>,
        cut: Option<u16>,
        /// ... with another datagram behind it.
        joined: Option<u8>,
    },
    Request(u16),
    Pass(u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Source {
    Client,
    Other(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Version {
    One,
    Negotiation,
    Two,
    Any(u32),
}

/// Most requests of the client, and acts of the others.
const REQUESTS_MAX: usize = 8;
const ACTS_MAX: usize = 60;

/// A world with one client, whose handshake is to come. If it is `early`, it has asked for something
/// already.
fn begin(early: bool, random: &mut dyn FnMut(u64) -> u64) -> (World<'_>, usize) {
    let setup = Setup {
        settings: QuicSettings {
            early_data: true,
            ..settings()
        },
        ..Setup::default()
    };
    let mut world = World::with(setup, random);
    let first = world.connect(contract::tls::Cipher::Aes128Gcm, false);
    if !early {
        return (world, first);
    }
    world.run_until(|world| world.peers[first].client.is_confirmed());
    let client = world.resume(first);
    world.overheard.clear();
    world.request(client, 30_000, (0, 30_000), 10);
    (world, client)
}

fuzz_target!(|input: (bool, Vec<Act<'_>>)| {
    let (early, acts) = input;
    let mut random = |below: u64| below / 2;
    let (mut world, client) = begin(early, &mut random);
    let mut requests = Vec::new();
    let mut forged = 0;
    for act in acts.iter().take(ACTS_MAX) {
        match act {
            Act::Request(bytes) if requests.len() < REQUESTS_MAX => requests.push(*bytes),
            Act::Request(_) => {}
            Act::Pass(us) => world.run_for((*us).into()),
            _ => {
                if let Some((from, datagram)) = make(act, &world, client) {
                    forged += 1;
                    world.send(from, server_address(false), &datagram);
                }
                world.run_for(1);
            }
        }
        if world.peers[client].client.is_connected {
            for bytes in std::mem::take(&mut requests) {
                world.request(client, 100_000, (0, u64::from(bytes) % 5000 + 1), 10);
            }
        }
        let connections = world.stack.usage().quic_connections;
        assert!(connections <= 2 + forged, "{connections} connections");
    }
    world.run_until(|world| world.peers[client].client.is_connected);
    world.request(client, 20_000, (0, 20_000), 100);
    world.run_until_finished();
    let peer = &world.peers[client];
    assert_eq!(peer.client.lost, None);
    assert!(
        peer.transfers
            .values()
            .all(|transfer| transfer.reset.is_none())
    );
    world.close();
});

fn source(from: Source, world: &World<'_>, client: usize) -> SocketAddr {
    let local = world.peers[client].client.local;
    match from {
        Source::Client => local,
        Source::Other(port) => SocketAddr::new(local.ip(), 40_000 + u16::from(port)),
    }
}

/// The connection ID with which the client names its connection, once it has one of the server's.
fn connection_id(world: &World<'_>) -> Vec<u8> {
    let mut overheard = world.overheard.iter().rev();
    let short = overheard.find(|(_, datagram)| datagram.first().is_some_and(|it| it & 0x80 == 0));
    short.map_or(vec![0; 8], |(_, datagram)| {
        datagram.iter().skip(1).take(8).copied().collect()
    })
}

fn make(act: &Act<'_>, world: &World<'_>, client: usize) -> Option<(SocketAddr, Vec<u8>)> {
    let from = |from: &Source| source(*from, world, client);
    match act {
        Act::Bytes {
            from: sender,
            bytes,
        } => Some((from(sender), bytes[..bytes.len().min(1472)].to_vec())),
        Act::Short {
            from: sender,
            first,
            payload,
        } => {
            let id = connection_id(world);
            let payload = &payload[..payload.len().min(1400)];
            Some((from(sender), [&[first & 0x7f], &id[..], payload].concat()))
        }
        Act::Long {
            from: sender,
            first,
            version,
            id,
            source_id,
            token,
            length,
            payload,
            is_padded,
        } => {
            let version = match version {
                Version::One => 1,
                Version::Negotiation => 0,
                Version::Two => 0x6b33_43cf,
                Version::Any(version) => *version,
            };
            let own = connection_id(world);
            let id = id.unwrap_or(&own);
            let [id, source_id] = [id, source_id].map(|id| &id[..id.len().min(255)]);
            let mut bytes = vec![first | 0x80];
            bytes.extend(version.to_be_bytes());
            for id in [id, source_id] {
                bytes.push(id.len() as u8);
                bytes.extend_from_slice(id);
            }
            let payload = &payload[..payload.len().min(1000)];
            if first & 0x30 == 0 {
                let token = &token[..token.len().min(200)];
                bytes.extend((0x4000 | token.len() as u16).to_be_bytes());
                bytes.extend_from_slice(token);
            }
            let rest = match is_padded {
                true => payload.len().max(1200),
                false => payload.len(),
            };
            let length = length.unwrap_or(rest as u16) & 0x3fff;
            bytes.extend((0x4000 | length).to_be_bytes());
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len() + rest - payload.len(), 0);
            bytes.truncate(1472);
            Some((from(sender), bytes))
        }
        Act::Overheard {
            from: sender,
            which,
            patches,
            cut,
            joined,
        } => {
            // A copy that comes from elsewhere before the original does takes its place, as long as
            // there is no connection (RFC 9000 §21.1.1.3): nothing helps against that.
            if matches!(sender, Source::Other(_)) && !world.peers[client].client.is_connected {
                return None;
            }
            let overheard = |which: u8| {
                let at = usize::from(which) % world.overheard.len().max(1);
                Some(world.overheard.get(at)?.1.clone())
            };
            let mut bytes = overheard(*which)?;
            for (at, value) in patches {
                let len = bytes.len();
                bytes[usize::from(*at) % len] ^= value;
            }
            if let Some(cut) = cut {
                bytes.truncate(usize::from(*cut) % bytes.len());
            }
            if let Some(joined) = joined {
                bytes.extend(overheard(*joined)?);
                bytes.truncate(1472);
            }
            Some((from(sender), bytes))
        }
        Act::Request(_) | Act::Pass(_) => None,
    }
}
