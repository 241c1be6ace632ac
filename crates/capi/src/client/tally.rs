//! What sockets of a program have done, summed over all its processes: counters in a memory file
//! that the program's images inherit, for who has started it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use shm::memory::{Mapping, create_file};

use super::own;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Connections that a listener has taken.
    Accepted,
    /// Connections that were begun.
    Begun,
    /// Bytes that were sent as such.
    Sent,
    /// Bytes of files that were queued, and which the program never has.
    FileBytes,
    /// Bytes that were received.
    Received,
    /// Sockets that have begun to listen, and are the kernel's.
    KernelListeners,
    /// Connections that were begun, and are the kernel's.
    KernelConnections,
    /// Bytes that a NIC stack has moved from one connection to another, as the program would have.
    Passed,
}

/// How many there are.
const WORDS: usize = 8;

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Tally(Mapping);

impl Tally {
    /// A new one, of zeros, and its file.
    pub fn create() -> io::Result<(Tally, OwnedFd)> {
        let file = create_file(c"splitway-tally", WORDS)?;
        Ok((Tally::of(file.as_fd())?, file))
    }

    /// The one of a file.
    fn of(file: BorrowedFd<'_>) -> io::Result<Tally> {
        Mapping::new(file, WORDS).map(Tally)
    }

    /// How often, or how many bytes.
    pub fn get(&self, what: Counted) -> u64 {
        self.0.words()[what as usize].load(Ordering::Relaxed)
    }

    fn add(&self, what: Counted, count: u64) {
        self.0.words()[what as usize].fetch_add(count, Ordering::Relaxed);
    }
}

static OWN: OnceLock<Tally> = OnceLock::new();

/// From here on, this process and its children count there. The file stays open, whatever the
/// program closes, for its next image.
pub fn count_in(file: BorrowedFd<'_>) -> io::Result<()> {
    let tally = Tally::of(file)?;
    if OWN.set(tally).is_ok() {
        own::keep_in_children(file);
    }
    Ok(())
}

/// Whether anything is counted.
pub fn is_counting() -> bool {
    OWN.get().is_some()
}

/// Counts, if this process does.
pub fn count(what: Counted, count: usize) {
    if let Some(tally) = OWN.get() {
        tally.add(what, count as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_counted_by_itself_and_a_file_of_another_kind_is_refused() {
        let (tally, file) = Tally::create().unwrap();
        let others = Tally::of(file.as_fd()).unwrap();
        others.add(Counted::Accepted, 1);
        others.add(Counted::KernelConnections, 2);
        others.add(Counted::KernelConnections, 3);
        assert_eq!(tally.get(Counted::Accepted), 1);
        assert_eq!(tally.get(Counted::KernelConnections), 5);
        assert_eq!(tally.get(Counted::KernelListeners), 0);
        let other = create_file(c"other", WORDS + 1).unwrap();
        assert!(Tally::of(other.as_fd()).is_err());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Tally::of(null.as_fd()).is_err());
    }
}
