//! Cancellation (pthreads(7)) of threads that wait in a call on split sockets.
//!
//! The C library ends a thread only in its own functions. A call that waits here therefore fails
//! with ECANCELED once its thread is cancelled, and its caller then enters the C library, with
//! nothing left to drop. Without a caller that notes cancellations (libsplitway-preload), none is
//! noticed.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::{Errno, Result};

use super::application::Client;
use crate::sys;

/// Most threads whose cancellation is noted. A further one replaces another, which ends at its next
/// call if it has not woken yet.
const NOTED_MAX: usize = 1024;

/// Cancelled threads, by their `pthread_self`; 0 is a free place. Atomics, since a fork may occur
/// while a thread is in this module.
static NOTED: [AtomicUsize; NOTED_MAX] = [const { AtomicUsize::new(0) }; NOTED_MAX];

/// Number of cancellations noted so far.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Client {
    /// Notes that the program has cancelled a thread, given by its `pthread_self`, and ends its
    /// wait.
    pub fn cancel(&self, thread: usize) {
        note(thread);
        if let Ok(process) = self.process() {
            process.link.wake_all();
        }
    }
}

fn note(thread: usize) {
    let is_noted = NOTED
        .iter()
        .any(|noted| noted.load(Ordering::SeqCst) == thread);
    if is_noted {
        return;
    }
    let place = COUNT.fetch_add(1, Ordering::SeqCst);
    let take = |noted: &&AtomicUsize| {
        let taken = noted.compare_exchange(0, thread, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok()
    };
    if NOTED.iter().find(take).is_none() {
        NOTED[place % NOTED_MAX].store(thread, Ordering::SeqCst);
    }
}

/// Fails with ECANCELED if this thread is cancelled and has cancellation enabled
/// (pthread_setcancelstate(3)).
pub(crate) fn check() -> Result<()> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    let this = sys::this_thread();
    let mut noted = NOTED.iter();
    let is_noted = noted.any(|noted| noted.load(Ordering::SeqCst) == this);
    if is_noted && sys::is_cancelable() {
        Err(Errno::CANCELED)
    } else {
        Ok(())
    }
}

/// Removes the note on this thread. The caller next enters the C library, which acts on the
/// cancellation.
pub fn forget() {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    let this = sys::this_thread();
    for noted in &NOTED {
        let _ = noted.compare_exchange(this, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_to_end_until_that_is_forgotten() {
        let other = std::thread::spawn(|| {
            assert_eq!(check(), Ok(()));
            note(sys::this_thread());
            assert_eq!(check(), Err(Errno::CANCELED));
            forget();
            assert_eq!(check(), Ok(()));
        });
        other.join().unwrap();
        assert_eq!(check(), Ok(()));
    }
}
