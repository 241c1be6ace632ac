//! What a connection does, packet by packet, for those who look into it: a trace, which is made
//! only of connections that someone wants one of.
//!
//! | File | What it has |
//! |---|---|
//! | this | the events, and the trace of one connection |
//! | `frames` | the frames of a plaintext |
//! | `ledger` | packets that are in flight, and which of them are lost |

mod frames;
mod ledger;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tcp::Instant;

pub use self::frames::TracedFrame;
use self::ledger::Ledger;
pub(crate) use self::ledger::Losses;
use crate::types::{CloseReason, Handle};

/// Something that a traced connection has done.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// The connection.
    pub connection: Handle,
    /// When.
    pub at: Instant,
    /// What.
    pub event: TraceEvent,
}

/// What a connection does. Names are those of draft-ietf-quic-qlog-quic-events.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// The trace begins.
    Started {
        /// The peer.
        remote: SocketAddr,
        /// Where it reaches this side.
        local_ip: Option<IpAddr>,
        /// The connection ID that the client has chosen for its first packet; `None` if the
        /// connection is older than its trace.
        original_id: Option<Vec<u8>>,
    },
    /// Transport parameters (RFC 9000 §18): ids and values, but for the token of stateless resets.
    Parameters {
        /// They are this side's.
        is_local: bool,
        /// In the order in which they were sent.
        parameters: Vec<(u64, Vec<u8>)>,
    },
    /// A packet got its number, and is to leave.
    Sent(TracedPacket),
    /// A packet was opened.
    Received(TracedPacket),
    /// A packet is found lost, by the time since it left (RFC 9002 §6.1.2).
    Lost {
        /// The kind of packet.
        packet_type: PacketType,
        /// Its number.
        number: u64,
        /// It was a probe for a larger MTU, whose loss is no sign of congestion.
        is_mtu_probe: bool,
    },
    /// What recovery goes by has changed.
    Metrics(Metrics),
    /// Congestion control is in another state.
    Congestion(CongestionState),
    /// Both sides' 1-RTT keys are others from here on.
    KeyUpdated {
        /// Counts updates: the first is 1.
        generation: u32,
    },
    /// The connection is over.
    Closed(CloseReason),
}

/// The kind of a packet. Each has a space of numbers of its own, but for 0-RTT packets, which share
/// that of 1-RTT packets (RFC 9000 §12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// Initial
    Initial,
    /// Handshake
    Handshake,
    /// 1-RTT
    OneRtt,
    /// 0-RTT, which only clients send
    ZeroRtt,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedPacket {
    /// Its kind.
    pub packet_type: PacketType,
    /// Its number, in full.
    pub number: u64,
    /// Its length with header and tag, in bytes.
    pub bytes: usize,
    /// Its frames, up to one that is not known. None if a NIC stack has opened it and left its ACK
    /// frame out, which is not counted in its length either: a packet behind it says all of it.
    pub frames: Vec<TracedFrame>,
}

/// The state of congestion control (RFC 9002 §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionState {
    /// The window is below its threshold, or there is none.
    SlowStart,
    /// The window has reached its threshold.
    Avoidance,
    /// A loss is being recovered from.
    Recovery,
}

/// What recovery goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// The shortest round-trip time.
    pub min_rtt: Duration,
    /// The congestion window, in bytes.
    pub congestion_window: u64,
    /// In bytes; `None` before there was congestion.
    pub ssthresh: Option<u64>,
    /// Bytes in flight, if the trace knows all packets that are.
    pub bytes_in_flight: Option<u64>,
    /// Bytes per second, if packets are paced by a rate.
    pub pacing_rate: Option<u64>,
}

/// The trace of one connection, which its keys and its endpoint share.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    events: Vec<TraceEvent>,
    ledger: Ledger,
    /// The key of the packet that was sent last.
    generation: u32,
    has_remote_parameters: bool,
    metrics: Option<Metrics>,
    congestion: Option<CongestionState>,
}

impl Trace {
    /// Of a connection that has been there: `generation` is that of its key, and it has given out
    /// all 1-RTT packet numbers below `next_number`.
    pub(crate) fn amid(generation: u32, next_number: u64) -> Self {
        Self {
            generation,
            ledger: Ledger::amid(next_number),
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, event: TraceEvent) {
        self.events.push(event);
    }

    /// A packet is to leave, of so many bytes with header and tag.
    pub(crate) fn on_sent(
        &mut self,
        (packet_type, number): (PacketType, u64),
        bytes: usize,
        plaintext: &[u8],
    ) {
        let frames = frames::parse(plaintext);
        self.ledger.on_sent(packet_type, number, bytes, &frames);
        self.push(TraceEvent::Sent(TracedPacket {
            packet_type,
            number,
            bytes,
            frames,
        }));
    }

    /// The key that seals what follows.
    pub(crate) fn on_key(&mut self, generation: u32) {
        if generation != self.generation {
            self.generation = generation;
            self.push(TraceEvent::KeyUpdated { generation });
        }
    }

    /// A packet was opened, of so many bytes with header and tag.
    pub(crate) fn on_received(
        &mut self,
        (packet_type, number): (PacketType, u64),
        bytes: usize,
        plaintext: &[u8],
    ) {
        let frames = frames::parse(plaintext);
        self.ledger.on_received(packet_type, &frames);
        self.push(TraceEvent::Received(TracedPacket {
            packet_type,
            number,
            bytes,
            frames,
        }));
    }

    /// Transport parameters, as they are encoded.
    pub(crate) fn on_parameters(&mut self, is_local: bool, encoded: &[u8]) {
        if !is_local && std::mem::replace(&mut self.has_remote_parameters, true) {
            return;
        }
        let parameters = frames::parameters(encoded);
        self.push(TraceEvent::Parameters {
            is_local,
            parameters,
        });
    }

    /// What the connection has come to by now: how much was lost so far, what recovery goes by, and
    /// the state of congestion control.
    pub(crate) fn on_state(
        &mut self,
        now: Instant,
        losses: Losses,
        mut metrics: Metrics,
        congestion: CongestionState,
    ) {
        let lost = self.ledger.on_losses(now, losses, metrics.smoothed_rtt);
        for (packet_type, number, is_mtu_probe) in lost {
            self.push(TraceEvent::Lost {
                packet_type,
                number,
                is_mtu_probe,
            });
        }
        metrics.bytes_in_flight = self.ledger.bytes_in_flight();
        if self.metrics != Some(metrics) {
            self.metrics = Some(metrics);
            self.push(TraceEvent::Metrics(metrics));
        }
        if self.congestion != Some(congestion) {
            self.congestion = Some(congestion);
            self.push(TraceEvent::Congestion(congestion));
        }
    }

    /// What was lost until the trace began is none of it.
    pub(crate) fn set_losses(&mut self, losses: Losses) {
        self.ledger.set_losses(losses);
    }

    pub(crate) fn take(&mut self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.events)
    }
}
