//! The C library's own functions that may block. They are cancellation points (pthreads(7)), which
//! raw system calls are not, so calls on kernel descriptors go through them.
//!
//! A cancelled thread unwinds the stack, through the functions of this library as well: functions
//! on that path are `C-unwind`, and hold nothing to drop. With panic=abort the compiler would guard
//! calls that may unwind, so the pointers are declared `C` there, and the stack is unwound by the
//! tables alone.

use std::ffi::CStr;
use std::mem::transmute;
use std::sync::OnceLock;

use capi::abi::set_errno;
use libc::{
    RTLD_NEXT, c_int, c_long, c_uint, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t,
    off_t, pollfd, pthread_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
    uid_t,
};
use rustix::io::Errno;

#[cfg(panic = "unwind")]
macro_rules! function {
    ($($type:ty),* => $result:ty) => {
        unsafe extern "C-unwind" fn($($type),*) -> $result
    };
}

#[cfg(not(panic = "unwind"))]
macro_rules! function {
    ($($type:ty),* => $result:ty) => {
        unsafe extern "C" fn($($type),*) -> $result
    };
}

/// Return value for a function that the C library lacks.
trait Missing {
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: Self = -1;
}

impl Missing for ssize_t {
    const MISSING: Self = -1;
}

impl Missing for () {
    const MISSING: Self = ();
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        #[derive(Debug)]
        struct Functions {
            $($name: Option<function!($($type),* => $result)>,)*
        }

        impl Functions {
            fn find() -> Functions {
                Functions {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_until_nul(name.as_bytes());
                        let found = name.map_or(std::ptr::null_mut(), next);
                        // SAFETY: the C library's function of this name has this type.
                        unsafe { transmute::<*mut c_void, Option<_>>(found) }
                    },)*
                }
            }
        }

        $(pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            let Some(function) = FUNCTIONS.get_or_init(Functions::find).$name else {
                set_errno(Errno::NOSYS);
                return Missing::MISSING;
            };
            // SAFETY: the arguments are valid for the function, by the caller's contract.
            unsafe { function($($argument),*) }
        })*
    };
}

functions! {
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    preadv2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t;
    pwritev2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, to: *mut c_void, len: size_t, flags: c_int, at: *mut sockaddr,
        at_len: *mut socklen_t
    ) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int;
    sendto(
        fd: c_int, from: *const c_void, len: size_t, flags: c_int, at: *const sockaddr,
        at_len: socklen_t
    ) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t;
    accept(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, at: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int;
    epoll_pwait(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int,
        mask: *const sigset_t
    ) -> c_int;
    epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    select(
        end: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    pselect(
        end: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    close(fd: c_int) -> c_int;
    setuid(user: uid_t) -> c_int;
    setreuid(real: uid_t, effective: uid_t) -> c_int;
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    pthread_cancel(thread: pthread_t) -> c_int;
    pthread_testcancel() -> ();
}

/// Returns the next function of this name after this library's, or null.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the pointer is that of a string.
    unsafe { libc::dlsym(RTLD_NEXT, name.as_ptr()) }
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Finds the functions; not after a fork, where a lock of the loader may be held forever.
pub(crate) fn find() {
    FUNCTIONS.get_or_init(Functions::find);
}
