//! The transports, as the ground sees them where it decides about the connections of both.

use crate::app::StreamId;
use crate::quic::QuicLayer;
use crate::quic::names::is_stream as is_quic;
use crate::streams::Transport;
use crate::tcp::TcpLayer;

/// See the [module documentation](self).
pub(crate) struct Layers<'a> {
    pub(crate) tcp: &'a mut TcpLayer,
    pub(crate) quic: &'a mut QuicLayer,
}

impl Layers<'_> {
    /// The transport of a stream.
    pub(crate) fn of_stream(&mut self, stream: StreamId) -> &mut dyn Transport {
        match is_quic(stream) {
            true => self.quic,
            false => self.tcp,
        }
    }

    /// The worker that sends for a stream.
    pub(crate) fn home(&self, stream: StreamId) -> Option<usize> {
        let entry = self.tcp.connections.by_stream(stream);
        let worker = entry.map(|entry| entry.nic.worker);
        worker.or_else(|| self.quic.worker_of(stream))
    }
}
