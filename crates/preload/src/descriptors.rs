//! Descriptors of any kind: close, dup, fcntl, ioctl.

use std::ops::Range;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use capi::Client;
use capi::abi::{set_errno, sw_close, sw_ioctl};
use capi::client::{cancellation, is_kept_in_children, kept_in_children, stop_reusing_descriptors};
use libc::{c_int, c_long, c_uint, c_ulong, c_void};
use rustix::io::{Errno, Result};

use crate::attached::{client, is_split};
use crate::epoll_sets;
use crate::inherited;
use crate::kernel::kernel;
use crate::library;
use crate::pending;
use crate::streams;

/// Reports whether a descriptor is a split socket, or an epoll set with split sockets.
pub(crate) fn is_ours(fd: c_int) -> bool {
    client().is_some_and(|client| client.is_split_number(fd) || client.is_epoll_number(fd))
}

/// True if a number of the standard streams may be free. A program that has closed one expects it
/// for its next descriptor; other numbers come from the library's store.
static STANDARD_IS_FREE: AtomicBool = AtomicBool::new(false);

/// Numbers of the standard streams.
const STANDARD: Range<c_int> = 0..3;

/// Checks whether all standard streams are open.
pub(crate) fn look_at_standard() {
    // SAFETY: fcntl takes numbers here.
    let is_open = |fd| unsafe { kernel!(SYS_fcntl, fd, libc::F_GETFD, 0) } >= 0;
    let mut numbers = STANDARD;
    STANDARD_IS_FREE.store(!numbers.all(is_open), Ordering::Relaxed);
}

/// Moves a newly opened split socket to the number of a standard stream, if one is free.
pub(crate) fn to_standard(fd: c_int) -> c_int {
    if fd < STANDARD.end || !STANDARD_IS_FREE.load(Ordering::Relaxed) {
        return fd;
    }
    // SAFETY: fcntl takes numbers here.
    let is_inherited = unsafe { kernel!(SYS_fcntl, fd, libc::F_GETFD, 0) } == 0;
    let command = if is_inherited {
        libc::F_DUPFD
    } else {
        libc::F_DUPFD_CLOEXEC
    };
    // SAFETY: fcntl takes numbers here.
    let lowest = unsafe { kernel!(SYS_fcntl, fd, command, 0) } as c_int;
    if STANDARD.contains(&lowest) {
        if note_duplicate(fd, lowest).is_err() {
            return fd;
        }
        sw_close(fd);
        return lowest;
    }
    STANDARD_IS_FREE.store(false, Ordering::Relaxed);
    if lowest >= 0 {
        // SAFETY: close takes a number, which was made here.
        unsafe { kernel!(SYS_close, lowest) };
    }
    fd
}

/// Notes that the program closes this number.
fn note_closed(fd: c_int) {
    if STANDARD.contains(&fd) {
        STANDARD_IS_FREE.store(true, Ordering::Relaxed);
    }
}

/// Releases a number that the program closes without having opened it; fails if the library needs
/// it.
fn let_go_of(fd: c_int) -> Result<()> {
    match client() {
        Some(client) => client.let_go_of_number(fd).map(drop),
        None if is_kept_in_children(fd) => Err(Errno::BADF),
        None => Ok(()),
    }
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_close(fd: c_int) -> c_int {
    pending::remove(fd);
    epoll_sets::remove(fd);
    note_closed(fd);
    if is_ours(fd) {
        // With SO_LINGER, close blocks; it is no cancellation point here.
        cancellation::forget();
        return sw_close(fd);
    }
    if let Err(errno) = let_go_of(fd) {
        set_errno(errno);
        return -1;
    }
    // SAFETY: close takes a number, which belongs to the program.
    unsafe { library::close(fd) }
}

/// close_range(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;
    let close = |first: c_uint, last: c_uint| {
        // SAFETY: close_range takes numbers.
        unsafe { kernel!(SYS_close_range, first, last, flags) as c_int }
    };
    if flags & CLOEXEC == 0 {
        STANDARD
            .filter(|fd| fd.unsigned_abs() >= first)
            .for_each(note_closed);
    }
    if flags & UNSHARE != 0 {
        stop_reusing_descriptors();
    }
    if first > last || flags & !(UNSHARE | CLOEXEC) != 0 {
        // An invalid call closes nothing.
        return close(first, last);
    }
    let within = |fd: &c_int| u32::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd));
    if let Some(client) = client().filter(|_| flags & CLOEXEC == 0) {
        for fd in client.numbers().into_iter().filter(within) {
            if client.let_go_of_number(fd).is_ok() {
                sw_close(fd);
            }
        }
        client.let_go_of_numbers(within);
    }
    // Spares the numbers that the library needs, here or in the next image.
    let kept = client().map_or_else(kept_in_children, Client::kept_numbers);
    let mut from = first;
    for kept in kept.into_iter().filter(within) {
        let kept = kept.unsigned_abs();
        if from < kept && close(from, kept - 1) < 0 {
            return -1;
        }
        from = kept + 1;
    }
    if from <= last { close(from, last) } else { 0 }
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_closefrom(first: c_int) {
    splitway_preload_close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0);
}

/// Registers `new` as a duplicate of `old`; closes it if that fails.
fn note_duplicate(old: c_int, new: c_int) -> Result<()> {
    let Some(client) = client().filter(|_| is_ours(old)) else {
        return Ok(());
    };
    // SAFETY: the caller's call has just returned `new`, and `old` is open.
    let (old, new) = unsafe { (BorrowedFd::borrow_raw(old), OwnedFd::from_raw_fd(new)) };
    client
        .note_duplicate(old, new)
        .map(IntoRawFd::into_raw_fd)?;
    Ok(())
}

fn noted(old: c_int, new: c_int) -> c_int {
    if new < 0 {
        return new;
    }
    epoll_sets::note_duplicate(old, new);
    pending::remove(new);
    pending::note_duplicate(old, new);
    match note_duplicate(old, new) {
        Ok(()) => {
            streams::note_split(new);
            new
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_dup(fd: c_int) -> c_int {
    // SAFETY: dup takes a number.
    noted(fd, unsafe { kernel!(SYS_dup, fd) } as c_int)
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: fcntl takes numbers here.
        let flags = unsafe { kernel!(SYS_fcntl, old, libc::F_GETFD, 0) };
        return if flags < 0 { -1 } else { new };
    }
    splitway_preload_dup3(old, new, 0)
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: fcntl takes numbers here.
    let is_open = unsafe { kernel!(SYS_fcntl, old, libc::F_GETFD, 0) } >= 0;
    // SAFETY: dup3 takes numbers.
    let dup = || unsafe { kernel!(SYS_dup3, old, new, flags) } as c_int;
    // An invalid call closes nothing.
    let closes = is_open && old != new && flags & !libc::O_CLOEXEC == 0;
    if closes {
        if let_go_of(new).is_err() {
            // EBUSY, as if another thread had just opened it.
            set_errno(Errno::BUSY);
            return -1;
        }
        pending::remove(new);
    }
    let Some(client) = client().filter(|_| closes && is_ours(new)) else {
        return noted(old, dup());
    };
    let mut done = -1;
    // SAFETY: `new` is not -1, and the program gives up its descriptor. dup3 itself closes it: if
    // it were closed before, another thread might get the number in between.
    let _ = client.close_by(unsafe { OwnedFd::from_raw_fd(new) }, |fd| {
        let _ = fd.into_raw_fd();
        done = dup();
    });
    noted(old, done)
}

/// Notes that the kernel's flags of a descriptor have changed.
fn note_flags(fd: c_int) {
    if let Some(client) = client() {
        client.forget_flags(fd);
    }
}

/// Notes a command of fcntl(2) by which a descriptor's state in the kernel may differ from that of
/// a new one.
fn note_change(fd: c_int, command: c_int) {
    let Some(client) = client() else {
        return;
    };
    match command {
        libc::F_GETFD | libc::F_GETFL | libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {}
        libc::F_SETFD | libc::F_SETFL => client.forget_flags(fd),
        _ => client.forbid_reuse(fd),
    }
}

/// pidfd_getfd(2): a descriptor of another process.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_pidfd_getfd(
    process: c_int,
    theirs: c_int,
    flags: c_uint,
) -> c_int {
    // SAFETY: pidfd_getfd takes numbers.
    let fd = unsafe { kernel!(SYS_pidfd_getfd, process, theirs, flags) } as c_int;
    if fd >= 0 {
        inherited::recover_received(fd);
    }
    fd
}

/// fcntl(2). The third argument has the same place as a number and as a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_fcntl(
    fd: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    if command == libc::F_SETFD && is_kept_in_children(fd) {
        return 0;
    }
    if client().is_some_and(|client| client.is_closed_number(fd)) {
        set_errno(Errno::BADF);
        return -1;
    }
    note_change(fd, command);
    // SAFETY: the arguments are valid for fcntl(2), by the caller's contract.
    let done = unsafe { library::fcntl(fd, command, argument) };
    if command == libc::F_SETFL {
        note_flags(fd);
    }
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        return noted(fd, done);
    }
    done
}

/// `fcntl` for large files: identical on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_fcntl64(
    fd: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    // SAFETY: the arguments are valid for `fcntl`, by the caller's contract.
    unsafe { splitway_preload_fcntl(fd, command, argument) }
}

/// ioctl(2). The third argument has the same place as a number and as a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    if request == libc::FIOCLEX && is_kept_in_children(fd) {
        return 0;
    }
    if client().is_some_and(|client| client.is_closed_number(fd)) {
        set_errno(Errno::BADF);
        return -1;
    }
    // Requests that the kernel handles for split sockets too; programs make them on any descriptor.
    let kernels = [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX, FIOASYNC];
    // SAFETY: the arguments are valid for ioctl(2), by the caller's contract.
    let done = unsafe {
        if is_split(fd) && !kernels.contains(&request) {
            sw_ioctl(fd, request, argument)
        } else {
            kernel!(SYS_ioctl, fd, request, argument) as c_int
        }
    };
    if [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX].contains(&request) {
        note_flags(fd);
    }
    if let Some(client) = client().filter(|_| request == FIOASYNC) {
        client.forbid_reuse(fd);
    }
    done
}

/// Request for signals about a descriptor: bytes of a split socket raise none.
const FIOASYNC: c_ulong = 0x5452;

/// Request whether urgent data is next.
const SIOCATMARK: c_ulong = 0x8905;

/// sockatmark(3), whose system call is made within the C library.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn splitway_preload_sockatmark(fd: c_int) -> c_int {
    let mut is_next: c_int = 0;
    // SAFETY: the pointer is that of a number.
    let asked =
        unsafe { splitway_preload_ioctl(fd, SIOCATMARK, (&raw mut is_next).cast::<c_void>()) };
    if asked < 0 { -1 } else { is_next }
}
