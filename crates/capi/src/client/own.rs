//! Descriptors of the library itself. A program that closes all descriptors that it has not opened,
//! as daemons do when they start, must not close these: the library would continue to use numbers
//! that now belong to others.
//!
//! A [`Kept`] descriptor stays open even if the program closes its number. A descriptor in store is
//! handed to the program later: until then the library gives it up if the program closes or
//! replaces its number.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;

use super::numbers::Numbers;

/// Lowest number of library descriptors: programs count on low ones, such as 0 to 2 after a
/// `close`.
pub(crate) const LIBRARY_FDS_FROM: RawFd = 64;

static KEPT: Numbers = Numbers::new();
static KEPT_IN_CHILDREN: Numbers = Numbers::new();
static STORED: Numbers = Numbers::new();

/// Moves a descriptor of the library to a high number, if one is free.
pub(crate) fn move_up(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() >= LIBRARY_FDS_FROM {
        return fd;
    }
    fcntl_dupfd_cloexec(&fd, LIBRARY_FDS_FROM).unwrap_or(fd)
}

/// Reports whether a number stays open.
pub(crate) fn is_kept(fd: RawFd) -> bool {
    KEPT.has(fd) || KEPT_IN_CHILDREN.has(fd)
}

/// Returns all numbers that stay open, in order.
pub(crate) fn kept() -> Vec<RawFd> {
    let mut kept = KEPT.all();
    kept.extend(KEPT_IN_CHILDREN.all());
    kept.sort_unstable();
    kept
}

/// Reports whether a number stays open in children, including unattached processes.
pub fn is_kept_in_children(fd: RawFd) -> bool {
    KEPT_IN_CHILDREN.has(fd)
}

/// Returns all numbers that stay open in children, in order.
pub fn kept_in_children() -> Vec<RawFd> {
    KEPT_IN_CHILDREN.all()
}

/// Keeps a number open in this process and its children from now on.
pub(crate) fn keep_in_children(fd: BorrowedFd<'_>) {
    KEPT_IN_CHILDREN.insert(fd.as_raw_fd());
}

/// Keeps a number open until it is forgotten.
pub(crate) fn keep(fd: BorrowedFd<'_>) {
    KEPT.insert(fd.as_raw_fd());
}

/// Stops keeping a number, which the library closes next.
pub(crate) fn forget(fd: BorrowedFd<'_>) {
    KEPT.remove(fd.as_raw_fd());
}

/// A descriptor that stays open even if the program closes its number.
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

/// Numbers that stay open and whose descriptors another type owns. The owner is dropped first.
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

/// Reports whether a number is that of a descriptor in store.
pub(crate) fn is_stored(fd: RawFd) -> bool {
    STORED.has(fd)
}

/// Returns all numbers in store.
pub(crate) fn stored() -> Vec<RawFd> {
    STORED.all()
}

/// Records a descriptor as stored.
pub(crate) fn store(fd: BorrowedFd<'_>) {
    STORED.insert(fd.as_raw_fd());
}

/// Records a descriptor as taken out of the store.
pub(crate) fn take_out(fd: BorrowedFd<'_>) {
    STORED.remove(fd.as_raw_fd());
}

/// Forgets the parent's numbers in a child, which does not need them. They may not exist in it,
/// since descriptors were copied before memory.
pub(crate) fn forget_inherited() {
    KEPT.clear();
    STORED.clear();
}

/// Gives a descriptor in store to the program, which closes it.
pub(crate) fn give_up(fd: OwnedFd) {
    STORED.remove(fd.into_raw_fd());
}
