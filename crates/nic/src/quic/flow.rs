//! What a flow has of QUIC.

use contract::RejectReason;
use contract::quic::{QuicKey, QuicPacket};

use super::keys::{Keys, PacketKey};
use super::receive::Receiver;
use super::retained::Retained;
use crate::blocks::Blocks;
use crate::job::JobPacket;

/// Keys, packet numbers and pinned blocks of a flow.
#[derive(Debug, Default)]
pub(crate) struct QuicFlow {
    keys: Keys,
    /// All packet numbers below are accepted or passed over.
    next_number: u64,
    /// All packet numbers below are sealed or passed over.
    next_sealed: u64,
    /// Blocks that were prepared or sent, and not released.
    pub(super) retained: Retained,
    /// From QRXKEY to QRXKEYGONE.
    pub(super) receiver: Option<Box<Receiver>>,
}

impl QuicFlow {
    /// How many keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// QKEY.
    pub(super) fn install(&mut self, key: &QuicKey<'_>) -> Result<(), RejectReason> {
        self.keys.install(key)
    }

    /// QKEYGONE. A key that is not there is gone.
    pub(super) fn let_go(&mut self, generation: u32) {
        self.keys.let_go(generation);
    }

    /// Whether packets may be accepted: their keys are there, and none of their numbers is spoken
    /// for, or below the floor of its key.
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

    /// Packets are accepted: their numbers are spoken for, whatever becomes of them, and their keys
    /// stay until [`QuicFlow::retire`].
    pub(super) fn accept(&mut self, packets: &[JobPacket]) {
        for packets in of_each_key(packets) {
            self.keys.acquire(packets[0].generation, packets.len());
        }
        if let Some(last) = packets.last() {
            self.next_number = last.number + 1;
        }
    }

    /// The key of a packet that was accepted and is sealed now. `None` if its number, or a higher
    /// one, was sealed before.
    pub(super) fn seal_with(&mut self, packet: &JobPacket) -> Option<&PacketKey> {
        if packet.number < self.next_sealed {
            return None;
        }
        let key = self.keys.get(packet.generation)?;
        self.next_sealed = packet.number + 1;
        Some(key)
    }

    /// Packets that were accepted have left, or never will.
    pub(crate) fn retire(&mut self, packets: &[JobPacket]) {
        for packets in of_each_key(packets) {
            self.keys.release(packets[0].generation, packets.len());
        }
    }

    /// Removes all keys, and pins nothing any more: the flow is over.
    pub(super) fn clear(&mut self, blocks: &mut Blocks) {
        self.keys.clear();
        self.retained.clear(blocks);
    }
}

/// Packets of one key that follow each other, in turn.
fn of_each_key(packets: &[JobPacket]) -> impl Iterator<Item = &[JobPacket]> {
    packets.chunk_by(|one, next| one.generation == next.generation)
}
