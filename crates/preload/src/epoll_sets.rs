//! Epoll sets of the kernel, until they hold split sockets: their numbers, and the threads that
//! wait in them.
//!
//! A set may have several descriptors: when its first split socket is added, all must be known
//! ([`known`]), and so must the sets that hold it ([`outer`]), since these then wait for split
//! sockets as well. A thread that waits in the kernel's call then is woken, and continues in
//! `libsplitway`, which counts its sleepers: only counted sleepers are woken for events of split
//! sockets. Each waiting thread publishes its set in a place of its own, which no other thread
//! writes.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use capi::client::{Instant, Numbers, members_in_kernel, process_generation};

use crate::pending::Interest;

static KNOWN: Numbers = Numbers::new();

/// Those of sets that may hold others.
static OUTER: Numbers = Numbers::new();

/// Set once any set was known.
static IS_ANY_KNOWN: AtomicBool = AtomicBool::new(false);

/// Set once any set may have held another.
static IS_ANY_OUTER: AtomicBool = AtomicBool::new(false);

/// Adds the number of a new set, or of a duplicate.
pub(crate) fn insert(fd: RawFd) {
    OUTER.remove(fd);
    KNOWN.insert(fd);
    IS_ANY_KNOWN.store(true, Ordering::Release);
}

/// Removes a closed number.
pub(crate) fn remove(fd: RawFd) {
    if KNOWN.has(fd) {
        KNOWN.remove(fd);
        OUTER.remove(fd);
    }
}

/// Notes that `new` is a duplicate of `old`.
pub(crate) fn note_duplicate(old: RawFd, new: RawFd) {
    remove(new);
    if KNOWN.has(old) {
        KNOWN.insert(new);
    }
    if OUTER.has(old) {
        OUTER.insert(new);
    }
}

/// Notes that a descriptor is about to be added to a set. Returns whether it may be a set itself.
pub(crate) fn note_member(set: RawFd, fd: RawFd) -> bool {
    let is_set = KNOWN.has(fd);
    if is_set {
        OUTER.insert(set);
        IS_ANY_OUTER.store(true, Ordering::Release);
    }
    is_set
}

/// Returns the numbers of sets that may hold others.
pub(crate) fn outer() -> Vec<RawFd> {
    if IS_ANY_OUTER.load(Ordering::Acquire) {
        OUTER.all()
    } else {
        Vec::new()
    }
}

/// Returns the numbers that may be those of sets.
pub(crate) fn known() -> Vec<RawFd> {
    KNOWN.all()
}

/// Returns the entries that a descriptor has in sets of the kernel.
pub(crate) fn entries_of(fd: RawFd) -> Vec<Interest> {
    let sets = known().into_iter();
    let entries = sets.flat_map(|epoll| {
        let members = members_in_kernel(epoll).into_iter();
        let of_it = members.filter(|(member, _)| *member == fd);
        of_it.map(move |(_, event)| Interest { epoll, event })
    });
    entries.collect()
}

/// Reports whether the program has ever made a set.
pub(crate) fn is_any_known() -> bool {
    IS_ANY_KNOWN.load(Ordering::Acquire)
}

/// Reports whether a number may be that of a set.
pub(crate) fn is_known(fd: RawFd) -> bool {
    KNOWN.has(fd)
}

/// Largest number of counted threads; others are woken by chance only.
const PLACES: usize = 1024;

/// Largest number of sets that a thread in poll(2) or select(2) waits for and is woken for.
const SETS_MAX: usize = 32;

/// Time limit for waking threads: one may have left its call by `longjmp`.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most wakes between two looks for threads that wait.
const WAKES_MAX: u32 = 64;

/// Process, plus 1, in which a thread wakes others; 0 if none does.
static WAKES_IN: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
#[repr(align(64))]
struct Place {
    is_taken: AtomicBool,
    /// In the high half of each the process, since a child inherits the places of its parent's
    /// threads; in the low half the number of a set plus 1. The first 0 ends them.
    waits_in: [AtomicU64; SETS_MAX],
}

static TABLE: [Place; PLACES] = [const {
    Place {
        is_taken: AtomicBool::new(false),
        waits_in: [const { AtomicU64::new(0) }; SETS_MAX],
    }
}; PLACES];

impl Place {
    fn set(&self, words: impl Iterator<Item = u64>) {
        for (place, word) in self.waits_in.iter().zip(words.chain([0])) {
            place.store(word, Ordering::Release);
        }
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.waits_in.iter();
        let words = words.map(|word| word.load(Ordering::Acquire));
        words.take_while(|word| *word != 0)
    }
}

/// Place of a thread, for the thread's lifetime.
#[derive(Debug)]
struct Claim(Option<&'static Place>);

impl Claim {
    fn new() -> Claim {
        let place = TABLE.iter().find(|place| {
            let (taken, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let place = &place.is_taken;
            place.compare_exchange(false, true, taken, failed).is_ok()
        });
        Claim(place)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.set(std::iter::empty());
            place.is_taken.store(false, Ordering::Release);
        }
    }
}

thread_local! {
    static CLAIM: Claim = Claim::new();
}

fn note(words: impl Iterator<Item = u64>) {
    let _ = CLAIM.try_with(|claim| {
        if let Some(place) = claim.0 {
            place.set(words);
        }
    });
    // Changes that others make before they read the place are visible after this fence.
    fence(Ordering::SeqCst);
}

/// Notes that this thread is about to wait in a set; the caller must check after it that the set
/// holds no split sockets.
pub(crate) fn begin_wait(set: RawFd) {
    begin_waits([set].into_iter());
}

/// Like [`begin_wait`], for a thread that waits for several sets: for the first [`SETS_MAX`].
pub(crate) fn begin_waits(sets: impl Iterator<Item = RawFd>) {
    let process = u64::from(process_generation()) << 32;
    note(sets.map(|set| process | (u64::from(set.unsigned_abs()) + 1)));
}

/// Notes that this thread has stopped waiting.
pub(crate) fn end_wait() {
    note(std::iter::empty());
}

/// Waits until no thread wakes others. The kernel wakes the thread that was the last to sleep in a
/// set: a woken thread that slept there again would be woken in place of the others.
pub(crate) fn await_wakers() {
    let own = u64::from(process_generation()) + 1;
    let until = Instant::now() + PATIENCE;
    while WAKES_IN.load(Ordering::Acquire) == own && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Makes all threads that wait in the concerned sets return; each call of `wake` wakes one.
pub(crate) fn wake_those_in(is_concerned: impl Fn(RawFd) -> bool, wake: impl Fn()) {
    fence(Ordering::SeqCst);
    let process = u64::from(process_generation());
    let is_in = |word: u64| {
        let set = (word as u32).checked_sub(1);
        let set = set.filter(|_| word >> 32 == process);
        set.is_some_and(|set| RawFd::try_from(set).is_ok_and(&is_concerned))
    };
    let is_waiting = |place: &Place| place.words().any(is_in);
    if !TABLE.iter().any(is_waiting) {
        return;
    }
    WAKES_IN.store(process + 1, Ordering::Release);
    let until = Instant::now() + PATIENCE;
    let mut wakes = 1;
    while TABLE.iter().any(is_waiting) && Instant::now() < until {
        // In a row, since threads that begin to wait now are woken before those that have waited.
        (0..wakes).for_each(|_| wake());
        wakes = WAKES_MAX.min(wakes * 2);
        std::thread::yield_now();
    }
    WAKES_IN.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn those_who_wait_are_woken_until_none_does() {
        let (set, other) = (70_001, 70_002);
        let wakes = AtomicUsize::new(0);
        let wake = || {
            wakes.fetch_add(1, Ordering::SeqCst);
        };
        wake_those_in(|fd| fd == set, wake);
        assert_eq!(wakes.load(Ordering::SeqCst), 0);
        std::thread::scope(|scope| {
            for count in 1..=3 {
                let (begun, has_begun) = std::sync::mpsc::channel();
                let wakes = &wakes;
                scope.spawn(move || {
                    begin_wait(set);
                    begun.send(()).unwrap();
                    while wakes.load(Ordering::SeqCst) < count {
                        std::thread::yield_now();
                    }
                    end_wait();
                });
                has_begun.recv().unwrap();
            }
            begin_wait(other);
            wake_those_in(|fd| fd == set, wake);
            end_wait();
        });
        assert!(wakes.load(Ordering::SeqCst) >= 3);
    }

    #[test]
    fn who_polls_several_sets_is_woken_for_each() {
        for concerned in [90_001, 90_004, 90_009] {
            let (begun, has_begun) = std::sync::mpsc::channel();
            let is_woken = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    begin_waits(90_001..=90_009);
                    begun.send(()).unwrap();
                    while !is_woken.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    end_wait();
                });
                has_begun.recv().unwrap();
                let wake = || is_woken.store(true, Ordering::SeqCst);
                wake_those_in(|fd| fd == concerned, wake);
            });
            assert!(is_woken.load(Ordering::SeqCst), "{concerned}");
        }
    }

    #[test]
    fn duplicates_of_sets_are_known() {
        let [set, duplicate, other] = [80_001, 80_002, 80_003];
        insert(set);
        note_duplicate(set, duplicate);
        note_duplicate(other, set);
        assert!(known().contains(&duplicate) && !known().contains(&set));
        remove(duplicate);
        assert!(!known().contains(&duplicate));
    }

    #[test]
    fn sets_that_hold_sets_are_known() {
        let [set, outer_set, duplicate, socket] = [80_101, 80_102, 80_103, 80_104];
        insert(set);
        insert(outer_set);
        assert!(!note_member(outer_set, socket) && !outer().contains(&outer_set));
        assert!(note_member(outer_set, set) && outer().contains(&outer_set));
        note_duplicate(outer_set, duplicate);
        remove(outer_set);
        insert(outer_set);
        assert!(outer().contains(&duplicate) && !outer().contains(&outer_set));
        note_duplicate(set, duplicate);
        assert!(!outer().contains(&duplicate));
    }
}
