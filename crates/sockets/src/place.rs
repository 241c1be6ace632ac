//! Maps from the stack's names to sockets.

use std::collections::HashMap;

use host::app::{BindingId, FileHandle, StreamId};
use socket_channel::{AppId, SocketId};

/// A socket of an application.
pub(crate) type Place = (AppId, SocketId);

/// Receivers of the stack's events.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Connections.
    pub(crate) streams: HashMap<StreamId, Place>,
    /// Listeners.
    pub(crate) bindings: HashMap<BindingId, Place>,
    /// Files being looked up.
    pub(crate) lookups: HashMap<FileHandle, Place>,
    /// An application connects to a listener of this stack, whose descriptor may already be closed.
    pub(crate) is_looping: bool,
}
