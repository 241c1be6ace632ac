//! TIME-WAIT, in a few dozen bytes (RFC 9293 §3.6.1, §3.10.7.4).
//!
//! A server that closes first keeps a connection in this state for a minute. It can only answer
//! segments, so nothing else is kept: a host can exchange the [`crate::Connection`] for this.

use std::time::Duration;

use wire::tcp::{Flags, Header, Segment};

use crate::challenge::AckLimiter;
use crate::reset::sequence_len;
use crate::seq::wraps_before;
use crate::time::Instant;
use crate::timestamps::Timestamps;

/// Distance of a new connection's sequence numbers from those of the one that it replaces.
const ISN_GAP: u32 = 1 << 16;

/// Least time in the state before this side opens the connection again.
const REUSE_AFTER: Duration = Duration::from_secs(1);

/// A connection in TIME-WAIT. Pass it segments until it [expires](TimeWait::expires).
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    /// SND.NXT and RCV.NXT: everything before them has been exchanged.
    pub(crate) snd_nxt: u32,
    pub(crate) rcv_nxt: u32,
    /// Window field of acknowledgments.
    pub(crate) window: u16,
    pub(crate) answers_max: u16,
    pub(crate) answers_interval_ms: u32,
    pub(crate) length_ms: u32,
    /// Offset that is added to the clock, and TS.Recent, if timestamps were negotiated. The age of
    /// TS.Recent does not matter here (RFC 7323 §5.5): the state ends long before.
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) expires: Instant,
    pub(crate) limiter: AckLimiter,
}

/// Reaction to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Nothing,
    Acknowledge,
    Close,
}

pub(crate) fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl TimeWait {
    /// Returns when the state ends and can be dropped.
    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Processes a segment; returns the acknowledgment that answers it, if there is one. If a reset
    /// ends the state, it expires at once.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment<'_>) -> Option<Header> {
        match self.react(now, segment) {
            Reaction::Nothing => None,
            Reaction::Acknowledge => Some(self.acknowledgment(now, &segment.header)),
            Reaction::Close => {
                self.expires = now;
                None
            }
        }
    }

    /// Returns the initial sequence number of a connection that replaces this one: `isn`, unless
    /// this one has got further, as a fast download does (RFC 9293 §3.10.7.4).
    pub fn isn_beyond(&self, isn: u32) -> u32 {
        let beyond = self.snd_nxt.wrapping_add(ISN_GAP);
        if wraps_before(beyond, isn) {
            isn
        } else {
            beyond
        }
    }

    /// Returns true if this SYN may begin a new incarnation of the connection: its timestamp is
    /// newer than the last one, or without timestamps its sequence number is (RFC 6191, RFC 9293
    /// §3.10.7.4 fourth). The host then drops the old connection and treats the SYN as new.
    pub fn may_be_replaced_by(&self, syn: &Segment<'_>) -> bool {
        let header = &syn.header;
        let Flags(bits) = header.flags;
        let Flags(ruled_out) = Flags::RST | Flags::ACK;
        if !header.flags.contains(Flags::SYN) || bits & ruled_out != 0 {
            return false;
        }
        let newer_seq = wraps_before(self.rcv_nxt, header.seq);
        match (self.timestamps, header.options.timestamps) {
            (Some((_, recent)), Some(theirs)) => {
                wraps_before(recent, theirs.value) || (recent == theirs.value && newer_seq)
            }
            _ => newer_seq,
        }
    }

    /// Returns true if this side may open the connection again: the state has expired, or both
    /// sides have timestamps, and this side's are a second further, by which the peer distinguishes
    /// the new segments from old ones (RFC 6191 §2, RFC 7323 §5.5).
    pub fn may_be_reused(&self, now: Instant) -> bool {
        let length = Duration::from_millis(u64::from(self.length_ms));
        let is_old = self.expires + REUSE_AFTER <= now + length;
        self.expires <= now || (self.timestamps.is_some() && is_old)
    }

    pub(crate) fn react(&mut self, now: Instant, segment: &Segment<'_>) -> Reaction {
        let header = &segment.header;
        let has = |flag| header.flags.contains(flag);
        if has(Flags::RST) {
            // RFC 5961 §3.2: a reset must be at RCV.NXT; in the window it is challenged, else
            // dropped.
            let distance = header.seq.wrapping_sub(self.rcv_nxt);
            return match distance {
                0 => Reaction::Close,
                1.. if distance < u32::from(self.window) => self.challenge(now),
                _ => Reaction::Nothing,
            };
        }
        let end = header
            .seq
            .wrapping_add(segment.payload.len() as u32)
            .wrapping_add(1);
        let repeats_fin = has(Flags::FIN) && !has(Flags::SYN) && end == self.rcv_nxt;
        match (self.timestamps, header.options.timestamps) {
            // RFC 7323 §3.2: silently drop, but for the FIN, whose acknowledgment may be lost on a
            // path that strips options.
            (Some(_), None) if !repeats_fin => return Reaction::Nothing,
            // §5.3 R1
            (Some((_, recent)), Some(theirs)) if wraps_before(theirs.value, recent) => {
                return self.challenge(now);
            }
            _ => {}
        }
        // "The only thing that can arrive in this state is a retransmission of the remote FIN.
        // Acknowledge it, and restart the 2 MSL timeout."
        if repeats_fin {
            // "If the ACK bit is off, drop the segment and return."
            if !has(Flags::ACK) {
                return Reaction::Nothing;
            }
            self.expires = now + Duration::from_millis(u64::from(self.length_ms));
            return self.challenge(now);
        }
        // "If the ACK bit is off, drop the segment and return", if it is acceptable, and no SYN.
        if !has(Flags::ACK) && !has(Flags::SYN) && self.accepts(segment) {
            return Reaction::Nothing;
        }
        // Everything else is unacceptable, or a bare acknowledgment without news.
        let is_bare = segment.payload.is_empty() && !has(Flags::SYN) && !has(Flags::FIN);
        if is_bare && header.seq == self.rcv_nxt && has(Flags::ACK) && header.ack == self.snd_nxt {
            if let (Some((_, recent)), Some(theirs)) =
                (&mut self.timestamps, header.options.timestamps)
            {
                *recent = theirs.value;
            }
            return Reaction::Nothing;
        }
        self.challenge(now)
    }

    /// Tests whether a part of the segment lies in the window (RFC 9293 §3.10.7.4, first).
    fn accepts(&self, segment: &Segment<'_>) -> bool {
        let window = u32::from(self.window);
        let len = sequence_len(segment);
        let start = segment.header.seq.wrapping_sub(self.rcv_nxt);
        let last = start.wrapping_add(len).wrapping_sub(1);
        match (len, window) {
            (0, 0) => start == 0,
            (0, _) => start < window,
            _ => start < window || last < window,
        }
    }

    fn challenge(&mut self, now: Instant) -> Reaction {
        let interval = Duration::from_millis(u64::from(self.answers_interval_ms));
        if self.limiter.allows(now, self.answers_max, interval) {
            Reaction::Acknowledge
        } else {
            Reaction::Nothing
        }
    }

    fn acknowledgment(&self, now: Instant, to: &Header) -> Header {
        Header {
            source_port: to.destination_port,
            destination_port: to.source_port,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: self.window,
            options: wire::tcp::Options {
                timestamps: self
                    .timestamps
                    .map(|(offset, recent)| Timestamps::resumed(offset, recent).offer(now)),
                ..Default::default()
            },
        }
    }
}

const _: () = assert!(
    size_of::<TimeWait>() <= 56,
    "a hundred thousand of them must fit into a few megabytes"
);
