//! The continuation of a SEND in the same file
//! ([`Send::follow_bytes`](contract::Send::follow_bytes)).

use crate::slab::Key;

/// The stream's next bytes after a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Follow {
    /// The file.
    pub(crate) file: Key,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Least length, in bytes; not zero.
    pub(crate) bytes: u64,
}
