//! syscall(2): programs also call by number. libuv closes all its descriptors this way.

use capi::abi::set_errno;
use libc::{c_int, c_long, c_uint, c_ulong, socklen_t};
use rustix::io::Errno;

use crate::kernel::call;
use crate::{bytes, confinement, copies, descriptors, events, options, sockets};

/// syscall(2). Calls on the kernel's descriptors, and calls that do not concern descriptors, go to
/// the kernel unchanged.
///
/// The function takes six arguments. If a caller passes fewer, the others are undefined, and no
/// call reads them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let given = [a, b, c, d, e, f];
    // SAFETY: `number` and `given` form a valid system call, by the caller's contract.
    unsafe {
        on_ours(number, given).unwrap_or_else(|| {
            confinement::prepare_for_call(number, given);
            let copies = copies_memory(number, given);
            prepare_copies(number, given);
            let done = call(number, given);
            if copies && done >= 0 {
                capi::client::note_bare_fork(done == 0);
            }
            if done != 0 {
                note_copies_made(number, given);
            }
            done
        })
    }
}

/// Returns the flags of clone(2) if the call creates a process or a thread.
unsafe fn clone_flags(number: c_long, [a, ..]: [c_long; 6]) -> Option<u64> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(0),
        libc::SYS_clone => Some(a.cast_unsigned()),
        // SAFETY: by the caller's contract the pointer is that of a `clone_args`, which begins with
        // the flags (clone(2)).
        libc::SYS_clone3 if a != 0 => unsafe { Some(*pointer::<u64>(a)) },
        _ => None,
    }
}

/// Reports whether the call creates a process with memory of its own.
unsafe fn copies_memory(number: c_long, given: [c_long; 6]) -> bool {
    const SHARES: u64 = libc::CLONE_VM.unsigned_abs() as u64;
    // SAFETY: `number` and `given` form a valid system call, by the caller's contract.
    unsafe { clone_flags(number, given) }.is_some_and(|flags| flags & SHARES == 0)
}

/// Prepares for a call that copies descriptors.
unsafe fn prepare_copies(number: c_long, given: [c_long; 6]) {
    let [a, b, c, ..] = given;
    // SAFETY: `number` and `given` form a valid system call, by the caller's contract.
    unsafe {
        match number {
            libc::SYS_sendmsg => copies::share_passed(pointer(b)),
            libc::SYS_sendmmsg => copies::share_all_passed(pointer(b), c as c_uint),
            libc::SYS_execve | libc::SYS_execveat => copies::prepare_exec(),
            libc::SYS_unshare => copies::prepare_unshare(a),
            _ => note_copies_made(number, given),
        }
    }
}

/// Notes a call that creates a process, before and after it.
unsafe fn note_copies_made(number: c_long, given: [c_long; 6]) {
    // SAFETY: `number` and `given` form a valid system call, by the caller's contract.
    if let Some(flags) = unsafe { clone_flags(number, given) } {
        copies::prepare_clone(flags);
    }
}

/// Converts a register of 64 bits to a number in its lower 32.
fn int(word: c_long) -> c_int {
    word as c_int
}

fn pointer<T>(word: c_long) -> *mut T {
    std::ptr::with_exposed_provenance_mut(word as usize)
}

/// Makes the call, if it concerns this library.
unsafe fn on_ours(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<c_long> {
    use libc as is;
    // SAFETY: `number` and the arguments form a valid system call, by the caller's contract.
    let done: c_long = unsafe {
        if let Some(done) = old(number, [a, b, c, d]) {
            return Some(done);
        }
        match number {
            // These concern every descriptor.
            is::SYS_socket => sockets::splitway_preload_socket(int(a), int(b), int(c)).into(),
            is::SYS_bind => {
                sockets::splitway_preload_bind(int(a), pointer(b), c as socklen_t).into()
            }
            is::SYS_connect => {
                sockets::splitway_preload_connect(int(a), pointer(b), c as socklen_t).into()
            }
            is::SYS_listen => sockets::splitway_preload_listen(int(a), int(b)).into(),
            is::SYS_epoll_ctl => {
                events::splitway_preload_epoll_ctl(int(a), int(b), int(c), pointer(d)).into()
            }
            is::SYS_epoll_create1 => events::splitway_preload_epoll_create1(int(a)).into(),
            is::SYS_epoll_pwait => {
                let (set, max, timeout_ms) = (int(a), int(c), int(d));
                events::splitway_preload_epoll_pwait(set, pointer(b), max, timeout_ms, pointer(e))
                    .into()
            }
            is::SYS_epoll_pwait2 => {
                let (set, max, timeout) = (int(a), int(c), pointer(d));
                events::splitway_preload_epoll_pwait2(set, pointer(b), max, timeout, pointer(e))
                    .into()
            }
            is::SYS_close => descriptors::splitway_preload_close(int(a)).into(),
            is::SYS_pidfd_getfd => {
                descriptors::splitway_preload_pidfd_getfd(int(a), int(b), c as c_uint).into()
            }
            is::SYS_close_range => {
                descriptors::splitway_preload_close_range(a as c_uint, b as c_uint, int(c)).into()
            }
            is::SYS_dup => descriptors::splitway_preload_dup(int(a)).into(),
            is::SYS_dup3 => descriptors::splitway_preload_dup3(int(a), int(b), int(c)).into(),
            is::SYS_sendfile => {
                bytes::splitway_preload_sendfile(int(a), int(b), pointer(c), d as usize) as c_long
            }
            is::SYS_splice => {
                let (from, to) = ((int(a), pointer(b)), (int(c), pointer(d)));
                let (len, flags) = (e as usize, f as c_uint);
                bytes::splitway_preload_splice(from.0, from.1, to.0, to.1, len, flags) as c_long
            }
            is::SYS_ppoll if events::concerns(pointer(a), b as c_ulong) => {
                events::splitway_preload_ppoll(pointer(a), b as c_ulong, pointer(c), pointer(d))
                    .into()
            }
            // Refused, because the library would not see its operations: libuv fills epoll sets
            // through such a ring.
            is::SYS_io_uring_setup => {
                set_errno(Errno::NOSYS);
                -1
            }
            number => return on_descriptor(number, [a, b, c, d, e, f]),
        }
    };
    Some(done)
}

/// Calls on one descriptor. Only for these is the descriptor looked up: the lookup may take a lock,
/// which makes system calls itself under contention.
const ON_DESCRIPTOR: [c_long; 19] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
];

/// Makes a call on one descriptor, if that is a split socket, or an epoll set with split sockets.
unsafe fn on_descriptor(number: c_long, given: [c_long; 6]) -> Option<c_long> {
    use libc as is;
    let [a, b, c, d, e, f] = given;
    let (fd, len) = (int(a), c as usize);
    if !ON_DESCRIPTOR.contains(&number) || !descriptors::is_ours(fd) {
        return None;
    }
    // SAFETY: `number` and the arguments form a valid system call, by the caller's contract.
    let done: c_long = unsafe {
        match number {
            is::SYS_read => bytes::splitway_preload_read(fd, pointer(b), len) as c_long,
            is::SYS_write => bytes::splitway_preload_write(fd, pointer(b), len) as c_long,
            is::SYS_readv => bytes::splitway_preload_readv(fd, pointer(b), int(c)) as c_long,
            is::SYS_writev => bytes::splitway_preload_writev(fd, pointer(b), int(c)) as c_long,
            is::SYS_recvfrom => {
                let (at, at_len) = (pointer(e), pointer(f));
                let flags = int(d);
                bytes::splitway_preload_recvfrom(fd, pointer(b), len, flags, at, at_len) as c_long
            }
            is::SYS_sendto => {
                let (at, at_len) = (pointer(e), f as socklen_t);
                let flags = int(d);
                bytes::splitway_preload_sendto(fd, pointer(b), len, flags, at, at_len) as c_long
            }
            is::SYS_recvmsg => bytes::splitway_preload_recvmsg(fd, pointer(b), int(c)) as c_long,
            is::SYS_sendmsg => bytes::splitway_preload_sendmsg(fd, pointer(b), int(c)) as c_long,
            is::SYS_recvmmsg => {
                let (count, flags) = (c as c_uint, int(d));
                bytes::splitway_preload_recvmmsg(fd, pointer(b), count, flags, pointer(e)).into()
            }
            is::SYS_sendmmsg => {
                bytes::splitway_preload_sendmmsg(fd, pointer(b), c as c_uint, int(d)).into()
            }
            is::SYS_accept => sockets::splitway_preload_accept(fd, pointer(b), pointer(c)).into(),
            is::SYS_accept4 => {
                sockets::splitway_preload_accept4(fd, pointer(b), pointer(c), int(d)).into()
            }
            is::SYS_getsockname => {
                sockets::splitway_preload_getsockname(fd, pointer(b), pointer(c)).into()
            }
            is::SYS_getpeername => {
                sockets::splitway_preload_getpeername(fd, pointer(b), pointer(c)).into()
            }
            is::SYS_shutdown => sockets::splitway_preload_shutdown(fd, int(b)).into(),
            is::SYS_setsockopt => {
                let (level, name, len) = (int(b), int(c), e as socklen_t);
                options::splitway_preload_setsockopt(fd, level, name, pointer(d), len).into()
            }
            is::SYS_getsockopt => {
                let (level, name, len) = (int(b), int(c), pointer(e));
                options::splitway_preload_getsockopt(fd, level, name, pointer(d), len).into()
            }
            is::SYS_fcntl => descriptors::splitway_preload_fcntl(fd, int(b), c).into(),
            is::SYS_ioctl => {
                descriptors::splitway_preload_ioctl(fd, b as c_ulong, pointer(c)).into()
            }
            _ => return None,
        }
    };
    Some(done)
}

/// Makes a call that newer architectures lack.
#[cfg(target_arch = "x86_64")]
unsafe fn old(number: c_long, [a, b, c, d]: [c_long; 4]) -> Option<c_long> {
    use libc as is;
    // SAFETY: `number` and the arguments form a valid system call, by the caller's contract.
    let done = unsafe {
        match number {
            is::SYS_dup2 => descriptors::splitway_preload_dup2(int(a), int(b)),
            is::SYS_epoll_create => events::splitway_preload_epoll_create(int(a)),
            is::SYS_epoll_wait => {
                events::splitway_preload_epoll_wait(int(a), pointer(b), int(c), int(d))
            }
            is::SYS_poll if events::concerns(pointer(a), b as c_ulong) => {
                events::splitway_preload_poll(pointer(a), b as c_ulong, int(c))
            }
            _ => return None,
        }
    };
    Some(done.into())
}

/// Newer architectures lack these calls.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn old(_number: c_long, _given: [c_long; 4]) -> Option<c_long> {
    None
}
