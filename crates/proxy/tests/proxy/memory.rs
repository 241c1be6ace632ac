//! The memory of sessions: clients that do not finish what they begin.

use std::time::Duration;

use proxy::Config;

use crate::tcp::trusting;
use crate::world::{GET, World, config, response};

const BOUND: usize = 2 << 20;

/// Clients that begin so and never end, each through a machine that passes it on, take no more than
/// the bound; another client is served. `from` gives the header of the PROXY protocol of a client.
fn takes_no_more_than_the_bound(from: impl Fn(u8) -> String, begin: &str, attackers: usize) {
    let config = Config {
        head_timeout: Duration::from_secs(3600),
        bytes_per_second_min: None,
        ..trusting(config(&[9001]), 24)
    };
    let mut world = World::with(config, &[9001], |stack| {
        stack.connection_memory_bytes_max = BOUND;
    });
    let begin = from(1) + begin;
    let mut clients = Vec::new();
    for number in 0..attackers {
        clients.push(world.client(&begin));
        let (bytes, _) = world.memory();
        assert!(bytes <= BOUND, "{bytes}");
        if number % 20 == 0 {
            // Another client, through the same machine.
            let other = world.client(&(from(2) + GET));
            let backend = world.backend(9001);
            world.send(backend, response("hello"));
            let received = world.take(other);
            assert!(received.ends_with("hello"), "{received:?}");
            world.finish(other);
        }
    }
    let (bytes, evictions) = world.memory();
    assert!((BOUND / 2..=BOUND).contains(&bytes), "{bytes}");
    assert!((1..attackers as u64).contains(&evictions), "{evictions}");
    let is_reset = |client| world.heard(client).closed.is_some();
    let resets = clients.iter().filter(|client| is_reset(**client)).count();
    assert_eq!(resets as u64, evictions, "none of the other client's");
    assert!(!is_reset(clients[attackers - 1]), "the youngest of equals");
}

fn ipv4(client: u8) -> String {
    format!("PROXY TCP4 192.0.2.{client} 10.77.0.2 1000 80\r\n")
}

fn ipv4_mapped(client: u8) -> String {
    format!("PROXY TCP6 ::ffff:192.0.2.{client} ::1 1000 80\r\n")
}

fn unfinished_head() -> String {
    "GET / HTTP/1.1\r\nHost: h\r\nX: ".to_owned() + &"x".repeat(12_000)
}

#[test]
fn a_client_with_many_unfinished_heads_takes_no_more_than_the_bound() {
    takes_no_more_than_the_bound(ipv4, &unfinished_head(), 400);
}

#[test]
fn clients_with_ipv4_mapped_addresses_are_distinguished() {
    takes_no_more_than_the_bound(ipv4_mapped, &unfinished_head(), 400);
}

/// None is as long as `request_buffer`, so that no backend gets them.
#[test]
fn a_client_with_many_unfinished_bodies_takes_no_more_than_the_bound() {
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n";
    takes_no_more_than_the_bound(ipv4, &(head.to_owned() + &"x".repeat(50_000)), 100);
}
