//! System calls, which never come back to this library: its own functions have the names of those
//! of the C library, `syscall` among them.

use capi::abi::{set_errno, system_call};
use libc::{c_int, c_long, c_uint, c_ulong};

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
    // SAFETY: the caller's promise.
    unsafe { system_call(number, arguments) }.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}
