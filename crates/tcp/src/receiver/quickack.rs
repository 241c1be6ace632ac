//! Quick acknowledgments: no delay while the peer's window may be small (RFC 5681 §4.2, RFC 9293
//! §3.8.6.3).
//!
//! In slow start every acknowledgment lets the peer send more, so that a delayed one costs it a
//! part of a round trip: at the start, after a pause, and after a gap. Then each full-sized segment
//! is acknowledged at once, for as many segments as a small window has.
//!
//! A last, short segment of a message is not acknowledged at once if earlier text was answered
//! within the time of a delayed acknowledgment ("pingpong"): the application's next answer will
//! carry the acknowledgment. Before that it is, as in Linux, and again after an acknowledgment was
//! delayed in vain: a peer that sends several small segments would wait for it each time (Nagle).
//! Data that this side sends first, as a client does, is no answer. An application that has nothing
//! to answer can request the same (TCP_QUICKACK).

use std::time::Duration;

use crate::time::Instant;

/// Least number of segments acknowledged at once on the application's request, for any
/// configuration: TCP_MAX_QUICKACKS of Linux.
const ASKED_FOR_MIN: u8 = 16;

/// Segments that are still to be acknowledged one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuickAcks {
    left: u8,
    /// The application has requested them, for segments of any size.
    is_asked_for: bool,
    /// Data answers received text, and carries its acknowledgment.
    is_pingpong: bool,
    text_at: Instant,
}

impl QuickAcks {
    pub(crate) fn new(max: u8) -> QuickAcks {
        QuickAcks {
            left: max,
            is_asked_for: false,
            is_pingpong: false,
            text_at: Instant::NEVER,
        }
    }

    /// Records in-order text. `bulk`: the peer has more to send. Returns true if it is to be
    /// acknowledged at once.
    pub(crate) fn on_text(&mut self, now: Instant, bulk: bool, max: u8, rto: Duration) -> bool {
        let paused = self.text_at != Instant::NEVER && now.since(self.text_at) > rto;
        self.text_at = now;
        if paused {
            // RFC 5681 §4.1: its window starts again.
            self.left = max;
        }
        let quick = (bulk || self.is_asked_for || !self.is_pingpong) && self.left > 0;
        self.left -= u8::from(quick);
        self.is_asked_for &= self.left > 0;
        quick
    }

    /// Records that new data is sent. `delay`: the time for which an acknowledgment may wait.
    #[inline]
    pub(crate) fn on_data_sent(&mut self, now: Instant, delay: Duration) {
        if !self.is_pingpong {
            self.begin_pingpong(now, delay);
        }
    }

    #[inline(never)]
    fn begin_pingpong(&mut self, now: Instant, delay: Duration) {
        let answers = self.text_at != Instant::NEVER && now.since(self.text_at) < delay;
        self.is_pingpong = answers;
    }

    /// Records that an acknowledgment was delayed, and no data carried it.
    pub(crate) fn on_delayed(&mut self) {
        self.is_pingpong = false;
    }

    /// Sets whether the next segments are acknowledged at once, by request of the application.
    pub(crate) fn set(&mut self, is_asked_for: bool, max: u8) {
        self.is_asked_for = is_asked_for;
        self.left = if is_asked_for {
            max.max(ASKED_FOR_MIN)
        } else {
            0
        };
    }

    /// Returns true if the next full-sized segment is acknowledged at once.
    pub(crate) fn is_on(&self) -> bool {
        self.left > 0
    }

    /// Returns when text last arrived in order; [`Instant::NEVER`] if none has.
    pub(crate) fn text_at(&self) -> Instant {
        self.text_at
    }

    /// Starts quick acknowledgments after a gap: the peer is going to reduce its window.
    pub(crate) fn on_gap(&mut self, max: u8) {
        self.left = max;
    }
}
