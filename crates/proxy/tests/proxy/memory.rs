//! The memory of sessions: clients that do not finish what they begin.

use std::time::Duration;

use proxy::Config;

use crate::tcp::trusting;
use crate::world::{GET, World, config, response};

const BOUND: usize = 2 << 20;

/// What comes first of a connection from this client, through a machine that passes it on.
fn from(client: &str) -> String {
    format!("PROXY TCP4 {client} 10.77.0.2 1000 80\r\n")
}

/// Clients that begin so and never end, each through a machine that passes it on, take no more than
/// the bound; another client is served.
fn takes_no_more_than_the_bound(begin: &str, attackers: usize) {
    let config = Config {
        head_timeout: Duration::from_secs(3600),
        bytes_per_second_min: None,
        ..trusting(config(&[9001]), 24)
    };
    let mut world = World::with(config, &[9001], |stack| {
        stack.connection_memory_bytes_max = BOUND;
    });
    let begin = from("192.0.2.1") + begin;
    let mut clients = Vec::new();
    for number in 0..attackers {
        clients.push(world.client(&begin));
        let (bytes, _) = world.memory();
        assert!(bytes <= BOUND, "{bytes}");
        if number % 20 == 0 {
            // Another client, through the same machine.
            let other = world.client(&(from("192.0.2.2") + GET));
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

#[test]
fn a_client_with_many_unfinished_heads_takes_no_more_than_the_bound() {
    let begin = "GET / HTTP/1.1\r\nHost: h\r\nX: ".to_owned() + &"x".repeat(12_000);
    takes_no_more_than_the_bound(&begin, 400);
}

/// None is as long as `request_buffer`, so that no backend gets them.
#[test]
fn a_client_with_many_unfinished_bodies_takes_no_more_than_the_bound() {
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n";
    takes_no_more_than_the_bound(&(head.to_owned() + &"x".repeat(50_000)), 100);
}
