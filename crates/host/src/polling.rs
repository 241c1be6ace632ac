//! Adaptive polling: when to look again for work, when to pause, when to sleep.
//!
//! Going to sleep and being woken costs several microseconds of CPU, partly on the waking side.
//! Three ways to rest, the cheapest that delays little:
//!
//! * *Look again* for some microseconds before sleeping, if work has tended to come at once.
//! * *Pause* without arming any wake-up, so that ACKs and events gather for one pass, as with a
//!   NIC's interrupt moderation; only commands of programs that wait for the answer end it. While
//!   the NIC stack has enough SENDs to stay busy, this delays nothing: the output of an earlier
//!   turn would leave no earlier. If it has none, a pause is worth a short delay only where it
//!   spares several wake-ups, which is found by trial.
//! * *Sleep* until woken, in all other cases. An idle stack costs nothing.

/// A pause shorter than this would not pay, in microseconds.
const PAUSE_US_MIN: u64 = 30;

/// Initial estimate of a SEND's cost to the NIC stack, in nanoseconds: a superpacket at 100 Gbit/s.
const SEND_NS_INITIAL: u64 = 5_000;

/// Length of a pause without a backlog, in microseconds: about what NICs wait before an interrupt.
const MODERATION_US: u64 = 200;

/// A pause is worth its delay if it gathers this number of frames and events, even without
/// departures.
const MODERATION_ITEMS_MIN: u64 = 4;

/// A pause that is expected to gather this number of frames and events is long enough: more would
/// not be cheaper to process.
const PAUSE_ITEMS_MAX: u64 = 256;

/// A pause makes no timer later than this, in microseconds: paced SENDs are issued two milliseconds
/// ahead.
const TIMER_LATE_US_MAX: u64 = 1_500;

/// Sleeps shorter than such a pause in a row before one is tried, at least and at most.
const PATIENCE_MIN: u32 = 8;
const PATIENCE_MAX: u32 = 4096;

/// What to do when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again at once.
    LookAgain,
    /// Wait for this number of microseconds, unless a program sends a command and waits for its
    /// answer.
    Pause(u64),
    /// Wait until woken.
    Sleep,
}

/// Expected work when a turn has found nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// SENDs issued and not departed.
    pub outstanding: u64,
    /// Time to the next timer, in microseconds.
    pub timer_us: Option<u64>,
    /// Longest pause without a backlog, in microseconds.
    pub moderation_us_max: u64,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead {
            outstanding: 0,
            timer_us: None,
            moderation_us_max: u64::MAX,
        }
    }
}

/// Outcome of a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Its true length, in microseconds.
    pub us: u64,
    /// SENDs issued and not departed when it began.
    pub outstanding: u64,
    /// SENDs that departed in it.
    pub departed: u64,
    /// Frames and events that came in it.
    pub items: u64,
}

/// Progress during a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    /// SENDs have departed.
    Departures,
    /// No SENDs have departed, so the duration of the backlog is unknown; but there were
    /// acknowledgments and other events.
    Others,
    /// Hardly anything: the NIC stack is waiting itself.
    Nothing,
}

/// Decides how to rest.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    spin_us_max: u64,
    pause_us_max: u64,
    /// Looking again ends after this time.
    spin_us: u64,
    idle_since_us: Option<u64>,
    /// Time of the NIC stack per SEND, in nanoseconds; rather too little than too much.
    send_ns: u64,
    /// Interval between frames and events in pauses, in nanoseconds.
    item_ns: u64,
    /// Progress during the last pause, unless there was a sleep since.
    brought: Brought,
    short_sleeps: u32,
    /// Short sleeps in a row that a pause without backlog takes now. Doubles when one has gathered
    /// too little.
    patience: u32,
    moderating: bool,
    /// The last pause without backlog has gathered enough.
    was_rich: bool,
}

impl Polling {
    /// Looks again for at most `spin_us_max` microseconds, and pauses for at most `pause_us_max`; 0
    /// turns either off.
    pub fn new(spin_us_max: u64, pause_us_max: u64) -> Polling {
        Polling {
            spin_us_max,
            pause_us_max,
            spin_us: 0,
            idle_since_us: None,
            send_ns: SEND_NS_INITIAL,
            item_ns: pause_us_max.saturating_mul(1_000),
            brought: Brought::Departures,
            short_sleeps: 0,
            patience: PATIENCE_MIN,
            moderating: false,
            was_rich: false,
        }
    }

    /// A turn has found work.
    pub fn on_work(&mut self) {
        if self.idle_since_us.take().is_some() {
            self.grow_spin();
        }
    }

    /// A turn has found nothing to do.
    pub fn on_idle(&mut self, now_us: u64, ahead: Ahead) -> Rest {
        if let Some(us) = self.pause_us(ahead) {
            self.idle_since_us = None;
            return Rest::Pause(us);
        }
        let since_us = *self.idle_since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) < self.spin_us {
            return Rest::LookAgain;
        }
        self.idle_since_us = None;
        Rest::Sleep
    }

    fn pause_us(&mut self, ahead: Ahead) -> Option<u64> {
        // Half of the backlog is left when the pause ends, in case the NIC stack is faster than
        // thought.
        let backlog_us = ahead.outstanding.saturating_mul(self.send_ns) / 2_000;
        let gather_us = self.item_ns.saturating_mul(PAUSE_ITEMS_MAX) / 1_000;
        let timer_us = ahead.timer_us.unwrap_or(u64::MAX).max(TIMER_LATE_US_MAX);
        let us = backlog_us
            .min(gather_us)
            .min(timer_us)
            .min(match self.brought {
                Brought::Departures => self.pause_us_max,
                _ => self.pause_us_max.min(MODERATION_US),
            });
        self.moderating = false;
        if us >= PAUSE_US_MIN && self.brought != Brought::Nothing {
            return Some(us);
        }
        self.moderating = self.short_sleeps >= self.patience;
        self.moderating
            .then_some(MODERATION_US.min(self.pause_us_max))
            .map(|us| us.min(ahead.moderation_us_max))
            .filter(|&us| us >= PAUSE_US_MIN)
    }

    /// A pause has ended.
    pub fn on_paused(&mut self, pause: Pause) {
        if self.moderating {
            if pause.departed > 0 {
                // The NIC stack does not wait any more.
                self.brought = Brought::Departures;
            }
            let is_rich = pause.items >= MODERATION_ITEMS_MIN;
            // A poor one among rich ones is chance, and eight sleeps would cost more than it.
            match (is_rich, std::mem::replace(&mut self.was_rich, is_rich)) {
                (true, _) => self.patience = PATIENCE_MIN,
                (false, true) => {}
                (false, false) => {
                    self.patience = (self.patience * 2).min(PATIENCE_MAX);
                    self.short_sleeps = 0;
                }
            }
            return;
        }
        if let Some(item_ns) = (pause.us * 1_000).checked_div(pause.items) {
            self.item_ns = (3 * self.item_ns + item_ns) / 4;
        }
        self.brought = match (pause.departed, pause.items) {
            (1.., _) => Brought::Departures,
            (0, MODERATION_ITEMS_MIN..) => Brought::Others,
            (0, _) => Brought::Nothing,
        };
        let Some(send_ns) = (pause.us * 1_000).checked_div(pause.departed) else {
            // It waits for a file, or for its turn on the CPU. Departures will wake a sleeper.
            return;
        };
        self.send_ns = match pause.departed < pause.outstanding {
            true => (3 * self.send_ns + send_ns) / 4,
            // It has run dry, so it is faster than this.
            false => self.send_ns.min(send_ns) / 2,
        };
    }

    /// A `Rest::Sleep` has ended after this time.
    pub fn on_wake(&mut self, slept_us: u64) {
        self.brought = Brought::Departures;
        if slept_us < MODERATION_US {
            self.short_sleeps = self.short_sleeps.saturating_add(1)
        } else {
            self.short_sleeps = 0
        }
        if slept_us < self.spin_us_max {
            self.grow_spin()
        } else {
            self.spin_us /= 2
        }
    }

    fn grow_spin(&mut self) {
        self.spin_us = (self.spin_us * 2).max(1).min(self.spin_us_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog(outstanding: u64) -> Ahead {
        Ahead {
            outstanding,
            ..Ahead::default()
        }
    }

    #[test]
    fn without_traffic_every_rest_is_a_sleep() {
        let mut polling = Polling::new(20, 500);
        for second in 0..100 {
            assert_eq!(polling.on_idle(second * 1_000_000, backlog(0)), Rest::Sleep);
            polling.on_wake(1_000_000);
            polling.on_work();
        }
    }

    #[test]
    fn short_sleeps_lengthen_the_look_up_to_its_bound() {
        let mut polling = Polling::new(20, 0);
        for _ in 0..10 {
            let mut now_us = 0;
            while polling.on_idle(now_us, backlog(0)) == Rest::LookAgain {
                now_us += 1;
            }
            polling.on_wake(5);
        }
        assert_eq!(polling.on_idle(0, backlog(0)), Rest::LookAgain);
        assert_eq!(polling.on_idle(19, backlog(0)), Rest::LookAgain);
        assert_eq!(polling.on_idle(20, backlog(0)), Rest::Sleep);
        for _ in 0..10 {
            polling.on_wake(10_000);
        }
        let rest = polling.on_idle(0, backlog(0));
        assert_eq!(rest, Rest::Sleep, "long sleeps shorten it to nothing");
    }

    /// A pause with a backlog of 100 SENDs, of which `departed` departed.
    fn paused(us: u64, departed: u64) -> Pause {
        Pause {
            us,
            outstanding: 100,
            departed,
            items: 2 * departed,
        }
    }

    #[test]
    fn a_pause_lasts_half_as_long_as_the_backlog() {
        let mut polling = Polling::new(20, 500);
        // The NIC stack takes 20 µs for each.
        for _ in 0..50 {
            polling.on_paused(paused(200, 10));
        }
        let Rest::Pause(us) = polling.on_idle(0, backlog(40)) else {
            panic!("no pause with 800 µs of work ahead");
        };
        assert!((390..=400).contains(&us), "{us}");
        assert_eq!(polling.on_idle(0, backlog(1_000_000)), Rest::Pause(500));
        assert_eq!(
            polling.on_idle(0, backlog(2)),
            Rest::Sleep,
            "20 µs are not worth it"
        );
    }

    #[test]
    fn a_nic_stack_that_runs_dry_is_given_shorter_pauses() {
        let mut polling = Polling::new(20, 500);
        for _ in 0..50 {
            polling.on_paused(paused(200, 10));
        }
        // Suddenly a SEND takes 1 µs only: the whole backlog is gone after each pause.
        let mut pauses = 0;
        while let Rest::Pause(us) = polling.on_idle(0, backlog(100)) {
            polling.on_paused(paused(us, us.min(100)));
            pauses += 1;
            if pauses > 20 {
                assert!((40..60).contains(&us), "{us}: half of 100 µs");
                return;
            }
        }
        panic!("100 µs of work are worth a pause");
    }

    #[test]
    fn a_nic_stack_that_stands_still_is_waited_for_asleep() {
        let mut polling = Polling::new(0, 500);
        let pause = polling.on_idle(0, backlog(100));
        assert!(matches!(pause, Rest::Pause(_)));
        polling.on_paused(paused(500, 0));
        assert_eq!(polling.on_idle(0, backlog(100)), Rest::Sleep);
        polling.on_wake(5_000_000);
        assert_eq!(
            polling.on_idle(0, backlog(100)),
            pause,
            "nothing was learnt of its speed"
        );
    }

    #[test]
    fn a_nic_stack_that_stands_still_while_acknowledgments_come_is_no_reason_to_be_woken_by_each() {
        let mut polling = Polling::new(0, 500);
        polling.on_paused(Pause {
            items: MODERATION_ITEMS_MIN,
            ..paused(500, 0)
        });
        let pause = polling.on_idle(0, backlog(1_000));
        assert_eq!(pause, Rest::Pause(MODERATION_US), "nor to wait for long");
        polling.on_paused(paused(200, 1));
        assert_eq!(polling.on_idle(0, backlog(1_000)), Rest::Pause(500));
    }

    #[test]
    fn a_nic_stack_that_goes_on_is_left_alone_again_for_as_long_as_its_backlog_lasts() {
        let mut polling = Polling::new(0, 500);
        sleep_shortly(&mut polling, PATIENCE_MIN);
        polling.on_paused(paused(500, 0));
        let gathering = Rest::Pause(MODERATION_US);
        assert_eq!(polling.on_idle(0, backlog(1_000)), gathering);
        polling.on_paused(Pause {
            items: MODERATION_ITEMS_MIN,
            ..paused(200, 0)
        });
        assert_eq!(polling.on_idle(0, backlog(1_000)), gathering);
        polling.on_paused(paused(200, 10));
        assert_eq!(polling.on_idle(0, backlog(1_000)), Rest::Pause(500));
    }

    #[test]
    fn where_more_comes_pauses_are_shorter() {
        let mut polling = Polling::new(0, 4_000);
        assert_eq!(polling.on_idle(0, backlog(1_000_000)), Rest::Pause(4_000));
        // A frame or event each 2 µs.
        for _ in 0..50 {
            polling.on_paused(Pause {
                items: 500,
                ..paused(1_000, 50)
            });
        }
        let Rest::Pause(us) = polling.on_idle(0, backlog(1_000_000)) else {
            panic!("no pause with a backlog");
        };
        assert!((512..520).contains(&us), "{us}: 256 of them");
    }

    #[test]
    fn a_timer_is_late_by_one_and_a_half_milliseconds_at_most() {
        let mut polling = Polling::new(0, 4_000);
        let mut pause_us = |timer_us| {
            let ahead = Ahead {
                timer_us: Some(timer_us),
                ..backlog(1_000_000)
            };
            polling.on_idle(0, ahead)
        };
        assert_eq!(pause_us(0), Rest::Pause(1_500));
        assert_eq!(pause_us(2_500), Rest::Pause(2_500));
        assert_eq!(pause_us(60_000_000), Rest::Pause(4_000));
    }

    fn sleep_shortly(polling: &mut Polling, times: u32) {
        for _ in 0..times {
            assert_eq!(polling.on_idle(0, backlog(0)), Rest::Sleep);
            polling.on_wake(MODERATION_US - 1);
        }
    }

    #[test]
    fn short_sleeps_in_a_row_lead_to_pauses_and_rich_pauses_to_more_of_them() {
        let mut polling = Polling::new(0, 500);
        sleep_shortly(&mut polling, PATIENCE_MIN);
        for _ in 0..100 {
            assert_eq!(polling.on_idle(0, backlog(0)), Rest::Pause(MODERATION_US));
            polling.on_paused(Pause {
                items: MODERATION_ITEMS_MIN,
                ..Pause::default()
            });
        }
        polling.on_paused(Pause::default());
        let rest = polling.on_idle(0, backlog(0));
        assert_eq!(rest, Rest::Pause(MODERATION_US), "a poor one is chance");
        polling.on_paused(Pause::default());
        let rest = polling.on_idle(0, backlog(0));
        assert_eq!(rest, Rest::Sleep, "two end them");
    }

    #[test]
    fn a_pause_without_a_backlog_is_no_longer_than_an_application_allows() {
        let mut polling = Polling::new(0, 4_000);
        sleep_shortly(&mut polling, PATIENCE_MIN);
        let impatient = |outstanding| Ahead {
            moderation_us_max: 50,
            ..backlog(outstanding)
        };
        assert_eq!(polling.on_idle(0, impatient(0)), Rest::Pause(50));
        assert_eq!(
            polling.on_idle(0, impatient(1_000_000)),
            Rest::Pause(4_000),
            "what it asks for leaves no earlier"
        );
    }

    #[test]
    fn poor_pauses_become_rare() {
        let mut polling = Polling::new(0, 500);
        let mut pauses = 0;
        for _ in 0..100_000 {
            match polling.on_idle(0, backlog(0)) {
                Rest::Sleep => polling.on_wake(30),
                _ => {
                    pauses += 1;
                    polling.on_paused(Pause {
                        items: MODERATION_ITEMS_MIN - 1,
                        ..Pause::default()
                    });
                }
            }
        }
        assert!((1..40).contains(&pauses), "{pauses} pauses");
    }

    #[test]
    fn both_can_be_turned_off() {
        let mut polling = Polling::new(0, 0);
        for _ in 0..1_000 {
            assert_eq!(polling.on_idle(5, backlog(1_000)), Rest::Sleep);
            polling.on_wake(0);
            polling.on_work();
        }
    }
}
