//! Limits of a turn: each application's commands by number and time, all applications by time.

/// Time limit of all applications in a turn, in microseconds; the others come first in the next
/// turn.
const ALL_US_MAX: u64 = 1_000;

/// Commands between two readings of the clock.
const COMMANDS_PER_LOOK: u32 = 4;

/// A monotonic clock in microseconds. `None` in a simulation, whose turns take no time.
pub type Clock = Option<fn() -> u64>;

/// An application's budget of a turn.
#[derive(Debug)]
pub struct Budget {
    commands_left: u32,
    us_max: u64,
    clock: Clock,
    begun_us: Option<u64>,
    spent_us: u64,
    unlooked: u32,
}

impl Budget {
    /// Makes a budget of `commands_max` commands, and of `us_max` microseconds from the first
    /// command.
    pub fn new(commands_max: u32, us_max: u32, clock: Clock) -> Budget {
        Budget {
            commands_left: commands_max,
            us_max: us_max.into(),
            clock,
            begun_us: None,
            spent_us: 0,
            unlooked: 0,
        }
    }

    /// Reports whether the budget is used up.
    pub fn is_used_up(&self) -> bool {
        self.commands_left == 0 || self.spent_us >= self.us_max
    }

    /// Charges a command, or work of similar cost, before it is done.
    pub fn take(&mut self) {
        self.commands_left = self.commands_left.saturating_sub(1);
        let Some(clock) = self.clock else {
            return;
        };
        match self.begun_us {
            None => self.begun_us = Some(clock()),
            Some(_) => {
                self.unlooked += 1;
                if self.unlooked >= COMMANDS_PER_LOOK {
                    self.look();
                }
            }
        }
    }

    /// Returns the microseconds since the first command.
    pub fn spent_us(&mut self) -> u64 {
        self.look();
        self.spent_us
    }

    fn look(&mut self) {
        self.unlooked = 0;
        if let (Some(begun_us), Some(clock)) = (self.begun_us, self.clock) {
            self.spent_us = clock().saturating_sub(begun_us);
        }
    }
}

/// Time spent by all applications in a turn.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    us: u64,
}

impl Spent {
    /// Adds the microseconds of an application.
    pub(crate) fn add(&mut self, us: u64) {
        self.us += us;
    }

    /// Reports whether the remaining applications must wait for the next turn.
    pub(crate) fn is_used_up(&self) -> bool {
        self.us >= ALL_US_MAX
    }
}

/// Returns an application's load after a turn in which it spent `spent_us` microseconds, 0 if the
/// turn skipped it. Applications with the least load come first if a turn is too short for all.
pub(crate) fn load_after(load_us: u64, spent_us: u64) -> u64 {
    load_us / 2 + spent_us
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW_US: Cell<u64> = const { Cell::new(0) };
    }

    fn clock() -> u64 {
        NOW_US.get()
    }

    /// Takes commands of `us` microseconds each; returns their number.
    fn taken(budget: &mut Budget, us: u64) -> u32 {
        let mut taken = 0;
        while !budget.is_used_up() {
            budget.take();
            NOW_US.set(NOW_US.get() + us);
            taken += 1;
        }
        taken
    }

    #[test]
    fn commands_end_by_number_and_by_time() {
        assert_eq!(taken(&mut Budget::new(256, 200, None), 50), 256);
        assert_eq!(taken(&mut Budget::new(256, 200, Some(clock)), 0), 256);
        let mut slow = Budget::new(256, 200, Some(clock));
        let count = taken(&mut slow, 50);
        assert!((4..=4 + COMMANDS_PER_LOOK).contains(&count), "{count}");
        assert_eq!(slow.spent_us(), 50 * u64::from(count));
    }

    /// The host process was not scheduled for 10 ms amid the commands of one application.
    #[test]
    fn an_application_whose_turn_took_long_comes_again_beside_others_that_fill_turns() {
        let mut loads_us = [0; 6];
        let mut turns = [0; 6];
        for turn in 0..60 {
            let mut spent = Spent::default();
            let mut order: Vec<usize> = (0..6).collect();
            order.sort_by_key(|app| (loads_us[*app], *app));
            for app in order {
                let spent_us = match (spent.is_used_up(), app, turn) {
                    (true, ..) => 0,
                    (false, 3, 0) => 10_000,
                    _ => 200,
                };
                spent.add(spent_us);
                loads_us[app] = load_after(loads_us[app], spent_us);
                turns[app] += u32::from(spent_us > 0);
            }
        }
        assert!(turns.iter().all(|turns| *turns >= 30), "{turns:?}");
    }

    #[test]
    fn nothing_is_spent_before_the_first_command() {
        let mut budget = Budget::new(1, 200, Some(clock));
        NOW_US.set(NOW_US.get() + 1_000);
        assert_eq!(budget.spent_us(), 0);
        assert!(!budget.is_used_up());
    }
}
