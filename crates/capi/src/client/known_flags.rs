//! Descriptors of which it is known whether they block. A call asks the kernel by fcntl(2), which
//! the filter of a confined process may not permit. So that is noted of all sockets before, until
//! the program changes it or the number is another's.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl};

use super::numbers::Numbers;

static KNOWN: Numbers = Numbers::new();

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
}

/// The flags of a descriptor are others now, or it is another.
pub fn forget_flags(fd: RawFd) {
    if KNOWN.has(fd) {
        KNOWN.remove(fd);
    }
}
