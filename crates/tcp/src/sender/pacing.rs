//! Pacing: at what rate a connection may send, and when its next transmission may leave.
//!
//! The host decides, the NIC stack waits: a transmission carries its earliest departure
//! ([`Transmit::not_before`](crate::Transmit::not_before)), so that it can be issued a little
//! ahead. A connection that nothing paces pays a comparison for each transmission.

mod release;

use std::time::Duration;

use crate::time::Instant;

/// A transmission holds the bytes that may leave in this time ...
const QUANTUM: Duration = Duration::from_millis(1);
/// ... but at least two packets, since receivers acknowledge every second, and at most this many
/// bytes.
const QUANTUM_BYTES_MAX: u64 = 256 << 10;

/// Returns how many bytes are sent at once at `rate` bytes per second (draft-ietf-ccwg-bbr §5.6.3).
pub(crate) fn quantum(rate: u64, mss: u64) -> u64 {
    let bytes = rate / (1_000_000 / QUANTUM.as_micros() as u64);
    bytes.min(QUANTUM_BYTES_MAX).max(2 * mss)
}

/// Returns the time that `bytes` take at `rate`.
fn duration_of(bytes: u64, rate: u64) -> Duration {
    let us = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
    Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
}

/// Pacing state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacing {
    /// Bytes per second that the application allows.
    pub(crate) rate_max: Option<u64>,
    /// Earliest departure of the next transmission, ...
    next: Instant,
    /// ... after the last transmission, of `bytes` bytes, left at this time.
    since: Instant,
    bytes: u64,
}

impl Pacing {
    fn occupy(&mut self, since: Instant, bytes: u64, rate: u64) {
        self.since = since;
        self.bytes = bytes;
        self.next = since + duration_of(self.bytes, rate);
    }
}
