//! A superpacket of sealed datagrams: filled in and sealed from blocks.

use std::collections::vec_deque;
use std::mem;

use contract::tls::TAG_BYTES;

use super::flow::QuicFlow;
use super::packet;
use crate::blocks::Blocks;
use crate::flow::Piece;
use crate::job::{Job, JobPacket, JobSegment};
use crate::segment::Place;
use crate::slab::Key;

/// Builds superpackets of datagrams, one at a time; if the port is busy, it keeps the superpacket
/// until it leaves.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// As long as the longest superpacket so far: bytes after `len` are left over from an earlier
    /// one.
    bytes: Vec<u8>,
    len: usize,
    /// The superpacket in `bytes`: its flow and first packet number.
    made: Option<(Key, u64)>,
}

/// The input of a superpacket.
pub(super) struct Material<'a> {
    pub(super) key: Key,
    pub(super) job: &'a Job,
    pub(super) place: Place,
    /// Its pieces of files, in order.
    pub(super) pieces: vec_deque::Iter<'a, Piece>,
    pub(super) blocks: &'a Blocks,
}

impl Datagrams {
    /// Fills in and seals the datagrams of a superpacket, unless already done; returns how many
    /// packets it sealed. `None` if a number was sealed before and its sealed bytes are gone, or
    /// the datagrams differ from their planned length: then nothing of the superpacket may leave.
    pub(super) fn make(&mut self, of: Material<'_>, quic: &mut QuicFlow) -> Option<usize> {
        let packets = packets(of.job, of.place);
        let made = packets.first().map(|first| (of.key, first.number));
        if made.is_some() && self.made == made {
            return Some(0);
        }
        self.made = None;
        self.len = of.place.len;
        if self.bytes.len() < self.len {
            self.bytes.resize(self.len, 0);
        }
        let mut file = FileBytes {
            pieces: of.pieces,
            blocks: of.blocks,
            rest: &[],
        };
        let datagrams = self.bytes[..self.len].chunks_mut(of.job.mss.into());
        for (packet, datagram) in packets.iter().zip(datagrams) {
            let tail = fill(of.job, packet, &mut file, datagram)?;
            let key = quic.seal_with(packet)?;
            let packet_bytes = &mut datagram[packet.prefix_bytes..];
            packet::seal(key, packet.number, packet.header_bytes, packet_bytes, tail);
        }
        self.made = made;
        Some(packets.len())
    }

    /// The last superpacket built.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The superpacket has left.
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

/// Writes the plaintext of a datagram, except the contiguous file bytes at its end, which sealing
/// copies. `None` if the length does not match.
fn fill<'a>(
    job: &Job,
    packet: &JobPacket,
    file: &mut FileBytes<'a>,
    datagram: &mut [u8],
) -> Option<&'a [u8]> {
    let mut filled = 0;
    let mut put = |bytes: &[u8]| {
        let room = datagram[filled..].get_mut(..bytes.len())?;
        room.copy_from_slice(bytes);
        filled += bytes.len();
        Some(())
    };
    let mut tail: &[u8] = &[];
    for segment in &job.segments[packet.segments.clone()] {
        match *segment {
            JobSegment::Inline { start, len } => {
                put(mem::take(&mut tail))?;
                put(&job.inline[start..start + len])?;
            }
            JobSegment::File { len, .. } => {
                let mut left = len;
                while left > 0 {
                    put(mem::take(&mut tail))?;
                    tail = file.next(left)?;
                    left -= tail.len();
                }
            }
            JobSegment::Sealed { .. } => return None,
        }
    }
    (filled + tail.len() + TAG_BYTES == datagram.len()).then_some(tail)
}

/// The file bytes of a superpacket.
struct FileBytes<'a> {
    pieces: vec_deque::Iter<'a, Piece>,
    blocks: &'a Blocks,
    /// The unused rest of the last piece.
    rest: &'a [u8],
}

impl<'a> FileBytes<'a> {
    /// The next contiguous bytes, at most `len`. `None` if none are left.
    fn next(&mut self, len: usize) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            let &Piece::Block {
                block, start, len, ..
            } = self.pieces.next()?
            else {
                return None;
            };
            self.rest = &self.blocks.bytes(block)[start..start + len];
        }
        self.rest.split_off(..len.min(self.rest.len()))
    }
}
