//! What waits for a change of a socket: threads that block in a call, and members of epoll sets.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;

use super::own::{Kept, LIBRARY_FDS_FROM};

/// Something that waits for a change.
pub(crate) trait Watch: Send + Sync {
    /// The socket may have changed. True if a thread sleeps on the bell for it, which this does not
    /// ring.
    fn notify(&self) -> bool;

    /// True if it is a thread in a call on the socket, which keeps that open until it returns.
    fn is_call(&self) -> bool {
        false
    }

    /// The program has closed a descriptor of the socket, of which this is a duplicate.
    fn keep(&self, _duplicate: &Arc<Kept>) {}
}

type BySocket = HashMap<u32, Vec<Arc<dyn Watch>>>;

/// See the [module documentation](self). Sockets go by the index of their records: a hint for an
/// earlier socket of that place costs one look.
#[derive(Default)]
pub(crate) struct Watchers {
    by_socket: Mutex<BySocket>,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, BySocket> {
        self.by_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, socket: u32, watch: Arc<dyn Watch>) {
        self.lock().entry(socket).or_default().push(watch);
    }

    pub(crate) fn remove(&self, socket: u32, watch: &Arc<dyn Watch>) {
        let mut by_socket = self.lock();
        if let Some(watches) = by_socket.get_mut(&socket) {
            watches.retain(|other| !Arc::ptr_eq(other, watch));
            if watches.is_empty() {
                by_socket.remove(&socket);
            }
        }
    }

    /// A descriptor of a socket is about to be closed: threads in calls keep a duplicate of it.
    pub(crate) fn keep_open(&self, socket: u32, fd: BorrowedFd<'_>) {
        let by_socket = self.lock();
        let watches = by_socket.get(&socket).into_iter().flatten();
        let mut calls = watches.filter(|watch| watch.is_call()).peekable();
        if calls.peek().is_some()
            && let Ok(duplicate) = fcntl_dupfd_cloexec(fd, LIBRARY_FDS_FROM)
        {
            let duplicate = Arc::new(Kept::new(duplicate));
            calls.for_each(|watch| watch.keep(&duplicate));
        }
    }

    /// A socket may have changed. True if a thread sleeps on the bell for it.
    pub(crate) fn notify(&self, socket: u32) -> bool {
        let by_socket = self.lock();
        let watches = by_socket.get(&socket).into_iter().flatten();
        watches.fold(false, |sleeps, watch| watch.notify() | sleeps)
    }

    /// Any socket may have changed. True if a thread sleeps on the bell for one.
    pub(crate) fn notify_all(&self) -> bool {
        let by_socket = self.lock();
        let watches = by_socket.values().flatten();
        watches.fold(false, |sleeps, watch| watch.notify() | sleeps)
    }
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watchers").finish_non_exhaustive()
    }
}
