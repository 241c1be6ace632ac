//! A link in one direction: rate, delay, a bounded queue, and faults.

use wire::ethernet;

use crate::random::Random;
use crate::scenario::{CALM_US, Faults, LinkPlan};

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) plan: LinkPlan,
    random: Random,
    /// Time at which the last bit in the queue will have been sent.
    sent_us: u64,
    /// Time at which the last packet that was not overtaken arrives.
    arrived_us: u64,
    /// The bad state of Gilbert's loss model.
    in_burst: bool,
}

/// A frame that will arrive.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) at_us: u64,
    pub(crate) frame: Vec<u8>,
}

/// Reason why a frame does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The queue is full.
    Queue,
    /// Random loss.
    Chance,
    /// Loss in the bad state of Gilbert's model.
    Burst,
    /// The link passes nothing for a while.
    BlackHole,
    /// Larger than the link's MTU.
    TooBig,
}

impl Link {
    pub(crate) fn new(plan: LinkPlan, random: Random) -> Link {
        Link {
            plan,
            random,
            sent_us: 0,
            arrived_us: 0,
            in_burst: false,
        }
    }

    /// Sends a frame at `now_us` after the beginning. Up to two frames arrive: it may be
    /// duplicated.
    pub(crate) fn pass(&mut self, now_us: u64, mut frame: Vec<u8>) -> Result<Vec<Arrival>, Loss> {
        if frame.len() > self.plan.mtu + ethernet::HEADER_BYTES {
            return Err(Loss::TooBig);
        }
        let plan = &self.plan;
        let queued_us = self.sent_us.saturating_sub(now_us);
        let queued_bytes = queued_us * plan.bytes_per_second / 1_000_000;
        if queued_bytes + frame.len() as u64 > plan.queue_bytes_max {
            return Err(Loss::Queue);
        }
        if plan.mark_bytes.is_some_and(|bytes| queued_bytes > bytes) {
            mark(&mut frame);
        }
        let sending_us = (frame.len() as u64 * 1_000_000).div_ceil(plan.bytes_per_second);
        self.sent_us = self.sent_us.max(now_us) + sending_us;
        let mut at_us = self.sent_us + plan.delay_us;
        let calm = Faults::default();
        let faults = if now_us < CALM_US {
            &plan.faults
        } else {
            &calm
        };
        let random = &mut self.random;
        self.in_burst = if self.in_burst {
            !random.happens(faults.burst_ends_ppm.max(1)) && now_us < CALM_US
        } else {
            random.happens(faults.burst_begins_ppm)
        };
        if faults.black_holes.iter().any(|hole| hole.contains(&now_us)) {
            return Err(Loss::BlackHole);
        }
        if self.in_burst {
            return Err(Loss::Burst);
        }
        if random.happens(faults.loss_ppm) {
            return Err(Loss::Chance);
        }
        if random.happens(faults.reorder_ppm) {
            at_us += random.within(faults.reorder_us.clone());
        } else {
            at_us = at_us.max(self.arrived_us);
            self.arrived_us = at_us;
        }
        let mut arrivals = Vec::with_capacity(1);
        if random.happens(faults.duplicate_ppm) {
            arrivals.push(Arrival {
                at_us: at_us + random.within(0..2 * plan.delay_us + 1),
                frame: frame.clone(),
            });
        }
        if random.happens(faults.corrupt_ppm) {
            flip_a_bit(&mut frame, random);
        }
        arrivals.push(Arrival { at_us, frame });
        Ok(arrivals)
    }
}

/// Offset of the IPv4 header's checksum in a frame.
const IPV4_CHECKSUM: usize = ethernet::HEADER_BYTES + 10;

/// Marks a packet as congestion experienced (RFC 3168 §5), if it is ECN-capable.
fn mark(frame: &mut [u8]) {
    let Some((link, packet)) = ethernet::Header::parse(frame) else {
        return;
    };
    match (link.ether_type, packet) {
        (ethernet::IPV4, [_, traffic_class, ..])
            if traffic_class & 3 != 0 && packet.len() >= 20 =>
        {
            frame[ethernet::HEADER_BYTES + 1] |= 3;
            frame[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].fill(0);
            let header = &frame[ethernet::HEADER_BYTES..ethernet::HEADER_BYTES + 20];
            let checksum = wire::checksum::of(header).to_be_bytes();
            frame[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].copy_from_slice(&checksum);
        }
        (ethernet::IPV6, [_, class_and_flow, ..]) if class_and_flow & 0x30 != 0 => {
            frame[ethernet::HEADER_BYTES + 1] |= 0x30;
        }
        _ => {}
    }
}

/// Flips one bit, which a ones' complement checksum always detects. The Ethernet header is left
/// alone, since its own checksum is checked by switches; so is ARP, which has none.
fn flip_a_bit(frame: &mut [u8], random: &mut Random) {
    let is_ip = ethernet::Header::parse(frame)
        .is_some_and(|(link, _)| [ethernet::IPV4, ethernet::IPV6].contains(&link.ether_type));
    if is_ip {
        let bits = ethernet::HEADER_BYTES as u64 * 8..frame.len() as u64 * 8;
        let bit = random.within(bits) as usize;
        frame[bit / 8] ^= 1 << (bit % 8);
    }
}
