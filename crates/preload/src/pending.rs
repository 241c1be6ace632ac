//! Kernel TCP sockets that may become split, and the epoll set of each: programs add a socket to a
//! set before they connect it, and the set must then get the split socket.
//!
//! Each descriptor has one word for its state and events, and another for its data: atomics, in
//! pages that are published whole, so that a child of a fork never sees a page in construction. If
//! a socket is in several sets, only the last is known.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

const PAGES: usize = 1024;
const PAGE_SLOTS: usize = 1024;

/// An entry of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) epoll: RawFd,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// The highest bit is set for a pending socket. In the rest of the high half, the number of its
    /// set plus 1, or 0; in the low half, its events.
    state: AtomicU64,
    data: AtomicU64,
}

type Page = [Slot; PAGE_SLOTS];

static PAGES_OF_SLOTS: [OnceBox<Page>; PAGES] = [const { OnceBox::new() }; PAGES];

const KNOWN: u64 = 1 << 63;

fn slot(fd: RawFd) -> Option<&'static Slot> {
    let place = usize::try_from(fd).ok()?;
    PAGES_OF_SLOTS
        .get(place / PAGE_SLOTS)?
        .get()?
        .get(place % PAGE_SLOTS)
}

/// Allocates a page, without a copy on the stack, which may be small.
fn new_page() -> Box<Page> {
    let slots: Vec<Slot> = (0..PAGE_SLOTS).map(|_| Slot::default()).collect();
    slots.try_into().expect("it has as many")
}

/// Adds a new kernel socket.
pub(crate) fn insert(fd: RawFd) {
    let Ok(place) = usize::try_from(fd) else {
        return;
    };
    let Some(page) = PAGES_OF_SLOTS.get(place / PAGE_SLOTS) else {
        return;
    };
    let page = page.get_or_init(new_page);
    page[place % PAGE_SLOTS]
        .state
        .store(KNOWN, Ordering::Release);
}

/// Removes a socket that was closed or converted; returns its entry in an epoll set.
pub(crate) fn remove(fd: RawFd) -> Option<Interest> {
    let slot = slot(fd)?;
    let data = slot.data.load(Ordering::Acquire);
    interest(slot.state.swap(0, Ordering::AcqRel), data)
}

/// Sets or clears a socket's entry in an epoll set.
pub(crate) fn set_interest(fd: RawFd, interest: Option<Interest>) {
    let Some(slot) = slot(fd) else {
        return;
    };
    if slot.state.load(Ordering::Acquire) & KNOWN == 0 {
        return;
    }
    let state = interest.map_or(0, |interest| {
        slot.data.store(interest.data, Ordering::Release);
        let set = u64::from(interest.epoll.unsigned_abs()) + 1;
        set << 32 | u64::from(interest.events)
    });
    slot.state.store(KNOWN | state, Ordering::Release);
}

fn interest(state: u64, data: u64) -> Option<Interest> {
    let set = u32::try_from((state & !KNOWN) >> 32).ok()?.checked_sub(1)?;
    Some(Interest {
        epoll: RawFd::try_from(set).ok()?,
        events: state as u32,
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_known_with_its_set_until_it_is_forgotten() {
        let interest = Interest {
            epoll: 0,
            events: u32::MAX,
            data: u64::MAX,
        };
        let fd = 70_000;
        set_interest(fd, Some(interest));
        assert_eq!(remove(fd), None, "nothing was known of it");
        insert(fd);
        assert_eq!(remove(fd), None);
        set_interest(fd, Some(interest));
        assert_eq!(remove(fd), None, "it was closed before");
        insert(fd);
        set_interest(fd, Some(interest));
        set_interest(fd, None);
        assert_eq!(remove(fd), None);
        insert(fd);
        set_interest(fd, Some(interest));
        assert_eq!(remove(fd), Some(interest));
        assert_eq!(
            (remove(fd), remove(-1), remove(RawFd::MAX)),
            (None, None, None)
        );
    }
}
