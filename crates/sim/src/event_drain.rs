//! A channel to a worker, and what of its events is left to hear when the worker is no more.

use std::collections::VecDeque;

use contract::Event;
use contract::channel::{HostChannel, ReceiveError};

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct EventDrain {
    pub(crate) channel: HostChannel,
    /// What it had said when it ended.
    last: Option<VecDeque<Result<Event, ReceiveError>>>,
}

impl EventDrain {
    pub(crate) fn new(channel: HostChannel) -> EventDrain {
        EventDrain {
            channel,
            last: None,
        }
    }

    /// The worker ends now: what it has published is in the ring, and nothing else ever will be.
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

    /// The next event.
    pub(crate) fn receive(&mut self) -> Result<Option<Event>, ReceiveError> {
        match &mut self.last {
            Some(last) => last.pop_front().transpose(),
            None => self.channel.receive(),
        }
    }

    /// Of what it had said when it ended: as much as it takes to hear of all records that it has
    /// sealed.
    pub(crate) fn events_upto_last_tag(&self) -> usize {
        let is_tag = |said: &Result<Event, _>| matches!(said, Ok(Event::Sealed { .. }));
        let last = self
            .last
            .as_ref()
            .and_then(|last| last.iter().rposition(is_tag));
        last.map_or(0, |place| place + 1)
    }
}
