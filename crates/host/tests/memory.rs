//! What connections cost in memory, counted at the allocator.

mod crowd;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard};

use crowd::{Crowd, HELLO, QUIT};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use wire::tcp::Flags;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The allocator counts for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Bytes allocated and not freed since the region began.
fn held(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated)
}

#[test]
fn ten_thousand_idle_connections_take_less_than_64_mb() {
    let _alone = alone();
    let mut crowd = Crowd::new();
    crowd.clients.reserve(10_000);
    let region = Region::new(ALLOCATOR);
    for _ in 0..10_000 {
        let client = crowd.connect();
        crowd.say(client, Flags::ACK | Flags::PSH, HELLO);
        crowd.say(client, Flags::ACK, &[]);
    }
    assert_eq!(crowd.stack.connections(), 10_000);
    let bytes = held(&region);
    println!(
        "{} bytes for each of 10,000 idle connections",
        bytes / 10_000
    );
    assert!(bytes < 64_000_000, "{bytes}");
}

#[test]
fn a_hundred_thousand_connections_in_time_wait_take_less_than_20_mb() {
    let _alone = alone();
    let mut crowd = Crowd::new();
    crowd.clients.reserve(100_000);
    let region = Region::new(ALLOCATOR);
    for _ in 0..100_000 {
        let client = crowd.connect();
        crowd.say(client, Flags::ACK | Flags::PSH, QUIT);
        crowd.say(client, Flags::ACK | Flags::FIN, &[]);
    }
    assert_eq!(crowd.stack.connections(), 100_000);
    let bytes = held(&region);
    println!("{} bytes for each of 100,000 in TIME-WAIT", bytes / 100_000);
    assert!(bytes < 20_000_000, "{bytes}");
}
