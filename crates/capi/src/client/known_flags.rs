//! Descriptors whose `O_NONBLOCK` is known. Calls ask the kernel for it by fcntl(2), which the
//! filter of a confined process may forbid. So the flag of all sockets is noted before, and is
//! valid until the program changes it or reuses the number.
//!
//! `O_NONBLOCK` belongs to the open file description (open(2)), which all duplicates share: a
//! change through one descriptor affects all. A change by another process is not noticed.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};

use super::numbers::Numbers;

static KNOWN: Numbers = Numbers::new();

/// Set once the flags of any descriptor were noted.
static IS_ANY_KNOWN: AtomicBool = AtomicBool::new(false);

/// Known descriptors that do not block.
static NONBLOCKING: Numbers = Numbers::new();

/// Reports whether a descriptor is non-blocking, if that is known.
pub(super) fn is_nonblocking(fd: BorrowedFd<'_>) -> Option<bool> {
    let fd = fd.as_raw_fd();
    KNOWN.has(fd).then(|| NONBLOCKING.has(fd))
}

/// Notes whether a descriptor is non-blocking.
pub(super) fn note(fd: BorrowedFd<'_>) {
    let Ok(flags) = fcntl_getfl(fd) else {
        return;
    };
    let number = fd.as_raw_fd();
    if flags.contains(OFlags::NONBLOCK) {
        NONBLOCKING.insert(number);
    } else {
        NONBLOCKING.remove(number);
    }
    KNOWN.insert(number);
    IS_ANY_KNOWN.store(true, Ordering::Release);
}

/// Reports whether the flags of any descriptor were ever noted.
pub(super) fn is_any_known() -> bool {
    IS_ANY_KNOWN.load(Ordering::Acquire)
}

/// Forgets a number that is reused for another descriptor.
pub(super) fn forget(fd: RawFd) {
    if KNOWN.has(fd) {
        KNOWN.remove(fd);
    }
}
