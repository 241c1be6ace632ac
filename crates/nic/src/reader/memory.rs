//! Files in memory, with scripted delays and errors: for tests and simulation.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::listing::{Entry, EntryKind, Part};
use contract::{FileMeta, Growth, PassedId};
use rustix::io::Errno;

use super::{Completion, FileToken, Opened, Read, Reader};

/// A disk of memory. Clones are the same disk: one end for the script, one for the worker's reader.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Vec<u8>, Stored>,
    open: HashMap<FileToken, Vec<u8>>,
    passed: HashMap<PassedId, Vec<u8>>,
    held: HashSet<Vec<u8>>,
    refuses: bool,
    /// Reads that have not been started.
    unsubmitted: VecDeque<Request>,
    queue: VecDeque<Request>,
    reads: Vec<ReadSeen>,
}

#[derive(Debug)]
struct Stored {
    content: Vec<u8>,
    meta: FileMeta,
    settled: bool,
    /// Position of the byte that cannot be read, and its `errno`.
    bad: Option<(u64, u16)>,
}

/// A read requested from the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSeen {
    /// The file.
    pub path: Vec<u8>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes wanted.
    pub len: usize,
}

#[derive(Debug)]
enum Request {
    Open {
        file: FileToken,
        path: Vec<u8>,
        growth: Growth,
    },
    List {
        file: FileToken,
        path: Vec<u8>,
        from: u64,
    },
    Read {
        path: Vec<u8>,
        read: Read,
    },
}

impl Request {
    fn path(&self) -> &[u8] {
        match self {
            Request::Open { path, .. }
            | Request::List { path, .. }
            | Request::Read { path, .. } => path,
        }
    }
}

impl MemoryDisk {
    /// Returns an empty disk.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a file there, in place of an earlier one of the same name: another version.
    pub fn put(&self, path: &[u8], content: Vec<u8>) {
        let mut state = self.lock();
        let version = state.files.get(path).map_or(1, |old| old.meta.mtime_ns + 1);
        let inode = match state.files.get(path) {
            Some(old) => old.meta.inode,
            None => state.files.len() as u64 + 1,
        };
        let meta = FileMeta {
            size: content.len() as u64,
            inode,
            device: 1,
            mtime_ns: version,
            ctime_ns: version,
            is_weak: false,
        };
        let stored = Stored {
            content,
            meta,
            settled: true,
            bad: None,
        };
        state.files.insert(path.into(), stored);
    }

    /// Changes content without any change of metadata.
    pub fn overwrite(&self, path: &[u8], content: Vec<u8>) {
        if let Some(file) = self.lock().files.get_mut(path) {
            file.content = content;
        }
    }

    /// Marks a file as changed so recently that its timestamps do not identify a version.
    pub fn unsettle(&self, path: &[u8]) {
        if let Some(file) = self.lock().files.get_mut(path) {
            file.settled = false;
        }
    }

    /// Makes reads of the byte at `offset` fail with `errno`; the bytes before it can be read.
    pub fn spoil(&self, path: &[u8], offset: u64, errno: u16) {
        if let Some(file) = self.lock().files.get_mut(path) {
            file.bad = Some((offset, errno));
        }
    }

    /// Lets no operation complete for this path until [`MemoryDisk::release`].
    pub fn hold(&self, path: &[u8]) {
        self.lock().held.insert(path.into());
    }

    /// The inverse of [`MemoryDisk::hold`].
    pub fn release(&self, path: &[u8]) {
        self.lock().held.remove(path);
    }

    /// Sets whether the start of reads fails for now.
    pub fn refuse(&self, refuses: bool) {
        self.lock().refuses = refuses;
    }

    /// Returns all reads so far.
    pub fn reads(&self) -> Vec<ReadSeen> {
        self.lock().reads.clone()
    }

    /// Passes a descriptor of a file, under this number from then on.
    pub fn pass(&self, passed: PassedId, path: &[u8]) {
        self.lock().passed.insert(passed, path.into());
    }

    /// Returns the number of files that a worker has open.
    pub fn open_files(&self) -> usize {
        self.lock().open.len()
    }
}

impl State {
    fn submit(&mut self) {
        if !self.refuses {
            self.queue.append(&mut self.unsubmitted);
        }
    }

    fn perform(&mut self, asked: Request) -> Completion {
        match asked {
            Request::Open { file, path, growth } => {
                let result = match self.files.get(&path) {
                    Some(stored) => Ok(Opened {
                        meta: stored.meta,
                        mount: 0,
                        settled: stored.settled,
                        growth,
                    }),
                    None => Err(Errno::NOENT.raw_os_error() as u16),
                };
                if result.is_ok() {
                    self.open.insert(file, path);
                }
                Completion::Opened { file, result }
            }
            Request::List { file, path, from } => Completion::Listed {
                file,
                result: self.list(&path, from),
            },
            Request::Read { path, read } => self.read(&path, read),
        }
    }

    /// A place in a directory is the number of an entry in it, by name.
    fn list(&self, path: &[u8], from: u64) -> Result<Box<Part>, u16> {
        let prefix = match path {
            b"" => Vec::new(),
            _ => [path, b"/"].concat(),
        };
        let mut names = BTreeMap::new();
        for (path, stored) in &self.files {
            let Some(below) = path.strip_prefix(&prefix[..]) else {
                continue;
            };
            let name = below.split(|&byte| byte == b'/').next().unwrap_or(below);
            let kind = if name.len() == below.len() {
                EntryKind::File
            } else {
                EntryKind::Directory
            };
            names.insert(name, (kind, stored.meta));
        }
        if names.is_empty() && !path.is_empty() {
            return Err(Errno::NOENT.raw_os_error() as u16);
        }
        let mut part = Part {
            next: from,
            ..Part::default()
        };
        for (name, (kind, meta)) in names.into_iter().skip(from as usize) {
            let entry = Entry {
                kind,
                size: meta.size,
                mtime_ns: meta.mtime_ns,
                name,
            };
            if part.entries.push(&entry).is_err() {
                return Ok(Box::new(part));
            }
            part.next += 1;
        }
        part.next = 0;
        Ok(Box::new(part))
    }

    fn read(&self, path: &[u8], mut read: Read) -> Completion {
        let Some(stored) = self.files.get(path) else {
            return super::failed(read, Errno::BADF);
        };
        let start = usize::try_from(read.offset).unwrap_or(usize::MAX);
        let content = stored.content.get(start..).unwrap_or_default();
        let mut valid = read.len.min(content.len());
        let mut failure = (valid < read.len).then_some(Errno::NODATA.raw_os_error() as u16);
        if let Some((bad, errno)) = stored.bad
            && bad >= read.offset
            && bad < read.offset + valid as u64
        {
            valid = (bad - read.offset) as usize;
            failure = Some(errno);
        }
        read.buffer[..valid].copy_from_slice(&content[..valid]);
        Completion::Read {
            token: read.token,
            buffer: read.buffer,
            valid,
            failure,
        }
    }
}

impl Reader for MemoryDisk {
    fn open(&mut self, file: FileToken, path: &[u8], growth: Growth) {
        let path = path.to_vec();
        let asked = Request::Open { file, path, growth };
        self.lock().queue.push_back(asked);
    }

    fn open_passed(&mut self, file: FileToken, passed: PassedId) {
        let mut state = self.lock();
        let path = state.passed.get(&passed).cloned().unwrap_or_default();
        let growth = Growth::Forbidden;
        state.queue.push_back(Request::Open { file, path, growth });
    }

    fn list(&mut self, file: FileToken, path: &[u8], from: u64) {
        let path = path.to_vec();
        self.lock()
            .queue
            .push_back(Request::List { file, path, from });
    }

    fn close(&mut self, file: FileToken) {
        self.lock().open.remove(&file);
    }

    fn read(&mut self, read: Read) {
        let mut state = self.lock();
        let path = state.open.get(&read.file).cloned().unwrap_or_default();
        state.reads.push(ReadSeen {
            path: path.clone(),
            offset: read.offset,
            len: read.len,
        });
        state.unsubmitted.push_back(Request::Read { path, read });
    }

    fn submit(&mut self) {
        self.lock().submit();
    }

    fn has_unsubmitted(&mut self) -> bool {
        !self.lock().unsubmitted.is_empty()
    }

    fn next(&mut self) -> Option<Completion> {
        let mut state = self.lock();
        state.submit();
        let free = state
            .queue
            .iter()
            .position(|asked| !state.held.contains(asked.path()))?;
        let asked = state.queue.remove(free)?;
        Some(state.perform(asked))
    }

    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }
}
