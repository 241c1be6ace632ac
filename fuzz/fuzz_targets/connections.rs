//! Two whole connections, with their NIC stacks and applications, over a network that the fuzzer
//! runs: loss, reordering, duplication, late departures, merged packets, timeouts, and an intruder
//! who forges segments and lies in options.
//!
//! Every byte must arrive unaltered, both ends must close in order, nothing may be sent beyond the
//! peer's window, and as long as something is left to do a timer or a packet must be under way.
//! `crates/tcp/tests/tcp/pairs.rs` runs the same with seeds.

#![no_main]

#[path = "../../crates/tcp/tests/tcp/intruder.rs"]
mod intruder;
#[allow(dead_code, reason = "what the tests look at besides")]
#[path = "../../crates/tcp/tests/tcp/network.rs"]
mod network;
#[allow(dead_code, reason = "what the tests run besides")]
#[path = "../../crates/tcp/tests/tcp/scenario.rs"]
mod scenario;

use libfuzzer_sys::fuzz_target;
use tcp::CloseReason;

fuzz_target!(|choices: &[u8]| {
    let outcome = scenario::run(network::Random::chosen(choices), 10_000, 20);
    assert_eq!(
        outcome.closed,
        [Some(CloseReason::Finished); 2],
        "{outcome:?}"
    );
});
