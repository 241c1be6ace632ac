//! Handles: descriptors that sockets will be, kept in store.
//!
//! The broker makes them in batches, so that `accept` seldom waits for it. What is in store at a
//! fork is in the child as well, and its hang-up would come late; so the parent closes its store
//! then, and the child never touches it. A batch is twice as large as the one before, and small
//! again after a fork: a process that forks for each connection throws little away.
//!
//! A broker that has died is noticed when the store is empty: then the process connects to its
//! successor. The connection keeps its number, so that a child finds it without a lock.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, Result};
use socket_channel::HandleId;
use socket_channel::attach::{BadPacket, HANDLES_MAX, Reply, Request};

use super::attach::{AttachError, Membership, errno_of, reattach, receive, retry, send};
use super::fork;
use super::own::{self, Kept};
use crate::sys;

/// Handles of a first batch.
const BATCH_MIN: u32 = 8;

/// A descriptor whose lifetime the kernel counts; the host stack has its other end.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) id: HandleId,
    pub(crate) fd: OwnedFd,
    /// `O_NONBLOCK` is set.
    pub(crate) is_nonblocking: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Handles {
    broker: Kept,
    membership: Membership,
    store: Mutex<Store>,
    /// Answers for which no one waits any more, and which come before all others. Changed by who
    /// has the store.
    late: AtomicU32,
    /// Files that such answers have named: no one sends them.
    late_files: Mutex<Vec<u32>>,
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

impl Store {
    fn fill(&mut self, handles: Vec<Handle>) {
        handles
            .iter()
            .for_each(|handle| own::store(handle.fd.as_fd()));
        self.handles.extend(handles);
    }

    fn pop(&mut self) -> Option<Handle> {
        let handle = self.handles.pop();
        handle.inspect(|handle| own::take_out(handle.fd.as_fd()))
    }

    fn empty(&mut self) {
        while self.pop().is_some() {}
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.empty();
    }
}

impl Handles {
    /// With a first batch, and a handle out of it.
    pub(crate) fn new(
        broker: OwnedFd,
        membership: Membership,
    ) -> std::result::Result<(Handles, Handle), AttachError> {
        let mut handles = Handles {
            broker: Kept::new(broker),
            membership,
            store: Mutex::new(Store {
                handles: Vec::new(),
                children: fork::children(),
                batch: 2 * BATCH_MIN,
                is_fresh: true,
                has_closed_listener: false,
            }),
            late: AtomicU32::new(0),
            late_files: Mutex::default(),
        };
        let mut batch = handles.ask(BATCH_MIN, false)?;
        let first = batch.pop().ok_or(AttachError::System {
            what: "taking a first handle",
            errno: Errno::MFILE,
        })?;
        let store = handles.store.get_mut();
        store.unwrap_or_else(PoisonError::into_inner).fill(batch);
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
    /// succeeds. With `nonblocking`, the broker is asked for such that do not block. EMFILE if this
    /// process may have no more descriptors, or the application no more handles; ECONNRESET if no
    /// broker answers, ESHUTDOWN if the application was detached.
    pub(crate) fn take(&self, nonblocking: bool, check: impl Fn() -> Result<()>) -> Result<Handle> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let children = fork::children();
        if store.children != children {
            store.children = children;
            store.empty();
            store.batch = BATCH_MIN;
        }
        if store.handles.is_empty() {
            let count = store.batch;
            let batch = self.reach(check, || self.ask(count, nonblocking))?;
            store.fill(batch);
            store.batch = (2 * count).min(HANDLES_MAX);
            store.is_fresh = true;
        }
        store.pop().ok_or(Errno::MFILE)
    }

    /// Puts a handle back that was not used.
    pub(crate) fn put_back(&self, handle: Handle) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.children == fork::children() {
            store.fill(vec![handle]);
        }
    }

    /// A program closes a number that it has not opened, or puts something else in its place: what
    /// is in store there is its own from now on.
    pub(crate) fn give_up(&self, fd: RawFd) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let place = store.handles.iter().position(|it| it.fd.as_raw_fd() == fd);
        if let Some(place) = place {
            own::give_up(store.handles.swap_remove(place).fd);
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
        drop(self.ask(1, false));
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
        let (reply, _) = self.reach(check, || self.exchange(&Request::PassFile, &[file]))?;
        match reply {
            Reply::Passed { file } => file.map_err(errno_of),
            Reply::Refused { errno } => Err(errno_of(errno)),
            Reply::Attached(_) | Reply::Reattached | Reply::Handles { .. } => Err(Errno::PROTO),
        }
    }

    /// Files that were passed after it was given up to wait for that, to be let go of.
    pub(crate) fn take_late_files(&self) -> Vec<u32> {
        let files = self.late_files.lock();
        std::mem::take(&mut files.unwrap_or_else(PoisonError::into_inner))
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
                self.late.store(0, Ordering::Relaxed);
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

    /// Asks the broker, which answers in the order of requests: an answer that was given up comes
    /// before that of this one. The caller has the store.
    fn exchange(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> std::result::Result<(Reply, Vec<OwnedFd>), AttachError> {
        let is_late = |error: &AttachError| error.errno() == Errno::TIMEDOUT;
        while self.late.load(Ordering::Relaxed) > 0 {
            match receive(&self.broker) {
                Err(error @ AttachError::Gone) => return Err(error),
                Err(error) if is_late(&error) => return Err(error),
                Ok((Reply::Passed { file: Ok(file) }, _)) => {
                    let files = self.late_files.lock();
                    files.unwrap_or_else(PoisonError::into_inner).push(file);
                }
                // Its descriptors are closed here.
                Ok(_) | Err(_) => {}
            }
            self.late.fetch_sub(1, Ordering::Relaxed);
        }
        send(&self.broker, request, descriptors)?;
        let answer = receive(&self.broker);
        if answer.as_ref().is_err_and(is_late) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// A batch, the first last.
    fn ask(
        &self,
        mut count: u32,
        nonblocking: bool,
    ) -> std::result::Result<Vec<Handle>, AttachError> {
        let (reply, descriptors) = loop {
            match self.exchange(&Request::MoreHandles { count, nonblocking }, &[]) {
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
                    is_nonblocking: nonblocking,
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

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, sendmsg, socketpair,
    };
    use socket_channel::attach::{Key, PACKET_BYTES_MAX};
    use socket_channel::{AppId, ChannelId};

    use super::*;

    struct Broker(OwnedFd);

    impl Broker {
        fn hears(&self) -> Request {
            let mut packet = [0; PACKET_BYTES_MAX];
            let (len, _) = recv(&self.0, &mut packet, RecvFlags::empty()).unwrap();
            Request::decode(&packet[..len]).unwrap()
        }

        fn says(&self, reply: &Reply) {
            let lent = vec![self.0.as_fd(); reply.descriptors()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !lent.is_empty() {
                assert!(ancillary.push(SendAncillaryMessage::ScmRights(&lent)));
            }
            let packet = reply.encode();
            let pieces = &[IoSlice::new(&packet)];
            sendmsg(&self.0, pieces, &mut ancillary, SendFlags::empty()).unwrap();
        }

        fn gives(&self, first: u32, count: u32) {
            self.says(&Reply::Handles {
                first: HandleId(first),
                count,
                errno: 0,
            });
        }
    }

    #[test]
    fn an_answer_that_comes_too_late_is_not_taken_for_the_next() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let soon = Some(Duration::from_millis(20));
        set_socket_timeout(&own, Timeout::Recv, soon).unwrap();
        let broker = Broker(theirs);
        broker.gives(1, BATCH_MIN);
        let membership = Membership {
            path: "/".into(),
            app: AppId(1),
            channel: ChannelId(1),
            key: Key::new([0; Key::BYTES]),
        };
        let (handles, _) = Handles::new(own, membership).unwrap();
        broker.hears();
        for _ in 1..BATCH_MIN {
            handles.take(false, || Ok(())).unwrap();
        }
        let file = rustix::fs::memfd_create("it", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let pass = || handles.pass_file(file.as_fd(), || Ok(()));
        // The broker hangs: nothing more is asked while one answer is outstanding.
        assert_eq!(handles.take(false, || Ok(())).unwrap_err(), Errno::TIMEDOUT);
        assert_eq!(pass(), Err(Errno::TIMEDOUT));
        broker.hears();
        broker.gives(100, 2 * BATCH_MIN);
        assert_eq!(pass(), Err(Errno::TIMEDOUT));
        assert_eq!(broker.hears(), Request::PassFile);
        broker.says(&Reply::Passed { file: Ok(7) });
        broker.says(&Reply::Passed { file: Ok(8) });
        assert_eq!(pass(), Ok(8));
        assert_eq!(handles.take_late_files(), [7]);
    }
}
