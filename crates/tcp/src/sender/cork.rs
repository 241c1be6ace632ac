//! Text that waits for a full segment because the application announces more: TCP_CORK of tcp(7),
//! MSG_MORE of send(2).
//!
//! An application that writes a head and then a file knows the end of its message, which the Nagle
//! algorithm can only guess. A partial segment waits, though nothing is in flight, but never for
//! longer than [`WAIT_MAX`]: an application that forgets the cork, or dies, only delays its text.

use std::time::Duration;

/// tcp(7), TCP_CORK: "a 200 millisecond ceiling".
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(200);

/// State of the cork. Positions as in [`SendSpace`](crate::connection::SendSpace).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cork {
    /// TCP_CORK, until the application clears it.
    pub(crate) is_in: bool,
    /// MSG_MORE, until the application writes again.
    pub(crate) more: bool,
    /// Text before this position is sent regardless of the flags.
    released: u64,
    /// First position of the text for which the timer runs.
    waits_from: u64,
}

impl Cork {
    /// Returns true if text at `nxt` was released: neither a cork nor the Nagle algorithm holds it
    /// back.
    pub(crate) fn has_released(&self, nxt: u64) -> bool {
        nxt < self.released
    }

    /// Returns true if less than a full segment waits.
    pub(crate) fn is_set(&self) -> bool {
        self.is_in || self.more
    }

    /// Records that text from `nxt` on waits. Returns true if its wait begins now.
    pub(crate) fn on_wait(&mut self, nxt: u64) -> bool {
        std::mem::replace(&mut self.waits_from, nxt) != nxt
    }

    /// Handles the timer's expiry. `end`: behind all queued data.
    pub(crate) fn on_timeout(&mut self, nxt: u64, end: u64) {
        if self.waits_from == nxt {
            self.release(end);
        }
    }

    /// Releases text queued before `end`.
    pub(crate) fn release(&mut self, end: u64) {
        self.released = end;
        self.waits_from = 0;
    }
}
