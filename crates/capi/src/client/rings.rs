//! How often a process was rung: a word on which threads sleep that can have no descriptor for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::Timespec;
use rustix::thread::futex;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Rings {
    count: AtomicU32,
    listeners: AtomicU32,
}

/// A thread that hears all rings until this is dropped.
#[derive(Debug)]
pub(crate) struct Listener<'a> {
    rings: &'a Rings,
    heard: Cell<u32>,
}

impl Rings {
    pub(crate) fn ring(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // One that is not counted yet reads the new count.
        if self.listeners.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.count, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    pub(crate) fn listen(&self) -> Listener<'_> {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        let heard = Cell::new(self.count.load(Ordering::SeqCst));
        Listener { rings: self, heard }
    }
}

impl Listener<'_> {
    /// Sleeps until there is a ring that it has not heard, the timeout is over or a signal comes.
    pub(crate) fn sleep(&self, timeout: Option<&Timespec>) {
        let (count, heard) = (&self.rings.count, self.heard.get());
        // Whatever has ended it, the caller looks again.
        let _ = futex::wait(count, futex::Flags::PRIVATE, heard, timeout);
        self.hear();
    }

    /// What has rung before is heard.
    pub(crate) fn hear(&self) {
        self.heard.set(self.rings.count.load(Ordering::SeqCst));
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.rings.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}
