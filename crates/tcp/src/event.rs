//! Events that a connection reports to its owner.

use std::collections::VecDeque;

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both directions were closed in order.
    Finished,
    /// The peer has reset the connection.
    Reset,
    /// The peer has not answered for too long.
    TimedOut,
    /// [`crate::Connection::abort`], or [`crate::Connection::close`] with unread bytes.
    Aborted,
    /// The handshake was answered with a reset, or an ICMP error that protocol or port do not
    /// exist.
    Refused,
    /// There is no route to the peer of a connection that was being opened.
    Unreachable,
}

/// An event of a connection. Events of one kind that were not polled are reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionEvent {
    /// The handshake is complete.
    Connected,
    /// There are bytes to [`crate::Connection::read`].
    Readable,
    /// The peer's FIN has arrived, in order: the peer will send no more.
    PeerFinished,
    /// A virtual extent has been acknowledged completely. One event for each
    /// [`crate::Connection::write_virtual`], in order. Extents left when the connection closes are
    /// not reported.
    Released {
        /// The object named in `write_virtual`.
        object: u32,
        /// Stream offset behind the extent's last byte.
        stream_end: u64,
    },
    /// A write came back short and there is room again.
    Writable,
    /// All bytes queued have been acknowledged.
    Drained,
    /// The connection has ended. Reported exactly once, and last. In TIME-WAIT the connection must
    /// still be kept: see [`crate::Connection::is_closed`].
    Closed {
        /// Reason for the end.
        reason: CloseReason,
    },
}

/// Events that have not been polled, in the order in which their kinds are reported.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) connected: bool,
    pub(crate) readable: bool,
    pub(crate) peer_finished: bool,
    pub(crate) released: VecDeque<(u32, u64)>,
    pub(crate) writable: bool,
    pub(crate) drained: bool,
    pub(crate) closed: Option<CloseReason>,
}

impl Events {
    pub(crate) fn poll(&mut self) -> Option<ConnectionEvent> {
        use std::mem::take;
        if take(&mut self.connected) {
            Some(ConnectionEvent::Connected)
        } else if take(&mut self.readable) {
            Some(ConnectionEvent::Readable)
        } else if take(&mut self.peer_finished) {
            Some(ConnectionEvent::PeerFinished)
        } else if let Some((object, stream_end)) = self.released.pop_front() {
            Some(ConnectionEvent::Released { object, stream_end })
        } else if take(&mut self.writable) {
            Some(ConnectionEvent::Writable)
        } else if take(&mut self.drained) {
            Some(ConnectionEvent::Drained)
        } else {
            self.closed
                .take()
                .map(|reason| ConnectionEvent::Closed { reason })
        }
    }
}
