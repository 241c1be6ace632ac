//! Adaptive polling: when to look again for work, when to pause, when to sleep.
//!
//! Going to sleep and being woken costs several microseconds of CPU, part of it on the side that wakes.
//! Three ways to rest, the cheapest that delays nothing:
//!
//! * *Look again* for some microseconds before sleeping, if work has tended to come at once.
//! * *Pause* without arming any wake-up while the NIC stack has SENDs enough to be busy anyway. Nothing
//!   that the host could decide meanwhile would leave earlier; ACKs and departures gather and are dealt with
//!   in one go. This is what a NIC's interrupt moderation does, with the backlog instead of a guess.
//! * *Sleep* until woken, in all other cases. An idle stack costs nothing.

/// A pause shorter than this would not pay, in microseconds.
const PAUSE_US_MIN: u64 = 30;

/// What a SEND is taken to cost the NIC stack before anything is known, in nanoseconds: a superpacket at
/// 100 Gbit/s.
const SEND_NS_INITIAL: u64 = 5_000;

/// What to do when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again at once.
    LookAgain,
    /// Wait for so many microseconds, whatever comes.
    Pause(u64),
    /// Wait until woken.
    Sleep,
}

/// Decides how to rest.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    spin_us_max: u64,
    pause_us_max: u64,
    /// Looking again ends after this time.
    spin_us: u64,
    idle_since_us: Option<u64>,
    /// How long the NIC stack takes for a SEND, in nanoseconds; rather too little than too much.
    send_ns: u64,
}

impl Polling {
    /// Looks again for at most `spin_us_max` microseconds, and pauses for at most `pause_us_max`; 0 turns
    /// either off.
    pub fn new(spin_us_max: u64, pause_us_max: u64) -> Polling {
        Polling {
            spin_us_max,
            pause_us_max,
            spin_us: 0,
            idle_since_us: None,
            send_ns: SEND_NS_INITIAL,
        }
    }

    /// A turn has found work.
    pub fn on_work(&mut self) {
        if self.idle_since_us.take().is_some() {
            self.grow_spin();
        }
    }

    /// A turn has found nothing to do, with so many SENDs issued and not departed.
    pub fn on_idle(&mut self, now_us: u64, outstanding: u64) -> Rest {
        // Half of the backlog is left when the pause ends, in case the NIC stack is faster than thought.
        let pause_us = (outstanding.saturating_mul(self.send_ns) / 2_000).min(self.pause_us_max);
        if pause_us >= PAUSE_US_MIN {
            self.idle_since_us = None;
            return Rest::Pause(pause_us);
        }
        let since_us = *self.idle_since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) < self.spin_us {
            return Rest::LookAgain;
        }
        self.idle_since_us = None;
        Rest::Sleep
    }

    /// A pause of this length, begun with so many SENDs outstanding, has seen so many depart.
    pub fn on_paused(&mut self, paused_us: u64, outstanding: u64, departed: u64) {
        let Some(send_ns) = (paused_us * 1_000).checked_div(departed) else {
            // Not a single one: it waits for a file, or the NIC stack for its turn on the CPU.
            return;
        };
        self.send_ns = match departed < outstanding {
            true => (3 * self.send_ns + send_ns) / 4,
            // It has run dry, so it is faster than this.
            false => self.send_ns.min(send_ns) / 2,
        };
    }

    /// A [`Rest::Sleep`] has ended after this time.
    pub fn on_wake(&mut self, slept_us: u64) {
        match slept_us < self.spin_us_max {
            true => self.grow_spin(),
            false => self.spin_us /= 2,
        }
    }

    fn grow_spin(&mut self) {
        self.spin_us = (self.spin_us * 2).max(1).min(self.spin_us_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_traffic_every_rest_is_a_sleep() {
        let mut polling = Polling::new(20, 500);
        for second in 0..100 {
            assert_eq!(polling.on_idle(second * 1_000_000, 0), Rest::Sleep);
            polling.on_wake(1_000_000);
            polling.on_work();
        }
    }

    #[test]
    fn short_sleeps_lengthen_the_look_up_to_its_bound() {
        let mut polling = Polling::new(20, 0);
        for _ in 0..10 {
            let mut now_us = 0;
            while polling.on_idle(now_us, 0) == Rest::LookAgain {
                now_us += 1;
            }
            polling.on_wake(5);
        }
        assert_eq!(polling.on_idle(0, 0), Rest::LookAgain);
        assert_eq!(polling.on_idle(19, 0), Rest::LookAgain);
        assert_eq!(polling.on_idle(20, 0), Rest::Sleep);
        for _ in 0..10 {
            polling.on_wake(10_000);
        }
        let rest = polling.on_idle(0, 0);
        assert_eq!(rest, Rest::Sleep, "long sleeps shorten it to nothing");
    }

    #[test]
    fn a_pause_lasts_half_as_long_as_the_backlog() {
        let mut polling = Polling::new(20, 500);
        // The NIC stack takes 20 µs for each.
        for _ in 0..50 {
            polling.on_paused(200, 100, 10);
        }
        let Rest::Pause(us) = polling.on_idle(0, 40) else {
            panic!("no pause with 800 µs of work ahead");
        };
        assert!((390..=400).contains(&us), "{us}");
        assert_eq!(polling.on_idle(0, 1_000_000), Rest::Pause(500));
        assert_eq!(polling.on_idle(0, 2), Rest::Sleep, "20 µs are not worth it");
    }

    #[test]
    fn a_nic_stack_that_runs_dry_is_given_shorter_pauses() {
        let mut polling = Polling::new(20, 500);
        for _ in 0..50 {
            polling.on_paused(200, 100, 10);
        }
        // Suddenly a SEND takes 1 µs only: whatever was outstanding is gone after each pause.
        let mut pauses = 0;
        while let Rest::Pause(us) = polling.on_idle(0, 100) {
            if us > 100 {
                polling.on_paused(us, 100, 100);
            } else {
                polling.on_paused(us, 100, us);
            }
            pauses += 1;
            if pauses > 20 {
                assert!((40..60).contains(&us), "{us}: half of 100 µs");
                return;
            }
        }
        panic!("100 µs of work are worth a pause");
    }

    #[test]
    fn a_nic_stack_that_stands_still_teaches_nothing() {
        let mut polling = Polling::new(20, 500);
        let before = polling.on_idle(0, 100);
        polling.on_paused(500, 100, 0);
        assert_eq!(polling.on_idle(0, 100), before);
    }

    #[test]
    fn both_can_be_turned_off() {
        let mut polling = Polling::new(0, 0);
        for _ in 0..1_000 {
            assert_eq!(polling.on_idle(5, 1_000), Rest::Sleep);
            polling.on_wake(0);
            polling.on_work();
        }
    }
}
