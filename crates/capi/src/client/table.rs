//! Which descriptors are split sockets: a table from descriptor to socket.
//!
//! It is an atomic word for each descriptor, in pages made as they are needed: a child of a fork
//! inherits it whole, whatever other threads of its parent did meanwhile.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, Result};
use socket_channel::SocketId;

/// Together with [`PAGE_SLOTS`] as many descriptors as `fs.nr_open` allows by default.
const PAGES: usize = 1024;
const PAGE_SLOTS: usize = 1024;

type Page = Box<[AtomicU64]>;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Table {
    pages: Box<[OnceLock<Page>]>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
        }
    }

    fn slot(&self, fd: RawFd) -> Option<&AtomicU64> {
        let fd = usize::try_from(fd).ok()?;
        self.pages.get(fd / PAGE_SLOTS)?.get()?.get(fd % PAGE_SLOTS)
    }

    /// The socket behind a descriptor.
    pub(crate) fn get(&self, fd: RawFd) -> Option<SocketId> {
        SocketId::from_raw(self.slot(fd)?.load(Ordering::Acquire))
    }

    /// Whether a socket is behind any descriptor. It looks at all of them.
    pub(crate) fn has(&self, socket: SocketId) -> bool {
        let raw = socket.to_raw();
        let mut slots = self.pages.iter().filter_map(OnceLock::get).flatten();
        slots.any(|slot| slot.load(Ordering::Acquire) == raw)
    }

    /// All descriptors behind which sockets are. It looks at all of them.
    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter_map(|(number, page)| Some((number * PAGE_SLOTS, page.get()?)));
        let used = pages.flat_map(|(first, page)| {
            let slots = page.iter().enumerate();
            let used = slots.filter(|(_, slot)| slot.load(Ordering::Acquire) != 0);
            used.map(move |(place, _)| (first + place) as RawFd)
        });
        used.collect()
    }

    /// Notes the socket behind a descriptor; EMFILE beyond the table.
    pub(crate) fn insert(&self, fd: RawFd, socket: SocketId) -> Result<()> {
        let place = usize::try_from(fd).map_err(|_| Errno::BADF)?;
        let page = self.pages.get(place / PAGE_SLOTS).ok_or(Errno::MFILE)?;
        let page = page.get_or_init(|| (0..PAGE_SLOTS).map(|_| AtomicU64::new(0)).collect());
        page[place % PAGE_SLOTS].store(socket.to_raw(), Ordering::Release);
        Ok(())
    }

    /// Forgets a descriptor; tells which socket was behind it.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<SocketId> {
        SocketId::from_raw(self.slot(fd)?.swap(0, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_found_until_it_is_removed() {
        let table = Table::new();
        let id = SocketId {
            index: 5,
            generation: 1,
        };
        assert_eq!(table.get(3), None);
        table.insert(3, id).unwrap();
        table.insert(5000, id).unwrap();
        assert_eq!((table.get(3), table.get(5000)), (Some(id), Some(id)));
        assert_eq!(table.numbers(), [3, 5000]);
        assert_eq!(table.remove(3), Some(id));
        assert_eq!((table.get(3), table.remove(3)), (None, None));
    }

    #[test]
    fn numbers_out_of_range_are_no_sockets() {
        let table = Table::new();
        let id = SocketId {
            index: 0,
            generation: 1,
        };
        let beyond = (PAGES * PAGE_SLOTS) as RawFd;
        assert_eq!(table.insert(beyond, id), Err(Errno::MFILE));
        assert_eq!(table.insert(-1, id), Err(Errno::BADF));
        assert_eq!((table.get(beyond), table.get(-1)), (None, None));
    }
}
