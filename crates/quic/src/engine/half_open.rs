//! Connections whose client has not shown that it gets what is sent to its address (RFC 9000 §8.1):
//! anyone can begin them in the name of others.

use std::time::Duration;

use bytes::Bytes;
use quinn_proto::VarInt;
use tcp::Instant;

use crate::engine::Endpoint;
use crate::types::CloseReason;

/// By when a client has to show its address, from its first packet on, where there are many of
/// them.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Endpoint {
    /// True if further clients have to show their address before anything is kept of them.
    pub(super) fn is_half_open_full(&self) -> bool {
        self.half_open >= self.limits.half_open_max
    }

    /// A connection has begun whose client has not shown its address.
    pub(super) fn on_half_open(&mut self, now: Instant, index: usize) {
        if let Some(connection) = self.at(index) {
            connection.is_half_open = true;
            connection.validate_by = Some(now + TIMEOUT);
            self.half_open += 1;
        }
    }

    /// Something has come, which may have shown it.
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

    /// A client has not shown its address in time. Where half of the places are free it may go on:
    /// its path may have been interrupted. Else its connection is closed, which says so, since the
    /// idle timeout is longer (RFC 9000 §10.1).
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
