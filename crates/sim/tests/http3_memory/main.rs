//! The memory of the server under clients of HTTP/3 that never finish what they begin.

#[allow(dead_code, reason = "the world asks for more")]
mod app;
#[allow(dead_code, reason = "other users of this file need the rest")]
#[path = "../../../host/tests/quic/nic.rs"]
mod nic;
#[allow(dead_code, reason = "other users of this file need the rest")]
#[path = "../../../host/tests/quic/opener.rs"]
mod opener;
#[allow(dead_code, reason = "other users of this file need the rest")]
#[path = "../../../host/tests/quic/world.rs"]
mod world;

use contract::tls::Cipher;
use fakes::content::content;
use fakes::http3::{DATA, HEADERS, SETTINGS, frame, headers, take_varint, varint};
use fakes::quic_client::Received;
use world::{Setup, World};

const BOUND: usize = 2 << 20;

/// Connections of one address, ...
const ATTACKERS: usize = 40;

/// ... each with so many requests, ...
const STREAMS: usize = 10;

/// ... of whose heads so much arrives.
const HEAD_BYTES: u64 = 16_000;
const PIECE: [u8; 12_000] = [0; 12_000];

/// A client, with its control stream.
fn connected(world: &mut World<'_>, v6: bool) -> usize {
    let client = world.connect(Cipher::Aes128Gcm, v6);
    world.run_until(|world| world.peers[client].client.is_connected);
    let quic = &mut world.peers[client].client;
    let control = quic.open_unidirectional().expect("a stream");
    quic.send(control, &[&[0][..], &frame(SETTINGS, b"")].concat());
    client
}

/// The client gets a file, every byte of it.
fn download(world: &mut World<'_>, client: usize, size: u64) {
    let request = headers(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", &format!("/{size}")),
    ]);
    let quic = &mut world.peers[client].client;
    let stream = quic.request(&request).expect("a stream");
    let mut bytes = Vec::new();
    world.run_until(|world| {
        loop {
            match world.peers[client].client.receive(stream) {
                Received::Bytes(more) => bytes.extend(more),
                Received::Blocked => return false,
                Received::Finished => return true,
                Received::Reset(code) => panic!("{code:#x}"),
            }
        }
    });
    let mut rest = &bytes[..];
    let mut body = Vec::new();
    while !rest.is_empty() {
        let (kind, length) = (take_varint(&mut rest), take_varint(&mut rest));
        let (payload, others) = rest.split_at(length as usize);
        rest = others;
        match kind {
            HEADERS => {}
            DATA => body.extend_from_slice(payload),
            other => panic!("a frame of type {other:#x}"),
        }
    }
    let expected: Vec<u8> = (0..size).map(|at| content(size, at)).collect();
    assert!(body == expected, "other bytes");
}

#[test]
fn one_address_with_many_unfinished_heads_takes_no_more_than_the_bound() {
    let mut random = |below: u64| below / 2;
    let setup = Setup {
        memory_bytes_max: BOUND,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    let reader = connected(&mut world, true);
    let begin = [varint(HEADERS), varint(HEAD_BYTES)].concat();
    let mut sent = 0;
    for _ in 0..ATTACKERS {
        let attacker = connected(&mut world, false);
        for _ in 0..STREAMS {
            let quic = &mut world.peers[attacker].client;
            let Some(stream) = quic.open(&begin) else {
                break;
            };
            sent += quic.send_some(stream, &PIECE);
            world.run_for(30_000);
            let bytes = world.stack.connection_memory_bytes();
            assert!(bytes <= BOUND, "{bytes}");
        }
        download(&mut world, reader, 5_000);
    }
    assert!(sent > 2 * BOUND, "{sent}");
    let evictions = world.stack.counters().memory_evictions;
    let held = world.stack.connection_memory_bytes();
    println!("{sent} bytes sent, {held} held, {evictions} connections closed");
    assert!((1..ATTACKERS as u64).contains(&evictions), "{evictions}");
    assert!(held > BOUND / 2, "{held}");
    assert_eq!(world.peers[reader].client.lost, None);
}
