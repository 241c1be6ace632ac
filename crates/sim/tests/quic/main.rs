//! QUIC over the split: the engine of crate `quic`, a worker of crate `nic`, and the contract
//! between them, against clients that are quinn and rustls as they are. One seed decides all but
//! the handshakes' keys.
#![forbid(unsafe_code)]

mod nic_stack;
mod reordering;
mod world;

use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use contract::quic::{QuicKey, QuicPacket, QuicSend};
use contract::tls::Cipher;
use contract::{Command, FlowId, Segment, SendId};
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use nic_stack::{Nic, Plan, header};
use sim::Violation;
use sim::wire_watch::WireWatch;
use tcp::CongestionAlgorithm;
use world::{Receive, World};

/// What has happened over all seeds of a test.
struct Tally {
    /// NIC stacks that died.
    deaths: AtomicU64,
    /// QSENDs that had left one without the host knowing.
    unreported: AtomicU64,
    /// Packets that one had sealed, and that had not left it.
    unsent: AtomicU64,
    /// Key updates.
    updates: AtomicU64,
}

impl Tally {
    const fn new() -> Tally {
        Tally {
            deaths: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            updates: AtomicU64::new(0),
        }
    }

    /// Says what has happened, and checks that it is `enough`: deaths, QSENDs unreported, packets
    /// unsent and key updates.
    fn check(&self, enough: [u64; 4]) {
        let all = [&self.deaths, &self.unreported, &self.unsent, &self.updates];
        let all = all.map(|it| it.load(Relaxed));
        let [deaths, unreported, unsent, updates] = all;
        println!(
            "{deaths} deaths, {unreported} QSENDs left unreported, {unsent} packets sealed and \
             not sent, {updates} key updates"
        );
        // One seed alone may have few.
        if std::env::var("SEED").is_err() {
            let pairs = all.iter().zip(enough);
            pairs.for_each(|(count, enough)| assert!(*count >= enough, "{all:?}"));
        }
    }
}

static SOME: Tally = Tally::new();
static MANY: Tally = Tally::new();
static RECEIVING: Tally = Tally::new();

const CIPHERS: [Cipher; 3] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
];

#[test]
fn every_byte_arrives_whatever_the_cipher() {
    each_seed(3, |random| {
        let cipher = CIPHERS[random(3) as usize];
        let mut world = World::new(CongestionAlgorithm::Cubic, Receive::Host, random);
        world.connect(cipher);
        world.run_until_connected();
        world.request(0, 1, 5000, 1_000_000);
        world.request(0, 2, 0, 1);
        world.run_until_finished();
        assert_eq!(world.watch.packets, world.sent_packets);
        assert_eq!(world.sealed_packets(), world.sent_packets);
        assert_eq!(world.rejected, 0);
        // What clients have acknowledged is not kept.
        world.run_until(|world| world.blocks_pinned() == 0);
        let counters = world.nic_counters();
        assert_eq!(counters.prepares_ready, counters.prepares);
        assert!(counters.prepares > 1);
        assert_eq!(
            counters.block_misses, 0,
            "all was read before it was numbered"
        );
    });
}

#[test]
fn nothing_that_dies_or_is_lost_costs_a_byte_or_a_nonce() {
    each_seed(48, |random| {
        die_and_lose(random, Receive::Host, &SOME);
    });
    SOME.check([200, 20, 20, 100]);
}

#[test]
#[ignore = "ten times the seeds of the test above"]
fn a_thousand_nic_stacks_die_and_no_nonce_is_used_twice() {
    each_seed(240, |random| {
        die_and_lose(random, Receive::Host, &MANY);
    });
    MANY.check([1000, 100, 100, 500]);
}

/// The same where NIC stacks open what clients send.
#[test]
fn nothing_that_dies_or_is_lost_costs_a_byte_where_nic_stacks_open() {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    static HANDED_UP: AtomicU64 = AtomicU64::new(0);
    static HELD: AtomicU64 = AtomicU64::new(0);
    each_seed(24, |random| {
        let [opened, handed_up, held] = die_and_lose(random, Receive::Nic, &RECEIVING);
        OPENED.fetch_add(opened, Relaxed);
        HANDED_UP.fetch_add(handed_up, Relaxed);
        HELD.fetch_add(held, Relaxed);
    });
    RECEIVING.check([100, 10, 10, 50]);
    let [opened, handed_up, held] = [&OPENED, &HANDED_UP, &HELD].map(|it| it.load(Relaxed));
    println!("{opened} packets opened, {held} of them held, {handed_up} datagrams handed up");
    if std::env::var("SEED").is_err() {
        assert!(opened > 1_000 && handed_up > 50 && held > 5);
    }
}

/// Loss, reordering, damage, key updates from both ends, and NIC stacks that die; of several
/// clients.
///
/// Returns how many packets NIC stacks have opened, how many datagrams they have handed up, and how
/// many packets the last of them has held.
fn die_and_lose(random: &mut dyn FnMut(u64) -> u64, receive: Receive, tally: &Tally) -> [u64; 3] {
    let algorithm = CongestionAlgorithm::ALL[random(3) as usize];
    let mut world = World::new(algorithm, receive, random);
    world.weather = Weather {
        lost: (world.random)(15),
        late: (world.random)(20),
        damaged: (world.random)(5),
    };
    let clients = 1 + (world.random)(3) as usize;
    for _ in 0..clients {
        let cipher = CIPHERS[(world.random)(3) as usize];
        world.connect(cipher);
    }
    world.run_until_connected();
    for client in 0..clients {
        for file in 1..3 {
            let len = 200_000 + (world.random)(300_000);
            let offset = (world.random)(1 << 20);
            world.request(client, file, offset, len);
        }
    }
    let mut next = 0;
    world.run_until(|world| {
        if world.sent_packets >= next {
            next = world.sent_packets + 20 + (world.random)(80);
            match (world.random)(4) {
                0 => world.update_keys_of_server(),
                1 => world.update_keys_of_client(),
                _ => world.replace_nic(),
            }
        }
        world.are_finished()
    });
    assert_eq!(world.watch.packets, world.sent_packets);
    assert_eq!(world.rejected, 0);
    assert_eq!(world.lost, 0, "no connection is lost");
    tally.deaths.fetch_add(world.nic_deaths, Relaxed);
    tally.unreported.fetch_add(world.unreported, Relaxed);
    let unsent = world.sealed_packets() - world.sent_packets;
    tally.unsent.fetch_add(unsent, Relaxed);
    let updates = (world.watch.keys() - clients) as u64;
    tally.updates.fetch_add(updates, Relaxed);
    assert!(receive == Receive::Nic || world.opened == 0);
    // Such as were opened before a key update, and are looked at long after it.
    assert!(world.refused * 10 <= world.opened, "{}", world.refused);
    let held = world.nic_counters().quic_packets_held;
    [world.opened, world.handed_up, held]
}

/// The host makes a mistake: a number is given out twice. The NIC stack does not seal it.
#[test]
fn a_number_that_comes_twice_is_refused() {
    each_seed(1, |random| {
        let mut world = World::new(CongestionAlgorithm::Cubic, Receive::Host, random);
        world.connect(Cipher::Aes128Gcm);
        world.run_until_connected();
        world.repeats_sends = true;
        world.request(0, 1, 0, 100_000);
        world.run_until_finished();
        assert!(world.rejected > 10, "{} were refused", world.rejected);
        assert_eq!(world.watch.packets, world.sealed_packets());
    });
}

/// Two NIC stacks, the second of which gets a floor that is too low: the watch must notice.
#[test]
fn a_number_that_two_nic_stacks_seal_is_noticed() {
    const KEY: QuicKey<'static> = QuicKey {
        flow: FlowId(1),
        generation: 0,
        cipher: Cipher::Aes128Gcm,
        key: &[1; 16],
        iv: [2; 12],
        header_key: &[3; 16],
        floor: 0,
    };
    let mut watch = WireWatch::default();
    watch.on_key(&KEY);
    let ends = ["192.0.2.2:443", "192.0.2.1:5000"].map(|end| end.parse().expect("an address"));
    let header = header(ends[0], ends[1]);
    let mut seen = Vec::new();
    for plaintext in [b"what was sent before death", b"something else, afterwards"] {
        let plan = Plan {
            cache_bytes: 0,
            read_us_max: 0,
            seed: 0,
        };
        let (mut host, mut nic) = Nic::start(0, &[], &Rc::default(), &plan);
        host.send(&Command::QuicKey(KEY)).expect("room");
        let send = QuicSend {
            id: SendId(1),
            flow: FlowId(1),
            issued_us: 0,
            not_before_us: 0,
            header: &header,
            packets: vec![QuicPacket {
                number: 5,
                generation: 0,
                prefix: b"",
                header: &[0x40, 9, 9, 9, 9, 9, 9, 9, 9, 5],
                segments: 1,
            }],
            segments: vec![Segment::Inline(plaintext)],
        };
        host.send(&Command::QuicSend(send)).expect("room");
        host.flush();
        nic.work(1);
        let datagrams = nic.take_datagrams();
        assert_eq!(datagrams.len(), 1, "the number is new to it");
        for (_, datagram) in datagrams {
            seen.push(watch.on_datagram(FlowId(1), 8, &datagram).err());
        }
    }
    let twice = "number 5 was sealed twice under a key".to_owned();
    assert_eq!(seen, [None, Some(Violation(twice))]);
}
