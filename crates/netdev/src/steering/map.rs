//! The map, and its layout: elements of 16 words.
//!
//! ```text
//! 0           seed of the hash, 7 words of zero, targets: 8 words
//! 1 – 128     a bit for each TCP port whose SYNs are steered
//! 129 – 4224  a bit for each hash of a connection that the host may know
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::bpf::{self, Mapping};

/// What the map calls the port of a NIC worker.
pub type Target = NonZeroU32;

/// Words of an element.
pub(super) const ELEMENT_WORDS: usize = 16;
/// Bits of an element, as a power of two.
pub(super) const ELEMENT_BITS_LOG2: u32 = 9;

/// Workers that get SYNs.
pub(super) const TARGETS: usize = 8;
/// Where they stand in the first element, in words.
pub(super) const TARGETS_WORD: usize = 8;

pub(super) const PORTS_ELEMENT: u32 = 1;
pub(super) const KNOWN_ELEMENT: u32 = PORTS_ELEMENT + (1 << (16 - ELEMENT_BITS_LOG2));

/// Bits of known connections, as a power of two: sixteen for each connection that a host has at
/// most by default.
pub(super) const KNOWN_BITS_LOG2: u32 = 21;

pub(super) const ELEMENTS: u32 = KNOWN_ELEMENT + (1 << (KNOWN_BITS_LOG2 - ELEMENT_BITS_LOG2));

const WORDS: usize = ELEMENTS as usize * ELEMENT_WORDS;

const _: () = assert!(
    TARGETS_WORD + TARGETS == ELEMENT_WORDS && 32 * ELEMENT_WORDS == 1 << ELEMENT_BITS_LOG2,
    "targets and bits fill elements"
);

/// Creates a map for [`SteeringMap::open`] and for ports. Needs `CAP_BPF` where the kernel keeps
/// `bpf(2)` from others.
pub fn create_map() -> io::Result<OwnedFd> {
    bpf::create_array(ELEMENTS, (ELEMENT_WORDS * size_of::<u32>()) as u32)
}

/// A steering map, shared by all that have a clone of it.
#[derive(Clone, Debug)]
pub struct SteeringMap(Arc<Memory>);

#[derive(Debug)]
enum Memory {
    Heap(Box<[AtomicU32]>),
    Mapped(Mapping),
}

impl SteeringMap {
    /// So many connections may be noted before most of what is noted of ended ones should be
    /// forgotten, by [`SteeringMap::note_only`]: with them, one SYN in sixteen of a port that is
    /// steered is the host's for nothing.
    pub const NOTES_MAX: usize = 1 << (KNOWN_BITS_LOG2 - 4);

    /// A map that no packet filter reads, for a simulation.
    pub fn in_memory(seed: u32) -> SteeringMap {
        let words = (0..WORDS).map(|_| AtomicU32::new(0)).collect();
        SteeringMap::seeded(Memory::Heap(words), seed)
    }

    /// Maps what [`create_map`] has created. `seed` must be random, so that no
    /// peer knows which connections have the same hash.
    pub fn open(map: BorrowedFd<'_>, seed: u32) -> io::Result<SteeringMap> {
        let mapping = Mapping::new(map, WORDS)?;
        Ok(SteeringMap::seeded(Memory::Mapped(mapping), seed))
    }

    fn seeded(memory: Memory, seed: u32) -> SteeringMap {
        let map = SteeringMap(Arc::new(memory));
        map.words()[0].store(seed, Ordering::Relaxed);
        map
    }

    fn words(&self) -> &[AtomicU32] {
        match &*self.0 {
            Memory::Heap(words) => words,
            Memory::Mapped(mapping) => mapping.words(),
        }
    }

    fn element(&self, element: u32) -> &[AtomicU32] {
        &self.words()[element as usize * ELEMENT_WORDS..][..ELEMENT_WORDS]
    }

    /// SYNs go to these ports from now on, some to each; without any, to the host. Of more than
    /// eight, the others get none.
    pub fn set_targets(&self, targets: &[Target]) {
        for (i, word) in self.element(0)[TARGETS_WORD..].iter().enumerate() {
            let count = targets.len().clamp(1, TARGETS);
            let target = targets.get(i % count).map_or(0, |target| target.get());
            word.store(target, Ordering::Release);
        }
    }

    /// SYNs to these TCP ports are steered from now on, and to no others.
    pub fn set_ports(&self, ports: impl IntoIterator<Item = u16>) {
        let mut words = [0u32; 1 << 11];
        for port in ports {
            words[usize::from(port >> 5)] |= 1 << (port & 31);
        }
        self.replace(PORTS_ELEMENT, &words);
    }

    /// The host knows this connection: its SYNs are the host's.
    pub fn note(&self, local: SocketAddr, remote: SocketAddr) {
        let bit = known_bit(self.hash(local, remote));
        let word = &self.words()[KNOWN_ELEMENT as usize * ELEMENT_WORDS + (bit >> 5) as usize];
        word.fetch_or(1 << (bit & 31), Ordering::Release);
    }

    /// The host knows these connections (each by its local and its remote end) and no others.
    pub fn note_only(&self, known: impl Iterator<Item = (SocketAddr, SocketAddr)>) {
        let mut words = vec![0u32; 1 << (KNOWN_BITS_LOG2 - 5)];
        for (local, remote) in known {
            let bit = known_bit(self.hash(local, remote));
            words[(bit >> 5) as usize] |= 1 << (bit & 31);
        }
        self.replace(KNOWN_ELEMENT, &words);
    }

    fn replace(&self, element: u32, with: &[u32]) {
        let words = &self.words()[element as usize * ELEMENT_WORDS..][..with.len()];
        for (word, with) in words.iter().zip(with) {
            if word.load(Ordering::Relaxed) != *with {
                word.store(*with, Ordering::Release);
            }
        }
    }

    /// Where a SYN goes that belongs to no known connection.
    pub(super) fn target(&self, hash: u32) -> Option<Target> {
        let words = &self.element(0)[TARGETS_WORD..];
        Target::new(words[hash as usize % TARGETS].load(Ordering::Acquire))
    }

    pub(super) fn has_port(&self, port: u16) -> bool {
        self.bit(PORTS_ELEMENT, port.into())
    }

    pub(super) fn is_known(&self, hash: u32) -> bool {
        self.bit(KNOWN_ELEMENT, known_bit(hash))
    }

    fn bit(&self, element: u32, bit: u32) -> bool {
        let word = element as usize * ELEMENT_WORDS + (bit >> 5) as usize;
        self.words()[word].load(Ordering::Acquire) >> (bit & 31) & 1 == 1
    }

    /// The hash of a connection.
    pub(super) fn hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        let mut hash = self.words()[0].load(Ordering::Relaxed);
        for ip in [remote.ip(), local.ip()] {
            match ip {
                IpAddr::V4(ip) => hash = mix(hash, u32::from_ne_bytes(ip.octets())),
                IpAddr::V6(ip) => {
                    let octets = ip.octets();
                    let (words, _) = octets.as_chunks();
                    for word in words {
                        hash = mix(hash, u32::from_ne_bytes(*word));
                    }
                }
            }
        }
        let [a, b] = remote.port().to_be_bytes();
        let [c, d] = local.port().to_be_bytes();
        mix(hash, u32::from_ne_bytes([a, b, c, d]))
    }
}

/// The multiplier and the shift of the hash, which takes the words of a packet as they lie there.
pub(super) const HASH_FACTOR: u32 = 0x9e37_79b1;
pub(super) const HASH_SHIFT: u32 = 15;

fn mix(hash: u32, word: u32) -> u32 {
    let hash = (hash ^ word).wrapping_mul(HASH_FACTOR);
    hash ^ hash >> HASH_SHIFT
}

/// The bit of a known connection: not those bits of its hash that choose a target.
fn known_bit(hash: u32) -> u32 {
    hash >> (32 - KNOWN_BITS_LOG2)
}
