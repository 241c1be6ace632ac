//! Departure of superpackets of datagrams.

use std::io::IoSlice;

use netdev::{Port, SendError, Superpacket};

use super::flow::QuicFlow;
use super::output::Material;
use super::retained::parts;
use crate::blocks::Blocks;
use crate::buffer::BLOCK_BYTES;
use crate::engine::{Clock, Engine};
use crate::flow::Piece;
use crate::segment;
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Seals and sends a flow's first superpacket, which must be ready and one of datagrams. False
    /// if the port is busy: the caller must offer the same bytes again.
    #[inline(never)]
    pub(crate) fn send_datagrams(&mut self, key: Key, clock: Clock<'_>) -> bool {
        let Some(flow) = self.flows.get_mut(key) else {
            return true;
        };
        let (Some(planned), Some(job), Some(quic)) =
            (flow.planned.front(), flow.jobs.front(), &mut flow.quic)
        else {
            return true;
        };
        let place = planned.place;
        let material = Material {
            key,
            job,
            place,
            pieces: flow.pieces.range(..planned.pieces),
            blocks: &self.blocks,
        };
        let sealed = self.datagrams.make(material, quic);
        let header = segment::datagrams_header(job, place);
        let outcome = match (sealed, header) {
            (Some(packets), Some(header)) => {
                self.counters.quic_packets_sealed += packets as u64;
                self.port.send(&Superpacket {
                    header: header.bytes(),
                    payload: &[IoSlice::new(self.datagrams.bytes())],
                    offload: header.offload,
                })
            }
            // Neither can happen; a packet that does not leave is lost, and the host's loss
            // detection finds it.
            _ => Err(SendError::Dropped),
        };
        match outcome {
            Err(SendError::WouldBlock) => return false,
            Err(error) => self.counters.on_not_sent(&error),
            Ok(()) => {
                let datagrams = place.len.div_ceil(usize::from(job.mss)) as u64;
                self.counters.superpackets += 1;
                self.counters.packets += datagrams;
                self.counters.datagrams += datagrams;
                self.counters.datagram_bytes += place.len as u64;
                let pieces = flow.pieces.range(..planned.pieces);
                self.counters.file_sent_bytes += file_bytes(pieces);
            }
        }
        self.datagrams.on_departed();
        self.datagrams_departed(key, clock);
        true
    }

    /// A flow's first superpacket, of datagrams, has left: retains its blocks, and reports its
    /// QSEND if it is complete.
    fn datagrams_departed(&mut self, key: Key, clock: Clock<'_>) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        let (Some(planned), Some(quic)) = (flow.planned.pop_front(), &mut flow.quic) else {
            return;
        };
        retain(quic, flow.pieces.drain(..planned.pieces), &mut self.blocks);
        if planned.place.last {
            if let Some(job) = flow.jobs.front() {
                quic.on_job_departed(job);
            }
            self.report_departure(key, clock);
        }
    }
}

fn file_bytes<'a>(pieces: impl Iterator<Item = &'a Piece>) -> u64 {
    let of_files = pieces.map(|piece| match piece {
        Piece::Block { len, .. } => *len as u64,
        _ => 0,
    });
    of_files.sum()
}

/// Pins the blocks of pieces for a flow, and releases them.
pub(super) fn retain(
    quic: &mut QuicFlow,
    pieces: impl Iterator<Item = Piece>,
    blocks: &mut Blocks,
) {
    for piece in pieces {
        let Piece::Block {
            block,
            start,
            len,
            origin,
        } = piece
        else {
            continue;
        };
        if let Some(reference) = blocks.to_pin(block) {
            let number = origin.offset / BLOCK_BYTES as u64;
            quic.retained
                .keep(origin.file, number, parts(start, len), reference, blocks);
        }
        blocks.release(block);
    }
}
