//! Cookies of connections that were broken off.
//!
//! No state is kept for a cookie, so a replayed ACK with the cookie would open the same connection
//! again, with the same sequence numbers. A peer that has missed the reset, and holds later bytes
//! of the first connection, would join bytes of two responses: of two versions of a file.

use std::collections::VecDeque;

use tcp::SynCookies;

use crate::tables::tuple::{Tuple, TupleMap};

/// Most that are remembered: beyond, those that will expire first are forgotten.
const SPENT_MAX: usize = 4096;

/// Cookies that must not open a connection again, until they expire.
#[derive(Debug)]
pub(crate) struct SpentCookies {
    /// The last one of each peer.
    by_tuple: TupleMap<u32>,
    /// Until when, in microseconds; the first one to expire comes first.
    by_age: VecDeque<(u64, Tuple, u32)>,
}

impl SpentCookies {
    pub(crate) fn new(secret: &[u8; 16]) -> SpentCookies {
        SpentCookies {
            by_tuple: TupleMap::new(secret),
            by_age: VecDeque::new(),
        }
    }

    /// The connection that the cookie has opened is broken off.
    pub(crate) fn add(&mut self, now_us: u64, tuple: Tuple, cookie: u32) {
        while let Some(&(until_us, ..)) = self.by_age.front()
            && (until_us <= now_us || self.by_age.len() >= SPENT_MAX)
        {
            self.forget_first();
        }
        let until_us = now_us + SynCookies::LIFETIME_US_MAX;
        self.by_age.push_back((until_us, tuple, cookie));
        self.by_tuple.insert(&tuple, cookie);
    }

    fn forget_first(&mut self) {
        if let Some((_, tuple, cookie)) = self.by_age.pop_front()
            && self.by_tuple.get(&tuple) == Some(&cookie)
        {
            self.by_tuple.remove(&tuple);
        }
    }

    /// True if the cookie must not open a connection any more.
    pub(crate) fn contains(&self, tuple: &Tuple, cookie: u32) -> bool {
        self.by_tuple.get(tuple) == Some(&cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple {
            local: "192.0.2.1:80".parse().unwrap(),
            remote: ([192, 0, 2, 7], port).into(),
        }
    }

    #[test]
    fn another_cookie_of_the_same_peer_is_as_good_as_any() {
        let mut spent = SpentCookies::new(&[1; 16]);
        spent.add(0, tuple(1), 7);
        assert!(spent.contains(&tuple(1), 7));
        assert!(!spent.contains(&tuple(1), 8));
        assert!(!spent.contains(&tuple(2), 7));
    }

    #[test]
    fn what_has_expired_makes_room_but_not_for_a_later_one_of_the_same_peer() {
        let mut spent = SpentCookies::new(&[1; 16]);
        spent.add(0, tuple(1), 7);
        spent.add(0, tuple(2), 7);
        spent.add(1, tuple(1), 8);
        spent.add(SynCookies::LIFETIME_US_MAX, tuple(3), 7);
        assert!(spent.contains(&tuple(1), 8));
        assert!(!spent.contains(&tuple(2), 7));
        assert_eq!(spent.by_age.len(), 2);
    }

    #[test]
    fn only_so_many_are_remembered_and_the_oldest_go_first() {
        let mut spent = SpentCookies::new(&[1; 16]);
        for port in 0..=SPENT_MAX as u16 {
            spent.add(u64::from(port), tuple(port), 7);
        }
        assert_eq!(spent.by_age.len(), SPENT_MAX);
        assert!(!spent.contains(&tuple(0), 7));
        assert!(spent.contains(&tuple(1), 7));
    }
}
