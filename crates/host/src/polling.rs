//! Adaptive polling: how long to look for work before going to sleep.
//!
//! Going to sleep and being woken costs a few microseconds of CPU on both sides, so when work tends to
//! come at once it is cheaper to look again a few times. When it does not, every look is waste, on a
//! machine with few cores even stolen from the one who would bring the work. So the budget doubles
//! when looking has paid off and halves when it has not, down to nothing.

/// Decides between looking again and sleeping.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    spin_us_max: u64,
    budget_us: u64,
    idle_since_us: Option<u64>,
}

impl Polling {
    /// Looks for work for at most `spin_us_max` microseconds before a sleep; 0 never looks twice.
    pub fn new(spin_us_max: u64) -> Polling {
        Polling {
            spin_us_max,
            budget_us: 0,
            idle_since_us: None,
        }
    }

    /// A turn found work.
    pub fn on_work(&mut self) {
        if self.idle_since_us.take().is_some() {
            self.budget_us = (self.budget_us * 2).clamp(1, self.spin_us_max.max(1));
        }
    }

    /// A turn found none. True if it is time to sleep.
    pub fn on_idle(&mut self, now_us: u64) -> bool {
        let since_us = *self.idle_since_us.get_or_insert(now_us);
        now_us.saturating_sub(since_us) >= self.budget_us.min(self.spin_us_max)
    }

    /// The sleep is over after `slept_us`. One that was shorter than looking would have been tells that
    /// looking pays off.
    pub fn on_wake(&mut self, slept_us: u64) {
        self.idle_since_us = None;
        self.budget_us = if slept_us < self.spin_us_max {
            (self.budget_us * 2).clamp(1, self.spin_us_max.max(1))
        } else {
            self.budget_us / 2
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_traffic_every_look_is_the_last() {
        let mut polling = Polling::new(20);
        for second in 0..10 {
            let now_us = second * 1_000_000;
            assert!(polling.on_idle(now_us), "second {second}");
            polling.on_wake(1_000_000);
        }
    }

    #[test]
    fn short_sleeps_lengthen_the_look_up_to_its_bound() {
        let mut polling = Polling::new(20);
        for _ in 0..10 {
            assert!(polling.on_idle(1_000_000) || polling.budget_us > 0);
            polling.on_wake(5);
        }
        assert!(!polling.on_idle(0));
        assert!(!polling.on_idle(19));
        assert!(polling.on_idle(20));
        for _ in 0..10 {
            polling.on_wake(10_000);
        }
        assert!(polling.on_idle(0), "long sleeps shorten it to nothing");
    }

    #[test]
    fn zero_never_looks_twice() {
        let mut polling = Polling::new(0);
        polling.on_wake(0);
        polling.on_work();
        assert!(polling.on_idle(5));
    }
}
