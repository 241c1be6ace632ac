//! A hierarchical timing wheel (Varghese and Lauck, 1987) with one timer per key.
//!
//! A key is a place in the table of connections. Arming a timer, moving it and cancelling it are
//! O(1): the timers of a slot are a doubly linked list. The memory of the wheel follows the number
//! of places, not the number of times that a timer was armed. A timer whose deadline moves away may
//! stay where it is: it fires at the old time, and its owner arms it for the new one. A connection
//! whose deadline moves with every ACK therefore touches the wheel about once per deadline.

/// Length of a tick, in microseconds. A timer fires at most one tick late, and never early.
pub(crate) const TICK_US: u64 = 1024;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 5;

const _: () = assert!(
    TICK_US << (SLOT_BITS * LEVELS as u32) > 7 * 24 * 3600 * 1_000_000,
    "the wheel reaches further than any timer of TCP or of a server"
);

/// Ends a list of timers.
const NONE: u32 = u32::MAX;

/// A timer that is not armed.
const UNARMED: u16 = u16::MAX;

const _: () = assert!(LEVELS * SLOTS < UNARMED as usize, "every slot has a number");

#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline_tick: u64,
    next: u32,
    previous: u32,
    /// The slot whose list it is in, or [`UNARMED`].
    slot: u16,
}

const IDLE: Timer = Timer {
    deadline_tick: 0,
    next: NONE,
    previous: NONE,
    slot: UNARMED,
};

/// The wheel. Times are microseconds of a monotonic clock.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    /// Everything due at or before this tick has fired.
    now_tick: u64,
    /// By key.
    timers: Vec<Timer>,
    /// First timer of `level * SLOTS + slot`. A timer of level `l` is due within `SLOTS^(l+1)`
    /// ticks.
    slots: [u32; LEVELS * SLOTS],
    /// A bit per slot that is not empty.
    occupied: [u64; LEVELS],
    armed: usize,
}

impl TimerWheel {
    /// An empty wheel that starts at `now_us`.
    pub(crate) fn new(now_us: u64) -> TimerWheel {
        TimerWheel {
            now_tick: now_us / TICK_US,
            timers: Vec::new(),
            slots: [NONE; LEVELS * SLOTS],
            occupied: [0; LEVELS],
            armed: 0,
        }
    }

    /// Timers that are armed.
    pub(crate) fn len(&self) -> usize {
        self.armed
    }

    /// Arms the timer of `key` for `deadline_us`, wherever it was armed for before.
    pub(crate) fn arm(&mut self, key: usize, deadline_us: u64) {
        if key >= self.timers.len() {
            self.timers.resize(key + 1, IDLE);
        }
        self.cancel(key);
        let deadline_tick = deadline_us.div_ceil(TICK_US).max(self.now_tick + 1);
        self.link(key as u32, deadline_tick);
        self.armed += 1;
    }

    /// Disarms the timer of `key`, if it is armed.
    pub(crate) fn cancel(&mut self, key: usize) {
        let Some(timer) = self.timers.get_mut(key) else {
            return;
        };
        let Timer {
            next,
            previous,
            slot,
            ..
        } = std::mem::replace(timer, IDLE);
        if slot == UNARMED {
            return;
        }
        self.armed -= 1;
        if next != NONE {
            self.timers[next as usize].previous = previous;
        }
        if previous != NONE {
            self.timers[previous as usize].next = next;
            return;
        }
        let slot = usize::from(slot);
        self.slots[slot] = next;
        if next == NONE {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    /// Gives back the memory of keys above all that are armed.
    pub(crate) fn shrink(&mut self) {
        let is_armed = |timer: &Timer| timer.slot != UNARMED;
        let keys = self
            .timers
            .iter()
            .rposition(is_armed)
            .map_or(0, |last| last + 1);
        self.timers.truncate(keys);
        self.timers.shrink_to_fit();
    }

    fn link(&mut self, key: u32, deadline_tick: u64) {
        // The level is where the deadline first differs from now: all higher digits are the same,
        // so the slot is reached without the level above turning.
        let differing = (deadline_tick ^ self.now_tick) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        let (level, place_tick) = if level < LEVELS {
            (level, deadline_tick)
        } else {
            // The top level wraps around; what lies beyond it is parked in its farthest slot, and
            // looked at again when that opens.
            let top = SLOT_BITS * (LEVELS as u32 - 1);
            let farthest = self.now_tick + ((SLOTS as u64 - 1) << top);
            (LEVELS - 1, deadline_tick.min(farthest))
        };
        let slot = (place_tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let at = level * SLOTS + slot;
        let next = std::mem::replace(&mut self.slots[at], key);
        if next != NONE {
            self.timers[next as usize].previous = key;
        }
        self.occupied[level] |= 1 << slot;
        self.timers[key as usize] = Timer {
            deadline_tick,
            next,
            previous: NONE,
            slot: at as u16,
        };
    }

    /// Moves time on and pushes the keys whose timers are due onto `due`. They are armed no longer.
    pub(crate) fn advance(&mut self, now_us: u64, due: &mut Vec<usize>) {
        let target = now_us / TICK_US;
        while self.now_tick < target {
            // Ticks in which nothing can happen are skipped.
            let Some(next) = self.next_tick() else {
                self.now_tick = target;
                return;
            };
            if next > target {
                self.now_tick = target;
                return;
            }
            self.now_tick = next;
            for level in (0..LEVELS).rev() {
                let shift = SLOT_BITS * level as u32;
                if level > 0 && self.now_tick & ((1 << shift) - 1) != 0 {
                    continue;
                }
                let slot = (self.now_tick >> shift) as usize % SLOTS;
                if self.occupied[level] & (1 << slot) == 0 {
                    continue;
                }
                self.occupied[level] &= !(1 << slot);
                let mut key = std::mem::replace(&mut self.slots[level * SLOTS + slot], NONE);
                while key != NONE {
                    let timer = self.timers[key as usize];
                    if timer.deadline_tick <= self.now_tick {
                        self.timers[key as usize] = IDLE;
                        self.armed -= 1;
                        due.push(key as usize);
                    } else {
                        self.link(key, timer.deadline_tick);
                    }
                    key = timer.next;
                }
            }
        }
    }

    /// When [`TimerWheel::advance`] should next be called, in microseconds: no timer fires before.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.next_tick().map(|tick| tick * TICK_US)
    }

    /// First tick after now at which a timer fires or a slot of a higher level has to be opened.
    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS)
            .filter_map(|level| {
                let shift = SLOT_BITS * level as u32;
                let digit = self.now_tick >> shift;
                let first = (digit + 1) % SLOTS as u64;
                let ahead = self.occupied[level].rotate_right(first as u32);
                (ahead != 0).then(|| (digit + 1 + u64::from(ahead.trailing_zeros())) << shift)
            })
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_timer_fires_once_and_not_before_its_deadline() {
        let mut wheel = TimerWheel::new(5_000_000);
        let mut due = Vec::new();
        wheel.arm(7, 5_200_000);
        wheel.advance(5_199_999, &mut due);
        assert!(due.is_empty());
        wheel.advance(5_200_000 + TICK_US, &mut due);
        assert_eq!(due, [7]);
        wheel.advance(50_000_000, &mut due);
        assert_eq!(due, [7]);
        assert_eq!(wheel.next_us(), None);
    }

    #[test]
    fn a_deadline_in_the_past_fires_with_the_next_tick() {
        let mut wheel = TimerWheel::new(1_000_000);
        let mut due = Vec::new();
        wheel.arm(1, 10);
        wheel.advance(1_000_000 + TICK_US, &mut due);
        assert_eq!(due, [1]);
    }

    #[test]
    fn a_deadline_beyond_the_horizon_is_kept() {
        let mut wheel = TimerWheel::new(0);
        let mut due = Vec::new();
        let year_us = 365 * 24 * 3600 * 1_000_000;
        wheel.arm(1, year_us);
        let mut now_us = 0;
        while let Some(next_us) = wheel.next_us() {
            assert!(due.is_empty());
            now_us = next_us;
            wheel.advance(now_us, &mut due);
        }
        assert_eq!(due, [1]);
        assert!((year_us..=year_us + TICK_US).contains(&now_us), "{now_us}");
    }

    #[test]
    fn a_timer_that_is_armed_again_takes_one_place() {
        let mut wheel = TimerWheel::new(0);
        for round in 0..100_000u64 {
            wheel.arm(3, 7_200_000_000 + round);
            wheel.arm(3, 200_000 + round);
        }
        assert_eq!((wheel.len(), wheel.timers.len()), (1, 4));
        wheel.cancel(3);
        wheel.cancel(3);
        wheel.cancel(1_000);
        assert_eq!((wheel.len(), wheel.next_us()), (0, None));
        wheel.shrink();
        assert_eq!(wheel.timers.capacity(), 0);
    }

    proptest! {
        /// Each step arms a timer, or cancels one, and then time goes on.
        #[test]
        fn timers_fire_as_a_map_of_deadlines_would_have_them(
            start_us in 0u64..1 << 40,
            steps in proptest::collection::vec(
                (0usize..40, proptest::option::weighted(0.8, 0u64..1 << 34), 0u64..1 << 32),
                1..120,
            ),
        ) {
            let mut wheel = TimerWheel::new(start_us);
            let mut pending = std::collections::BTreeMap::new();
            let mut now_us = start_us;
            let last = (0, None, 1 << 35);
            for &(key, delay_us, pause_us) in steps.iter().chain([&last]) {
                match delay_us {
                    Some(delay_us) => {
                        wheel.arm(key, now_us + delay_us);
                        pending.insert(key, now_us + delay_us);
                    }
                    None => {
                        wheel.cancel(key);
                        pending.remove(&key);
                    }
                }
                prop_assert_eq!(wheel.len(), pending.len());
                now_us += pause_us;
                let mut due = Vec::new();
                wheel.advance(now_us, &mut due);
                for key in due {
                    let deadline_us = pending.remove(&key);
                    prop_assert!(deadline_us.is_some(), "{} fired, and was not armed", key);
                    prop_assert!(deadline_us <= Some(now_us), "{} fired early", key);
                }
                let late = pending.iter().find(|&(_, &at_us)| at_us + 2 * TICK_US <= now_us);
                prop_assert!(late.is_none(), "{:?} did not fire by {}", late, now_us);
                if let Some(next_us) = wheel.next_us() {
                    prop_assert!(next_us > now_us / TICK_US * TICK_US);
                }
            }
            prop_assert!(pending.is_empty());
            prop_assert_eq!(wheel.next_us(), None);
        }
    }
}
