//! ICMP errors that quote a segment of ours (RFC 9293 §3.9.2.2, RFC 5927).
//!
//! Any host can forge one, so that none ends an established connection (RFC 5461), and "too big" is
//! accepted only for a segment in flight, within the MTUs of real paths, and not too often.

use std::time::Duration;

use crate::connection::Connection;
use crate::event::CloseReason;
use crate::state::State;
use crate::time::Instant;

/// Least MTU of an IPv6 path (RFC 8201 §4: a message with less must be discarded).
const IPV6_MTU_MIN: u32 = 1280;

/// Least accepted MTU. IPv4 allows 68 bytes, but no link has so little; such a message is meant to
/// multiply our packets.
const IPV4_MTU_MIN: u32 = 552;

/// RFC 8899 §5.1.2 (BASE_PLPMTU): a packet that nearly all paths carry.
const MTU_BASE: u32 = 1280;

/// RFC 1191 §7.1: MTUs that exist, for routers that do not report theirs.
const PLATEAUS: [u32; 6] = [8166, 4352, 2002, 1492, 1006, IPV4_MTU_MIN];

impl Connection {
    /// Handles an ICMP "fragmentation needed" or ICMPv6 "packet too big" that quotes a segment of
    /// this connection. `mtu`: the largest IP packet of the next hop, in bytes; 0 if not reported
    /// (RFC 1191 §5). `seq`: the sequence number quoted. Returns true if it was believed; then
    /// segments become smaller, and the data in flight is sent again, without congestion (RFC 8201
    /// §5.4). A message that contradicts acknowledgments is not believed at once (RFC 5927 §7.2).
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

    /// Limits the link's segments to `mss` from now on, which counts as [`crate::Config::mss`]
    /// does. Returns true if segments were too long: then they become smaller, and the data in
    /// flight is sent again, without congestion. A larger size applies to later connections only:
    /// this one has announced its MSS.
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

    /// Handles an ICMP "destination unreachable" that quotes a segment of this connection. `hard`:
    /// protocol or port do not exist. Established connections ignore it (RFC 5461 §3, RFC 5927
    /// §5.2): data in flight is sent again until it is acknowledged, or for too long. A connection
    /// being opened ends at any code (RFC 5461 §4.1): its owner can try another address.
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

    /// Handles a next hop that does not answer, or does not exist. Only a connection being opened
    /// ends.
    pub fn on_no_route(&mut self) {
        if self.state == State::SynSent {
            self.end(CloseReason::Unreachable);
        }
    }

    /// Reduces the segment size if a segment that was in flight too long may have been too large.
    pub(crate) fn suspect_segment_size(&mut self, now: Instant) {
        let ipv6 = self.config.ipv6;
        let bases = [MTU_BASE, if ipv6 { MTU_BASE } else { IPV4_MTU_MIN }];
        let bases = bases.map(|mtu| self.payload_of(mtu));
        let (una, mss, timeouts) = (self.snd.una, self.snd.mss, self.rto.timeouts());
        // Only a segment that is larger than the base is suspect. It need not be of full size: the
        // peer's window, or the end of the queued data, may keep all segments smaller.
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

    /// Sets Eff.snd.MSS.
    pub(crate) fn set_mss(&mut self, mss: u16) {
        self.snd.mss = mss.max(1);
        self.congestion.on_mss(self.snd.mss);
    }

    /// Returns the size of IP and TCP headers with the options of every segment, in bytes.
    pub(crate) fn header_bytes(&self) -> u32 {
        let ip = if self.config.ipv6 { 40 } else { 20 };
        ip + 20 + u32::from(self.option_bytes())
    }

    /// Returns the payload of a packet of `mtu` bytes.
    fn payload_of(&self, mtu: u32) -> u16 {
        let payload = mtu.saturating_sub(self.header_bytes());
        u16::try_from(payload).unwrap_or(u16::MAX)
    }
}
