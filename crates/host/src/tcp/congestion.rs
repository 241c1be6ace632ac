//! The congestion control of a listener's connections, or of one stream.

use tcp::{CongestionAlgorithm, Instant};

use crate::app::StreamId;
use crate::ground::Ground;
use crate::tcp::TcpLayer;

impl TcpLayer {
    /// Sets the congestion control for connections accepted on `port` from now on; other ports use
    /// the one in [`StackConfig::tcp`](crate::StackConfig::tcp).
    pub(crate) fn set_listener_congestion(&mut self, port: u16, algorithm: CongestionAlgorithm) {
        self.port_congestion.retain(|&(other, _)| other != port);
        self.port_congestion.push((port, algorithm));
    }

    /// The congestion control for connections accepted on `port`.
    pub(crate) fn listener_congestion(&self, ground: &Ground, port: u16) -> CongestionAlgorithm {
        self.port_congestion
            .iter()
            .find(|&&(other, _)| other == port)
            .map_or(ground.config.tcp.congestion, |&(_, algorithm)| algorithm)
    }

    /// Changes the congestion control of a stream, which keeps its window. False if there is no
    /// such stream.
    pub(crate) fn set_congestion(
        &mut self,
        now_us: u64,
        stream: StreamId,
        algorithm: CongestionAlgorithm,
    ) -> bool {
        let Some(entry) = self.connections.by_stream_mut(stream) else {
            return false;
        };
        entry
            .tcp
            .set_congestion(Instant::from_us(now_us), algorithm);
        true
    }

    /// Bounds the rate at which a stream sends, in bytes per second; `None` removes the bound.
    /// False if there is no such stream.
    pub(crate) fn set_max_pacing_rate(&mut self, stream: StreamId, rate_max: Option<u64>) -> bool {
        let Some(handle) = self.connections.handle_of(stream) else {
            return false;
        };
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.tcp.set_max_pacing_rate(rate_max);
        }
        self.mark_dirty(handle);
        true
    }

    /// The congestion control of a stream.
    pub(crate) fn congestion(&self, stream: StreamId) -> Option<CongestionAlgorithm> {
        let handle = self.connections.handle_of(stream)?;
        Some(self.connections.get(handle)?.tcp.congestion())
    }
}
