//! Raw system calls, which never re-enter this library: its functions have the names of the C
//! library's, `syscall` included.

use capi::abi::{set_errno, system_call};
use libc::{c_int, c_long, c_uint, c_ulong};

/// Makes a system call; returns -1 and sets `errno` as the C library does. Arguments are integers
/// and pointers.
///
/// The caller must keep the contract of the call's manual page.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let given = [$($crate::kernel::Argument::word($argument)),*];
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(&given);
        $crate::kernel::call(libc::$number, arguments)
    }};
}

pub(crate) use kernel;

/// Argument of a system call.
pub(crate) trait Argument {
    /// Returns the value for a register.
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

/// Makes a system call by number.
pub(crate) unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    // SAFETY: `number` and the arguments form a valid system call, by the caller's contract.
    unsafe { system_call(number, arguments) }.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}
