//! A channel to a worker that keeps the worker's unread events after its end.

use std::collections::VecDeque;

use contract::Event;
use contract::channel::{HostChannel, ReceiveError};

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct EventDrain {
    pub(crate) channel: HostChannel,
    /// Events that were unread when the worker ended.
    last: Option<VecDeque<Result<Event, ReceiveError>>>,
}

impl EventDrain {
    pub(crate) fn new(channel: HostChannel) -> EventDrain {
        EventDrain {
            channel,
            last: None,
        }
    }

    /// Ends the worker: its published events are in the ring, and no others follow.
    pub(crate) fn end(&mut self) {
        if self.last.is_none() {
            let mut last = VecDeque::new();
            while let Some(said) = self.channel.receive().transpose() {
                let goes_on = said.is_ok();
                last.push_back(said);
                if !goes_on {
                    break;
                }
            }
            self.last = Some(last);
        }
    }

    /// Receives the next event.
    pub(crate) fn receive(&mut self) -> Result<Option<Event>, ReceiveError> {
        match &mut self.last {
            Some(last) => last.pop_front().transpose(),
            None => self.channel.receive(),
        }
    }

    /// Counts the events, of those unread at the worker's end, up to its last report of tags.
    pub(crate) fn events_upto_last_tag(&self) -> usize {
        let is_tag = |said: &Result<Event, _>| matches!(said, Ok(Event::Sealed { .. }));
        let last = self
            .last
            .as_ref()
            .and_then(|last| last.iter().rposition(is_tag));
        last.map_or(0, |place| place + 1)
    }
}
