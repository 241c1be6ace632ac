//! S3-FIFO: which cached block is evicted first when memory is wanted (Yang et al., "FIFO queues
//! are all you need for cache eviction", SOSP 2023).
//!
//! ```text
//!  first use ──▶ small ──used by another──▶ main ⟲ used again since
//!                  │                          │
//!                  ▼ not used                 ▼ not used
//!                ghosts ──wanted again──▶ main    gone
//! ```
//!
//! Most blocks of a scan, and of any large catalogue, are used once. They pass through `small`, a
//! tenth of the cached blocks, and never get to `main`, so one pass over a huge file leaves popular
//! blocks alone. A block that has just left `small` is remembered as a ghost, by its key only;
//! wanted again, it goes to `main` at once. SIEVE (Zhang et al., NSDI 2024) needs one queue instead
//! of three, but is not scan-resistant, by its authors' account.
//!
//! Two things differ from the paper. Only evictable blocks are in a queue: a block in use or pinned
//! is in none, and comes back to the head of its queue; so `evict` never has to pass over blocks.
//! And the caller counts a use only if it is another flow's: one viewer needs a block several times
//! in a row, for a window that ends within it or for a retransmission, which does not make it
//! popular. Therefore a single further use is enough for `main`, where the paper asks for two.

use std::collections::{HashMap, VecDeque};

/// Names a block: its place in the table of blocks.
pub(crate) type Slot = u32;

/// End of a list.
const NONE: Slot = Slot::MAX;

/// Fraction of the cached blocks, as a divisor, from which on `small` is evicted first.
const SMALL_PART: usize = 10;

/// Most uses counted: how often a block of `main` is spared.
const USES_MAX: u8 = 3;

/// The queues, and the ghosts.
#[derive(Debug)]
pub(crate) struct S3Fifo {
    nodes: Vec<Node>,
    small: List,
    main: List,
    ghosts: Ghosts,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Key of the slot's content, for the ghosts.
    key: u64,
    /// The queue that it is in, or comes back to.
    home: Home,
    /// It is in that queue: it may be evicted.
    queued: bool,
    /// Uses by others since it came to its queue, or was spared.
    uses: u8,
    newer: Slot,
    older: Slot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Small,
    Main,
}

impl S3Fifo {
    /// Returns queues for `slots` empty slots.
    pub(crate) fn new(slots: usize) -> S3Fifo {
        let node = Node {
            key: 0,
            home: Home::Small,
            queued: false,
            uses: 0,
            newer: NONE,
            older: NONE,
        };
        S3Fifo {
            nodes: vec![node; slots],
            small: List::EMPTY,
            main: List::EMPTY,
            ghosts: Ghosts::new(slots),
        }
    }

    /// Returns the number of evictable slots.
    pub(crate) fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    /// Gives a slot content that a flow wants; the slot is not evictable yet.
    pub(crate) fn admit(&mut self, slot: Slot, key: u64) {
        let home = if self.ghosts.take(key) {
            Home::Main
        } else {
            Home::Small
        };
        self.hold(slot, key, home);
    }

    /// Gives a slot content that was read ahead.
    pub(crate) fn admit_unasked(&mut self, slot: Slot, key: u64) {
        self.hold(slot, key, Home::Small);
    }

    fn hold(&mut self, slot: Slot, key: u64, home: Home) {
        let node = &mut self.nodes[slot as usize];
        debug_assert!(
            !node.queued,
            "a slot that is cached holds something already"
        );
        node.key = key;
        node.home = home;
        node.uses = 0;
    }

    /// Counts a use of the slot's content by another flow than the last.
    pub(crate) fn on_use(&mut self, slot: Slot) {
        let uses = &mut self.nodes[slot as usize].uses;
        *uses = USES_MAX.min(*uses + 1);
    }

    /// Makes the slot evictable.
    pub(crate) fn push(&mut self, slot: Slot) {
        let home = self.nodes[slot as usize].home;
        self.link(slot, home);
    }

    /// Makes the slot unevictable.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let (nodes, list) = match self.nodes[slot as usize].home {
            Home::Small => (&mut self.nodes, &mut self.small),
            Home::Main => (&mut self.nodes, &mut self.main),
        };
        list.remove(nodes, slot);
    }

    /// Chooses a slot to evict, and removes it.
    pub(crate) fn evict(&mut self) -> Option<Slot> {
        // Each round but the last takes a use away from a slot, and each slot has at most USES_MAX
        // uses.
        loop {
            let small_is_full = self.small.len > self.len() / SMALL_PART;
            if small_is_full || self.main.len == 0 {
                let slot = self.small.oldest()?;
                self.small.remove(&mut self.nodes, slot);
                if self.nodes[slot as usize].uses == 0 {
                    self.ghosts.add(self.nodes[slot as usize].key);
                    return Some(slot);
                }
                self.nodes[slot as usize].uses = 0;
                self.link(slot, Home::Main);
            } else {
                let slot = self.main.oldest()?;
                self.main.remove(&mut self.nodes, slot);
                if self.nodes[slot as usize].uses == 0 {
                    return Some(slot);
                }
                self.nodes[slot as usize].uses -= 1;
                self.link(slot, Home::Main);
            }
        }
    }

    /// Evicts the oldest slot of `small` for content that is only likely to be needed. `None` if
    /// another flow has used the slot, or `may_go` refuses.
    pub(crate) fn evict_cold(&mut self, may_go: impl FnOnce(Slot) -> bool) -> Option<Slot> {
        let slot = self.small.oldest()?;
        let Node { key, uses, .. } = self.nodes[slot as usize];
        if uses > 0 || !may_go(slot) {
            return None;
        }
        self.small.remove(&mut self.nodes, slot);
        self.ghosts.add(key);
        Some(slot)
    }

    fn link(&mut self, slot: Slot, home: Home) {
        self.nodes[slot as usize].home = home;
        match home {
            Home::Small => self.small.push(&mut self.nodes, slot),
            Home::Main => self.main.push(&mut self.nodes, slot),
        }
    }
}

/// A queue; its links are in the nodes.
#[derive(Debug)]
struct List {
    newest: Slot,
    oldest: Slot,
    len: usize,
}

impl List {
    const EMPTY: List = List {
        newest: NONE,
        oldest: NONE,
        len: 0,
    };

    fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    fn push(&mut self, nodes: &mut [Node], slot: Slot) {
        let node = &mut nodes[slot as usize];
        debug_assert!(!node.queued, "in one queue at a time");
        node.queued = true;
        node.newer = NONE;
        node.older = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => nodes[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    fn remove(&mut self, nodes: &mut [Node], slot: Slot) {
        let node = &mut nodes[slot as usize];
        debug_assert!(node.queued, "it is in this queue");
        node.queued = false;
        let Node { newer, older, .. } = *node;
        match newer {
            NONE => self.newest = older,
            newer => nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => nodes[older as usize].newer = newer,
        }
        self.len -= 1;
    }
}

/// Keys of blocks that left `small` lately, at most as many as there are slots.
#[derive(Debug)]
struct Ghosts {
    /// Number of each ghost, in the order of addition.
    added: HashMap<u64, u64>,
    /// Ghosts in the order in which they were added. Ghosts that were taken, or added again, are
    /// passed over.
    order: VecDeque<(u64, u64)>,
    count: u64,
    max: usize,
}

impl Ghosts {
    fn new(max: usize) -> Ghosts {
        Ghosts {
            added: HashMap::with_capacity(max),
            order: VecDeque::with_capacity(max + 1),
            count: 0,
            max,
        }
    }

    fn add(&mut self, key: u64) {
        self.added.insert(key, self.count);
        self.order.push_back((key, self.count));
        self.count += 1;
        if self.order.len() > self.max
            && let Some((oldest, number)) = self.order.pop_front()
            && self.added.get(&oldest) == Some(&number)
        {
            self.added.remove(&oldest);
        }
    }

    /// Removes a ghost. True if it was there.
    fn take(&mut self, key: u64) -> bool {
        self.added.remove(&key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A cache of keys without pins.
    struct Cache {
        policy: S3Fifo,
        slots: HashMap<u64, Slot>,
        keys: Vec<Option<u64>>,
    }

    impl Cache {
        fn new(slots: usize) -> Cache {
            Cache {
                policy: S3Fifo::new(slots),
                slots: HashMap::new(),
                keys: vec![None; slots],
            }
        }

        /// Requests a key; true if it is cached.
        fn get(&mut self, key: u64) -> bool {
            if let Some(&slot) = self.slots.get(&key) {
                self.policy.on_use(slot);
                return true;
            }
            let free = self.keys.iter().position(Option::is_none);
            let slot = free.map_or_else(
                || self.policy.evict().expect("all may go"),
                |free| free as Slot,
            );
            if let Some(old) = self.keys[slot as usize].replace(key) {
                self.slots.remove(&old);
            }
            self.slots.insert(key, slot);
            self.policy.admit(slot, key);
            self.policy.push(slot);
            false
        }
    }

    #[test]
    fn one_pass_over_a_huge_file_leaves_the_hot_set_alone() {
        let mut cache = Cache::new(1000);
        let hot = 0..800;
        for _ in 0..3 {
            for key in hot.clone() {
                cache.get(key);
            }
        }
        for key in 10_000..200_000 {
            assert!(!cache.get(key));
        }
        let there = hot.filter(|key| cache.slots.contains_key(key)).count();
        assert_eq!(there, 800);
    }

    #[test]
    fn what_is_wanted_again_soon_after_it_went_is_kept_this_time() {
        let mut cache = Cache::new(100);
        for key in 0..200 {
            cache.get(key);
        }
        // Gone, and not long ago.
        assert!(!cache.get(50));
        for key in 1000..5000 {
            cache.get(key);
        }
        assert!(cache.get(50));
    }

    #[test]
    fn a_hot_set_that_is_not_wanted_any_more_makes_way_for_another() {
        let mut cache = Cache::new(100);
        for base in [0, 1000, 2000] {
            for round in 0..10 {
                for key in base..base + 80 {
                    let there = cache.get(key);
                    assert!(there || round < 6, "key {key} in round {round}");
                }
            }
        }
    }

    /// The same, with vectors: newest first.
    #[derive(Default)]
    struct Model {
        small: Vec<Slot>,
        main: Vec<Slot>,
        ghosts: Vec<u64>,
        held: HashMap<Slot, (u64, bool, u8)>,
    }

    impl Model {
        fn evict(&mut self) -> Option<Slot> {
            loop {
                let part = (self.small.len() + self.main.len()) / SMALL_PART;
                if self.small.len() > part || self.main.is_empty() {
                    let slot = self.small.pop()?;
                    let (key, in_main, uses) = self.held.get_mut(&slot)?;
                    if *uses == 0 {
                        self.ghosts.retain(|ghost| ghost != key);
                        self.ghosts.push(*key);
                        return Some(slot);
                    }
                    (*in_main, *uses) = (true, 0);
                    self.main.insert(0, slot);
                } else {
                    let slot = self.main.pop()?;
                    let (_, _, uses) = self.held.get_mut(&slot)?;
                    if *uses == 0 {
                        return Some(slot);
                    }
                    *uses -= 1;
                    self.main.insert(0, slot);
                }
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A free slot begins to hold a key; asked for or not.
        Admit(u64, bool),
        Use(prop::sample::Index),
        /// May go, or may not any more.
        Turn(prop::sample::Index),
        Evict,
        EvictCold,
    }

    fn step() -> impl Strategy<Value = Step> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            3 => (0..40u64, prop::bool::weighted(0.8))
                .prop_map(|(key, asked)| Step::Admit(key, asked)),
            3 => index().prop_map(Step::Use),
            3 => index().prop_map(Step::Turn),
            2 => Just(Step::Evict),
            1 => Just(Step::EvictCold),
        ]
    }

    proptest! {
        #![proptest_config(
            ProptestConfig {
                failure_persistence: None,
                ..ProptestConfig::default()
            }
        )]

        /// Pins come and go as they like: the same slots go in the same order as in the model.
        #[test]
        fn it_does_as_the_model_does(steps in prop::collection::vec(step(), 0..300)) {
            // Enough slots that no ghost is forgotten for its age, which is tested above.
            const SLOTS: u32 = 300;
            let mut policy = S3Fifo::new(SLOTS as usize);
            let mut model = Model::default();
            let mut used: Vec<Slot> = Vec::new();
            for step in steps {
                match step {
                    Step::Admit(key, asked) => {
                        let free = (0..SLOTS).find(|slot| !model.held.contains_key(slot));
                        let Some(slot) = free else {
                            continue;
                        };
                        let mut in_main = false;
                        if asked {
                            policy.admit(slot, key);
                            in_main = model.ghosts.contains(&key);
                            model.ghosts.retain(|ghost| *ghost != key);
                        } else {
                            policy.admit_unasked(slot, key);
                        }
                        model.held.insert(slot, (key, in_main, 0));
                        used.push(slot);
                    }
                    Step::Use(index) if !used.is_empty() => {
                        let slot = used[index.index(used.len())];
                        policy.on_use(slot);
                        let uses = &mut model.held.get_mut(&slot).unwrap().2;
                        *uses = USES_MAX.min(*uses + 1);
                    }
                    Step::Turn(index) if !used.is_empty() => {
                        let slot = used[index.index(used.len())];
                        let (_, in_main, _) = model.held[&slot];
                        let queue = if in_main { &mut model.main } else { &mut model.small };
                        match queue.iter().position(|other| *other == slot) {
                            Some(place) => {
                                queue.remove(place);
                                policy.remove(slot);
                            }
                            None => {
                                queue.insert(0, slot);
                                policy.push(slot);
                            }
                        }
                    }
                    Step::Evict | Step::EvictCold => {
                        let cold = model.small.last().copied();
                        let cold = cold.filter(|slot| model.held[slot].2 == 0);
                        let gone = match step {
                            Step::Evict => {
                                let gone = model.evict();
                                prop_assert_eq!(policy.evict(), gone);
                                gone
                            }
                            _ => {
                                prop_assert_eq!(policy.evict_cold(|_| false), None);
                                prop_assert_eq!(policy.evict_cold(|_| true), cold);
                                if let Some(slot) = cold {
                                    model.small.pop();
                                    let key = model.held[&slot].0;
                                    model.ghosts.retain(|ghost| *ghost != key);
                                    model.ghosts.push(key);
                                }
                                cold
                            }
                        };
                        if let Some(gone) = gone {
                            model.held.remove(&gone);
                            used.retain(|slot| *slot != gone);
                        }
                    }
                    Step::Use(_) | Step::Turn(_) => {}
                }
                prop_assert_eq!(policy.len(), model.small.len() + model.main.len());
            }
        }
    }
}
