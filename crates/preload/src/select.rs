//! select.

use std::time::Duration;

use capi::abi::{check_items, poll_with_mask};
use capi::client::Instant;
use libc::{c_int, c_long, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use crate::attached::client;
use crate::cancel::point;
use crate::epoll_sets;
use crate::events::{duration, fail, given, is_ours};
use crate::library;

/// select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_select(
    end: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the arguments are valid for select(2), by the caller's contract.
    unsafe {
        let (sets, looked_at) = ([read, write, except], looked_at(end));
        let kernel = || library::select(end, read, write, except, timeout);
        wait(looked_at, sets, kernel, || {
            let relative = match given(timeout) {
                Ok(timeout) => timeout.copied().map(normal),
                Err(errno) => return fail(errno),
            };
            let (begun, mask) = (Instant::now(), std::ptr::null());
            let done = point(|| select_with_poll(looked_at, sets, relative.as_ref(), mask));
            if let (Some(timeout), Some(relative)) = (timeout.as_mut(), relative) {
                // As Linux, writes back the remaining time.
                let left = less(relative, begun.elapsed());
                *timeout = timeval {
                    tv_sec: left.tv_sec,
                    tv_usec: left.tv_nsec / 1000,
                };
            }
            done
        })
    }
}

/// Normalizes a timeout of select(2), whose microseconds may exceed a second, for pselect(2).
fn normal(timeout: timeval) -> timespec {
    const US: i64 = 1_000_000;
    timespec {
        tv_sec: timeout.tv_sec.saturating_add(timeout.tv_usec / US),
        tv_nsec: timeout.tv_usec % US * 1000,
    }
}

/// Returns the remaining part of a timeout; an invalid one is returned unchanged.
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
    // SAFETY: the arguments are valid for pselect(2), by the caller's contract.
    unsafe {
        let (sets, looked_at) = ([read, write, except], looked_at(end));
        let kernel = || library::pselect(end, read, write, except, timeout, mask);
        wait(looked_at, sets, kernel, || match given(timeout) {
            Ok(timeout) => point(|| select_with_poll(looked_at, sets, timeout, mask)),
            Err(errno) => fail(errno),
        })
    }
}

/// Waits by `kernel`, unless split sockets are among the descriptors. A set of epoll that gets some
/// meanwhile becomes readable, and the next call is for `library`.
///
/// # Safety
/// The sets are valid for select(2).
unsafe fn wait(
    end: c_int,
    sets: [*mut fd_set; 3],
    kernel: impl FnOnce() -> c_int,
    library: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the sets are valid, by this function's contract.
    let has_ours = || client().is_some() && unsafe { any_in(end, sets, is_ours) };
    if has_ours() {
        return library();
    }
    // SAFETY: as above.
    if !epoll_sets::is_any_known() || !unsafe { any_in(end, sets, epoll_sets::is_known) } {
        return kernel();
    }
    // SAFETY: as above; the sets are readable, since they have members.
    let is_waited_for = |fd: &c_int| unsafe { is_in_any(*fd, sets) } && epoll_sets::is_known(*fd);
    epoll_sets::begin_waits((0..end).filter(is_waited_for));
    let is_late = has_ours();
    let done = if is_late { 0 } else { kernel() };
    epoll_sets::end_wait();
    if is_late { library() } else { done }
}

/// Bits of a set's word.
const WORD_BITS: usize = c_long::BITS as usize;

/// Returns the word of a set that contains a descriptor, and the bit. Sets of programs with many
/// descriptors are longer than their type.
unsafe fn place_in(fd: c_int, set: *mut fd_set) -> (*mut c_long, c_long) {
    let fd = fd.unsigned_abs() as usize;
    // SAFETY: the set is long enough for the descriptor, by the caller's contract.
    let word = unsafe { set.cast::<c_long>().add(fd / WORD_BITS) };
    (word, 1 << (fd % WORD_BITS))
}

/// Reports whether a descriptor is in a set of select(2).
unsafe fn is_in(fd: c_int, set: *mut fd_set) -> bool {
    if set.is_null() {
        return false;
    }
    // SAFETY: the set is long enough for the descriptor, by the caller's contract.
    unsafe {
        let (word, bit) = place_in(fd, set);
        *word & bit != 0
    }
}

/// Returns the number of descriptors to check: at most the size of this process's descriptor table.
/// Programs pass their descriptor limit as the end, with shorter sets.
fn looked_at(end: c_int) -> c_int {
    const USUAL: c_int = libc::FD_SETSIZE as c_int;
    if end <= USUAL {
        return end;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    end.min(size.unwrap_or(USUAL))
}

/// Reports whether a descriptor is in any of the sets.
unsafe fn is_in_any(fd: c_int, sets: [*mut fd_set; 3]) -> bool {
    // SAFETY: the sets are long enough for the descriptor, by the caller's contract.
    sets.iter().any(|set| unsafe { is_in(fd, *set) })
}

unsafe fn any_in(end: c_int, sets: [*mut fd_set; 3], is: impl Fn(c_int) -> bool) -> bool {
    let words = (end.max(0) as usize).div_ceil(WORD_BITS);
    let is_there =
        |set: &*mut fd_set| set.is_null() || check_items(set.cast::<c_long>(), words).is_ok();
    // The kernel reports unreadable sets.
    // SAFETY: the sets have `words` readable words, as just checked.
    sets.iter().all(is_there) && (0..end).any(|fd| unsafe { is_in_any(fd, sets) } && is(fd))
}

/// Implements select(2) by poll(2), with the kernel's mapping of events (`POLLIN_SET` and so on).
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
    let mut polled = Vec::new();
    // SAFETY: the sets are long enough for `end` descriptors, by the caller's contract.
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
                    let (word, bit) = place_in(polled.fd, *set);
                    *word &= !bit;
                }
            }
        }
        ready
    }
}
