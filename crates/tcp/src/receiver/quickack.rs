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
//! An application that has nothing to answer can ask for the same (TCP_QUICKACK).

use std::time::Duration;

use crate::time::Instant;

/// Segments that an application which asks gets acknowledged at once, whatever is configured:
/// TCP_MAX_QUICKACKS of Linux.
const ASKED_FOR_MIN: u8 = 16;

/// Segments that are still to be acknowledged one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuickAcks {
    left: u8,
    /// The application wants these, of any size.
    is_asked_for: bool,
    text_at: Instant,
}

impl QuickAcks {
    pub(crate) fn new(max: u8) -> QuickAcks {
        QuickAcks {
            left: max,
            is_asked_for: false,
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
        let quick = (bulk || self.is_asked_for) && self.left > 0;
        self.left -= u8::from(quick);
        self.is_asked_for &= self.left > 0;
        quick
    }

    /// The application wants the next segments to be acknowledged at once, or none of them.
    pub(crate) fn set(&mut self, is_asked_for: bool, max: u8) {
        self.is_asked_for = is_asked_for;
        self.left = if is_asked_for {
            max.max(ASKED_FOR_MIN)
        } else {
            0
        };
    }

    /// True if the next full-sized segment is acknowledged at once.
    pub(crate) fn is_on(&self) -> bool {
        self.left > 0
    }

    /// When text has last come in order; [`Instant::NEVER`] if none has.
    pub(crate) fn text_at(&self) -> Instant {
        self.text_at
    }

    /// Something is missing: the peer is going to reduce its window.
    pub(crate) fn on_gap(&mut self, max: u8) {
        self.left = max;
    }
}
