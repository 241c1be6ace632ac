//! Children of a fork, and what becomes of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work` in a child; its panic or its `false` is a failure. The host stack of a test must not
/// be passing descriptors on meanwhile.
pub(crate) fn in_child(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: what the child calls takes no lock that another thread may have had at the fork, but
    // the allocator's, which the C library keeps usable.
    let child = unsafe { libc::fork() };
    if child == 0 {
        end_with(work);
    }
    assert!(child > 0);
    child
}

/// Runs `work`, and ends this process, a child, at once.
pub(crate) fn end_with(work: impl FnOnce() -> bool) -> ! {
    let done = catch_unwind(AssertUnwindSafe(work));
    let status = if matches!(done, Ok(true)) { 0 } else { 1 };
    // SAFETY: it ends the process at once.
    unsafe { libc::_exit(status) }
}

/// Ends this process by a signal after so many seconds.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: it takes a number.
    unsafe { libc::alarm(seconds) };
}

/// Waits for the end of a child; whether its work has succeeded.
pub(crate) fn has_done(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is valid, and the child is ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (waited, status) == (child, 0)
}

/// Asserts that the work of a child has succeeded.
#[track_caller]
pub(crate) fn assert_done(child: libc::pid_t) {
    assert!(has_done(child), "the child has failed");
}
