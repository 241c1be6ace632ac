//! What people are shown of an application.

use socket_channel::AppId;

use crate::application::App;
use crate::state::socket::Kind;

/// An application, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationView {
    /// The application.
    pub app: AppId,
    /// Process ID of the first of its processes that is attached; 0 if none is any more.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Processes that are attached.
    pub processes: usize,
    /// Sockets of all kinds.
    pub sockets: usize,
    /// Those that listen.
    pub listeners: u32,
    /// Those that are connections, or are being connected.
    pub connections: usize,
    /// Files that it has open.
    pub files: u32,
    /// Descriptors of its sockets, also of those that have no socket yet.
    pub handles: usize,
    /// Memory that FIFOs take of its segment, in bytes.
    pub fifo_bytes: u64,
}

impl ApplicationView {
    pub(crate) fn of(app: &App) -> ApplicationView {
        let sockets = app.sockets.iter().map(|(_, socket)| &socket.kind);
        ApplicationView {
            app: app.id,
            pid: app.channels.first().map_or(0, |channel| channel.pid),
            uid: app.uid,
            processes: app.channels.len(),
            sockets: app.sockets.len(),
            listeners: app.listeners,
            connections: sockets
                .filter(|kind| matches!(kind, Kind::Stream(_)))
                .count(),
            files: app.files,
            handles: app.handles(),
            fifo_bytes: app.fifo_bytes(),
        }
    }
}
