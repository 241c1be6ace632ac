//! Adaptive polling: when to look again for work, when to pause, when to sleep.
//!
//! Going to sleep and being woken costs several microseconds of CPU, part of it on the side that wakes.
//! Three ways to spend less, each only when it has paid off lately:
//!
//! * *Look again* for some microseconds before sleeping, if work tends to come at once.
//! * *Pause* without arming any wake-up, if sleeps are short anyway: work gathers and is done in one go,
//!   and nobody has to wake this side. It is what a NIC's interrupt moderation does.
//! * *Sleep* until woken, in all other cases. An idle stack costs nothing.

/// A pause is worth its delay if it gathers so many frames and events.
const PAUSE_ITEMS_MIN: usize = 4;

/// Short sleeps in a row before a pause is tried, at least and at most.
const PATIENCE_MIN: u32 = 8;
const PATIENCE_MAX: u32 = 4096;

/// What to do when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again at once.
    LookAgain,
    /// Wait for [`Polling::pause_us`], whatever comes.
    Pause,
    /// Wait until woken.
    Sleep,
}

/// Decides how to rest.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    spin_us_max: u64,
    pause_us: u64,
    /// Looking again ends after this time.
    spin_us: u64,
    idle_since_us: Option<u64>,
    short_sleeps: u32,
    /// Short sleeps in a row that a pause takes now. Doubles whenever a pause has gathered too little.
    patience: u32,
    /// Frames and events since the last pause, if the last rest was one.
    gathered: Option<usize>,
}

impl Polling {
    /// Looks again for at most `spin_us_max` microseconds, and pauses for `pause_us`; 0 turns either off.
    pub fn new(spin_us_max: u64, pause_us: u64) -> Polling {
        Polling {
            spin_us_max,
            pause_us,
            spin_us: 0,
            idle_since_us: None,
            short_sleeps: 0,
            patience: PATIENCE_MIN,
            gathered: None,
        }
    }

    /// Length of a pause, in microseconds.
    pub fn pause_us(&self) -> u64 {
        self.pause_us
    }

    /// A turn has dealt with so many frames and events.
    pub fn on_work(&mut self, items: usize) {
        if let Some(gathered) = &mut self.gathered {
            *gathered += items;
        }
        if self.idle_since_us.take().is_some() {
            self.grow_spin();
        }
    }

    /// A turn has found nothing to do.
    pub fn on_idle(&mut self, now_us: u64) -> Rest {
        let since_us = *self.idle_since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) < self.spin_us {
            return Rest::LookAgain;
        }
        self.idle_since_us = None;
        match self.gathered {
            Some(gathered) if gathered >= PAUSE_ITEMS_MIN => self.patience = PATIENCE_MIN,
            Some(_) => {
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                self.short_sleeps = 0;
            }
            None => {}
        }
        let pauses = self.pause_us > 0 && self.short_sleeps >= self.patience;
        self.gathered = pauses.then_some(0);
        match pauses {
            true => Rest::Pause,
            false => Rest::Sleep,
        }
    }

    /// A [`Rest::Sleep`] has ended after this time.
    pub fn on_wake(&mut self, slept_us: u64) {
        match slept_us < self.pause_us {
            true => self.short_sleeps = self.short_sleeps.saturating_add(1),
            false => self.short_sleeps = 0,
        }
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

    /// Rests until asked to wait, and says how.
    fn rest(polling: &mut Polling) -> Rest {
        let mut now_us = 1_000_000;
        loop {
            match polling.on_idle(now_us) {
                Rest::LookAgain => now_us += 1,
                rest => return rest,
            }
        }
    }

    #[test]
    fn without_traffic_every_rest_is_a_sleep() {
        let mut polling = Polling::new(20, 200);
        for second in 0..100 {
            assert_eq!(polling.on_idle(second * 1_000_000), Rest::Sleep);
            polling.on_wake(1_000_000);
            polling.on_work(1);
        }
    }

    #[test]
    fn short_sleeps_lengthen_the_look_up_to_its_bound() {
        let mut polling = Polling::new(20, 0);
        for _ in 0..10 {
            rest(&mut polling);
            polling.on_wake(5);
        }
        assert_eq!(polling.on_idle(0), Rest::LookAgain);
        assert_eq!(polling.on_idle(19), Rest::LookAgain);
        assert_eq!(polling.on_idle(20), Rest::Sleep);
        for _ in 0..10 {
            polling.on_wake(10_000);
        }
        assert_eq!(
            polling.on_idle(0),
            Rest::Sleep,
            "long sleeps shorten it to nothing"
        );
    }

    #[test]
    fn short_sleeps_in_a_row_lead_to_pauses_and_rich_pauses_to_more_of_them() {
        let mut polling = Polling::new(0, 200);
        for _ in 0..PATIENCE_MIN {
            assert_eq!(rest(&mut polling), Rest::Sleep);
            polling.on_wake(30);
            polling.on_work(1);
        }
        for _ in 0..100 {
            assert_eq!(rest(&mut polling), Rest::Pause);
            polling.on_work(PAUSE_ITEMS_MIN);
        }
    }

    #[test]
    fn poor_pauses_become_rare() {
        let mut polling = Polling::new(0, 200);
        let mut pauses = 0;
        for _ in 0..100_000 {
            match rest(&mut polling) {
                Rest::Sleep => polling.on_wake(30),
                _ => pauses += 1,
            }
            polling.on_work(1);
        }
        assert!((1..40).contains(&pauses), "{pauses} pauses");
    }

    #[test]
    fn the_first_poor_pause_ends_a_run_of_rich_ones() {
        let mut polling = Polling::new(0, 200);
        for _ in 0..PATIENCE_MIN {
            rest(&mut polling);
            polling.on_wake(30);
        }
        assert_eq!(rest(&mut polling), Rest::Pause);
        polling.on_work(PAUSE_ITEMS_MIN - 1);
        assert_eq!(rest(&mut polling), Rest::Sleep);
    }

    #[test]
    fn both_can_be_turned_off() {
        let mut polling = Polling::new(0, 0);
        for _ in 0..10_000 {
            assert_eq!(polling.on_idle(5), Rest::Sleep);
            polling.on_wake(0);
            polling.on_work(100);
        }
    }
}
