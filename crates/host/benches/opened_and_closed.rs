//! Instructions that the host stack spends on a connection that is established and closed by the
//! client, which asks nothing, counted by callgrind.

#[allow(dead_code, reason = "not all that the crowd can do is done here")]
#[path = "../tests/crowd/mod.rs"]
mod crowd;
mod short_connections;

use std::process::ExitCode;

use short_connections::{CONNECTIONS, Offloaded, serve};
use testbed::instructions::{Count, check};

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per connection that is opened and closed",
        within: "counted_turn",
        times: CONNECTIONS as u64,
        committed: 19_719,
        promised: None,
        workload: || {
            let offloaded = Offloaded::default();
            serve(offloaded, false);
        },
    })
}
