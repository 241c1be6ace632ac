//! A host's settings for all its connections.

use std::time::Duration;

use crate::congestion::algorithm::CongestionAlgorithm;
use crate::keepalive::Keepalive;

/// Use of explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnPolicy {
    /// Never.
    Off,
    /// If the peer, opening the connection, asks for it.
    #[default]
    Accept,
    /// Ask for it, too.
    Offer,
}

/// Parameters of connections. The defaults suit a content server on the Internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The MSS that we advertise, in bytes: the link's MTU less the fixed IP and TCP headers,
    /// options not counted (RFC 9293 §3.7.1). It also bounds what we send.
    pub mss: u16,
    /// Packets are IPv6's: their headers are 20 bytes longer than IPv4's, and no path carries less
    /// than 1280 bytes.
    pub ipv6: bool,
    /// The MSS of a peer that does not name one, in bytes: 536 for IPv4, 1220 for IPv6 (RFC 9293
    /// §3.7.1).
    pub peer_mss_default: u16,
    /// Bytes received that the application may leave unread; the largest window that we advertise
    /// at first.
    pub receive_buffer_bytes: usize,
    /// Bound of the receive buffer's growth, if the application reads fast enough and the peer
    /// sends it. Memory is taken as bytes arrive. Never less than `receive_buffer_bytes`.
    pub receive_buffer_bytes_max: usize,
    /// Real bytes queued and not acknowledged, at first. Virtual bytes do not count.
    pub send_buffer_bytes: usize,
    /// Bound of the send buffer's growth, to twice the congestion window. Never less than
    /// `send_buffer_bytes`.
    pub send_buffer_bytes_max: usize,
    /// Virtual bytes queued and not yet sent; or twice the congestion window, if that is more.
    /// `u64::MAX`: any number, as suits an application that owns its files; one behind a socket API
    /// wants back-pressure.
    pub virtual_bytes_max: u64,
    /// Extents (runs of real bytes, and virtual ranges) queued and not acknowledged.
    pub extents_max: usize,
    /// Fragments held for reassembly. Their bytes are bounded by the receive buffer.
    pub reassembly_fragments_max: usize,
    /// Offer and accept window scaling (RFC 7323 §2).
    pub window_scaling: bool,
    /// Offer and accept timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Offer and accept selective acknowledgments (RFC 2018 §2).
    pub sack: bool,
    /// Explicit congestion notification.
    pub ecn: EcnPolicy,
    /// RTO before the first measurement (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// Least distance of the RTO from the smoothed round-trip time. RFC 6298 §2.4 requires 1 s;
    /// content servers commonly use less.
    pub rto_min: Duration,
    /// Bound of the RTO and of the distance of window probes, backoff included (RFC 6298 §2.5).
    pub rto_max: Duration,
    /// Longest time that an acknowledgment may wait for company. RFC 9293 §3.8.6.3: less than 0.5
    /// s.
    pub delayed_ack: Duration,
    /// Full-sized segments that are acknowledged without that delay at the start, after a pause,
    /// and after a gap.
    pub quick_acks: u8,
    /// Retransmissions of a SYN or SYN,ACK before giving up.
    pub syn_retries: u8,
    /// Consecutive retransmission timeouts, or unanswered window probes, before giving up (R2 of
    /// RFC 9293 §3.8.3).
    pub retries: u8,
    /// The same when only the acknowledgment of our FIN is missing: all data has arrived, and the
    /// application does not wait.
    pub fin_retries: u8,
    /// Give up this long after the first unanswered retransmission, window probe or keep-alive, if
    /// `retries` has not ended it before (RFC 9293 §3.10.8; the local timeout of RFC 5482).
    pub user_timeout: Option<Duration>,
    /// Probing of an idle peer; `None`: off, the default (RFC 9293 §3.8.4, MUST-25).
    pub keepalive: Option<Keepalive>,
    /// Send less than a full segment although data is in flight. If not, the Nagle algorithm holds
    /// it back (RFC 9293 §3.7.4). [`Connection::set_nodelay`](crate::Connection::set_nodelay)
    /// changes it for one connection.
    pub nodelay: bool,
    /// Length of TIME-WAIT: 2 MSL (RFC 9293 §3.6.1).
    pub time_wait: Duration,
    /// In FIN-WAIT-2, give up on a peer that has sent nothing for this time. `None`: wait for ever.
    pub fin_wait_2: Option<Duration>,
    /// Challenge ACKs in a [`Config::challenge_acks_interval`], for one connection (RFC 5961 §7).
    pub challenge_acks_max: u16,
    /// See [`Config::challenge_acks_max`].
    pub challenge_acks_interval: Duration,
    /// Take round-trip times from the timestamps option alone, as IO-TCP does, and not from
    /// departures, which are exact. For measurements only.
    pub rtt_from_timestamps: bool,
    /// Issue transmissions again whose departure was not reported for this time, doubled each time;
    /// after [`Config::retries`] times give up. For hosts whose way to the NIC stack can lose
    /// messages: a ring in memory cannot. Longer than any read, queue or pace can hold a
    /// transmission, or it is sent twice.
    pub departure_timeout: Option<Duration>,
    /// Congestion control, unless [`crate::Connection::set_congestion`] changes it.
    pub congestion: CongestionAlgorithm,
    /// Pace CUBIC and NewReno on paths whose shortest round-trip time is above 2 ms: a window for
    /// each round-trip time and a fifth more, two windows in slow start. As much as the initial
    /// window may be in flight before the rate applies. BBR always paces.
    pub pace: bool,
}

impl Config {
    /// Bound of a receive buffer while memory is short ([`Connection::set_memory_pressure`]), in
    /// bytes.
    ///
    /// [`Connection::set_memory_pressure`]: crate::Connection::set_memory_pressure
    pub const RECEIVE_BUFFER_BYTES_PRESSED: usize = 8 << 10;
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: 1460,
            ipv6: false,
            peer_mss_default: 536,
            receive_buffer_bytes: 64 << 10,
            receive_buffer_bytes_max: 1 << 20,
            send_buffer_bytes: 64 << 10,
            send_buffer_bytes_max: 32 << 20,
            virtual_bytes_max: u64::MAX,
            extents_max: 256,
            reassembly_fragments_max: 64,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: EcnPolicy::Accept,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            syn_retries: 6,
            retries: 15,
            fin_retries: 8,
            user_timeout: None,
            keepalive: None,
            nodelay: true,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Some(Duration::from_secs(60)),
            challenge_acks_max: 10,
            challenge_acks_interval: Duration::from_secs(5),
            rtt_from_timestamps: false,
            departure_timeout: None,
            congestion: CongestionAlgorithm::Cubic,
            pace: true,
        }
    }
}

/// Bounds of one [`crate::Transmit`], set by its carrier. All must be at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload, in bytes.
    pub bytes_max: usize,
    /// Pieces of payload, real and virtual.
    pub pieces_max: usize,
    /// Real bytes among the payload.
    pub real_bytes_max: usize,
    /// Payload, in bytes, if it is real throughout and may leave at once: no undeparted
    /// transmission is before it, and it is not paced. Counts if it is above `real_bytes_max`.
    pub direct_bytes_max: usize,
}
