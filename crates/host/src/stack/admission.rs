//! Who is let in: the SYN queue, SYN cookies, and the limits on new connections (RFC 4987).
//!
//! A SYN costs a place in the SYN queue. When that is full, the answer is a cookie, and nothing is kept. An ACK
//! that completes a handshake, kept or in a cookie, costs a connection, unless a limit says no:
//!
//! | Limit | What happens beyond |
//! |---|---|
//! | connections | the segment is dropped; the peer tries again |
//! | connections of which nothing was heard, or whose handshake of TLS is not over (the backlog) | the same |
//! | connections of one source | SYNs are dropped, ACKs are answered with RST |

use std::net::{IpAddr, SocketAddr};

use tcp::{HalfOpen, HalfOpenReaction, Instant, SynCookies};
use wire::tcp::{Flags, Segment};

use super::Stack;
use super::arrival::Bare;
use crate::config::Admission;
use crate::keyed_hash::KeyedHash;
use crate::sources::Sources;
use crate::spent_cookies::SpentCookies;
use crate::syn_queue::SynQueue;
use crate::tuple::Tuple;

/// Something that keeps happening is worth a line when it begins; it is over when nothing of the kind has
/// happened for so long, in microseconds.
const QUIET_US: u64 = 60_000_000;

/// The state of admission.
#[derive(Debug)]
pub(super) struct Gate {
    limits: Admission,
    syn_queue: SynQueue,
    cookies: SynCookies,
    spent: SpentCookies,
    /// Established connections of which nothing was heard; with TLS, until the end of its handshake.
    unheard: usize,
    sources: Sources,
    flood: Episode,
    backlog_full: Episode,
    table_full: Episode,
    source_exhausted: Episode,
}

/// Something that keeps happening.
#[derive(Debug, Default)]
struct Episode {
    last_us: Option<u64>,
}

impl Episode {
    /// It happens; true if it had not for a while.
    fn begins(&mut self, now_us: u64) -> bool {
        let goes_on = self.is_recent(now_us, QUIET_US);
        self.last_us = Some(now_us);
        !goes_on
    }

    fn is_recent(&self, now_us: u64, age_us_max: u64) -> bool {
        self.last_us
            .is_some_and(|last_us| now_us.saturating_sub(last_us) < age_us_max)
    }
}

/// Why there is no connection for a segment.
enum Refusal {
    /// The peer may try again.
    Later,
    /// The peer is told.
    Reset,
}

impl Gate {
    pub(super) fn new(limits: Admission, secret: [u8; 16], hash_key: [u8; 16]) -> Gate {
        let mut cookie_key = secret;
        cookie_key[1] ^= 0xff;
        Gate {
            limits,
            syn_queue: SynQueue::new(&hash_key),
            cookies: SynCookies::new(cookie_key),
            spent: SpentCookies::new(&hash_key),
            unheard: 0,
            sources: Sources::new(limits.connections_per_source, KeyedHash(hash_key)),
            flood: Episode::default(),
            backlog_full: Episode::default(),
            table_full: Episode::default(),
            source_exhausted: Episode::default(),
        }
    }

    pub(super) fn half_open(&self) -> usize {
        self.syn_queue.len()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.syn_queue.next_timeout()
    }

    /// A peer has sent something on its connection for the first time, or completed its handshake of TLS.
    pub(super) fn on_heard(&mut self) {
        self.unheard -= 1;
    }

    /// A connection is forgotten.
    pub(super) fn on_forgotten(&mut self, remote: IpAddr, heard: bool) {
        self.unheard -= usize::from(!heard);
        self.sources.remove(remote);
    }

    /// The connection that a cookie has opened is broken off.
    pub(super) fn on_cookie_spent(&mut self, now_us: u64, tuple: Tuple, cookie: u32) {
        self.spent.add(now_us, tuple, cookie);
    }

    /// Forgets what is half-open.
    pub(super) fn close(&mut self) {
        self.syn_queue.clear();
    }
}

impl Stack {
    /// Half-open connections: begun by a peer that has not answered our SYN,ACK.
    pub fn half_open(&self) -> usize {
        self.gate.half_open()
    }

    fn tcp_config(&self, local: SocketAddr) -> tcp::Config {
        let config = match local {
            SocketAddr::V4(_) => &self.tcp_config_v4,
            SocketAddr::V6(_) => &self.tcp_config_v6,
        };
        tcp::Config {
            congestion: self.listener_congestion(local.port()),
            ..*config
        }
    }

    /// Gives a segment to the half-open connection that it belongs to; false if there is none.
    pub(super) fn on_half_open(
        &mut self,
        now_us: u64,
        tuple: Tuple,
        segment: &Segment<'_>,
    ) -> bool {
        let config = self.tcp_config(tuple.local);
        let Some(half_open) = self.gate.syn_queue.get_mut(&tuple) else {
            return false;
        };
        match half_open.on_segment(&config, Instant::from_us(now_us), segment) {
            HalfOpenReaction::Nothing => {}
            HalfOpenReaction::Answer(header) => {
                // The peer may answer a cookie that was sent when there was no room, before its SYN came again.
                let unacceptable = header.flags.contains(Flags::RST);
                if unacceptable && self.on_cookie(now_us, tuple, segment) {
                    self.gate.syn_queue.remove(&tuple);
                } else {
                    self.send_bare(now_us, tuple, &header);
                }
            }
            HalfOpenReaction::Refused => self.gate.syn_queue.remove(&tuple),
            HalfOpenReaction::Opened(connection) => match self.admit(now_us, &tuple) {
                Ok(()) => {
                    self.gate.syn_queue.remove(&tuple);
                    self.open(now_us, tuple, connection, None);
                }
                Err(Refusal::Later) => {}
                Err(Refusal::Reset) => {
                    self.gate.syn_queue.remove(&tuple);
                    self.refuse(now_us, tuple, segment);
                }
            },
        }
        true
    }

    /// A segment for a listening port that belongs to nothing we know (RFC 9293 §3.10.7.2). False if it can
    /// begin nothing either.
    pub(super) fn on_listen(
        &mut self,
        now_us: u64,
        tuple: Tuple,
        segment: &Segment<'_>,
        isn: u32,
    ) -> bool {
        if segment.header.flags.contains(Flags::SYN) {
            return self.on_syn(now_us, tuple, segment, isn);
        }
        self.on_cookie(now_us, tuple, segment)
    }

    /// Opens a connection if the segment brings back a cookie of ours; false if it does not.
    fn on_cookie(&mut self, now_us: u64, tuple: Tuple, segment: &Segment<'_>) -> bool {
        // Cookies are believed while there are some about, so that guessing is in vain at all other times.
        let lifetime_us = SynCookies::LIFETIME_US_MAX;
        if !self.gate.flood.is_recent(now_us, lifetime_us) {
            return false;
        }
        let Tuple { local, remote } = tuple;
        let now = Instant::from_us(now_us);
        let ts_offset = self.isn.ts_offset(local, remote);
        let config = &self.tcp_config(local);
        let opened = self
            .gate
            .cookies
            .accept(config, local, remote, segment, ts_offset, now);
        let cookie = segment.header.ack.wrapping_sub(1);
        let opened = opened.filter(|_| !self.gate.spent.contains(&tuple, cookie));
        let Some(connection) = opened else {
            self.counters.syn_cookies_invalid += 1;
            return false;
        };
        match self.admit(now_us, &tuple) {
            Ok(()) => {
                self.counters.syn_cookies_accepted += 1;
                self.open(now_us, tuple, connection, Some(cookie));
            }
            Err(Refusal::Later) => {}
            Err(Refusal::Reset) => self.refuse(now_us, tuple, segment),
        }
        true
    }

    fn on_syn(&mut self, now_us: u64, tuple: Tuple, syn: &Segment<'_>, isn: u32) -> bool {
        let Flags(bits) = syn.header.flags;
        let Flags(ruled_out) = Flags::RST | Flags::ACK | Flags::FIN;
        if bits & ruled_out != 0 {
            return false;
        }
        if self.admit(now_us, &tuple).is_err() {
            return true;
        }
        let Tuple { local, remote } = tuple;
        let now = Instant::from_us(now_us);
        let ts_offset = self.isn.ts_offset(local, remote);
        if self.gate.half_open() >= self.gate.limits.half_open_max {
            if self.gate.flood.begins(now_us) {
                let half_open = self.gate.half_open();
                tracing::warn!(
                    half_open,
                    "the SYN queue is full: SYNs are answered with cookies"
                );
            }
            let cookies = &self.gate.cookies;
            let config = &self.tcp_config(local);
            let syn_ack = cookies.syn_ack(config, local, remote, syn, ts_offset, now);
            if let Some(header) = syn_ack {
                self.counters.syn_cookies_sent += 1;
                self.send_bare(now_us, tuple, &header);
            }
        } else if let Some((half_open, syn_ack)) =
            HalfOpen::open(&self.tcp_config(local), syn, isn, ts_offset, now)
        {
            self.gate.syn_queue.insert(tuple, half_open);
            if self.send_bare(now_us, tuple, &syn_ack) == Bare::Pending {
                self.gate.syn_queue.wait_for_neighbor(tuple);
            }
        }
        true
    }

    /// Whether there may be one more connection.
    fn admit(&mut self, now_us: u64, tuple: &Tuple) -> Result<(), Refusal> {
        let limits = self.gate.limits;
        if self.connections.len() >= self.config.connections_max {
            self.counters.connections_refused += 1;
            if self.gate.table_full.begins(now_us) {
                let connections = self.connections.len();
                tracing::warn!(
                    connections,
                    "as many connections as there may be: no more are accepted"
                );
            }
            return Err(Refusal::Later);
        }
        if self.gate.unheard >= limits.backlog_max {
            self.counters.backlog_overflows += 1;
            if self.gate.backlog_full.begins(now_us) {
                let silent = self.gate.unheard;
                tracing::warn!(
                    silent,
                    "too many connections have sent nothing yet: no more are accepted"
                );
            }
            return Err(Refusal::Later);
        }
        if self.gate.sources.is_exhausted(tuple.remote.ip()) {
            self.counters.sources_refused += 1;
            if self.gate.source_exhausted.begins(now_us) {
                let (source, limit) = (tuple.remote.ip(), limits.connections_per_source);
                tracing::warn!(%source, limit, "a source has as many connections as it may have");
            }
            return Err(Refusal::Reset);
        }
        Ok(())
    }

    /// A connection takes its place in the table; a cookie may have opened it.
    fn open(
        &mut self,
        now_us: u64,
        tuple: Tuple,
        mut connection: tcp::Connection,
        cookie: Option<u32>,
    ) {
        let tls = self.secure_layer(now_us, tuple.local.port());
        if let Err(error) = &tls {
            tracing::error!(%error, "no TLS for a new connection: it is reset");
            connection.abort();
        }
        let route = self.neighbors.route(tuple.remote.ip());
        let index = self
            .connections
            .insert(connection, tuple, route, &self.nic_stacks);
        if let Some(entry) = self.connections.get_mut(index) {
            entry.tls = tls.ok().flatten();
            entry.cookie = cookie;
        }
        self.gate.unheard += 1;
        self.gate.sources.add(tuple.remote.ip());
        self.mark_dirty(index);
    }

    /// SYN,ACKs again, and the end of those that were never answered.
    pub(super) fn on_half_open_timeouts(&mut self, now_us: u64) {
        let now = Instant::from_us(now_us);
        while let Some((tuple, mut half_open)) = self.gate.syn_queue.take_due(now) {
            match half_open.on_timeout(&self.tcp_config(tuple.local)) {
                Some(syn_ack) => {
                    self.counters.retransmissions += 1;
                    self.gate.syn_queue.insert(tuple, half_open);
                    self.send_bare(now_us, tuple, &syn_ack);
                }
                None => self.counters.half_open_expired += 1,
            }
        }
    }

    /// A neighbour may have been found: SYN,ACKs that have waited for it.
    pub(super) fn retry_half_open(&mut self, now_us: u64) {
        for tuple in self.gate.syn_queue.take_waiting() {
            let config = self.tcp_config(tuple.local);
            let syn_ack = self
                .gate
                .syn_queue
                .get_mut(&tuple)
                .and_then(|half_open| half_open.syn_ack(&config));
            if let Some(header) = syn_ack
                && self.send_bare(now_us, tuple, &header) == Bare::Pending
            {
                self.gate.syn_queue.wait_for_neighbor(tuple);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_begins_once_and_ends_with_quiet() {
        let mut episode = Episode::default();
        assert!(episode.begins(5));
        for minute in 0..10 {
            assert!(!episode.begins(5 + minute * (QUIET_US - 1)));
        }
        assert!(episode.begins(5 + 9 * (QUIET_US - 1) + QUIET_US));
    }
}
