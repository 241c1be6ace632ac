//! Calls of the C library that have no safe form, and system calls without a wrapper.

use std::arch::asm;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;

use libc::{c_int, c_long};
use rustix::io::{DupFlags, Errno};

/// Registers handlers of forks: the forking thread calls `before` ahead of each fork, and
/// `in_parent` and `in_child` after it in the respective process. Returns false if there is no
/// memory.
pub(crate) fn at_fork(
    before: extern "C" fn(),
    in_parent: extern "C" fn(),
    in_child: extern "C" fn(),
) -> bool {
    // SAFETY: the functions live as long as the program. They allocate from the heap, which the C
    // library makes usable in the child, and take no lock that another thread may hold there.
    let status = unsafe {
        let call = |function: extern "C" fn()| Some(function as unsafe extern "C" fn());
        libc::pthread_atfork(call(before), call(in_parent), call(in_child))
    };
    status == 0
}

/// Returns a word, initially 0, in a page that the kernel empties in each child of this process,
/// however the child was created; and whether the kernel supports that (since Linux 4.14).
pub(crate) fn page_that_children_find_empty() -> rustix::io::Result<(&'static AtomicU32, bool)> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let (bytes, access) = (
        rustix::param::page_size(),
        ProtFlags::READ | ProtFlags::WRITE,
    );
    // SAFETY: the kernel chooses an unused address. The page is never unmapped, and the advice
    // changes only the pages of children.
    unsafe {
        let page = mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)?;
        let is_wiped = madvise(page, bytes, Advice::LinuxWipeOnFork).is_ok();
        Ok((AtomicU32::from_ptr(page.cast()), is_wiped))
    }
}

/// Makes the number of a descriptor refer to another open file, close-on-exec. A child forked
/// concurrently inherits the one or the other.
pub(crate) fn replace(descriptor: &OwnedFd, other: OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: `descriptor` is open, and its owner cannot close it during this call. dup3(2) closes
    // the former file, and the number still belongs to `descriptor`.
    let number = unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) };
    let mut number = ManuallyDrop::new(number);
    // Not dup3 of the C library: the program may have replaced it.
    rustix::io::dup3(&other, &mut number, DupFlags::CLOEXEC)
}

/// Borrows a descriptor of the program by its number; EBADF if that is negative.
pub(crate) fn borrow(number: RawFd) -> rustix::io::Result<BorrowedFd<'static>> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: `number` is not -1. The kernel returns EBADF if it is not open.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Makes a number of the program refer to another open file.
pub(crate) fn replace_number(
    number: RawFd,
    other: &OwnedFd,
    close_on_exec: bool,
) -> rustix::io::Result<()> {
    let mut number = ManuallyDrop::new(borrow(number).map(|it| {
        // SAFETY: the number is not -1, and `ManuallyDrop` keeps this value from closing it.
        unsafe { OwnedFd::from_raw_fd(it.as_raw_fd()) }
    })?);
    let flags = if close_on_exec {
        DupFlags::CLOEXEC
    } else {
        DupFlags::empty()
    };
    rustix::io::dup3(other, &mut number, flags)
}

/// Returns the user that created the other end of a Unix socket (`SO_PEERCRED`), as our user
/// namespace numbers it. Not by rustix, which treats process number 0, of another namespace, as
/// absent.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> rustix::io::Result<libc::uid_t> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), credentials.as_mut_ptr());
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let to = [word(to), word(&raw mut len)];
    let arguments = [fd.into(), level.into(), option.into(), to[0], to[1], 0];
    // SAFETY: the pointers lead to a struct and to its length.
    unsafe { system_call(libc::SYS_getsockopt, arguments) }?;
    // SAFETY: `ucred` consists of three integers, zero or written.
    Ok(unsafe { credentials.assume_init() }.uid)
}

/// Returns the error of a system call that has just failed.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_ENABLE` and `PTHREAD_CANCEL_DISABLE`.
const CANCEL_ENABLE: c_int = 0;
const CANCEL_DISABLE: c_int = 1;

/// Returns the C library's ID of this thread.
pub(crate) fn this_thread() -> usize {
    // SAFETY: `pthread_self` has no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// Reports whether cancellation is enabled in this thread.
pub(crate) fn is_cancelable() -> bool {
    let mut state = CANCEL_DISABLE;
    // SAFETY: the pointer leads to an integer. The calls are no cancellation points, and the second
    // restores the state that the first has changed.
    unsafe {
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut state);
        pthread_setcancelstate(state, ptr::null_mut());
    }
    state == CANCEL_ENABLE
}

/// Returns a pointer as an argument of a system call.
pub(crate) fn word<T>(pointer: *const T) -> c_long {
    pointer.expose_provenance().cast_signed() as c_long
}

/// Makes a system call by its number. Not by `syscall` of the C library, which functions of this
/// library may replace.
///
/// # Safety
/// The arguments satisfy the contract of the system call's manual page.
pub unsafe fn system_call(number: c_long, arguments: [c_long; 6]) -> rustix::io::Result<c_long> {
    /// `MAX_ERRNO` of Linux.
    const ERRNO_MAX: c_long = 4095;
    // SAFETY: the arguments satisfy the system call's contract, by the caller's promise.
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
    // SAFETY: the arguments satisfy the system call's contract, by the caller's promise; the kernel
    // also changes these two registers.
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
    // SAFETY: the arguments satisfy the system call's contract, by the caller's promise; the kernel
    // keeps all other registers.
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

/// Runs `work` with all signals of this thread blocked; threads started by `work` inherit that.
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
