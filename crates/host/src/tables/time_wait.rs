//! Connections in TIME-WAIT, which hold no full connection any more (RFC 9293 §3.6.1).

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use tcp::{Instant, TimeWait};
use wire::tcp::{Header, Segment};

use crate::tables::keyed_hash::KeyedHash;
use crate::tables::sparsity::Sparsity;
use crate::tables::tuple::Tuple;

/// Most entries of one address family: the capacity of a hash table with 2¹⁷ places. Beyond, the
/// oldest ends early: that only weakens the protection against old duplicates, which timestamps and
/// random sequence numbers give as well.
const ENTRIES_MAX: usize = 7 << 14;

const _: () = assert!(
    (size_of::<([u8; 36], TimeWait)>() + 1 + size_of::<(Instant, [u8; 36])>()) << 17 < 20_000_000,
    "a full table takes less than 20 MB, over IPv6 as well"
);

/// All connections in TIME-WAIT, found by their addresses and ports: a table for each family, so
/// that an entry costs no more than its family's addresses.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    v4: Table<12>,
    v6: Table<36>,
}

/// Connections in TIME-WAIT whose addresses and ports take `N` bytes.
#[derive(Debug)]
struct Table<const N: usize> {
    by_key: HashMap<[u8; N], TimeWait, KeyedHash>,
    /// By the time they were last seen to expire. An entry that has been prolonged is queued again
    /// when its turn comes; one that is gone is skipped. Each key of `by_key` is here, so that this
    /// bounds both.
    expiry: VecDeque<(Instant, [u8; N])>,
    sparsity: Sparsity,
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

/// Splits a key into addresses and ports.
fn split<const A: usize, const N: usize>(key: &[u8; N]) -> ([u8; A], [u8; A], [u16; 2]) {
    const { assert!(N == 2 * A + 4) };
    let address = |at: usize| {
        let mut address = [0; A];
        address.copy_from_slice(&key[at..at + A]);
        address
    };
    let port = |at: usize| u16::from_be_bytes([key[at], key[at + 1]]);
    (address(0), address(A), [port(2 * A), port(2 * A + 2)])
}

fn tuple(local: IpAddr, remote: IpAddr, ports: [u16; 2]) -> Tuple {
    Tuple {
        local: SocketAddr::new(local, ports[0]),
        remote: SocketAddr::new(remote, ports[1]),
    }
}

/// Reaction to a segment for a connection in TIME-WAIT.
#[derive(Debug)]
pub(crate) enum Answer {
    /// There is no such connection.
    Unknown,
    /// A SYN may take its place (RFC 9293 §3.10.7.4, RFC 6191); it is gone.
    Replaced(TimeWait),
    /// It has handled the segment; the header is to be sent, if any.
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

    /// True if this side may open a connection with this tuple.
    pub(crate) fn may_be_reused(&self, now: Instant, tuple: &Tuple) -> bool {
        let found = match Key::from(tuple) {
            Key::V4(key) => self.v4.by_key.get(&key),
            Key::V6(key) => self.v6.by_key.get(&key),
        };
        found.is_none_or(|time_wait| time_wait.may_be_reused(now))
    }

    /// Returns the tuples of all connections in TIME-WAIT.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        let v4 = self.v4.by_key.keys().map(|key| {
            let (local, remote, ports) = split::<4, 12>(key);
            tuple(local.into(), remote.into(), ports)
        });
        let v6 = self.v6.by_key.keys().map(|key| {
            let (local, remote, ports) = split::<16, 36>(key);
            tuple(local.into(), remote.into(), ports)
        });
        v4.chain(v6)
    }

    /// Removes the entry that another connection replaces.
    pub(crate) fn take(&mut self, tuple: &Tuple) -> Option<TimeWait> {
        match Key::from(tuple) {
            Key::V4(key) => self.v4.by_key.remove(&key),
            Key::V6(key) => self.v6.by_key.remove(&key),
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

    /// Removes the entries that have expired.
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
            sparsity: Sparsity::default(),
        }
    }

    fn insert(&mut self, key: [u8; N], time_wait: TimeWait) {
        self.expiry.push_back((time_wait.expires(), key));
        self.by_key.insert(key, time_wait);
        if self.expiry.len() > ENTRIES_MAX
            && let Some((_, oldest)) = self.expiry.pop_front()
        {
            // Prolonged or not: a peer that goes on repeating its FIN must not stay for it.
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
            let (len, places) = (self.expiry.len(), self.expiry.capacity());
            if self.sparsity.on_removed(len, places) {
                self.expiry.shrink_to_fit();
                self.by_key.shrink_to_fit();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use tcp::{Config, Connection, Limits};
    use wire::ip::Ecn;
    use wire::tcp::Flags;

    use super::*;

    const ISN: u32 = 1000;

    fn segment(seq: u32, flags: Flags) -> Segment<'static> {
        let header = Header {
            seq,
            ack: 1 + 1 + 1,
            flags,
            window: 1000,
            ..Header::default()
        };
        Segment {
            header,
            payload: &[],
            ecn: Ecn::NotEct,
        }
    }

    /// Returns the TIME-WAIT state of a connection whose peer has initial sequence number [`ISN`].
    fn time_wait(now: Instant) -> TimeWait {
        let limits = Limits {
            bytes_max: 1000,
            pieces_max: 1,
            real_bytes_max: 1000,
            direct_bytes_max: 0,
        };
        let syn = segment(ISN, Flags::SYN);
        let mut server = Connection::accept(&Config::default(), &syn, 1, 0, now).expect("a SYN");
        let settle = |server: &mut Connection| {
            while let Some(transmit) = server.poll_transmit(now, &limits) {
                if let Some(transmission) = transmit.transmission {
                    server.on_departed(transmission, now);
                }
            }
        };
        settle(&mut server);
        let mut ack = segment(ISN + 1, Flags::ACK);
        ack.header.ack = 2;
        server.on_segment(now, &ack);
        server.shutdown();
        settle(&mut server);
        server.on_segment(now, &segment(ISN + 1, Flags::FIN | Flags::ACK));
        settle(&mut server);
        server.time_wait().expect("in TIME-WAIT")
    }

    fn tuple(number: u32) -> Tuple {
        let [a, b, c, d] = number.to_be_bytes();
        Tuple {
            local: SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: SocketAddr::from(([10, 1, a, b], u16::from_be_bytes([c, d]))),
        }
    }

    #[test]
    fn who_repeats_its_fin_or_resets_takes_no_more_room_than_others() {
        let begin = Instant::from_us(1_000_000);
        let time_wait = time_wait(begin);
        let mut table = TimeWaits::new(KeyedHash([7; 16]));
        let beyond = 1000;
        for number in 0..ENTRIES_MAX as u32 + beyond {
            let now = begin + Duration::from_micros(number.into());
            table.insert(&tuple(number), time_wait);
            let again = match number % 3 {
                0 => segment(ISN + 1, Flags::FIN | Flags::ACK),
                1 => segment(ISN + 2, Flags::RST),
                _ => continue,
            };
            let answer = table.on_segment(now, &tuple(number), &again);
            assert!(matches!(answer, Answer::Handled(_)), "{number}: {answer:?}");
        }
        assert_eq!(table.len(), ENTRIES_MAX);
        let old = segment(ISN + 1, Flags::FIN | Flags::ACK);
        for (number, is_there) in [(0, false), (beyond - 1, false), (beyond + 2, true)] {
            let answer = table.on_segment(begin, &tuple(number), &old);
            assert_eq!(matches!(answer, Answer::Handled(_)), is_there, "{number}");
        }
        table.expire(begin + Duration::from_secs(3600));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn tables_give_memory_back_as_time_wait_ends() {
        let begin = Instant::from_us(1_000_000);
        let time_wait = time_wait(begin);
        let mut table = TimeWaits::new(KeyedHash([7; 16]));
        for number in 0..50_000 {
            table.insert(&tuple(number), time_wait);
        }
        table.expire(begin + Duration::from_secs(3600));
        assert_eq!(table.len(), 0);
        let places = (table.v4.expiry.capacity(), table.v4.by_key.capacity());
        assert!(places.0 <= 1024 && places.1 <= 2048, "{places:?}");
    }
}
