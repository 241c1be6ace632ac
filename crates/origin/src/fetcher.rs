//! Who waits for what: one request to the origin for all who ask for the same.
//!
//! ```text
//!  Ask::Object ──▶ fresh? ──yes──────────────────────────▶ Answer::Object
//!                    │ no                                     ▲      ▲
//!                    ▼                     304, or another ───┘      │
//!                 Asking (one for all) ──▶ version, or it fails ─────┘ if the old one may stand in, else Refused
//!
//!  Ask::Segment ─▶ there? ──yes──────────────────────────▶ Answer::Segment
//!                    │ no                                     ▲
//!                    ▼                                        │
//!                 a transfer comes to it soon, or another ────┘ or Lost, if the version is not to be had any more
//!                 begins with it
//! ```

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use tokio::sync::{mpsc, oneshot, watch};

use crate::endpoint::Counters;
use crate::failure::Failure;
use crate::freshness::{Freshness, Use};
use crate::message::{Answer, Ask, MESSAGE_BYTES_MAX, Object, RUNS_MAX, Refusal};
use crate::store::{Key, Meta, Store, VERSION_BYTES, VersionId};
use crate::transfer::{self, Event, Head, Order, Renewal, What, unix_time_s};
use crate::upstream::Upstream;
use crate::validator::Validators;

/// Most tickets at a time: twice the connections that a host stack has.
const TICKETS_MAX: usize = 1 << 18;

/// Transfers of one version at a time.
const PARTS_MAX: usize = 4;

/// A segment that is so near to what a transfer is about to bring is waited for.
const NEAR_SEGMENTS: u64 = 4;

/// Segments that are fetched to the end though nobody waits for them any more.
const LAST_SEGMENTS: u64 = 4;

/// Failures of a version in a row, without a segment in between, until those who wait are let down.
const FAILURES_MAX: u32 = 4;

/// The wait after the first of them; it doubles with each.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The wait where the origin is left alone: it lasts a second and more.
const LEFT_ALONE_WAIT: Duration = Duration::from_secs(2);

/// Refusals that are remembered.
const REFUSALS_MAX: usize = 10_000;

/// The share of the cache that makes room at once when the disk is full.
const ROOM_SHARE: u64 = 16;

/// See the [module documentation](self).
pub(crate) struct Fetcher {
    upstreams: Vec<Arc<Upstream>>,
    store: Store,
    entries: HashMap<Key, Entry>,
    asking: HashMap<VersionId, Asking>,
    live: HashMap<VersionId, Live>,
    tickets: HashMap<u64, Ticket>,
    refusals: usize,
    /// For the host process.
    pub(crate) answers: VecDeque<Answer>,
    events: mpsc::Sender<Event>,
    transfers: u64,
    counters: Counters,
}

/// What is known of a target.
#[derive(Default)]
struct Entry {
    current: Option<VersionId>,
    /// The origin is being asked on behalf of all.
    asking: Option<VersionId>,
    refusal: Option<(Refusal, Freshness)>,
}

/// A request to an origin that has not been answered.
struct Asking {
    key: Key,
    waiting: Vec<u64>,
    /// For one client alone.
    is_solo: bool,
    /// For a version that is there: the answer is of use even if nobody waits for it.
    is_revalidation: bool,
    transfer: Running,
}

/// A version that somebody reads or fetches.
#[derive(Default)]
struct Live {
    readers: HashSet<u64>,
    /// Those who wait until its size is known.
    unanswered: Vec<u64>,
    transfers: Vec<Running>,
    failures: u32,
    /// It is tried again after a while.
    is_pausing: bool,
    /// The origin has another version.
    is_lost: bool,
}

/// A transfer under way: the segment that it brings next, and the one that it ends before.
struct Running {
    number: u64,
    segments: Range<u64>,
    limit: watch::Sender<u64>,
}

impl Running {
    fn is_about_to_end(&self) -> bool {
        self.segments.end.saturating_sub(self.segments.start) <= LAST_SEGMENTS
    }
}

struct Ticket {
    key: Key,
    /// The request whose answer it waits for, or has got.
    asking: Option<VersionId>,
    version: Option<VersionId>,
    /// Segments that it waits for.
    wants: BTreeSet<u64>,
}

impl Fetcher {
    pub(crate) fn new(
        upstreams: Vec<Arc<Upstream>>,
        store: Store,
        events: mpsc::Sender<Event>,
    ) -> Fetcher {
        let mut entries: HashMap<Key, Entry> = HashMap::new();
        for (id, key) in store.ids() {
            entries.entry(key.clone()).or_default().current = Some(id);
        }
        let mut fetcher = Fetcher {
            upstreams,
            store,
            entries,
            asking: HashMap::new(),
            live: HashMap::new(),
            tickets: HashMap::new(),
            refusals: 0,
            answers: VecDeque::new(),
            events,
            transfers: 0,
            counters: Counters::default(),
        };
        fetcher.drop_doubles();
        fetcher
    }

    /// Of several versions of one target, which a fetcher has left that was killed, one stays.
    fn drop_doubles(&mut self) {
        let is_current = |(id, key): &(VersionId, &Key)| {
            self.entries.get(*key).and_then(|entry| entry.current) == Some(*id)
        };
        let others: Vec<_> = self.store.ids().filter(|it| !is_current(it)).collect();
        let others: Vec<_> = others.into_iter().map(|(id, _)| id).collect();
        for id in others {
            self.store.remove(id);
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            cached_bytes: self.store.bytes(),
            evicted_bytes: self.store.evicted_bytes,
            ..self.counters
        }
    }

    /// Waits until all is removed that is to be.
    pub(crate) async fn settle(&mut self) {
        self.asking.clear();
        self.live.clear();
        self.store.settle().await;
    }

    /// The host process asks.
    pub(crate) fn on_ask(&mut self, ask: Ask) {
        match ask {
            Ask::Object {
                ticket,
                origin,
                target,
            } => self.on_object(ticket, Key { origin, target }),
            Ask::Segment { ticket, segment } => self.on_segment(ticket, segment),
            Ask::Done { ticket } => self.on_done(ticket),
        }
    }

    /// Something has become of a transfer.
    pub(crate) fn on_event(&mut self, event: Event) {
        match event {
            Event::Head { id, head } => self.on_head(id, head),
            Event::Stored {
                id,
                number,
                segment,
                bytes,
            } => self.on_stored(id, number, segment, bytes),
            Event::Full(made) => self.on_full(made),
            Event::Ended { id, number, result } => self.on_ended(id, number, result),
            Event::Again(id) => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.is_pausing = false;
                }
                self.go_on(id);
            }
        }
    }

    fn on_object(&mut self, number: u64, key: Key) {
        let is_sane = usize::from(key.origin) < self.upstreams.len()
            && key.target.starts_with('/')
            && key.target.len() < MESSAGE_BYTES_MAX;
        let has_room = self.tickets.len() < TICKETS_MAX;
        if !is_sane || !has_room {
            return self.refuse(number, Failure::Stopped.refusal());
        }
        if self.tickets.contains_key(&number) {
            return;
        }
        let ticket = Ticket {
            key: key.clone(),
            asking: None,
            version: None,
            wants: BTreeSet::new(),
        };
        self.tickets.insert(number, ticket);
        self.counters.asked += 1;

        let now_s = unix_time_s();
        let entry = self.entries.entry(key.clone()).or_default();
        let current = entry.current;
        let known = current.and_then(|id| Some((id, &self.store.get(id)?.meta)));
        match known.map(|(id, meta)| (id, meta.freshness.usage(now_s), &meta.validators)) {
            Some((id, Use::Fresh, _)) => {
                self.counters.hits += 1;
                self.give(number, id);
            }
            Some((id, Use::WhileRevalidating, validators)) => {
                let validators = validators.clone();
                self.counters.hits += 1;
                self.counters.stale += 1;
                self.give(number, id);
                self.ask(&key, Some(validators), None);
            }
            Some((_, Use::Stale, validators)) => {
                let validators = validators.clone();
                self.ask(&key, Some(validators), Some(number));
            }
            None => match &entry.refusal {
                Some((refusal, freshness)) if freshness.usage(now_s) == Use::Fresh => {
                    let refusal = refusal.clone();
                    self.counters.hits += 1;
                    self.refuse(number, refusal);
                }
                _ => self.ask(&key, None, Some(number)),
            },
        }
    }

    /// Asks the origin on behalf of all, unless it is being asked; `ticket` waits for the answer.
    fn ask(&mut self, key: &Key, known: Option<Validators>, ticket: Option<u64>) {
        let asking = self.entries.get(key).and_then(|entry| entry.asking);
        if let Some(id) = asking
            && let Some(asking) = self.asking.get_mut(&id)
        {
            self.counters.coalesced += u64::from(ticket.is_some());
            if let Some(ticket) = ticket.and_then(|number| self.tickets.get_mut(&number)) {
                ticket.asking = Some(id);
            }
            return asking.waiting.extend(ticket);
        }
        let id = self.start(key, known, ticket.into_iter().collect(), false);
        self.entries.entry(key.clone()).or_default().asking = Some(id);
    }

    fn start(
        &mut self,
        key: &Key,
        known: Option<Validators>,
        waiting: Vec<u64>,
        is_solo: bool,
    ) -> VersionId {
        let id = self.store.new_id();
        let is_revalidation = known.is_some();
        // Nothing is written before it is known whether it is to be kept.
        let transfer = self.transfer(id, key, 0..u64::MAX, 0, What::Whole(known));
        self.counters.requests += 1;
        let asking = Asking {
            key: key.clone(),
            waiting,
            is_solo,
            is_revalidation,
            transfer,
        };
        for ticket in &asking.waiting {
            if let Some(ticket) = self.tickets.get_mut(ticket) {
                ticket.asking = Some(id);
            }
        }
        self.asking.insert(id, asking);
        id
    }

    fn transfer(
        &mut self,
        id: VersionId,
        key: &Key,
        segments: Range<u64>,
        limit: u64,
        what: What,
    ) -> Running {
        self.transfers += 1;
        let number = self.transfers;
        let (limit, receiver) = watch::channel(limit);
        let order = Order {
            id,
            number,
            upstream: Arc::clone(&self.upstreams[usize::from(key.origin)]),
            target: key.target.clone(),
            directory: self.directory(id),
            segment_bytes: self.store.segment_bytes,
            bytes_max: self.store.bytes_max(),
            what,
            limit: receiver,
        };
        tokio::spawn(transfer::run(order, self.events.clone()));
        Running {
            number,
            segments,
            limit,
        }
    }

    fn directory(&self, id: VersionId) -> PathBuf {
        self.store.path(id)
    }

    fn name(&self, key: &Key) -> String {
        self.upstreams
            .get(usize::from(key.origin))
            .map_or_else(String::new, |upstream| upstream.url.to_string())
    }

    fn on_head(&mut self, id: VersionId, head: Result<Head, Failure>) {
        let Some(asking) = self.asking.remove(&id) else {
            return;
        };
        let key = asking.key.clone();
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.asking == Some(id) {
            entry.asking = None;
        }
        let current = entry.current.filter(|&id| self.store.get(id).is_some());
        match (head, current) {
            (Ok(Head::Same(renewal)), Some(current)) if !asking.is_solo => {
                self.counters.revalidated += 1;
                self.renew(&key, current, renewal, asking.waiting);
            }
            // The version that it is the same as has gone meanwhile.
            (Ok(Head::Same(_)), _) => match asking.waiting.is_empty() {
                true => self.tidy(&key),
                false => {
                    let waiting = asking.waiting;
                    let id = self.start(&key, None, waiting, asking.is_solo);
                    if !asking.is_solo {
                        self.entries.entry(key).or_default().asking = Some(id);
                    }
                }
            },
            (Ok(Head::Object(meta)), _) => self.on_version(id, asking, meta),
            (Ok(Head::Refused(refusal, freshness)), current) => {
                if let Some(current) = current {
                    self.supersede(current);
                }
                let is_kept =
                    freshness.may_be_shared && freshness.usage(unix_time_s()) == Use::Fresh;
                if is_kept && !asking.is_solo {
                    self.keep_refusal(&key, refusal.clone(), freshness);
                }
                for ticket in asking.waiting {
                    self.refuse(ticket, refusal.clone());
                }
                self.tidy(&key);
            }
            (Err(failure), current) => self.on_no_answer(&key, asking.waiting, current, &failure),
        }
    }

    /// The version that is known is the one that the origin has.
    fn renew(&mut self, key: &Key, current: VersionId, renewal: Renewal, waiting: Vec<u64>) {
        let Some(version) = self.store.get_mut(current) else {
            return;
        };
        renewal.apply(&mut version.meta);
        if version.meta.freshness.may_be_shared {
            self.write_down(current);
            for ticket in waiting {
                self.give(ticket, current);
            }
            return;
        }
        // From now on it is for one client: the first who has asked.
        let mut waiting = waiting.into_iter();
        if let Some(first) = waiting.next() {
            self.counters.passed += 1;
            self.give(first, current);
        }
        self.supersede(current);
        for other in waiting {
            self.start(key, None, vec![other], true);
        }
        self.tidy(key);
    }

    fn on_no_answer(
        &mut self,
        key: &Key,
        waiting: Vec<u64>,
        current: Option<VersionId>,
        failure: &Failure,
    ) {
        self.counters.failures += 1;
        let now_s = unix_time_s();
        let stands_in = current.filter(|&id| {
            let version = self.store.get(id);
            version.is_some_and(|version| version.meta.freshness.stands_in(now_s))
        });
        let meanwhile = match stands_in {
            Some(_) => "what is there of it is served, though it is stale",
            None => "clients are told",
        };
        tracing::warn!(
            origin = self.name(key),
            target = key.target,
            "not fetched: {failure}; {meanwhile}"
        );
        for ticket in waiting {
            match stands_in {
                Some(id) => {
                    self.counters.stale += 1;
                    self.give(ticket, id);
                }
                None => self.refuse(ticket, failure.refusal()),
            }
        }
        self.tidy(key);
    }

    fn keep_refusal(&mut self, key: &Key, refusal: Refusal, freshness: Freshness) {
        if self.refusals >= REFUSALS_MAX {
            for entry in self.entries.values_mut() {
                entry.refusal = None;
            }
            self.entries
                .retain(|_, entry| entry.current.is_some() || entry.asking.is_some());
            self.refusals = 0;
        }
        let entry = self.entries.entry(key.clone()).or_default();
        let before = entry.refusal.replace((refusal, freshness));
        self.refusals += usize::from(before.is_none());
    }

    /// A version has begun to come.
    fn on_version(&mut self, id: VersionId, asking: Asking, meta: Meta) {
        let Asking {
            key,
            waiting,
            is_solo,
            transfer,
            ..
        } = asking;
        let is_shared = meta.freshness.may_be_shared;
        let is_kept = is_shared && !is_solo;
        let too_large = meta
            .size_bytes
            .is_some_and(|bytes| bytes > self.store.bytes_max() && !meta.is_in_parts());
        if is_kept || !is_shared {
            let current = self.entries.get(&key).and_then(|entry| entry.current);
            if let Some(current) = current {
                self.supersede(current);
            }
        }
        if too_large {
            let why = "it is larger than the cache, and the origin does not give parts of it";
            let failure = Failure::Cache(why.to_owned());
            return self.on_no_answer(&key, waiting, None, &failure);
        }
        if !is_kept && waiting.is_empty() {
            // It was asked for in advance, and nobody may have it but one who asks.
            return self.tidy(&key);
        }
        self.forget_refusal(&key);
        let end = meta
            .size_bytes
            .map_or(u64::MAX, |bytes| self.store.segments_of(bytes));
        let mut transfer = transfer;
        transfer.segments = 0..end;
        let is_sized = meta.size_bytes.is_some();
        let in_parts = meta.is_in_parts();
        for (gone, key) in self.store.make_room(VERSION_BYTES) {
            self.on_gone(gone, &key);
        }
        self.store.insert(id, key.clone(), meta);
        transfer.limit.send_replace(match in_parts {
            true => self.window(),
            false => u64::MAX,
        });
        self.live.entry(id).or_default().transfers.push(transfer);
        if is_kept {
            self.entries.entry(key).or_default().current = Some(id);
            if is_sized {
                self.write_down(id);
            }
            for ticket in waiting {
                self.give(ticket, id);
            }
            return;
        }
        self.counters.passed += 1;
        if let Some(version) = self.store.get_mut(id) {
            version.is_passing = true;
        }
        let mut waiting = waiting.into_iter();
        if let Some(first) = waiting.next() {
            self.give(first, id);
        }
        for other in waiting {
            self.start(&key, None, vec![other], true);
        }
        // The one it was for may have gone.
        self.clean(id);
    }

    /// Segments that a transfer may run ahead of those who read.
    fn window(&self) -> u64 {
        (self.store.bytes_max() / self.store.segment_bytes / 4).max(2)
    }

    fn forget_refusal(&mut self, key: &Key) {
        let entry = self.entries.get_mut(key);
        if entry.is_some_and(|entry| entry.refusal.take().is_some()) {
            self.refusals -= 1;
        }
    }

    /// Another version has taken its place, or it is not to be had any more: nobody else gets it.
    fn supersede(&mut self, id: VersionId) {
        let Some(version) = self.store.get_mut(id) else {
            return;
        };
        version.is_passing = true;
        let key = version.key.clone();
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.current == Some(id)
        {
            entry.current = None;
        }
        // It may be read for long, and a fetcher that begins meanwhile must not take it for the latest.
        self.store.strike_out(id);
        self.clean(id);
    }

    fn write_down(&mut self, id: VersionId) {
        let Some(version) = self.store.get(id) else {
            return;
        };
        let name = self.name(&version.key);
        if let Err(error) = self.store.write_down(id, &name) {
            let what = self.directory(id);
            tracing::warn!(
                "{}: {error}; it will be lost with a restart",
                what.display()
            );
        }
    }

    /// The ticket is for this version.
    fn give(&mut self, number: u64, id: VersionId) {
        let (Some(ticket), Some(version)) = (self.tickets.get_mut(&number), self.store.get_mut(id))
        else {
            return;
        };
        ticket.version = Some(id);
        version.readers += 1;
        self.store.touch(id);
        let live = self.live.entry(id).or_default();
        live.readers.insert(number);
        match self.store.get(id).and_then(|it| it.meta.size_bytes) {
            Some(size_bytes) => self.tell(number, id, size_bytes),
            None => live.unanswered.push(number),
        }
    }

    fn tell(&mut self, ticket: u64, id: VersionId, size_bytes: u64) {
        let Some(version) = self.store.get(id) else {
            return;
        };
        let meta = &version.meta;
        let modified = meta.validators.last_modified.as_deref();
        let object = Object {
            directory: id.directory(),
            size_bytes,
            segment_bytes: self.store.segment_bytes,
            tag: tag(&version.key, meta, id),
            last_modified_s: modified.and_then(crate::freshness::parse_date),
            content: meta.content.clone(),
            caching: meta.caching.clone(),
            age_s: meta.freshness.age_s(unix_time_s()),
            present: version.runs(RUNS_MAX),
        };
        self.answers.push_back(Answer::Object { ticket, object });
    }

    fn refuse(&mut self, ticket: u64, refusal: Refusal) {
        self.tickets.remove(&ticket);
        self.answers.push_back(Answer::Refused { ticket, refusal });
    }

    fn on_segment(&mut self, number: u64, segment: u64) {
        let Some(id) = self.tickets.get(&number).and_then(|it| it.version) else {
            return;
        };
        let Some(version) = self.store.get(id) else {
            return self.lose(number);
        };
        let size_bytes = version.meta.size_bytes.unwrap_or(0);
        if segment >= self.store.segments_of(size_bytes) {
            return self.lose(number);
        }
        if version.has(segment) {
            self.store.touch_segment(id, segment);
            self.answers.push_back(Answer::Segment {
                ticket: number,
                segment,
            });
        } else {
            if let Some(ticket) = self.tickets.get_mut(&number) {
                ticket.wants.insert(segment);
            }
            self.fetch(id, segment);
        }
        self.widen(id, segment);
    }

    /// Transfers may go on as far ahead of what is asked for as there is room.
    fn widen(&mut self, id: VersionId, segment: u64) {
        let limit = segment.saturating_add(self.window());
        let Some(live) = self.live.get(&id) else {
            return;
        };
        for transfer in &live.transfers {
            if transfer.segments.start <= segment.saturating_add(1) {
                transfer.limit.send_if_modified(|known| {
                    let is_more = *known < limit;
                    *known = limit.max(*known);
                    is_more
                });
            }
        }
    }

    /// Sees to it that a segment comes that is missing.
    fn fetch(&mut self, id: VersionId, segment: u64) {
        let Some(version) = self.store.get(id) else {
            return self.let_down(id);
        };
        let (key, meta) = (version.key.clone(), version.meta.clone());
        let next_there = version.next_there(segment);
        let live = self.live.entry(id).or_default();
        let covers = |running: &Running| running.segments.contains(&segment);
        let is_near = |running: &Running| segment - running.segments.start <= NEAR_SEGMENTS;
        if live.transfers.iter().any(|it| covers(it) && is_near(it)) {
            return;
        }
        let in_parts = meta.is_in_parts() && !live.is_lost;
        if in_parts && live.transfers.len() >= PARTS_MAX {
            // One that nobody waits for may stand still for ever.
            let tickets = live.readers.iter().filter_map(|it| self.tickets.get(it));
            let wanted: Vec<_> = tickets.flat_map(|it| it.wants.iter().copied()).collect();
            let is_vain = |it: &Running| !wanted.iter().any(|wanted| it.segments.contains(wanted));
            if let Some(vain) = live.transfers.iter().position(is_vain) {
                live.transfers.remove(vain);
            }
        }
        if !in_parts || live.transfers.len() >= PARTS_MAX {
            // With others under way, it is looked at again when one of them has ended.
            if live.is_lost || !(live.transfers.iter().any(covers) || in_parts) {
                self.let_down(id);
            }
            return;
        }
        if live.is_pausing {
            return;
        }
        let size_bytes = meta.size_bytes.unwrap_or(0);
        let ahead = live.transfers.iter().map(|it| it.segments.start);
        let ahead = ahead.filter(|&start| start > segment).min();
        let end = [next_there, ahead].into_iter().flatten().min();
        let end = end.unwrap_or_else(|| self.store.segments_of(size_bytes));
        let limit = segment.saturating_add(self.window());
        let what = What::Part {
            segments: segment..end,
            size_bytes,
            validators: meta.validators,
        };
        self.counters.requests += 1;
        let transfer = self.transfer(id, &key, segment..end, limit, what);
        self.live.entry(id).or_default().transfers.push(transfer);
    }

    fn on_stored(&mut self, id: VersionId, number: u64, segment: u64, bytes: u64) {
        self.counters.fetched_bytes += bytes;
        let gone = self.store.make_room(bytes);
        for (gone, key) in gone {
            self.on_gone(gone, &key);
        }
        if !self.store.add(id, segment, bytes) {
            // It has gone meanwhile, and this has come behind.
            self.live.remove(&id);
            return self.store.remove(id);
        }
        let in_parts = self.store.get(id).is_some_and(|it| it.meta.is_in_parts());
        let next_there = self.store.get(id).is_some_and(|it| it.has(segment + 1));
        let live = self.live.entry(id).or_default();
        live.failures = 0;
        let is_wanted = !live.readers.is_empty();
        live.transfers.retain_mut(|transfer| {
            if transfer.number != number {
                return true;
            }
            transfer.segments.start = segment + 1;
            // It would bring what is there, or what nobody waits for.
            let is_vain = next_there || (!is_wanted && !transfer.is_about_to_end());
            !(in_parts && is_vain)
        });
        for &reader in &live.readers {
            let wants = self.tickets.get_mut(&reader).map(|it| &mut it.wants);
            if wants.is_some_and(|wants| wants.remove(&segment)) {
                self.answers.push_back(Answer::Segment {
                    ticket: reader,
                    segment,
                });
            }
        }
        self.go_on(id);
    }

    /// A version has made room for others.
    fn on_gone(&mut self, id: VersionId, key: &Key) {
        self.live.remove(&id);
        if let Some(entry) = self.entries.get_mut(key)
            && entry.current == Some(id)
        {
            entry.current = None;
        }
        self.tidy(key);
    }

    fn on_full(&mut self, made: oneshot::Sender<()>) {
        let used = self.store.bytes_with_versions();
        let bytes = (used / ROOM_SHARE).max(8 * self.store.segment_bytes);
        let kept = self.store.bytes_max().saturating_sub(used);
        tracing::warn!(
            "the disk of the cache directory is full, before the cache is: {} of {} bytes are used; what has not been \
             asked for for long makes room. Give it more, or the cache fewer (--origin-cache-bytes)",
            self.store.bytes(),
            self.store.bytes_max(),
        );
        for (gone, key) in self.store.make_room(kept.saturating_add(bytes)) {
            self.on_gone(gone, &key);
        }
        let _ = made.send(());
    }

    fn on_ended(&mut self, id: VersionId, number: u64, result: Result<u64, Failure>) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.transfers.retain(|transfer| transfer.number != number);
        let Some(version) = self.store.get_mut(id) else {
            return;
        };
        let in_parts = version.meta.is_in_parts();
        match result {
            Ok(bytes) => {
                if version.meta.size_bytes.is_none() {
                    version.meta.size_bytes = Some(bytes);
                    let is_kept = !version.is_passing;
                    let unanswered = std::mem::take(&mut live.unanswered);
                    if is_kept {
                        self.write_down(id);
                    }
                    for ticket in unanswered {
                        self.tell(ticket, id, bytes);
                    }
                }
            }
            Err(Failure::Stopped) => {}
            Err(failure) => {
                let key = version.key.clone();
                self.counters.failures += 1;
                tracing::warn!(
                    origin = self.name(&key),
                    target = key.target,
                    "broken off: {failure}"
                );
                let live = self.live.entry(id).or_default();
                live.failures += 1;
                let is_over = !failure.is_passing() || live.failures >= FAILURES_MAX;
                if in_parts && !is_over {
                    live.is_pausing = true;
                    let wait = match failure {
                        Failure::LeftAlone => LEFT_ALONE_WAIT,
                        _ => AGAIN_AFTER * (1 << live.failures.min(6)),
                    };
                    let events = self.events.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(wait).await;
                        let _ = events.send(Event::Again(id)).await;
                    });
                } else {
                    // One that breaks off again and again may never have been as it said.
                    live.is_lost |=
                        matches!(failure, Failure::OtherVersion(_) | Failure::Cut(_)) || !in_parts;
                    let is_lost = live.is_lost;
                    let unanswered = std::mem::take(&mut live.unanswered);
                    for ticket in unanswered {
                        self.release(ticket);
                        self.refuse(ticket, failure.refusal());
                    }
                    self.let_down(id);
                    if is_lost {
                        self.supersede(id);
                    }
                }
            }
        }
        self.go_on(id);
        self.clean(id);
    }

    /// Whoever waits for a segment of it that nobody brings gets one who does.
    fn go_on(&mut self, id: VersionId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let tickets = live.readers.iter().filter_map(|it| self.tickets.get(it));
        let wanted: BTreeSet<u64> = tickets
            .flat_map(|ticket| ticket.wants.iter().copied())
            .collect();
        for segment in wanted {
            self.fetch(id, segment);
        }
    }

    /// Those who wait for segments of it do not get them.
    fn let_down(&mut self, id: VersionId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let waits = |number: &&u64| {
            let ticket = self.tickets.get(number);
            ticket.is_some_and(|ticket| !ticket.wants.is_empty())
        };
        let waiting: Vec<u64> = live.readers.iter().filter(waits).copied().collect();
        for ticket in waiting {
            self.lose(ticket);
        }
    }

    fn lose(&mut self, ticket: u64) {
        self.release(ticket);
        self.tickets.remove(&ticket);
        self.counters.lost += 1;
        self.answers.push_back(Answer::Lost { ticket });
    }

    fn on_done(&mut self, number: u64) {
        self.release(number);
        let Some(ticket) = self.tickets.remove(&number) else {
            return;
        };
        if let Some(id) = ticket.asking
            && let Some(asking) = self.asking.get_mut(&id)
        {
            asking.waiting.retain(|&waiting| waiting != number);
            if asking.waiting.is_empty() && !asking.is_revalidation {
                self.give_up(id, &ticket.key);
            }
        }
        if let Some(id) = ticket.version {
            self.clean(id);
        }
    }

    /// Nobody waits for an answer any more: the origin is not asked, or hears that it need not answer.
    fn give_up(&mut self, id: VersionId, key: &Key) {
        self.asking.remove(&id);
        if let Some(entry) = self.entries.get_mut(key)
            && entry.asking == Some(id)
        {
            entry.asking = None;
        }
        self.tidy(key);
    }

    /// A ticket does not read its version any more.
    fn release(&mut self, number: u64) {
        let id = self
            .tickets
            .get_mut(&number)
            .and_then(|it| it.version.take());
        let Some(id) = id else {
            return;
        };
        if let Some(live) = self.live.get_mut(&id) {
            live.readers.remove(&number);
            live.unanswered.retain(|&waiting| waiting != number);
        }
        if let Some(version) = self.store.get_mut(id) {
            version.readers = version.readers.saturating_sub(1);
        }
        // Its ticket is about to go, and finds what to clean by that.
        if let Some(ticket) = self.tickets.get_mut(&number) {
            ticket.wants.clear();
        }
        self.clean(id);
    }

    /// Nothing is kept of a version that nobody reads, fetches or may get.
    fn clean(&mut self, id: VersionId) {
        if let Some(live) = self.live.get_mut(&id) {
            if !live.readers.is_empty() {
                return;
            }
            if self.store.get(id).is_some_and(|it| it.meta.is_in_parts()) {
                live.transfers.retain(Running::is_about_to_end);
                for transfer in &live.transfers {
                    transfer.limit.send_replace(u64::MAX);
                }
            }
        }
        let live = self.live.get(&id);
        let is_fetched = live.is_some_and(|live| !live.transfers.is_empty() || live.is_pausing);
        let Some(version) = self.store.get(id) else {
            self.live.remove(&id);
            return;
        };
        let size_bytes = version.meta.size_bytes;
        let segments = size_bytes.map(|bytes| self.store.segments_of(bytes));
        let is_whole = segments.is_some_and(|count| version.runs(1) == [(0, count)] || count == 0);
        let is_left = is_whole || version.meta.is_in_parts();
        let key = version.key.clone();
        if version.is_passing || (!is_fetched && !is_left) {
            // Transfers end with this.
            self.live.remove(&id);
            self.store.remove(id);
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.current == Some(id)
            {
                entry.current = None;
            }
            self.tidy(&key);
        } else if !is_fetched {
            self.live.remove(&id);
        }
    }

    fn tidy(&mut self, key: &Key) {
        let entry = self.entries.get(key);
        let is_empty = entry.is_some_and(|entry| {
            entry.current.is_none() && entry.asking.is_none() && entry.refusal.is_none()
        });
        if is_empty {
            self.entries.remove(key);
        }
    }
}

/// What clients tell the version by.
fn tag(key: &Key, meta: &Meta, id: VersionId) -> u64 {
    // Keys that are no secret: the same version has the same tag after a restart.
    let mut hasher = SipHasher13::new();
    hasher.write(key.target.as_bytes());
    match meta.validators.strong() {
        Some(strong) => hasher.write(strong.as_bytes()),
        None => hasher.write(id.directory().as_bytes()),
    }
    hasher.write_u64(meta.size_bytes.unwrap_or(0));
    hasher.finish()
}
