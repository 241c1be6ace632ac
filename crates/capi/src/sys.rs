//! Calls of the C library that have no safe form.

use std::mem::MaybeUninit;
use std::ptr;

/// Has `in_parent` and `in_child` called after each fork, in the process that each names. They
/// touch atomics only.
pub(crate) fn at_fork(in_parent: extern "C" fn(), in_child: extern "C" fn()) -> bool {
    // SAFETY: both functions live as long as the program, and are async-signal-safe.
    let status = unsafe {
        let call = |function: extern "C" fn()| Some(function as unsafe extern "C" fn());
        libc::pthread_atfork(None, call(in_parent), call(in_child))
    };
    status == 0
}

/// Runs `work` with all signals of this thread blocked: a thread that it starts gets none.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises `all`, and `pthread_sigmask` reads it and writes `before`.
    let is_blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let done = work();
    if is_blocked {
        // SAFETY: `before` was written by the call that succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    done
}
