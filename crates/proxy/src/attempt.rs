//! How a session comes to a connection to a backend: one after the other is tried, and where none
//! has room it waits.

use std::net::SocketAddr;
use std::time::Duration;

use host::app::{CloseReason, Io, Owner, StreamId};

use crate::answer::Refusal;
use crate::pools::{BackendId, Choice};
use crate::shared::{Leave, Shared, Use};

/// A connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) stream: StreamId,
    pub(crate) backend: BackendId,
    /// It has carried other requests before.
    pub(crate) is_reused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A backend is to be chosen.
    Choosing,
    Queued,
    Connecting(Link),
    Established(Link),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Attempt {
    session: u64,
    /// The pool, by number; `None` if no configuration has it any more.
    pool: Option<usize>,
    key: u64,
    tried: Vec<BackendId>,
    state: State,
    /// How often it was tried once more.
    retries: u8,
    /// Only a connection of its own will do.
    is_fresh: bool,
    /// Why the last one has failed.
    failure: Option<Refusal>,
    /// When it has waited for a backend for too long, in microseconds.
    queued_until_us: Option<u64>,
}

/// What an attempt has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It waits for so long at most.
    Waits(Duration),
    /// It waits as before.
    Still,
    Established(Link),
}

impl Attempt {
    pub(crate) fn new(session: u64, pool: usize, key: u64) -> Self {
        Attempt {
            session,
            pool: Some(pool),
            key,
            tried: Vec::new(),
            state: State::Choosing,
            retries: 0,
            is_fresh: false,
            failure: None,
            queued_until_us: None,
        }
    }

    /// A connection that was there will not do.
    pub(crate) fn fresh(mut self) -> Self {
        self.is_fresh = true;
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

    /// Pools have other numbers from now on.
    pub(crate) fn renumber(&mut self, pools: &[Option<usize>]) {
        self.pool = self
            .pool
            .and_then(|pool| pools.get(pool).copied().flatten());
    }

    /// It waits no more: a backend may have room, or none ever will.
    pub(crate) fn on_woken(&mut self) {
        if self.state == State::Queued {
            self.state = State::Choosing;
        }
    }

    /// The connection is established.
    pub(crate) fn on_connected(&mut self, shared: &mut Shared) {
        if let State::Connecting(link) = self.state {
            shared.pools.on_request(link.backend);
            self.state = State::Established(link);
        }
    }

    /// Goes on as far as it can.
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
                Choice::Busy => {
                    let is_choosy = !self.tried.is_empty();
                    if !shared
                        .pools
                        .enqueue(&config, pool, (self.session, is_choosy))
                    {
                        return Err(Refusal::QueueFull);
                    }
                    self.state = State::Queued;
                    return Ok(Opening::Waits(self.queue_time(io, shared, pool)));
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

    /// How long it may still wait for a backend. Being woken in vain gives it no more time.
    fn queue_time(&mut self, io: &mut dyn Io, shared: &mut Shared, pool: usize) -> Duration {
        let timeout_us = shared.config.pools[pool].queue_timeout.as_micros() as u64;
        let now_us = io.now_us();
        let until_us = *self.queued_until_us.get_or_insert_with(|| {
            shared.counters.queued += 1;
            now_us.saturating_add(timeout_us)
        });
        Duration::from_micros(until_us.saturating_sub(now_us))
    }

    /// `None` if the stack cannot open a connection.
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
        self.queued_until_us = None;
        shared.pools.take(backend);
        let idle = match self.is_fresh {
            true => None,
            false => shared.take_idle(io, backend),
        };
        if let Some(stream) = idle {
            shared.counters.backend_reuses += 1;
            shared.pools.on_request(backend);
            shared.streams.insert(stream, Use::Backend(self.session));
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
            // It says nothing about the backend.
            shared.counters.backend_connect_failures += 1;
            let (_, waiting) = shared.pools.release(&shared.config, backend, None);
            shared.woken.extend(waiting);
            self.tried.push(backend);
            self.failure = Some(Refusal::ConnectFailed);
            return None;
        };
        shared.streams.insert(stream, Use::Backend(self.session));
        let link = Link {
            stream,
            backend,
            is_reused: false,
        };
        self.state = State::Connecting(link);
        Some(link)
    }

    /// The connection has failed, for this reason, before there was a response. The next one is
    /// tried, if `may_retry` and there is another; otherwise the reason is returned.
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
        shared.leave(io, link.stream, link.backend, how);
        self.state = State::Choosing;
        self.failure = Some(why);
        if was_connecting {
            shared.counters.backend_connect_failures += 1;
        }
        // A backend may close a connection that waits, at any time.
        if link.is_reused && may_retry {
            shared.counters.retries += 1;
            self.is_fresh = true;
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

    /// The session does not need it any more.
    pub(crate) fn leave(&mut self, io: &mut dyn Io, shared: &mut Shared, how: Leave) {
        match (self.state, self.pool) {
            (State::Connecting(link) | State::Established(link), _) => {
                shared.leave(io, link.stream, link.backend, how);
            }
            (State::Queued, Some(pool)) => shared.pools.dequeue(pool, self.session),
            (State::Queued | State::Choosing, _) => {}
        }
        self.state = State::Choosing;
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
