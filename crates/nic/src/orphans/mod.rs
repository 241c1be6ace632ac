//! Connections whose host process has died: the worker ends them.
//!
//! No process makes decisions any more; a peer waiting for data would wait for its own timeout. The
//! worker knows where each connection is: it sends a RST for each of TCP, and
//! CONNECTION_CLOSE for each of QUIC. After an orderly end, the host has done so itself
//! ([`contract::control::HostSocket`]).
//!
//! A peer accepts a RST only at RCV.NXT (RFC 5961 §3.2): the end of the departed data, or after a
//! loss usually the last acknowledgment. The worker sends both; peers in between are reset by the
//! next server.

mod ends;
mod run;

use std::collections::{HashMap, VecDeque};

use contract::FlowId;

use self::ends::{Orphan, OrphanPacket};
use crate::departed::Departed;
use crate::flow::Flow;
use crate::packet::PacketHeader;
use crate::shrink;

/// A flow that has nothing queued or pinned.
#[derive(Debug)]
pub(crate) struct Idle {
    pub(crate) departed: Box<Departed>,
    /// The peer has acknowledged its stream up to here.
    pub(crate) acked_offset: u64,
}

/// Ends the connections when the host process has died.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// Flows that have nothing queued or pinned, and are not over.
    idle: HashMap<FlowId, Idle>,
    /// Connections to end.
    waiting: VecDeque<Orphan>,
    /// Packets for the port, as soon as it takes them.
    packets: VecDeque<OrphanPacket>,
    /// Packets sent, and repeated later: the network, or a full socket of the peer, may lose a
    /// packet.
    sent: Vec<OrphanPacket>,
    /// Packets to be sent once more.
    repeats: VecDeque<OrphanPacket>,
}

/// Packets that are repeated, the first ones sent; each takes some hundred bytes of memory.
const REPEATED_MAX: usize = 16_384;

impl Orphans {
    /// Queues packets of TCP for the port.
    fn push(&mut self, packets: impl IntoIterator<Item = PacketHeader>) {
        let packets = packets.into_iter().map(OrphanPacket::Tcp);
        self.packets.extend(packets);
    }

    /// Keeps a packet that has been sent, for the repetition.
    fn on_sent(&mut self, packet: OrphanPacket) {
        if self.sent.len() < REPEATED_MAX {
            self.sent.push(packet);
        }
    }

    /// Queues the kept packets once more.
    fn repeat(&mut self) {
        self.repeats.extend(self.sent.drain(..));
    }

    /// Returns the number of idle flows.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Remembers a flow that has become idle, unless `max` are remembered.
    pub(crate) fn set_aside(&mut self, flow: Flow, max: usize) {
        if let Some(departed) = flow.departed
            && self.idle.len() < max
        {
            let acked_offset = flow.acked_offset;
            let idle = Idle {
                departed,
                acked_offset,
            };
            self.idle.insert(flow.id, idle);
        }
    }

    /// Removes a flow that sends again, or is over.
    pub(crate) fn take(&mut self, flow: FlowId) -> Option<Idle> {
        if self.idle.is_empty() {
            return None;
        }
        shrink::remove(&mut self.idle, &flow)
    }

    /// Records an acknowledgment of an idle flow.
    pub(crate) fn acknowledge(&mut self, flow: FlowId, stream_offset: u64) {
        if let Some(idle) = self.idle.get_mut(&flow) {
            idle.acked_offset = idle.acked_offset.max(stream_offset);
        }
    }
}
