//! The packets of a flow in order of packet number.
//!
//! ```text
//!            next
//!   ──────────┴──────────────────────
//!   handed on   gap  [7] gap [9][10]      held
//! ```
//!
//! A packet with the next number is handed on, with the held packets that it releases. A packet
//! ahead is held until the gap before it is filled or times out. A gap that times out counts as
//! lost; the peer may have skipped the number, or the host opened the packet. A packet behind is
//! late, and is handed on at once.

use super::held::{Held, SLOTS};
use super::seen::Seen;
use crate::config::Reorder;

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Hand it on: [`Order::pass`].
    Now,
    /// Hold it: [`Order::hold`].
    Held,
    /// It is too far ahead: release all held packets with [`Order::release_all`], then hand it on.
    Beyond,
}

/// The order of a flow's packets; each is a `T`.
#[derive(Debug)]
pub(super) struct Order<T> {
    /// `None` until the first packet.
    next: Option<u64>,
    seen: Seen,
    held: Held<T>,
    is_off: bool,
}

impl<T> Order<T> {
    pub(super) fn new(reorder: Reorder) -> Order<T> {
        Order {
            next: None,
            seen: Seen::default(),
            held: Held::new(reorder),
            is_off: reorder == Reorder::Off,
        }
    }

    /// True if a packet with this number has arrived.
    pub(super) fn has_seen(&self, number: u64) -> bool {
        self.seen.contains(number)
    }

    /// Places an authentic packet whose number is new.
    pub(super) fn place(&mut self, number: u64) -> Place {
        self.seen.insert(number);
        match self.next {
            Some(next) if number > next && !self.is_off => {
                if number - next < SLOTS {
                    Place::Held
                } else {
                    Place::Beyond
                }
            }
            _ => Place::Now,
        }
    }

    /// Hands a packet on, and those that it releases.
    pub(super) fn pass(&mut self, number: u64, mut hand_on: impl FnMut(u64, T)) {
        let next = self.next.unwrap_or(number);
        if number < next {
            return;
        }
        self.held.advance(next, number + 1);
        self.next = Some(number + 1);
        self.pass_following(&mut hand_on);
    }

    /// Holds a packet.
    pub(super) fn hold(&mut self, number: u64, packet: T) {
        if let Some(next) = self.next {
            self.held.insert(next, number, packet);
        }
    }

    /// The first held packet.
    pub(super) fn first_held(&self) -> Option<&T> {
        let (_, packet) = self.held.first(self.next?)?;
        Some(packet)
    }

    /// Gives up the gap before the first held packet.
    pub(super) fn skip_gap(&mut self, mut hand_on: impl FnMut(u64, T)) {
        let Some(next) = self.next else {
            return;
        };
        if let Some((number, _)) = self.held.first(next) {
            self.held.advance(next, number);
            self.next = Some(number);
            self.pass_following(&mut hand_on);
        }
    }

    /// Releases all held packets.
    pub(super) fn release_all(&mut self, mut hand_on: impl FnMut(u64, T)) {
        while !self.held.is_empty() {
            self.skip_gap(&mut hand_on);
        }
    }

    /// The next packet counts as the first again.
    pub(super) fn restart(&mut self) {
        self.next = None;
    }

    fn pass_following(&mut self, hand_on: &mut impl FnMut(u64, T)) {
        let Some(mut next) = self.next else {
            return;
        };
        while let Some(packet) = self.held.take_next(next) {
            hand_on(next, packet);
            next += 1;
        }
        self.next = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// xorshift64*
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
        }
    }

    fn seed() -> u64 {
        let from = std::env::var("ORDER_SEED").ok();
        let seed = from.and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 0x5eed);
        println!("ORDER_SEED={seed}");
        seed
    }

    /// The packets handed on for an arrival, in order.
    fn arrive(order: &mut Order<u64>, number: u64) -> Vec<u64> {
        let mut out = Vec::new();
        if order.has_seen(number) {
            return out;
        }
        let place = order.place(number);
        if place == Place::Held {
            order.hold(number, number);
            return out;
        }
        let mut hand_on = |at: u64, packet: u64| {
            assert_eq!(at, packet);
            out.push(packet);
        };
        if place == Place::Beyond {
            order.release_all(&mut hand_on);
        }
        hand_on(number, number);
        order.pass(number, hand_on);
        out
    }

    fn skip(order: &mut Order<u64>) -> Vec<u64> {
        let mut out = Vec::new();
        order.skip_gap(|_, packet| out.push(packet));
        out
    }

    /// A reference model: a sorted map.
    #[derive(Default)]
    struct Model {
        next: Option<u64>,
        held: BTreeMap<u64, u64>,
    }

    impl Model {
        fn arrive(&mut self, number: u64) -> Vec<u64> {
            let next = *self.next.get_or_insert(number);
            if number < next {
                return vec![number];
            }
            let mut out = Vec::new();
            if number > next && number - next < SLOTS {
                self.held.insert(number, number);
                return out;
            }
            if number > next {
                out.extend(std::mem::take(&mut self.held).into_values());
            }
            out.push(number);
            self.next = Some(number + 1);
            self.follow(&mut out);
            out
        }

        fn skip(&mut self) -> Vec<u64> {
            let mut out = Vec::new();
            if let Some((first, _)) = self.held.first_key_value() {
                self.next = Some(*first);
                self.follow(&mut out);
            }
            out
        }

        fn follow(&mut self, out: &mut Vec<u64>) {
            while let Some(packet) = self.next.and_then(|next| self.held.remove(&next)) {
                out.push(packet);
                self.next = Some(packet + 1);
            }
        }
    }

    #[test]
    fn both_structures_do_as_a_sorted_map() {
        let mut random = Random(seed());
        let mut held = 0;
        for round in 0..400 {
            let reorder = if round % 2 == 0 {
                Reorder::Ring
            } else {
                Reorder::Linear
            };
            let (mut order, mut model) = (Order::new(reorder), Model::default());
            let mut seen = std::collections::HashSet::new();
            let mut front = random.below(1 << 40);
            for _ in 0..300 {
                let number = match random.below(40) {
                    0 => front + random.below(3 * SLOTS),
                    1..8 => front.saturating_sub(random.below(900)),
                    8..16 => front + random.below(8),
                    _ => front,
                };
                front = front.max(number + 1);
                // Duplicates are dropped within the window.
                let expected = if seen.insert(number) {
                    model.arrive(number)
                } else if order.has_seen(number) {
                    Vec::new()
                } else {
                    continue;
                };
                assert_eq!(arrive(&mut order, number), expected, "{reorder:?} {number}");
                held += model.held.len();
                if random.below(8) == 0 {
                    assert_eq!(
                        order.first_held().copied(),
                        model.held.keys().next().copied()
                    );
                    assert_eq!(skip(&mut order), model.skip());
                }
            }
        }
        assert!(held > 10_000, "{held}");
    }

    #[test]
    fn a_gap_holds_what_is_behind_it_until_it_is_filled() {
        let mut order = Order::new(Reorder::Ring);
        assert_eq!(arrive(&mut order, 100), [100], "the first is the first");
        assert_eq!(arrive(&mut order, 102), []);
        assert_eq!(arrive(&mut order, 104), []);
        assert_eq!(arrive(&mut order, 102), [], "a duplicate");
        assert_eq!(arrive(&mut order, 101), [101, 102]);
        assert_eq!(order.first_held(), Some(&104));
        assert_eq!(skip(&mut order), [104]);
        assert_eq!(order.first_held(), None);
        assert_eq!(arrive(&mut order, 103), [103], "it is late");
        assert_eq!(arrive(&mut order, 103), [], "a duplicate");
    }

    #[test]
    fn what_is_far_ahead_ends_all_waiting() {
        let mut order = Order::new(Reorder::Ring);
        assert_eq!(arrive(&mut order, 0), [0]);
        assert_eq!(arrive(&mut order, SLOTS), []);
        assert_eq!(arrive(&mut order, 5), []);
        assert_eq!(arrive(&mut order, SLOTS + 1), [5, SLOTS, SLOTS + 1]);
        order.restart();
        assert_eq!(arrive(&mut order, 9 * SLOTS), [9 * SLOTS]);
    }

    #[test]
    fn without_order_all_goes_on_as_it_comes_but_duplicates() {
        let mut order = Order::new(Reorder::Off);
        for number in [5, 9, 7, 1] {
            assert_eq!(arrive(&mut order, number), [number]);
            assert_eq!(arrive(&mut order, number), []);
        }
    }
}
