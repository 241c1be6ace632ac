//! Locks for which a child of a fork never waits: each names the process of its holder (`fork.rs`),
//! and a child takes a lock that a thread of its parent held at the fork.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use super::fork;

/// The number of no process: no thread holds the lock.
const FREE: u32 = 0;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ForkLock {
    /// The number of the process that holds it, or [`FREE`].
    holder: AtomicU32,
}

/// A thread holds the lock until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    lock: &'a ForkLock,
    holder: u32,
}

impl ForkLock {
    pub(crate) const fn new() -> ForkLock {
        ForkLock {
            holder: AtomicU32::new(FREE),
        }
    }

    /// Waits until no other thread of this process holds the lock.
    pub(crate) fn lock(&self) -> Held<'_> {
        // Before, a child has the number of its parent.
        fork::watch();
        let own = fork::generation();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            if holder == own {
                // Looks again after a signal, and if the holder has changed.
                let _ = futex::wait(&self.holder, futex::Flags::PRIVATE, own, None);
            } else if self.swap(holder, own, Ordering::Acquire) {
                return Held {
                    lock: self,
                    holder: own,
                };
            }
        }
    }

    fn swap(&self, from: u32, to: u32, order: Ordering) -> bool {
        let swapped = self
            .holder
            .compare_exchange(from, to, order, Ordering::Relaxed);
        swapped.is_ok()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A thread of a child, made by a signal handler meanwhile, may hold it now.
        if self.lock.swap(self.holder, FREE, Ordering::Release) {
            let _ = futex::wake(&self.lock.holder, futex::Flags::PRIVATE, 1);
        }
    }
}
