//! A whole host stack, a client that downloads, and strangers who send frames of any kind: forged
//! segments, handshakes, ICMP errors, ARP, any bytes. The stack stays alive, and the client gets
//! every byte.
//!
//! `crates/host/tests/stack.rs` runs the same with seeds.

#![no_main]

#[path = "../../crates/host/tests/rig/mod.rs"]
mod rig;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|choices: &[u8]| rig::intruder::a_download_goes_on_undisturbed(choices));
