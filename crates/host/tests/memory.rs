//! What connections cost in memory, counted at the allocator.

mod crowd;

use crowd::{Crowd, HELLO, QUIT};
use wire::tcp::Flags;

/// Bytes that this leaves allocated.
fn held(act: impl FnOnce()) -> usize {
    let info = allocation_counter::measure(act);
    usize::try_from(info.bytes_current).unwrap()
}

#[test]
fn ten_thousand_idle_connections_take_less_than_64_mb() {
    let mut crowd = Crowd::new();
    crowd.clients.reserve(10_000);
    let bytes = held(|| {
        for _ in 0..10_000 {
            let client = crowd.connect();
            crowd.say(client, Flags::ACK | Flags::PSH, HELLO);
            crowd.say(client, Flags::ACK, &[]);
        }
    });
    assert_eq!(crowd.stack.connections(), 10_000);
    println!(
        "{} bytes for each of 10,000 idle connections",
        bytes / 10_000
    );
    assert!(bytes < 64_000_000, "{bytes}");
}

#[test]
fn a_hundred_thousand_connections_in_time_wait_take_less_than_20_mb() {
    let mut crowd = Crowd::new();
    crowd.clients.reserve(100_000);
    let bytes = held(|| {
        for _ in 0..100_000 {
            let client = crowd.connect();
            crowd.say(client, Flags::ACK | Flags::PSH, QUIT);
            crowd.say(client, Flags::ACK | Flags::FIN, &[]);
        }
    });
    assert_eq!(crowd.stack.connections(), 100_000);
    println!("{} bytes for each of 100,000 in TIME-WAIT", bytes / 100_000);
    assert!(bytes < 20_000_000, "{bytes}");
}
