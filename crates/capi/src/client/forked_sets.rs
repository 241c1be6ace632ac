//! Epoll sets through forks: a child has a copy of each set that its parent had at the fork.
//!
//! Both processes share the kernel's set. A child that slept in it would take edges of the bell
//! from its parent, and vice versa; so when it attaches, it creates sets of its own, and replaces
//! each inherited one. Their members are those at the time of the fork: split ones from the
//! library's records, others from `/proc/self/fdinfo`.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::{Errno, FdFlags, Result, fcntl_getfd};

use socket_channel::SocketId;

use super::fork;
use super::process::Process;
use super::set_copies::{Copied, take};
use super::sets::{Interest, Set, Sets, Source, bell_data, canary_data};
use crate::sys;

/// Reports whether a descriptor is still the parent's socket in the child.
type IsStill<'a> = &'a dyn Fn(RawFd, SocketId) -> bool;

/// Gives a child its copies of its parent's sets.
pub(super) fn inherit(process: &Process, parent: &Process, is_still: IsStill<'_>) {
    let copies = take(fork::generation(), parent.sets.identity());
    let replaced = copies.into_iter().filter_map(|copied| {
        let set = Arc::new(Set::new());
        let numbers = replace(process, &copied.numbers, &set).ok()?;
        Some((copied, set, *numbers.first()?))
    });
    // Inner sets are in their places before outer ones look for them.
    let replaced: Vec<(Copied, Arc<Set>, RawFd)> = replaced.collect();
    for (copied, set, number) in replaced {
        // Members that cannot be copied are missing; no call could report that.
        let _ = fill(process, is_still, &copied, &set, number);
    }
}

/// Replaces an inherited set with a new one of the kernel; returns its numbers.
fn replace(process: &Process, numbers: &[RawFd], set: &Arc<Set>) -> Result<Vec<RawFd>> {
    let own: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut places = Vec::new();
    for &number in numbers {
        let Ok(fd) = sys::borrow(number) else {
            continue;
        };
        // ENOENT shows that the number still is an epoll set: the program may have closed or reused
        // it.
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
                // The child has reported nothing yet.
                edge: None,
                is_spent: member.is_spent,
            };
            process.add_member(set, &mut set.members(), member.fd, source, interest);
        }
    }
    Ok(())
}
