//! Connections that the host stack has parted with: FIN and its retransmission, answers, TIME-WAIT.
//!
//! `tcp`, the same code that runs above the split, decides each connection's behaviour, from the
//! few numbers that PART brings ([`tcp::Remainder`]). This module adds the surroundings: the table
//! and its bounds, timers, packets for the port, and the reports.
//!
//! | File | Contents |
//! |---|---|
//! | `table` | lookup by flow and by addresses; due times |
//! | `part` | translation of PART for `tcp` |
//! | `run` | commands, time, packets and reports |
//!
//! Nothing here outlives the process, like all state of a NIC stack. A successor gets PART once
//! more from the host, in a state that may be older than the connection:
//!
//! * The local FIN is sent once more. A peer that has acknowledged it answers as to a
//!   retransmission.
//! * A peer that has finished with the connection answers FIN with RST, at the sequence number that
//!   ends it.
//! * TIME-WAIT is not known to the host: it is a FIN that is due, or a FIN-WAIT-2 without an
//!   answer. The addresses and ports stay taken for as long or longer, and the guarantees of
//!   TIME-WAIT (RFC 9293 §3.6.1) hold: an old segment is answered, and reaches no new connection;
//!   the peer's FIN, if its acknowledgment was lost, is repeated and acknowledged.

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

/// Connections of a worker that the host has parted with.
#[derive(Debug)]
pub(crate) struct Parted {
    table: Table,
    /// Ends that have not been reported to the host yet.
    ends: Vec<PartEnd>,
    /// Packets for the port, as soon as it takes them.
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

    /// Returns the number of connections in TIME-WAIT.
    pub(crate) fn time_waits(&self) -> usize {
        self.table.time_waits()
    }

    /// Returns the keys of all connections.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.table.keys()
    }

    /// Returns the connection that has these addresses and ports.
    pub(crate) fn key_of(&self, addresses: &Addresses) -> Option<Key> {
        self.table.by_addresses(addresses)
    }

    /// True if a connection has these addresses and ports.
    pub(crate) fn has_addresses(&self, addresses: &Addresses) -> bool {
        self.key_of(addresses).is_some()
    }

    /// Returns when a connection is due next, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.table.next_us()
    }

    /// True if packets wait for the port.
    pub(crate) fn waits_for_port(&self) -> bool {
        !self.packets.is_empty()
    }

    /// True if reports to the host are pending.
    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }
}
