//! Instructions that the host stack spends on a connection that is established, asked once, and
//! closed by the client, counted by callgrind.

#[allow(dead_code, reason = "not all that the crowd can do is done here")]
#[path = "../tests/crowd/mod.rs"]
mod crowd;
mod short_connections;

use std::process::ExitCode;

use short_connections::{CONNECTIONS, Offloaded, serve};
use testbed::instructions::{Count, check};

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per short connection",
        within: "counted_turn",
        times: CONNECTIONS as u64,
        committed: 30_504,
        promised: None,
        workload: || serve(Offloaded::default(), true),
    })
}
