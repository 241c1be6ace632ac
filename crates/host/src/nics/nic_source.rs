//! Where a shard gets its NIC stacks from: each when it comes, and again when it was gone or is to
//! be replaced. They are numbered from zero.

use std::fmt;
use std::os::fd::BorrowedFd;

use contract::control::HostSession;

use crate::stack::{ChannelCorrupt, Stack};

/// The supervisor of the NIC stacks of a stack and its application. It hears what becomes of each.
pub trait NicSource<A> {
    /// Readable when a NIC stack has come, or there is something else for [`NicSource::on_wake`].
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// [`NicSource::wake_fd`] is readable, and if it was for a NIC stack, that has been taken: what
    /// else is wanted of the stack and the application is done here, a little at a time while
    /// packets wait.
    fn on_wake(&mut self, _now_us: u64, _stack: &mut Stack, _app: &mut A) {}

    /// The NIC stack that has come, after its hello, and which it is; `None` if none has, or not in
    /// order. Does not wait.
    fn take(&mut self) -> Option<(usize, HostSession)>;

    /// The one that was taken last as number `nic` is used now. What the one before it has still to
    /// say is not heard any more.
    fn on_joined(&mut self, nic: usize);

    /// The one that was taken last as number `nic` is not used: the one before it is kept, if there
    /// is one.
    fn on_refused(&mut self, nic: usize, refusal: NicRefusal);

    /// The one that is used as number `nic` stands still: its worker `worker` has missed its
    /// heartbeats. If it is not gone soon, it is lost.
    fn on_silent(&mut self, _nic: usize, _worker: usize) {}

    /// The one that was used as number `nic` is gone. Until it comes again, connections go on
    /// through another NIC stack, or wait.
    fn on_lost(&mut self, nic: usize, loss: NicLoss);
}

/// Why a NIC stack is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicRefusal {
    /// Workers that it has.
    pub workers: usize,
    /// Workers that it must have: connections stay with theirs.
    pub wanted: usize,
}

/// Why a NIC stack is not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicLoss {
    /// It has closed its socket: mostly, its process has ended.
    HungUp,
    /// It has broken a ring.
    Corrupt(ChannelCorrupt),
    /// This worker stands still.
    Silent(usize),
}

impl fmt::Display for NicRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NicRefusal { workers, wanted } = self;
        write!(f, "it has {workers} workers, and {wanted} are needed")
    }
}

impl fmt::Display for NicLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicLoss::HungUp => f.write_str("it has closed the connection"),
            NicLoss::Corrupt(ChannelCorrupt { worker }) => {
                write!(f, "the ring from its worker {worker} is corrupt")
            }
            NicLoss::Silent(worker) => write!(f, "its worker {worker} has no heartbeat"),
        }
    }
}
