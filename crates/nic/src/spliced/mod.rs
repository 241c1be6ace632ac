//! Splices: data of one connection leaves on another, translated ([`contract::splicing`]).
//!
//! A worker is a translator between two TCPs that acknowledge each other's data. It has no buffer
//! but for a busy port, retransmits nothing, and drops segments that neither TCP would accept, so
//! that the checks of RFC 5961 hold for the pair as they hold for each connection.
//!
//! | File | Contents |
//! |---|---|
//! | `splice` | the translation of a segment, and the state learned from it |
//! | `table` | lookup by flow and by addresses; due times |
//! | `run` | commands, time and reports |
//! | `output` | packets for the port |
//!
//! Nothing here outlives the process. A successor gets SPLICE once more with the numbers of the
//! join, which are constants, and the passed bytes last reported to the host. Frames supply the
//! rest; until then, segments up to [`splice::UNKNOWN_MAX`] bytes beyond these positions pass. A
//! silent peer is probed for its position.
//!
//! Segments that no peer would repeat are reported to the host first: a FIN, and the last
//! acknowledgment, leave when their report is in the ring.
//!
//! A RST ends a splice if its sequence number is the next that the other peer expects, according to
//! acknowledgments or data. Within the window, every RST passes: its receiver challenges it, and
//! the answer passes as well.

mod output;
mod run;
mod splice;
mod table;

use std::collections::VecDeque;

use contract::Event;
use contract::splicing::SpliceProgress;

use self::splice::Side;
use self::table::Table;
use crate::addresses::Addresses;
use crate::config::Config;
use crate::packet::PacketHeader;
use crate::slab::Key;

/// Splices of a worker.
#[derive(Debug)]
pub(crate) struct Spliced {
    table: Table,
    /// Progress that has not been reported to the host yet.
    progress: Vec<SpliceProgress>,
    /// Ends and returns that have not been reported to the host yet.
    over: VecDeque<Event>,
    /// Packets for the port, as soon as it takes them.
    packets: VecDeque<Packet>,
    /// Payload of `packets`, in bytes.
    waiting_bytes: usize,
    /// Packets for the port, as soon as the ring has all reports.
    behind_reports: Vec<Packet>,
}

/// A waiting packet.
#[derive(Debug)]
struct Packet {
    header: PacketHeader,
    payload: Box<[u8]>,
}

impl Spliced {
    pub(crate) fn new(config: &Config) -> Spliced {
        Spliced {
            table: Table::new(config.spliced_max),
            progress: Vec::new(),
            over: VecDeque::new(),
            packets: VecDeque::new(),
            waiting_bytes: 0,
            behind_reports: Vec::new(),
        }
    }

    /// Returns the keys of all splices.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.table.keys()
    }

    /// Returns resets for both peers of a splice.
    pub(crate) fn resets(&self, key: Key) -> Vec<PacketHeader> {
        let Some(entry) = self.table.get(key) else {
            return Vec::new();
        };
        let both = [0, 1].map(|side| entry.splice.reset_packets(side));
        both.into_iter().flatten().collect()
    }

    /// Splices in the table.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the leg that has these addresses and ports.
    pub(crate) fn leg_of(&self, addresses: &Addresses) -> Option<(Key, Side)> {
        self.table.by_addresses(addresses)
    }

    /// True if a leg has these addresses and ports.
    pub(crate) fn has_addresses(&self, addresses: &Addresses) -> bool {
        self.leg_of(addresses).is_some()
    }

    /// Returns when the next splice is due, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.table.next_us()
    }

    /// True if packets wait for reports.
    pub(crate) fn has_held_back(&self) -> bool {
        !self.behind_reports.is_empty()
    }

    /// True if packets wait for the port.
    pub(crate) fn waits_for_port(&self) -> bool {
        !self.packets.is_empty()
    }

    /// True if reports to the host are pending.
    pub(crate) fn has_reports(&self) -> bool {
        !self.progress.is_empty() || !self.over.is_empty()
    }
}
