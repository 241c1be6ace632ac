//! A file of an application, and ranges of it on their way into a stream.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use host::Growth;
use host::app::{FileHandle, FileMeta, Io, StreamId};
use rustix::io::Errno;
use socket_channel::SocketId;

use crate::state::passed::PassedUse;

/// What a file is opened by.
#[derive(Debug)]
pub(crate) enum Name {
    /// A path below the roots of the NIC stacks.
    Path(Vec<u8>),
    /// A descriptor that the application has passed.
    Passed(PassedUse),
}

/// A file, for all that name it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: Name,
    /// What the look-up has brought.
    pub(crate) found: OnceLock<Result<FileMeta, Errno>>,
}

/// A socket that stands for a file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) shared: Arc<Shared>,
    /// Connections that wait for the look-up.
    pub(crate) waiting: BTreeSet<SocketId>,
    /// Connections that have it open.
    pub(crate) holders: BTreeSet<SocketId>,
}

/// The file that a stream has open.
#[derive(Debug)]
pub(crate) struct Current {
    file: Arc<Shared>,
    /// The socket that stands for it, which may be gone.
    pub(crate) of: SocketId,
    pub(crate) handle: FileHandle,
    is_open: bool,
}

/// A range of a file that has its place in a stream.
#[derive(Debug)]
pub(crate) struct FileRange {
    pub(crate) file: Arc<Shared>,
    /// The socket that stands for the file, which may be gone.
    pub(crate) of: SocketId,
    /// Where it begins in the file, in bytes.
    pub(crate) offset: u64,
    /// What is left of it, in bytes.
    pub(crate) len: u64,
}

/// How far a range has come.
#[derive(Debug)]
pub(crate) enum Progress {
    /// All of it is queued.
    Done,
    /// It waits for the NIC stack, or for room.
    Waits,
    /// It waits for the NIC stack to open its file. The stream lets go of the one before.
    Opens(Option<Current>),
    /// The stream cannot go on.
    Failed(Errno),
}

impl FileRange {
    /// Queues it in a stream, opening the file there first.
    pub(crate) fn send(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        current: &mut Option<Current>,
    ) -> Progress {
        let meta = match self.file.found.get() {
            None => return Progress::Waits,
            Some(Err(errno)) => return Progress::Failed(*errno),
            Some(Ok(meta)) => meta,
        };
        let end = self.offset.checked_add(self.len);
        let Some(end) = end.filter(|end| *end <= meta.size) else {
            return Progress::Failed(Errno::IO);
        };
        let is_same = |it: &&Current| Arc::ptr_eq(&it.file, &self.file);
        match current.as_ref().filter(is_same) {
            Some(open) if open.is_open => {
                let queued = io.write_file(stream, open.handle, self.offset..end);
                self.offset += queued;
                self.len -= queued;
                if self.len == 0 {
                    Progress::Done
                } else {
                    Progress::Waits
                }
            }
            Some(_) => Progress::Waits,
            None => {
                let before = current.take();
                if let Some(before) = &before {
                    io.close_file(before.handle);
                }
                *current = Some(Current {
                    handle: self.file.name.open(io, stream),
                    file: Arc::clone(&self.file),
                    of: self.of,
                    is_open: false,
                });
                Progress::Opens(before)
            }
        }
    }
}

impl Name {
    /// Asks for the file's metadata.
    pub(crate) fn look_up(&self, io: &mut dyn Io) -> Option<FileHandle> {
        match self {
            Name::Path(path) => io.look_up(path),
            Name::Passed(passed) => io.look_up_passed(passed.id),
        }
    }

    fn open(&self, io: &mut dyn Io, stream: StreamId) -> FileHandle {
        match self {
            Name::Path(path) => io.open(stream, path, Growth::Forbidden),
            Name::Passed(passed) => io.open_passed(stream, passed.id),
        }
    }
}

impl Current {
    /// The file is open for the stream: an error if it is another version than was looked up.
    pub(crate) fn on_opened(&mut self, meta: &FileMeta) -> Result<(), Errno> {
        self.is_open = true;
        let found = self.file.found.get();
        let Some(Ok(looked_up)) = found else {
            return Err(Errno::STALE);
        };
        let is_version = |one: &FileMeta, other: &FileMeta| {
            let is_copy = (one.size, one.mtime_ns) == (other.size, other.mtime_ns);
            // Copies on other machines have an inode and a status change of their own.
            let is_here = (one.device, one.inode) == (other.device, other.inode);
            is_copy && (!is_here || one.ctime_ns == other.ctime_ns)
        };
        if is_version(looked_up, meta) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }
}
