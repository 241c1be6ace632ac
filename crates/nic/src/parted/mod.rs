//! Connections that the host stack has parted with: FIN and its retransmission, answers, TIME-WAIT.
//!
//! What a connection does is decided by `tcp`, the same code that runs above the split, made of the
//! few numbers that PART brings ([`tcp::Remainder`]). Here is what surrounds it: the table and its
//! bounds, timers, packets for the port, and the reports.
//!
//! | File | What it adds |
//! |---|---|
//! | `table` | who is found how, and when something is due |
//! | `part` | what PART says, as `tcp` has it |
//! | `run` | commands, time, packets and reports |
//!
//! Nothing here outlives the process, as nothing of a NIC stack does. A successor gets PART once
//! more from the host, which may be older than what has happened since:
//!
//! * Our FIN goes once more. A peer that has acknowledged it answers as it would a retransmission.
//! * A peer that has finished with the connection answers FIN with RST, at the sequence number that
//!   ends it.
//! * TIME-WAIT, of which the host does not know, is a FIN that is due or a FIN-WAIT-2 without an
//!   answer: the addresses and ports stay taken for as long or longer, and what TIME-WAIT is for
//!   (RFC 9293 §3.6.1) holds: an old segment is answered, and reaches no new connection; the peer's
//!   FIN, if its acknowledgment was lost, comes again and is acknowledged.

mod part;
mod run;
mod table;

use std::collections::VecDeque;

use contract::parting::PartEnd;

use self::table::Table;
use crate::addresses::Addresses;
use crate::config::Config;
use crate::packet::PacketHeader;
use crate::slab::Key;

/// What a worker knows of connections that were parted with.
#[derive(Debug)]
pub(crate) struct Parted {
    table: Table,
    /// Have ended, and the host is not told yet.
    ends: Vec<PartEnd>,
    /// For the port, as soon as it takes them.
    packets: VecDeque<PacketHeader>,
}

impl Parted {
    pub(crate) fn new(config: &Config) -> Parted {
        Parted {
            table: Table::new(config.parted_max, config.parted_open_max),
            ends: Vec::new(),
            packets: VecDeque::new(),
        }
    }

    /// Connections in the table.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Of these, connections in TIME-WAIT.
    pub(crate) fn time_waits(&self) -> usize {
        self.table.time_waits()
    }

    /// All of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.table.keys()
    }

    /// The connection that has these addresses and ports.
    pub(crate) fn key_of(&self, addresses: &Addresses) -> Option<Key> {
        self.table.by_addresses(addresses)
    }

    /// True if a connection has these addresses and ports.
    pub(crate) fn has_addresses(&self, addresses: &Addresses) -> bool {
        self.key_of(addresses).is_some()
    }

    /// When something is due, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.table.next_us()
    }

    /// True if packets wait for the port.
    pub(crate) fn waits_for_port(&self) -> bool {
        !self.packets.is_empty()
    }

    /// True if the host has still to be told something.
    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }
}
