//! epoll and poll.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use capi::Client;
use capi::abi::{
    check_given, check_items, poll_with_mask, set_errno, sw_epoll_ctl, sw_epoll_pwait, sw_poll,
};
use capi::client::{EpollEvent, Instant, is_event_of_library, members_in_kernel};
use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, size_t, timespec};
use rustix::io::Errno;

use crate::attached::{client, is_split};
use crate::cancel::point;
use crate::epoll_sets;
use crate::kernel::kernel;
use crate::library;
use crate::pending;

pub(crate) fn fail(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Reports whether a set holds split sockets, which the kernel does not know.
fn is_extended(epoll: c_int) -> bool {
    client().is_some_and(|client| client.is_epoll_number(epoll))
}

/// epoll_create1(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_epoll_create1(flags: c_int) -> c_int {
    // SAFETY: epoll_create1 takes a number.
    let set = unsafe { kernel!(SYS_epoll_create1, flags) } as c_int;
    if set >= 0 {
        epoll_sets::insert(set);
    }
    set
}

/// epoll_create(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return fail(Errno::INVAL);
    }
    splitway_preload_epoll_create1(0)
}

/// Lets a set, by all its descriptors, hold split sockets, and those that hold it wait for these.
pub(crate) fn extend(client: &Client, epoll: BorrowedFd<'_>) -> Result<(), Errno> {
    client.epoll_extend(epoll, &epoll_sets::known())?;
    nest(client)
}

/// Lets sets that hold others with split sockets wait for these sockets. The kernel knows the
/// members from before.
fn nest(client: &Client) -> Result<(), Errno> {
    let mut has_nested = true;
    while has_nested {
        has_nested = false;
        for number in epoll_sets::outer() {
            // SAFETY: the number is not -1; the kernel reports a closed one.
            let outer = unsafe { BorrowedFd::borrow_raw(number) };
            let members = members_in_kernel(number).into_iter();
            for (member, interest) in members.filter(|(member, _)| is_extended(*member)) {
                // SAFETY: as above.
                let inner = unsafe { BorrowedFd::borrow_raw(member) };
                client.epoll_extend(outer, &epoll_sets::known())?;
                has_nested |= client.epoll_nest(outer, inner, interest)?;
            }
        }
    }
    Ok(())
}

/// Wakes threads that wait in the kernel for sets with split sockets, so that they wait for these
/// sockets too.
pub(crate) fn wake_waiting(client: &Client) {
    let wake = || client.wake_sets();
    epoll_sets::wake_those_in(|fd| client.is_epoll_number(fd), wake);
}

/// epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the arguments are valid for epoll_ctl(2), by the caller's contract.
    unsafe {
        let is_set = op == libc::EPOLL_CTL_ADD && epoll_sets::note_member(epoll, fd);
        let is_plain_set = is_set && !is_extended(fd);
        let mut is_new = None;
        if let Some(client) = client().filter(|_| is_split(fd) || is_extended(fd))
            && epoll >= 0
            && !is_extended(epoll)
        {
            if let Err(errno) = extend(client, BorrowedFd::borrow_raw(epoll)) {
                return fail(errno);
            }
            is_new = Some(client);
        }
        let done = if is_extended(epoll) {
            sw_epoll_ctl(epoll, op, fd, event)
        } else {
            kernel!(SYS_epoll_ctl, epoll, op, fd, event) as c_int
        };
        if done == 0
            && is_plain_set
            && is_extended(fd)
            && let Some(client) = client()
        {
            // The member has got its first split socket during the call.
            is_new = Some(client);
            if let Err(errno) = nest(client) {
                return fail(errno);
            }
        }
        if let Some(client) = is_new {
            wake_waiting(client);
        }
        if done == 0 && !is_split(fd) {
            // The call has read `event`, unless `op` takes none.
            let is_given = op != libc::EPOLL_CTL_DEL;
            let event = if is_given { event.as_ref() } else { None };
            let event = event.map(|event| EpollEvent {
                events: event.events,
                data: event.u64,
            });
            pending::set_interest(fd, epoll, event);
        }
        done
    }
}

/// epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the arguments are valid for epoll_wait(2), by the caller's contract.
    unsafe { splitway_preload_epoll_pwait(epoll, events, max, timeout_ms, std::ptr::null()) }
}

/// epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: the arguments are valid for epoll_pwait(2), by the caller's contract.
    unsafe {
        wait(epoll, events, max, timeout, mask, |events| {
            library::epoll_pwait(epoll, events, max, timeout_ms, mask)
        })
    }
}

/// epoll_pwait2(2). For a set with split sockets, the timeout is rounded up to milliseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are valid for epoll_pwait2(2), by the caller's contract.
    unsafe {
        match given(timeout).and_then(duration) {
            Ok(whole) => wait(epoll, events, max, whole, mask, |events| {
                library::epoll_pwait2(epoll, events, max, timeout, mask)
            }),
            Err(errno) => fail(errno),
        }
    }
}

/// Waits for events of a set: by `kernel` as long as it holds no split sockets.
///
/// # Safety
/// The arguments are valid for epoll_pwait(2).
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
    kernel: impl FnOnce(*mut epoll_event) -> c_int,
) -> c_int {
    let mut left = timeout;
    // SAFETY: the arguments are valid for epoll_pwait(2), by this function's contract.
    unsafe {
        if !is_extended(epoll) {
            let until = timeout.filter(|timeout| !timeout.is_zero());
            let until = until.and_then(|timeout| Instant::now().checked_add(timeout));
            epoll_sets::begin_wait(epoll);
            if !is_extended(epoll) {
                let count = kernel(events);
                epoll_sets::end_wait();
                let kept = without_own(events, count);
                if kept == count || kept > 0 {
                    return kept;
                }
                // Meanwhile the set has got split sockets, by this descriptor or another.
                if let Some(client) = client()
                    && let Err(errno) = extend(client, BorrowedFd::borrow_raw(epoll))
                {
                    return fail(errno);
                }
            } else {
                epoll_sets::end_wait();
            }
            epoll_sets::await_wakers();
            left = until.map_or(timeout, |until| {
                Some(until.saturating_duration_since(Instant::now()))
            });
        }
        point(|| sw_epoll_pwait(epoll, events, max, milliseconds(left), mask))
    }
}

/// Removes events of the library's own descriptors; returns the number of events left.
unsafe fn without_own(events: *mut epoll_event, count: c_int) -> c_int {
    let Some(found) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return count;
    };
    // SAFETY: the kernel has written `count` events.
    let found = unsafe { std::slice::from_raw_parts_mut(events, found) };
    let mut kept = 0;
    for place in 0..found.len() {
        if !is_event_of_library(found[place].u64) {
            found[kept] = found[place];
            kept += 1;
        }
    }
    kept as c_int
}

/// Returns the item that a program's pointer refers to, if it is not null; EFAULT if the address is
/// not readable.
///
/// # Safety
/// The item is valid as long as the reference is in use.
pub(crate) unsafe fn given<'a, T>(at: *const T) -> Result<Option<&'a T>, Errno> {
    check_given(at)?;
    // SAFETY: the item is readable, as just checked, and valid by this function's contract.
    Ok(unsafe { at.as_ref() })
}

/// Converts a timeout; `None` is infinite. EINVAL if it is out of range.
pub(crate) fn duration(timeout: Option<&timespec>) -> Result<Option<Duration>, Errno> {
    let Some(timeout) = timeout else {
        return Ok(None);
    };
    let seconds = u64::try_from(timeout.tv_sec).ok();
    let ns = u32::try_from(timeout.tv_nsec).ok();
    match (seconds, ns.filter(|ns| *ns < 1_000_000_000)) {
        (Some(seconds), Some(ns)) => Ok(Some(Duration::new(seconds, ns))),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the milliseconds of a timeout, rounded up; -1 without one.
fn milliseconds(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |timeout| {
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    })
}

/// Reports whether a descriptor is a split socket, or an epoll set with split sockets.
pub(crate) fn is_ours(fd: c_int) -> bool {
    is_split(fd) || is_extended(fd)
}

/// poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the arguments are valid for poll(2), by the caller's contract.
    unsafe {
        if has_ours(fds, count) {
            return point(|| sw_poll(fds, count, timeout_ms));
        }
        let timeout = || Ok(u64::try_from(timeout_ms).ok().map(Duration::from_millis));
        let then = |left| point(|| sw_poll(fds, count, milliseconds(left)));
        poll_sets(fds, count, timeout, then, || {
            library::poll(fds, count, timeout_ms)
        })
    }
}

/// Waits by `kernel` in poll(2). If sets of epoll among the descriptors get split sockets then,
/// goes on by `then` for the rest of the time.
///
/// # Safety
/// The arguments are valid for poll(2).
unsafe fn poll_sets(
    fds: *const pollfd,
    count: nfds_t,
    timeout: impl FnOnce() -> Result<Option<Duration>, Errno>,
    then: impl FnOnce(Option<Duration>) -> c_int,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the arguments are valid for poll(2), by this function's contract.
    let mut sets = unsafe { sets_in(fds, count) }.peekable();
    if sets.peek().is_none() {
        return kernel();
    }
    let timeout = match timeout() {
        Ok(timeout) => timeout,
        Err(errno) => return fail(errno),
    };
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    epoll_sets::begin_waits(sets);
    // SAFETY: the arguments are valid for poll(2), by this function's contract.
    let has_ours = || unsafe { has_ours(fds, count) };
    let done = if has_ours() { 0 } else { kernel() };
    epoll_sets::end_wait();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let is_over = done < 0 || done == 0 && left == Some(Duration::ZERO);
    if is_over || !has_ours() {
        return done;
    }
    then(left)
}

/// Returns the descriptors that may be sets of epoll.
///
/// # Safety
/// The array is valid for poll(2), as long as the result is in use.
unsafe fn sets_in(fds: *const pollfd, count: nfds_t) -> impl Iterator<Item = c_int> {
    let is_readable = || count > 0 && check_items(fds, count as usize).is_ok();
    let count = if epoll_sets::is_any_known() && is_readable() {
        count as usize
    } else {
        0
    };
    // SAFETY: `fds` has `count` readable items, as just checked.
    let numbers = (0..count).map(move |place| unsafe { (*fds.add(place)).fd });
    numbers.filter(|fd| epoll_sets::is_known(*fd))
}

/// Reports whether a call of poll(2) concerns the library.
pub(crate) unsafe fn concerns(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: the arguments are valid for poll(2), by the caller's contract.
    unsafe { has_ours(fds, count) || sets_in(fds, count).next().is_some() }
}

unsafe fn has_ours(fds: *const pollfd, count: nfds_t) -> bool {
    let count = count as usize;
    // The kernel reports an unreadable array.
    if client().is_none() || count == 0 || check_items(fds, count).is_err() {
        return false;
    }
    // SAFETY: `fds` has `count` readable items, as just checked.
    let fds = unsafe { std::slice::from_raw_parts(fds, count) };
    fds.iter().any(|polled| is_ours(polled.fd))
}

/// `poll` with the array size that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    _bytes: size_t,
) -> c_int {
    // SAFETY: the arguments are valid for `poll`, by the caller's contract.
    unsafe { splitway_preload_poll(fds, count, timeout_ms) }
}

/// ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are valid for ppoll(2), by the caller's contract.
    unsafe {
        if has_ours(fds, count) {
            return match given(timeout).and_then(duration) {
                Ok(timeout) => point(|| poll_with_mask(fds, count, timeout, mask)),
                Err(errno) => fail(errno),
            };
        }
        let whole = || given(timeout).and_then(duration);
        let then = |left| point(|| poll_with_mask(fds, count, left, mask));
        poll_sets(fds, count, whole, then, || {
            library::ppoll(fds, count, timeout, mask)
        })
    }
}

/// `ppoll` with the array size that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _bytes: size_t,
) -> c_int {
    // SAFETY: the arguments are valid for `ppoll`, by the caller's contract.
    unsafe { splitway_preload_ppoll(fds, count, timeout, mask) }
}
