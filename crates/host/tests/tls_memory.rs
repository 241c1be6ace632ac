//! What connections that speak TLS cost the host stack in memory, counted at the allocator.

#[allow(dead_code, reason = "the tests of TLS use the rest")]
#[path = "tls/client.rs"]
mod client;
#[path = "rig/mod.rs"]
mod rig;

use client::Secured;
use fakes::keys::SUITES;
use tls::{Settings, Version};

const CONNECTIONS: usize = 10_000;

/// Each has done its handshake, and has been answered.
#[test]
fn ten_thousand_idle_connections_take_less_than_80_mb() {
    for version in [Version::Tls13, Version::Tls12] {
        let suite = SUITES.into_iter().find(|suite| suite.version == version);
        let mut secured = Secured::with(suite.unwrap(), &Settings::default(), 1, |config| {
            config.connections_max = CONNECTIONS;
        });
        for number in 0..CONNECTIONS {
            if number > 0 {
                secured.reconnect();
            }
            secured.ask(&["200"]);
            secured.run_until(|secured| secured.received.len() == 202);
            // The acknowledgment, for which the client takes its time, and what that releases.
            secured.rig.now_us += 500_000;
            secured.step();
            secured.step();
            secured.rig.app.events.clear();
            secured.rig.trace.clear();
        }
        let usage = secured.rig.stack.usage();
        assert_eq!((usage.connections, usage.files), (CONNECTIONS, 0));
        // What the stack has held, it gives back.
        let stack = secured.rig.stack;
        let info = allocation_counter::measure(|| drop(stack));
        let bytes = usize::try_from(-info.bytes_current).unwrap();
        println!(
            "{version:?}: {} bytes for each of {CONNECTIONS} idle connections",
            bytes / CONNECTIONS
        );
        assert!(bytes < 80_000_000, "{bytes}");
    }
}
