//! `errno`, and results as return values.

use std::os::fd::{IntoRawFd, OwnedFd};

use rustix::io::{Errno, Result};

/// Sets `errno` of this thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the C library gives each thread an address that is valid as long as the thread.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// Returns the result of a call that returns 0 on success.
pub(crate) fn zero(result: Result<()>) -> libc::c_int {
    number(result.map(|()| 0))
}

/// Returns the result of a call that returns a number.
pub(crate) fn number(result: Result<libc::c_int>) -> libc::c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Returns the result of a call that returns a number of bytes.
pub(crate) fn length(result: Result<usize>) -> libc::ssize_t {
    match result {
        Ok(len) => libc::ssize_t::try_from(len).unwrap_or(libc::ssize_t::MAX),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Returns the result of a call that returns a descriptor.
pub(crate) fn descriptor(result: Result<OwnedFd>) -> libc::c_int {
    number(result.map(IntoRawFd::into_raw_fd))
}
