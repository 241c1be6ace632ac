//! How many of a NIC stack's workers are in use: as many as the load needs.
//!
//! A governor in the sense of Linux's `cpufreq`, with workers in the place of frequencies. Its
//! input is the busy time of all workers together, in permille of the time:
//!
//! * **up** at once when the workers in use are busier than 80 %, to the number that would be busy
//!   to 80 %. That is the headroom of the kernel's `schedutil` governor, which asks for 1.25 times
//!   the utilization. Saturated workers do not show how much they lack, so that the number grows by
//!   a quarter, or by one, with each look;
//! * **down** when fewer would have done, busy to 60 %, in [`CALM_LOOKS`] looks: to the most that
//!   were needed meanwhile, which is how Kubernetes' horizontal pod autoscaler takes replicas
//!   away (its stabilization window).
//!
//! Between 60 % and 80 % nothing changes, so that no constant load makes the number oscillate:
//! after a reduction, the load is a quarter below the threshold of the next increase.

use std::ops::RangeInclusive;

/// Number of looks for which fewer workers must have sufficed, ten seconds by default: longer than
/// the pauses of clients that fetch file after file, and than most pauses of a video player, which
/// fetches a segment of two to ten seconds at a time.
pub(crate) const CALM_LOOKS: u32 = 20;

/// Load per worker above which workers are added, in permille.
const BUSY_PERMILLE_MAX: u64 = 800;

/// Load per worker after workers are removed, in permille.
const BUSY_PERMILLE_AFTER: u64 = 600;

const _: () = assert!(
    BUSY_PERMILLE_AFTER * 4 <= BUSY_PERMILLE_MAX * 3,
    "those that are left need a third more load before they get help"
);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Governor {
    bounds: RangeInclusive<usize>,
    calm: Option<Calm>,
}

/// Fewer workers suffice.
#[derive(Debug)]
struct Calm {
    looks: u32,
    /// Most workers needed meanwhile.
    needed: usize,
}

impl Governor {
    /// Creates a governor with the minimum and maximum of workers in use.
    pub(crate) fn new(bounds: RangeInclusive<usize>) -> Governor {
        Governor { bounds, calm: None }
    }

    /// Returns the minimum and maximum of workers in use.
    pub(crate) fn bounds(&self) -> RangeInclusive<usize> {
        self.bounds.clone()
    }

    /// False if the number of workers in use never changes.
    pub(crate) fn decides(&self) -> bool {
        self.bounds.start() < self.bounds.end()
    }

    /// The workers have restarted: their load is unknown.
    pub(crate) fn reset(&mut self) {
        self.calm = None;
    }

    /// Decides at a look how many workers are to be in use; `None`: no change. `in_use` workers are
    /// in use, and the busy time of all together is `busy_permille` of the time.
    pub(crate) fn decide(&mut self, in_use: usize, busy_permille: u64) -> Option<usize> {
        if !self.decides() {
            return None;
        }
        let (least, most) = (*self.bounds.start(), *self.bounds.end());
        let enough = |each: u64| (busy_permille.div_ceil(each) as usize).clamp(least, most);
        if enough(BUSY_PERMILLE_MAX) > in_use {
            self.calm = None;
            return Some(enough(BUSY_PERMILLE_MAX));
        }
        let needed = enough(BUSY_PERMILLE_AFTER);
        if needed >= in_use {
            self.calm = None;
            return None;
        }
        let calm = self.calm.get_or_insert(Calm { looks: 0, needed });
        calm.looks += 1;
        calm.needed = calm.needed.max(needed);
        let needed = calm.needed;
        (calm.looks >= CALM_LOOKS).then(|| {
            self.calm = None;
            needed
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Shares a constant load out between those in use for many looks; returns each number of
    /// workers in use that there was.
    fn numbers(governor: &mut Governor, mut in_use: usize, load_permille: u64) -> Vec<usize> {
        let mut numbers = vec![in_use];
        for _ in 0..6 * CALM_LOOKS {
            // A worker has no more than all of the time.
            let busy_permille = load_permille.min(in_use as u64 * 1000);
            if let Some(number) = governor.decide(in_use, busy_permille) {
                assert_ne!(number, in_use);
                in_use = number;
                numbers.push(in_use);
            }
        }
        numbers
    }

    /// Returns the last of `looks` decisions; the others change nothing.
    fn after(looks: u32, governor: &mut Governor, in_use: usize, busy: u64) -> Option<usize> {
        for _ in 1..looks {
            assert_eq!(governor.decide(in_use, busy), None);
        }
        governor.decide(in_use, busy)
    }

    #[test]
    fn workers_that_have_no_time_left_get_help_at_once() {
        let mut governor = Governor::new(1..=4);
        assert_eq!(governor.decide(1, 800), None);
        assert_eq!(governor.decide(1, 801), Some(2));
        assert_eq!(governor.decide(2, 2_000), Some(3));
        assert_eq!(governor.decide(4, 4_000), None, "there are no more");
        // From one to sixteen within nine looks.
        let numbers = numbers(&mut Governor::new(1..=16), 1, 16_000);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 7, 9, 12, 15, 16]);
    }

    #[test]
    fn workers_go_when_fewer_have_sufficed_for_a_while() {
        let governor = &mut Governor::new(1..=4);
        assert_eq!(after(CALM_LOOKS - 1, governor, 4, 500), None);
        // A moment in which all are needed.
        assert_eq!(governor.decide(4, 1_900), None);
        assert_eq!(after(CALM_LOOKS - 2, governor, 4, 500), None);
        // A moment in which two are.
        assert_eq!(governor.decide(4, 1_100), None);
        assert_eq!(governor.decide(4, 0), Some(2));
        assert_eq!(after(CALM_LOOKS, governor, 2, 0), Some(1));
        assert_eq!(after(3 * CALM_LOOKS, governor, 1, 0), None, "the fewest");
    }

    #[test]
    fn what_is_known_of_workers_that_are_gone_is_forgotten() {
        let governor = &mut Governor::new(1..=2);
        assert_eq!(after(CALM_LOOKS - 1, governor, 2, 0), None);
        governor.reset();
        assert_eq!(after(CALM_LOOKS, governor, 2, 0), Some(1));
    }

    #[test]
    fn a_fixed_number_stays() {
        let governor = &mut Governor::new(3..=3);
        assert!(!governor.decides());
        for busy_permille in [3_000, 0] {
            assert_eq!(after(2 * CALM_LOOKS, governor, 3, busy_permille), None);
        }
    }

    proptest! {
        #[test]
        fn no_constant_load_makes_the_number_go_up_and_down(
            load_permille in 0..20_000u64,
            least in 1..8usize,
            more in 0..16usize,
            from in 0..16usize,
        ) {
            let most = least + more;
            let mut governor = Governor::new(least..=most);
            let numbers = numbers(&mut governor, (least + from).min(most), load_permille);
            prop_assert!(numbers.iter().all(|number| (least..=most).contains(number)));
            let rises = numbers.is_sorted();
            let falls = numbers.iter().rev().is_sorted();
            prop_assert!(rises || falls, "{numbers:?}");
            // In the end they have the time that is needed.
            let last = *numbers.last().unwrap() as u64;
            prop_assert!(last == most as u64 || load_permille <= last * BUSY_PERMILLE_MAX);
        }
    }
}
