//! What comes behind a SEND in the same file
//! ([`Send::follow_bytes`](contract::Send::follow_bytes)).

use crate::slab::Key;

/// What a stream goes on with behind a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Follow {
    /// The file.
    pub(crate) file: Key,
    /// Where in the file.
    pub(crate) offset: u64,
    /// How far at least, in bytes; not zero.
    pub(crate) bytes: u64,
}
