//! The same as `opened_and_closed`, but that the NIC stack answers SYNs, which are steered to it,
//! and runs the end of each connection.

#[allow(dead_code, reason = "not all that the crowd can do is done here")]
#[path = "../tests/crowd/mod.rs"]
mod crowd;
mod short_connections;

use std::process::ExitCode;

use short_connections::{CONNECTIONS, Offloaded, serve};
use testbed::instructions::{Count, check};

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per connection that is opened and closed by the NIC stack",
        within: "counted_turn",
        times: CONNECTIONS as u64,
        committed: 9_729,
        promised: None,
        workload: || {
            let offloaded = Offloaded {
                setup: true,
                teardown: true,
            };
            serve(offloaded, false);
        },
    })
}
