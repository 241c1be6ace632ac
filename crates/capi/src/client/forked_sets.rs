//! Epoll sets through forks: a child has a copy of each set that its parent had at the fork.
//!
//! The kernel's set is one for both. A child that slept in it would take edges of the bell from its
//! parent, and the other way round; so it makes sets of its own, when it attaches, and puts each in
//! the place of one that it has inherited. Members are those that there were at the fork: split
//! ones as the library knows them, others as `/proc/self/fdinfo` has them.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::{Errno, FdFlags, Result, fcntl_getfd};

use socket_channel::SocketId;

use super::process::Process;
use super::set_copies::{Copied, take};
use super::sets::{Interest, Set, Sets, Source, bell_data, canary_data};
use crate::sys;

/// Whether a descriptor is in the child the socket that its parent has there.
type IsStill<'a> = &'a dyn Fn(RawFd, SocketId) -> bool;

/// Gives a child what it has of the sets of its parent.
pub(super) fn inherit(process: &Process, parent: &Process, is_still: IsStill<'_>) {
    let copies = take(parent.sets.identity());
    let replaced = copies.into_iter().filter_map(|copied| {
        let set = Arc::new(Set::new());
        let numbers = replace(process, &copied.numbers, &set).ok()?;
        Some((copied, set, *numbers.first()?))
    });
    // Those within others are in their places before these look for them.
    let replaced: Vec<(Copied, Arc<Set>, RawFd)> = replaced.collect();
    for (copied, set, number) in replaced {
        // What cannot be copied is missing; there is no call that could say so.
        let _ = fill(process, is_still, &copied, &set, number);
    }
}

/// Puts a new set of the kernel's in the place of an inherited one; returns where it is.
fn replace(process: &Process, numbers: &[RawFd], set: &Arc<Set>) -> Result<Vec<RawFd>> {
    let own: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut places = Vec::new();
    for &number in numbers {
        let Ok(fd) = sys::borrow(number) else {
            continue;
        };
        // What the program has closed is no set any more: that has no such member either.
        let is_set = Sets::may_have(number) && epoll::delete(fd, &own) == Err(Errno::NOENT);
        let Ok(flags) = fcntl_getfd(fd) else {
            continue;
        };
        if is_set && sys::replace_number(number, &own, flags.contains(FdFlags::CLOEXEC)).is_ok() {
            process.sets.insert(number, Arc::clone(set));
            places.push(number);
        }
    }
    Ok(places)
}

fn fill(
    process: &Process,
    is_still: IsStill<'_>,
    copied: &Copied,
    set: &Set,
    number: RawFd,
) -> Result<()> {
    let epoll = sys::borrow(number)?;
    for member in &copied.kernels {
        let Ok(fd) = sys::borrow(member.fd) else {
            continue;
        };
        if rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_ino == member.inode) {
            let flags = EventFlags::from_bits_retain(member.events);
            let added = epoll::add(epoll, fd, EventData::new_u64(member.data), flags);
            let count = usize::from(added.is_ok());
            set.kernel_members.fetch_add(count, Ordering::Relaxed);
        }
    }
    if copied.split.is_empty() {
        return Ok(());
    }
    let watch = || process.link.watch_bell(epoll, bell_data(), canary_data());
    set.ensure_bell(number, watch)?;
    for member in &copied.split {
        let source = match member.socket {
            Some(id) => {
                let is_still = is_still(member.fd, id);
                is_still.then_some(Source::Socket(id))
            }
            None => {
                let inner = process.sets.get(member.fd);
                inner.map(|inner| Source::Set(Arc::downgrade(&inner)))
            }
        };
        if let Some(source) = source {
            let interest = Interest {
                events: member.events,
                data: member.data,
                // The child has reported nothing.
                edge: None,
                is_spent: member.is_spent,
            };
            process.add_member(set, &mut set.members(), member.fd, source, interest);
        }
    }
    Ok(())
}
