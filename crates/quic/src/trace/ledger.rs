//! Packets that a traced connection has in flight. The engine's QUIC says how many it has found
//! lost, and not which: they follow from what is acknowledged, and from when the last of them left
//! (RFC 9002 §6.1.2; no number of later packets makes one lost).

use std::collections::BTreeMap;
use std::time::Duration;

use tcp::Instant;

use super::PacketType;
use super::frames::TracedFrame;

/// In smoothed round-trip times: what left before that long, and before a packet that is
/// acknowledged, is acknowledged or found lost. The time threshold is 5/4 of the latest or the
/// smoothed one, and the latest is at most eight times the smoothed (RFC 9002 §5.3).
const SETTLING_RTTS: u32 = 10;

/// What was found lost, so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// Packets, ...
    pub(crate) packets: u64,
    /// ... and besides them probes for a larger MTU.
    pub(crate) probes: u64,
    /// When the last of the packets had left.
    pub(crate) last_sent: Option<Instant>,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Ledger {
    spaces: [Space; 3],
    losses: Losses,
    /// Packets that left before the trace began may be in flight.
    beginning: Option<Beginning>,
    /// The longest packet that was acknowledged.
    bytes_acked_max: usize,
}

/// The beginning of a trace of a connection that was there.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    /// The next 1-RTT packet.
    number: u64,
    at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Space {
    sent: BTreeMap<u64, Sent>,
    largest_acked: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// `None` until the end of the call that sends it.
    at: Option<Instant>,
    bytes: usize,
    /// It counts towards the congestion window.
    is_in_flight: bool,
    /// It is nothing but a ping and padding.
    is_probe: bool,
}

/// A packet that is lost, and whether it was a probe for a larger MTU.
type Lost = (PacketType, u64, bool);

const TYPES: [PacketType; 3] = [
    PacketType::Initial,
    PacketType::Handshake,
    PacketType::OneRtt,
];

impl Ledger {
    /// Of a connection that has given out all 1-RTT packet numbers below `next_number`.
    pub(super) fn amid(next_number: u64) -> Self {
        Self {
            beginning: Some(Beginning {
                number: next_number,
                at: None,
            }),
            ..Self::default()
        }
    }

    /// What was found lost before the trace began.
    pub(super) fn set_losses(&mut self, losses: Losses) {
        self.losses = losses;
    }

    fn space(&mut self, packet_type: PacketType) -> &mut Space {
        &mut self.spaces[match packet_type {
            PacketType::Initial => 0,
            PacketType::Handshake => 1,
            PacketType::OneRtt | PacketType::ZeroRtt => 2,
        }]
    }

    pub(super) fn on_sent(
        &mut self,
        packet_type: PacketType,
        number: u64,
        bytes: usize,
        frames: &[TracedFrame],
    ) {
        let is_padding = |frame: &TracedFrame| matches!(frame, TracedFrame::Padding(_));
        let is_of_probe = |frame: &TracedFrame| {
            matches!(
                frame,
                TracedFrame::Ping | TracedFrame::Padding(_) | TracedFrame::ImmediateAck
            )
        };
        let sent = Sent {
            at: None,
            bytes,
            is_in_flight: frames
                .iter()
                .any(|it| it.is_ack_eliciting() || is_padding(it)),
            is_probe: frames.iter().any(is_padding) && frames.iter().all(is_of_probe),
        };
        self.space(packet_type).sent.insert(number, sent);
    }

    pub(super) fn on_received(&mut self, packet_type: PacketType, frames: &[TracedFrame]) {
        // Keys of a space go with the first packet of the next (RFC 9001 §4.9), and with them all
        // that is in flight.
        for earlier in 0..packet_type as usize {
            self.spaces[earlier].sent.clear();
        }
        let mut longest = 0;
        let space = self.space(packet_type);
        for frame in frames {
            let TracedFrame::Ack { ranges, .. } = frame else {
                continue;
            };
            for &(smallest, largest) in ranges {
                let numbers = space.sent.range(smallest..=largest);
                let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
                for number in numbers {
                    let sent = space.sent.remove(&number);
                    longest = sent.map_or(longest, |sent| sent.bytes.max(longest));
                }
                space.largest_acked = space.largest_acked.max(Some(largest));
            }
        }
        self.bytes_acked_max = self.bytes_acked_max.max(longest);
    }

    /// At the end of each call: what is lost by now. Packets are found lost in their order, and
    /// only below one that is acknowledged.
    pub(super) fn on_losses(
        &mut self,
        now: Instant,
        losses: Losses,
        smoothed_rtt: Duration,
    ) -> Vec<Lost> {
        self.stamp(now);
        let packets = losses.packets - self.losses.packets;
        let probes = losses.probes - self.losses.probes;
        self.losses = losses;
        let mut found = Vec::new();
        if probes > 0 {
            found.extend(self.take_probe());
        }
        // Among those that are lost may be some that left before the trace began.
        let is_partial = self.beginning.is_some();
        let is_known = |sent: &Sent| !is_partial || sent.at <= losses.last_sent;
        let mut left = usize::try_from(packets).unwrap_or(usize::MAX);
        for packet_type in TYPES {
            let space = self.space(packet_type);
            let Some(largest) = space.largest_acked else {
                continue;
            };
            let candidates = space.sent.range(..largest);
            let candidates = candidates.filter(|(_, sent)| is_known(sent));
            let lost: Vec<u64> = candidates.map(|(number, _)| *number).take(left).collect();
            left -= lost.len();
            for number in lost {
                space.sent.remove(&number);
                found.push((packet_type, number, false));
            }
        }
        let largest = self.space(PacketType::OneRtt).largest_acked;
        self.beginning = self.beginning.filter(|beginning| {
            let is_acked = largest.is_some_and(|largest| largest >= beginning.number);
            let settled = beginning.at.map(|at| at + smoothed_rtt * SETTLING_RTTS);
            !is_acked || Some(now) < settled
        });
        found
    }

    /// Notes the time of what was sent, and of the beginning, in the call that ends.
    fn stamp(&mut self, now: Instant) {
        if let Some(beginning) = &mut self.beginning {
            beginning.at.get_or_insert(now);
        }
        for space in &mut self.spaces {
            let sent = space.sent.values_mut().rev();
            for sent in sent.take_while(|sent| sent.at.is_none()) {
                sent.at = Some(now);
            }
        }
    }

    /// The probe for a larger MTU that is in flight, if there is one: there is one at a time.
    fn take_probe(&mut self) -> Option<Lost> {
        let longest = self.bytes_acked_max;
        let space = self.space(PacketType::OneRtt);
        let probe = |sent: &Sent| sent.is_probe && sent.bytes > longest;
        let (number, _) = space.sent.iter().find(|(_, sent)| probe(sent))?;
        let number = *number;
        space.sent.remove(&number);
        Some((PacketType::OneRtt, number, true))
    }

    /// Bytes of packets that are neither acknowledged nor lost; `None` while some of them may have
    /// left before the trace began.
    pub(super) fn bytes_in_flight(&self) -> Option<u64> {
        if self.beginning.is_some() {
            return None;
        }
        let sent = self.spaces.iter().flat_map(|space| space.sent.values());
        let in_flight = sent.filter(|sent| sent.is_in_flight);
        Some(in_flight.map(|sent| sent.bytes as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: TracedFrame = TracedFrame::Stream {
        stream: 0,
        offset: 0,
        len: 1,
        is_fin: false,
    };

    fn ack(ranges: &[(u64, u64)]) -> [TracedFrame; 1] {
        [TracedFrame::Ack {
            ranges: ranges.to_vec(),
            encoded_delay: 0,
            ecn: None,
        }]
    }

    const fn at(ms: u64) -> Instant {
        Instant::from_us(ms * 1000)
    }

    const RTT: Duration = Duration::from_millis(20);

    fn send(ledger: &mut Ledger, ms: u64, packet_type: PacketType, numbers: std::ops::Range<u64>) {
        for number in numbers {
            ledger.on_sent(packet_type, number, 100, &[STREAM]);
        }
        ledger.stamp(at(ms));
    }

    /// So many are found lost, of which the last left then.
    fn losses(packets: u64, last_ms: u64) -> Losses {
        Losses {
            packets,
            probes: 0,
            last_sent: Some(at(last_ms)),
        }
    }

    use PacketType::{Handshake, Initial, OneRtt};

    #[test]
    fn lost_packets_are_the_oldest_below_one_that_is_acknowledged() {
        let mut ledger = Ledger::default();
        send(&mut ledger, 0, OneRtt, 0..10);
        ledger.on_sent(OneRtt, 10, 50, &ack(&[(0, 3)]));
        assert_eq!(ledger.bytes_in_flight(), Some(1000), "no acknowledgments");
        ledger.on_received(OneRtt, &ack(&[(8, 8), (1, 2)]));
        assert_eq!(ledger.bytes_in_flight(), Some(700));
        assert_eq!(ledger.on_losses(at(24), Losses::default(), RTT), []);
        let lost = ledger.on_losses(at(25), losses(5, 0), RTT);
        assert_eq!(lost, [0, 3, 4, 5, 6].map(|number| (OneRtt, number, false)));
        assert_eq!(ledger.bytes_in_flight(), Some(200));
        // What is found lost already may yet be acknowledged.
        ledger.on_received(OneRtt, &ack(&[(0, 9)]));
        assert_eq!(ledger.bytes_in_flight(), Some(0));
    }

    #[test]
    fn keys_that_go_take_along_what_is_in_flight() {
        let mut ledger = Ledger::default();
        send(&mut ledger, 0, Initial, 0..2);
        send(&mut ledger, 0, Handshake, 0..3);
        ledger.on_received(Handshake, &ack(&[(0, 0)]));
        assert_eq!(ledger.bytes_in_flight(), Some(200));
        send(&mut ledger, 0, OneRtt, 0..1);
        ledger.on_received(OneRtt, &[TracedFrame::Ping]);
        assert_eq!(ledger.bytes_in_flight(), Some(100));
    }

    #[test]
    fn a_probe_for_a_larger_mtu_is_lost_apart() {
        let mut ledger = Ledger::default();
        let probe = [TracedFrame::Ping, TracedFrame::Padding(1300)];
        send(&mut ledger, 0, OneRtt, 0..1);
        ledger.on_sent(OneRtt, 1, 1400, &probe);
        send(&mut ledger, 0, OneRtt, 2..6);
        ledger.on_received(OneRtt, &ack(&[(2, 5), (0, 0)]));
        let losses = Losses {
            probes: 1,
            ..Losses::default()
        };
        assert_eq!(ledger.on_losses(at(25), losses, RTT), [(OneRtt, 1, true)]);
        assert_eq!(ledger.bytes_in_flight(), Some(0));
    }

    #[test]
    fn what_left_before_the_trace_began_is_not_taken_for_what_it_knows() {
        let mut ledger = Ledger::amid(20);
        ledger.set_losses(losses(7, 50));
        ledger.stamp(at(100));
        send(&mut ledger, 101, OneRtt, 20..25);
        send(&mut ledger, 110, OneRtt, 25..30);
        assert_eq!(ledger.bytes_in_flight(), None);
        ledger.on_received(OneRtt, &ack(&[(27, 27)]));
        // Three that are lost have left before.
        assert_eq!(ledger.on_losses(at(124), losses(10, 99), RTT), []);
        let lost = ledger.on_losses(at(126), losses(15, 101), RTT);
        assert_eq!(lost, [20, 21, 22, 23, 24].map(|it| (OneRtt, it, false)));
        assert_eq!(ledger.bytes_in_flight(), None);
        let lost = ledger.on_losses(at(135), losses(17, 110), RTT);
        assert_eq!(lost, [25, 26].map(|number| (OneRtt, number, false)));
        // Nothing is left of what was there before.
        assert_eq!(ledger.on_losses(at(300), losses(17, 110), RTT), []);
        assert_eq!(ledger.bytes_in_flight(), Some(200));
    }

    #[test]
    fn bytes_in_flight_are_not_known_before_a_packet_of_the_trace_is_acknowledged() {
        let mut ledger = Ledger::amid(20);
        send(&mut ledger, 1, OneRtt, 20..22);
        ledger.on_received(OneRtt, &ack(&[(0, 19)]));
        assert_eq!(ledger.on_losses(at(9_000), Losses::default(), RTT), []);
        assert_eq!(ledger.bytes_in_flight(), None);
        ledger.on_received(OneRtt, &ack(&[(20, 20)]));
        assert_eq!(ledger.on_losses(at(9_001), Losses::default(), RTT), []);
        assert_eq!(ledger.bytes_in_flight(), Some(100));
    }
}
