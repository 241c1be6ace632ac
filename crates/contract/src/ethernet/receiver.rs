//! Parcels in: every one once and in order, and credit for more.
//!
//! Credit is the free capacity: a parcel within it never finds its place taken. It grows when
//! records are taken out, so that a side which cannot process them holds the other back.

use std::fmt;

use zeroize::Zeroizing;

use super::WINDOW;
use super::sender::Receipt;
use super::stream::{Assembly, wipe};

/// Growth of the credit that is worth a frame of its own.
const CREDIT_STEP: u64 = WINDOW as u64 / 2;

/// The receiving half of a session.
///
/// `read` ≤ `expected` ≤ `beyond` ≤ `read + WINDOW`.
pub(super) struct Receiver {
    /// Flags of the parcels received from `read` on; parcel `n` is at `n % WINDOW`, here and below.
    arrived: Box<[bool]>,
    parcels: Box<[Zeroizing<Vec<u8>>]>,
    /// The parcel that records are taken from, and the number of its bytes taken.
    read: u64,
    read_bytes: usize,
    /// All lower parcels have arrived.
    expected: u64,
    /// No parcel from here on has arrived.
    beyond: u64,
    /// The credit in the last receipt.
    told: u64,
    /// A parcel has arrived since the last receipt.
    receipt_is_due: bool,
    assembly: Assembly,
    /// Parcels received again.
    pub(super) duplicates: u64,
}

impl Receiver {
    pub(super) fn new(parcel_bytes_max: usize) -> Receiver {
        Receiver {
            arrived: vec![false; WINDOW].into(),
            parcels: std::iter::repeat_with(|| Vec::with_capacity(parcel_bytes_max).into())
                .take(WINDOW)
                .collect(),
            read: 0,
            read_bytes: 0,
            expected: 0,
            beyond: 0,
            told: WINDOW as u64,
            receipt_is_due: false,
            assembly: Assembly::new(),
            duplicates: 0,
        }
    }

    /// Takes in a parcel. An error is the rule that the peer has broken.
    pub(super) fn on_parcel(&mut self, parcel: u64, bytes: &[u8]) -> Result<(), &'static str> {
        if parcel >= self.credit() {
            return Err("the peer sends more than there is credit for");
        }
        self.receipt_is_due = true;
        let slot = parcel as usize % WINDOW;
        if parcel < self.expected || self.arrived[slot] {
            self.duplicates += 1;
            return Ok(());
        }
        self.arrived[slot] = true;
        self.parcels[slot].extend_from_slice(bytes);
        self.beyond = self.beyond.max(parcel + 1);
        while self.expected < self.beyond && self.arrived[self.expected as usize % WINDOW] {
            self.expected += 1;
        }
        Ok(())
    }

    /// Puts the next record together as far as it has come. An error is the rule that the peer has
    /// broken.
    pub(super) fn assemble(&mut self) -> Result<(), &'static str> {
        loop {
            let rest = if self.read < self.expected {
                self.parcels[self.read as usize % WINDOW]
                    .get(self.read_bytes..)
                    .unwrap_or_default()
            } else {
                &[]
            };
            self.read_bytes += self.assembly.take(rest)?;
            if self.assembly.record().is_some() || self.read == self.expected {
                return Ok(());
            }
            // All of the parcel is taken, or the record would be whole.
            let slot = self.read as usize % WINDOW;
            self.arrived[slot] = false;
            wipe(&mut self.parcels[slot]);
            self.read += 1;
            self.read_bytes = 0;
        }
    }

    /// The record that was assembled, with its worker, if it is whole.
    pub(super) fn record(&mut self) -> Option<(u16, &mut [u8])> {
        self.assembly.record()
    }

    /// Releases the record.
    pub(super) fn consume(&mut self) {
        self.assembly.clear();
    }

    /// True if the other side soon needs a receipt, for parcels or for credit.
    pub(super) fn is_receipt_due(&self) -> bool {
        self.receipt_is_due || self.credit() - self.told >= CREDIT_STEP
    }

    /// Makes the receipt for the next frame.
    pub(super) fn receipt(&mut self, largest: u64) -> Receipt {
        self.receipt_is_due = false;
        self.told = self.credit();
        let mut received = [0; WINDOW / 64];
        for parcel in self.expected + 1..self.beyond {
            let bit = (parcel - self.expected - 1) as usize;
            received[bit / 64] |= u64::from(self.arrived[parcel as usize % WINDOW]) << (bit % 64);
        }
        Receipt {
            expected: self.expected,
            received,
            credit: self.credit(),
            largest,
        }
    }

    #[cfg(test)]
    pub(super) fn buffer(&self, parcel: u64) -> &[u8] {
        &self.parcels[parcel as usize % WINDOW]
    }

    #[cfg(test)]
    pub(super) fn record_buffer(&self) -> &[u8] {
        self.assembly.buffer()
    }

    fn credit(&self) -> u64 {
        self.read + WINDOW as u64
    }
}

/// Omits the content of parcels, which may be a key.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("read", &self.read)
            .field("expected", &self.expected)
            .field("beyond", &self.beyond)
            .field("duplicates", &self.duplicates)
            .finish_non_exhaustive()
    }
}
