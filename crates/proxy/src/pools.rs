//! Pools and their backends at run time: which of them can be used, what each has in hand, and who
//! waits for one.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use host::app::StreamId;

use crate::balance::maglev::Table;
use crate::balance::{Balancer, Candidate};
use crate::config::{Backend, Config, Pool};
use crate::counters::{BackendCounters, Counters};
use crate::health::{Change, Health};

/// A backend, for as long as anything refers to it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BackendId(u64);

/// A backend at run time.
#[derive(Debug)]
pub(crate) struct BackendState {
    pub(crate) name: Arc<str>,
    pub(crate) address: SocketAddr,
    /// Its pool, by number; `None` if no configuration names it any more.
    pub(crate) pool: Option<usize>,
    drains: bool,
    is_unresolved: bool,
    health: Health,
    /// Connections in use.
    active: u32,
    /// Connections that wait to be used again; the last one has waited for the shortest time.
    idle: Vec<StreamId>,
    next_check_us: u64,
    is_checking: bool,
    /// What only grows.
    counters: BackendCounters,
}

/// A pool at run time.
#[derive(Debug, Default)]
struct PoolState {
    backends: Vec<BackendId>,
    balancer: Balancer,
    /// Sessions that wait for a backend.
    queue: VecDeque<Waiting>,
}

/// A session that waits for a backend.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    session: u64,
    /// It has tried some of the backends already: room at one of these is none to it.
    is_choosy: bool,
}

/// All pools.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pools: Vec<PoolState>,
    backends: HashMap<BackendId, BackendState>,
    last: u64,
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A backend with room for one more.
    Backend(BackendId),
    /// All that could be used have as much as they may have.
    Busy,
    /// None can be used.
    None,
}

/// What a configuration has changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The number of each pool that there was, now.
    pub(crate) pools: Vec<Option<usize>>,
    /// Connections that are of no use any more.
    pub(crate) idle: Vec<StreamId>,
    /// Sessions that have waited for a backend, and may have one now, or never.
    pub(crate) waiting: Vec<u64>,
}

impl Pools {
    pub(crate) fn get(&self, id: BackendId) -> Option<&BackendState> {
        self.backends.get(&id)
    }

    /// Puts a configuration in the place of another. Backends of the same pool, name and address
    /// stay what they are.
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
            changes.waiting.extend(sessions(known.queue));
            let backends = pool.backends.iter();
            let backends = backends.map(|backend| self.adopt(&known.backends, backend, number));
            let backends = backends.collect();
            self.pools.push(PoolState {
                backends,
                ..PoolState::default()
            });
        }
        changes
            .waiting
            .extend(before.into_iter().flat_map(|pool| sessions(pool.queue)));
        for state in self.backends.values_mut() {
            let has_checks = state
                .pool
                .is_some_and(|pool| new.pools[pool].check.is_some());
            if !has_checks {
                state.health.forget_checks();
            }
            if state.pool.is_none() || state.drains {
                changes.idle.append(&mut state.idle);
            }
        }
        self.backends.retain(|_, state| !state.is_forgotten());
        changes
    }

    fn adopt(&mut self, known: &[BackendId], backend: &Backend, pool: usize) -> BackendId {
        let is_same = |id: &&BackendId| {
            self.backends.get(id).is_some_and(|state| {
                state.pool.is_none()
                    && state.address == backend.address
                    && state.is_unresolved == backend.is_unresolved
                    && *state.name == *backend.name
            })
        };
        if let Some(&id) = known.iter().find(is_same)
            && let Some(state) = self.backends.get_mut(&id)
        {
            (state.pool, state.drains) = (Some(pool), backend.drains);
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
                health: Health::default(),
                active: 0,
                idle: Vec::new(),
                next_check_us: 0,
                is_checking: false,
                counters: BackendCounters::default(),
            },
        );
        id
    }

    /// Chooses a backend of a pool, but for those that were tried already.
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
        // Where all that are up have been taken out because requests failed there, trying is better
        // than refusing.
        let is_any_whole = states.iter().any(|state| state.is_usable(now_us));
        let could_be_used = |state: &BackendState| {
            state.is_usable(now_us) || (!is_any_whole && state.is_up() && !state.drains)
        };
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

    /// A connection to the backend is in use from now on.
    pub(crate) fn take(&mut self, id: BackendId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.active += 1;
        }
    }

    /// A connection to the backend that waits to be used again waits no more.
    pub(crate) fn pop_idle(&mut self, id: BackendId) -> Option<StreamId> {
        self.backends.get_mut(&id)?.idle.pop()
    }

    /// A connection to the backend is in use no more. It waits to be used again, if it is given
    /// and may; otherwise it is given back. Sessions of which one may have the room are the second.
    pub(crate) fn release(
        &mut self,
        config: &Config,
        id: BackendId,
        reusable: Option<StreamId>,
    ) -> (Option<StreamId>, Vec<u64>) {
        let Some(state) = self.backends.get_mut(&id) else {
            return (reusable, Vec::new());
        };
        state.active = state.active.saturating_sub(1);
        let Some(pool) = state.pool else {
            if state.is_forgotten() {
                self.backends.remove(&id);
            }
            return (reusable, Vec::new());
        };
        let idle_max = config.pools[pool].idle_max as usize;
        let given_back = match reusable {
            Some(stream) if !state.drains && state.idle.len() < idle_max => {
                state.idle.push(stream);
                None
            }
            other => other,
        };
        (given_back, self.pools[pool].take_waiting())
    }

    /// A connection that waited to be used again is gone.
    pub(crate) fn forget_idle(&mut self, id: BackendId, stream: StreamId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.idle.retain(|known| *known != stream);
        }
    }

    /// All connections that wait to be used again.
    pub(crate) fn take_idle(&mut self) -> Vec<StreamId> {
        let states = self.backends.values_mut();
        states
            .flat_map(|state| std::mem::take(&mut state.idle))
            .collect()
    }

    /// A session waits; false if too many do. `is_choosy`: not every backend will do.
    pub(crate) fn enqueue(
        &mut self,
        config: &Config,
        pool: usize,
        (session, is_choosy): (u64, bool),
    ) -> bool {
        let queue = &mut self.pools[pool].queue;
        let has_room = queue.len() < config.pools[pool].queue_max as usize;
        if has_room {
            queue.push_back(Waiting { session, is_choosy });
        }
        has_room
    }

    /// A session does not wait any more.
    pub(crate) fn dequeue(&mut self, pool: usize, session: u64) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.queue.retain(|known| known.session != session);
        }
    }

    /// A request has a connection to the backend.
    pub(crate) fn on_request(&mut self, id: BackendId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.counters.requests += 1;
        }
    }

    /// A request was answered there.
    pub(crate) fn on_success(&mut self, id: BackendId) {
        if let Some(state) = self.backends.get_mut(&id) {
            state.counters.responses += 1;
            state.health.on_success();
        }
    }

    /// A request has failed there; true if the backend was taken out for it.
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

    /// When the next check is due.
    pub(crate) fn next_check_us(&self, config: &Config) -> Option<u64> {
        let checked = self
            .backends
            .values()
            .filter(|state| state.is_checked(config));
        checked.map(|state| state.next_check_us).min()
    }

    /// Backends whose check is due; it begins.
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

    /// A check has ended; sessions that may have a backend by that are returned.
    pub(crate) fn on_check(&mut self, config: &Config, id: BackendId, is_good: bool) -> Vec<u64> {
        let Some(state) = self.backends.get_mut(&id) else {
            return Vec::new();
        };
        state.is_checking = false;
        state.counters.checks_failed += u64::from(!is_good);
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
            Some(Change::Down) => tracing::warn!(pool = %name, %backend, "backend is down"),
        }
        let pool = &mut self.pools[pool];
        pool.balancer.reset();
        // If none is up any more, waiting is in vain.
        sessions(std::mem::take(&mut pool.queue))
    }

    /// The backends of each pool, by the pool's number, and what was counted of each.
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
                connections_idle: state.idle.len() as u64,
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

fn sessions(queue: VecDeque<Waiting>) -> Vec<u64> {
    queue.into_iter().map(|waiting| waiting.session).collect()
}

impl PoolState {
    /// Sessions up to the first one to which any room will do: one before it that cannot use the
    /// room must not keep it from the others.
    fn take_waiting(&mut self) -> Vec<u64> {
        let mut taken = Vec::new();
        while let Some(waiting) = self.queue.pop_front() {
            taken.push(waiting.session);
            if !waiting.is_choosy {
                break;
            }
        }
        taken
    }
}

impl BackendState {
    /// It has an address, and checks say that it works, or there are none.
    fn is_up(&self) -> bool {
        self.health.is_up() && !self.is_unresolved
    }

    fn is_usable(&self, now_us: u64) -> bool {
        self.is_up() && !self.health.is_ejected(now_us) && !self.drains
    }

    fn is_checked(&self, config: &Config) -> bool {
        let has_check = self
            .pool
            .is_some_and(|pool| config.pools[pool].check.is_some());
        has_check && !self.is_checking && !self.is_unresolved
    }

    /// Nothing refers to it any more.
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

    #[test]
    fn a_full_backend_is_busy_and_a_waiting_session_gets_its_room() {
        let config = config(&[("web", &[1, 2])]);
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &config);
        let mut take = || match choose(&mut pools, &config, 0, &[]) {
            Choice::Backend(id) => {
                pools.take(id);
                assert_eq!(pools.pop_idle(id), None);
                Some(id)
            }
            Choice::Busy => None,
            Choice::None => panic!("there are two"),
        };
        let (one, two, third) = (take().unwrap(), take().unwrap(), take());
        assert!(one != two && third.is_none());
        assert!(pools.enqueue(&config, 0, (77, false)));
        assert!(!pools.enqueue(&config, 0, (78, false)), "the queue is full");
        let stream = StreamId(5);
        assert_eq!(pools.release(&config, one, Some(stream)), (None, vec![77]));
        pools.take(one);
        assert_eq!(pools.pop_idle(one), Some(stream));
        assert_eq!(choose(&mut pools, &config, 0, &[]), Choice::Busy);
        assert_eq!(choose(&mut pools, &config, 0, &[one, two]), Choice::None);
    }

    #[test]
    fn room_that_some_cannot_use_goes_to_the_next_one_as_well() {
        let mut config = config(&[("web", &[1, 2])]);
        config.pools[0].queue_max = 9;
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &config);
        for waiting in [(1, true), (2, false), (3, false)] {
            assert!(pools.enqueue(&config, 0, waiting));
        }
        let one = pools.pools[0].backends[0];
        assert_eq!(pools.release(&config, one, None).1, [1, 2]);
        assert_eq!(pools.release(&config, one, None).1, [3]);
    }

    #[test]
    fn a_reload_keeps_what_stays_and_drains_what_goes() {
        let old = config(&[("web", &[1, 2]), ("api", &[3])]);
        let mut pools = Pools::default();
        pools.reconfigure(&Config::default(), &old);
        let Choice::Backend(one) = choose(&mut pools, &old, 0, &[]) else {
            panic!("there are two");
        };
        pools.take(one);
        let Choice::Backend(two) = choose(&mut pools, &old, 0, &[one]) else {
            panic!("there is another");
        };
        pools.take(two);
        pools.release(&old, two, Some(StreamId(9)));
        pools.enqueue(&old, 1, (5, false));
        let new = config(&[("other", &[7]), ("web", &[2, 1000])]);
        let changes = pools.reconfigure(&old, &new);
        assert_eq!(changes.pools, [Some(1), None]);
        assert_eq!((changes.idle, changes.waiting), (vec![], vec![5]));
        // The first has a connection in use, and is not chosen; one that drains neither.
        let choice = choose(&mut pools, &new, 1, &[]);
        assert_eq!(name(&pools, choice), "b2");
        assert_eq!(pools.pop_idle(two), Some(StreamId(9)));
        assert!(pools.get(one).is_some());
        assert_eq!(
            pools.release(&new, one, Some(StreamId(8))),
            (Some(StreamId(8)), vec![])
        );
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
