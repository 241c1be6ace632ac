//! The memory of the host process under clients that never finish what they begin, counted at the
//! allocator.

#[allow(dead_code, reason = "other users of this file need the rest")]
#[path = "../../host/tests/crowd/mod.rs"]
mod crowd;

use std::collections::HashSet;

use crowd::{Crowd, PORTS_PER_ADDRESS};
use server::{Config, Server};
use wire::tcp::Flags;

const MIB: usize = 1 << 20;

/// Connections of one address.
const ATTACKERS: usize = 28_000;

/// A piece of a head that never ends, ...
const PIECE_BYTES: usize = 1000;

/// ... of which each connection sends so many: just below the longest head.
const PIECES: usize = 16;

/// What the server may keep of buffers, and the tables and queues that grow with resets, in bytes.
const SPARE_BYTES: usize = 6 * MIB;

const REQUEST: &[u8] = b"HEAD /file HTTP/1.1\r\nHost: a\r\n\r\n";

/// A server with many connections of one address and one of another one, which sends a request from
/// time to time.
struct Scene {
    crowd: Crowd<Server>,
    /// The connections of the one address that were not reset.
    attackers: Vec<usize>,
    client: usize,
    response_bytes: Option<u32>,
    memory_bytes_max: usize,
}

impl Scene {
    fn new(attackers: usize, memory_bytes_max: usize) -> Scene {
        let mut crowd = Crowd::of(Server::new(Config::default()), |config| {
            config.connection_memory_bytes_max = memory_bytes_max;
            config.admission.backlog_max = 1 << 17;
        });
        crowd.clients.reserve(PORTS_PER_ADDRESS + 1);
        let attackers = (0..attackers).map(|_| crowd.connect()).collect();
        crowd.resets = Some(Vec::with_capacity(ATTACKERS));
        // One with another address.
        crowd.clients.resize(PORTS_PER_ADDRESS, crowd.clients[0]);
        let client = crowd.connect();
        Scene {
            crowd,
            attackers,
            client,
            response_bytes: None,
            memory_bytes_max,
        }
    }

    /// The client's request is answered, in full.
    fn request(&mut self) {
        let before = self.crowd.clients[self.client].ack;
        self.crowd
            .say(self.client, Flags::ACK | Flags::PSH, REQUEST);
        // The answer to OPEN.
        self.crowd.turn();
        let received = self.crowd.clients[self.client].ack.wrapping_sub(before);
        assert_eq!(received, *self.response_bytes.get_or_insert(received));
        assert!(received > 100, "{received}");
        self.crowd.say(self.client, Flags::ACK, &[]);
        let bytes = self.crowd.stack.connection_memory_bytes();
        assert!(bytes <= self.memory_bytes_max, "{bytes} bytes");
    }

    /// Each attacker that is left sends this, one after the other.
    fn attack(&mut self, payload: &[u8]) {
        let mut gone = HashSet::new();
        for (count, attacker) in self.attackers.clone().into_iter().enumerate() {
            gone.extend(self.crowd.resets.as_mut().expect("a list").drain(..));
            if !gone.contains(&attacker) {
                self.crowd.say(attacker, Flags::ACK | Flags::PSH, payload);
            }
            if count % 100 == 0 {
                self.request();
            }
        }
        assert!(!gone.contains(&self.client), "the client was reset");
        self.attackers.retain(|attacker| !gone.contains(attacker));
    }
}

/// The most that this has allocated at a time.
fn peak(act: impl FnOnce()) -> usize {
    usize::try_from(allocation_counter::measure(act).bytes_max).unwrap()
}

#[test]
fn unfinished_heads_take_little_more_than_their_length() {
    let mut scene = Scene::new(1000, 512 * MIB);
    let begin = format!("GET /file HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(970));
    let bytes = peak(|| scene.attack(begin.as_bytes()));
    let each = bytes / scene.attackers.len();
    println!(
        "{each} bytes for each unfinished head of {} bytes",
        begin.len()
    );
    assert!(each < 5 * begin.len(), "{each}");
    assert_eq!(scene.attackers.len(), 1000);
}

#[test]
fn one_address_with_28_000_unfinished_heads_takes_no_more_than_the_bound() {
    const BOUND: usize = 16 * MIB;
    let mut scene = Scene::new(ATTACKERS, BOUND);
    let begin = b"GET /file HTTP/1.1\r\nHost: a\r\nX: ";
    let bytes = peak(|| {
        scene.attack(begin);
        for _ in 0..PIECES {
            scene.attack(&[b'x'; PIECE_BYTES]);
        }
    });
    let counters = scene.crowd.stack.counters();
    let evictions = counters.memory_evictions;
    println!("{bytes} bytes at most, {evictions} connections reset");
    assert!(evictions > 0);
    assert!(bytes < BOUND / 4 * 5 + SPARE_BYTES, "{bytes}");
    // Heads that are left are as long as before.
    assert_eq!(scene.attackers.len() as u64 + evictions, ATTACKERS as u64);
    assert!(scene.attackers.len() * PIECES * PIECE_BYTES > BOUND / 4);
}
