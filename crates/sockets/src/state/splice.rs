//! A connection that is part of a splice.

use host::splicing::SpliceLimits;
use socket_channel::SocketId;

/// How far a splice has come, as far as is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// What is in the FIFOs is moved to TCP.
    Moving,
    /// The stack joins the connections.
    Joining,
    /// A NIC stack has them.
    Joined,
}

/// What a connection has of its splice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splice {
    pub(crate) other: SocketId,
    /// It is the first of the two, by which the stack names the splice.
    pub(crate) is_first: bool,
    pub(crate) stage: Stage,
    pub(crate) limits: SpliceLimits,
    /// Bytes that went from its rx FIFO to the other connection.
    pub(crate) moved_bytes: u64,
}
