//! Tickets and transfers: one request to the origin for all clients of an object.
//!
//! ```text
//!  Object      ──▶ fresh? ──yes──────────────────────────▶ Answer::Object
//!                    │ no                                     ▲      ▲
//!                    ▼                     304, or another ───┘      │
//!                 Asking (one for all) ──▶ version, or it fails ─────┘ if stale may be served;
//!                                                                   else Refused
//!
//!  Segment     ──▶ there? ──yes──────────────────────────▶ Answer::Segment
//!                    │ no                                     ▲
//!                    ▼                                        │
//!                 a transfer comes to it soon, or another ────┘ or Lost, if unavailable
//!                 begins with it
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::broken::Broken;
use crate::counters::{CacheCounters, Counted, OriginCounters, Totals};
use crate::disk::Disk;
use crate::failure::{Failure, is_denial};
use crate::fields::{FieldLimits, Fields};
use crate::freshness::Use;
use crate::log_limit::LogLimit;
use crate::message::{
    Answer, CacheStatus, HostRequest, MESSAGE_BYTES_MAX, Object, RUNS_MAX, Refusal,
};
use crate::missing::{Missing, Remembered};
use crate::store::{Key, Meta, Store, VERSION_BYTES, Version, VersionId};
use crate::transfer::{self, Event, Full, Head, Order, Renewal, What, unix_time_s};
use crate::upstream::{OriginUrl, Upstream};
use crate::validator::Validators;
use crate::variants::Variants;
use crate::vary::{Names, Variant};

/// Most tickets at a time: twice the connections that a host stack has.
const TICKETS_MAX: usize = 1 << 18;

/// Transfers of one version at a time.
const PARTS_MAX: usize = 4;

/// Distance to a transfer's next segment, in segments, within which a ticket waits for it.
const NEAR_SEGMENTS: u64 = 4;

/// Least read-ahead for a client that reads on, in segments: enough for a fast client while the
/// next request is on its way.
const AHEAD_MIN: u64 = 2;

/// Remaining segments up to which a transfer completes even without a reader.
const LAST_SEGMENTS: u64 = 4;

/// Failures of a version in a row, without a segment in between, after which its tickets are lost.
const FAILURES_MAX: u32 = 4;

/// Wait after the first failure; doubles with each.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Wait while the origin's circuit is open, which lasts at least a second.
const LEFT_ALONE_WAIT: Duration = Duration::from_secs(2);

/// Status for a client without a response head, if the cause of the loss is unknown.
const LOST_STATUS: u16 = 502;

/// The cache's fraction evicted at once when the disk is full (divisor).
const ROOM_SHARE: u64 = 16;

/// Fraction of the cache for all responses without a length together, while they arrive or are read
/// (divisor): their size is known too late, and they cannot be fetched again in parts.
const UNSIZED_SHARE: u64 = 2;

/// Pause of eviction for a full disk while something else fills it, since the room would be gone at
/// once. Doubles with each vain attempt, up to [`NO_HELP_PAUSE_MAX`].
const NO_HELP_PAUSE: Duration = Duration::from_secs(1);
const NO_HELP_PAUSE_MAX: Duration = Duration::from_secs(60);

/// See the [module documentation](self).
pub(crate) struct Fetcher {
    /// By origin URL.
    upstreams: HashMap<Arc<str>, Arc<Upstream>>,
    store: Store,
    entries: HashMap<Key, Entry>,
    variants: Variants,
    asking: HashMap<VersionId, Asking>,
    live: HashMap<VersionId, Live>,
    tickets: HashMap<u64, Ticket>,
    /// Entries with `missing`.
    remembered: Remembered,
    /// Limits the warning about forgotten refusals.
    remembered_log: LogLimit,
    /// Limits the warning about a full disk.
    full_log: LogLimit,
    /// Evicting for the disk did not help: end and length of the pause.
    no_help: Option<(Instant, Duration)>,
    /// Limits the warning about too many variants.
    variants_log: LogLimit,
    /// Most header fields of a response.
    field_limits: FieldLimits,
    /// Limits the warning about responses without room.
    no_room_log: LogLimit,
    /// Answers to send to the host process.
    pub(crate) answers: VecDeque<Answer>,
    events: mpsc::Sender<Event>,
    /// Metadata writes in progress.
    writes: JoinSet<()>,
    transfers: u64,
    /// By origin URL.
    counters: BTreeMap<Arc<str>, OriginCounters>,
    /// The counters may have changed since the last report.
    are_counters_new: bool,
    /// Another fetcher replaces this one: new requests go to that one.
    is_retiring: bool,
}

/// State of a target's variant.
#[derive(Default)]
struct Entry {
    current: Option<VersionId>,
    /// A request to the origin on behalf of all tickets.
    asking: Option<VersionId>,
    missing: Option<Missing>,
}

/// A request to an origin without a response head yet.
struct Asking {
    key: Key,
    waiting: Vec<u64>,
    /// For one client alone.
    is_solo: bool,
    /// The request revalidates a stored version: its response is of use even without a ticket.
    is_revalidation: bool,
    transfer: Running,
    /// Directory of a new version.
    disk: Disk,
}

/// A version with readers or transfers.
#[derive(Default)]
struct Live {
    readers: HashSet<u64>,
    /// Tickets without an answer, until the version is settled.
    unanswered: Vec<u64>,
    transfers: Vec<Running>,
    failures: u32,
    /// A failure's pause is running.
    is_pausing: bool,
    /// The origin has another version.
    is_lost: bool,
    /// Status for clients without a response head, once no further segment comes.
    lost_status: Option<u16>,
}

/// A running transfer: its next segment, and its end, exclusive.
struct Running {
    number: u64,
    segments: Range<u64>,
    limit: watch::Sender<u64>,
}

impl Running {
    /// The limit holds the transfer for now.
    fn is_standing(&self) -> bool {
        *self.limit.borrow() <= self.segments.start
    }

    /// Whether the transfer delivers a segment so soon that another request would not be faster.
    fn is_near(&self, segment: u64) -> bool {
        let near = if self.is_standing() { 0 } else { NEAR_SEGMENTS };
        self.segments.contains(&segment) && segment - self.segments.start <= near
    }

    fn is_about_to_end(&self) -> bool {
        self.segments.end.saturating_sub(self.segments.start) <= LAST_SEGMENTS
    }
}

struct Ticket {
    key: Key,
    /// The request's variant by all selecting fields, used or not.
    selects: Variant,
    /// The cache's part in the answer, as far as is known.
    how: CacheStatus,
    /// The request whose response it waits for, or received.
    asking: Option<VersionId>,
    version: Option<VersionId>,
    /// Segments that it waits for.
    wants: BTreeSet<u64>,
    reading: Reading,
}

/// A client's reading position, in segments.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// Start of the contiguous reading.
    start: u64,
    /// The next expected segment.
    next: u64,
    /// End of the client's range, exclusive.
    end: u64,
    /// End of the read-ahead, exclusive.
    reach: u64,
}

impl Reading {
    /// Moves to this segment of a range up to `end`. Reads ahead as much as the client has read
    /// without a gap, at most `ahead_max`, so that a client that leaves soon causes little traffic.
    fn go_on(&mut self, segment: u64, end: u64, ahead_max: u64) {
        // A client does not request segments that were present, so it may skip some.
        let is_sequel = segment >= self.start && segment <= self.next.max(self.reach);
        if !is_sequel {
            self.start = segment;
        }
        self.next = segment.saturating_add(1);
        self.end = end.max(self.next);
        let ahead = (self.next - self.start).max(AHEAD_MIN).min(ahead_max);
        self.reach = self.next.saturating_add(ahead).min(self.end);
    }
}

impl Fetcher {
    pub(crate) fn new(
        upstreams: impl IntoIterator<Item = Arc<Upstream>>,
        mut store: Store,
        (variants_max, field_limits): (usize, FieldLimits),
        events: mpsc::Sender<Event>,
    ) -> Fetcher {
        let mut entries: HashMap<Key, Entry> = HashMap::new();
        let mut variants = Variants::new(variants_max);
        let mut too_many = Vec::new();
        let mut doubles = Vec::new();
        let now_s = unix_time_s();
        let age_s = |id| {
            store
                .get(id)
                .map(|it: &Version| it.meta.freshness.age_s(now_s))
        };
        for (id, key) in store.ids() {
            if store.get(id).is_some_and(|version| version.is_passing) {
                continue;
            }
            if let Some(version) = store.get(id) {
                let named = version.meta.varies_by().union(key.variant.names());
                let names = variants.learn(key, named);
                too_many.extend(variants.keep(key, names));
            }
            // Of several versions of one target, left by a fetcher that was killed, the latest is
            // current.
            let current = &mut entries.entry(key.clone()).or_default().current;
            let older = match *current {
                Some(other) if age_s(other) <= age_s(id) => Some(id),
                other => {
                    *current = Some(id);
                    other
                }
            };
            doubles.extend(older);
        }
        for key in too_many {
            let entry = entries.get_mut(&key);
            doubles.extend(entry.and_then(|entry| entry.current.take()));
        }
        for double in doubles {
            if let Some(version) = store.get_mut(double) {
                version.is_passing = true;
            }
        }
        let mut counters: BTreeMap<_, OriginCounters> = BTreeMap::new();
        for (origin, &count) in &store.damaged {
            let counters = counters.entry(Arc::clone(origin)).or_default();
            counters.damaged_segments += count;
        }
        let upstreams = upstreams.into_iter();
        let upstreams = upstreams.map(|it| (Arc::clone(it.url.text()), it));
        Fetcher {
            upstreams: upstreams.collect(),
            store,
            entries,
            variants,
            variants_log: LogLimit::default(),
            field_limits,
            asking: HashMap::new(),
            live: HashMap::new(),
            tickets: HashMap::new(),
            remembered: Remembered::default(),
            remembered_log: LogLimit::default(),
            full_log: LogLimit::default(),
            no_help: None,
            no_room_log: LogLimit::default(),
            answers: VecDeque::new(),
            events,
            writes: JoinSet::new(),
            transfers: 0,
            counters,
            are_counters_new: true,
            is_retiring: false,
        }
    }

    /// All counters, in total and by origin.
    pub(crate) fn counters(&self) -> Counted<'_> {
        let cache = CacheCounters {
            evicted_objects: self.store.evicted_objects,
            evicted_bytes: self.store.evicted_bytes,
            cached_objects: self.store.objects() as u64,
            cached_bytes: self.store.bytes(),
            evicted_refusals: self.remembered.evicted,
        };
        let mut all = OriginCounters::default();
        for counters in self.counters.values() {
            all.add(counters);
        }
        let origins = self.counters.iter();
        let origins = origins.map(|(url, counters)| (&**url, *counters));
        Counted {
            total: Totals {
                origins: all,
                cache,
            },
            origins: origins.collect(),
        }
    }

    /// Whether [`Fetcher::counters`] may have changed since the last report.
    pub(crate) fn are_counters_new(&self) -> bool {
        self.are_counters_new
    }

    /// Notes the result of a report; a failed one is repeated.
    pub(crate) fn on_told(&mut self, is_known: bool) {
        self.are_counters_new = !is_known;
    }

    fn count(&mut self, key: &Key) -> &mut OriginCounters {
        self.counters.entry(Arc::clone(&key.origin)).or_default()
    }

    /// Admits an origin, unless it is admitted already.
    pub(crate) fn admit(&mut self, url: &OriginUrl, upstream: impl FnOnce() -> Arc<Upstream>) {
        let url = Arc::clone(url.text());
        self.upstreams.entry(url).or_insert_with(upstream);
    }

    /// Sets the most content, in bytes, and evicts the excess.
    pub(crate) fn resize(&mut self, bytes_max: u64) {
        self.are_counters_new = true;
        self.store.set_bytes_max(bytes_max);
        self.make_room(0);
    }

    /// Sets the most variants of a target. Surplus ones are evicted when others arrive.
    pub(crate) fn set_variants_max(&mut self, variants_max: usize) {
        self.variants.variants_max = variants_max;
    }

    /// Sets the limits of a response's header fields.
    pub(crate) fn set_field_limits(&mut self, field_limits: FieldLimits) {
        self.field_limits = field_limits;
    }

    fn make_room(&mut self, bytes: u64) {
        for (gone, key) in self.store.make_room(bytes) {
            self.on_gone(gone, &key);
        }
    }

    /// Stops taking requests; the fetcher ends once [`Fetcher::may_end`] allows it.
    pub(crate) fn retire(&mut self) {
        self.is_retiring = true;
    }

    /// Whether the retiring fetcher may end: every client that reads can go on with the next
    /// fetcher, which finds the version complete or can fetch the rest.
    pub(crate) fn may_end(&self) -> bool {
        self.is_retiring
            && self.answers.is_empty()
            && self.live.iter().all(|(id, live)| {
                let is_found = |version: &Version| {
                    let is_in_parts = version.meta.is_in_parts() && !version.is_passing;
                    is_in_parts || self.store.is_whole(version)
                };
                live.readers.is_empty() || self.store.get(*id).is_some_and(is_found)
            })
    }

    /// Waits until all pending writes and removals are complete.
    pub(crate) async fn settle(&mut self) {
        self.asking.clear();
        self.live.clear();
        while self.writes.join_next().await.is_some() {}
        self.store.settle().await;
    }

    /// Handles a message of the host process.
    pub(crate) fn on_ask(&mut self, ask: HostRequest) {
        self.are_counters_new = true;
        match ask {
            HostRequest::Object {
                ticket,
                origin,
                target,
                fields,
            } => self.on_object(ticket, &origin, target, &fields),
            HostRequest::Again {
                ticket,
                origin,
                target,
                directory,
            } => self.on_again(ticket, &origin, target, &directory),
            HostRequest::Settled => self.on_settled(),
            HostRequest::Segment {
                ticket,
                segment,
                end,
            } => self.on_segment(ticket, segment, end),
            HostRequest::Missing {
                ticket,
                segment,
                end,
            } => self.on_missing(ticket, segment, end),
            HostRequest::Done { ticket } => self.on_done(ticket),
        }
    }

    /// Handles an event of a transfer.
    pub(crate) fn on_event(&mut self, event: Event) {
        self.are_counters_new = true;
        match event {
            Event::Head { id, head } => self.on_head(id, head),
            Event::EarlyHints { id, links } => self.on_early_hints(id, &links),
            Event::Room { id, bytes, reply } => self.on_room(id, bytes, reply),
            Event::Unwritten { id, bytes } => {
                if !self.store.is_promised_whole(id) {
                    self.store.release(id, bytes);
                }
            }
            Event::Stored {
                id,
                number,
                segment,
                bytes,
                write,
            } => self.on_stored(id, number, segment, (bytes, write)),
            Event::Recorded { id, result } => self.on_recorded(id, result),
            Event::Full(full) => self.on_full(full),
            Event::RoomMade { has_helped } => self.on_room_made(has_helped),
            Event::Ended {
                id,
                number,
                result,
                trailers,
            } => self.on_ended(id, number, result.map(|bytes| (bytes, trailers))),
            Event::Again(id) => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.is_pausing = false;
                }
                self.go_on(id);
            }
        }
    }

    fn on_object(
        &mut self,
        number: u64,
        origin: &str,
        target: String,
        fields: &[(String, String)],
    ) {
        let Some(key) = self.take_up(number, origin, target, fields) else {
            return;
        };
        self.count(&key).asked += 1;
        self.answer(number, key, true);
    }

    /// Answers a ticket from the store, or requests the object from the origin. `counts`: the
    /// ticket was not yet counted as a hit or miss.
    fn answer(&mut self, number: u64, key: Key, counts: bool) {
        let counted = u64::from(counts);
        self.variants.touch(&key);
        let (now, now_s) = (Instant::now(), unix_time_s());
        let entry = self.entries.entry(key.clone()).or_default();
        let current = entry.current;
        let known = current.and_then(|id| Some((id, &self.store.get(id)?.meta)));
        let usage = known.map(|(_, meta)| meta.freshness.usage(now_s));
        let validators = known.map(|(_, meta)| meta.validators.clone());
        if let (Some((id, _)), Some(Use::Fresh)) = (known, usage) {
            self.count(&key).hits += counted;
            return self.give(number, id, CacheStatus::Hit);
        }
        let broken = match &entry.missing {
            Some(Missing::Refused(refusal, freshness)) if freshness.usage(now_s) == Use::Fresh => {
                let age_s = freshness.age_s(now_s);
                let refusal = Refusal {
                    age_s,
                    ..refusal.clone()
                };
                self.count(&key).hits += counted;
                self.mark(number, CacheStatus::Hit);
                return self.refuse(number, refusal);
            }
            Some(Missing::Broken(broken)) => broken.answer(now).cloned(),
            _ => None,
        };
        match (known, usage) {
            (Some((id, _)), Some(Use::WhileRevalidating)) => {
                let counters = self.count(&key);
                counters.hits += counted;
                counters.stale += 1;
                self.give(number, id, CacheStatus::Updating);
                if broken.is_none() {
                    self.ask(&key, validators, None);
                }
            }
            _ => {
                self.count(&key).misses += counted;
                if validators.is_some() {
                    self.mark(number, CacheStatus::Expired);
                }
                match broken {
                    Some(failure) => self.make_do(&key, vec![number], current, &failure),
                    None => self.ask(&key, validators, Some(number)),
                }
            }
        }
    }

    /// Registers a ticket. `None` if its number is in use, the fetcher is retiring, or the ticket
    /// was refused.
    fn take_up(
        &mut self,
        number: u64,
        origin: &str,
        target: String,
        fields: &[(String, String)],
    ) -> Option<Key> {
        if self.tickets.contains_key(&number) || self.is_retiring {
            return None;
        }
        let is_sane = target.starts_with('/') && target.len() < MESSAGE_BYTES_MAX;
        let has_room = self.tickets.len() < TICKETS_MAX;
        let known = self.upstreams.get_key_value(origin);
        let Some((origin, _)) = known.filter(|_| is_sane && has_room) else {
            self.refuse(number, Failure::Stopped.refusal());
            return None;
        };
        let selects = Variant::of(fields);
        let names = self.variants.names(origin, &target);
        let key = Key {
            origin: Arc::clone(origin),
            target,
            variant: selects.by(names),
        };
        let ticket = Ticket {
            key: key.clone(),
            selects,
            how: CacheStatus::Miss,
            asking: None,
            version: None,
            wants: BTreeSet::new(),
            reading: Reading::default(),
        };
        self.tickets.insert(number, ticket);
        Some(key)
    }

    /// Gives a client the rest of the version that it began to read, however old it is.
    fn on_again(&mut self, number: u64, origin: &str, target: String, directory: &str) {
        let Some(key) = self.take_up(number, origin, target, &[]) else {
            return;
        };
        let id = VersionId::of_directory(directory);
        let found = id.and_then(|id| Some((id, self.store.get(id)?.key.clone())));
        let is_its = |found: &Key| (&found.origin, &found.target) == (&key.origin, &key.target);
        match found.filter(|(_, found)| is_its(found)) {
            Some((id, found)) => {
                if let Some(ticket) = self.tickets.get_mut(&number) {
                    ticket.key = found;
                }
                self.give(number, id, CacheStatus::Hit);
            }
            None => self.lose(number, LOST_STATUS),
        }
    }

    /// All clients of an earlier fetcher have named their versions: other outdated ones are
    /// removed.
    fn on_settled(&mut self) {
        let is_left = |id: &VersionId| self.store.get(*id).is_some_and(|it| it.is_passing);
        let left: Vec<_> = self.store.ids().map(|(id, _)| id).filter(is_left).collect();
        for id in left {
            self.clean(id);
        }
    }

    /// Requests a target from the origin on behalf of all tickets, unless a request is under way;
    /// `ticket` waits for the response.
    fn ask(&mut self, key: &Key, known: Option<Validators>, ticket: Option<u64>) {
        let asking = self.entries.get(key).and_then(|entry| entry.asking);
        if let Some(id) = asking
            && let Some(asking) = self.asking.get_mut(&id)
        {
            let counters = self.counters.entry(Arc::clone(&key.origin)).or_default();
            counters.coalesced += u64::from(ticket.is_some());
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
        // Nothing is written before it is known whether the response is kept.
        let disk = self.store.disk(id);
        let transfer = self.transfer(id, key, disk.clone(), 0..u64::MAX, 0, What::Whole(known));
        self.count(key).requests += 1;
        let asking = Asking {
            key: key.clone(),
            waiting,
            is_solo,
            is_revalidation,
            transfer,
            disk,
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
        disk: Disk,
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
            upstream: Arc::clone(&self.upstreams[&key.origin]),
            target: key.target.clone(),
            variant: key.variant.clone(),
            disk,
            segment_bytes: self.store.segment_bytes,
            field_limits: self.field_limits,
            what,
            trailers: Fields::default(),
            limit: receiver,
        };
        tokio::spawn(transfer::run(order, self.events.clone()));
        Running {
            number,
            segments,
            limit,
        }
    }

    /// Passes links on to all clients that wait for the response.
    fn on_early_hints(&mut self, id: VersionId, links: &[String]) {
        let asking = self.asking.get(&id);
        let waiting = asking.into_iter().flat_map(|asking| &asking.waiting);
        self.answers
            .extend(waiting.map(|&ticket| Answer::EarlyHints {
                ticket,
                links: links.to_vec(),
            }));
    }

    fn on_head(&mut self, id: VersionId, head: Result<Head, Failure>) {
        let Some(mut asking) = self.asking.remove(&id) else {
            return;
        };
        let asked = asking.key.clone();
        if let Some(entry) = self.entries.get_mut(&asked)
            && entry.asking == Some(id)
        {
            entry.asking = None;
        }
        let others = match &head {
            Ok(head) => self.select(&mut asking, head),
            Err(_) => Vec::new(),
        };
        self.on_head_of(id, asking, head);
        self.tidy(&asked);
        for number in others {
            let Some(ticket) = self.tickets.get_mut(&number) else {
                continue;
            };
            // By all known names: a response that is not kept may name others each time.
            let names = self.variants.names(&asked.origin, &asked.target);
            ticket.key.variant = ticket.selects.by(names);
            let key = ticket.key.clone();
            self.answer(number, key, false);
        }
    }

    /// Records the fields by which the origin selects, and sets the response's variant. Returns the
    /// tickets for other variants.
    fn select(&mut self, asking: &mut Asking, head: &Head) -> Vec<u64> {
        let names = self.variants.learn(&asking.key, head.varies_by());
        let variant = asking.key.variant.by(names);
        let mut others = Vec::new();
        for number in std::mem::take(&mut asking.waiting) {
            let Some(ticket) = self.tickets.get_mut(&number) else {
                continue;
            };
            if ticket.selects.by(names) == variant {
                ticket.key.variant = variant.clone();
                asking.waiting.push(number);
            } else {
                ticket.asking = None;
                others.push(number);
            }
        }
        asking.key.variant = variant;
        others
    }

    fn on_head_of(&mut self, id: VersionId, asking: Asking, head: Result<Head, Failure>) {
        let key = asking.key.clone();
        let entry = self.entries.entry(key.clone()).or_default();
        let current = entry.current.filter(|&id| self.store.get(id).is_some());
        match (head, current) {
            (Ok(Head::Same(renewal)), Some(current)) if !asking.is_solo => {
                self.count(&key).revalidated += 1;
                self.renew(&key, current, renewal, asking.waiting);
            }
            // The version that the 304 confirms has gone meanwhile.
            (Ok(Head::Same(_)), _) => {
                if asking.waiting.is_empty() {
                    self.tidy(&key)
                } else {
                    let waiting = asking.waiting;
                    let id = self.start(&key, None, waiting, asking.is_solo);
                    if !asking.is_solo {
                        self.entries.entry(key).or_default().asking = Some(id);
                    }
                }
            }
            (Ok(Head::Object(meta)), _) => self.on_version(id, asking, meta),
            (Ok(Head::Refused(refusal, freshness, names)), current) => {
                match current {
                    Some(current) if is_denial(refusal.status) => self.doubt(current),
                    Some(current) => self.supersede(current),
                    None => {}
                }
                self.forget_missing(&key);
                let is_shared = freshness.may_be_shared;
                let is_kept = is_shared && freshness.usage(unix_time_s()) == Use::Fresh;
                if is_kept && !asking.is_solo {
                    self.keep_missing(
                        &key,
                        Missing::Refused(refusal.clone(), freshness),
                        Some(names),
                    );
                }
                self.refuse_all(&key, asking.waiting, &refusal, is_shared);
                self.tidy(&key);
            }
            (Err(failure), current) => self.on_no_answer(&key, asking.waiting, current, &failure),
        }
    }

    /// Refuses waiting tickets; if the refusal is for one client, the others get their own
    /// requests.
    fn refuse_all(&mut self, key: &Key, waiting: Vec<u64>, refusal: &Refusal, is_shared: bool) {
        let mut waiting = waiting.into_iter();
        let count = if is_shared { usize::MAX } else { 1 };
        for ticket in waiting.by_ref().take(count) {
            self.refuse(ticket, refusal.clone());
        }
        for other in waiting {
            self.start(key, None, vec![other], true);
        }
    }

    /// Updates the current version after a 304.
    fn renew(&mut self, key: &Key, current: VersionId, renewal: Renewal, waiting: Vec<u64>) {
        let Some(version) = self.store.get(current) else {
            return;
        };
        let mut meta = version.meta.clone();
        renewal.apply(&mut meta);
        if let Some(why) = self.field_limits.excess(&meta.fields) {
            self.supersede(current);
            return self.on_no_answer(key, waiting, None, &Failure::TooManyFields(why));
        }
        self.store.update(current, meta);
        self.forget_missing(key);
        let Some(version) = self.store.get(current) else {
            return;
        };
        if version.meta.freshness.may_be_shared {
            self.write_down(current);
            for ticket in waiting {
                self.give(ticket, current, CacheStatus::Revalidated);
            }
            return;
        }
        // From now on the version is for one client: the first ticket.
        let mut waiting = waiting.into_iter();
        if let Some(first) = waiting.next() {
            self.count(key).passed += 1;
            self.give(first, current, CacheStatus::Bypass);
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
        self.count(key).failures += 1;
        if matches!(failure, Failure::TooManyFields(_)) {
            self.count(key).oversized_heads += 1;
        }
        if let Some(current) = current.filter(|_| failure.is_denial()) {
            self.doubt(current);
        }
        if failure.is_of_target() {
            self.keep_broken(key, failure);
        }
        let meanwhile = match self.stand_in(current) {
            Some(_) => "what is there of it is served, though it is stale",
            None => "clients get an error",
        };
        tracing::warn!(
            origin = %key.origin,
            target = key.target,
            "not fetched: {failure}; {meanwhile}"
        );
        self.make_do(key, waiting, current, failure);
        self.tidy(key);
    }

    /// The current version, if it may be served although the origin fails.
    fn stand_in(&self, current: Option<VersionId>) -> Option<VersionId> {
        let now_s = unix_time_s();
        current.filter(|&id| {
            let version = self.store.get(id);
            version.is_some_and(|version| version.meta.freshness.stands_in(now_s))
        })
    }

    /// Serves the current version to waiting tickets, if it may stand in for the failure; else
    /// refuses them.
    fn make_do(
        &mut self,
        key: &Key,
        waiting: Vec<u64>,
        current: Option<VersionId>,
        failure: &Failure,
    ) {
        let stand_in = self.stand_in(current);
        for ticket in waiting {
            match stand_in {
                Some(id) => {
                    self.count(key).stale += 1;
                    self.give(ticket, id, CacheStatus::Stale);
                }
                None => self.refuse(ticket, failure.refusal()),
            }
        }
    }

    fn keep_broken(&mut self, key: &Key, failure: &Failure) {
        let before = match self.entries.get(key).map(|entry| &entry.missing) {
            Some(Some(Missing::Broken(before))) => Some(before),
            _ => None,
        };
        let broken = Broken::next(before, failure, Instant::now());
        self.keep_missing(key, Missing::Broken(broken), None);
    }

    /// Remembers a refusal or failure. `names`: the fields of its `Vary`, if the origin responded.
    fn keep_missing(&mut self, key: &Key, missing: Missing, names: Option<Names>) {
        self.forget_missing(key);
        if self.remembered.is_full_for(key, &missing) {
            self.evict_missing();
        }
        self.remembered.add(key, &missing);
        let entry = self.entries.entry(key.clone()).or_default();
        entry.missing = Some(missing);
        self.keep_variant(key, names);
    }

    /// Forgets all refusals and failures: the origin may be asked again.
    fn evict_missing(&mut self) {
        for entry in self.entries.values_mut() {
            entry.missing = None;
        }
        let variants = &mut self.variants;
        self.entries.retain(|key, entry| {
            let is_used = entry.current.is_some() || entry.asking.is_some();
            if !is_used {
                variants.forget(key);
            }
            is_used
        });
        self.remembered.evict_all();
        if self.remembered_log.allows() {
            tracing::warn!(
                "too many targets are refused by origins to remember more: forgetting all; this \
                 warning repeats every 10 s at most"
            );
        }
    }

    /// Stores a version whose response has begun.
    fn on_version(&mut self, id: VersionId, asking: Asking, meta: Meta) {
        let Asking {
            key,
            waiting,
            is_solo,
            transfer,
            disk,
            ..
        } = asking;
        let names = meta.varies_by();
        let is_shared = meta.freshness.may_be_shared;
        let is_kept = is_shared && !is_solo;
        // A version that is not served in parts stays while it is read: all its content gets room
        // from the start.
        let promised = if meta.is_in_parts() {
            0
        } else {
            meta.size_bytes.unwrap_or(0)
        };
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
            let failure = Failure::TooLarge(why.to_owned());
            return self.on_no_answer(&key, waiting, None, &failure);
        }
        if !is_kept && waiting.is_empty() {
            // A revalidation without a ticket, whose response may serve only the client that asks.
            return self.tidy(&key);
        }
        self.make_room(VERSION_BYTES.saturating_add(promised));
        if promised > 0 && !self.store.fits(promised) {
            return self.refuse_for_room(&key, waiting, promised);
        }
        self.forget_missing(&key);
        let end = meta
            .size_bytes
            .map_or(u64::MAX, |bytes| self.store.segments_of(bytes));
        let mut transfer = transfer;
        transfer.segments = 0..end;
        let in_parts = meta.is_in_parts();
        self.store.insert(id, key.clone(), meta, disk);
        self.store.promise(id, promised);
        // No client has requested a segment of a version in parts yet.
        let is_held = in_parts && end > LAST_SEGMENTS;
        transfer
            .limit
            .send_replace(if is_held { 0 } else { u64::MAX });
        self.live.entry(id).or_default().transfers.push(transfer);
        if is_kept {
            self.entries.entry(key.clone()).or_default().current = Some(id);
            self.keep_variant(&key, Some(names));
            self.write_down(id);
            for ticket in waiting {
                let how = self
                    .tickets
                    .get(&ticket)
                    .map_or(CacheStatus::Miss, |it| it.how);
                self.give(ticket, id, how);
            }
            // Without a reader, the version came in advance, or all its clients are gone.
            return self.clean(id);
        }
        self.count(&key).passed += 1;
        if let Some(version) = self.store.get_mut(id) {
            version.is_passing = true;
        }
        self.write_down(id);
        let mut waiting = waiting.into_iter();
        if let Some(first) = waiting.next() {
            self.give(first, id, CacheStatus::Bypass);
        }
        for other in waiting {
            self.start(&key, None, vec![other], true);
        }
        // Its only client may be gone.
        self.clean(id);
    }

    /// Adds a variant of a target. If there are too many, evicts the least recently requested.
    fn keep_variant(&mut self, key: &Key, names: Option<Names>) {
        let evicted = match names {
            Some(names) => self.variants.keep(key, names),
            None => self.variants.keep_failed(key),
        };
        if evicted.is_empty() {
            return;
        }
        self.count(key).evicted_variants += evicted.len() as u64;
        if self.variants_log.allows() {
            tracing::warn!(
                origin = %key.origin,
                target = key.target,
                "more than {} variants (origin.variants_max): evicting the least recently used; \
                 this warning repeats every 10 s at most",
                self.variants.variants_max,
            );
        }
        for gone in evicted {
            self.forget_missing(&gone);
            if let Some(current) = self.entries.get(&gone).and_then(|entry| entry.current) {
                self.supersede(current);
            }
            self.tidy(&gone);
        }
    }

    /// Refuses a response that is not served in parts and exceeds the room that versions with
    /// readers or transfers leave.
    fn refuse_for_room(&mut self, key: &Key, waiting: Vec<u64>, bytes: u64) {
        self.count(key).no_room += 1;
        let failure = Failure::NoRoom(format!(
            "its answer of {bytes} bytes does not come in parts, and what others read or fetch \
             leaves no room for all of it"
        ));
        if self.no_room_log.allows() {
            tracing::warn!(
                origin = %key.origin,
                target = key.target,
                "not fetched: {failure}; clients get 503. Give the cache more than {} bytes \
                 (--origin-cache-bytes), or have the origin give parts. It is said again after 10 \
                 s at the earliest",
                self.store.bytes_max(),
            );
        }
        self.make_do(key, waiting, None, &failure);
        self.tidy(key);
    }

    /// Makes room for a write. Without a reply, the write is abandoned.
    fn on_room(&mut self, id: VersionId, bytes: u64, reply: oneshot::Sender<()>) {
        if !self.store.is_promised_whole(id) {
            if let Some(failure) = self.is_too_much(id, bytes) {
                self.break_off(id, &failure, true);
                return self.clean(id);
            }
            self.make_room(bytes);
            self.store.promise(id, bytes);
        }
        if self.store.get(id).is_some() {
            let _ = reply.send(());
        }
    }

    /// Most segments of read-ahead.
    fn window(&self) -> u64 {
        (self.store.bytes_max() / self.store.segment_bytes / 4).max(2)
    }

    fn forget_missing(&mut self, key: &Key) {
        let entry = self.entries.get_mut(key);
        if let Some(missing) = entry.and_then(|entry| entry.missing.take()) {
            self.remembered.remove(key, &missing);
        }
    }

    /// Makes a version stale that the origin denied: it is usable again after revalidation.
    fn doubt(&mut self, id: VersionId) {
        let Some(version) = self.store.get_mut(id) else {
            return;
        };
        if version.meta.validators.is_some() {
            version.meta.freshness.doubt();
            self.write_down(id);
        } else {
            self.supersede(id);
        }
    }

    /// Excludes a version from further requests, since it was replaced or has gone.
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
        self.clean(id);
        // It may have readers for long, and a fetcher that starts meanwhile must not take it for
        // the latest.
        self.write_down(id);
    }

    /// Writes a version's metadata, once its length is known.
    fn write_down(&mut self, id: VersionId) {
        let Some(record) = self.store.record(id) else {
            return;
        };
        let events = self.events.clone();
        // A version that is served already needs no room made: it only lacks the metadata after a
        // restart.
        let makes_room = self.store.get(id).is_some_and(|it| !it.is_settled);
        self.writes.spawn(async move {
            let result = if makes_room {
                transfer::written(move || record.write(), None, &events).await
            } else {
                transfer::written_if_there_is_room(move || record.write()).await
            };
            let _ = events.send(Event::Recorded { id, result }).await;
        });
        while self.writes.try_join_next().is_some() {}
    }

    fn on_recorded(&mut self, id: VersionId, result: io::Result<()>) {
        let directory = self.store.path(id);
        let Some(version) = self.store.get_mut(id) else {
            return;
        };
        let was_settled = std::mem::replace(&mut version.is_settled, true);
        match result {
            Ok(()) => self.tell_all(id),
            Err(error) if was_settled => {
                let what = directory.display();
                tracing::warn!("{what}: {error}; it will be lost with a restart");
            }
            // No client has received the version.
            Err(error) => {
                let failure = Failure::unwritten(&directory, &error);
                self.break_off(id, &failure, true);
                self.clean(id);
            }
        }
    }

    fn mark(&mut self, number: u64, how: CacheStatus) {
        if let Some(ticket) = self.tickets.get_mut(&number) {
            ticket.how = how;
        }
    }

    /// Assigns a version to a ticket.
    fn give(&mut self, number: u64, id: VersionId, how: CacheStatus) {
        self.mark(number, how);
        let (Some(ticket), Some(version)) = (self.tickets.get_mut(&number), self.store.get_mut(id))
        else {
            return;
        };
        ticket.version = Some(id);
        version.readers += 1;
        self.store.touch(id);
        let live = self.live.entry(id).or_default();
        live.readers.insert(number);
        live.unanswered.push(number);
        self.tell_all(id);
    }

    /// Answers all tickets of a version, once it is settled and its length is known.
    fn tell_all(&mut self, id: VersionId) {
        let version = self.store.get(id).filter(|version| version.is_settled);
        let (Some(size_bytes), Some(live)) = (
            version.and_then(|version| version.meta.size_bytes),
            self.live.get_mut(&id),
        ) else {
            return;
        };
        for ticket in std::mem::take(&mut live.unanswered) {
            self.tell(ticket, id, size_bytes);
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
            fields: meta.fields.clone(),
            trailers: meta.trailers.clone(),
            age_s: meta.freshness.age_s(unix_time_s()),
            present: version.runs(RUNS_MAX),
        };
        let how = self
            .tickets
            .get(&ticket)
            .map_or(CacheStatus::Miss, |it| it.how);
        let answer = Answer::Object {
            ticket,
            object,
            how,
        };
        self.answers.push_back(answer);
    }

    fn refuse(&mut self, ticket: u64, refusal: Refusal) {
        let how = self
            .tickets
            .remove(&ticket)
            .map_or(CacheStatus::Miss, |it| it.how);
        let answer = Answer::Refused {
            ticket,
            refusal,
            how,
        };
        self.answers.push_back(answer);
    }

    fn on_segment(&mut self, number: u64, segment: u64, end: u64) {
        let Some(id) = self.tickets.get(&number).and_then(|it| it.version) else {
            return;
        };
        let Some(version) = self.store.get(id) else {
            return self.lose(number, LOST_STATUS);
        };
        let size_bytes = version.meta.size_bytes.unwrap_or(0);
        let segments = self.store.segments_of(size_bytes);
        if segment >= segments {
            return self.lose(number, LOST_STATUS);
        }
        let is_there = version.has(segment);
        let ahead_max = self.window();
        if let Some(ticket) = self.tickets.get_mut(&number) {
            let reading = &mut ticket.reading;
            reading.go_on(segment, end.min(segments), ahead_max);
        }
        if is_there {
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
        // The ticket may have been lost by now.
        let reach = self.tickets.get(&number).map(|it| it.reading.reach);
        self.widen(id, segment, reach.unwrap_or(0));
    }

    /// The end of the read-ahead of all clients that wait for a segment, and the end of their
    /// ranges.
    fn reach(&self, id: VersionId, segment: u64) -> (u64, u64) {
        let readers = self.live.get(&id).map(|live| live.readers.iter());
        let tickets = readers.into_iter().flatten();
        let tickets = tickets.filter_map(|number| self.tickets.get(number));
        let waiting = tickets.filter(|ticket| ticket.wants.contains(&segment));
        waiting.fold((segment + 1, segment + 1), |(reach, end), ticket| {
            let Reading {
                reach: its_reach,
                end: its_end,
                ..
            } = ticket.reading;
            (reach.max(its_reach), end.max(its_end))
        })
    }

    /// Fetches a segment again that a client could not open, though it was reported as present.
    fn on_missing(&mut self, number: u64, segment: u64, end: u64) {
        let Some(id) = self.tickets.get(&number).and_then(|it| it.version) else {
            return;
        };
        let missing = self.store.forget_missing(id, segment);
        if let Some(version) = self.store.get(id).filter(|_| missing > 0) {
            let (key, comes_again) = (version.key.clone(), version.meta.can_come_again());
            let directory = self.store.path(id);
            tracing::warn!(
                origin = %key.origin,
                target = key.target,
                "{missing} segments from {segment} on are missing in {}, or are not as long as \
                 they were written",
                directory.display(),
            );
            self.count(&key).damaged_segments += missing;
            if !comes_again {
                let why = format!(
                    "a segment is missing in {}, and nothing at the origin tells \
                     that it still has the same version",
                    directory.display()
                );
                self.break_off(id, &Failure::Cache(why), true);
            } else if !self.store.disk(id).has_meta() {
                self.write_down(id);
            }
        }
        self.on_segment(number, segment, end);
    }

    /// Raises the limit of transfers that are not beyond this segment or `limit`.
    fn widen(&mut self, id: VersionId, segment: u64, limit: u64) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        for transfer in &live.transfers {
            if transfer.segments.start <= limit.max(segment.saturating_add(1)) {
                transfer.limit.send_if_modified(|known| {
                    let is_more = *known < limit;
                    *known = limit.max(*known);
                    is_more
                });
            }
        }
    }

    /// Ensures that a missing segment is fetched.
    fn fetch(&mut self, id: VersionId, segment: u64) {
        let Some(version) = self.store.get(id) else {
            return self.let_down(id);
        };
        let meta = version.meta.clone();
        let next_there = version.next_there(segment);
        let live = self.live.entry(id).or_default();
        let covers = |running: &Running| running.segments.contains(&segment);
        if live.transfers.iter().any(|it| it.is_near(segment)) {
            return;
        }
        let in_parts = meta.is_in_parts() && !live.is_lost;
        if in_parts {
            // A transfer from the start, not for this segment, occupies a connection to the origin.
            live.transfers.retain(|it| *it.limit.borrow() > 0);
        }
        if in_parts && live.transfers.len() >= PARTS_MAX {
            // A transfer without a waiting client may stand still for ever.
            let tickets = live.readers.iter().filter_map(|it| self.tickets.get(it));
            let wanted: Vec<_> = tickets.flat_map(|it| it.wants.iter().copied()).collect();
            let is_vain = |it: &Running| !wanted.iter().any(|wanted| it.segments.contains(wanted));
            if let Some(vain) = live.transfers.iter().position(is_vain) {
                live.transfers.remove(vain);
            }
        }
        if !in_parts {
            if live.is_lost {
                self.let_down(id);
            } else if live.transfers.is_empty() {
                self.fetch_whole(id);
            } else if !(live.transfers.iter().any(covers) || meta.can_come_again()) {
                self.let_down(id);
            }
            return;
        }
        if live.transfers.len() >= PARTS_MAX {
            // The end of a transfer starts the next attempt.
            return;
        }
        if live.is_pausing {
            return;
        }
        let size_bytes = meta.size_bytes.unwrap_or(0);
        let (reach, needed) = self.reach(id, segment);
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let ahead = live.transfers.iter().map(|it| it.segments.start);
        let ahead = ahead.filter(|&start| start > segment).min();
        let end = [next_there, ahead].into_iter().flatten().min();
        let end = end.unwrap_or(u64::MAX).min(needed);
        let end = end.min(self.store.segments_of(size_bytes));
        let what = What::Part {
            segments: segment..end,
            size_bytes,
            validators: meta.validators,
            takes_ranges: true,
        };
        self.begin(id, segment..end, reach, what);
    }

    /// Fetches a version that is not served in parts again as a whole, if its validator is strong.
    fn fetch_whole(&mut self, id: VersionId) {
        let meta = self.store.get(id).map(|version| version.meta.clone());
        let meta = meta.filter(Meta::can_come_again);
        let size_bytes = meta.as_ref().and_then(|meta| meta.size_bytes);
        let (Some(meta), Some(size_bytes)) = (meta, size_bytes) else {
            return self.let_down(id);
        };
        let missing_bytes = self.store.missing_bytes(id);
        self.make_room(missing_bytes);
        self.store.promise(id, missing_bytes);
        let segments = 0..self.store.segments_of(size_bytes);
        let what = What::Part {
            segments: segments.clone(),
            size_bytes,
            validators: meta.validators,
            takes_ranges: false,
        };
        self.begin(id, segments, u64::MAX, what);
    }

    fn begin(&mut self, id: VersionId, segments: Range<u64>, limit: u64, what: What) {
        let Some(key) = self.store.get(id).map(|version| version.key.clone()) else {
            return;
        };
        self.count(&key).requests += 1;
        let disk = self.store.disk(id);
        let transfer = self.transfer(id, &key, disk, segments, limit, what);
        self.live.entry(id).or_default().transfers.push(transfer);
    }

    /// Adds a segment: its length in bytes, and the number of its write.
    fn on_stored(&mut self, id: VersionId, number: u64, segment: u64, (bytes, write): (u64, u64)) {
        if let Some(key) = self.store.get(id).map(|version| version.key.clone()) {
            self.count(&key).fetched_bytes += bytes;
        }
        if !self.store.add(id, segment, bytes, write) {
            // The version was removed meanwhile, and this write came after.
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
            // Its next segments are present, or no client waits for them.
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

    /// The failure if a version without a length would grow beyond its share by this many bytes.
    fn is_too_much(&self, id: VersionId, bytes: u64) -> Option<Failure> {
        let version = self.store.get(id)?;
        if version.meta.size_bytes.is_some() {
            return None;
        }
        let versions = self.live.keys().filter_map(|&id| self.store.get(id));
        let others = versions.filter(|it| it.is_unsized);
        let others: u64 = others.map(|it| self.store.version_bytes_of(it)).sum();
        let bytes = bytes.saturating_add(others);
        let bytes_max = self.store.bytes_max() / UNSIZED_SHARE;
        (bytes > bytes_max).then(|| {
            Failure::TooLarge(format!(
                "answers without Content-Length take more than {bytes_max} bytes together, which \
                 is what they may take of the cache; give it more (--origin-cache-bytes), or have \
                 the origin say how long they are"
            ))
        })
    }

    /// Drops the state of an evicted version.
    fn on_gone(&mut self, id: VersionId, key: &Key) {
        self.live.remove(&id);
        if let Some(entry) = self.entries.get_mut(key)
            && entry.current == Some(id)
        {
            entry.current = None;
        }
        self.tidy(key);
    }

    fn on_full(&mut self, full: Full) {
        if self
            .no_help
            .is_some_and(|(until, _)| Instant::now() < until)
        {
            // Without a reply, the write is not repeated.
            return;
        }
        let Full { content_of, made } = full;
        let used = self.store.bytes_with_versions();
        let bytes = (used / ROOM_SHARE).max(8 * self.store.segment_bytes);
        if self.full_log.allows() {
            tracing::warn!(
                "the disk of the cache directory is full, before the cache is: {} of {} bytes are \
                 used; what no client reads makes room. Give it more, or the cache fewer \
                 (--origin-cache-bytes)",
                self.store.bytes(),
                self.store.bytes_max(),
            );
        }
        for (gone, key) in self.store.make_disk_room(bytes, content_of) {
            self.on_gone(gone, &key);
        }
        self.store.tell_when_removed(made);
    }

    /// Pauses eviction for the disk after a vain attempt, so that the cache does not shrink further
    /// and further while something else fills the disk.
    fn on_room_made(&mut self, has_helped: bool) {
        if has_helped {
            self.no_help = None;
            return;
        }
        let now = Instant::now();
        if self.no_help.is_some_and(|(until, _)| now < until) {
            return;
        }
        let pause = self.no_help.map_or(NO_HELP_PAUSE, |(_, pause)| {
            (2 * pause).min(NO_HELP_PAUSE_MAX)
        });
        self.no_help = Some((now + pause, pause));
        tracing::warn!(
            "room that the cache has made on its disk was of no help: something else fills it, or \
             what is being read does. The cache makes none for {pause:?}, and clients get 503 for \
             what does not fit. Give the disk more room"
        );
    }

    fn on_ended(&mut self, id: VersionId, number: u64, result: Result<(u64, Fields), Failure>) {
        if self.store.get(id).is_none() {
            // The version was removed meanwhile, and a write may have created its directory again.
            return self.store.remove(id);
        }
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.transfers.retain(|transfer| transfer.number != number);
        if self.store.is_promised_whole(id) {
            self.store.release(id, u64::MAX);
        }
        let Some(version) = self.store.get_mut(id) else {
            return;
        };
        match result {
            Ok((bytes, trailers)) => {
                if version.meta.size_bytes.is_none() {
                    version.meta.size_bytes = Some(bytes);
                    version.meta.trailers = trailers;
                    // The version is complete.
                    version.is_settled = true;
                    self.write_down(id);
                    self.tell_all(id);
                }
            }
            Err(Failure::Stopped) => {}
            Err(failure) => self.on_broken_off(id, &failure),
        }
        self.go_on(id);
        self.clean(id);
    }

    /// Handles the failure of a transfer; tries again if that may help.
    fn on_broken_off(&mut self, id: VersionId, failure: &Failure) {
        let in_parts = self.store.get(id).is_some_and(|it| it.meta.is_in_parts());
        let live = self.live.entry(id).or_default();
        live.failures += 1;
        let is_over = !failure.is_passing() || live.failures >= FAILURES_MAX;
        if !in_parts || is_over {
            // A version that breaks off repeatedly may never have been as announced.
            let is_lost =
                matches!(failure, Failure::OtherVersion(_) | Failure::Cut(_)) || !in_parts;
            return self.break_off(id, failure, is_lost);
        }
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
        self.tell_of_break(id, failure);
    }

    fn tell_of_break(&mut self, id: VersionId, failure: &Failure) {
        if let Some(key) = self.store.get(id).map(|version| version.key.clone()) {
            self.count(&key).failures += 1;
            tracing::warn!(
                origin = %key.origin,
                target = key.target,
                "broken off: {failure}"
            );
        }
    }

    /// Ends the fetching of a version. If it `is_lost`, its present segments serve no other client.
    fn break_off(&mut self, id: VersionId, failure: &Failure, is_lost: bool) {
        self.tell_of_break(id, failure);
        let key = self.store.get(id).map(|version| version.key.clone());
        if let Some(key) = key.filter(|_| failure.is_of_target() && is_lost) {
            self.keep_broken(&key, failure);
        }
        let live = self.live.entry(id).or_default();
        live.is_lost |= is_lost;
        live.lost_status = Some(failure.refusal().status);
        let is_lost = live.is_lost;
        for ticket in std::mem::take(&mut live.unanswered) {
            self.release(ticket);
            self.refuse(ticket, failure.refusal());
        }
        self.let_down(id);
        if is_lost {
            self.supersede(id);
        }
    }

    /// Starts transfers for the requested segments that no transfer brings.
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

    /// Ends all tickets of a version that wait for segments.
    fn let_down(&mut self, id: VersionId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let waits = |number: &&u64| {
            let ticket = self.tickets.get(number);
            ticket.is_some_and(|ticket| !ticket.wants.is_empty())
        };
        let waiting: Vec<u64> = live.readers.iter().filter(waits).copied().collect();
        let status = live.lost_status.unwrap_or(LOST_STATUS);
        for ticket in waiting {
            self.lose(ticket, status);
        }
    }

    fn lose(&mut self, ticket: u64, status: u16) {
        self.release(ticket);
        if let Some(lost) = self.tickets.remove(&ticket) {
            self.count(&lost.key).lost += 1;
        }
        self.answers.push_back(Answer::Lost { ticket, status });
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

    /// Cancels a request to the origin that no client waits for any more.
    fn give_up(&mut self, id: VersionId, key: &Key) {
        self.asking.remove(&id);
        if let Some(entry) = self.entries.get_mut(key)
            && entry.asking == Some(id)
        {
            entry.asking = None;
        }
        self.tidy(key);
    }

    /// Ends a ticket's reading of its version.
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
        // The caller removes the ticket, and cleans up by its other fields.
        if let Some(ticket) = self.tickets.get_mut(&number) {
            ticket.wants.clear();
        }
        self.clean(id);
    }

    /// Removes a version without readers and transfers that cannot be served again.
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
        let is_left = version.meta.is_in_parts() || self.store.is_whole(version);
        let key = version.key.clone();
        if version.is_passing || (!is_fetched && !is_left) {
            // Dropping the limits ends the transfers.
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
            entry.current.is_none() && entry.asking.is_none() && entry.missing.is_none()
        });
        if is_empty {
            self.entries.remove(key);
            self.variants.forget(key);
        }
    }
}

/// The tag of a version for clients.
fn tag(key: &Key, meta: &Meta, id: VersionId) -> u64 {
    // The keys are not secret: the same version has the same tag after a restart.
    let mut hasher = SipHasher13::new();
    // A different origin means a different version, even with the same tag.
    hasher.write(key.origin.as_bytes());
    hasher.write(key.target.as_bytes());
    // Some origins send one tag for all variants, though they should not.
    for (name, value) in key.variant.fields() {
        for text in [name, value] {
            hasher.write(text.as_bytes());
            hasher.write_u8(0);
        }
    }
    match meta.validators.strong() {
        Some(strong) => hasher.write(strong.as_bytes()),
        None => hasher.write(id.directory().as_bytes()),
    }
    hasher.write_u64(meta.size_bytes.unwrap_or(0));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::freshness::Freshness;
    use crate::store::Limits;

    #[test]
    fn as_much_is_fetched_ahead_as_was_read_without_a_gap() {
        let mut reading = Reading::default();
        let mut reach = |segment, end| {
            reading.go_on(segment, end, 16);
            reading.reach
        };
        assert_eq!([0, 1, 2, 3, 4].map(|it| reach(it, 100)), [3, 4, 6, 8, 10]);
        // It did not request the present segments.
        assert_eq!(reach(10, 100), 22);
        assert_eq!(reach(20, 100), 37, "never more than so much");
        assert_eq!(reach(70, 100), 73, "elsewhere");
        assert_eq!(reach(71, 72), 72, "nor more than it needs");
        assert_eq!(reach(5, 0), 6, "whatever it says");
    }

    #[test]
    fn what_a_smaller_size_has_removed_is_reported_without_any_request() {
        let root = tempfile::tempdir().unwrap();
        let mut fetcher = idle(root.path());
        fetcher.on_told(true);
        assert!(!fetcher.are_counters_new());
        fetcher.resize(1_000);
        assert!(fetcher.are_counters_new());
    }

    /// A fetcher with an empty directory and no origin.
    fn idle(root: &std::path::Path) -> Fetcher {
        let limits = Limits {
            bytes_max: 10_000,
            segment_bytes: 100,
            version_bytes: 0,
        };
        Store::prepare(root).unwrap();
        let store = Store::open(root, limits, &[], "this").unwrap();
        let (events, _) = mpsc::channel(1);
        Fetcher::new([], store, (16, FieldLimits::default()), events)
    }

    #[test]
    fn remembered_refusals_are_bounded_in_number_and_in_bytes() {
        const BOUND: usize = 16 << 20;
        for (location_bytes, fits) in [(0, 10_000), (20 << 10, BOUND / (21 << 10))] {
            let root = tempfile::tempdir().unwrap();
            let mut fetcher = idle(root.path());
            let (mut kept_bytes, mut kept_max) = (0, 0);
            for number in 0..12_000 {
                let key = Key {
                    origin: "http://origin.example".into(),
                    target: format!("/{number}"),
                    variant: Variant::default(),
                };
                let refusal = Refusal {
                    location: Some("x".repeat(location_bytes)),
                    ..Failure::Stopped.refusal()
                };
                let freshness = Freshness::of(StatusCode::NOT_FOUND, &HeaderMap::new(), 0, 0);
                let missing = Missing::Refused(refusal, freshness);
                // Twice: the second replaces the first.
                for missing in [
                    Missing::Broken(Broken::next(None, &Failure::LeftAlone, Instant::now())),
                    missing,
                ] {
                    fetcher.keep_missing(&key, missing, None);
                }
                let kept = fetcher.entries.len();
                kept_max = kept_max.max(kept);
                kept_bytes = kept_bytes.max(kept * location_bytes);
            }
            assert!(kept_bytes <= BOUND, "{kept_bytes}");
            let range = fits * 9 / 10..=fits;
            assert!(range.contains(&kept_max), "{kept_max} of {fits}");
            let counted = fetcher.counters().total.cache.evicted_refusals;
            assert_eq!(counted as usize + fetcher.entries.len(), 12_000);
        }
    }
}
