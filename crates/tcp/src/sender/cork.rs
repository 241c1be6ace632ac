//! Text that waits for a full segment because the application says that more comes: TCP_CORK of
//! tcp(7), MSG_MORE of send(2).
//!
//! An application that writes a head and then a file knows what the Nagle algorithm can only guess.
//! What does not fill a segment waits, though nothing is in flight, but never for longer than
//! [`WAIT_MAX`]: an application that forgets the cork, or dies, delays its text and no more.

use std::time::Duration;

/// tcp(7), TCP_CORK: "a 200 millisecond ceiling".
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(200);

/// Whether and which text waits. Positions as in [`SendSpace`](crate::connection::SendSpace).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cork {
    /// Until the application takes it out.
    pub(crate) is_in: bool,
    /// Until the application writes again.
    pub(crate) more: bool,
    /// Text before this position goes, whatever is set.
    released: u64,
    /// The text that the timer runs for begins here.
    waits_from: u64,
}

impl Cork {
    /// Text at `nxt` was let go already: neither a cork nor the Nagle algorithm holds it back.
    pub(crate) fn has_released(&self, nxt: u64) -> bool {
        nxt < self.released
    }

    /// Less than a full segment waits.
    pub(crate) fn is_set(&self) -> bool {
        self.is_in || self.more
    }

    /// Text from `nxt` on waits. True if that is news: its time begins now.
    pub(crate) fn on_wait(&mut self, nxt: u64) -> bool {
        std::mem::replace(&mut self.waits_from, nxt) != nxt
    }

    /// The timer has expired. `end`: behind all that is queued.
    pub(crate) fn on_timeout(&mut self, nxt: u64, end: u64) {
        if self.waits_from == nxt {
            self.release(end);
        }
    }

    /// What is queued before `end` goes.
    pub(crate) fn release(&mut self, end: u64) {
        self.released = end;
        self.waits_from = 0;
    }
}
