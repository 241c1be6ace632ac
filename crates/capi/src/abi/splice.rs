//! Two connections that a NIC stack joins.

use std::time::Duration;

use rustix::io::Errno;

use super::global::{borrow, client};
use super::outcome::zero;
use crate::SpliceStage;
use crate::client::SpliceLimits;

/// The socket has not been part of a splice.
pub const SW_SPLICE_NONE: u32 = 0;
/// It is being joined with the other one.
pub const SW_SPLICE_JOINING: u32 = 1;
/// A NIC stack moves its bytes.
pub const SW_SPLICE_JOINED: u32 = 2;
/// It is the program's again.
pub const SW_SPLICE_RETURNED: u32 = 3;
/// The splice has ended, and so have both connections.
pub const SW_SPLICE_ENDED: u32 = 4;

/// Bounds of a splice, beyond which both peers are reset.
#[allow(non_camel_case_types, reason = "the name is for C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sw_splice_limits {
    /// Nothing has passed for so long, in milliseconds; 0: no limit.
    pub idle_ms: u32,
    /// It was joined so long ago, in milliseconds; 0: no limit.
    pub life_ms: u32,
}

/// What has become of a socket's last splice.
#[allow(non_camel_case_types, reason = "the name is for C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sw_splice_status {
    /// Bytes that have come from the peer, and gone to the other socket's.
    pub in_bytes: u64,
    /// Bytes that have come from the other socket's peer, and gone to this one's.
    pub out_bytes: u64,
    /// `SW_SPLICE_…`.
    pub stage: u32,
    /// Why it was not joined, or how it has ended: an `errno`. 0 if it was given back, or ended in
    /// order.
    pub error: libc::c_int,
}

/// Has a NIC stack join two connections: what comes on one leaves on the other, ends included. What
/// is unread of either, and what was written to either, goes first. Until they come back or end,
/// calls that move bytes or shut down fail with EBUSY, and sw_close resets both peers.
/// `sw_splice_status` tells what becomes of it; EPOLLPRI of both says when there is something to
/// tell. `limits` may be null.
///
/// EINVAL if both are one socket; ENOTCONN if one is not open in both directions; EBUSY if one is
/// part of a splice; EOPNOTSUPP if both ends of one are on this stack; EPROTONOSUPPORT if one alone
/// has timestamps; ENODEV if no NIC stack joins connections; ENOBUFS if there are too many splices.
/// The program has both sockets as before then, and goes on copying.
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
        // SAFETY: the caller's promise.
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

/// Has both connections of a splice given back, of which this is one. They are the program's when
/// `sw_splice_status` says so. A splice of which a peer has closed stays. EINVAL if it is part of
/// none.
#[unsafe(no_mangle)]
pub extern "C" fn sw_unsplice(fd: libc::c_int) -> libc::c_int {
    let unsplice = || client()?.unsplice(borrow(fd)?);
    zero(unsplice())
}

/// Tells what has become of the last splice of a socket, and takes EPOLLPRI back. The error of one
/// that is SW_SPLICE_RETURNED is among those of `sw_splice`, or ETIMEDOUT: the connections did not
/// become quiet; ECANCELED: the program has asked for it, or closed the other. Of one that is
/// SW_SPLICE_ENDED it is that of the connection: ECONNRESET: by its peer; ECONNABORTED: the other
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
        // SAFETY: the caller promises room.
        unsafe { status.write(told) };
        Ok(())
    };
    zero(tell())
}
