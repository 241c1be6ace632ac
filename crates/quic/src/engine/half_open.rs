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

impl Endpoint {
    /// True if further clients must validate their address with Retry.
    pub(super) fn is_half_open_full(&self) -> bool {
        self.half_open >= self.limits.half_open_max
    }

    /// Starts the time limit of a new half-open connection.
    pub(super) fn on_half_open(&mut self, now: Instant, index: usize) {
        if let Some(connection) = self.at(index) {
            connection.is_half_open = true;
            connection.validate_by = Some(now + TIMEOUT);
            self.half_open += 1;
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
            self.half_open -= 1;
        }
    }

    /// The time limit of a half-open connection has expired. While half of the places are free, it
    /// gets more time, since its path may be interrupted. Otherwise it is closed with
    /// CONNECTION_CLOSE, since the idle timeout has not expired (RFC 9000 §10.1).
    pub(super) fn on_overdue(&mut self, now: Instant, index: usize) {
        let may_stay = self.half_open <= self.limits.half_open_max / 2;
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
