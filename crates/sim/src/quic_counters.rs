//! Counters of QUIC connections.

use std::ops::AddAssign;

/// Counts of QUIC connections and their events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuicCounters {
    /// Connections whose handshake completed.
    pub connections: u64,
    /// Connections that resumed an earlier session.
    pub resumed: u64,
    /// Connections whose early data was accepted.
    pub early: u64,
    /// Connections that were answered from the preferred address.
    pub moved_over: u64,
    /// Requests.
    pub streams: u64,
    /// 1-RTT packets that have left NIC workers.
    pub packets: u64,
    /// Keys given to NIC workers.
    pub keys: u64,
    /// Times that NIC workers took over opening packets of a connection, ...
    pub receive_begun: u64,
    /// ... and that the host took it back.
    pub receive_returned: u64,
    /// Datagrams that a map has steered to NIC workers.
    pub datagrams_steered: u64,
    /// Packets of clients that NIC workers have opened.
    pub opened: u64,
    /// Commands that NIC workers have rejected.
    pub rejected: u64,
}

impl AddAssign for QuicCounters {
    fn add_assign(&mut self, more: QuicCounters) {
        self.connections += more.connections;
        self.resumed += more.resumed;
        self.early += more.early;
        self.moved_over += more.moved_over;
        self.streams += more.streams;
        self.packets += more.packets;
        self.keys += more.keys;
        self.receive_begun += more.receive_begun;
        self.receive_returned += more.receive_returned;
        self.datagrams_steered += more.datagrams_steered;
        self.opened += more.opened;
        self.rejected += more.rejected;
    }
}
