//! A count of the rings of a process's bell: a futex on which threads without a descriptor sleep.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::Timespec;
use rustix::thread::futex;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Rings {
    count: AtomicU32,
    waiters: AtomicU32,
}

/// A thread that each ring wakes until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    rings: &'a Rings,
    /// The count when it last looked for changes.
    seen: Cell<u32>,
}

impl Rings {
    pub(crate) fn ring(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // A waiter not counted yet reads the new count.
        if self.waiters.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.count, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    pub(crate) fn waiter(&self) -> Waiter<'_> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let seen = Cell::new(self.count.load(Ordering::SeqCst));
        Waiter { rings: self, seen }
    }
}

impl Waiter<'_> {
    /// Sleeps until a ring since the last look, the end of the timeout, or a signal.
    pub(crate) fn sleep(&self, timeout: Option<&Timespec>) {
        let (count, seen) = (&self.rings.count, self.seen.get());
        // The caller looks again after any result.
        let _ = futex::wait(count, futex::Flags::PRIVATE, seen, timeout);
        self.update();
    }

    /// Counts all rings so far as seen.
    pub(crate) fn update(&self) {
        self.seen.set(self.rings.count.load(Ordering::SeqCst));
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.rings.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}
