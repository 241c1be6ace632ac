//! Events of the host stack that wait to be sent to a process.
//!
//! Answers wait for room in the ring, since the process waits for each. Hints do not: if one is
//! lost, the process must check all of its sockets.

use std::collections::VecDeque;

use crate::channel::HostEnd;
use crate::message::Event;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct Outbox {
    /// Answers without room.
    unsent: VecDeque<Event>,
    hints_lost: bool,
}

impl Outbox {
    /// Sends answers as far as there is room. True if a further event can be sent at once.
    pub fn has_room(&mut self, end: &mut HostEnd) -> bool {
        while let Some(event) = self.unsent.front()
            && end.has_room()
            && end.send(event).is_ok()
        {
            self.unsent.pop_front();
        }
        self.unsent.is_empty() && end.has_room()
    }

    /// Returns the number of waiting answers.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Sends an answer as soon as there is room.
    pub fn answer(&mut self, end: &mut HostEnd, event: Event) {
        self.unsent.push_back(event);
        self.has_room(end);
    }

    /// Sends a hint after all answers. False if it is lost.
    pub fn hint(&mut self, end: &mut HostEnd, event: &Event) -> bool {
        let is_sent = self.unsent.is_empty() && end.has_room() && end.send(event).is_ok();
        self.hints_lost |= !is_sent;
        is_sent
    }

    /// Sends waiting answers, and a ScanAll if hints were lost: true if a ScanAll was due. Wakes
    /// the process.
    pub fn flush(&mut self, end: &mut HostEnd) -> bool {
        let says_all = self.has_room(end) && self.hints_lost;
        if says_all {
            self.hints_lost = end.send(&Event::ScanAll).is_err();
        }
        end.flush();
        says_all
    }
}
