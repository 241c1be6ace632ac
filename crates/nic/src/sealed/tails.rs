//! Sealed records of which only the beginning has left: the rest need not be sealed again.
//!
//! The window of a flow seldom ends where a record does. There are fewer places than flows; the
//! flow whose place has been unused longest loses it (second chance), and seals once more.

use contract::tls::Suite;

use crate::slab::Key;

/// Most places of a worker, which are taken as they are needed: 67 MB.
const SLOTS: usize = 4096;

/// Identifies a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailSlot(usize);

#[derive(Debug)]
struct Tail {
    /// The flow, and the record's offset in its stream.
    of: Option<(Key, u64)>,
    /// It has been used since the hand last came by.
    used: bool,
    bytes: Box<[u8]>,
}

/// The places.
#[derive(Debug)]
pub(crate) struct Tails {
    tails: Vec<Tail>,
    /// Places that hold nothing.
    vacant: Vec<TailSlot>,
    hand: usize,
}

impl Tails {
    pub(super) fn new() -> Tails {
        Tails {
            tails: Vec::new(),
            vacant: Vec::new(),
            hand: 0,
        }
    }

    /// True if the place still holds this record.
    pub(super) fn holds(&mut self, slot: TailSlot, flow: Key, stream_offset: u64) -> bool {
        let tail = &mut self.tails[slot.0];
        let holds = tail.of == Some((flow, stream_offset));
        tail.used |= holds;
        holds
    }

    /// Returns a place for a record, but not that of `kept`.
    pub(super) fn take(
        &mut self,
        flow: Key,
        stream_offset: u64,
        kept: Option<TailSlot>,
    ) -> TailSlot {
        let slot = self.vacate(kept);
        let tail = &mut self.tails[slot.0];
        tail.of = Some((flow, stream_offset));
        tail.used = true;
        slot
    }

    fn vacate(&mut self, kept: Option<TailSlot>) -> TailSlot {
        if let Some(slot) = self.vacant.pop() {
            return slot;
        }
        if self.tails.len() < SLOTS {
            self.tails.push(Tail {
                of: None,
                used: false,
                bytes: vec![0; Suite::RECORD_BYTES_MAX].into_boxed_slice(),
            });
            return TailSlot(self.tails.len() - 1);
        }
        loop {
            let slot = TailSlot(self.hand);
            self.hand = (self.hand + 1) % SLOTS;
            let tail = &mut self.tails[slot.0];
            if Some(slot) != kept && !std::mem::take(&mut tail.used) {
                return slot;
            }
        }
    }

    /// Frees the place, if it still holds a record of this flow.
    pub(super) fn release(&mut self, slot: TailSlot, flow: Key) {
        let tail = &mut self.tails[slot.0];
        if tail.of.is_some_and(|(owner, _)| owner == flow) {
            tail.of = None;
            self.vacant.push(slot);
        }
    }

    pub(super) fn bytes(&self, slot: TailSlot) -> &[u8] {
        &self.tails[slot.0].bytes
    }

    pub(super) fn bytes_mut(&mut self, slot: TailSlot) -> &mut [u8] {
        &mut self.tails[slot.0].bytes
    }
}
