//! A slow disk, for measurements and tests: reads complete later than they do.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use super::{Completion, FileToken, Read, Reader};
use crate::buffer::Region;
use contract::{Growth, PassedId};

/// How much later reads complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDelay {
    /// Each read gets a delay out of this range, in microseconds, all equally likely.
    pub us: RangeInclusive<u64>,
    /// The same seed gives the same delays in the same order.
    pub seed: u64,
}

/// A reader that leaves reads to another one and reports them some time later. Opens and listings
/// are not delayed.
pub struct DelayReader {
    inner: Box<dyn Reader>,
    delay: ReadDelay,
    /// Returns the time, in microseconds.
    clock: Box<dyn Fn() -> u64>,
    state: u64,
    /// Finished reads, by the time at which they are to be reported and their number.
    held: BTreeMap<(u64, u64), Completion>,
    count: u64,
}

impl DelayReader {
    /// Delays the reads of `inner`, by the clock of the worker.
    pub fn new(
        inner: Box<dyn Reader>,
        delay: ReadDelay,
        clock: Box<dyn Fn() -> u64>,
    ) -> DelayReader {
        DelayReader {
            inner,
            state: delay.seed,
            delay,
            clock,
            held: BTreeMap::new(),
            count: 0,
        }
    }

    fn next_delay_us(&mut self) -> u64 {
        let (least, most) = (*self.delay.us.start(), *self.delay.us.end());
        // An addition and a finalizer: the steps of SplitMix64 (Steele et al., 2014).
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let choices = most.saturating_sub(least).saturating_add(1);
        least + ((u128::from(word) * u128::from(choices)) >> 64) as u64
    }
}

impl Reader for DelayReader {
    fn prepare(&mut self, region: &Region) {
        self.inner.prepare(region);
    }

    fn open(&mut self, file: FileToken, path: &[u8], growth: Growth) {
        self.inner.open(file, path, growth);
    }

    fn open_passed(&mut self, file: FileToken, passed: PassedId) {
        self.inner.open_passed(file, passed);
    }

    fn list(&mut self, file: FileToken, path: &[u8], from: u64) {
        self.inner.list(file, path, from);
    }

    fn close(&mut self, file: FileToken) {
        self.inner.close(file);
    }

    fn read(&mut self, read: Read) {
        self.inner.read(read);
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.inner.has_unsubmitted()
    }

    fn next(&mut self) -> Option<Completion> {
        while let Some(completion) = self.inner.next() {
            if !matches!(completion, Completion::Read { .. }) {
                return Some(completion);
            }
            let due_us = (self.clock)().saturating_add(self.next_delay_us());
            self.held.insert((due_us, self.count), completion);
            self.count += 1;
        }
        let first = self.held.first_entry()?;
        let (due_us, _) = *first.key();
        ((self.clock)() >= due_us).then(|| first.remove())
    }

    fn next_timeout_us(&self) -> Option<u64> {
        let inner = self.inner.next_timeout_us();
        let held = self.held.first_key_value().map(|(&(due_us, _), _)| due_us);
        inner.into_iter().chain(held).min()
    }

    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.inner.wake_fds()
    }
}

impl fmt::Debug for DelayReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayReader")
            .field("delay", &self.delay)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
