//! State shared by all sessions of a proxy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use host::Episode;
use host::app::{Io, StreamId};
use http_message::access::AccessLog;

use crate::answer::Refusal;
use crate::buffer::COPY_BYTES;
use crate::config::Config;
use crate::counters::Counters;
use crate::http2::names::is_of_http2;
use crate::http2::wanted::Wanted;
use crate::pools::{BackendId, Pools};
use crate::shares::Holder;

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The client of the session with this number.
    Client(u64),
    /// A connection of HTTP/2, of a client or to a backend.
    Http2,
    /// The backend of the session with this number.
    Backend(u64),
    /// An idle connection to a backend, kept for reuse.
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
    /// Sessions that have waited for a backend and may try again, in order.
    pub(crate) woken: VecDeque<u64>,
    /// Sessions that have lost their place in a queue.
    pub(crate) displaced: VecDeque<u64>,
    episodes: Episodes,
    /// Connections to backends that are no longer needed.
    pub(crate) unwanted: Vec<StreamId>,
    /// The pools have changed, and connections of HTTP/2 to backends may be no longer needed.
    pub(crate) has_new_pools: bool,
    /// Streams to backends that are to be opened.
    pub(crate) wanted: Wanted,
    /// Connections end after the response in hand.
    pub(crate) is_draining: bool,
    /// Buffer for bytes on their way between streams.
    pub(crate) scratch: Vec<u8>,
}

/// Limits, whose first effect in each episode is logged.
#[derive(Debug, Default)]
struct Episodes {
    queue_evictions: Episode,
    evictions: Episode,
    slow_clients: Episode,
    no_port: Episode,
}

/// The end of a session's use of a connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// The connection may be used again.
    Reuse,
    /// The exchange is complete, and only this side closes.
    End,
    /// The backend has closed: the connection ends in order.
    Close,
    /// Bytes in flight are not wanted.
    Abort,
    /// The connection is over already.
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
            displaced: VecDeque::new(),
            episodes: Episodes::default(),
            unwanted: Vec::new(),
            has_new_pools: false,
            wanted: Wanted::default(),
            is_draining: false,
            scratch: vec![0; COPY_BYTES],
        }
    }

    /// True if sessions that have waited may continue.
    pub(crate) fn has_work(&self) -> bool {
        let is_any_woken = !self.woken.is_empty() || !self.displaced.is_empty();
        is_any_woken || self.pools.has_changed()
    }

    /// Counts a response of the proxy itself, or a connection closed without one.
    pub(crate) fn count_refusal(&mut self, why: Refusal) {
        match why.status().as_u16() {
            ..500 => self.counters.refused_4xx += 1,
            _ => self.counters.refused_5xx += 1,
        }
    }

    /// Handles the loss of a session's place in the queue of a pool to another session.
    pub(crate) fn on_queue_eviction(&mut self, now_us: u64, pool: usize, session: u64) {
        self.counters.queue_evictions += 1;
        self.displaced.push_back(session);
        if self.episodes.queue_evictions.begins(now_us) {
            let settings = &self.config.pools[pool];
            tracing::warn!(
                pool = %settings.name,
                queue_max = settings.queue_max,
                "the queue is full: the source with most places in it gives some up to others, by \
                 503; later ones are only counted"
            );
        }
    }

    /// Counts a session that gives up its connection to a backend of a pool.
    pub(crate) fn on_eviction(&mut self, now_us: u64, pool: usize) {
        self.counters.evictions += 1;
        if self.episodes.evictions.begins(now_us) {
            let settings = &self.config.pools[pool];
            tracing::warn!(
                pool = %settings.name,
                connections_max = settings.connections_max,
                "requests wait for a backend while clients delay others: the slowest of the \
                 source with most connections ends; later ones are only counted"
            );
        }
    }

    /// Counts a client that has sent or taken less than the minimum rate.
    pub(crate) fn on_slow_client(&mut self, now_us: u64, stream: StreamId) {
        self.counters.rate_timeouts += 1;
        if self.episodes.slow_clients.begins(now_us) {
            tracing::warn!(
                stream = stream.0,
                "a client sends or takes less than proxy.rate_min: its request ends; later ones \
                 are only counted"
            );
        }
    }

    /// Counts a failure to connect because all local ports have a connection to the backend, or had
    /// one a moment ago.
    pub(crate) fn on_no_port(&mut self, now_us: u64, backend: BackendId) {
        self.counters.backend_ports_exhausted += 1;
        let Some(state) = self.pools.get(backend) else {
            return;
        };
        if self.episodes.no_port.begins(now_us) {
            tracing::warn!(
                backend = %state.name,
                address = %state.address,
                "no local port is left for a connection to the backend: give the stack further \
                 addresses, or the backend further addresses or ports; raise idle_max; and enable \
                 TCP timestamps at the backend; later ones are only counted"
            );
        }
    }

    /// Takes an idle connection to the backend without unread bytes. With `since_us`, its last
    /// response ended then or later.
    pub(crate) fn take_idle(
        &mut self,
        io: &mut dyn Io,
        backend: BackendId,
        since_us: Option<u64>,
    ) -> Option<StreamId> {
        while let Some(stream) = self.pools.pop_idle(backend, since_us) {
            if io.unread(stream) == 0 {
                return Some(stream);
            }
            self.streams.remove(&stream);
            io.abort(stream);
        }
        None
    }

    /// Ends a connection to a backend that has not closed. If this side has nothing unacknowledged,
    /// or the backend's bytes are unread, by a reset: after a FIN, this side would be in TIME-WAIT
    /// for a minute and keep its port.
    pub(crate) fn end(io: &mut dyn Io, stream: StreamId) {
        match io.unacknowledged(stream) == 0 || io.unread(stream) > 0 {
            true => io.abort(stream),
            false => io.close(stream),
        }
    }

    /// Ends a session's use of its connection to a backend.
    pub(crate) fn leave(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        slot: (Option<usize>, Holder, BackendId),
        how: Leave,
    ) {
        self.streams.remove(&stream);
        // Bytes beyond the response would be taken for the next one.
        let is_tcp = !is_of_http2(stream);
        let may_reuse =
            is_tcp && how == Leave::Reuse && !self.is_draining && io.unread(stream) == 0;
        let reusable = may_reuse.then_some((stream, io.now_us()));
        let given_back = self.pools.release(&self.config, slot, reusable);
        if reusable.is_some() && given_back.is_none() {
            let (.., backend) = slot;
            self.streams.insert(stream, Use::Idle(backend));
            io.set_idle(stream, true);
            io.set_timer(stream, Some(self.config.backend_idle_timeout));
            return;
        }
        match how {
            Leave::Reuse | Leave::End if is_tcp => Shared::end(io, stream),
            // The connection stays.
            Leave::Reuse | Leave::End => io.close(stream),
            Leave::Close => io.close(stream),
            Leave::Abort => {
                // No further event of the stream is wanted.
                io.abort(stream);
            }
            Leave::Gone => {}
        }
    }
}
