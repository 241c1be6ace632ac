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

/// Makes superpackets of datagrams. There is one at a time; if the port is busy, it is kept until
/// it leaves.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// As many as the longest one had: behind `len` is what an earlier one has left.
    bytes: Vec<u8>,
    len: usize,
    /// Which superpacket it is: the flow, and its first packet number.
    made: Option<(Key, u64)>,
}

/// What a superpacket is made of.
pub(super) struct Material<'a> {
    pub(super) key: Key,
    pub(super) job: &'a Job,
    pub(super) place: Place,
    /// All that it has of files, in order.
    pub(super) pieces: vec_deque::Iter<'a, Piece>,
    pub(super) blocks: &'a Blocks,
}

impl Datagrams {
    /// Fills in and seals the datagrams of a superpacket, unless that has been done; returns how
    /// many packets it has sealed. `None` if one of their numbers was sealed before and what it was
    /// sealed to is gone, or they are not as long as they were planned: then nothing of the
    /// superpacket may leave.
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

    /// The superpacket that was made last.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
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

/// Writes what is in the clear to a datagram, but for the bytes of the file that it ends with, as
/// far as they lie in one place: sealing copies these. `None` if that is not what it has room for.
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

/// What a superpacket has of files.
struct FileBytes<'a> {
    pieces: vec_deque::Iter<'a, Piece>,
    blocks: &'a Blocks,
    /// Of the last piece, what has not been used.
    rest: &'a [u8],
}

impl<'a> FileBytes<'a> {
    /// The next bytes, at most `len`: as many as lie in one place. `None` if there are none.
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
