//! Clients that do anything in any order: what comes out is well-formed, and nothing is left over.

use std::time::Duration;

use host::app::{QuicConnection, StreamId};
use server::Config;

use crate::http3::client::{
    DATA, GOAWAY, HEADERS, MAX_PUSH_ID, PRIORITY_UPDATE, RESERVED, SETTINGS, frame, get, request,
    response, varint,
};
use crate::lab::Lab;

/// Numbers that the seed decides (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// Says which seed it was, if the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed is {}", self.0);
        }
    }
}

/// What a client sends on a request stream.
fn on_request(random: &mut Random) -> Vec<u8> {
    let path = random.one_of(&["/a", "/none", "/large", "/", "*"]);
    let method = random.one_of(&["GET", "HEAD", "OPTIONS", "POST"]);
    let fields = [
        ("range", "bytes=0-9, 20-29"),
        ("if-none-match", "*"),
        ("priority", "u=1, i"),
        ("content-length", "4"),
        ("te", "trailers"),
        ("expect", "100-continue"),
    ];
    let fields: Vec<_> = (0..random.below(3))
        .map(|_| random.one_of(&fields))
        .collect();
    let mut bytes = Vec::new();
    for _ in 0..random.below(2) {
        bytes.extend(frame(RESERVED, vec![0; random.below(2000)]));
    }
    bytes.extend(request(method, path, &fields));
    for _ in 0..random.below(3) {
        bytes.extend(frame(DATA, vec![0; random.below(5)]));
    }
    if random.below(4) == 0 {
        bytes.extend(frame(HEADERS, [0, 0]));
    }
    bytes
}

/// What a client sends on a stream in one direction.
fn on_unidirectional(random: &mut Random) -> Vec<u8> {
    let mut bytes = varint(random.one_of(&[0, 0, 2, 3, 0x21]));
    let kinds = [SETTINGS, GOAWAY, MAX_PUSH_ID, PRIORITY_UPDATE, RESERVED];
    if bytes == [0] {
        bytes.extend(frame(SETTINGS, ""));
        for _ in 0..random.below(4) {
            let id = varint(random.one_of(&[0, 4, 8, 1 << 40]));
            bytes.extend(frame(random.one_of(&kinds), id));
        }
    }
    bytes
}

/// A lab, and what its clients have opened.
struct Clients {
    lab: Lab,
    connections: Vec<QuicConnection>,
    /// Those on which more can be sent.
    open: Vec<StreamId>,
    requests: Vec<StreamId>,
}

impl Clients {
    fn new() -> Self {
        let mut lab = Lab::alone(Config::default());
        lab.file("a", vec![b'a'; 1000]);
        lab.zeros("large", 1 << 20);
        lab.log_accesses();
        Clients {
            lab,
            connections: Vec::new(),
            open: Vec::new(),
            requests: Vec::new(),
        }
    }

    fn step(&mut self, random: &mut Random) {
        let lab = &mut self.lab;
        let live = |connection: &&QuicConnection| lab.quic_closed(**connection).is_none();
        let Some(&connection) = self.connections.iter().rev().find(live) else {
            self.connections.push(lab.open_quic(false));
            return;
        };
        match random.below(16) {
            0..6 => {
                let is_unidirectional = random.below(5) == 0;
                let mut bytes = match is_unidirectional {
                    true => on_unidirectional(random),
                    false => on_request(random),
                };
                while random.below(6) == 0 {
                    let at = random.below(bytes.len());
                    bytes[at] = random.below(256) as u8;
                }
                if random.below(6) == 0 {
                    bytes.truncate(random.below(bytes.len()) + 1);
                }
                let stream = lab.open_stream(connection, is_unidirectional);
                let (now, later) = bytes.split_at(random.below(bytes.len() + 1));
                lab.limit_queue(stream, random.one_of(&[3, 100, u64::MAX]));
                lab.send(stream, now);
                lab.send(stream, later);
                self.open.push(stream);
                if !is_unidirectional {
                    self.requests.push(stream);
                }
            }
            6..11 if self.open.is_empty() => {}
            what @ 6..11 => {
                let stream = self.open.swap_remove(random.below(self.open.len()));
                let is_over = lab.stop_code(stream).is_some() || lab.is_closed(stream);
                match what {
                    6..9 if is_over => {}
                    6..9 => lab.finish(stream),
                    9 => lab.peer_resets(stream, 0x10c),
                    _ => lab.peer_stops(stream, 0x10c),
                }
            }
            11 => lab.pass(Duration::from_millis(random.below(40_000) as u64)),
            12 => lab.hold_opens(),
            13..15 => lab.answer_opens(),
            _ if random.below(8) == 0 => lab.lose_quic(connection),
            _ => {}
        }
    }

    /// All that was answered to its end is well-formed; nothing is left when all have gone.
    fn end(mut self) -> u64 {
        let lab = &mut self.lab;
        lab.answer_opens();
        lab.pass(Duration::from_secs(20));
        let mut whole = 0;
        for &stream in &self.requests {
            if lab.is_shut_down(stream) && lab.reset_code(stream).is_none() {
                whole += u64::from(response(&lab.received(stream)).status < 400);
            }
        }
        for &connection in &self.connections {
            if lab.quic_closed(connection).is_none() {
                lab.lose_quic(connection);
            }
        }
        assert_eq!(lab.connections(), 0);
        assert_eq!(lab.files_left_open(), 0);
        let counters = lab.counters();
        assert_eq!(counters.connections_accepted, counters.connections_closed);
        let mut records = 0;
        lab.records(|_| records += 1);
        assert_eq!(records, counters.requests - counters.open_timeouts);
        whole
    }
}

/// Covers: RFC 9114 §8, RFC 9114 §10.5
#[test]
fn clients_that_do_anything_break_nothing() {
    let mut whole = 0;
    for seed in 1..=1000 {
        let _seed = Seed(seed);
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut clients = Clients::new();
        (0..120).for_each(|_| clients.step(&mut random));
        whole += clients.end();
    }
    assert!(whole > 5000, "{whole} requests were answered");
    let mut lab = Lab::new();
    let connection = lab.http3();
    assert_eq!(lab.ask3(connection, &get("/none")).status, 404);
}
