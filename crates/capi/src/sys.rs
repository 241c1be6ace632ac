//! Calls of the C library that have no safe form, and system calls that have no function.

use std::arch::asm;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;

use libc::{c_int, c_long};
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

/// A word, 0 at first, in a page that is empty in each child of this process, whatever has made it;
/// and whether the kernel does that (since Linux 4.14).
pub(crate) fn page_that_children_find_empty() -> rustix::io::Result<(&'static AtomicU32, bool)> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let (bytes, access) = (
        rustix::param::page_size(),
        ProtFlags::READ | ProtFlags::WRITE,
    );
    // SAFETY: the kernel chooses a place where nothing is. The page is never given back, and what
    // the advice changes is that of children.
    unsafe {
        let page = mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)?;
        let is_wiped = madvise(page, bytes, Advice::LinuxWipeOnFork).is_ok();
        Ok((AtomicU32::from_ptr(page.cast()), is_wiped))
    }
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
    let (fd, to) = (socket.as_raw_fd(), credentials.as_mut_ptr());
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let to = [word(to), word(&raw mut len)];
    let arguments = [fd.into(), level.into(), option.into(), to[0], to[1], 0];
    // SAFETY: the pointers are those of a struct and of its length.
    unsafe { system_call(libc::SYS_getsockopt, arguments) }?;
    // SAFETY: it is three integers, zero or written.
    Ok(unsafe { credentials.assume_init() }.uid)
}

/// The error of a system call that has just failed.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_ENABLE` and `PTHREAD_CANCEL_DISABLE`.
const CANCEL_ENABLE: c_int = 0;
const CANCEL_DISABLE: c_int = 1;

/// The name that the C library has for this thread.
pub(crate) fn this_thread() -> usize {
    // SAFETY: it takes nothing.
    unsafe { libc::pthread_self() as usize }
}

/// Whether this thread may be cancelled.
pub(crate) fn is_cancelable() -> bool {
    let mut state = CANCEL_DISABLE;
    // SAFETY: the pointer is that of an integer. It is no cancellation point, and changes back what
    // it changes.
    unsafe {
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut state);
        pthread_setcancelstate(state, ptr::null_mut());
    }
    state == CANCEL_ENABLE
}

/// A pointer as a system call takes it.
pub(crate) fn word<T>(pointer: *const T) -> c_long {
    pointer.expose_provenance().cast_signed() as c_long
}

/// A system call by its number, and not by `syscall` of the C library, in whose place functions of
/// this library may be.
///
/// # Safety
/// What the manual page of the call asks for.
pub unsafe fn system_call(number: c_long, arguments: [c_long; 6]) -> rustix::io::Result<c_long> {
    /// `MAX_ERRNO` of Linux.
    const ERRNO_MAX: c_long = 4095;
    // SAFETY: the caller's promise.
    let done = unsafe { enter(number, arguments) };
    if (-ERRNO_MAX..0).contains(&done) {
        return Err(Errno::from_raw_os_error(-done as c_int));
    }
    Ok(done)
}

/// Enters the kernel (syscall(2), "Architecture calling conventions").
#[cfg(target_arch = "x86_64")]
unsafe fn enter(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let done;
    // SAFETY: the caller's promise; the kernel changes these two registers besides.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => done,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    done
}

/// Enters the kernel (syscall(2), "Architecture calling conventions").
#[cfg(target_arch = "aarch64")]
unsafe fn enter(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let done;
    // SAFETY: the caller's promise; the kernel keeps all other registers.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => done,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    done
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
