//! A hierarchical timing wheel (Varghese and Lauck, 1987).
//!
//! Scheduling is O(1) and never cancelled: the owner of a timer that has moved simply ignores the
//! token when it fires early and schedules it anew. A connection whose deadline moves with every ACK
//! therefore touches the wheel about once per deadline, not once per ACK.

/// Length of a tick, in microseconds. A timer fires at most one tick late, and never early.
pub(crate) const TICK_US: u64 = 1024;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 5;

const _: () = assert!(
    TICK_US << (SLOT_BITS * LEVELS as u32) > 7 * 24 * 3600 * 1_000_000,
    "the wheel reaches further than any timer of TCP or of a server"
);

/// What fires: whatever the owner wants to be called with.
pub(crate) type Token = u64;

#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline_tick: u64,
    token: Token,
}

/// The wheel. Times are microseconds of a monotonic clock.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    /// Everything due at or before this tick has fired.
    now_tick: u64,
    /// `slots[level * SLOTS + slot]`. A timer of level `l` is due within `SLOTS^(l+1)` ticks.
    slots: Vec<Vec<Timer>>,
    /// A bit per slot that is not empty.
    occupied: [u64; LEVELS],
    /// Kept for its allocation.
    cascade: Vec<Timer>,
}

impl TimerWheel {
    /// An empty wheel that starts at `now_us`.
    pub(crate) fn new(now_us: u64) -> TimerWheel {
        TimerWheel {
            now_tick: now_us / TICK_US,
            slots: (0..LEVELS * SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; LEVELS],
            cascade: Vec::new(),
        }
    }

    /// Calls with `token` once `deadline_us` has passed.
    pub(crate) fn schedule(&mut self, deadline_us: u64, token: Token) {
        let deadline_tick = deadline_us.div_ceil(TICK_US).max(self.now_tick + 1);
        self.insert(Timer {
            deadline_tick,
            token,
        });
    }

    fn insert(&mut self, timer: Timer) {
        // The level is where the deadline first differs from now: all higher digits are the same, so the
        // slot is reached without the level above turning.
        let differing = (timer.deadline_tick ^ self.now_tick) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        let (level, deadline_tick) = if level < LEVELS {
            (level, timer.deadline_tick)
        } else {
            // The top level wraps around; what lies beyond it is parked in its farthest slot, and
            // looked at again when that opens.
            let top = SLOT_BITS * (LEVELS as u32 - 1);
            let farthest = self.now_tick + ((SLOTS as u64 - 1) << top);
            (LEVELS - 1, timer.deadline_tick.min(farthest))
        };
        let slot = (deadline_tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        self.slots[level * SLOTS + slot].push(timer);
        self.occupied[level] |= 1 << slot;
    }

    /// Moves time on and pushes the tokens that are due onto `due`.
    pub(crate) fn advance(&mut self, now_us: u64, due: &mut Vec<Token>) {
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
                let mut timers = std::mem::take(&mut self.cascade);
                std::mem::swap(&mut timers, &mut self.slots[level * SLOTS + slot]);
                for timer in timers.drain(..) {
                    if timer.deadline_tick <= self.now_tick {
                        due.push(timer.token);
                    } else {
                        self.insert(timer);
                    }
                }
                self.cascade = timers;
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
        wheel.schedule(5_200_000, 7);
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
        wheel.schedule(10, 1);
        wheel.advance(1_000_000 + TICK_US, &mut due);
        assert_eq!(due, [1]);
    }

    #[test]
    fn a_deadline_beyond_the_horizon_is_kept() {
        let mut wheel = TimerWheel::new(0);
        let mut due = Vec::new();
        let year_us = 365 * 24 * 3600 * 1_000_000;
        wheel.schedule(year_us, 1);
        let mut now_us = 0;
        while let Some(next_us) = wheel.next_us() {
            assert!(due.is_empty());
            now_us = next_us;
            wheel.advance(now_us, &mut due);
        }
        assert_eq!(due, [1]);
        assert!((year_us..=year_us + TICK_US).contains(&now_us), "{now_us}");
    }

    proptest! {
        #[test]
        fn timers_fire_as_a_sorted_list_would_have_them(
            start_us in 0u64..1 << 40,
            delays in proptest::collection::vec(0u64..1 << 34, 1..80),
            steps in proptest::collection::vec(1u64..1 << 32, 1..80),
        ) {
            let mut wheel = TimerWheel::new(start_us);
            let mut pending: Vec<(u64, Token)> = Vec::new();
            for (token, delay) in delays.iter().enumerate() {
                wheel.schedule(start_us + delay, token as Token);
                pending.push((start_us + delay, token as Token));
            }
            let mut now_us = start_us;
            for step in steps.iter().chain([&(1 << 35)]) {
                now_us += step;
                let mut due = Vec::new();
                wheel.advance(now_us, &mut due);
                for token in due {
                    let at = pending.iter().position(|&(_, t)| t == token);
                    prop_assert!(at.is_some(), "token {} fired twice", token);
                    let (deadline_us, _) = pending.swap_remove(at.unwrap());
                    prop_assert!(deadline_us <= now_us, "token {} fired early", token);
                }
                let late = pending.iter().find(|&&(deadline_us, _)| deadline_us + 2 * TICK_US <= now_us);
                prop_assert!(late.is_none(), "{:?} did not fire by {}", late, now_us);
                if let Some(next_us) = wheel.next_us() {
                    prop_assert!(next_us > now_us / TICK_US * TICK_US);
                }
            }
            prop_assert!(pending.is_empty());
        }
    }
}
