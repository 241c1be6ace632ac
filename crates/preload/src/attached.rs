//! This process's attachment to the host stack, and its diagnostics.

use capi::Client;

use crate::kernel::kernel;

/// Returns the client of the host stack, if this process is attached.
pub(crate) fn client() -> Option<&'static Client> {
    capi::abi::attached()
}

/// Reports whether a descriptor is a split socket, or a file of the NIC stack.
pub(crate) fn is_split(fd: libc::c_int) -> bool {
    client().is_some_and(|client| client.is_split_number(fd))
}

/// Writes a diagnostic to standard error; the program's logs are its own.
pub(crate) fn complain(what: &str) {
    let line = format!("splitway: {what}\n");
    // SAFETY: the pointer and the length are those of a string.
    unsafe { kernel!(SYS_write, 2, line.as_ptr(), line.len()) };
}
