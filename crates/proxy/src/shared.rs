//! What all sessions of a proxy have in common.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use host::app::{Io, StreamId};
use http_message::access::AccessLog;

use crate::answer::Refusal;
use crate::buffer::COPY_BYTES;
use crate::config::Config;
use crate::counters::Counters;
use crate::pools::{BackendId, Pools};

/// What a stream is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A client's, of the session with this number.
    Client(u64),
    /// A backend's, for the session with this number.
    Backend(u64),
    /// It waits to be used again.
    Idle(BackendId),
    /// A health check.
    Check,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) pools: Pools,
    pub(crate) counters: Counters,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) streams: HashMap<StreamId, Use>,
    /// Sessions that have waited for a backend, and may try again, in their order.
    pub(crate) woken: VecDeque<u64>,
    /// Connections to backends that are of no use any more.
    pub(crate) unwanted: Vec<StreamId>,
    /// Connections end after the response in hand.
    pub(crate) is_draining: bool,
    /// Where bytes are on their way from one stream to another.
    pub(crate) scratch: Vec<u8>,
}

/// What becomes of a connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It may be used again.
    Reuse,
    /// It ends in order.
    Close,
    /// What is on its way is not wanted.
    Abort,
    /// It is over already.
    Gone,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Shared {
            config: Arc::new(Config::default()),
            pools: Pools::default(),
            counters: Counters::default(),
            access_log: None,
            streams: HashMap::new(),
            woken: VecDeque::new(),
            unwanted: Vec::new(),
            is_draining: false,
            scratch: vec![0; COPY_BYTES],
        }
    }

    /// A client gets an answer of the proxy's own, or none.
    pub(crate) fn count_refusal(&mut self, why: Refusal) {
        match why.status().as_u16() {
            ..500 => self.counters.refused_4xx += 1,
            _ => self.counters.refused_5xx += 1,
        }
    }

    /// A connection to the backend that waits to be used again, and on which nothing was said.
    pub(crate) fn take_idle(&mut self, io: &mut dyn Io, backend: BackendId) -> Option<StreamId> {
        while let Some(stream) = self.pools.pop_idle(backend) {
            if io.unread(stream) == 0 {
                return Some(stream);
            }
            self.streams.remove(&stream);
            io.close(stream);
        }
        None
    }

    /// A session does not use its connection to a backend any more.
    pub(crate) fn leave(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        backend: BackendId,
        how: Leave,
    ) {
        self.streams.remove(&stream);
        // What was said beyond the response would be taken for the next one.
        let may_reuse = how == Leave::Reuse && !self.is_draining && io.unread(stream) == 0;
        let reusable = may_reuse.then_some(stream);
        let (given_back, waiting) = self.pools.release(&self.config, backend, reusable);
        self.woken.extend(waiting);
        if reusable.is_some() && given_back.is_none() {
            self.streams.insert(stream, Use::Idle(backend));
            io.set_idle(stream, true);
            io.set_timer(stream, Some(self.config.backend_idle_timeout));
            return;
        }
        match how {
            Leave::Reuse | Leave::Close => io.close(stream),
            Leave::Abort => {
                // No event of it is wanted any more.
                io.abort(stream);
            }
            Leave::Gone => {}
        }
    }
}
