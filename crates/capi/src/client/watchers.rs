//! Waiters for changes of a socket: threads that block in a call, and members of epoll sets.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;

use super::own::{Kept, LIBRARY_FDS_FROM};

/// A waiter for changes of a socket.
pub(crate) trait Watch: Send + Sync {
    /// Handles a possible change of the socket. Returns true if a thread sleeps on the bell for it;
    /// the caller must ring.
    fn notify(&self) -> bool;

    /// Reports whether the waiter is a thread in a call on the socket, which keeps it open until
    /// the call returns.
    fn is_call(&self) -> bool {
        false
    }

    /// Keeps a duplicate of a descriptor of the socket that the program closes.
    fn keep(&self, _duplicate: &Arc<Kept>) {}
}

type BySocket = HashMap<u32, Vec<Arc<dyn Watch>>>;

/// See the [module documentation](self). The key is the index of a socket's record: a hint for an
/// earlier socket with the same index costs one look.
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

    /// Gives a duplicate of a descriptor that is about to be closed to threads in calls on its
    /// socket. Returns whether there are any.
    pub(crate) fn keep_open(&self, socket: u32, fd: BorrowedFd<'_>) -> bool {
        let by_socket = self.lock();
        let watches = by_socket.get(&socket).into_iter().flatten();
        let mut calls = watches.filter(|watch| watch.is_call()).peekable();
        let has_calls = calls.peek().is_some();
        if has_calls && let Ok(duplicate) = fcntl_dupfd_cloexec(fd, LIBRARY_FDS_FROM) {
            let duplicate = Arc::new(Kept::new(duplicate));
            calls.for_each(|watch| watch.keep(&duplicate));
        }
        has_calls
    }

    /// Notifies the waiters of a socket that may have changed. Returns true if a thread sleeps on
    /// the bell for it.
    pub(crate) fn notify(&self, socket: u32) -> bool {
        let by_socket = self.lock();
        let watches = by_socket.get(&socket).into_iter().flatten();
        watches.fold(false, |sleeps, watch| watch.notify() | sleeps)
    }

    /// Notifies all waiters. Returns true if a thread sleeps on the bell for any socket.
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
