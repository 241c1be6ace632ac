//! The tuple that identifies a connection on the wire, and a table with tuples as keys.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;
use wire::frame::TcpPacket;

/// The four values that name a connection on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// A tuple in as few words as it takes.
enum Key {
    V4(Words<2>),
    V6(Words<5>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words<const N: usize>([u64; N]);

impl<const N: usize> Hash for Words<N> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        for word in self.0 {
            state.write_u64(word);
        }
    }
}

impl Tuple {
    /// The connection that a received segment is for.
    #[inline]
    pub(crate) fn of(packet: &TcpPacket<'_>) -> Tuple {
        let header = &packet.segment.header;
        Tuple {
            local: SocketAddr::new(packet.destination, header.destination_port),
            remote: SocketAddr::new(packet.source, header.source_port),
        }
    }

    #[inline]
    fn key(&self) -> Key {
        let ports = u64::from(self.local.port()) << 16 | u64::from(self.remote.port());
        match (self.local, self.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                let [local, remote] = [local, remote].map(|end| u64::from(end.ip().to_bits()));
                Key::V4(Words([local << 32 | remote, ports]))
            }
            (local, remote) => {
                let words = |end: SocketAddr| {
                    let bits = match end.ip() {
                        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                        IpAddr::V6(ip) => ip.to_bits(),
                    };
                    [(bits >> 64) as u64, bits as u64]
                };
                let ([a, b], [c, d]) = (words(local), words(remote));
                Key::V6(Words([a, b, c, d, ports]))
            }
        }
    }
}

/// Things by tuple: a table for each family, so that IPv4 does not pay for the longer addresses.
#[derive(Debug)]
pub(crate) struct TupleMap<T> {
    v4: HashMap<Words<2>, T, MultiplyShift<2>>,
    v6: HashMap<Words<5>, T, MultiplyShift<5>>,
}

impl<T> TupleMap<T> {
    pub(crate) fn new(secret: &[u8; 16]) -> TupleMap<T> {
        TupleMap {
            v4: HashMap::with_hasher(MultiplyShift::new(secret)),
            v6: HashMap::with_hasher(MultiplyShift::new(secret)),
        }
    }

    // For each packet, and called from one place.
    #[inline(always)]
    pub(crate) fn get(&self, tuple: &Tuple) -> Option<&T> {
        match tuple.key() {
            Key::V4(key) => self.v4.get(&key),
            Key::V6(key) => self.v6.get(&key),
        }
    }

    pub(crate) fn insert(&mut self, tuple: &Tuple, value: T) {
        match tuple.key() {
            Key::V4(key) => self.v4.insert(key, value),
            Key::V6(key) => self.v6.insert(key, value),
        };
    }

    pub(crate) fn remove(&mut self, tuple: &Tuple) -> Option<T> {
        match tuple.key() {
            Key::V4(key) => self.v4.remove(&key),
            Key::V6(key) => self.v6.remove(&key),
        }
    }

    /// Shrinks the table to its entries.
    pub(crate) fn shrink(&mut self) {
        self.v4.shrink_to_fit();
        self.v6.shrink_to_fit();
    }

    pub(crate) fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The hash of a tuple, under the secret.
    pub(crate) fn hash(&self, tuple: &Tuple) -> u64 {
        match tuple.key() {
            Key::V4(key) => self.v4.hasher().hash_one(key),
            Key::V6(key) => self.v6.hasher().hash_one(key),
        }
    }
}

/// A hash of `N` words under a secret key. Peers choose addresses and ports, so they must not be
/// able to unbalance the table; it is searched for every packet, so the hash must not cost as much
/// as a cryptographic function.
///
/// This is the multiply-shift scheme for vectors (Thorup, "High Speed Hashing for Integers and
/// Strings", §3.3): `(a₀ + a₁x₁ + a₂x₂ + …) mod 2¹²⁸ >> 64`, with 128-bit keys and 64-bit words. It
/// is strongly universal: two different keys that were chosen without knowledge of the secret agree
/// in any given bits of their hashes as seldom as random numbers would.
#[derive(Clone, Copy, Debug)]
struct MultiplyShift<const N: usize> {
    offset: u128,
    factors: [u128; N],
}

impl<const N: usize> MultiplyShift<N> {
    fn new(secret: &[u8; 16]) -> MultiplyShift<N> {
        let half = |number: u64| {
            let mut hasher = SipHasher13::new_with_key(secret);
            hasher.write_u64(number);
            u128::from(hasher.finish())
        };
        let number = |i: u64| half(2 * i) << 64 | half(2 * i + 1);
        MultiplyShift {
            offset: number(0),
            factors: std::array::from_fn(|i| number(1 + i as u64)),
        }
    }
}

impl<const N: usize> BuildHasher for MultiplyShift<N> {
    type Hasher = Sum<N>;

    #[inline]
    fn build_hasher(&self) -> Sum<N> {
        Sum {
            sum: self.offset,
            factors: self.factors,
            words: 0,
        }
    }
}

/// A hash in the making.
struct Sum<const N: usize> {
    sum: u128,
    factors: [u128; N],
    words: usize,
}

impl<const N: usize> Hasher for Sum<N> {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = self.factors[self.words].wrapping_mul(word.into());
        self.sum = self.sum.wrapping_add(product);
        self.words += 1;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key consists of words");
    }

    #[inline]
    fn finish(&self) -> u64 {
        let hash = (self.sum >> 64) as u64;
        // A bijection, so that uniform hashes stay uniform. Without it, consecutive ports are
        // hashed to consecutive points, which under a few of the secrets lie all together.
        let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 29
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn end(ip: &str, port: u16) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), port)
    }

    #[test]
    fn every_part_of_a_tuple_counts() {
        let mut map = TupleMap::new(&[7; 16]);
        let mut hashes = HashSet::new();
        let mut tuples = Vec::new();
        for [a, b] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00:0:0:1::1"]] {
            for ports in [[80, 4000], [80, 4001], [81, 4000]] {
                for [local, remote] in [[a, b], [b, a], [a, a]] {
                    let [local, remote] = [end(local, ports[0]), end(remote, ports[1])];
                    tuples.push(Tuple { local, remote });
                }
            }
        }
        for (i, tuple) in tuples.iter().enumerate() {
            assert_eq!(map.get(tuple), None);
            assert!(hashes.insert(map.hash(tuple)));
            map.insert(tuple, i);
        }
        for (i, tuple) in tuples.iter().enumerate() {
            assert_eq!(map.get(tuple), Some(&i));
            assert_eq!(map.remove(tuple), Some(i));
            assert_eq!(map.get(tuple), None);
        }
    }

    /// Neighbouring tuples, as a peer would choose them: no bucket of a table gets much more than
    /// its share.
    #[test]
    fn ports_in_a_row_spread_over_the_table_under_every_key() {
        for ip in ["10.0.0.1", "fd00::1"] {
            for secret in 0..32 {
                let map = TupleMap::<()>::new(&[secret; 16]);
                let mut buckets = [0u32; 1024];
                for port in 0..16 * 1024 {
                    let hash = map.hash(&Tuple {
                        local: end("10.0.0.1", 80),
                        remote: end(ip, port),
                    });
                    buckets[hash as usize % buckets.len()] += 1;
                }
                let fullest = buckets.iter().max();
                assert!(
                    fullest < Some(&64),
                    "secret {secret}: {fullest:?} instead of 16"
                );
            }
        }
    }
}
