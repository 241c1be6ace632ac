//! What arrives through the port: frames, and the part of segment arrival that comes before any connection
//! (RFC 9293 §3.10.7).

use std::net::SocketAddr;

use port::Frame;
use tcp::{Instant, State};
use wire::frame::{self, Received, TcpTemplate};

use super::Stack;
use crate::connections::Tuple;
use crate::icmp;
use crate::neighbor::Resolution;
use crate::time_wait::Answer;

/// The last so many connections that were begun by a peer; those before them must be established.
const HALF_OPEN_MAX: usize = 4096;

impl Stack {
    /// A frame has arrived.
    pub fn on_frame(&mut self, now_us: u64, frame: Frame<'_>) {
        self.counters.frames_received += 1;
        match frame::parse(frame.bytes, frame.checksum_valid) {
            Ok(Received::Tcp(packet)) => {
                let local =
                    SocketAddr::new(packet.destination, packet.segment.header.destination_port);
                let remote = SocketAddr::new(packet.source, packet.segment.header.source_port);
                self.on_tcp(now_us, Tuple { local, remote }, &packet.segment);
            }
            Ok(Received::Arp(arp)) => {
                if let Some(reply) = self.neighbors.on_arp(now_us, &arp) {
                    self.frames.push_back(reply);
                }
                self.retry_waiting_neighbor();
            }
            Ok(Received::Icmp6(message)) if self.neighbors.takes(&message) => {
                if let Some(reply) = self.neighbors.on_ndisc(now_us, &message) {
                    self.frames.push_back(reply);
                }
                self.retry_waiting_neighbor();
            }
            Ok(other) => {
                if let Some(reply) =
                    icmp::reply(self.link.mac, &other, |ip| self.config.has_address(ip))
                {
                    self.frames.push_back(reply);
                }
            }
            Err(_) => self.counters.frames_malformed += 1,
        }
    }

    /// Segment arrival, RFC 9293 §3.10.7: the part that comes before any connection.
    fn on_tcp(&mut self, now_us: u64, tuple: Tuple, segment: &wire::tcp::Segment<'_>) {
        if !self.config.has_address(tuple.local.ip()) {
            return;
        }
        self.counters.segments_received += 1;
        let now = Instant::from_us(now_us);
        if let Some(index) = self.connections.find(&tuple)
            && let Some(entry) = self.connections.get_mut(index)
        {
            if !entry.tcp.may_be_replaced_by(segment) {
                entry.tcp.on_segment(now, segment);
                self.mark_dirty(index);
                return;
            }
            self.forget(index);
        }
        let mut isn = self.isn.isn(tuple.local, tuple.remote, now);
        match self.time_waits.on_segment(now, &tuple, segment) {
            Answer::Unknown => {}
            Answer::Replaced(old) => isn = old.isn_beyond(isn),
            Answer::Handled(None) => return,
            Answer::Handled(Some(header)) => return self.send_bare(now_us, tuple, &header),
        }
        if self.is_listening(tuple.local) {
            let header = &segment.header;
            let is_syn = header.flags.contains(wire::tcp::Flags::SYN)
                && !header.flags.contains(wire::tcp::Flags::ACK);
            if is_syn && self.connections.len() >= self.config.connections_max {
                self.counters.connections_refused += 1;
                return;
            }
            let config = match tuple.local {
                SocketAddr::V4(_) => &self.tcp_config_v4,
                SocketAddr::V6(_) => &self.tcp_config_v6,
            };
            let ts_offset = self.isn.ts_offset(tuple.local, tuple.remote);
            if let Some(connection) = tcp::Connection::accept(config, segment, isn, ts_offset, now)
            {
                let next_hop = self.neighbors.next_hop(tuple.remote.ip());
                let index = self
                    .connections
                    .insert(connection, tuple, next_hop, self.nics.len());
                self.mark_dirty(index);
                self.bound_half_open(index);
                return;
            }
        }
        if let Some(reset) = tcp::reset_for(segment) {
            self.counters.resets_sent += 1;
            self.send_bare(now_us, tuple, &reset);
        }
    }

    /// Notes a half-open connection, and gives up the oldest one if there are too many: a flood of SYNs costs
    /// others their patience, not their place.
    fn bound_half_open(&mut self, index: usize) {
        if let Some(entry) = self.connections.get(index) {
            self.half_open.push_back(entry.stream);
        }
        if self.half_open.len() <= HALF_OPEN_MAX {
            return;
        }
        // Most have long been accepted, or are gone.
        let oldest = self
            .half_open
            .pop_front()
            .and_then(|oldest| self.connections.index_of(oldest));
        if let Some(index) = oldest
            && let Some(entry) = self.connections.get(index)
            && entry.tcp.state() == State::SynReceived
        {
            self.counters.connections_refused += 1;
            self.forget(index);
        }
    }

    fn is_listening(&self, local: SocketAddr) -> bool {
        self.config.listen_ports.contains(&local.port())
    }

    /// Sends a segment without data that belongs to no connection of the table. It is not worth waiting
    /// for a neighbour.
    fn send_bare(&mut self, now_us: u64, tuple: Tuple, header: &wire::tcp::Header) {
        let next_hop = self.neighbors.next_hop(tuple.remote.ip());
        let Resolution::Known(destination_mac) = self.neighbors.resolve(now_us, next_hop) else {
            return;
        };
        let mut buffer = [0; contract::limits::HEADER_BYTES_MAX];
        let template = TcpTemplate::new(self.link.mac, destination_mac, tuple.local, tuple.remote);
        let Some(length) = template.write(header, &mut buffer) else {
            return;
        };
        let frame = &mut buffer[..length];
        if frame::complete_checksum(frame, []).is_ok() {
            self.frames.push_back(frame.to_vec());
        }
    }
}
