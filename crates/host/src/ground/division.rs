//! Division of labour: the number of workers in use in each NIC stack, and the assignment of
//! connections to them, follow the load.
//!
//! Workers report how busy they are ([`contract::Event::Load`]). Twice a second, under load, each
//! NIC stack's [`Governor`] decides how many of its workers are in use. New connections go to
//! these. Existing ones follow in rounds through the table of connections, a few each millisecond,
//! as for [their memory](super::memory):
//!
//! - If more workers are in use, or one is much busier than another, one round notes the bytes that
//!   each connection has sent; a look later, a second round measures the bytes sent since, and the
//!   busiest connections move to less loaded workers ([`rebalance`]). Idle ones go to the workers
//!   with the fewest connections.
//! - If fewer workers are in use, a round moves connections away from the others; it repeats while
//!   any is left there.
//!
//! Connections move one by one ([`crate::tcp::migration`]). A worker that is not in use sleeps like
//! any without commands. With a fixed number of workers none of this happens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::Layers;
use crate::nics::governor::Governor;
use crate::nics::rebalance::{self, Candidate};
use crate::tables::connections::{ConnectionHandle, Entry};

/// Interval between the steps of a round, in microseconds.
const ROUND_US: u64 = 1000;

/// Connections examined in a step.
const ROUND_CONNECTIONS: usize = 256;

/// Most connections that a round selects for moving: the busiest.
const CANDIDATES_MAX: usize = 4096;

/// The workers in use are rebalanced if one is busier than another by this many permille of the
/// time, and busy for more than this many permille itself.
const IMBALANCE_PERMILLE: u64 = 250;
const IMBALANCE_BUSY_PERMILLE: u64 = 700;

/// Looks at the load between two rebalancings: the effect of one takes a few looks to show.
const REBALANCE_LOOKS: u64 = 10;

/// Looks at the load before connections that could not leave a worker try again.
const LEAVE_AGAIN_LOOKS: u64 = 2;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Division {
    /// Of each NIC stack that has joined.
    governors: Vec<Option<Governor>>,
    /// The share of time in which each worker had work, in its last report, in permille.
    busy_permille: Vec<u64>,
    /// Time of the next look at the load, in microseconds; `None`: there is no load.
    next_look_us: Option<u64>,
    round: Option<Round>,
    rebalanced_us: u64,
}

/// A round through the table of connections.
#[derive(Debug)]
struct Round {
    kind: Kind,
    /// The next place, and its time.
    place: usize,
    next_us: u64,
}

#[derive(Debug)]
enum Kind {
    /// Notes how much connections have sent.
    Mark,
    /// Measures how much they have sent since.
    Measure(Box<Measured>),
    /// Moves them away from workers that are not in use.
    Leave {
        /// There were some.
        found: bool,
    },
}

/// Bytes that connections have sent since an earlier round.
#[derive(Debug, Default)]
struct Measured {
    /// For each worker, of all its connections.
    bytes: Vec<u64>,
    /// The busiest connections, the least busy first.
    busiest: BinaryHeap<Reverse<Candidate<StreamId>>>,
}

impl Division {
    /// When [`Ground::look_at_load`] should next be called, in microseconds.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        let round_us = self.round.as_ref().map(|round| round.next_us);
        self.next_look_us.into_iter().chain(round_us).min()
    }

    /// The share of time in which a worker had work, in its last report, in permille.
    pub(crate) fn busy_permille(&self, worker: usize) -> u64 {
        self.busy_permille.get(worker).copied().unwrap_or(0)
    }

    /// A worker restarts, or is gone.
    pub(crate) fn forget_load(&mut self, worker: usize) {
        if let Some(busy_permille) = self.busy_permille.get_mut(worker) {
            *busy_permille = 0;
        }
    }

    fn governor(&mut self, nic: usize) -> Option<&mut Governor> {
        self.governors.get_mut(nic)?.as_mut()
    }

    fn begin(&mut self, kind: Kind, at_us: u64) {
        self.round = Some(Round {
            kind,
            place: 0,
            next_us: at_us,
        });
    }
}

impl Ground {
    /// NIC stack `nic` has joined for the first time: it begins with its minimum of workers in use.
    pub(crate) fn divide_labour_of(&mut self, nic: usize) {
        let workers = self.nic_stacks.workers(nic).len();
        let least = self.config.workers_min.clamp(1, workers.max(1));
        if self.division.governors.len() <= nic {
            self.division.governors.resize_with(nic + 1, || None);
        }
        self.division.governors[nic] = Some(Governor::new(least..=workers));
        self.nic_stacks.use_workers(nic, least);
    }

    /// Minimum and maximum of workers in use, for a NIC stack that has joined.
    pub(crate) fn worker_bounds(&self, nic: usize) -> Option<(usize, usize)> {
        let governor = self.division.governors.get(nic)?.as_ref()?;
        Some(governor.bounds().into_inner())
    }

    /// A worker reports how busy it is.
    pub(crate) fn on_load(&mut self, now_us: u64, worker: usize, busy_us: u32, elapsed_us: u32) {
        let loads = &mut self.division.busy_permille;
        if loads.len() <= worker {
            loads.resize(worker + 1, 0);
        }
        loads[worker] = u64::from(busy_us) * 1000 / u64::from(elapsed_us.max(1));
        let nic = self.nic_stacks.of(worker);
        let decides = self.division.governor(nic).is_some_and(|it| it.decides());
        if decides && self.division.next_look_us.is_none() {
            self.division.next_look_us = Some(now_us + self.config.load_interval_us);
        }
    }

    /// Looks at the load, or at some connections, when it is time.
    #[inline]
    pub(crate) fn look_at_load(&mut self, layers: &mut Layers<'_>, now_us: u64) {
        if self.division.next_look_us.is_some() || self.division.round.is_some() {
            self.divide_labour(layers, now_us);
        }
    }

    #[inline(never)]
    fn divide_labour(&mut self, layers: &mut Layers<'_>, now_us: u64) {
        if self
            .division
            .next_look_us
            .is_some_and(|at_us| at_us <= now_us)
        {
            self.decide_workers(layers, now_us);
        }
        if let Some(round) = self.division.round.take() {
            if round.next_us <= now_us {
                self.go_on_with_load(layers, now_us, round);
            } else {
                self.division.round = Some(round);
            }
        }
        layers.tcp.begin_migrations(self);
    }

    /// Decides how many workers are in use, and whether to rebalance them.
    fn decide_workers(&mut self, layers: &mut Layers<'_>, now_us: u64) {
        let (mut is_news, mut is_unequal, mut is_loaded) = (None, false, false);
        for nic in 0..self.nic_stacks.len() {
            let workers = self.nic_stacks.workers(nic);
            let in_use = self.nic_stacks.workers_in_use(nic);
            let is_there = self.nic_stacks.is_there(nic);
            let busy = |worker| self.division.busy_permille(worker);
            let sum: u64 = workers.clone().map(busy).sum();
            let most = in_use.clone().map(busy).max().unwrap_or(0);
            let least = in_use.clone().map(busy).min().unwrap_or(0);
            let Some(governor) = self.division.governor(nic) else {
                continue;
            };
            if !governor.decides() {
                continue;
            }
            if !is_there {
                governor.reset();
                continue;
            }
            is_loaded |= sum > 0 || in_use.len() > *governor.bounds().start();
            is_unequal |= most > least + IMBALANCE_PERMILLE && most > IMBALANCE_BUSY_PERMILLE;
            if let Some(number) = governor.decide(in_use.len(), sum) {
                is_news = is_news.max(Some(number > in_use.len()));
                self.use_workers(nic, number, sum);
            }
        }
        let pause_us = REBALANCE_LOOKS * self.config.load_interval_us;
        let is_due = now_us >= self.division.rebalanced_us.saturating_add(pause_us);
        let is_idle = self.division.round.is_none() && layers.tcp.migrations.is_empty();
        match is_news {
            Some(true) => self.share_out(layers, now_us),
            Some(false) => {
                layers.tcp.migrations.clear_waiting();
                self.division.begin(Kind::Leave { found: false }, now_us);
            }
            None if is_unequal && is_due && is_idle => self.share_out(layers, now_us),
            None => {}
        }
        is_loaded |= self.division.round.is_some() || !layers.tcp.migrations.is_empty();
        self.division.next_look_us = is_loaded.then_some(now_us + self.config.load_interval_us);
    }

    /// Sets the number of workers in use of a NIC stack.
    fn use_workers(&mut self, nic: usize, number: usize, busy_permille: u64) {
        let before = self.nic_stacks.workers_in_use(nic).len();
        let most = self.nic_stacks.workers(nic).len();
        self.nic_stacks.use_workers(nic, number);
        let more = number.saturating_sub(before) as u64;
        let fewer = before.saturating_sub(number) as u64;
        self.counters.nic_workers_added += more;
        self.counters.nic_workers_removed += fewer;
        tracing::info!(
            nic,
            in_use = number,
            before,
            most,
            busy_percent = busy_permille / 10,
            "the load needs {} NIC workers",
            if more > 0 { "more" } else { "fewer" }
        );
    }

    /// Rebalances connections among the workers in use.
    fn share_out(&mut self, layers: &mut Layers<'_>, now_us: u64) {
        self.division.rebalanced_us = now_us;
        layers.tcp.migrations.clear_waiting();
        self.division.begin(Kind::Mark, now_us);
    }

    fn go_on_with_load(&mut self, layers: &mut Layers<'_>, now_us: u64, mut round: Round) {
        let end = round.place.saturating_add(ROUND_CONNECTIONS);
        for place in round.place..end.min(layers.tcp.connections.places()) {
            let handle = ConnectionHandle::at(place);
            match &mut round.kind {
                Kind::Mark => {
                    if let Some(entry) = layers.tcp.connections.get_mut(handle) {
                        entry.marked_bytes = entry.tcp.acknowledged_bytes();
                    }
                }
                Kind::Measure(measured) => self.measure(layers, handle, measured),
                Kind::Leave { found } => *found |= self.leave(layers, handle),
            }
        }
        round.place = end;
        round.next_us = now_us + ROUND_US;
        if end < layers.tcp.connections.places() {
            self.division.round = Some(round);
            return;
        }
        match round.kind {
            Kind::Mark => {
                let measured = Kind::Measure(Box::default());
                self.division
                    .begin(measured, now_us + self.config.load_interval_us);
            }
            Kind::Measure(measured) => {
                self.rebalance(layers, *measured);
                // Connections that found no place among the workers in use are still elsewhere.
                self.division.begin(Kind::Leave { found: false }, now_us);
            }
            Kind::Leave { found } => {
                let found_of_quic = layers.quic.leave_workers(self);
                if found || found_of_quic {
                    let again = Kind::Leave { found: false };
                    self.division.begin(
                        again,
                        now_us + LEAVE_AGAIN_LOOKS * self.config.load_interval_us,
                    );
                }
            }
        }
    }
}

impl Ground {
    /// True if the number of workers in use can change in the connection's NIC stack.
    fn is_divided(&self, entry: &Entry) -> bool {
        let nic = self.nic_stacks.of(entry.nic.worker);
        let bounds = self.worker_bounds(nic);
        self.nic_stacks.is_there(nic) && bounds.is_some_and(|(least, most)| least < most)
    }

    /// Measures the bytes that a connection has sent since an earlier round. Idle connections go to
    /// the worker with the fewest connections.
    fn measure(
        &mut self,
        layers: &mut Layers<'_>,
        handle: ConnectionHandle,
        measured: &mut Measured,
    ) {
        let Some(entry) = layers.tcp.connections.get(handle) else {
            return;
        };
        let (stream, worker) = (entry.stream, entry.nic.worker);
        if !self.is_divided(entry) || !self.nic_stacks.is_in_use(worker) {
            return;
        }
        let bytes = entry.tcp.acknowledged_bytes();
        let bytes = bytes.saturating_sub(entry.marked_bytes);
        // A flow that the NIC stack does not know costs it nothing.
        if bytes > 0 && entry.nic.is_open {
            if measured.bytes.len() <= worker {
                measured.bytes.resize(worker + 1, 0);
            }
            measured.bytes[worker] += bytes;
            measured.busiest.push(Reverse(Candidate {
                bytes,
                connection: stream,
                worker,
            }));
            if measured.busiest.len() > CANDIDATES_MAX {
                measured.busiest.pop();
            }
        } else if entry.is_drained() && layers.tcp.own_files(self, handle).is_empty() {
            let in_use = self.nic_stacks.workers_in_use(self.nic_stacks.of(worker));
            let fewest = self.least_busy(in_use);
            let of = |worker| self.balance.connections_of(worker);
            if let Some(to) = fewest.filter(|&to| of(to) + 1 < of(worker)) {
                layers.tcp.migrate(self, handle, to);
            }
        }
    }

    /// Moves the busiest connections to workers with less to send.
    fn rebalance(&mut self, layers: &mut Layers<'_>, measured: Measured) {
        let Measured { mut bytes, busiest } = measured;
        bytes.resize(self.nic_stacks.all_workers().end, 0);
        let busiest: Vec<_> = busiest.into_iter().map(|Reverse(it)| it).collect();
        for nic in 0..self.nic_stacks.len() {
            let in_use = self.nic_stacks.workers_in_use(nic);
            let own = busiest.iter().filter(|it| in_use.contains(&it.worker));
            let own = own.map(|candidate| Candidate {
                worker: candidate.worker - in_use.start,
                ..*candidate
            });
            for (stream, to) in rebalance::plan(&mut bytes[in_use.clone()], own.collect()) {
                layers.tcp.migrate_later(stream, in_use.start + to);
            }
        }
    }

    /// Moves a connection away from a worker that is not in use. True if it has still to move.
    fn leave(&mut self, layers: &mut Layers<'_>, handle: ConnectionHandle) -> bool {
        let Some(entry) = layers.tcp.connections.get(handle) else {
            return false;
        };
        let (stream, worker) = (entry.stream, entry.nic.worker);
        if self.nic_stacks.is_in_use(worker) || entry.tcp.is_closed() {
            return false;
        }
        if layers.tcp.migrations.is_under_way(stream) {
            return true;
        }
        let in_use = self.nic_stacks.workers_in_use(self.nic_stacks.of(worker));
        let Some(to) = self.least_busy(in_use) else {
            return false;
        };
        if layers.tcp.migrations.has_room() {
            layers.tcp.migrate(self, handle, to);
        }
        let entry = layers.tcp.connections.get(handle);
        entry.is_some_and(|entry| !self.nic_stacks.is_in_use(entry.nic.worker))
    }
}
