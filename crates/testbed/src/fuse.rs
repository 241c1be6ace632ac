//! A file system of one directory that a test can stop, and whose files it can change without the
//! kernel's knowledge: possible for a network file system, and not for a disk.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, Request,
    SessionACL,
};

use crate::site::KnownFile;
use crate::{Context, Result};

/// Lifetime of attributes and names in the kernel's cache.
const BELIEVED_FOR: Duration = Duration::from_secs(3600);

/// A mounted file system; unmounted when it is dropped.
#[derive(Debug)]
pub struct Fuse {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<String, INodeNo>,
    contents: HashMap<INodeNo, Stored>,
    is_stopped: bool,
}

#[derive(Clone, Debug)]
struct Stored {
    content: KnownFile,
    modified: SystemTime,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the file system is not stopped, and returns the state.
    fn running(&self) -> MutexGuard<'_, State> {
        let stopped = |state: &mut State| state.is_stopped;
        let waited = self.changed.wait_while(self.lock(), stopped);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fuse {
    /// Mounts an empty file system.
    pub fn mount(at: &Path) -> Result<Fuse> {
        let shared = Arc::new(Shared::default());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("splitway-test".into())];
        config.acl = SessionACL::All;
        let served = Served(Arc::clone(&shared));
        let session = fuser::spawn_mount(served, at, &config)
            .context(|| format!("mounting FUSE at {}", at.display()))?;
        Ok(Fuse {
            shared,
            session: Some(session),
        })
    }

    /// Creates a file, or replaces its content without the kernel's knowledge.
    pub fn put(&self, name: &str, content: &KnownFile, modified: SystemTime) {
        let mut state = self.shared.lock();
        let next = INodeNo(state.files.len() as u64 + 2);
        let inode = *state.files.entry(name.to_owned()).or_insert(next);
        let content = content.clone();
        state.contents.insert(inode, Stored { content, modified });
    }

    /// Stops all responses.
    pub fn stop(&self) {
        self.shared.lock().is_stopped = true;
    }

    /// Resumes responses after [`Fuse::stop`].
    pub fn go_on(&self) {
        self.shared.lock().is_stopped = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.go_on();
        drop(self.session.take());
    }
}

#[derive(Debug)]
struct Served(Arc<Shared>);

fn directory() -> FileAttr {
    attributes(
        INodeNo::ROOT,
        FileType::Directory,
        0,
        SystemTime::UNIX_EPOCH,
    )
}

fn file(inode: INodeNo, stored: &Stored) -> FileAttr {
    let size = stored.content.size();
    attributes(inode, FileType::RegularFile, size, stored.modified)
}

fn attributes(ino: INodeNo, kind: FileType, size: u64, modified: SystemTime) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size.div_ceil(512),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind,
        perm: if kind == FileType::Directory {
            0o755
        } else {
            0o644
        },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.0.running();
        let inode = name.to_str().and_then(|name| state.files.get(name));
        match inode.filter(|_| parent == INodeNo::ROOT) {
            Some(inode) => {
                let found = file(*inode, &state.contents[inode]);
                reply.entry(&BELIEVED_FOR, &found, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let state = self.0.running();
        match state.contents.get(&inode) {
            Some(stored) => reply.attr(&BELIEVED_FOR, &file(inode, stored)),
            None => reply.attr(&BELIEVED_FOR, &directory()),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.0.running();
        match state.contents.get(&inode) {
            Some(stored) => reply.data(&stored.content.bytes(offset, size as usize)),
            None => reply.error(Errno::EISDIR),
        }
    }
}
