//! How much of a turn applications may take: commands by number and time, all of them by time.

/// Most time that all applications take of a turn, in microseconds; the others come first in the
/// next.
const ALL_US_MAX: u64 = 1_000;

/// Commands between two looks at the clock.
const COMMANDS_PER_LOOK: u32 = 4;

/// A monotonic clock in microseconds. `None` in a simulation, whose turns take no time.
pub(crate) type Clock = Option<fn() -> u64>;

/// What one application may take of a turn.
#[derive(Debug)]
pub(crate) struct Budget {
    commands_left: u32,
    us_max: u64,
    clock: Clock,
    begun_us: Option<u64>,
    spent_us: u64,
    unlooked: u32,
}

impl Budget {
    /// So many commands, and so many microseconds from the first on.
    pub(crate) fn new(commands_max: u32, us_max: u32, clock: Clock) -> Budget {
        Budget {
            commands_left: commands_max,
            us_max: us_max.into(),
            clock,
            begun_us: None,
            spent_us: 0,
            unlooked: 0,
        }
    }

    /// True if nothing more may be done.
    pub(crate) fn is_used_up(&self) -> bool {
        self.commands_left == 0 || self.spent_us >= self.us_max
    }

    /// A command, or as much as one, is about to be done.
    pub(crate) fn take(&mut self) {
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

    /// Microseconds since the first command.
    pub(crate) fn spent_us(&mut self) -> u64 {
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

/// What all applications have taken of a turn.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    us: u64,
}

impl Spent {
    /// An application has taken so many microseconds.
    pub(crate) fn add(&mut self, us: u64) {
        self.us += us;
    }

    /// True if the applications that are left wait for the next turn.
    pub(crate) fn is_used_up(&self) -> bool {
        self.us >= ALL_US_MAX
    }
}

/// The load of an application after a turn in which it spent so many microseconds, 0 if the turn
/// left it out. Applications with the least load come first when a turn is too short for all.
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

    /// Takes commands of so many microseconds each; how many there were.
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
