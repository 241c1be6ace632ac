//! Where a shard gets its NIC stacks from: one to begin with, and another when that one is gone or is to be
//! replaced.

use std::fmt;
use std::os::fd::BorrowedFd;

use contract::control::HostSession;

use crate::stack::ChannelCorrupt;

/// Whoever starts NIC stacks. It is told what becomes of each.
pub trait NicSource {
    /// Readable when a NIC stack has come.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// The NIC stack that has come, after its hello; `None` if none has, or not in order. Does not wait.
    fn take(&mut self) -> Option<HostSession>;

    /// The NIC stack that was taken last is the one that is used now. What the one before it has still to say is not
    /// heard any more.
    fn on_joined(&mut self);

    /// The NIC stack that was taken last is not used: the one before it is kept, if there is one.
    fn on_refused(&mut self, refusal: NicRefusal);

    /// The NIC stack that was used is gone. Until another one comes, connections stay, and wait.
    fn on_lost(&mut self, loss: NicLoss);
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
        }
    }
}
