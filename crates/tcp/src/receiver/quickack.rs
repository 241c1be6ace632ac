//! Quick acknowledgments: no delay while the peer's window may be small (RFC 5681 §4.2, RFC 9293
//! §3.8.6.3).
//!
//! In slow start every acknowledgment lets the peer send more, so that a delayed one costs it a
//! part of a round trip: at the start, after a pause, and after something was missing. Then each
//! full-sized segment is acknowledged at once, for as many segments as a small window has.
//!
//! A last, short segment of a message is not, once there was an answer to one before: what the
//! application answers will carry the acknowledgment. The first ones are, as Linux has it: a client
//! that speaks first in several small segments would wait for a delayed acknowledgment (Nagle).

use std::time::Duration;

use crate::time::Instant;

/// Segments that are still to be acknowledged one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuickAcks {
    left: u8,
    text_at: Instant,
}

impl QuickAcks {
    pub(crate) fn new(max: u8) -> QuickAcks {
        QuickAcks {
            left: max,
            text_at: Instant::NEVER,
        }
    }

    /// Text has come in order. `bulk`: the peer has more to send. True if it is to be acknowledged
    /// at once.
    pub(crate) fn on_text(&mut self, now: Instant, bulk: bool, max: u8, rto: Duration) -> bool {
        let paused = self.text_at != Instant::NEVER && now.since(self.text_at) > rto;
        self.text_at = now;
        if paused {
            // RFC 5681 §4.1: its window starts again.
            self.left = max;
        }
        let quick = bulk && self.left > 0;
        self.left -= u8::from(quick);
        quick
    }

    /// Something is missing: the peer is going to reduce its window.
    pub(crate) fn on_gap(&mut self, max: u8) {
        self.left = max;
    }
}
