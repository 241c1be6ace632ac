//! Readers open files, read blocks and list directories, without making the worker wait.
//!
//! | Reader | Where |
//! |---|---|
//! | `uring` | io_uring: one system call for a batch of reads |
//! | `pool`, `lanes` | threads, without io_uring or if the file system may make readers wait |
//! | [`delay`] | a slow disk, in front of any other: for measurements and tests |
//! | [`memory`] | files in memory with scripted delays and errors, for tests and simulation |

use std::os::fd::BorrowedFd;

use contract::listing::Part;
use contract::{FileMeta, Growth, PassedId};
use rustix::io::Errno;

use crate::buffer::{Buffer, Region};

pub mod delay;
mod lanes;
pub mod memory;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
mod transfer;
pub(crate) mod uring;

/// Identifies a file between worker and reader. Chosen by the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileToken(pub u64);

/// Identifies a read between worker and reader. Chosen by the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadToken(pub u32);

/// A read request.
#[derive(Debug)]
pub struct Read {
    /// Identifies the read in its completion.
    pub token: ReadToken,
    /// An open file.
    pub file: FileToken,
    /// Where to start, in bytes from the start of the file; a multiple of
    /// [`PAGE_BYTES`](crate::buffer::PAGE_BYTES).
    pub offset: u64,
    /// Number of bytes wanted; at most [`BLOCK_BYTES`](crate::buffer::BLOCK_BYTES).
    pub len: usize,
    /// Destination. The completion returns it.
    pub buffer: Buffer,
}

/// Completed operation of a reader.
#[derive(Debug)]
pub enum Completion {
    /// An open.
    Opened {
        /// The file.
        file: FileToken,
        /// Its metadata and mount, or an `errno` of Linux.
        result: Result<Opened, u16>,
    },
    /// A listing.
    Listed {
        /// The directory, which is not kept open.
        file: FileToken,
        /// Some of its entries, or an `errno` of Linux.
        result: Result<Box<Part>, u16>,
    },
    /// A read.
    Read {
        /// The read.
        token: ReadToken,
        /// The buffer of the read.
        buffer: Buffer,
        /// Number of bytes from the buffer's start that hold file content.
        valid: usize,
        /// Reason why `valid` is less than the requested length: an `errno` of Linux, `ENODATA` for
        /// the end of the file, `ESTALE` if the file has changed since it was opened (then `valid`
        /// is zero). `None` if it is not less.
        failure: Option<u16>,
    },
}

/// A file that has been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its metadata.
    pub meta: FileMeta,
    /// The mount in which it was found. Another file system in the same place may have the same
    /// device and inode numbers.
    pub mount: u64,
    /// The timestamps are old enough to distinguish versions of the file: a later change would
    /// show.
    /// show.
    pub settled: bool,
    /// Whether reads succeed after the file has grown.
    pub growth: Growth,
}

#[cfg(test)]
impl Opened {
    /// Returns a file for tests of the layers above the readers.
    pub(crate) fn stub(meta: FileMeta, mount: u64, settled: bool) -> Opened {
        Opened {
            meta,
            mount,
            settled,
            growth: Growth::Forbidden,
        }
    }
}

/// Opens files, reads blocks and lists directories. Nothing here waits for a disk.
pub trait Reader {
    /// Announces the region in which nearly all buffers of later reads lie. Called once, before
    /// anything else, so that the reader can prepare the memory.
    fn prepare(&mut self, region: &Region) {
        let _ = region;
    }
    /// Starts opening a file below the root. One completion follows. `growth` decides whether reads
    /// succeed when the file has become longer.
    fn open(&mut self, file: FileToken, path: &[u8], growth: Growth);
    /// Starts opening a file of which a descriptor was passed. One completion follows.
    fn open_passed(&mut self, file: FileToken, passed: PassedId);
    /// Starts listing a directory below the root, or the root itself for an empty path, from a
    /// position: zero, or the end of an earlier part. One completion follows, and the directory
    /// needs no [`Reader::close`].
    fn list(&mut self, file: FileToken, path: &[u8], from: u64);
    /// Forgets a file whose open has completed. Reads under way still complete.
    fn close(&mut self, file: FileToken);
    /// Takes a read; it starts with the next [`Reader::submit`] at the latest. One completion
    /// follows.
    fn read(&mut self, read: Read);
    /// Starts the reads taken. Where that fails, [`Reader::next`] tries again.
    fn submit(&mut self);
    /// True if reads taken have not been started. No descriptor becomes readable for them.
    fn has_unsubmitted(&mut self) -> bool {
        false
    }
    /// Returns the next completion, if there is one.
    fn next(&mut self) -> Option<Completion>;
    /// Returns when there will be a completion without a readable descriptor, in microseconds of
    /// the worker's clock.
    fn next_timeout_us(&self) -> Option<u64> {
        None
    }
    /// Returns descriptors that are readable while there is a completion.
    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2];
}

/// Returns the completion of a read that cannot be done.
fn failed(read: Read, errno: Errno) -> Completion {
    Completion::Read {
        token: read.token,
        buffer: read.buffer,
        valid: 0,
        failure: Some(errno.raw_os_error() as u16),
    }
}
