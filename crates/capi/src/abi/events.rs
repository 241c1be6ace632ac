//! epoll and poll.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rustix::io::{Errno, Result};

use super::global::{borrow, client};
use super::memory::items;
use super::outcome::{descriptor, number, zero};
use super::probe::check_value;
use crate::client::epoll::ask_kernel;
use crate::client::{EpollChange, EpollEvent, Polled};
use crate::sys::{system_call, word};

/// Returns a timeout in milliseconds as a duration; `None`, for a negative one, is infinite.
fn timeout(ms: libc::c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// epoll_create1(2): a set of split sockets, files of the NIC stack, other sets and descriptors of
/// the kernel. A child of a fork gets a copy of the set as it was at the fork.
#[unsafe(no_mangle)]
pub extern "C" fn sw_epoll_create1(flags: libc::c_int) -> libc::c_int {
    let create = || {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Errno::INVAL);
        }
        client()?.epoll_create(flags & libc::EPOLL_CLOEXEC != 0)
    };
    descriptor(create())
}

/// epoll_ctl(2). Level and edge triggers and EPOLLONESHOT are as in epoll(7). EEXIST, ENOENT,
/// EBADF, EPERM; EINVAL for a split socket in a set that `sw_epoll_create1` has not made.
///
/// # Safety
/// `event` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_epoll_ctl(
    epoll: libc::c_int,
    op: libc::c_int,
    fd: libc::c_int,
    event: *mut libc::epoll_event,
) -> libc::c_int {
    // SAFETY: `event` is mapped, and valid by the caller's contract.
    let event = check_value(event)
        .map(|()| unsafe { &*event })
        .map(|event| EpollEvent {
            events: event.events,
            data: event.u64,
        });
    let change = || {
        let change = match op {
            libc::EPOLL_CTL_ADD => EpollChange::Add(event?),
            libc::EPOLL_CTL_MOD => EpollChange::Modify(event?),
            libc::EPOLL_CTL_DEL => EpollChange::Delete,
            _ => {
                rustix::io::fcntl_getfd(borrow(epoll)?)?;
                rustix::io::fcntl_getfd(borrow(fd)?)?;
                return Err(Errno::INVAL);
            }
        };
        client()?.epoll_change(borrow(epoll)?, borrow(fd)?, change)
    };
    zero(change())
}

/// epoll_wait(2). EINTR after any signal handler (signal(7)).
///
/// # Safety
/// `events` is null or has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_epoll_wait(
    epoll: libc::c_int,
    events: *mut libc::epoll_event,
    max: libc::c_int,
    timeout_ms: libc::c_int,
) -> libc::c_int {
    // SAFETY: `events` is null or has room for `max`, by the caller's contract; a null mask is
    // allowed.
    unsafe { sw_epoll_pwait(epoll, events, max, timeout_ms, ptr::null()) }
}

/// epoll_pwait(2).
///
/// # Safety
/// `events` is null or has room for `max`; `mask` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_epoll_pwait(
    epoll: libc::c_int,
    events: *mut libc::epoll_event,
    max: libc::c_int,
    timeout_ms: libc::c_int,
    mask: *const libc::sigset_t,
) -> libc::c_int {
    let wait = || {
        let max = usize::try_from(max).ok().filter(|max| *max > 0);
        // SAFETY: `events` is null or has room for `max`, by the caller's contract.
        let room = unsafe { items(events, max.ok_or(Errno::INVAL)?)? };
        let mut found = vec![EpollEvent::default(); room.len().min(EVENTS_MAX)];
        let mut masked = |set: BorrowedFd<'_>, found: &mut Vec<_>, max, timeout| {
            // SAFETY: `mask` is null or valid, by the caller's contract.
            unsafe { ask_with_mask(set, found, max, timeout, mask) }
        };
        let (set, timeout) = (borrow(epoll)?, timeout(timeout_ms));
        let count = if mask.is_null() {
            client()?.epoll_wait_by(set, &mut found, timeout, &mut ask_kernel)?
        } else {
            client()?.epoll_wait_by(set, &mut found, timeout, &mut masked)?
        };
        for (event, found) in room.iter_mut().zip(&found[..count]) {
            event.events = found.events;
            event.u64 = found.data;
        }
        Ok(count as libc::c_int)
    };
    number(wait())
}

/// Bytes of the kernel's signal sets.
const SIGNALS_BYTES: libc::c_long = 8;

/// Most events returned by a call: programs take fewer at a time.
const EVENTS_MAX: usize = 4096;

/// `epoll_pwait` of the kernel.
///
/// # Safety
/// `mask` is null or valid.
unsafe fn ask_with_mask(
    set: BorrowedFd<'_>,
    found: &mut Vec<EpollEvent>,
    max: usize,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<()> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
    // Rounded up: a wait that ends too early would be repeated without sleep.
    let ms = timeout.map_or(-1, |timeout| {
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        i32::try_from(ms).unwrap_or(i32::MAX)
    });
    let room = i32::try_from(max).unwrap_or(i32::MAX);
    let at = word(events.as_mut_ptr());
    let (set, mask) = (set.as_raw_fd().into(), word(mask));
    let arguments = [set, at, room.into(), ms.into(), mask, SIGNALS_BYTES];
    // SAFETY: `events` has room for `max`; `mask` is null or valid, by the caller's contract.
    let count = unsafe { system_call(libc::SYS_epoll_pwait, arguments) }?;
    let count = usize::try_from(count).unwrap_or(0);
    found.extend(events[..count].iter().map(|event| EpollEvent {
        events: event.events,
        data: event.u64,
    }));
    Ok(())
}

/// poll(2), of descriptors of any kind. EINTR after any signal handler (signal(7)).
///
/// # Safety
/// `fds` is null or has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_poll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout_ms: libc::c_int,
) -> libc::c_int {
    // SAFETY: `fds` is null or has `count` items, by the caller's contract.
    unsafe { poll_by(fds, count, |fds| client()?.poll(fds, timeout(timeout_ms))) }
}

/// ppoll(2), of descriptors of any kind; `None` waits without limit. Not for programs in C, which
/// have `sw_epoll_pwait`.
///
/// # Safety
/// `fds` is null or has `count` items; `mask` is null or valid.
pub unsafe fn poll_with_mask(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> libc::c_int {
    // SAFETY: `mask` is null or valid, by the caller's contract.
    let mut masked =
        |fds: &mut [Polled<'_>], timeout| unsafe { ask_poll_with_mask(fds, timeout, mask) };
    // SAFETY: `fds` is null or has `count` items, by the caller's contract.
    unsafe {
        poll_by(fds, count, |fds| {
            client()?.poll_by(fds, timeout, &mut masked)
        })
    }
}

/// # Safety
/// `fds` is null or has `count` items.
unsafe fn poll_by(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    poll: impl FnOnce(&mut [Polled<'_>]) -> Result<usize>,
) -> libc::c_int {
    let poll = || {
        // SAFETY: `fds` is null or has `count` items, by the caller's contract.
        let fds = unsafe { items(fds, count as usize)? };
        let mut polled: Vec<Polled<'_>> = fds
            .iter()
            .map(|fd| Polled {
                fd: borrow(fd.fd).ok(),
                events: fd.events as u16,
                found: 0,
            })
            .collect();
        let ready = poll(&mut polled)?;
        for (fd, polled) in fds.iter_mut().zip(&polled) {
            fd.revents = polled.found as i16;
        }
        Ok(ready as libc::c_int)
    };
    number(poll())
}

/// `ppoll` of the kernel.
///
/// # Safety
/// `mask` is null or valid.
unsafe fn ask_poll_with_mask(
    fds: &mut [Polled<'_>],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<()> {
    let asked = fds.iter().map(|polled| libc::pollfd {
        fd: polled.fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: polled.events as i16,
        revents: 0,
    });
    let mut asked: Vec<libc::pollfd> = asked.collect();
    let (at, count) = (
        asked.as_mut_ptr(),
        asked.len().cast_signed() as libc::c_long,
    );
    let mut left = timeout.map(|timeout| libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let left = left.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let arguments = [word(at), count, word(left), word(mask), SIGNALS_BYTES, 0];
    // SAFETY: the pointers lead to an array and a value of this function; `mask` is null or valid,
    // by the caller's contract.
    unsafe { system_call(libc::SYS_ppoll, arguments) }?;
    for (polled, asked) in fds.iter_mut().zip(&asked) {
        polled.found = asked.revents as u16;
    }
    Ok(())
}
