//! Header prediction (Jacobson, 1990): nearly every segment that a sender of bulk data receives
//! acknowledges the oldest data in flight and does nothing else. None of the clauses of segment
//! arrival and loss recovery has anything to decide about it then.
//!
//! This is a shorter way to the result of [`Connection::on_segment_otherwise`], never a different
//! one: [`Connection::expects`] excludes the cases that each step leaves out, and the tests go both
//! ways and compare all state.

use std::time::Duration;

use wire::tcp::{Flags, Header, Options, Segment};

use crate::congestion::Ack;
use crate::connection::Connection;
use crate::recovery::state::Phase;
use crate::state::State;
use crate::time::Instant;
use crate::timer::Timer;
use crate::timestamps::Verdict;

impl Connection {
    /// Processes the segment if it is an acknowledgment as expected. Returns false if nothing was
    /// done.
    #[inline]
    pub(crate) fn on_expected_ack(&mut self, now: Instant, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        // RFC 5961 §5.2, the part in which the acknowledgment is a new one.
        let ahead = header.ack.wrapping_sub(self.snd.space.wire(self.snd.una));
        let acked = u64::from(ahead);
        let expected = 0 < acked
            && acked <= self.snd.flight()
            && segment.payload.is_empty()
            && self.expects(now, header);
        if expected {
            self.on_arrival_of_oldest(now, header, acked);
        }
        expected
    }

    /// Returns true if a segment without text, which advances SND.UNA, has no other effect.
    #[inline]
    fn expects(&self, now: Instant, header: &Header) -> bool {
        // No SYN, no FIN, no RST; no echo of congestion.
        header.flags == Flags::ACK
            // Our FIN is not queued.
            && matches!(self.state, State::Established | State::CloseWait)
            // Acceptable, and not older than the last acknowledgment.
            && header.seq == self.rcv.wire_nxt()
            && self.last_ack_sent == self.rcv.nxt()
            && has_no_blocks(&header.options)
            && self.timestamps.check(now, header.options.timestamps) == Verdict::Accept
            // RACK finds missing data; there is nothing to undo.
            && self.sacks.is_permitted()
            && self.sent.is_intact()
            && self.recovery.is_quiet(self.snd.una)
            && !self.config.rtt_from_timestamps
    }

    /// Handles the arrival of the oldest `acked` bytes in flight.
    fn on_arrival_of_oldest(&mut self, now: Instant, header: &Header, acked: u64) {
        self.silence.on_heard(now);
        self.persist.on_answer();
        let una = self.snd.una + acked;
        let prior_flight = self.sent.flight();
        let window_limited = self.is_window_used(prior_flight);

        let (rack, rate) = (&mut self.recovery.rack, &mut self.rate);
        let mut newest = None;
        self.sent.acknowledge(una, now, |piece| {
            let departed = piece.departed();
            rate.on_delivered(now, piece.len(), departed.map(|at| (piece.snapshot, at)));
            if let Some(at) = departed {
                rack.on_delivered(now, piece, at, None, || false);
                if newest.is_none_or(|(newest, _)| newest <= at) {
                    newest = Some((at, piece.ends_transmission));
                }
            }
        });
        rack.advance(una);
        self.timestamp_round_trip(now, header, una);
        let round_trip_us = newest.and_then(|(at, all)| self.round_trip_us(now, at, all));
        if let Some(us) = round_trip_us {
            self.on_round_trip(us);
        }
        self.on_progress(now, una);
        self.recovery.on_delivered(acked);
        self.timers.cancel(Timer::Reorder);
        let rate = self.rate.sample(now, self.min_rtt.get_us());
        self.congestion.on_ack(&Ack {
            now,
            una,
            nxt: self.snd.nxt,
            delivered: acked,
            lost: self.rate.take_newly_lost(),
            prior_flight,
            flight: prior_flight - acked,
            rtt: round_trip_us.map(Duration::from_micros),
            srtt: self.rtt.srtt(),
            rate,
            window_limited,
            advances: true,
            phase: Phase::Open,
        });
        // RFC 6298 §5.2, §5.3.
        if self.sent.has_departed() {
            self.arm_retransmission(now)
        } else {
            self.timers.cancel(Timer::Retransmit)
        }
        self.schedule_probe(now);
        self.check_scoreboard();

        let start = self.rcv.nxt() as i64;
        self.update_window(header, start, una, self.snd.shift);
        self.timestamps
            .update_recent(now, header.options.timestamps);
    }
}

fn has_no_blocks(options: &Options) -> bool {
    options.sack[0].is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use wire::ip::Ecn;
    use wire::tcp::Timestamps;

    use super::*;
    use crate::config::{Config, EcnPolicy, Limits};
    use crate::congestion::algorithm::CongestionAlgorithm;
    use crate::random::Random;
    use crate::sender::output::Transmit;

    const LIMITS: Limits = Limits {
        bytes_max: 20_000,
        pieces_max: 8,
        real_bytes_max: 20_000,
        direct_bytes_max: 0,
    };

    /// The same connection twice: one takes the short way where it may, the other never does.
    struct Twins {
        short: Connection,
        long: Connection,
        shortened: u32,
        /// Transmissions that took the short way.
        bulk: u32,
        /// Transmissions with `is_last`.
        lasts: u32,
        now: Instant,
        /// Header of the peer's next segment.
        peer: Header,
        /// Ends of sent packets not acknowledged, as sequence numbers, and transmissions not
        /// reported.
        sent: VecDeque<u32>,
        undeparted: VecDeque<u64>,
        /// TSval of the latest transmission.
        stamp: u32,
    }

    impl Twins {
        fn new(seed: u64, random: &mut Random) -> Twins {
            let config = Config {
                congestion: CongestionAlgorithm::ALL[seed as usize % 3],
                ecn: EcnPolicy::Accept,
                timestamps: random.below(4) > 0,
                sack: random.below(8) > 0,
                pace: seed.is_multiple_of(4),
                ..Config::default()
            };
            let options = Options {
                mss: Some(1460),
                window_scale: Some(4),
                sack_permitted: true,
                timestamps: Some(Timestamps {
                    value: 7,
                    echo_reply: 0,
                }),
                ..Options::default()
            };
            let syn = Segment {
                header: Header {
                    source_port: 40_000,
                    destination_port: 80,
                    seq: 3_000_000_000,
                    flags: Flags::SYN | Flags::ECE | Flags::CWR,
                    window: 60_000,
                    options,
                    ..Header::default()
                },
                payload: &[],
                ecn: Ecn::NotEct,
            };
            let now = Instant::from_us(1_000_000);
            let open = || Connection::accept(&config, &syn, 4_294_960_000, 5, now).expect("a SYN");
            let mut twins = Twins {
                short: open(),
                long: open(),
                shortened: 0,
                bulk: 0,
                lasts: 0,
                now,
                peer: Header {
                    seq: syn.header.seq + 1,
                    flags: Flags::ACK,
                    window: 4_000,
                    options: Options {
                        timestamps: config.timestamps.then_some(Timestamps {
                            value: 7,
                            echo_reply: 0,
                        }),
                        ..Options::default()
                    },
                    ..syn.header
                },
                sent: VecDeque::new(),
                undeparted: VecDeque::new(),
                stamp: 0,
            };
            twins.poll();
            twins.depart();
            twins.now = twins.now + Duration::from_millis(30);
            twins.peer.ack = twins.sent.pop_front().expect("a SYN,ACK");
            twins.hear(twins.peer, &[]);
            assert_eq!(twins.short.state(), State::Established);
            twins
        }

        fn both(&mut self, mut action: impl FnMut(&mut Connection)) {
            action(&mut self.short);
            action(&mut self.long);
        }

        fn hear(&mut self, header: Header, payload: &[u8]) {
            let segment = Segment {
                header,
                payload,
                ecn: Ecn::NotEct,
            };
            match self.long.state() {
                State::Closed | State::TimeWait => self.long.on_segment(self.now, &segment),
                _ => self.long.on_segment_otherwise(self.now, &segment),
            }
            let expected = self.short.on_expected_ack(self.now, &segment);
            self.shortened += u32::from(expected);
            if !expected {
                self.short.on_segment(self.now, &segment);
            }
        }

        fn poll_short(&mut self) -> Option<Transmit> {
            let Some(data) = self.short.poll_bulk(self.now, &LIMITS) else {
                return self.short.poll_transmit(self.now, &LIMITS);
            };
            self.bulk += 1;
            Some(self.short.transmit_data(self.now, data))
        }

        fn poll(&mut self) {
            let mut is_last = false;
            // One connection is not polled beyond its last transmission, the other one is.
            while !is_last && let Some(transmit) = self.poll_short() {
                let twin = self.long.poll_transmit_otherwise(self.now, &LIMITS);
                assert_eq!(Some(&transmit), twin.as_ref());
                is_last = transmit.is_last;
                self.lasts += u32::from(is_last);
                let Some(transmission) = transmit.transmission else {
                    continue;
                };
                let header = &transmit.header;
                let len = (transmit.range.end - transmit.range.start) as u32
                    + u32::from(header.flags.contains(Flags::SYN));
                self.undeparted.push_back(transmission);
                self.stamp = header.options.timestamps.map_or(0, |ts| ts.value);
                if !transmit.retransmission {
                    // The peer may acknowledge any packet of the superpacket.
                    for behind in (1448..len).step_by(1448) {
                        self.sent.push_back(header.seq.wrapping_add(behind));
                    }
                    self.sent.push_back(header.seq.wrapping_add(len));
                }
            }
            assert_eq!(self.long.poll_transmit_otherwise(self.now, &LIMITS), None);
        }

        fn depart(&mut self) {
            if let Some(transmission) = self.undeparted.pop_front() {
                let now = self.now;
                self.both(|tcp| tcp.on_departed(transmission, now));
            }
        }

        /// The peer acknowledges a part of the outstanding data, most often plainly.
        fn acknowledge(&mut self, random: &mut Random) {
            let count = random.below(4).min(self.sent.len() as u64);
            if let Some(ack) = self.sent.drain(..count as usize).next_back() {
                self.peer.ack = ack;
            }
            let mut header = self.peer;
            if let Some(timestamps) = &mut header.options.timestamps {
                timestamps.value = (self.now.as_us() / 1000) as u32;
                timestamps.echo_reply = self.stamp.wrapping_sub(random.below(3) as u32);
            }
            let text = [1; 100];
            let mut payload = &text[..0];
            match random.below(40) {
                0 => header.options.timestamps = None,
                1 => header.flags = Flags::ACK | Flags::ECE,
                2 => header.ack = header.ack.wrapping_add(100_000),
                3 => header.ack = header.ack.wrapping_sub(2_000),
                4 => header.seq = header.seq.wrapping_sub(1),
                5 => header.seq = header.seq.wrapping_add(1),
                6 => header.window = random.below(6_000) as u16,
                7 => payload = &text,
                8 => {
                    if let Some(timestamps) = &mut header.options.timestamps {
                        timestamps.value = 6;
                    }
                }
                9 | 10 => {
                    let at = header.ack.wrapping_add(1448);
                    header.options.sack[0] = Some((at, at.wrapping_add(1448)));
                }
                _ => {}
            }
            self.hear(header, payload);
            self.peer.seq = self.peer.seq.wrapping_add(payload.len() as u32);
        }

        fn step(&mut self, random: &mut Random) {
            let elapsed_us = match random.below(200) {
                0 => 400_000,
                1..20 => random.below(40_000),
                _ => random.below(500),
            };
            self.now = self.now + Duration::from_micros(elapsed_us);
            let now = self.now;
            match random.below(10) {
                0..5 => self.acknowledge(random),
                5..8 => self.depart(),
                8 => {
                    let bytes = random.below(150_000);
                    self.both(|tcp| {
                        tcp.write(&[2; 10]);
                        tcp.write_virtual(3, 0, bytes);
                    });
                }
                _ => self.both(|tcp| {
                    tcp.read(&mut [0; 64]);
                    if tcp.next_timeout().is_some_and(|at| at <= now) {
                        tcp.on_timeout(now);
                    }
                }),
            }
            while let Some(event) = self.short.poll_event() {
                assert_eq!(self.long.poll_event(), Some(event));
            }
            self.poll();
        }
    }

    #[test]
    fn both_ways_lead_to_the_same_state() {
        let (mut shortened, mut bulk, mut lasts) = (0, 0, 0);
        for seed in 0..48 {
            let mut random = Random::new(seed);
            let mut twins = Twins::new(seed, &mut random);
            for step in 0..250 {
                twins.step(&mut random);
                let [short, long] = [&twins.short, &twins.long].map(|tcp| format!("{tcp:?}"));
                assert_eq!(short, long, "seed {seed}, step {step}");
            }
            shortened += twins.shortened;
            bulk += twins.bulk;
            lasts += twins.lasts;
        }
        assert!(
            shortened > 1_000,
            "the short way was gone {shortened} times"
        );
        assert!(bulk > 700, "{bulk} transmissions took the short way");
        assert!(lasts > 300, "{lasts} transmissions were the last");
    }
}
