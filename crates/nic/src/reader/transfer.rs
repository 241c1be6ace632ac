//! One read under way: the next request to the kernel, and its completion.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Completion, Read, ReadToken};
use crate::buffer::{Buffer, PAGE_BYTES};
use crate::root::OpenFile;

/// Most repetitions of an interrupted read.
const ATTEMPTS_MAX: u8 = 16;

/// A read under way.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) token: ReadToken,
    pub(super) file: Arc<OpenFile>,
    /// Offset in the file.
    start: u64,
    wanted: usize,
    filled: usize,
    pub(super) buffer: Buffer,
    /// The last request.
    asked: ReadRequest,
    attempts: u8,
    failure: Option<u16>,
}

/// A request to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    /// Offset in the file.
    pub(super) offset: u64,
    /// Offset in the buffer.
    pub(super) at: usize,
    pub(super) len: usize,
    direct: bool,
}

impl Transfer {
    pub(super) fn new(read: Read, file: Arc<OpenFile>) -> Transfer {
        let mut transfer = Transfer {
            token: read.token,
            file,
            start: read.offset,
            wanted: read.len.min(read.buffer.len()),
            filled: 0,
            buffer: read.buffer,
            asked: ReadRequest {
                offset: 0,
                at: 0,
                len: 0,
                direct: false,
            },
            attempts: 0,
            failure: None,
        };
        transfer.ask();
        transfer
    }

    /// Returns the current request to the kernel.
    pub(super) fn asked(&self) -> ReadRequest {
        self.asked
    }

    /// Takes the kernel's result. True if the transfer is over, else [`Transfer::asked`] has
    /// changed.
    pub(super) fn advance(&mut self, answer: Result<usize, Errno>) -> bool {
        let over = self.take(answer);
        if over && let Err(errno) = self.file.check_version() {
            // The version of each byte is unknown.
            self.filled = 0;
            self.failure = Some(errno.raw_os_error() as u16);
        }
        over
    }

    fn take(&mut self, answer: Result<usize, Errno>) -> bool {
        match answer {
            Ok(count) => {
                let reached = self.asked.at + count.min(self.asked.len);
                if reached >= self.wanted {
                    self.filled = self.wanted;
                    return true;
                }
                if reached <= self.filled {
                    // Nothing new: the file ends here.
                    self.failure = Some(Errno::NODATA.raw_os_error() as u16);
                    return true;
                }
                self.filled = reached;
            }
            Err(Errno::INTR | Errno::AGAIN) if self.attempts < ATTEMPTS_MAX => self.attempts += 1,
            // Some file systems accept O_DIRECT and refuse the reads.
            Err(Errno::INVAL) if self.asked.direct && self.file.make_buffered().is_ok() => {}
            Err(errno) => {
                self.failure = Some(errno.raw_os_error() as u16);
                return true;
            }
        }
        self.ask();
        false
    }

    fn ask(&mut self) {
        let direct = self.file.is_direct();
        let (at, end) = if direct {
            let end = self.wanted.next_multiple_of(PAGE_BYTES);
            (self.filled - self.filled % PAGE_BYTES, end)
        } else {
            (self.filled, self.wanted)
        };
        self.asked = ReadRequest {
            offset: self.start + at as u64,
            at,
            len: end - at,
            direct,
        };
    }

    pub(super) fn finish(self) -> Completion {
        Completion::Read {
            token: self.token,
            buffer: self.buffer,
            valid: self.filled,
            failure: self.failure,
        }
    }
}
