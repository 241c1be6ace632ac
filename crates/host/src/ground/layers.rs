//! The transports, as the ground sees them where it decides about the connections of both.

use crate::app::StreamId;
use crate::quic::QuicLayer;
use crate::streams::Transport;
use crate::tcp::TcpLayer;

/// See the [module documentation](self).
pub(crate) struct Layers<'a> {
    pub(crate) tcp: &'a mut TcpLayer,
    pub(crate) quic: &'a mut QuicLayer,
}

impl<'a> Layers<'a> {
    pub(crate) fn of(tcp: &'a mut TcpLayer, quic: &'a mut QuicLayer) -> Layers<'a> {
        Layers { tcp, quic }
    }

    /// The worker that sends for a stream.
    pub(crate) fn home(&self, stream: StreamId) -> Option<usize> {
        let entry = self.tcp.connections.by_stream(stream);
        let worker = entry.map(|entry| entry.worker);
        worker.or_else(|| self.quic.worker_of(stream))
    }
}
