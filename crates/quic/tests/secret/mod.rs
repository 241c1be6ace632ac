//! Endpoints with equal and with different secrets.

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use quic::{Arrival, Limits, Output, Secret, Settings};
use tcp::Instant;

use crate::support::{World, settings};

/// Settings of an endpoint that share only this secret with those of [`settings`].
fn with_secret(secret: Secret) -> Settings {
    Settings {
        secret: Some(secret),
        seed: None,
        ..settings()
    }
}

fn steady(below: u64) -> u64 {
    below / 2
}

fn same() -> Secret {
    settings().secret.expect("a secret")
}

fn others() -> [Secret; 2] {
    [Secret::new([8; 32]), same().of_port(443)]
}

/// A client whose endpoint was replaced amid a download by one with this secret. It has sent the
/// new endpoint a packet and got an answer.
fn answered<'a>(secret: Secret, random: &'a mut dyn FnMut(u64) -> u64) -> World<'a> {
    let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
    world.run_until(|world| world.client.is_connected);
    let stream = world.request(1, 0, 3_000_000);
    world.run_until(|world| world.transfers[&stream].received.len() > 100_000);
    let next = world.another_endpoint(&with_secret(secret));
    world.replace_endpoint(next);
    world.transfers.clear();
    world.request(2, 0, 1000);
    let before = world.sent_bytes;
    world.run_until(|world| world.sent_bytes > before);
    world
}

/// Covers: RFC 9000 §10.3
#[test]
fn an_endpoint_with_the_same_secret_resets_connections_of_the_one_before() {
    each_seed(4, |random| {
        let mut world = answered(same(), random);
        world.run_until(|world| world.client.lost.is_some());
        let lost = world.client.lost.clone().expect("a reason");
        assert!(lost.contains("reset"), "{lost}");
        assert!(world.now_us < 5_000_000, "{} us", world.now_us);
    });
}

#[test]
fn an_endpoint_with_another_secret_resets_none() {
    for secret in others() {
        let mut random = steady;
        let mut world = answered(secret, &mut random);
        world.run_until(|world| world.client.lost.is_some());
        let lost = world.client.lost.clone().expect("a reason");
        assert!(lost.contains("timed out"), "{lost}");
    }
}

fn validating(secret: Secret) -> Settings {
    Settings {
        limits: Limits {
            retry_above: 0,
            ..Limits::default()
        },
        ..with_secret(secret)
    }
}

/// RFC 9000 §8.1.2. With another token, the client would get another Retry.
#[test]
fn a_retry_token_is_taken_by_an_endpoint_with_the_same_secret() {
    for (secret, retries) in [(same(), 1)].into_iter().chain(others().map(|it| (it, 2))) {
        let mut random = steady;
        let mut world = World::new(&validating(same()), Cipher::Aes128Gcm, &mut random);
        world.run_until(|world| world.retries == 1);
        let next = world.another_endpoint(&validating(secret));
        world.replace_endpoint(next);
        world.run_until(|world| world.client.is_connected || world.retries == 2);
        assert_eq!(world.retries, retries);
        assert_eq!(world.client.is_connected, retries == 1);
    }
}

/// RFC 9000 §8.1.3, §8.1.4: a later endpoint cannot know whether a token was used.
#[test]
fn a_token_is_taken_by_an_endpoint_with_the_same_secret_that_was_there_already() {
    for (secret, is_later, retries) in [
        (same(), false, 1),
        (same(), true, 2),
        (Secret::new([8; 32]), false, 2),
    ] {
        let mut random = steady;
        let mut world = World::new(&validating(same()), Cipher::Aes128Gcm, &mut random);
        let mut other = world.another_endpoint(&validating(secret.clone()));
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 10_000);
        world.run_until(|world| world.are_finished() && world.client.is_confirmed());
        world.reconnect();
        assert_eq!(world.retries, 1);
        if is_later {
            other = world.another_endpoint(&validating(secret));
        }
        world.replace_endpoint(other);
        world.run_until(|world| world.client.is_connected);
        assert_eq!(world.retries, retries);
    }
}

/// Packets of no connection, every ten milliseconds, for a second.
#[test]
fn stateless_resets_are_limited() {
    let arrival = Arrival {
        remote: "192.0.2.1:5000".parse().expect("an address"),
        local_ip: None,
        ecn: None,
    };
    for (resets_per_second, resets) in [(10, 10), (1000, 100)] {
        let mut random = steady;
        let world = World::new(&settings(), Cipher::Aes128Gcm, &mut random);
        let limits = Limits {
            resets_per_second,
            ..Limits::default()
        };
        let mut endpoint = world.another_endpoint(&Settings {
            limits,
            ..settings()
        });
        let mut sent = 0;
        for at in 0..100 {
            let now = Instant::from_us(at * 10_000);
            endpoint.on_datagram(now, &arrival, &[0x40; 100]);
            while let Some(output) = endpoint.poll_output(now) {
                assert!(matches!(output, Output::Datagrams { .. }));
                sent += 1;
            }
        }
        assert_eq!(sent, resets);
    }
}
