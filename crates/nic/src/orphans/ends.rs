//! Connections that a worker is to end, and their last packets.

use std::io::IoSlice;

use contract::FlowId;
use netdev::{Offload, Port, SendError, Superpacket};

use crate::packet::PacketHeader;
use crate::slab::Key;

/// A connection to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Orphan {
    /// A flow with something queued or pinned, or with keys.
    Flow(Key),
    /// A flow without any.
    Idle(FlowId),
    /// A connection that the host has parted with.
    Parted(Key),
    /// A splice.
    Spliced(Key),
}

/// A packet that waits for the port.
#[derive(Debug)]
pub(super) enum OrphanPacket {
    Tcp(PacketHeader),
    Datagram {
        header: Vec<u8>,
        payload: Vec<u8>,
        offload: Offload,
    },
}

impl OrphanPacket {
    pub(super) fn send<P: Port>(&self, port: &mut P) -> Result<(), SendError> {
        match self {
            OrphanPacket::Tcp(header) => header.send(port, &[]),
            OrphanPacket::Datagram {
                header,
                payload,
                offload,
            } => port.send(&Superpacket {
                header,
                payload: &[IoSlice::new(payload)],
                offload: *offload,
            }),
        }
    }
}
