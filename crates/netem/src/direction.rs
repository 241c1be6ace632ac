//! Fate and time of each packet in one direction: frames and `now` in, departures out.
//!
//! A packet waits in the queue, if it fits, until earlier ones are sent; is sent at the link's
//! rate; is lost or not; and arrives after the delay. So a lost packet has occupied the line like
//! any other.
//!
//! Random choices are a function of the seed and the packet's number in its direction, independent
//! of time and of other packets' fates: under the same seed, two senders lose the same packets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::conditions::Conditions;
use crate::frame::Frame;

/// Most packets in flight: 100 ms at 10 Gbit/s are a tenth of this number. Further packets are
/// dropped.
const UNDERWAY_MAX: usize = 1 << 20;

/// Events of packets, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Frames that arrived.
    pub frames: u64,
    /// Packets that arrived: a frame may represent several.
    pub packets: u64,
    /// Bytes of arrived packets, from the Ethernet header on.
    pub bytes: u64,
    /// Dropped because the queue was full.
    pub queue_drops: u64,
    /// Lost at random.
    pub lost: u64,
    /// Held back so that others overtake them.
    pub reordered: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Packets that left, copies included.
    pub departed: u64,
    /// Most bytes that waited in the queue.
    pub queue_bytes_max: u64,
}

/// One direction of the link.
#[derive(Debug)]
pub struct Direction {
    conditions: Conditions,
    key: u64,
    /// Number of the next packet.
    next: u64,
    /// The last packet was lost, and the burst continues.
    in_burst: bool,
    /// Time at which the line becomes free, in nanoseconds.
    line_free_ns: u64,
    /// Latest departure time of packets that keep their order.
    in_order_ns: u64,
    underway: BinaryHeap<Reverse<Underway>>,
    /// Number of packets ever in flight; orders those of the same time.
    ever_underway: u64,
    counters: Counters,
}

/// A packet in flight.
#[derive(Debug)]
struct Underway {
    departure_ns: u64,
    order: u64,
    frame: Arc<Frame>,
    packet: u32,
}

impl PartialEq for Underway {
    fn eq(&self, other: &Underway) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Underway {}

impl PartialOrd for Underway {
    fn partial_cmp(&self, other: &Underway) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Underway {
    fn cmp(&self, other: &Underway) -> std::cmp::Ordering {
        (self.departure_ns, self.order).cmp(&(other.departure_ns, other.order))
    }
}

/// Consecutive packets of one frame that leave now.
#[derive(Debug)]
pub struct Departure {
    /// The frame.
    pub frame: Arc<Frame>,
    /// Range of its packets.
    pub packets: Range<u32>,
    /// Due time of the first packet, in nanoseconds.
    pub due_ns: u64,
}

/// Purpose of a random draw. Each has draws of its own, so that conditions are independent.
#[derive(Clone, Copy)]
enum Question {
    Lost,
    Held,
    Twice,
    Jitter,
}

impl Direction {
    /// Returns a direction. The two directions of a link need different `seed`s.
    pub fn new(conditions: Conditions, seed: u64) -> Direction {
        Direction {
            conditions,
            key: mix(seed.wrapping_add(GOLDEN)),
            next: 0,
            in_burst: false,
            line_free_ns: 0,
            in_order_ns: 0,
            underway: BinaryHeap::new(),
            ever_underway: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Processes a frame that arrived at `now_ns`. Times are those of any monotonic clock; if the
    /// clock goes back, the packet counts as arrived after the last one.
    pub fn arrive(&mut self, now_ns: u64, frame: Frame) {
        self.counters.frames += 1;
        let frame = Arc::new(frame);
        for packet in 0..frame.packets() {
            self.arrive_one(now_ns, &frame, packet);
        }
    }

    fn arrive_one(&mut self, now_ns: u64, frame: &Arc<Frame>, packet: u32) {
        let index = self.next;
        self.next += 1;
        let bytes = frame.packet_bytes(packet) as u64;
        self.counters.packets += 1;
        self.counters.bytes += bytes;
        // Drawn for every packet, for bursts depend on the packets before.
        let lost = self.is_lost(index);
        let Some(sent_ns) = self.enqueue(now_ns, bytes) else {
            self.counters.queue_drops += 1;
            return;
        };
        if lost {
            self.counters.lost += 1;
            return;
        }
        let Conditions {
            delay_ns,
            jitter_ns,
            reorder_ppm,
            reorder_by_ns,
            duplicate_ppm,
            ..
        } = self.conditions;
        let jitter_ns = self.jitter_ns(index, jitter_ns);
        // Neither jitter nor a clock that went back lets a packet overtake another.
        let in_order_ns = (sent_ns + delay_ns)
            .saturating_add_signed(jitter_ns)
            .max(self.in_order_ns);
        let mut departure_ns = in_order_ns;
        if self.happens(index, Question::Held, reorder_ppm) {
            self.counters.reordered += 1;
            departure_ns += reorder_by_ns;
        } else {
            self.in_order_ns = in_order_ns;
        }
        self.send_off(departure_ns, frame, packet);
        if self.happens(index, Question::Twice, duplicate_ppm) {
            self.counters.duplicated += 1;
            self.send_off(departure_ns, frame, packet);
        }
    }

    fn send_off(&mut self, departure_ns: u64, frame: &Arc<Frame>, packet: u32) {
        if self.underway.len() >= UNDERWAY_MAX {
            self.counters.queue_drops += 1;
            return;
        }
        self.ever_underway += 1;
        self.underway.push(Reverse(Underway {
            departure_ns,
            order: self.ever_underway,
            frame: frame.clone(),
            packet,
        }));
    }

    /// Returns the time when the last bit of a packet that arrives now has left the queue, if it
    /// fits.
    fn enqueue(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        let Some(rate) = self.conditions.rate_bits_per_s.map(u128::from) else {
            return Some(now_ns);
        };
        const BITS_NS: u128 = 8 * 1_000_000_000;
        let start_ns = self.line_free_ns.max(now_ns);
        let waiting = u128::from(start_ns - now_ns) * rate / BITS_NS + u128::from(bytes);
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        if self.conditions.queue_bytes.is_some_and(|max| waiting > max) {
            return None;
        }
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(waiting);
        let sending_ns = (u128::from(bytes) * BITS_NS).div_ceil(rate.max(1));
        self.line_free_ns = start_ns + u64::try_from(sending_ns).unwrap_or(u64::MAX / 4);
        Some(self.line_free_ns)
    }

    /// Decides whether a packet is lost: independently, or with bursts as a Markov chain of two
    /// states (Gilbert 1960), one of which loses all packets. Bursts end with probability 1/b and
    /// begin with l/(b(1-l)): then they are b long on average, and a share of l is lost.
    fn is_lost(&mut self, index: u64) -> bool {
        let Conditions {
            loss_ppm,
            loss_burst,
            ..
        } = self.conditions;
        if loss_burst < 1.0 {
            return self.happens(index, Question::Lost, loss_ppm);
        }
        let loss = f64::from(loss_ppm) / 1e6;
        // 53 bits are the precision of a float.
        let draw = (self.draw(index, Question::Lost) >> 11) as f64 / (1u64 << 53) as f64;
        self.in_burst = if self.in_burst {
            draw >= 1.0 / loss_burst
        } else {
            draw < loss / (loss_burst * (1.0 - loss))
        };
        self.in_burst
    }

    /// Returns a number uniformly distributed from `-jitter_ns` to `jitter_ns`.
    fn jitter_ns(&self, index: u64, jitter_ns: u64) -> i64 {
        let span = u128::from(jitter_ns) * 2 + 1;
        let draw = (u128::from(self.draw(index, Question::Jitter)) * span) >> 64;
        draw as i64 - jitter_ns as i64
    }

    fn happens(&self, index: u64, question: Question, ppm: u32) -> bool {
        (u128::from(self.draw(index, question)) * 1_000_000) >> 64 < u128::from(ppm)
    }

    fn draw(&self, index: u64, question: Question) -> u64 {
        let number = index.wrapping_mul(8).wrapping_add(question as u64);
        mix(self.key.wrapping_add(number.wrapping_mul(GOLDEN)))
    }

    /// Returns the departure time of the next packet, if any is in flight.
    pub fn next_departure_ns(&self) -> Option<u64> {
        self.underway.peek().map(|next| next.0.departure_ns)
    }

    /// Returns packets due by `now_ns`, in order; consecutive packets of one frame leave together.
    pub fn depart(&mut self, now_ns: u64) -> Option<Departure> {
        let first = self.pop_due(now_ns, |_| true)?;
        let mut end = first.packet + 1;
        let run_max = first.frame.run_max();
        while end - first.packet < run_max
            && let Some(next) = self.pop_due(now_ns, |next| {
                next.packet == end && Arc::ptr_eq(&next.frame, &first.frame)
            })
        {
            end = next.packet + 1;
        }
        self.counters.departed += u64::from(end - first.packet);
        Some(Departure {
            due_ns: first.departure_ns,
            packets: first.packet..end,
            frame: first.frame,
        })
    }

    fn pop_due(&mut self, now_ns: u64, fits: impl Fn(&Underway) -> bool) -> Option<Underway> {
        let next = &self.underway.peek()?.0;
        if next.departure_ns > now_ns || !fits(next) {
            return None;
        }
        self.underway.pop().map(|next| next.0)
    }
}

/// 2^64 divided by the golden ratio: successive multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
