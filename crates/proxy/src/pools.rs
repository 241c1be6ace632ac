//! Pools and their backends at run time: usability, connections in use, idle connections, and
//! waiting sessions.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use host::app::StreamId;

use crate::balance::maglev::Table;
use crate::balance::{Balancer, Candidate};
use crate::config::{Backend, Config, Pool, Protocol};
use crate::counters::{BackendCounters, Counters};
use crate::health::{Change, Health};
pub(crate) use crate::shares::BackendId;
use crate::shares::{Holder, Queued, Shares, Waiting};

/// An idle connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle {
    stream: StreamId,
    /// Time at which its last response ended, in microseconds.
    since_us: u64,
}

/// A backend at run time.
#[derive(Debug)]
pub(crate) struct BackendState {
    pub(crate) name: Arc<str>,
    pub(crate) address: SocketAddr,
    /// Number of its pool; `None` if no configuration names the backend any more.
    pub(crate) pool: Option<usize>,
    drains: bool,
    is_unresolved: bool,
    lookup_failure: Option<String>,
    health: Health,
    /// Why the last check failed.
    check_failure: Option<String>,
    /// Connections in use.
    active: u32,
    /// Idle connections; the last one has been idle for the shortest time.
    idle: Vec<Idle>,
    /// Connections of HTTP/2, and the number without a stream.
    http2: u32,
    http2_idle: u32,
    /// Protocol of the connections.
    protocol: Protocol,
    next_check_us: u64,
    is_checking: bool,
    /// Counters that only grow.
    counters: BackendCounters,
}

/// A pool at run time.
#[derive(Debug, Default)]
struct PoolState {
    backends: Vec<BackendId>,
    balancer: Balancer,
    shares: Shares,
    /// Time of the next look for a session that gives up its slot, in microseconds.
    relief_us: Option<u64>,
}

/// All pools.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pools: Vec<PoolState>,
    backends: HashMap<BackendId, BackendState>,
    last: u64,
    /// Pools whose waiting sessions may find room.
    changed: BTreeSet<usize>,
}

/// The result of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A backend with room for one more connection.
    Backend(BackendId),
    /// All usable backends have as many connections as permitted.
    Busy,
    /// No backend is usable.
    None,
}

/// Effects of a new configuration.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// New number of each earlier pool; `None` if the pool is gone.
    pub(crate) pools: Vec<Option<usize>>,
    /// Connections that are no longer needed.
    pub(crate) idle: Vec<StreamId>,
    /// Sessions that have waited for a backend, and may get one now, or never.
    pub(crate) waiting: Vec<u64>,
}

impl Pools {
    pub(crate) fn get(&self, id: BackendId) -> Option<&BackendState> {
        self.backends.get(&id)
    }

    /// Replaces a configuration by another. Backends of the same pool, name, address and protocol
    /// keep their state.
    pub(crate) fn reconfigure(&mut self, old: &Config, new: &Config) -> Changes {
        let mut changes = Changes::default();
        let mut before = std::mem::take(&mut self.pools);
        let number_of = |pool: &Pool| new.pools.iter().position(|it| it.name == pool.name);
        changes.pools = old.pools.iter().map(number_of).collect();
        for state in self.backends.values_mut() {
            state.pool = None;
        }
        for (number, pool) in new.pools.iter().enumerate() {
            let was = old.pools.iter().position(|it| it.name == pool.name);
            let known = was.and_then(|was| before.get_mut(was)).map(std::mem::take);
            let known = known.unwrap_or_default();
            let mut shares = known.shares;
            changes.waiting.extend(shares.take_waiting());
            let backends = pool.backends.iter();
            let place = (number, pool.protocol);
            let backends = backends.map(|backend| self.adopt(&known.backends, backend, place));
            let backends = backends.collect();
            self.pools.push(PoolState {
                backends,
                shares,
                ..PoolState::default()
            });
        }
        self.changed.clear();
        let gone = before.iter_mut();
        let gone = gone.flat_map(|pool| pool.shares.take_waiting());
        changes.waiting.extend(gone);
        for state in self.backends.values_mut() {
            let has_checks = state
                .pool
                .is_some_and(|pool| new.pools[pool].check.is_some());
            if !has_checks {
                state.health.forget_checks();
                state.check_failure = None;
            }
            if state.pool.is_none() || state.drains {
                changes.idle.extend(state.take_idle());
            }
        }
        self.backends.retain(|_, state| !state.is_forgotten());
        changes
    }

    fn adopt(
        &mut self,
        known: &[BackendId],
        backend: &Backend,
        (pool, protocol): (usize, Protocol),
    ) -> BackendId {
        let is_same = |id: &&BackendId| {
            self.backends.get(id).is_some_and(|state| {
                state.pool.is_none()
                    && state.address == backend.address
                    && state.is_unresolved == backend.is_unresolved
                    && state.protocol == protocol
                    && *state.name == *backend.name
            })
        };
        if let Some(&id) = known.iter().find(is_same)
            && let Some(state) = self.backends.get_mut(&id)
        {
            (state.pool, state.drains) = (Some(pool), backend.drains);
            state.lookup_failure.clone_from(&backend.lookup_failure);
            return id;
        }
        self.last += 1;
        let id = BackendId(self.last);
        self.backends.insert(
            id,
            BackendState {
                name: backend.name.as_str().into(),
                address: backend.address,
                pool: Some(pool),
                drains: backend.drains,
                is_unresolved: backend.is_unresolved,
                lookup_failure: backend.lookup_failure.clone(),
                health: Health::default(),
                check_failure: None,
                active: 0,
                idle: Vec::new(),
                http2: 0,
                http2_idle: 0,
                protocol,
                next_check_us: 0,
                is_checking: false,
                counters: BackendCounters::default(),
            },
        );
        id
    }

    /// Chooses a backend of a pool, except for those that were tried already.
    pub(crate) fn choose(
        &mut self,
        config: &Config,
        pool: usize,
        (key, now_us): (u64, u64),
        tried: &[BackendId],
    ) -> Choice {
        let settings = &config.pools[pool];
        let PoolState {
            backends: ids,
            balancer,
            ..
        } = &mut self.pools[pool];
        let states: Vec<&BackendState> =
            ids.iter().filter_map(|id| self.backends.get(id)).collect();
        debug_assert_eq!(states.len(), ids.len());
        // If all backends that are up are ejected, trying one is better than refusing.
        let is_any_whole = states.iter().any(|state| state.is_usable(now_us));
        let could_be_used = |state: &BackendState| state.could_be_used(is_any_whole, now_us);
        let connections_max = settings.connections_max.get();
        let (mut candidates, mut is_any) = (Vec::with_capacity(ids.len()), false);
        for (id, state) in ids.iter().zip(&states) {
            let may_be_used = could_be_used(state) && !tried.contains(id);
            is_any |= may_be_used;
            candidates.push(Candidate {
                is_eligible: may_be_used && state.active < connections_max,
                active: state.active,
            });
        }
        let table = || {
            let up = states.iter().zip(0u16..);
            let up = up.filter(|(state, _)| state.is_up() && !state.drains);
            let up: Vec<(u16, &str)> = up.map(|(state, at)| (at, &*state.name)).collect();
            Table::new(&up)
        };
        match balancer.choose(&settings.balance, &candidates, key, table) {
            Some(at) => Choice::Backend(ids[at]),
            None if is_any => Choice::Busy,
            None => Choice::None,
        }
    }

    /// Notes that a session uses a connection to a backend.
    pub(crate) fn take(&mut self, pool: usize, holder: Holder, id: BackendId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.active += 1;
        }
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.shares.take(holder, id);
        }
    }

    /// Takes an idle connection to the backend. With `since_us`, its last response must not have
    /// ended before.
    pub(crate) fn pop_idle(&mut self, id: BackendId, since_us: Option<u64>) -> Option<StreamId> {
        let idle = &mut self.backends.get_mut(&id)?.idle;
        let last = idle.last()?;
        if since_us.is_some_and(|since_us| last.since_us < since_us) {
            return None;
        }
        idle.pop().map(|idle| idle.stream)
    }

    /// Ends a session's use of a connection to a backend; `pool` is that of its request, if the
    /// pool still exists. A `reusable` connection becomes idle, if permitted; otherwise it is
    /// returned.
    pub(crate) fn release(
        &mut self,
        config: &Config,
        (pool, holder, id): (Option<usize>, Holder, BackendId),
        reusable: Option<(StreamId, u64)>,
    ) -> Option<StreamId> {
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(pool)) {
            pool.shares.release(holder);
        }
        let given = reusable.map(|(stream, _)| stream);
        let Some(state) = self.backends.get_mut(&id) else {
            return given;
        };
        state.active = state.active.saturating_sub(1);
        let Some(pool) = state.pool else {
            if state.is_forgotten() {
                self.backends.remove(&id);
            }
            return given;
        };
        if self.pools[pool].shares.is_any_waiting() {
            self.changed.insert(pool);
        }
        let idle_max = config.pools[pool].idle_max as usize;
        match reusable {
            Some((stream, since_us)) if !state.drains && state.idle.len() < idle_max => {
                state.idle.push(Idle { stream, since_us });
                None
            }
            _ => given,
        }
    }

    /// Removes an idle connection that has ended.
    pub(crate) fn forget_idle(&mut self, id: BackendId, stream: StreamId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.idle.retain(|known| known.stream != stream);
        }
    }

    /// Counts a connection of HTTP/2 to a backend, or that it has ended.
    pub(crate) fn count_http2(&mut self, id: BackendId, begins: bool) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.http2 = match begins {
                true => state.http2 + 1,
                false => state.http2.saturating_sub(1),
            };
        }
    }

    /// Counts a connection of HTTP/2 that has no stream, or has one again.
    pub(crate) fn count_idle_http2(&mut self, id: BackendId, is_idle: bool) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.http2_idle = match is_idle {
                true => state.http2_idle + 1,
                false => state.http2_idle.saturating_sub(1),
            };
        }
    }

    /// True if a connection of HTTP/2 to a backend is kept while it is idle. It may count as an
    /// idle one already.
    pub(crate) fn keeps_http2(&self, config: &Config, id: BackendId, is_counted: bool) -> bool {
        let Some(state) = self.backends.get(&id) else {
            return false;
        };
        let others = state.http2_idle.saturating_sub(u32::from(is_counted));
        let idle_max = state.pool.map_or(0, |pool| config.pools[pool].idle_max);
        !state.drains && others < idle_max
    }

    /// Takes all idle connections.
    pub(crate) fn take_idle(&mut self) -> Vec<StreamId> {
        let states = self.backends.values_mut();
        states.flat_map(BackendState::take_idle).collect()
    }

    /// Queues a session for a connection to a backend of a pool.
    pub(crate) fn enqueue(&mut self, config: &Config, pool: usize, waiting: Waiting) -> Queued {
        let settings = &config.pools[pool];
        let state = &mut self.pools[pool];
        let queued = state.shares.enqueue(waiting, settings.queue_max as usize);
        if let Some(after) = settings.evict_after {
            let due_us = waiting.since_us.saturating_add(after.as_micros() as u64);
            state.relief_us.get_or_insert(due_us);
        }
        // It may have passed room that others cannot use.
        self.changed.insert(pool);
        queued
    }

    /// Removes a session from the queue.
    pub(crate) fn dequeue(&mut self, pool: usize, holder: Holder) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.shares.dequeue(holder);
        }
    }

    /// True if a newcomer would overtake a waiting request that can use any backend.
    pub(crate) fn is_queue_ahead(&self, pool: usize) -> bool {
        self.pools[pool].shares.has_unchoosy()
    }

    /// True if waiting sessions may find room.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The number each queue assigns next.
    pub(crate) fn queue_ends(&self) -> Vec<u64> {
        let pools = self.pools.iter();
        pools.map(|pool| pool.shares.next_number()).collect()
    }

    /// Dequeues the next session numbered below `ends`, by pool, for which there may be room. A
    /// pool with room only for later ones stays due for the next call with other ends.
    pub(crate) fn next_waiting(
        &mut self,
        config: &Config,
        now_us: u64,
        ends: &[u64],
    ) -> Option<u64> {
        let mut from = 0;
        while let Some(&number) = self.changed.range(from..).next() {
            from = number + 1;
            let has_room = self.pools[number].shares.is_any_waiting()
                && self.open_backends(number, config, now_us).next().is_some();
            let end = ends.get(number).copied().unwrap_or(u64::MAX);
            let shares = &mut self.pools[number].shares;
            if let Some(session) = has_room.then(|| shares.take_next(end)).flatten() {
                return Some(session);
            }
            // A choosy one has just found no room that it can use.
            if !has_room || !shares.has_unchoosy() {
                self.changed.remove(&number);
            }
        }
        None
    }

    /// Usable backends of a pool that have room.
    fn open_backends(
        &self,
        pool: usize,
        config: &Config,
        now_us: u64,
    ) -> impl Iterator<Item = BackendId> {
        let connections_max = config.pools[pool].connections_max.get();
        let usable = self.usable_backends(pool, now_us);
        usable.filter(move |id| self.backends[id].active < connections_max)
    }

    fn usable_backends(&self, pool: usize, now_us: u64) -> impl Iterator<Item = BackendId> {
        let ids = &self.pools[pool].backends;
        let is_any_whole = ids.iter().any(|id| self.backends[id].is_usable(now_us));
        let could_be_used =
            move |id: &BackendId| self.backends[id].could_be_used(is_any_whole, now_us);
        ids.iter().copied().filter(could_be_used)
    }

    /// Time at which [`Pools::relief`] is due next.
    pub(crate) fn next_relief_us(&self) -> Option<u64> {
        self.pools.iter().filter_map(|pool| pool.relief_us).min()
    }

    /// Pools in which sessions may have waited long enough for others to give up their slots.
    pub(crate) fn due_for_relief(&mut self, config: &Config, now_us: u64) -> Vec<usize> {
        let mut due = Vec::new();
        for (number, pool) in self.pools.iter_mut().enumerate() {
            if pool.relief_us.is_none_or(|due_us| due_us > now_us) {
                continue;
            }
            let after = config.pools[number].evict_after;
            let after = after.filter(|_| pool.shares.is_any_waiting());
            pool.relief_us = after.map(|after| now_us + relief_interval_us(after));
            due.extend(after.map(|_| number));
        }
        due
    }

    /// Returns the sessions that may have to give up a slot for a session of a pool that has waited
    /// too long: a list for each source with too many slots, and one of all sessions; the slowest
    /// of the first non-empty list goes. `None` if no session has waited too long.
    pub(crate) fn relief(&self, config: &Config, pool: usize, now_us: u64) -> Option<Relief> {
        let after_us = config.pools[pool].evict_after?.as_micros() as u64;
        let shares = &self.pools[pool].shares;
        let (slots, _) = shares.neediest(now_us.checked_sub(after_us)?)?;
        let usable: BTreeSet<u64> = self.usable_backends(pool, now_us).map(|id| id.0).collect();
        let holders = |source| {
            let holders = shares.holders(source);
            let holders = holders.filter(|(_, backend)| usable.contains(&backend.0));
            holders.map(|(session, _)| session).collect::<Vec<_>>()
        };
        let large = shares.largest(slots + 2).map(holders);
        let all = shares.largest(1).flat_map(holders);
        Some(Relief {
            large: large.take(SOURCES_MAX).collect(),
            all: all.take(HOLDERS_MAX).collect(),
        })
    }

    /// Counts a request that has a connection to the backend.
    pub(crate) fn on_request(&mut self, id: BackendId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.counters.requests += 1;
        }
    }

    /// Counts an answered request.
    pub(crate) fn on_success(&mut self, id: BackendId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.counters.responses += 1;
            state.health.on_success();
        }
    }

    /// Counts a failed request; true if it ejects the backend.
    pub(crate) fn on_failure(&mut self, config: &Config, id: BackendId, now_us: u64) -> bool {
        let Some(state) = self.backends.get_mut(&id) else {
            return false;
        };
        state.counters.requests_failed += 1;
        let pool = state.pool.map(|pool| &config.pools[pool]);
        let Some((pool, ejection)) = pool.and_then(|it| Some((it, it.ejection.as_ref()?))) else {
            return false;
        };
        let is_ejected = state.health.on_failure(now_us, ejection) == Some(Change::Ejected);
        if is_ejected {
            state.counters.ejections += 1;
            let (pool, backend, time) = (&pool.name, &state.name, ejection.time);
            tracing::warn!(%pool, %backend, ?time, "backend taken out: requests failed there");
        }
        is_ejected
    }

    /// Time of the next check.
    pub(crate) fn next_check_us(&self, config: &Config) -> Option<u64> {
        let checked = self
            .backends
            .values()
            .filter(|state| state.is_checked(config));
        checked.map(|state| state.next_check_us).min()
    }

    /// Begins the checks that are due; returns their backends.
    pub(crate) fn begin_checks(&mut self, config: &Config, now_us: u64) -> Vec<BackendId> {
        let mut due = Vec::new();
        for (id, state) in &mut self.backends {
            if !state.is_checked(config) || state.next_check_us > now_us {
                continue;
            }
            let check = state
                .pool
                .and_then(|pool| config.pools[pool].check.as_ref());
            let interval_us = check.map_or(0, |check| check.interval.as_micros() as u64);
            state.next_check_us = now_us + interval_us;
            state.is_checking = true;
            due.push(*id);
        }
        due
    }

    /// Handles the result of a check; returns sessions that have to choose a backend again.
    pub(crate) fn on_check(
        &mut self,
        config: &Config,
        id: BackendId,
        verdict: Result<(), &str>,
    ) -> Vec<u64> {
        let is_good = verdict.is_ok();
        let Some(state) = self.backends.get_mut(&id) else {
            return Vec::new();
        };
        state.is_checking = false;
        state.counters.checks_failed += u64::from(!is_good);
        state.check_failure = verdict.err().map(str::to_owned);
        if state.is_forgotten() {
            self.backends.remove(&id);
            return Vec::new();
        }
        let Some(pool) = state.pool else {
            return Vec::new();
        };
        let settings = &config.pools[pool];
        let change = settings
            .check
            .as_ref()
            .and_then(|it| state.health.on_check(is_good, it));
        let (name, backend) = (&settings.name, &state.name);
        match change {
            None | Some(Change::Ejected) => return Vec::new(),
            Some(Change::Up) => tracing::warn!(pool = %name, %backend, "backend is up"),
            Some(Change::Down) => {
                let why = verdict.err().unwrap_or_default();
                tracing::warn!(pool = %name, %backend, "backend is down: {why}");
            }
        }
        self.pools[pool].balancer.reset();
        if change == Some(Change::Up) {
            self.changed.insert(pool);
            return Vec::new();
        }
        // If no backend is up any more, waiting is in vain.
        self.pools[pool].shares.take_waiting()
    }

    /// Handles the end of a check without a verdict.
    pub(crate) fn on_check_failed_here(&mut self, id: BackendId) {
        let Some(state) = self.backends.get_mut(&id) else {
            return;
        };
        state.is_checking = false;
        if state.is_forgotten() {
            self.backends.remove(&id);
        }
    }

    /// Returns the backends of each pool, with the pool's number and their counters.
    pub(crate) fn all(
        &self,
        now_us: u64,
    ) -> impl Iterator<Item = (usize, &BackendState, BackendCounters)> {
        let ids = self.pools.iter().enumerate();
        let ids = ids.flat_map(|(number, pool)| pool.backends.iter().map(move |id| (number, id)));
        ids.filter_map(move |(number, id)| {
            let state = self.backends.get(id)?;
            let counters = BackendCounters {
                connections: u64::from(state.active),
                connections_idle: state.idle.len() as u64 + u64::from(state.http2_idle),
                http2_connections: state.http2.into(),
                up: u64::from(state.is_up()),
                unresolved: u64::from(state.is_unresolved),
                ejected: u64::from(state.health.is_ejected(now_us)),
                draining: u64::from(state.drains),
                ..state.counters
            };
            Some((number, state, counters))
        })
    }

    /// Counts backends by their state.
    pub(crate) fn count(&self, counters: &mut Counters) {
        let known = self.backends.values().filter(|state| state.pool.is_some());
        let (up, down): (Vec<_>, Vec<_>) = known.partition(|state| state.is_up());
        counters.backends_up = up.len() as u64;
        counters.backends_down = down.len() as u64;
    }
}

/// Most sources, and most sessions of all sources, that are examined for one that gives up its
/// slot.
const SOURCES_MAX: usize = 64;
const HOLDERS_MAX: usize = 4096;

/// Interval between looks for sessions that give up slots, in microseconds.
fn relief_interval_us(after: Duration) -> u64 {
    (after.as_micros() as u64 / 2).max(1000)
}

/// See [`Pools::relief`].
#[derive(Debug)]
pub(crate) struct Relief {
    pub(crate) large: Vec<Vec<u64>>,
    pub(crate) all: Vec<u64>,
}

impl BackendState {
    /// True if the backend has an address, and its checks pass or there are none.
    fn is_up(&self) -> bool {
        self.health.is_up() && !self.is_unresolved
    }

    /// Failures of the last lookup of its name, and of the last check.
    pub(crate) fn failures(&self) -> Vec<String> {
        let lookup = self.lookup_failure.as_ref();
        let lookup = lookup.map(|why| format!("looking up its name: {why}"));
        let check = self.check_failure.as_ref();
        let check = check.map(|why| format!("last check: {why}"));
        lookup.into_iter().chain(check).collect()
    }

    fn is_usable(&self, now_us: u64) -> bool {
        self.is_up() && !self.health.is_ejected(now_us) && !self.drains
    }

    /// True if the backend is usable, or if none is and this one is only ejected.
    fn could_be_used(&self, is_any_whole: bool, now_us: u64) -> bool {
        self.is_usable(now_us) || (!is_any_whole && self.is_up() && !self.drains)
    }

    fn take_idle(&mut self) -> impl Iterator<Item = StreamId> + use<> {
        let idle = std::mem::take(&mut self.idle).into_iter();
        idle.map(|idle| idle.stream)
    }

    fn is_checked(&self, config: &Config) -> bool {
        let has_check = self
            .pool
            .is_some_and(|pool| config.pools[pool].check.is_some());
        has_check && !self.is_checking && !self.is_unresolved
    }

    /// True if nothing refers to the backend any more.
    fn is_forgotten(&self) -> bool {
        self.pool.is_none() && self.active == 0 && !self.is_checking
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::balance::Balance;

    fn config(pools: &[(&str, &[u16])]) -> Config {
        let backend = |port: &u16| Backend {
            name: format!("b{port}"),
            address: SocketAddr::from(([10, 0, 0, 1], *port)),
            drains: *port >= 1000,
            is_unresolved: false,
            lookup_failure: None,
        };
        let pool = |(name, ports): &(&str, &[u16])| Pool {
            backends: ports.iter().map(backend).collect(),
            connections_max: NonZeroU32::new(1).unwrap(),
            balance: Balance::RoundRobin,
            queue_max: 1,
            ..Pool::new(*name)
        };
        Config {
            pools: pools.iter().map(pool).collect(),
            ..Config::default()
        }
    }

    fn choose(pools: &mut Pools, config: &Config, pool: usize, tried: &[BackendId]) -> Choice {
        pools.choose(config, pool, (0, 0), tried)
    }

    fn name(pools: &Pools, choice: Choice) -> String {
        match choice {
            Choice::Backend(id) => pools.get(id).unwrap().name.to_string(),
            other => format!("{other:?}"),
        }
    }

    fn holder(session: u64) -> Holder {
        Holder {
            session,
            source: host::Source::V4(0),
        }
    }

    fn waiting(session: u64, is_choosy: bool) -> Waiting {
        Waiting {
            holder: holder(session),
            is_choosy,
            since_us: 0,
        }
    }

    /// The sessions that a release lets go on.
    fn woken(pools: &mut Pools, config: &Config) -> Vec<u64> {
        let ends = pools.queue_ends();
        std::iter::from_fn(|| pools.next_waiting(config, 0, &ends)).collect()
    }

    #[test]
    fn a_full_backend_is_busy_and_a_waiting_session_gets_its_room() {
        let config = config(&[("web", &[1, 2])]);
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &config);
        let mut take = |session| match choose(&mut pools, &config, 0, &[]) {
            Choice::Backend(id) => {
                pools.take(0, holder(session), id);
                assert_eq!(pools.pop_idle(id, None), None);
                Some(id)
            }
            Choice::Busy => None,
            Choice::None => panic!("there are two"),
        };
        let (one, two, third) = (take(1).unwrap(), take(2).unwrap(), take(3));
        assert!(one != two && third.is_none());
        let queued = pools.enqueue(&config, 0, waiting(77, false));
        assert_eq!(queued, Queued::Yes);
        let queued = pools.enqueue(&config, 0, waiting(78, false));
        assert_eq!(queued, Queued::No, "the queue is full");
        assert_eq!(woken(&mut pools, &config), []);
        let (stream, slot) = (StreamId(5), (Some(0), holder(1), one));
        assert_eq!(pools.release(&config, slot, Some((stream, 10))), None);
        assert!(pools.is_queue_ahead(0), "a newcomer passes no session");
        assert_eq!(woken(&mut pools, &config), [77]);
        pools.take(0, holder(77), one);
        assert_eq!(pools.pop_idle(one, Some(11)), None);
        assert_eq!(pools.pop_idle(one, Some(10)), Some(stream));
        assert_eq!(choose(&mut pools, &config, 0, &[]), Choice::Busy);
        assert_eq!(choose(&mut pools, &config, 0, &[one, two]), Choice::None);
    }

    #[test]
    fn room_that_some_cannot_use_goes_to_the_next_one_as_well() {
        let mut config = config(&[("web", &[1, 2])]);
        config.pools[0].queue_max = 9;
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &config);
        let ids = pools.pools[0].backends.clone();
        for (session, id) in [(8, ids[0]), (9, ids[1])] {
            pools.take(0, holder(session), id);
        }
        for (session, is_choosy) in [(1, true), (2, false), (3, false)] {
            pools.enqueue(&config, 0, waiting(session, is_choosy));
        }
        pools.release(&config, (Some(0), holder(8), ids[0]), None);
        let ends = pools.queue_ends();
        assert_eq!(pools.next_waiting(&config, 0, &ends), Some(1));
        // It cannot use the room, and waits again.
        pools.enqueue(&config, 0, waiting(1, true));
        assert_eq!(pools.next_waiting(&config, 0, &ends), Some(2));
        pools.take(0, holder(2), ids[0]);
        assert_eq!(pools.next_waiting(&config, 0, &ends), None);
        pools.release(&config, (Some(0), holder(9), ids[1]), None);
        assert_eq!(woken(&mut pools, &config), [3, 1]);
    }

    #[test]
    fn room_for_a_session_that_began_to_wait_meanwhile_is_not_forgotten() {
        let mut config = config(&[("web", &[1]), ("api", &[2])]);
        config.pools[0].queue_max = 9;
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &config);
        let ids = [0, 1].map(|pool: usize| pools.pools[pool].backends[0]);
        for (pool, session) in [(0, 1), (1, 3)] {
            pools.take(pool, holder(8), ids[pool]);
            pools.enqueue(&config, pool, waiting(session, false));
            pools.release(&config, (Some(pool), holder(8), ids[pool]), None);
        }
        let ends = pools.queue_ends();
        assert_eq!(pools.next_waiting(&config, 0, &ends), Some(1));
        // It is refused, and has another request.
        pools.enqueue(&config, 0, waiting(1, false));
        assert_eq!(pools.next_waiting(&config, 0, &ends), Some(3));
        assert_eq!(pools.next_waiting(&config, 0, &ends), None);
        assert!(pools.has_changed());
        assert_eq!(woken(&mut pools, &config), [1]);
        assert!(!pools.has_changed());
        // Room that it cannot use wakes it once.
        pools.enqueue(&config, 0, waiting(1, true));
        assert_eq!(woken(&mut pools, &config), [1]);
        pools.enqueue(&config, 0, waiting(1, true));
        assert_eq!(pools.next_waiting(&config, 0, &ends), None);
        assert!(!pools.has_changed());
    }

    #[test]
    fn a_reload_keeps_what_stays_and_drains_what_goes() {
        let old = config(&[("web", &[1, 2]), ("api", &[3])]);
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &old);
        let Choice::Backend(one) = choose(&mut pools, &old, 0, &[]) else {
            panic!("there are two");
        };
        pools.take(0, holder(1), one);
        let Choice::Backend(two) = choose(&mut pools, &old, 0, &[one]) else {
            panic!("there is another");
        };
        pools.take(0, holder(2), two);
        let slot = (Some(0), holder(2), two);
        pools.release(&old, slot, Some((StreamId(9), 0)));
        pools.enqueue(&old, 1, waiting(5, false));
        let new = config(&[("other", &[7]), ("web", &[2, 1000])]);
        let changes = pools.reconfigure(&old, &new);
        assert_eq!(changes.pools, [Some(1), None]);
        assert_eq!((changes.idle, changes.waiting), (vec![], vec![5]));
        // The first has a connection in use, and is not chosen; one that drains neither.
        let choice = choose(&mut pools, &new, 1, &[]);
        assert_eq!(name(&pools, choice), "b2");
        assert_eq!(pools.pop_idle(two, None), Some(StreamId(9)));
        assert!(pools.get(one).is_some());
        let slot = (Some(1), holder(1), one);
        let given_back = pools.release(&new, slot, Some((StreamId(8), 0)));
        assert_eq!(given_back, Some(StreamId(8)));
        assert!(pools.get(one).is_none(), "nothing refers to it any more");
    }

    #[test]
    fn one_whose_name_has_no_address_is_down_until_it_has_one() {
        let resolved = config(&[("web", &[1, 2])]);
        let mut unresolved = resolved.clone();
        for backend in &mut unresolved.pools[0].backends {
            backend.is_unresolved = true;
        }
        unresolved.pools[0].check = Some(crate::config::Check::default());
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &unresolved);
        assert_eq!(choose(&mut pools, &unresolved, 0, &[]), Choice::None);
        assert_eq!(pools.begin_checks(&unresolved, 0), []);
        let mut counters = Counters::default();
        pools.count(&mut counters);
        assert_eq!((counters.backends_up, counters.backends_down), (0, 2));
        let states = |pools: &Pools| {
            let all = pools.all(0);
            let states = all.map(|(_, _, counted)| (counted.up, counted.unresolved));
            states.collect::<Vec<_>>()
        };
        assert_eq!(states(&pools), [(0, 1), (0, 1)]);
        pools.reconfigure(&unresolved, &resolved);
        let choice = choose(&mut pools, &resolved, 0, &[]);
        assert!(matches!(choice, Choice::Backend(_)));
        assert_eq!(states(&pools), [(1, 0), (1, 0)]);
    }

    #[test]
    fn where_all_are_ejected_they_are_used_all_the_same() {
        let config = config(&[("web", &[1, 2])]);
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &config);
        let ids = pools.pools[0].backends.clone();
        let mut fail = |id| (0..5).filter(|_| pools.on_failure(&config, id, 0)).count();
        assert_eq!(fail(ids[0]), 1);
        for _ in 0..3 {
            assert_eq!(choose(&mut pools, &config, 0, &[]), Choice::Backend(ids[1]));
        }
        assert_eq!(
            (0..5)
                .filter(|_| pools.on_failure(&config, ids[1], 0))
                .count(),
            1
        );
        assert!(matches!(
            choose(&mut pools, &config, 0, &[]),
            Choice::Backend(_)
        ));
    }
}
