//! Two connections joined by a NIC stack.

use std::time::Duration;

use rustix::io::Errno;

use super::global::{borrow, client};
use super::outcome::zero;
use crate::SpliceStage;
use crate::client::SpliceLimits;

/// The socket has not been part of a splice.
pub const SW_SPLICE_NONE: u32 = 0;
/// The sockets are being joined.
pub const SW_SPLICE_JOINING: u32 = 1;
/// A NIC stack moves the bytes.
pub const SW_SPLICE_JOINED: u32 = 2;
/// The program has the socket back.
pub const SW_SPLICE_RETURNED: u32 = 3;
/// The splice has ended, and so have both connections.
pub const SW_SPLICE_ENDED: u32 = 4;

/// Limits of a splice; beyond either, both peers are reset.
#[allow(non_camel_case_types, reason = "the name is for C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sw_splice_limits {
    /// Longest time without data, in milliseconds; 0: no limit.
    pub idle_ms: u32,
    /// Longest life of the splice, in milliseconds; 0: no limit.
    pub life_ms: u32,
}

/// State of a socket's last splice.
#[allow(non_camel_case_types, reason = "the name is for C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sw_splice_status {
    /// Bytes received from this socket's peer and sent to the other socket's.
    pub in_bytes: u64,
    /// Bytes received from the other socket's peer and sent to this socket's.
    pub out_bytes: u64,
    /// `SW_SPLICE_…`.
    pub stage: u32,
    /// Reason why the sockets were not joined, or of the end: an `errno`. 0 after `sw_unsplice`, or
    /// after an orderly end.
    pub error: libc::c_int,
}

/// Makes a NIC stack join two connections: data from one leaves on the other, ends included. Data
/// unread on either, and data already written to either, goes first. Until the sockets come back or
/// end, calls that move bytes or shut down fail with EBUSY, and sw_close resets both peers. Both
/// sockets report EPOLLPRI when the stage changes; `sw_splice_status` returns it. `limits` may be
/// null.
///
/// EINVAL if both are one socket; ENOTCONN if one is not open in both directions; EBUSY if one is
/// part of a splice; EOPNOTSUPP if both ends of one are on this stack; EPROTONOSUPPORT if only one
/// has timestamps; ENODEV if no NIC stack joins connections; ENOBUFS if there are too many splices.
/// After an error both sockets are as before, and the program goes on copying.
///
/// # Safety
/// `limits` is null or points to a struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_splice(
    first: libc::c_int,
    second: libc::c_int,
    limits: *const sw_splice_limits,
) -> libc::c_int {
    let splice = || {
        // SAFETY: `limits` is null or points to a struct, by the caller's contract.
        let limits = unsafe { limits.as_ref() };
        let limit = |ms: u32| (ms > 0).then(|| Duration::from_millis(ms.into()));
        let limits = limits.map_or_else(SpliceLimits::default, |limits| SpliceLimits {
            idle: limit(limits.idle_ms),
            life: limit(limits.life_ms),
        });
        client()?.splice(borrow(first)?, borrow(second)?, limits)
    };
    zero(splice())
}

/// Returns both sockets of the splice of `fd` to the program, which has them when
/// `sw_splice_status` reports SW_SPLICE_RETURNED. A splice stays if a peer has closed. EINVAL if
/// the socket is part of no splice.
#[unsafe(no_mangle)]
pub extern "C" fn sw_unsplice(fd: libc::c_int) -> libc::c_int {
    let unsplice = || client()?.unsplice(borrow(fd)?);
    zero(unsplice())
}

/// Returns the state of a socket's last splice, and clears EPOLLPRI. The error of
/// SW_SPLICE_RETURNED is one of `sw_splice`; ETIMEDOUT: the connections did not become quiet; or
/// ECANCELED: the program has cancelled the splice or closed the other socket. The error of
/// SW_SPLICE_ENDED is the connection's: ECONNRESET: by its peer; ECONNABORTED: the other connection
/// was reset; ETIMEDOUT: a limit; EIO: the NIC stack is gone.
///
/// # Safety
/// `status` is null or has room for a struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_splice_status(
    fd: libc::c_int,
    status: *mut sw_splice_status,
) -> libc::c_int {
    let tell = || {
        if status.is_null() {
            return Err(Errno::FAULT);
        }
        let found = client()?.splice_status(borrow(fd)?)?;
        let told = sw_splice_status {
            in_bytes: found.in_bytes,
            out_bytes: found.out_bytes,
            stage: match found.stage {
                SpliceStage::None => SW_SPLICE_NONE,
                SpliceStage::Joining => SW_SPLICE_JOINING,
                SpliceStage::Joined => SW_SPLICE_JOINED,
                SpliceStage::Returned => SW_SPLICE_RETURNED,
                SpliceStage::Ended => SW_SPLICE_ENDED,
            },
            error: found.outcome.err().map_or(0, Errno::raw_os_error),
        };
        // SAFETY: `status` has room for a struct, by the caller's contract.
        unsafe { status.write(told) };
        Ok(())
    };
    zero(tell())
}
