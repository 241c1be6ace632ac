//! Clients that do anything in any order: responses are whole, windows are respected, and nothing
//! is left over.

use std::collections::BTreeMap;
use std::time::Duration;

use fakes::seeds::each_seed;
use server::Config;

use crate::http2::client::{
    ACK, CANCEL, Client, DATA, END_STREAM, HEADERS, NO_ERROR, PING, PREFACE, PRIORITY_UPDATE,
    REFUSED_STREAM, RST_STREAM, SETTINGS, block, content, frame, headers, request, rst_stream,
    settings, window_update,
};
use crate::lab::Lab;

type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

const FILES: [(&str, usize); 5] = [
    ("empty", 0),
    ("one", 1),
    ("a", 4087),
    ("b", 20_000),
    ("c", 150_000),
];

fn lab() -> Lab {
    let mut lab = Lab::alone(Config {
        http2_streams_max: 10,
        ..Config::default()
    });
    FILES
        .iter()
        .for_each(|&(path, bytes)| lab.file(path, content(bytes)));
    lab.log_accesses();
    lab
}

/// A request, with the file's length and the ranges of the file.
#[derive(Debug)]
struct Asked {
    bytes: usize,
    parts: Vec<(usize, usize)>,
    is_head: bool,
    is_cancelled: bool,
    /// More of the request follows.
    is_unfinished: bool,
}

impl Asked {
    /// The body is that of the response, or has all of its parts.
    fn is_answered_by(&self, body: &[u8]) -> bool {
        let all = content(self.bytes);
        match self.parts[..] {
            _ if self.is_head => body.is_empty(),
            [] => body == all,
            [(first, last)] => body == &all[first..=last],
            _ => self.parts.iter().all(|&(first, last)| {
                let part = &all[first..=last];
                body.windows(part.len()).any(|place| place == part)
            }),
        }
    }
}

/// Windows as the client has granted them, in bytes. An increase counts once it is sent, a decrease
/// once it is acknowledged.
struct Windows {
    connection: i64,
    streams: BTreeMap<u32, i64>,
    /// Values of SETTINGS_INITIAL_WINDOW_SIZE that may be in effect.
    initial: Vec<i64>,
    frames_seen: usize,
}

impl Windows {
    /// Checks frames that have arrived.
    fn check(&mut self, client: &Client) {
        for frame in &client.frames[self.frames_seen..] {
            match frame.kind {
                SETTINGS if frame.flags & ACK != 0 && self.initial.len() > 1 => {
                    self.initial.remove(0);
                }
                DATA => {
                    let bytes = frame.payload.len() as i64;
                    self.connection -= bytes;
                    let stream = self.streams.entry(frame.stream).or_default();
                    *stream -= bytes;
                    let initial = self.initial.iter().max().unwrap();
                    assert!(self.connection >= 0 && *stream + initial >= 0);
                }
                _ => {}
            }
        }
        self.frames_seen = client.frames.len();
    }
}

/// A client, and its requests.
struct Session {
    client: Client,
    asked: BTreeMap<u32, Asked>,
    windows: Windows,
    /// Bytes of the client that are still to be sent.
    later: Vec<u8>,
    holds: bool,
}

impl Session {
    fn new(lab: &mut Lab, random: Random<'_>) -> Session {
        let client = Client::silent(lab);
        let initial = random(3) * random(40_000);
        let ack = frame(SETTINGS, ACK, 0, b"");
        let values = [(4, initial as u32), (5, 16_384 + random(2) as u32 * 50_000)];
        client.send(lab, [PREFACE, &settings(&values), &ack].concat());
        let mut session = Session {
            client,
            asked: BTreeMap::new(),
            windows: Windows {
                connection: 65_535,
                streams: BTreeMap::new(),
                initial: vec![initial as i64],
                frames_seen: 0,
            },
            later: Vec::new(),
            holds: false,
        };
        session.check(lab);
        session
    }

    /// Sends bytes, or a part of them now and the rest before the next ones.
    fn send(&mut self, lab: &mut Lab, random: Random<'_>, bytes: &[u8]) {
        self.later.extend_from_slice(bytes);
        let now = match random(3) {
            0 => random(self.later.len() as u64 + 1) as usize,
            _ => self.later.len(),
        };
        let rest = self.later.split_off(now);
        self.client.send(lab, &self.later);
        self.later = rest;
    }

    fn request(&mut self, random: Random<'_>) -> Vec<u8> {
        let (path, bytes) = FILES[random(5) as usize];
        let id = self.client.next_id();
        let is_head = random(6) == 0;
        let parts = match random(6) {
            0 | 1 if bytes > 1 => {
                let first = random(bytes as u64) as usize;
                vec![(first, first + random((bytes - first) as u64) as usize)]
            }
            2 if bytes > 10_000 => {
                let second = 5000 + random(10_000) as usize;
                vec![(0, random(50) as usize), (5000, second)]
            }
            _ => Vec::new(),
        };
        let ranges = parts.iter().map(|(first, last)| format!("{first}-{last}"));
        let ranges = format!("bytes={}", ranges.collect::<Vec<_>>().join(","));
        let urgency = format!("u={}{}", random(8), [", i", ""][random(2) as usize]);
        let mut more = vec![("priority", &urgency[..])];
        if !parts.is_empty() {
            more.push(("range", &ranges));
        }
        let method = if is_head { "HEAD" } else { "GET" };
        let block = block(&request(method, &format!("/{path}"), &more));
        let is_unfinished = random(5) == 0;
        let asked = Asked {
            bytes,
            parts,
            is_head,
            is_cancelled: false,
            is_unfinished,
        };
        self.asked.insert(id, asked);
        headers(id, if is_unfinished { 0 } else { END_STREAM }, &block)
    }

    fn some_id(&self, random: Random<'_>) -> Option<u32> {
        let ids: Vec<u32> = self.asked.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[random(ids.len() as u64) as usize])
    }

    fn step(&mut self, lab: &mut Lab, random: Random<'_>) {
        let stream = self.client.stream;
        let most = [2, 30_000][random(2) as usize];
        let increment = 1 + random(most) as u32;
        let bytes = match random(20) {
            0..5 if self.asked.len() < 40 => self.request(random),
            5 | 6 => {
                self.windows.connection += i64::from(increment);
                window_update(0, increment)
            }
            7..10 => match self.some_id(random) {
                Some(id) => {
                    *self.windows.streams.entry(id).or_default() += i64::from(increment);
                    window_update(id, increment)
                }
                None => return,
            },
            10 => {
                self.windows.initial.push(increment.into());
                settings(&[(4, increment), (1, random(200) as u32 * 40)])
            }
            11 => frame(PING, 0, 0, [1; 8]),
            12 => {
                let id = 1 + 2 * random(10) as u32;
                let value = format!("u={}", random(8));
                frame(
                    PRIORITY_UPDATE,
                    0,
                    0,
                    [&id.to_be_bytes()[..], value.as_bytes()].concat(),
                )
            }
            13 => {
                let Some(id) = self.some_id(random) else {
                    return;
                };
                let asked = self.asked.get_mut(&id).unwrap();
                (asked.is_cancelled, asked.is_unfinished) = (true, false);
                rst_stream(id, CANCEL)
            }
            14 => {
                let unfinished = self.asked.iter_mut().find(|(_, asked)| asked.is_unfinished);
                let Some((&id, asked)) = unfinished else {
                    return;
                };
                asked.is_unfinished = random(2) == 0;
                match (asked.is_unfinished, random(2)) {
                    (true, _) => frame(DATA, 0, id, [0; 100]),
                    (false, 0) => frame(DATA, END_STREAM, id, [0; 100]),
                    (false, _) => headers(id, END_STREAM, &block(&[("x", "trailer")])),
                }
            }
            15 => return lab.limit_queue(stream, [1, 7, 100, 5000, u64::MAX][random(5) as usize]),
            16 => return lab.acknowledges(stream, random(2) == 0),
            17 => {
                let unacknowledged = lab.unacknowledged_bytes(stream);
                let bytes = random(unacknowledged + 1);
                return lab.acknowledge(stream, bytes);
            }
            18 if self.holds => {
                self.holds = false;
                return lab.answer_opens();
            }
            18 => {
                self.holds = true;
                return lab.hold_opens();
            }
            _ => return lab.pass(Duration::from_millis(random(20))),
        };
        self.send(lab, random, &bytes);
    }

    fn check(&mut self, lab: &Lab) {
        self.client.read(lab);
        self.windows.check(&self.client);
    }

    /// Opens all windows; returns how many responses have come to their ends.
    fn end(mut self, lab: &mut Lab) -> usize {
        let stream = self.client.stream;
        let later = std::mem::take(&mut self.later);
        self.client.send(lab, &later);
        lab.answer_opens();
        lab.limit_queue(stream, u64::MAX);
        lab.acknowledges(stream, true);
        self.windows.connection += 1 << 30;
        self.windows.initial.push(1 << 30);
        self.client.send(lab, window_update(0, 1 << 30));
        self.client.send(lab, settings(&[(4, 1 << 30)]));
        self.check(lab);
        assert_eq!(self.client.goaway(lab), None);
        let mut whole = 0;
        for (&id, asked) in &self.asked {
            let received = self.client.received(lab, id);
            if received.has_ended {
                assert!(asked.is_answered_by(&received.body), "{id}: {asked:?}");
                assert!(matches!(received.reset, None | Some(NO_ERROR)));
                whole += 1;
            } else {
                let is_refused = received.reset == Some(REFUSED_STREAM);
                assert!(
                    is_refused || asked.is_cancelled,
                    "{id}: {asked:?} {:?}",
                    received.reset
                );
            }
            if asked.is_unfinished && received.reset.is_none() {
                self.client.send(lab, frame(DATA, END_STREAM, id, b""));
            }
        }
        let bytes = lab.memory_bytes(stream);
        assert!(bytes < 10_000, "{bytes} bytes of memory");
        lab.finish(stream);
        assert_eq!(self.client.goaway(lab), None);
        assert!(lab.is_closed(stream));
        whole
    }
}

/// Covers: RFC 9113 §5, RFC 9113 §5.2.1, RFC 9113 §6.9.2
#[test]
fn valid_sessions_get_whole_responses_within_their_windows() {
    each_seed(400, |random| {
        let mut lab = lab();
        let mut sessions = [(); 2].map(|()| Session::new(&mut lab, random));
        for _ in 0..200 {
            let session = &mut sessions[random(2) as usize];
            session.step(&mut lab, random);
            session.check(&lab);
        }
        let whole: usize = sessions.map(|session| session.end(&mut lab)).iter().sum();
        assert!(whole > 2, "{whole} responses");
        assert_eq!((lab.connections(), lab.files_left_open()), (0, 0));
        let counters = lab.counters();
        assert_eq!(counters.http2_stream_errors, 0);
        let mut records = 0;
        lab.records(|_| records += 1);
        assert_eq!(records, counters.requests);
    });
}

/// A valid session of a client that sends all at once.
fn session(random: Random<'_>) -> Vec<u8> {
    let mut bytes = [
        PREFACE,
        &settings(&[(4, 5000)]),
        &frame(SETTINGS, ACK, 0, b""),
    ]
    .concat();
    for id in (1..30).step_by(2) {
        let (path, _) = FILES[random(5) as usize];
        let fields = block(&request(
            "GET",
            &format!("/{path}"),
            &[("range", "bytes=0-4,9-")],
        ));
        match random(4) {
            0 => {
                bytes.extend(headers(id, 0, &fields));
                bytes.extend(frame(DATA, 8, id, [3; 50]));
                bytes.extend(headers(id, END_STREAM, &block(&[("x", "y")])));
            }
            1 => {
                let (first, second) = fields.split_at(20);
                bytes.extend(frame(HEADERS, END_STREAM, id, first));
                bytes.extend(frame(9, 4, id, second));
            }
            _ => bytes.extend(headers(id, END_STREAM, &fields)),
        }
        match random(6) {
            0 => bytes.extend(rst_stream(id, CANCEL)),
            1 => bytes.extend(window_update(id, 100_000)),
            2 => bytes.extend(window_update(0, 100_000)),
            3 => bytes.extend(settings(&[
                (4, random(70_000) as u32),
                (1, 0),
                (6, 100_000),
            ])),
            4 => bytes.extend(frame(PING, 0, 0, [1; 8])),
            _ => bytes.extend(frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x09u=1, i")),
        }
    }
    bytes
}

/// Covers: RFC 9113 §5.4, RFC 9113 §10.5
#[test]
fn sessions_with_other_bytes_here_and_there_break_nothing() {
    each_seed(3000, |random| {
        let mut lab = lab();
        let mut bytes = session(random);
        for _ in 0..=random(6) {
            let at = random(bytes.len() as u64) as usize;
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random(256) as u8),
            }
        }
        let mut client = Client::silent(&mut lab);
        let stream = client.stream;
        if random(2) == 0 {
            lab.limit_queue(stream, 1 + random(3000));
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && !lab.is_aborted(stream) {
            let count = 1 + random(rest.len().min(2000) as u64) as usize;
            // A file that cannot be opened is one as long as the server does not know.
            lab.hold_opens();
            client.send(&mut lab, &rest[..count]);
            lab.answer_opens();
            rest = &rest[count..];
            lab.pass(Duration::from_millis(random(200)));
            assert!(lab.memory_bytes(stream) < 300_000);
        }
        client.read(&lab);
        let resets = client.frames_of(&lab, RST_STREAM).len();
        assert!(resets < 100, "{resets} streams are reset");
        if !lab.is_closed(stream) {
            lab.finish(stream);
        }
        lab.pass(Duration::from_secs(200));
        client.read(&lab);
        assert!(lab.is_closed(stream));
        assert_eq!((lab.connections(), lab.files_left_open()), (0, 0));
        let mut other = Client::open(&mut lab);
        assert_eq!(other.get(&mut lab, "/b").body, content(20_000));
    });
}
