//! Counters of a program's sockets, summed over all its processes, in a memory file that the
//! program's images inherit: for the process that has started the program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use shm::memory::{Mapping, create_file};

use super::own;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Connections accepted by listeners.
    Accepted,
    /// Connections that the program has begun to open.
    Begun,
    /// Bytes sent from memory.
    Sent,
    /// Bytes of files queued, which never enter the program.
    FileBytes,
    /// Bytes received.
    Received,
    /// Kernel sockets that have begun to listen.
    KernelListeners,
    /// Kernel sockets that have begun to connect.
    KernelConnections,
    /// Bytes that a NIC stack has moved from one connection to another, instead of the program.
    Passed,
}

/// Number of counters.
const WORDS: usize = 8;

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Tally(Mapping);

impl Tally {
    /// Creates counters of zero, and their file.
    pub fn create() -> io::Result<(Tally, OwnedFd)> {
        let file = create_file(c"splitway-tally", WORDS)?;
        Ok((Tally::of(file.as_fd())?, file))
    }

    /// Maps the counters of a file.
    fn of(file: BorrowedFd<'_>) -> io::Result<Tally> {
        Mapping::new(file, WORDS).map(Tally)
    }

    /// Returns a counter.
    pub fn get(&self, what: Counted) -> u64 {
        self.0.words()[what as usize].load(Ordering::Relaxed)
    }

    fn add(&self, what: Counted, count: u64) {
        self.0.words()[what as usize].fetch_add(count, Ordering::Relaxed);
    }
}

static OWN: OnceLock<Tally> = OnceLock::new();

/// Makes this process and its children count in a file. The file stays open for the next program
/// image, even if the program closes the number.
pub fn count_in(file: BorrowedFd<'_>) -> io::Result<()> {
    let tally = Tally::of(file)?;
    if OWN.set(tally).is_ok() {
        own::keep_in_children(file);
    }
    Ok(())
}

/// Reports whether this process counts.
pub fn is_counting() -> bool {
    OWN.get().is_some()
}

/// Adds to a counter, if this process counts.
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
