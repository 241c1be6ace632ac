//! ICMP errors that quote a segment of ours (RFC 9293 §3.9.2.2, RFC 5927).
//!
//! Any host can forge one, so that none ends an established connection (RFC 5461), and "too big" is
//! believed only for a segment in flight, within what real paths do, and not too often.

use std::time::Duration;

use crate::connection::Connection;
use crate::event::CloseReason;
use crate::state::State;
use crate::time::Instant;

/// No IPv6 path has less (RFC 8201 §4: such a message must be discarded).
const IPV6_MTU_MIN: u32 = 1280;

/// IPv4 allows 68 bytes, but no link has so little; who says so wants us to send many packets.
const IPV4_MTU_MIN: u32 = 552;

/// RFC 8899 §5.1.2 (BASE_PLPMTU): a packet that nearly all paths carry.
const MTU_BASE: u32 = 1280;

/// RFC 1191 §7.1: MTUs that exist, for routers that do not tell theirs.
const PLATEAUS: [u32; 6] = [8166, 4352, 2002, 1492, 1006, IPV4_MTU_MIN];

impl Connection {
    /// An ICMP "fragmentation needed" or ICMPv6 "packet too big" quotes a segment of this
    /// connection. `mtu`: the largest IP packet of the next hop, in bytes; 0 if it does not say
    /// (RFC 1191 §5). `seq`: the sequence number quoted. True if it was believed; then segments
    /// become smaller, and what was in flight is sent again, which tells nothing of congestion (RFC
    /// 8201 §5.4). Not believed at once is what contradicts acknowledgments (RFC 5927 §7.2).
    pub fn on_icmp_too_big(&mut self, now: Instant, mtu: u32, seq: u32) -> bool {
        let position = self.snd.space.position(seq, self.snd.una);
        let in_flight = self.snd.una as i64 <= position && position < self.snd.nxt as i64;
        if !in_flight || self.state.is_opening() || self.state == State::Closed {
            return false;
        }
        let mtu = match mtu {
            0 if !self.config.ipv6 => {
                let now = u32::from(self.snd.mss) + self.header_bytes();
                PLATEAUS.into_iter().find(|&mtu| mtu < now).unwrap_or(0)
            }
            mtu => mtu,
        };
        let mtu_min = if self.config.ipv6 {
            IPV6_MTU_MIN
        } else {
            IPV4_MTU_MIN
        };
        let (max, interval) = (
            self.config.challenge_acks_max,
            self.config.challenge_acks_interval,
        );
        if mtu < mtu_min || !self.too_big.allows(now, max, interval) {
            return false;
        }
        let (bytes, mss) = (self.payload_of(mtu), self.snd.mss);
        let smaller = self.pmtu.on_too_big(now, position as u64, bytes, mss);
        if let Some(bytes) = smaller {
            self.set_mss(bytes);
            self.sent.lose_departed(now, Duration::ZERO);
        }
        smaller.is_some()
    }

    /// The link carries segments of no more than `mss` from now on, which counts as
    /// [`crate::Config::mss`] does. If they are too long for it, segments become smaller, and what
    /// was in flight is sent again, which tells nothing of congestion. True if so. A larger size is
    /// for connections to come: this one has named its MSS.
    pub fn on_link_mss(&mut self, now: Instant, mss: u16) -> bool {
        if mss >= self.config.mss {
            return false;
        }
        self.config.mss = mss;
        let bytes = self.receive_mss();
        self.pmtu.on_link(bytes);
        if bytes >= self.snd.mss {
            return false;
        }
        self.set_mss(bytes);
        self.sent.lose_departed(now, Duration::ZERO);
        true
    }

    /// An ICMP "destination unreachable" quotes a segment of this connection. `hard`: it says that
    /// protocol or port do not exist. Established connections take no notice (RFC 5461 §3, RFC 5927
    /// §5.2): what is in flight is sent again until it is acknowledged, or for too long. One that
    /// is being opened ends whatever the code (RFC 5461 §4.1): its owner can try another address.
    pub fn on_icmp_unreachable(&mut self, hard: bool, seq: u32) {
        let is_syn = seq == self.snd.space.wire(0);
        if is_syn && self.state == State::SynSent && self.snd.nxt > 0 {
            self.end(if hard {
                CloseReason::Refused
            } else {
                CloseReason::Unreachable
            });
        }
    }

    /// The next hop does not answer, or there is none. Only a connection that is being opened ends.
    pub fn on_no_route(&mut self) {
        if self.state == State::SynSent {
            self.end(CloseReason::Unreachable);
        }
    }

    /// A segment that was in flight too long may have been too large.
    pub(crate) fn suspect_segment_size(&mut self, now: Instant) {
        let ipv6 = self.config.ipv6;
        let bases = [MTU_BASE, if ipv6 { MTU_BASE } else { IPV4_MTU_MIN }];
        let bases = bases.map(|mtu| self.payload_of(mtu));
        let (una, mss, timeouts) = (self.snd.una, self.snd.mss, self.rto.timeouts());
        // Only a segment that is larger than the base is suspect. It need not be of full size: the
        // peer's window, or the end of what is queued, may keep all of them smaller.
        let base = bases.iter().find(|&&base| base < mss);
        let bases = if base.is_some_and(|&base| self.snd.flight() > u64::from(base)) {
            &bases[..]
        } else {
            &[]
        };
        if let Some(bytes) = (self.pmtu).on_timeout(now, una, timeouts, mss, bases) {
            self.set_mss(bytes);
        }
    }

    /// Eff.snd.MSS changes.
    pub(crate) fn set_mss(&mut self, mss: u16) {
        self.snd.mss = mss.max(1);
        self.congestion.on_mss(self.snd.mss);
    }

    /// IP and TCP headers with the options of every segment, in bytes.
    pub(crate) fn header_bytes(&self) -> u32 {
        let ip = if self.config.ipv6 { 40 } else { 20 };
        ip + 20 + u32::from(self.option_bytes())
    }

    /// Payload of a packet of `mtu` bytes.
    fn payload_of(&self, mtu: u32) -> u16 {
        let payload = mtu.saturating_sub(self.header_bytes());
        u16::try_from(payload).unwrap_or(u16::MAX)
    }
}
