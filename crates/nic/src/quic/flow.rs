//! QUIC state of a flow.

use contract::RejectReason;
use contract::quic::{QuicKey, QuicPacket};

use super::close::LastDatagram;
use super::keys::{Keys, PacketKey};
use super::packet;
use super::receive::Receiver;
use super::retained::Retained;
use crate::blocks::Blocks;
use crate::job::{Job, JobPacket};

/// Keys, packet numbers and pinned blocks of a flow.
#[derive(Debug, Default)]
pub(crate) struct QuicFlow {
    keys: Keys,
    /// All lower packet numbers are accepted or skipped.
    next_number: u64,
    /// All lower packet numbers are sealed or skipped.
    next_sealed: u64,
    /// Destination of the last datagram.
    last: Option<Box<LastDatagram>>,
    /// Blocks prepared or sent, and not released.
    pub(super) retained: Retained,
    /// From QRXKEY to QRXKEYGONE.
    pub(super) receiver: Option<Box<Receiver>>,
}

impl QuicFlow {
    /// The number of keys.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// QKEY.
    pub(super) fn install(&mut self, key: &QuicKey<'_>) -> Result<(), RejectReason> {
        self.keys.install(key)
    }

    /// QKEYGONE. An unknown key counts as gone.
    pub(super) fn let_go(&mut self, generation: u32) {
        self.keys.let_go(generation);
    }

    /// Checks that packets may be accepted: their keys are present, and no number is taken or below
    /// the floor of its key.
    pub(super) fn check(&self, packets: &[QuicPacket<'_>]) -> Result<(), RejectReason> {
        let mut next_number = self.next_number;
        for packet in packets {
            let floor = self.keys.floor(packet.generation);
            let floor = floor.ok_or(RejectReason::UnknownKey)?;
            if packet.number < floor.max(next_number) {
                return Err(RejectReason::NumberReused);
            }
            next_number = packet.number + 1;
        }
        Ok(())
    }

    /// Accepts packets: their numbers are taken for good, and their keys stay until
    /// [`QuicFlow::retire`].
    pub(super) fn accept(&mut self, packets: &[JobPacket]) {
        for packets in of_each_key(packets) {
            self.keys.acquire(packets[0].generation, packets.len());
        }
        if let Some(last) = packets.last() {
            self.next_number = last.number + 1;
        }
    }

    /// The key for sealing an accepted packet now. `None` if its number, or a higher one, was
    /// sealed before.
    pub(super) fn seal_with(&mut self, packet: &JobPacket) -> Option<&PacketKey> {
        if packet.number < self.next_sealed {
            return None;
        }
        let key = self.keys.get(packet.generation)?;
        self.next_sealed = packet.number + 1;
        Some(key)
    }

    /// All of a QSEND has departed.
    pub(super) fn on_job_departed(&mut self, job: &Job) {
        if let Some(now) = LastDatagram::of(job) {
            match &mut self.last {
                Some(last) => **last = now,
                None => self.last = Some(Box::new(now)),
            }
        }
    }

    /// A sealed packet that closes the connection, the last of the flow, and where it goes. `None`
    /// if nothing has departed, or there is no key.
    pub(crate) fn close(&mut self) -> Option<(&LastDatagram, Vec<u8>)> {
        let last = self.last.as_deref()?;
        let mut close = last.close(self.next_number)?;
        let key = self.keys.get(close.generation)?;
        if close.number < self.next_sealed {
            return None;
        }
        self.next_sealed = close.number + 1;
        self.next_number = self.next_sealed;
        let packet = &mut close.packet;
        packet::seal(key, close.number, close.header_bytes, packet, &[]);
        Some((last, close.packet))
    }

    /// Accepted packets have left, or never will.
    pub(crate) fn retire(&mut self, packets: &[JobPacket]) {
        for packets in of_each_key(packets) {
            self.keys.release(packets[0].generation, packets.len());
        }
    }

    /// The flow is over: removes all keys, and unpins all blocks.
    pub(super) fn clear(&mut self, blocks: &mut Blocks) {
        self.keys.clear();
        self.retained.clear(blocks);
    }
}

/// Splits packets into runs of the same key.
fn of_each_key(packets: &[JobPacket]) -> impl Iterator<Item = &[JobPacket]> {
    packets.chunk_by(|one, next| one.generation == next.generation)
}
