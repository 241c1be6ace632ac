//! A path with one bottleneck, as a whole connection sees it: what departs is put into packets, waits for the ones
//! before it, and is acknowledged a round trip later. In virtual time; there is no chance in it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tcp::{Config, CongestionAlgorithm, Connection, Instant, Transmit};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment};

use crate::script::{IRS, ISS, LIMITS, Script, config};

/// A connection that always has something to send, and the path below it.
pub(crate) struct Path {
    pub(crate) tcp: Connection,
    pub(crate) now: Instant,
    pub(crate) bytes_per_second: u64,
    pub(crate) rtt: Duration,
    /// Stream offsets of packets that are lost, once.
    pub(crate) lose: Vec<u64>,
    /// All that has departed: when, and how many bytes.
    pub(crate) departed: Vec<(Instant, u64)>,
    /// Retransmissions among it, in bytes.
    pub(crate) repeated: u64,
    /// Issued, and when it may leave.
    waiting: VecDeque<(Instant, Transmit)>,
    /// When the last packet is through the bottleneck.
    free_at: Instant,
    /// On the way: when the sender hears of it.
    packets: VecDeque<(Instant, Range<u64>)>,
    /// What the receiver has in order, and behind that.
    received: u64,
    gaps: BTreeMap<u64, u64>,
}

impl Path {
    /// Established over a path of such a round-trip time; an MSS of 1000.
    pub(crate) fn new(algorithm: CongestionAlgorithm, bytes_per_second: u64, rtt_ms: u64) -> Path {
        let mut script = Script::listen(Config {
            congestion: algorithm,
            window_scaling: true,
            ..config()
        });
        script.trace(&format!(
            "
            < SYN 0 win 65535 mss 1000 sackOK ws 14
            > SYN ACK 0 ack 1
            +{rtt_ms}ms
            < ACK 1 ack 1 win 60000
            "
        ));
        let now = script.now;
        let mut tcp = script.connection.take().expect("established");
        assert_eq!(tcp.write_virtual(7, 0, 1 << 40), 1 << 40);
        Path {
            tcp,
            now,
            bytes_per_second,
            rtt: Duration::from_millis(rtt_ms),
            lose: Vec::new(),
            departed: Vec::new(),
            repeated: 0,
            waiting: VecDeque::new(),
            free_at: now,
            packets: VecDeque::new(),
            received: 0,
            gaps: BTreeMap::new(),
        }
    }

    /// What the path holds: bandwidth times delay, in bytes.
    pub(crate) fn bdp(&self) -> u64 {
        self.bytes_per_second * self.rtt.as_micros() as u64 / 1_000_000
    }

    /// Goes on for so long; `look` is called after each acknowledgment.
    pub(crate) fn run(&mut self, for_: Duration, mut look: impl FnMut(&Path)) {
        let until = self.now + for_;
        loop {
            self.poll();
            let departure = self.waiting.front().map(|(at, _)| *at);
            let arrival = self.packets.front().map(|(at, _)| *at);
            let timeout = self.tcp.next_timeout();
            let next = [departure, arrival, timeout].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            if departure == Some(next) {
                self.depart();
            } else if arrival == Some(next) {
                self.acknowledge();
                look(self);
            } else {
                self.tcp.on_timeout(self.now);
            }
        }
    }

    fn poll(&mut self) {
        while let Some(transmit) = self.tcp.poll_transmit(self.now, &LIMITS) {
            let ahead = self.waiting.back().map_or(self.now, |(at, _)| *at);
            let at = transmit.not_before.map_or(ahead, |at| at.max(ahead));
            self.waiting.push_back((at, transmit));
        }
    }

    fn depart(&mut self) {
        let (at, transmit) = self.waiting.pop_front().expect("something departs");
        let range = transmit.range;
        self.departed.push((at, range.end - range.start));
        if transmit.retransmission {
            self.repeated += range.end - range.start;
        }
        for start in range.clone().step_by(usize::from(transmit.mss)) {
            if let Some(place) = self.lose.iter().position(|&lost| lost == start) {
                self.lose.remove(place);
                continue;
            }
            let packet = start..range.end.min(start + u64::from(transmit.mss));
            let us = (packet.end - packet.start) * 1_000_000 / self.bytes_per_second;
            self.free_at = self.free_at.max(at) + Duration::from_micros(us);
            self.packets.push_back((self.free_at + self.rtt, packet));
        }
        if let Some(transmission) = transmit.transmission {
            self.tcp.on_departed(transmission, at);
        }
    }

    /// Each packet is acknowledged; the block that it belongs to comes first.
    fn acknowledge(&mut self) {
        let (_, mut packet) = self.packets.pop_front().expect("something arrives");
        let before = self.gaps.range(..=packet.start).next_back();
        if let Some((&start, &end)) = before
            && end >= packet.start
        {
            packet = start..end.max(packet.end);
        }
        while let Some((&start, &end)) = self.gaps.range(packet.start..=packet.end).next() {
            packet.end = packet.end.max(end);
            self.gaps.remove(&start);
        }
        let mut blocks = Vec::new();
        if packet.start <= self.received {
            self.received = self.received.max(packet.end);
        } else {
            self.gaps.insert(packet.start, packet.end);
            blocks.push((packet.start, packet.end));
        }
        let others = self.gaps.iter().map(|(&start, &end)| (start, end));
        blocks.extend(others.filter(|&(start, _)| start != packet.start));
        let wire = |offset: u64| ISS.wrapping_add(1).wrapping_add(offset as u32);
        let mut options = Options::default();
        for (place, (start, end)) in options.sack.iter_mut().zip(blocks) {
            *place = Some((wire(start), wire(end)));
        }
        let header = Header {
            source_port: 40_000,
            destination_port: 80,
            seq: IRS.wrapping_add(1),
            ack: wire(self.received),
            flags: Flags::ACK,
            window: 60_000,
            options,
        };
        let segment = Segment {
            header,
            payload: &[],
            ecn: Ecn::NotEct,
        };
        self.tcp.on_segment(self.now, &segment);
    }
}
