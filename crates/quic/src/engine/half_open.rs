//! Half-open connections: the client's address is not validated yet (RFC 9000 §8.1), so its source
//! may be spoofed.

use std::time::Duration;

use bytes::Bytes;
use tcp::Instant;

use crate::engine::Endpoint;
use crate::engine::allowance::Allowance;
use crate::types::CloseReason;

/// Time for a client to validate its address, from its first packet, while many are half-open.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The application error code for a client that has not validated its address in time: H3_NO_ERROR
/// (RFC 9114 §8.1).
const NO_ERROR_CODE: u64 = 0x100;

/// The number of half-open connections, and of handshakes that failed before there was one.
#[derive(Debug)]
pub(super) struct HalfOpen {
    max: usize,
    count: usize,
    /// For handshakes from unvalidated addresses that fail: each may have cost a signature, and
    /// counts for [`TIMEOUT`] at most.
    failures: Allowance,
}

impl HalfOpen {
    pub(super) fn new(max: usize) -> Self {
        let most = u32::try_from(max).unwrap_or(u32::MAX);
        let interval = (TIMEOUT / most.max(1)).max(Duration::from_micros(1));
        Self {
            max,
            count: 0,
            failures: Allowance::new(most, interval),
        }
    }

    /// True if further clients must validate their address with Retry.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.count >= self.failures.left(now) as usize
    }

    /// The first packets of a client with an unvalidated address led to no connection.
    pub(super) fn on_failed(&mut self, now: Instant) {
        self.failures.left(now);
        self.failures.take(1);
    }
}

impl Endpoint {
    /// Starts the time limit of a new half-open connection.
    pub(super) fn on_half_open(&mut self, now: Instant, index: usize) {
        if let Some(connection) = self.at(index) {
            connection.validate_by = Some(now + TIMEOUT);
            self.half_open.count += 1;
        }
    }

    /// Ends the half-open state if a datagram has validated the address.
    pub(super) fn look_for_validation(&mut self, index: usize) {
        if let Some(connection) = self.at(index)
            && connection.recorder.has_opened_handshake()
        {
            self.end_half_open(index);
        }
    }

    /// A connection is half-open no more, if it was.
    pub(super) fn end_half_open(&mut self, index: usize) {
        let connection = self.at(index);
        if connection.is_some_and(|it| it.validate_by.take().is_some()) {
            self.half_open.count -= 1;
        }
    }

    /// The time limit of a half-open connection has expired. While half of the places are free, it
    /// gets more time, since its path may be interrupted. Otherwise it is closed with
    /// CONNECTION_CLOSE, since the idle timeout has not expired (RFC 9000 §10.1).
    pub(super) fn on_overdue(&mut self, now: Instant, index: usize) {
        if self.half_open.count > self.half_open.max / 2 {
            self.end(
                now,
                index,
                NO_ERROR_CODE,
                Bytes::new(),
                CloseReason::TimedOut,
            );
        } else if let Some(connection) = self.at(index) {
            connection.validate_by = Some(now + TIMEOUT);
        }
        self.after(index);
    }
}
