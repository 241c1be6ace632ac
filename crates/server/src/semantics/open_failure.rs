//! From an `errno` of OPEN to a status.

use http::StatusCode;

/// Returns the status of the response when a file could not be opened. A directory's `errno` does
/// not come here: a directory has an index or a redirect.
pub(crate) fn status(errno: u16) -> StatusCode {
    match i32::from(errno) {
        // There is no such file, or the name is no file's.
        libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ESTALE | libc::EISDIR => {
            StatusCode::NOT_FOUND
        }
        // The file must not be served: permissions, devices, and links that leave the root (EXDEV
        // from `RESOLVE_BENEATH`).
        libc::EACCES | libc::EPERM | libc::ELOOP | libc::EXDEV => StatusCode::FORBIDDEN,
        // Possibly temporary. EAGAIN: `openat2` could not rule out a race with a rename.
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EBUSY => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
