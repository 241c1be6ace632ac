//! Descriptors that the library has for itself. A program that closes all that it has not opened,
//! as daemons do when they start, must not close these: the library would go on to use numbers that
//! are others'.
//!
//! What is [`Kept`] stays open, whatever the program does with its number. What is in store will be
//! the program's when it is taken out of the store: until then the library gives it up to a program
//! that closes it, or puts another in its place.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;

use super::numbers::Numbers;

/// Library descriptors lie above those that a program counts on, such as 0 to 2 after a `close`.
pub(crate) const LIBRARY_FDS_FROM: RawFd = 64;

static KEPT: Numbers = Numbers::new();
static KEPT_IN_CHILDREN: Numbers = Numbers::new();
static STORED: Numbers = Numbers::new();

/// Moves a descriptor of the library out of the way, where there is room.
pub(crate) fn move_up(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() >= LIBRARY_FDS_FROM {
        return fd;
    }
    fcntl_dupfd_cloexec(&fd, LIBRARY_FDS_FROM).unwrap_or(fd)
}

/// Whether a number is one that stays open.
pub(crate) fn is_kept(fd: RawFd) -> bool {
    KEPT.has(fd) || KEPT_IN_CHILDREN.has(fd)
}

/// All that stay open, in order.
pub(crate) fn kept() -> Vec<RawFd> {
    let mut kept = KEPT.all();
    kept.extend(KEPT_IN_CHILDREN.all());
    kept.sort_unstable();
    kept
}

/// Whether a number stays open in children, and where no process is attached.
pub fn is_kept_in_children(fd: RawFd) -> bool {
    KEPT_IN_CHILDREN.has(fd)
}

/// All that do, in order.
pub fn kept_in_children() -> Vec<RawFd> {
    KEPT_IN_CHILDREN.all()
}

/// From here on, a number stays open in this process and its children.
pub(crate) fn keep_in_children(fd: BorrowedFd<'_>) {
    KEPT_IN_CHILDREN.insert(fd.as_raw_fd());
}

/// From here on, a number is one that stays open, until it is forgotten.
pub(crate) fn keep(fd: BorrowedFd<'_>) {
    KEPT.insert(fd.as_raw_fd());
}

/// The library is about to close it.
pub(crate) fn forget(fd: BorrowedFd<'_>) {
    KEPT.remove(fd.as_raw_fd());
}

/// A descriptor that stays open, whatever the program does with its number.
#[derive(Debug)]
pub(crate) struct Kept(OwnedFd);

impl Kept {
    pub(crate) fn new(fd: OwnedFd) -> Kept {
        let fd = move_up(fd);
        keep(fd.as_fd());
        Kept(fd)
    }
}

impl std::ops::Deref for Kept {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        forget(self.as_fd());
    }
}

/// Numbers of descriptors that another type owns, and that stay open. It is dropped before these.
#[derive(Debug)]
pub(crate) struct KeptNumbers(Vec<RawFd>);

impl KeptNumbers {
    pub(crate) fn of(numbers: impl IntoIterator<Item = RawFd>) -> KeptNumbers {
        let numbers: Vec<RawFd> = numbers.into_iter().collect();
        numbers.iter().for_each(|number| KEPT.insert(*number));
        KeptNumbers(numbers)
    }
}

impl Drop for KeptNumbers {
    fn drop(&mut self) {
        self.0.iter().for_each(|number| KEPT.remove(*number));
    }
}

/// Whether a number is that of a descriptor in store.
pub(crate) fn is_stored(fd: RawFd) -> bool {
    STORED.has(fd)
}

/// All that are in store.
pub(crate) fn stored() -> Vec<RawFd> {
    STORED.all()
}

/// It is in store from now on.
pub(crate) fn store(fd: BorrowedFd<'_>) {
    STORED.insert(fd.as_raw_fd());
}

/// It is in store no more.
pub(crate) fn take_out(fd: BorrowedFd<'_>) {
    STORED.remove(fd.as_raw_fd());
}

/// In a child, which has none of its own yet. What its parent has, it does not need, and need not
/// have: descriptors were copied before memory.
pub(crate) fn forget_inherited() {
    KEPT.clear();
    STORED.clear();
}

/// A number is the program's now, which closes it.
pub(crate) fn give_up(fd: OwnedFd) {
    STORED.remove(fd.into_raw_fd());
}
