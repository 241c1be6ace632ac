//! Path limits: datagram lengths (RFC 8899, RFC 9000 §14.3), and ECN (RFC 9000 §13.4).

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use quic::Settings;
use tcp::CongestionAlgorithm;

use crate::support::{EcnPath, World, settings};

/// The minimum of all paths, in bytes (RFC 9000 §14).
const BASE_BYTES: usize = 1200;

/// The binary search ends below this gain, in bytes: twice the `minimum_change` of quinn-proto.
const CLOSE_BYTES: usize = 40;

/// A connected world with a client that has requested a file; returns the stream.
fn begun<'a>(
    settings: &Settings,
    path_bytes_max: usize,
    random: &'a mut dyn FnMut(u64) -> u64,
) -> (World<'a>, u64) {
    let mut world = World::new(settings, Cipher::Aes128Gcm, random);
    world.path_bytes_max = path_bytes_max;
    world.run_until(|world| world.client.is_connected);
    let stream = world.request(1, 0, 6_000_000);
    (world, stream)
}

/// Packets that a connection has declared lost.
fn lost(world: &World<'_>) -> u64 {
    let server = world.server.expect("a connection");
    let (_, lost) = world.endpoint.path(server).expect("it is there");
    lost
}

fn window(world: &World<'_>) -> u64 {
    let server = world.server.expect("a connection");
    world.endpoint.congestion_window(server)
}

#[test]
fn datagrams_grow_to_what_the_path_permits() {
    each_seed(4, |random| {
        let path_bytes_max = BASE_BYTES + random(253) as usize;
        let (mut world, _) = begun(&settings(), path_bytes_max, random);
        world.run_until(|world| world.are_finished());
        assert!(world.lengths[0] <= BASE_BYTES);
        // The end of the file may be in shorter packets.
        let last = &world.lengths[world.lengths.len() - 200..];
        let longest = *last.iter().max().expect("there are 200");
        let least = path_bytes_max.min(1452) - CLOSE_BYTES;
        assert!(
            (least..=path_bytes_max).contains(&longest),
            "{longest} of {path_bytes_max}"
        );
        // Only probes were too long.
        let probes = world.lengths.iter().filter(|it| **it > path_bytes_max);
        assert!(probes.count() <= 20);
        assert_eq!(lost(&world), 0);
    });
}

#[test]
fn a_path_that_permits_less_than_before_loses_no_byte() {
    each_seed(4, |random| {
        let (mut world, stream) = begun(&settings(), 1500, random);
        world.run_until(|world| world.transfers[&stream].received.len() > 2_000_000);
        assert!(world.lengths.iter().any(|it| *it > 1400));
        world.path_bytes_max = BASE_BYTES + (world.random)(100) as usize;
        let (shrunk_us, sent_before) = (world.now_us, world.lengths.len());
        world.run_until(|world| world.are_finished());
        assert_eq!(world.closed, None);
        assert!(
            world.now_us < shrunk_us + 10_000_000,
            "{} us",
            world.now_us - shrunk_us
        );
        let sent = &world.lengths[sent_before..];
        assert!(
            sent[sent.len() - 100..]
                .iter()
                .all(|it| *it <= world.path_bytes_max)
        );
    });
}

#[test]
fn marks_of_congestion_narrow_the_window_and_nothing_is_lost() {
    each_seed(2, |random| {
        for congestion in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno] {
            let settings = Settings {
                congestion,
                ..settings()
            };
            let (mut world, stream) = begun(&settings, 1500, random);
            world.run_until(|world| world.transfers[&stream].received.len() > 2_000_000);
            assert_eq!(world.sends_not_ect, 0);
            world.ecn_path = EcnPath::Marks;
            let mut before = 0;
            world.run_until(|world| {
                let is_less = window(world) < before;
                before = before.max(window(world));
                is_less
            });
            world.ecn_path = EcnPath::Leaves;
            let after = window(&world);
            assert!(
                (before / 2..before * 9 / 10).contains(&after),
                "{before} to {after}"
            );
            world.run_until(|world| world.are_finished());
            assert_eq!((world.sends_not_ect, lost(&world)), (0, 0));
        }
    });
}

/// RFC 9000 §13.4.2.1
#[test]
fn a_path_that_clears_marks_is_sent_none() {
    each_seed(2, |random| {
        for bytes_before in [0, 1_000_000] {
            let (mut world, stream) = begun(&settings(), 1500, random);
            if bytes_before == 0 {
                world.ecn_path = EcnPath::Bleaches;
            }
            world.run_until(|world| world.transfers[&stream].received.len() > bytes_before);
            world.ecn_path = EcnPath::Bleaches;
            world.run_until(|world| world.sends_not_ect > 0);
            world.sends_ect = 0;
            world.run_until(|world| world.are_finished());
            assert_eq!((world.sends_ect, lost(&world)), (0, 0), "{bytes_before}");
            assert_eq!(world.closed, None);
        }
    });
}
