//! Streams to backends that sessions have asked for, and no connection carries yet.

use std::collections::VecDeque;
use std::time::Duration;

use host::app::StreamId;

use super::names::BACKEND_NAMES_START;
use crate::pools::BackendId;

/// A stream that is to be opened.
#[derive(Debug)]
pub(crate) struct Want {
    /// Its name for its user.
    pub(crate) name: StreamId,
    pub(crate) backend: BackendId,
    pub(crate) carrier: Carrier,
    /// Longest time until a new connection can carry the stream.
    pub(crate) timeout: Duration,
}

/// The connection that a stream may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Any,
    /// None that has answered a request: the backend may be closing it.
    Fresh,
    /// One of its own, that begins with these bytes.
    Own(Vec<u8>),
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Number of names so far.
    count: u64,
    queue: VecDeque<Want>,
}

impl Wanted {
    /// Asks for a stream to a backend; returns its name. `Notice::Carried` follows, or a failure.
    pub(crate) fn ask(
        &mut self,
        backend: BackendId,
        carrier: Carrier,
        timeout: Duration,
    ) -> StreamId {
        let name = StreamId(BACKEND_NAMES_START + self.count);
        self.count += 1;
        self.queue.push_back(Want {
            name,
            backend,
            carrier,
            timeout,
        });
        name
    }

    /// Streams wait again, before all others.
    pub(crate) fn put_back(&mut self, wants: impl DoubleEndedIterator<Item = Want>) {
        wants.rev().for_each(|want| self.queue.push_front(want));
    }

    pub(crate) fn take(&mut self) -> Option<Want> {
        self.queue.pop_front()
    }
}
