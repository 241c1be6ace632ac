//! Options of sockets.

use capi::abi::{sw_getsockopt, sw_setsockopt};
use libc::{c_int, c_void, socklen_t};

use crate::attached::is_split;
use crate::kernel::kernel;

/// setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for setsockopt(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            sw_setsockopt(fd, level, name, value, len)
        } else {
            kernel!(SYS_setsockopt, fd, level, name, value, len) as c_int
        }
    }
}

/// getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are valid for getsockopt(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            sw_getsockopt(fd, level, name, value, len)
        } else {
            kernel!(SYS_getsockopt, fd, level, name, value, len) as c_int
        }
    }
}
