//! An application that forwards what comes from a client to a backend and back, and has the two
//! joined and given back whenever chance wants it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use host::app::{AppEvent, Application, CloseReason, Io, Owner, StreamId};
use host::splicing::{SpliceEnd, SpliceError, SpliceEvent, SpliceLimits};

use crate::random::Random;

/// Two streams that are forwarded to each other.
#[derive(Debug, Default)]
struct Pair {
    streams: [Option<StreamId>; 2],
    buffers: [VecDeque<u8>; 2],
    has_ended: [bool; 2],
    is_shut: [bool; 2],
    is_connected: bool,
    is_spliced: bool,
    /// Bytes that were copied since it was joined last.
    copied: u64,
    splices_after: u64,
}

/// What has become of splices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) joined: u64,
    pub(crate) returned: u64,
    pub(crate) refused: u64,
    pub(crate) finished: u64,
    pub(crate) reset: u64,
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) backend: SocketAddr,
    pub(crate) random: Random,
    /// Whether streams are given back, in permille of the progress that is reported.
    pub(crate) returns_permille: u64,
    pairs: BTreeMap<usize, Pair>,
    places: BTreeMap<StreamId, (usize, usize)>,
    pub(crate) seen: Seen,
    /// The port of the client, by our port to the backend.
    pub(crate) clients: BTreeMap<u16, u16>,
    next: usize,
}

impl Proxy {
    pub(crate) fn new(backend: SocketAddr, mut random: Random) -> Proxy {
        Proxy {
            backend,
            returns_permille: random.pick(&[0, 200, 800]),
            random,
            pairs: BTreeMap::new(),
            places: BTreeMap::new(),
            seen: Seen::default(),
            clients: BTreeMap::new(),
            next: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.places.is_empty()
    }

    fn pump(&mut self, io: &mut dyn Io, place: usize) {
        let Some(pair) = self.pairs.get_mut(&place) else {
            return;
        };
        if pair.is_spliced || !pair.is_connected {
            return;
        }
        for side in [0, 1] {
            forward(io, pair, side);
        }
        let [Some(a), Some(b)] = pair.streams else {
            return;
        };
        let is_empty = pair.buffers.iter().all(VecDeque::is_empty);
        let is_open = !pair.has_ended.contains(&true);
        if is_empty && is_open && pair.copied >= pair.splices_after {
            pair.splices_after = u64::MAX;
            let limits = SpliceLimits {
                idle: Some(Duration::from_secs(100)),
                life: None,
            };
            match io.splice(a, b, limits) {
                Ok(()) => pair.is_spliced = true,
                Err(SpliceError::Timestamps | SpliceError::Full | SpliceError::NotOpen) => {
                    self.seen.refused += 1;
                }
                Err(SpliceError::NoNicStack) => self.seen.refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    fn on_splice(&mut self, io: &mut dyn Io, stream: StreamId, event: SpliceEvent) {
        let Some(&(place, _)) = self.places.get(&stream) else {
            return;
        };
        match event {
            SpliceEvent::Joined => self.seen.joined += 1,
            SpliceEvent::Progress { .. } => {
                if self.random.permille(self.returns_permille) {
                    io.unsplice(stream);
                }
            }
            SpliceEvent::Returned { bytes, .. } => {
                self.seen.returned += 1;
                self.seen.bytes += bytes[0] + bytes[1];
                if let Some(pair) = self.pairs.get_mut(&place) {
                    pair.is_spliced = false;
                    pair.copied = 0;
                    pair.splices_after = self.random.below(50_000);
                }
                self.pump(io, place);
            }
            SpliceEvent::Ended { end, bytes } => {
                self.seen.bytes += bytes[0] + bytes[1];
                match end {
                    SpliceEnd::Finished => self.seen.finished += 1,
                    SpliceEnd::Reset { .. } | SpliceEnd::Aborted => self.seen.reset += 1,
                    SpliceEnd::DataPlaneFailed | SpliceEnd::Idle => self.seen.failed += 1,
                    SpliceEnd::Overdue => panic!("no life was bounded"),
                }
            }
        }
    }

    fn on_closed(&mut self, io: &mut dyn Io, stream: StreamId, reason: CloseReason) {
        let Some((place, side)) = self.places.remove(&stream) else {
            return;
        };
        let Some(pair) = self.pairs.get_mut(&place) else {
            return;
        };
        pair.streams[side] = None;
        match pair.streams[1 - side] {
            None => {
                self.pairs.remove(&place);
            }
            Some(other) if reason != CloseReason::Finished => io.abort(other),
            // It has closed in order, so that both of its directions had ended. What had come from
            // it may not have been read.
            Some(_) => {
                pair.buffers[side].extend(io.take_unread(stream));
                pair.has_ended[side] = true;
                self.pump(io, place);
            }
        }
    }
}

/// Moves what has come of one stream to the other, end included.
fn forward(io: &mut dyn Io, pair: &mut Pair, side: usize) {
    let (from, to) = (pair.streams[side], pair.streams[1 - side]);
    let Some(to) = to else {
        pair.buffers[side].clear();
        return;
    };
    let mut scratch = [0; 3000];
    loop {
        let buffer = &mut pair.buffers[side];
        let taken = io.write(to, buffer.make_contiguous());
        buffer.drain(..taken);
        pair.copied += taken as u64;
        let count = match from {
            Some(from) if buffer.is_empty() => io.read(from, &mut scratch),
            _ => 0,
        };
        if count == 0 {
            break;
        }
        buffer.extend(&scratch[..count]);
    }
    if pair.has_ended[side] && pair.buffers[side].is_empty() && !pair.is_shut[side] {
        pair.is_shut[side] = true;
        io.shutdown(to);
    }
}

impl Application for Proxy {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        match event {
            AppEvent::Accepted { peer, .. } => {
                let place = self.next;
                self.next += 1;
                let backend = io.connect(Owner::SERVER, None, self.backend);
                let backend = backend.expect("there are ports");
                let (local, _) = io.addresses(backend).expect("it is there");
                self.clients.insert(local.port(), peer.port());
                let pair = Pair {
                    streams: [Some(stream), Some(backend)],
                    splices_after: self.random.below(3) * self.random.below(20_000),
                    ..Pair::default()
                };
                self.pairs.insert(place, pair);
                self.places.insert(stream, (place, 0));
                self.places.insert(backend, (place, 1));
            }
            AppEvent::Splice(event) => return self.on_splice(io, stream, event),
            AppEvent::Closed { reason, .. } => return self.on_closed(io, stream, reason),
            _ => {}
        }
        let Some(&(place, side)) = self.places.get(&stream) else {
            return;
        };
        if let Some(pair) = self.pairs.get_mut(&place) {
            pair.has_ended[side] |= event == AppEvent::PeerFinished;
            pair.is_connected |= event == AppEvent::Connected;
        }
        self.pump(io, place);
    }
}
