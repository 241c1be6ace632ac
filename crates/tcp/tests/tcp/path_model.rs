//! A path with one bottleneck, as a whole connection sees it: what departs is put into packets,
//! waits for the ones before it, and is acknowledged a round trip later. In virtual time; there is
//! no chance in it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tcp::{Config, CongestionAlgorithm, Connection, Instant, Transmit};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

use crate::network::Random;
use crate::script::{IRS, ISS, LIMITS, Script, config};

/// A connection that always has something to send, and the path below it.
pub(crate) struct Path {
    pub(crate) tcp: Connection,
    pub(crate) now: Instant,
    pub(crate) bytes_per_second: u64,
    pub(crate) rtt: Duration,
    /// Stream offsets of packets that are lost, once; and of packets that come so much later.
    pub(crate) lose: Vec<u64>,
    pub(crate) delay: Vec<(u64, Duration)>,
    /// One packet in so many is lost, for the first time or again.
    pub(crate) lose_one_in: u64,
    /// What does not fit into the queue is lost, in bytes; what comes behind so many is marked (RFC
    /// 3168).
    pub(crate) queue_bytes_max: u64,
    pub(crate) unmarked_bytes_max: u64,
    /// Of what departs from now on, nothing is heard before this.
    pub(crate) silent_until: Instant,
    /// All that has departed: when, and how many bytes.
    pub(crate) departed: Vec<(Instant, u64)>,
    /// Retransmissions among it, in bytes.
    pub(crate) repeated: u64,
    /// Issued, and when it may leave.
    waiting: VecDeque<(Instant, Transmit)>,
    /// When the last packet is through the bottleneck.
    free_at: Instant,
    /// On the way: when the sender hears of it.
    packets: VecDeque<(Instant, Packet)>,
    /// Acknowledgments that were overtaken.
    late_acks: VecDeque<(Instant, Header)>,
    count: u64,
    /// [`Path::reorder`]
    late: Option<(u64, Duration)>,
    random: Random,
    /// Packets that did not fit into the queue, and that the receiver took for old ones (RFC 7323
    /// §5.3).
    pub(crate) overflowed: u64,
    pub(crate) refused: u64,
    /// TS.Recent.
    recent: u32,
    /// Marks are echoed until the sender says that it has slowed down.
    echo: bool,
    /// What the receiver has in order, and behind that.
    received: u64,
    gaps: BTreeMap<u64, u64>,
}

/// A packet of the stream.
struct Packet {
    range: Range<u64>,
    /// TSval, if there are timestamps.
    stamp: Option<u32>,
    marked: bool,
    cwr: bool,
}

impl Path {
    /// Established over a path of such a round-trip time; an MSS of 1000.
    pub(crate) fn new(algorithm: CongestionAlgorithm, bytes_per_second: u64, rtt_ms: u64) -> Path {
        Path::open(algorithm, bytes_per_second, rtt_ms, "")
    }

    /// The same with timestamps, which take 12 bytes of each segment.
    pub(crate) fn with_timestamps(
        algorithm: CongestionAlgorithm,
        bytes_per_second: u64,
        rtt_ms: u64,
    ) -> Path {
        Path::open(algorithm, bytes_per_second, rtt_ms, "ts 1 0")
    }

    fn open(
        algorithm: CongestionAlgorithm,
        bytes_per_second: u64,
        rtt_ms: u64,
        option: &str,
    ) -> Path {
        let mut script = Script::listen(Config {
            congestion: algorithm,
            window_scaling: true,
            timestamps: true,
            ..config()
        });
        script.trace(&format!(
            "
            < SYN ECE CWR 0 win 65535 mss 1000 sackOK ws 14 {option}
            > SYN ACK ECE 0 ack 1
            +{rtt_ms}ms
            < ACK 1 ack 1 win 60000 {option}
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
            delay: Vec::new(),
            lose_one_in: u64::MAX,
            queue_bytes_max: u64::MAX,
            unmarked_bytes_max: u64::MAX,
            silent_until: now,
            departed: Vec::new(),
            repeated: 0,
            waiting: VecDeque::new(),
            free_at: now,
            packets: VecDeque::new(),
            late_acks: VecDeque::new(),
            count: 0,
            late: None,
            random: Random::seeded(0),
            overflowed: 0,
            refused: 0,
            recent: 0,
            echo: false,
            received: 0,
            gaps: BTreeMap::new(),
        }
    }

    /// One packet in so many, of either direction, comes so much later, so that others overtake it.
    pub(crate) fn reorder(&mut self, seed: u64, one_in: u64, later: Duration) {
        self.random = Random::seeded(seed);
        self.late = Some((one_in, later));
    }

    /// How much later than it should the next packet comes.
    fn lateness(&mut self) -> Duration {
        match self.late {
            Some((one_in, later)) if self.random.within(0..one_in) == 0 => later,
            _ => Duration::ZERO,
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
            let late_ack = self.late_acks.front().map(|(at, _)| *at);
            let next = [departure, arrival, timeout, late_ack]
                .into_iter()
                .flatten()
                .min();
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
            } else if late_ack == Some(next) {
                let (_, header) = self.late_acks.pop_front().expect("something arrives");
                self.hear(header);
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
            let end = range.end.min(start + u64::from(transmit.mss));
            self.count += 1;
            if let Some(place) = self.lose.iter().position(|&lost| lost == start) {
                self.lose.remove(place);
                continue;
            }
            let waiting_us = self.free_at.since(at).as_micros() as u64;
            let queue_bytes = waiting_us * self.bytes_per_second / 1_000_000;
            if queue_bytes > self.queue_bytes_max {
                self.overflowed += 1;
                continue;
            }
            if self.count.is_multiple_of(self.lose_one_in) {
                continue;
            }
            let us = (end - start) * 1_000_000 / self.bytes_per_second;
            self.free_at = self.free_at.max(at) + Duration::from_micros(us);
            let mut heard_at = (self.free_at + self.rtt).max(self.silent_until);
            if let Some(place) = self.delay.iter().position(|&(late, _)| late == start) {
                heard_at = heard_at + self.delay.remove(place).1;
            }
            heard_at = heard_at + self.lateness();
            let stamp = transmit.header.options.timestamps;
            let packet = Packet {
                stamp: stamp.map(|stamp| stamp.value),
                range: start..end,
                marked: queue_bytes > self.unmarked_bytes_max && transmit.ecn != Ecn::NotEct,
                cwr: start == range.start && transmit.header.flags.contains(Flags::CWR),
            };
            let place = self.packets.partition_point(|(at, _)| *at <= heard_at);
            self.packets.insert(place, (heard_at, packet));
        }
        if let Some(transmission) = transmit.transmission {
            self.tcp.on_departed(transmission, at);
        }
    }

    /// Each packet is acknowledged; the block that it belongs to comes first, or, if it has come
    /// before, itself (RFC 2883).
    fn acknowledge(&mut self) {
        let (_, packet) = self.packets.pop_front().expect("something arrives");
        let ts = packet.stamp.map(|stamp| {
            let old = (stamp.wrapping_sub(self.recent) as i32) < 0;
            // What is wholly below the window is not acceptable (RFC 7323 §5.3 R2).
            let at_edge = packet.range.start <= self.received && packet.range.end >= self.received;
            if !old && at_edge {
                self.recent = stamp;
            }
            (old, self.recent)
        });
        let old = ts.is_some_and(|(old, _)| old);
        if old {
            self.refused += 1;
            if packet.range.start >= self.received {
                // An acknowledgment that tells nothing new.
                return;
            }
        }
        self.echo = packet.marked || (self.echo && !packet.cwr);
        let mut block = packet.range;
        let mut blocks = Vec::new();
        let before = self.gaps.range(..=block.start).next_back();
        if block.end <= self.received || before.is_some_and(|(_, &end)| end >= block.end) {
            blocks.push((block.start, block.end));
        } else {
            if let Some((&start, &end)) = before
                && end >= block.start
            {
                block = start..end.max(block.end);
            }
            while let Some((&start, &end)) = self.gaps.range(block.start..=block.end).next() {
                block.end = block.end.max(end);
                self.gaps.remove(&start);
            }
            if block.start <= self.received {
                self.received = self.received.max(block.end);
            } else {
                self.gaps.insert(block.start, block.end);
                blocks.push((block.start, block.end));
            }
        }
        let others = self.gaps.iter().map(|(&start, &end)| (start, end));
        blocks.extend(others.filter(|&(start, _)| start != block.start));
        let wire = |offset: u64| ISS.wrapping_add(1).wrapping_add(offset as u32);
        let mut options = Options {
            timestamps: ts.map(|(_, echo_reply)| Timestamps {
                value: 1,
                echo_reply,
            }),
            ..Options::default()
        };
        for (place, (start, end)) in options.sack.iter_mut().zip(blocks) {
            *place = Some((wire(start), wire(end)));
        }
        let header = Header {
            source_port: 40_000,
            destination_port: 80,
            seq: IRS.wrapping_add(1),
            ack: wire(self.received),
            flags: if self.echo {
                Flags::ACK | Flags::ECE
            } else {
                Flags::ACK
            },
            window: 60_000,
            options,
        };
        let lateness = self.lateness();
        if lateness.is_zero() {
            self.hear(header)
        } else {
            self.late_acks.push_back((self.now + lateness, header))
        }
    }

    fn hear(&mut self, header: Header) {
        let segment = Segment {
            header,
            payload: &[],
            ecn: Ecn::NotEct,
        };
        self.tcp.on_segment(self.now, &segment);
    }
}
