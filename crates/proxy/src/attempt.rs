//! A session's attempt to get a connection to a backend: backends are tried one after the other,
//! and if none has room the session waits.

use std::net::SocketAddr;
use std::time::Duration;

use host::app::{CloseReason, ConnectError, Io, Owner, StreamId};

use crate::answer::Refusal;
use crate::http2::wanted::Carrier;
use crate::pools::{BackendId, Choice};
use crate::shared::{Leave, Shared, Use};
use crate::shares::{Holder, Queued, Waiting};

/// A backend that answered on a connection this recently is unlikely to close it, so non-idempotent
/// requests may use it.
const RECENT_US: u64 = 1_000_000;

/// Idle connections that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    Any,
    /// Connections whose last response ended within a second.
    Recent,
    None,
}

/// A connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) stream: StreamId,
    pub(crate) backend: BackendId,
    /// The connection has carried other requests before.
    pub(crate) is_reused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A backend has to be chosen.
    Choosing,
    Queued,
    Connecting(Link),
    Established(Link),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Attempt {
    holder: Holder,
    /// Number of the pool; `None` if no configuration has it any more.
    pool: Option<usize>,
    key: u64,
    tried: Vec<BackendId>,
    state: State,
    /// Number of retries.
    retries: u8,
    reuse: Reuse,
    /// The session has waited, and is next.
    is_next: bool,
    /// Why the last connection failed.
    failure: Option<Refusal>,
    /// Which connection of HTTP/2 may carry the request.
    carrier: Carrier,
    /// Time since which the session waits for a backend, in microseconds.
    queued_since_us: Option<u64>,
}

/// The result of an advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The attempt waits for at most this time.
    Waits(Duration),
    /// The attempt waits as before.
    Still,
    Established(Link),
}

impl Attempt {
    pub(crate) fn new(holder: Holder, pool: usize, key: u64, reuse: Reuse) -> Self {
        Attempt {
            holder,
            pool: Some(pool),
            key,
            tried: Vec::new(),
            state: State::Choosing,
            retries: 0,
            reuse,
            is_next: false,
            failure: None,
            carrier: Carrier::Any,
            queued_since_us: None,
        }
    }

    /// The connection of HTTP/2 is for this request alone, and begins with these bytes.
    pub(crate) fn with_own_connection(mut self, begins_with: Vec<u8>) -> Self {
        self.carrier = Carrier::Own(begins_with);
        self
    }

    pub(crate) fn pool(&self) -> Option<usize> {
        self.pool
    }

    pub(crate) fn retries(&self) -> u8 {
        self.retries
    }

    pub(crate) fn link(&self) -> Option<Link> {
        match self.state {
            State::Connecting(link) | State::Established(link) => Some(link),
            State::Choosing | State::Queued => None,
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.state == State::Queued
    }

    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting(_))
    }

    /// Updates the number of the pool.
    pub(crate) fn renumber(&mut self, pools: &[Option<usize>]) {
        self.pool = self
            .pool
            .and_then(|pool| pools.get(pool).copied().flatten());
    }

    /// Ends the wait: a backend may have room, or none ever will.
    pub(crate) fn on_woken(&mut self) {
        if self.state == State::Queued {
            (self.state, self.is_next) = (State::Choosing, true);
        }
    }

    /// Ends the wait, since another session has the place in the queue.
    pub(crate) fn on_displaced(&mut self) {
        if self.state == State::Queued {
            self.state = State::Choosing;
        }
    }

    /// Handles the establishment of the connection.
    pub(crate) fn on_connected(&mut self, shared: &mut Shared) {
        if let State::Connecting(link) = self.state {
            shared.pools.on_request(link.backend);
            self.state = State::Established(link);
        }
    }

    /// A connection of HTTP/2 carries the request; it may have answered others.
    pub(crate) fn on_carried(&mut self, shared: &mut Shared, is_reused: bool) {
        if let State::Connecting(link) = &mut self.state {
            link.is_reused = is_reused;
            shared.counters.backend_reuses += u64::from(is_reused);
            self.on_connected(shared);
        }
    }

    /// The stack could not open a connection, for this reason: the backend has not failed.
    pub(crate) fn on_not_opened(&mut self, io: &mut dyn Io, shared: &mut Shared, why: Refusal) {
        if let Some(link) = self.link() {
            self.leave(io, shared, Leave::Gone);
            self.failure = Some(why);
            self.tried.push(link.backend);
        }
    }

    /// The backend has not processed the request: it has refused it, or closes the connection. As
    /// [`Attempt::fail`].
    pub(crate) fn on_unprocessed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        (is_refused, may_retry): (bool, bool),
    ) -> Result<(), Refusal> {
        shared.counters.backend_http2_unprocessed += 1;
        let is_first = self.reuse != Reuse::None;
        if let State::Connecting(link) | State::Established(link) = &mut self.state {
            // A backend that closes connections now and then is tried again on another one.
            link.is_reused = !is_refused && is_first;
        }
        self.fail(io, shared, (Refusal::Unprocessed, Leave::Gone), may_retry)
    }

    /// Advances as far as possible.
    pub(crate) fn advance(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
    ) -> Result<Opening, Refusal> {
        match self.state {
            State::Established(link) => return Ok(Opening::Established(link)),
            State::Connecting(_) | State::Queued => return Ok(Opening::Still),
            State::Choosing => {}
        }
        loop {
            let pool = self.pool.ok_or(Refusal::NoBackend)?;
            let config = shared.config.clone();
            let keys = (self.key, io.now_us());
            match shared.pools.choose(&config, pool, keys, &self.tried) {
                Choice::None => return Err(self.failure.unwrap_or(Refusal::NoBackend)),
                Choice::Busy => return self.enqueue(io, shared, pool),
                Choice::Backend(_) if !self.is_next && shared.pools.is_queue_ahead(pool) => {
                    return self.enqueue(io, shared, pool);
                }
                Choice::Backend(backend) => {
                    if let Some(link) = self.connect(io, shared, backend) {
                        return Ok(match link.is_reused {
                            true => Opening::Established(link),
                            false => Opening::Waits(config.connect_timeout),
                        });
                    }
                }
            }
        }
    }

    /// Waits for a backend. A wake-up in vain does not extend the time.
    fn enqueue(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        pool: usize,
    ) -> Result<Opening, Refusal> {
        let now_us = io.now_us();
        let is_new = self.queued_since_us.is_none();
        let since_us = *self.queued_since_us.get_or_insert(now_us);
        let waiting = Waiting {
            holder: self.holder,
            is_choosy: !self.tried.is_empty(),
            since_us,
        };
        self.is_next = false;
        match shared.pools.enqueue(&shared.config, pool, waiting) {
            Queued::Yes => {}
            Queued::InsteadOf(session) => shared.on_queue_eviction(now_us, pool, session),
            Queued::No => return Err(Refusal::QueueFull),
        }
        shared.counters.queued += u64::from(is_new);
        self.state = State::Queued;
        let timeout = shared.config.pools[pool].queue_timeout;
        let waited = Duration::from_micros(now_us.saturating_sub(since_us));
        Ok(Opening::Waits(timeout.saturating_sub(waited)))
    }

    /// Gets a connection to a backend; `None` if the stack cannot open one.
    fn connect(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        backend: BackendId,
    ) -> Option<Link> {
        if !self.tried.is_empty() {
            self.retries = self.retries.saturating_add(1);
            shared.counters.retries += 1;
        }
        self.queued_since_us = None;
        shared
            .pools
            .take(self.pool.unwrap_or(usize::MAX), self.holder, backend);
        if shared.config.speaks_http2(self.pool) {
            return Some(self.ask_for_stream(shared, backend));
        }
        let idle = match self.reuse {
            Reuse::Any => shared.take_idle(io, backend, None),
            Reuse::Recent => {
                let since_us = io.now_us().saturating_sub(RECENT_US);
                shared.take_idle(io, backend, Some(since_us))
            }
            Reuse::None => None,
        };
        if let Some(stream) = idle {
            shared.counters.backend_reuses += 1;
            shared.pools.on_request(backend);
            shared
                .streams
                .insert(stream, Use::Backend(self.holder.session));
            io.set_idle(stream, false);
            io.set_timer(stream, None);
            let link = Link {
                stream,
                backend,
                is_reused: true,
            };
            self.state = State::Established(link);
            return Some(link);
        }
        let address = shared.pools.get(backend).map(|state| state.address);
        shared.counters.backend_connects += 1;
        let opened = address.map(|address| io.connect(Owner::PROXY, None, address));
        let Some(Ok(stream)) = opened else {
            // A local failure, not the backend's.
            shared.counters.backend_connect_failures += 1;
            self.failure = Some(match opened {
                Some(Err(ConnectError::NoPort)) => {
                    shared.on_no_port(io.now_us(), backend);
                    Refusal::NoPort
                }
                _ => Refusal::ConnectFailed,
            });
            let slot = (self.pool, self.holder, backend);
            shared.pools.release(&shared.config, slot, None);
            self.tried.push(backend);
            return None;
        };
        shared
            .streams
            .insert(stream, Use::Backend(self.holder.session));
        let link = Link {
            stream,
            backend,
            is_reused: false,
        };
        self.state = State::Connecting(link);
        Some(link)
    }

    /// Asks for a stream of HTTP/2 to a backend.
    fn ask_for_stream(&mut self, shared: &mut Shared, backend: BackendId) -> Link {
        let carrier = match (&self.carrier, self.reuse) {
            (Carrier::Any, Reuse::None) => Carrier::Fresh,
            (carrier, _) => carrier.clone(),
        };
        let timeout = shared.config.connect_timeout;
        let stream = shared.wanted.ask(backend, carrier, timeout);
        shared
            .streams
            .insert(stream, Use::Backend(self.holder.session));
        let link = Link {
            stream,
            backend,
            is_reused: false,
        };
        self.state = State::Connecting(link);
        link
    }

    /// Handles the failure of the connection, for this reason, before there was a response. Another
    /// one follows, if `may_retry` and retries are left; otherwise returns the reason.
    pub(crate) fn fail(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        (why, how): (Refusal, Leave),
        may_retry: bool,
    ) -> Result<(), Refusal> {
        let Some(link) = self.link() else {
            return Err(why);
        };
        let was_connecting = self.is_connecting();
        shared.leave(io, link.stream, self.slot(link), how);
        self.state = State::Choosing;
        self.failure = Some(why);
        if was_connecting {
            shared.counters.backend_connect_failures += 1;
        }
        // A backend may close an idle connection at any time.
        if link.is_reused && may_retry {
            shared.counters.retries += 1;
            self.reuse = Reuse::None;
            return Ok(());
        }
        shared.counters.backend_failures += u64::from(!was_connecting);
        let now_us = io.now_us();
        let is_ejected = shared
            .pools
            .on_failure(&shared.config, link.backend, now_us);
        shared.counters.ejections += u64::from(is_ejected);
        self.tried.push(link.backend);
        let settings = self.pool.map(|pool| &shared.config.pools[pool]);
        let retries_max = settings.map_or(0, |pool| pool.retries);
        if !may_retry || self.retries >= retries_max {
            return Err(why);
        }
        Ok(())
    }

    /// Releases the connection, or the place in the queue.
    pub(crate) fn leave(&mut self, io: &mut dyn Io, shared: &mut Shared, how: Leave) {
        match (self.state, self.pool) {
            (State::Connecting(link) | State::Established(link), _) => {
                shared.leave(io, link.stream, self.slot(link), how);
            }
            (State::Queued, Some(pool)) => shared.pools.dequeue(pool, self.holder),
            (State::Queued | State::Choosing, _) => {}
        }
        self.state = State::Choosing;
    }

    fn slot(&self, link: Link) -> (Option<usize>, Holder, BackendId) {
        (self.pool, self.holder, link.backend)
    }

    /// Name and address of the backend, if there is one.
    pub(crate) fn backend(&self, shared: &Shared) -> Option<(String, SocketAddr)> {
        let state = shared.pools.get(self.link()?.backend)?;
        Some((state.name.to_string(), state.address))
    }
}

/// Why a connection to a backend was not established.
pub(crate) fn refusal_of(reason: CloseReason) -> Refusal {
    match reason {
        CloseReason::TimedOut => Refusal::ConnectTimeout,
        _ => Refusal::ConnectFailed,
    }
}
