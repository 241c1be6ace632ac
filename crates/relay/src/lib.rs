//! Relays: each stands in for a stack on another machine.
//!
//! To the host stack a relay is a NIC stack, and to a NIC stack it is a host stack: it speaks the
//! hello of [`contract::control`], holds the other end of the rings, and forwards their records
//! over the link in a [`contract::ethernet::Session`]. So neither stack knows that the other one is
//! remote, local operation costs nothing extra, and keys and raw sockets stay out of both stacks.
//!
//! | Module | What it does |
//! |---|---|
//! | [`connect`] | on the host's machine: reaches the NIC stack's machine and begins a session |
//! | [`acceptor`] | on the NIC stack's machine: accepts hosts that have the key |
//! | [`exchange`] | on both: records between rings and session, without clock or socket |
//! | [`session`] | on both: clock, socket and sleep around the exchange, until one side is gone |
//! | [`ring`] | the rings' ends, of either machine |
//!
//! This room may touch a clock, the rings' ends, a port for control frames. It knows no connections
//! and no files, and treats records as opaque, but for its own [`contract::Event::Ended`].

#![forbid(unsafe_code)]

pub mod acceptor;
pub mod connect;
pub mod exchange;
pub mod ring;
pub mod session;

use rustix::time::{ClockId, clock_gettime};

pub use acceptor::SessionAcceptor;
pub use exchange::{Exchange, Over};
pub use session::{EndReason, Relay, RelaySession};

/// The address of a network interface.
pub type Mac = [u8; 6];

/// Microseconds of `CLOCK_MONOTONIC`, the clock of this machine's stacks.
fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Microseconds since 1970, which distinguish HELLOs from replayed ones.
fn unix_us() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.max(0) as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Random bytes that no other machine knows.
fn seed() -> std::io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    // Up to 256 bytes come whole or not at all.
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(seed)
}

/// The size of frames on a port, in bytes after the Ethernet header; `None` if it is too small.
fn frame_bytes(port: &netdev::packet::ControlPort) -> Option<u16> {
    let bytes = port.mtu().min(contract::ethernet::FRAME_BYTES_MAX);
    (bytes >= contract::ethernet::FRAME_BYTES_MIN).then_some(bytes as u16)
}
