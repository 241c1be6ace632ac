//! Forks: how a process notices that it is a copy of another, or has been copied.
//!
//! A child has the memory of its parent, so its first call finds the parent's channel. One page of
//! memory is empty in each child, however it was created (`MADV_WIPEONFORK`): it holds the number
//! of forks that led to the process, so no call asks for its process ID. Another counter holds the
//! number of forks that the process has made. Handlers of `pthread_atfork` count these, and record
//! epoll sets (`set_copies.rs`). The child never waits for a lock that another thread of the parent
//! may have held: [`crate::client::Client`] keeps inherited state in atomics, publishes pages and
//! processes when they are complete, and takes locks that name the process of their holder
//! (`fork_lock.rs`). A child creates all other state itself.
//!
//! A process made by `vfork` shares the memory until it calls `exec`, and acts for its parent.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use once_cell::race::OnceBox;
use rustix::io::Result;

use super::{own, set_copies};
use crate::sys;

/// Highest generation assigned so far: that in the page, or a larger one about to be written there.
static FORKS_BEFORE: AtomicU32 = AtomicU32::new(FIRST);
static FORKS_MADE: AtomicU32 = AtomicU32::new(0);
static COPIES: AtomicU32 = AtomicU32::new(0);
static PAGE: OnceBox<Page> = OnceBox::new();
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Generation of the process that started to count; 0 marks an emptied page.
const FIRST: u32 = 1;

#[derive(Debug)]
struct Page {
    generation: &'static AtomicU32,
    /// The kernel empties the page in children.
    is_wiped: bool,
}

extern "C" fn before() {
    note_copies();
    set_copies::before_fork(generation());
}

extern "C" fn in_parent() {
    FORKS_MADE.fetch_add(1, Ordering::SeqCst);
    note_copies();
    set_copies::after_fork(None);
}

extern "C" fn in_child() {
    wipe();
    set_copies::after_fork(Some(generation()));
}

/// Empties the page in a child, where the kernel does not.
fn wipe() {
    if let Some(page) = PAGE.get().filter(|page| !page.is_wiped) {
        page.generation.store(0, Ordering::Relaxed);
    }
}

/// Records a fork without handlers, as `_Fork` and `clone` of the C library make it, in the child
/// or in its parent. The child inherits no epoll set.
pub fn note_bare_fork(is_child: bool) {
    if is_child {
        wipe();
    } else {
        FORKS_MADE.fetch_add(1, Ordering::SeqCst);
        note_copies();
    }
}

/// Notes that another process may have copies of all descriptors. To be called before such a
/// process is created, and after: descriptors that threads have opened in between are copied too.
pub fn note_copies() {
    COPIES.fetch_add(1, Ordering::SeqCst);
}

/// Returns a number that grows with each copy of all descriptors: [`note_copies`].
pub(crate) fn copies() -> u32 {
    COPIES.load(Ordering::SeqCst)
}

/// Starts counting forks, unless this process already does. Returns false if there is no memory for
/// it.
pub fn watch() -> bool {
    if IS_WATCHED.load(Ordering::Acquire) {
        return true;
    }
    // Several threads, or a child of one, may each add the handlers; running twice does no harm.
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

/// Returns the generation of this process: a number that grows with each fork that led to it, and
/// differs from those of the processes before it and of its children.
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

/// Assigns a generation on a child's first look. A child forked meanwhile gets another one.
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

/// Returns the number of children that this process, and those before it, have made. State created
/// before the last fork is shared with that child.
pub(crate) fn children() -> u32 {
    FORKS_MADE.load(Ordering::SeqCst)
}
