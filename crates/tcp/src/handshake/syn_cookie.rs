//! SYN cookies: SYN-RECEIVED without memory (RFC 4987 §3.6).
//!
//! Every fact that a connection needs about the SYN is in the SYN,ACK, and comes back in the ACK:
//!
//! ```text
//! ISN     31: period, modulo 2 | 30–28: MSS class | 27–14, 13–0: SipHash-2-4, twice
//! TSval    5: ECN | 4: SACK permitted | 3–0: window scale, 15 if there is none
//! ```
//!
//! A peer without timestamps has its options in the ISN, at the cost of four bits of the hash:
//!
//! ```text
//! ISN     31: period, modulo 2 | 30–28: MSS class | 27–25: window scale class
//!         | 24: SACK permitted | 23–12, 11–0: SipHash-2-4, twice
//! ```
//!
//! The hashes are keyed, and taken over addresses, ports, the number of the period, and all encoded
//! fields; the first one over the peer's ISN as well. Segments that a peer sends before its ACK has
//! made a connection here may be lost, and later ones do not contain its ISN: the second hash
//! recognizes such a segment, so that it is not answered with RST, and the peer retransmits the
//! lost data. A guess is right once in 2²⁸ times, or 2²⁴ times without timestamps: a blind attacker
//! who sends a million guesses per second opens a connection every 17 s, and only during a flood. A
//! period is 64 s; a cookie is good in its own and the next one, so its number modulo 2 identifies
//! the period.
//!
//! Without timestamps there is no room for ECN, and window scales are rounded down: the peer's
//! window then counts for less than its size, which is safe.

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip::SipHasher24;
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Segment};

use crate::config::Config;
use crate::connection::{Connection, is_plain_syn};
use crate::handshake::half_open::{Syn, take_header};
use crate::handshake::isn::HashInput;
use crate::time::Instant;

/// Length of a period, in microseconds.
const PERIOD_US: u64 = 64_000_000;

/// Classes to which a peer's MSS is rounded down: no MSS at all (RFC 9293 §3.7.1: 536 and 1220),
/// tunnels, Ethernet over IPv4 and IPv6, jumbo frames. Without the first one a smaller MSS would be
/// exceeded.
const MSS_CLASSES: [u16; 8] = [64, 536, 1220, 1300, 1400, 1440, 1460, 8960];

/// Classes to which a peer's window scale is rounded down, without timestamps.
const SCALE_CLASSES: [u32; 8] = [NO_SCALE, 0, 1, 2, 4, 6, 7, 8];

const CLASS_SHIFT: u32 = 28;
/// Without timestamps: position and mask of the options in an ISN.
const ISN_OPTION_SHIFT: u32 = 24;
const ISN_OPTION_MASK: u32 = 15;
const CLASS_MASK: u32 = 7;

/// Layout of a timestamp's lowest bits.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const ECN: u32 = 1 << 5;
const SACK: u32 = 1 << 4;
const NO_SCALE: u32 = 15;

const ECN_SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

const _: () = assert!(
    MSS_CLASSES.len() == CLASS_MASK as usize + 1
        && SCALE_CLASSES.len() * 2 == ISN_OPTION_MASK as usize + 1
        && ISN_OPTION_SHIFT + 4 == CLASS_SHIFT
        && CLASS_SHIFT + 3 + 1 == 32,
    "period, class, options and hash fill an ISN"
);

/// Makes and verifies cookies.
#[derive(Clone)]
pub struct SynCookies {
    key: [u8; 16],
}

/// A cookie that a peer has returned.
#[derive(Clone, Copy, Debug)]
pub struct SynCookie {
    /// The fields of the SYN that the cookie has kept.
    syn: Syn,
    isn: u32,
}

impl SynCookies {
    /// Longest time for which a cookie is good, in microseconds.
    pub const LIFETIME_US_MAX: u64 = 2 * PERIOD_US;

    /// `key` must be secret and random, and stay the same as long as the host runs.
    pub fn new(key: [u8; 16]) -> SynCookies {
        SynCookies { key }
    }

    /// Returns the SYN,ACK that answers a SYN, without keeping state. `None` if the segment is no
    /// plain SYN. `ts_offset` is [`IsnGenerator::ts_offset`](crate::IsnGenerator::ts_offset).
    pub fn syn_ack(
        &self,
        config: &Config,
        local: SocketAddr,
        remote: SocketAddr,
        syn: &Segment<'_>,
        ts_offset: u32,
        now: Instant,
    ) -> Option<Header> {
        if !is_plain_syn(&syn.header) {
            return None;
        }
        let mut kept = Syn::of(syn);
        if !config.timestamps {
            kept.tsval = None;
        }
        let mss = kept.mss.unwrap_or(config.peer_mss_default);
        let class = MSS_CLASSES.partition_point(|&class| class <= mss).max(1) as u32 - 1;
        let place = match kept.tsval {
            Some(_) => Place::Timestamp(encode_options(&kept)),
            None => Place::Isn(narrow(encode_options(&kept))),
        };
        impose_options(&mut kept, place.options());
        kept.mss = Some(MSS_CLASSES[class as usize]);
        let period = now.as_us() / PERIOD_US;
        let isn = self.cookie(local, remote, kept.seq, period, class, place);
        let mut connection = kept.begin(config, isn, ts_offset, now);
        connection.on_passive_open(now, &kept.segment());
        let mut header = take_header(&mut connection, now)?;
        if let (Some(timestamps), Place::Timestamp(options)) =
            (&mut header.options.timestamps, place)
        {
            // The latest instant that ends with these bits, and is not in the future: the
            // connection's later timestamps must not be older (RFC 7323 §5).
            let behind = timestamps.value.wrapping_sub(options) & OPTION_MASK;
            timestamps.value = timestamps.value.wrapping_sub(behind);
        }
        Some(header)
    }

    /// Returns the connection that an ACK completes, if it acknowledges a cookie that is good; it
    /// has processed the segment. Its round-trip time is not known yet.
    pub fn accept(
        &self,
        config: &Config,
        local: SocketAddr,
        remote: SocketAddr,
        ack: &Segment<'_>,
        ts_offset: u32,
        now: Instant,
    ) -> Option<Connection> {
        let cookie = self.verify(config, local, remote, ack, now)?;
        let mut connection = cookie.begin(config, ts_offset, now);
        let is_complete = cookie.complete(&mut connection, ack, now);
        is_complete.then_some(connection)
    }

    /// Returns the cookie that an ACK acknowledges, if it is good.
    pub fn verify(
        &self,
        config: &Config,
        local: SocketAddr,
        remote: SocketAddr,
        ack: &Segment<'_>,
        now: Instant,
    ) -> Option<SynCookie> {
        let header = &ack.header;
        let Flags(bits) = header.flags;
        let Flags(ruled_out) = Flags::SYN | Flags::RST;
        if !header.flags.contains(Flags::ACK) || bits & ruled_out != 0 {
            return None;
        }
        let isn = header.ack.wrapping_sub(1);
        let seq = header.seq.wrapping_sub(1);
        let (place, class, period) = decode(config, header, now)?;
        if isn != self.cookie(local, remote, seq, period, class, place) {
            return None;
        }
        let mut syn = Syn::of(ack);
        syn.seq = seq;
        syn.flags = Flags::SYN;
        syn.mss = Some(MSS_CLASSES[class as usize]);
        impose_options(&mut syn, place.options());
        Some(SynCookie { syn, isn })
    }

    /// Returns true if the segment may follow a lost ACK that completes a handshake: all that is
    /// known is that it acknowledges a cookie that is good.
    pub fn may_follow(
        &self,
        config: &Config,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment<'_>,
        now: Instant,
    ) -> bool {
        let header = &segment.header;
        let Flags(bits) = header.flags;
        let Flags(ruled_out) = Flags::SYN | Flags::RST;
        if !header.flags.contains(Flags::ACK) || bits & ruled_out != 0 {
            return false;
        }
        let isn = header.ack.wrapping_sub(1);
        let Some((place, class, period)) = decode(config, header, now) else {
            return false;
        };
        let mask = (1 << (place.hash_bits() / 2)) - 1;
        let cookie = self.cookie(local, remote, 0, period, class, place);
        (isn ^ cookie) & mask == 0
    }

    fn cookie(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        seq: u32,
        period: u64,
        class: u32,
        place: Place,
    ) -> u32 {
        let (kind, bits, in_isn) = match place {
            Place::Timestamp(options) => (0, options, 0),
            Place::Isn(bits) => (1, bits, bits << ISN_OPTION_SHIFT),
        };
        let mut input = HashInput::default();
        input.push_ends(local, remote);
        input.push(period.to_be_bytes());
        input.push([class as u8, kind, bits as u8]);
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(input.bytes());
        let without_seq = hasher.finish();
        hasher.write(&seq.to_be_bytes());
        let with_seq = hasher.finish();
        let half_bits = place.hash_bits() / 2;
        let half = |hash: u64| hash as u32 & ((1 << half_bits) - 1);
        let hashes = half(with_seq) << half_bits | half(without_seq);
        (period as u32 & 1) << 31 | class << CLASS_SHIFT | in_isn | hashes
    }
}

impl SynCookie {
    /// Returns a connection before the SYN is applied, which [`SynCookie::complete`] does. Two
    /// steps, since a connection is large: it is made where it stays, and not moved in between.
    pub fn begin(&self, config: &Config, ts_offset: u32, now: Instant) -> Connection {
        self.syn.begin(config, self.isn, ts_offset, now)
    }

    /// Lets the connection process the SYN, and the ACK that has returned the cookie. Returns true
    /// if that completes the handshake; if not, the connection is to be dropped. Its round-trip
    /// time is not known yet.
    pub fn complete(&self, connection: &mut Connection, ack: &Segment<'_>, now: Instant) -> bool {
        connection.on_passive_open(now, &self.syn.segment());
        // The SYN,ACK left at an unknown time: it has no record, and measures no round trip.
        connection.snd.nxt = 1;
        connection.sent.skip();
        connection.on_segment(now, ack);
        connection.state().is_synchronized()
    }
}

/// Decodes the cookie in an ACK, if it is one: the place of its options, the class of MSS, the
/// period.
fn decode(config: &Config, header: &Header, now: Instant) -> Option<(Place, u32, u64)> {
    let timestamps = header.options.timestamps.filter(|_| config.timestamps);
    let isn = header.ack.wrapping_sub(1);
    let place = match timestamps {
        Some(timestamps) => Place::Timestamp(timestamps.echo_reply & OPTION_MASK),
        None => Place::Isn(isn >> ISN_OPTION_SHIFT & ISN_OPTION_MASK),
    };
    let class = isn >> CLASS_SHIFT & CLASS_MASK;
    let current = now.as_us() / PERIOD_US;
    let period = if current & 1 == u64::from(isn >> 31) {
        current
    } else {
        current.checked_sub(1)?
    };
    Some((place, class, period))
}

/// Place of the SYN's options in a cookie.
#[derive(Clone, Copy)]
enum Place {
    /// In a timestamp, as [`encode_options`] writes them.
    Timestamp(u32),
    /// In the ISN, as [`narrow`] writes them.
    Isn(u32),
}

impl Place {
    /// Returns the number of ISN bits for hashes.
    fn hash_bits(self) -> u32 {
        match self {
            Place::Timestamp(_) => CLASS_SHIFT,
            Place::Isn(_) => ISN_OPTION_SHIFT,
        }
    }

    /// Returns the options as [`encode_options`] writes them.
    fn options(self) -> u32 {
        match self {
            Place::Timestamp(options) => options,
            Place::Isn(bits) => {
                let scale = SCALE_CLASSES[(bits >> 1) as usize];
                scale | if bits & 1 == 0 { 0 } else { SACK }
            }
        }
    }
}

/// Encodes the options that fit into an ISN: the class of the window scale, and SACK permitted.
fn narrow(options: u32) -> u32 {
    let scale = options & NO_SCALE;
    let class = match scale {
        NO_SCALE => 0,
        scale => SCALE_CLASSES[1..].partition_point(|&class| class <= scale) as u32,
    };
    class << 1 | u32::from(options & SACK != 0)
}

fn encode_options(syn: &Syn) -> u32 {
    let scale = syn.window_scale.map_or(NO_SCALE, |scale| {
        // RFC 7323 §2.3: a larger shift means 14.
        u32::from(scale.min(14))
    });
    let sack = if syn.sack_permitted { SACK } else { 0 };
    let ecn = if syn.flags.contains(ECN_SETUP) {
        ECN
    } else {
        0
    };
    scale | sack | ecn
}

/// Sets a SYN's options to those that the cookie has kept.
fn impose_options(syn: &mut Syn, options: u32) {
    let scale = options & NO_SCALE;
    syn.window_scale = (scale != NO_SCALE).then_some(scale as u8);
    syn.sack_permitted = options & SACK != 0;
    syn.ecn = Ecn::NotEct;
    syn.flags = match options & ECN {
        0 => syn.flags.without(ECN_SETUP),
        _ => syn.flags | ECN_SETUP,
    };
}

impl std::fmt::Debug for SynCookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SynCookies { key: secret }")
    }
}
