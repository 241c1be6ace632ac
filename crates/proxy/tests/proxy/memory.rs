//! The memory of sessions: clients that do not finish what they begin.

use std::time::Duration;

use proxy::Config;

use crate::tcp::trusting;
use crate::world::{GET, World, config, response};

const BOUND: usize = 2 << 20;

/// Unfinished heads, and bytes of each.
const CLIENTS: usize = 400;
const HEAD_BYTES: usize = 12_000;

#[test]
fn a_client_with_many_unfinished_heads_takes_no_more_than_the_bound() {
    open_heads(|client| format!("PROXY TCP4 192.0.2.{client} 10.77.0.2 1000 80\r\n"));
}

#[test]
fn clients_with_ipv4_mapped_addresses_are_told_apart() {
    open_heads(|client| format!("PROXY TCP6 ::ffff:192.0.2.{client} ::1 1000 80\r\n"));
}

/// Client 1 holds memory, and client 2 is served, both behind a machine that sends headers of the
/// PROXY protocol.
fn open_heads(from: impl Fn(u8) -> String) {
    let config = Config {
        head_timeout: Duration::from_secs(3600),
        ..trusting(config(&[9001]), 24)
    };
    let mut world = World::with(config, &[9001], |stack| {
        stack.connection_memory_bytes_max = BOUND;
    });
    let begin = format!("{}GET / HTTP/1.1\r\nHost: h\r\nX: ", from(1));
    let begin = begin + &"x".repeat(HEAD_BYTES);
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
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
    assert!((1..CLIENTS as u64).contains(&evictions), "{evictions}");
    let is_reset = |client| world.heard(client).closed.is_some();
    let resets = clients.iter().filter(|client| is_reset(**client)).count();
    assert_eq!(resets as u64, evictions, "none of the other client's");
    assert!(!is_reset(clients[CLIENTS - 1]), "the youngest of equals");
}
