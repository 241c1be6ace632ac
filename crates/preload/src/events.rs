//! epoll, poll and select.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use capi::abi::{poll_with_mask, set_errno, sw_epoll_ctl, sw_epoll_pwait, sw_poll};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rustix::io::Errno;

use crate::attached::{client, is_split};
use crate::cancel::point;
use crate::kernel::kernel;
use crate::library;
use crate::pending;

fn fail(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Whether a set holds split sockets, which the kernel knows nothing of.
fn is_extended(epoll: c_int) -> bool {
    client().is_some_and(|client| client.is_epoll_number(epoll))
}

/// epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(client) = client().filter(|_| is_split(fd) || is_extended(fd))
            && epoll >= 0
            && !is_extended(epoll)
            && let Err(errno) = client.epoll_extend(BorrowedFd::borrow_raw(epoll))
        {
            return fail(errno);
        }
        let done = if is_extended(epoll) {
            sw_epoll_ctl(epoll, op, fd, event)
        } else {
            kernel!(SYS_epoll_ctl, epoll, op, fd, event) as c_int
        };
        if done == 0 && !is_split(fd) {
            let interest = event.as_ref().filter(|_| op != libc::EPOLL_CTL_DEL);
            pending::set_interest(
                fd,
                interest.map(|event| pending::Interest {
                    epoll,
                    events: event.events,
                    data: event.u64,
                }),
            );
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        if is_extended(epoll) {
            return point(|| sw_epoll_pwait(epoll, events, max, timeout_ms, mask));
        }
        library::epoll_pwait(epoll, events, max, timeout_ms, mask)
    }
}

/// epoll_pwait2(2). Of a set with split sockets, the timeout is rounded up to milliseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_extended(epoll) {
            return library::epoll_pwait2(epoll, events, max, timeout, mask);
        }
        match duration(timeout.as_ref()) {
            Ok(timeout) => {
                point(|| sw_epoll_pwait(epoll, events, max, milliseconds(timeout), mask))
            }
            Err(errno) => fail(errno),
        }
    }
}

/// A timeout; `None` is for ever. EINVAL if it makes no sense.
fn duration(timeout: Option<&timespec>) -> Result<Option<Duration>, Errno> {
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

/// Milliseconds of a timeout, rounded up; -1 without one.
fn milliseconds(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |timeout| {
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    })
}

/// Whether the kernel does not know all that is asked of it.
fn is_ours(fd: c_int) -> bool {
    is_split(fd) || is_extended(fd)
}

/// poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if has_ours(fds, count) {
            return point(|| sw_poll(fds, count, timeout_ms));
        }
        library::poll(fds, count, timeout_ms)
    }
}

pub(crate) unsafe fn has_ours(fds: *const pollfd, count: nfds_t) -> bool {
    if client().is_none() || fds.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { std::slice::from_raw_parts(fds, count as usize) };
    fds.iter().any(|polled| is_ours(polled.fd))
}

/// `poll` with the length of the array that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    _bytes: size_t,
) -> c_int {
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        if has_ours(fds, count) {
            return match duration(timeout.as_ref()) {
                Ok(timeout) => point(|| poll_with_mask(fds, count, timeout, mask)),
                Err(errno) => fail(errno),
            };
        }
        library::ppoll(fds, count, timeout, mask)
    }
}

/// `ppoll` with the length of the array that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _bytes: size_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { splitway_preload_ppoll(fds, count, timeout, mask) }
}

/// select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_select(
    end: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let sets = [read, write, except];
        if !has_ours_in(end, sets) {
            return library::select(end, read, write, except, timeout);
        }
        let relative = timeout.as_ref().copied().map(normal);
        let begun = Instant::now();
        let done = point(|| select_with_poll(end, sets, relative.as_ref(), std::ptr::null()));
        if let (Some(timeout), Some(relative)) = (timeout.as_mut(), relative) {
            // Linux says what is left of it.
            let left = less(relative, begun.elapsed());
            *timeout = timeval {
                tv_sec: left.tv_sec,
                tv_usec: left.tv_nsec / 1000,
            };
        }
        done
    }
}

/// A timeout as pselect(2) takes it: of select(2), microseconds may be more than a second.
fn normal(timeout: timeval) -> timespec {
    const US: i64 = 1_000_000;
    timespec {
        tv_sec: timeout.tv_sec.saturating_add(timeout.tv_usec / US),
        tv_nsec: timeout.tv_usec % US * 1000,
    }
}

/// What is left of a timeout; one that makes no sense stays as it is.
fn less(timeout: timespec, passed: Duration) -> timespec {
    let Ok(Some(whole)) = duration(Some(&timeout)) else {
        return timeout;
    };
    let left = whole.saturating_sub(passed);
    timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    }
}

/// pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_pselect(
    end: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let sets = [read, write, except];
        if has_ours_in(end, sets) {
            return point(|| select_with_poll(end, sets, timeout.as_ref(), mask));
        }
        library::pselect(end, read, write, except, timeout, mask)
    }
}

/// Whether a descriptor is in a set of select(2).
unsafe fn is_in(fd: c_int, set: *const fd_set) -> bool {
    // SAFETY: the caller's promise.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

unsafe fn has_ours_in(end: c_int, sets: [*mut fd_set; 3]) -> bool {
    let end = end.min(libc::FD_SETSIZE as c_int);
    // SAFETY: the caller's promise.
    client().is_some()
        && (0..end).any(|fd| unsafe { sets.iter().any(|set| is_in(fd, *set)) } && is_ours(fd))
}

/// select(2) by poll(2), whose events are those of select as Linux maps them (`POLLIN_SET` and so
/// on).
unsafe fn select_with_poll(
    end: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<&timespec>,
    mask: *const sigset_t,
) -> c_int {
    const MEANINGS: [(i16, i16); 3] = [
        (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
        (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
        (libc::POLLPRI, libc::POLLPRI),
    ];
    let timeout = match duration(timeout) {
        Ok(timeout) => timeout,
        Err(errno) => return fail(errno),
    };
    let end = end.clamp(0, libc::FD_SETSIZE as c_int);
    let mut polled = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        for fd in 0..end {
            let wanted = sets.iter().zip(MEANINGS);
            let events = wanted
                .filter(|(set, _)| is_in(fd, **set))
                .fold(0, |events, (_, (event, _))| events | event);
            if events != 0 {
                polled.push(pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        let (at, count) = (polled.as_mut_ptr(), polled.len() as nfds_t);
        if poll_with_mask(at, count, timeout, mask) < 0 {
            return -1;
        }
        if polled
            .iter()
            .any(|polled| polled.revents & libc::POLLNVAL != 0)
        {
            return fail(Errno::BADF);
        }
        let mut ready = 0;
        for polled in &polled {
            for (set, (event, meaning)) in sets.iter().zip(MEANINGS) {
                if polled.events & event == 0 {
                    continue;
                }
                if polled.revents & meaning != 0 {
                    ready += 1;
                } else {
                    libc::FD_CLR(polled.fd, *set);
                }
            }
        }
        ready
    }
}
