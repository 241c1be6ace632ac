//! Calls by which another process gets copies of descriptors. A descriptor that has a copy is not
//! reused for another connection (`reuse` of `libsplitway`).

use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use capi::abi::set_errno;
use capi::client::{note_copies, stop_reusing_descriptors};
use libc::{FILE, c_char, c_int, c_long, c_uint, c_void, mmsghdr, msghdr};
use rustix::io::Errno;

use crate::attached::client;
use crate::kernel::kernel;
use crate::library::next;

type System = unsafe extern "C" fn(*const c_char) -> c_int;
type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
type WordExp = unsafe extern "C" fn(*const c_char, *mut c_void, c_int) -> c_int;

/// Functions of the C library that start programs.
#[derive(Debug)]
struct Library {
    system: Option<System>,
    popen: Option<Popen>,
    wordexp: Option<WordExp>,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Finds the functions; not after a fork, where a lock of the loader may be held forever.
pub(crate) fn find() {
    let find = |name: &CStr| next(name);
    // SAFETY: the C library's functions have the types given here.
    unsafe {
        let _ = LIBRARY.set(Library {
            system: transmute::<*mut c_void, Option<System>>(find(c"system")),
            popen: transmute::<*mut c_void, Option<Popen>>(find(c"popen")),
            wordexp: transmute::<*mut c_void, Option<WordExp>>(find(c"wordexp")),
        });
    }
}

/// Makes a call that creates a process with copies of all descriptors.
pub(crate) fn copying<T>(call: impl FnOnce() -> T) -> T {
    note_copies();
    let done = call();
    note_copies();
    done
}

/// Makes a call that starts another program, which gets some descriptors.
pub(crate) fn starting<T>(call: impl FnOnce() -> T) -> T {
    if let Some(client) = client() {
        client.share_all();
    }
    copying(call)
}

/// Prepares for another program in this process.
pub(crate) fn prepare_exec() {
    if let Some(client) = client() {
        client.share_inherited();
    }
}

/// Prepares for a process with the given flags of clone(2): it may share this one's memory, and yet
/// have descriptors of its own. Then one table of split sockets is wrong for both.
pub(crate) fn prepare_clone(flags: u64) {
    let has = |flag: c_int| flags & u64::from(flag.unsigned_abs()) != 0;
    if has(libc::CLONE_FILES) {
        return;
    }
    note_copies();
    if has(libc::CLONE_VM) {
        stop_reusing_descriptors();
    }
}

/// Prepares for the descriptors that a message passes on.
///
/// # Safety
/// The message is valid for sendmsg(2).
pub(crate) unsafe fn share_passed(message: *const msghdr) {
    let Some(client) = client() else {
        return;
    };
    // The kernel reports an unreadable message.
    if capi::abi::check_items(message, 1).is_err() {
        return;
    }
    // SAFETY: the message is readable, as just checked.
    let message = unsafe { &*message };
    let (at, len) = (message.msg_control.cast::<u8>(), message.msg_controllen);
    if at.is_null() || len == 0 || capi::abi::check_items(at.cast_const(), len).is_err() {
        return;
    }
    // SAFETY: the control messages are readable, as just checked; the kernel reads those that lie
    // within their length, as this loop does.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            let bytes = (*head).cmsg_len;
            let begin = libc::CMSG_LEN(0) as usize;
            let left = len - (head.addr() - at.addr());
            if bytes < begin || bytes > left {
                return;
            }
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let numbers = libc::CMSG_DATA(head).cast::<c_int>();
                for place in 0..(bytes - begin) / size_of::<c_int>() {
                    client.share(numbers.add(place).read_unaligned());
                }
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
}

/// Like [`share_passed`], for the messages of sendmmsg(2).
///
/// # Safety
/// The messages are valid for sendmmsg(2).
pub(crate) unsafe fn share_all_passed(messages: *const mmsghdr, count: c_uint) {
    /// `UIO_MAXIOV`, beyond which the kernel takes no message.
    const MESSAGES_MAX: usize = 1024;
    let count = (count as usize).min(MESSAGES_MAX);
    if client().is_none() || capi::abi::check_items(messages, count).is_err() {
        return;
    }
    for place in 0..count {
        // SAFETY: there are `count` readable messages, as just checked.
        unsafe { share_passed(&raw const (*messages.add(place)).msg_hdr) };
    }
}

fn missing<T>(result: T) -> T {
    set_errno(Errno::NOSYS);
    result
}

/// system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_system(command: *const c_char) -> c_int {
    let system = LIBRARY.get().and_then(|library| library.system);
    // SAFETY: the arguments are valid for system(3), by the caller's contract.
    starting(|| unsafe { system.map_or_else(|| missing(-1), |system| system(command)) })
}

/// popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_popen(
    command: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    let popen = LIBRARY.get().and_then(|library| library.popen);
    // SAFETY: the arguments are valid for popen(3), by the caller's contract.
    starting(|| unsafe {
        popen.map_or_else(|| missing(ptr::null_mut()), |popen| popen(command, mode))
    })
}

/// wordexp(3), which may run a shell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_wordexp(
    words: *const c_char,
    result: *mut c_void,
    flags: c_int,
) -> c_int {
    /// `WRDE_NOSPACE`.
    const NO_SPACE: c_int = 1;
    let wordexp = LIBRARY.get().and_then(|library| library.wordexp);
    // SAFETY: the arguments are valid for wordexp(3), by the caller's contract.
    starting(|| unsafe { wordexp.map_or(NO_SPACE, |wordexp| wordexp(words, result, flags)) })
}

/// unshare(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_unshare(flags: c_int) -> c_int {
    prepare_unshare(flags.into());
    // SAFETY: unshare takes a number.
    unsafe { kernel!(SYS_unshare, flags) as c_int }
}

/// Prepares for a thread that gets descriptors of its own.
pub(crate) fn prepare_unshare(flags: c_long) {
    if flags & c_long::from(libc::CLONE_FILES) != 0 {
        stop_reusing_descriptors();
    }
}
