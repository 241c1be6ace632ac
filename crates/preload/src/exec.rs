//! Passes the library on to new program images, even if the environment is replaced: nginx clears
//! it, and starts its next version with variables of its own.

use std::ffi::{CStr, CString};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use capi::abi::{default_options, set_errno};
use libc::{c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rustix::io::Errno;

use crate::attached::client;
use crate::copies::{copying, prepare_clone, prepare_exec, starting};
use crate::kernel::kernel;
use crate::library::next;
use crate::settings::settings;

type Strings = *const *const c_char;

type ExecVpe = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;

/// Entry function of a child of clone(2).
type Work = extern "C" fn(*mut c_void) -> c_int;

type Clone = unsafe extern "C" fn(
    Option<Work>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    Strings,
    Strings,
) -> c_int;

unsafe extern "C" {
    static environ: Strings;
}

/// Functions of the C library that search `PATH`, or start a process.
#[derive(Debug)]
struct Library {
    execvpe: Option<ExecVpe>,
    posix_spawn: Option<Spawn>,
    posix_spawnp: Option<Spawn>,
    bare_fork: Option<unsafe extern "C" fn() -> pid_t>,
    clone: Option<Clone>,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Finds the functions; not after a fork, where a lock of the loader may be held forever.
pub(crate) fn find() {
    // SAFETY: the C library's functions have the types given here.
    unsafe {
        let _ = LIBRARY.set(Library {
            execvpe: transmute::<*mut c_void, Option<ExecVpe>>(next(c"execvpe")),
            posix_spawn: transmute::<*mut c_void, Option<Spawn>>(next(c"posix_spawn")),
            posix_spawnp: transmute::<*mut c_void, Option<Spawn>>(next(c"posix_spawnp")),
            bare_fork: transmute::<*mut c_void, Option<_>>(next(c"_Fork")),
            clone: transmute::<*mut c_void, Option<Clone>>(next(c"clone")),
        });
    }
}

/// An environment in the form of C.
struct Environment {
    /// Owners of the strings that `pointers` refers to.
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// Returns the environment with the variables that the library needs; `None` if it is complete.
unsafe fn completed(environment: Strings) -> Option<Environment> {
    let mut given = Vec::new();
    // SAFETY: `environment` is null or a null-terminated array of strings, by the caller's
    // contract.
    unsafe {
        let mut at = environment;
        while !at.is_null() && !(*at).is_null() {
            given.push(CStr::from_ptr(*at));
            at = at.add(1);
        }
    }
    let application = match client() {
        Some(client) => Some(client.application_key()),
        None => default_options().and_then(|options| options.application),
    };
    let exec_environment = &settings()?.exec_environment;
    let strings = exec_environment.complete(&given, application.as_ref())?;
    let pointers = strings.iter().map(|string| string.as_ptr());
    Some(Environment {
        pointers: pointers.chain([ptr::null()]).collect(),
        _strings: strings,
    })
}

/// Makes a call with the given environment, or with the completed one.
unsafe fn with(environment: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    // SAFETY: `environment` is null or a null-terminated array of strings, by the caller's
    // contract.
    match unsafe { completed(environment) } {
        Some(completed) => call(completed.pointers.as_ptr()),
        None => call(environment),
    }
}

/// execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are valid for execve(2), by the caller's contract.
    unsafe {
        prepare_exec();
        with(environment, |environment| {
            kernel!(SYS_execve, path, arguments, environment) as c_int
        })
    }
}

/// execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the arguments are valid for execv(3), by the caller's contract.
    unsafe { splitway_preload_execve(path, arguments, environ) }
}

/// execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the arguments are valid for execvp(3), by the caller's contract.
    unsafe { splitway_preload_execvpe(file, arguments, environ) }
}

/// execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are valid for execvpe(3), by the caller's contract.
    unsafe {
        prepare_exec();
        with(environment, |environment| {
            match LIBRARY.get().and_then(|library| library.execvpe) {
                Some(execvpe) => execvpe(file, arguments, environment),
                None => kernel!(SYS_execve, file, arguments, environment) as c_int,
            }
        })
    }
}

/// fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_fexecve(
    fd: c_int,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are valid for fexecve(3), by the caller's contract.
    unsafe {
        prepare_exec();
        with(environment, |environment| {
            let empty = c"".as_ptr();
            let flags = libc::AT_EMPTY_PATH;
            kernel!(SYS_execveat, fd, empty, arguments, environment, flags) as c_int
        })
    }
}

/// posix_spawn(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are valid for posix_spawn(3), by the caller's contract.
    unsafe {
        with(environment, |environment| {
            let spawn = LIBRARY.get().and_then(|library| library.posix_spawn);
            spawn.map_or(libc::ENOSYS, |spawn| {
                starting(|| spawn(pid, path, actions, attributes, arguments, environment))
            })
        })
    }
}

/// posix_spawnp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are valid for posix_spawnp(3), by the caller's contract.
    unsafe {
        with(environment, |environment| {
            let spawn = LIBRARY.get().and_then(|library| library.posix_spawnp);
            spawn.map_or(libc::ENOSYS, |spawn| {
                starting(|| spawn(pid, file, actions, attributes, arguments, environment))
            })
        })
    }
}

/// vfork(2). The child gets a copy of the memory: with shared memory it would close descriptors in
/// its parent's tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_vfork() -> pid_t {
    // SAFETY: the child keeps the restrictions of `vfork`, by the caller's contract; those of
    // `fork` are weaker.
    unsafe { libc::fork() }
}

/// `_Fork`: fork(2) without handlers, for signal handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload__Fork() -> pid_t {
    let Some(fork) = LIBRARY.get().and_then(|library| library.bare_fork) else {
        // SAFETY: `fork` runs the handlers in addition, which the caller's contract of `_Fork` does
        // not exclude.
        return unsafe { libc::fork() };
    };
    // SAFETY: `_Fork` takes no arguments; its child is restricted by the caller's contract.
    let child = copying(|| unsafe { fork() });
    if child >= 0 {
        capi::client::note_bare_fork(child == 0);
    }
    child
}

/// clone(2). The function takes all possible arguments; the kernel reads those that the flags
/// select.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_clone(
    work: Option<Work>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: *mut c_void,
    storage: *mut c_void,
    child_id: *mut c_void,
) -> c_int {
    let Some(clone) = LIBRARY.get().and_then(|library| library.clone) else {
        set_errno(Errno::NOSYS);
        return -1;
    };
    prepare_clone(flags.cast_unsigned().into());
    // SAFETY: the arguments are valid for clone(2), by the caller's contract. A child with memory
    // of its own runs `work` there.
    let child = unsafe { clone(work, stack, flags, argument, parent_id, storage, child_id) };
    if child > 0 && flags & libc::CLONE_VM == 0 {
        capi::client::note_bare_fork(false);
    }
    prepare_clone(flags.cast_unsigned().into());
    child
}

/// Defines a C function that takes a path and strings up to a null pointer as variadic arguments:
/// passes them to `$with` as an array.
macro_rules! of_arguments {
    ($name:ident, $with:path) => {
        #[doc = concat!(stringify!($name), ": as many arguments as the caller has.")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            // Those in registers are pushed right below those on the stack.
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {with}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                with = sym $with,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "sub sp, sp, #80",
                "str x30, [sp]",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {with}",
                "ldr x30, [sp]",
                "add sp, sp, #80",
                "ret",
                with = sym $with,
            );
        }
    };
}

of_arguments!(splitway_preload_execl, splitway_preload_execv);
of_arguments!(splitway_preload_execlp, splitway_preload_execvp);
of_arguments!(splitway_preload_execle, execve_with_environment_behind);

/// execve(2) with the environment after the arguments' null pointer.
unsafe extern "C" fn execve_with_environment_behind(
    path: *const c_char,
    arguments: Strings,
) -> c_int {
    // SAFETY: the arguments end with a null pointer and the environment follows, by the contract of
    // execle(3).
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        let environment = end.add(1).cast::<Strings>().read();
        splitway_preload_execve(path, arguments, environment)
    }
}
