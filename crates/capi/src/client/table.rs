//! Which descriptors are split sockets: a table from descriptor to socket.
//!
//! The table consists of atomics, in pages created on demand and published when complete: a child
//! of a fork never sees an incomplete page. But the kernel copies descriptors before memory, so
//! another thread may have closed or opened a socket in between: in a child, an entry is valid only
//! after a check of the descriptor's handle. Entries name that handle, and the process for which
//! they are valid (`fork.rs`).

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;
use rustix::io::{Errno, Result};
use socket_channel::{HandleId, SocketId};

use super::unshared::Reuse;

/// Together with [`PAGE_SLOTS`] as many descriptors as `fs.nr_open` allows by default.
const PAGES: usize = 1024;
const PAGE_SLOTS: usize = 1024;

type Page = [Slot; PAGE_SLOTS];

/// A descriptor's socket and handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) socket: SocketId,
    /// The handle that became the socket.
    pub(crate) handle: HandleId,
    /// Generation of the process for which the entry is valid.
    pub(crate) generation: u32,
    /// The socket has had another descriptor in this process.
    pub(crate) is_shared: bool,
}

#[derive(Debug, Default)]
struct Slot {
    /// 0 if the descriptor is no split socket.
    socket: AtomicU64,
    /// See [`Entry::of`].
    of: AtomicU64,
    /// See [`Reuse`].
    reuse: AtomicU64,
}

/// [`Entry::is_shared`].
const IS_SHARED: u64 = 1 << 63;

impl Entry {
    /// Packs the handle into the low half, and the generation into the high half except its highest
    /// bit.
    fn of(self) -> u64 {
        let shared = if self.is_shared { IS_SHARED } else { 0 };
        shared | u64::from(self.generation) << 32 & !IS_SHARED | u64::from(self.handle.0)
    }
}

impl Slot {
    fn load(&self) -> Option<Entry> {
        let socket = SocketId::from_raw(self.socket.load(Ordering::Acquire))?;
        let of = self.of.load(Ordering::Acquire);
        Some(Entry {
            socket,
            handle: HandleId(of as u32),
            generation: ((of & !IS_SHARED) >> 32) as u32,
            is_shared: of & IS_SHARED != 0,
        })
    }

    /// Stores an entry so that a concurrent fork copies none, or a whole one.
    fn store(&self, entry: Entry) {
        self.socket.store(0, Ordering::Release);
        self.of.store(entry.of(), Ordering::Release);
        self.reuse.store(Reuse::NONE.0, Ordering::Release);
        self.socket.store(entry.socket.to_raw(), Ordering::Release);
    }
}

/// Creates a page on the heap directly: the stack may be small.
fn new_page() -> Box<Page> {
    let slots: Vec<Slot> = (0..PAGE_SLOTS).map(|_| Slot::default()).collect();
    slots.try_into().expect("it has as many")
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Table {
    pages: Box<[OnceBox<Page>]>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            pages: (0..PAGES).map(|_| OnceBox::new()).collect(),
        }
    }

    fn slot(&self, fd: RawFd) -> Option<&Slot> {
        let fd = usize::try_from(fd).ok()?;
        self.pages.get(fd / PAGE_SLOTS)?.get()?.get(fd % PAGE_SLOTS)
    }

    /// Returns the entry of a descriptor.
    pub(crate) fn get(&self, fd: RawFd) -> Option<Entry> {
        self.slot(fd)?.load()
    }

    /// Reports whether a socket has any descriptor, by a search of the whole table.
    pub(crate) fn has(&self, socket: SocketId) -> bool {
        let raw = socket.to_raw();
        let mut slots = self.pages.iter().filter_map(OnceBox::get).flatten();
        slots.any(|slot| slot.socket.load(Ordering::Acquire) == raw)
    }

    /// Marks all descriptors of a socket as shared, by a search of the whole table. Returns whether
    /// there are any.
    pub(crate) fn share(&self, socket: SocketId) -> bool {
        let raw = socket.to_raw();
        let slots = self.pages.iter().filter_map(OnceBox::get).flatten();
        let of_socket = slots.filter(|slot| slot.socket.load(Ordering::Acquire) == raw);
        let shared = of_socket.map(|slot| slot.of.fetch_or(IS_SHARED, Ordering::AcqRel));
        shared.count() > 0
    }

    /// Marks one descriptor of a socket as shared.
    pub(crate) fn share_at(&self, fd: RawFd) {
        if let Some(slot) = self.slot(fd) {
            slot.of.fetch_or(IS_SHARED, Ordering::AcqRel);
        }
    }

    /// Returns how a descriptor may be reused when it is closed.
    pub(crate) fn reuse(&self, fd: RawFd) -> Reuse {
        let slot = self.slot(fd);
        slot.map_or(Reuse::NONE, |slot| {
            Reuse(slot.reuse.load(Ordering::Acquire))
        })
    }

    /// Changes how a descriptor may be reused when it is closed.
    pub(crate) fn set_reuse(&self, fd: RawFd, change: impl Fn(Reuse) -> Reuse) {
        if let Some(slot) = self.slot(fd) {
            let changed = |word| Some(change(Reuse(word)).0);
            let (set, fetched) = (Ordering::AcqRel, Ordering::Acquire);
            let _ = slot.reuse.fetch_update(set, fetched, changed);
        }
    }

    /// Returns all descriptors whose handles are private, by a search of the whole table.
    pub(crate) fn private_numbers(&self) -> Vec<RawFd> {
        let is_private = |fd: &RawFd| self.reuse(*fd).is_private();
        self.numbers().into_iter().filter(is_private).collect()
    }

    /// Returns all descriptors of sockets, by a search of the whole table.
    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        self.numbers_where(|socket| socket != 0)
    }

    /// Returns all descriptors of a socket, by a search of the whole table.
    pub(crate) fn numbers_of(&self, socket: SocketId) -> Vec<RawFd> {
        let raw = socket.to_raw();
        self.numbers_where(|socket| socket == raw)
    }

    fn numbers_where(&self, is_so: impl Fn(u64) -> bool) -> Vec<RawFd> {
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter_map(|(number, page)| Some((number * PAGE_SLOTS, page.get()?)));
        let used = pages.flat_map(|(first, page)| {
            let slots = page.iter().enumerate();
            let used = slots.filter(|(_, slot)| is_so(slot.socket.load(Ordering::Acquire)));
            used.map(move |(place, _)| (first + place) as RawFd)
        });
        used.collect()
    }

    /// Stores the entry of a descriptor; EMFILE beyond the table.
    pub(crate) fn insert(&self, fd: RawFd, entry: Entry) -> Result<()> {
        let place = usize::try_from(fd).map_err(|_| Errno::BADF)?;
        let page = self.pages.get(place / PAGE_SLOTS).ok_or(Errno::MFILE)?;
        let page = page.get_or_init(new_page);
        page[place % PAGE_SLOTS].store(entry);
        Ok(())
    }

    /// Makes an entry valid for another process; it can be found throughout.
    pub(crate) fn confirm(&self, fd: RawFd, entry: Entry, generation: u32) -> Entry {
        let confirmed = Entry {
            generation,
            ..entry
        };
        if let Some(slot) = self.slot(fd) {
            let (before, after) = (entry.of(), confirmed.of());
            // A different entry was stored by another thread of this process.
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = slot.of.compare_exchange(before, after, done, failed);
        }
        confirmed
    }

    /// Removes a descriptor; returns its socket.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<SocketId> {
        SocketId::from_raw(self.slot(fd)?.socket.swap(0, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry {
        socket: SocketId {
            index: 5,
            generation: 1,
        },
        handle: HandleId(u32::MAX),
        generation: 7,
        is_shared: false,
    };

    #[test]
    fn a_descriptor_is_found_until_it_is_removed() {
        let table = Table::new();
        assert_eq!(table.get(3), None);
        table.insert(3, ENTRY).unwrap();
        table.insert(5000, ENTRY).unwrap();
        assert_eq!((table.get(3), table.get(5000)), (Some(ENTRY), Some(ENTRY)));
        assert_eq!(table.numbers(), [3, 5000]);
        assert_eq!(table.numbers_of(ENTRY.socket), [3, 5000]);
        assert!(table.has(ENTRY.socket));
        let confirmed = table.confirm(3, ENTRY, 8);
        assert_eq!((confirmed.generation, table.get(3)), (8, Some(confirmed)));
        assert_eq!(table.remove(3), Some(ENTRY.socket));
        assert_eq!((table.get(3), table.remove(3)), (None, None));
    }

    #[test]
    fn a_socket_with_several_descriptors_is_known_as_such() {
        let table = Table::new();
        let is_shared = |fd| table.get(fd).unwrap().is_shared;
        assert!(!table.share(ENTRY.socket));
        table.insert(3, ENTRY).unwrap();
        table.insert(4, ENTRY).unwrap();
        table.share_at(4);
        table.share_at(5000);
        assert_eq!((is_shared(3), is_shared(4)), (false, true));
        assert!(table.share(ENTRY.socket) && is_shared(3));
        let entry = table.get(3).unwrap();
        assert_eq!((entry.handle, entry.generation), (ENTRY.handle, 7));
        let confirmed = table.confirm(3, entry, 8);
        assert!(confirmed.is_shared && table.get(3) == Some(confirmed));
    }

    #[test]
    fn numbers_out_of_range_are_no_sockets() {
        let table = Table::new();
        let beyond = (PAGES * PAGE_SLOTS) as RawFd;
        assert_eq!(table.insert(beyond, ENTRY), Err(Errno::MFILE));
        assert_eq!(table.insert(-1, ENTRY), Err(Errno::BADF));
        assert_eq!((table.get(beyond), table.get(-1)), (None, None));
    }
}
