//! Descriptors that an application has passed to the NIC stacks, and their uses.
//!
//! The broker keeps each until the host stack has released it: no socket names it, no range of its
//! file waits in a stream, and no connection may have to retransmit from it.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};

use host::PassedId;
use host::app::Io;
use socket_channel::AppId;

/// A use of a descriptor, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct PassedUse {
    pub(crate) id: PassedId,
    ended: Sender<PassedId>,
}

impl Drop for PassedUse {
    fn drop(&mut self) {
        // The receiver is gone if the application is.
        let _ = self.ended.send(self.id);
    }
}

/// Passed descriptors of an application.
#[derive(Debug)]
pub(crate) struct Passed {
    app: AppId,
    uses: HashMap<PassedId, u32>,
    /// Descriptors without uses from which the stack may have to retransmit.
    leaving: BTreeSet<PassedId>,
    ends: (Sender<PassedId>, Receiver<PassedId>),
}

impl Passed {
    pub(crate) fn new(app: AppId) -> Passed {
        Passed {
            app,
            uses: HashMap::new(),
            leaving: BTreeSet::new(),
            ends: channel(),
        }
    }

    /// Reports whether all descriptors are released.
    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.leaving.is_empty()
    }

    /// Returns the numbers of the unreleased descriptors.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let ids = self.uses.keys().chain(&self.leaving);
        ids.map(|id| number_of(*id))
    }

    /// Starts a use of the descriptor to which the broker has given this number.
    pub(crate) fn begin(&mut self, file: u32) -> PassedUse {
        let id = PassedId(self.app.passed(file));
        self.leaving.remove(&id);
        *self.uses.entry(id).or_default() += 1;
        PassedUse {
            id,
            ended: self.ends.0.clone(),
        }
    }

    /// Returns the numbers of descriptors that are now released.
    pub(crate) fn take_released(&mut self, io: &dyn Io) -> Vec<u32> {
        let mut released = Vec::new();
        for id in self.ends.1.try_iter() {
            let Some(uses) = self.uses.get_mut(&id) else {
                continue;
            };
            *uses -= 1;
            if *uses > 0 {
                continue;
            }
            self.uses.remove(&id);
            if io.uses_passed(id) {
                self.leaving.insert(id);
            } else {
                released.push(number_of(id));
            }
        }
        released
    }

    /// Notes the end of the stack's use; returns the number if this releases the descriptor.
    pub(crate) fn on_unused(&mut self, id: PassedId) -> Option<u32> {
        self.leaving.remove(&id).then(|| number_of(id))
    }
}

fn number_of(id: PassedId) -> u32 {
    id.0 as u32
}
