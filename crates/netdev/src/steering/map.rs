//! The map, and its layout: elements of 16 words, 4.7 MB in all.
//!
//! ```text
//! 0             zero, number of flows, key of the hash: 4 words, 2 zeros, targets of SYNs: 8 words
//! 1 – 128       a bit for each TCP port whose SYNs are steered
//! 129 – 4224    a bit for each hash of a connection that the host may know
//! 4225          targets of flows: 16 words, one for each NIC worker
//! 4226 – 8321   tags of flows: a bucket of 16 each
//! 8322 – 73857  flows: 16 for each bucket
//! ```
//!
//! A flow is one connection whose frames a NIC worker gets. Its bucket follows from its hash, and
//! its tag is the hash itself; no two flows of a bucket have the same tag, so that a matching tag
//! leads to the only candidate. Its addresses and ports decide:
//!
//! ```text
//! 0  protocol, family and worker   1  ports, as in a header   2 –  addresses: remote, local
//! ```
//!
//! The hash is SipHash-1-3, under a secret key, of remote and local address and of the ports, in
//! packet order: a peer that chooses them cannot choose which ones collide. Half of its 64 bits are
//! used.
//!
//! The tag is written last and cleared first. A frame that arrives while one flow replaces another
//! may still match both; the worker hands up frames of flows that it does not have.

use std::fmt;
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use siphasher::sip::SipHasher13;

use super::bpf::{self, Mapping};

/// Protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP segments.
    Tcp,
    /// UDP datagrams.
    Udp,
}

impl Protocol {
    /// Returns the number in an IP header.
    pub(super) fn number(self) -> u8 {
        match self {
            Protocol::Tcp => wire::ip::TCP,
            Protocol::Udp => wire::ip::UDP,
        }
    }

    /// Returns the protocol of this number, if flows may have it.
    pub(super) fn of_number(number: u8) -> Option<Protocol> {
        let all = [Protocol::Tcp, Protocol::Udp];
        all.into_iter().find(|it| it.number() == number)
    }
}

/// Name of a NIC worker's port in the map.
pub type Target = NonZeroU32;

/// Words of an element.
pub(super) const ELEMENT_WORDS: usize = 16;
/// Bits of an element, as a power of two.
pub(super) const ELEMENT_BITS_LOG2: u32 = 9;

/// Most workers that get SYNs.
pub(super) const TARGETS: usize = 8;
/// Place of their names in the first element, in words.
pub(super) const TARGETS_WORD: usize = 8;

pub(super) const PORTS_ELEMENT: u32 = 1;
pub(super) const KNOWN_ELEMENT: u32 = PORTS_ELEMENT + (1 << (16 - ELEMENT_BITS_LOG2));

/// Flows listed, in the first element, in words.
pub(super) const FLOWS_WORD: usize = 1;

/// The key of the hash, in the first element, in words: two times 64 bits.
pub(super) const KEY_WORD: usize = 2;
const KEY_WORDS: usize = KEY_BYTES / size_of::<u32>();

/// Length of the key of the hash, in bytes.
pub const KEY_BYTES: usize = 16;

const _: () = assert!(
    KEY_WORD.is_multiple_of(2) && KEY_WORD + KEY_WORDS <= TARGETS_WORD,
    "programs load its halves as one word each"
);
const _: () = assert!(
    cfg!(target_endian = "little"),
    "programs hash words of this machine, SipHash those of little-endian ones"
);

/// Bits of known connections, as a power of two: sixteen for each connection that a host has at
/// most by default.
pub(super) const KNOWN_BITS_LOG2: u32 = 21;

pub(super) const FLOW_TARGETS_ELEMENT: u32 =
    KNOWN_ELEMENT + (1 << (KNOWN_BITS_LOG2 - ELEMENT_BITS_LOG2));
pub(super) const TAGS_ELEMENT: u32 = FLOW_TARGETS_ELEMENT + 1;

/// Buckets, as a power of two.
pub(super) const BUCKETS_LOG2: u32 = 12;
/// Flows of a bucket, as a power of two: their tags fill an element.
pub(super) const BUCKET_FLOWS_LOG2: u32 = 4;
const BUCKET_FLOWS: u32 = 1 << BUCKET_FLOWS_LOG2;

pub(super) const FLOWS_ELEMENT: u32 = TAGS_ELEMENT + (1 << BUCKETS_LOG2);
/// Is set in every tag.
pub(super) const FLOW_TAG_BIT: u32 = 1;
/// Parts of a flow's element, in words.
pub(super) const FLOW_OWNER_WORD: usize = 0;
pub(super) const FLOW_PORTS_WORD: usize = 1;
pub(super) const FLOW_ADDRESSES_WORD: usize = 2;
/// Bits of the worker in a flow's owner. The family is above the worker, and the protocol above the
/// family.
pub(super) const OWNER_WORKER_BITS: u32 = 4;
pub(super) const OWNER_FAMILY_BITS: u32 = 4;
pub(super) const OWNER_V4: u32 = 4;
pub(super) const OWNER_V6: u32 = 6;

pub(super) const ELEMENTS: u32 = FLOWS_ELEMENT + (1 << (BUCKETS_LOG2 + BUCKET_FLOWS_LOG2));

const WORDS: usize = ELEMENTS as usize * ELEMENT_WORDS;

const _: () = assert!(
    TARGETS_WORD + TARGETS == ELEMENT_WORDS && 32 * ELEMENT_WORDS == 1 << ELEMENT_BITS_LOG2,
    "targets and bits fill elements"
);
const _: () = assert!(
    BUCKET_FLOWS as usize == ELEMENT_WORDS
        && 1 << OWNER_WORKER_BITS == ELEMENT_WORDS
        && FLOW_ADDRESSES_WORD + 8 <= ELEMENT_WORDS,
    "tags of a bucket and targets of flows fill an element, and a flow fits into one"
);

/// Creates a map for [`SteeringMap::open`] and for ports. Needs `CAP_BPF` where the kernel keeps
/// `bpf(2)` from others.
pub fn create_map() -> io::Result<OwnedFd> {
    bpf::create_array(ELEMENTS, (ELEMENT_WORDS * size_of::<u32>()) as u32)
}

/// A steering map, shared by all clones.
#[derive(Clone)]
pub struct SteeringMap(Arc<Memory>);

enum Memory {
    Heap(Box<[AtomicU32]>),
    Mapped(Mapping),
}

impl SteeringMap {
    /// Connections that may be noted before notes of ended ones should be forgotten, by
    /// [`SteeringMap::note_only`]: with so full a map, one SYN in sixteen to a steered port goes to
    /// the host needlessly.
    pub const NOTES_MAX: usize = 1 << (KNOWN_BITS_LOG2 - 4);

    /// Most flows that [`SteeringMap::list_flow`] takes. Fewer fit as a rule: a bucket is full
    /// before all are.
    pub const FLOWS_MAX: usize = 1 << (BUCKETS_LOG2 + BUCKET_FLOWS_LOG2);

    /// Workers that may have flows: those with lower numbers.
    pub const FLOW_WORKERS: usize = 1 << OWNER_WORKER_BITS;

    /// Returns a map that no packet filter reads, for a simulation.
    pub fn in_memory(key: [u8; KEY_BYTES]) -> SteeringMap {
        let words = (0..WORDS).map(|_| AtomicU32::new(0)).collect();
        SteeringMap::keyed(Memory::Heap(words), key)
    }

    /// Maps the result of [`create_map`]. `key` must be random and secret, so that no peer knows
    /// which connections have the same hash.
    pub fn open(map: BorrowedFd<'_>, key: [u8; KEY_BYTES]) -> io::Result<SteeringMap> {
        let mapping = Mapping::new(map, WORDS)?;
        Ok(SteeringMap::keyed(Memory::Mapped(mapping), key))
    }

    fn keyed(memory: Memory, key: [u8; KEY_BYTES]) -> SteeringMap {
        let map = SteeringMap(Arc::new(memory));
        let (words, _) = key.as_chunks();
        for (word, bytes) in map.key_words().iter().zip(words) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        map
    }

    fn key_words(&self) -> &[AtomicU32] {
        &self.element(0)[KEY_WORD..][..KEY_WORDS]
    }

    fn key(&self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        let (chunks, _) = key.as_chunks_mut();
        for (chunk, word) in chunks.iter_mut().zip(self.key_words()) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        key
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

    /// Distributes SYNs among these ports from now on; without any, they go to the host. At most
    /// eight ports get SYNs.
    pub fn set_targets(&self, targets: &[Target]) {
        for (i, word) in self.element(0)[TARGETS_WORD..].iter().enumerate() {
            let count = targets.len().clamp(1, TARGETS);
            let target = targets.get(i % count).map_or(0, |target| target.get());
            word.store(target, Ordering::Release);
        }
    }

    /// Steers SYNs to these TCP ports from now on, and to no others.
    pub fn set_ports(&self, ports: impl IntoIterator<Item = u16>) {
        let mut words = [0u32; 1 << 11];
        for port in ports {
            words[usize::from(port >> 5)] |= 1 << (port & 31);
        }
        self.replace(PORTS_ELEMENT, &words);
    }

    /// Notes that the host knows this connection: its SYNs are the host's.
    pub fn note(&self, local: SocketAddr, remote: SocketAddr) {
        let bit = known_bit(self.hash(local, remote));
        let word = &self.words()[KNOWN_ELEMENT as usize * ELEMENT_WORDS + (bit >> 5) as usize];
        word.fetch_or(1 << (bit & 31), Ordering::Release);
    }

    /// Notes that the host knows these connections (each by its local and its remote end) and no
    /// others.
    pub fn note_only(&self, known: impl Iterator<Item = (SocketAddr, SocketAddr)>) {
        let mut words = vec![0u32; 1 << (KNOWN_BITS_LOG2 - 5)];
        for (local, remote) in known {
            let bit = known_bit(self.hash(local, remote));
            words[(bit >> 5) as usize] |= 1 << (bit & 31);
        }
        self.replace(KNOWN_ELEMENT, &words);
    }

    /// Directs flows of this worker to `target` from now on; without a target, to the host, even if
    /// they are listed. Flows of workers beyond [`SteeringMap::FLOW_WORKERS`] are never steered.
    pub fn set_flow_target(&self, worker: usize, target: Option<Target>) {
        if let Some(word) = self.element(FLOW_TARGETS_ELEMENT).get(worker) {
            word.store(target.map_or(0, Target::get), Ordering::Release);
        }
    }

    /// Gives all frames of this connection to the worker from now on. False if there is no room:
    /// they stay the host's. There is no room for a flow of UDP beside one of TCP with the same
    /// ends.
    pub fn list_flow(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        worker: usize,
    ) -> bool {
        let Some(key) = FlowKey::new(protocol, local, remote) else {
            return false;
        };
        let hash = self.hash(local, remote);
        let (tag, tags) = (tag(hash), self.tags(hash));
        let mut present = tags.iter().map(|word| word.load(Ordering::Relaxed));
        let free = present.clone().position(|present| present == 0);
        let is_taken = present.any(|present| present == tag);
        let (Some(place), false) = (free, is_taken || worker >= SteeringMap::FLOW_WORKERS) else {
            return false;
        };
        let flow = self.element(flow_element(hash, place));
        for (word, value) in flow[FLOW_PORTS_WORD..].iter().zip(key.words()) {
            word.store(*value, Ordering::Relaxed);
        }
        let owner = key.kind << OWNER_WORKER_BITS | worker as u32;
        flow[FLOW_OWNER_WORD].store(owner, Ordering::Relaxed);
        tags[place].store(tag, Ordering::Release);
        self.words()[FLOWS_WORD].fetch_add(1, Ordering::Release);
        true
    }

    /// Gives frames of this connection to the host from now on. True if it was listed.
    pub fn clear_flow(&self, protocol: Protocol, local: SocketAddr, remote: SocketAddr) -> bool {
        let hash = self.hash(local, remote);
        let Some((place, _)) = self.find_flow(hash, protocol, local, remote) else {
            return false;
        };
        self.tags(hash)[place].store(0, Ordering::Release);
        self.words()[FLOWS_WORD].fetch_sub(1, Ordering::Release);
        true
    }

    /// Returns the number of flows listed.
    pub fn flows(&self) -> usize {
        self.words()[FLOWS_WORD].load(Ordering::Relaxed) as usize
    }

    /// Returns the worker that a connection is listed for.
    pub(super) fn flow_worker(
        &self,
        hash: u32,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<usize> {
        let (_, owner) = self.find_flow(hash, protocol, local, remote)?;
        Some((owner & ((1 << OWNER_WORKER_BITS) - 1)) as usize)
    }

    /// Returns the port that flows of this worker go to.
    pub(super) fn flow_target(&self, worker: usize) -> Option<Target> {
        let word = self.element(FLOW_TARGETS_ELEMENT).get(worker)?;
        Target::new(word.load(Ordering::Acquire))
    }

    /// Returns the place of a flow in its bucket, and its owner.
    fn find_flow(
        &self,
        hash: u32,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(usize, u32)> {
        let key = FlowKey::new(protocol, local, remote)?;
        let tag = tag(hash);
        let mut tags = self.tags(hash).iter();
        let place = tags.position(|word| word.load(Ordering::Acquire) == tag)?;
        let flow = self.element(flow_element(hash, place));
        let owner = flow[FLOW_OWNER_WORD].load(Ordering::Relaxed);
        let is_same = owner >> OWNER_WORKER_BITS == key.kind
            && (flow[FLOW_PORTS_WORD..].iter().zip(key.words()))
                .all(|(word, value)| word.load(Ordering::Relaxed) == *value);
        is_same.then_some((place, owner))
    }

    /// Returns the tags of a flow's bucket.
    fn tags(&self, hash: u32) -> &[AtomicU32] {
        self.element(TAGS_ELEMENT + bucket(hash))
    }

    fn replace(&self, element: u32, with: &[u32]) {
        let words = &self.words()[element as usize * ELEMENT_WORDS..][..with.len()];
        for (word, with) in words.iter().zip(with) {
            if word.load(Ordering::Relaxed) != *with {
                word.store(*with, Ordering::Release);
            }
        }
    }

    /// Returns the port for a SYN that belongs to no known connection.
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

    /// Returns the hash of a connection.
    pub(super) fn hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.key());
        for ip in [remote.ip(), local.ip()] {
            match ip {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
        }
        hasher.write(&ports_word(local, remote).to_ne_bytes());
        hasher.finish() as u32
    }
}

/// Prints no key.
impl fmt::Debug for SteeringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeringMap")
            .field("flows", &self.flows())
            .finish_non_exhaustive()
    }
}

/// Ports and addresses of a flow, as words of an arriving packet.
struct FlowKey {
    /// Protocol and family.
    kind: u32,
    words: [u32; 9],
    count: usize,
}

impl FlowKey {
    /// `None` if the addresses are not of one family.
    fn new(protocol: Protocol, local: SocketAddr, remote: SocketAddr) -> Option<FlowKey> {
        let mut words = [0; 9];
        words[0] = ports_word(local, remote);
        let (family, count) = match (remote.ip(), local.ip()) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                words[1] = u32::from_ne_bytes(remote.octets());
                words[2] = u32::from_ne_bytes(local.octets());
                (OWNER_V4, 3)
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                let octets = [remote.octets(), local.octets()];
                let (chunks, _) = octets.as_flattened().as_chunks();
                for (word, chunk) in words[1..].iter_mut().zip(chunks) {
                    *word = u32::from_ne_bytes(*chunk);
                }
                (OWNER_V6, 9)
            }
            _ => return None,
        };
        Some(FlowKey {
            kind: u32::from(protocol.number()) << OWNER_FAMILY_BITS | family,
            words,
            count,
        })
    }

    fn words(&self) -> &[u32] {
        &self.words[..self.count]
    }
}

/// Returns the ports, as in an arriving packet.
fn ports_word(local: SocketAddr, remote: SocketAddr) -> u32 {
    let [a, b] = remote.port().to_be_bytes();
    let [c, d] = local.port().to_be_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Returns the tag of a flow, which is never zero.
fn tag(hash: u32) -> u32 {
    hash | FLOW_TAG_BIT
}

fn bucket(hash: u32) -> u32 {
    hash >> (32 - BUCKETS_LOG2)
}

fn flow_element(hash: u32, place: usize) -> u32 {
    FLOWS_ELEMENT + (bucket(hash) << BUCKET_FLOWS_LOG2) + place as u32
}

/// Returns the bit of a known connection, from other bits of the hash than those that choose a
/// target.
fn known_bit(hash: u32) -> u32 {
    hash >> (32 - KNOWN_BITS_LOG2)
}
