//! A listening socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

use host::app::{BindingId, CloseReason, StreamId};

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) binding: BindingId,
    /// Maximum number of waiting connections.
    pub(crate) backlog: usize,
    /// Connections held until AcceptNext, the oldest first.
    pub(crate) held: VecDeque<HeldConnection>,
}

/// A connection that has no socket yet.
#[derive(Debug)]
pub(crate) struct HeldConnection {
    pub(crate) stream: StreamId,
    /// Local and peer address.
    pub(crate) addresses: (SocketAddr, SocketAddr),
    pub(crate) peer_finished: bool,
    /// Reason for its end, and the bytes received before, if it has ended.
    pub(crate) end: Option<(CloseReason, Vec<u8>)>,
}
