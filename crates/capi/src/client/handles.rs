//! Handles: descriptors that sockets will be, kept in store.
//!
//! The broker makes them in batches, so that `accept` seldom waits for it. What is in store at a
//! fork is in the child as well, and its hang-up would come late; so the parent closes its store
//! then, and the child never touches it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, Result};
use socket_channel::HandleId;
use socket_channel::attach::{HANDLES_MAX, Reply, Request};

use super::attach::{errno_of, receive, send};
use super::fork;

/// A descriptor whose lifetime the kernel counts; the host stack has its other end.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) id: HandleId,
    pub(crate) fd: OwnedFd,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Handles {
    broker: OwnedFd,
    store: Mutex<Store>,
}

#[derive(Debug)]
struct Store {
    handles: Vec<Handle>,
    /// Children of this process when it last looked.
    children: u32,
}

impl Handles {
    pub(crate) fn new(broker: OwnedFd) -> Handles {
        let store = Store {
            handles: Vec::new(),
            children: fork::children(),
        };
        Handles {
            broker,
            store: Mutex::new(store),
        }
    }

    /// The connection to the broker, for a child to be adopted over.
    pub(crate) fn broker(&self) -> &OwnedFd {
        &self.broker
    }

    /// A handle: from the store, or else from the broker. EMFILE if this process may have no more
    /// descriptors, or the application no more handles; ECONNRESET if the broker is gone.
    pub(crate) fn take(&self) -> Result<Handle> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let children = fork::children();
        if store.children != children {
            store.children = children;
            store.handles.clear();
        }
        if store.handles.is_empty() {
            store.handles = self.fetch()?;
        }
        store.handles.pop().ok_or(Errno::MFILE)
    }

    /// Puts a handle back that was not used.
    pub(crate) fn put_back(&self, handle: Handle) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.children == fork::children() {
            store.handles.push(handle);
        }
    }

    /// Passes an open file to the NIC stacks; returns its number. Why not: EOPNOTSUPP if none takes
    /// files, EBADF if it is not open for reading, EMFILE, EBUSY; ECONNRESET if the broker is gone.
    pub(crate) fn pass_file(&self, file: BorrowedFd<'_>) -> Result<u32> {
        // Its answer is the next that comes.
        let _store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        send(&self.broker, &Request::PassFile, &[file]).map_err(|error| error.errno())?;
        let (reply, _) = receive(&self.broker).map_err(|error| error.errno())?;
        match reply {
            Reply::Passed { file } => file.map_err(errno_of),
            Reply::Refused { errno } => Err(errno_of(errno)),
            Reply::Attached(_) | Reply::Handles { .. } => Err(Errno::PROTO),
        }
    }

    /// A batch, the first last.
    fn fetch(&self) -> Result<Vec<Handle>> {
        let mut count = HANDLES_MAX;
        let (reply, descriptors) = loop {
            let request = Request::MoreHandles { count };
            send(&self.broker, &request, &[]).map_err(|error| error.errno())?;
            match receive(&self.broker) {
                Ok(received) => break received,
                // Near the limit of descriptors, one at a time still goes.
                Err(error) if error.errno() == Errno::MFILE && count > 1 => count = 1,
                Err(error) => return Err(error.errno()),
            }
        };
        match reply {
            Reply::Handles {
                count: 0, errno, ..
            } => Err(errno_of(errno)),
            Reply::Handles { first, .. } => {
                let numbered = (first.0..).zip(descriptors);
                let handles = numbered.map(|(id, fd)| Handle {
                    id: HandleId(id),
                    fd,
                });
                let mut handles: Vec<Handle> = handles.collect();
                handles.reverse();
                Ok(handles)
            }
            Reply::Refused { errno } => Err(errno_of(errno)),
            Reply::Attached(_) | Reply::Passed { .. } => Err(Errno::PROTO),
        }
    }
}
