//! Packets that a traced connection has in flight. quinn-proto reports how many packets it has
//! declared lost, not which. The ledger derives them from acknowledgments, and from when the last
//! lost one was sent (RFC 9002 §6.1.2; there is no packet threshold).

use std::collections::BTreeMap;
use std::time::Duration;

use tcp::Instant;

use super::PacketType;
use super::frames::TracedFrame;

/// In smoothed round-trip times: a packet sent longer ago, and before an acknowledged one, is
/// either acknowledged or declared lost. The time threshold is 5/4 of the latest or the smoothed
/// round-trip time, and the latest is at most eight times the smoothed (RFC 9002 §5.3).
const SETTLING_RTTS: u32 = 10;

/// Losses so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// Packets, ...
    pub(crate) packets: u64,
    /// ... and MTU probes, counted separately.
    pub(crate) probes: u64,
    /// When the last of the packets was sent.
    pub(crate) last_sent: Option<Instant>,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Ledger {
    spaces: [Space; 3],
    /// Spaces whose keys are discarded, and what is in flight with them once losses found in the
    /// same call are known.
    discarded: usize,
    losses: Losses,
    /// Set while packets from before the trace may be in flight.
    beginning: Option<Beginning>,
    /// Length of the longest acknowledged packet.
    bytes_acked_max: usize,
}

/// The beginning of the trace of an existing connection.
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
    /// It consists of PING and PADDING only.
    is_probe: bool,
}

/// A lost packet, and whether it was an MTU probe.
type Lost = (PacketType, u64, bool);

const TYPES: [PacketType; 3] = [
    PacketType::Initial,
    PacketType::Handshake,
    PacketType::OneRtt,
];

impl Ledger {
    /// The ledger of an existing connection, which has assigned all 1-RTT packet numbers below
    /// `next_number`.
    pub(super) fn amid(next_number: u64) -> Self {
        Self {
            beginning: Some(Beginning {
                number: next_number,
                at: None,
            }),
            ..Self::default()
        }
    }

    /// Losses from before the trace.
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
        // The first packet of the next space discards a space's keys (RFC 9001 §4.9).
        let discarded = match packet_type {
            PacketType::Initial | PacketType::ZeroRtt => 0,
            PacketType::Handshake => 1,
            PacketType::OneRtt => 2,
        };
        self.discarded = self.discarded.max(discarded);
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

    /// Called at the end of each call: returns newly lost packets. Packets are declared lost in
    /// order, and only below an acknowledged one.
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
        // Some of the lost packets may be from before the trace.
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
        for space in &mut self.spaces[..self.discarded] {
            space.sent.clear();
        }
        let largest = self.space(PacketType::OneRtt).largest_acked;
        self.beginning = self.beginning.filter(|beginning| {
            let is_acked = largest.is_some_and(|largest| largest >= beginning.number);
            let settled = beginning.at.map(|at| at + smoothed_rtt * SETTLING_RTTS);
            !is_acked || Some(now) < settled
        });
        found
    }

    /// Stamps packets sent in the call that ends, and the beginning.
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

    /// The MTU probe in flight, if any; there is at most one.
    fn take_probe(&mut self) -> Option<Lost> {
        let longest = self.bytes_acked_max;
        let space = self.space(PacketType::OneRtt);
        let probe = |sent: &Sent| sent.is_probe && sent.bytes > longest;
        let (number, _) = space.sent.iter().find(|(_, sent)| probe(sent))?;
        let number = *number;
        space.sent.remove(&number);
        Some((PacketType::OneRtt, number, true))
    }

    /// Bytes of packets neither acknowledged nor lost; `None` while some may be from before the
    /// trace.
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

    /// So many packets are lost, the last sent at this time.
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
        // A packet declared lost may yet be acknowledged.
        ledger.on_received(OneRtt, &ack(&[(0, 9)]));
        assert_eq!(ledger.bytes_in_flight(), Some(0));
    }

    #[test]
    fn keys_that_go_take_along_what_is_in_flight() {
        let mut ledger = Ledger::default();
        send(&mut ledger, 0, Initial, 0..2);
        send(&mut ledger, 0, Handshake, 0..3);
        ledger.on_received(Handshake, &ack(&[(0, 0)]));
        assert_eq!(ledger.on_losses(at(1), Losses::default(), RTT), []);
        assert_eq!(ledger.bytes_in_flight(), Some(200));
        send(&mut ledger, 0, OneRtt, 0..1);
        // Keys of 0-RTT packets are no later ones.
        ledger.on_received(PacketType::ZeroRtt, &[TracedFrame::Ping]);
        assert_eq!(ledger.on_losses(at(2), Losses::default(), RTT), []);
        assert_eq!(ledger.bytes_in_flight(), Some(300));
        ledger.on_received(OneRtt, &[TracedFrame::Ping]);
        assert_eq!(ledger.on_losses(at(3), Losses::default(), RTT), []);
        assert_eq!(ledger.bytes_in_flight(), Some(100));
    }

    /// Both packets come in one datagram.
    #[test]
    fn what_is_lost_is_named_though_its_keys_go_in_the_same_call() {
        let mut ledger = Ledger::default();
        send(&mut ledger, 0, Initial, 0..3);
        ledger.on_received(Initial, &ack(&[(2, 2)]));
        ledger.on_received(Handshake, &[TracedFrame::Ping]);
        let lost = ledger.on_losses(at(25), losses(1, 0), RTT);
        assert_eq!(lost, [(Initial, 0, false)]);
        assert_eq!(ledger.bytes_in_flight(), Some(0));
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
        // Three of the lost packets are from before the trace.
        assert_eq!(ledger.on_losses(at(124), losses(10, 99), RTT), []);
        let lost = ledger.on_losses(at(126), losses(15, 101), RTT);
        assert_eq!(lost, [20, 21, 22, 23, 24].map(|it| (OneRtt, it, false)));
        assert_eq!(ledger.bytes_in_flight(), None);
        let lost = ledger.on_losses(at(135), losses(17, 110), RTT);
        assert_eq!(lost, [25, 26].map(|number| (OneRtt, number, false)));
        // No packet from before the trace is left.
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
