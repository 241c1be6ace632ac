//! A socket that listens.

use std::collections::VecDeque;
use std::net::SocketAddr;

use host::app::{BindingId, CloseReason, StreamId};

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) binding: BindingId,
    /// Most connections that wait.
    pub(crate) backlog: usize,
    /// Connections that wait to be asked for, the oldest first.
    pub(crate) held: VecDeque<HeldConnection>,
}

/// A connection that has no socket yet.
#[derive(Debug)]
pub(crate) struct HeldConnection {
    pub(crate) stream: StreamId,
    /// Its own and its peer's.
    pub(crate) addresses: (SocketAddr, SocketAddr),
    pub(crate) peer_finished: bool,
    /// Why the stack has forgotten it, and what was received before.
    pub(crate) end: Option<(CloseReason, Vec<u8>)>,
}
