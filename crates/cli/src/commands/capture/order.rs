//! Orders packets from several sockets by their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A packet that is held back.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) time_ns: u64,
    /// Sequence number: of packets with the same time, the first one held goes first.
    number: u64,
    /// Socket that it was read from.
    pub(super) tap: usize,
    pub(super) len: usize,
    pub(super) bytes: Vec<u8>,
}

/// Packets held back. Their number and bytes are limited: beyond, the oldest goes.
#[derive(Debug)]
pub(super) struct Order {
    held: BinaryHeap<Reverse<Held>>,
    held_bytes: usize,
    number: u64,
    packets_max: usize,
    bytes_max: usize,
}

impl Order {
    pub(super) fn new(packets_max: usize, bytes_max: usize) -> Order {
        Order {
            held: BinaryHeap::new(),
            held_bytes: 0,
            number: 0,
            packets_max,
            bytes_max,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn hold(&mut self, tap: usize, time_ns: u64, len: usize, bytes: &[u8]) {
        self.number += 1;
        self.held_bytes += bytes.len();
        self.held.push(Reverse(Held {
            time_ns,
            number: self.number,
            tap,
            len,
            bytes: bytes.to_vec(),
        }));
    }

    /// Returns the oldest packet, if its time is at most `until_ns` or a limit is exceeded.
    pub(super) fn next(&mut self, until_ns: u64) -> Option<Held> {
        let Reverse(oldest) = self.held.peek()?;
        let is_over = self.held.len() > self.packets_max || self.held_bytes > self.bytes_max;
        if oldest.time_ns > until_ns && !is_over {
            return None;
        }
        let Reverse(oldest) = self.held.pop()?;
        self.held_bytes -= oldest.bytes.len();
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sockets and times of all packets up to `until_ns`.
    fn gone(order: &mut Order, until_ns: u64) -> Vec<(usize, u64)> {
        std::iter::from_fn(|| order.next(until_ns))
            .map(|packet| (packet.tap, packet.time_ns))
            .collect()
    }

    #[test]
    fn the_oldest_goes_first_and_none_before_its_time() {
        let mut order = Order::new(100, 100);
        for (tap, time_ns) in [(0, 10), (0, 40), (1, 20), (1, 15), (2, 40), (0, 41)] {
            order.hold(tap, time_ns, 1, b"x");
        }
        assert_eq!(gone(&mut order, 9), []);
        assert_eq!(gone(&mut order, 20), [(0, 10), (1, 15), (1, 20)]);
        // A late packet still precedes those held.
        order.hold(2, 19, 1, b"x");
        assert_eq!(
            gone(&mut order, u64::MAX),
            [(2, 19), (0, 40), (2, 40), (0, 41)]
        );
        assert!(order.is_empty());
    }

    #[test]
    fn what_is_too_much_is_not_held() {
        let mut order = Order::new(2, 1_000);
        for time_ns in [3, 1, 2, 4] {
            order.hold(0, time_ns, 9, b"123456789");
        }
        assert_eq!(gone(&mut order, 0), [(0, 1), (0, 2)]);
        let mut order = Order::new(100, 20);
        for time_ns in [3, 1, 2, 4] {
            order.hold(0, time_ns, 9, b"123456789");
        }
        assert_eq!(gone(&mut order, 0), [(0, 1), (0, 2)]);
        assert_eq!(gone(&mut order, u64::MAX), [(0, 3), (0, 4)]);
    }
}
