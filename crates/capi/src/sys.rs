//! Calls of the C library that have no safe form.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::{DupFlags, Errno};

/// Has `before` called before each fork, by the thread that forks, and after it `in_parent` and
/// `in_child` in the process that each names.
pub(crate) fn at_fork(
    before: extern "C" fn(),
    in_parent: extern "C" fn(),
    in_child: extern "C" fn(),
) -> bool {
    // SAFETY: the functions live as long as the program. They use memory of the heap, which the C
    // library has ready for the child, and no lock that another thread may have there.
    let status = unsafe {
        let call = |function: extern "C" fn()| Some(function as unsafe extern "C" fn());
        libc::pthread_atfork(call(before), call(in_parent), call(in_child))
    };
    status == 0
}

/// Has the number of a descriptor lead to another open file, which is closed by `exec`. A child
/// that is forked meanwhile has the one or the other.
pub(crate) fn replace(descriptor: &OwnedFd, other: OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: it is open, and its owner does not close it meanwhile. What it led to is closed, and
    // its number stays its own.
    let number = unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) };
    let mut number = ManuallyDrop::new(number);
    // Not the function of the C library: that of programs may stand in its place.
    rustix::io::dup3(&other, &mut number, DupFlags::CLOEXEC)
}

/// A descriptor of the program's, by its number; EBADF for a negative one.
pub(crate) fn borrow(number: RawFd) -> rustix::io::Result<BorrowedFd<'static>> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is not -1. If it is not open, the kernel says so.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Has a number of the program's lead to another open file.
pub(crate) fn replace_number(
    number: RawFd,
    other: &OwnedFd,
    close_on_exec: bool,
) -> rustix::io::Result<()> {
    let mut number = ManuallyDrop::new(borrow(number).map(|it| {
        // SAFETY: it is not -1, and is not closed by this value.
        unsafe { OwnedFd::from_raw_fd(it.as_raw_fd()) }
    })?);
    let flags = if close_on_exec {
        DupFlags::CLOEXEC
    } else {
        DupFlags::empty()
    };
    rustix::io::dup3(other, &mut number, flags)
}

/// The user who made the other end of a Unix socket (`SO_PEERCRED`), by the numbers of our user
/// namespace. Not by rustix, which takes the process number of another namespace, 0, for none.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> rustix::io::Result<libc::uid_t> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are those of a struct and of its length.
    let status = unsafe {
        let (fd, to) = (socket.as_raw_fd(), credentials.as_mut_ptr());
        // Not by the function, which a program may have replaced.
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::syscall(libc::SYS_getsockopt, fd, level, option, to, &raw mut len)
    };
    if status != 0 {
        return Err(last_error());
    }
    // SAFETY: it is three integers, zero or written.
    Ok(unsafe { credentials.assume_init() }.uid)
}

/// The error of a system call that has just failed.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Runs `work` with all signals of this thread blocked: a thread that it starts gets none.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises `all`, and `pthread_sigmask` reads it and writes `before`.
    let is_blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let done = work();
    if is_blocked {
        // SAFETY: `before` was written by the call that succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    done
}
