//! A file of an application, and its ranges on their way into a stream.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use host::Growth;
use host::app::{FileHandle, FileMeta, Io, StreamId};
use rustix::io::Errno;
use socket_channel::SocketId;

use crate::state::passed::PassedUse;

/// Name by which a file is opened.
#[derive(Debug)]
pub(crate) enum Name {
    /// A path below the roots of the NIC stacks.
    Path(Vec<u8>),
    /// Descriptor that the application has passed.
    Passed(PassedUse),
}

/// A file, shared by all users.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: Name,
    /// Result of the lookup.
    pub(crate) found: OnceLock<Result<FileMeta, Errno>>,
}

/// A socket that stands for a file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) shared: Arc<Shared>,
    /// Connections that wait for the lookup.
    pub(crate) waiting: BTreeSet<SocketId>,
    /// Connections that have the file open.
    pub(crate) holders: BTreeSet<SocketId>,
}

/// The open file of a stream.
#[derive(Debug)]
pub(crate) struct Current {
    file: Arc<Shared>,
    /// Socket of the file, which may be gone.
    pub(crate) of: SocketId,
    pub(crate) handle: FileHandle,
    is_open: bool,
}

/// A file range with a place in a stream.
#[derive(Debug)]
pub(crate) struct FileRange {
    pub(crate) file: Arc<Shared>,
    /// Socket of the file, which may be gone.
    pub(crate) of: SocketId,
    /// Start of the range in the file, in bytes.
    pub(crate) offset: u64,
    /// Remaining length, in bytes.
    pub(crate) len: u64,
}

/// Progress of a range.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The whole range is queued.
    Done,
    /// The range waits for the NIC stack, or for room.
    Waits,
    /// The range waits for the NIC stack to open its file. The stream has closed the previous one.
    Opens(Option<Current>),
    /// The stream must end.
    Failed(Errno),
}

impl FileRange {
    /// Queues the range in a stream, after opening the file there.
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
    /// Requests the file's metadata.
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
    /// Handles the opening of the file for the stream: an error if the version differs from the
    /// lookup.
    pub(crate) fn on_opened(&mut self, meta: &FileMeta) -> Result<(), Errno> {
        self.is_open = true;
        let found = self.file.found.get();
        let Some(Ok(looked_up)) = found else {
            return Err(Errno::STALE);
        };
        let is_version = |one: &FileMeta, other: &FileMeta| {
            let is_copy = (one.size, one.mtime_ns) == (other.size, other.mtime_ns);
            // Copies on other machines have inodes and status changes of their own.
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
