//! Forks: how a process notices that it is a copy of another, or has been copied.
//!
//! A child has the memory of its parent, so its first call finds the parent's channel. One page of
//! memory is empty in each child, however it was made (`MADV_WIPEONFORK`): it holds the number of
//! forks that led to the process, so no call asks for its process id. Another counter has those
//! that the process has made. Handlers of `pthread_atfork` count these, and write down epoll sets
//! (`set_copies.rs`). The child waits for no lock that another thread of the parent may have held:
//! [`crate::client::Client`] keeps inherited state in atomics, publishes pages and processes when
//! they are complete, and takes locks that name the process of their holder (`fork_lock.rs`). A
//! child makes everything else again.
//!
//! A process made by `vfork` shares the memory until it calls `exec`, and acts for its parent.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use once_cell::race::OnceBox;
use rustix::io::Result;

use super::{own, set_copies};
use crate::sys;

/// The number in the page, or a larger one if that is being written.
static FORKS_BEFORE: AtomicU32 = AtomicU32::new(FIRST);
static FORKS_MADE: AtomicU32 = AtomicU32::new(0);
static PAGE: OnceBox<Page> = OnceBox::new();
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// The number of the process that began to count: an empty page holds none.
const FIRST: u32 = 1;

#[derive(Debug)]
struct Page {
    generation: &'static AtomicU32,
    /// The kernel empties it in children.
    is_wiped: bool,
}

extern "C" fn before() {
    set_copies::before_fork(generation());
}

extern "C" fn in_parent() {
    FORKS_MADE.fetch_add(1, Ordering::Relaxed);
    set_copies::after_fork(false);
}

extern "C" fn in_child() {
    wipe();
    set_copies::after_fork(true);
}

/// In a child, where the kernel does not empty the page.
fn wipe() {
    if let Some(page) = PAGE.get().filter(|page| !page.is_wiped) {
        page.generation.store(0, Ordering::Relaxed);
    }
}

/// After a fork without handlers, as `_Fork` and `clone` of the C library make it: in the child, or
/// in its parent. The child has no epoll set of its parent.
pub fn note_bare_fork(is_child: bool) {
    if is_child {
        wipe();
    } else {
        FORKS_MADE.fetch_add(1, Ordering::Relaxed);
    }
}

/// Begins to count, unless this process counts already. False if there is no memory for it.
pub fn watch() -> bool {
    if IS_WATCHED.load(Ordering::Acquire) {
        return true;
    }
    // Of several threads, and a child of one, each may add the handlers: twice, they do the same.
    let is_watched =
        PAGE.get_or_try_init(new_page).is_ok() && sys::at_fork(before, in_parent, in_child);
    IS_WATCHED.fetch_or(is_watched, Ordering::AcqRel);
    is_watched
}

fn new_page() -> Result<Box<Page>> {
    let (generation, is_wiped) = sys::page_that_children_find_empty()?;
    generation.store(FIRST, Ordering::Relaxed);
    Ok(Box::new(Page {
        generation,
        is_wiped,
    }))
}

/// What tells this process from those before it, and from its children: a number that grows by each
/// fork that led to it.
pub fn generation() -> u32 {
    match PAGE
        .get()
        .map(|page| page.generation.load(Ordering::Relaxed))
    {
        Some(0) => count(),
        Some(generation) => generation,
        None => FIRST,
    }
}

/// The first look of a child. One that is forked meanwhile gets another number.
#[cold]
fn count() -> u32 {
    let Some(page) = PAGE.get() else {
        return FIRST;
    };
    let next = FORKS_BEFORE.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    // Another thread may have been faster.
    let word = page.generation;
    if let Err(other) = word.compare_exchange(0, next, Ordering::SeqCst, Ordering::SeqCst) {
        return other;
    }
    own::forget_inherited();
    next
}

/// How many children this process, and those before it, have made: what was made before the last
/// of them is shared with it.
pub(crate) fn children() -> u32 {
    FORKS_MADE.load(Ordering::Relaxed)
}
