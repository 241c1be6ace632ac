//! An endpoint against a client that is quinn and rustls as they are.
#![forbid(unsafe_code)]

mod aead_limits;
mod early;
mod half_open;
mod nic_deaths;
mod path;
mod secret;
#[allow(dead_code, reason = "the tests of floods use the rest")]
mod support;
mod trace;

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use quic::{CloseReason, Limits, PreferredAddress, Settings, StreamError, StreamId};
use support::{World, settings};
use tcp::CongestionAlgorithm;

fn limited(limits: Limits) -> Settings {
    Settings {
        limits,
        ..settings()
    }
}

fn each(run: fn(&mut dyn FnMut(u64) -> u64)) {
    each_seed(1, run);
}

#[test]
fn a_client_gets_every_byte_of_a_file() {
    each(|random| {
        for cipher in [
            Cipher::Aes128Gcm,
            Cipher::Aes256Gcm,
            Cipher::ChaCha20Poly1305,
        ] {
            let mut world = World::new(&settings(), cipher, random);
            world.run_until(|world| world.client.is_connected);
            world.request(1, 1000, 3_000_000);
            world.request(2, 0, 1);
            world.request(3, 0, 0);
            world.run_until(|world| world.are_finished());
            // Retransmissions apart, which there are none of, file bytes fill the packets.
            assert!(
                world.sealed_packets < 3_000_000 / 1100,
                "{}",
                world.sealed_packets
            );
            world.client.close(world.now_us, 5);
            world.drain();
            assert_eq!(world.closed, Some(CloseReason::Application(5)));
            let released: Vec<_> = world.released.into_iter().collect();
            assert_eq!(released, [(1, 3_000_000), (2, 1)]);
            assert_eq!(world.sealer.keys(), 0, "keys are taken at the end");
            assert_eq!(world.endpoint.undescribable(), 0);
        }
    });
}

#[test]
fn a_bad_network_loses_no_byte() {
    each_seed(6, |random| {
        let algorithms = CongestionAlgorithm::ALL;
        let settings = Settings {
            congestion: algorithms[random(3) as usize],
            ..settings()
        };
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.weather = Weather {
            lost: 20,
            late: 30,
            damaged: 5,
        };
        world.run_until(|world| world.client.is_connected);
        for file in 1..4 {
            world.request(file, 0, 400_000);
        }
        world.run_until(|world| world.are_finished());
        assert_eq!(world.closed, None);
        assert_eq!(world.endpoint.undescribable(), 0);
    });
}

/// Numbers are not used twice, whatever dies; keys are updated in between.
#[test]
fn nic_stacks_die_and_keys_change_and_no_number_is_sealed_twice() {
    each_seed(6, |random| {
        let mut world = World::new(&settings(), Cipher::Aes256Gcm, random);
        world.weather.lost = 5;
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 3_000_000);
        let mut next = 100;
        world.run_until(|world| {
            if world.sealed_packets > next {
                next += 200 + (world.random)(200);
                world.replace_nic();
                if let Some(server) = world.server {
                    world.endpoint.update_keys(server);
                }
                if (world.random)(2) == 0 {
                    world.client.update_keys();
                }
            }
            world.are_finished()
        });
        assert!(world.nic_deaths >= 5, "{}", world.nic_deaths);
        assert!(world.keys_given > world.nic_deaths);
    });
}

/// RFC 9000 §8.1. The server's flight is longer, and its timers run for five seconds.
#[test]
fn an_address_that_is_not_validated_gets_three_times_what_has_come_from_it() {
    each(|random| {
        let names: Vec<String> = (0..600).map(|at| format!("{at}.example.org")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.push("localhost");
        for padding_bytes in [0, 1, 80, 399, 400] {
            let settings = settings();
            let mut world = World::with_names(&settings, Cipher::Aes128Gcm, &names, random);
            world.padding_bytes = padding_bytes;
            world.is_muzzled = true;
            world.run_until(|world| {
                assert!(world.sent_bytes <= 3 * world.received_bytes);
                world.now_us > 5_000_000
            });
            // A datagram more would be too much.
            let (sent, received) = (world.sent_bytes, world.received_bytes);
            assert!(sent + 1200 > 3 * received, "{sent} bytes for {received}");
            world.is_muzzled = false;
            world.padding_bytes = 0;
            world.run_until(|world| world.client.is_connected);
            world.request(1, 0, 10_000);
            world.run_until(|world| world.are_finished());
        }
    });
}

#[test]
fn no_more_is_asked_for_than_may_wait_in_the_nic_stack() {
    each(|random| {
        let settings = limited(Limits {
            undeparted_bytes_max: 20_000,
            ..Limits::default()
        });
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 2_000_000);
        world.run_until(|world| {
            // One SEND more than the limit.
            assert!(world.queued_bytes() < 20_000 + 65_507);
            world.are_finished()
        });
    });
}

#[test]
fn a_connection_has_one_send_in_a_nic_stack_that_has_enough_of_all() {
    each(|random| {
        for (all_undeparted_bytes_max, is_one) in [(0, true), (u64::MAX, false)] {
            let settings = limited(Limits {
                all_undeparted_bytes_max,
                ..Limits::default()
            });
            let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
            world.run_until(|world| world.client.is_connected);
            world.request(1, 0, 2_000_000);
            let mut most = 0;
            world.run_until(|world| {
                most = most.max(world.queued_sends());
                world.are_finished()
            });
            assert_eq!(most == 1, is_one, "{most} SENDs");
        }
    });
}

/// As many as pacing grants until half of the time has passed for which they wait.
#[test]
fn packets_that_wait_in_the_nic_stack_go_together() {
    each(|random| {
        let settings = limited(Limits {
            all_undeparted_bytes_max: 0,
            ..Limits::default()
        });
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.departure_delay_us = Some(20_000);
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 5_000_000);
        world.run_until(|world| world.are_finished());
        // Pacing alone grants ten.
        assert!(world.largest_send >= 30, "{}", world.largest_send);
        let lead_us = world.lead_us;
        assert!((1_000..=10_000).contains(&lead_us), "{lead_us}");
        // What was made ahead is not taken for faster than it was.
        let connection = world.server.expect("a connection");
        let (round_trip, lost) = world.endpoint.path(connection).expect("it is there");
        assert!(round_trip.as_millis() >= 10, "{round_trip:?}");
        assert_eq!(lost, 0);
    });
}

/// It may send no more before a SEND has departed, and is closed meanwhile.
#[test]
fn a_client_hears_of_a_close_behind_what_waits_in_the_nic_stack() {
    each(|random| {
        let settings = limited(Limits {
            undeparted_bytes_max: 1,
            ..Limits::default()
        });
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 2_000_000);
        world.run_until(|world| world.sealed_packets > 200 && world.queued_sends() > 0);
        let handle = world.server.expect("a connection");
        let now = tcp::Instant::from_us(world.now_us);
        world.endpoint.close(now, handle, 3, b"enough");
        let closed_us = world.now_us;
        world.run_until(|world| world.client.lost.is_some());
        assert!(world.now_us < closed_us + 1_000_000, "no idle timeout");
    });
}

#[test]
fn a_stream_that_the_client_stops_releases_its_file() {
    each(|random| {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected);
        let stream = world.request(1, 0, 50_000_000);
        world.run_until(|world| world.transfers[&stream].received.len() > 100_000);
        world.transfers.remove(&stream);
        world.client.stop(stream, 9);
        world.request(2, 0, 10_000);
        world.run_until(|world| world.are_finished());
        world.client.close(world.now_us, 0);
        world.drain();
        assert!(world.released[&1] > 100_000);
        assert_eq!(world.released[&2], 10_000);
    });
}

#[test]
fn a_client_must_show_its_address_when_there_are_many() {
    each(|random| {
        for (retry_above, connections_max) in [(0, 10), (0, 0)] {
            let settings = limited(Limits {
                retry_above,
                connections_max,
                ..Limits::default()
            });
            let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
            if connections_max == 0 {
                world.run_until(|world| world.client.lost.is_some());
                assert_eq!(world.endpoint.connections(), 0);
            } else {
                world.run_until(|world| world.client.is_connected);
                world.request(1, 0, 10_000);
                world.run_until(|world| world.are_finished());
            }
        }
    });
}

/// RFC 9000 §9: another address, with the same connection.
#[test]
fn a_client_may_change_its_address() {
    each(|random| {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected);
        let stream = world.request(1, 0, 3_000_000);
        world.run_until(|world| world.transfers[&stream].received.len() > 500_000);
        world.client.local.set_port(6000);
        world.run_until(|world| world.are_finished());
        assert_eq!(world.closed, None);
    });
}

/// RFC 9000 §9.6
#[test]
fn a_client_may_move_to_the_preferred_address() {
    each_seed(8, |random| {
        let [home, there] = ["192.0.2.2", "198.51.100.7"].map(|ip| ip.parse().expect("one"));
        let settings = Settings {
            preferred_address: PreferredAddress {
                v4: Some("198.51.100.7".parse().expect("an address")),
                v6: None,
                port: 443,
            },
            ..settings()
        };
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.server_ip = Some(home);
        world.run_until(|world| world.client.is_confirmed());
        let stream = world.request(1, 0, 3_000_000);
        world.weather.lost = (world.random)(2) * 20;
        world.run_until(|world| world.transfers[&stream].received.len() > 300_000);
        assert!(world.left_from.iter().all(|(ip, _)| *ip == Some(home)));
        world.server_ip = Some(there);
        let local = world.client.local;
        world.client.move_to(local);
        let server = world.server.expect("a connection");
        world.run_until(|world| world.endpoint.addresses(server) == Some((local, Some(there))));
        world.left_from.clear();
        world.run_until(|world| world.are_finished());
        // What was under way to the NIC stack leaves from where it was to.
        match &world.left_from[..] {
            [(last, _)] => assert_eq!(*last, Some(there)),
            [(first, _), (last, count)] => {
                assert_eq!((*first, *last), (Some(home), Some(there)));
                assert!(*count > 200, "{count}");
            }
            left_from => panic!("{left_from:?}"),
        }
        assert_eq!(world.closed, None);
        world.client.close(world.now_us, 5);
        world.drain();
        assert_eq!(world.closed, Some(CloseReason::Application(5)));
        assert_eq!(world.endpoint.undescribable(), 0);
    });
}

#[test]
fn a_connection_on_which_nothing_comes_is_over() {
    each(|random| {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected && world.server.is_some());
        world.weather.lost = 1000;
        world.run_until(|world| world.closed.is_some());
        assert_eq!(world.closed, Some(CloseReason::TimedOut));
        world.drain();
        assert_eq!(world.endpoint.next_timeout(), None);
    });
}

#[test]
fn a_handle_is_unknown_once_its_connection_is_closed() {
    each(|random| {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected && world.server.is_some());
        let handle = world.server.expect("it is connected");
        let now = tcp::Instant::from_us(world.now_us);
        world.endpoint.close(now, handle, 3, b"enough");
        world.run_until(|world| world.client.lost.is_some());
        assert_eq!(world.closed, Some(CloseReason::Local));
        assert_eq!(world.endpoint.open_unidirectional(handle), None);
        world.drain();
    });
}

/// Two responses are written and finished before most of them has left: the priority of one changes
/// then, and it comes next, or last.
#[test]
fn a_priority_holds_for_what_is_left_of_a_stream_that_is_finished() {
    const BYTES: usize = 2_000_000;
    each(|random| {
        for (priority, is_changed_first) in [(5, true), (-5, false)] {
            let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
            world.run_until(|world| world.client.is_connected);
            let streams = [1, 2].map(|file| world.request(file, 0, BYTES as u64));
            let got = |world: &World<'_>| streams.map(|it| world.transfers[&it].received.len());
            world.run_until(|world| got(world)[0].min(got(world)[1]) > 10_000);
            let before = got(&world);
            assert!(before[0].max(before[1]) < 100_000, "{before:?}");
            let handle = world.server.expect("it is connected");
            let changed = StreamId(streams[1]);
            let written = world.endpoint.write(handle, changed, b"more");
            assert_eq!(written, Err(StreamError::Unknown), "it is finished");
            let set = world.endpoint.prioritize(handle, changed, priority);
            assert_eq!(set, Ok(()));
            let (first, last) = if is_changed_first { (1, 0) } else { (0, 1) };
            world.run_until(|world| world.transfers[&streams[first]].is_finished);
            // What was on its way or waited for its departure.
            let rest = got(&world)[last] - before[last];
            assert!(rest < 400_000, "{priority}: {rest} bytes of the other");
            world.run_until(|world| world.are_finished());
        }
    });
}

/// Covers: RFC 9000 §4.6
#[test]
fn a_client_may_open_a_stream_for_each_that_is_over() {
    each(|random| {
        let limits = Limits {
            streams_max: 3,
            ..Limits::default()
        };
        let mut world = World::new(&limited(limits), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.server.is_some());
        let handle = world.server.expect("it is connected");
        assert_eq!(world.endpoint.streams_max(handle), 3);
        world.run_until(|world| world.client.is_connected);
        let streams = [0, 4, 8].map(|id| {
            assert_eq!(world.request(1, 0, 1), id);
            StreamId(id)
        });
        assert_eq!(world.client.request(b"one too many"), None);
        world.run_until(|world| world.are_finished());
        assert_eq!(
            world.endpoint.streams_max(handle),
            3,
            "they are not read to their end"
        );
        for stream in streams {
            assert_eq!(world.endpoint.stop(handle, stream, 0), Ok(()));
        }
        world.run_until(|world| world.endpoint.streams_max(handle) == 6);
        world.run_until(|world| world.client.open(b"").is_some());
        let now = tcp::Instant::from_us(world.now_us);
        world.endpoint.close(now, handle, 3, b"enough");
        assert_eq!(world.endpoint.streams_max(handle), 0);
    });
}
