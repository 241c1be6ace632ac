//! Locks for which a child of a fork never waits: each names the process of its holder (`fork.rs`),
//! and a child takes a lock that a thread of its parent held at the fork.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use super::fork;

/// Generation of no process: no thread holds the lock.
const FREE: u32 = 0;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ForkLock {
    /// Generation of the process that holds the lock, or [`FREE`].
    holder: AtomicU32,
}

/// Holds the lock until it is dropped.
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
        // Until forks are watched, a child has the generation of its parent.
        fork::watch();
        let own = fork::generation();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            if holder == own {
                // The loop checks again after a signal, and after a change of the holder.
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
        // A thread of a child, forked by a signal handler meanwhile, may hold the lock now.
        if self.lock.swap(self.holder, FREE, Ordering::Release) {
            let _ = futex::wake(&self.lock.holder, futex::Flags::PRIVATE, 1);
        }
    }
}
