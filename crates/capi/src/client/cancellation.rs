//! Cancellation (pthreads(7)) of threads that wait in a call on split sockets.
//!
//! The C library ends a thread in its own functions only. So a call that waits here fails with
//! ECANCELED once its thread is to end, and the C library is asked by the caller, which has nothing
//! to drop by then. Without a caller that notes cancellations (libsplitway-preload), none is seen.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::{Errno, Result};

use super::application::Client;
use crate::sys;

/// Threads whose cancellation is noted, at most. A further one takes the place of another, which
/// ends at its next call if it was not awake yet.
const NOTED_MAX: usize = 1024;

/// Threads that are to end, by what `pthread_self` returns in them; 0 is none. Atomics, since a
/// fork may come while any thread is in here.
static NOTED: [AtomicUsize; NOTED_MAX] = [const { AtomicUsize::new(0) }; NOTED_MAX];

/// How many have been noted.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Client {
    /// Notes that the C library has been asked to end a thread, by what `pthread_self` returns in
    /// it, and ends its wait.
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

/// Fails with ECANCELED if this thread is to end, and does not put that off
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

/// Forgets what is noted of this thread. Its caller asks the C library next, which knows of it.
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
