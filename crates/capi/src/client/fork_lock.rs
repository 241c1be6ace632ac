//! Locks that a child of a fork never finds taken: each names the process whose thread has it
//! (`fork.rs`), and a child takes over what another thread of its parent had at the fork.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use super::fork;

/// 0: no thread has it.
const FREE: u32 = 0;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ForkLock {
    /// Forks that led to the process that has it.
    holder: AtomicU32,
}

/// A thread has the lock until this is dropped.
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

    /// Waits until no other thread of this process has it.
    pub(crate) fn lock(&self) -> Held<'_> {
        // Otherwise a child has the number of its parent.
        fork::watch();
        let own = fork::generation();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            if holder == own {
                // A signal, or another holder by now: it looks again.
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
        // In a child that a signal handler has made meanwhile, another thread may have it.
        if self.lock.swap(self.holder, FREE, Ordering::Release) {
            let _ = futex::wake(&self.lock.holder, futex::Flags::PRIVATE, 1);
        }
    }
}
