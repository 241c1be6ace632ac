//! Parcels out: numbered, kept until they are acknowledged, and sent again when they are lost.
//!
//! A parcel counts as lost when frames that left well after it have arrived, or when nothing has
//! been acknowledged for a while. Then it leaves again, in a frame of another number.

use std::fmt;

use zerocopy::IntoBytes;
use zeroize::Zeroizing;

use super::WINDOW;
use super::rtt::Rtt;
use super::stream::{LABEL_BYTES, LABELLED_BYTES_MAX, Label, wipe};

/// A frame is lost if one that left this many frames later has arrived (as in RFC 9002 §6.1.1).
const REORDERING_FRAMES: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never sent.
    Fresh,
    Flying,
    Lost,
    Acknowledged,
}

struct Slot {
    bytes: Zeroizing<Vec<u8>>,
    state: State,
    /// The frame that it left in last.
    frame: u64,
}

/// The other side's report of received parcels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    /// All parcels below.
    pub(super) expected: u64,
    /// Bit `i` of word `w`: parcel `expected + 1 + 64 w + i`.
    pub(super) received: [u64; WINDOW / 64],
    /// Its credit: it accepts parcels below this.
    pub(super) credit: u64,
    /// The highest number of a frame.
    pub(super) largest: u64,
}

/// There is no room now; the record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The sending half of a session.
///
/// `una` ≤ `next` ≤ `tail` < `una + WINDOW`, and all parcels below `next` have left at least once.
/// The one at `tail` is being filled.
#[derive(Debug)]
pub(super) struct Sender {
    slots: Box<[Slot]>,
    parcel_bytes_max: usize,
    /// The lowest parcel that is not acknowledged.
    una: u64,
    /// The lowest parcel that has not left.
    next: u64,
    tail: u64,
    credit: u64,
    /// Parcels in state `Lost`.
    lost: usize,
    /// Start of the time without acknowledgments or credit while some is needed.
    waiting_since_us: Option<u64>,
    /// Parcels that left again.
    pub(super) repeated: u64,
}

impl Sender {
    pub(super) fn new(parcel_bytes_max: usize) -> Sender {
        let slot = || Slot {
            bytes: Vec::with_capacity(parcel_bytes_max).into(),
            state: State::Fresh,
            frame: 0,
        };
        Sender {
            slots: std::iter::repeat_with(slot).take(WINDOW).collect(),
            parcel_bytes_max,
            una: 0,
            next: 0,
            tail: 0,
            credit: WINDOW as u64,
            lost: 0,
            waiting_since_us: None,
            repeated: 0,
        }
    }

    /// True if any record fits.
    pub(super) fn has_room(&self) -> bool {
        self.room_bytes() >= LABELLED_BYTES_MAX
    }

    /// Takes a record. It leaves with [`Sender::depart`].
    pub(super) fn push(&mut self, worker: u16, record: &[u8]) -> Result<(), Full> {
        if self.room_bytes() < LABEL_BYTES + record.len() {
            return Err(Full);
        }
        let label = Label {
            bytes: (record.len() as u16).into(),
            worker: worker.into(),
        };
        self.fill(label.as_bytes());
        self.fill(record);
        Ok(())
    }

    /// Returns the parcel that is to leave now, in the frame of this number.
    pub(super) fn depart(&mut self, now_us: u64, frame: u64) -> Option<(u64, &[u8])> {
        let parcel = match self.first_lost() {
            Some(parcel) => {
                self.lost -= 1;
                self.repeated += 1;
                parcel
            }
            None if self.has_fresh() && self.next < self.credit => {
                if self.next == self.tail {
                    self.tail += 1;
                }
                self.next += 1;
                self.next - 1
            }
            None => {
                if self.has_fresh() {
                    self.waiting_since_us.get_or_insert(now_us);
                }
                return None;
            }
        };
        self.waiting_since_us.get_or_insert(now_us);
        let slot = self.slot_mut(parcel);
        slot.state = State::Flying;
        slot.frame = frame;
        Some((parcel, &slot.bytes))
    }

    /// Takes in a receipt. An error is the rule that the peer has broken.
    pub(super) fn on_receipt(
        &mut self,
        now_us: u64,
        receipt: &Receipt,
        rtt: &mut Rtt,
    ) -> Result<(), &'static str> {
        if receipt.expected > self.next {
            return Err("the peer acknowledges what was not sent");
        }
        // Frames overtake each other: an old receipt changes nothing.
        let mut progress = receipt.credit > self.credit && self.has_fresh();
        self.credit = self.credit.max(receipt.credit);
        for parcel in self.una..receipt.expected {
            progress |= self.acknowledge(parcel);
        }
        for (word, first) in receipt
            .received
            .into_iter()
            .zip((receipt.expected.saturating_add(1)..).step_by(64))
        {
            let mut bits = word;
            while bits != 0 {
                let parcel = first.saturating_add(bits.trailing_zeros().into());
                if parcel >= self.next {
                    return Err("the peer acknowledges what was not sent");
                }
                progress |= parcel >= self.una && self.acknowledge(parcel);
                bits &= bits - 1;
            }
        }
        while self.una < self.next && self.slot(self.una).state == State::Acknowledged {
            let una = self.una;
            let slot = self.slot_mut(una);
            wipe(&mut slot.bytes);
            slot.state = State::Fresh;
            self.una += 1;
        }
        for parcel in self.una..self.next {
            let slot = self.slot(parcel);
            if slot.state == State::Flying
                && slot.frame.saturating_add(REORDERING_FRAMES) <= receipt.largest
            {
                self.slot_mut(parcel).state = State::Lost;
                self.lost += 1;
            }
        }
        if progress {
            rtt.on_progress();
            self.waiting_since_us = (self.una < self.next || self.has_fresh()).then_some(now_us);
        }
        Ok(())
    }

    /// When to call [`Sender::on_timeout`].
    pub(super) fn deadline_us(&self, rtt: &Rtt) -> Option<u64> {
        self.waiting_since_us
            .map(|since_us| since_us.saturating_add(rtt.timeout_us()))
    }

    /// Nothing was acknowledged for too long: the oldest parcel counts as lost, and the receipt for
    /// its repetition covers the others. True if no parcel is in flight, and only credit is
    /// missing: then the other side must be asked.
    pub(super) fn on_timeout(&mut self, now_us: u64, rtt: &mut Rtt) -> bool {
        rtt.on_timeout();
        self.waiting_since_us = Some(now_us);
        if self.una == self.next {
            return self.has_fresh();
        }
        let una = self.una;
        if self.slot(una).state == State::Flying {
            self.slot_mut(una).state = State::Lost;
            self.lost += 1;
        }
        false
    }

    /// Parcels that have left and are not acknowledged, or wait.
    pub(super) fn is_empty(&self) -> bool {
        self.una == self.next && !self.has_fresh()
    }

    fn has_fresh(&self) -> bool {
        self.next < self.tail
            || (self.tail < self.una + WINDOW as u64 && !self.slot(self.tail).bytes.is_empty())
    }

    fn room_bytes(&self) -> usize {
        let slots = WINDOW - (self.tail - self.una) as usize;
        match slots {
            0 => 0,
            _ => slots * self.parcel_bytes_max - self.slot(self.tail).bytes.len(),
        }
    }

    fn fill(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (tail, bytes_max) = (self.tail, self.parcel_bytes_max);
            let parcel = &mut self.slot_mut(tail).bytes;
            let some = bytes.len().min(bytes_max - parcel.len());
            parcel.extend_from_slice(&bytes[..some]);
            if parcel.len() == bytes_max {
                self.tail += 1;
            }
            bytes = &bytes[some..];
        }
    }

    fn first_lost(&self) -> Option<u64> {
        match self.lost {
            0 => None,
            _ => (self.una..self.next).find(|parcel| self.slot(*parcel).state == State::Lost),
        }
    }

    /// Returns false if the parcel was acknowledged before.
    fn acknowledge(&mut self, parcel: u64) -> bool {
        let slot = self.slot_mut(parcel);
        let before = std::mem::replace(&mut slot.state, State::Acknowledged);
        self.lost -= usize::from(before == State::Lost);
        before != State::Acknowledged
    }

    #[cfg(test)]
    pub(super) fn buffer(&self, parcel: u64) -> &[u8] {
        &self.slot(parcel).bytes
    }

    fn slot(&self, parcel: u64) -> &Slot {
        &self.slots[parcel as usize % WINDOW]
    }

    fn slot_mut(&mut self, parcel: u64) -> &mut Slot {
        &mut self.slots[parcel as usize % WINDOW]
    }
}

/// Without its content, which may be a key.
impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("bytes", &self.bytes.len())
            .field("state", &self.state)
            .field("frame", &self.frame)
            .finish()
    }
}
