//! Handles: descriptors for future sockets, kept in store.
//!
//! The broker makes them in batches, so that `accept` seldom waits for it. Closed connections leave
//! theirs here for `accept` (`reuse.rs`). A child inherits the handles in store at the fork, which
//! would delay their hang-ups; so the parent then closes its store, and the child never uses it.
//! Each batch is twice as large as the last, and small again after a fork: a process that forks for
//! each connection wastes little.
//!
//! A dead broker is noticed when the store is empty: then the process connects to its successor.
//! The connection keeps its number, so that a child finds it without a lock.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, Result};
use socket_channel::HandleId;
use socket_channel::attach::{BadPacket, HANDLES_MAX, Reply, Request};

use super::attach::{AttachError, Membership, errno_of, reattach, receive, retry, send};
use super::few_calls::has_few_calls;
use super::fork;
use super::own::{self, Kept};
use crate::sys;

/// Handles of the first batch.
const BATCH_MIN: u32 = 8;

/// A descriptor whose lifetime the kernel tracks; the host stack has its other end.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) id: HandleId,
    pub(crate) fd: OwnedFd,
    /// `O_NONBLOCK` is set, if that is known.
    pub(crate) is_nonblocking: Option<bool>,
    /// It was that of another socket, so other processes may not look it up.
    pub(crate) is_private: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Handles {
    broker: Kept,
    membership: Membership,
    store: Mutex<Store>,
    /// Answers that no thread waits for any more, and that precede all others. Changed under the
    /// lock of the store.
    late: AtomicU32,
    /// Files named by such answers, which no thread sends.
    late_files: Mutex<Vec<u32>>,
}

#[derive(Debug)]
struct Store {
    handles: Vec<Handle>,
    /// Handles of closed connections; together with the others [`HANDLES_MAX`] at most.
    reusable: Vec<Handle>,
    /// Value of [`fork::children`] at the last call.
    children: u32,
    /// Size of the next batch.
    batch: u32,
    /// The broker may still have its copies of the last batch.
    is_fresh: bool,
    /// A listener was closed since then, of which the broker may have a copy.
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

    fn pop_reusable(&mut self) -> Option<Handle> {
        let handle = self.reusable.pop();
        handle.inspect(|handle| own::take_out(handle.fd.as_fd()))
    }

    fn has_room(&self) -> bool {
        self.handles.len() + self.reusable.len() < HANDLES_MAX as usize
    }

    fn empty(&mut self) {
        while self.pop().is_some() {}
        while self.pop_reusable().is_some() {}
    }

    /// Removes a descriptor by its number.
    fn remove(&mut self, fd: RawFd) -> Option<Handle> {
        for handles in [&mut self.handles, &mut self.reusable] {
            if let Some(place) = handles.iter().position(|it| it.fd.as_raw_fd() == fd) {
                return Some(handles.swap_remove(place));
            }
        }
        None
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.empty();
    }
}

impl Handles {
    /// Creates a store with a first batch; also returns a handle from it.
    pub(crate) fn new(
        broker: OwnedFd,
        membership: Membership,
    ) -> std::result::Result<(Handles, Handle), AttachError> {
        let mut handles = Handles {
            broker: Kept::new(broker),
            membership,
            store: Mutex::new(Store {
                handles: Vec::new(),
                reusable: Vec::new(),
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

    /// Returns the connection to the broker, over which a child is adopted.
    pub(crate) fn broker(&self) -> &OwnedFd {
        &self.broker
    }

    /// Returns this process's proof that it belongs to its application.
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Takes a handle from the store, else from the broker or its successor, as long as `check`
    /// succeeds. With `nonblocking`, the requested handles are non-blocking. EMFILE if this process
    /// may have no more descriptors, or the application no more handles; ECONNRESET if no broker
    /// answers, ESHUTDOWN if the application was detached.
    pub(crate) fn take(&self, nonblocking: bool, check: impl Fn() -> Result<()>) -> Result<Handle> {
        let mut store = self.up_to_date();
        if store.handles.is_empty() {
            let left = (HANDLES_MAX as usize).saturating_sub(store.reusable.len());
            let count = (store.batch as usize).min(left).max(1) as u32;
            let mut batch = self.reach(&check, || self.ask(count, nonblocking));
            if matches!(batch, Err(Errno::MFILE)) && !store.reusable.is_empty() {
                // Their numbers are needed.
                store.empty();
                batch = self.reach(check, || self.ask(1, nonblocking));
            }
            store.fill(batch?);
            store.batch = (2 * store.batch).min(HANDLES_MAX);
            store.is_fresh = true;
        }
        store.pop().ok_or(Errno::MFILE)
    }

    /// Like [`Handles::take`], preferably the handle of a closed connection.
    pub(crate) fn take_reusable(
        &self,
        nonblocking: bool,
        check: impl Fn() -> Result<()>,
    ) -> Result<Handle> {
        let mut store = self.up_to_date();
        // Its flags may have to be set.
        let reusable = if has_few_calls() {
            None
        } else {
            store.pop_reusable()
        };
        drop(store);
        reusable.map_or_else(|| self.take(nonblocking, check), Ok)
    }

    /// Locks the store, which is empty after a fork.
    fn up_to_date(&self) -> MutexGuard<'_, Store> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let children = fork::children();
        if store.children != children {
            store.children = children;
            store.empty();
            store.batch = BATCH_MIN;
        }
        store
    }

    /// Puts an unused handle back.
    pub(crate) fn put_back(&self, handle: Handle) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.children != fork::children() {
            return;
        }
        own::store(handle.fd.as_fd());
        if handle.is_private {
            store.reusable.push(handle);
        } else {
            store.handles.push(handle);
        }
    }

    /// Reports whether the store keeps the handle of a connection that is closed now.
    pub(crate) fn has_room(&self) -> bool {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.children == fork::children() && store.has_room()
    }

    /// Keeps the handle of a closed connection, if there is room and `is_unshared` holds.
    pub(crate) fn keep(&self, handle: Handle, is_unshared: impl Fn() -> bool) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.children == fork::children() && store.has_room() && is_unshared() {
            own::store(handle.fd.as_fd());
            store.reusable.push(handle);
        }
    }

    /// Gives a number in store to the program, which closes or replaces it without having opened
    /// it.
    pub(crate) fn give_up(&self, fd: RawFd) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = store.remove(fd) {
            own::give_up(handle.fd);
        }
    }

    /// Waits until the broker has closed its copies of all handles of this process: until then, a
    /// handle that is closed here does not hang up. Returns false if the broker had done so before.
    pub(crate) fn settle(&self) -> bool {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.has_closed_listener = false;
        if !std::mem::replace(&mut store.is_fresh, false) {
            return false;
        }
        // The broker handles requests in order, and has closed its copies before it answers this
        // one. A dead broker has none. The new handle is dropped, as the broker may still have a
        // copy.
        drop(self.ask(1, false));
        true
    }

    /// Notes that a listener of this process is closed.
    pub(crate) fn note_closed_listener(&self) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.has_closed_listener = store.is_fresh;
    }

    /// Waits until the host stack has noticed that this process has closed its listeners.
    pub(crate) fn settle_listeners(&self) {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let must_settle = store.has_closed_listener;
        drop(store);
        if must_settle {
            self.settle();
        }
    }

    /// Passes an open file to the NIC stacks; returns its number. Asks the successor of a dead
    /// broker as long as `check` succeeds. EOPNOTSUPP if no NIC stack takes files, EBADF if the
    /// file is not open for reading, EMFILE, EBUSY; ECONNRESET if no broker answers.
    pub(crate) fn pass_file(
        &self,
        file: BorrowedFd<'_>,
        check: impl Fn() -> Result<()>,
    ) -> Result<u32> {
        // The lock keeps other requests away: the next answer is this one's.
        let _store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (reply, _) = self.reach(check, || self.exchange(&Request::PassFile, &[file]))?;
        match reply {
            Reply::Passed { file } => file.map_err(errno_of),
            Reply::Refused { errno } => Err(errno_of(errno)),
            Reply::Attached(_) | Reply::Reattached | Reply::Handles { .. } => Err(Errno::PROTO),
        }
    }

    /// Takes the files that the broker has passed after their callers gave up waiting; they must be
    /// released.
    pub(crate) fn take_late_files(&self) -> Vec<u32> {
        let files = self.late_files.lock();
        std::mem::take(&mut files.unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks the current broker, else its successor, as long as `check` succeeds. The caller holds
    /// the store's lock, since answers come in order.
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
            // The caller has named no path.
            AttachError::Connect { .. } => Errno::CONNRESET,
            error => error.errno(),
        })
    }

    /// Sends a request to the broker and receives its answer. Answers come in order, so those whose
    /// callers gave up are received first. The caller holds the store's lock.
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
                // The descriptors of such an answer are closed here.
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

    /// Requests a batch; returns it in reverse order.
    fn ask(
        &self,
        mut count: u32,
        nonblocking: bool,
    ) -> std::result::Result<Vec<Handle>, AttachError> {
        let (reply, descriptors) = loop {
            match self.exchange(&Request::MoreHandles { count, nonblocking }, &[]) {
                Ok(received) => break received,
                // Near the limit of descriptors, a single handle may still be possible.
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
                    is_nonblocking: Some(nonblocking),
                    is_private: false,
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
        // The broker hangs: no request is sent while an answer is outstanding.
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
