//! One download over a path with a bottleneck, in virtual time: a server, a queue, a client.
//!
//! Unlike [`crate::network`], which is about bad luck, this is about size: rate, delay, queue and
//! MTU are exact, nothing is random, and seconds of a fast link pass in no time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tcp::{Config, Connection, Instant, Limits, Transmit};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Segment};

/// What a SEND holds on a link with superpackets of 64 KB.
pub(crate) const SEND: Limits = Limits {
    bytes_max: 256 << 10,
    pieces_max: 32,
    real_bytes_max: 4096,
    direct_bytes_max: 0,
};

/// Packets that reach the client as one, as GRO merges them.
const MERGED: usize = 16;

/// Bottleneck and propagation. The way back has neither rate nor queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) bytes_per_second: u64,
    /// Without queueing.
    pub(crate) round_trip: Duration,
    /// What does not fit is dropped.
    pub(crate) queue_bytes: u64,
    /// What finds more than this in the queue is marked, if it may be, and dropped if not.
    pub(crate) mark_bytes: u64,
    /// Largest payload of a packet.
    pub(crate) payload_max: u16,
}

/// 1 Gbit/s over 100 ms, with a queue of a bandwidth-delay product.
pub(crate) const LONG_FAT: Path = Path {
    bytes_per_second: 125_000_000,
    round_trip: Duration::from_millis(100),
    queue_bytes: 12_500_000,
    mark_bytes: u64::MAX,
    payload_max: u16::MAX,
};

enum Happening {
    ToServer(Header),
    ToClient(Header, usize, Ecn),
}

pub(crate) struct Download {
    pub(crate) now: Instant,
    pub(crate) path: Path,
    pub(crate) server: Connection,
    pub(crate) client: Connection,
    /// The server's application has real bytes, for ever; if not, one endless file.
    real: bool,
    /// When the bottleneck has sent all that is in its queue.
    busy_until: Instant,
    future: BinaryHeap<Reverse<(Instant, u64)>>,
    happenings: std::collections::HashMap<u64, Happening>,
    scheduled: u64,
    pub(crate) read: u64,
    pub(crate) marked: u64,
    pub(crate) dropped: u64,
    pub(crate) too_big: u64,
}

impl Download {
    /// A client connects, and the server begins to send.
    pub(crate) fn begin(path: Path, server: &Config, client: &Config, real: bool) -> Download {
        let now = Instant::from_us(1_000_000);
        let mut client = Connection::connect(client, 40_000, 80, 1000, 0, now);
        let syn = client.poll_transmit(now, &SEND).expect("a SYN");
        client.on_departed(syn.transmission.expect("it has a number"), now);
        let arrived = now + path.round_trip / 2;
        let syn = segment(syn.header, &[], Ecn::NotEct);
        let server = Connection::accept(server, &syn, 2000, 0, arrived).expect("a SYN");
        let mut download = Download {
            now: arrived,
            path,
            server,
            client,
            real,
            busy_until: arrived,
            future: BinaryHeap::new(),
            happenings: std::collections::HashMap::new(),
            scheduled: 0,
            read: 0,
            marked: 0,
            dropped: 0,
            too_big: 0,
        };
        if !real {
            download.server.write_virtual(7, 0, 1 << 50);
        }
        download.settle();
        download
    }

    /// Lets time pass; returns how many bytes the client has read in it.
    pub(crate) fn pass(&mut self, time: Duration) -> u64 {
        let (until, read) = (self.now + time, self.read);
        loop {
            let event = self.future.peek().map(|Reverse((at, _))| *at);
            let timers = [self.server.next_timeout(), self.client.next_timeout()];
            let next = [event, timers[0], timers[1]].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= until) else {
                self.now = until;
                return self.read - read;
            };
            self.now = self.now.max(next);
            if event == Some(next) {
                let Reverse((_, number)) = self.future.pop().expect("peeked");
                match self.happenings.remove(&number).expect("scheduled") {
                    Happening::ToServer(header) => {
                        let segment = segment(header, &[], Ecn::NotEct);
                        self.server.on_segment(self.now, &segment);
                    }
                    Happening::ToClient(header, len, ecn) => {
                        let payload = &[0; 1 << 17][..len];
                        let segment = segment(header, payload, ecn);
                        self.client.on_segment(self.now, &segment);
                    }
                }
            } else {
                self.server.on_timeout(self.now);
                self.client.on_timeout(self.now);
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        let now = self.now;
        while self.real && self.server.write(&[0; 1 << 16]) == 1 << 16 {}
        loop {
            let count = self.client.read(&mut [0; 1 << 16]);
            self.read += count as u64;
            if count == 0 {
                break;
            }
        }
        while let Some(transmit) = self.client.poll_transmit(now, &SEND) {
            if let Some(transmission) = transmit.transmission {
                self.client.on_departed(transmission, now);
            }
            self.schedule(
                now + self.path.round_trip / 2,
                Happening::ToServer(transmit.header),
            );
        }
        while let Some(transmit) = self.server.poll_transmit(now, &SEND) {
            let at = transmit.not_before.unwrap_or(now);
            if let Some(transmission) = transmit.transmission {
                self.server.on_departed(transmission, at);
            }
            self.cross(at, &transmit);
        }
        for connection in [&mut self.server, &mut self.client] {
            while connection.poll_event().is_some() {}
        }
    }

    /// Cuts a transmission that leaves `at` a time into packets, and sends them through the
    /// bottleneck.
    fn cross(&mut self, at: Instant, transmit: &Transmit) {
        let len = (transmit.range.end - transmit.range.start) as usize;
        let step = usize::from(transmit.mss) * MERGED;
        let mut start = 0;
        loop {
            let piece = (len - start).min(step);
            let mut header = transmit.header;
            header.seq = header.seq.wrapping_add(start as u32);
            if start > 0 {
                header.flags = header.flags.without(Flags::CWR);
            }
            self.enqueue(at, header, piece, transmit);
            start += piece;
            if start >= len {
                return;
            }
        }
    }

    fn enqueue(&mut self, at: Instant, header: Header, len: usize, transmit: &Transmit) {
        if len.min(transmit.mss.into()) > self.path.payload_max.into() {
            self.too_big += 1;
            return;
        }
        let waiting = self.busy_until.since(at).as_micros() as u64;
        let queued = waiting * self.path.bytes_per_second / 1_000_000;
        let mut ecn = transmit.ecn;
        if queued > self.path.queue_bytes || queued > self.path.mark_bytes && ecn == Ecn::NotEct {
            self.dropped += 1;
            return;
        }
        if queued > self.path.mark_bytes {
            self.marked += 1;
            ecn = Ecn::Ce;
        }
        let wire_us = len as u64 * 1_000_000 / self.path.bytes_per_second;
        self.busy_until = self.busy_until.max(at) + Duration::from_micros(wire_us);
        let arrival = self.busy_until + self.path.round_trip / 2;
        self.schedule(arrival, Happening::ToClient(header, len, ecn));
    }

    fn schedule(&mut self, at: Instant, happening: Happening) {
        self.scheduled += 1;
        self.happenings.insert(self.scheduled, happening);
        self.future.push(Reverse((at, self.scheduled)));
    }
}

fn segment(header: Header, payload: &[u8], ecn: Ecn) -> Segment<'_> {
    Segment {
        header,
        payload,
        ecn,
    }
}
