//! The state of an application for people.

use socket_channel::AppId;

use crate::application::App;

/// An application, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationView {
    /// The application.
    pub app: AppId,
    /// Process ID of its first attached process; 0 if there is none.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Active modes: a sum of the `MODE_` numbers of [`socket_channel::attach`].
    pub modes: u32,
    /// Attached processes.
    pub processes: usize,
    /// Sockets of all kinds.
    pub sockets: usize,
    /// Listening sockets.
    pub listeners: u32,
    /// Sockets that are connected or connecting.
    pub connections: usize,
    /// Open files.
    pub files: u32,
    /// Descriptors of its sockets, including those that have no socket yet.
    pub handles: usize,
    /// Bytes of its segment that FIFOs occupy.
    pub fifo_bytes: u64,
    /// Bytes sent from its FIFOs.
    pub sent_bytes: u64,
    /// Bytes of files that it has queued, which it never sees.
    pub file_bytes: u64,
    /// Bytes handed to it.
    pub received_bytes: u64,
    /// Turns in which it has used up its share, so that other commands waited.
    pub turns_used_up: u64,
    /// It is no longer served, and is removed when its processes have ended.
    pub is_detached: bool,
}

impl ApplicationView {
    /// Returns the fraction of sent bytes that the application has never seen, from 0 to 1; `None`
    /// if it has sent nothing.
    pub fn offloaded_share(&self) -> Option<f64> {
        let bytes = self.file_bytes.saturating_add(self.sent_bytes);
        (bytes > 0).then(|| self.file_bytes as f64 / bytes as f64)
    }

    pub(crate) fn of(app: &App) -> ApplicationView {
        ApplicationView {
            app: app.id,
            pid: app.channels.first().map_or(0, |channel| channel.pid),
            uid: app.uid,
            modes: app.identity.modes,
            processes: app.channels.len(),
            sockets: app.sockets.len(),
            listeners: app.listeners.len() as u32,
            connections: app.connections,
            files: app.files,
            handles: app.handles(),
            fifo_bytes: app.fifo_bytes(),
            sent_bytes: app.traffic.sent_bytes,
            file_bytes: app.traffic.file_bytes,
            received_bytes: app.traffic.received_bytes,
            turns_used_up: app.turns_used_up,
            is_detached: app.is_detached,
        }
    }
}
