//! Half-open connections: the client's address is not validated yet (RFC 9000 §8.1), so its source
//! may be spoofed.

use std::time::Duration;

use bytes::Bytes;
use quinn_proto::VarInt;
use tcp::Instant;

use crate::engine::Endpoint;
use crate::types::CloseReason;

/// Time for a client to validate its address, from its first packet, while many are half-open.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The number of half-open connections, and of handshakes that failed before there was one.
#[derive(Debug)]
pub(super) struct HalfOpen {
    max: usize,
    pub(super) count: usize,
    /// Failed handshakes from unvalidated addresses, each of which may have cost a signature: a
    /// leaky bucket that `max` fill, and that empties in [`TIMEOUT`].
    failed: usize,
    leaked_at: Instant,
}

impl HalfOpen {
    pub(super) fn new(max: usize, now: Instant) -> Self {
        Self {
            max,
            count: 0,
            failed: 0,
            leaked_at: now,
        }
    }

    /// True if further clients must validate their address with Retry.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.leak(now);
        self.count + self.failed >= self.max
    }

    /// The first packets of a client with an unvalidated address led to no connection.
    pub(super) fn on_failed(&mut self, now: Instant) {
        self.leak(now);
        self.failed = self.max.min(self.failed + 1);
    }

    fn leak(&mut self, now: Instant) {
        let elapsed_us = now.since(self.leaked_at).as_micros() as u64;
        let each_us = (TIMEOUT.as_micros() as u64 / self.max.max(1) as u64).max(1);
        let leaked = elapsed_us / each_us;
        self.failed = self.failed.saturating_sub(leaked as usize);
        self.leaked_at = self.leaked_at + Duration::from_micros(leaked * each_us);
    }
}

impl Endpoint {
    /// Starts the time limit of a new half-open connection.
    pub(super) fn on_half_open(&mut self, now: Instant, index: usize) {
        if let Some(connection) = self.at(index) {
            connection.is_half_open = true;
            connection.validate_by = Some(now + TIMEOUT);
            self.half_open.count += 1;
        }
    }

    /// Ends the half-open state if a datagram has validated the address.
    pub(super) fn look_for_validation(&mut self, index: usize) {
        if let Some(connection) = self.at(index)
            && connection.is_half_open
            && connection.recorder.has_opened_handshake()
        {
            connection.is_half_open = false;
            connection.validate_by = None;
            self.half_open.count -= 1;
        }
    }

    /// The time limit of a half-open connection has expired. While half of the places are free, it
    /// gets more time, since its path may be interrupted. Otherwise it is closed with
    /// CONNECTION_CLOSE, since the idle timeout has not expired (RFC 9000 §10.1).
    pub(super) fn on_overdue(&mut self, now: Instant, index: usize) {
        let may_stay = self.half_open.count <= self.half_open.max / 2;
        let at = self.clock.to_std(now);
        let Some(connection) = self.at(index) else {
            return;
        };
        let is_over = connection.is_over;
        connection.validate_by = (may_stay && !is_over).then_some(now + TIMEOUT);
        if !may_stay && !is_over {
            connection
                .quinn
                .close(at, VarInt::from_u32(0), Bytes::new());
            self.over(index, CloseReason::TimedOut);
        }
        self.after(index);
    }
}
