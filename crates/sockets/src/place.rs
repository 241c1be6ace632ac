//! From what the stack names to the socket behind it.

use std::collections::HashMap;

use host::app::{BindingId, FileHandle, StreamId};
use socket_channel::{AppId, SocketId};

/// A socket of an application.
pub(crate) type Place = (AppId, SocketId);

/// Where the stack's events go.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Connections.
    pub(crate) streams: HashMap<StreamId, Place>,
    /// Listeners.
    pub(crate) bindings: HashMap<BindingId, Place>,
    /// Files that are looked up.
    pub(crate) lookups: HashMap<FileHandle, Place>,
    /// An application connects to a listener of this stack, whose descriptor may be closed.
    pub(crate) is_looping: bool,
}
