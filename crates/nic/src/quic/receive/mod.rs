//! Packets that peers of QUIC connections send: opened, put in order, and handed to the host
//! ([`contract::quic`]).
//!
//! | File | What it holds |
//! |---|---|
//! | `commands` | QRXKEY, QCID and QRXKEYGONE are carried out |
//! | `run` | a datagram goes through all of this; what is ready goes up, what is late is given up |
//! | `names` | connection IDs, and whose they are |
//! | `open` | header protection is removed, the number decoded, the packet opened |
//! | `number` | packet numbers (RFC 9000 §A.3) |
//! | `receiver` | what a flow has of all this |
//! | `order` | packets wait for those before them |
//! | `held` | where they wait: a ring by number, or a list |
//! | `seen` | which numbers have come |
//! | `acks` | packets that say nothing which one behind them does not say |
//! | `batch` | packets on their way to the host |
//!
//! Whatever cannot be opened here goes up as it came, and is no error: the host opens all that it
//! gets. Long headers, another key phase, a tag that does not fit, a connection ID that is not
//! known: the host decides what they are.

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

/// Most bytes of plaintext that a worker holds, behind gaps or for a host that takes no events:
/// what comes then waits for nothing, and if the host takes nothing, it is dropped.
const HELD_BYTES_MAX: usize = 16 << 20;

/// What a worker has of packets that arrive for flows.
#[derive(Debug)]
pub(crate) struct Receiving {
    names: Names,
    /// When a flow gives up waiting for a packet.
    timers: Timers,
    /// Flows with packets for the host, once each.
    ready: Vec<Key>,
    /// Bytes of plaintext that flows hold, or have ready.
    bytes: usize,
    /// Where packets are opened.
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

    /// True if there is something that the host has still to be given.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When a gap is given up next, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.timers.next_us()
    }
}
