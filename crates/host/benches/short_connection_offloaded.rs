//! The same as `short_connection`, but that the NIC stack runs the end of each connection, and gets
//! its frames from the host by FRAME.

#[allow(dead_code, reason = "not all that the crowd can do is done here")]
#[path = "../tests/crowd/mod.rs"]
mod crowd;
mod short_connections;

use std::process::ExitCode;

use short_connections::{CONNECTIONS, Offloaded, serve};
use testbed::instructions::{Count, check};

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per short connection whose end the NIC stack runs",
        within: "counted_turn",
        times: CONNECTIONS as u64,
        committed: 27_686,
        promised: None,
        workload: || {
            let offloaded = Offloaded {
                teardown: true,
                ..Offloaded::default()
            };
            serve(offloaded, true);
        },
    })
}
