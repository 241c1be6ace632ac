//! The memory that file content is read into and sent from.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes in a buffer, and in a block of a file: what one read asks for.
///
/// A superpacket of 64 KiB spans two blocks at most, and a direct read of this size costs about what
/// the device needs for it.
pub const BLOCK_BYTES: usize = 64 << 10;

/// Alignment of direct reads: of memory, of file offsets and of lengths, in bytes.
pub const PAGE_BYTES: usize = 4096;

const _: () = assert!(
    BLOCK_BYTES.is_multiple_of(PAGE_BYTES),
    "a block is read directly"
);

/// A page-aligned buffer of [`BLOCK_BYTES`].
///
/// It has one owner at a time: the block table, or the reader while a read is under way. So nobody can
/// look at memory that a device is still writing to.
#[repr(C, align(4096))]
pub struct Buffer([u8; BLOCK_BYTES]);

impl Buffer {
    /// A zeroed buffer, its pages touched: no page fault comes later.
    pub fn new() -> Box<Buffer> {
        Box::new(Buffer([0; BLOCK_BYTES]))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Buffer")
    }
}
