//! What waits for a change of a socket: threads that block in a call, and members of epoll sets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that waits for a change.
pub(crate) trait Watch: Send + Sync {
    /// The socket may have changed. True if a thread sleeps on the bell for it, which this does not
    /// ring.
    fn notify(&self) -> bool;
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
