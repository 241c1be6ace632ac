//! A split socket of the program, and what is under way on it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use capi::Family;
use preload::kernels::tcp_socket;
use rustix::io::{Errno, Result};

use crate::sys::Notification;
use crate::tracee::Tracee;

/// See the [module documentation](self). Descriptors that are not there have been closed.
#[derive(Debug)]
pub(crate) struct Socket {
    /// By which events name it.
    pub(crate) key: u64,
    /// The program's end of the pair.
    pub(crate) inode: u64,
    pub(crate) family: Family,
    /// The socket of the library.
    pub(crate) split: Option<OwnedFd>,
    /// The supervisor's end of the pair.
    pub(crate) own: Option<OwnedFd>,
    /// Who got the program's end, and with which number.
    pub(crate) holder: (Tracee, RawFd),
    /// What `SO_ERROR` reports next.
    pub(crate) error: Option<Errno>,
    /// A socket of the kernel's that has its options once it has ended.
    pub(crate) remains: Option<OwnedFd>,
    /// Where it was when it ended.
    pub(crate) last_local: Option<SocketAddr>,
    pub(crate) state: State,
}

/// What a socket is.
#[derive(Debug)]
pub(crate) enum State {
    /// It has an address, or soon; the program's end is full of so many bytes.
    Bound {
        filling: usize,
    },
    Listening(Listener),
    Connecting(Connecting),
    Connected(Stream),
    /// `connect` has failed, and may be called again.
    Failed,
    /// Nothing comes or goes any more.
    Ended {
        has_listened: bool,
    },
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) notification: Notification,
    pub(crate) deadline: Option<Instant>,
    /// Those of `accept4`.
    pub(crate) flags: i32,
}

#[derive(Debug, Default)]
pub(crate) struct Listener {
    pub(crate) filling: usize,
    /// Bytes that say that connections wait.
    pub(crate) tokens: usize,
    /// Connections that were accepted for a call that had no use for them.
    pub(crate) returned: VecDeque<(OwnedFd, SocketAddr)>,
    pub(crate) waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) filling: usize,
    pub(crate) address: SocketAddr,
    pub(crate) waiter: Option<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Stream {
    /// `connect` has not reported yet that it has succeeded.
    pub(crate) is_news: bool,
    /// All that the program sends was taken out, and its end seen.
    pub(crate) is_sent: bool,
    /// All that the peer sends was passed on, and its end as well.
    pub(crate) is_received: bool,
    /// The program reads no more.
    pub(crate) is_unread: bool,
    /// The program has closed it, or ended both directions.
    pub(crate) is_gone: bool,
    /// … with bytes that it had not read.
    pub(crate) is_reset: bool,
    /// The connection has failed.
    pub(crate) failure: Option<Errno>,
    /// When bytes moved last.
    pub(crate) moved: Instant,
}

impl Stream {
    pub(crate) fn new(is_news: bool) -> Stream {
        Stream {
            is_news,
            is_sent: false,
            is_received: false,
            is_unread: false,
            is_gone: false,
            is_reset: false,
            failure: None,
            moved: Instant::now(),
        }
    }
}

impl Socket {
    /// The socket of the library; EINVAL once it is closed.
    pub(crate) fn split(&self) -> Result<BorrowedFd<'_>> {
        self.split.as_ref().map(AsFd::as_fd).ok_or(Errno::INVAL)
    }

    /// What has its options now that it has ended: those that the program sets from then on.
    pub(crate) fn remains(&mut self) -> Result<BorrowedFd<'_>> {
        let remains = match self.remains.take() {
            Some(remains) => remains,
            None => tcp_socket(self.family)?,
        };
        let remains: &OwnedFd = self.remains.insert(remains);
        Ok(remains.as_fd())
    }

    /// Whether calls wait for something of it.
    pub(crate) fn has_waiters(&self) -> bool {
        match &self.state {
            State::Listening(listener) => !listener.waiters.is_empty(),
            State::Connecting(connecting) => connecting.waiter.is_some(),
            _ => false,
        }
    }

    /// Takes out all calls that wait.
    pub(crate) fn take_waiters(&mut self) -> Vec<Waiter> {
        match &mut self.state {
            State::Listening(listener) => listener.waiters.drain(..).collect(),
            State::Connecting(connecting) => connecting.waiter.take().into_iter().collect(),
            _ => Vec::new(),
        }
    }
}
