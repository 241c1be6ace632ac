//! Handles: descriptors that sockets will be, kept in store.
//!
//! The broker makes them in batches, so that `accept` seldom waits for it. What is in store at a
//! fork is in the child as well, and its hang-up would come late; so the parent closes its store
//! then, and the child never touches it. A batch is twice as large as the one before, and small
//! again after a fork: a process that forks for each connection throws little away.
//!
//! A broker that has died is noticed when the store is empty: then the process connects to its
//! successor. The connection keeps its number, so that a child finds it without a lock.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, Result};
use socket_channel::HandleId;
use socket_channel::attach::{BadPacket, HANDLES_MAX, Reply, Request};

use super::attach::{AttachError, Membership, errno_of, reattach, receive, retry, send};
use super::fork;
use crate::sys;

/// Handles of a first batch.
const BATCH_MIN: u32 = 8;

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
    membership: Membership,
    store: Mutex<Store>,
}

#[derive(Debug)]
struct Store {
    handles: Vec<Handle>,
    /// Children of this process when it last looked.
    children: u32,
    /// How many handles are asked for next.
    batch: u32,
    /// The broker may not have closed its copies of the last batch.
    is_fresh: bool,
    /// A listener was closed since, of which that may be a copy.
    has_closed_listener: bool,
}

impl Handles {
    /// With a first batch, and a handle out of it.
    pub(crate) fn new(
        broker: OwnedFd,
        membership: Membership,
    ) -> std::result::Result<(Handles, Handle), AttachError> {
        let mut handles = Handles {
            broker,
            membership,
            store: Mutex::new(Store {
                handles: Vec::new(),
                children: fork::children(),
                batch: 2 * BATCH_MIN,
                is_fresh: true,
                has_closed_listener: false,
            }),
        };
        let mut batch = handles.ask(BATCH_MIN)?;
        let first = batch.pop().ok_or(AttachError::System {
            what: "taking a first handle",
            errno: Errno::MFILE,
        })?;
        let store = handles.store.get_mut();
        store.unwrap_or_else(PoisonError::into_inner).handles = batch;
        Ok((handles, first))
    }

    /// The connection to the broker, for a child to be adopted over.
    pub(crate) fn broker(&self) -> &OwnedFd {
        &self.broker
    }

    /// How this process belongs to its application.
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// A handle: from the store, or else from the broker, or from its successor as long as `check`
    /// succeeds. EMFILE if this process may have no more descriptors, or the application no more
    /// handles; ECONNRESET if no broker answers, ESHUTDOWN if the application was detached.
    pub(crate) fn take(&self, check: impl Fn() -> Result<()>) -> Result<Handle> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let children = fork::children();
        if store.children != children {
            store.children = children;
            store.handles.clear();
            store.batch = BATCH_MIN;
        }
        if store.handles.is_empty() {
            let count = store.batch;
            store.handles = self.reach(check, || self.ask(count))?;
            store.batch = (2 * count).min(HANDLES_MAX);
            store.is_fresh = true;
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

    /// Waits until the broker has closed its copies of all handles that this process has: until
    /// then, one that is closed here does not hang up. False if it had before.
    pub(crate) fn settle(&self) -> bool {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.has_closed_listener = false;
        if !std::mem::replace(&mut store.is_fresh, false) {
            return false;
        }
        // It deals with one request after the other, and has closed them before it answers this
        // one. A broker that has died has none. The handle is closed: it has a copy of that one.
        drop(self.ask(1));
        true
    }

    /// A listener of this process is closed.
    pub(crate) fn note_closed_listener(&self) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.has_closed_listener = store.is_fresh;
    }

    /// Waits until the host stack knows of the listeners that this process has closed.
    pub(crate) fn settle_listeners(&self) {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let must_settle = store.has_closed_listener;
        drop(store);
        if must_settle {
            self.settle();
        }
    }

    /// Passes an open file to the NIC stacks; returns its number. Asks the successor of a broker
    /// that has died as long as `check` succeeds. Why not: EOPNOTSUPP if none takes files, EBADF if
    /// it is not open for reading, EMFILE, EBUSY; ECONNRESET if no broker answers.
    pub(crate) fn pass_file(
        &self,
        file: BorrowedFd<'_>,
        check: impl Fn() -> Result<()>,
    ) -> Result<u32> {
        // Its answer is the next that comes.
        let _store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (reply, _) = self.reach(check, || {
            send(&self.broker, &Request::PassFile, &[file])?;
            receive(&self.broker)
        })?;
        match reply {
            Reply::Passed { file } => file.map_err(errno_of),
            Reply::Refused { errno } => Err(errno_of(errno)),
            Reply::Attached(_) | Reply::Reattached | Reply::Handles { .. } => Err(Errno::PROTO),
        }
    }

    /// Asks the broker that there is, or else its successor, as long as `check` succeeds. The
    /// caller has the store: answers come in order.
    fn reach<T>(
        &self,
        check: impl Fn() -> Result<()>,
        ask: impl Fn() -> std::result::Result<T, AttachError>,
    ) -> Result<T> {
        let mut is_gone = false;
        let answer = retry(check, || {
            if is_gone {
                sys::replace(&self.broker, reattach(&self.membership)?).map_err(|errno| {
                    AttachError::System {
                        what: "keeping the connection to the broker",
                        errno,
                    }
                })?;
            }
            is_gone = true;
            ask()
        });
        answer.map_err(|error| match error {
            // Not the errors of a path.
            AttachError::Connect { .. } => Errno::CONNRESET,
            error => error.errno(),
        })
    }

    /// A batch, the first last.
    fn ask(&self, mut count: u32) -> std::result::Result<Vec<Handle>, AttachError> {
        let (reply, descriptors) = loop {
            send(&self.broker, &Request::MoreHandles { count }, &[])?;
            match receive(&self.broker) {
                Ok(received) => break received,
                // Near the limit of descriptors, one at a time still goes.
                Err(error) if error.errno() == Errno::MFILE && count > 1 => count = 1,
                Err(error) => return Err(error),
            }
        };
        let refused = |errno| AttachError::Refused {
            errno: errno_of(errno),
        };
        match reply {
            Reply::Handles {
                count: 0, errno, ..
            } => Err(refused(errno)),
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
            Reply::Refused { errno } => Err(refused(errno)),
            Reply::Attached(_) | Reply::Reattached | Reply::Passed { .. } => {
                Err(BadPacket::Malformed.into())
            }
        }
    }
}
