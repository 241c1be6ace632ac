//! Splices: what comes on one connection leaves on another, translated ([`contract::splicing`]).
//!
//! A worker is a translator between two TCPs that acknowledge each other's data. It has no buffer
//! but for a busy port, sends nothing again, and drops what neither TCP would take, so that the
//! checks of RFC 5961 hold for the pair as they hold for each connection.
//!
//! | File | What it adds |
//! |---|---|
//! | `splice` | the translation of a frame, and what is learned from it |
//! | `table` | who is found how, and when something is due |
//! | `run` | commands, time and reports |
//! | `output` | packets for the port |
//!
//! Nothing here outlives the process. A successor gets SPLICE once more with the numbers of the
//! join, which are constants, and the bytes that had passed when the host heard of it last. Frames
//! tell it the rest; until they have, what is at most [`splice::UNKNOWN_MAX`] further passes. A
//! peer that is silent is asked where it is.
//!
//! What no peer would say again, the host hears first: a FIN, and the last acknowledgment, leave
//! when their report is in the ring.
//!
//! A RST ends a splice if its sequence number is the next that the other peer expects, as far as
//! acknowledgments or data say, and goes through in any case within the window: the peer that it is
//! for challenges it, and the answer goes through as well.

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

/// What a worker knows of splices.
#[derive(Debug)]
pub(crate) struct Spliced {
    table: Table,
    /// What has passed, and the host has not heard yet.
    progress: Vec<SpliceProgress>,
    /// Ends and returns that the host has not heard of yet.
    over: VecDeque<Event>,
    /// For the port, as soon as it takes them.
    packets: VecDeque<Packet>,
    /// Payload of these, in bytes.
    waiting_bytes: usize,
    /// For the port, as soon as the ring has all reports.
    behind_reports: Vec<Packet>,
}

/// A packet that waits.
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

    /// All of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.table.keys()
    }

    /// Resets for both peers of a splice.
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

    /// The leg that has these addresses and ports.
    pub(crate) fn leg_of(&self, addresses: &Addresses) -> Option<(Key, Side)> {
        self.table.by_addresses(addresses)
    }

    /// True if a leg has these addresses and ports.
    pub(crate) fn has_addresses(&self, addresses: &Addresses) -> bool {
        self.leg_of(addresses).is_some()
    }

    /// When something is due, in microseconds.
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

    /// True if the host has still to be told something.
    pub(crate) fn has_reports(&self) -> bool {
        !self.progress.is_empty() || !self.over.is_empty()
    }
}
