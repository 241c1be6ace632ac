//! Closes descriptors of other processes.
//!
//! close(2) may block as long as another process likes: a file system in user space may delay its
//! answer to FLUSH. So a separate thread closes passed descriptors, and nothing waits for it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::{io, thread};

/// Most descriptors that wait to be closed before no more are taken from others.
const PENDING_MAX: usize = 256;

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct Closer {
    to_thread: Sender<OwnedFd>,
    pending: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts the thread, which keeps the current rights of the process.
    pub(crate) fn start() -> io::Result<Closer> {
        let (to_thread, from_process) = channel::<OwnedFd>();
        let pending = Arc::new(AtomicUsize::new(0));
        let closing = Arc::clone(&pending);
        thread::Builder::new()
            .name("close".into())
            .stack_size(64 << 10)
            .spawn(move || {
                for descriptor in from_process {
                    drop(descriptor);
                    closing.fetch_sub(1, Ordering::Relaxed);
                }
            })?;
        Ok(Closer { to_thread, pending })
    }

    /// Closes a descriptor in the thread.
    pub(crate) fn close(&self, descriptor: OwnedFd) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        // The thread lives as long as a sender does.
        let _ = self.to_thread.send(descriptor);
    }

    /// Returns whether no more descriptors may be taken until some are closed.
    pub(crate) fn is_behind(&self) -> bool {
        self.pending.load(Ordering::Relaxed) >= PENDING_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_handed_over_is_closed() {
        let closer = Closer::start().unwrap();
        let (mut own, other) = UnixStream::pair().unwrap();
        closer.close(other.into());
        let end = own.read(&mut [0]).unwrap();
        assert_eq!((end, closer.is_behind()), (0, false));
    }
}
