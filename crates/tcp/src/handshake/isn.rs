//! Initial sequence numbers and timestamp offsets (RFC 6528, RFC 7323 §5.4).
//!
//! Timestamp offsets have a key of their own, which is derived from that of the sequence numbers
//! and does not reveal it: a NIC stack that answers SYNs gets it, and cannot predict an ISN.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;

use crate::time::Instant;

/// Chooses initial sequence numbers that an outsider cannot predict, yet grow from one incarnation
/// of a connection to the next.
#[derive(Clone)]
pub struct IsnGenerator {
    key: [u8; 16],
    ts_offsets: TsOffsets,
}

/// Purpose of a hash: a connection must not get related numbers for different purposes.
#[derive(Clone, Copy)]
enum Purpose {
    Isn = 1,
    TimestampOffset = 2,
}

/// Chooses the offsets that connections add to the clock in their timestamps.
#[derive(Clone)]
pub struct TsOffsets {
    key: [u8; 16],
}

/// Derives a key of 16 bytes that reveals neither `key` nor the key of another `purpose`.
pub fn derive_key(key: &[u8; 16], purpose: u64) -> [u8; 16] {
    let half = |number: u8| {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(b"derived key");
        hasher.write(&purpose.to_be_bytes());
        hasher.write(&[number]);
        hasher.finish().to_be_bytes()
    };
    let mut derived = [0; 16];
    derived[..8].copy_from_slice(&half(0));
    derived[8..].copy_from_slice(&half(1));
    derived
}

/// The purpose of the key of [`TsOffsets`].
const TIMESTAMP_OFFSETS: u64 = 0;

impl IsnGenerator {
    /// `key` must be secret and random, and stay the same as long as the host runs.
    pub fn new(key: [u8; 16]) -> IsnGenerator {
        IsnGenerator {
            key,
            ts_offsets: TsOffsets::new(derive_key(&key, TIMESTAMP_OFFSETS)),
        }
    }

    /// Returns the ISN (RFC 6528 §3): `ISN = M + F(localip, localport, remoteip, remoteport,
    /// secretkey)`, where `M` ticks every 4 µs.
    pub fn isn(&self, local: SocketAddr, remote: SocketAddr, now: Instant) -> u32 {
        let ticks = (now.as_us() / 4) as u32;
        ticks.wrapping_add(hash(Purpose::Isn, &self.key, local, remote))
    }

    /// See [`TsOffsets::of`].
    pub fn ts_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.ts_offsets.of(local, remote)
    }

    /// Returns the key of the timestamp offsets, for [`TsOffsets::new`] elsewhere.
    pub fn ts_offset_key(&self) -> [u8; 16] {
        self.ts_offsets.key
    }
}

impl TsOffsets {
    /// `key` is [`IsnGenerator::ts_offset_key`].
    pub fn new(key: [u8; 16]) -> TsOffsets {
        TsOffsets { key }
    }

    /// Returns the offset that a connection adds to the clock in its timestamps. It depends on the
    /// addresses alone, so timestamps grow from one incarnation to the next and a peer in TIME-WAIT
    /// accepts the new SYN (RFC 6191).
    pub fn of(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        hash(Purpose::TimestampOffset, &self.key, local, remote)
    }
}

fn hash(purpose: Purpose, key: &[u8; 16], local: SocketAddr, remote: SocketAddr) -> u32 {
    let mut input = HashInput::default();
    input.push([purpose as u8]);
    input.push_ends(local, remote);
    SipHasher24::new_with_key(key).hash(input.bytes()) as u32
}

/// Input of a connection's hash, assembled first: a hasher that gets it in pieces takes twice as
/// long.
pub(crate) struct HashInput {
    bytes: [u8; HashInput::BYTES_MAX],
    len: usize,
}

impl HashInput {
    /// The ends of IPv6, and the fields that a SYN cookie adds.
    const BYTES_MAX: usize = 2 * (16 + 2) + 8 + 3;

    pub(crate) fn push<const N: usize>(&mut self, piece: [u8; N]) {
        self.bytes[self.len..][..N].copy_from_slice(&piece);
        self.len += N;
    }

    /// Adds the ends of a connection: addresses and ports.
    pub(crate) fn push_ends(&mut self, local: SocketAddr, remote: SocketAddr) {
        for end in [local, remote] {
            match end.ip() {
                IpAddr::V4(ip) => self.push(ip.octets()),
                IpAddr::V6(ip) => self.push(ip.octets()),
            }
            self.push(end.port().to_be_bytes());
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for HashInput {
    fn default() -> HashInput {
        HashInput {
            bytes: [0; HashInput::BYTES_MAX],
            len: 0,
        }
    }
}

pub(crate) fn hash_ip(hasher: &mut impl Hasher, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
}

impl std::fmt::Debug for IsnGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IsnGenerator { key: secret }")
    }
}

impl std::fmt::Debug for TsOffsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TsOffsets { key: secret }")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(s: &str) -> SocketAddr {
        s.parse().expect("an address")
    }

    /// Covers: RFC 6528 §3, RFC 7323 §5.4
    #[test]
    fn isn_depends_on_key_and_every_part_of_the_connection() {
        let local = address("10.77.0.2:80");
        let remote = address("10.77.0.1:40000");
        let now = Instant::from_us(1_000);
        let isn = |key: u8, local: &str, remote: &str| {
            IsnGenerator::new([key; 16]).isn(address(local), address(remote), now)
        };
        let all = [
            isn(1, "10.77.0.2:80", "10.77.0.1:40000"),
            isn(2, "10.77.0.2:80", "10.77.0.1:40000"),
            isn(1, "10.77.0.3:80", "10.77.0.1:40000"),
            isn(1, "10.77.0.2:81", "10.77.0.1:40000"),
            isn(1, "10.77.0.2:80", "10.77.0.4:40000"),
            isn(1, "10.77.0.2:80", "10.77.0.1:40001"),
            isn(1, "10.77.0.1:40000", "10.77.0.2:80"),
            isn(1, "[fd77::2]:80", "[fd77::1]:40000"),
            IsnGenerator::new([1; 16]).ts_offset(local, remote),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(!all[i + 1..].contains(a), "{i}");
        }
    }

    /// Covers: RFC 6528 §3, RFC 9293 §3.4.1
    #[test]
    fn isn_advances_by_one_every_4_us() {
        let generator = IsnGenerator::new([7; 16]);
        let (local, remote) = (address("[fd77::2]:80"), address("[fd77::1]:40000"));
        let at = |us| generator.isn(local, remote, Instant::from_us(us));
        assert_eq!(at(4_000_000).wrapping_sub(at(0)), 1_000_000);
        assert_eq!(at(3), at(0));
    }

    /// Covers: RFC 7323 §5.4
    #[test]
    fn timestamp_offsets_have_a_key_of_their_own_wherever_they_are_chosen() {
        let generator = IsnGenerator::new([7; 16]);
        let (local, remote) = (address("[fd77::2]:80"), address("[fd77::1]:40000"));
        let elsewhere = TsOffsets::new(generator.ts_offset_key());
        assert_eq!(
            elsewhere.of(local, remote),
            generator.ts_offset(local, remote)
        );
        let derived: Vec<_> = (0..4)
            .map(|purpose| derive_key(&[7; 16], purpose))
            .collect();
        for (i, key) in derived.iter().enumerate() {
            assert!(!derived[i + 1..].contains(key) && *key != [7; 16]);
            assert_ne!(key[..8], key[8..]);
        }
    }
}
