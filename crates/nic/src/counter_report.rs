//! Reports a worker's counters periodically while it works, and after its last change; an idle
//! worker is not woken.

use crate::counters::Counters;

/// Period of the reports, in microseconds.
const PERIOD_US: u64 = 1_000_000;

/// Receives each worker's number and counters, at most once a second while the counters change.
/// Called on the worker's own thread, which it must not hold up.
pub type ReportCounters<'a> = &'a (dyn Fn(usize, &Counters) + Sync);

/// Reports the counters of one worker.
pub(crate) struct CounterReporter<'a> {
    tell: Option<ReportCounters<'a>>,
    worker: usize,
    told: Counters,
    next_us: u64,
}

impl<'a> CounterReporter<'a> {
    pub(crate) fn new(tell: Option<ReportCounters<'a>>, worker: usize, now_us: u64) -> Self {
        CounterReporter {
            tell,
            worker,
            told: Counters::default(),
            next_us: now_us,
        }
    }

    /// Reports the counters, if they have changed and the period has passed. Returns when to call
    /// again although nothing else happens.
    pub(crate) fn on_time(
        &mut self,
        now_us: u64,
        counters: impl FnOnce() -> Counters,
    ) -> Option<u64> {
        let tell = self.tell?;
        let now = counters();
        // Another sleep alone is no change.
        let is_news = Counters {
            sleeps: self.told.sleeps,
            ..now
        } != self.told;
        if !is_news {
            return None;
        }
        if now_us < self.next_us {
            return Some(self.next_us);
        }
        tell(self.worker, &now);
        self.told = now;
        self.next_us = now_us + PERIOD_US;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn counters_are_reported_once_a_second_while_they_change_and_at_last() {
        let told = Mutex::new(Vec::new());
        let tell =
            |worker, counters: &Counters| told.lock().unwrap().push((worker, counters.sends));
        let mut counter_report = CounterReporter::new(Some(&tell), 3, 0);
        let mut at = |now_us, sends, sleeps| {
            let counters = Counters {
                sends,
                sleeps,
                ..Counters::default()
            };
            let next_us = counter_report.on_time(now_us, || counters);
            (std::mem::take(&mut *told.lock().unwrap()), next_us)
        };
        assert_eq!(at(5, 0, 1), (vec![], None));
        assert_eq!(at(10, 1, 1), (vec![(3, 1)], None));
        assert_eq!(at(20, 2, 2), (vec![], Some(PERIOD_US + 10)));
        assert_eq!(at(PERIOD_US + 10, 4, 2), (vec![(3, 4)], None));
        assert_eq!(at(5 * PERIOD_US, 4, 9), (vec![], None));
        assert_eq!(
            CounterReporter::new(None, 0, 0).on_time(1, || unreachable!()),
            None
        );
    }
}
