//! What has happened to connections of QUIC.

use std::ops::AddAssign;

/// Connections of QUIC, and how often things happened that matter to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuicCounters {
    /// Connections whose handshake came to its end.
    pub connections: u64,
    /// Those of them that resumed an earlier session.
    pub resumed: u64,
    /// Those of them whose early data was accepted.
    pub early: u64,
    /// Those of them that were answered from the preferred address.
    pub moved_over: u64,
    /// Requests.
    pub streams: u64,
    /// 1-RTT packets that have left NIC workers.
    pub packets: u64,
    /// Keys that NIC workers were given.
    pub keys: u64,
    /// Times that connections went to their NIC workers, which open packets, ...
    pub receive_begun: u64,
    /// ... and that they returned.
    pub receive_returned: u64,
    /// Datagrams that a map has given to NIC workers.
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
