//! SYN-RECEIVED, in a few dozen bytes (RFC 9293 §3.10.7.4, RFC 4987 §3.3).
//!
//! A host that is flooded with SYNs keeps one `HalfOpen` for each, not a connection. It holds the
//! contents of the SYN, and no state derived from it: when a segment arrives or a timer expires, a
//! [`Connection`] is built by replaying the events so far, and handles the event. So a single place
//! defines the SYN,ACK, the time of its repetition, and which segment is acceptable.

use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

use crate::challenge::AckLimiter;
use crate::config::{Config, Limits};
use crate::connection::{Connection, is_plain_syn};
use crate::state::State;
use crate::time::Instant;

/// A SYN,ACK carries no data.
pub(crate) const LIMITS: Limits = Limits {
    bytes_max: 1,
    pieces_max: 1,
    real_bytes_max: 1,
    direct_bytes_max: 0,
};

/// A connection that a peer has begun, until the ACK of our SYN.
///
/// All calls must pass the same [`Config`].
#[derive(Clone, Copy, Debug)]
pub struct HalfOpen {
    syn: Syn,
    isn: u32,
    ts_offset: u32,
    opened: Instant,
    timeout: Instant,
    limiter: AckLimiter,
    /// SYN,ACKs sent because of the timer.
    retransmissions: u8,
    /// A SYN,ACK was sent because the peer has repeated its SYN.
    repeated: bool,
}

/// Effect of a segment on a [`HalfOpen`].
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is returned to"
)]
pub enum HalfOpenReaction {
    /// No effect.
    Nothing,
    /// The segment to send.
    Answer(Header),
    /// The peer has given up: drop the `HalfOpen`.
    Refused,
    /// The handshake is complete: this connection takes its place, and has processed the segment.
    Opened(Connection),
}

/// The SYN that began the connection, without text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syn {
    local_port: u16,
    remote_port: u16,
    pub(crate) seq: u32,
    window: u16,
    pub(crate) flags: Flags,
    pub(crate) ecn: Ecn,
    pub(crate) sack_permitted: bool,
    pub(crate) window_scale: Option<u8>,
    pub(crate) mss: Option<u16>,
    pub(crate) tsval: Option<u32>,
}

impl Syn {
    pub(crate) fn of(segment: &Segment<'_>) -> Syn {
        let header = &segment.header;
        Syn {
            local_port: header.destination_port,
            remote_port: header.source_port,
            seq: header.seq,
            window: header.window,
            flags: header.flags,
            ecn: segment.ecn,
            sack_permitted: header.options.sack_permitted,
            window_scale: header.options.window_scale,
            mss: header.options.mss,
            tsval: header.options.timestamps.map(|timestamps| timestamps.value),
        }
    }

    /// Returns a connection before the SYN is applied, which [`Connection::on_passive_open`] does.
    /// Two steps, since a connection is large: it is made where it stays, and not moved in between.
    pub(crate) fn begin(
        &self,
        config: &Config,
        isn: u32,
        ts_offset: u32,
        now: Instant,
    ) -> Connection {
        let Syn {
            local_port,
            remote_port,
            ..
        } = *self;
        Connection::connect(config, local_port, remote_port, isn, ts_offset, now)
    }

    pub(crate) fn segment(&self) -> Segment<'static> {
        Segment {
            header: Header {
                source_port: self.remote_port,
                destination_port: self.local_port,
                seq: self.seq,
                ack: 0,
                flags: self.flags,
                window: self.window,
                options: Options {
                    mss: self.mss,
                    window_scale: self.window_scale,
                    sack_permitted: self.sack_permitted,
                    timestamps: self.tsval.map(|value| Timestamps {
                        value,
                        echo_reply: 0,
                    }),
                    ..Options::default()
                },
            },
            payload: &[],
            ecn: self.ecn,
        }
    }
}

/// Takes the SYN,ACK, or an answer, out of a connection in SYN-RECEIVED.
pub(crate) fn take_header(connection: &mut Connection, at: Instant) -> Option<Header> {
    let transmit = connection.poll_transmit(at, &LIMITS)?;
    if let Some(transmission) = transmit.transmission {
        connection.on_departed(transmission, at);
    }
    Some(transmit.header)
}

impl HalfOpen {
    /// Answers a SYN that has reached a listener, with a SYN,ACK. `None` if the segment is no plain
    /// SYN, as in [`Connection::accept`], which explains the arguments.
    pub fn open(
        config: &Config,
        syn: &Segment<'_>,
        isn: u32,
        ts_offset: u32,
        now: Instant,
    ) -> Option<(HalfOpen, Header)> {
        if !is_plain_syn(&syn.header) {
            return None;
        }
        let syn = Syn::of(syn);
        let mut connection = syn.begin(config, isn, ts_offset, now);
        connection.on_passive_open(now, &syn.segment());
        let syn_ack = take_header(&mut connection, now)?;
        let half_open = HalfOpen {
            syn,
            isn,
            ts_offset,
            opened: now,
            timeout: connection.next_timeout()?,
            limiter: AckLimiter::default(),
            retransmissions: 0,
            repeated: false,
        };
        Some((half_open, syn_ack))
    }

    /// Returns when to call [`on_timeout`](HalfOpen::on_timeout).
    pub fn next_timeout(&self) -> Instant {
        self.timeout
    }

    /// Returns the SYN,ACK again, because none has been acknowledged; `None` if it is time to drop
    /// the `HalfOpen` ([`Config::syn_retries`]).
    pub fn on_timeout(&mut self, config: &Config) -> Option<Header> {
        let mut connection = self.begin(config);
        self.repeat(&mut connection)?;
        let at = self.timeout;
        connection.on_timeout(at);
        let syn_ack = take_header(&mut connection, at)?;
        self.timeout = connection.next_timeout()?;
        self.retransmissions += 1;
        Some(syn_ack)
    }

    /// Returns the last SYN,ACK, for a caller that could not send it before.
    pub fn syn_ack(&self, config: &Config) -> Option<Header> {
        self.repeat(&mut self.begin(config))
    }

    /// Processes a segment.
    pub fn on_segment(
        &mut self,
        config: &Config,
        now: Instant,
        segment: &Segment<'_>,
    ) -> HalfOpenReaction {
        let mut connection = self.begin(config);
        if self.repeat(&mut connection).is_none() {
            return HalfOpenReaction::Refused;
        }
        connection.on_segment(now, segment);
        match connection.state() {
            State::Closed => HalfOpenReaction::Refused,
            State::SynReceived => {
                let Some(transmit) = connection.poll_transmit(now, &LIMITS) else {
                    return HalfOpenReaction::Nothing;
                };
                // The connection's own count is dropped with it.
                let max = config.challenge_acks_max;
                let interval = config.challenge_acks_interval;
                if !self.limiter.allows(now, max, interval) {
                    return HalfOpenReaction::Nothing;
                }
                if transmit.transmission.is_some() {
                    self.repeated = true;
                    // RFC 3168 §6.1.1.1: the peer may have given ECN up. The rest of the repeated
                    // SYN is ignored.
                    let Flags(bits) = segment.header.flags;
                    let Flags(kept) = Flags::SYN | Flags::ECE | Flags::CWR;
                    self.syn.flags = Flags(bits & kept);
                    self.syn.ecn = segment.ecn;
                }
                HalfOpenReaction::Answer(transmit.header)
            }
            _ => HalfOpenReaction::Opened(connection),
        }
    }

    /// Returns the connection before any event.
    fn begin(&self, config: &Config) -> Connection {
        self.syn
            .begin(config, self.isn, self.ts_offset, self.opened)
    }

    /// Replays the connection's events; returns the last SYN,ACK sent.
    fn repeat(&self, connection: &mut Connection) -> Option<Header> {
        let syn = self.syn.segment();
        let mut at = self.opened;
        connection.on_passive_open(at, &syn);
        let mut syn_ack = take_header(connection, at)?;
        if self.repeated {
            connection.on_segment(at, &syn);
            syn_ack = take_header(connection, at)?;
        }
        for _ in 0..self.retransmissions {
            at = connection.next_timeout()?;
            connection.on_timeout(at);
            syn_ack = take_header(connection, at)?;
        }
        Some(syn_ack)
    }
}

const _: () = assert!(
    size_of::<HalfOpen>() <= 80,
    "a SYN queue of thousands must fit into the cache of a core"
);
