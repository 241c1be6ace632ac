//! The receive state of a flow.

use std::collections::VecDeque;
use std::fmt;

use contract::FlowId;
use contract::quic::{QuicConnectionId, QuicReceiveKey, QuicReceived};

use super::batch::{Batch, Meta, Path};
use super::open::{OpenKey, Unprotected};
use super::order::{Order, Place};
use crate::config::Reorder;
use crate::timers::NEVER_US;

/// Most connection IDs of a flow. A well-behaved peer has at most eight of one, and does not
/// announce which it has retired. Packets under older ones go to the host.
const IDS_MAX: usize = 16;

/// A packet held behind a gap.
#[derive(Debug)]
struct Waiting {
    meta: Meta,
    plaintext: Box<[u8]>,
}

/// Opens the packets of a flow, and hands them on in order.
pub(in crate::quic) struct Receiver {
    key: OpenKey,
    hold_us: u64,
    /// One more than the largest number opened.
    next_number: u64,
    order: Order<Waiting>,
    /// Bytes of plaintext held.
    waiting_bytes: usize,
    /// The path of all packets held or in `batch`.
    path: Option<Path>,
    batch: Batch,
    ids: VecDeque<QuicConnectionId>,
    /// When the next gap is given up.
    pub(super) due_us: u64,
    /// In the list of flows with packets for the host.
    pub(super) is_ready: bool,
}

/// The fate of an authentic packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It goes to the host.
    Passed,
    /// It is held behind a gap.
    Held,
}

impl Receiver {
    /// `None` if a key's length does not suit the cipher.
    pub(super) fn new(key: &QuicReceiveKey<'_>, reorder: Reorder) -> Option<Receiver> {
        Some(Receiver {
            key: OpenKey::new(key)?,
            hold_us: key.hold_us.into(),
            next_number: key.next_number,
            order: Order::new(reorder),
            waiting_bytes: 0,
            path: None,
            batch: Batch::default(),
            ids: VecDeque::new(),
            due_us: NEVER_US,
            is_ready: false,
        })
    }

    /// Replaces the key. Packets opened with the last one must have been handed on.
    pub(super) fn set_key(&mut self, key: &QuicReceiveKey<'_>) -> Option<()> {
        self.key = OpenKey::new(key)?;
        self.hold_us = key.hold_us.into();
        self.next_number = self.next_number.max(key.next_number);
        // The host has opened those in between.
        self.order.restart();
        Some(())
    }

    pub(super) fn generation(&self) -> u32 {
        self.key.generation()
    }

    /// Bytes of plaintext kept.
    pub(super) fn bytes(&self) -> usize {
        self.waiting_bytes + self.batch.bytes()
    }

    /// True if it has packets for the host and is not listed yet; the caller lists it.
    pub(super) fn becomes_ready(&mut self) -> bool {
        let becomes_ready = !self.batch.is_empty() && !self.is_ready;
        self.is_ready |= becomes_ready;
        becomes_ready
    }

    /// Adds a connection ID of the peer. Returns an older one that it displaces.
    pub(super) fn add_id(&mut self, id: QuicConnectionId) -> Option<QuicConnectionId> {
        self.ids.push_back(id);
        if self.ids.len() > IDS_MAX {
            self.ids.pop_front()
        } else {
            None
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &QuicConnectionId> {
        self.ids.iter()
    }

    /// See [`OpenKey::unprotect`].
    pub(super) fn unprotect(&self, packet: &[u8], id_bytes: usize) -> Option<Unprotected> {
        self.key.unprotect(packet, id_bytes, self.next_number)
    }

    /// True if a packet with this number has arrived.
    pub(super) fn has_seen(&self, number: u64) -> bool {
        self.order.has_seen(number)
    }

    /// See [`OpenKey::open`].
    pub(super) fn open<'a>(
        &self,
        unprotected: &Unprotected,
        scratch: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        self.key.open(unprotected, scratch)
    }

    /// True if packets of another path are kept.
    pub(super) fn is_elsewhere(&self, path: &Path) -> bool {
        self.path.as_ref() != Some(path)
    }

    /// Changes the path; no packets are kept.
    pub(super) fn set_path(&mut self, path: Path) {
        debug_assert_eq!(self.bytes(), 0);
        self.path = Some(path);
    }

    /// Takes an authentic packet of the current path. `may_wait`: there is room to hold it.
    pub(super) fn accept(
        &mut self,
        number: u64,
        meta: Meta,
        plaintext: &[u8],
        may_wait: bool,
    ) -> Accepted {
        self.next_number = self.next_number.max(number + 1);
        let place = self.order.place(number);
        if place == Place::Held && may_wait {
            self.waiting_bytes += plaintext.len();
            let plaintext = plaintext.into();
            self.order.hold(number, Waiting { meta, plaintext });
            self.set_timer();
            return Accepted::Held;
        }
        if place != Place::Now {
            self.release();
        }
        self.batch.push(number, meta, plaintext);
        let (batch, waiting_bytes) = (&mut self.batch, &mut self.waiting_bytes);
        self.order.pass(number, |number, waiting| {
            hand_on(batch, waiting_bytes, number, &waiting);
        });
        self.set_timer();
        Accepted::Passed
    }

    /// Releases all held packets.
    pub(super) fn release(&mut self) {
        let (batch, waiting_bytes) = (&mut self.batch, &mut self.waiting_bytes);
        self.order.release_all(|number, waiting| {
            hand_on(batch, waiting_bytes, number, &waiting);
        });
        self.set_timer();
    }

    /// Gives up gaps that have timed out; returns how many.
    pub(super) fn give_up(&mut self, now_us: u64) -> u64 {
        let mut gaps = 0;
        while self.due_us <= now_us {
            let (batch, waiting_bytes) = (&mut self.batch, &mut self.waiting_bytes);
            self.order.skip_gap(|number, waiting| {
                hand_on(batch, waiting_bytes, number, &waiting);
            });
            gaps += 1;
            self.set_timer();
        }
        gaps
    }

    fn set_timer(&mut self) {
        let first = self.order.first_held();
        self.due_us = first.map_or(NEVER_US, |first| first.meta.arrived_us + self.hold_us);
    }

    /// Takes the packets for the host; returns how many ACK frames were left out.
    pub(super) fn take_batch(&mut self, flow: FlowId, hand_up: impl FnMut(QuicReceived)) -> u64 {
        match &self.path {
            Some(path) => self.batch.take(flow, path, hand_up),
            None => 0,
        }
    }
}

fn hand_on(batch: &mut Batch, waiting_bytes: &mut usize, number: u64, waiting: &Waiting) {
    *waiting_bytes -= waiting.plaintext.len();
    batch.push(number, waiting.meta, &waiting.plaintext);
}

/// Omits keys.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("generation", &self.generation())
            .field("next_number", &self.next_number)
            .finish_non_exhaustive()
    }
}
