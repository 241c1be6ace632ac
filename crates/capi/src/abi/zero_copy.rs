//! Sends that report the peer's acknowledgment.

use std::io::IoSlice;
use std::time::Duration;

use rustix::io::{Errno, Result};

use super::bytes::{raise_pipe, send_flags};
use super::global::{borrow, client};
use super::memory::bytes;
use super::outcome::{length, number};
use crate::client::{Completion, SENDS_MAX};

/// The bytes of the send were copied, so its buffer was free when it returned.
pub const SW_ZC_COPIED: u32 = 1;

/// The completion of an `sw_send_zc`.
#[allow(non_camel_case_types, reason = "the name is for C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sw_zc_completion {
    /// Cookie of the send.
    pub cookie: u64,
    /// 0 if the peer has acknowledged all bytes of the send; else the reason why not: an `errno`.
    pub error: libc::c_int,
    /// `SW_ZC_…` bits.
    pub flags: u32,
}

/// Sends as `sw_send`. `sw_zc_complete` returns `cookie` when the peer has acknowledged the last
/// byte taken; a call may take fewer than `len`. The buffer must stay unchanged until then, as with
/// MSG_ZEROCOPY. A send of no bytes has no completion.
///
/// The errors of `sw_send`; ENOBUFS if 1,024 completions of the socket have not been taken.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_send_zc(
    fd: libc::c_int,
    buffer: *const libc::c_void,
    len: usize,
    flags: libc::c_int,
    cookie: u64,
) -> libc::ssize_t {
    let send = || -> Result<usize> {
        // SAFETY: `buffer` is null or has `len` readable bytes, by the caller's contract.
        let bytes = unsafe { bytes(buffer, len)? };
        let (fd, pieces) = (borrow(fd)?, [IoSlice::new(bytes)]);
        client()?.send_zero_copy(fd, &pieces, send_flags(flags)?, cookie)
    };
    let sent = send();
    if sent == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        raise_pipe();
    }
    length(sent)
}

/// Takes completions of this process's `sw_send_zc` on a socket, in the order of the stream, and
/// returns their number. The socket reports EPOLLERR while there are any. If there are none, the
/// call waits for `timeout_ms` milliseconds, without limit if that is negative; it returns 0 after
/// that time, or if no send is outstanding.
///
/// EINVAL if `max` is not above 0; EINTR, as in signal(7).
///
/// # Safety
/// `completions` is null or has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_zc_complete(
    fd: libc::c_int,
    completions: *mut sw_zc_completion,
    max: libc::c_int,
    timeout_ms: libc::c_int,
) -> libc::c_int {
    let complete = || {
        let max = usize::try_from(max).unwrap_or(0);
        if completions.is_null() {
            return Err(Errno::FAULT);
        }
        let none = Completion {
            cookie: 0,
            outcome: Ok(()),
        };
        let mut found = vec![none; max.min(SENDS_MAX)];
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let count = client()?.completions(borrow(fd)?, &mut found, timeout)?;
        for (i, completion) in found[..count].iter().enumerate() {
            let completion = sw_zc_completion {
                cookie: completion.cookie,
                error: completion.outcome.err().map_or(0, Errno::raw_os_error),
                flags: SW_ZC_COPIED,
            };
            // SAFETY: `i` is below `max`, and `completions` has room for `max` by the caller's
            // contract.
            unsafe { completions.add(i).write(completion) };
        }
        Ok(libc::c_int::try_from(count).unwrap_or(libc::c_int::MAX))
    };
    number(complete())
}
