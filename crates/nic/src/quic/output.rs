//! A superpacket of sealed datagrams: filled in from blocks, and sealed where it is.

use std::collections::vec_deque;

use super::flow::QuicFlow;
use super::packet;
use crate::blocks::Blocks;
use crate::flow::Piece;
use crate::job::{Job, JobPacket};
use crate::segment::Place;
use crate::slab::Key;

/// Makes superpackets of datagrams. There is one at a time; if the port is busy, it is kept until
/// it leaves.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    bytes: Vec<u8>,
    /// Which superpacket `bytes` are: the flow, and its first packet number.
    made: Option<(Key, u64)>,
}

/// What a superpacket is made of.
pub(super) struct Material<'a> {
    pub(super) key: Key,
    pub(super) job: &'a Job,
    pub(super) place: Place,
    pub(super) pieces: vec_deque::Iter<'a, Piece>,
    pub(super) blocks: &'a Blocks,
}

impl Datagrams {
    /// Fills in and seals the datagrams of a superpacket, unless that has been done; returns how
    /// many packets it has sealed. `None` if one of their numbers was sealed before and what it was
    /// sealed to is gone: then nothing of the superpacket may leave.
    pub(super) fn make(&mut self, of: Material<'_>, quic: &mut QuicFlow) -> Option<usize> {
        let datagram_bytes = usize::from(of.job.mss);
        let packets = packets(of.job, of.place);
        let made = packets.first().map(|first| (of.key, first.number));
        if made.is_some() && self.made == made {
            return Some(0);
        }
        self.made = None;
        self.bytes.clear();
        self.bytes.reserve(of.place.len);
        let mut pieces = of.pieces;
        for packet in packets {
            let start = self.bytes.len();
            let end = of.place.len.min(start + datagram_bytes);
            while self.bytes.len() < end {
                match *pieces.next()? {
                    Piece::Inline { start, len } => {
                        self.bytes
                            .extend_from_slice(&of.job.inline[start..start + len]);
                    }
                    Piece::Block {
                        block, start, len, ..
                    } => {
                        let bytes = of.blocks.bytes(block);
                        self.bytes.extend_from_slice(&bytes[start..start + len]);
                    }
                    _ => return None,
                }
            }
            let key = quic.seal_with(packet)?;
            let sealed = &mut self.bytes[start + packet.prefix_bytes..end];
            packet::seal(key, packet.number, packet.header_bytes, sealed);
        }
        self.made = made;
        Some(packets.len())
    }

    /// The superpacket that was made last.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The superpacket that was made has left.
    pub(super) fn on_departed(&mut self) {
        self.made = None;
    }
}

/// The packets of a superpacket.
fn packets(job: &Job, place: Place) -> &[JobPacket] {
    let datagram_bytes = usize::from(job.mss);
    let first = place.start / datagram_bytes;
    let count = place.len.div_ceil(datagram_bytes);
    &job.packets[first..first + count]
}
