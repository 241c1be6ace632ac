//! Descriptors of which it is known whether they block. A call asks the kernel by fcntl(2), which
//! the filter of a confined process may not permit. So that is noted of all sockets before, until
//! the program changes it or the number is another's.
//!
//! `O_NONBLOCK` belongs to the open file description (open(2)), which all duplicates share: a
//! change by one descriptor changes all. A change by another process is not noticed.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};

use super::numbers::Numbers;

static KNOWN: Numbers = Numbers::new();

/// Whether the flags of any descriptor were ever noted.
static IS_ANY_KNOWN: AtomicBool = AtomicBool::new(false);

/// Those that do not block.
static NONBLOCKING: Numbers = Numbers::new();

/// Whether a descriptor is non-blocking, if that is known.
pub(super) fn is_nonblocking(fd: BorrowedFd<'_>) -> Option<bool> {
    let fd = fd.as_raw_fd();
    KNOWN.has(fd).then(|| NONBLOCKING.has(fd))
}

/// From here on, it is known of this descriptor.
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

/// Whether the flags of any descriptor were ever noted.
pub(super) fn is_any_known() -> bool {
    IS_ANY_KNOWN.load(Ordering::Acquire)
}

/// The number is another descriptor now.
pub(super) fn forget(fd: RawFd) {
    if KNOWN.has(fd) {
        KNOWN.remove(fd);
    }
}
