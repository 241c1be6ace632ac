//! Calls of the C library that have no safe form.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

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

/// Has the number of a descriptor lead to another open file, which is closed by `exec`. A child
/// that is forked meanwhile has the one or the other.
pub(crate) fn replace(descriptor: &OwnedFd, other: OwnedFd) -> rustix::io::Result<()> {
    let (from, to) = (other.as_raw_fd(), descriptor.as_raw_fd());
    // SAFETY: both are open, and their owners do not close them meanwhile. What `descriptor` led to
    // is closed, and its number stays its own.
    let replaced = unsafe { libc::dup3(from, to, libc::O_CLOEXEC) };
    if replaced == to {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
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
