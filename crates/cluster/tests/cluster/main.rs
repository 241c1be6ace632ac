//! Programs on one node, a real host stack on another, a session over a bad link between them, in
//! virtual time; clients on a third machine.
#![forbid(unsafe_code)]

mod bytes;
mod ends;
mod files;
mod nodes;
mod program;
mod records;
mod turns;
mod wakes;
#[allow(dead_code, reason = "it is the world of more tests than these")]
#[path = "../../../sockets/tests/sockets/world.rs"]
mod world;
