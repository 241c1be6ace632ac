//! System calls, which never come back to this library: its own functions have the names of those
//! of the C library.

/// A system call: -1 and `errno` as the C library has them. Arguments are integers and pointers.
///
/// The caller promises what the manual page of the call asks for.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        // `syscall` of the C library is none of the functions here.
        libc::syscall(libc::$number $(, $argument)*)
    };
}

pub(crate) use kernel;
