//! Half-open connections (RFC 9000 §8.1), and the queue of handshakes.

use std::net::SocketAddr;
use std::sync::Arc;

use contract::tls::{Cipher, Suite, Version};
use fakes::quic_client::QuicClient;
use fakes::seeds::each_seed;
use fakes::site::{Identity, Site, UNIX_TIME};
use quic::{Arrival, Endpoint, Limits};
use tcp::Instant;

use crate::limited;
use crate::support::{World, settings};

const HALF_OPEN_MAX: usize = 10;

fn world(random: &mut dyn FnMut(u64) -> u64) -> World<'_> {
    let settings = limited(Limits {
        half_open_max: HALF_OPEN_MAX,
        ..Limits::default()
    });
    World::new(&settings, Cipher::Aes128Gcm, random)
}

/// RFC 9000 §8.1.2
#[test]
fn there_are_no_more_than_so_many() {
    each_seed(1, |random| {
        let mut world = world(random);
        for port in 1..=100 {
            world.spoof(port);
            let most = usize::from(port).min(HALF_OPEN_MAX);
            assert_eq!(world.endpoint.connections(), most);
        }
        assert_eq!(world.endpoint.take_retries(), 100 - HALF_OPEN_MAX as u64);
        world.run_until(|world| world.client.is_connected);
        assert_eq!(world.endpoint.take_retries(), 1);
        world.request(1, 0, 100_000);
        world.run_until(|world| world.are_finished());
        // The client's own is not half-open: its address is validated.
        assert_eq!(world.endpoint.connections(), HALF_OPEN_MAX + 1);
    });
}

/// RFC 9000 §8.1.3
#[test]
fn a_client_with_a_token_needs_no_retry() {
    each_seed(1, |random| {
        for has_token in [true, false] {
            let mut world = world(random);
            world.run_until(|world| world.client.is_confirmed());
            world.request(1, 0, 1000);
            world.run_until(|world| world.are_finished() && world.queued_sends() == 0);
            (1..=HALF_OPEN_MAX as u16).for_each(|port| world.spoof(port));
            if !has_token {
                world.forget_tokens();
            }
            world.connect_beside();
            world.run_until(|world| world.client.is_connected);
            assert_eq!(world.endpoint.take_retries(), u64::from(!has_token));
        }
    });
}

/// Below the bound, a handshake may take as long as the idle timeout.
#[test]
fn a_few_may_take_their_time() {
    each_seed(1, |random| {
        let mut world = world(random);
        (1..HALF_OPEN_MAX as u16 / 2).for_each(|port| world.spoof(port));
        world.run_until(|world| world.endpoint.connections() == 1);
        assert!(world.now_us > 29_000_000, "{}", world.now_us);
    });
}

#[test]
fn they_make_room_before_the_idle_timeout() {
    each_seed(1, |random| {
        let mut world = world(random);
        (1..=100).for_each(|port| world.spoof(port));
        world.run_until(|world| world.client.is_connected);
        // As many as make half of the places free.
        let free = HALF_OPEN_MAX / 2;
        world.run_until(|world| world.endpoint.connections() == 1 + free);
        assert!(world.now_us < 20_000_000, "{}", world.now_us);
        assert_eq!(world.timed_out, free as u64);
        assert_eq!(world.closed, None);
        world.endpoint.take_retries();
        // As many belong to the half-open connections that remain.
        (1..=100).for_each(|port| world.spoof(port));
        assert_eq!(world.endpoint.take_retries(), 100 - 2 * free as u64);
    });
}

/// A ClientHello without a common application protocol costs a key exchange, and leaves nothing.
#[test]
fn handshakes_that_fail_lead_to_retry_as_well() {
    each_seed(1, |random| {
        let mut world = world(random);
        (1..=100).for_each(|port| world.spoof_with(b"other", port));
        assert_eq!(world.endpoint.connections(), 0);
        assert_eq!(world.endpoint.take_retries(), 100 - HALF_OPEN_MAX as u64);
        let failed = world.costly_handshakes;
        assert_eq!(failed, HALF_OPEN_MAX as u64);
        // They count for ten seconds.
        world.now_us += 5_000_000;
        (101..=200).for_each(|port| world.spoof_with(b"other", port));
        let free = HALF_OPEN_MAX as u64 / 2;
        assert_eq!(world.endpoint.take_retries(), 100 - free);
        assert_eq!(world.costly_handshakes, failed + free);
    });
}

/// A client's first flight, with a ClientHello longer than a datagram.
fn first_flight(site: &Site, local: SocketAddr) -> Vec<Vec<u8>> {
    let suite = Suite {
        version: Version::Tls13,
        cipher: Cipher::Aes128Gcm,
    };
    let config = site.long_client_config(suite);
    let server = "192.0.2.2:443".parse().expect("an address");
    let mut client = QuicClient::connect(config, b"test", (local, server), 1);
    std::iter::from_fn(|| client.poll_datagram(0)).collect()
}

fn arrival() -> Arrival {
    Arrival {
        remote: "192.0.2.1:5000".parse().expect("an address"),
        local_ip: None,
        ecn: None,
    }
}

fn endpoint(site: &Site) -> Endpoint {
    let certificates = Arc::clone(&site.certificates);
    let start = Instant::from_us(0);
    let endpoint = Endpoint::new(certificates, &settings(), start, UNIX_TIME);
    endpoint.expect("the settings are sound")
}

#[test]
fn what_is_kept_of_those_that_wait_is_bounded() {
    let now = Instant::from_us(0);
    let site = Site::plain();
    let arrival = arrival();
    let flight = first_flight(&site, arrival.remote);
    let mut endpoint = endpoint(&site);
    // Kept: eight beyond the first of a client, then eight of its connection.
    let copies = |endpoint: &mut Endpoint, at: usize| {
        (0..3000).for_each(|_| endpoint.on_datagram(now, &arrival, &flight[at]));
        endpoint.take_dropped()
    };
    assert_eq!(copies(&mut endpoint, 0), 3000 - 1 - 8);
    assert_eq!(endpoint.advance_handshake(now), Some(false));
    assert_eq!(copies(&mut endpoint, 0), 3000 - 8);
    for _ in 0..8 {
        assert_eq!(endpoint.advance_handshake(now), Some(false));
    }
    assert_eq!(copies(&mut endpoint, 1), 3000 - 8);
    assert_eq!(endpoint.advance_handshake(now), Some(true));
    while endpoint.advance_handshake(now) == Some(false) {}
    assert_eq!(endpoint.advance_handshake(now), None);
    assert_eq!(copies(&mut endpoint, 1), 0, "it has had its signature");
}

/// The datagram that completes a ClientHello costs a signature, whichever it is.
#[test]
fn what_completes_a_client_hello_waits_for_its_turn() {
    let now = Instant::from_us(0);
    // The answer exceeds the amplification limit.
    let names: Vec<String> = (0..600).map(|at| format!("{at}.example.org")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let site = Site::new(&[Identity::ecdsa(&names)], &tls::Settings::default());
    let arrival = arrival();
    let flight = first_flight(&site, arrival.remote);
    let [first, rest @ ..] = &flight[..] else {
        panic!("it sends something");
    };
    assert!(!rest.is_empty(), "its ClientHello is long");
    for is_together in [false, true] {
        let mut endpoint = endpoint(&site);
        endpoint.on_datagram(now, &arrival, first);
        assert_eq!(endpoint.connections(), 0);
        if !is_together {
            assert_eq!(endpoint.advance_handshake(now), Some(false));
        }
        rest.iter()
            .for_each(|it| endpoint.on_datagram(now, &arrival, it));
        let costs: Vec<_> = std::iter::from_fn(|| endpoint.advance_handshake(now)).collect();
        let signatures = costs.iter().filter(|it| **it).count();
        assert_eq!(signatures, 1, "{costs:?}");
        assert_eq!(costs.len(), if is_together { 1 } else { rest.len() });
        assert_eq!(endpoint.advance_handshake(now), None);
        // Three times the bytes received (RFC 9000 §8.1).
        let received: usize = flight.iter().map(Vec::len).sum();
        let mut sent = 0;
        while let Some(output) = endpoint.poll_output(now) {
            if let quic::Output::Datagrams { bytes, .. } = output {
                sent += bytes.len();
            }
        }
        assert!(
            (3 * received - 1200..=3 * received).contains(&sent),
            "{sent}"
        );
    }
}
