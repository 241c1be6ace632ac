//! Readers open files, read blocks and list directories, without making the worker wait.
//!
//! | Reader | Where |
//! |---|---|
//! | `uring` | io_uring: one system call for a batch of reads |
//! | `pool`, `lanes` | threads, where io_uring is forbidden, or the file system may make its reader wait |
//! | [`delay`] | a slow disk, in front of any of these: for measurements and tests |
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

/// A file, as worker and reader call it. Chosen by the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileToken(pub u64);

/// A read, as worker and reader call it. Chosen by the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadToken(pub u32);

/// A read to be done.
#[derive(Debug)]
pub struct Read {
    /// Comes back in the completion.
    pub token: ReadToken,
    /// An open file.
    pub file: FileToken,
    /// Where to start, in bytes from the start of the file; a multiple of
    /// [`PAGE_BYTES`](crate::buffer::PAGE_BYTES).
    pub offset: u64,
    /// How many bytes are wanted; at most [`BLOCK_BYTES`](crate::buffer::BLOCK_BYTES).
    pub len: usize,
    /// Where to. Comes back in the completion.
    pub buffer: Buffer,
}

/// What a reader has finished.
#[derive(Debug)]
pub enum Completion {
    /// An open.
    Opened {
        /// The file.
        file: FileToken,
        /// What it is, or an `errno` of Linux.
        result: Result<Opened, u16>,
    },
    /// A listing.
    Listed {
        /// The directory, of which nothing is kept.
        file: FileToken,
        /// Some of what is in it, or an `errno` of Linux.
        result: Result<Box<Part>, u16>,
    },
    /// A read.
    Read {
        /// The read.
        token: ReadToken,
        /// The buffer of the read.
        buffer: Buffer,
        /// How many bytes from the buffer's start are the file's.
        valid: usize,
        /// Why `valid` is less than what was wanted: an `errno` of Linux, `ENODATA` for the end of
        /// the file, `ESTALE` if the file has changed since it was opened (then `valid` is zero).
        /// `None` if it is not less.
        failure: Option<u16>,
    },
}

/// A file that has been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its metadata.
    pub meta: FileMeta,
    /// The mount that it was found in. Another file system in the same place may have the same
    /// device and inode numbers.
    pub mount: u64,
    /// The timestamps are old enough to tell versions of the file apart: a later change would show.
    pub settled: bool,
    /// What becomes of reads from a file that has grown.
    pub growth: Growth,
}

#[cfg(test)]
impl Opened {
    /// A file as tests of what lies above the readers need it.
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
    /// Tells where the buffers of later reads lie: in this region, and seldom elsewhere. Called
    /// once, before anything else; what can be prepared for them is prepared.
    fn prepare(&mut self, region: &Region) {
        let _ = region;
    }
    /// Starts opening a file below the root. One completion follows. `growth` says what becomes of
    /// reads when the file is longer then than now.
    fn open(&mut self, file: FileToken, path: &[u8], growth: Growth);
    /// Starts opening a file of which a descriptor was passed. One completion follows.
    fn open_passed(&mut self, file: FileToken, passed: PassedId);
    /// Starts listing a directory below the root, or the root itself for an empty path, from a
    /// place on: zero, or where a part before has ended. One completion follows, and nothing is to
    /// be closed then.
    fn list(&mut self, file: FileToken, path: &[u8], from: u64);
    /// Forgets a file whose open has completed. Reads under way still complete.
    fn close(&mut self, file: FileToken);
    /// Takes a read; it starts with the next [`Reader::submit`] at the latest. One completion
    /// follows.
    fn read(&mut self, read: Read);
    /// Starts the reads taken. Where that fails, [`Reader::next`] tries again.
    fn submit(&mut self);
    /// True if reads taken have not been started. No descriptor wakes for their sake.
    fn has_unsubmitted(&mut self) -> bool {
        false
    }
    /// The next completion, if there is one.
    fn next(&mut self) -> Option<Completion>;
    /// When there will be a completion that no descriptor wakes for, in microseconds of the
    /// worker's clock.
    fn next_timeout_us(&self) -> Option<u64> {
        None
    }
    /// Descriptors that are readable while there is a completion.
    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2];
}

/// A read that cannot be done.
fn failed(read: Read, errno: Errno) -> Completion {
    Completion::Read {
        token: read.token,
        buffer: read.buffer,
        valid: 0,
        failure: Some(errno.raw_os_error() as u16),
    }
}
