//! System calls, which never come back to this library: its own functions have the names of those
//! of the C library, `syscall` among them.

use std::arch::asm;

use capi::abi::set_errno;
use libc::{c_int, c_long, c_uint, c_ulong};
use rustix::io::Errno;

/// A system call: -1 and `errno` as the C library has them. Arguments are integers and pointers.
///
/// The caller promises what the manual page of the call asks for.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let given = [$($crate::kernel::Argument::word($argument)),*];
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(&given);
        $crate::kernel::call(libc::$number, arguments)
    }};
}

pub(crate) use kernel;

/// What a system call takes.
pub(crate) trait Argument {
    /// As a register has it.
    fn word(self) -> c_long;
}

impl Argument for c_int {
    fn word(self) -> c_long {
        self.into()
    }
}

impl Argument for c_uint {
    fn word(self) -> c_long {
        self.into()
    }
}

impl Argument for c_long {
    fn word(self) -> c_long {
        self
    }
}

impl Argument for c_ulong {
    fn word(self) -> c_long {
        self.cast_signed()
    }
}

impl Argument for usize {
    fn word(self) -> c_long {
        self.cast_signed() as c_long
    }
}

impl<T> Argument for *const T {
    fn word(self) -> c_long {
        self.expose_provenance().word()
    }
}

impl<T> Argument for *mut T {
    fn word(self) -> c_long {
        self.expose_provenance().word()
    }
}

/// A system call by its number.
pub(crate) unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    /// `MAX_ERRNO` of Linux.
    const ERRNO_MAX: c_long = 4095;
    // SAFETY: the caller's promise.
    let done = unsafe { enter(number, arguments) };
    if (-ERRNO_MAX..0).contains(&done) {
        set_errno(Errno::from_raw_os_error(-done as c_int));
        return -1;
    }
    done
}

/// Enters the kernel (syscall(2), "Architecture calling conventions").
#[cfg(target_arch = "x86_64")]
unsafe fn enter(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let done;
    // SAFETY: the caller's promise; the kernel changes these two registers besides.
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
    // SAFETY: the caller's promise; the kernel keeps all other registers.
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
