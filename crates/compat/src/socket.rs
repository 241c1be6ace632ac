//! A split socket of the program, and its pending calls.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use capi::Family;
use preload::kernels::tcp_socket;
use rustix::io::{Errno, Result};

use crate::sys::Notification;
use crate::tracee::Tracee;

/// See the [module documentation](self). Descriptors that are `None` have been closed.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Identifies it in events.
    pub(crate) key: u64,
    /// Inode of the program's end of the pair.
    pub(crate) inode: u64,
    pub(crate) family: Family,
    /// The socket of the library.
    pub(crate) split: Option<OwnedFd>,
    /// The supervisor's end of the pair.
    pub(crate) own: Option<OwnedFd>,
    /// The thread that got the program's end, and the descriptor's number.
    pub(crate) holder: (Tracee, RawFd),
    /// The next result of `SO_ERROR`.
    pub(crate) error: Option<Errno>,
    /// A kernel socket that holds its options once it has ended.
    pub(crate) remains: Option<OwnedFd>,
    /// Its local address when it ended.
    pub(crate) last_local: Option<SocketAddr>,
    pub(crate) state: State,
}

/// State of a socket.
#[derive(Debug)]
pub(crate) enum State {
    /// It has an address, or soon; the program's end is full of `filling` bytes.
    Bound {
        filling: usize,
    },
    Listening(Listener),
    Connecting(Connecting),
    Connected(Stream),
    /// `connect` has failed, and may be called again.
    Failed,
    /// No bytes are transferred any more.
    Ended {
        has_listened: bool,
    },
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) notification: Notification,
    pub(crate) deadline: Option<Instant>,
    /// Flags of `accept4`.
    pub(crate) flags: i32,
}

#[derive(Debug, Default)]
pub(crate) struct Listener {
    pub(crate) filling: usize,
    /// Tokens in the pair, which signal waiting connections.
    pub(crate) tokens: usize,
    /// Connections that were accepted for a call that could not take them.
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
    /// `connect` has not reported its success yet.
    pub(crate) is_news: bool,
    /// All bytes of the program were taken out, and their end seen.
    pub(crate) is_sent: bool,
    /// All bytes of the peer were passed on, and their end as well.
    pub(crate) is_received: bool,
    /// The program reads no more.
    pub(crate) is_unread: bool,
    /// The program has closed it, or ended both directions.
    pub(crate) is_gone: bool,
    /// … with bytes that it had not read.
    pub(crate) is_reset: bool,
    /// The connection has failed.
    pub(crate) failure: Option<Errno>,
    /// Time of the last transfer.
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
    /// Returns the socket of the library; EINVAL once it is closed.
    pub(crate) fn split(&self) -> Result<BorrowedFd<'_>> {
        self.split.as_ref().map(AsFd::as_fd).ok_or(Errno::INVAL)
    }

    /// Returns the kernel socket for the options of an ended socket: the program may still set
    /// them.
    pub(crate) fn remains(&mut self) -> Result<BorrowedFd<'_>> {
        let remains = match self.remains.take() {
            Some(remains) => remains,
            None => tcp_socket(self.family)?,
        };
        let remains: &OwnedFd = self.remains.insert(remains);
        Ok(remains.as_fd())
    }

    /// True if calls wait for the socket.
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
