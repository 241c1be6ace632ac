//! This process at the host stack, and what it tells people.

use capi::Client;

use crate::kernel::kernel;

/// This process at the host stack, if it is attached.
pub(crate) fn client() -> Option<&'static Client> {
    capi::abi::attached()
}

/// Whether a descriptor is a split socket, or a file of the NIC stack.
pub(crate) fn is_split(fd: libc::c_int) -> bool {
    client().is_some_and(|client| client.is_split_number(fd))
}

/// Tells people of what they will look for. There is no other way to them: the program's logs are
/// its own.
pub(crate) fn complain(what: &str) {
    let line = format!("splitway: {what}\n");
    // SAFETY: the pointer and the length are those of a string.
    unsafe { kernel!(SYS_write, 2, line.as_ptr(), line.len()) };
}
