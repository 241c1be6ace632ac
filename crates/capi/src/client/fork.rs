//! Forks: how a process notices that it is a copy of another, or has been copied.
//!
//! A child has the memory of its parent, so its first call finds the parent's channel. Two counters
//! tell: one counts the forks that led to this process, one those that it has made. Handlers of
//! `pthread_atfork` count, so that no call asks for its process id, and write down epoll sets
//! (`set_copies.rs`). The child waits for no lock that another thread of the parent may have held:
//! [`crate::client::Client`] keeps what is inherited in atomics, and all else is made again.
//!
//! A process made by `vfork` shares the memory until it calls `exec`, and acts for its parent. One
//! made by the bare system call `clone` is not noticed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::set_copies;
use crate::sys;

static FORKS_BEFORE: AtomicU32 = AtomicU32::new(0);
static FORKS_MADE: AtomicU32 = AtomicU32::new(0);
static WATCHED: OnceLock<bool> = OnceLock::new();

extern "C" fn before() {
    set_copies::before_fork(generation());
}

extern "C" fn in_parent() {
    FORKS_MADE.fetch_add(1, Ordering::Relaxed);
    set_copies::after_fork(false);
}

extern "C" fn in_child() {
    FORKS_BEFORE.fetch_add(1, Ordering::Relaxed);
    set_copies::after_fork(true);
}

/// After a fork without handlers, as `_Fork` of the C library makes it: in the child, or in its
/// parent. The child has no epoll set of its parent.
pub fn note_bare_fork(is_child: bool) {
    let counter = if is_child { &FORKS_BEFORE } else { &FORKS_MADE };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Begins to count, once. False if the C library has no memory for it.
pub(crate) fn watch() -> bool {
    *WATCHED.get_or_init(|| sys::at_fork(before, in_parent, in_child))
}

/// How many forks lie between this process and the one that began to count.
pub(crate) fn generation() -> u32 {
    FORKS_BEFORE.load(Ordering::Relaxed)
}

/// How many children this process, and those before it, have made: what was made before the last
/// of them is shared with it.
pub(crate) fn children() -> u32 {
    FORKS_MADE.load(Ordering::Relaxed)
}
