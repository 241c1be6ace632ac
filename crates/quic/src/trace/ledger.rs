//! Packets that a traced connection has in flight. The engine's QUIC says how many it has found
//! lost, and not which: they follow from what is acknowledged (RFC 9002 §6.1).

use std::collections::BTreeMap;

use super::frames::TracedFrame;
use super::{LossTrigger, PacketType};

/// RFC 9002 §6.1.1, kPacketThreshold
const PACKET_THRESHOLD: u64 = 3;

/// What was found lost, so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// Packets, ...
    pub(crate) packets: u64,
    /// ... and besides them probes for a larger MTU.
    pub(crate) probes: u64,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Ledger {
    spaces: [Space; 3],
    losses: Losses,
    /// The trace has begun with this 1-RTT packet, and packets before it may be in flight.
    first: Option<u64>,
    /// The longest packet that was acknowledged.
    bytes_acked_max: usize,
}

#[derive(Debug, Default)]
struct Space {
    sent: BTreeMap<u64, Sent>,
    largest_acked: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    bytes: usize,
    /// It counts towards the congestion window.
    is_in_flight: bool,
    /// It is nothing but a ping and padding.
    is_probe: bool,
}

/// A packet that is lost, and whether it was a probe for a larger MTU.
type Lost = (PacketType, u64, LossTrigger, bool);

const TYPES: [PacketType; 3] = [
    PacketType::Initial,
    PacketType::Handshake,
    PacketType::OneRtt,
];

impl Ledger {
    /// Of a connection that has given out all 1-RTT packet numbers below `next_number`.
    pub(super) fn amid(next_number: u64) -> Self {
        Self {
            first: Some(next_number),
            ..Self::default()
        }
    }

    pub(super) fn set_losses(&mut self, losses: Losses) {
        self.losses = losses;
    }

    fn space(&mut self, packet_type: PacketType) -> &mut Space {
        &mut self.spaces[packet_type as usize]
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

    /// So much is lost now. Packets are found lost in their order, and only below one that is
    /// acknowledged.
    pub(super) fn on_losses(&mut self, losses: Losses) -> Vec<Lost> {
        let packets = losses.packets - self.losses.packets;
        let probes = losses.probes - self.losses.probes;
        self.losses = losses;
        let mut found = Vec::new();
        if probes > 0 {
            found.extend(self.take_probe());
        }
        let largest = self.spaces[PacketType::OneRtt as usize].largest_acked;
        // Among the packets may be some that left before the trace began.
        let is_partial = self.first.is_some() && packets > 0;
        let mut left = usize::try_from(packets).unwrap_or(usize::MAX);
        for packet_type in TYPES {
            let space = &mut self.spaces[packet_type as usize];
            let Some(largest) = space.largest_acked else {
                continue;
            };
            let is_late = |number: u64| largest >= number + PACKET_THRESHOLD;
            let candidates = space.sent.range(..largest);
            let candidates = candidates.filter(|(number, _)| !is_partial || is_late(**number));
            let lost: Vec<u64> = candidates.map(|(number, _)| *number).take(left).collect();
            left -= lost.len();
            for number in lost {
                space.sent.remove(&number);
                let trigger = if is_late(number) {
                    LossTrigger::ReorderingThreshold
                } else {
                    LossTrigger::TimeThreshold
                };
                found.push((packet_type, number, trigger, false));
            }
        }
        // From here on, all before the first is acknowledged or lost.
        if let (Some(first), Some(largest)) = (self.first, largest)
            && largest + 1 >= first + PACKET_THRESHOLD
        {
            self.first = None;
        }
        found
    }

    /// The probe for a larger MTU that is in flight, if there is one: there is one at a time.
    fn take_probe(&mut self) -> Option<Lost> {
        let longest = self.bytes_acked_max;
        let space = self.space(PacketType::OneRtt);
        let probe = |sent: &Sent| sent.is_probe && sent.bytes > longest;
        let (number, _) = space.sent.iter().find(|(_, sent)| probe(sent))?;
        let number = *number;
        space.sent.remove(&number);
        let trigger = match space.largest_acked {
            Some(largest) if largest >= number + PACKET_THRESHOLD => {
                LossTrigger::ReorderingThreshold
            }
            _ => LossTrigger::TimeThreshold,
        };
        Some((PacketType::OneRtt, number, trigger, true))
    }

    /// Bytes of packets that are neither acknowledged nor lost; `None` while some of them may have
    /// left before the trace began.
    pub(super) fn bytes_in_flight(&self) -> Option<u64> {
        if self.first.is_some() {
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

    fn send(ledger: &mut Ledger, packet_type: PacketType, numbers: std::ops::Range<u64>) {
        for number in numbers {
            ledger.on_sent(packet_type, number, 100, &[STREAM]);
        }
    }

    fn losses(packets: u64) -> Losses {
        Losses { packets, probes: 0 }
    }

    use LossTrigger::{ReorderingThreshold, TimeThreshold};
    use PacketType::{Handshake, Initial, OneRtt};

    #[test]
    fn lost_packets_are_the_oldest_below_one_that_is_acknowledged() {
        let mut ledger = Ledger::default();
        send(&mut ledger, OneRtt, 0..10);
        ledger.on_sent(OneRtt, 10, 50, &ack(&[(0, 3)]));
        assert_eq!(ledger.bytes_in_flight(), Some(1000), "no acknowledgments");
        ledger.on_received(OneRtt, &ack(&[(8, 8), (1, 2)]));
        assert_eq!(ledger.bytes_in_flight(), Some(700));
        assert_eq!(ledger.on_losses(losses(0)), []);
        let lost = ledger.on_losses(losses(5));
        let wanted = [0, 3, 4, 5].map(|number| (OneRtt, number, ReorderingThreshold, false));
        assert_eq!(lost[..4], wanted);
        assert_eq!(lost[4..], [(OneRtt, 6, TimeThreshold, false)]);
        assert_eq!(ledger.bytes_in_flight(), Some(200));
        // What is found lost already may yet be acknowledged.
        ledger.on_received(OneRtt, &ack(&[(0, 9)]));
        assert_eq!(ledger.bytes_in_flight(), Some(0));
    }

    #[test]
    fn keys_that_go_take_along_what_is_in_flight() {
        let mut ledger = Ledger::default();
        send(&mut ledger, Initial, 0..2);
        send(&mut ledger, Handshake, 0..3);
        ledger.on_received(Handshake, &ack(&[(0, 0)]));
        assert_eq!(ledger.bytes_in_flight(), Some(200));
        send(&mut ledger, OneRtt, 0..1);
        ledger.on_received(OneRtt, &[TracedFrame::Ping]);
        assert_eq!(ledger.bytes_in_flight(), Some(100));
    }

    #[test]
    fn a_probe_for_a_larger_mtu_is_lost_apart() {
        let mut ledger = Ledger::default();
        let probe = [TracedFrame::Ping, TracedFrame::Padding(1300)];
        send(&mut ledger, OneRtt, 0..1);
        ledger.on_sent(OneRtt, 1, 1400, &probe);
        send(&mut ledger, OneRtt, 2..6);
        ledger.on_received(OneRtt, &ack(&[(2, 5), (0, 0)]));
        let lost = ledger.on_losses(Losses {
            packets: 0,
            probes: 1,
        });
        assert_eq!(lost, [(OneRtt, 1, ReorderingThreshold, true)]);
        assert_eq!(ledger.bytes_in_flight(), Some(0));
    }

    #[test]
    fn what_left_before_the_trace_began_is_not_taken_for_what_it_knows() {
        let mut ledger = Ledger::amid(20);
        ledger.set_losses(losses(7));
        send(&mut ledger, OneRtt, 20..30);
        assert_eq!(ledger.bytes_in_flight(), None);
        // Of five packets that are lost, two have left before.
        ledger.on_received(OneRtt, &ack(&[(23, 25)]));
        let lost = ledger.on_losses(losses(12));
        let wanted = [20, 21, 22].map(|number| (OneRtt, number, ReorderingThreshold, false));
        assert_eq!(lost, wanted);
        assert_eq!(ledger.bytes_in_flight(), Some(400));
        ledger.on_received(OneRtt, &ack(&[(28, 28)]));
        let lost = ledger.on_losses(losses(13));
        assert_eq!(lost, [(OneRtt, 26, TimeThreshold, false)]);
    }
}
