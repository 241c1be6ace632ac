//! Connections in TIME-WAIT, which hold no full connection any more (RFC 9293 §3.6.1).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tcp::{Instant, TimeWait};
use wire::tcp::{Header, Segment};

use crate::connections::{KeyedHash, Tuple};

/// Most of them at once, of one address family: what a hash table of 2¹⁷ places holds. When there are more, the
/// oldest ends early: that only weakens the protection against old duplicates, which timestamps and random
/// sequence numbers give as well.
const ENTRIES_MAX: usize = 7 << 14;

const _: () = assert!(
    (size_of::<([u8; 36], TimeWait)>() + 1 + size_of::<(Instant, [u8; 36])>()) << 17 < 20_000_000,
    "a full table takes less than 20 MB, over IPv6 as well"
);

/// All connections in TIME-WAIT, found by their addresses and ports: a table for each family, so that an entry
/// costs no more than its family's addresses.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    v4: Table<12>,
    v6: Table<36>,
}

/// Connections in TIME-WAIT whose addresses and ports take `N` bytes.
#[derive(Debug)]
struct Table<const N: usize> {
    by_key: HashMap<[u8; N], TimeWait, KeyedHash>,
    /// By the time they were last seen to expire. An entry that has been prolonged is queued anew when
    /// its turn comes; one that is gone is skipped.
    expiry: VecDeque<(Instant, [u8; N])>,
}

/// Addresses and ports, by family.
enum Key {
    V4([u8; 12]),
    V6([u8; 36]),
}

impl From<&Tuple> for Key {
    fn from(tuple: &Tuple) -> Key {
        fn join<const A: usize, const N: usize>(
            addresses: [[u8; A]; 2],
            ports: [u16; 2],
        ) -> [u8; N] {
            let mut key = [0; N];
            let ports = ports.map(u16::to_be_bytes);
            let bytes = addresses.iter().flatten().chain(ports.iter().flatten());
            for (to, &byte) in key.iter_mut().zip(bytes) {
                *to = byte;
            }
            key
        }
        let ports = [tuple.local.port(), tuple.remote.port()];
        match (tuple.local.ip(), tuple.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                Key::V4(join([local.octets(), remote.octets()], ports))
            }
            (local, remote) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                Key::V6(join([octets(local), octets(remote)], ports))
            }
        }
    }
}

/// What a segment for a connection in TIME-WAIT makes the stack do.
#[derive(Debug)]
pub(crate) enum Answer {
    /// There is no such connection.
    Unknown,
    /// A SYN may take its place (RFC 9293 §3.10.7.4, RFC 6191); it is gone.
    Replaced(TimeWait),
    /// It has dealt with it; this is to be sent, if anything.
    Handled(Option<Header>),
}

impl TimeWaits {
    pub(crate) fn new(hash: KeyedHash) -> TimeWaits {
        TimeWaits {
            v4: Table::new(hash),
            v6: Table::new(hash),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.v4.by_key.len() + self.v6.by_key.len()
    }

    pub(crate) fn insert(&mut self, tuple: &Tuple, time_wait: TimeWait) {
        match Key::from(tuple) {
            Key::V4(key) => self.v4.insert(key, time_wait),
            Key::V6(key) => self.v6.insert(key, time_wait),
        }
    }

    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: &Segment<'_>,
    ) -> Answer {
        match Key::from(tuple) {
            Key::V4(key) => self.v4.on_segment(now, &key, segment),
            Key::V6(key) => self.v6.on_segment(now, &key, segment),
        }
    }

    /// Forgets those that have expired.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.v4.expire(now);
        self.v6.expire(now);
    }

    /// When [`TimeWaits::expire`] should next be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let v4 = self.v4.expiry.front().map(|&(at, _)| at);
        let v6 = self.v6.expiry.front().map(|&(at, _)| at);
        v4.into_iter().chain(v6).min()
    }
}

impl<const N: usize> Table<N> {
    fn new(hash: KeyedHash) -> Table<N> {
        Table {
            by_key: HashMap::with_hasher(hash),
            expiry: VecDeque::new(),
        }
    }

    fn insert(&mut self, key: [u8; N], time_wait: TimeWait) {
        self.expiry.push_back((time_wait.expires(), key));
        self.by_key.insert(key, time_wait);
        if self.expiry.len() > ENTRIES_MAX
            && let Some((at, oldest)) = self.expiry.pop_front()
            && self.by_key.get(&oldest).map(TimeWait::expires) == Some(at)
        {
            self.by_key.remove(&oldest);
        }
    }

    fn on_segment(&mut self, now: Instant, key: &[u8; N], segment: &Segment<'_>) -> Answer {
        let Some(time_wait) = self.by_key.get_mut(key) else {
            return Answer::Unknown;
        };
        if time_wait.expires() <= now || time_wait.may_be_replaced_by(segment) {
            let old = *time_wait;
            self.by_key.remove(key);
            return Answer::Replaced(old);
        }
        Answer::Handled(time_wait.on_segment(now, segment))
    }

    fn expire(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.expiry.front() {
            if at > now {
                return;
            }
            self.expiry.pop_front();
            match self.by_key.get(&key) {
                Some(time_wait) if time_wait.expires() > now => {
                    self.expiry.push_back((time_wait.expires(), key));
                }
                Some(_) => {
                    self.by_key.remove(&key);
                }
                None => {}
            }
        }
    }
}
