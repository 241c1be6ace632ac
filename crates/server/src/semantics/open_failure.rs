//! From an `errno` of OPEN to a status.

use http::StatusCode;

/// The status of the response when a file could not be opened. A directory is not among these: it
/// has an index or a redirect.
pub(crate) fn status(errno: u16) -> StatusCode {
    match i32::from(errno) {
        // Nothing of that name, or no name at all.
        libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ESTALE | libc::EISDIR => {
            StatusCode::NOT_FOUND
        }
        // Something of that name that is not to be served: permissions, devices, and links that
        // leave the root (EXDEV from `RESOLVE_BENEATH`).
        libc::EACCES | libc::EPERM | libc::ELOOP | libc::EXDEV => StatusCode::FORBIDDEN,
        // It might work later. EAGAIN: `openat2` could not rule out a race with a rename.
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EBUSY => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
