//! Kernel TCP sockets that may become split, and the epoll set of each: programs add a socket to a
//! set before they connect it, and the set must then get the split socket.
//!
//! Each descriptor has one word for its state and events, and another for its data: atomics, in
//! pages that are published whole, so that a child of a fork never sees a page in construction. If
//! a socket was in several sets, only the last is known, and the kernel lists the members of all.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use capi::client::EpollEvent;
use once_cell::race::OnceBox;

const PAGES: usize = 1024;
const PAGE_SLOTS: usize = 1024;

/// An entry of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) epoll: RawFd,
    pub(crate) event: EpollEvent,
}

/// State of a pending socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Its entry in the set that was changed last.
    pub(crate) interest: Option<Interest>,
    /// It may have entries in other sets.
    pub(crate) is_in_several: bool,
    /// It may have other descriptors.
    pub(crate) is_duplicated: bool,
}

#[derive(Debug, Default)]
struct Slot {
    /// The highest bits are flags. In the rest of the high half, the number of its set plus 1, or
    /// 0; in the low half, its events.
    state: AtomicU64,
    data: AtomicU64,
}

type Page = [Slot; PAGE_SLOTS];

static PAGES_OF_SLOTS: [OnceBox<Page>; PAGES] = [const { OnceBox::new() }; PAGES];

/// The socket is pending.
const KNOWN: u64 = 1 << 63;
const IS_IN_SEVERAL: u64 = 1 << 62;
const IS_DUPLICATED: u64 = 1 << 61;
const FLAGS: u64 = KNOWN | IS_IN_SEVERAL | IS_DUPLICATED;

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

fn set(fd: RawFd, state: u64) {
    let Ok(place) = usize::try_from(fd) else {
        return;
    };
    let Some(page) = PAGES_OF_SLOTS.get(place / PAGE_SLOTS) else {
        return;
    };
    let page = page.get_or_init(new_page);
    page[place % PAGE_SLOTS]
        .state
        .store(state, Ordering::Release);
}

/// Adds a new kernel socket.
pub(crate) fn insert(fd: RawFd) {
    set(fd, KNOWN);
}

/// Notes that `new` is a duplicate of `old`, which may be a pending socket.
pub(crate) fn note_duplicate(old: RawFd, new: RawFd) {
    let Some(slot) = slot(old) else {
        return;
    };
    if slot.state.load(Ordering::Acquire) & KNOWN == 0 {
        return;
    }
    slot.state.fetch_or(IS_DUPLICATED, Ordering::AcqRel);
    set(new, KNOWN | IS_DUPLICATED);
}

/// Returns the pending sockets that may have other descriptors, by a search of the whole table.
pub(crate) fn duplicated() -> Vec<RawFd> {
    let wanted = KNOWN | IS_DUPLICATED;
    let pages = PAGES_OF_SLOTS.iter().enumerate();
    let pages = pages.filter_map(|(number, page)| Some((number * PAGE_SLOTS, page.get()?)));
    let found = pages.flat_map(|(first, page)| {
        let slots = page.iter().enumerate();
        let found = slots.filter(|(_, it)| it.state.load(Ordering::Acquire) & wanted == wanted);
        found.map(move |(place, _)| (first + place) as RawFd)
    });
    found.collect()
}

/// Returns the state of a socket.
pub(crate) fn get(fd: RawFd) -> Pending {
    slot(fd).map_or(Pending::default(), |slot| {
        let data = slot.data.load(Ordering::Acquire);
        pending(slot.state.load(Ordering::Acquire), data)
    })
}

/// Removes a socket that was closed or converted.
pub(crate) fn remove(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slot.state.store(0, Ordering::Release);
    }
}

/// Sets or clears a socket's entry in an epoll set.
pub(crate) fn set_interest(fd: RawFd, epoll: RawFd, event: Option<EpollEvent>) {
    let Some(slot) = slot(fd) else {
        return;
    };
    let state = slot.state.load(Ordering::Acquire);
    if state & KNOWN == 0 {
        return;
    }
    let flags = state & FLAGS;
    let before = interest(state, 0).map(|interest| interest.epoll);
    let is_other = before.is_some_and(|before| before != epoll);
    let Some(event) = event else {
        if !is_other {
            slot.state.store(flags, Ordering::Release);
        }
        return;
    };
    slot.data.store(event.data, Ordering::Release);
    let several = if is_other { IS_IN_SEVERAL } else { 0 };
    let of_set = (u64::from(epoll.unsigned_abs()) + 1) << 32;
    let state = flags | several | of_set | u64::from(event.events);
    slot.state.store(state, Ordering::Release);
}

fn pending(state: u64, data: u64) -> Pending {
    Pending {
        interest: interest(state, data),
        is_in_several: state & IS_IN_SEVERAL != 0,
        is_duplicated: state & IS_DUPLICATED != 0,
    }
}

fn interest(state: u64, data: u64) -> Option<Interest> {
    let set = u32::try_from((state & !FLAGS) >> 32).ok()?.checked_sub(1)?;
    let events = state as u32;
    Some(Interest {
        epoll: RawFd::try_from(set).ok()?,
        event: EpollEvent { events, data },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: EpollEvent = EpollEvent {
        events: u32::MAX,
        data: u64::MAX,
    };

    fn entry_of(fd: RawFd) -> Option<RawFd> {
        get(fd).interest.map(|interest| interest.epoll)
    }

    #[test]
    fn a_socket_is_known_with_its_set_until_it_is_forgotten() {
        let fd = 70_000;
        set_interest(fd, 0, Some(EVENT));
        assert_eq!(get(fd), Pending::default(), "nothing was known of it");
        insert(fd);
        assert_eq!(get(fd), Pending::default());
        set_interest(fd, 0, Some(EVENT));
        let interest = Interest {
            epoll: 0,
            event: EVENT,
        };
        assert_eq!(get(fd).interest, Some(interest));
        set_interest(fd, 0, None);
        assert_eq!(get(fd), Pending::default());
        set_interest(fd, 0, Some(EVENT));
        remove(fd);
        assert_eq!(get(fd), Pending::default());
        insert(fd);
        assert_eq!(get(fd), Pending::default(), "it was closed before");
        for none in [-1, RawFd::MAX] {
            remove(none);
            assert_eq!(get(none), Pending::default());
        }
    }

    #[test]
    fn a_socket_in_several_sets_is_known_as_such() {
        let fd = 70_100;
        insert(fd);
        set_interest(fd, 5, Some(EVENT));
        set_interest(fd, 5, Some(EVENT));
        assert!(!get(fd).is_in_several);
        set_interest(fd, 6, Some(EVENT));
        assert!(get(fd).is_in_several);
        set_interest(fd, 5, None);
        assert_eq!(entry_of(fd), Some(6));
        set_interest(fd, 6, None);
        assert!(entry_of(fd).is_none() && get(fd).is_in_several);
        insert(fd);
        assert!(!get(fd).is_in_several);
    }

    #[test]
    fn the_duplicates_of_pending_sockets_are_known() {
        let [fd, duplicate, other] = [70_200, 70_201, 70_202];
        note_duplicate(fd, duplicate);
        assert!(!duplicated().contains(&duplicate));
        insert(fd);
        insert(other);
        set_interest(fd, 5, Some(EVENT));
        note_duplicate(fd, duplicate);
        assert!(get(fd).is_duplicated && entry_of(fd) == Some(5));
        let known = duplicated();
        let has = |fd| known.contains(&fd);
        assert!(has(fd) && has(duplicate) && !has(other));
        remove(duplicate);
        assert!(!duplicated().contains(&duplicate));
    }
}
