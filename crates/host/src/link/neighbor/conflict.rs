//! Other machines that use an own address (RFC 5227 §2.4, RFC 4862 §5.4.4): counted, logged when it
//! begins, and answered by announcing the address now and then. The stack keeps it: clients know no
//! other.

use std::net::IpAddr;

use super::Neighbors;
use crate::link::mac::format_mac;

/// `DEFEND_INTERVAL` of RFC 5227 §1.1, in microseconds: an address is defended no more often, lest
/// two machines that keep it answer each other for ever.
const DEFEND_INTERVAL_US: u64 = 10_000_000;

/// After so long without a conflict, in microseconds, the next one is a new one, and is logged.
const QUIET_US: u64 = 600_000_000;

/// A conflict about one own address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    seen_us: u64,
    defended_us: u64,
}

impl Neighbors {
    /// Handles a claim of the own `address` by another machine; ignored if `mac` is our own.
    pub(super) fn on_claim(&mut self, now_us: u64, address: IpAddr, mac: [u8; 6]) {
        if mac == self.mac {
            return;
        }
        self.conflicts_seen += 1;
        let before = self.conflicts.get(&address).copied();
        if before.is_none_or(|it| now_us >= it.seen_us + QUIET_US) {
            let holder = format_mac(mac);
            tracing::warn!(
                %address, holder,
                "another machine on the link uses an address of the stack: give either another one"
            );
        }
        let defended_us = before.map(|it| it.defended_us);
        let is_due = defended_us.is_none_or(|at| now_us >= at + DEFEND_INTERVAL_US);
        if is_due {
            let announcement = self.announcement(address);
            self.frames.push_back(announcement);
        }
        let conflict = Conflict {
            seen_us: now_us,
            defended_us: defended_us.filter(|_| !is_due).unwrap_or(now_us),
        };
        self.conflicts.insert(address, conflict);
    }

    /// Packets since the last call that claim an own address for another machine.
    pub(crate) fn take_conflicts(&mut self) -> u64 {
        std::mem::take(&mut self.conflicts_seen)
    }
}
