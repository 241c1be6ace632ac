//! What a flow has of packets that arrive.

use std::collections::VecDeque;
use std::fmt;

use contract::FlowId;
use contract::quic::{QuicConnectionId, QuicReceiveKey, QuicReceived};

use super::batch::{Batch, Meta, Path};
use super::open::{OpenKey, Unprotected};
use super::order::{Order, Place};
use crate::config::Reorder;
use crate::timers::NEVER_US;

/// Most connection IDs of a flow: a peer has no more than eight of one that is well-behaved, and
/// those that it does not use any more are not told. What comes under an older one is the host's.
const IDS_MAX: usize = 16;

/// A packet that waits for those before it.
#[derive(Debug)]
struct Waiting {
    meta: Meta,
    plaintext: Box<[u8]>,
}

/// Opens packets of a flow, and hands them on in order.
pub(in crate::quic) struct Receiver {
    key: OpenKey,
    hold_us: u64,
    /// One more than the largest number that was opened.
    next_number: u64,
    order: Order<Waiting>,
    /// Bytes of plaintext that wait for others.
    waiting_bytes: usize,
    /// Of all that waits, and is in `batch`.
    path: Option<Path>,
    batch: Batch,
    ids: VecDeque<QuicConnectionId>,
    /// When a gap is given up.
    pub(super) due_us: u64,
    /// It is in the list of those that have something for the host.
    pub(super) is_ready: bool,
}

/// What became of an authentic packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It goes to the host.
    Passed,
    /// It waits for those before it.
    Held,
}

impl Receiver {
    /// `None` if a key has not the length that the cipher wants.
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

    /// Another key takes the place of the one before. What was opened before was handed on.
    pub(super) fn set_key(&mut self, key: &QuicReceiveKey<'_>) -> Option<()> {
        self.key = OpenKey::new(key)?;
        self.hold_us = key.hold_us.into();
        self.next_number = self.next_number.max(key.next_number);
        // The host has opened what came meanwhile.
        self.order.restart();
        Some(())
    }

    pub(super) fn generation(&self) -> u32 {
        self.key.generation()
    }

    /// Bytes of plaintext that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.waiting_bytes + self.batch.bytes()
    }

    /// True if it has something for the host, and is not in the list of those yet: it is from now
    /// on.
    pub(super) fn becomes_ready(&mut self) -> bool {
        let becomes_ready = !self.batch.is_empty() && !self.is_ready;
        self.is_ready |= becomes_ready;
        becomes_ready
    }

    /// The peer uses this connection ID. Returns one that it does not stand for any more.
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

    /// True if a packet with this number has come.
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

    /// True if a packet with this path does not belong to those that are kept.
    pub(super) fn is_elsewhere(&self, path: &Path) -> bool {
        self.path.as_ref() != Some(path)
    }

    /// Packets have this path from now on; none is kept.
    pub(super) fn set_path(&mut self, path: Path) {
        debug_assert_eq!(self.bytes(), 0);
        self.path = Some(path);
    }

    /// An authentic packet, of the path of those that are kept. `may_wait`: there is room for it.
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

    /// Nothing waits for others any more.
    pub(super) fn release(&mut self) {
        let (batch, waiting_bytes) = (&mut self.batch, &mut self.waiting_bytes);
        self.order.release_all(|number, waiting| {
            hand_on(batch, waiting_bytes, number, &waiting);
        });
        self.set_timer();
    }

    /// Gives up gaps whose time is over: how many.
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

    /// Takes what is for the host; returns how many ACK frames were left out.
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

/// Without keys.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("generation", &self.generation())
            .field("next_number", &self.next_number)
            .finish_non_exhaustive()
    }
}
