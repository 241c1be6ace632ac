//! Calls that block: a thread sleeps until a socket is ready, a timeout is over or a signal comes.
//!
//! Each thread sleeps on a futex of its own, so a signal affects it as it affects a thread in
//! `recv` of the kernel (signal(7)): `FUTEX_WAIT` without a timeout continues after a handler with
//! `SA_RESTART` and fails with EINTR after one without; with a timeout, as with `SO_RCVTIMEO`, it
//! always fails.
//!
//! The order of steps ensures that no change is missed:
//!
//! 1. The thread joins the watchers of the socket, and clears its word.
//! 2. It requests a hint from the record, which fails if the record has changed since its last
//!    look.
//! 3. It is counted as a sleeper, so the alarm of the event ring is armed.
//! 4. It sleeps if its word is still 0. A thread that takes a hint from now on sets the word to 1.
//!
//! If the library's thread, which takes hints, cannot be started, the call polls, and any signal
//! handler ends it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::thread::futex;

use super::cancellation;
use super::link::LookAgain;
use super::own::Kept;
use super::socket::Socket;
use super::timing::{Instant, timespec};
use super::watchers::Watch;

/// A thread that blocks.
#[derive(Debug, Default)]
struct Sleeper {
    is_awake: AtomicU32,
    kept: Mutex<KeptOpen>,
}

/// A duplicate of a socket's descriptor, which keeps the socket open for a call after another
/// thread has closed the descriptor, until this is dropped.
pub(crate) type KeptOpen = Option<Arc<Kept>>;

impl Sleeper {
    fn kept(&self) -> MutexGuard<'_, KeptOpen> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Sleeper {
    fn notify(&self) -> bool {
        if self.is_awake.swap(1, Ordering::SeqCst) == 0 {
            let _ = futex::wake(&self.is_awake, futex::Flags::PRIVATE, 1);
        }
        false
    }

    fn is_call(&self) -> bool {
        true
    }

    fn keep(&self, duplicate: &Arc<Kept>) {
        *self.kept() = Some(Arc::clone(duplicate));
    }
}

/// Waits until `ready` returns a value. Another thread may have closed the socket by then, so the
/// caller may only look at it afterwards. EAGAIN after the timeout; EINTR as in the kernel.
pub(crate) fn wait<T>(
    socket: &Socket<'_>,
    timeout: Option<Duration>,
    ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait_and_go_on(socket, timeout, &mut None, ready)
}

/// Waits as [`wait`] does, for a caller that goes on to use the socket: `kept` keeps it open.
pub(crate) fn wait_and_go_on<T>(
    socket: &Socket<'_>,
    timeout: Option<Duration>,
    kept: &mut KeptOpen,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    if let Some(done) = ready()? {
        return Ok(done);
    }
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let link = &socket.process.link;
    let without_pump = socket.process.start_pump().is_err();
    let look_again = without_pump.then(LookAgain::default);
    let sleeper = Arc::new(Sleeper::default());
    let watch: Arc<dyn Watch> = Arc::clone(&sleeper) as Arc<dyn Watch>;
    link.watchers.add(socket.id.index, Arc::clone(&watch));
    let done = loop {
        sleeper.is_awake.store(0, Ordering::SeqCst);
        let edge = socket.record.edge();
        if let Err(errno) = cancellation::check() {
            break Err(errno);
        }
        match ready() {
            Ok(None) => {}
            Ok(Some(done)) => break Ok(done),
            Err(errno) => break Err(errno),
        }
        if !socket.record.want(link.channel(), edge) {
            continue;
        }
        if let Err(errno) = sleep(socket, &sleeper, deadline, look_again.as_ref()) {
            break Err(errno);
        }
    };
    link.watchers.remove(socket.id.index, &watch);
    if let Some(duplicate) = sleeper.kept().take() {
        *kept = Some(duplicate);
    }
    done
}

fn sleep(
    socket: &Socket<'_>,
    sleeper: &Sleeper,
    deadline: Option<Instant>,
    look_again: Option<&LookAgain>,
) -> Result<()> {
    let link = &socket.process.link;
    let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if remaining.is_some_and(|remaining| remaining.is_zero()) {
        return Err(Errno::AGAIN);
    }
    link.block();
    link.fall_asleep(None);
    // The host stack may have died after the last check.
    let slept = link.check().and_then(|()| {
        let until_look = look_again.map(LookAgain::next);
        let timeout = remaining.into_iter().chain(until_look).min().map(timespec);
        let flags = futex::Flags::PRIVATE;
        futex::wait(&sleeper.is_awake, flags, 0, timeout.as_ref())
    });
    link.wake_up(None);
    link.unblock();
    if look_again.is_some() {
        // If the host stack is gone, the next look reports the sockets as reset.
        let _ = link.look_at_host();
    }
    match slept {
        // The word was already 1, or the caller checks the deadline again.
        Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
