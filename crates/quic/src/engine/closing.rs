//! Closed connections, which answer packets of their peers for a while (RFC 9000 §10.2).

use std::collections::VecDeque;
use std::time::Duration;

use crate::engine::Endpoint;
use crate::types::Handle;

/// Closed connections that are kept. Beyond that, the one closed first is forgotten: further
/// packets of its peer are answered with stateless resets.
const CLOSING_MAX: usize = 4096;

/// Memory that a connection in its closing period may keep, in bytes. Beyond that, it is forgotten
/// as soon as its CONNECTION_CLOSE has left: no account has this memory, and no limit on
/// connections counts it.
const CLOSING_BYTES_MAX: usize = 16 << 10;

/// Longer than any closing period.
const AGES: Duration = Duration::from_secs(365 * 24 * 3600);

/// Closed connections, in the order in which they were closed. Some may be forgotten since.
#[derive(Debug, Default)]
pub(super) struct Closing {
    handles: VecDeque<Handle>,
}

impl Closing {
    /// Adds a connection; returns one that is to be forgotten for it.
    fn push(&mut self, handle: Handle) -> Option<Handle> {
        self.handles.push_back(handle);
        match self.handles.len() > CLOSING_MAX {
            true => self.handles.pop_front(),
            false => None,
        }
    }
}

impl Endpoint {
    /// A connection is closed: it is kept for its closing period, if not too many are.
    pub(super) fn keep_closing(&mut self, handle: Handle) {
        let Some(oldest) = self.closing.push(handle) else {
            return;
        };
        if let Some(connection) = self.present(oldest)
            && connection.quinn.is_closed()
        {
            let index = connection.handle.index;
            self.end_closing(index);
        }
    }

    /// A closed connection with nothing left to send is forgotten if it keeps much memory.
    pub(super) fn forget_if_large(&mut self, index: usize) {
        if let Some(connection) = self.at(index)
            && connection.is_over
            && connection.quinn.is_closed()
            && !connection.is_dirty
            && connection.undeparted_bytes == 0
            && connection.closing_bytes() > CLOSING_BYTES_MAX
        {
            self.end_closing(index);
        }
    }

    /// Ends the closing period of a closed connection.
    fn end_closing(&mut self, index: usize) {
        let at = self.clock.to_std(self.told) + AGES;
        if let Some(connection) = self.at(index) {
            // Of a closed connection's timers, only the one that ends the closing period is set.
            connection.quinn.handle_timeout(at);
            self.after(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_closed_connections_are_kept() {
        let mut closing = Closing::default();
        let handle = |index| Handle {
            serial: index as u64,
            index,
        };
        for index in 0..CLOSING_MAX {
            assert_eq!(closing.push(handle(index)), None);
        }
        assert_eq!(closing.push(handle(CLOSING_MAX)), Some(handle(0)));
        assert_eq!(closing.handles.len(), CLOSING_MAX);
    }
}
