//! Calls by which a process gives up rights that attaching needs: the process attaches first.
//!
//! A failure to attach does not fail the call, since the process may never use a split socket. If
//! it does, the library reports the error then.

use capi::abi::attach_from_environment;
use capi::client::{Confinement, application_file};
use libc::{c_char, c_int, c_long, c_uint, c_ulong, pid_t, rlimit, uid_t};

use crate::attached::client;
use crate::kernel::{call, kernel};
use crate::library;

/// Number of descriptors or threads a process may have that makes preparation unnecessary.
const PLENTY: u64 = 128;

/// Attaches, and prepares for the loss of a right.
fn prepare(confinement: Confinement) {
    if let Ok(client) = attach_from_environment() {
        let _ = client.prepare_for(confinement);
    }
}

/// Prepares for the loss of the path to the broker's socket. A child of an attached process needs
/// no path.
fn prepare_for_path() {
    if client().is_none() {
        let _ = attach_from_environment();
    }
}

/// Prepares for a change of user: the broker admits another user into no application of this one.
fn prepare_for_user() {
    if application_file::is_known() {
        prepare_for_path();
    }
}

/// Prepares for a new resource limit.
fn prepare_for_limit(resource: c_uint, limit: Option<&rlimit>) {
    let Some(limit) = limit else {
        return;
    };
    let is_near = match resource {
        libc::RLIMIT_NOFILE | libc::RLIMIT_NPROC => limit.rlim_cur < PLENTY,
        // A program without any mapping of the stack is left alone: a new image maps it as needed.
        libc::RLIMIT_AS => limit.rlim_cur != libc::RLIM_INFINITY && client().is_some(),
        _ => false,
    };
    if is_near {
        prepare(Confinement::Resources);
    }
}

/// Prepares for a system call by number.
///
/// # Safety
/// The arguments are valid for the call.
pub(crate) unsafe fn prepare_for_call(number: c_long, [a, b, c, ..]: [c_long; 6]) {
    const FILTER: c_long = libc::SECCOMP_SET_MODE_FILTER as c_long;
    const STRICT: c_long = libc::SECCOMP_SET_MODE_STRICT as c_long;
    // SAFETY: `at` is null or points to an `rlimit`, by this function's contract.
    let limit = |at: c_long| unsafe {
        std::ptr::with_exposed_provenance::<rlimit>(at.cast_unsigned() as usize).as_ref()
    };
    match number {
        libc::SYS_seccomp if [FILTER, STRICT].contains(&a) => prepare(Confinement::Calls),
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => prepare(Confinement::Calls),
        libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_landlock_restrict_self => {
            prepare_for_path();
        }
        libc::SYS_setrlimit => prepare_for_limit(a as c_uint, limit(b)),
        libc::SYS_prlimit64 if a == 0 => prepare_for_limit(b as c_uint, limit(c)),
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => prepare_for_user(),
        _ => {}
    }
}

/// prctl(2). The arguments' places do not depend on their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    let [a, b, c, d] = [a, b, c, d].map(c_ulong::cast_signed);
    let given = [option.into(), a, b, c, d, 0];
    // SAFETY: the arguments are valid for prctl(2), by the caller's contract.
    unsafe {
        prepare_for_call(libc::SYS_prctl, given);
        call(libc::SYS_prctl, given) as c_int
    }
}

/// chroot(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_chroot(path: *const c_char) -> c_int {
    prepare_for_path();
    // SAFETY: the arguments are valid for chroot(2), by the caller's contract.
    unsafe { kernel!(SYS_chroot, path) as c_int }
}

/// setrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_setrlimit(resource: c_uint, to: *const rlimit) -> c_int {
    // SAFETY: the arguments are valid for setrlimit(2), by the caller's contract.
    unsafe {
        prepare_for_limit(resource, to.as_ref());
        kernel!(SYS_setrlimit, resource, to) as c_int
    }
}

/// `setrlimit` for large files: identical on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_setrlimit64(
    resource: c_uint,
    to: *const rlimit,
) -> c_int {
    // SAFETY: the arguments are valid for `setrlimit`, by the caller's contract.
    unsafe { splitway_preload_setrlimit(resource, to) }
}

/// prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_prlimit(
    process: pid_t,
    resource: c_uint,
    to: *const rlimit,
    before: *mut rlimit,
) -> c_int {
    // SAFETY: the arguments are valid for prlimit(2), by the caller's contract.
    unsafe {
        if process == 0 || process == libc::getpid() {
            prepare_for_limit(resource, to.as_ref());
        }
        kernel!(SYS_prlimit64, process, resource, to, before) as c_int
    }
}

/// `prlimit` for large files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_prlimit64(
    process: pid_t,
    resource: c_uint,
    to: *const rlimit,
    before: *mut rlimit,
) -> c_int {
    // SAFETY: the arguments are valid for `prlimit`, by the caller's contract.
    unsafe { splitway_preload_prlimit(process, resource, to, before) }
}

/// setuid(2), in all threads.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_setuid(user: uid_t) -> c_int {
    prepare_for_user();
    // SAFETY: the function takes numbers.
    unsafe { library::setuid(user) }
}

/// setreuid(2), in all threads.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_setreuid(real: uid_t, effective: uid_t) -> c_int {
    prepare_for_user();
    // SAFETY: the function takes numbers.
    unsafe { library::setreuid(real, effective) }
}

/// setresuid(2), in all threads.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_setresuid(
    real: uid_t,
    effective: uid_t,
    saved: uid_t,
) -> c_int {
    prepare_for_user();
    // SAFETY: the function takes numbers.
    unsafe { library::setresuid(real, effective, saved) }
}
