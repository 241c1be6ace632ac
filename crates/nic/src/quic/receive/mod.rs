//! Packets of QUIC peers: opened, reordered, and handed to the host ([`contract::quic`]).
//!
//! | File | Contents |
//! |---|---|
//! | `commands` | executes QRXKEY, QCID and QRXKEYGONE |
//! | `run` | takes datagrams through all of this, hands packets up, gives up gaps |
//! | `names` | connection IDs and their flows |
//! | `open` | removes header protection, decodes the number, opens the packet |
//! | `number` | packet numbers (RFC 9000 §A.3) |
//! | `receiver` | the receive state of a flow |
//! | `order` | holds packets until those before them arrive |
//! | `held` | the held packets: a ring by number, or a list |
//! | `seen` | packet numbers received |
//! | `acks` | packets with only an ACK that a later one supersedes |
//! | `batch` | packets on their way to the host |
//!
//! A packet that cannot be opened here goes up unchanged, which is no error: the host can open
//! every packet. It decides about long headers, other key phases, tags that do not match and
//! unknown connection IDs.

mod acks;
mod batch;
mod commands;
mod held;
mod names;
mod number;
mod open;
mod order;
mod receiver;
mod run;
mod seen;

use self::names::Names;
use crate::config::Reorder;
use crate::slab::Key;
use crate::timers::Timers;

pub(super) use self::receiver::Receiver;

/// Most bytes of plaintext that a worker keeps, behind gaps or for a host that takes no events.
/// Above it, packets do not wait for gaps, and are dropped if the host takes no events.
const HELD_BYTES_MAX: usize = 16 << 20;

/// A worker's receive state of all flows.
#[derive(Debug)]
pub(crate) struct Receiving {
    names: Names,
    /// When flows give up a gap.
    timers: Timers,
    /// Flows with packets for the host, each once.
    ready: Vec<Key>,
    /// Bytes of plaintext held or ready.
    bytes: usize,
    /// Buffer in which packets are opened.
    scratch: Vec<u8>,
    reorder: Reorder,
}

impl Receiving {
    pub(crate) fn new(reorder: Reorder) -> Receiving {
        Receiving {
            names: Names::default(),
            timers: Timers::default(),
            ready: Vec::new(),
            bytes: 0,
            scratch: Vec::new(),
            reorder,
        }
    }

    /// True if there are packets for the host.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next gap is given up, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.timers.next_us()
    }
}
