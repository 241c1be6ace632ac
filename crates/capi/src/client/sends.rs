//! Sends that report the peer's acknowledgment, and their completions.
//!
//! A send has a cookie. Its completion is due when `ACKED` has passed its last byte, or the
//! connection has ended before. It belongs to the process that has sent, any of whose threads may
//! take it. While a completion is due, the socket reports `EPOLLERR`.
//!
//! A send in progress has no position yet, but counts towards [`SENDS_MAX`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, Result};
use socket_channel::{AppRecord, Flags, SocketId};

use super::attach::errno_of;

/// Most sends of a socket whose completions have not been taken.
pub const SENDS_MAX: usize = 1024;

/// The completion of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Cookie of the send.
    pub cookie: u64,
    /// `Ok` if the peer has acknowledged all bytes of the send; else the reason why not.
    pub outcome: Result<()>,
}

/// A send that is not known to have completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) cookie: u64,
    /// Position of the stream that the peer must acknowledge.
    pub(crate) position: u64,
    /// Number of the socket's disconnects when the send began.
    pub(crate) disconnects: u64,
}

/// The sends of a socket.
#[derive(Debug)]
struct Queue {
    id: SocketId,
    /// In the order of the stream.
    sends: VecDeque<Send>,
    /// Sends in progress.
    begun: usize,
}

/// The sends of a process. See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Sends {
    /// By the index of the record. A queue of an earlier socket with the same index is stale.
    queues: Mutex<HashMap<u32, Queue>>,
    /// Number of queues; 0 in most processes.
    count: AtomicUsize,
    /// Number of changes that no edge reports, such as a completion due before its send was noted.
    changes: AtomicU64,
}

/// Progress of a socket's acknowledgments.
struct Reach<'a> {
    record: AppRecord<'a>,
    /// The reason why there will be no further acknowledgment.
    end: Option<Errno>,
}

impl<'a> Reach<'a> {
    fn of(record: AppRecord<'a>, is_attached: bool) -> Reach<'a> {
        // The state is read first, so that all acknowledgments before the end are seen.
        let end = match record.flags() {
            Ok(flags) if is_attached && !flags.is_over() => None,
            Ok(flags) if flags.has(Flags::FAILED) && record.last_error() != 0 => {
                Some(errno_of(record.last_error()))
            }
            Ok(_) | Err(_) => Some(Errno::CONNRESET),
        };
        Reach { record, end }
    }

    fn outcome(&self, send: &Send) -> Option<Result<()>> {
        // The position is valid only if the record still belongs to the socket afterwards.
        let is_acked = self.record.await_acked(send.position) && self.record.flags().is_ok();
        // The acknowledgment may also be that of a later connection.
        if self.record.disconnects() != send.disconnects {
            return Some(Err(Errno::CONNRESET));
        }
        if is_acked {
            return Some(Ok(()));
        }
        self.end.map(Err)
    }
}

impl Sends {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a send begins; ENOBUFS if the socket has [`SENDS_MAX`] sends.
    pub(crate) fn begin(&self, id: SocketId) -> Result<()> {
        let mut queues = self.lock();
        let queue = queues.entry(id.index).or_insert_with(|| Queue::new(id));
        if queue.id != id {
            *queue = Queue::new(id);
        }
        let is_full = queue.sends.len() + queue.begun >= SENDS_MAX;
        if !is_full {
            queue.begun += 1;
        }
        self.count.store(queues.len(), Ordering::Release);
        if is_full { Err(Errno::NOBUFS) } else { Ok(()) }
    }

    /// Notes that a send has ended; `None` if it has sent nothing.
    pub(crate) fn end(&self, id: SocketId, send: Option<Send>) {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&id.index).filter(|queue| queue.id == id) else {
            return;
        };
        queue.begun -= 1;
        if let Some(send) = send {
            let at = (send.disconnects, send.position);
            let place = queue
                .sends
                .partition_point(|it| (it.disconnects, it.position) <= at);
            queue.sends.insert(place, send);
        }
    }

    /// Takes due completions, at most `completions.len()`. `None` if there are none, but
    /// outstanding sends. `is_attached` is false when the host stack is gone.
    pub(crate) fn take(
        &self,
        record: AppRecord<'_>,
        is_attached: bool,
        completions: &mut [Completion],
    ) -> Option<usize> {
        let mut queues = self.lock();
        let id = record.id();
        let queue = queues.get_mut(&id.index);
        let Some(queue) = queue.filter(|queue| queue.id == id) else {
            return Some(0);
        };
        let reach = Reach::of(record, is_attached);
        let mut count = 0;
        while let Some(place) = completions.get_mut(count)
            && let Some(send) = queue.sends.front()
            && let Some(outcome) = reach.outcome(send)
        {
            *place = Completion {
                cookie: send.cookie,
                outcome,
            };
            queue.sends.pop_front();
            count += 1;
        }
        if count > 0
            && count == completions.len()
            && let Some(next) = queue.sends.front()
        {
            // Registers for the edge of the next completion.
            reach.outcome(next);
        }
        let is_idle = queue.sends.is_empty() && queue.begun == 0;
        (count > 0 || is_idle).then_some(count)
    }

    /// Reports whether a completion of a socket is due. If not, the edge grows when the next one
    /// is.
    pub(crate) fn has_completed(&self, record: AppRecord<'_>) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let queues = self.lock();
        let id = record.id();
        let queue = queues.get(&id.index).filter(|queue| queue.id == id);
        let first = queue.and_then(|queue| queue.sends.front());
        first.is_some_and(|first| Reach::of(record, true).outcome(first).is_some())
    }

    /// Makes waiters look again after a change that no edge reports: a completion was due before
    /// its send was noted, or a send has sent nothing.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of changes that no edge reports.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Drops the completions of a socket when this process closes its last descriptor.
    pub(crate) fn forget(&self, id: SocketId, has_other: impl FnOnce() -> bool) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queues = self.lock();
        let is_known = queues.get(&id.index).is_some_and(|queue| queue.id == id);
        if is_known && !has_other() {
            queues.remove(&id.index);
            self.count.store(queues.len(), Ordering::Release);
        }
    }
}

impl Queue {
    fn new(id: SocketId) -> Queue {
        Queue {
            id,
            sends: VecDeque::new(),
            begun: 0,
        }
    }
}
