//! A simulated disk, behind the trait that the NIC stack's real readers implement.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use contract::listing::{Entry, EntryKind, Part};
use contract::{FileMeta, Growth, PassedId};
use nic::reader::{Completion, FileToken, Opened, Read, Reader};

use crate::content;
use crate::file_versions::FileVersions;
use crate::random::Random;
use crate::scenario::{DiskPlan, File, Trouble};

const ENOENT: u16 = 2;
const ENODATA: u16 = 61;
const EBADF: u16 = 9;
const ESTALE: u16 = 116;

/// A disk; clones share its state. One end belongs to the worker's reader, one to the simulation.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    plan: DiskPlan,
    root: Root,
    versions: FileVersions,
    clock_us: Rc<Cell<u64>>,
    random: Random,
    open: HashMap<FileToken, Version>,
    /// Accepted and not submitted.
    unsubmitted: VecDeque<DiskRequest>,
    /// Submitted, and waiting for a slot in the disk's queue.
    waiting: VecDeque<DiskRequest>,
    /// In the disk's queue, with the time of completion.
    active: Vec<(u64, DiskRequest)>,
    /// Completed reads, for the trace.
    log: Vec<String>,
    logs: bool,
}

/// The file version that a descriptor refers to: the one that was there at open.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: usize,
    version: u32,
}

#[derive(Debug)]
enum DiskRequest {
    Open {
        file: FileToken,
        number: Option<usize>,
    },
    /// Lists the directory; fails if the path is no directory.
    List {
        file: FileToken,
        is_directory: bool,
        from: u64,
    },
    Read {
        of: Option<Version>,
        read: Read,
    },
}

/// Entries in a part of a listing: few, so that files change between two parts.
const LISTED_MAX: usize = 2;

/// Returns the time of a version's last change.
fn changed_ns(version: u32) -> i64 {
    1_700_000_000_000_000_000 + i64::from(version)
}

/// Returns the path of a file.
pub(crate) fn path_of(number: usize) -> String {
    format!("f{number}")
}

/// The subset of `FileVersions` below a NIC stack's root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    /// Number of the NIC stack.
    pub(crate) nic: usize,
    /// Number of roots between which the files are divided; with one, it has all files.
    pub(crate) parts: usize,
}

impl Root {
    fn has(self, number: usize) -> bool {
        number % self.parts == self.nic % self.parts
    }
}

impl Disk {
    pub(crate) fn new(
        plan: DiskPlan,
        root: Root,
        versions: FileVersions,
        clock_us: Rc<Cell<u64>>,
        random: Random,
        logs: bool,
    ) -> Disk {
        Disk(Rc::new(RefCell::new(State {
            plan,
            root,
            versions,
            clock_us,
            random,
            open: HashMap::new(),
            unsubmitted: VecDeque::new(),
            waiting: VecDeque::new(),
            active: Vec::new(),
            log: Vec::new(),
            logs,
        })))
    }

    /// Returns when the next operation completes, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.0.borrow().active.iter().map(|(at_us, _)| *at_us).min()
    }

    /// Returns the number of files that the worker has open.
    pub(crate) fn open_files(&self) -> usize {
        self.0.borrow().open.len()
    }

    /// Takes the log of operations since the last call.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut().log)
    }
}

impl State {
    /// Moves waiting requests into free slots of the disk's queue.
    fn start(&mut self) {
        while self.active.len() < self.plan.depth_max
            && let Some(asked) = self.waiting.pop_front()
        {
            let slow = self.random.happens(self.plan.slow_ppm);
            let latency_us = if slow {
                self.plan.slow_us.clone()
            } else {
                self.plan.latency_us.clone()
            };
            let latency_us = self.random.within(latency_us);
            self.active.push((self.clock_us.get() + latency_us, asked));
        }
    }

    fn perform(&mut self, asked: DiskRequest) -> Completion {
        let completion = match asked {
            DiskRequest::Open { file, number } => self.open(file, number),
            DiskRequest::List {
                file,
                is_directory,
                from,
            } => Completion::Listed {
                file,
                result: if is_directory {
                    Ok(Box::new(self.list(from)))
                } else {
                    Err(ENOENT)
                },
            },
            DiskRequest::Read { of, read } => self.read(of, read),
        };
        if self.logs {
            self.log.push(format!("{completion:?}"));
        }
        completion
    }

    fn open(&mut self, file: FileToken, number: Option<usize>) -> Completion {
        let result = match number.and_then(|number| Some((number, self.versions.file(number)?))) {
            None => Err(ENOENT),
            Some((
                _,
                File {
                    trouble: Trouble::OpenFails { errno },
                    ..
                },
            )) => Err(*errno),
            Some((number, _)) if !self.root.has(number) => Err(ENOENT),
            Some((number, stored)) => {
                let settled = stored.settled;
                let version = self.versions.version(number);
                self.open.insert(file, Version { number, version });
                let changed_ns = changed_ns(version);
                Ok(Opened {
                    meta: FileMeta {
                        size: self.versions.size(number, version),
                        inode: number as u64 + 1,
                        // Each machine has its own device number.
                        device: 1 + self.root.nic as u64,
                        mtime_ns: changed_ns,
                        ctime_ns: changed_ns + self.root.nic as i64,
                        is_weak: false,
                    },
                    mount: 0,
                    settled,
                    growth: Growth::Forbidden,
                })
            }
        };
        Completion::Opened { file, result }
    }

    /// Lists at most `LISTED_MAX` files; `from` is the number of the next file.
    fn list(&self, from: u64) -> Part {
        let mut part = Part::default();
        let mut number = from as usize;
        while number < self.versions.len() && part.entries.iter().count() < LISTED_MAX {
            let version = self.versions.version(number);
            let name = path_of(number);
            if self.root.has(number) {
                let entry = Entry {
                    kind: EntryKind::File,
                    size: self.versions.size(number, version),
                    mtime_ns: changed_ns(version),
                    name: name.as_bytes(),
                };
                // At most `LISTED_MAX` entries always fit.
                let _ = part.entries.push(&entry);
            }
            number += 1;
        }
        if number < self.versions.len() {
            part.next = number as u64;
        }
        // A change of any file changes the directory's time.
        let versions = (0..self.versions.len()).map(|number| self.versions.version(number));
        let changed_ns = changed_ns(versions.sum());
        part.directory = FileMeta {
            mtime_ns: changed_ns,
            ctime_ns: changed_ns,
            device: 1 + self.root.nic as u64,
            ..FileMeta::default()
        };
        part
    }

    fn read(&self, of: Option<Version>, mut read: Read) -> Completion {
        let mut valid = 0;
        let mut failure = Some(EBADF);
        if let Some(Version { number, version }) = of {
            let size = self.versions.size(number, version);
            let (end, errno) = match self.versions.file(number).map(|file| file.trouble) {
                _ if !self.versions.is_left(number, version) => (0, ESTALE),
                Some(Trouble::ReadFails { from, errno }) => (from.min(size), errno),
                _ => (size, ENODATA),
            };
            valid = read.len.min(end.saturating_sub(read.offset) as usize);
            failure = (valid < read.len).then_some(errno);
            let content = self.versions.read(number, version);
            content::fill(content, read.offset, &mut read.buffer[..valid]);
        }
        Completion::Read {
            token: read.token,
            buffer: read.buffer,
            valid,
            failure,
        }
    }
}

impl Reader for Disk {
    /// Opens a file. Files here are replaced and never grow.
    fn open(&mut self, file: FileToken, path: &[u8], _: Growth) {
        let state = &mut *self.0.borrow_mut();
        let number = (0..state.versions.len()).find(|&number| path_of(number).as_bytes() == path);
        state.waiting.push_back(DiskRequest::Open { file, number });
        state.start();
    }

    /// Fails the open: no descriptors are passed in the simulation.
    fn open_passed(&mut self, file: FileToken, _: PassedId) {
        let state = &mut *self.0.borrow_mut();
        let number = None;
        state.waiting.push_back(DiskRequest::Open { file, number });
        state.start();
    }

    fn list(&mut self, file: FileToken, path: &[u8], from: u64) {
        let state = &mut *self.0.borrow_mut();
        state.waiting.push_back(DiskRequest::List {
            file,
            is_directory: path.is_empty(),
            from,
        });
        state.start();
    }

    fn close(&mut self, file: FileToken) {
        self.0.borrow_mut().open.remove(&file);
    }

    fn read(&mut self, read: Read) {
        let state = &mut *self.0.borrow_mut();
        let of = state.open.get(&read.file).copied();
        state.unsubmitted.push_back(DiskRequest::Read { of, read });
    }

    fn submit(&mut self) {
        let state = &mut *self.0.borrow_mut();
        // The kernel may have no room for now; the reader submits again.
        if state.random.happens(state.plan.refuses_ppm) {
            return;
        }
        state.waiting.append(&mut state.unsubmitted);
        state.start();
    }

    fn has_unsubmitted(&mut self) -> bool {
        !self.0.borrow().unsubmitted.is_empty()
    }

    fn next(&mut self) -> Option<Completion> {
        if self.has_unsubmitted() {
            self.submit();
        }
        let state = &mut *self.0.borrow_mut();
        let now_us = state.clock_us.get();
        let done = state
            .active
            .iter()
            .enumerate()
            .map(|(place, &(at_us, _))| (at_us, place))
            .min()
            .filter(|&(at_us, _)| at_us <= now_us);
        let (_, asked) = state.active.remove(done?.1);
        state.start();
        Some(state.perform(asked))
    }

    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }
}
