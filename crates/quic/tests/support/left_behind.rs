//! A connection whose client is gone, and what the server sends on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use quic::{CloseReason, Handle, Output, Send};

/// What the server has sent on it since.
pub(crate) struct LeftBehind {
    pub(crate) handle: Handle,
    pub(crate) packets: u64,
    /// By the address to which it went.
    pub(crate) bytes_to: BTreeMap<SocketAddr, u64>,
    /// Numbers of packets that were not acknowledged, ascending.
    pub(crate) numbers: Vec<u64>,
    /// Keys that the NIC stack has been given and has to keep, and the most at any time.
    pub(crate) keys: usize,
    pub(crate) keys_max: usize,
    pub(crate) closed: Option<CloseReason>,
}

impl LeftBehind {
    pub(crate) fn new(handle: Handle, keys: usize) -> Self {
        Self {
            handle,
            packets: 0,
            bytes_to: BTreeMap::new(),
            numbers: Vec::new(),
            keys,
            keys_max: keys,
            closed: None,
        }
    }

    /// Counts what the server sends on it. False if that is on another connection.
    pub(crate) fn takes(&mut self, output: &Output) -> bool {
        match output {
            Output::Key { connection, .. } if *connection == self.handle => {
                self.keys += 1;
                self.keys_max = self.keys_max.max(self.keys);
            }
            Output::KeyGone { connection, .. } if *connection == self.handle => self.keys -= 1,
            Output::Send(send) if send.connection == self.handle => self.on_send(send),
            _ => return false,
        }
        true
    }

    fn on_send(&mut self, send: &Send) {
        self.packets += send.packets().len() as u64;
        *self.bytes_to.entry(send.route.remote).or_default() += send.datagram_bytes();
        self.numbers
            .extend(send.packets().map(|packet| packet.number()));
    }
}
