//! A reader of threads: for where io_uring is forbidden, for paths that the kernel does not have in
//! memory, for directories, and for file systems that may make their reader wait.
//!
//! On such a file system even a close waits (FUSE sends FLUSH), so threads do that as well.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use contract::listing::Part;
use contract::{Growth, PassedId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::lanes::Lanes;
use super::transfer::Transfer;
use super::{Completion, FileToken, Opened, Read, Reader};
use crate::buffer::{BLOCK_BYTES, Region};
use crate::passed::PassedFiles;
use crate::root::{Identity, Lookup, OpenFile, RootDir, mount_of};

/// Opens and reads in threads, which start when there is work for them.
pub(crate) struct PoolReader {
    files: HashMap<FileToken, Arc<OpenFile>>,
    /// The open files, each once, with the number of tokens that name it.
    by_identity: HashMap<Identity, (Arc<OpenFile>, usize)>,
    opener: Opener,
    shared: Arc<Shared>,
    threads: usize,
    /// Most reads that wait for one mount that may hang.
    reads_waiting_max: usize,
    completions: VecDeque<Completion>,
}

/// Most threads of a reader: for several mounts that hang.
const THREADS_MAX: usize = 128;

/// Divisor of the memory for content that bounds the reads waiting for one mount that may hang.
const WAITING_PART: usize = 2;

/// Everything needed to open a file.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    pub(crate) root: Arc<RootDir>,
    pub(crate) passed: Option<Arc<dyn PassedFiles>>,
    /// Read directly where the file system allows it.
    pub(crate) direct: bool,
}

impl Opener {
    /// Opens without waiting; `EAGAIN` if that is impossible.
    fn open_cached(&self, path: &[u8], growth: Growth) -> Result<OpenFile, Errno> {
        self.root
            .open_file(path, Lookup::Cached, self.direct, growth)
    }

    fn open_complete(&self, path: &[u8], growth: Growth) -> Result<OpenFile, Errno> {
        self.root
            .open_file(path, Lookup::Complete, self.direct, growth)
    }

    /// Performs a task to its end, however long it takes.
    fn perform(&self, task: Task) -> Done {
        match task {
            Task::Open { file, path, growth } => Done::Opened {
                file,
                result: self.open_complete(&path, growth),
            },
            Task::OpenPassed { file, passed, fd } => Done::Opened {
                file,
                result: self.root.open_passed(passed, &fd, Lookup::Complete),
            },
            Task::Read(transfer) => Done::Read(run(transfer)),
            Task::List(Listing { file, path, from }) => Done::Listed {
                file,
                result: self.root.list(&path, from).map(Box::new),
            },
            Task::Close(file) => {
                drop(file);
                Done::Closed
            }
        }
    }
}

/// A task for a thread.
enum Task {
    Open {
        file: FileToken,
        path: Box<[u8]>,
        growth: Growth,
    },
    OpenPassed {
        file: FileToken,
        passed: PassedId,
        fd: Arc<OwnedFd>,
    },
    Read(Transfer),
    List(Listing),
    Close(Arc<OpenFile>),
}

/// A directory to be listed.
struct Listing {
    file: FileToken,
    path: Box<[u8]>,
    from: u64,
}

/// Result of a task.
enum Done {
    Opened {
        file: FileToken,
        result: Result<OpenFile, Errno>,
    },
    Read(Transfer),
    Listed {
        file: FileToken,
        result: Result<Box<Part>, Errno>,
    },
    Closed,
}

struct Shared {
    state: Mutex<State>,
    /// Signals a task, or the end of the reader.
    work: Condvar,
    /// Readable while `State::done` is not empty.
    wake: OwnedFd,
}

struct State {
    tasks: Lanes<Task>,
    done: VecDeque<Done>,
    idle: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a thread.
    fn work(&self, opener: &Opener) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            let Some((taken, task)) = state.tasks.take() else {
                state.idle += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let done = opener.perform(task);
            state = self.lock();
            state.tasks.done(taken);
            if matches!(done, Done::Closed) {
                continue;
            }
            state.done.push_back(done);
            if state.done.len() == 1 {
                // Cannot fail: the counter of an eventfd has room for more than one.
                let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            }
        }
    }
}

/// Reads until the transfer is complete.
fn run(mut transfer: Transfer) -> Transfer {
    loop {
        let asked = transfer.asked();
        let into = &mut transfer.buffer[asked.at..asked.at + asked.len];
        let answer = rustix::io::pread(&transfer.file, into, asked.offset);
        if transfer.advance(answer) {
            return transfer;
        }
    }
}

impl PoolReader {
    /// A reader with at most `threads_max` threads for each mount. Fails if there are no
    /// descriptors left.
    pub(crate) fn new(opener: Opener, threads_max: usize) -> Result<PoolReader, Errno> {
        Ok(PoolReader {
            files: HashMap::new(),
            by_identity: HashMap::new(),
            opener,
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    tasks: Lanes::new(threads_max),
                    done: VecDeque::new(),
                    idle: 0,
                    closed: false,
                }),
                work: Condvar::new(),
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            }),
            threads: 0,
            reads_waiting_max: usize::MAX,
            completions: VecDeque::new(),
        })
    }

    /// An open file.
    pub(super) fn file(&self, file: FileToken) -> Option<&Arc<OpenFile>> {
        self.files.get(&file)
    }

    /// Hands a task to a thread; starts one if all are busy. If no thread can be started, performs
    /// the task here: slow is better than never.
    fn hand_over(&mut self, mount: u64, task: Task) {
        let mut state = self.shared.lock();
        match task {
            Task::List(_) => state.tasks.push_single(mount, task),
            task => state.tasks.push(mount, task),
        }
        // An idle thread takes one task, and may hang in it.
        let start = state.tasks.startable() > state.idle && self.threads < THREADS_MAX;
        drop(state);
        if start {
            let shared = Arc::clone(&self.shared);
            let opener = self.opener.clone();
            let name = format!("nic-read-{}", self.threads);
            match thread::Builder::new()
                .name(name)
                .spawn(move || shared.work(&opener))
            {
                Ok(_) => self.threads += 1,
                Err(error) if self.threads == 0 => {
                    tracing::warn!(%error, "no thread to read in: reading in the worker");
                    self.work_here();
                }
                Err(_) => {}
            }
        }
        self.shared.work.notify_one();
    }

    fn work_here(&mut self) {
        let mut state = self.shared.lock();
        let tasks = state.tasks.drain();
        drop(state);
        for task in tasks {
            let done = self.opener.perform(task);
            self.complete(done);
        }
    }

    fn complete(&mut self, done: Done) {
        let completion = match done {
            Done::Read(transfer) => {
                let file = Arc::clone(&transfer.file);
                let completion = transfer.finish();
                self.let_go(file);
                completion
            }
            Done::Closed => return,
            Done::Opened { file, result } => Completion::Opened {
                file,
                result: self.opened(file, result),
            },
            Done::Listed { file, result } => Completion::Listed {
                file,
                result: result.map_err(|errno| errno.raw_os_error() as u16),
            },
        };
        self.completions.push_back(completion);
    }

    /// Gives up a reference to a file. If it is the last one, the file is closed, in a thread where
    /// that may wait. (References of threads come back here.)
    fn let_go(&mut self, file: Arc<OpenFile>) {
        if !file.system.is_local() && Arc::strong_count(&file) == 1 {
            self.hand_over(file.mount.id, Task::Close(file));
        }
    }

    fn opened(&mut self, token: FileToken, result: Result<OpenFile, Errno>) -> Result<Opened, u16> {
        let file = result.map_err(|errno| errno.raw_os_error() as u16)?;
        let opened = Opened {
            meta: file.meta,
            mount: file.mount.id,
            settled: file.settled,
            growth: file.growth,
        };
        let file = Arc::new(file);
        // One descriptor serves all senders of the same version.
        let entry = self.by_identity.entry(file.identity());
        let (shared, tokens) = entry.or_insert_with(|| (Arc::clone(&file), 0));
        *tokens += 1;
        self.files.insert(token, Arc::clone(shared));
        self.let_go(file);
        Ok(opened)
    }
}

impl Reader for PoolReader {
    fn prepare(&mut self, region: &Region) {
        self.reads_waiting_max = region.bytes() / BLOCK_BYTES / WAITING_PART;
    }

    fn open(&mut self, file: FileToken, path: &[u8], growth: Growth) {
        match self.opener.open_cached(path, growth) {
            Err(Errno::AGAIN) => {
                let mount = self.opener.root.mount_towards(path);
                let path = path.into();
                self.hand_over(mount, Task::Open { file, path, growth });
            }
            result => self.complete(Done::Opened { file, result }),
        }
    }

    fn open_passed(&mut self, file: FileToken, passed: PassedId) {
        let arrived = self.opener.passed.as_ref();
        let Some(fd) = arrived.and_then(|files| files.descriptor(passed)) else {
            let result = Err(Errno::NOENT);
            return self.complete(Done::Opened { file, result });
        };
        match self.opener.root.open_passed(passed, &fd, Lookup::Cached) {
            Err(Errno::AGAIN) => {
                let mount = mount_of(&fd).map_or(0, |mount| mount.id);
                self.hand_over(mount, Task::OpenPassed { file, passed, fd });
            }
            result => self.complete(Done::Opened { file, result }),
        }
    }

    /// Directories are never read in the worker: whether that would wait cannot be known
    /// beforehand.
    fn list(&mut self, file: FileToken, path: &[u8], from: u64) {
        let mount = self.opener.root.mount_towards(path);
        let path = path.into();
        self.hand_over(mount, Task::List(Listing { file, path, from }));
    }

    fn close(&mut self, file: FileToken) {
        let Some(file) = self.files.remove(&file) else {
            return;
        };
        if let Entry::Occupied(mut shared) = self.by_identity.entry(file.identity()) {
            let (_, tokens) = shared.get_mut();
            *tokens -= 1;
            if *tokens == 0 {
                shared.remove();
            }
        }
        self.let_go(file);
    }

    fn read(&mut self, read: Read) {
        match self.files.get(&read.file) {
            Some(file) => {
                let (file, mount) = (Arc::clone(file), file.mount.id);
                if !file.system.is_local()
                    && self.shared.lock().tasks.waiting(mount) >= self.reads_waiting_max
                {
                    return self.completions.push_back(super::failed(read, Errno::BUSY));
                }
                self.hand_over(mount, Task::Read(Transfer::new(read, file)));
            }
            None => self.completions.push_back(super::failed(read, Errno::BADF)),
        }
    }

    fn submit(&mut self) {}

    fn next(&mut self) -> Option<Completion> {
        if self.completions.is_empty() && self.threads > 0 {
            let mut state = self.shared.lock();
            let done = std::mem::take(&mut state.done);
            if !done.is_empty() {
                let mut counter = [0; 8];
                let _ = rustix::io::read(&self.shared.wake, &mut counter);
            }
            drop(state);
            for done in done {
                self.complete(done);
            }
        }
        self.completions.pop_front()
    }

    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.shared.wake.as_fd()), None]
    }
}

impl Drop for PoolReader {
    /// Does not wait for threads: one may hang in a read from a server that is gone. They own all
    /// memory that they use.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl fmt::Debug for PoolReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolReader")
            .field("files", &self.files.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
