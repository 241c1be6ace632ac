//! State of a connection that is part of a splice.

use host::splicing::SpliceLimits;
use socket_channel::SocketId;

/// Stage of a splice, as far as this side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Bytes of the FIFOs are moved to TCP.
    Moving,
    /// The stack joins the connections.
    Joining,
    /// A NIC stack has the connections.
    Joined,
}

/// A connection's view of its splice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splice {
    pub(crate) other: SocketId,
    /// It is the first of the two, whose stream names the splice at the stack.
    pub(crate) is_first: bool,
    pub(crate) stage: Stage,
    pub(crate) limits: SpliceLimits,
    /// Bytes moved from its rx FIFO to the other connection.
    pub(crate) moved_bytes: u64,
}
