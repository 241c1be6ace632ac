//! The source of a shard's NIC stacks: each is provided when it joins, and again after its loss or
//! for its replacement. They are numbered from zero.

use std::fmt;
use std::os::fd::BorrowedFd;

use contract::control::HostSession;

use super::nic_stacks::NicRefusal;
use crate::stack::{ChannelCorrupt, Stack};

/// The supervisor of a stack's NIC stacks and its application. It is notified of their states.
pub trait NicSource<A> {
    /// Readable when a NIC stack has joined, or [`NicSource::on_wake`] has other work.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// Called when [`NicSource::wake_fd`] is readable, after a joined NIC stack was taken. Other
    /// work on the stack and the application is done here, a little at a time while packets wait.
    fn on_wake(&mut self, _now_us: u64, _stack: &mut Stack, _app: &mut A) {}

    /// Returns a joined NIC stack's number, and its session after the hello; `None` if none has
    /// joined, or its hello failed. Does not wait.
    fn take(&mut self) -> Option<(usize, HostSession)>;

    /// The session that was taken last for `nic` is in use now. Events of its predecessor are no
    /// longer read.
    fn on_joined(&mut self, nic: usize);

    /// The session that was taken last for `nic` was refused: its predecessor, if any, stays in
    /// use.
    fn on_refused(&mut self, nic: usize, refusal: NicRefusal);

    /// NIC stack `nic` has stalled: its worker `worker` has missed its heartbeats. It is lost if it
    /// does not end soon.
    fn on_silent(&mut self, _nic: usize, _worker: usize) {}

    /// NIC stack `nic` is gone. Until it returns, connections continue through another NIC stack,
    /// or wait.
    fn on_lost(&mut self, nic: usize, loss: NicLoss);
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
